//! How large transfers are.
//!
//! # Theory of operation
//! Samples by inversion: a uniform number is put through the inverse of the distribution function. *Pareto* with
//! shape `a` and mean `m` has the smallest value `m * (a - 1) / a`; it is cut off at `max`, since with shapes
//! near one single samples would be longer than any run (the mean is then a little less than `m`).
//! *Empirical* distributions are given by points of their distribution function and linear between them.
//!
//! Source of the points: web search, Alizadeh et al., "Data Center TCP", 2010; data mining, Greenberg et al.,
//! "VL2", 2009; both as commonly used in later work.

use crate::engine::Rng;

/// A distribution of sizes in bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// Always the same.
    Fixed(u64),
    /// Pareto, cut off.
    Pareto {
        /// Shape, above 1.
        shape: f64,
        /// Mean without the cut-off.
        mean: f64,
        /// Largest.
        max: u64,
    },
    /// By its distribution function.
    Empirical(Empirical),
}

/// A distribution by points of its distribution function.
#[derive(Clone, Debug, PartialEq)]
pub struct Empirical {
    /// Bytes and cumulative probability, both increasing, from 0 to 1.
    points: Vec<(f64, f64)>,
}

/// The points are no distribution function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes and probabilities must increase, and probabilities go from 0 to 1")]
pub struct NotADistribution;

impl Empirical {
    /// From points.
    ///
    /// # Errors
    /// [`NotADistribution`].
    pub fn new(points: &[(f64, f64)]) -> Result<Self, NotADistribution> {
        let increasing = points.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1);
        match (points.first(), points.last()) {
            (Some((_, 0.0)), Some((_, 1.0))) if increasing => Ok(Self { points: points.to_vec() }),
            _ => Err(NotADistribution),
        }
    }

    /// Flows of a web-search cluster.
    #[must_use]
    pub fn web_search() -> Self {
        const K: f64 = 1e3;
        const M: f64 = 1e6;
        let points = [
            (0.0, 0.0),
            (10.0 * K, 0.15),
            (20.0 * K, 0.2),
            (30.0 * K, 0.3),
            (50.0 * K, 0.4),
            (80.0 * K, 0.53),
            (200.0 * K, 0.6),
            (M, 0.7),
            (2.0 * M, 0.8),
            (5.0 * M, 0.9),
            (10.0 * M, 0.97),
            (30.0 * M, 1.0),
        ];
        Self { points: points.to_vec() }
    }

    /// Flows of a data-mining cluster.
    #[must_use]
    pub fn data_mining() -> Self {
        let points = [
            (0.0, 0.0),
            (180.0, 0.1),
            (216.0, 0.2),
            (560.0, 0.3),
            (900.0, 0.4),
            (1_100.0, 0.5),
            (1_870.0, 0.6),
            (3_160.0, 0.7),
            (10e3, 0.8),
            (400e3, 0.9),
            (3.16e6, 0.95),
            (100e6, 0.98),
            (1e9, 1.0),
        ];
        Self { points: points.to_vec() }
    }

    fn at(&self, probability: f64) -> f64 {
        let above = self.points.partition_point(|point| point.1 <= probability);
        match (self.points.get(above.wrapping_sub(1)), self.points.get(above)) {
            (Some(a), Some(b)) => a.0 + (b.0 - a.0) * (probability - a.1) / (b.1 - a.1),
            (Some(last), None) => last.0,
            _ => 0.0,
        }
    }

    fn mean(&self) -> f64 {
        let part = |w: &[(f64, f64)]| (w[0].0 + w[1].0) / 2.0 * (w[1].1 - w[0].1);
        self.points.windows(2).map(part).sum()
    }
}

impl Sizes {
    /// Draws a size, at least one byte.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        let bytes = match self {
            Self::Fixed(bytes) => return (*bytes).max(1),
            Self::Pareto { shape, mean, max } => {
                let least = mean * (shape - 1.0) / shape;
                (least / (1.0 - rng.unit()).powf(1.0 / shape)).min(*max as f64)
            }
            Self::Empirical(points) => points.at(rng.unit()),
        };
        (bytes as u64).max(1)
    }

    /// The mean, to compute loads with; of Pareto with its cut-off.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(bytes) => *bytes as f64,
            Self::Pareto { shape, mean, max } => {
                let least = mean * (shape - 1.0) / shape;
                mean - (least / *max as f64).powf(*shape) * *max as f64 / (shape - 1.0)
            }
            Self::Empirical(points) => points.mean(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(sizes: &Sizes) -> f64 {
        let mut rng = Rng::new(3, "sizes", 0);
        let n = 400_000;
        (0..n).map(|_| sizes.sample(&mut rng) as f64).sum::<f64>() / f64::from(n)
    }

    #[test]
    fn means_agree_with_samples() {
        let all = [
            Sizes::Fixed(1000),
            Sizes::Pareto { shape: 1.5, mean: 100e3, max: 10_000_000 },
            Sizes::Empirical(Empirical::web_search()),
        ];
        for sizes in all {
            let (measured, mean) = (measured(&sizes), sizes.mean());
            assert!((measured / mean - 1.0).abs() < 0.02, "{sizes:?}: {measured} {mean}");
        }
        let mining = Sizes::Empirical(Empirical::data_mining());
        assert!((measured(&mining) / mining.mean() - 1.0).abs() < 0.1);
    }

    #[test]
    fn quantiles_are_the_points() {
        let search = Empirical::web_search();
        assert_eq!([0.0, 0.15, 0.53, 0.9].map(|q| search.at(q)), [0.0, 10e3, 80e3, 5e6]);
        assert!((search.at(0.35) - 40e3).abs() < 1e-6);
        assert_eq!(Empirical::new(&[(0.0, 0.0), (1.0, 0.5)]), Err(NotADistribution));
        assert_eq!(Empirical::new(&[(0.0, 0.0), (2.0, 0.7), (1.0, 1.0)]), Err(NotADistribution));
        assert!(Empirical::new(&[(5.0, 0.0), (5.0, 1.0)]).is_ok());
    }
}
