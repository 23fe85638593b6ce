//! Placing frames in receive buffers.

use floodway_process::fault::{self, Point};
use floodway_wire::vnet::{self, VnetHdr};

use super::RxQueue;
use crate::frame::Frame;
use crate::frame::iovec::GuestIoVec;
use crate::frame::vnet_offload::Offloads;
use crate::memory::copy;
use crate::queues::virtqueue::{Access, ChainError, Plain, Pop, RingBroken, most_iovecs};
use crate::stats::DropReason;

/// What came of one attempt to place a frame.
pub(super) enum Placed {
    Yes,
    /// The guest has too few buffers now.
    NoBuffers,
    /// It will never fit.
    Never(DropReason),
}

impl RxQueue {
    /// Writes `frame` into one receive buffer, if none waits. Returns `false` if that cannot be done; nothing is taken then.
    #[inline(always)]
    pub(super) fn place_at_once(&mut self, frame: &Frame<'_>) -> bool {
        self.pending.frames.is_empty() && self.place_in_one(frame)
    }

    /// Takes receive chains for `need` bytes into `chains`, if the guest has enough of them; else it takes none.
    #[inline(always)]
    pub(super) fn take_chains(&mut self, need: usize) -> Result<Placed, RingBroken> {
        let Some(ring) = &mut self.ring else { return Ok(Placed::NoBuffers) };
        let queue = &mut ring.queue;
        let mark = queue.next_avail();
        let mut room = 0;
        self.chains.clear();
        self.iovecs.clear();
        while room < need {
            let access = Access::Write { need: (need - room) as u32 };
            let chain = match queue.pop(access, &mut self.iovecs)? {
                Pop::Chain(chain) => chain,
                Pop::Malformed { error: ChainError::Scattered, .. } => {
                    queue.rewind(mark);
                    return Ok(Placed::Never(DropReason::NoLargeBuffer));
                }
                Pop::Malformed { .. } => return Err(RingBroken),
                Pop::Empty => {
                    queue.rewind(mark);
                    return Ok(Placed::NoBuffers);
                }
            };
            room += chain.len as usize;
            self.chains.push(chain);
            let no_more = !self.features.mergeable
                || self.chains.len() == usize::from(queue.size())
                || self.iovecs.len() > most_iovecs(need);
            if room < need && no_more {
                queue.rewind(mark);
                return Ok(Placed::Never(DropReason::NoLargeBuffer));
            }
        }
        Ok(Placed::Yes)
    }

    /// Writes `frame` into receive chains, if the guest has enough of them.
    #[inline]
    pub(super) fn place(&mut self, frame: &Frame<'_>) -> Result<Placed, RingBroken> {
        if self.place_in_one(frame) {
            return Ok(Placed::Yes);
        }
        self.place_in_chains(frame)
    }

    /// Writes `frame` into one receive buffer in one piece, as most have. Returns `false` if that is not what the guest has next; nothing is taken then.
    #[inline(always)]
    fn place_in_one(&mut self, frame: &Frame<'_>) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let queue = &mut ring.queue;
        let hdr_len = self.features.hdr_len;
        let need = hdr_len as u32 + frame.len;
        let Some(Plain { head, ptr, .. }) = queue.pop_plain(Access::Write { need }) else {
            return false;
        };
        let hdr = header(frame, self.features.offloads, 1);
        // SAFETY: the header has at least its legacy length (`start`), and the buffer has `need` bytes: those of the header, and the frame's, beyond which nothing is written. Two guests, or one guest's buffers, may name the same bytes: `copy`
        // allows overlap.
        unsafe {
            write_header(&hdr, ptr, hdr_len);
            let (mut at, mut left) = (ptr.add(hdr_len), frame.len as usize);
            for part in frame.parts {
                let n = part.len().min(left);
                copy::copy(part.as_ptr(), at, n);
                (at, left) = (at.add(n), left - n);
            }
        }
        if queue.is_logged() {
            queue.memory().note_write(ptr, need as usize);
        }
        queue.push_used(head, need);
        fault::pass(Point::FramePlaced);
        self.count_placed(frame);
        true
    }

    #[inline]
    fn count_placed(&self, frame: &Frame<'_>) {
        self.traffic.count(u64::from(frame.len));
        if frame.vnet.is_gso() {
            self.traffic.gso_packets.add(1);
        }
    }

    #[inline(never)]
    pub(super) fn place_in_chains(&mut self, frame: &Frame<'_>) -> Result<Placed, RingBroken> {
        let need = self.features.hdr_len + frame.len as usize;
        match self.take_chains(need)? {
            Placed::Yes => {}
            not => return Ok(not),
        }
        let Some(ring) = &mut self.ring else { return Ok(Placed::NoBuffers) };
        let queue = &mut ring.queue;
        let hdr = header(frame, self.features.offloads, self.chains.len() as u16).to_bytes();
        let iovecs = self.iovecs.as_slice();
        write(iovecs, &hdr[..self.features.hdr_len], frame.parts);
        if queue.is_logged() {
            // The iovecs have `need` bytes together: all of them, and nothing else, were written.
            let memory = queue.memory();
            iovecs.iter().for_each(|iovec| memory.note_write(iovec.as_ptr(), iovec.len()));
        }
        for chain in &self.chains {
            queue.push_used(chain.head, chain.len);
        }
        fault::pass(Point::FramePlaced);
        if self.iovecs.len() > 1 {
            self.extra.descriptors += self.iovecs.len() as u64;
            self.extra.buffers += self.chains.len() as u64 - 1;
            self.extra.scattered += queue.take_scattered();
        }
        self.count_placed(frame);
        Ok(Placed::Yes)
    }
}

/// The virtio-net header of `frame` for a receiver with `offloads`, who is given it in so many chains.
#[inline]
fn header(frame: &Frame<'_>, offloads: Offloads, num_buffers: u16) -> VnetHdr {
    if frame.vnet.flags | frame.vnet.gso_type == 0 {
        return VnetHdr { num_buffers, ..VnetHdr::default() };
    }
    let flags = frame.vnet.flags & offloads.rx_flags();
    VnetHdr { flags, num_buffers, ..frame.vnet }
}

/// Writes the first `len` bytes of `hdr` to `to`, from registers: a copy of them from the stack would wait for all stores of the frame before.
///
/// # Safety
/// `len` bytes at `to` are writable, at least [`vnet::LEGACY_LEN`].
#[inline(always)]
pub(super) unsafe fn write_header(hdr: &VnetHdr, to: *mut u8, len: usize) {
    let (first, last) = hdr.to_words();
    // SAFETY: bytes 0 to 8, and 8 to 10 or 12; the caller answers for those. None of the writes needs an alignment.
    unsafe {
        to.cast::<u64>().write_unaligned(first.to_le());
        let to = to.add(size_of::<u64>());
        match len {
            vnet::LEN => to.cast::<u32>().write_unaligned(last.to_le()),
            _ => to.cast::<u16>().write_unaligned((last as u16).to_le()),
        }
    }
}

/// Writes `hdr` and then `parts` into `iovecs`, which are long enough together.
#[inline]
fn write(iovecs: &[GuestIoVec<'_>], hdr: &[u8], parts: &[GuestIoVec<'_>]) {
    let mut iovecs = iovecs.iter().copied();
    let mut to = GuestIoVec::from_slice(&[]);
    for from in std::iter::once(&GuestIoVec::from_slice(hdr)).chain(parts) {
        let mut from = *from;
        while !from.is_empty() {
            if to.is_empty() {
                let Some(next) = iovecs.next() else { return };
                to = next;
                continue;
            }
            let n = from.len().min(to.len());
            // SAFETY: both ranges were checked by `translate` or are slices, and are at least n
            // long; `to` is guest memory for writing. Two guests, or one guest's buffers, may name
            // the same bytes: `copy` allows overlap.
            unsafe { copy::copy(from.as_ptr(), to.as_mut_ptr(), n) };
            from = from.skip(n);
            to = to.skip(n);
        }
    }
}
