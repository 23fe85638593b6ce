//! The transmit side of a flow: a TCP sender in all but acknowledging.
//!
//! # Theory of operation
//! While a flow is online, what its guest sends is stored ([`super::store`]) and released as a
//! congestion window of our own allows (`output`). Every byte is kept until the peer has acknowledged
//! it, so losses are found and repaired here (`loss`), however long the guest waits for its CPU.
//!
//! States (vFlood, figure 3):
//! - `ACTIVE`: the guest is granted what the budget allows.
//! - `NO_BUFFER`: the budget allows no more; what was granted stands.
//! - `PACKET_LOSS`: a loss is being repaired. Grants stand still, `cwnd` is cut. Unlike in the paper
//!   the guest learns nothing of it: when it retransmits by itself, the RACK of today's kernels takes
//!   what we hold for lost and storms.
//! - `LEAVING`: nothing new is granted; offline when nothing is stored ([`super::port`] says how), or active again if it was to
//!   leave because it was not used.
//! - `OFFLINE`: segments pass as they are. We only follow the numbers.
//!
//! A flow comes online only when nothing is on its way that is not stored, for that we could not
//! repair.
//!
//! To the guest: ACKs that advance pass, with the grant as their window, without SACK blocks and
//! ECN echo, for both are ours to deal with; several that come soon after each other are merged into
//! one, since each wakes the guest, which needs no ACK clock. One that was not ahead of the network by more than a window in its first slow start may send by its own
//! window, and does need it: it hears of each at once, unless something is held. Duplicate ACKs are absorbed. From the guest: bytes that are
//! stored or acknowledged are absorbed (probes and needless timeouts of the guest), and answered by a DSACK once the
//! peer has acknowledged them, as the peer would have: without it the guest would take its probe for a repair
//! (RFC 8985 section 7.4) and cut its window.
//!
//! Bytes that went to the peer past us, because it lives on this host for a while or frames were flooded, show in the
//! numbers of both ends. The flow is given up then: the guest has everything that the peer has not acknowledged.
//!
//! What is stored may be acknowledged to the guest before the peer has it (`early_ack`).
//!
//! A receiver that closes its window while bytes are held must not let the guest time out (`stall`).
//!
//! Timers, one at a time: retransmission timeout (RFC 6298), tail loss probe and reordering (RFC
//! 8985), probe of a closed window (RFC 9293 section 3.8.6.1).
//!
//! Invariants: I1, I2, I3, I7 of [`super`]. The sequence numbers are ordered:
//! `snd_una <= snd_nxt <= snd_max <= advertised_edge`, but for a FIN, which may lie one beyond `advertised_edge`.

mod acks;
mod ahead;
mod black_hole;
#[cfg(test)]
mod cost;
mod early_ack;
mod loss;
mod output;
pub(in crate::offload) mod owed;
mod predict;
mod recovery;
mod stall;
pub(in crate::offload) mod state;
mod undo;

use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackBlock, SackList, Timestamps};

use serde::{Deserialize, Serialize};

use super::config::Config;
use super::counters::CounterCells;
use super::sink::{Link, Sink, SynthesizedSegment};
use super::state_pool::Pooled;
use super::store::Store;
use super::summary::{Reason, TxState};
use crate::congestion::{Controller, Window};
use crate::histogram::DurationHistogram;
use crate::rtt::{RtoLimits, RttEstimator};
use crate::seq::Seq;
use crate::tables::timer::ShortTime;
use crate::tcp::{Edit, Segment};
use crate::time::{Duration, Instant};
use floodway_wire::FiveTuple;

pub(super) use acks::is_dsack;
pub(super) use predict::Predicted;
use recovery::Learnt;
pub(super) use recovery::Recovery;

/// Timestamps option with its padding, in every segment of a connection that uses it.
const TIMESTAMPS_LEN: u32 = 12;
/// Payload of a segment by which RFC 6928 bounds the initial window.
const INITIAL_WINDOW_MSS: u32 = 1460;
/// Smallest MSS that is believed: what is smaller would turn 64 KB into hundreds of segments.
const MIN_MSS: u32 = 88;
/// Longest retransmission timeout.
const MAX_RTO: Duration = Duration::from_secs(60);
/// Timeouts and probes in a row after which the peer is taken for dead (Linux `tcp_retries2`).
const MAX_UNANSWERED: u8 = 15;

/// What segments to the network say of the other direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outgoing {
    /// Latest acknowledgement number.
    pub ack: Seq,
    /// Window as on the wire.
    pub window: u16,
    /// Clock of the guest, as of its latest segment, and the echo of the peer's.
    pub timestamps: Timestamps,
    /// The guest's latest echo of congestion.
    pub ece: bool,
}

/// What the machines of a flow work with during one call.
pub(super) struct Env<'a, S> {
    pub now: Instant,
    pub config: &'a Config,
    pub counters: &'a CounterCells,
    pub rtts: &'a DurationHistogram,
    pub sink: &'a mut S,
    /// In the guest's direction.
    pub flow: &'a FiveTuple,
    pub link: &'a Link,
    pub outgoing: Outgoing,
}

/// What an ACK is to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckKind {
    /// It acknowledges something new.
    Advanced,
    /// It acknowledges nothing new, but says something else: a new window, or it carries data.
    Same,
    /// It only says that something came out of order.
    Duplicate,
    /// It is older than the latest.
    Old,
}

/// What is being repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Open,
    Fast,
    Loss,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Timer {
    Retransmission,
    TailLossProbe,
    Reordering,
    WindowProbe,
    /// New bytes may leave that were one burst too many.
    Release,
}

/// What the connection agreed on, as far as it concerns what the guest sends, and whether the guest runs ahead.
/// In one byte: a bit for each option, and the shift of the peer's windows.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Agreed(u8);

impl Agreed {
    const SCALE: u8 = 0x0f;
    const SACK: u8 = 0x10;
    const TIMESTAMPS: u8 = 0x20;
    const ECN: u8 = 0x40;
    const AHEAD: u8 = 0x80;

    /// Without options; `peer_scale` is at most 14.
    pub fn scaled(peer_scale: u8) -> Self {
        Self(peer_scale & Self::SCALE)
    }

    pub fn with_sack(self, on: bool) -> Self {
        if on { Self(self.0 | Self::SACK) } else { self }
    }

    pub fn with_timestamps(self, on: bool) -> Self {
        if on { Self(self.0 | Self::TIMESTAMPS) } else { self }
    }

    pub fn with_ecn(self, on: bool) -> Self {
        if on { Self(self.0 | Self::ECN) } else { self }
    }

    #[inline]
    pub fn sack(self) -> bool {
        self.0 & Self::SACK != 0
    }

    #[inline]
    pub fn timestamps(self) -> bool {
        self.0 & Self::TIMESTAMPS != 0
    }

    #[inline]
    pub fn ecn(self) -> bool {
        self.0 & Self::ECN != 0
    }

    /// Notes that the guest was ahead of the network by more than a window in the first slow start: it sends as far as it is granted.
    pub fn note_run_ahead(&mut self) {
        self.0 |= Self::AHEAD;
    }

    /// Returns `true` if that was noted: the guest does not wait for the peer's ACKs.
    #[inline]
    pub fn runs_ahead(self) -> bool {
        self.0 & Self::AHEAD != 0
    }

    /// Shift of the windows that the peer advertises.
    #[inline]
    pub fn peer_scale(self) -> u8 {
        self.0 & Self::SCALE
    }
}

/// The first three fields are what a predicted segment needs ([`super::flow::Flow`]).
#[derive(Debug)]
#[repr(C)]
pub(super) struct Sender<B> {
    pub store: Store<B>,
    /// Behind the last byte that the guest sent and we stored.
    pub snd_max: Seq,
    /// Right edge that the guest was told.
    pub advertised_edge: Seq,
    recovery: Pooled<Recovery>,
    pub window: Window,
    /// Right edge of the receiver's window.
    pub rwnd_edge: Seq,
    /// `NEVER` before the first.
    last_release: ShortTime,
    /// Where the guest is by the numbers of its segments, those included that were not stored.
    guest_nxt: Seq,
    /// Largest `TSval` on the wire.
    last_tsval: u32,
    /// What the guest knows to be acknowledged.
    pub advertised_una: Seq,
    pub rtt: RttEstimator,
    controller: Controller,
    learnt: Learnt,
    pub agreed: Agreed,
    pub state: TxState,
    pub reason: Reason,
    /// It has a sample that is not of the handshake.
    pub data_measured: bool,
    /// A keepalive or window probe of the guest has passed, and its answer has to.
    pub asked: bool,
    /// Held bytes wait for `cwnd`.
    pub cwnd_limited: bool,
    /// Timeouts and window probes in a row that the peer did not answer.
    unanswered: u8,
    /// The next new segment carries CWR.
    cwr_due: bool,
}

impl<B: 'static> Sender<B> {
    /// A sender whose next byte is `next`, and whose segments have `mss` bytes with their options.
    pub fn new(next: Seq, agreed: Agreed, mss: u16, config: &Config) -> Self {
        let overhead = if agreed.timestamps() { TIMESTAMPS_LEN } else { 0 };
        let mss = u32::from(mss).saturating_sub(overhead).max(MIN_MSS);
        Self {
            state: TxState::Offline,
            reason: Reason::Opened,
            agreed,
            store: Store::new(next),
            snd_max: next,
            guest_nxt: next,
            rwnd_edge: next,
            advertised_edge: next,
            advertised_una: next,
            window: Window::new(mss, initial_window(mss, config)),
            rtt: RttEstimator::new(),
            data_measured: false,
            asked: false,
            cwnd_limited: false,
            controller: Controller::new(config.congestion),
            recovery: Pooled::EMPTY,
            learnt: Learnt::NOTHING,
            last_release: ShortTime::NEVER,
            last_tsval: 0,
            unanswered: 0,
            cwr_due: false,
        }
    }

    /// A word of each cache line in which it is.
    #[inline]
    pub fn load(&self) -> u32 {
        self.snd_max.0 ^ self.window.cwnd ^ u32::from(self.unanswered)
    }

    /// A word of the cache line in which it begins.
    #[inline]
    pub fn load_for_guest(&self) -> u32 {
        self.snd_max.0
    }

    /// Bytes of options in every segment.
    pub fn options_len(&self) -> u32 {
        if self.agreed.timestamps() { TIMESTAMPS_LEN } else { 0 }
    }

    pub fn snd_una(&self) -> Seq {
        self.store.snd_una()
    }

    pub fn is_online(&self) -> bool {
        self.state != TxState::Offline
    }

    /// Bytes that the guest has sent and that were not released.
    pub fn held(&self) -> u32 {
        self.snd_max.since(self.store.snd_nxt())
    }

    /// Bytes of the receiver's window from `snd_una` on.
    pub fn rwnd(&self) -> u32 {
        self.rwnd_edge.since(self.snd_una())
    }

    #[inline]
    pub fn next_timeout(&self) -> Instant {
        let recovery = &*self.recovery;
        let timer = recovery.timer.map_or(Instant::NEVER, |(_, at)| at);
        if !recovery.diverged {
            debug_assert!(recovery.advertises_snd_una(), "`diverged` is not up to date");
            return timer.min(recovery.gap_until);
        }
        let end =
            if recovery.early.una.is_some() { recovery.early.dead_at } else { recovery.gap_until };
        timer.min(end).min(recovery.stall.answer_at())
    }

    /// When the timer of what is on its way is due.
    #[inline]
    pub fn timer_at(&self) -> Option<Instant> {
        self.recovery.timer.map(|(_, at)| at)
    }

    pub fn enter(&mut self, state: TxState, reason: Reason, counters: &CounterCells) {
        if self.state == state {
            return;
        }
        self.state = state;
        self.reason = reason;
        match state {
            TxState::Active => counters.to_active().add(1),
            TxState::NoBuffer => counters.to_no_buffer().add(1),
            TxState::PacketLoss => counters.to_packet_loss().add(1),
            TxState::Offline => counters.went_offline().add(1),
            TxState::Leaving => {}
        }
    }

    /// While offline: the guest sent up to `end` by itself.
    pub fn follow(&mut self, end: Seq) {
        self.snd_max = self.snd_max.max(end);
        self.guest_nxt = self.guest_nxt.max(end);
        self.advertised_edge = self.advertised_edge.max(self.snd_max);
    }

    /// While offline: the peer acknowledged up to `ack`, and its window ends at `edge`.
    pub fn follow_ack(&mut self, ack: Seq, edge: Seq) {
        if ack.before(self.snd_una()) || ack.after(self.snd_max) {
            return;
        }
        self.store = Store::new(ack);
        self.advertised_una = ack;
        self.rwnd_edge = edge;
        self.advertised_edge = self.advertised_edge.max(edge);
    }

    /// Nothing is on its way and nothing is stored: it can come online, or go.
    pub fn is_idle(&self) -> bool {
        self.snd_una() == self.snd_max && self.store.is_empty()
    }

    /// Stores what is new of a segment that the guest sent, and releases what may leave.
    pub fn on_data<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        env: &mut Env<'_, S>,
    ) -> Stored {
        let end = segment.end();
        if !end.after(self.snd_una()) {
            env.counters.absorbed_acknowledged().add(1);
            self.note_repeat(segment);
            return Stored::Acknowledged;
        }
        self.note_guest(segment.seq, env.now);
        if (segment.seq + segment.len).after(self.advertised_edge) {
            return Stored::BeyondGrant;
        }
        let mut kept = true;
        let new = self.store.insert(segment, self.snd_una(), || {
            let frame = keep();
            kept = frame.is_some();
            frame
        });
        if !kept {
            return Stored::BeyondGrant;
        }
        if new == 0 {
            env.counters.absorbed_stored().add(1);
            self.learn_from_repeat(segment, env);
            self.note_repeat(segment);
            return Stored::Known;
        }
        env.counters.stored_frames().add(1);
        env.counters.stored_bytes().add(u64::from(new));
        if segment.gso_size > 0 {
            // The guest knows the path's MTU; a smaller segment than ours is a reason to follow.
            let gso = u32::from(segment.gso_size).max(MIN_MSS);
            self.window.mss = self.window.mss.min(gso);
            if gso < self.recovery.black_hole.full {
                self.forget_full_size();
            }
        }
        // What lies behind a chunk that the segment spans is not stored: the guest has it still.
        let end = self.store.last().map_or(end, |last| end.min(last.end()));
        self.snd_max = self.snd_max.max(end);
        self.guest_nxt = self.guest_nxt.max(end);
        self.watch_gap(env.now);
        self.pump(env);
        Stored::New
    }

    /// The guest has sent all up to `seq`, it says.
    pub fn note_guest(&mut self, seq: Seq, now: Instant) {
        if !seq.after(self.guest_nxt) {
            return;
        }
        self.guest_nxt = seq;
        self.watch_gap(now);
    }

    /// The guest has not sent all up to `ack`, as far as we have seen.
    pub fn is_behind(&self, ack: Seq) -> bool {
        ack.after(self.guest_nxt) && !self.may_have_been_sent_before(ack)
    }

    /// The guest repeats what it need not. Joins what it repeated before, if they touch.
    fn note_repeat(&mut self, segment: &Segment) {
        if !self.agreed.sack() {
            return;
        }
        let (start, end) = (segment.seq, segment.end());
        self.recovery.repeat = match self.recovery.repeat {
            Some((first, last)) if !start.after(last) && !end.before(first) => {
                Some((first.min(start), last.max(end)))
            }
            _ => Some((start, end)),
        };
    }

    /// What the guest repeated in vain has been acknowledged: it can be told so (RFC 2883).
    pub fn owes_dsack(&self) -> bool {
        self.agreed.sack()
            && self.recovery.repeat.is_some_and(|(_, end)| !end.after(self.una_for_guest()))
    }

    fn take_dsack(&mut self) -> SackList {
        if !self.owes_dsack() {
            return SackList::default();
        }
        let repeat = self.recovery.repeat.take();
        repeat.map(|(Seq(left), Seq(right))| SackBlock { left, right }).into_iter().collect()
    }

    /// Forgets what is stored. The peer has not acknowledged it, and the guest is told nothing else.
    pub fn abandon(&mut self) {
        debug_assert_eq!(self.owed(), 0, "T1: what was acknowledged to the guest is forgotten");
        self.store = Store::new(self.snd_una());
        self.snd_max = self.snd_max.max(self.guest_nxt);
        self.advertised_edge = self.advertised_edge.max(self.rwnd_edge).max(self.snd_max);
        self.restore_full_size();
        self.recovery = Pooled::EMPTY;
        self.rtt.reset_back_off();
        self.unanswered = 0;
    }

    /// The guest goes on alone from here. What it has sent past us is no more of our business.
    pub fn let_go(&mut self) {
        self.snd_max = self.snd_max.max(self.guest_nxt);
        self.advertised_edge = self.rwnd_edge.max(self.snd_max);
        if let Some(recovery) = self.recovery.get_mut() {
            (recovery.gap_until, recovery.repeat) = (Instant::NEVER, None);
        }
        self.disclose();
    }

    /// The window that the guest has now, as it is written.
    fn window_for_guest(&mut self) -> u16 {
        if self.is_online() {
            return self.window_field();
        }
        (self.rwnd() >> self.agreed.peer_scale()).min(u32::from(u16::MAX)) as u16
    }

    /// An ACK for the guest that repeats the latest.
    pub fn synthesize_for_guest(
        &mut self,
        flow: &FiveTuple,
        link: &Link,
        peer: PeerSide,
    ) -> SynthesizedSegment {
        self.advertised_una = self.una_for_guest();
        SynthesizedSegment {
            flow: flow.reversed(),
            link: *link,
            seq: peer.nxt,
            ack: self.advertised_una,
            window: self.window_for_guest(),
            flags: Flags::ACK,
            timestamps: self.agreed.timestamps().then_some(peer.timestamps()),
            sack: self.take_dsack(),
        }
    }

    /// What is new in the header of a kept frame. With the clock that it had, the guest might take it for old
    /// (RFC 7323 section 5).
    pub fn edit_for_kept(&mut self, peer: PeerSide) -> Edit {
        self.advertised_una = self.una_for_guest();
        Edit {
            ack: Some(self.advertised_una),
            window: Some(self.window_for_guest()),
            timestamps: self.agreed.timestamps().then_some(peer.timestamps()),
            strip_sack: true,
            ..Edit::default()
        }
    }

    /// Calls `visit` with what the peer may expect next, but for [`next_seq`](Self::next_seq): where each segment begins that was released and
    /// that it is not known to have; the first `most` of them. Without such segments, what it has acknowledged, if that is something else.
    /// Returns how many there were.
    pub fn each_expected(&mut self, most: usize, mut visit: impl FnMut(Seq)) -> usize {
        let una = self.snd_una();
        if una != self.next_seq() && self.store.records() == 0 {
            visit(una);
            return 1;
        }
        let mut from = 0;
        for count in 0..most {
            let Some(place) = self.store.next_unsacked(from) else { return count };
            visit(place.start);
            from = place.index + 1;
        }
        most
    }

    /// The sequence number of a segment without payload that leaves now.
    pub fn next_seq(&self) -> Seq {
        if self.is_online() { self.store.snd_nxt() } else { self.snd_max }
    }

    fn rto(&self, config: &Config) -> Duration {
        self.rtt.rto(&RtoLimits { min: config.min_rto, max: MAX_RTO })
    }

    /// When a retransmission timeout that starts to count at `base` is over.
    #[inline]
    fn timeout_after(&self, base: Instant, config: &Config) -> Instant {
        self.rtt.timeout_after(base, &RtoLimits { min: config.min_rto, max: MAX_RTO })
    }
}

/// Returns the initial window for segments of `mss` bytes (RFC 6928 section 2, for any number of segments).
pub(super) fn initial_window(mss: u32, config: &Config) -> u32 {
    let segments = u32::from(config.initial_window);
    (segments * mss).min((2 * mss).max(segments * INITIAL_WINDOW_MSS))
}

/// What the peer's latest segment said of its own side.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerSide {
    /// Behind the last byte that it sent in order.
    pub nxt: Seq,
    /// Its clock.
    pub tsval: u32,
    /// Its echo of the guest's clock.
    pub tsecr: u32,
}

impl PeerSide {
    fn timestamps(self) -> Timestamps {
        Timestamps { value: self.tsval, echo: self.tsecr }
    }
}

/// What became of a segment of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    New,
    /// All of it was stored already.
    Known,
    /// All of it was acknowledged already.
    Acknowledged,
    /// It was not granted.
    BeyondGrant,
}
