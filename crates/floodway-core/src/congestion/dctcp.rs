//! Data Center TCP (RFC 8257).
//!
//! # Theory of operation
//! **Goal.** Short queues where switches mark early (ECN at a low threshold): the reduction follows how much
//! was marked, not whether something was.
//!
//! Per window of data, `M` is the part of the acknowledged bytes that was marked, and
//! `alpha = (1 - g) * alpha + g * M` with `g` = 1/16. A mark lowers the window by `alpha / 2`, once per window
//! ([`Controller`](super::Controller) sees to that). `alpha` starts at 1: until there is an estimate, a mark halves
//! (section 4.2 of the RFC).
//!
//! Loss is Reno's business (section 3.5), even in a round trip in which a mark has lowered the window
//! by a little, and so is growth. HyStart++ is off: marks end slow start.
//!
//! `alpha` is in parts of 2^20. A step of a sixteenth rounds to nothing only below 16 of those parts, so a
//! path without marks gets within 0.002 % of zero.
//!
//! Invariant: `0 <= alpha <= 1`.

use serde::{Deserialize, Serialize};

use super::reno::AdditiveIncrease;
use super::{Ack, Congestion, CongestionControl, Round, Window};

/// `alpha` = 1.
const ONE: u32 = 1 << 20;
/// log2 of 1/g.
const G_SHIFT: u32 = 4;

/// State of DCTCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dctcp {
    increase: AdditiveIncrease,
    round: Round,
    alpha: u32,
    acked: u32,
    marked: u32,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self {
            increase: AdditiveIncrease::default(),
            round: Round::default(),
            alpha: ONE,
            acked: 0,
            marked: 0,
        }
    }
}

impl CongestionControl for Dctcp {
    fn start(_hystart: bool) -> Self {
        Self::default()
    }

    fn counts_marks() -> bool {
        true
    }

    fn marked_part(&self) -> Option<u32> {
        Some(self.alpha)
    }

    fn on_ack(&mut self, ack: &Ack, w: &mut Window) {
        self.acked = self.acked.saturating_add(ack.bytes_acked);
        self.marked = self.marked.saturating_add(ack.ecn_bytes.min(ack.bytes_acked));
        if self.round.ended(ack) {
            self.estimate();
        }
        let rest = w.slow_start(ack.growth(w));
        self.increase.on_ack(rest, w);
    }

    fn on_ecn(&mut self, _event: &Congestion, w: &mut Window) {
        let cut = (u64::from(w.cwnd) * u64::from(self.alpha) / u64::from(2 * ONE)) as u32;
        w.lower_cwnd(w.cwnd - cut);
        w.set_ssthresh(w.cwnd);
    }

    fn is_possible(&self) -> bool {
        self.alpha <= ONE && self.marked <= self.acked
    }

    fn mark_counts_as_loss(&self) -> bool {
        false
    }
}

impl Dctcp {
    /// The estimated part of bytes that are marked, in parts of 2^20.
    #[must_use]
    pub const fn alpha(&self) -> u32 {
        self.alpha
    }

    fn estimate(&mut self) {
        if self.acked > 0 {
            let part = u64::from(self.marked) * u64::from(ONE) / u64::from(self.acked);
            // Not more than ONE: what was marked was acknowledged.
            self.alpha = self.alpha - (self.alpha >> G_SHIFT) + (part as u32 >> G_SHIFT);
        }
        (self.acked, self.marked) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Path, congestion, segments};
    use super::*;

    fn after(rounds: u32, marked_of_ten: u32) -> Dctcp {
        let (mut dctcp, mut w) = (Dctcp::default(), segments(10, 10));
        let mut path = Path { marked_of_ten, ..Path::default() };
        for _ in 0..rounds {
            w.cwnd = 10_000;
            path.round(&mut dctcp, &mut w, 1);
        }
        dctcp
    }

    #[test]
    fn alpha_converges_to_the_marked_part() {
        assert_eq!(after(0, 0).alpha(), ONE);
        for marked in [0, 1, 3, 10] {
            let expected = ONE / 10 * marked;
            let alpha = after(400, marked).alpha();
            assert!(alpha.abs_diff(expected) < ONE / 10_000, "{marked}: {alpha} {expected}");
        }
    }

    #[test]
    fn alpha_moves_by_a_sixteenth_per_window() {
        // The first ACK of a flow begins the first window, so one estimate is of that ACK alone.
        let first = ONE - ONE / 16;
        assert_eq!(after(1, 0).alpha(), first);
        assert_eq!(after(2, 0).alpha(), first - first / 16);
    }

    #[test]
    fn a_mark_cuts_by_half_of_alpha() {
        let (mut dctcp, mut w) = (Dctcp::default(), segments(100, 1000));
        dctcp.on_ecn(&congestion(&w), &mut w);
        assert_eq!((w.cwnd, w.ssthresh), (50_000, 50_000));
        dctcp.alpha = ONE / 4;
        w = segments(100, 1000);
        dctcp.on_ecn(&congestion(&w), &mut w);
        assert_eq!((w.cwnd, w.ssthresh), (87_500, 87_500));
    }

    #[test]
    fn a_loss_halves_whatever_alpha_is() {
        let (mut dctcp, mut w) = (Dctcp { alpha: 0, ..Dctcp::default() }, segments(100, 100));
        dctcp.on_loss(&congestion(&w), &mut w);
        assert_eq!(w.ssthresh, 50_000);
    }
}
