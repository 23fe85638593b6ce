//! The state of recovery, and what is learnt of the path.
//!
//! # Theory of operation
//! [`Recovery`] is what a sender knows of bytes that are on their way; [`super::loss`] decides on it. It begins at rest, is taken
//! from the port's spare ones when the guest sends, and is given back when nothing is on its way any more. What has been learnt of the path
//! ([`Learnt`]) stays with the sender.
//!
//! Invariant: a recovery that [is over](Recovery::is_over) can be replaced by a new one without any effect on what is sent.

use serde::{Deserialize, Serialize};

use super::ahead::Ahead;
use super::black_hole::BlackHole;
use super::stall::Stall;
use super::undo::{Frto, Repairs};
use super::{Phase, Timer};
use crate::congestion::Prr;
use crate::offload::state_pool::Poolable;
use crate::seq::Seq;
use crate::time::{Duration, Instant};

/// Recoveries for which a wider reordering window lasts (RFC 8985 section 6.2).
const REORDERING_PERSIST: u8 = 16;

/// What has arrived that was sent last.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Latest {
    pub at: Instant,
    pub end: Seq,
    /// The round trip of that transmission.
    pub rtt: Duration,
}

/// Most bytes in flight in a round trip, by which slow start knows whether `cwnd` was used (Linux `max_packets_out`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Usage {
    pub most: u32,
    /// The round trip ends when this is acknowledged.
    until: Seq,
}

impl Usage {
    const NONE: Self = Self { most: 0, until: Seq(0) };

    /// `flight` bytes are in flight after new ones have left, up to `snd_nxt`. If `cwnd` kept back more, a round trip begins
    /// (Linux `tcp_cwnd_validate`).
    #[inline]
    pub fn sent(&mut self, flight: u32, una: Seq, snd_nxt: Seq, cwnd_limited: bool) {
        if flight > self.most || cwnd_limited || !una.before(self.until) {
            *self = Self { most: flight, until: snd_nxt };
        }
    }
}

/// What is learnt of the path and outlives a transfer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Learnt {
    pub reordering_seen: bool,
    /// Reordering window in quarters of the smallest round trip.
    pub quarters: u8,
    /// Recoveries until it is one again.
    persist: u8,
    /// Doublings of the delay that the peer's ACKs of lone segments may have.
    pub ack_delay_shift: u8,
}

impl Learnt {
    pub const NOTHING: Self =
        Self { reordering_seen: false, quarters: 1, persist: 0, ack_delay_shift: 0 };
}

/// What is known of bytes that are on their way or held, and the timer that they need. A sender has it while there
/// are any ([`crate::offload::state_pool`]).
///
/// Fields are in the order in which they are needed: every ACK reads the first three cache lines.
#[derive(Debug, Serialize, Deserialize)]
#[repr(C)]
pub(in crate::offload) struct Recovery {
    pub(super) phase: Phase,
    pub(super) frto: Frto,
    /// Duplicate ACKs in a row.
    pub dup_acks: u8,
    /// Nothing was acknowledged since, so there will not be another.
    pub probed: bool,
    /// It repeated a lone segment.
    pub(super) probe_lone: bool,
    /// [`latest`](Self::latest) is a repair: it may have overtaken what was sent once.
    pub(super) repair_arrived: bool,
    /// The acknowledgement number for the guest is not `snd_una`: bytes are withheld, or were acknowledged early.
    /// Else [`stall`](Self::stall) and [`early`](Self::early) are at rest, and nobody needs to look at their cache lines.
    #[serde(skip)]
    pub(super) diverged: bool,
    pub(super) learnt: Learnt,
    /// Ends when this is acknowledged.
    pub recover: Seq,
    /// Highest sequence number known to have arrived.
    pub fack: Seq,
    /// Without SACK: bytes that duplicate ACKs say have arrived.
    pub dup_bytes: u32,
    /// A tail loss probe is out; it ends when this is acknowledged.
    pub(super) probe_end: Option<Seq>,
    /// When the retransmission timeout starts to count.
    pub rto_base: Instant,
    pub timer: Option<(Timer, Instant)>,
    /// Before, new bytes leave only if an ACK comes. Not later than now if nothing waits for it.
    pub release_at: Instant,
    /// Bytes that the ACK in hand says have been delivered, and those before it whose answer waits for a pair.
    pub clocked: u32,
    /// How much of `cwnd` is in use.
    pub(super) usage: Usage,
    /// What the guest has sent next is missing here, and the flow is given up at this time; `NEVER` if it is not missing, whatever waits.
    pub gap_until: Instant,
    /// What size segments had before none came through.
    pub black_hole: BlackHole,
    /// What the guest sent again although it is stored: it is to hear that it came twice.
    pub repeat: Option<(Seq, Seq)>,
    pub(super) latest: Option<Latest>,
    /// What was sent again in this recovery, and not in vain as far as is known.
    pub(super) repairs: Repairs,
    pub prr: Prr,
    /// What the guest is not told of because the receiver's window is closed.
    pub stall: Stall,
    /// What the guest was told ahead of the peer.
    pub(super) early: Ahead,
    /// `snd_una` at the latest timeout of this recovery.
    pub(super) timed_out: Option<Seq>,
}

impl Poolable for Recovery {
    const REST: &'static Self = &Self::new(Seq(0), Learnt::NOTHING);

    fn new() -> Self {
        Self::new(Seq(0), Learnt::NOTHING)
    }

    fn clear(&mut self) -> bool {
        true
    }
}

impl Recovery {
    const fn new(next: Seq, learnt: Learnt) -> Self {
        Self {
            phase: Phase::Open,
            recover: next,
            prr: Prr::new(0),
            latest: None,
            fack: next,
            learnt,
            dup_bytes: 0,
            probe_end: None,
            probe_lone: false,
            repair_arrived: false,
            diverged: false,
            probed: false,
            repairs: Repairs::NONE,
            frto: Frto::Off,
            timed_out: None,
            timer: None,
            rto_base: Instant::ZERO,
            dup_acks: 0,
            release_at: Instant::ZERO,
            clocked: 0,
            usage: Usage::NONE,
            gap_until: Instant::NEVER,
            repeat: None,
            stall: Stall::NONE,
            early: Ahead::NONE,
            black_hole: BlackHole::NONE,
        }
    }

    /// Forgets all but `learnt`. Of what was repaired, only that there is none is written.
    #[inline]
    pub(super) fn restart(&mut self, next: Seq, learnt: Learnt) {
        self.repairs.clear();
        *self = Self { repairs: self.repairs, ..Self::new(next, learnt) };
    }

    /// Updates [`diverged`](Self::diverged) after [`stall`](Self::stall) or [`early`](Self::early) has changed.
    pub(super) fn note_divergence(&mut self) {
        self.diverged = !self.advertises_snd_una();
    }

    /// Returns `true` if the acknowledgement number for the guest is `snd_una`: nothing is withheld from it, and nothing was acknowledged early.
    pub(super) fn advertises_snd_una(&self) -> bool {
        self.stall.withheld == 0 && !self.early.open && self.early.una.is_none()
    }

    /// An acknowledgement of what is on its way can end, undo or show nothing but that it has arrived.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.phase == Phase::Open
            && self.frto == Frto::Off
            && self.dup_bytes == 0
            && self.probe_end.is_none()
            && !self.repair_arrived
            && self.black_hole.full == 0
            && !self.repairs.are_named()
    }

    /// It can be forgotten, if nothing is stored either.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Open
            && self.timer.is_none()
            && self.probe_end.is_none()
            && self.gap_until == Instant::NEVER
            && self.repeat.is_none()
            && !self.diverged
            && self.black_hole.full == 0
    }

    /// The same once more, for another process.
    pub fn copy(&self) -> Self {
        Self { ..*self }
    }

    /// `bytes` have left.
    pub fn sent(&mut self, bytes: u32) {
        self.prr.on_sent(bytes);
    }

    /// `start..end` was sent again, for the first time if `once`.
    pub fn repaired(&mut self, start: Seq, end: Seq, once: bool) {
        self.sent(end.since(start));
        if self.phase != Phase::Open {
            self.repairs.add(start, end, once);
        }
    }

    /// A transmission has arrived that took `rtt`; a repair, if `repeated`.
    pub fn arrived(&mut self, at: Instant, end: Seq, rtt: Duration, repeated: bool) {
        let later = |l: &Latest| sent_before(l.at, l.end, at, end);
        if self.latest.as_ref().is_none_or(later) {
            self.latest = Some(Latest { at, end, rtt });
            self.repair_arrived = repeated;
        }
    }

    /// Forgets the arrival of a repair: it was that of the original.
    pub fn forget_repair(&mut self) {
        if std::mem::take(&mut self.repair_arrived) {
            self.latest = None;
        }
    }

    /// Notes that up to `end` something has arrived.
    pub fn note_delivered(&mut self, end: Seq) {
        self.fack = self.fack.max(end);
    }

    /// What ends at `end` and was sent once has arrived, after what ends at `fack`.
    pub fn note_reordering(&mut self, end: Seq, fack: Seq) {
        if end.before(fack) {
            self.learnt.reordering_seen = true;
            self.learnt.persist = REORDERING_PERSIST;
        }
    }

    /// The peer got something twice. That is news of the path only if it was sent twice.
    pub fn on_dsack(&mut self, left: Seq, right: Seq) {
        if self.repairs.on_dsack(left, right) {
            self.learnt.quarters = self.learnt.quarters.saturating_add(1);
            self.learnt.persist = REORDERING_PERSIST;
        }
    }

    /// Begins at `recover`, with `flight` bytes out.
    pub(super) fn begin(&mut self, phase: Phase, recover: Seq, flight: u32) {
        self.phase = phase;
        self.recover = recover;
        self.prr = Prr::new(flight);
        self.probe_end = None;
        self.repairs = Repairs::NONE;
        self.frto = Frto::Off;
        self.timed_out = None;
    }

    /// What was repaired is remembered.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Open;
        self.dup_bytes = 0;
        self.learnt.persist = self.learnt.persist.saturating_sub(1);
        if self.learnt.persist == 0 {
            (self.learnt.reordering_seen, self.learnt.quarters) = (false, 1);
        }
    }
}

/// The order of transmissions (RFC 8985 section 5.2): by time, then by sequence number.
pub(super) fn sent_before(a: Instant, a_end: Seq, b: Instant, b_end: Seq) -> bool {
    a < b || (a == b && a_end.before(b_end))
}
