//! One direction of a path that delays, loses, reorders and duplicates frames, as its seed says.

use std::collections::BTreeMap;

use floodway_core::time::{Duration, Instant};

use super::random::Random;

/// What a path does. Shares are in 1/1000.
#[derive(Clone, Copy, Debug)]
pub struct PathConfig {
    pub delay: Duration,
    /// Bytes per millisecond.
    pub rate: u64,
    /// Bytes that wait for their turn at most; what comes then is dropped.
    pub queue: u64,
    pub loss: u32,
    pub reorder: u32,
    /// How much later a reordered frame arrives.
    pub reorder_by: Duration,
    pub duplicate: u32,
}

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(200),
            rate: 125_000,
            queue: 256 << 10,
            loss: 0,
            reorder: 0,
            reorder_by: Duration::from_micros(500),
            duplicate: 0,
        }
    }
}

/// Frames under way.
pub struct Path {
    config: PathConfig,
    random: Random,
    busy_until: Instant,
    /// By time of arrival and order of sending.
    under_way: BTreeMap<(Instant, u64), Vec<u8>>,
    sent: u64,
    pub dropped: u64,
}

impl Path {
    pub fn new(config: PathConfig, seed: u64) -> Self {
        Self {
            config,
            random: Random::new(seed),
            busy_until: Instant::ZERO,
            under_way: BTreeMap::new(),
            sent: 0,
            dropped: 0,
        }
    }

    pub fn send(&mut self, now: Instant, frame: Vec<u8>) {
        let config = self.config;
        let waiting = self.busy_until.since(now);
        let queued = waiting.as_micros() as u64 * config.rate / 1000;
        // All decisions are drawn, whatever the first ones are: cases differ by little.
        let (lost, late, twice) = (
            self.random.permille(config.loss),
            self.random.permille(config.reorder),
            self.random.permille(config.duplicate),
        );
        if lost || queued > config.queue {
            self.dropped += 1;
            return;
        }
        let time = Duration::from_nanos(frame.len() as u64 * 1_000_000 / config.rate.max(1));
        let left = now + waiting + time;
        self.busy_until = left;
        let delay = config.delay + if late { config.reorder_by } else { Duration::ZERO };
        if twice {
            self.arrives(left + delay + Duration::from_micros(50), frame.clone());
        }
        self.arrives(left + delay, frame);
    }

    fn arrives(&mut self, at: Instant, frame: Vec<u8>) {
        self.sent += 1;
        self.under_way.insert((at, self.sent), frame);
    }

    /// When the next frame arrives.
    pub fn next(&self) -> Instant {
        self.under_way.first_key_value().map_or(Instant::NEVER, |((at, _), _)| *at)
    }

    /// A frame that has arrived.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next() > now {
            return None;
        }
        self.under_way.pop_first().map(|(_, frame)| frame)
    }
}
