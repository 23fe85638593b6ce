//! A receive queue: frames into a guest.
//!
//! # Theory of operation
//! **Goal**: put a frame into the guest's receive buffers with one copy, from wherever it lies.
//!
//! **Placing**: receive chains are taken until they hold the virtio-net header and the frame: one
//! chain, or with `MRG_RXBUF` as many as it takes. If the guest has too few, all are put back and
//! the frame waits in `pending`, a queue bounded in bytes; when that is full the frame is dropped
//! and counted as `queue_full`. Frames never overtake those that wait. A frame that would not fit if
//! the whole ring were free, or only in more iovecs than [`most_iovecs`](crate::queues::virtqueue::most_iovecs) allows, is dropped at once. A
//! malformed receive chain breaks the ring: the work that a guest can cause per frame is bounded.
//!
//! **Offloads**: what the guest did not negotiate it never receives. Such frames are finished in
//! software first (`vnet_offload`): checksums filled in, GSO packets segmented, those of many segments
//! in the port's turns (`pending`).
//!
//! **Who calls**: any worker delivers, under the queue's lock; the port's own worker drains
//! `pending` when the guest has refilled its ring. While frames wait, the guest is asked for kicks.
//!
//! **Visibility**: placed frames become visible, and the guest is interrupted, in
//! [`RxQueue::flush`], once per batch; [`RxQueue::flush_moderated`] may let the interrupt wait for those of the
//! frames that follow ([`crate::queues::moderation`]).
//!
//! **Stopped**: what comes for a queue whose guest has stopped waits, too, until the guest goes on, its address shows up
//! elsewhere ([`RxQueue::take_waiting`]), or the port gives it up ([`RxQueue::forget`]).
//!
//! **Invariants**: `pending` holds at most its bound; every frame handed to [`RxQueue::deliver`]
//! is placed, pending, or counted as dropped.

mod drain;
mod fate;
mod pending;
mod place;
#[cfg(test)]
mod tests;

use floodway_core::histogram::{DurationCounts, DurationHistogram};
use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_process::fault::{self, Point};
use floodway_wire::MacAddr;
use floodway_wire::vnet;

use crate::frame::iovec::GuestIoVecs;
use crate::frame::vnet_offload::{self, Offloads};
use crate::frame::{self, CUT_AT_ONCE, Frame};
use crate::queues::moderation::{Delivered, Moderated, Moderation};
use crate::queues::ring::{Interrupts, Ring};
use crate::queues::virtqueue::{Chain, RingBroken};
use crate::stats::{DropReason, Traffic};
pub use fate::Fate;
use pending::Pending;
pub use pending::PendingFrame;
use place::Placed;

/// What the guest negotiated, as far as its receive queues care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxFeatures {
    /// A frame may fill several chains.
    pub mergeable: bool,
    /// Bytes of the virtio-net header: 10 or 12.
    pub hdr_len: usize,
    /// What may be left to the guest.
    pub offloads: Offloads,
}

/// One receive queue of a port. See the module's theory of operation.
pub struct RxQueue {
    ring: Option<Ring>,
    features: RxFeatures,
    pending: Pending,
    /// The guest has stopped, and may go on.
    stopped: bool,
    /// What waits has come before it was known what the guest takes.
    awaited: bool,
    moderation: Moderation,
    /// Packets and bytes of `traffic` that the guest can see.
    visible: (u64, u64),
    /// Scratch of `place`: chains taken and where in them it writes. Of no meaning between calls.
    chains: Vec<Chain>,
    iovecs: GuestIoVecs,
    /// What frames have cost beyond a copy each, since [`RxQueue::take_extra`] was last called: buffers that are small or lie scattered, and waiting.
    extra: Work,
    /// What was left for later of frames that came to wait, and what of that was done by those who deliver, in nanoseconds by the cost model, since
    /// [`RxQueue::take_aside`] was last called.
    deferred: Work,
    relieved: u64,
    /// What placing frames has cost that nobody has paid for, since [`RxQueue::take_unpaid`] was last called.
    unpaid: Work,
    /// Traffic to the guest through this queue.
    pub traffic: Traffic,
    /// Frames of `traffic` that were given to a guest before this queue was made.
    given_before: u64,
    /// How long frames have waited that did.
    delays: DurationHistogram,
    /// Interrupts of this queue.
    pub interrupts: Interrupts,
    /// Frames and segments that were dropped as they came.
    refused: u64,
    /// The guest broke its ring since [`RxQueue::take_broken`].
    broken: bool,
}

impl RxQueue {
    /// A queue without a guest, whose waiting frames are bounded to `queue_bytes`.
    #[must_use]
    pub fn new(queue_bytes: usize) -> Self {
        Self {
            ring: None,
            features: RxFeatures::default(),
            pending: Pending { bound: queue_bytes, ..Pending::default() },
            stopped: false,
            awaited: false,
            moderation: Moderation::default(),
            visible: (0, 0),
            chains: Vec::new(),
            iovecs: GuestIoVecs::default(),
            extra: Work::default(),
            deferred: Work::default(),
            relieved: 0,
            unpaid: Work::default(),
            traffic: Traffic::default(),
            given_before: 0,
            delays: DurationHistogram::default(),
            interrupts: Interrupts::default(),
            refused: 0,
            broken: false,
        }
    }

    /// Counts in `traffic` from now on. For a queue that has counted nothing.
    pub fn count_in(&mut self, traffic: Traffic) {
        self.visible = (traffic.packets.get(), traffic.bytes.get());
        self.given_before = traffic.packets.get();
        self.traffic = traffic;
    }

    /// How long frames have waited that the guest was given. Those that did not wait are in the first bucket.
    #[must_use]
    pub fn delays(&self) -> DurationCounts {
        let mut counts = self.delays.counts();
        let given = self.traffic.packets.get().wrapping_sub(self.given_before);
        counts.buckets[0] += given.saturating_sub(counts.count());
        counts
    }

    /// Serves `ring` from now on.
    pub fn start(&mut self, ring: Ring, features: RxFeatures) {
        // The guest may have missed an interrupt of a back-end that died.
        ring.interrupt();
        self.ring = Some(ring);
        self.iovecs.release();
        self.stopped = false;
        self.pending.look_again();
        self.moderation = Moderation::default();
        let hdr_len = features.hdr_len.clamp(vnet::LEGACY_LEN, vnet::LEN);
        let features = RxFeatures { hdr_len, ..features };
        if features != self.features {
            // What waits was meant for a guest that could take it as it is.
            if !self.awaited {
                self.drop_pending();
            }
            self.features = features;
        }
        self.awaited = false;
    }

    /// Stops serving; answers the ring. Frames that wait go on waiting.
    pub fn stop(&mut self) -> Option<Ring> {
        self.flush();
        self.stopped |= self.ring.is_some();
        self.iovecs.release();
        self.ring.take()
    }

    /// A stopped guest is not expected back: frames that wait for it are dropped and counted, and so is what comes
    /// from now on. Nothing if it runs.
    pub fn forget(&mut self) {
        if self.ring.is_none() {
            self.stopped = false;
            self.drop_pending();
        }
    }

    /// Lets frames wait for a guest that another process has served until now, as for one that has stopped.
    pub fn expect_guest(&mut self) {
        (self.stopped, self.awaited) = (true, true);
    }

    /// The guest has stopped, and frames may wait for it.
    #[must_use]
    pub fn expects_guest(&self) -> bool {
        self.stopped
    }

    /// Lets a frame wait for a guest that has stopped.
    pub fn wait_for_guest(&mut self, frame: &Frame<'_>) {
        match self.fate_without_guest(frame) {
            Fate::Dropped(reason) => self.refuse(reason),
            _ => {
                self.pending.push(frame, false);
            }
        }
    }

    /// Takes out, in order, what waits, goes to `dst` and is `meant`.
    pub fn take_waiting(
        &mut self,
        dst: MacAddr,
        meant: impl Fn(&PendingFrame) -> bool,
    ) -> Vec<PendingFrame> {
        self.pending.take(|frame| frame.bytes.starts_with(&dst.0) && meant(frame))
    }

    /// Drops what waits and is `meant`, and counts it.
    pub fn drop_waiting(&mut self, meant: impl Fn(&PendingFrame) -> bool) {
        let dropped = self.pending.take(meant).len();
        if dropped > 0 {
            self.traffic.count_drop(DropReason::PortDown, dropped as u64);
        }
    }

    /// Takes out all that waits.
    pub fn take_all_waiting(&mut self) -> Vec<PendingFrame> {
        self.pending.take_all().into()
    }

    /// Lets frames of a stopped guest's other queues wait here.
    pub fn give_waiting(&mut self, frames: Vec<PendingFrame>) {
        for frame in frames {
            if !self.pending.push_owned(frame) {
                self.traffic.count_drop(DropReason::QueueFull, 1);
            }
        }
    }

    fn drop_pending(&mut self) {
        let waiting = self.pending.take_all().len();
        if waiting > 0 {
            self.traffic.count_drop(DropReason::PortDown, waiting as u64);
        }
    }

    /// The running ring, to change its event descriptors.
    pub fn ring_mut(&mut self) -> Option<&mut Ring> {
        self.ring.as_mut()
    }

    /// The guest can receive.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ring.is_some()
    }

    /// The guest that can receive has done so before: here until its front-end came anew, or on another host.
    #[must_use]
    pub fn was_in_use(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.queue.next_avail() != 0)
    }

    /// Frames and bytes that wait for buffers.
    #[must_use]
    pub fn pending(&self) -> (usize, usize) {
        (self.pending.frames.len(), self.pending.charged)
    }

    /// Returns `true` if frames wait for the port's next turn: the guest may have buffers for them.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.pending.paused
    }

    /// Frames, and segments of frames that are cut, that were dropped as they came. Those that were dropped after they had waited are not among them.
    #[inline]
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Drops a frame, or a segment of one, that has come, and counts it.
    #[cold]
    pub fn refuse(&mut self, reason: DropReason) {
        self.refused += 1;
        self.traffic.count_drop(reason, 1);
    }

    /// Takes what frames have cost beyond a copy each since this was last called.
    #[inline]
    pub fn take_extra(&mut self) -> Work {
        std::mem::take(&mut self.extra)
    }

    /// Takes what was left for later of frames that came to wait since this was last called, and the nanoseconds by the cost model of what was done of that by
    /// those who deliver. `None` if neither.
    #[inline]
    pub fn take_aside(&mut self) -> Option<(Work, u64)> {
        if self.deferred.copies | self.relieved == 0 {
            return None;
        }
        Some((std::mem::take(&mut self.deferred), std::mem::take(&mut self.relieved)))
    }

    /// Takes what placing frames has cost that nobody has paid for, since this was last called.
    pub fn take_unpaid(&mut self) -> Work {
        std::mem::take(&mut self.unpaid) + std::mem::take(&mut self.extra)
    }

    /// Returns `true` if the guest does not take this frame as it is: it is finished or cut for it.
    #[inline]
    #[must_use]
    pub fn needs_software(&self, frame: &Frame<'_>) -> bool {
        !self.features.offloads.allow(&frame.vnet)
    }

    /// Delivers one frame: placed, pending, or dropped and counted.
    #[inline(always)]
    pub fn deliver(&mut self, frame: &Frame<'_>) {
        if !(self.features.offloads.allow(&frame.vnet) && self.place_at_once(frame)) {
            self.deliver_otherwise(frame);
        }
    }

    #[inline(never)]
    fn deliver_otherwise(&mut self, frame: &Frame<'_>) {
        if self.features.offloads.allow(&frame.vnet) {
            self.deliver_in_chains(frame);
        } else {
            self.deliver_in_software(frame);
        }
    }

    #[cold]
    fn deliver_in_software(&mut self, frame: &Frame<'_>) {
        if self.ring.is_some()
            && (!self.pending.frames.is_empty() || frame.segments() > CUT_AT_ONCE)
        {
            return self.wait(frame);
        }
        let offloads = self.features.offloads;
        let finished = vnet_offload::finish(frame, offloads, |vnet, bytes| {
            frame::with_slice(vnet, bytes, |frame| self.deliver_as_is(frame));
        });
        if let Err(reason) = finished {
            self.refuse(reason);
        }
    }

    fn deliver_as_is(&mut self, frame: &Frame<'_>) {
        if !self.place_at_once(frame) {
            self.deliver_in_chains(frame);
        }
    }

    fn deliver_in_chains(&mut self, frame: &Frame<'_>) {
        if self.ring.is_none() {
            return self.wait_for_guest(frame);
        }
        if self.pending.frames.is_empty() {
            match self.place_in_chains(frame) {
                Ok(Placed::Yes) => return,
                Ok(Placed::Never(reason)) => return self.refuse(reason),
                Ok(Placed::NoBuffers) => {}
                Err(RingBroken) => {
                    self.refuse(DropReason::BadDescriptor);
                    return self.break_ring();
                }
            }
        }
        self.wait(frame);
    }

    /// Lets a frame wait for buffers, or its turn. It is copied twice then.
    #[cold]
    fn wait(&mut self, frame: &Frame<'_>) {
        if self.pending.push(frame, true) {
            self.extra.copies += 1;
            self.extra.bytes += u64::from(frame.len);
            self.deferred.copies += 1;
            self.deferred.bytes += u64::from(frame.len);
            if self.needs_software(frame) {
                self.deferred.bytes += u64::from(frame.len);
                self.deferred.segments += u64::from(frame.segments());
            }
        } else {
            self.refuse(DropReason::QueueFull);
        }
        if self.pending.frames.len() == 1 {
            self.drain_at_once();
        }
    }

    /// Makes what was placed visible to the guest and interrupts it if it wants that; returns whether it did.
    #[inline]
    pub fn flush(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        if ring.queue.has_unpublished() {
            ring.queue.publish();
            fault::pass(Point::UsedPublished);
        } else if self.moderation.due().is_none() {
            return false;
        }
        self.visible = (self.traffic.packets.get(), self.traffic.bytes.get());
        let interrupted = ring.signal_if_needed(&self.interrupts);
        self.moderation.on_signal_decision(interrupted);
        interrupted
    }

    /// Makes what was placed visible to the guest. Interrupts it if it wants that and the interrupt need not wait for those
    /// of the frames that follow; else answers until when it waits at most, and the caller has to see to
    /// [`RxQueue::interrupt_if_due`] then. `data_frames` counts the frames that the guest was given so far, `reverse_data_frames` those that it has sent, without bare
    /// acknowledgements.
    #[inline]
    pub fn flush_moderated(
        &mut self,
        now: Instant,
        data_frames: u64,
        reverse_data_frames: u64,
    ) -> Option<Instant> {
        let ring = self.ring.as_mut()?;
        if !ring.queue.has_unpublished() {
            return self.moderation.due();
        }
        ring.queue.publish();
        fault::pass(Point::UsedPublished);
        let visible = (self.traffic.packets.get(), self.traffic.bytes.get());
        let before = std::mem::replace(&mut self.visible, visible);
        let (frames, bytes) = (visible.0 - before.0, visible.1 - before.1);
        let wanted = ring.queue.wants_interrupt();
        let due = self.moderation.delivered(
            now,
            Delivered { frames, bytes, data_frames, reverse_data_frames },
            wanted,
        );
        if due.is_none() {
            self.moderation.on_signal_decision(ring.signal_if_needed(&self.interrupts));
        }
        due
    }

    /// Sends an interrupt that has waited long enough, if the guest still wants it.
    pub fn interrupt_if_due(&mut self, now: Instant) -> Moderated {
        match self.moderation.due() {
            Some(due) if due > now => Moderated::Waits(due),
            Some(_) => Moderated::over(self.flush()),
            None => Moderated::Unwanted,
        }
    }

    /// Returns `true` if the guest has broken its ring since this was last called.
    pub fn take_broken(&mut self) -> bool {
        std::mem::take(&mut self.broken)
    }

    #[cold]
    fn break_ring(&mut self) {
        self.broken = true;
        self.stop();
        self.forget();
    }
}
