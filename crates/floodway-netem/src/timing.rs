//! How far the process was off the times that the model calculated.
//!
//! Two distributions, in nanoseconds, with three significant digits (HdrHistogram): *lateness*,
//! from the time at which a packet was due to the time at which it was handed to the device; and
//! *absence*, the time between two looks at the devices without what the process slept on purpose:
//! a packet that arrived meanwhile got its time of arrival later by up to that.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest time that is told apart, 60 s; longer ones count as that.
const LONGEST_NS: u64 = 60_000_000_000;
const DIGITS: u8 = 3;

/// A distribution of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90 % are not above.
    pub p90_us: f64,
    /// 99 % are not above.
    pub p99_us: f64,
    /// 99.9 % are not above.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// Collects times.
#[derive(Clone, Debug)]
pub struct Recorder(Histogram<u64>);

impl Recorder {
    /// An empty one.
    ///
    /// # Errors
    /// Without memory for the buckets.
    pub fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
        Ok(Self(histogram.context("histogram")?))
    }

    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.0.reset();
    }

    /// What was collected.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        let quantile = |q| micros(self.0.value_at_quantile(q));
        Distribution {
            count: self.0.len(),
            mean_us: self.0.mean() / 1e3,
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: micros(self.0.max()),
        }
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_samples() {
        let mut recorder = Recorder::new().unwrap();
        for us in 1..=1000 {
            recorder.add(Duration::from_micros(us));
        }
        recorder.add(Duration::from_secs(3600));
        let distribution = recorder.distribution();
        assert_eq!(distribution.count, 1001);
        assert!((distribution.p50_us - 501.0).abs() < 1.0, "{distribution:?}");
        assert!((distribution.p99_us - 991.0).abs() < 1.0, "{distribution:?}");
        assert!((distribution.max_us - 60e6).abs() < 60e3, "{distribution:?}");
        recorder.reset();
        assert_eq!(recorder.distribution(), Distribution::default());
    }
}
