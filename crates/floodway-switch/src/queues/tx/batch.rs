//! Frames taken from a transmit queue.
//!
//! # Theory of operation
//! A batch holds the frames that were taken and not yet given back: of each the chain's head, its virtio-net header, a copy of its first [`PREFIX_LEN`]
//! bytes, and where the rest lies in guest memory. Their sizes are added up where the headers are read, so that a limit on rates measures a batch without another walk.

use std::cell::UnsafeCell;
use std::sync::Arc;

use floodway_core::work::Work;
use floodway_wire::vnet::{self, VnetHdr};

use super::TxFeatures;
use crate::frame::iovec::{GuestIoVec, GuestIoVecs};
use crate::frame::{self, Frame, Frames, PREFIX_LEN, Sizes};
use crate::memory::{GuestMemory, copy};
use crate::stats::DropReason;

/// Most frames that are taken from one queue at a time.
pub const BATCH: usize = 32;

/// One frame of a batch.
pub(super) struct TxFrame {
    pub(super) head: u16,
    prefix_len: u8,
    pub(super) vnet: VnetHdr,
    /// Bytes of the frame.
    pub(super) len: u32,
    /// Its iovecs are `batch.iovecs[parts.0..parts.1]`; the first is the prefix.
    pub(super) parts: (u32, u32),
    pub(super) dropped: Option<DropReason>,
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
    pub(super) frames: Vec<TxFrame>,
    prefixes: Prefixes,
    /// Also keeps the guest's memory mapped.
    pub(super) iovecs: GuestIoVecs,
    /// What it took to fill it.
    pub(super) taken: Work,
    /// It ended before the queue did.
    pub(super) more: bool,
    /// What all its frames are together; `None` if one was dropped or is a GSO packet.
    sizes: Option<Sizes>,
    /// A bit for each frame that is a bare acknowledgement.
    acks: u32,
}

/// Frames of a batch that were not dropped.
#[derive(Clone, Copy)]
pub struct Selected<'b> {
    batch: &'b Batch,
    mask: u32,
}

impl Frames for Selected<'_> {
    #[inline]
    fn iter(&self) -> impl Iterator<Item = Frame<'_>> {
        bits(self.mask).filter_map(|i| self.batch.frame(i))
    }

    #[inline]
    fn sizes(&self) -> Option<Sizes> {
        self.batch.sizes.filter(|_| self.mask == self.batch.mask())
    }

    #[inline]
    fn pure_acks(&self) -> u64 {
        let acks = bits(self.batch.acks & self.mask);
        acks.filter(|&i| self.batch.prefix(i).is_some()).count() as u64
    }
}

/// The indices of the bits that are set in `mask`, lowest first.
pub(crate) fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let i = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (i < u32::BITS).then_some(i as usize)
    })
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
            sizes: None,
            acks: 0,
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
        let prefix = self.prefix(i)?;
        let parts = &self.iovecs.as_slice()[f.parts.0 as usize..f.parts.1 as usize];
        Some(Frame { vnet: f.vnet, prefix, parts, len: f.len })
    }

    /// The first bytes of the `i`-th frame, unless it was dropped.
    #[inline]
    #[must_use]
    pub fn prefix(&self, i: usize) -> Option<&[u8]> {
        let f = self.frames.get(i).filter(|f| f.dropped.is_none())?;
        Some(&self.prefixes.get(i)[..usize::from(f.prefix_len)])
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
        self.sizes = None;
    }

    /// All frames that were not dropped.
    #[inline]
    #[must_use]
    pub fn all(&self) -> Selected<'_> {
        self.select(self.mask())
    }

    /// A bit for each frame.
    #[inline]
    fn mask(&self) -> u32 {
        ((1_u64 << self.len()) - 1) as u32
    }

    /// The frames whose bits are set in `mask`, of those that were not dropped.
    #[inline]
    #[must_use]
    pub const fn select(&self, mask: u32) -> Selected<'_> {
        Selected { batch: self, mask }
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
        self.clear();
        self.iovecs.release();
    }

    /// Empties the batch. The memory stays mapped, for the next frames are most likely in the same.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        (self.sizes, self.acks) = (None, 0);
    }

    /// Reads the frames' headers and drops those that are wrong, or all that are right if their queue is not `enabled`. Returns the bits of all
    /// GSO types.
    #[inline]
    pub(super) fn read_headers(&mut self, features: &TxFeatures, enabled: bool) -> u8 {
        let (mut gso_types, mut sizes, mut none_dropped) = (0, Sizes::default(), true);
        let mut acks = 0;
        // SAFETY: what is put in points into `prefixes`, which live as long as the list and are not written before it is cleared.
        let iovecs = unsafe { self.iovecs.as_mut_slice() };
        for (i, frame) in self.frames.iter_mut().enumerate() {
            let (start, end) = (frame.parts.0 as usize, frame.parts.1 as usize);
            if frame.dropped.is_none() {
                match frame.read_headers(&mut iovecs[start..end], &mut self.prefixes, i, features) {
                    Ok(prefix) => {
                        acks |= u32::from(frame::is_pure_ack(prefix, frame.len)) << i;
                    }
                    Err(reason) => frame.dropped = Some(reason),
                }
            }
            if frame.dropped.is_none() && !enabled {
                frame.dropped = Some(DropReason::PortDown);
            }
            none_dropped &= frame.dropped.is_none();
            gso_types |= frame.vnet.gso_type;
            sizes.all.bytes += u64::from(frame.len);
            sizes.longest = sizes.longest.max(frame.len);
        }
        sizes.all.packets = self.frames.len() as u64;
        self.acks = acks;
        self.sizes = (none_dropped && gso_types == vnet::GSO_NONE).then_some(sizes);
        gso_types
    }

    pub(super) fn reset(&mut self, memory: &Arc<GuestMemory>) {
        self.clear();
        self.iovecs.clear();
        self.iovecs.hold(memory);
    }
}

impl TxFrame {
    /// A frame of `len` bytes with its header, whose iovecs are those from `start` to `end`, and whose headers nobody has read yet.
    #[inline(always)]
    pub(super) fn new(
        head: u16,
        len: u32,
        start: usize,
        end: usize,
        dropped: Option<DropReason>,
    ) -> Self {
        let parts = (start as u32, end as u32);
        Self { head, prefix_len: 0, vnet: VnetHdr::default(), len, parts, dropped }
    }

    /// Copies the virtio-net header and the prefix, the `i`-th of `prefixes`, out of the frame's iovecs, of which the first is
    /// spare, and makes the iovecs start with the prefix. Returns the prefix.
    #[inline(always)]
    fn read_headers<'p>(
        &mut self,
        iovecs: &mut [GuestIoVec<'static>],
        prefixes: &'p mut Prefixes,
        i: usize,
        features: &TxFeatures,
    ) -> Result<&'p [u8], DropReason> {
        let hdr_len = features.hdr_len;
        let len = self.len.checked_sub(hdr_len as u32).ok_or(DropReason::BadDescriptor)?;
        self.len = len;
        frame::check_len(len)?;
        let prefix_len = (len as usize).min(PREFIX_LEN);
        let prefix = &mut prefixes.get_mut(i)[..prefix_len];
        // So many iovecs are used up; the one before the rest becomes the prefix.
        let ((first, second), at) = read_start(&mut iovecs[1..], hdr_len, prefix);
        self.prefix_len = prefix_len as u8;
        // What asks for nothing needs no check, and goes on with an empty header.
        if first & VnetHdr::ASKS != 0 {
            self.vnet = features.offloads.check(VnetHdr::from_words(first, second), prefix, len)?;
        }
        // SAFETY: the prefixes belong to the batch as the iovecs do, and are not written before these are cleared.
        iovecs[at] = unsafe { GuestIoVec::from_raw(prefixes.as_ptr(i).cast(), prefix_len) };
        self.parts.0 += at as u32;
        Ok(&prefixes.get(i)[..prefix_len])
    }
}

/// Copies a virtio-net header of `hdr_len` bytes and what follows it, `prefix`, out of the front of `iovecs`, which are long enough together, and leaves there what
/// comes then. Returns the header as [`VnetHdr::from_words`] takes it, and how many iovecs are used up.
#[inline(always)]
fn read_start(
    iovecs: &mut [GuestIoVec<'static>],
    hdr_len: usize,
    prefix: &mut [u8],
) -> ((u64, u16), usize) {
    let taken = hdr_len + prefix.len();
    match iovecs.first_mut() {
        // As in most frames.
        Some(first) if first.len() >= taken && hdr_len >= vnet::LEGACY_LEN => {
            // SAFETY: the iovec was checked by `translate` and has so many bytes, of which the first ten are in the header; the destination is ours.
            let hdr = unsafe {
                let (words, behind) = (first.as_ptr(), first.as_ptr().add(hdr_len));
                copy::read_shared(behind, prefix.as_mut_ptr(), prefix.len());
                let (first, second) =
                    (copy::read_word(words), copy::read_word(words.add(size_of::<u64>())));
                (u64::from_le(first), u16::from_le(second))
            };
            *first = first.skip(taken);
            (hdr, usize::from(first.is_empty()))
        }
        _ => read_scattered(iovecs, hdr_len, prefix),
    }
}

/// As [`read_start`], from wherever the bytes lie.
#[inline(never)]
fn read_scattered(
    iovecs: &mut [GuestIoVec<'static>],
    hdr_len: usize,
    prefix: &mut [u8],
) -> ((u64, u16), usize) {
    let mut hdr = [0; vnet::LEN];
    let mut reader = Reader { iovecs, next: 0 };
    reader.read(&mut hdr[..hdr_len.min(vnet::LEN)]);
    reader.read(prefix);
    let (first, second) = VnetHdr::from_bytes(&hdr).to_words();
    ((first, second as u16), reader.next)
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
