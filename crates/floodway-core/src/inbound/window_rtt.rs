//! How long it takes from an advance of the right edge to the data that it let through.
//!
//! A sender that had room for a segment below the old edge and was silent for longer than the round trip had nothing to say: what it sends
//! then came late for reasons of its own, and is no sample. Without that, the pause between a request's reply and the next
//! would count as the network's, and all replies to one request would have windows for it at the same time.

use crate::rtt::RttEstimator;
use crate::seq::Seq;
use crate::time::{Duration, Instant};

/// The round trip in the network, seen from the switch.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowRtt {
    network: RttEstimator,
    /// An edge that was passed by a newer one at that time: the first data beyond it was let through then.
    edge: Option<(Seq, Instant)>,
    /// When new data came last.
    last: Option<Instant>,
}

impl WindowRtt {
    /// The handshake took this long in the network.
    pub fn handshake(&mut self, took: Duration, now: Instant) {
        self.network.sample(took, now);
    }

    /// The edge has left `old` behind.
    pub fn advanced(&mut self, old: Seq, now: Instant) {
        if self.edge.is_none() {
            self.edge = Some((old, now));
        }
    }

    /// New data from `begin` to `end` has arrived; its sender would have sent `segment` bytes if there had been room.
    pub fn arrived(&mut self, begin: Seq, end: Seq, segment: u32, now: Instant) {
        let silent = self.last.replace(now).map_or(Duration::ZERO, |last| now.since(last));
        let Some((old, at)) = self.edge else { return };
        let had_room = old.since(begin) >= segment;
        if had_room && self.network.srtt().is_some_and(|srtt| silent > 2 * srtt) {
            self.edge = None;
        } else if end.after(old) {
            self.network.sample(now.since(at), now);
            self.edge = None;
        }
    }

    /// The shortest round trip seen; zero before the first.
    pub fn least(&self) -> Duration {
        self.network.min_rtt().unwrap_or(Duration::ZERO)
    }

    /// The round trip. Queueing in the network counts up to `queueing`. Zero before the first sample.
    pub fn total(&self, queueing: Duration) -> Duration {
        match (self.network.srtt(), self.network.min_rtt()) {
            (Some(smoothed), Some(least)) => smoothed.min(least + queueing),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    fn rounds(time: &mut WindowRtt, network_us: u64) {
        for round in 0..100 {
            let base = Seq(1000 * round);
            let at = Instant::from_millis(1) + US(network_us * u64::from(round));
            time.advanced(base, at);
            // What was let through before does not count.
            time.arrived(base - 1000, base, 1000, at + US(network_us / 2));
            time.arrived(base, base + 1000, 1000, at + US(network_us));
        }
    }

    #[test]
    fn from_the_edge_to_what_it_let_through() {
        let mut time = WindowRtt::default();
        assert_eq!(time.total(US(100)), Duration::ZERO);
        time.handshake(US(300), Instant::ZERO);
        assert_eq!(time.total(US(100)), US(300));
        rounds(&mut time, 200);
        assert!(time.total(US(100)) <= US(201));
    }

    #[test]
    fn a_sender_that_had_nothing_to_say_says_nothing_of_the_network() {
        let mut time = WindowRtt::default();
        rounds(&mut time, 200);
        let before = time.total(US(5000));
        for pause in 1..100 {
            let (base, at) =
                (Seq(200_000 + 3000 * pause), Instant::from_millis(1000 + 20 * u64::from(pause)));
            // The edge moves on when the last of a reply is acknowledged; the next reply comes much later.
            time.advanced(base + 1000, at);
            time.arrived(base, base + 1000, 1000, at + Duration::from_millis(5));
            time.arrived(base + 1000, base + 3000, 1000, at + Duration::from_millis(5));
        }
        assert_eq!(time.total(US(5000)), before);
    }

    #[test]
    fn a_queue_counts_only_as_far_as_it_may() {
        let mut time = WindowRtt::default();
        time.handshake(US(200), Instant::ZERO);
        rounds(&mut time, 900);
        assert_eq!(time.total(US(300)), US(500));
        assert!(time.total(US(5000)) > US(850));
    }
}
