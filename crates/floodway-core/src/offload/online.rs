//! How a flow comes online and goes offline, and what else of it is due at some time.
//!
//! # Theory of operation
//! A flow comes online when nothing of it is on its way that is not stored, the budget has room, and
//! the port wants it: at the end of the handshake, or later with the ACK that leaves it idle. The
//! guest's module is told with a *managed* notice. A notice can get lost in a full queue, or come before the module is
//! installed, so it is repeated as long as ACKs come for the flow: [`QUICK_NAMES`] times at [`NAME_INTERVAL`], then at intervals
//! that double up to 51 s. Without the module's help the guest merely keeps to its own window.
//!
//! A flow that comes online with a SYN-ACK is named in that itself, where the module reads such [names](floodway_wire::name) and knows the switch
//! ([`Offload::name_in_syn_acks`]), and the options have room: a frame less, and a socket behind NAT in the guest hears of it. A SYN-ACK that comes again bears the name again.
//!
//! It goes offline in two steps. `LEAVING`: nothing new is granted. When nothing is stored any more, the *offline*
//! notice is sent, and after [`GRACE`], in which the guest hears of it, the flow passes through. What
//! was granted and never sent is then taken back, with nothing in flight: beyond the receiver's own
//! window there is nobody to take it. Linux does not believe that before the next ACK that advances
//! (`tcp_may_update_window`); until then only its own congestion window bounds what the receiver may have to refuse.
//!
//! A guest that has used its grant up has nothing to be taken back and would wait at a closed window, so it gets no
//! grace: the notice comes to it before the window that lets it go on.
//!
//! A flow that leaves because nobody used it stays when it is used again, if there is room.
//!
//! With [early acknowledgement](super::sender) there are no notices. Where that ends when a module is heard ([`Offload::hear_module`]), a heartbeat looks for one
//! when a flow comes online, every 10 s at most: a module that has not been answered yet does so.
//!
//! While flows are online, *heartbeat* notices are sent every [`HEARTBEAT_INTERVAL`]; the module falls back when they
//! stay away for [`HEARTBEAT_LIFETIME_MS`] (invariant I6). A managed notice is a heartbeat as well, since every
//! frame costs the guest: it comes right before a SYN-ACK, in what may be the rest of the guest's time slice.

use floodway_wire::tcp::options::{MAX_SACK_BLOCKS, SackList};

use super::engine::Offload;
use super::flow::{Flow, Phase};
use super::grant::LEAST_GRANT;
use super::guest::GuestState;
use super::port::{Call, HEARTBEAT_INTERVAL, OffloadShared};
use super::sender::owed::Ledger;
use super::sink::{FlowNotice, Sink, SynthesizedSegment};
use super::summary::{Reason, TxState};
use crate::tables::flow_table::FlowId;
use crate::tables::timer::ShortTime;
use crate::tcp::Segment;
use crate::time::{Duration, Instant};

/// How long a guest gets to hear that a flow goes offline.
const GRACE: Duration = Duration::from_millis(300);
/// Time from a managed notice to the next, for the first of them; then it doubles each time.
const NAME_INTERVAL: Duration = Duration::from_millis(50);
/// Managed notices at that interval.
const QUICK_NAMES: u8 = 4;
/// Doublings of the interval: 51 s at most.
const MAX_NAME_SHIFT: u8 = 10;

impl<B: 'static> Offload<B> {
    /// The guest's module has answered (`heard`), or what answered is gone. Where that decides ([`Config::early_ack`](super::Config::early_ack)), nothing more is
    /// acknowledged early from now on, and the module is told of each flow that is online; or the other way round. What is owed stays owed.
    pub fn hear_module(&mut self, heard: bool, now: Instant, sink: &mut impl Sink<B>) {
        self.port.module_heard = heard;
        let before = self.port.acks_early;
        self.port.choose_early_acks();
        if before && !self.port.acks_early {
            self.with_each_flow(now, sink, Flow::introduce);
        }
        if heard {
            self.port.greet_again(sink);
        }
    }

    /// Whether SYN-ACKs may bear the names of their flows: the guest's module reads them, and has had a notice of this incarnation of the switch.
    pub const fn name_in_syn_acks(&mut self, may: bool) {
        self.port.names_in_syn_acks = may;
    }

    /// The guest's module has answered.
    #[must_use]
    pub const fn hears_module(&self) -> bool {
        self.port.module_heard
    }
}

impl<B: 'static> Flow<B> {
    /// Tells a module that has just been heard of the flow, if it is online.
    fn introduce<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let state = self.connection().map_or(TxState::Offline, |c| c.tx.state);
        if !matches!(state, TxState::Offline | TxState::Leaving) {
            self.names = 0;
            self.name(call);
        }
    }

    /// Puts the flow on the list for the end of the batch.
    pub fn flag(&mut self, id: FlowId, port: &mut OffloadShared) {
        if !self.flagged {
            self.flagged = true;
            port.flagged.push(id);
        }
    }

    /// Takes the flow online if that is possible now, and tells the module; returns whether it was.
    pub fn try_online<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) -> bool {
        let online = self.enter_online(call);
        if online {
            self.name(call);
        }
        online
    }

    /// Takes the flow online if that is possible now, without a notice to the module. Returns `true` if it is online then.
    pub fn enter_online<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) -> bool {
        let closing = self.is_closing();
        let Phase::Established(connection) = &mut self.phase else { return false };
        let (tx, port) = (&mut connection.tx, &mut *call.port);
        if tx.is_online() || !tx.is_idle() || !port.wants_transmit() || closing {
            return false;
        }
        if !tx.fits(&port.pool) {
            tx.reason = Reason::NoRoom;
            port.short_of_room = true;
            return false;
        }
        tx.enter(TxState::Active, Reason::Opened, &port.counters);
        port.counters.went_online().add(1);
        port.pool.enter();
        tx.extend(&mut self.charged, &mut port.pool, &port.config, &port.counters);
        port.heartbeat_link = self.link;
        self.names = 0;
        true
    }

    /// Tells the module of a flow that the SYN-ACK `segment` has taken online: in that itself, if it may (the answer is `true` then), or else by a notice before it.
    pub fn name_with<S: Sink<B>>(&mut self, segment: &Segment, call: &mut Call<'_, S>) -> bool {
        let inside = call.port.may_name_in(segment);
        if inside {
            // Whoever acknowledges the SYN-ACK has read it, so the quick repetitions are not needed.
            (self.names, self.notice_at) = (QUICK_NAMES, ShortTime::NEVER);
            // The module need not have: what opens a connection in the guest may be no socket of its kernel. So it puts no heartbeat off.
            call.port.heartbeat_at = call.port.heartbeat_at.min(call.now + HEARTBEAT_INTERVAL);
            call.port.counters.named_in_syn_ack().add(1);
        } else {
            self.name(call);
        }
        inside
    }

    /// Tells the module that the flow is managed.
    pub fn name<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        if call.port.acks_early {
            // No module is known that needs to be told.
            call.port.look_for_module(call.now);
            (self.names, self.notice_at) = (u8::MAX, ShortTime::NEVER);
            return;
        }
        call.sink.notify_flow(call.tuple, &self.link, FlowNotice::Managed);
        call.port.counters.managed_notices().add(1);
        call.port.heartbeat_at = call.now + HEARTBEAT_INTERVAL;
        self.names = self.names.saturating_add(1);
        self.notice_at = ShortTime::NEVER;
        if self.names < QUICK_NAMES {
            self.schedule_name(call.now);
        }
    }

    /// Schedules the next managed notice of a flow that is online, if none is scheduled: the flow is in use.
    #[inline]
    pub fn schedule_name(&mut self, now: Instant) {
        if self.notice_at.is_never() {
            let shift = (self.names.saturating_sub(QUICK_NAMES - 1)).min(MAX_NAME_SHIFT);
            self.notice_at = ShortTime::not_before(now + NAME_INTERVAL * (1 << shift));
        }
    }

    /// Begins to take the flow offline.
    pub fn leave<S: Sink<B>>(&mut self, reason: Reason, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        if matches!(connection.tx.state, TxState::Offline | TxState::Leaving) {
            return;
        }
        connection.tx.enter(TxState::Leaving, reason, &call.port.counters);
        self.notice_at = ShortTime::NEVER;
        self.note_idle(call);
    }

    /// A leaving flow of which nothing is stored goes offline soon.
    pub fn note_idle<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        let tx = &connection.tx;
        if tx.state != TxState::Leaving {
            return;
        }
        if !tx.is_idle() {
            self.notice_at = ShortTime::NEVER;
            return;
        }
        let used_up = tx.is_used_up();
        if self.notice_at.is_never() {
            self.notify_offline(call);
            self.notice_at = ShortTime::not_before(call.now + GRACE);
        }
        if used_up {
            self.go_offline(call);
        }
    }

    /// The guest sends again on a flow that leaves because it did not: it stays, if there is room.
    pub fn stay<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let closing = self.is_closing();
        let Phase::Established(connection) = &mut self.phase else { return };
        let (tx, port) = (&mut connection.tx, &mut *call.port);
        let was_unused = matches!(tx.reason, Reason::Idle | Reason::NoRoom);
        let leaves = tx.state == TxState::Leaving && tx.is_idle() && was_unused;
        let room = port.pool.budget.free() >= LEAST_GRANT;
        if !leaves || closing || !port.wants_transmit() || !room {
            return;
        }
        tx.enter(TxState::Active, Reason::UsedAgain, &port.counters);
        self.names = 0;
        self.name(call);
    }

    /// The grace of a leaving flow is over, or it needs none.
    pub fn go_offline<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        self.notice_at = ShortTime::NEVER;
        let Phase::Established(connection) = &mut self.phase else { return };
        let (tx, port) = (&mut connection.tx, &mut *call.port);
        if tx.state != TxState::Leaving || !tx.is_idle() {
            return;
        }
        let reason = tx.reason;
        tx.enter(TxState::Offline, reason, &port.counters);
        tx.let_go();
        port.pool.leave();
        tx.charge(&mut self.charged, &mut port.pool);
        // A guest that waits at the edge of its grant has to hear of the receiver's own window.
        self.update_due = true;
        self.flag(call.id, call.port);
    }

    /// What is stored is forgotten, unacknowledged. The guest, which has it still, goes on by itself.
    pub fn give_up<S: Sink<B>>(&mut self, reason: Reason, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        let (tx, port) = (&mut connection.tx, &mut *call.port);
        tx.close_debt(port);
        tx.abandon();
        tx.enter(TxState::Offline, reason, &port.counters);
        port.pool.leave();
        tx.charge(&mut self.charged, &mut port.pool);
        self.notify_offline(call);
        self.notice_at = ShortTime::NEVER;
    }

    /// Tells the module, if there is one, that the flow is not managed any more.
    fn notify_offline<S: Sink<B>>(&self, call: &mut Call<'_, S>) {
        if !call.port.acks_early {
            call.sink.notify_flow(call.tuple, &self.link, FlowNotice::Offline);
            call.port.counters.offline_notices().add(1);
        }
    }

    /// Sends what is due at the end of a batch.
    pub fn flush<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        self.flagged = false;
        if call.port.acks_early {
            self.acknowledge_early(call);
        }
        let Phase::Established(connection) = &mut self.phase else { return };
        let (tx, rx, port) = (&mut connection.tx, &mut connection.rx, &mut *call.port);
        if std::mem::take(&mut self.update_due) {
            self.ack_at = ShortTime::NEVER;
            if tx.is_online() {
                tx.extend(&mut self.charged, &mut port.pool, &port.config, &port.counters);
            }
            let peer = tx.side_for_guest(rx.peer, rx.outgoing().timestamps.value);
            let made = tx.synthesize_for_guest(call.tuple, &self.link, peer);
            call.sink.to_guest(&made);
            port.counters.window_updates().add(1);
        }
        let reports = rx.owes_report() && call.port.guest == GuestState::Running;
        if rx.ack_due || reports {
            self.acknowledge(call);
        }
    }

    /// Acknowledges to the guest what is stored, as far as the rules allow.
    fn acknowledge_early<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        let guest = connection.guest_side();
        let port = &mut *call.port;
        let (flow, link, sink) = (call.tuple, &self.link, &*call.sink);
        let mut ledger = Ledger { journal: &mut port.journal, flow, link, sink, guest };
        if connection.tx.acknowledge_early(&port.config, &mut ledger) {
            port.counters.early_acks().add(1);
            self.update_due = true;
        }
    }

    /// Sends the latest acknowledgement in the guest's name.
    pub fn acknowledge<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        let (tx, rx) = (&mut connection.tx, &mut connection.rx);
        let guest_runs = call.port.guest == GuestState::Running;
        let clocks = tx.agreed.timestamps();
        let (sack, is_report) = rx.take_sack(sack_room(clocks), guest_runs);
        let mut outgoing = rx.outgoing();
        outgoing.timestamps.value = tx.monotonic_tsval(outgoing.timestamps.value);
        call.sink.to_network(&SynthesizedSegment {
            flow: *call.tuple,
            link: self.link,
            seq: tx.next_seq(),
            ack: outgoing.ack,
            window: outgoing.window,
            flags: rx.ack_flags(),
            timestamps: clocks.then_some(outgoing.timestamps),
            sack: if tx.agreed.sack() { sack } else { SackList::default() },
        });
        call.port.counters.acks_sent().add(1);
        call.port.counters.early_sacks().add(u64::from(is_report));
        rx.on_ack_sent();
    }

    /// The earliest time at which something of the flow is due.
    #[inline]
    pub fn next_timeout(&self, now: Instant) -> Instant {
        let mut due = self
            .connection()
            .map_or(Instant::NEVER, |c| c.tx.next_timeout().min(c.rx.next_timeout()));
        if let Phase::Adopted(adopted) = &self.phase {
            due = adopted.next_timeout();
        }
        for own in [self.notice_at, self.ack_at] {
            if !own.is_never() {
                due = due.min(own.near(now));
            }
        }
        due
    }

    /// Does what is due. Returns `true` if the flow is over.
    pub fn handle_timeout<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) -> bool {
        if matches!(self.phase, Phase::Adopted(_)) {
            return self.handle_adopted_timeout(call);
        }
        let mut over = false;
        if let Phase::Established(connection) = &mut self.phase {
            let outgoing = connection.rx.outgoing();
            let mut env = call.env(&self.link, outgoing);
            let released = env.counters.released().get();
            connection.tx.handle_timeout(&mut env);
            if env.counters.released().get() != released {
                connection.rx.on_ack_sent();
            }
            self.update_due |= connection.tx.answer(call.now);
            over = connection.rx.handle_timeout(call.now, call.port.guest);
            if connection.tx.is_peer_dead(call.now) {
                self.end_owing(call);
                return true;
            }
            let reason = connection.tx.given_up(call.now);
            if let Some(reason) = reason.filter(|_| connection.tx.is_online()) {
                self.give_up(reason, call);
            }
        }
        if over {
            self.end_undelivered(call);
            return true;
        }
        self.redeliver(call);
        if self.ack_at.near(call.now) <= call.now {
            self.ack_at = ShortTime::NEVER;
            self.update_due = true;
        }
        if self.update_due {
            self.flag(call.id, call.port);
        }
        if self.notice_at.near(call.now) <= call.now {
            match self.connection().map(|c| c.tx.state) {
                Some(TxState::Leaving) => self.go_offline(call),
                // A stopped guest hears of it when it runs again.
                _ if call.port.guest != GuestState::Running => self.notice_at = ShortTime::NEVER,
                _ => self.name(call),
            }
        }
        false
    }
}

/// SACK blocks for which a header has room, beside timestamps if there are `clocks` (RFC 2018 section 3).
const fn sack_room(clocks: bool) -> usize {
    if clocks { MAX_SACK_BLOCKS - 1 } else { MAX_SACK_BLOCKS }
}
