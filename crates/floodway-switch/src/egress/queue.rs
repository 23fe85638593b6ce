//! Frames that wait for the device.
//!
//! # Theory of operation
//! A frame that a *full* device did not take waits in front of all others: none of them would be taken. One that the device
//! *refuses* waits beside the queue, and only what its source has in its class waits behind it, for order: the
//! scheduler passes that source over. It is offered again after [`LOOK_AGAIN`], and after twice as long each time, and is dropped and counted when it was refused
//! [`MAX_REFUSALS`] times. A device that refuses one destination's frames, as a filter of the host's makes it do, so costs their sender only; and one
//! that refuses because its own queue is full has 750 µs to send something.
//!
//! **Invariants**: at most one refused frame of each source and class, and that source is paused exactly as long; the frames of
//! a source and class leave in the order in which the scheduler gave them.

use std::sync::Arc;

use floodway_core::egress::qdisc::{Backlog, Cause, Class, Config, Counters, Packet, Scheduler};
use floodway_core::l2::PortId;
use floodway_core::time::Instant;
use floodway_wire::traffic_class;
use floodway_wire::vnet::VnetHdr;

use super::device::LOOK_AGAIN;
use super::tagger::Seen;
use super::{Outbox, Pass};
use crate::frame::pool::{Buffer, Pool};
use crate::frame::{self, Frame};
use crate::stats::DropReason;

/// An Ethernet frame with 1500 bytes of payload.
const FULL_FRAME: u64 = 1514;

/// How often a frame may be refused: at once, and after 50, 150, 350 and 750 µs.
pub(super) const MAX_REFUSALS: u32 = 5;

/// A frame of ours, in one piece.
pub(super) struct Owned {
    pub(super) buffer: Buffer,
    pub(super) vnet: VnetHdr,
    pub(super) len: u32,
}

impl Owned {
    fn copy(pool: &Arc<Pool>, frame: &Frame<'_>) -> Option<Self> {
        let mut buffer = pool.take(frame.len as usize, ())?;
        frame.copy_to(&mut buffer.bytes_mut()[..frame.len as usize]);
        Some(Self { buffer, vnet: frame.vnet, len: frame.len })
    }

    /// Calls `f` with it.
    pub(super) fn with_frame<R>(&self, f: impl FnOnce(&Frame<'_>) -> R) -> R {
        frame::with_slice(self.vnet, &self.buffer.bytes()[..self.len as usize], f)
    }

    /// Counts it as dropped by the scheduler.
    #[cold]
    fn count(&self, sent: &Outbox, cause: Cause, now: Instant) {
        let reason = match cause {
            Cause::Full => DropReason::UplinkQueueFull,
            Cause::Aqm => DropReason::UplinkAqm,
        };
        self.with_frame(|frame| sent.count_dropped(frame, reason, now));
    }
}

/// A frame that is to leave, and where it came from.
pub(super) struct Waiting {
    pub(super) owned: Owned,
    class: Class,
    source: u16,
    /// Times that the device has refused it.
    refusals: u32,
    /// Not to be offered again before.
    retry_at: Instant,
}

/// The queue of an uplink.
pub(super) struct Queue {
    scheduler: Scheduler<Owned>,
    /// Taken out when the device was full.
    first: Option<Waiting>,
    /// Taken out and refused.
    refused: Vec<Waiting>,
    /// Bounded by the limits of the scheduler's queues: a buffer is in one of them, or in use for one frame.
    pool: Arc<Pool>,
}

impl Queue {
    pub(super) fn new(config: Config) -> Self {
        let pool = Arc::new(Pool::new(usize::MAX));
        Self { scheduler: Scheduler::new(config), first: None, refused: Vec::new(), pool }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.refused.is_empty() && self.scheduler.is_empty()
    }

    /// Returns `true` if a frame of this source and class would overtake none that is to leave before it.
    #[inline]
    pub(super) fn may_pass(&self, class: Class, source: PortId) -> bool {
        self.is_empty() || (self.first.is_none() && self.may_pass_refused(class, source))
    }

    #[cold]
    fn may_pass_refused(&self, class: Class, source: PortId) -> bool {
        let is_behind = |w: &Waiting| (w.class, w.source) == (class, source.0);
        !self.refused.iter().any(is_behind) && !self.scheduler.has_ready()
    }

    /// When a refused frame is to be offered again, if nothing else can leave; `None` if a frame can leave now.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let can_leave = self.first.is_some() || self.scheduler.has_ready();
        (!can_leave)
            .then(|| self.refused.iter().map(|w| w.retry_at).min().unwrap_or(Instant::NEVER))
    }

    pub(super) const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Lets go of buffers and disciplines that are not needed.
    pub(super) fn trim(&mut self) {
        self.scheduler.trim();
        self.pool.trim();
    }

    /// Keeps a copy of a frame.
    #[cold]
    pub(super) fn push(&mut self, pass: &Pass<'_>, frame: &Frame<'_>) {
        match Owned::copy(&self.pool, frame) {
            Some(owned) => self.push_owned(pass, owned),
            None => pass.sent.count_dropped(frame, DropReason::UplinkFull, pass.now),
        }
    }

    /// Keeps a copy of a frame that the device has refused.
    #[cold]
    pub(super) fn push_refused_copy(&mut self, pass: &Pass<'_>, frame: &Frame<'_>) {
        match Owned::copy(&self.pool, frame) {
            Some(owned) => self.push_refused(pass, owned),
            None => pass.sent.count_dropped(frame, DropReason::UplinkRefused, pass.now),
        }
    }

    /// Keeps a frame that the device has refused.
    #[cold]
    pub(super) fn push_refused(&mut self, pass: &Pass<'_>, owned: Owned) {
        let Pass { class, source, now, sent, .. } = *pass;
        let source = source.0;
        self.refuse(Waiting { owned, class, source, refusals: 0, retry_at: now }, now, sent);
    }

    /// Keeps a frame.
    pub(super) fn push_owned(&mut self, pass: &Pass<'_>, owned: Owned) {
        let (seen, len) = owned
            .with_frame(|frame| (pass.seen.unwrap_or_else(|| Seen::of(frame)), frame.wire_len()));
        let packet = Packet {
            len,
            flow: seen.flow.hash(pass.hash_seed),
            ecn_capable: seen.is_ecn_capable(),
            handle: owned,
        };
        let drop = &mut |packet: Packet<Owned>, cause| {
            packet.handle.count(pass.sent, cause, pass.now);
        };
        self.scheduler.enqueue(pass.class, pass.source.0, packet, pass.now, drop);
    }

    /// The frame that leaves next, marked if need be.
    pub(super) fn next(&mut self, now: Instant, sent: &Outbox) -> Option<Waiting> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if let Some(due) = self.refused.iter().position(|w| w.retry_at <= now) {
            return Some(self.refused.swap_remove(due));
        }
        let drop = &mut |packet: Packet<Owned>, cause| packet.handle.count(sent, cause, now);
        let served = self.scheduler.dequeue(now, drop)?;
        let mut owned = served.departure.packet.handle;
        if served.departure.mark {
            let len = owned.len as usize;
            traffic_class::mark_ce(&mut owned.buffer.bytes_mut()[..len]);
        }
        let (class, source) = (served.class, served.source);
        Some(Waiting { owned, class, source, refusals: 0, retry_at: now })
    }

    /// A frame that [`next`](Self::next) has given left.
    #[inline]
    pub(super) fn done(&mut self, waiting: &Waiting) {
        if waiting.refusals > 0 {
            self.scheduler.resume(waiting.class, waiting.source);
        }
    }

    /// Takes a frame back that [`next`](Self::next) has given to a device that was full.
    pub(super) fn put_back(&mut self, waiting: Waiting) {
        self.first = Some(waiting);
    }

    /// Takes a frame back that the device has refused, or drops and counts it.
    #[cold]
    pub(super) fn refuse(&mut self, mut waiting: Waiting, now: Instant, sent: &Outbox) {
        waiting.refusals += 1;
        if waiting.refusals == MAX_REFUSALS {
            self.scheduler.resume(waiting.class, waiting.source);
            let dropped =
                |frame: &Frame<'_>| sent.count_dropped(frame, DropReason::UplinkRefused, now);
            return waiting.owned.with_frame(dropped);
        }
        self.scheduler.pause(waiting.class, waiting.source);
        waiting.retry_at = now + LOOK_AGAIN * (1 << (waiting.refusals - 1));
        self.refused.push(waiting);
    }

    /// Drops and counts what the device has refused.
    pub(super) fn drop_refused(&mut self, now: Instant, sent: &Outbox) {
        for waiting in std::mem::take(&mut self.refused) {
            self.scheduler.resume(waiting.class, waiting.source);
            let dropped =
                |frame: &Frame<'_>| sent.count_dropped(frame, DropReason::UplinkRefused, now);
            waiting.owned.with_frame(dropped);
        }
    }

    /// Bytes that may wait until more can leave with the first of them: none while something urgent waits.
    pub(super) fn patient(&self) -> u64 {
        if self.first.is_some() || self.scheduler.backlog(Class::High).packets > 0 {
            return 0;
        }
        self.scheduler.backlog(Class::Low).bytes.saturating_sub(FULL_FRAME)
    }

    pub(super) fn backlog(&self, class: Class) -> Backlog {
        self.scheduler.backlog(class)
    }

    pub(super) const fn counters(&self) -> &Counters {
        self.scheduler.counters()
    }
}
