//! The two ways through a flow: a segment from its guest, and one from its peer.

use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::Timestamps;

use super::acceptance::edit_to_advertised;
use super::age::Age;
use super::connection::Connection;
use super::flow::{Flow, OVER, Outcome, Phase};
use super::journal::FlowPlace;
use super::port::Call;
use super::receiver::{Arrival, Own};
use super::recording::record;
use super::sender::{AckKind, Predicted, Sender, Stored};
use super::sink::{Refusal, Sink, Verdict};
use super::summary::{Reason, RxState, TxState};
use super::undelivered::Undelivered;
use crate::seq::Seq;
use crate::tables::timer::ShortTime;
use crate::tcp::{Edit, Segment, Side};
use crate::time::{Duration, Instant};

/// ACKs of so many bytes are merged into one for the guest: what one GSO packet carries.
const MERGED_BYTES: u32 = 64 << 10;
/// No ACK is kept from the guest for longer: little beside a scheduler's time slice, and a timer of the guest.
const MERGED_TIME: Duration = Duration::from_millis(1);

impl<B: 'static> Flow<B> {
    /// What becomes of a segment that carries nothing but data, if the flow is up to nothing else.
    #[inline]
    pub fn predict<S>(&self, segment: &Segment, call: &Call<'_, S>) -> Option<Predicted> {
        let Phase::Established(Connection { tx, rx }) = &self.phase else { return None };
        let steady = self.steady();
        debug_assert_eq!(steady, self.steady_now(call.port));
        let data = segment.len > 0 && segment.flags.without(Flags::PSH) == Flags::ACK;
        // Few branches: nearly always all of it holds.
        let expected = steady.plain
            & data
            & rx.is_unmoved(segment)
            & tx.is_next(segment)
            & call.port.pool.has_frame();
        if !expected {
            return None;
        }
        tx.predict(segment, steady.quiet, call.now, &call.port.config)
    }

    /// Stores a predicted segment, and releases it if it may leave.
    #[inline]
    pub fn on_predicted<S: Sink<B>>(
        &mut self,
        predicted: Predicted,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        call: &mut Call<'_, S>,
    ) -> Verdict {
        let Phase::Established(connection) = &mut self.phase else { return Verdict::PASS };
        let Connection { tx, rx } = connection;
        rx.take_timestamps(segment);
        let Some(frame) = keep() else { return self.refuse(call) };
        call.port.counters.stored_frames().add(1);
        call.port.counters.stored_bytes().add(u64::from(segment.len));
        tx.store_predicted(segment, frame);
        if predicted == Predicted::Release {
            let outgoing = rx.outgoing();
            tx.release_predicted(&mut call.env(&self.link, outgoing));
        }
        let pool = &mut call.port.pool;
        debug_assert_eq!(self.charged, tx.usage());
        pool.frames += 1;
        if tx.wants_more(pool) {
            self.grant_next(call);
        }
        if call.port.acks_early {
            self.flag(call.id, call.port);
        }
        Verdict::Absorb
    }

    /// The guest sent what it was not granted, or there is no memory for it.
    #[cold]
    fn refuse<S>(&mut self, call: &mut Call<'_, S>) -> Verdict {
        call.port.counters.beyond_grant().add(1);
        // As any receiver answers what is beyond its window (RFC 9293 section 3.10.7.4).
        self.update_due = true;
        self.flag(call.id, call.port);
        Verdict::Drop(Refusal::BeyondGrant)
    }

    /// Grants the next portion. The guest hears of it at the end of the batch.
    #[inline(never)]
    fn grant_next<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        let (tx, port) = (&mut connection.tx, &mut *call.port);
        let granted = tx.extend(&mut self.charged, &mut port.pool, &port.config, &port.counters);
        if granted >= tx.window.mss {
            self.update_due = true;
            self.flag(call.id, call.port);
        }
        self.note_waiting(call);
        self.note_steady(call.port);
    }

    /// A segment from the guest.
    pub fn on_guest<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        call: &mut Call<'_, S>,
    ) -> Outcome {
        if segment.has(Flags::SYN) {
            return self.on_syn(Side::Guest, segment, call);
        }
        if matches!(self.phase, Phase::Adopted(_)) {
            return self.guest_of_adopted(segment, call);
        }
        self.note_fin(Side::Guest, segment);
        self.clock_noted.keep_over(call.now);
        let Phase::Established(connection) = &mut self.phase else {
            let over = segment.has(Flags::RST) || self.is_over_unseen();
            return Outcome { over, ..Verdict::PASS.into() };
        };
        connection.tx.forget_old_release(call.now);
        if segment.has(Flags::RST) {
            let next = connection.tx.next_seq();
            let seq = segment.seq.after(next).then_some(next);
            return Outcome { verdict: Verdict::Pass(Edit { seq, ..Edit::default() }), over: true };
        }
        if connection.rx.ends_echo(segment) {
            self.acknowledge(call);
        }
        let Phase::Established(connection) = &mut self.phase else {
            return Verdict::PASS.into();
        };
        let own = connection.rx.on_guest(segment, call.now, &call.port.counters);
        let verdict = if !connection.tx.is_online() {
            connection.tx.follow(segment.end());
            pass_from_guest(connection, segment, own, call)
        } else if segment.seq_len() == 0 || is_keepalive(&connection.tx, segment) {
            pass_from_guest(connection, segment, own, call)
        } else {
            self.store(segment, own, keep, call)
        };
        self.redeliver(call);
        self.resume_receiving(call);
        self.flag_report(call);
        Outcome { verdict, over: self.is_closed() }
    }

    /// What came behind a hole is reported at the end of the batch, if the guest's ACK lets it ([`reports`](super::reports)).
    fn flag_report<S>(&mut self, call: &mut Call<'_, S>) {
        if self.connection().is_some_and(|connection| connection.rx.owes_report()) {
            self.flag(call.id, call.port);
        }
    }

    /// Delivers again what the guest has lost, if that is due.
    pub fn redeliver<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        let Connection { tx, rx } = connection;
        if rx.owes_redelivery() {
            let edit = tx.edit_for_kept(rx.peer);
            rx.redeliver(&edit, call.now, &call.port.counters, call.sink);
        }
    }

    /// Receive offload that was off, and is wanted, begins when the guest has caught up.
    fn resume_receiving<S>(&mut self, call: &mut Call<'_, S>) {
        let closed = self.has_closed(Side::Peer);
        if let Phase::Established(connection) = &mut self.phase
            && !closed
            && call.port.wants_receive()
        {
            connection.rx.start(&call.port.counters);
        }
    }

    fn store<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        own: Own,
        keep: impl FnOnce() -> Option<B>,
        call: &mut Call<'_, S>,
    ) -> Verdict {
        self.stay(call);
        let Phase::Established(connection) = &mut self.phase else { return Verdict::PASS };
        let (tx, rx) = (&mut connection.tx, &mut connection.rx);
        rx.ack_due |= own == Own::News;
        let room = call.port.pool.has_frame();
        let keep = || room.then(keep).flatten();
        let outgoing = rx.outgoing();
        let mut env = call.env(&self.link, outgoing);
        let released = env.counters.released().get();
        let stored = tx.on_data(segment, keep, &mut env);
        if env.counters.released().get() != released && rx.ack_due {
            rx.on_ack_sent();
            env.counters.acks_piggybacked().add(1);
        }
        match stored {
            Stored::BeyondGrant => return self.refuse(call),
            // It has not heard of the latest ACK.
            Stored::Acknowledged if !tx.is_withholding() => self.update_due = true,
            Stored::Known if tx.is_ahead() && !segment.end().after(tx.una_for_guest()) => {
                self.update_due = true;
            }
            Stored::Acknowledged | Stored::Known => {
                let mut env = call.env(&self.link, outgoing);
                self.update_due |= tx.on_guest_repeat(segment.seq, &mut env);
            }
            Stored::New if tx.wants_more(&call.port.pool) => {
                let port = &mut *call.port;
                let granted =
                    tx.extend(&mut self.charged, &mut port.pool, &port.config, &port.counters);
                self.update_due |= granted >= tx.window.mss;
            }
            Stored::New => {}
        }
        tx.charge(&mut self.charged, &mut call.port.pool);
        if self.update_due || rx.ack_due || call.port.acks_early {
            self.flag(call.id, call.port);
        }
        self.note_waiting(call);
        Verdict::Absorb
    }

    /// A segment from the peer, which may change the flow ([`super::acceptance`]).
    pub fn on_network<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        call: &mut Call<'_, S>,
    ) -> Outcome {
        if matches!(self.phase, Phase::Adopted(_)) {
            return self.peer_of_adopted(segment, call);
        }
        if segment.has(Flags::SYN) && !self.accept_syn(Side::Peer, segment, call.now, call.port) {
            return OVER;
        }
        if self.connection().is_none() {
            self.complete(segment, call);
        }
        let Phase::Established(connection) = &mut self.phase else {
            if matches!(self.phase, Phase::Excluded(_)) {
                self.note_fin(Side::Peer, segment);
            }
            return Outcome { over: self.is_over_unseen(), ..Verdict::PASS.into() };
        };
        let past_us = connection.tx.is_online() && segment.ack.after(connection.tx.next_seq());
        if past_us && connection.tx.owes_from(segment.ack) {
            return self.on_unsent_while_owing(segment, keep, call);
        }
        self.note_fin(Side::Peer, segment);
        self.note_peer_window(segment);
        if segment.has(Flags::SYN) {
            return self.on_syn_ack(segment, call).into();
        }
        if past_us {
            self.on_unsent(segment, call);
        }
        let arrival = self.receive(segment, keep, call);
        let verdict = if past_us {
            passes(arrival, Edit::default())
        } else {
            self.on_peer_ack(segment, arrival, call)
        };
        self.note_idle(call);
        Outcome { verdict, over: self.is_closed() }
    }

    /// The peer acknowledges what the switch has not sent, and bytes behind that were acknowledged to the guest. Nobody else has
    /// those, so the flow goes on (T1), as if all that was sent were acknowledged.
    #[cold]
    fn on_unsent_while_owing<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        call: &mut Call<'_, S>,
    ) -> Outcome {
        call.port.counters.acks_unseen().add(1);
        let Phase::Established(connection) = &self.phase else { return Verdict::PASS.into() };
        let sent = Segment { ack: connection.tx.next_seq(), ..*segment };
        let mut outcome = self.on_network(&sent, keep, call);
        if let (Verdict::Pass(edit), Some(connection)) = (&mut outcome.verdict, self.connection()) {
            edit.ack = Some(connection.tx.advertised_una);
        }
        outcome
    }

    /// The receive side of a segment from the peer.
    fn receive<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        call: &mut Call<'_, S>,
    ) -> Arrival {
        let Phase::Established(connection) = &mut self.phase else { return Arrival::Deliver };
        let port = &mut *call.port;
        let lacks_clock = connection.tx.agreed.timestamps() && segment.options.timestamps.is_none();
        if lacks_clock {
            // The guest may drop it (RFC 7323 section 3.2).
            connection.rx.leave_to_guest(segment, &port.counters);
        }
        let room = port.receive_room();
        let (journal, sink, flow) = (&mut port.journal, &*call.sink, (call.tuple, &self.link));
        let keep = |place: &mut Option<FlowPlace>| {
            let frame = keep()?;
            let Some(journal) = journal else { return Some(frame) };
            record(&mut **journal, place, flow, segment, sink.image(&frame)).then_some(frame)
        };
        let before = connection.rx.told();
        let mut arrival = connection.rx.on_segment(segment, room, keep, call.now, &port.counters);
        port.undelivered = Undelivered::in_order(call.id, before, connection.rx.acked);
        if matches!(arrival, Arrival::OutOfOrder | Arrival::Special) {
            let is_special = lacks_clock || arrival == Arrival::Special;
            connection.prepare_report(segment, is_special, call.id, port);
            arrival = Arrival::Deliver;
        }
        if segment.options.timestamps.is_some_and(|t| t.value == connection.rx.peer.tsval) {
            self.clock_noted = Age::at(call.now);
        }
        if connection.rx.ack_due {
            self.flag(call.id, call.port);
        }
        arrival
    }

    /// The transmit side of a segment from the peer.
    fn on_peer_ack<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        arrival: Arrival,
        call: &mut Call<'_, S>,
    ) -> Verdict {
        let Phase::Established(connection) = &mut self.phase else { return Verdict::PASS };
        if !connection.tx.is_online() {
            let tx = &mut connection.tx;
            let edge = tx.edge_of(segment.ack, segment.window);
            // What the guest has not heard yet reaches it, also with data that was acknowledged for it.
            let is_news = segment.ack.after(tx.snd_una()) || edge.after(tx.rwnd_edge);
            let arrival = if is_news { Arrival::Deliver } else { arrival };
            tx.follow_ack(segment.ack, edge);
            if !self.try_online(call) {
                return passes(arrival, Edit::default());
            }
            return passes(arrival, self.edit_for_guest(segment));
        }
        let (tx, rx) = (&mut connection.tx, &mut connection.rx);
        // What leaves now does not acknowledge this segment: the guest's queue may not take it.
        let before = call.port.undelivered.as_ref().and_then(Undelivered::told_before);
        let outgoing = before.map_or_else(|| rx.outgoing(), |before| rx.outgoing_as(&before));
        let mut env = call.env(&self.link, outgoing);
        let (released, advertised_edge, una) =
            (env.counters.released().get(), tx.advertised_edge, tx.snd_una());
        let kind = tx.on_ack(segment, &mut env);
        if env.counters.released().get() != released && rx.ack_due && before.is_none() {
            rx.on_ack_sent();
            env.counters.acks_piggybacked().add(1);
        }
        let due = kind != AckKind::Old && self.note_heard(una, call.now);
        self.regrant(call);
        self.note_use(call.now);
        // What an unknown option says is between guest and peer.
        let absorbable = segment.is_pure_ack() && !segment.options.unknown;
        if self.tell_of_repeat(call) && absorbable {
            return Verdict::Absorb;
        }
        if call.port.acks_early {
            // There may be room for more.
            self.flag(call.id, call.port);
        }
        let says_nothing = match kind {
            AckKind::Duplicate | AckKind::Old => true,
            // A window that is none of the guest's: beside data that the guest is about to send, it
            // would look like a duplicate.
            AckKind::Same => self.is_no_news(segment, advertised_edge),
            // The guest has heard of more than that.
            AckKind::Advanced => self.is_ahead() && self.is_no_news(segment, advertised_edge),
        };
        if says_nothing && !due && absorbable {
            call.port.counters.absorbed_dup_acks().add(1);
            return Verdict::Absorb;
        }
        let may_wait = kind == AckKind::Advanced && !due && absorbable;
        if may_wait && self.may_wait(advertised_edge, call) {
            call.port.counters.merged_acks().add(1);
            return Verdict::Absorb;
        }
        if arrival != Arrival::Deliver && (due || kind == AckKind::Advanced) {
            // The segment goes no further, here or in the guest, but what it acknowledges does.
            self.update_due = true;
            self.flag(call.id, call.port);
        }
        passes(arrival, self.edit_for_guest(segment))
    }

    /// The peer acknowledges what the guest has sent, by its own numbers, and the switch has not: bytes went to the peer
    /// past us. We are not its only way, so it goes on alone.
    fn on_unsent<S: Sink<B>>(&mut self, segment: &Segment, call: &mut Call<'_, S>) {
        call.port.counters.acks_unseen().add(1);
        if let Phase::Established(connection) = &mut self.phase {
            // The peer has all that it was owed.
            connection.tx.forget_owed();
        }
        self.give_up(Reason::Gap, call);
        let Phase::Established(connection) = &mut self.phase else { return };
        let edge = connection.tx.edge_of(segment.ack, segment.window);
        connection.tx.follow_ack(segment.ack, edge);
    }

    /// An ACK has come for a flow that is online: its module is to be told of it again some time.
    #[inline]
    fn note_use(&mut self, now: Instant) {
        if self.connection().is_some_and(|c| c.tx.is_online() && c.tx.state != TxState::Leaving) {
            self.schedule_name(now);
        }
    }

    /// The guest hears that it repeated something needlessly, before it hears of anything later: else it takes
    /// a tail loss probe of its own for the repair of a loss (RFC 8985 section 7.4). Returns whether it was told.
    fn tell_of_repeat<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) -> bool {
        let Phase::Established(connection) = &mut self.phase else { return false };
        let Connection { tx, rx } = connection;
        if !tx.owes_dsack() {
            return false;
        }
        call.sink.to_guest(&tx.synthesize_for_guest(call.tuple, &self.link, rx.peer));
        call.port.counters.window_updates().add(1);
        self.ack_at = ShortTime::NEVER;
        true
    }

    /// Returns `true` if an ACK of the peer lets the guest know more than it would without a receiver that stalls
    /// ([`Sender::on_peer_heard`]). `before` was `snd_una` until then.
    fn note_heard(&mut self, before: Seq, now: Instant) -> bool {
        let guest_is_done = self.guest_is_done();
        let Phase::Established(connection) = &mut self.phase else { return false };
        connection.tx.on_peer_heard(before, guest_is_done, now)
    }

    /// The guest was told of more than the peer has acknowledged.
    #[inline]
    fn is_ahead(&self) -> bool {
        self.connection().is_some_and(|c| c.tx.is_ahead())
    }

    /// An ACK that repeats another, with a grant that stands. It is neither the answer to a question of the
    /// guest nor, by its number, a question of the peer: a keepalive or window probe.
    fn is_no_news(&mut self, segment: &Segment, advertised_edge: Seq) -> bool {
        let Phase::Established(connection) = &mut self.phase else { return false };
        let Connection { tx, rx } = connection;
        !std::mem::take(&mut tx.asked)
            && tx.advertised_edge == advertised_edge
            && !segment.seq.before(rx.peer.nxt)
    }

    /// The guest need not hear of an ACK yet: it has been granted enough, and more ACKs will come. Each
    /// costs the guest an interrupt, and it needs no ACK clock if it sends as far as it is granted. One that was not ahead of the network by more than a window in its
    /// first slow start may be waiting for this ACK: its module is not used, or it has none. `advertised_edge` is what it knows of.
    fn may_wait<S>(&mut self, advertised_edge: Seq, call: &Call<'_, S>) -> bool {
        let closing = self.is_closing();
        let Phase::Established(connection) = &mut self.phase else { return false };
        let tx = &mut connection.tx;
        let held = tx.snd_max.since(tx.store.snd_nxt());
        // Later the switch's window may be smaller than the guest's own, which hears of no loss.
        if held > tx.window.cwnd && tx.window.ssthresh == u32::MAX {
            tx.agreed.note_run_ahead();
        }
        let waits = !closing
            && (held > 0 || tx.agreed.runs_ahead())
            && tx.snd_una().before(tx.snd_max)
            && tx.una_for_guest().since(tx.advertised_una) < MERGED_BYTES
            && advertised_edge.since(tx.snd_max) > MERGED_BYTES;
        if waits && self.ack_at.is_never() {
            self.ack_at = ShortTime::not_before(call.now + MERGED_TIME);
        }
        waits
    }

    /// Grants what an ACK has made room for.
    fn regrant<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        let port = &mut *call.port;
        let (pool, config) = (&port.pool, &port.config);
        // What it uses then is counted when the call is over.
        connection.tx.extend_uncharged(self.charged, pool, config, &port.counters);
        self.note_waiting(call);
    }

    /// A flow without room waits for its turn.
    fn note_waiting<S>(&mut self, call: &mut Call<'_, S>) {
        let starved = self.connection().is_some_and(|c| c.tx.state == TxState::NoBuffer);
        if starved && !self.waiting {
            self.waiting = true;
            call.port.waiting.push_back(call.id);
        }
    }

    /// Room has come free: answers false if there was none for this flow.
    pub fn offer_room<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) -> bool {
        self.waiting = false;
        let Phase::Established(connection) = &mut self.phase else { return true };
        let (tx, port) = (&mut connection.tx, &mut *call.port);
        if tx.state != TxState::NoBuffer {
            return true;
        }
        let granted = tx.extend(&mut self.charged, &mut port.pool, &port.config, &port.counters);
        let worth_telling = granted >= tx.window.mss;
        if worth_telling {
            self.update_due = true;
            self.flag(call.id, call.port);
        }
        self.note_waiting(call);
        worth_telling
    }

    /// What the guest sees of a segment from the peer while the flow is online.
    fn edit_for_guest(&mut self, segment: &Segment) -> Edit {
        let Phase::Established(connection) = &mut self.phase else { return Edit::default() };
        let tx = &mut connection.tx;
        let window = tx.window_field();
        tx.advertised_una = tx.una_for_guest();
        self.ack_at = ShortTime::NEVER;
        edit_to_advertised(tx, segment, window)
    }

    /// Applies a change of the configuration.
    pub fn reconfigure<S: Sink<B>>(&mut self, reason: Reason, call: &mut Call<'_, S>) {
        let receive = call.port.wants_receive();
        let transmit = call.port.wants_transmit();
        if let Phase::Established(connection) = &mut self.phase {
            if receive {
                connection.rx.start(&call.port.counters);
            } else {
                connection.rx.stop(&call.port.counters);
            }
        }
        if !transmit {
            self.leave(reason, call);
        }
    }
}

/// What becomes of a segment from the peer that is not absorbed for what it acknowledges.
fn passes(arrival: Arrival, edit: Edit) -> Verdict {
    match arrival {
        Arrival::Known => Verdict::Absorb,
        Arrival::Deliver | Arrival::Unheard | Arrival::OutOfOrder | Arrival::Special => {
            Verdict::Pass(edit)
        }
    }
}

/// A byte that was acknowledged long ago, sent again while nothing is on its way: the peer is to answer,
/// not the switch (RFC 1122 section 4.2.3.6).
fn is_keepalive<B: 'static>(tx: &Sender<B>, segment: &Segment) -> bool {
    let last = segment.seq_len() == 1 && segment.end() == tx.snd_una();
    last && tx.is_idle() && !tx.is_withholding()
}

/// A segment of the guest that is not stored.
fn pass_from_guest<B: 'static, S: Sink<B>>(
    connection: &mut Connection<B>,
    segment: &Segment,
    own: Own,
    call: &mut Call<'_, S>,
) -> Verdict {
    let (tx, rx) = (&mut connection.tx, &mut connection.rx);
    let plain = rx.state == RxState::Offline && rx.is_settled();
    if !tx.is_online() && plain {
        rx.on_ack_sent();
        return Verdict::PASS;
    }
    if tx.is_online() {
        tx.note_guest(segment.seq, call.now);
    }
    // A keepalive, or a probe of the window.
    let asks = segment.seq.before(tx.snd_una());
    let says_nothing = own == Own::Nothing || (own == Own::Reported && !asks);
    if says_nothing && segment.is_pure_ack() && !segment.options.unknown {
        call.port.counters.absorbed_acks().add(1);
        return Verdict::Absorb;
    }
    tx.asked |= asks;
    let outgoing = rx.outgoing();
    let behind = segment.has(Flags::ACK) && outgoing.ack != segment.ack;
    let next = tx.next_seq();
    let overtakes = tx.is_online() && segment.seq.after(next);
    let timestamps = segment.options.timestamps.map(|own| Timestamps {
        value: tx.monotonic_tsval(own.value),
        echo: if behind { outgoing.timestamps.echo } else { own.echo },
    });
    rx.on_ack_sent();
    Verdict::Pass(Edit {
        seq: overtakes.then_some(next),
        ack: behind.then_some(outgoing.ack),
        window: behind.then_some(outgoing.window),
        timestamps: timestamps.filter(|_| timestamps != segment.options.timestamps),
        ..Edit::default()
    })
}
