//! CUBIC (RFC 9438).
//!
//! # Theory of operation
//! **Goal.** Find the rate of a path with a large bandwidth-delay product again in seconds, whatever its
//! round trip, and never be slower than Reno.
//!
//! After a reduction at window `W_max`, congestion avoidance follows
//! `W(t) = C * (t - K)^3 + W_max`, with `C` = 0.4 segments/s³ and `K` such that `W(0)` is the window it starts
//! with: fast away from the window where it went wrong, slow around it, then fast to find more. Each
//! acknowledged segment moves `cwnd` by `(target - cwnd) / cwnd`, where `target` is `W` one round
//! trip ahead, held between `cwnd` and `1.5 * cwnd` (section 4.2). The round trip is the
//! recent minimum, as in Linux: the smoothed one would count our own queue.
//!
//! *Reno-friendly region* (4.3): `W_est` grows by `alpha` segments per window, where
//! `alpha = 3 * (1 - beta) / (1 + beta) = 9/17` gives Reno's average rate with `beta` = 0.7. Where `W` is below `W_est`,
//! `cwnd` is `W_est`. The RFC has `alpha` = 1 from the window before the reduction on; Linux does not, and a flow
//! with it takes more than its share beside one of Linux's.
//!
//! *Reduction* (4.6): `ssthresh` is 0.7 of the window in use, which is `cwnd` while that is the limit, where the RFC has the flight size. *Fast convergence* (4.7): if the
//! window did not even reach the last `W_max`, `W_max` becomes `0.85 * cwnd` to make room for others. After a
//! timeout (4.8) and after a slow start that ended without loss (4.10), `K` is 0 and `W_max` the window
//! at the start.
//!
//! **Time** runs only while ACKs find the flow limited by its window: `t` of an application that pauses
//! stands still (4.2, 5.8). Only `t - K` is kept.
//!
//! **Undo** (4.9): `W_max` and `W_est` come back. `t - K` is not stored but solved from the curve
//! through the restored `cwnd`, which is where it was (in the Reno-friendly region, where `cwnd`
//! is above the curve, it is somewhat ahead of that). Back in the first slow start, HyStart++ starts anew.
//!
//! **Arithmetic.** Windows are bytes with 16 bits of fraction for what a single ACK adds. `W` is
//! evaluated in `f64` with nothing but `+ - * /`, which IEEE 754 rounds alike on every machine; the
//! cube root is an integer one.
//!
//! Invariants: `cwnd` never shrinks by an ACK and never grows by more than half of what was acknowledged
//! on the curve; `W_est` never grows faster than Reno.

use serde::{Deserialize, Serialize};

use super::hystart::HyStart;
use super::{Ack, Congestion, CongestionControl, Window};
use crate::rtt::micros;

/// Segments per cubic second.
const C: f64 = 0.4;
/// Farthest from the plateau that time is counted, in microseconds: 25 minutes.
const MAX_OFFSET: u32 = 1_500_000_000;

/// State of CUBIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cubic {
    stage: Stage,
}

/// What is needed before the first congestion, and after it, is never needed together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    /// The first slow start.
    First(HyStart),
    Later(Curve),
}

/// Where the window is on its way to the plateau and beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Curve {
    /// In bytes; zero if it is to be the window at the start of the next stage.
    w_max: u32,
    /// In bytes.
    w_est: u32,
    /// `t - K` in microseconds: negative before the plateau.
    offset: i32,
    /// When `offset` was moved last: microseconds that wrap.
    moved: u32,
    /// Parts of 65536 of a byte by which `cwnd` and `w_est` are too small.
    cwnd_fraction: u16,
    w_est_fraction: u16,
    /// A stage of congestion avoidance is under way.
    in_stage: bool,
    /// The first slow start is watched by HyStart++.
    watched: bool,
    undo: Undo,
}

/// What [`CongestionControl::on_spurious`] brings back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Undo {
    w_max: u32,
    w_est: u32,
    /// A stage was under way. Otherwise `w_est` is that of an older one.
    in_stage: bool,
}

impl CongestionControl for Cubic {
    fn start(hystart: bool) -> Self {
        Self::new(hystart)
    }

    #[inline]
    fn on_ack(&mut self, ack: &Ack, w: &mut Window) {
        let rest = match &mut self.stage {
            Stage::First(hystart) => hystart.on_ack(ack, w),
            Stage::Later(_) => w.slow_start(ack.growth(w)),
        };
        if !w.in_slow_start() {
            self.later().avoid(rest, ack, w);
        }
    }

    fn on_loss(&mut self, event: &Congestion, w: &mut Window) {
        self.later().reduce(w);
        w.set_ssthresh(seven_tenths(event.used_or_limit(w)));
    }

    fn on_timeout(&mut self, event: &Congestion, w: &mut Window) {
        self.on_loss(event, w);
        self.later().w_max = 0;
        w.lower_cwnd(w.mss());
    }

    fn on_ecn(&mut self, _event: &Congestion, w: &mut Window) {
        self.later().reduce(w);
        let bytes = seven_tenths(w.cwnd);
        w.set_ssthresh(bytes);
        w.lower_cwnd(bytes);
    }

    fn is_possible(&self) -> bool {
        match &self.stage {
            Stage::First(hystart) => hystart.is_possible(),
            Stage::Later(curve) => curve.offset.unsigned_abs() <= MAX_OFFSET,
        }
    }

    fn on_idle(&mut self) {
        if let Stage::Later(curve) = &mut self.stage {
            curve.in_stage = false;
        }
    }

    fn on_spurious(&mut self, w: &Window) {
        let curve = self.later();
        curve.restore(w);
        if w.ssthresh == u32::MAX {
            self.stage = Stage::First(HyStart::new(curve.watched));
        }
    }
}

impl Cubic {
    /// Before the first ACK; `hystart` switches HyStart++ on.
    #[must_use]
    pub fn new(hystart: bool) -> Self {
        Self { stage: Stage::First(HyStart::new(hystart)) }
    }

    /// The state of what comes after the first slow start, which is over.
    #[inline]
    fn later(&mut self) -> &mut Curve {
        if let Stage::First(hystart) = &self.stage {
            let watched = hystart.is_on();
            self.stage = Stage::Later(Curve { watched, ..Curve::default() });
        }
        match &mut self.stage {
            Stage::Later(curve) => curve,
            Stage::First(_) => unreachable!("it was replaced"),
        }
    }
}

impl Curve {
    /// The last reduction was wrong.
    fn restore(&mut self, w: &Window) {
        self.w_max = self.undo.w_max;
        self.w_est = self.undo.w_est;
        self.in_stage = self.undo.in_stage && !w.in_slow_start() && self.w_max > 0;
        if self.in_stage {
            self.offset = self.offset_of(w);
        }
    }

    fn reduce(&mut self, w: &Window) {
        self.undo = Undo { w_max: self.w_max, w_est: self.w_est, in_stage: self.in_stage };
        // 17/20 is (1 + beta) / 2.
        let converging = w.cwnd < self.w_max;
        self.w_max = if converging { scale(w.cwnd, 17, 20) } else { w.cwnd };
        self.in_stage = false;
    }

    fn avoid(&mut self, bytes: u32, ack: &Ack, w: &mut Window) {
        let now = (ack.now.as_nanos() / 1000) as u32;
        let elapsed = now.wrapping_sub(self.moved);
        self.moved = now;
        if bytes == 0 {
            return;
        }
        if self.in_stage {
            self.advance(elapsed);
        } else {
            self.start_stage(w);
        }
        // The part of a window that was acknowledged, in parts of 2^32. `bytes` is not more than `cwnd`.
        let part = (u64::from(bytes) << 32) / u64::from(w.cwnd.max(1));
        self.grow_w_est(part, w);
        if self.curve(self.offset, w) < self.w_est {
            w.grow(self.w_est.saturating_sub(w.cwnd).min(bytes));
        } else {
            self.follow_curve(part, ack, w);
        }
    }

    fn start_stage(&mut self, w: &Window) {
        // A window above the old plateau, or after a timeout, is itself the new one.
        self.w_max = self.w_max.max(w.cwnd);
        self.offset = self.offset_of(w);
        self.w_est = w.cwnd;
        (self.cwnd_fraction, self.w_est_fraction) = (0, 0);
        self.in_stage = true;
    }

    fn advance(&mut self, elapsed: u32) {
        let moved = i64::from(self.offset) + i64::from(elapsed);
        self.offset = moved.min(i64::from(MAX_OFFSET)) as i32;
    }

    /// `t - K` at which the curve passes through `cwnd`, in microseconds.
    fn offset_of(&self, w: &Window) -> i32 {
        // C = 2/5 segments per cubic second: x³ = diff / mss * 5/2 in s³, times 10^18 in µs³.
        let diff = u128::from(self.w_max.abs_diff(w.cwnd));
        let cube = diff * 2_500_000_000_000_000_000 / u128::from(w.mss());
        let root = cube_root(cube).min(MAX_OFFSET) as i32;
        if w.cwnd < self.w_max { -root } else { root }
    }

    /// The cubic function in bytes, `offset` microseconds after the plateau.
    fn curve(&self, offset: i32, w: &Window) -> u32 {
        let t = f64::from(offset) * 1e-6;
        let bytes = f64::from(self.w_max) + C * t * t * t * f64::from(w.mss());
        // Saturates at both ends.
        bytes as u32
    }

    fn grow_w_est(&mut self, part: u64, w: &Window) {
        let parts = (part * u64::from(w.mss().min(1 << 30))) >> 16;
        let whole = add_parts(&mut self.w_est_fraction, parts * 9 / 17);
        self.w_est = self.w_est.saturating_add(whole);
    }

    fn follow_curve(&mut self, part: u64, ack: &Ack, w: &mut Window) {
        let rtt = ack.min_rtt.or(ack.rtt).map_or(0, micros).min(MAX_OFFSET);
        let ahead = i64::from(self.offset) + i64::from(rtt);
        let ahead = ahead.min(i64::from(MAX_OFFSET)) as i32;
        let most = w.cwnd.saturating_add(w.cwnd / 2);
        let step = self.curve(ahead, w).clamp(w.cwnd, most) - w.cwnd;
        // Not more than half of `cwnd`: the product fits.
        let parts = (part * u64::from(step)) >> 16;
        let whole = add_parts(&mut self.cwnd_fraction, parts);
        w.grow(whole);
    }
}

/// Adds parts of 65536 to a fraction and gives the wholes.
fn add_parts(fraction: &mut u16, parts: u64) -> u32 {
    let sum = parts.saturating_add(u64::from(*fraction));
    *fraction = sum as u16;
    u32::try_from(sum >> 16).unwrap_or(u32::MAX)
}

fn scale(bytes: u32, numerator: u32, denominator: u32) -> u32 {
    (u64::from(bytes) * u64::from(numerator) / u64::from(denominator)) as u32
}

fn seven_tenths(bytes: u32) -> u32 {
    scale(bytes, 7, 10)
}

/// The largest whole number whose cube is not above `x`, saturating.
fn cube_root(x: u128) -> u32 {
    let mut root = 0_u32;
    for bit in (0..u32::BITS).rev() {
        let tried = root | (1 << bit);
        if u128::from(tried).pow(3) <= x {
            root = tried;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Path, ack, congestion, segments};
    use super::*;
    use crate::time::{Duration, Instant};
    use proptest::prelude::*;

    fn later(cubic: &Cubic) -> Curve {
        cubic.clone().later().clone()
    }

    /// A window of 100 segments that was just reduced to 70.
    fn reduced() -> (Cubic, Window) {
        let (mut cubic, mut w) = (Cubic::new(true), segments(100, 100));
        cubic.on_loss(&congestion(&w), &mut w);
        assert_eq!((w.cwnd, w.ssthresh), (100_000, 70_000));
        w.leave_recovery();
        (cubic, w)
    }

    #[test]
    fn a_loss_reduces_cwnd_where_that_was_the_limit_and_else_the_flight() {
        for (cwnd_limited, threshold) in [(true, 70_000), (false, 63_000)] {
            let (mut cubic, mut w) = (Cubic::new(false), segments(100, 50));
            let flight = 90_000;
            let event = Congestion { flight, cwnd_limited, ..congestion(&w) };
            cubic.on_loss(&event, &mut w);
            assert_eq!((w.ssthresh, w.cwnd), (threshold, 100_000));
        }
    }

    #[test]
    fn k_is_the_cube_root() {
        let (mut cubic, mut w) = reduced();
        cubic.on_ack(&ack(1000, &w), &mut w);
        // K = cbrt(30 / 0.4) = cbrt(75) = 4.217163 s.
        assert_eq!(later(&cubic).offset, -4_217_163);
        assert_eq!(later(&cubic).curve(later(&cubic).offset, &w), 70_000);
        assert_eq!(later(&cubic).curve(0, &w), 100_000);
        // 0.4 * 2^3 = 3.2 segments, two seconds before and after.
        assert_eq!(later(&cubic).curve(-2_000_000, &w), 96_800);
        assert_eq!(later(&cubic).curve(2_000_000, &w), 103_200);
    }

    #[test]
    fn the_window_follows_the_curve() {
        let (mut cubic, mut w) = reduced();
        let mut path = Path::default();
        // With 200 ms per round Reno gains 2.6 segments/s, and is below the curve all the time.
        for round in 1_u32..=40 {
            path.round(&mut cubic, &mut w, 200);
            let t = f64::from(round) * 0.2;
            let expected = 0.4 * (t - 4.217_163_f64).powi(3) + 100.0;
            let got = f64::from(w.cwnd) / 1000.0;
            assert!((got - expected).abs() < 0.015 * expected, "t {t}: {got} {expected}");
        }
    }

    #[test]
    fn on_short_paths_it_is_reno_friendly() {
        let (mut cubic, mut w) = reduced();
        let mut path = Path::default();
        // At 1 ms per round the cube stands still (it gains 2 segments in the first 50 ms).
        for _ in 0..40 {
            path.round(&mut cubic, &mut w, 1);
        }
        // 40 windows at 9/17 of a segment: 21.2 segments.
        assert!(w.cwnd.abs_diff(70_000 + 21_176) < 300, "{}", w.cwnd);
        for _ in 0..20 {
            path.round(&mut cubic, &mut w, 1);
        }
        // 20 more: also beyond the window before, which it has reached after 56.7 rounds.
        assert!(w.cwnd.abs_diff(70_000 + 31_765) < 300, "{}", w.cwnd);
        assert!(later(&cubic).offset < -4_000_000);
    }

    #[test]
    fn fast_convergence_gives_way() {
        let (mut cubic, mut w) = reduced();
        assert_eq!(later(&cubic).w_max, 100_000);
        w.cwnd = 90_000;
        cubic.on_loss(&congestion(&w), &mut w);
        assert_eq!((later(&cubic).w_max, w.ssthresh), (76_500, 63_000));
        w.cwnd = 80_000;
        cubic.on_loss(&congestion(&w), &mut w);
        assert_eq!((later(&cubic).w_max, w.ssthresh), (80_000, 56_000), "beyond the last maximum");
    }

    #[test]
    fn after_a_timeout_the_plateau_is_where_avoidance_starts() {
        let (mut cubic, mut w) = (Cubic::new(true), segments(100, 100));
        cubic.on_timeout(&congestion(&w), &mut w);
        assert_eq!((w.cwnd, w.ssthresh), (1000, 70_000));
        let mut path = Path::default();
        while w.in_slow_start() {
            path.round(&mut cubic, &mut w, 100);
        }
        path.round(&mut cubic, &mut w, 100);
        assert!(later(&cubic).w_max >= 70_000 && later(&cubic).w_max < 71_000, "{cubic:?}");
        assert!(later(&cubic).offset >= 0 && later(&cubic).offset <= 200_000);
    }

    #[test]
    fn time_stands_still_while_the_application_pauses() {
        let (mut cubic, mut w) = reduced();
        let mut path = Path::default();
        (0..10).for_each(|_| path.round(&mut cubic, &mut w, 100));
        let (offset, cwnd) = (later(&cubic).offset, w.cwnd);
        path.limited = false;
        (0..300).for_each(|_| path.round(&mut cubic, &mut w, 100));
        assert_eq!((later(&cubic).offset, w.cwnd), (offset, cwnd));
        path.limited = true;
        path.round(&mut cubic, &mut w, 100);
        assert!(later(&cubic).offset - offset <= 110_000 && w.cwnd - cwnd < 4_000);
    }

    #[test]
    fn undo_finds_its_place_on_the_curve() {
        let (mut cubic, mut w) = reduced();
        let mut path = Path::default();
        for rounds in [5, 30] {
            (0..rounds).for_each(|_| path.round(&mut cubic, &mut w, 200));
            let (before, window) = (cubic.clone(), w);
            cubic.on_loss(&congestion(&w), &mut w);
            w.leave_recovery();
            (0..3).for_each(|_| path.round(&mut cubic, &mut w, 100));
            w = window;
            cubic.on_spurious(&w);
            assert_eq!(
                (later(&cubic).w_max, later(&cubic).w_est),
                (later(&before).w_max, later(&before).w_est)
            );
            let apart = later(&cubic).offset.abs_diff(later(&before).offset);
            assert!(apart < 200_000, "{} {}", later(&cubic).offset, later(&before).offset);
        }
    }

    #[test]
    fn undoing_the_second_of_two_reductions_brings_back_no_older_window() {
        let (mut cubic, mut w) = reduced();
        let mut path = Path::default();
        path.round(&mut cubic, &mut w, 20);
        // Two recoveries in a row, without an ACK in congestion avoidance between them.
        for _ in 0..2 {
            cubic.on_loss(&congestion(&w), &mut w);
            w.leave_recovery();
        }
        let (before, window) = (w.cwnd, w);
        cubic.on_loss(&congestion(&w), &mut w);
        w = window;
        cubic.on_spurious(&w);
        path.round(&mut cubic, &mut w, 20);
        assert!(w.cwnd <= before + w.mss(), "{} after {before}", w.cwnd);
    }

    #[test]
    fn a_huge_window_still_gains_its_fractions() {
        let (mut cubic, mut w) = (Cubic::new(false), segments(500_000, 500_000));
        cubic.later().w_max = w.cwnd;
        let mut now = Instant::ZERO;
        // One window, acknowledged segment by segment: 9/17 of an MSS, 0.001 bytes at a time.
        for _ in 0..500_000 {
            now += Duration::from_nanos(1);
            let rtt = Some(Duration::from_micros(1));
            cubic.on_ack(&Ack { now, rtt, min_rtt: rtt, ..ack(1000, &w) }, &mut w);
        }
        assert!(later(&cubic).w_est - 500_000_000 >= 524, "{}", later(&cubic).w_est - 500_000_000);
    }

    proptest! {
        #[test]
        fn cube_roots_are_exact(x in 0_u128..1 << 95) {
            let root = u128::from(cube_root(x));
            prop_assert!(root.pow(3) <= x && x < (root + 1).pow(3));
        }
    }
}
