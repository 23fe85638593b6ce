//! Histograms in documents.

use floodway_core::histogram::{BUCKETS, DurationCounts, upper_bound};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many durations were how long, since the process that moves frames began. The bounds are always the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Histogram {
    /// Durations in each bucket: longer than the [bound](bounds_s) before, and not longer than its own. Empty if there were none.
    pub buckets: Vec<u64>,
    /// All durations together, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// How many durations there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds the durations of another one.
    pub fn add(&mut self, other: &Self) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, n)| *sum += n);
        self.sum_ns += other.sum_ns;
    }
}

impl From<&DurationCounts> for Histogram {
    fn from(counts: &DurationCounts) -> Self {
        if counts.count() == 0 {
            return Self::default();
        }
        Self { buckets: counts.buckets.to_vec(), sum_ns: counts.sum_ns }
    }
}

/// The upper bounds of buckets, in seconds; the last one is infinite.
pub fn bounds_s() -> impl Iterator<Item = f64> {
    (0..BUCKETS).map(|index| upper_bound(index).map_or(f64::INFINITY, |bound| bound.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use floodway_core::histogram::DurationHistogram;
    use floodway_core::time::Duration;

    use super::*;

    #[test]
    fn histograms_are_added_and_nothing_is_empty() {
        let observed = DurationHistogram::default();
        assert_eq!(Histogram::from(&observed.counts()), Histogram::default());
        observed.observe(Duration::from_millis(1), 2);
        let mut sum = Histogram::default();
        (0..3).for_each(|_| sum.add(&Histogram::from(&observed.counts())));
        assert_eq!((sum.count(), sum.buckets.len()), (6, bounds_s().count()));
        assert_eq!(sum.sum_ns, 6_000_000);
        assert_eq!(bounds_s().last(), Some(f64::INFINITY));
    }
}
