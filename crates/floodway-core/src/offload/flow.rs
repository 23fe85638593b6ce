//! One connection: its handshake, and the two machines that it gets when that is done.
//!
//! [`handshake`](super::handshake) decides what becomes of it.

pub(super) mod state;

use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use super::adopted::Adopted;
use super::age::Age;
use super::connection::Connection;
use super::handshake::{Exclusion, Handshake};
use super::keeping::Keeping;
use super::port::{Holdings, OffloadShared};
use super::sender::{Recovery, Sender};
use super::sink::{Link, Verdict};
use super::state_pool::FreeList;
use super::store::Lists;
use super::summary::{FlowSummary, Reason, RxState, TxState};
use crate::seq::Seq;
use crate::tables::flow_table::FlowId;
use crate::tables::timer::{ShortTime, TimerQueue};
use crate::tcp::{Segment, Side};
use crate::time::Instant;

/// Boxes that no flow of the port uses now.
#[derive(Debug)]
pub(super) struct StatePool<B> {
    pub lists: FreeList<Lists<B>>,
    pub recoveries: FreeList<Recovery>,
    pub keeping: FreeList<Keeping<B>>,
}

impl<B> Default for StatePool<B> {
    fn default() -> Self {
        Self {
            lists: FreeList::default(),
            recoveries: FreeList::default(),
            keeping: FreeList::default(),
        }
    }
}

/// How far the connection is.
#[derive(Debug)]
pub(super) enum Phase<B> {
    /// Boxed, so that the others are no larger for it.
    Opening(Box<Handshake>),
    Established(Connection<B>),
    /// It is not offloaded.
    Excluded(Exclusion),
    /// An earlier process acknowledged bytes for its guest.
    Adopted(Box<Adopted<B>>),
}

/// An entry of the flow table.
///
/// Fields are in the order in which they are needed: with the receiver and the first fields of the sender, the first
/// two cache lines have all that a predicted segment of the guest reads.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Flow<B> {
    pub link: Link,
    /// When its timer in the queue fires: never later than [`Flow::next_timeout`]. A timeout that moves away leaves it
    /// alone.
    pub fires: ShortTime,
    /// Bytes that the pool has counted for it.
    pub charged: u32,
    /// Behind the guest's FIN, and the peer's, where [`Flow::marks`] has it.
    fin: [Seq; 2],
    /// When the module is told once more that the flow is managed; when a leaving flow may go offline.
    pub notice_at: ShortTime,
    /// When the guest hears of the ACKs that were merged so far.
    pub ack_at: ShortTime,
    /// Largest window that the peer has advertised, in units of its scale (RFC 5961: `MAX.SND.WND`).
    pub peer_window: u16,
    /// When the peer's clock was noted.
    pub clock_noted: Age,
    /// FINs seen, and what the flow's state lets be predicted of a segment of the guest.
    marks: Marks,
    /// Managed notices since it came online.
    pub names: u8,
    /// It is on the list of flows that have something to send at the end of the batch.
    pub flagged: bool,
    /// A window update is due at the end of the batch.
    pub update_due: bool,
    /// It is on the list of flows that wait for room in the budget.
    pub waiting: bool,
    pub phase: Phase<B>,
}

/// What of [`Flow::predict`] depends on the flow and not on the segment. Only the long ways change it, so they note it,
/// and a predicted segment need not ask again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steady {
    /// Both machines are where the next segment in order changes nothing but what it brings.
    pub plain: bool,
    /// Nothing of the sender is lost, out of order or marked.
    pub quiet: bool,
}

/// Bits of [`Flow::marks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Marks(u8);

impl Marks {
    const GUEST_FIN: u8 = 1;
    const PEER_FIN: u8 = 2;
    const FINS: u8 = Self::GUEST_FIN | Self::PEER_FIN;
    const PLAIN: u8 = 4;
    const QUIET: u8 = 8;

    const fn fin(side: Side) -> u8 {
        match side {
            Side::Guest => Self::GUEST_FIN,
            Side::Peer => Self::PEER_FIN,
        }
    }
}

/// What becomes of a segment, and of its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub verdict: Verdict,
    /// The connection is over.
    pub over: bool,
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, over: false }
    }
}

/// The connection is over, and the segment passes.
pub(super) const OVER: Outcome = Outcome { verdict: Verdict::PASS, over: true };

/// However many flows a port has, their state has to stay small: four cache lines.
const _: () = assert!(size_of::<Flow<[u8; 64]>>() <= 256);

impl<B: 'static> Flow<B> {
    pub fn new(link: Link) -> Self {
        Self {
            phase: Phase::Opening(Box::default()),
            link,
            fires: ShortTime::NEVER,
            charged: 0,
            fin: [Seq(0); 2],
            peer_window: 0,
            clock_noted: Age::default(),
            marks: Marks::default(),
            notice_at: ShortTime::NEVER,
            ack_at: ShortTime::NEVER,
            names: 0,
            flagged: false,
            update_due: false,
            waiting: false,
        }
    }

    /// Counts in the port what it holds and uses after a call, and notes what may be predicted from here on.
    /// `before` is what it held before.
    // Two calls, one on the way of every packet.
    #[inline(always)]
    pub fn settle(&mut self, before: Holdings, port: &mut OffloadShared) {
        match &mut self.phase {
            Phase::Established(connection) => {
                connection.rx.note_in(&mut port.journal);
                connection.note_owed(port);
            }
            Phase::Adopted(adopted) => adopted.note_in(&mut port.journal),
            Phase::Opening(_) | Phase::Excluded(_) => {}
        }
        port.recount(before, self.holdings());
        if let Phase::Established(Connection { tx, .. }) = &self.phase {
            tx.charge(&mut self.charged, &mut port.pool);
        }
        self.note_steady(port);
    }

    /// Notes what may be predicted from here on.
    #[inline]
    pub fn note_steady(&mut self, port: &OffloadShared) {
        let Steady { plain, quiet } = self.steady_now(port);
        let fins = self.marks.0 & Marks::FINS;
        self.marks = Marks(
            fins | if plain { Marks::PLAIN } else { 0 } | if quiet { Marks::QUIET } else { 0 },
        );
    }

    /// What was noted of what may be predicted.
    #[inline]
    pub fn steady(&self) -> Steady {
        Steady { plain: self.marks.0 & Marks::PLAIN != 0, quiet: self.marks.0 & Marks::QUIET != 0 }
    }

    /// What may be predicted.
    #[inline]
    pub fn steady_now(&self, port: &OffloadShared) -> Steady {
        let Phase::Established(Connection { tx, rx }) = &self.phase else {
            return Steady::default();
        };
        let may_start = rx.state == RxState::Offline && port.wants_receive();
        Steady {
            plain: tx.is_plain() && rx.is_plain() && !self.is_closing() && !may_start,
            quiet: tx.is_quiet(),
        }
    }

    /// A word of each of its cache lines, for no other purpose than to have them in the cache.
    #[inline]
    pub fn load(&self) -> u32 {
        let Phase::Established(Connection { tx, .. }) = &self.phase else { return 0 };
        self.charged ^ tx.load()
    }

    /// A word of each cache line that a predicted segment needs.
    #[inline]
    pub fn load_for_guest(&self) -> u32 {
        let Phase::Established(Connection { tx, .. }) = &self.phase else { return 0 };
        self.charged ^ tx.load_for_guest()
    }

    /// A word of what is stored, whose place the flow's lines tell.
    #[inline]
    pub fn load_lists(&self) -> u32 {
        self.connection().map_or(0, |c| c.tx.store.load())
    }

    /// Sees to it that the flow's timer fires in time.
    #[inline]
    pub fn set_timer(&mut self, id: FlowId, now: Instant, timers: &mut TimerQueue) {
        let due = self.next_timeout(now);
        if due != Instant::NEVER {
            self.fire_by(due, id, timers);
        }
    }

    /// As [`Flow::set_timer`], after nothing but the sender's own timer has changed.
    #[inline]
    pub fn set_sender_timer(&mut self, id: FlowId, timers: &mut TimerQueue) {
        if let Some(due) = self.connection().and_then(|c| c.tx.timer_at()) {
            self.fire_by(due, id, timers);
        }
    }

    #[inline]
    fn fire_by(&mut self, due: Instant, id: FlowId, timers: &mut TimerQueue) {
        if self.fires.is_later_than(due) && timers.schedule(id, due) {
            self.fires = ShortTime::not_before(due);
        }
    }

    /// Makes sure that there is a place for what a segment with data brings.
    #[inline]
    pub fn acquire_state(&mut self, side: Side, pool: &mut StatePool<B>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        match side {
            Side::Guest => {
                connection.tx.acquire_state(&mut pool.recoveries);
                connection.tx.store.fill(&mut pool.lists);
            }
            Side::Peer => connection.rx.acquire_state(&mut pool.keeping),
        }
    }

    /// Gives up what is not needed while nothing is under way.
    #[inline]
    pub fn park(&mut self, pool: &mut StatePool<B>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        connection.tx.park(&mut pool.recoveries, &mut pool.lists);
        connection.rx.park(&mut pool.keeping);
    }

    /// Gives up all that is stored or kept.
    pub fn return_state(&mut self, pool: &mut StatePool<B>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        connection.tx.return_state(&mut pool.recoveries, &mut pool.lists);
        connection.rx.return_state(&mut pool.keeping);
    }

    /// Gives back to the port what it used.
    pub fn release(&mut self, port: &mut OffloadShared) {
        match &mut self.phase {
            Phase::Established(Connection { tx, rx }) => {
                rx.leave_journal(&mut port.journal);
                tx.close_debt(port);
            }
            Phase::Adopted(adopted) => adopted.leave_journal(&mut port.journal),
            Phase::Opening(_) | Phase::Excluded(_) => {}
        }
        port.pool.change(&mut self.charged, 0);
        port.recount(self.holdings(), Holdings::default());
        if self.connection().is_some_and(|c| c.tx.is_online()) {
            port.pool.leave();
        }
    }

    #[inline]
    pub fn connection(&self) -> Option<&Connection<B>> {
        match &self.phase {
            Phase::Established(connection) => Some(connection),
            Phase::Opening(_) | Phase::Excluded(_) | Phase::Adopted(_) => None,
        }
    }

    /// Nothing would be lost with it.
    pub fn may_go(&self) -> bool {
        match &self.phase {
            Phase::Established(c) => !c.tx.is_online() && c.rx.is_settled(),
            Phase::Opening(_) | Phase::Excluded(_) => true,
            Phase::Adopted(_) => false,
        }
    }

    /// It is online for nothing.
    pub fn is_unused(&self) -> bool {
        self.connection()
            .is_some_and(|c| c.tx.is_online() && c.tx.state != TxState::Leaving && c.tx.is_idle())
    }

    /// Both sides have closed and acknowledged each other's FIN.
    pub fn is_closed(&self) -> bool {
        let [_, peer] = self.fin;
        self.has_both_fins()
            && self.guest_is_done()
            && self.connection().is_some_and(|c| !c.rx.guest_ack().before(peer))
    }

    /// Returns `true` if the guest has closed, and the peer has acknowledged all that it sent.
    #[inline]
    pub fn guest_is_done(&self) -> bool {
        let [guest, _] = self.fin;
        self.has_closed(Side::Guest)
            && self.connection().is_some_and(|c| !c.tx.snd_una().before(guest))
    }

    /// Returns `true` if it is excluded and both sides have sent a FIN: there is nothing left to show.
    pub fn is_over_unseen(&self) -> bool {
        matches!(self.phase, Phase::Excluded(_)) && self.has_both_fins()
    }

    fn has_both_fins(&self) -> bool {
        self.marks.0 & Marks::FINS == Marks::FINS
    }

    /// Notes a FIN.
    pub fn note_fin(&mut self, side: Side, segment: &Segment) {
        if segment.has(Flags::FIN) {
            self.fin[side as usize] = segment.end();
            self.marks.0 |= Marks::fin(side);
        }
    }

    /// Notes the guest's FIN if it is in what an earlier process has left.
    pub fn adopt_fin_of(&mut self, tx: &Sender<B>) {
        if tx.store.last().is_some_and(|last| last.fin) {
            self.fin[Side::Guest as usize] = tx.snd_max;
            self.marks.0 |= Marks::GUEST_FIN;
        }
    }

    /// That side has closed.
    #[inline]
    pub fn has_closed(&self, side: Side) -> bool {
        self.marks.0 & Marks::fin(side) != 0
    }

    /// One side has closed, or both.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.marks.0 & Marks::FINS != 0
    }

    /// What of the port's it holds.
    #[inline]
    pub fn holdings(&self) -> Holdings {
        match &self.phase {
            Phase::Established(Connection { tx, rx }) => {
                Holdings { frames: tx.store.frames(), kept: rx.kept_bytes() }
            }
            Phase::Adopted(adopted) => Holdings { frames: 0, kept: adopted.rx.kept_bytes() },
            Phase::Opening(_) | Phase::Excluded(_) => Holdings::default(),
        }
    }

    /// What can be told of it. `tuple` is its name.
    pub fn summary(&self, tuple: &FiveTuple) -> FlowSummary {
        let mut summary = FlowSummary {
            flow: *tuple,
            tx: TxState::Offline,
            rx: RxState::Offline,
            reason: Reason::Opened,
            cwnd: 0,
            ssthresh: 0,
            held: 0,
            in_flight: 0,
            owed: 0,
            granted: 0,
            srtt: None,
            kept: self.holdings().kept,
        };
        match &self.phase {
            Phase::Excluded(exclusion) => summary.reason = exclusion.reason,
            Phase::Adopted(_) => summary.reason = Reason::Adopted,
            Phase::Opening(_) | Phase::Established(_) => {}
        }
        if let Some(Connection { tx, rx }) = self.connection() {
            (summary.tx, summary.rx, summary.reason) = (tx.state, rx.state, tx.reason);
            (summary.cwnd, summary.ssthresh) = (tx.window.cwnd, tx.window.ssthresh);
            summary.srtt = tx.rtt.srtt();
            if tx.is_online() {
                summary.held = tx.held();
                summary.in_flight = tx.store.snd_nxt().since(tx.snd_una());
                summary.owed = tx.owed();
                summary.granted = tx.granted(tx.snd_max);
            }
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::super::receiver::Receiver;
    use super::super::sender::Agreed;
    use super::*;

    #[test]
    fn a_predicted_segment_needs_two_cache_lines_of_the_state() {
        let tx = Sender::new(Seq(0), Agreed::default(), 536, &Config::default());
        let mut flow = Flow::<u32>::new(Link::default());
        flow.phase = Phase::Established(Connection { rx: Receiver::new(Seq(0), 0, false), tx });
        let Phase::Established(Connection { rx, tx }) = &flow.phase else { unreachable!() };
        let start = std::ptr::from_ref(&flow).addr();
        let end_of = |field: *const Seq| field.addr() + size_of::<Seq>() - start;
        assert!(end_of(&raw const tx.advertised_edge) <= 128 && end_of(&raw const rx.acked) <= 128);
        // A word of each line is what `load` reads.
        let (charged, snd_max) = (&raw const flow.charged, &raw const tx.snd_max);
        let (cwnd, last) = (&raw const tx.window.cwnd, &raw const tx.data_measured);
        let lines = [charged.addr(), snd_max.addr(), cwnd.addr(), last.addr()];
        assert_eq!(lines.map(|at| (at - start) / 64), [0, 1, 2, 3]);
    }
}
