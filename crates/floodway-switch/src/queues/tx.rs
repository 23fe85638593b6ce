//! A transmit queue: frames out of a guest.
//!
//! # Theory of operation
//! **Goal**: take a batch of frames from the guest, look at each header once, and give the
//! descriptors back when the frames have been copied to where they go.
//!
//! [`TxQueue::dequeue_burst`] takes up to [`BATCH`] chains in two passes, so that the memory of one pass is
//! on its way into the cache while the other works: first the descriptors, then for each frame its
//! virtio-net header and its first [`PREFIX_LEN`](crate::frame::PREFIX_LEN) bytes, copied into the [`Batch`]. The worker then
//! forwards the batch's frames; their remaining bytes are still in guest memory.
//! [`TxQueue::complete`] gives the descriptors back, in order, and interrupts the guest if it wants;
//! [`TxQueue::complete_moderated`] may let the interrupt wait ([`crate::queues::moderation`]).
//!
//! **Invariants**: a batch keeps the guest memory alive that its frames point into. Every chain
//! that was taken is given back, forwarded or not; every frame is forwarded or its drop counted.

mod batch;
#[cfg(test)]
mod tests;

use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_process::fault::{self, Point};
use floodway_wire::vnet;

use crate::frame::MAX_FRAME_LEN;
use crate::frame::vnet_offload::Offloads;
use crate::queues::moderation::{Completed, Completions, Moderated};
use crate::queues::ring::{Interrupts, Ring};
use crate::queues::virtqueue::{self, Access, Plain, Pop, RingBroken};
use crate::stats::ledger::MODEL;
use crate::stats::{DropReason, Traffic};
use batch::TxFrame;
pub(crate) use batch::bits;
pub use batch::{BATCH, Batch, Selected};

/// What a chain and a descriptor cost, in bytes that could be copied instead. The place of the prefix, which every frame has, is
/// counted among the descriptors.
const CHAIN_COST: u64 = (MODEL.chain - MODEL.descriptor) / MODEL.byte;
const DESCRIPTOR_COST: u64 = MODEL.descriptor / MODEL.byte;
const SCATTERED_COST: u64 = MODEL.scattered / MODEL.byte;

/// Scattered descriptors that a malformed chain is charged with: as many as a walk can take.
const MALFORMED: u64 = 1023;

/// What the guest negotiated, as far as its transmit queues care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxFeatures {
    /// Bytes of the virtio-net header: 10 or 12.
    pub hdr_len: usize,
    /// What the guest may leave undone.
    pub offloads: Offloads,
}

/// One transmit queue of a port. See the module's theory of operation.
#[derive(Default)]
pub struct TxQueue {
    ring: Option<Ring>,
    features: TxFeatures,
    /// Started and not enabled: frames are taken and discarded (vhost-user's rule for transmit).
    enabled: bool,
    completions: Completions,
    /// Traffic from the guest through this queue.
    pub traffic: Traffic,
    /// Interrupts of this queue.
    pub interrupts: Interrupts,
    /// The guest broke its ring since [`TxQueue::take_broken`].
    broken: bool,
}

impl TxQueue {
    /// Serves `ring` from now on.
    pub fn start(&mut self, ring: Ring, features: TxFeatures) {
        // The guest may have missed an interrupt of a back-end that died.
        ring.interrupt();
        self.ring = Some(ring);
        self.features = features;
        self.completions = Completions::default();
    }

    /// Stops serving; answers the ring.
    pub fn stop(&mut self) -> Option<Ring> {
        if self.completions.due().is_some() {
            self.interrupt();
        }
        self.ring.take()
    }

    /// Forwards frames (`true`) or takes and discards them (`false`).
    pub fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Frames are forwarded, not discarded.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The running ring, to change its event descriptors.
    pub fn ring_mut(&mut self) -> Option<&mut Ring> {
        self.ring.as_mut()
    }

    /// The guest can transmit.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ring.is_some()
    }

    /// Asks for a kick before the worker sleeps; returns whether there is work already.
    pub fn enable_kick(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        match ring.queue.enable_kick() {
            Ok(more) => more,
            Err(RingBroken) => {
                self.break_ring();
                false
            }
        }
    }

    /// Returns `true` if the guest has not been told yet of frames that are done with.
    #[must_use]
    pub fn owes_interrupt(&self) -> bool {
        self.completions.due().is_some()
    }

    /// The worker polls: no kicks needed.
    pub fn disable_kick(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.queue.disable_kick();
        }
    }

    /// Fills `batch` with what the guest has made available.
    #[inline]
    pub fn dequeue_burst(&mut self, batch: &mut Batch) {
        self.fill_within(batch, u64::MAX);
    }

    /// Fills `batch` with what the guest has made available, up to the chain with which it costs more than `limit` nanoseconds by
    /// [`MODEL`], if each GSO packet is cut once.
    #[inline]
    pub fn fill_within(&mut self, batch: &mut Batch, limit: u64) {
        batch.clear();
        batch.taken = Work::default();
        let Some(ring) = &mut self.ring else { return };
        match ring.queue.available() {
            Ok(0) => {}
            Ok(_) => {
                if self.take(batch, limit).is_err() {
                    self.break_ring();
                    batch.clear();
                }
                fault::pass(Point::BatchTaken);
            }
            Err(RingBroken) => self.break_ring(),
        }
    }

    fn take(&mut self, batch: &mut Batch, limit: u64) -> Result<(), RingBroken> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let queue = &mut ring.queue;
        batch.reset(queue.memory());
        queue.prefetch(BATCH as u16);
        let access = Access::Read { max: MAX_FRAME_LEN + self.features.hdr_len as u32 };
        batch.more = true;
        let (mut cost, limit_bytes) = (0, limit.saturating_mul(1000) / MODEL.byte);
        while batch.frames.len() < BATCH && cost < limit_bytes {
            // Room for the prefix, which takes the place of what it copies.
            let start = batch.iovecs.len();
            if let Some(Plain { head, len, ptr }) = queue.pop_plain(access) {
                virtqueue::prefetch(ptr);
                // SAFETY: the queue's memory is held, and the queue has checked the buffer in it.
                unsafe { batch.iovecs.push_behind_empty(ptr, len as usize) };
                cost += CHAIN_COST + 2 * DESCRIPTOR_COST + u64::from(len);
                batch.frames.push(TxFrame::new(head, len, start, start + 2, None));
                continue;
            }
            batch.iovecs.push_empty();
            let (head, len, dropped) = match queue.pop(access, &mut batch.iovecs) {
                Ok(Pop::Chain(chain)) => (chain.head, chain.len, None),
                Ok(Pop::Malformed { head, error }) => {
                    tracing::debug!(%error, "malformed transmit descriptor chain");
                    let _ = queue.take_scattered();
                    batch.taken.scattered += MALFORMED;
                    cost += MALFORMED * SCATTERED_COST;
                    (head, 0, Some(DropReason::BadDescriptor))
                }
                Ok(Pop::Empty) => {
                    batch.more = false;
                    break;
                }
                // What came before is good. The ring is found broken again next time.
                Err(RingBroken) if !batch.frames.is_empty() => break,
                Err(RingBroken) => return Err(RingBroken),
            };
            if let Some(first) = batch.iovecs.as_slice().get(start + 1) {
                virtqueue::prefetch(first.as_ptr());
            }
            let end = batch.iovecs.len();
            cost += CHAIN_COST + DESCRIPTOR_COST * (end - start) as u64 + u64::from(len);
            if end - start > virtqueue::ORDINARY + 1 {
                let scattered = queue.take_scattered();
                batch.taken.scattered += scattered;
                cost += scattered * SCATTERED_COST;
            }
            batch.frames.push(TxFrame::new(head, len, start, end, dropped));
        }
        let chains = batch.frames.len() as u64;
        let end = batch.frames.last().map_or(0, |frame| u64::from(frame.parts.1));
        batch.taken.chains = chains;
        batch.taken.descriptors += end - chains;
        if batch.read_headers(&self.features, self.enabled) != vnet::GSO_NONE {
            self.leave_what_costs_too_much(batch, limit);
        }
        Ok(())
    }

    /// Leaves chains for the next batch: those behind the GSO packet with which the batch costs more than `limit` to cut.
    fn leave_what_costs_too_much(&mut self, batch: &mut Batch, limit: u64) {
        let Some(ring) = &mut self.ring else { return };
        let mut work = Work::default();
        for i in 0..batch.frames.len() {
            if MODEL.cost(&work) >= limit {
                let left = (batch.frames.len() - i) as u16;
                ring.queue.rewind(ring.queue.next_avail().wrapping_sub(left));
                batch.frames.truncate(i);
                batch.more = true;
                return;
            }
            if let Some(frame) = batch.frame(i).filter(|frame| frame.vnet.is_gso()) {
                work.segments += u64::from(frame.segments());
                work.bytes += u64::from(frame.len);
            }
        }
    }

    /// Gives the batch's descriptors back, counts its frames, and interrupts the guest if it wants that.
    #[inline]
    pub fn complete(&mut self, batch: &mut Batch) {
        self.give_back(batch);
        self.interrupt();
    }

    /// As [`TxQueue::complete`], but the interrupt may wait. Answers until when it waits at most, and the caller has to see to
    /// [`TxQueue::interrupt_if_due`] then. `data_frames` counts the frames that the guest has sent so far, `reverse_data_frames` those that it was given, without bare
    /// acknowledgements.
    #[inline]
    pub fn complete_moderated(
        &mut self,
        batch: &mut Batch,
        now: Instant,
        data_frames: u64,
        reverse_data_frames: u64,
    ) -> Option<Instant> {
        let frames = batch.frames.len() as u64;
        self.give_back(batch);
        let queue = &self.ring.as_ref()?.queue;
        let (used_since_signal, size) = (queue.used_since_signal(), queue.size());
        let completed =
            Completed { frames, data_frames, reverse_data_frames, used_since_signal, size };
        let due = self.completions.completed(now, completed, queue.wants_interrupt());
        if due.is_none() {
            self.interrupt();
        }
        due
    }

    /// Sends an interrupt that has waited long enough, if the guest still wants it.
    pub fn interrupt_if_due(&mut self, now: Instant) -> Moderated {
        match self.completions.due() {
            Some(due) if due > now => Moderated::Waits(due),
            Some(_) => Moderated::over(self.interrupt()),
            None => Moderated::Unwanted,
        }
    }

    /// Interrupts the guest if it wants that; returns whether it did.
    fn interrupt(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let interrupted = ring.signal_if_needed(&self.interrupts);
        self.completions.on_signal_decision(interrupted);
        interrupted
    }

    /// Makes the batch's descriptors visible to the guest as used and counts its frames.
    #[inline]
    fn give_back(&mut self, batch: &mut Batch) {
        let Some(ring) = &mut self.ring else { return };
        let (mut packets, mut bytes, mut gso) = (0, 0, 0);
        for frame in &batch.frames {
            ring.queue.push_used(frame.head, 0);
            match frame.dropped {
                None => {
                    packets += 1;
                    bytes += u64::from(frame.len);
                    gso += u64::from(frame.vnet.is_gso());
                }
                Some(reason) => self.traffic.count_drop(reason, 1),
            }
        }
        batch.clear();
        ring.queue.publish();
        fault::pass(Point::BatchCompleted);
        self.traffic.packets.add(packets);
        self.traffic.bytes.add(bytes);
        self.traffic.gso_packets.add(gso);
    }

    /// Returns `true` if the guest has broken its ring since this was last called.
    pub fn take_broken(&mut self) -> bool {
        std::mem::take(&mut self.broken)
    }

    #[cold]
    fn break_ring(&mut self) {
        self.traffic.count_drop(DropReason::BadDescriptor, 1);
        self.broken = true;
        self.stop();
    }
}
