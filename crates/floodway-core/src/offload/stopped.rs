//! A guest that is stopped: paused, with a driver that starts anew, moved to another host, or dead.
//!
//! # Theory of operation
//! **Goal.** What was acknowledged for a guest is the guest's (R1), whatever becomes of the guest's rings. Its peer has
//! no copy any more, so a connection that loses such bytes would stand still for ever.
//!
//! States of the guest, as the owner of the rings reports them:
//! - `Running`.
//! - `Stopped` ([`Offload::suspend`]): nothing can be delivered. Nothing new is acknowledged for the guest, kept frames
//!   stay, redelivery pauses however long that takes, and no notices are sent. What the guest had sent before is released,
//!   repaired and acknowledged as ever.
//! - `Running` again ([`Offload::resume`]): a paused guest goes on, its driver was loaded again, or it has booted. All kept
//!   frames are delivered again after [`RESUME_DELAY`], in which the guest may acknowledge those that had waited in its queue.
//!   Flows that are online are named again, since the guest's notices belong to another epoch now. A guest that has booted
//!   knows none of these connections, and resets them itself (RFC 9293 section 3.10.7.1).
//! - `Moved` ([`Offload::hand_over`]): the guest runs on another host. Kept frames are sent after it, [`MOVED_REDELIVERIES`](super::guest)
//!   times, since its acknowledgements do not pass here any more. All else is forgotten: the guest has it.
//!   A connection whose peer is owed bytes that were [acknowledged early](super::sender) is reset at both ends: the guest would not send them again.
//! - Dead ([`Offload::abort`]): the peers of connections that are owed bytes, either way, get an RST; all is forgotten.
//!
//! A running guest that takes no notice of redeliveries for 16 minutes is given up, as Linux gives up a silent peer
//! (`tcp_retries2`). Then both ends get an RST: neither may believe in a connection with a hole in it.
//!
//! **The RST** towards the peer has to carry exactly the number that the peer expects (RFC 5961 section 3.2). That lies
//! is where a segment begins that it has not acknowledged, as far as is known here, or behind the last; one RST is sent for each.
//! A dead guest may have had any number of tiny segments under way, and its resets must not hold up others: beyond [`MAX_RESETS`] only
//! the first and the last number of a connection get one. Of an offline flow, which passes, only these two are known. So abort a second
//! after the guest has gone, when the peer has acknowledged what it got.
//!
//! Source: RFC 9293 section 3.5.2, RFC 5961 section 3; invariant R1 of [`super::receiver`].

use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackList, Timestamps};
use floodway_wire::{FiveTuple, MacAddr};

use super::connection::Connection;
use super::engine::Offload;
use super::flow::{Flow, Phase};
use super::greeting::Greeting;
use super::guest::GuestState;
use super::port::Call;
use super::sink::{Link, Sink, SynthesizedSegment};
use super::summary::TxState;
use crate::seq::Seq;
use crate::tables::timer::ShortTime;
use crate::time::{Duration, Instant};

/// Time for a guest that runs again to acknowledge what has waited in its receive queue.
const RESUME_DELAY: Duration = Duration::from_millis(100);
/// Most resets of a call, besides two for each connection.
const MAX_RESETS: usize = 4096;

impl<B: 'static> Offload<B> {
    /// The guest's receive rings have stopped.
    pub const fn suspend(&mut self) {
        self.port.guest = GuestState::Stopped;
    }

    /// The guest's receive rings run again. Its notices must carry a new epoch from now on.
    pub fn resume(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        self.port.guest = GuestState::Running;
        self.port.greeting = Greeting::of_started(&self.port.config);
        self.with_each_flow(now, sink, Flow::resume);
        if self.port.pool.online > 0 {
            self.port.heartbeat_at = now;
        }
        self.flush(now, sink);
    }

    /// The guest, whose rings are stopped here, runs on another host: [`Sink::redeliver`] sends frames to it there.
    pub fn hand_over(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        self.port.guest = GuestState::Moved;
        for index in 0..self.flows.slots() {
            let Some(id) = self.id_at(index) else { continue };
            self.with_flow(id, now, sink, Flow::end_if_owing);
            let owed = self.flows.get(id).is_some_and(Flow::owes_bytes);
            if owed {
                self.with_flow(id, now, sink, Flow::hand_over);
            } else {
                self.forget(id);
            }
        }
        self.handle_timeout(now, sink);
    }

    /// The guest will not come back. Resets connections that are owed bytes, and forgets everything.
    pub fn abort(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        let mut room = MAX_RESETS;
        self.with_each_flow(now, sink, |flow, call| {
            if matches!(flow.phase, Phase::Adopted(_)) {
                call.port.counters.aborted().add(1);
                flow.reset_adopted(call);
            } else if flow.owes_bytes() {
                call.port.counters.aborted().add(1);
                room -= flow.reset_peer(call, room);
            } else if flow.owes_peer() {
                call.port.counters.early_acks_aborted().add(1);
                room -= flow.reset_peer(call, room);
            }
        });
        self.reset();
    }

    /// The switch stops, and perhaps its journals with it. Resets both ends of each connection that owes its peer bytes which were acknowledged to the guest early; nobody
    /// else would send them. Whatever else it has to say, it says with the next call.
    pub fn reset_owing(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        for index in 0..self.flows.slots() {
            if let Some(id) = self.id_at(index)
                && self.with_flow(id, now, sink, Flow::end_if_owing) == Some(true)
            {
                self.forget(id);
            }
        }
    }

    /// The guest's Ethernet address on the first connection with bytes that were acknowledged for the guest and not by it;
    /// `None` if there is no such connection.
    #[must_use]
    pub fn owed_to(&self) -> Option<MacAddr> {
        if self.port.kept == 0 {
            return None;
        }
        let all = self.flows.iter_from(0, self.flows.slots());
        all.map(|found| found.flow).find(|flow| flow.owes_bytes()).map(|flow| flow.link.guest)
    }
}

impl<B: 'static> Flow<B> {
    /// Returns `true` if bytes were acknowledged for the guest that it has not acknowledged itself.
    pub fn owes_bytes(&self) -> bool {
        match &self.phase {
            Phase::Established(connection) => !connection.rx.is_settled(),
            Phase::Adopted(_) => true,
            Phase::Opening(_) | Phase::Excluded(_) => false,
        }
    }

    fn resume<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        if let Phase::Adopted(adopted) = &mut self.phase {
            adopted.resume(call.now + RESUME_DELAY);
        }
        let Phase::Established(Connection { tx, rx }) = &mut self.phase else { return };
        rx.redeliver_all_at(call.now + RESUME_DELAY);
        rx.forget_reported();
        if !tx.is_online() {
            return;
        }
        if tx.state != TxState::Leaving {
            self.names = 0;
            self.notice_at = ShortTime::not_before(call.now);
        }
        self.update_due = true;
        self.flag(call.id, call.port);
    }

    /// Keeps nothing but what has to be sent after the guest.
    fn hand_over<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        if let Phase::Adopted(adopted) = &mut self.phase {
            adopted.resume(call.now);
        }
        let Phase::Established(Connection { tx, rx }) = &mut self.phase else { return };
        rx.redeliver_all_at(call.now);
        rx.stop(&call.port.counters);
        if tx.is_online() {
            let reason = tx.reason;
            tx.close_debt(call.port);
            tx.abandon();
            tx.enter(TxState::Offline, reason, &call.port.counters);
            call.port.pool.leave();
        }
        self.notice_at = ShortTime::NEVER;
    }

    /// What is kept cannot be delivered any more. A guest that has moved may have all of it; else both ends are reset.
    pub fn end_undelivered<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        if call.port.guest == GuestState::Running {
            call.port.counters.aborted().add(1);
            self.reset_peer(call, MAX_RESETS);
            self.reset_guest(call);
        }
        if let Phase::Established(connection) = &mut self.phase {
            connection.rx.leave_journal(&mut call.port.journal);
            connection.rx.abandon(&call.port.counters);
        }
    }

    /// Resets the peer by every number that it may expect: two, and at most `room` others. Returns how many others there were.
    fn reset_peer<S: Sink<B>>(&mut self, call: &mut Call<'_, S>, room: usize) -> usize {
        let Phase::Established(Connection { tx, rx }) = &mut self.phase else { return 0 };
        let outgoing = rx.outgoing();
        let timestamps = Timestamps {
            value: tx.monotonic_tsval(outgoing.timestamps.value),
            echo: outgoing.timestamps.echo,
        };
        let timestamps = tx.agreed.timestamps().then_some(timestamps);
        let mut send = |seq| {
            let reset = rst(*call.tuple, self.link, seq, outgoing.ack);
            call.sink.to_network(&SynthesizedSegment { timestamps, ..reset });
        };
        let expected = tx.each_expected(room + 1, &mut send);
        send(tx.next_seq());
        expected.saturating_sub(1)
    }

    /// Resets the guest by the number that it expects, and by the one that it expects once it has read what waits for it.
    fn reset_guest<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        let Phase::Established(Connection { tx, rx }) = &self.phase else { return };
        let mut send = |seq| {
            let made = rst(call.tuple.reversed(), self.link, seq, tx.una_for_guest());
            call.sink.to_guest(&made);
        };
        send(rx.guest_ack());
        if rx.is_settled() && rx.peer.nxt != rx.guest_ack() {
            send(rx.peer.nxt);
        }
    }

    /// Returns `true` if bytes were acknowledged to the guest that its peer has not acknowledged.
    pub fn owes_peer(&self) -> bool {
        self.connection().is_some_and(|c| c.tx.owed() > 0)
    }

    /// What was acknowledged to the guest early cannot reach the peer any more: both ends are reset, since neither may
    /// believe in a connection with a hole in it.
    pub fn end_owing<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) {
        call.port.counters.early_acks_aborted().add(1);
        self.reset_peer(call, MAX_RESETS);
        self.reset_guest(call);
        if let Phase::Established(Connection { tx, rx }) = &mut self.phase {
            tx.forget_owed();
            tx.close_debt(call.port);
            rx.leave_journal(&mut call.port.journal);
            rx.abandon(&call.port.counters);
        }
    }

    /// [`end_owing`](Self::end_owing), if bytes are owed. Returns `true` if they were.
    fn end_if_owing<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) -> bool {
        let owes = self.owes_peer();
        if owes {
            self.end_owing(call);
        }
        owes
    }
}

/// An RST without timestamps.
pub(super) fn rst(flow: FiveTuple, link: Link, seq: Seq, ack: Seq) -> SynthesizedSegment {
    let flags = Flags::RST.with(Flags::ACK);
    SynthesizedSegment {
        flow,
        link,
        seq,
        ack,
        window: 0,
        flags,
        timestamps: None,
        sack: SackList::default(),
    }
}
