//! What a wire does to packets besides delaying them.
//!
//! # Theory of operation
//! Each impairment (loss, corruption, duplication, reordering, jitter) has a stream of its own of
//! one seeded generator per link, so the n-th decision of one does not depend on whether the
//! others are switched on. An impairment that is off draws nothing.

use floodway_core::time::{Duration, Instant};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::config::{LinkConfig, Reordering};
use super::loss::Loss;

/// Streams of one link's generator.
const STREAMS: u64 = 8;

/// What happens to a packet that is not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// When it arrives, before order is restored.
    pub due: Instant,
    /// Packets behind it may overtake it.
    pub held_back: bool,
    /// It arrives twice.
    pub twice: bool,
    /// A bit is flipped; the number chooses which.
    pub corrupt: Option<u64>,
}

/// The generators and their state.
#[derive(Debug)]
pub struct Impairments {
    delay: Duration,
    jitter: Duration,
    loss: Loss,
    reordering: Option<Reordering>,
    duplicate: f64,
    corrupt: f64,
    losing: ChaCha8Rng,
    corrupting: ChaCha8Rng,
    duplicating: ChaCha8Rng,
    reordering_draws: ChaCha8Rng,
    jittering: ChaCha8Rng,
}

impl Impairments {
    /// Generators of link number `link` of a run with `seed`.
    #[must_use]
    pub fn new(config: &LinkConfig, seed: u64, link: u64) -> Self {
        let stream = |n: u64| {
            let mut generator = ChaCha8Rng::seed_from_u64(seed);
            generator.set_stream(link.wrapping_mul(STREAMS).wrapping_add(n));
            generator
        };
        Self {
            delay: config.delay,
            jitter: config.jitter,
            loss: Loss::new(config.loss),
            reordering: config.reordering,
            duplicate: config.duplicate,
            corrupt: config.corrupt,
            losing: stream(0),
            corrupting: stream(1),
            duplicating: stream(2),
            reordering_draws: stream(3),
            jittering: stream(4),
        }
    }

    /// Changes parameters; the generators go on, the loss process starts in its good state.
    pub fn configure(&mut self, config: &LinkConfig) {
        self.delay = config.delay;
        self.jitter = config.jitter;
        self.loss = Loss::new(config.loss);
        self.reordering = config.reordering;
        self.duplicate = config.duplicate;
        self.corrupt = config.corrupt;
    }

    /// What happens to the packet that has left the transmitter at `sent`; `None` if it is lost.
    pub fn decide(&mut self, sent: Instant) -> Option<Fate> {
        if self.loss.strikes(&mut self.losing) {
            return None;
        }
        let corrupt =
            happens(self.corrupt, &mut self.corrupting).then(|| self.corrupting.random::<u64>());
        let twice = happens(self.duplicate, &mut self.duplicating);
        let held_back = self
            .reordering
            .filter(|reordering| happens(reordering.probability, &mut self.reordering_draws));
        let extra = held_back.map_or(Duration::ZERO, |reordering| reordering.extra);
        let due = sent + self.jittered_delay() + extra;
        Some(Fate { due, held_back: held_back.is_some(), twice, corrupt })
    }

    /// Uniform in `delay - jitter ..= delay + jitter`, never negative.
    fn jittered_delay(&mut self) -> Duration {
        if self.jitter.is_zero() {
            return self.delay;
        }
        let span = u64::try_from(self.jitter.as_nanos() * 2).unwrap_or(u64::MAX);
        let draw = Duration::from_nanos(self.jittering.random_range(0..=span));
        (self.delay + draw).saturating_sub(self.jitter)
    }
}

fn happens(probability: f64, generator: &mut impl Rng) -> bool {
    probability > 0.0 && generator.random::<f64>() < probability
}
