//! Open-loop transfers: they come whether or not earlier ones are done.
//!
//! # Theory of operation
//! Each sender has transfers at exponential gaps, to a receiver drawn uniformly among the others, of a size drawn from a
//! distribution. Either each has a connection of its own, or all of a pair share one that stays open, as
//! the fat-tree experiment of the small-flows paper has it: then transfers between the same pair queue behind each
//! other in order, and slow start happens once (or after idle time).
//!
//! What comes when does not depend on the network, so it can be known before the run ([`PoissonConfig::entries`]), and a
//! [`Replay`](super::Replay) of it can run in parts.

use std::collections::{BTreeMap, BTreeSet};

use super::record::Record;
use super::replay::{Entry, Work};
use super::sizes::Sizes;
use crate::engine::Rng;
use crate::flow::{FlowId, Side};
use crate::packet::Address;
use crate::tcp::TcpConfig;
use crate::world::{App, Ctx};
use crate::{Duration, Instant};

/// Timers from here on are for the next connection of a sender, those below for its next transfer.
const OPEN: u32 = 1 << 31;

/// Which connections transfers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// A new one each.
    Fresh,
    /// The pair's own, opened when it is first used.
    Permanent,
    /// The pair's own, all of which are opened before the first transfer: each sender opens one after the other at
    /// this distance, so that no queue is full of SYNs.
    Opened(Duration),
}

/// Settings.
#[derive(Clone, Debug)]
pub struct PoissonConfig {
    /// Who sends.
    pub senders: Vec<Address>,
    /// Who receives; nobody sends to itself.
    pub receivers: Vec<Address>,
    /// Mean gap between the transfers of one sender.
    pub gap: Duration,
    /// Sizes.
    pub sizes: Sizes,
    /// Connections.
    pub pairing: Pairing,
    /// No transfer begins after this.
    pub until: Duration,
    /// All stacks.
    pub stack: TcpConfig,
    /// Seed of the run.
    pub seed: u64,
}

impl PoissonConfig {
    /// The same connections and transfers as a list, in the order of time.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (number, &from) in self.senders.iter().enumerate() {
            let start = self.openings(number, from, &mut entries);
            self.arrivals(from, start, &mut entries);
        }
        entries.sort_by_key(|entry| entry.start);
        entries
    }

    /// Adds the connections that a sender opens before its first transfer, and returns when it has done so.
    fn openings(&self, number: usize, from: Address, entries: &mut Vec<Entry>) -> Duration {
        let Pairing::Opened(distance) = self.pairing else { return Duration::ZERO };
        let mut start = Duration::ZERO;
        for place in 0..self.receivers.len() {
            let to = self.receiver(place, number);
            if to != from {
                entries.push(Entry { start, from, to, work: Work::Open });
            }
            start += distance;
        }
        start
    }

    fn arrivals(&self, from: Address, mut start: Duration, entries: &mut Vec<Entry>) {
        let mut rng = self.rng(from);
        let mut open = BTreeSet::new();
        loop {
            start += rng.exponential(self.gap);
            if start > self.until {
                break;
            }
            let (to, bytes) = self.draw(from, &mut rng);
            if self.pairing == Pairing::Permanent && open.insert(to) {
                entries.push(Entry { start, from, to, work: Work::Open });
            }
            entries.push(Entry { start, from, to, work: Work::Transfer(bytes) });
        }
    }

    fn rng(&self, sender: Address) -> Rng {
        Rng::new(self.seed, "poisson", u64::from(sender.0))
    }

    /// To whom a sender opens a connection. Senders begin at different receivers, so that none is asked by all at once.
    fn receiver(&self, place: usize, sender: usize) -> Address {
        self.receivers[(place + sender) % self.receivers.len()]
    }

    /// Receiver and size of a sender's next transfer.
    fn draw(&self, from: Address, rng: &mut Rng) -> (Address, u64) {
        let to = loop {
            let to = self.receivers[rng.below(self.receivers.len() as u64) as usize];
            if to != from {
                break to;
            }
        };
        (to, self.sizes.sample(rng))
    }
}

/// A transfer that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// When.
    pub begun: Instant,
    /// Its size.
    pub bytes: u64,
    /// Bytes on its connection that had not arrived by then: they go before it, whatever the network does.
    pub ahead: u64,
}

/// The application.
#[derive(Debug)]
pub struct Poisson {
    config: PoissonConfig,
    rngs: Vec<Rng>,
    /// Of each sender with [`Pairing::Opened`], the receivers to whom it has a connection.
    opened: Vec<u32>,
    pairs: BTreeMap<(Address, Address), FlowId>,
    /// Transfers under way; the tag is the place.
    pending: Vec<Pending>,
    is_free: Vec<bool>,
    free: Vec<u32>,
    records: Vec<Record>,
    ahead: Vec<u64>,
}

impl Poisson {
    /// An application with these settings.
    ///
    /// # Panics
    /// If a sender has nobody to send to.
    #[must_use]
    pub fn new(config: PoissonConfig) -> Self {
        for sender in &config.senders {
            let others = config.receivers.iter().any(|to| to != sender);
            assert!(others, "{sender:?} has nobody to send to");
        }
        let rngs = config.senders.iter().map(|&sender| config.rng(sender)).collect();
        let opened = vec![0; config.senders.len()];
        Self {
            config,
            rngs,
            opened,
            pairs: BTreeMap::new(),
            pending: Vec::new(),
            is_free: Vec::new(),
            free: Vec::new(),
            records: Vec::new(),
            ahead: Vec::new(),
        }
    }

    /// Transfers that are complete, in the order of completion.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// What was [ahead](Pending::ahead) of each of the [records](Self::records).
    #[must_use]
    pub fn ahead(&self) -> &[u64] {
        &self.ahead
    }

    /// Transfers that are under way.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// The transfers that are under way.
    pub fn unfinished(&self) -> impl Iterator<Item = Pending> {
        let under_way = move |place: &usize| !self.is_free[*place];
        (0..self.pending.len()).filter(under_way).map(move |place| self.pending[place])
    }

    /// Opens the next connection of a sender; the transfers begin behind the last.
    fn open_next(&mut self, sender: u32, distance: Duration, ctx: &mut Ctx<'_>) {
        let from = self.config.senders[sender as usize];
        let place = self.opened[sender as usize] as usize;
        if place == self.config.receivers.len() {
            return self.schedule(sender, ctx);
        }
        let to = self.config.receiver(place, sender as usize);
        self.opened[sender as usize] += 1;
        if to != from {
            self.connection(from, to, ctx);
        }
        ctx.after(distance, OPEN + sender);
    }

    fn schedule(&mut self, sender: u32, ctx: &mut Ctx<'_>) {
        let gap = self.rngs[sender as usize].exponential(self.config.gap);
        if ctx.now() + gap <= Instant::ZERO + self.config.until {
            ctx.after(gap, sender);
        }
    }

    fn connection(&mut self, from: Address, to: Address, ctx: &mut Ctx<'_>) -> FlowId {
        let stacks = [&self.config.stack, &self.config.stack];
        match self.config.pairing {
            Pairing::Fresh => ctx.open(from, to, stacks),
            Pairing::Permanent | Pairing::Opened(_) => {
                *self.pairs.entry((from, to)).or_insert_with(|| ctx.open(from, to, stacks))
            }
        }
    }

    fn note(&mut self, transfer: Pending) -> u32 {
        if let Some(place) = self.free.pop() {
            self.pending[place as usize] = transfer;
            self.is_free[place as usize] = false;
            return place;
        }
        self.pending.push(transfer);
        self.is_free.push(false);
        self.pending.len() as u32 - 1
    }
}

/// What the client of a flow has written and the server has not got.
fn under_way(ctx: &Ctx<'_>, flow: FlowId) -> u64 {
    let Some(flow) = ctx.flows().get(flow) else { return 0 };
    let server = flow.end(Side::Server).connection.as_ref();
    let delivered = server.map_or(0, |connection| connection.receiver().delivered());
    flow.end(Side::Client).written().saturating_sub(delivered)
}

impl App for Poisson {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        for sender in 0..self.config.senders.len() as u32 {
            match self.config.pairing {
                Pairing::Opened(distance) => self.open_next(sender, distance, ctx),
                Pairing::Fresh | Pairing::Permanent => self.schedule(sender, ctx),
            }
        }
    }

    fn on_timer(&mut self, sender: u32, ctx: &mut Ctx<'_>) {
        if let Some(sender) = sender.checked_sub(OPEN)
            && let Pairing::Opened(distance) = self.config.pairing
        {
            return self.open_next(sender, distance, ctx);
        }
        let from = self.config.senders[sender as usize];
        let (to, bytes) = self.config.draw(from, &mut self.rngs[sender as usize]);
        let flow = self.connection(from, to, ctx);
        let ahead = under_way(ctx, flow);
        let tag = self.note(Pending { begun: ctx.now(), bytes, ahead });
        ctx.send(flow, Side::Client, bytes, tag);
        if self.config.pairing == Pairing::Fresh {
            ctx.close(flow, Side::Client);
        }
        self.schedule(sender, ctx);
    }

    fn on_message(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        let Pending { begun, bytes, ahead } = self.pending[tag as usize];
        self.free.push(tag);
        self.is_free[tag as usize] = true;
        self.records.push(Record { begun, done: ctx.now(), bytes });
        self.ahead.push(ahead);
        if self.config.pairing == Pairing::Fresh {
            ctx.close(flow, side);
        }
    }

    fn on_closed(&mut self, flow: FlowId, _: &mut Ctx<'_>) {
        self.pairs.retain(|_, open| *open != flow);
    }
}
