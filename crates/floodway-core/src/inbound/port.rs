//! The inbound clamp of one VM.

mod peek;

use std::collections::VecDeque;

use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use super::config::Config;
use super::connection::{Connection, Phase};
use super::counters::{CounterCells, Counters};
use super::handshake::{Excluded, Handshake};
use super::meter::{self, Meter};
use super::paced_queue::PacedQueue;
use super::pacer::Pacer;
use super::waiting::Admission;
use crate::steps;
use crate::tables::flow_table::{FlowId, FlowTable, Refused};
use crate::tables::timer::TimerQueue;
use crate::tcp::{Edit, Segment, Side};
use crate::time::{Duration, Instant};
use crate::token_bucket::TokenBucket;

/// Segments that a connection of the VM's own may receive at first, if there is credit (RFC 6928).
const INITIAL_SEGMENTS: u64 = 10;
/// Timers that one call handles at most.
const TIMERS_PER_CALL: u32 = 64;
/// How often old connections are looked for.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// A connection of which nothing was seen for so long is forgotten; one that is met again is not clamped.
const FORGET: Duration = Duration::from_secs(3600);
/// What a VM is given beyond what it used lately, if it used less than it had.
const ROOM_TO_GROW: (u64, u64) = (5, 4);
/// Headers of a segment besides its payload: Ethernet, IPv4 or IPv6, TCP with timestamps.
const HEADERS: [u32; 2] = [14 + 20 + 32, 14 + 40 + 32];

/// Carries out what a clamp decides. `B` is the bytes of a frame, opaque to it.
pub trait Sink<B> {
    /// Sends a kept ACK to the network with these changes. Calls come in the order in which frames have to
    /// leave, and before the frame that the call is about.
    fn send(&mut self, frame: &B, edit: &Edit);
}

/// What becomes of a VM's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves, with these changes.
    Pass(Edit),
    /// It was kept, or tells nothing new.
    Absorb,
}

impl Verdict {
    pub(super) fn with_window(own: u16, window: u16) -> Self {
        let window = (window != own).then_some(window);
        Self::Pass(Edit { window, ..Edit::default() })
    }
}

pub(super) const PASS: Verdict = Verdict::Pass(Edit {
    seq: None,
    ack: None,
    window: None,
    flags: None,
    timestamps: None,
    strip_sack: false,
    append_name: false,
});

/// The inbound clamp of one VM. See the [module](super) for how it works.
#[derive(Debug)]
pub struct WindowClamp<B> {
    pub(super) config: Config,
    pub(super) flows: FlowTable<Connection<B>>,
    timers: TimerQueue,
    pub(super) pacer: Pacer,
    police: TokenBucket,
    /// Connections that wait for their turn, each at most once.
    pub(super) queue: VecDeque<FlowId>,
    /// Connections whose requests wait, paced by what the answers may use, and whose SYN-ACKs do.
    pub(super) requests: PacedQueue,
    pub(super) syn_acks: PacedQueue,
    /// Active connections.
    pub(super) active: u32,
    meter: Meter,
    /// The rate was what held it back since this was last asked.
    pub(super) limited: bool,
    /// When the number of active connections changed last.
    changed_at: Instant,
    upkeep_at: Instant,
    pub(super) counters: CounterCells,
}

impl<B> WindowClamp<B> {
    /// A clamp without connections and with the rate zero. `seed` must be secret: it keeps guests from making
    /// look-ups slow.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            flows: FlowTable::new(config.max_connections, seed),
            timers: TimerQueue::new(config.max_connections, Instant::ZERO),
            pacer: Pacer::new(0, config.tolerance()),
            police: TokenBucket::new(0, u64::from(config.burst), Instant::ZERO),
            queue: VecDeque::new(),
            requests: PacedQueue::new(0, config.tolerance()),
            syn_acks: PacedQueue::new(config.capacity, config.tolerance()),
            active: 0,
            meter: Meter::default(),
            limited: false,
            changed_at: Instant::ZERO,
            upkeep_at: Instant::NEVER,
            counters: CounterCells::default(),
            config,
        }
    }

    /// Changes the configuration; `max_connections` stays as it was.
    pub fn configure(&mut self, config: Config, now: Instant) {
        self.pacer.configure(self.pacer.rate(), config.tolerance(), now);
        self.requests.pacer.configure(self.pacer.rate(), config.tolerance(), now);
        self.syn_acks.pacer.configure(config.capacity, config.tolerance(), now);
        self.config = config;
    }

    /// The VM's rate from now on, in bytes per second.
    pub fn set_rate(&mut self, rate: u64, now: Instant) {
        if rate != self.pacer.rate() {
            self.pacer.configure(rate, self.config.tolerance(), now);
            self.requests.pacer.configure(rate, self.config.tolerance(), now);
            self.police = TokenBucket::new(rate, u64::from(self.config.burst), now);
        }
    }

    /// The VM's rate in bytes per second.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.pacer.rate()
    }

    /// Its active connections.
    #[must_use]
    pub const fn active(&self) -> u32 {
        self.active
    }

    /// Connections known.
    #[must_use]
    pub const fn connections(&self) -> u32 {
        self.flows.len()
    }

    /// ACKs, window updates, requests and SYN-ACKs that wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.requests.len() + self.syn_acks.len()
    }

    /// What arrives for it, in bytes of the link per second.
    pub fn measured(&mut self, now: Instant) -> u64 {
        self.meter.rate(now)
    }

    /// Bytes of the link that have arrived for it.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.meter.total()
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// Counts in `cells` from now on, on top of what is there.
    pub fn count_in(&mut self, cells: CounterCells) {
        self.counters = cells;
    }

    /// What it can use, for water filling: a little more than it used, if its rate has not held it back since
    /// this was last asked; `None` if that is not known.
    pub fn limit(&mut self, now: Instant) -> Option<u64> {
        let limited = std::mem::take(&mut self.limited);
        let is_new = now.since(self.changed_at) < 2 * meter::INTERVAL;
        let (times, by) = ROOM_TO_GROW;
        (!limited && !is_new).then(|| self.meter.rate(now).saturating_mul(times) / by)
    }

    /// Something that is not a TCP segment arrived for the VM and takes `wire` bytes of the link. False if it
    /// is to be dropped.
    pub fn other_from_network(&mut self, now: Instant, is_udp: bool, wire: u64) -> bool {
        self.meter.count(wire, now);
        self.ungranted(wire, now);
        if is_udp && self.config.police_udp && !self.police.take(wire, now) {
            self.limited = true;
            self.counters.policed().add(1);
            return false;
        }
        true
    }

    /// A TCP segment, or GSO packet, arrived for the VM. `flow` is as in the packet; it takes `wire` bytes of the
    /// link.
    pub fn tcp_from_network(
        &mut self,
        now: Instant,
        flow: &FiveTuple,
        segment: &Segment,
        wire: u64,
    ) {
        self.meter.count(wire, now);
        let opens =
            segment.has(Flags::SYN) && !segment.flags.intersects(Flags::ACK.with(Flags::RST));
        let Some(id) = self
            .find_or_open(now, &flow.reversed(), opens, || Phase::Opening(Handshake::default()))
        else {
            return self.ungranted(wire, now);
        };
        let Some(connection) = self.flows.touch(id, now) else { return };
        if opens && connection.is_established() {
            // A new connection of the same ports, or a lie: the VM's answer will tell.
            return self.ungranted(wire, now);
        }
        if opens && connection.begins_anew(Side::Peer, segment) {
            connection.phase = Phase::Opening(Handshake::default());
            self.deactivate(id, now);
        }
        let Some(connection) = self.flows.get_mut(id) else { return };
        if segment.has(Flags::RST) {
            let exact = segment.seq == connection.highest
                || segment.seq == connection.window.guest_ack
                || !connection.is_established();
            if exact {
                self.remove(id, now);
            }
            return self.ungranted(wire, now);
        }
        let granted = self.take_in(id, segment, now);
        if granted {
            self.follow(id);
        } else {
            self.ungranted(wire, now);
        }
        self.settle(id);
    }

    /// What a segment of the peer tells; returns whether it had been granted.
    fn take_in(&mut self, id: FlowId, segment: &Segment, now: Instant) -> bool {
        let Some(connection) = self.flows.get_mut(id) else { return false };
        let (has_data, end) = (segment.len > 0, segment.end());
        let mut granted = false;
        let mut counts = has_data;
        match &mut connection.phase {
            Phase::Opening(handshake) => {
                let agreed = handshake.on_peer(segment, connection.guest_next, now);
                if connection.exclude() {
                    self.counters.excluded().add(1);
                    return false;
                }
                let Some(agreed) = agreed else { return false };
                connection.establish(&agreed, now);
                if has_data {
                    connection.highest = connection.highest.max(end);
                }
                let first = connection.cost(u32::from(agreed.told));
                // The VM's own SYN was charged when it left; an answer to one only now.
                if !segment.has(Flags::SYN) {
                    self.pacer.charge(first, now);
                }
                granted = has_data;
                counts = true;
                self.counters.established().add(1);
            }
            Phase::Opaque { counted } | Phase::Excluded(Excluded { counted, .. }) => {
                connection.highest = end;
                counts &= *counted;
            }
            Phase::Established if has_data => {
                let fits = !end.after(connection.window.advertised_edge);
                granted = fits && end.after(connection.highest);
                counts = fits;
                if granted {
                    let late = connection.arrived(end, self.config.tolerance(), now);
                    let late = connection.cost(late);
                    self.pacer.charge(late, now);
                }
            }
            Phase::Established => {}
        }
        if segment.has(Flags::ACK) {
            connection.peer_ack = connection.peer_ack.max(segment.ack);
        }
        let window = &connection.window;
        if segment.has(Flags::FIN)
            && !end.before(window.guest_ack)
            && !end.after(window.advertised_edge + 1)
        {
            connection.fins[1] = Some(end);
            connection.highest = connection.highest.max(end);
        }
        if counts && !connection.is_received() {
            self.activate(id, now);
        }
        granted
    }

    /// A TCP segment that leaves the host for the network. `flow` is its 5-tuple; `keep` is called at most once, and
    /// answers `None` when there is no memory. A frame that passes has to leave after what `sink` was
    /// told during this call.
    pub fn from_vm(
        &mut self,
        now: Instant,
        flow: &FiveTuple,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        sink: &mut impl Sink<B>,
    ) -> Verdict {
        let is_syn = segment.has(Flags::SYN);
        let opens = is_syn || !segment.has(Flags::RST);
        let phase = || match is_syn {
            true => Phase::Opening(Handshake::default()),
            false => Phase::Opaque { counted: false },
        };
        let Some(id) = self.find_or_open(now, flow, opens, phase) else { return PASS };
        if segment.has(Flags::RST) {
            self.leave_now(id, now, sink);
            self.remove(id, now);
            return PASS;
        }
        if is_syn {
            return self.syn_from_vm(id, flow, segment, keep, now);
        }
        let Some(connection) = self.flows.touch(id, now) else { return PASS };
        let is_new = !segment.seq.before(connection.guest_next);
        connection.note_sent(segment);
        let verdict = match &mut connection.phase {
            Phase::Opening(_) => PASS,
            Phase::Opaque { counted } | Phase::Excluded(Excluded { counted, .. }) => {
                // The data that it acknowledges has come this way.
                *counted |= segment.has(Flags::ACK) && segment.ack == connection.highest;
                PASS
            }
            Phase::Established if !segment.has(Flags::ACK) => PASS,
            Phase::Established if segment.len > 0 || segment.has(Flags::FIN) => {
                match self.request(id, segment, is_new, now, sink) {
                    Admission::Absorb => Verdict::Absorb,
                    Admission::Passes => self.clamp(id, segment, keep, now, sink),
                    Admission::Waits(request) => match keep() {
                        Some(frame) => self.postpone(id, segment, frame, request, now),
                        // Without memory it leaves.
                        None => self.clamp(id, segment, || None, now, sink),
                    },
                }
            }
            Phase::Established => self.clamp(id, segment, keep, now, sink),
        };
        let verdict = self.behind_a_question(id, verdict);
        if self.flows.get(id).is_some_and(Connection::is_received) {
            self.deactivate(id, now);
        }
        self.settle(id);
        verdict
    }

    /// What overtakes a request carries the sequence number that has left.
    fn behind_a_question(&self, id: FlowId, verdict: Verdict) -> Verdict {
        let waiting = self.flows.get(id).and_then(|connection| connection.waiting.as_ref());
        match (verdict, waiting) {
            (Verdict::Pass(edit), Some(waiting)) => {
                Verdict::Pass(Edit { seq: Some(waiting.seq()), ..edit })
            }
            (verdict, _) => verdict,
        }
    }

    fn syn_from_vm(
        &mut self,
        id: FlowId,
        flow: &FiveTuple,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        now: Instant,
    ) -> Verdict {
        let credit = self.pacer.credit(now);
        let Some(connection) = self.flows.touch(id, now) else { return PASS };
        if connection.begins_anew(Side::Guest, segment) {
            // The ports are used again.
            self.remove(id, now);
            let Some(id) =
                self.find_or_open(now, flow, true, || Phase::Opening(Handshake::default()))
            else {
                return PASS;
            };
            return self.syn_from_vm(id, flow, segment, keep, now);
        }
        let waits = connection.waiting.as_ref().is_some_and(|waiting| waiting.is(segment));
        if waits && !segment.options.unknown {
            return Verdict::Absorb;
        }
        connection.note_sent(segment);
        if matches!(connection.phase, Phase::Excluded(_)) {
            return PASS;
        }
        let Phase::Opening(handshake) = &mut connection.phase else {
            // Its SYN-ACK once more: no more than was told.
            let told = connection.window.advertised_edge.since(connection.window.advertised_ack);
            return Verdict::with_window(
                segment.window,
                u16::try_from(told).unwrap_or(u16::MAX).min(segment.window),
            );
        };
        // Who answers a SYN knows nothing of who sent it: two segments, whatever there is.
        let answers = segment.has(Flags::ACK);
        let mss = u64::from(segment.options.mss.unwrap_or_default());
        let window = if answers { 0 } else { credit.min(INITIAL_SEGMENTS * mss) };
        let (field, opened) = handshake.on_guest(segment, window, flow.is_ipv6, now);
        if connection.exclude() {
            self.counters.excluded().add(1);
            return PASS;
        }
        if !answers {
            let cost = connection.cost(u32::from(opened));
            self.pacer.charge(cost, now);
        }
        self.counters.clamped().add(u64::from(field != segment.window));
        self.settle(id);
        match answers && opened > 0 {
            true => self.answer_syn(id, segment, field, keep, now),
            false => Verdict::with_window(segment.window, field),
        }
    }

    /// When [`WindowClamp::handle_timeout`] is due; [`Instant::NEVER`] if nothing waits.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        let timers = self.timers.next().unwrap_or(Instant::NEVER);
        let turn = if self.queue.is_empty() { Instant::NEVER } else { self.pacer.ready_at() };
        let others = self.requests.next_turn().min(self.syn_acks.next_turn());
        timers.min(turn).min(others).min(self.upkeep_at)
    }

    /// Does what is due. May stop early when much is: then [`WindowClamp::next_timeout`] is not after `now`.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        let mut budget = TIMERS_PER_CALL;
        while let Some(id) = self.timers.pop_due(now, &mut budget) {
            steps::count(1);
            let Some(connection) = self.flows.get_mut(id) else { continue };
            if !connection.deadline.fired(now, id, &mut self.timers) {
                continue;
            }
            if connection.active && connection.active_until <= now {
                self.deactivate(id, now);
            }
            if self.flows.get(id).is_some_and(|connection| connection.latest() <= now) {
                self.let_go(id, now, sink);
            }
            self.settle(id);
        }
        self.take_turns(now, sink);
        self.serve(now, sink);
        self.run_housekeeping(now);
    }

    fn run_housekeeping(&mut self, now: Instant) {
        if now < self.upkeep_at {
            return;
        }
        for _ in 0..TIMERS_PER_CALL {
            steps::count(1);
            let gone = self.flows.expire(now, FORGET, |old| old.flow.is_idle());
            if gone.is_none() {
                break;
            }
        }
        self.upkeep_at = if self.flows.is_empty() { Instant::NEVER } else { now + UPKEEP_INTERVAL };
    }

    /// Lets go what waits of a connection.
    fn let_go(&mut self, id: FlowId, now: Instant, sink: &mut impl Sink<B>) {
        // A request takes an ACK that waits along.
        self.leave_now(id, now, sink);
        if self.flows.get(id).is_some_and(Connection::is_holding) {
            self.grant(id, true, now, sink);
        }
    }

    /// Lets everything go that waits, and forgets all connections: the mechanism is switched off.
    pub fn stop(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        for index in 0..self.flows.slots() {
            steps::count(1);
            let waits = |connection: &Connection<B>| connection.latest() != Instant::NEVER;
            let found = self.flows.iter_from(index, 1).find(|found| waits(found.flow));
            if let Some(id) = found.map(|found| found.id) {
                self.let_go(id, now, sink);
            }
        }
        self.reset(now);
    }

    /// Forgets everything: the VM is gone.
    pub fn reset(&mut self, now: Instant) {
        for index in 0..self.flows.slots() {
            steps::count(1);
            let id = self.flows.iter_from(index, 1).next().map(|found| found.id);
            if let Some(id) = id {
                self.remove(id, now);
            }
        }
        self.queue.clear();
        self.upkeep_at = Instant::NEVER;
    }

    /// The connection of a segment, if need be a new one.
    fn find_or_open(
        &mut self,
        now: Instant,
        flow: &FiveTuple,
        opens: bool,
        phase: impl FnOnce() -> Phase,
    ) -> Option<FlowId> {
        if let Some(id) = self.flows.find(flow) {
            return Some(id);
        }
        if !opens {
            return None;
        }
        if self.flows.len() >= self.flows.capacity() {
            // What is not established goes first, then what is idle.
            let may_go = |old: &Connection<B>| !old.is_established() && !old.active;
            match self.flows.evict(|old| may_go(old.flow)) {
                Some(gone) => self.lose(gone.flow.waiting),
                None => drop(self.flows.evict(|old| old.flow.is_idle())),
            }
        }
        let headers = HEADERS[usize::from(flow.is_ipv6)] + self.config.frame_overhead;
        match self.flows.insert(flow, now, Connection::new(phase(), headers)) {
            Ok(id) | Err(Refused::Exists(id)) => {
                self.upkeep_at = self.upkeep_at.min(now + UPKEEP_INTERVAL);
                Some(id)
            }
            Err(Refused::Full | Refused::Crowded) => {
                self.counters.refused().add(1);
                None
            }
        }
    }

    fn remove(&mut self, id: FlowId, now: Instant) {
        self.deactivate(id, now);
        if let Some(gone) = self.flows.remove(id) {
            self.lose(gone.flow.waiting);
        }
    }

    /// Something arrived that no edge had let through.
    fn ungranted(&mut self, wire: u64, now: Instant) {
        self.counters.ungranted_bytes().add(wire);
        self.pacer.charge(wire, now);
    }

    pub(super) fn activate(&mut self, id: FlowId, now: Instant) {
        let Some(connection) = self.flows.get_mut(id) else { return };
        connection.active_until = now + self.config.idle;
        if !connection.active {
            connection.active = true;
            self.active += 1;
            self.changed_at = now;
        }
    }

    fn deactivate(&mut self, id: FlowId, now: Instant) {
        if let Some(connection) = self.flows.get_mut(id)
            && connection.active
        {
            connection.active = false;
            connection.active_until = Instant::NEVER;
            self.active -= 1;
            self.changed_at = now;
        }
    }

    /// Moves a connection's timer, and removes it if it is over.
    pub(super) fn settle(&mut self, id: FlowId) {
        let Some(connection) = self.flows.get_mut(id) else { return };
        if connection.is_over() && connection.latest() == Instant::NEVER {
            let was_active = std::mem::take(&mut connection.active);
            self.active -= u32::from(was_active);
            self.flows.remove(id);
            return;
        }
        let due = connection.active_until.min(connection.latest());
        connection.deadline.set(due, id, &mut self.timers);
    }
}
