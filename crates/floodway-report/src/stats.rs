//! Statistics of samples: quantiles, and how far to trust them.
//!
//! # Theory of operation
//!
//! Transfers on contended hosts have bimodal times (a transfer fits into one time slice or it does not),
//! so nothing here assumes a distribution. Quantiles interpolate linearly between order
//! statistics (Hyndman and Fan's type 7, the default of R and NumPy). Confidence intervals are
//! percentile bootstraps (Efron 1979) of the median or mean, 2000 resamples each, by a generator with a seed, so that the same
//! samples and seed give the same interval on every machine. The interval of a ratio resamples *rounds*: a
//! round measured both variants one after the other, so its two samples share the machine's mood. Where they do
//! not, drawing them together changes nothing: independent samples stay so.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Resamples behind one interval. 2000 leave the 2.5 % tails 50 draws each.
const RESAMPLES: usize = 2000;
/// Probability outside an interval, half of it on each side.
const ALPHA: f64 = 0.05;

/// A 95 % confidence interval, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// 2.5 % quantile of the resampled statistic.
    pub low: f64,
    /// 97.5 % quantile of the resampled statistic.
    pub high: f64,
}

/// The `q` quantile (0 to 1) of `samples` in any order. `None` without samples, when a sample is
/// not finite, or when `q` is outside 0..=1.
#[must_use]
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    if samples.is_empty()
        || !(0.0..=1.0).contains(&q)
        || samples.iter().any(|sample| !sample.is_finite())
    {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(quantile_of_sorted(&sorted, q))
}

/// The median of `samples`, as [`quantile`].
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The arithmetic mean. `None` without samples.
#[must_use]
pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// 95 % interval of the median, as [`interval_of`].
#[must_use]
pub fn median_interval(samples: &[f64], seed: u64) -> Option<Interval> {
    interval_of(Centre::Median, samples, seed)
}

/// 95 % interval of the centre. `None` with fewer than 3 samples, where resampling says nothing, or if one is not finite.
#[must_use]
pub fn interval_of(centre: Centre, samples: &[f64], seed: u64) -> Option<Interval> {
    let statistic = |picks: &[usize]| {
        let mut drawn: Vec<f64> = picks.iter().map(|&i| samples[i]).collect();
        centre.of_drawn(&mut drawn)
    };
    median(samples)?;
    bootstrap(samples.len(), seed, statistic)
}

/// What stands for a set of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Centre {
    /// The median.
    Median,
    /// The arithmetic mean.
    Mean,
}

impl Centre {
    /// Its value; `None` as for [`median`] and [`mean`].
    #[must_use]
    pub fn of(self, samples: &[f64]) -> Option<f64> {
        match self {
            Self::Median => median(samples),
            Self::Mean => mean(samples),
        }
    }

    /// The same of samples that are there and finite, and may be sorted.
    fn of_drawn(self, samples: &mut [f64]) -> f64 {
        match self {
            Self::Median => median_in_place(samples),
            Self::Mean => mean(samples).unwrap_or(f64::NAN),
        }
    }
}

impl Interval {
    /// Whether a value lies inside.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// 95 % interval of `median(value) / median(baseline)`, as [`ratio_interval_of`].
#[must_use]
pub fn ratio_interval(value: &[f64], baseline: &[f64], seed: u64) -> Option<Interval> {
    ratio_interval_of(Centre::Median, value, baseline, seed)
}

/// 95 % interval of `centre(value) / centre(baseline)` over rounds that measured both. `None`
/// when the slices differ in length, hold fewer than 3 samples, or a resampled baseline is 0.
#[must_use]
pub fn ratio_interval_of(
    centre: Centre,
    value: &[f64],
    baseline: &[f64],
    seed: u64,
) -> Option<Interval> {
    if value.len() != baseline.len() {
        return None;
    }
    median(value)?;
    median(baseline)?;
    let statistic = |picks: &[usize]| {
        let mut above: Vec<f64> = picks.iter().map(|&i| value[i]).collect();
        let mut below: Vec<f64> = picks.iter().map(|&i| baseline[i]).collect();
        centre.of_drawn(&mut above) / centre.of_drawn(&mut below)
    };
    bootstrap(value.len(), seed, statistic)
}

/// How many of the nine deciles of `value` lie above those of `baseline`. `None` as for
/// [`quantile`].
#[must_use]
pub fn deciles_above(value: &[f64], baseline: &[f64]) -> Option<u32> {
    (1..=9_u32).try_fold(0, |count, decile| {
        let q = f64::from(decile) / 10.0;
        Some(count + u32::from(quantile(value, q)? > quantile(baseline, q)?))
    })
}

fn bootstrap(count: usize, seed: u64, statistic: impl Fn(&[usize]) -> f64) -> Option<Interval> {
    if count < 3 {
        return None;
    }
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let mut picks = vec![0; count];
    let mut resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            picks.fill_with(|| generator.random_range(0..count));
            statistic(&picks)
        })
        .collect();
    if resampled.iter().any(|value| !value.is_finite()) {
        return None;
    }
    resampled.sort_by(f64::total_cmp);
    Some(Interval {
        low: quantile_of_sorted(&resampled, ALPHA / 2.0),
        high: quantile_of_sorted(&resampled, 1.0 - ALPHA / 2.0),
    })
}

fn median_in_place(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    quantile_of_sorted(samples, 0.5)
}

/// `sorted` must not be empty, and `q` lie in 0..=1.
fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    let position = q * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    let weight = position - position.floor();
    sorted[below] + weight * (sorted[above] - sorted[below])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_agree_with_r_type_7() {
        // R: quantile(c(15, 20, 35, 40, 50), c(0.4, 0.25))
        let samples = [50.0, 15.0, 40.0, 20.0, 35.0];
        assert_eq!(quantile(&samples, 0.4), Some(29.0));
        assert_eq!(quantile(&samples, 0.25), Some(20.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(mean(&samples), Some(32.0));
    }

    #[test]
    fn nothing_is_made_up_from_no_or_bad_samples() {
        assert_eq!(median(&[]), None);
        assert_eq!(mean(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
        assert_eq!(quantile(&[1.0], 1.5), None);
        assert_eq!(median_interval(&[1.0, 2.0], 7), None);
        assert_eq!(ratio_interval(&[1.0; 4], &[1.0; 3], 7), None);
        assert_eq!(ratio_interval(&[1.0; 4], &[0.0; 4], 7), None);
    }

    #[test]
    fn deciles_are_counted_one_by_one() {
        let low: Vec<f64> = (0..100).map(f64::from).collect();
        let high: Vec<f64> = low.iter().map(|sample| sample + 0.5).collect();
        assert_eq!(deciles_above(&high, &low), Some(9));
        assert_eq!(deciles_above(&low, &low), Some(0));
        // Faster in the upper half only.
        let split: Vec<f64> = low
            .iter()
            .map(|&sample| if sample < 50.0 { sample - 1.0 } else { sample + 1.0 })
            .collect();
        assert_eq!(deciles_above(&split, &low), Some(4));
        assert_eq!(deciles_above(&[], &low), None);
    }

    #[test]
    fn the_interval_of_a_ratio_of_means_is_around_it_and_not_around_that_of_medians() {
        // Bimodal: the medians are equal, the means are not.
        let baseline: Vec<f64> = (0..101).map(|i| if i < 60 { 1.0 } else { 3.0 }).collect();
        let value: Vec<f64> = (0..101).map(|i| if i < 60 { 1.0 } else { 9.0 }).collect();
        let means = ratio_interval_of(Centre::Mean, &value, &baseline, 1).unwrap();
        let ratio = Centre::Mean.of(&value).unwrap() / Centre::Mean.of(&baseline).unwrap();
        assert!(means.holds(ratio) && !means.holds(1.0), "{means:?}");
        assert!(ratio_interval(&value, &baseline, 1).unwrap().holds(1.0));
    }

    #[test]
    fn an_interval_depends_on_the_seed_only() {
        let samples: Vec<f64> = (0..20).map(f64::from).collect();
        assert_eq!(median_interval(&samples, 7), median_interval(&samples, 7));
    }

    #[test]
    fn rounds_that_move_together_leave_the_ratio_certain() {
        // The machine's speed changes tenfold between rounds; the ratio is 2 in every one.
        let baseline = [10.0, 100.0, 50.0, 20.0, 70.0];
        let value = baseline.map(|sample| 2.0 * sample);
        let Interval { low, high } = ratio_interval(&value, &baseline, 1).unwrap();
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn the_interval_holds_between_the_extremes(
            samples in proptest::collection::vec(-1e9..1e9_f64, 3..40), seed: u64,
        ) {
            let Interval { low, high } = median_interval(&samples, seed).unwrap();
            let least = quantile(&samples, 0.0).unwrap();
            let most = quantile(&samples, 1.0).unwrap();
            prop_assert!(least <= low && low <= high && high <= most);
        }
    }
}
