//! The window of CUBIC in congestion avoidance (RFC 9438 sections 4.2 and 4.3), as an upper bound.
//!
//! `W(t) = C * (t - K)^3 + W_max`, where `K` is such that `W(0)` is the window at the start. The window at the last
//! reduction is not visible on the wire, and fast convergence may have lowered `W_max`. For given `W(0)`, `W(t)` has its maximum
//! over all possible `W_max` at one of the ends: at the largest, or, late, at the smallest, which is `W(0)`
//! itself (`K = 0`).
//!
//! In the Reno-friendly region the window grows by 9/17 of a segment per window, and by a whole one from the window before the
//! reduction on (section 4.3), which was at least the flight size then.

use floodway_core::time::{Duration, Instant};

const C: f64 = 0.4;
const ALPHA: f64 = 9.0 / 17.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Curve {
    /// Largest window, and least, that the last reduction may have begun with, in bytes.
    most: f64,
    least: f64,
    /// The start of congestion avoidance, and the window then.
    start: Option<(Instant, f64)>,
    friendly: f64,
}

impl Curve {
    /// A reduction of a window between `least` and `most` bytes.
    pub fn reduce(&mut self, least: f64, most: f64) {
        *self = Self { most, least, start: None, friendly: 0.0 };
    }

    /// Slow start begins anew.
    pub fn restart(&mut self) {
        self.start = None;
    }

    /// The bound after an ACK in congestion avoidance for `bytes` of a window of `cwnd` bytes.
    pub fn grow(&mut self, now: Instant, cwnd: f64, bytes: f64, rtt: Duration, mss: f64) -> f64 {
        let (since, first) = *self.start.get_or_insert((now, cwnd));
        self.friendly = self.friendly.max(first);
        let alpha = if self.friendly >= self.least { 1.0 } else { ALPHA };
        self.friendly += alpha * mss * bytes / self.friendly;
        let t = (now.since(since) + rtt).as_secs_f64();
        let curve = Self::at(t, first, self.most, mss).max(Self::at(t, first, first, mss));
        let target = curve.max(self.friendly);
        // Section 4.2: the target is at most half a window ahead.
        cwnd.max(target.min(cwnd + bytes / 2.0).max(self.friendly.min(cwnd + bytes)))
    }

    fn at(t: f64, first: f64, most: f64, mss: f64) -> f64 {
        let most = most.max(first);
        let k = ((most - first) / mss / C).cbrt();
        C * (t - k).powi(3) * mss + most
    }
}
