//! Frames that wait for the device.

use std::sync::Arc;

use floodway_core::qdisc::{Backlog, Cause, Class, Config, Counters, Packet, Scheduler};
use floodway_core::time::Instant;
use floodway_wire::traffic_class;
use floodway_wire::vnet::VnetHdr;

use super::Pass;
use super::tagger::Seen;
use crate::frame::{self, Frame};
use crate::pool::{Buffer, Pool};
use crate::stats::{DropReason, Traffic};

/// An Ethernet frame with 1500 bytes of payload.
const FULL_FRAME: u64 = 1514;

/// A frame of ours, in one piece.
pub(super) struct Owned {
    pub(super) buffer: Buffer,
    pub(super) vnet: VnetHdr,
    pub(super) len: u32,
}

impl Owned {
    fn copy(pool: &Arc<Pool>, frame: &Frame<'_>) -> Option<Self> {
        let mut buffer = pool.take(frame.len as usize)?;
        frame.copy_to(&mut buffer.bytes_mut()[..frame.len as usize]);
        Some(Self { buffer, vnet: frame.vnet, len: frame.len })
    }

    /// Calls `f` with it.
    pub(super) fn with_frame<R>(&self, f: impl FnOnce(&Frame<'_>) -> R) -> R {
        frame::with_slice(self.vnet, &self.buffer.bytes()[..self.len as usize], f)
    }
}

/// The queue of an uplink.
pub(super) struct Queue {
    scheduler: Scheduler<Owned>,
    /// Taken out, and refused by a device that was full.
    first: Option<Owned>,
    /// Bounded by the limits of the scheduler's queues: a buffer is in one of them, or in use for one frame.
    pool: Arc<Pool>,
}

impl Queue {
    pub(super) fn new(config: Config) -> Self {
        let pool = Arc::new(Pool::new(usize::MAX));
        Self { scheduler: Scheduler::new(config), first: None, pool }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.scheduler.is_empty()
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
            None => pass.sent.count_drop(DropReason::UplinkFull, 1),
        }
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
        let drop = &mut |_, cause| count(pass.sent, cause);
        self.scheduler.enqueue(pass.class, pass.source.0, packet, pass.now, drop);
    }

    /// The frame that leaves next, marked if need be.
    pub(super) fn next(&mut self, now: Instant, sent: &Traffic) -> Option<Owned> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let served = self.scheduler.dequeue(now, &mut |_, cause| count(sent, cause))?;
        let mut owned = served.departure.packet.handle;
        if served.departure.mark {
            let len = owned.len as usize;
            traffic_class::mark_ce(&mut owned.buffer.bytes_mut()[..len]);
        }
        Some(owned)
    }

    /// Takes a frame back that [`next`](Self::next) has given.
    pub(super) fn put_back(&mut self, owned: Owned) {
        self.first = Some(owned);
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

fn count(sent: &Traffic, cause: Cause) {
    let reason = match cause {
        Cause::Full => DropReason::UplinkQueueFull,
        Cause::Aqm => DropReason::UplinkAqm,
    };
    sent.count_drop(reason, 1);
}
