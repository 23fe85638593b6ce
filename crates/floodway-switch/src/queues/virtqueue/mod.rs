//! The device side of a split virtqueue (virtio 1.2, section 2.7).
//!
//! # Theory of operation
//! **Goal**: take descriptor chains that a guest makes available, and give them back as used, at a
//! few cycles each, believing nothing that the guest writes.
//!
//! **Rings**: the guest writes the descriptor table and the avail ring; we write the used ring.
//! `next_avail` is the next avail entry that we shall read, `next_used` the next used entry that we
//! shall write. Used entries are written freely and become visible to the guest together, by one
//! release store of `used.idx` in [`Virtqueue::publish`], once a batch.
//!
//! **In order**: chains are given back in the order in which they were taken. So everything before
//! `used.idx` is finished and everything from there on is not, and a switch that starts again after
//! a crash finds its place in guest memory alone: `next_avail` starts at `used.idx`. At worst the
//! frames of one batch are sent twice; none is skipped, no descriptor leaks, and no in-flight log
//! has to be kept on the packet path.
//!
//! **Notifications**: towards us, the guest is asked for a kick only by
//! [`Virtqueue::enable_kick`]: before the worker sleeps, and while frames wait for receive buffers.
//! Towards the guest,
//! [`Virtqueue::take_interrupt`] says whether what was published since the last answer needs an
//! interrupt. Both follow the event index when it was negotiated and the flags when not.
//!
//! **Hostile guests**: every index is masked or compared with the ring's size, every address goes
//! through [`GuestMemory`], descriptors are read once (a guest cannot change one between check and
//! use), a chain is at most as long as its table, and frames at most [`MAX_CHAIN`] iovecs. An avail
//! index or head that cannot be right breaks the ring ([`RingBroken`]): it stops until the
//! front-end sets it up again. Any other malformed chain is the caller's to judge: transmit queues
//! give it back unused and count it, receive queues break.

mod chain;
#[cfg(test)]
mod exhaustive;
pub(crate) mod notify;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use chain::Descriptor;
pub(in crate::queues) use chain::Plain;
pub use chain::{Access, Chain, ChainError, MAX_CHAIN, ORDINARY, Pop, most_iovecs};
use notify::need_event;

use crate::memory::GuestMemory;
use crate::sync::atomics::Native;

/// Largest ring that virtio allows.
pub const MAX_SIZE: u16 = 32768;

const AVAIL_F_NO_INTERRUPT: u16 = 1;
const USED_F_NO_NOTIFY: u16 = 1;

/// Where a ring lies, in the front-end's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table.
    pub desc: u64,
    /// Avail ring.
    pub avail: u64,
    /// Used ring.
    pub used: u64,
}

/// Why a ring cannot be used as the front-end set it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Not a power of two between 1 and [`MAX_SIZE`].
    #[error("ring size {0} is not a power of two between 1 and {MAX_SIZE}")]
    Size(u16),
    /// A part of the ring is not inside one region of guest memory, or not aligned.
    #[error("the ring's {0} is misaligned or outside guest memory")]
    Address(&'static str),
}

/// The guest wrote an index that no correct driver can write; the ring is dead until set up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest wrote an impossible ring index")]
pub struct RingBroken;

/// One split virtqueue. See the module's theory of operation.
#[derive(Debug)]
pub struct Virtqueue {
    memory: Arc<GuestMemory>,
    region_hint: usize,
    /// Scattered descriptors that were walked: see `take_scattered`.
    scattered: u64,
    size: Word,
    event_idx: bool,
    /// `memory` notes writes.
    logged: bool,
    desc: *const Descriptor,
    /// `flags`, `idx`, `ring[size]`, `used_event`.
    avail: *mut u16,
    /// `flags`, `idx`, `ring[size]` of (u32, u32), `avail_event`.
    used: *mut u16,
    next_avail: Word,
    /// The guest's avail index when last read; entries before it may be taken.
    avail_idx: Word,
    next_used: Word,
    /// `used.idx` as the guest sees it.
    published: Word,
    /// `used.idx` when the guest was last considered for an interrupt.
    signalled: Word,
}

/// A number of 16 bits that is kept in 32, and always stored as these.
///
/// Of a field of 16 bits at a multiple of 4, a compiler may load the field behind it, too. Where that one has just been stored, a load of both
/// waits until the store has reached the cache, and so have all stores before it: those of the last frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u32);

impl Word {
    const fn new(n: u16) -> Self {
        Self(n as u32)
    }

    const fn get(self) -> u16 {
        self.0 as u16
    }

    /// Goes on by one, to 0 after the last.
    const fn advance(&mut self) {
        *self = Self::new(self.get().wrapping_add(1));
    }
}

/// Where taking chains stands: see [`Virtqueue::position`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    next_avail: Word,
    avail_idx: Word,
    scattered: u64,
}

// SAFETY: the pointers lead into mappings that `memory` keeps alive; the queue is used by one
// thread at a time (`&mut self`), and the guest's side is accessed with atomics and raw copies.
unsafe impl Send for Virtqueue {}

impl Virtqueue {
    /// Sets up a ring of `size` entries, to go on where its used ring says that work stopped.
    ///
    /// # Errors
    /// The size or an address is impossible.
    pub fn new(
        memory: Arc<GuestMemory>,
        size: u16,
        addresses: RingAddresses,
        event_idx: bool,
    ) -> Result<Self, RingError> {
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(RingError::Size(size));
        }
        let entries = u64::from(size);
        let part = |name, addr, len, align: usize| {
            memory
                .translate_frontend(addr, len)
                .filter(|p| p.addr().is_multiple_of(align))
                .ok_or(RingError::Address(name))
        };
        let desc = part("descriptor table", addresses.desc, 16 * entries, 16)?;
        let avail = part("avail ring", addresses.avail, 6 + 2 * entries, 2)?;
        let used = part("used ring", addresses.used, 6 + 8 * entries, 4)?;
        let mut queue = Self {
            logged: memory.is_logged(),
            memory,
            region_hint: 0,
            scattered: 0,
            size: Word::new(size),
            event_idx,
            desc: desc.cast_const().cast(),
            avail: avail.cast(),
            used: used.cast(),
            next_avail: Word::new(0),
            avail_idx: Word::new(0),
            next_used: Word::new(0),
            published: Word::new(0),
            signalled: Word::new(0),
        };
        let start = Word::new(queue.used_u16(1).load(Ordering::Acquire));
        queue.next_avail = start;
        queue.avail_idx = start;
        queue.next_used = start;
        queue.published = start;
        queue.signalled = start;
        queue.disable_kick();
        Ok(queue)
    }

    /// The memory that this ring's addresses are translated in.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Entries of the ring.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size.get()
    }

    /// The avail index at which a later back-end has to go on.
    #[must_use]
    pub fn next_avail(&self) -> u16 {
        self.next_avail.get()
    }

    /// Chains that the guest has made available and that were not taken yet.
    ///
    /// # Errors
    /// The guest claims more than the ring can hold.
    #[inline]
    pub fn available(&mut self) -> Result<u16, RingBroken> {
        self.note_available(notify::look::<Native>(self.avail_u16(1)))
    }

    #[inline]
    fn note_available(&mut self, avail_idx: u16) -> Result<u16, RingBroken> {
        self.avail_idx = Word::new(avail_idx);
        let n = self.available_cached();
        if n > self.size() { Err(RingBroken) } else { Ok(n) }
    }

    /// Chains available as of the last look at the guest's index.
    #[inline]
    #[must_use]
    pub fn available_cached(&self) -> u16 {
        self.avail_idx.get().wrapping_sub(self.next_avail())
    }

    /// Goes back to avail index `next_avail`, for chains that were taken but not used. Only indices
    /// of chains taken since the last [`Virtqueue::push_used`] make sense.
    #[inline]
    pub fn rewind(&mut self, next_avail: u16) {
        self.next_avail = Word::new(next_avail);
    }

    /// Takes the number of short descriptors beyond the second of their chains that were walked since this was last called.
    #[inline]
    pub fn take_scattered(&mut self) -> u64 {
        std::mem::take(&mut self.scattered)
    }

    /// Where taking chains stands.
    #[must_use]
    pub const fn position(&self) -> Position {
        let Self { next_avail, avail_idx, scattered, .. } = *self;
        Position { next_avail, avail_idx, scattered }
    }

    /// Goes back to where taking chains stood before some were taken, or their number was found to be impossible, without any of them used: as if
    /// nobody had looked.
    pub const fn restore(&mut self, position: Position) {
        let Position { next_avail, avail_idx, scattered } = position;
        (self.next_avail, self.avail_idx, self.scattered) = (next_avail, avail_idx, scattered);
    }

    /// Starts fetching the descriptors of the next `n` available chains into the cache.
    #[inline]
    pub fn prefetch(&self, n: u16) {
        for i in 0..n.min(self.available_cached()) {
            let head = self.avail_entry(self.next_avail().wrapping_add(i)) & (self.size() - 1);
            // SAFETY: the masked index is inside the table; prefetching reads nothing anyway.
            prefetch(unsafe { self.desc.add(usize::from(head)) });
        }
    }

    /// Gives a chain back: `len` bytes were written into it. Not visible before
    /// [`Virtqueue::publish`].
    #[inline]
    pub fn push_used(&mut self, head: u16, len: u32) {
        let slot = usize::from(self.next_used.get() & (self.size() - 1));
        let element = u64::from(head) | (u64::from(len) << 32);
        // SAFETY: slot < size, so the element lies in the used ring that `new` checked. It is
        // 4-byte aligned; the guest reads it only after the release store of the index.
        unsafe { self.used.add(2 + 4 * slot).cast::<u64>().write_unaligned(element) };
        if self.logged {
            self.note_used(2 + 4 * slot, 8);
        }
        self.next_used.advance();
    }

    /// Used entries were written that the guest cannot see yet.
    #[inline]
    #[must_use]
    pub fn has_unpublished(&self) -> bool {
        self.next_used != self.published
    }

    /// Makes all used entries visible to the guest.
    #[inline]
    pub fn publish(&mut self) {
        self.published = self.next_used;
        notify::publish::<Native>(self.used_u16(1), self.published.get());
        if self.logged {
            self.note_used(1, 2);
        }
    }

    /// Whether the guest wants an interrupt for what was published since this was last asked.
    #[inline]
    pub fn take_interrupt(&mut self) -> bool {
        let wanted = self.wants_interrupt();
        self.signalled = self.published;
        wanted
    }

    /// Published entries that [`Virtqueue::take_interrupt`] has not considered.
    #[inline]
    #[must_use]
    pub fn used_since_signal(&self) -> u16 {
        self.published.get().wrapping_sub(self.signalled.get())
    }

    /// As [`Virtqueue::take_interrupt`], to be asked again.
    #[inline]
    #[must_use]
    pub fn wants_interrupt(&self) -> bool {
        let (old, new) = (self.signalled.get(), self.published.get());
        if old == new {
            return false;
        }
        if self.event_idx {
            let used_event = self.avail_u16(2 + usize::from(self.size()));
            need_event(notify::wish_of_other::<Native>(used_event), new, old)
        } else {
            notify::wish_of_other::<Native>(self.avail_u16(0)) & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    /// Asks the guest to kick when it makes available more than was seen so far. Returns whether
    /// there are chains already: what was added since the last look may bring no kick.
    ///
    /// # Errors
    /// As [`Virtqueue::available`].
    pub fn enable_kick(&mut self) -> Result<bool, RingBroken> {
        let (at, wish) = if self.event_idx {
            // Not `next_avail`: a guest that has chains available already, only too few, passed that.
            (self.avail_event_at(), self.avail_idx.get())
        } else {
            (0, 0)
        };
        let index = notify::wish_and_look::<Native>(self.used_u16(at), wish, self.avail_u16(1));
        self.note_used(at, 2);
        Ok(self.note_available(index)? > 0)
    }

    /// Tells the guest that kicks are not needed: somebody polls.
    pub fn disable_kick(&mut self) {
        let (at, wish) = if self.event_idx {
            // The event index cannot say "never"; half a ring of indices away is as far as it goes.
            (self.avail_event_at(), self.next_avail().wrapping_add(MAX_SIZE))
        } else {
            (0, USED_F_NO_NOTIFY)
        };
        self.used_u16(at).store(wish, Ordering::Relaxed);
        self.note_used(at, 2);
    }

    /// The word of the used ring that says of which chain the guest is to kick.
    fn avail_event_at(&self) -> usize {
        2 + 4 * usize::from(self.size())
    }

    /// The VM migrates: what is written to its memory must be noted.
    #[inline]
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.logged
    }

    /// Notes that `len` bytes from the `i`-th word of the used ring on were written.
    fn note_used(&self, i: usize, len: usize) {
        if self.logged {
            self.memory.note_write(std::ptr::from_ref(self.used_u16(i)).cast(), len);
        }
    }

    /// Entry of the avail ring for avail index `index`: the head of a chain, unchecked.
    #[inline]
    fn avail_entry(&self, index: u16) -> u16 {
        self.avail_u16(2 + usize::from(index & (self.size() - 1))).load(Ordering::Relaxed)
    }

    /// The `i`-th 16-bit word of the avail ring, `i` <= size + 2.
    #[inline]
    fn avail_u16(&self, i: usize) -> &AtomicU16 {
        debug_assert!(i <= usize::from(self.size()) + 2);
        // SAFETY: `new` checked alignment and that 3 + size words are there; `memory` keeps them.
        unsafe { AtomicU16::from_ptr(self.avail.add(i)) }
    }

    /// The `i`-th 16-bit word of the used ring, `i` <= 4 * size + 2.
    #[inline]
    fn used_u16(&self, i: usize) -> &AtomicU16 {
        debug_assert!(i <= 4 * usize::from(self.size()) + 2);
        // SAFETY: as `avail_u16`, for 3 + 4 * size words.
        unsafe { AtomicU16::from_ptr(self.used.add(i)) }
    }
}

/// Starts fetching the cache line at `p`.
#[inline]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed; it does not fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
