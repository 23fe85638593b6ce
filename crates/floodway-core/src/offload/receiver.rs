//! The receive side of a flow: acknowledges for a guest that waits for its CPU.
//!
//! # Theory of operation
//! In-order data is acknowledged when it is [delivered](super::delivered) to the guest's queue, in the guest's name, so
//! that its peer goes on at the pace of the network (vSnoop; vFlood section 6). States:
//! - `ACTIVE`: in-order data is kept and acknowledged.
//! - `NO_BUFFER`: no room to keep more, here or in the guest's queue, or beyond the guest's window. Data passes unacknowledged until
//!   the guest has acknowledged all that came.
//! - `UNEXPECTED_SEQ`: data came out of order or overlaps what came in order, or it came with something that only the guest can answer: a change of CE, CWR, or
//!   an option that the switch does not know. The guest deals with it, SACK, echo and all, until it has acknowledged the
//!   highest byte seen. What came out of order is [reported](super::reports) before that, and not acknowledged.
//! - `OFFLINE`: switched off, or the peer has closed its side.
//!
//! Rules:
//! - **R1** What was acknowledged is kept until the guest acknowledges it itself; the peer has no copy any
//!   more. If the guest's ACKs say that it lost it, or it stays silent too long, it is delivered again, under a header
//!   that says what one sent now would. If it cannot be delivered any more, both
//!   ends are reset ([`super::stopped`]). With a [journal](super::journal) this holds across the end of the process, too.
//! - **R2** Only in-order data within the window that the guest advertised, and within the port's budget.
//! - **R3** The window of such an ACK is the guest's right edge less the ACK number, in whole units of the guest's scale: never beyond what
//!   the guest allows, so that the edge may go back by less than a unit (RFC 7323 section 2.4). The guest takes all that it allowed.
//! - **R4** Timestamps echo the segment's; our `TSval` is the guest's latest, never ahead of it.
//! - **R5** An ACK of the guest that tells the peer nothing new is absorbed, and for each report one that says no more than was reported. What carries SACK blocks of
//!   use to the peer, another echo of CE than before or an unknown option, is a duplicate, opens a window that was nearly
//!   closed, or carries data passes, and its number never goes back.
//! - **R6** CE is echoed by the guest itself, until CWR comes (RFC 3168) or exactly (RFC 8257): a segment is acknowledged for it
//!   only if it changes nothing of the echo, and with the guest's latest ([`super::echo`]).
//! - **R7** SYN, FIN, RST and URG are the guest's own business; only a connection that can no longer go on is reset.
//!
//! What was acknowledged and comes again is answered by an ACK with a DSACK (RFC 2883), where SACK was agreed: the peer learns that
//! its repair was needless.
//!
//! ACKs leave at the end of a batch ([`super::Offload::flush`]), one per flow, unless data of the guest
//! is released in the same batch, which carries the number.

pub(super) mod state;

use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackBlock, SackList, Timestamps};

use super::counters::CounterCells;
use super::echo::Echo;
use super::journal::{FlowPlace, Recorder};
use super::keeping::{self, Keeping};
use super::reports::Reports;
use super::sender::{Outgoing, PeerSide};
use super::state_pool::{FreeList, Pooled};
use super::summary::RxState;
use crate::seq::Seq;
use crate::tcp::Segment;
use crate::time::Instant;

#[derive(Debug)]
#[repr(C)]
pub(super) struct Receiver<B> {
    /// Absent while nothing is kept.
    pub(super) keeping: Pooled<Keeping<B>>,
    /// Latest word of the peer on its own side.
    pub peer: PeerSide,
    /// Latest acknowledgement number on the wire, the guest's or ours.
    pub acked: Seq,
    /// Next byte in order from the peer.
    rcv_nxt: Seq,
    /// Behind the highest byte seen.
    highest: Seq,
    /// What the guest itself has acknowledged.
    pub(super) guest_ack: Seq,
    /// Right edge of the guest's window.
    guest_edge: Seq,
    /// Right edge that the peer was told.
    advertised_edge: Seq,
    /// Clock of the guest.
    guest_tsval: u32,
    /// Clock of the peer that is to be echoed.
    ts_recent: u32,
    /// Shift of the windows that the guest advertises.
    guest_scale: u8,
    pub state: RxState,
    /// An ACK has to leave at the end of the batch.
    pub ack_due: bool,
    echo: Echo,
}

/// What the peer is told of what came from it, and what it was heard to say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub acked: Seq,
    ack_due: bool,
    ts_recent: u32,
    peer: PeerSide,
}

/// What becomes of a segment from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Deliver,
    /// It is delivered, and the guest will drop it with all that is in its header.
    Unheard,
    /// The guest has it, or will get it from what is kept.
    Known,
    /// It is delivered, and lies behind a hole.
    OutOfOrder,
    /// It is delivered, and only the guest knows what becomes of it and what comes behind it.
    Special,
}

/// What becomes of what a guest's segment acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// It tells the peer something.
    News,
    /// It repeats what it said before, which means something if it carries nothing else.
    Again,
    /// The peer knows it all.
    Nothing,
    /// The peer has had it in a [report](super::reports).
    Reported,
}

impl<B: 'static> Receiver<B> {
    /// A receiver whose next byte is `next`, for a guest whose windows are shifted by `guest_scale`. `ecn` says that classic
    /// ECN was agreed on.
    pub fn new(next: Seq, guest_scale: u8, ecn: bool) -> Self {
        Self {
            state: RxState::Offline,
            peer: PeerSide { nxt: next, ..PeerSide::default() },
            acked: next,
            guest_scale,
            rcv_nxt: next,
            highest: next,
            guest_ack: next,
            guest_edge: next,
            advertised_edge: next,
            guest_tsval: 0,
            ts_recent: 0,
            keeping: Pooled::EMPTY,
            ack_due: false,
            echo: Echo::new(ecn),
        }
    }

    /// An earlier process has acknowledged all before `acked`.
    pub fn adopt_numbers(&mut self, acked: Seq) {
        (self.acked, self.rcv_nxt, self.highest, self.peer.nxt) = (acked, acked, acked, acked);
    }

    /// The guest's window ended at `edge` when an earlier process was told.
    pub fn adopt_window(&mut self, edge: Seq) {
        (self.guest_edge, self.advertised_edge) = (edge, edge);
    }

    /// Shift of the guest's windows.
    pub fn guest_scale(&self) -> u8 {
        self.guest_scale
    }

    /// Takes over what `other` keeps.
    pub fn take_over(&mut self, other: Self) {
        self.guest_ack = other.guest_ack;
        self.adopt_numbers(other.acked);
        self.keeping = other.keeping;
    }

    /// The guest's SYN-ACK advertised this much, unscaled.
    pub fn first_window(&mut self, window: u16) {
        self.guest_edge = self.guest_ack + u32::from(window);
        self.advertised_edge = self.guest_edge;
    }

    /// The clocks of both sides, as their SYNs had them: a segment that we make must not seem older.
    pub fn first_timestamps(&mut self, guest: Option<Timestamps>, peer: Option<Timestamps>) {
        if let (Some(guest), Some(peer)) = (guest, peer) {
            self.guest_tsval = guest.value;
            self.ts_recent = peer.value;
            self.peer.tsval = peer.value;
            self.peer.tsecr = if peer.echo == 0 { guest.value } else { peer.echo };
        }
    }

    pub fn kept_bytes(&self) -> u32 {
        self.keeping.kept_bytes
    }

    pub fn guest_ack(&self) -> Seq {
        self.guest_ack
    }

    /// All that was acknowledged for the guest it has acknowledged itself.
    pub fn is_settled(&self) -> bool {
        self.keeping.is_empty()
    }

    pub fn next_timeout(&self) -> Instant {
        self.keeping.redeliver_at
    }

    pub(super) fn enter(&mut self, state: RxState, counters: &CounterCells) {
        if self.state == state {
            return;
        }
        self.state = state;
        match state {
            RxState::Active => counters.rx_to_active().add(1),
            RxState::NoBuffer => counters.rx_to_no_buffer().add(1),
            RxState::UnexpectedSeq => counters.rx_to_unexpected_seq().add(1),
            RxState::Offline => {}
        }
        if let Some(keeping) = self.keeping.get_mut().filter(|_| state != RxState::UnexpectedSeq) {
            keeping.reports = Reports::EMPTY;
        }
    }

    /// What had come out of order, and waited in the guest's queue, may be lost.
    pub fn forget_reported(&mut self) {
        if let Some(keeping) = self.keeping.get_mut() {
            keeping.reports.forget_ranges();
        }
    }

    /// Begins to acknowledge, from what the guest has acknowledged on.
    pub fn start(&mut self, counters: &CounterCells) {
        if self.state == RxState::Offline && !self.guest_ack.before(self.highest) {
            self.rcv_nxt = self.guest_ack;
            self.enter(RxState::Active, counters);
        }
    }

    /// Acknowledges nothing new. What is kept stays until the guest has it.
    pub fn stop(&mut self, counters: &CounterCells) {
        self.enter(RxState::Offline, counters);
    }

    /// What segments to the network say of this side.
    #[inline]
    pub fn outgoing(&self) -> Outgoing {
        self.outgoing_as(&self.told())
    }

    /// What segments to the network say of this side while it is not known whether what was acknowledged since `told` is delivered.
    pub fn outgoing_as(&self, told: &Told) -> Outgoing {
        Outgoing {
            ack: told.acked,
            window: self.window(told.acked),
            timestamps: Timestamps { value: self.guest_tsval, echo: told.ts_recent },
            ece: self.echo.is_set(),
        }
    }

    /// The window field of a segment that acknowledges all before `acked` (R3).
    fn window(&self, acked: Seq) -> u16 {
        let bytes = self.guest_edge.since(acked) >> self.guest_scale;
        bytes.min(u32::from(u16::MAX)) as u16
    }

    /// Returns `true` if the peer is to hear of what came out of order. What came in order and is not acknowledged would
    /// seem lost beside it.
    #[inline]
    pub fn owes_report(&self) -> bool {
        self.may_report() && self.keeping.reports.is_due()
    }

    #[inline]
    fn may_report(&self) -> bool {
        self.state == RxState::UnexpectedSeq && self.acked == self.rcv_nxt
    }

    /// `start..end` is behind a hole, and was delivered.
    pub fn on_delivered(&mut self, (start, end): (Seq, Seq), free: &mut FreeList<Keeping<B>>) {
        if self.state == RxState::UnexpectedSeq && start.after(self.rcv_nxt) {
            self.keeping.fill(free);
            self.keeping.reports.note(start, end);
        }
    }

    /// Nothing more is reported until the guest has caught up.
    pub fn keep_silent(&mut self) {
        if self.state == RxState::UnexpectedSeq {
            self.keeping.reports.keep_silent();
        }
    }

    /// The blocks of an ACK that leaves now, which has room for `most`: what came twice, if the peer has not heard of it (RFC 2883), and what came out of order, if
    /// the guest runs. Returns with them whether they report something new.
    pub fn take_sack(&mut self, most: usize, guest_runs: bool) -> (SackList, bool) {
        let mut blocks = SackList::default();
        let may_report = guest_runs && self.may_report();
        let Some(keeping) = self.keeping.get_mut() else { return (blocks, false) };
        if let Some((Seq(left), Seq(right))) = keeping.repeat.take() {
            blocks.push(SackBlock { left, right });
        }
        let is_report = may_report && keeping.reports.report(&mut blocks, most);
        (blocks, is_report)
    }

    /// Something with [`Receiver::outgoing`] has left. A DSACK does not ride on it.
    pub fn on_ack_sent(&mut self) {
        self.ack_due = self.keeping.repeat.is_some();
        let window = u32::from(self.window(self.acked)) << self.guest_scale;
        self.advertised_edge = self.advertised_edge.max(self.acked + window);
    }

    /// ACK flags of a segment that we make (R6).
    pub fn ack_flags(&self) -> Flags {
        if self.echo.is_set() { Flags::ACK.with(Flags::ECE) } else { Flags::ACK }
    }

    /// Returns `true` if an ACK that is due must leave before `segment` of the guest is taken in: it belongs to another
    /// echo (R6).
    pub fn ends_echo(&self, segment: &Segment) -> bool {
        (self.ack_due || self.owes_report()) && self.echo.differs(segment)
    }

    /// Acknowledges nothing from `segment` on, if it has data, before the guest has: only the guest knows whether it takes it.
    pub fn leave_to_guest(&mut self, segment: &Segment, counters: &CounterCells) {
        if segment.seq_len() > 0 && self.state == RxState::Active {
            self.enter(RxState::UnexpectedSeq, counters);
        }
    }

    /// Takes in an [acceptable](super::acceptance) segment from the peer. `room` is what the port may keep in addition. `keep` is given the place of what is
    /// kept in the port's journal, and returns `None` if there is no room, here or there.
    pub fn on_segment(
        &mut self,
        segment: &Segment,
        room: u32,
        keep: impl FnOnce(&mut Option<FlowPlace>) -> Option<B>,
        now: Instant,
        counters: &CounterCells,
    ) -> Arrival {
        let deliver = if self.is_old(segment) { Arrival::Unheard } else { Arrival::Deliver };
        self.note_peer(segment);
        if segment.seq_len() == 0 {
            return deliver;
        }
        let (start, end) = (segment.seq, segment.end());
        if !end.after(self.acked) && self.acked.after(self.guest_ack) {
            // Our ACK was lost. The guest's would come late, or was absorbed.
            self.ack_due = true;
            self.keeping.repeat = Some((start, end));
            return if segment.options.unknown { deliver } else { Arrival::Known };
        }
        // The guest has no room for what begins beyond its window, like a byte that probes it.
        let beyond = segment.len > 0 && !start.before(self.guest_edge);
        if start != self.rcv_nxt || beyond {
            let unexpected = self.on_unexpected(segment, counters);
            return unexpected.filter(|_| deliver == Arrival::Deliver).unwrap_or(deliver);
        }
        if (self.echo.on_data(segment) | segment.options.unknown) && self.state == RxState::Active {
            self.enter(RxState::UnexpectedSeq, counters);
        }
        self.rcv_nxt = end;
        self.highest = self.highest.max(end);
        if segment.flags.intersects(Flags::FIN) {
            self.stop(counters);
        }
        match self.state {
            RxState::Active => self.acknowledge(segment, room, keep, now, counters),
            RxState::UnexpectedSeq => self.skip_reported(),
            RxState::NoBuffer | RxState::Offline => {}
        }
        deliver
    }

    /// Takes in a segment that does not begin with the next byte in order, or not in the window. Returns what it is, if it brings something.
    fn on_unexpected(&mut self, segment: &Segment, counters: &CounterCells) -> Option<Arrival> {
        const SPECIAL: Flags = Flags::URG.with(Flags::RST).with(Flags::SYN);
        let (start, end) = (segment.seq, segment.end());
        if !end.after(self.rcv_nxt) || end.after(self.guest_edge) {
            return None;
        }
        self.highest = self.highest.max(end);
        let is_left_to_guest = self.echo.on_data(segment)
            | segment.options.unknown
            | segment.flags.intersects(SPECIAL)
            | start.before(self.rcv_nxt);
        if matches!(self.state, RxState::Active | RxState::NoBuffer) {
            self.enter(RxState::UnexpectedSeq, counters);
        }
        Some(if is_left_to_guest { Arrival::Special } else { Arrival::OutOfOrder })
    }

    /// The hole is filled up to the next one.
    fn skip_reported(&mut self) {
        self.rcv_nxt = self.keeping.reports.skip(self.rcv_nxt);
    }

    /// Its sequence numbers are acceptable ([`super::acceptance`]).
    #[inline]
    pub fn is_in_window(&self, segment: &Segment) -> bool {
        !segment.end().before(self.guest_ack)
            && !segment.seq.after(self.guest_edge.max(self.rcv_nxt))
    }

    /// It has nothing that the guest has not got by the time it reads it, so that the guest may drop it with the
    /// acknowledgement in it (RFC 9293 section 3.10.7.4).
    fn is_old(&self, segment: &Segment) -> bool {
        if segment.seq_len() == 0 {
            segment.seq.before(self.peer.nxt)
        } else {
            !segment.end().after(self.peer.nxt)
        }
    }

    fn note_peer(&mut self, segment: &Segment) {
        // As the guest itself (RFC 7323 section 4.3): the clock of what is out of order is not used. In a segment
        // that we make it would let the guest take what fills the gap for old.
        if let Some(timestamps) = segment.options.timestamps
            && !segment.seq.after(self.rcv_nxt)
        {
            if Seq(timestamps.value).before(Seq(self.peer.tsval)) {
                // The clock has gone half a turn since it was heard last. What is echoed begins anew.
                self.ts_recent = timestamps.value;
            }
            self.peer.tsval = timestamps.value;
            self.peer.tsecr = timestamps.echo;
        }
        let end = segment.end();
        if !segment.seq.after(self.rcv_nxt) {
            // What the switch makes has to begin within the guest's window.
            self.peer.nxt = self.peer.nxt.max(end.min(self.guest_edge));
        }
    }

    fn acknowledge(
        &mut self,
        segment: &Segment,
        room: u32,
        keep: impl FnOnce(&mut Option<FlowPlace>) -> Option<B>,
        now: Instant,
        counters: &CounterCells,
    ) {
        let end = segment.end();
        let charge = keeping::charge(segment);
        let fits = charge <= room && !end.after(self.guest_edge);
        let special = segment.flags.intersects(Flags::URG.with(Flags::RST).with(Flags::SYN));
        let keep = || keep(&mut self.keeping.place);
        let Some(frame) = (fits && !special).then(keep).flatten() else {
            return self.enter(RxState::NoBuffer, counters);
        };
        self.keeping.push(frame, segment, now);
        counters.acknowledged_bytes().add(u64::from(segment.len));
        self.acked = end;
        if let Some(timestamps) = segment.options.timestamps {
            self.ts_recent = timestamps.value;
        }
        self.ack_due = true;
    }

    /// What the peer is told now.
    #[inline]
    pub fn told(&self) -> Told {
        let Self { acked, ack_due, ts_recent, peer, .. } = *self;
        Told { acked, ack_due, ts_recent, peer }
    }

    /// The segment that was acknowledged last has not got into the guest's queue ([`super::delivered`]); `before` is what the peer was to be told until then.
    pub fn on_dropped(&mut self, before: Told, counters: &CounterCells, journal: &mut Recorder) {
        let Some(keeping) = self.keeping.get_mut() else { return };
        keeping.pop_latest();
        if let Some((place, journal)) = keeping.place.zip(journal.as_mut()) {
            journal.withdraw(place, before.acked);
        }
        let Told { acked, ack_due, ts_recent, peer } = before;
        (self.acked, self.rcv_nxt, self.ack_due) = (acked, acked, ack_due);
        (self.ts_recent, self.peer) = (ts_recent, peer);
        counters.rx_withdrawn().add(1);
        self.enter(RxState::NoBuffer, counters);
    }

    /// Takes in what a segment of the guest says of this side.
    pub fn on_guest(&mut self, segment: &Segment, now: Instant, counters: &CounterCells) -> Own {
        if !segment.has(Flags::ACK) || segment.ack.before(self.guest_ack) {
            return Own::Again;
        }
        let advanced = segment.ack.after(self.guest_ack);
        let repairing = self.keeping.redeliveries > 0;
        let edge = segment.ack + (u32::from(segment.window) << self.guest_scale);
        let beyond = segment.ack.after(self.acked);
        let echo_changed = self.echo.on_guest(segment);
        self.guest_ack = segment.ack;
        self.guest_edge = self.guest_edge.max(edge);
        self.acked = self.acked.max(segment.ack);
        self.rcv_nxt = self.rcv_nxt.max(segment.ack);
        self.peer.nxt = self.peer.nxt.max(segment.ack);
        self.take_timestamps(segment);
        if advanced {
            self.forget_kept(now);
        }
        if beyond && self.state == RxState::UnexpectedSeq {
            self.on_progress();
        }
        let caught_up = !self.guest_ack.before(self.highest);
        if caught_up && matches!(self.state, RxState::NoBuffer | RxState::UnexpectedSeq) {
            self.enter(RxState::Active, counters);
        }
        // What was kept and is missing at the guest.
        let behind = self.acked.after(self.guest_ack) && segment.is_pure_ack();
        let holes = !segment.options.sack_blocks().is_empty();
        if behind && advanced {
            let more = self.keeping.recover.is_some_and(|recover| self.guest_ack.before(recover));
            if (holes && repairing) || more {
                self.keeping.redelivery_due = true;
            }
        } else if behind {
            self.on_guest_duplicate(holes);
        }
        let sacks = segment.options.sack_blocks().iter().any(|b| Seq(b.right).after(self.acked));
        let is_reported = sacks && segment.is_pure_ack() && self.was_reported(segment);
        if beyond || (sacks && !is_reported) || echo_changed || self.opens_window() {
            return Own::News;
        }
        if is_reported {
            return Own::Reported;
        }
        if self.acked.after(self.guest_ack) {
            return Own::Nothing;
        }
        // It reached what we had acknowledged: nothing new. Said again, it is a duplicate (R5).
        if advanced { Own::Nothing } else { Own::Again }
    }

    /// The guest has acknowledged more than the peer knew of.
    fn on_progress(&mut self) {
        self.skip_reported();
        if let Some(keeping) = self.keeping.get_mut() {
            keeping.reports.on_progress(self.acked);
        }
    }

    /// What a pure ACK of the guest says of a hole the peer has had in a report, which stands for this ACK.
    fn was_reported(&mut self, segment: &Segment) -> bool {
        let (blocks, acked) = (segment.options.sack_blocks(), self.acked);
        let reports = self.keeping.get_mut().map(|keeping| &mut keeping.reports);
        reports.is_some_and(|reports| reports.stand_for(blocks, segment.ack, acked))
    }

    /// Nothing is to be done here, as long as the guest says nothing new.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.acked == self.guest_ack
            && matches!(self.state, RxState::Offline | RxState::Active)
            && !(self.ack_due || self.keeping.redelivery_due || self.echo.is_set())
            && (self.advertised_edge == self.guest_edge || !self.opens_window())
    }

    /// A segment with data of the guest says nothing of this side but that all is as it was.
    #[inline]
    pub fn is_unmoved(&self, segment: &Segment) -> bool {
        let edge = segment.ack + (u32::from(segment.window) << self.guest_scale);
        (segment.ack == self.guest_ack)
            & (edge == self.guest_edge)
            & segment.options.sack_blocks().is_empty()
    }

    #[inline]
    pub fn take_timestamps(&mut self, segment: &Segment) {
        let Some(timestamps) = segment.options.timestamps else { return };
        self.guest_tsval = Seq(self.guest_tsval).max(Seq(timestamps.value)).0;
        self.ts_recent = Seq(self.ts_recent).max(Seq(timestamps.echo)).0;
    }

    /// The peer was told of less than half of the guest's window, and may be waiting for it.
    fn opens_window(&self) -> bool {
        let (told, is) =
            (self.advertised_edge.since(self.acked), self.guest_edge.since(self.acked));
        is > told && told < is / 2
    }
}
