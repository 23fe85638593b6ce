//! Vegas: congestion shows as delay before it shows as loss.
//!
//! # Theory of operation
//! L. Brakmo and L. Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", IEEE
//! JSAC 13(8), 1995.
//!
//! **Goal.** Keep a few segments in the bottleneck's queue: enough to use it, too few to overflow it.
//!
//! Once per round trip, `diff = cwnd * (rtt - base_rtt) / rtt` is what the window holds in queues. `base_rtt`
//! is the smallest round trip ever seen, `rtt` the smallest of the round: the minimum filters what delayed
//! ACKs add. In congestion avoidance, less than `alpha` = 2 segments adds one MSS, more than `beta` = 4 takes
//! one away, anything between changes nothing.
//!
//! Slow start doubles in every other round trip and holds still in between, so that the comparison is
//! of one window; more than `gamma` = 1 segment ends it, with the window that the path was seen to carry
//! plus one segment.
//!
//! Loss and marks halve the window as in Reno; the finer retransmission of the paper is the sender's business
//! and was overtaken by SACK and RACK. `base_rtt` starts anew after idle time, since the path may have changed
//! (as Linux does). A round without a sample, or whose end was not limited by the window, changes
//! nothing: its rate says nothing about the window.
//!
//! Invariants: at most one MSS of change per round in congestion avoidance; never below two MSS by
//! its own decision.

use serde::{Deserialize, Serialize};

use super::{Ack, CongestionControl, Round, Window};
use crate::rtt::micros;

const ALPHA: u32 = 2;
const BETA: u32 = 4;
const GAMMA: u32 = 1;
/// No sample yet.
const INFINITE: u32 = u32::MAX;

/// State of Vegas. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vegas {
    round: Round,
    base_rtt: u32,
    round_min: u32,
    /// This round of slow start grows; the next one holds still.
    growing: bool,
}

impl Default for Vegas {
    fn default() -> Self {
        Self { round: Round::default(), base_rtt: INFINITE, round_min: INFINITE, growing: false }
    }
}

impl CongestionControl for Vegas {
    fn start(_hystart: bool) -> Self {
        Self::default()
    }

    fn on_ack(&mut self, ack: &Ack, w: &mut Window) {
        if self.round.ended(ack) {
            self.end_round(ack, w);
            self.round_min = INFINITE;
        }
        if let Some(rtt) = ack.rtt {
            let rtt = micros(rtt).max(1);
            self.base_rtt = self.base_rtt.min(rtt);
            self.round_min = self.round_min.min(rtt);
        }
        if w.in_slow_start() && self.growing {
            w.grow_to_ssthresh(ack.growth(w));
        }
    }

    fn is_possible(&self) -> bool {
        0 < self.base_rtt && self.base_rtt <= self.round_min
    }

    fn on_idle(&mut self) {
        *self = Self::default();
    }
}

impl Vegas {
    fn end_round(&mut self, ack: &Ack, w: &mut Window) {
        let starting = w.in_slow_start();
        if starting {
            self.growing = !self.growing;
        }
        if self.round_min == INFINITE || !ack.cwnd_limited {
            return;
        }
        let carried = u64::from(w.cwnd) * u64::from(self.base_rtt) / u64::from(self.round_min);
        // The base is a minimum over more than this round: not more than `cwnd`.
        let carried = carried as u32;
        let diff = w.cwnd - carried;
        if starting {
            if diff > w.segments(GAMMA) {
                lower(w, carried.saturating_add(w.mss()));
                self.growing = false;
            }
        } else if diff > w.segments(BETA) {
            lower(w, w.cwnd.saturating_sub(w.mss()));
        } else if diff < w.segments(ALPHA) && ack.growth(w) > 0 {
            w.grow(w.mss());
        }
    }
}

/// Lowers `cwnd`, and `ssthresh` with it: otherwise it would be slow start again.
fn lower(w: &mut Window, bytes: u32) {
    w.lower_cwnd(bytes.max(w.segments(2)));
    w.set_ssthresh(w.ssthresh.min(w.cwnd));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Path, segments};
    use super::*;

    fn after(rounds: &[u64], cwnd: u32, ssthresh: u32) -> Window {
        let (mut vegas, mut w) = (Vegas::default(), segments(cwnd, ssthresh));
        let mut path = Path::default();
        for &rtt in rounds {
            path.round(&mut vegas, &mut w, rtt);
        }
        w
    }

    #[test]
    fn slow_start_doubles_every_other_round() {
        let windows = [1, 2, 3, 4, 5].map(|n| after(&[100; 5][..n], 4, u32::MAX).cwnd / 1000);
        assert_eq!(windows, [8, 8, 16, 16, 32]);
    }

    #[test]
    fn slow_start_ends_at_the_rate_that_was_carried() {
        // 16 segments at 125 ms over a base of 100 ms: 16 * 100 / 125 = 12.8, diff 3.2 > 1.
        let w = after(&[100, 100, 100, 100, 125, 125], 4, u32::MAX);
        assert!(!w.in_slow_start() && w.cwnd < 32_000);
        // 16 at 115 ms: 13.913 carried and 2.1 queued, at 106 ms 0.9 queued.
        let w = after(&[100, 100, 100, 115, 115], 4, u32::MAX);
        assert_eq!(w.ssthresh, 14_913);
        assert!(after(&[100, 100, 100, 106, 106], 4, u32::MAX).in_slow_start());
    }

    /// A round's verdict falls on the first ACK of the next one: the last round given has none.
    #[test]
    fn avoidance_keeps_two_to_four_segments_in_the_queue() {
        // 20 segments over 100 ms. 110 ms: 20 * 10 / 110 = 1.8 segments queued.
        assert_eq!(after(&[100, 100], 20, 20).cwnd, 21_000, "nothing queued");
        assert_eq!(after(&[100, 110, 110], 20, 20).cwnd, 22_000, "1.9 of 21 queued");
        assert_eq!(after(&[100, 115, 115], 20, 20).cwnd, 21_000, "2.7 of 21 queued");
        assert_eq!(after(&[100, 130, 130], 20, 20).cwnd, 20_000, "4.8 of 21 queued");
        assert_eq!(after(&[100, 130, 130, 130], 20, 20).cwnd, 19_000, "4.6 of 20 queued");
    }

    #[test]
    fn backing_off_stops_at_two_segments() {
        let rounds: Vec<u64> = [100].into_iter().chain([10_000; 60]).collect();
        let w = after(&rounds, 20, 20);
        // 4 segments and a little more are the least window that can hold 4 in a queue.
        assert!(w.cwnd <= 5_000 && w.cwnd >= 2_000 && !w.in_slow_start(), "{w:?}");
    }

    #[test]
    fn a_round_that_was_not_limited_changes_nothing() {
        for rtt in [100, 400] {
            let (mut vegas, mut w) = (Vegas::default(), segments(20, 20));
            let mut path = Path { limited: false, ..Path::default() };
            for rtt in [100, rtt, rtt, rtt] {
                path.round(&mut vegas, &mut w, rtt);
            }
            assert_eq!(w, segments(20, 20));
        }
    }
}
