//! Frames that wait for buffers, and how they get them.
//!
//! # Theory of operation
//! Whoever delivers a frame places a few that wait ([`RxQueue::drain_at_once`]); the port's worker places the rest, within what its turn may
//! cost ([`RxQueue::drain_within`]). A GSO packet that the guest does not take is cut here, segment by segment. While a frame lacks buffers
//! the guest is asked for kicks, and nothing is tried again before it has added some.
//!
//! **Delay.** How long frames wait is measured where it costs nothing that would be noticed: a frame that comes to wait reads the clock when it is copied, and whoever
//! places frames that wait reads it once for all of them. A frame that finds a buffer at once, as nearly all do, is not touched: those are the
//! frames that were given to the guest less the ones that waited, which is calculated when somebody asks ([`RxQueue::delays`]).

use std::time::Instant;

use floodway_core::work::Work;
use floodway_wire::vnet::VnetHdr;

use super::{PendingFrame, Placed, RxQueue};
use crate::frame::{self, vnet_offload};
use crate::queues::virtqueue::RingBroken;
use crate::stats::ledger::MODEL;

/// Nanoseconds, by the cost model, of frames that wait which whoever delivers one places at once. The port's worker does the rest.
const AT_ONCE: u64 = 10_000;

/// What placing frames that wait may cost, and has cost, in nanoseconds by the cost model.
struct Budget {
    limit: u64,
    spent: u64,
}

impl Budget {
    /// A frame of `len` bytes was placed, most of which are segments.
    fn spend(&mut self, len: usize) {
        let work = Work { copies: 1, bytes: len as u64, segments: 1, ..Work::default() };
        self.spent += MODEL.cost(&work);
    }
}

/// What came of looking at the first frame that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The guest has it, or will never.
    Done,
    /// The guest has too few buffers.
    NoBuffers,
    /// Enough was done for now.
    Paused,
}

impl RxQueue {
    /// As [`drain_within`](Self::drain_within), by who delivers a frame.
    pub fn drain_at_once(&mut self) {
        self.relieved += self.drain_within(AT_ONCE);
    }

    /// Places frames that wait, as far as the guest has buffers, until that has cost `limit` nanoseconds by the cost model; returns what it has cost.
    /// While some remain, the guest is
    /// asked to kick when it adds buffers. Without more buffers than last time, nothing is walked again: a guest with very many small ones
    /// would have us do so at every look.
    pub fn drain_within(&mut self, limit: u64) -> u64 {
        let mut budget = Budget { limit, spent: 0 };
        if let Err(RingBroken) = self.try_drain(&mut budget) {
            self.break_ring();
        }
        budget.spent
    }

    fn try_drain(&mut self, budget: &mut Budget) -> Result<(), RingBroken> {
        if self.pending.frames.is_empty() {
            return Ok(());
        }
        if self.pending.too_few.is_some() {
            let Some(ring) = &mut self.ring else { return Ok(()) };
            ring.queue.enable_kick()?;
            if self.pending.too_few == Some(ring.queue.available_cached()) {
                return Ok(());
            }
        }
        loop {
            let progress = self.drain_once(budget)?;
            self.pending.paused = progress == Progress::Paused;
            let Some(ring) = &mut self.ring else { return Ok(()) };
            if progress != Progress::NoBuffers {
                ring.queue.disable_kick();
                return Ok(());
            }
            // Too few buffers for the next frame: try again only if there are more than before.
            let before = ring.queue.available_cached();
            ring.queue.enable_kick()?;
            if ring.queue.available_cached() <= before {
                self.pending.too_few = Some(before);
                return Ok(());
            }
        }
    }

    /// Places frames that wait until there are no more, or no more buffers, or the budget is spent.
    fn drain_once(&mut self, budget: &mut Budget) -> Result<Progress, RingBroken> {
        if self.pending.frames.is_empty() {
            return Ok(Progress::Done);
        }
        let now = Instant::now();
        while let Some(mut waiting) = self.pending.frames.pop_front() {
            let before = self.traffic.packets.get();
            let progress = self.place_waiting(&mut waiting, budget);
            // The segments of a GSO packet that is cut count one by one, as in the traffic.
            let placed = self.traffic.packets.get() - before;
            self.delays.observe(now.saturating_duration_since(waiting.since), placed);
            if !waiting.paid && matches!(progress, Ok(Progress::Done)) {
                self.unpaid.copies += 1;
                self.unpaid.bytes += waiting.bytes.len() as u64;
            }
            self.pending.frames.push_front(waiting);
            match progress? {
                Progress::Done => self.pending.pop(),
                other => return Ok(other),
            }
        }
        Ok(Progress::Done)
    }

    /// Places a frame that waits, or what of its segments the guest does not have.
    fn place_waiting(
        &mut self,
        waiting: &mut PendingFrame,
        budget: &mut Budget,
    ) -> Result<Progress, RingBroken> {
        let mut outcome = Ok(Progress::Done);
        let PendingFrame { vnet, bytes, given, .. } = waiting;
        if self.features.offloads.allow(vnet) {
            self.place_next(*vnet, bytes, budget, &mut outcome);
            return outcome;
        }
        let next = vnet_offload::finish_from(*vnet, bytes, *given, |segment| {
            self.place_next(VnetHdr::default(), segment, budget, &mut outcome)
        });
        match next {
            Ok(next) => *given = next.unwrap_or(usize::MAX),
            Err(reason) => self.traffic.count_drop(reason, 1),
        }
        outcome
    }

    /// Places one frame, or drops and counts it; returns `false` if it still waits, and says why in `outcome`.
    fn place_next(
        &mut self,
        vnet: VnetHdr,
        bytes: &[u8],
        budget: &mut Budget,
        outcome: &mut Result<Progress, RingBroken>,
    ) -> bool {
        if budget.spent >= budget.limit {
            *outcome = Ok(Progress::Paused);
            return false;
        }
        match frame::with_slice(vnet, bytes, |frame| self.place(frame)) {
            Ok(Placed::Yes) => {}
            Ok(Placed::Never(reason)) => self.traffic.count_drop(reason, 1),
            Ok(Placed::NoBuffers) => {
                *outcome = Ok(Progress::NoBuffers);
                return false;
            }
            Err(RingBroken) => {
                *outcome = Err(RingBroken);
                return false;
            }
        }
        budget.spend(bytes.len());
        true
    }
}
