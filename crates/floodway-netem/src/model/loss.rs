//! Which packets vanish.
//!
//! # Theory of operation
//! *Random*: each packet with the same probability, independently (Bernoulli).
//!
//! *Gilbert-Elliott*: a Markov chain with two states, good and bad, takes one step per packet and
//! then the packet is lost with the probability of the state that was reached. With `p` = good to
//! bad and `r` = bad to good, the chain is bad for `1 / r` packets at a time on average, and the
//! long-term loss is `(p * loss_bad + r * loss_good) / (p + r)`. It starts in the good state.
//!
//! Sources: Gilbert 1960, Elliott 1963; the names are those of Hasslinger and Hohlfeld 2008.

use rand::{Rng, RngExt};

/// A loss process and its parameters, probabilities from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossModel {
    /// Nothing vanishes.
    None,
    /// Each packet with this probability.
    Random(f64),
    /// Bursts.
    GilbertElliott {
        /// Probability of a step from good to bad.
        p: f64,
        /// Probability of a step from bad to good.
        r: f64,
        /// Loss in the good state.
        loss_good: f64,
        /// Loss in the bad state.
        loss_bad: f64,
    },
}

/// A loss process with its state.
#[derive(Clone, Debug)]
pub struct Loss {
    model: LossModel,
    bad: bool,
}

impl Loss {
    /// Starts in the good state.
    #[must_use]
    pub fn new(model: LossModel) -> Self {
        Self { model, bad: false }
    }

    /// The next packet vanishes.
    pub fn strikes(&mut self, generator: &mut impl Rng) -> bool {
        let mut draw = |probability| generator.random::<f64>() < probability;
        match self.model {
            LossModel::None => false,
            LossModel::Random(probability) => draw(probability),
            LossModel::GilbertElliott { p, r, loss_good, loss_bad } => {
                if draw(if self.bad { r } else { p }) {
                    self.bad = !self.bad;
                }
                draw(if self.bad { loss_bad } else { loss_good })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    const PACKETS: u32 = 1_000_000;

    fn losses(model: LossModel, seed: u64) -> Vec<bool> {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let mut loss = Loss::new(model);
        (0..PACKETS).map(|_| loss.strikes(&mut generator)).collect()
    }

    fn rate(losses: &[bool]) -> f64 {
        losses.iter().filter(|&&lost| lost).count() as f64 / f64::from(PACKETS)
    }

    #[test]
    fn random_loss_is_within_three_sigma_and_repeats() {
        let losses_1 = losses(LossModel::Random(0.01), 1);
        let sigma = (0.01 * 0.99 / f64::from(PACKETS)).sqrt();
        assert!((rate(&losses_1) - 0.01).abs() < 3.0 * sigma, "{}", rate(&losses_1));
        assert_eq!(losses_1, losses(LossModel::Random(0.01), 1));
        assert_ne!(losses_1, losses(LossModel::Random(0.01), 2));
    }

    #[test]
    fn the_extremes_are_never_and_always() {
        assert!(rate(&losses(LossModel::Random(0.0), 1)) < f64::EPSILON);
        assert!(rate(&losses(LossModel::Random(1.0), 1)) > 1.0 - f64::EPSILON);
        assert!(rate(&losses(LossModel::None, 1)) < f64::EPSILON);
    }

    #[test]
    fn bursts_have_the_right_rate_and_length() {
        let (p, r) = (0.002, 0.2);
        let model = LossModel::GilbertElliott { p, r, loss_good: 0.0, loss_bad: 1.0 };
        let losses = losses(model, 3);
        let bursts = losses.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        let mean_length = rate(&losses) * f64::from(PACKETS) / bursts;
        // Lengths are geometric: their mean is 1/r, its deviation sqrt(1 - r) / r / sqrt(bursts).
        let sigma_length = (1.0 - r).sqrt() / r / bursts.sqrt();
        assert!((mean_length - 1.0 / r).abs() < 3.0 * sigma_length, "{mean_length}");
        // Correlated samples: the variance of the mean grows by (2 - p - r) / (p + r).
        let expected = p / (p + r);
        let variance = expected * (1.0 - expected) * (2.0 - p - r) / (p + r);
        let sigma = (variance / f64::from(PACKETS)).sqrt();
        assert!((rate(&losses) - expected).abs() < 3.0 * sigma, "{}", rate(&losses));
    }
}
