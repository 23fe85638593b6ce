//! Reno and NewReno.
//!
//! # Theory of operation
//! RFC 5681. Slow start adds the bytes that are acknowledged; congestion avoidance adds one MSS for
//! each window of bytes that is acknowledged; a loss or a mark halves the window, not below two MSS.
//! There is no limit on the growth per ACK (RFC 3465 has two MSS in slow start), since a peer with
//! receive coalescing acknowledges 64 KB at a time.
//!
//! Both algorithms share this response. They differ in how fast recovery ends for a peer without SACK, which
//! is the sender's business: see [`PartialAck`](super::PartialAck).

use serde::{Deserialize, Serialize};

use super::hystart::HyStart;
use super::{Ack, CongestionControl, PartialAck, Window};

/// State of Reno.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reno {
    slow_start: HyStart,
    increase: AdditiveIncrease,
}

impl Reno {
    /// Before the first ACK; `hystart` switches HyStart++ on.
    #[must_use]
    pub fn new(hystart: bool) -> Self {
        Self { slow_start: HyStart::new(hystart), increase: AdditiveIncrease::default() }
    }
}

impl CongestionControl for Reno {
    fn start(hystart: bool) -> Self {
        Self::new(hystart)
    }

    fn partial_ack(&self) -> PartialAck {
        PartialAck::EndsRecovery
    }

    fn is_possible(&self) -> bool {
        self.slow_start.is_possible()
    }

    #[inline]
    fn on_ack(&mut self, ack: &Ack, w: &mut Window) {
        let rest = self.slow_start.on_ack(ack, w);
        self.increase.on_ack(rest, w);
    }
}

/// State of NewReno.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewReno(Reno);

impl CongestionControl for NewReno {
    fn start(hystart: bool) -> Self {
        Self(Reno::new(hystart))
    }

    fn is_possible(&self) -> bool {
        self.0.is_possible()
    }

    #[inline]
    fn on_ack(&mut self, ack: &Ack, w: &mut Window) {
        self.0.on_ack(ack, w);
    }
}

/// One MSS for each window that is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdditiveIncrease {
    /// Bytes acknowledged since the last increase, less than `cwnd`.
    acked: u32,
    /// `cwnd` when they were counted.
    of: u32,
}

impl AdditiveIncrease {
    #[inline]
    pub(super) fn on_ack(&mut self, bytes: u32, w: &mut Window) {
        // What was counted towards a larger window is worth nothing in a smaller one (Linux `snd_cwnd_cnt`).
        let counted = if w.cwnd < self.of { 0 } else { self.acked };
        self.acked = counted.saturating_add(bytes);
        if bytes > 0 && self.acked >= w.cwnd {
            let windows = self.acked / w.cwnd.max(1);
            self.acked -= windows * w.cwnd;
            w.grow(w.segments(windows));
        }
        self.of = w.cwnd;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Path, ack, segments};
    use super::*;

    #[test]
    fn slow_start_doubles_per_round_trip() {
        let (mut reno, mut w) = (Reno::new(false), segments(10, u32::MAX));
        let mut path = Path::default();
        for expected in [20, 40, 80, 160] {
            path.round(&mut reno, &mut w, 100);
            assert_eq!(w.cwnd, expected * 1000);
        }
    }

    #[test]
    fn avoidance_adds_one_mss_per_round_trip() {
        let (mut reno, mut w) = (Reno::new(true), segments(10, 10));
        let mut path = Path::default();
        for expected in 11..40 {
            path.round(&mut reno, &mut w, 100);
            assert_eq!(w.cwnd, expected * 1000);
        }
    }

    #[test]
    fn whole_windows_in_one_ack_count_in_full() {
        let mut w = segments(8, 12);
        let mut reno = Reno::new(false);
        // Eight segments: four of them reach ssthresh, the other four are a third of a window.
        reno.on_ack(&ack(8000, &w), &mut w);
        assert_eq!(w.cwnd, 12_000);
        reno.on_ack(&ack(7999, &w), &mut w);
        assert_eq!(w.cwnd, 12_000);
        reno.on_ack(&ack(1, &w), &mut w);
        assert_eq!(w.cwnd, 13_000);
    }

    /// RFC 5681 section 3.1: one MSS per round trip, also in the first one after a reduction.
    #[test]
    fn what_was_counted_before_a_reduction_does_not_count_after_it() {
        let (mut reno, mut w) = (Reno::new(false), segments(20, 10));
        reno.on_ack(&ack(19_000, &w), &mut w);
        (w.cwnd, w.ssthresh) = (10_000, 10_000);
        reno.on_ack(&ack(9_000, &w), &mut w);
        assert_eq!(w.cwnd, 10_000);
        reno.on_ack(&ack(1_000, &w), &mut w);
        assert_eq!(w.cwnd, 11_000);
    }

    #[test]
    fn after_a_timeout_a_jump_over_arrived_data_counts_what_was_in_flight() {
        let mut w = segments(1, 20);
        let mut reno = Reno::new(false);
        reno.on_ack(&Ack { flight: 1000, ..ack(500_000, &w) }, &mut w);
        assert_eq!(w.cwnd, 2000);
    }
}
