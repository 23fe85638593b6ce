//! A transmit queue: frames out of a guest.
//!
//! # Theory of operation
//! **Goal**: take a batch of frames from the guest, look at each header once, and give the
//! descriptors back when the frames have been copied to where they go.
//!
//! [`TxQueue::dequeue_burst`] takes up to [`BATCH`] chains in two passes, so that the memory of one pass is
//! on its way into the cache while the other works: first the descriptors, then for each frame its
//! virtio-net header and its first [`PREFIX_LEN`] bytes, copied into the batch. The worker then
//! forwards the batch's frames; their remaining bytes are still in guest memory.
//! [`TxQueue::complete`] gives the descriptors back, in order, and interrupts the guest if it wants;
//! [`TxQueue::complete_moderated`] may let the interrupt wait ([`crate::queues::moderation`]).
//!
//! **Invariants**: a batch keeps the guest memory alive that its frames point into. Every chain
//! that was taken is given back, forwarded or not; every frame is forwarded or its drop counted.

use std::cell::UnsafeCell;
use std::sync::Arc;

use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_process::fault::{self, Point};
use floodway_wire::vnet::{self, VnetHdr};

use crate::frame::iovec::{GuestIoVec, GuestIoVecs};
use crate::frame::vnet_offload::Offloads;
use crate::frame::{self, Frame, MAX_FRAME_LEN, PREFIX_LEN, WireSize};
use crate::memory::{GuestMemory, copy};
use crate::queues::moderation::{Completed, Completions, Moderated};
use crate::queues::ring::{Interrupts, Ring};
use crate::queues::virtqueue::{self, Access, Plain, Pop, RingBroken};
use crate::stats::ledger::MODEL;
use crate::stats::{DropReason, Traffic};

/// Most frames that are taken from one queue at a time.
pub const BATCH: usize = 32;

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

/// One frame of a batch.
struct TxFrame {
    head: u16,
    prefix_len: u8,
    vnet: VnetHdr,
    /// Bytes of the frame.
    len: u32,
    /// Its iovecs are `batch.iovecs[parts.0..parts.1]`; the first is the prefix.
    parts: (u32, u32),
    dropped: Option<DropReason>,
}

/// Copies of the first bytes of a batch's frames.
///
/// Pointers to them stand in the batch's iovecs. All access is by pointers that are derived from the vector's own, never by
/// a reference to a whole frame or to the vector's contents: no use of the batch makes those in the iovecs stale.
struct Prefixes(Vec<UnsafeCell<[u8; PREFIX_LEN]>>);

impl Prefixes {
    fn as_ptr(&self, i: usize) -> *mut [u8; PREFIX_LEN] {
        assert!(i < self.0.len(), "one for each frame of a batch");
        // SAFETY: i < len.
        UnsafeCell::raw_get(unsafe { self.0.as_ptr().add(i) })
    }

    #[inline]
    fn get(&self, i: usize) -> &[u8; PREFIX_LEN] {
        // SAFETY: inside the vector; it changes only through `get_mut`.
        unsafe { &*self.as_ptr(i) }
    }

    #[inline]
    fn get_mut(&mut self, i: usize) -> &mut [u8; PREFIX_LEN] {
        // SAFETY: inside the vector, and nobody else reads or writes it for the lifetime of `self`'s borrow.
        unsafe { &mut *self.as_ptr(i) }
    }
}

/// Frames taken from a transmit queue and not yet given back.
pub struct Batch {
    frames: Vec<TxFrame>,
    prefixes: Prefixes,
    /// Also keeps the guest's memory mapped.
    iovecs: GuestIoVecs,
    /// What it took to fill it.
    taken: Work,
    /// It ended before the queue did.
    more: bool,
}

impl Default for Batch {
    fn default() -> Self {
        let prefixes = (0..BATCH).map(|_| UnsafeCell::new([0; PREFIX_LEN])).collect();
        Self {
            frames: Vec::with_capacity(BATCH),
            prefixes: Prefixes(prefixes),
            iovecs: GuestIoVecs::default(),
            taken: Work::default(),
            more: false,
        }
    }
}

impl Batch {
    /// Frames in the batch, dropped ones included; at most [`BATCH`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// No frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns `true` if the queue had more than the batch was to hold, or may have.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.more
    }

    /// Chains and descriptors that were walked to fill it, those included that were left for the next batch.
    #[must_use]
    pub const fn taken(&self) -> &Work {
        &self.taken
    }

    /// The `i`-th frame, unless it was dropped.
    #[inline]
    #[must_use]
    pub fn frame(&self, i: usize) -> Option<Frame<'_>> {
        let f = self.frames.get(i)?;
        if f.dropped.is_some() {
            return None;
        }
        let parts = &self.iovecs.as_slice()[f.parts.0 as usize..f.parts.1 as usize];
        Some(Frame {
            vnet: f.vnet,
            prefix: &self.prefixes.get(i)[..usize::from(f.prefix_len)],
            parts,
            len: f.len,
        })
    }

    /// Calls `f` with the `i`-th frame, dropped or not, and why it was. Of a frame whose descriptors or headers are wrong only the first bytes are there,
    /// if any.
    pub fn with_any(&self, i: usize, f: impl FnOnce(&Frame<'_>, Option<DropReason>)) {
        let Some(&TxFrame { prefix_len, vnet, len, parts: (start, end), dropped, .. }) =
            self.frames.get(i)
        else {
            return;
        };
        let prefix = &self.prefixes.get(i)[..usize::from(prefix_len)];
        let first = [GuestIoVec::from_slice(prefix)];
        let parts = &self.iovecs.as_slice()[start as usize..end as usize];
        // The prefix took its place when nothing else was wrong.
        let is_whole = parts.first().is_some_and(|part| part.as_ptr() == first[0].as_ptr());
        let parts = if is_whole { parts } else { &first[..] };
        f(&Frame { vnet, prefix, parts, len }, dropped);
    }

    /// Marks the `i`-th frame as dropped.
    pub fn drop_frame(&mut self, i: usize, reason: DropReason) {
        self.frames[i].dropped = Some(reason);
    }

    /// Returns what the frames that were not dropped are on a wire.
    #[inline]
    #[must_use]
    pub fn wire_size(&self) -> WireSize {
        let frames = self.frames.iter().filter(|frame| frame.dropped.is_none());
        frames.map(|TxFrame { vnet, len, .. }| WireSize::of(vnet, *len)).sum()
    }

    /// Marks those frames as dropped that may not `pass`.
    pub(crate) fn police(&mut self, reason: DropReason, mut pass: impl FnMut(&Frame<'_>) -> bool) {
        for i in 0..self.len() {
            if self.frame(i).is_some_and(|frame| !pass(&frame)) {
                self.drop_frame(i, reason);
            }
        }
    }

    /// Lets go of the guest's memory, which else stays mapped until another guest sends.
    pub fn release(&mut self) {
        self.frames.clear();
        self.iovecs.release();
    }

    fn reset(&mut self, memory: &Arc<GuestMemory>) {
        self.frames.clear();
        self.iovecs.clear();
        self.iovecs.hold(memory);
    }
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
        batch.frames.clear();
        batch.taken = Work::default();
        let Some(ring) = &mut self.ring else { return };
        match ring.queue.available() {
            Ok(0) => {}
            Ok(_) => {
                if self.take(batch, limit).is_err() {
                    self.break_ring();
                    batch.frames.clear();
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
        if self.read_headers(batch) != vnet::GSO_NONE {
            self.leave_what_costs_too_much(batch, limit);
        }
        Ok(())
    }

    /// Reads the headers of a batch's frames and drops those that are wrong. Returns the bits of all GSO types.
    #[inline]
    fn read_headers(&self, batch: &mut Batch) -> u8 {
        let mut gso_types = 0;
        // SAFETY: what is put in points into `prefixes`, which live as long as the list and are not written before it is cleared.
        let iovecs = unsafe { batch.iovecs.as_mut_slice() };
        for (i, frame) in batch.frames.iter_mut().enumerate() {
            let (start, end) = (frame.parts.0 as usize, frame.parts.1 as usize);
            if frame.dropped.is_none()
                && let Err(reason) = frame.read_headers(
                    &mut iovecs[start..end],
                    &mut batch.prefixes,
                    i,
                    &self.features,
                )
            {
                frame.dropped = Some(reason);
            }
            if frame.dropped.is_none() && !self.enabled {
                frame.dropped = Some(DropReason::PortDown);
            }
            gso_types |= frame.vnet.gso_type;
        }
        gso_types
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
    /// [`TxQueue::interrupt_if_due`] then. `said` counts the frames that the guest has sent so far, `answers` those that it was given, without bare
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
        batch.frames.clear();
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

impl TxFrame {
    /// A frame of `len` bytes with its header, whose iovecs are those from `start` to `end`, and whose headers nobody has read yet.
    #[inline(always)]
    fn new(head: u16, len: u32, start: usize, end: usize, dropped: Option<DropReason>) -> Self {
        let parts = (start as u32, end as u32);
        Self { head, prefix_len: 0, vnet: VnetHdr::default(), len, parts, dropped }
    }

    /// Copies the virtio-net header and the prefix, the `i`-th of `prefixes`, out of the frame's iovecs, of which the first is
    /// spare, and makes the iovecs start with the prefix.
    #[inline]
    fn read_headers(
        &mut self,
        iovecs: &mut [GuestIoVec<'static>],
        prefixes: &mut Prefixes,
        i: usize,
        features: &TxFeatures,
    ) -> Result<(), DropReason> {
        let hdr_len = features.hdr_len;
        let len = self.len.checked_sub(hdr_len as u32).ok_or(DropReason::BadDescriptor)?;
        self.len = len;
        frame::check_len(len)?;
        let mut hdr = [0; vnet::LEN];
        let prefix_len = (len as usize).min(PREFIX_LEN);
        let prefix = &mut prefixes.get_mut(i)[..prefix_len];
        // So many iovecs are used up; the one before the rest becomes the prefix.
        let at = read_start(&mut iovecs[1..], &mut hdr[..hdr_len.min(vnet::LEN)], prefix);
        self.prefix_len = prefix_len as u8;
        self.vnet = features.offloads.check(VnetHdr::from_bytes(&hdr), prefix, len)?;
        // SAFETY: the prefixes belong to the batch as the iovecs do, and are not written before these are cleared.
        iovecs[at] = unsafe { GuestIoVec::from_raw(prefixes.as_ptr(i).cast(), prefix_len) };
        self.parts.0 += at as u32;
        Ok(())
    }
}

/// Copies `hdr` and `prefix` out of the front of `iovecs`, which are long enough together, and leaves what follows there. Returns how many are used up.
#[inline(always)]
fn read_start(iovecs: &mut [GuestIoVec<'static>], hdr: &mut [u8], prefix: &mut [u8]) -> usize {
    let taken = hdr.len() + prefix.len();
    match iovecs.first_mut() {
        // As in most frames.
        Some(first) if first.len() >= taken => {
            // SAFETY: the iovec was checked by `translate` and has so many bytes; the destinations are ours.
            unsafe {
                copy::read_shared(first.as_ptr(), hdr.as_mut_ptr(), hdr.len());
                let behind = first.as_ptr().add(hdr.len());
                copy::read_shared(behind, prefix.as_mut_ptr(), prefix.len());
            }
            *first = first.skip(taken);
            usize::from(first.is_empty())
        }
        _ => {
            let mut reader = Reader { iovecs, next: 0 };
            reader.read(hdr);
            reader.read(prefix);
            reader.next
        }
    }
}

/// Copies bytes from the front of a list of iovecs.
struct Reader<'a> {
    iovecs: &'a mut [GuestIoVec<'static>],
    /// Pieces that are used up.
    next: usize,
}

impl Reader<'_> {
    /// Fills `out`; the caller knows that the iovecs are long enough.
    #[inline]
    fn read(&mut self, out: &mut [u8]) {
        let mut filled = 0;
        while filled < out.len() && self.next < self.iovecs.len() {
            let iovec = self.iovecs[self.next];
            let n = iovec.len().min(out.len() - filled);
            // SAFETY: the iovec was checked by `translate` and is at least n long; the destination
            // has n bytes left and is ours.
            unsafe { copy::read_shared(iovec.as_ptr(), out.as_mut_ptr().add(filled), n) };
            filled += n;
            self.iovecs[self.next] = iovec.skip(n);
            if n == iovec.len() {
                self.next += 1;
            }
        }
    }
}
