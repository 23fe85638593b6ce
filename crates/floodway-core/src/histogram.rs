//! Histograms of durations with fixed buckets.
//!
//! # Theory of operation
//! Bounds are powers of two of a microsecond, so that the bucket of a duration is the place of its highest bit: an observation costs a count of leading zeros, and two relaxed
//! loads and stores of words with one writer, as [counters](crate::counters) do. Nothing is sampled, and nothing is allocated after the start.
//!
//! Bounds are the same for all durations and hosts, so that histograms can be added up: 16 µs to 2.1 s, each twice the one before. A quantile that is read from them is within a factor
//! of two, and what is longer is in the last bucket.

use crate::counters::Words;
use crate::time::Duration;

/// Buckets, with that of what is longer than any bound.
pub const BUCKETS: usize = 19;
/// The first bound is 2 to this power, in microseconds.
const FIRST_BIT: u32 = 4;
/// The word behind the buckets: all durations together, in nanoseconds.
const SUM: usize = BUCKETS;

/// The upper bound of bucket `index`, which belongs to it; none for the last one.
#[must_use]
pub const fn upper_bound(index: usize) -> Option<Duration> {
    if index + 1 < BUCKETS {
        Some(Duration::from_micros(1 << (FIRST_BIT + index as u32)))
    } else {
        None
    }
}

/// How many durations were how long. One thread at a time observes; any may read.
#[derive(Debug, Default)]
pub struct DurationHistogram(Words<{ BUCKETS + 1 }>);

/// What a [`DurationHistogram`] has observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationCounts {
    /// Durations in each bucket: longer than the bound before, and not longer than its own.
    pub buckets: [u64; BUCKETS],
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl DurationHistogram {
    /// Counts `n` durations of this length.
    #[inline]
    pub fn observe(&self, duration: Duration, n: u64) {
        self.observe_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), n);
    }

    /// Counts `n` durations of `ns` nanoseconds.
    #[inline]
    pub fn observe_nanos(&self, ns: u64, n: u64) {
        self.0.at(bucket(ns)).add(n);
        self.0.at(SUM).add(ns.wrapping_mul(n));
    }

    /// What was observed so far.
    #[must_use]
    pub fn counts(&self) -> DurationCounts {
        let buckets = std::array::from_fn(|index| self.0.at(index).get());
        DurationCounts { buckets, sum_ns: self.0.at(SUM).get() }
    }
}

impl DurationCounts {
    /// How many durations there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// The bucket of a duration of `ns` nanoseconds.
#[inline]
fn bucket(ns: u64) -> usize {
    let us = ns.div_ceil(1000);
    // A bound itself is the last of its bucket.
    let bits = u64::BITS - us.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BIT) as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_the_last_of_its_bucket_and_one_nanosecond_more_the_first_of_the_next() {
        assert_eq!((bucket(0), upper_bound(0)), (0, Some(Duration::from_micros(16))));
        for index in 0..BUCKETS - 1 {
            let bound = upper_bound(index).unwrap().as_nanos() as u64;
            assert_eq!((bucket(bound), bucket(bound + 1)), (index, index + 1), "{bound} ns");
        }
        assert_eq!(upper_bound(BUCKETS - 2), Some(Duration::from_micros(2_097_152)));
        assert_eq!((upper_bound(BUCKETS - 1), bucket(u64::MAX)), (None, BUCKETS - 1));
    }

    #[test]
    fn what_was_observed_is_counted_and_summed() {
        let histogram = DurationHistogram::default();
        histogram.observe(Duration::from_micros(5), 1);
        histogram.observe(Duration::from_micros(20), 3);
        histogram.observe(Duration::from_secs(100), 1);
        let counts = histogram.counts();
        assert_eq!((counts.buckets[0], counts.buckets[1], counts.buckets[BUCKETS - 1]), (1, 3, 1));
        assert_eq!((counts.count(), counts.sum_ns), (5, 100_000_065_000));
    }
}
