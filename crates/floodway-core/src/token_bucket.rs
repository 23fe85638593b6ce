//! Token bucket: a long-term rate with a bounded burst.
//!
//! # Theory of operation
//! The bucket holds at most `burst` tokens and gains `rate` tokens a second. Taking `n` tokens
//! succeeds if they are there. What a token stands for is the caller's choice: a packet (storm
//! limit) or a byte (meter, shaper).
//!
//! One token is kept as 10⁹ units, so that `rate` is also the gain in units *per nanosecond*: a
//! refill is one exact multiplication, nothing is rounded and nothing drifts, however often the
//! bucket is looked at. 128 bits hold the product of any rate and any time; sums saturate.
//!
//! Invariants: never more than `burst` tokens; in any interval of `t` seconds at most
//! `burst + rate * t` tokens are taken; a clock that steps back gains nothing.

use crate::time::{Duration, Instant};

const UNITS_PER_TOKEN: u128 = 1_000_000_000;

/// A token bucket. It starts full.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: u64,
    capacity: u128,
    level: u128,
    refilled: Instant,
}

impl TokenBucket {
    /// A full bucket of `burst` tokens that gains `rate` tokens per second from `now` on. Any
    /// values are allowed: with rate 0 the burst is all there ever is, with burst 0 nothing is.
    #[must_use]
    pub fn new(rate: u64, burst: u64, now: Instant) -> Self {
        let capacity = u128::from(burst) * UNITS_PER_TOKEN;
        Self { rate, capacity, level: capacity, refilled: now }
    }

    /// Takes `n` tokens and says true, or takes none and says false. `n` above the burst is never
    /// granted.
    #[inline]
    pub fn take(&mut self, n: u64, now: Instant) -> bool {
        self.refill(now);
        match self.level.checked_sub(u128::from(n) * UNITS_PER_TOKEN) {
            Some(rest) => {
                self.level = rest;
                true
            }
            None => false,
        }
    }

    /// Returns what [`take`](Self::take) would, and takes nothing. Unlike [`available`](Self::available) it does not divide.
    #[inline]
    #[must_use]
    pub fn has(&self, n: u64, now: Instant) -> bool {
        self.level_at(now) >= u128::from(n) * UNITS_PER_TOKEN
    }

    /// Whole tokens that are there at `now`.
    #[must_use]
    pub fn available(&self, now: Instant) -> u64 {
        // Not more than the burst, which is 64 bits.
        (self.level_at(now) / UNITS_PER_TOKEN) as u64
    }

    /// The earliest time, not before `now`, at which [`take`](Self::take) of `n` succeeds if
    /// nothing else is taken; [`Instant::NEVER`] if it cannot.
    #[must_use]
    pub fn ready_at(&self, n: u64, now: Instant) -> Instant {
        let wanted = u128::from(n) * UNITS_PER_TOKEN;
        let now = now.max(self.refilled);
        let missing = wanted.saturating_sub(self.level_at(now));
        if missing == 0 {
            return now;
        }
        if wanted > self.capacity || self.rate == 0 {
            return Instant::NEVER;
        }
        let wait = missing.div_ceil(u128::from(self.rate));
        u64::try_from(wait).map_or(Instant::NEVER, |ns| now + Duration::from_nanos(ns))
    }

    #[inline]
    fn refill(&mut self, now: Instant) {
        if now > self.refilled {
            self.level = self.level_at(now);
            self.refilled = now;
        }
    }

    #[inline]
    fn level_at(&self, now: Instant) -> u128 {
        let elapsed = now.as_nanos().saturating_sub(self.refilled.as_nanos());
        let gain = u128::from(self.rate) * u128::from(elapsed);
        self.level.saturating_add(gain).min(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = TokenBucket::new(1000, 3, Instant::ZERO);
        let at = Instant::from_micros;
        assert!((0..3).all(|_| bucket.take(1, at(0))));
        assert!(!bucket.take(1, at(999)));
        assert_eq!(bucket.ready_at(1, at(999)), at(1000));
        assert!(bucket.take(1, at(1000)));
        assert!(!bucket.take(1, at(1000)));
        assert_eq!(bucket.available(Instant::NEVER), 3);
    }

    #[test]
    fn one_third_of_a_nanosecond_is_not_lost() {
        // 3 tokens a second, looked at every nanosecond of the last 10 before a token is due.
        let mut bucket = TokenBucket::new(3, 2, Instant::ZERO);
        assert!(bucket.take(2, Instant::ZERO));
        for ns in 333_333_324..=333_333_333 {
            assert!(!bucket.take(1, Instant::from_nanos(ns)));
        }
        assert!(bucket.take(1, Instant::from_nanos(333_333_334)));
        // The two units gained beyond the first token were kept: the third is exactly on time.
        assert!(bucket.take(1, Instant::from_nanos(666_666_667)));
        assert!(bucket.take(1, Instant::from_nanos(1_000_000_000)));
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut bucket = TokenBucket::new(u64::MAX, u64::MAX, Instant::ZERO);
        assert!(bucket.take(u64::MAX, Instant::ZERO));
        assert!(bucket.take(u64::MAX, Instant::NEVER));
        let mut dry = TokenBucket::new(0, 1, Instant::ZERO);
        assert!(dry.take(1, Instant::ZERO));
        assert_eq!(dry.ready_at(1, Instant::ZERO), Instant::NEVER);
        assert!(!dry.take(1, Instant::NEVER));
        assert!(dry.take(0, Instant::ZERO));
    }

    #[derive(Clone, Debug)]
    struct Step {
        advance: i64,
        take: u64,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (-5_000_000_i64..50_000_000, 0_u64..40)
            .prop_map(|(advance, take)| Step { advance, take });
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        /// Against exact rational arithmetic: tokens times 10⁹ as one big integer, refilled in one
        /// go from the start instead of step by step.
        #[test]
        fn agrees_with_exact_arithmetic(rate in 0_u64..5_000, burst in 0_u64..50, steps in steps()) {
            let mut bucket = TokenBucket::new(rate, burst, Instant::ZERO);
            let (mut clock, mut latest) = (0_i64, 0_i64);
            let full = i128::from(burst) * 1_000_000_000;
            let mut level = full;
            for step in steps {
                clock = (clock + step.advance).max(0);
                let gained = i128::from((clock - latest).max(0)) * i128::from(rate);
                level = (level + gained).min(full);
                latest = latest.max(clock);
                let now = Instant::from_nanos(clock as u64);
                prop_assert_eq!(i128::from(bucket.available(now)), level / 1_000_000_000);
                let wanted = i128::from(step.take) * 1_000_000_000;
                prop_assert_eq!(bucket.take(step.take, now), wanted <= level);
                if wanted <= level {
                    level -= wanted;
                }
            }
        }

        /// No interval sees more than its burst and its rate.
        #[test]
        fn every_interval_conforms(rate in 1_u64..5_000, burst in 1_u64..50, steps in steps()) {
            let mut bucket = TokenBucket::new(rate, burst, Instant::ZERO);
            let mut clock = 0_u64;
            let mut grants = vec![];
            for step in steps {
                clock = clock.saturating_add_signed(step.advance.abs());
                if bucket.take(step.take, Instant::from_nanos(clock)) {
                    grants.push((clock, step.take));
                }
            }
            for first in 0..grants.len() {
                let mut sum = 0_u128;
                for &(at, n) in &grants[first..] {
                    sum += u128::from(n) * 1_000_000_000;
                    let interval = u128::from(at - grants[first].0);
                    let allowed = u128::from(burst) * 1_000_000_000 + interval * u128::from(rate);
                    prop_assert!(sum <= allowed);
                }
            }
        }

        /// The time that `ready_at` promises is right, and not a nanosecond early.
        #[test]
        fn ready_at_is_exact(rate in 1_u64..2_000_000_000, spent in 1_u64..50, n in 1_u64..50) {
            let mut bucket = TokenBucket::new(rate, 50, Instant::ZERO);
            prop_assert!(bucket.take(spent, Instant::ZERO));
            let ready = bucket.ready_at(n, Instant::ZERO);
            if ready > Instant::ZERO {
                prop_assert!(!bucket.clone().take(n, ready - Duration::from_nanos(1)));
            }
            prop_assert!(bucket.take(n, ready));
        }
    }
}
