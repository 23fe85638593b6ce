//! One direction of the path between switch and peer.

use std::collections::BTreeMap;

use floodway_core::offload::Ecn;
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;

use super::packet::{Packet, Position};
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

/// A path that is alive: since the switch last heard of progress, it has lost no more than a given number of repairs
/// and of what the peer said last, and no SYN. What is sent for the first time may be lost as it comes.
#[derive(Debug, Default)]
pub struct Mercy {
    most: Option<u32>,
    /// Behind the guest's bytes that were sent, and those of which the switch knows that they arrived.
    nxt: Position,
    una: Position,
    /// Repairs lost since there was progress.
    repairs: u32,
    /// Words of the peer lost since it was heard.
    words: u32,
}

impl Mercy {
    pub fn new(most: Option<u32>) -> Self {
        Self { most, ..Self::default() }
    }

    /// The peer was heard, and has acknowledged up to `una`.
    pub fn heard(&mut self, una: Position) {
        self.words = 0;
        if una > self.una {
            self.una = una;
            self.repairs = 0;
        }
    }

    /// Whether a packet of the guest may be lost.
    fn loses_data(&mut self, packet: &Packet) -> bool {
        let end = packet.at + i64::from(packet.segment.seq_len());
        if packet.segment.has(Flags::SYN) {
            return self.most.is_none();
        }
        if end == packet.at {
            return true;
        }
        let again = packet.at < self.nxt;
        let loses = !again || self.repairs + self.words < self.most.unwrap_or(u32::MAX);
        self.repairs += u32::from(again && loses);
        loses
    }

    /// A packet of the guest is sent.
    fn note(&mut self, packet: &Packet) {
        self.nxt = self.nxt.max(packet.at + i64::from(packet.segment.seq_len()));
    }

    /// Whether a packet of the peer may be lost. If so, it is.
    fn loses_word(&mut self, packet: &Packet) -> bool {
        if packet.segment.has(Flags::SYN) {
            return self.most.is_none();
        }
        let loses = self.repairs + self.words < self.most.unwrap_or(u32::MAX);
        self.words += u32::from(loses);
        loses
    }

    fn loses(&mut self, from_guest: bool, packet: &Packet) -> bool {
        if from_guest { self.loses_data(packet) } else { self.loses_word(packet) }
    }
}

#[derive(Debug)]
pub struct Path {
    from_guest: bool,
    pub config: PathConfig,
    random: Random,
    busy_until: Instant,
    /// By time of arrival and order of sending.
    under_way: BTreeMap<(Instant, u64), Packet>,
    sent: u64,
    /// The next packets to be dropped, counted from the next one that is sent.
    pub drop_next: Vec<u64>,
    /// Those that come twice, and those that come later than they should.
    pub duplicate_next: Vec<u64>,
    pub late_next: Vec<u64>,
    pub dropped: u64,
    /// Largest payload that it takes, if that is less than what is sent; what is larger is dropped, and said to be.
    pub largest: Option<u32>,
    /// Nobody says so.
    pub silent: bool,
    pub too_large: Vec<Seq>,
}

impl Path {
    pub fn new(from_guest: bool, config: PathConfig, seed: u64) -> Self {
        Self {
            from_guest,
            config,
            random: Random::new(seed),
            busy_until: Instant::ZERO,
            under_way: BTreeMap::new(),
            sent: 0,
            drop_next: Vec::new(),
            duplicate_next: Vec::new(),
            late_next: Vec::new(),
            dropped: 0,
            largest: None,
            silent: false,
            too_large: Vec::new(),
        }
    }

    pub fn send(&mut self, now: Instant, packet: &Packet, mercy: &mut Mercy) {
        for segment in packet.segments() {
            self.send_one(now, &segment, mercy);
            if self.from_guest {
                mercy.note(&segment);
            }
        }
    }

    fn send_one(&mut self, now: Instant, packet: &Packet, mercy: &mut Mercy) {
        let mut packet = packet.clone();
        let config = self.config.clone();
        let doomed = is_next(&mut self.drop_next);
        let twice = is_next(&mut self.duplicate_next);
        let held_up = is_next(&mut self.late_next);
        let mut at = now;
        if let Some(rate) = config.rate {
            let waiting = self.busy_until.since(now);
            let full = waiting.as_nanos() as u64 / 1000 * rate / 1000 > config.queue;
            if full && mercy.loses(self.from_guest, &packet) {
                self.dropped += 1;
                return;
            }
            let time = Duration::from_nanos(packet.wire_len() * 1_000_000 / rate.max(1));
            at = now + waiting + time;
            self.busy_until = at;
        }
        let unlucky = self.random.permille(config.loss);
        if self.largest.is_some_and(|largest| packet.segment.len > largest) {
            if !self.silent {
                self.too_large.push(packet.segment.seq);
            }
            self.dropped += 1;
            return;
        }
        if doomed || (unlucky && mercy.loses(self.from_guest, &packet)) {
            self.dropped += 1;
            return;
        }
        if packet.segment.ecn != Ecn::NOT_ECT && self.random.permille(config.mark) {
            packet.segment.ecn = Ecn::CE;
        }
        let late = self.random.permille(config.reorder) || held_up;
        at += config.delay + if late { config.reorder_by } else { Duration::ZERO };
        if self.random.permille(config.duplicate) || twice {
            self.arrives(at + Duration::from_micros(50), packet.clone());
        }
        self.arrives(at, packet);
    }

    fn arrives(&mut self, at: Instant, packet: Packet) {
        self.sent += 1;
        self.under_way.insert((at, self.sent), packet);
    }

    /// Packets that have come through, or will.
    pub const fn sent(&self) -> u64 {
        self.sent
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

/// Returns `true` if the packet that is sent now is among those; counts the others down.
fn is_next(list: &mut Vec<u64>) -> bool {
    let next = list.contains(&0);
    *list = list.iter().filter_map(|n| n.checked_sub(1)).collect();
    next
}
