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

    /// The durations that came after `before`, an earlier look at the same histogram. One that went back has begun anew: then all of them.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        if before.count() > self.count() || before.sum_ns > self.sum_ns {
            return self.clone();
        }
        let then = before.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets = self.buckets.iter().zip(then).map(|(now, then)| now.saturating_sub(then));
        Self { buckets: buckets.collect(), sum_ns: self.sum_ns - before.sum_ns }
    }

    /// The upper bound, in seconds, of the bucket in which the quantile `q` (0 to 1) is; none if there are no durations. The last bucket has no upper bound: then it
    /// is the lower one.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = (self.count() as f64 * q).ceil().max(1.0) as u64;
        let mut below = 0;
        let mut bound = None;
        for (n, upper) in self.buckets.iter().zip(bounds_s()) {
            below += n;
            bound = Some(upper).filter(|upper| upper.is_finite()).or(bound);
            if below >= rank {
                return bound;
            }
        }
        None
    }

    /// Adds the durations of another one.
    pub fn add(&mut self, other: &Self) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, n)| *sum += n);
        self.sum_ns += other.sum_ns;
    }
}

/// How many frames batches had, since the process that moves frames began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchSizes {
    /// Batches of up to 1, 2, 4, 8, 16 and 32 frames, each without those of the ones before. Empty if there were none.
    pub buckets: Vec<u64>,
    /// Frames of all batches.
    pub frames: u64,
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

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let bounds: Vec<f64> = bounds_s().collect();
        let mut histogram = Histogram { buckets: vec![0; bounds.len()], sum_ns: 1 };
        assert_eq!(histogram.quantile(0.5), None);
        assert_eq!(Histogram::default().quantile(0.5), None);
        histogram.buckets[0] = 98;
        histogram.buckets[3] = 1;
        *histogram.buckets.last_mut().unwrap() = 1;
        let [median, late, latest] = [0.5, 0.985, 1.0].map(|q| histogram.quantile(q).unwrap());
        assert_eq!((median, late), (bounds[0], bounds[3]));
        assert_eq!(latest, bounds[bounds.len() - 2], "the last bucket has no upper bound");
    }

    #[test]
    fn what_came_since_is_the_difference_and_a_new_beginning_is_all_of_it() {
        let of = |buckets: &[u64], sum_ns| Histogram { buckets: buckets.to_vec(), sum_ns };
        let (before, now) = (of(&[1, 2], 10), of(&[4, 2], 16));
        assert_eq!(now.since(&before), of(&[3, 0], 6));
        assert_eq!(before.since(&now), before);
        assert_eq!(now.since(&Histogram::default()), now);
    }
}
