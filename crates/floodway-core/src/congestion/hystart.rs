//! HyStart++: leave slow start before it overshoots (RFC 9406).
//!
//! # Theory of operation
//! **Goal.** Plain slow start ends by losing up to half a window. A queue that builds up shows
//! earlier, as a growing round trip.
//!
//! **States.** *Slow start*: after eight samples of a round, if the round's smallest round trip exceeds
//! that of the round before by an eighth (at least 4 ms, at most 16 ms), go to *conservative slow
//! start* (CSS), which grows by a quarter. There, if the smallest round trip of a round falls below
//! the one that led there, the rise was jitter: back to slow start. After five rounds (the one in
//! which CSS began counts) slow start is over: `ssthresh = cwnd`.
//!
//! Only the first slow start of a flow is watched, the one without a threshold (RFC 9406 section 4.3):
//! later ones end at the threshold that was found. A loss or mark ends it by setting one.
//!
//! **Departures.** No limit on the growth per ACK (`L` of the RFC is infinite), as everywhere in this
//! module's family. And a sample counts for as many as the ACK stands for: a peer that coalesces
//! sends one ACK for 44 segments where the RFC expects 22, and would never reach eight in a round.
//! Each two segments that an ACK covers count as one sample, up to four, so a verdict
//! still rests on two ACKs. For a peer that acknowledges every second segment nothing changes.
//!
//! Invariant: it only ever slows growth down, and sets `ssthresh` at most once.

use serde::{Deserialize, Serialize};

use super::{Ack, Round, Window};
use crate::rtt::micros;

const N_RTT_SAMPLE: u8 = 8;
const MIN_RTT_THRESH_US: u32 = 4_000;
const MAX_RTT_THRESH_US: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;
/// Most samples that one ACK counts for.
const MAX_WEIGHT: u32 = 4;
/// No sample yet.
const INFINITE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Off,
    SlowStart,
    Conservative,
}

/// State of the slow start of one flow. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HyStart {
    round: Round,
    last_round_min: u32,
    current_round_min: u32,
    css_baseline_min: u32,
    samples: u8,
    css_rounds: u8,
    phase: Phase,
}

const _: () = assert!(size_of::<HyStart>() <= 20);

impl HyStart {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            round: Round::default(),
            last_round_min: INFINITE,
            current_round_min: INFINITE,
            css_baseline_min: INFINITE,
            samples: 0,
            css_rounds: 0,
            phase: if enabled { Phase::SlowStart } else { Phase::Off },
        }
    }

    /// Returns `false` if a stranger has written it.
    pub(super) fn is_possible(&self) -> bool {
        self.css_rounds <= CSS_ROUNDS
    }

    /// It was not switched off.
    pub(super) fn is_on(&self) -> bool {
        self.phase != Phase::Off
    }

    /// Slow start's part of an ACK. Gives back the bytes that are left for congestion avoidance.
    #[inline]
    pub(super) fn on_ack(&mut self, ack: &Ack, w: &mut Window) -> u32 {
        let bytes = ack.growth(w);
        if !w.in_slow_start() {
            return bytes;
        }
        if self.phase != Phase::Off && w.ssthresh == u32::MAX {
            self.watch(ack, w);
        }
        match self.phase {
            // Over as of this ACK: it is not to grow the window in two ways.
            _ if !w.in_slow_start() => 0,
            Phase::Conservative if w.ssthresh == u32::MAX => {
                w.grow(bytes / CSS_GROWTH_DIVISOR);
                0
            }
            _ => w.grow_to_ssthresh(bytes),
        }
    }

    fn watch(&mut self, ack: &Ack, w: &mut Window) {
        if self.round.ended(ack) {
            self.next_round(w);
        }
        let Some(rtt) = ack.rtt else { return };
        self.current_round_min = self.current_round_min.min(micros(rtt));
        let weight = ack.bytes_acked.div_ceil(w.segments(2)).clamp(1, MAX_WEIGHT) as u8;
        self.samples = self.samples.saturating_add(weight);
        if self.samples >= N_RTT_SAMPLE {
            self.judge();
        }
    }

    fn next_round(&mut self, w: &mut Window) {
        self.last_round_min = self.current_round_min;
        self.current_round_min = INFINITE;
        self.samples = 0;
        if self.phase == Phase::Conservative {
            self.css_rounds += 1;
            if self.css_rounds >= CSS_ROUNDS {
                w.set_ssthresh(w.cwnd);
                self.phase = Phase::SlowStart;
            }
        }
    }

    fn judge(&mut self) {
        match self.phase {
            Phase::SlowStart if self.risen() => {
                self.css_baseline_min = self.current_round_min;
                self.css_rounds = 0;
                self.phase = Phase::Conservative;
            }
            Phase::Conservative if self.current_round_min < self.css_baseline_min => {
                self.css_baseline_min = INFINITE;
                self.phase = Phase::SlowStart;
            }
            _ => {}
        }
    }

    fn risen(&self) -> bool {
        if self.last_round_min == INFINITE || self.current_round_min == INFINITE {
            return false;
        }
        let eta =
            (self.last_round_min / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
        self.current_round_min >= self.last_round_min.saturating_add(eta)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reno::Reno;
    use super::super::tests::{Path, segments};
    use super::super::{CongestionControl, Window};

    /// Window in segments after each round trip of the given length in milliseconds.
    fn windows(w: &mut Window, reno: &mut Reno, path: &mut Path, rtts_ms: &[u64]) -> Vec<u32> {
        let round = |&ms| {
            path.round(reno, w, ms);
            w.cwnd / 1000
        };
        rtts_ms.iter().map(round).collect()
    }

    #[test]
    fn a_rise_by_an_eighth_makes_it_conservative_and_five_rounds_end_it() {
        let (mut reno, mut w) = (Reno::new(true), segments(16, u32::MAX));
        let mut path = Path::default();
        // 80 ms / 8 = 10 ms: 89 ms is no rise. 89 ms / 8 = 11.1 ms: 101 ms is one.
        assert_eq!(windows(&mut w, &mut reno, &mut path, &[80, 89]), [32, 64]);
        path.round(&mut reno, &mut w, 101);
        // Seven segments before the eighth sample at full growth, 57 at a quarter.
        assert_eq!(w.cwnd, 64_000 + 7_000 + 57 * 250);
        let at_css = w.cwnd;
        path.round(&mut reno, &mut w, 120);
        assert!(w.cwnd.abs_diff(at_css * 5 / 4) <= 1000, "a quarter per round: {}", w.cwnd);
        path.round(&mut reno, &mut w, 120);
        path.round(&mut reno, &mut w, 120);
        assert_eq!(w.ssthresh, u32::MAX);
        // The end of the fifth round is the first ACK of the sixth.
        path.round(&mut reno, &mut w, 120);
        let reached = w.cwnd;
        assert_eq!(w.ssthresh, u32::MAX);
        path.round(&mut reno, &mut w, 120);
        assert!(w.ssthresh.abs_diff(reached) <= 1000, "{w:?} {reached}");
        assert!(w.cwnd <= w.ssthresh + 1000, "then congestion avoidance");
    }

    #[test]
    fn a_fall_of_the_round_trip_resumes_slow_start() {
        let (mut reno, mut w) = (Reno::new(true), segments(16, u32::MAX));
        let mut path = Path::default();
        windows(&mut w, &mut reno, &mut path, &[20, 20, 30]);
        let conservative = w.cwnd;
        path.round(&mut reno, &mut w, 20);
        // Seven segments at a quarter, then as before.
        let expected = conservative + 7 * 250 + (conservative / 1000 - 7) * 1000;
        assert!(w.cwnd.abs_diff(expected) <= 1000, "{} {expected}", w.cwnd);
        let resumed = w.cwnd;
        path.round(&mut reno, &mut w, 20);
        assert!(w.cwnd.abs_diff(2 * resumed) <= 1000);
        assert_eq!(w.ssthresh, u32::MAX);
    }

    #[test]
    fn the_threshold_has_a_floor_and_a_ceiling() {
        let grown = |rtts: &[u64]| {
            let (mut reno, mut w) = (Reno::new(true), segments(16, u32::MAX));
            windows(&mut w, &mut reno, &mut Path::default(), rtts)
        };
        assert_eq!(grown(&[1, 4]), [32, 64], "3 ms is less than the floor");
        assert!(grown(&[1, 5])[1] < 64, "4 ms is the floor");
        assert_eq!(grown(&[400, 415]), [32, 64], "15 ms is less than the ceiling");
        assert!(grown(&[400, 416])[1] < 64, "16 ms is the ceiling, though 400 / 8 = 50");
    }

    #[test]
    fn switched_off_it_is_plain_slow_start() {
        let (mut reno, mut w) = (Reno::new(false), segments(16, u32::MAX));
        let grown = windows(&mut w, &mut reno, &mut Path::default(), &[1, 50, 100, 200]);
        assert_eq!(grown, [32, 64, 128, 256]);
    }

    #[test]
    fn two_acks_of_gso_packets_are_enough_one_is_not() {
        let conservative = |acks_per_round: u32| {
            let (mut reno, mut w) = (Reno::new(true), segments(88, u32::MAX));
            let mut path = Path { stretch: 88 / acks_per_round, ..Path::default() };
            path.round(&mut reno, &mut w, 10);
            w.cwnd = 88_000;
            path.round(&mut reno, &mut w, 30);
            w.cwnd < 176_000
        };
        assert!(conservative(2) && !conservative(1));
    }

    #[test]
    fn later_slow_starts_are_not_watched() {
        let (mut reno, mut w) = (Reno::new(true), segments(16, 1000));
        let grown = windows(&mut w, &mut reno, &mut Path::default(), &[1, 50, 100, 200]);
        assert_eq!(grown, [32, 64, 128, 256]);
        let _: &dyn CongestionControl = &reno;
    }
}
