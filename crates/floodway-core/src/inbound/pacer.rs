//! The pacer of one VM: how many bytes may be granted by now.
//!
//! # Theory of operation
//! A virtual clock (GCRA, ITU-T I.371) says when the link is through with all that was granted. Granting `n` bytes
//! moves it by `n / rate`. It may lag behind the real clock by at most the tolerance: that is credit, which makes up for
//! grants that came late, and bounds how much comes at once. When it is ahead, there is debt, and nothing more
//! is due until the real clock has caught up. Debt is bounded, too, so that what arrives without having
//! been asked for cannot stop a VM's TCP for longer than [`MAX_DEBT`].

use crate::time::{Duration, Instant};

/// The clock is never ahead of the time by more.
pub const MAX_DEBT: Duration = Duration::from_millis(50);

const NANOS: u128 = 1_000_000_000;

/// A pacer. It starts with full credit.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// Bytes per second, not zero.
    rate: u64,
    tolerance: Duration,
    clock: Instant,
}

impl Pacer {
    /// A pacer of `rate` bytes per second (zero counts as one).
    #[must_use]
    pub fn new(rate: u64, tolerance: Duration) -> Self {
        Self { rate: rate.max(1), tolerance, clock: Instant::ZERO }
    }

    /// Bytes per second.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// Changes rate and tolerance. Debt is what it was, in bytes.
    pub fn configure(&mut self, rate: u64, tolerance: Duration, now: Instant) {
        let debt = self.clock.since(now).as_nanos() * u128::from(self.rate);
        if debt > 0 {
            self.clock = now + to_duration(debt / u128::from(rate.max(1))).min(MAX_DEBT);
        }
        (self.rate, self.tolerance) = (rate.max(1), tolerance);
    }

    /// Bytes that may be granted now; zero while there is debt.
    #[must_use]
    pub fn credit(&self, now: Instant) -> u64 {
        let lag = now.since(self.clock).min(self.tolerance).as_nanos();
        u64::try_from(lag * u128::from(self.rate) / NANOS).unwrap_or(u64::MAX)
    }

    /// There is debt: what asks now has to wait until [`Pacer::ready_at`].
    #[must_use]
    pub fn is_in_debt(&self, now: Instant) -> bool {
        self.clock > now
    }

    /// When the debt will be paid, if nothing is granted meanwhile.
    #[must_use]
    pub const fn ready_at(&self) -> Instant {
        self.clock
    }

    /// Bytes were granted, or came without.
    pub fn charge(&mut self, bytes: u64, now: Instant) {
        let time = to_duration((u128::from(bytes) * NANOS).div_ceil(u128::from(self.rate)));
        let from = self.clock.max(now - self.tolerance);
        self.clock = (from + time).min(now + MAX_DEBT).max(self.clock);
    }
}

fn to_duration(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn credit_then_debt() {
        // 1 byte each microsecond, 2 ms of tolerance.
        let mut pacer = Pacer::new(1_000_000, MS(2));
        let at = Instant::from_millis;
        assert_eq!(pacer.credit(at(10)), 2000);
        pacer.charge(5000, at(10));
        assert!(pacer.is_in_debt(at(10)) && pacer.credit(at(10)) == 0);
        assert_eq!(pacer.ready_at(), at(13));
        // Late by one millisecond: that much is made up for.
        assert_eq!(pacer.credit(at(14)), 1000);
        // At twice the rate, half the time.
        pacer.configure(2_000_000, MS(2), at(11));
        assert_eq!(pacer.ready_at(), at(12));
        pacer.charge(u64::MAX, at(12));
        assert_eq!(pacer.ready_at(), at(12) + MAX_DEBT);
    }

    proptest! {
        /// Who asks only when there is no debt never gets more than the rate, the tolerance and one portion.
        #[test]
        fn every_interval_conforms(
            rate in 1_000_u64..10_000_000,
            portion in 1_u64..3_000,
            gaps in proptest::collection::vec(0_u64..5_000_000, 1..200),
        ) {
            let tolerance = MS(2);
            let mut pacer = Pacer::new(rate, tolerance);
            // A portion must fit the bound of the debt.
            prop_assume!(u128::from(portion) * NANOS / u128::from(rate) < MAX_DEBT.as_nanos());
            let (mut clock, mut granted) = (0_u64, vec![]);
            for gap in gaps {
                clock += gap;
                let now = Instant::from_nanos(clock);
                if !pacer.is_in_debt(now) {
                    let n = portion.max(pacer.credit(now));
                    pacer.charge(n, now);
                    granted.push((clock, n));
                }
            }
            for first in 0..granted.len() {
                let mut sum = 0_u128;
                for &(at, n) in &granted[first..] {
                    sum += u128::from(n);
                    let time = u128::from(at - granted[first].0) + tolerance.as_nanos();
                    let allowed = time * u128::from(rate) / NANOS + 1 + u128::from(portion);
                    prop_assert!(sum <= allowed, "{} > {}", sum, allowed);
                }
            }
        }
    }
}
