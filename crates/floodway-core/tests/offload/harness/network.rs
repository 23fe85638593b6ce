//! One direction of the path between switch and peer.

use std::collections::BTreeMap;

use floodway_core::offload::Ecn;
use floodway_core::time::{Duration, Instant};

use super::packet::Packet;
use super::random::Random;

/// What a path does to packets. Parts are in 1/1000.
#[derive(Clone, Debug)]
pub struct PathConfig {
    pub delay: Duration,
    /// Bytes per millisecond; none is no limit.
    pub rate: Option<u64>,
    /// Bytes that wait for the rate at most.
    pub queue: u64,
    pub loss: u32,
    pub reorder: u32,
    /// How much later a reordered packet comes.
    pub reorder_by: Duration,
    pub duplicate: u32,
    pub mark: u32,
}

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(100),
            rate: Some(125_000),
            queue: 1 << 20,
            loss: 0,
            reorder: 0,
            reorder_by: Duration::from_micros(300),
            duplicate: 0,
            mark: 0,
        }
    }
}

#[derive(Debug)]
pub struct Path {
    pub config: PathConfig,
    random: Random,
    busy_until: Instant,
    /// By time of arrival and order of sending.
    under_way: BTreeMap<(Instant, u64), Packet>,
    sent: u64,
    /// The next packets to be dropped, counted from the next one that is sent.
    pub drop_next: Vec<u64>,
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
            drop_next: Vec::new(),
            dropped: 0,
        }
    }

    pub fn send(&mut self, now: Instant, packet: &Packet) {
        for segment in packet.segments() {
            self.send_one(now, segment);
        }
    }

    fn send_one(&mut self, now: Instant, mut packet: Packet) {
        let config = self.config.clone();
        let doomed = self.drop_next.contains(&0);
        self.drop_next = self.drop_next.iter().filter_map(|n| n.checked_sub(1)).collect();
        let mut at = now;
        if let Some(rate) = config.rate {
            let waiting = self.busy_until.since(now);
            if waiting.as_nanos() as u64 / 1000 * rate / 1000 > config.queue {
                self.dropped += 1;
                return;
            }
            let time = Duration::from_nanos(packet.wire_len() * 1_000_000 / rate.max(1));
            at = now + waiting + time;
            self.busy_until = at;
        }
        if doomed || self.random.permille(config.loss) {
            self.dropped += 1;
            return;
        }
        if packet.segment.ecn != Ecn::NOT_ECT && self.random.permille(config.mark) {
            packet.segment.ecn = Ecn::CE;
        }
        let late = self.random.permille(config.reorder);
        at += config.delay + if late { config.reorder_by } else { Duration::ZERO };
        if self.random.permille(config.duplicate) {
            self.arrives(at + Duration::from_micros(50), packet.clone());
        }
        self.arrives(at, packet);
    }

    fn arrives(&mut self, at: Instant, packet: Packet) {
        self.sent += 1;
        self.under_way.insert((at, self.sent), packet);
    }

    pub fn next(&self) -> Instant {
        self.under_way.first_key_value().map_or(Instant::NEVER, |((at, _), _)| *at)
    }

    pub fn pop(&mut self, now: Instant) -> Option<Packet> {
        if self.next() > now {
            return None;
        }
        self.under_way.pop_first().map(|(_, packet)| packet)
    }
}
