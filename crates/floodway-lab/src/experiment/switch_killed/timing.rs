//! A sender's timers, as a capture at its card shows them: when it may send although its window is closed.
//!
//! - A *tail loss probe* (RFC 8985, section 7) is one segment, whatever the window is, when nothing was sent or heard for twice the smoothed round trip; there is no
//!   other one before it is acknowledged.
//! - A *retransmission timeout* (RFC 6298) comes no sooner than the smoothed round trip and Linux' least variance after the first unacknowledged byte
//!   became that, or was sent again.
//!
//! The round trip is measured here, by one segment at a time that was not sent again (Karn). It differs a little from the sender's own, so a silence counts from
//! three quarters of what a probe takes on.

/// `TCP_RTO_MIN` of Linux, by which a timeout exceeds the smoothed round trip at least.
const LEAST_VARIANCE_NS: i64 = 200_000_000;
/// How much sooner a timeout may seem to come: times are those of the card, and moved back by up to this much.
const SLACK_NS: i64 = 5_000_000;

#[derive(Debug)]
pub struct Timing {
    /// Smoothed and shortest round trip; none before the first.
    round_trip: Option<(i64, i64)>,
    /// End of what is timed, and when it was sent.
    timed: Option<(u32, i64)>,
    /// When something was sent or heard last.
    latest_ns: i64,
    /// When the first unacknowledged byte became that, or was sent again.
    first_ns: i64,
    /// End of the latest probe, if it is not acknowledged.
    probe: Option<u32>,
}

/// How long a sender had to wait for what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Long enough for a tail loss probe, and there is none.
    pub for_probe: bool,
    /// Long enough for a retransmission timeout.
    pub for_timeout: bool,
}

impl Timing {
    /// A SYN was sent. It is one byte, and the first.
    pub fn new(syn_ns: i64) -> Self {
        Self {
            round_trip: None,
            timed: Some((1, syn_ns)),
            latest_ns: syn_ns,
            first_ns: syn_ns,
            probe: None,
        }
    }

    /// Something is sent. Returns what it may be due to.
    pub fn sends(&mut self, at_ns: i64) -> Waited {
        let silence_ns = at_ns - self.latest_ns;
        self.latest_ns = at_ns;
        let (smoothed, _) = self.round_trip.unwrap_or((i64::MAX / 4, 0));
        let timeout_ns = smoothed.saturating_add(LEAST_VARIANCE_NS - SLACK_NS);
        Waited {
            for_probe: self.probe.is_none() && 2 * silence_ns >= 3 * smoothed,
            for_timeout: at_ns - self.first_ns >= timeout_ns,
        }
    }

    /// What is sent ends at `end` and is new; `is_first` when nothing else is unacknowledged.
    pub fn sends_new(&mut self, end: u32, is_first: bool, at_ns: i64) {
        if is_first {
            self.first_ns = at_ns;
        }
        self.timed.get_or_insert((end, at_ns));
    }

    /// What is sent begins at `start` and was sent before; `is_first` when it begins with the first unacknowledged byte.
    pub fn sends_again(&mut self, start: u32, is_first: bool, at_ns: i64) {
        if is_first {
            self.first_ns = at_ns;
        }
        self.timed = self.timed.filter(|(end, _)| *end <= start);
    }

    /// What is sent is a probe that ends at `end`.
    pub fn probes(&mut self, end: u32) {
        self.probe = Some(end);
    }

    /// Something was heard.
    pub fn hears(&mut self, at_ns: i64) {
        self.latest_ns = at_ns;
    }

    /// All before `ack` is acknowledged, `advances` when more than before.
    pub fn acknowledged(&mut self, ack: u32, advances: bool, at_ns: i64) {
        if advances {
            self.first_ns = at_ns;
        }
        self.probe = self.probe.filter(|end| *end > ack);
        if let Some((_, sent_ns)) = self.timed.take_if(|(end, _)| *end <= ack) {
            let sample = at_ns - sent_ns;
            self.round_trip = Some(match self.round_trip {
                None => (sample, sample),
                Some((smoothed, least)) => (smoothed + (sample - smoothed) / 8, least.min(sample)),
            });
        }
    }

    /// Returns the shortest round trip; 0 before the first.
    pub fn least_ns(&self) -> i64 {
        self.round_trip.map_or(0, |(_, least)| least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn connected() -> Timing {
        let mut timing = Timing::new(0);
        timing.hears(20 * MS);
        timing.acknowledged(1, true, 20 * MS);
        timing
    }

    #[test]
    fn a_probe_comes_after_a_silence_and_is_the_only_one() {
        let mut timing = connected();
        timing.sends_new(100, true, 20 * MS);
        assert!(!timing.sends(49 * MS).for_probe);
        assert!(timing.sends(79 * MS).for_probe, "30 ms after what was sent last");
        timing.probes(200);
        assert!(!timing.sends(200 * MS).for_probe);
        timing.hears(210 * MS);
        timing.acknowledged(100, true, 210 * MS);
        assert!(!timing.sends(900 * MS).for_probe, "not acknowledged");
        timing.acknowledged(200, true, 901 * MS);
        assert!(timing.sends(1_900 * MS).for_probe);
    }

    #[test]
    fn a_timeout_counts_from_the_first_unacknowledged_byte() {
        let mut timing = connected();
        timing.sends_new(100, true, 30 * MS);
        timing.sends_new(200, false, 100 * MS);
        assert!(!timing.sends(240 * MS).for_timeout);
        assert!(timing.sends(246 * MS).for_timeout);
        timing.sends_again(1, true, 246 * MS);
        assert!(!timing.sends(450 * MS).for_timeout);
        timing.acknowledged(200, true, 300 * MS);
        assert_eq!(timing.least_ns(), 20 * MS, "what was sent again is not timed");
        assert!(!timing.sends(514 * MS).for_timeout && timing.sends(516 * MS).for_timeout);
    }

    #[test]
    fn nothing_waits_long_enough_before_a_round_trip_is_known() {
        let waited = Timing::new(0).sends(3_600_000 * MS);
        assert_eq!(waited, Waited { for_probe: false, for_timeout: false });
    }
}
