//! Who sends little, and who sends much: a meter for each pair of source VM and destination.
//!
//! # Theory of operation
//! **Goal**: packets of small flows get the high class, in the host's queues and, by their DSCP, in the
//! network's. What is small is inferred from what a VM sends; nothing that it says is believed.
//!
//! A *pair* is everything that one VM sends to one destination address, of whatever protocol and connection. Splitting a
//! transfer over many connections, or sending it as UDP, changes nothing. Each pair has a token bucket of `burst`
//! bytes that gains `rate` bytes a second:
//!
//! - *high*: a packet that finds its bytes in the bucket takes them and is high. One that does not makes the pair
//!   low.
//! - *low*: all packets are low. Every `recheck` (100 ms), measured from when the pair became low, it becomes high again
//!   if it sent no more than `rate` allows in that time. Low packets take no tokens, so a message that comes
//!   after such a pause finds the bucket full.
//!
//! A pair that was idle for `idle` (10 s) is forgotten; a new one starts high with a full bucket. The check
//! needs no timer: it is done for the last whole period, when the first packet after it comes.
//!
//! **What is hostile.** A VM chooses its destinations. The table is its own (one meter per VM) and
//! bounded: the pair that finds no room is low until another one is forgotten. A VM can invent destinations, so all of its
//! pairs together may have what `high_pairs` of them may: a packet beyond that makes its pair low, as one beyond the pair's own rate does.
//! What is not IP is one pair of its own ([`FiveTuple::NONE`]).
//!
//! **Invariants**: in any interval of `t` seconds at most `high_pairs * (burst + rate * t)` bytes of a VM, and `burst + rate * t` bytes of a pair, are high. (A pair that
//! is forgotten has been idle for longer than its bucket takes to fill, if `idle >= burst / rate`.)
//!
//! Source: Xu et al., "Small is Better" (`SoCC` 2013), sections 4.3 and 5.

mod counters;
mod pair;
#[cfg(test)]
mod tests;

use floodway_wire::FiveTuple;
use std::net::IpAddr;
use std::net::Ipv6Addr;

use crate::egress::qdisc::Class;
use crate::tables::flow_table::{FlowId, FlowRef, FlowTable, MAX_CAPACITY};
use crate::time::{Duration, Instant};
use crate::token_bucket::TokenBucket;
pub use counters::{CounterCells, Counters};
use pair::Pair;

/// Settings of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes per second of a pair that are high. Default 1 250 000 (10 Mbit/s).
    pub rate: u64,
    /// Bytes that are high at once. Default 30 000.
    pub burst: u64,
    /// How often a low pair is looked at. Default 100 ms; zero is taken for 1 ns.
    pub recheck: Duration,
    /// When an idle pair is forgotten. Default 10 s.
    pub idle: Duration,
    /// Most pairs of a VM, 1 to [`MAX_CAPACITY`]. Default 1024.
    pub max_pairs: u32,
    /// All pairs of a VM together may be high with so many times `rate` and `burst`, at least once. Default 25, with which a rate of 1 % of
    /// the link leaves the VM a quarter of it.
    pub high_pairs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rate: 1_250_000,
            burst: 30_000,
            recheck: Duration::from_millis(100),
            idle: Duration::from_secs(10),
            max_pairs: 1024,
            high_pairs: 25,
        }
    }
}

impl Config {
    /// What the VM may send high.
    fn vm_bucket(&self) -> TokenBucket {
        let times = |n: u64| n.saturating_mul(self.high_pairs.max(1).into());
        TokenBucket::new(times(self.rate), times(self.burst), Instant::ZERO)
    }
}

/// A pair as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairSummary {
    /// Destination; `None` for what is not IP.
    pub destination: Option<IpAddr>,
    /// Class of its next packet, if that is small.
    pub class: Class,
    /// Bytes per second in the last whole period of `recheck`.
    pub rate: u64,
    /// Bytes in the bucket.
    pub tokens: u64,
    /// Time since its last packet.
    pub idle: Duration,
}

/// The meter of one VM. See the [module](self) for how it works.
#[derive(Debug)]
pub struct Meter {
    config: Config,
    pairs: FlowTable<Pair>,
    /// What all pairs together may send high.
    vm: TokenBucket,
    /// The pair of the last packet: the next one is often of the same.
    recent: Option<(FiveTuple, FlowId)>,
    counters: CounterCells,
}

impl Meter {
    /// A meter that knows no pair. `seed` should be secret.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        let pairs = FlowTable::new(config.max_pairs.min(MAX_CAPACITY), seed);
        Self {
            vm: config.vm_bucket(),
            config,
            pairs,
            recent: None,
            counters: CounterCells::default(),
        }
    }

    /// The class of a packet of `len` bytes that the VM sends at `now`. Only the destination of `flow` matters;
    /// [`FiveTuple::NONE`] stands for what is not IP.
    pub fn classify(&mut self, flow: &FiveTuple, len: u32, now: Instant) -> Class {
        let class = self.meter(&key(flow), len, now);
        match class {
            Class::High => self.counters.high().add(1),
            Class::Low => self.counters.low().add(1),
        }
        class
    }

    /// Returns the class that [`classify`](Self::classify) would give a packet, and notes nothing: the pair and the VM's bucket
    /// are asked as copies.
    #[must_use]
    pub fn would_classify(&self, flow: &FiveTuple, len: u32, now: Instant) -> Class {
        let known = self.pairs.find(&key(flow)).and_then(|id| self.pairs.get(id)).cloned();
        if known.is_none() && !self.has_room(now) {
            return Class::Low;
        }
        let mut pair = known.unwrap_or_else(|| Pair::new(&self.config, now));
        pair.packet(&self.config, &mut self.vm.clone(), len, now, &CounterCells::default())
    }

    /// Returns `true` if another pair finds room, or one that is idle makes some.
    fn has_room(&self, now: Instant) -> bool {
        self.pairs.len() < self.pairs.capacity() || self.pairs.would_expire(now, self.config.idle)
    }

    #[inline]
    fn meter(&mut self, key: &FiveTuple, len: u32, now: Instant) -> Class {
        let Some(id) = self.find(key) else { return self.meet(key, len, now) };
        let Some(pair) = self.pairs.touch(id, now) else { return self.meet(key, len, now) };
        pair.packet(&self.config, &mut self.vm, len, now, &self.counters)
    }

    #[inline]
    fn find(&mut self, key: &FiveTuple) -> Option<FlowId> {
        if let Some((recent, id)) = &self.recent
            && recent == key
            && self.pairs.get(*id).is_some()
        {
            return Some(*id);
        }
        let found = self.pairs.find(key)?;
        self.recent = Some((*key, found));
        Some(found)
    }

    /// The first packet of a pair.
    #[cold]
    fn meet(&mut self, key: &FiveTuple, len: u32, now: Instant) -> Class {
        // Two for one: the table empties faster than it fills.
        self.forget(2, now);
        let mut pair = Pair::new(&self.config, now);
        let class = pair.packet(&self.config, &mut self.vm, len, now, &self.counters);
        if self.pairs.insert(key, now, pair).is_ok() {
            return class;
        }
        self.counters.refused().add(1);
        Class::Low
    }

    /// Forgets idle pairs, at most `limit`. To be called now and then; once a second is plenty.
    pub fn forget(&mut self, limit: u32, now: Instant) {
        for _ in 0..limit {
            if self.pairs.expire(now, self.config.idle, |_| true).is_none() {
                return;
            }
        }
    }

    /// Pairs that are known.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.pairs.len()
    }

    /// No pair is known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// Counts in `cells` from now on, on top of what is there. Meters that one thread at a time uses may share them.
    pub fn count_in(&mut self, cells: CounterCells) {
        self.counters = cells;
    }

    /// The pairs in places `from` up to `from + limit` of the table, and where to go on, if there is more.
    pub fn pairs(
        &self,
        from: u32,
        limit: u32,
        now: Instant,
    ) -> (impl Iterator<Item = PairSummary>, Option<u32>) {
        let end = from.saturating_add(limit);
        let next = (end < self.pairs.slots()).then_some(end);
        let summary = move |pair: FlowRef<'_, Pair>| PairSummary {
            destination: (*pair.tuple != FiveTuple::NONE).then(|| pair.tuple.dst_ip()),
            class: pair.flow.class(&self.config, now),
            rate: pair.flow.rate(&self.config, now),
            tokens: pair.flow.tokens(now),
            idle: now.since(pair.last_used),
        };
        (self.pairs.iter_from(from, limit).map(summary), next)
    }
}

/// The part of a packet's tuple that names its pair.
fn key(flow: &FiveTuple) -> FiveTuple {
    FiveTuple { src: Ipv6Addr::UNSPECIFIED, src_port: 0, dst_port: 0, protocol: 0, ..*flow }
}
