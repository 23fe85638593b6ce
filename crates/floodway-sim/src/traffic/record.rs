//! What is recorded of a transfer.

use crate::{Duration, Instant};

/// A transfer that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the application asked for it.
    pub begun: Instant,
    /// When the last byte was with the receiving application.
    pub done: Instant,
    /// Bytes.
    pub bytes: u64,
}

impl Record {
    /// Flow completion time.
    #[must_use]
    pub const fn time(&self) -> Duration {
        self.done.since(self.begun)
    }

    /// Bits per second over its whole time.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.time().as_secs_f64()
    }
}

/// Durations, for quantiles.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    sorted: Vec<Duration>,
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(all: I) -> Self {
        let mut sorted: Vec<_> = all.into_iter().collect();
        sorted.sort_unstable();
        Self { sorted }
    }
}

impl Samples {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.sorted.len()
    }

    /// There are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The smallest sample that is not exceeded by the part `q` (0 to 1) of all: nearest rank.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let rank = (q * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).copied()
    }

    /// The mean.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let sum: Duration = self.sorted.iter().sum();
        sum.checked_div(u32::try_from(self.sorted.len()).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let samples: Samples = [3, 1, 2, 4].map(Duration::from_secs).into_iter().collect();
        let at = |q| samples.quantile(q).unwrap().as_secs();
        assert_eq!([0.0, 0.25, 0.26, 0.5, 0.99, 1.0].map(at), [1, 1, 2, 2, 4, 4]);
        assert_eq!(samples.mean(), Some(Duration::from_millis(2500)));
        assert_eq!((Samples::default().quantile(0.5), Samples::default().mean()), (None, None));
    }
}
