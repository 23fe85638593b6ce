//! The offload of one port: its flow table, its timers, and the order in which things happen.

use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use super::config::Config;
use super::counters::{CounterCells, Counters};
use super::flow::{Flow, StatePool};
use super::forgotten::Forgotten;
use super::packet::Packet;
use super::port::{CERTAIN, Call, OffloadShared};
use super::sender::Predicted;
use super::sink::{Link, Sink, Verdict};
use super::summary::{FlowSummary, Reason};
use crate::histogram::DurationCounts;
use crate::seq::Seq;
use crate::tables::flow_table::{FlowId, FlowRef, FlowTable};
use crate::tables::timer::{ShortTime, TimerQueue};
use crate::tcp::{Segment, Side};
use crate::time::{Duration, Instant};

/// Timers that one call handles at most.
const TIMERS_PER_CALL: u32 = 64;
/// The state of so many flows (a megabyte and a half) is in a cache that needs no help.
const NEAR_FLOWS: u32 = 4096;
/// Flows that are offered room when some comes free.
const OFFERS_PER_CALL: usize = 4;
/// Idle flows are forgotten to within this part of the idle time.
const GRANULES: u32 = 32;
/// How often old flows are looked for.
pub(super) const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Flows that upkeep looks at when the budget is short.
const UPKEEP_SCAN: u32 = 256;
/// An online flow that was not used for this long gives its grant back when the budget is short.
const UNUSED: Duration = Duration::from_secs(1);

/// The offload of one port. See the [module](super) for how it works.
#[derive(Debug)]
pub struct Offload<B> {
    pub(super) flows: FlowTable<Flow<B>>,
    pub(super) timers: TimerQueue,
    pub(super) port: OffloadShared,
    pub(super) state_pool: StatePool<B>,
    pub(super) forgotten: Option<Box<Forgotten>>,
    pub(super) upkeep_at: Instant,
    upkeep_cursor: u32,
}

impl<B: 'static> Offload<B> {
    /// Bytes of a flow's state, without the table's own (64, and 16 to 32 in its index) and its timer's (24). What is
    /// held, sent and not acknowledged, or kept comes to that.
    pub const FLOW_SIZE: usize = size_of::<Flow<B>>();

    /// An offload without flows. `seed` must be secret: it keeps guests from making look-ups slow.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            flows: FlowTable::new(config.max_flows, seed).with_granule(config.idle / GRANULES),
            timers: TimerQueue::new(config.max_flows, Instant::ZERO),
            port: OffloadShared::new(config),
            state_pool: StatePool::default(),
            forgotten: None,
            upkeep_at: Instant::NEVER,
            upkeep_cursor: 0,
        }
    }

    /// How it is configured.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.port.config
    }

    /// Changes the configuration. Flows that may not stay online leave as soon as nothing of them is
    /// stored; others come online when they are next idle. New flows follow it from their start.
    /// `max_flows` stays as it was.
    pub fn configure(&mut self, config: Config, now: Instant, sink: &mut impl Sink<B>) {
        self.port.pool.resize(config.budget);
        self.port.config = config;
        self.port.choose_early_acks();
        self.reconfigure_all(Reason::Disabled, now, sink);
    }

    /// Takes every flow offline, for migration, or ends that (`draining` false). Until then new flows stay
    /// offline.
    pub fn drain(&mut self, draining: bool, now: Instant, sink: &mut impl Sink<B>) {
        self.port.draining = draining;
        self.reconfigure_all(Reason::Draining, now, sink);
    }

    /// Drain was asked for, and no flow is online or has anything stored.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.port.draining && self.port.pool.online == 0 && self.port.kept == 0
    }

    fn reconfigure_all(&mut self, reason: Reason, now: Instant, sink: &mut impl Sink<B>) {
        self.with_each_flow(now, sink, |flow, call| flow.reconfigure(reason, call));
        self.flush(now, sink);
    }

    /// Calls `f` with every flow.
    pub(super) fn with_each_flow<S: Sink<B>>(
        &mut self,
        now: Instant,
        sink: &mut S,
        mut f: impl FnMut(&mut Flow<B>, &mut Call<'_, S>),
    ) {
        for index in 0..self.flows.slots() {
            if let Some(id) = self.id_at(index) {
                self.with_flow(id, now, sink, &mut f);
            }
        }
    }

    pub(super) fn id_at(&self, index: u32) -> Option<FlowId> {
        self.flows.iter_from(index, 1).next().map(|found| found.id)
    }

    /// Looks up the flows of a batch of packets, for [`Packet::found`]: the cache misses of the batch overlap. `flows` are
    /// 5-tuples in the guest's direction; what is in only one of the slices is left alone.
    #[inline]
    pub fn look_up(&self, flows: &[FiveTuple], found: &mut [Option<FlowId>]) {
        self.flows.find_batch(flows, found);
    }

    /// Brings what packets of a batch need of their flows, as [`look_up`](Self::look_up) has found them, into the
    /// cache: these misses overlap too. Changes nothing.
    #[inline]
    pub fn load(&self, found: &[Option<FlowId>], from: Side) {
        if self.flows.len() <= NEAR_FLOWS {
            return;
        }
        // One line after the other: where the next is, the one before says.
        let flows = || found.iter().flatten().filter_map(|&id| self.flows.get(id));
        let mut loaded = match from {
            Side::Guest => flows().fold(0, |all, flow| all ^ flow.load_for_guest()),
            Side::Peer => flows().fold(0, |all, flow| all ^ flow.load()),
        };
        if from == Side::Peer {
            loaded ^= found.iter().flatten().fold(0, |all, &id| all ^ self.timers.load(id));
        }
        loaded ^= flows().fold(0, |all, flow| all ^ flow.load_lists());
        std::hint::black_box(loaded);
    }

    /// A TCP segment from the guest towards the network. `keep` is called at most once, when the frame has to be stored; it
    /// returns `None` when there is no memory.
    pub fn from_guest(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        keep: impl FnOnce() -> Option<B>,
        sink: &mut impl Sink<B>,
    ) -> Verdict {
        let found = packet.found.or_else(|| self.find_or_open(now, packet, Side::Guest));
        let Some(id) = found else { return self.unknown(now, packet, Side::Guest, sink) };
        match self.guest_predicted(id, now, packet, keep, sink) {
            Ok(verdict) => verdict,
            Err(keep) => self.guest_in_full(now, packet, keep, sink),
        }
    }

    /// A packet of the guest that can be predicted. If it cannot, `keep` is given back.
    #[inline(always)]
    fn guest_predicted<K: FnOnce() -> Option<B>>(
        &mut self,
        id: FlowId,
        now: Instant,
        packet: &Packet<'_>,
        keep: K,
        sink: &mut impl Sink<B>,
    ) -> Result<Verdict, K> {
        let Some((tuple, flow)) = self.flows.touch_entry(id, now) else { return Err(keep) };
        let mut call = Call { now, id, tuple, port: &mut self.port, sink };
        let Some(predicted) = flow.predict(packet.segment, &call) else { return Err(keep) };
        flow.link = *packet.link;
        // What is held has its place already.
        if predicted == Predicted::Release {
            flow.acquire_state(Side::Guest, &mut self.state_pool);
        }
        let verdict = flow.on_predicted(predicted, packet.segment, keep, &mut call);
        if predicted == Predicted::Release {
            flow.set_sender_timer(id, &mut self.timers);
        }
        Ok(verdict)
    }

    /// A packet of the guest of which nothing is taken for granted.
    #[inline(never)]
    fn guest_in_full(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        keep: impl FnOnce() -> Option<B>,
        sink: &mut impl Sink<B>,
    ) -> Verdict {
        let Some(id) = self.find_or_open(now, packet, Side::Guest) else {
            return Verdict::PASS;
        };
        self.acquire_state(id, packet.segment, Side::Guest);
        if let Some(flow) = self.flows.get_mut(id) {
            flow.link = *packet.link;
        }
        let Some(outcome) =
            self.with_flow(id, now, sink, |flow, call| flow.on_guest(packet.segment, keep, call))
        else {
            return Verdict::PASS;
        };
        if outcome.over {
            self.end(id, packet, Side::Guest, now, sink);
        }
        outcome.verdict
    }

    /// A TCP segment from the network towards the guest. `keep` is as in [`Offload::from_guest`]. When the verdict is to pass,
    /// the frame must be delivered or queued after what `sink` was given during this call, and if [`Offload::awaits_delivery`] says so, [`Offload::on_delivered`]
    /// has to be told whether it was.
    pub fn from_network(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        keep: impl FnOnce() -> Option<B>,
        sink: &mut impl Sink<B>,
    ) -> Verdict {
        let Some(id) = self.find_or_open(now, packet, Side::Peer) else {
            return self.unknown(now, packet, Side::Peer, sink);
        };
        if let Some(verdict) = self.screen(id, packet, now, sink) {
            return verdict;
        }
        self.acquire_state(id, packet.segment, Side::Peer);
        let free = self.port.pool.budget.free();
        let Some(outcome) = self
            .with_flow(id, now, sink, |entry, call| entry.on_network(packet.segment, keep, call))
        else {
            return Verdict::PASS;
        };
        if outcome.over {
            self.end(id, packet, Side::Peer, now, sink);
        }
        if self.port.pool.budget.free() > free {
            self.offer_room(now, sink);
        }
        outcome.verdict
    }

    /// What becomes of a packet of no flow.
    fn unknown(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        side: Side,
        sink: &mut impl Sink<B>,
    ) -> Verdict {
        if side == Side::Guest {
            self.port.greet(packet.link, sink);
        }
        if self.port.doubtful_until != CERTAIN {
            return self.doubt(now, packet, side, sink);
        }
        self.watch(now, packet, side, sink)
    }

    /// The flow of a packet that came from `side`; a SYN opens one, if the port wants any.
    #[inline(always)]
    fn find_or_open(&mut self, now: Instant, packet: &Packet<'_>, side: Side) -> Option<FlowId> {
        match packet.found {
            Some(id) if self.flows.get(id).is_some() => Some(id),
            _ => self.find_or_open_slowly(now, packet, side),
        }
    }

    fn find_or_open_slowly(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        side: Side,
    ) -> Option<FlowId> {
        let flow = packet.guest_flow(side);
        self.flows.find(&flow).or_else(|| self.open(now, &flow, packet.link, packet.segment))
    }

    fn open(
        &mut self,
        now: Instant,
        flow: &FiveTuple,
        link: &Link,
        segment: &Segment,
    ) -> Option<FlowId> {
        if !self.is_opened_by(segment) {
            return None;
        }
        if self.flows.len() >= self.flows.capacity()
            && let Some(mut gone) = self.flows.evict(|old| old.flow.may_go())
        {
            gone.flow.release(&mut self.port);
            gone.flow.return_state(&mut self.state_pool);
            self.port.counters.flows_closed().add(1);
        }
        match self.flows.insert(flow, now, Flow::new(*link)) {
            Ok(id) => {
                self.port.counters.flows_opened().add(1);
                self.upkeep_at = self.upkeep_at.min(now + UPKEEP_INTERVAL);
                Some(id)
            }
            Err(_) => {
                self.port.counters.flows_refused().add(1);
                None
            }
        }
    }

    /// Returns `true` if a segment that belongs to no flow opens one, as far as there is room.
    pub(super) fn is_opened_by(&self, segment: &Segment) -> bool {
        segment.has(Flags::SYN)
            && !segment.has(Flags::RST)
            && !segment.has(Flags::ACK)
            && (self.port.config.transmit || self.port.config.receive)
    }

    /// Calls `f` with a flow, and moves its timer afterwards.
    pub(super) fn with_flow<S: Sink<B>, T>(
        &mut self,
        id: FlowId,
        now: Instant,
        sink: &mut S,
        f: impl FnOnce(&mut Flow<B>, &mut Call<'_, S>) -> T,
    ) -> Option<T> {
        let (tuple, flow) = self.flows.touch_entry(id, now)?;
        let mut call = Call { now, id, tuple, port: &mut self.port, sink };
        let before = flow.holdings();
        let answer = f(flow, &mut call);
        flow.settle(before, &mut self.port);
        flow.park(&mut self.state_pool);
        flow.set_timer(id, now, &mut self.timers);
        Some(answer)
    }

    /// Makes room for what a segment brings.
    #[inline]
    fn acquire_state(&mut self, id: FlowId, segment: &Segment, from: Side) {
        if segment.seq_len() > 0
            && let Some(flow) = self.flows.get_mut(id)
        {
            flow.acquire_state(from, &mut self.state_pool);
        }
    }

    /// Removes a flow that is over. A SYN uses its ports again for another.
    #[cold]
    pub(super) fn end(
        &mut self,
        id: FlowId,
        packet: &Packet<'_>,
        side: Side,
        now: Instant,
        sink: &mut impl Sink<B>,
    ) {
        // What it has to say, it says now.
        self.with_flow(id, now, sink, Flow::flush);
        self.forget(id);
        self.offer_room(now, sink);
        if packet.segment.has(Flags::SYN)
            && let Some(id) = self.find_or_open(now, packet, side)
            && let Some(entry) = self.flows.get_mut(id)
        {
            entry.accept_syn(side, packet.segment, now, &mut self.port);
        }
    }

    pub(super) fn forget(&mut self, id: FlowId) {
        if let Some(mut gone) = self.flows.remove(id) {
            gone.flow.release(&mut self.port);
            gone.flow.return_state(&mut self.state_pool);
            self.port.counters.flows_closed().add(1);
        }
    }

    fn offer_room(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        for _ in 0..OFFERS_PER_CALL {
            let Some(id) = self.port.waiting.pop_front() else { return };
            let taken = self.with_flow(id, now, sink, Flow::offer_room);
            if taken == Some(false) {
                return;
            }
        }
    }

    /// A router says that a segment of a guest was too large for its path: the one of `flow`, given in the guest's
    /// direction, that begins at `seq`. `mtu` is the largest packet that the path takes, in bytes. What is
    /// stored is cut to it (RFC 1191, 8201); a message that names nothing that is on its way is ignored
    /// (RFC 5927). The guest has to hear of it as well.
    pub fn too_big(
        &mut self,
        now: Instant,
        flow: &FiveTuple,
        seq: Seq,
        mtu: u32,
        sink: &mut impl Sink<B>,
    ) {
        if let Some(id) = self.flows.find(flow) {
            self.with_flow(id, now, sink, |flow, call| flow.on_too_big(seq, mtu, call));
        }
    }

    /// Ends a batch of frames.
    pub fn flush(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        while let Some(id) = self.port.flagged.pop() {
            self.with_flow(id, now, sink, Flow::flush);
        }
    }

    /// When [`Offload::handle_timeout`] is due; [`Instant::NEVER`] if nothing waits.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        let timers = self.timers.next().unwrap_or(Instant::NEVER);
        timers.min(self.port.heartbeat_at).min(self.upkeep_at)
    }

    /// Whether [`Offload::handle_timeout`] has anything to do. [`Offload::next_timeout`] may be early, since a deadline that has
    /// moved leaves its timer where it was; this moves such timers. For callers to whom a call in vain is dear: a
    /// thread that has to be woken up for it.
    #[must_use]
    pub fn is_due(&mut self, now: Instant) -> bool {
        if self.port.heartbeat_at.min(self.upkeep_at) <= now {
            return true;
        }
        let mut budget = TIMERS_PER_CALL;
        while let Some(id) = self.timers.pop_due(now, &mut budget) {
            let Some((_, flow)) = self.flows.entry_mut(id) else { continue };
            flow.fires = ShortTime::NEVER;
            flow.set_timer(id, now, &mut self.timers);
            if flow.next_timeout(now) <= now {
                return true;
            }
        }
        self.next_timeout() <= now
    }

    /// Does what is due. May stop early when much is: then [`Offload::next_timeout`] is not after `now`.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        let mut budget = TIMERS_PER_CALL;
        while let Some(id) = self.timers.pop_due(now, &mut budget) {
            let Some((tuple, flow)) = self.flows.entry_mut(id) else { continue };
            flow.fires = ShortTime::NEVER;
            if flow.next_timeout(now) > now {
                // What it was set for has moved.
                flow.set_timer(id, now, &mut self.timers);
                continue;
            }
            let mut call = Call { now, id, tuple, port: &mut self.port, sink };
            let before = flow.holdings();
            let over = flow.handle_timeout(&mut call);
            flow.settle(before, &mut self.port);
            flow.park(&mut self.state_pool);
            flow.set_timer(id, now, &mut self.timers);
            if over {
                self.forget(id);
            }
        }
        self.port.send_heartbeat(now, sink);
        self.run_housekeeping(now, sink);
        self.flush(now, sink);
    }

    /// Forgets idle flows, and asks unused ones for their grants when the budget is short.
    fn run_housekeeping(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        if now < self.upkeep_at {
            return;
        }
        let idle = self.port.config.idle;
        for _ in 0..TIMERS_PER_CALL {
            let mut online = None;
            let gone = self.flows.expire(now, idle, |old| {
                online = online.or_else(|| old.flow.is_unused().then_some(old.id));
                old.flow.may_go()
            });
            // It goes offline now, and is forgotten when it stays idle.
            if let Some(id) = online {
                self.with_flow(id, now, sink, |flow, call| flow.leave(Reason::Idle, call));
            }
            match gone {
                Some(mut gone) => {
                    gone.flow.release(&mut self.port);
                    gone.flow.return_state(&mut self.state_pool);
                    self.port.counters.flows_closed().add(1);
                }
                None if online.is_none() => break,
                None => {}
            }
        }
        if std::mem::take(&mut self.port.short_of_room) {
            self.reclaim(now, sink);
        }
        self.end_doubt(now);
        let is_done = self.flows.is_empty() && self.port.doubtful_until == CERTAIN;
        self.upkeep_at = if is_done { Instant::NEVER } else { now + UPKEEP_INTERVAL };
    }

    fn reclaim(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        let unused = |found: &FlowRef<'_, Flow<B>>| {
            now.since(found.last_used) >= UNUSED
                && found.flow.connection().is_some_and(|c| c.tx.is_online() && c.tx.is_idle())
        };
        for _ in 0..UPKEEP_SCAN.min(self.flows.slots()) {
            let found = self.flows.iter_from(self.upkeep_cursor, 1).find(unused).map(|f| f.id);
            self.upkeep_cursor = (self.upkeep_cursor + 1) % self.flows.slots();
            if let Some(id) = found {
                self.with_flow(id, now, sink, |flow, call| flow.leave(Reason::NoRoom, call));
            }
        }
    }

    /// Forgets everything, without a word to anybody: see [`Offload::abort`].
    pub fn reset(&mut self) {
        for index in 0..self.flows.slots() {
            if let Some(id) = self.id_at(index) {
                self.forget(id);
            }
        }
        self.port.flagged.clear();
        self.port.waiting.clear();
        self.port.heartbeat_at = Instant::NEVER;
        self.upkeep_at = Instant::NEVER;
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.port.counters.get()
    }

    /// Round trips of all its flows that it has measured, whose congestion control it has.
    #[must_use]
    pub fn rtts(&self) -> DurationCounts {
        self.port.rtts.counts()
    }

    /// Counts in `cells` from now on, on top of what is there. Flows that another engine has counted there as opened and not as closed are closed: nobody knows
    /// them any more.
    pub fn count_in(&mut self, cells: CounterCells) {
        let Counters { flows_opened, flows_closed, .. } = cells.get();
        cells.flows_closed().add(flows_opened.wrapping_sub(flows_closed));
        self.port.counters = cells;
    }

    /// Flows known.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.flows.len()
    }

    /// No flow is known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Flows online.
    #[must_use]
    pub const fn online(&self) -> u32 {
        self.port.pool.online
    }

    /// Bytes of the budget in use, and bytes kept of what was acknowledged.
    #[must_use]
    pub const fn used(&self) -> (u32, u32) {
        (self.port.pool.budget.used(), self.port.kept)
    }

    /// Bytes acknowledged to the guest that their peers have not acknowledged, of all flows.
    #[must_use]
    pub const fn owed(&self) -> u64 {
        self.port.owed
    }

    /// The flow with these addresses and ports in the guest's direction, if it is known.
    #[must_use]
    pub fn flow(&self, tuple: &FiveTuple) -> Option<FlowSummary> {
        let id = self.flows.find(tuple)?;
        self.flows.get(id).map(|flow| flow.summary(tuple))
    }

    /// The flows in places `from` to `from + limit` of the table, and where the next page starts, if there
    /// is one.
    #[must_use]
    pub fn flows(&self, from: u32, limit: u32) -> (Vec<FlowSummary>, Option<u32>) {
        let page = self
            .flows
            .iter_from(from, limit)
            .map(|found| found.flow.summary(found.tuple))
            .collect();
        let next = from.saturating_add(limit);
        (page, (next < self.flows.slots()).then_some(next))
    }
}
