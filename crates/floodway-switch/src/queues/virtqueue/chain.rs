//! Descriptor chains: from a head index to the pieces of guest memory that it stands for.
//!
//! What a chain costs is bounded while it is walked, not after: at most [`MAX_CHAIN`] descriptors are read, [`MAX_CHAIN`] iovecs
//! appended (and no more than [`most_iovecs`] to write to), and as many bytes taken as [`Access`] allows. [`SHORT`] descriptors beyond the [`ORDINARY`] ones are
//! counted: each may lie anywhere in memory, in a region of its own, and costs a look-up and misses of the TLB and the cache. Each descriptor is read once, volatile, so that what is checked is what
//! is used, whatever the guest writes there meanwhile.

use super::{RingBroken, Virtqueue};
use crate::frame::iovec::GuestIoVecs;
use crate::memory::GuestMemory;
use crate::stats::work::{self, Unit};

const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;
const F_INDIRECT: u16 = 4;

/// Most descriptors, and most iovecs, of one chain: what the kernel takes in one `writev`, less one of our own.
pub const MAX_CHAIN: usize = 1023;

/// A descriptor of fewer bytes is short: what it costs to get at them is more than what it costs to copy them.
pub const SHORT: u32 = 2048;
/// Descriptors of a chain that may be short as they like: a header and what is behind it.
pub const ORDINARY: usize = 2;

/// Most iovecs that `bytes` bytes are written to. A guest with smaller buffers would have its senders' worker gather each frame
/// from all over its ring; drivers need one or two for a small frame, and one for each page or more of a large one.
#[inline]
#[must_use]
pub const fn most_iovecs(bytes: usize) -> usize {
    16 + bytes / 64
}

/// One entry of a descriptor table, as the guest lays it out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// What a queue's chains must allow, and how many bytes of a chain are of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// We read (transmit queues).
    Read {
        /// Most bytes of a chain; one with more is malformed.
        max: u32,
    },
    /// We write (receive queues).
    Write {
        /// Bytes that are going to be written, at least 1. The walk ends where the chain has them, and its iovecs are cut there.
        need: u32,
    },
}

impl Access {
    #[inline(always)]
    fn bytes(self) -> u32 {
        let (Self::Read { max: bytes } | Self::Write { need: bytes }) = self;
        bytes
    }

    /// Most iovecs of a chain.
    #[inline(always)]
    fn iovecs(self) -> usize {
        match self {
            Self::Read { .. } => MAX_CHAIN,
            Self::Write { need } => most_iovecs(need as usize).min(MAX_CHAIN),
        }
    }

    /// What is wrong with a chain of more.
    #[cold]
    fn too_many(self) -> ChainError {
        match self {
            Self::Read { .. } => ChainError::TooLong,
            Self::Write { .. } => ChainError::Scattered,
        }
    }

    /// Returns how many bytes of the descriptor's buffer are of use, where `left` bytes are allowed or needed.
    #[inline(always)]
    fn usable(self, desc: Descriptor, left: u32) -> Result<u32, ChainError> {
        let is_writable = desc.flags & F_WRITE != 0;
        match self {
            Self::Read { .. } if is_writable => Err(ChainError::Direction),
            Self::Read { .. } if desc.len > left => Err(ChainError::Length),
            Self::Read { .. } => Ok(desc.len),
            Self::Write { .. } if !is_writable => Err(ChainError::Direction),
            // Of no use to anyone, and a ring full of chains of them would cost much to walk.
            Self::Write { .. } if desc.len == 0 => Err(ChainError::Length),
            Self::Write { .. } => Ok(desc.len.min(left)),
        }
    }
}

/// A chain that was taken from the avail ring and has to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its head, to give back.
    pub head: u16,
    /// Bytes of all its iovecs.
    pub len: u32,
}

/// A chain of one buffer in one piece of memory, as [`Virtqueue::pop_plain`] takes it.
#[derive(Clone, Copy, Debug)]
pub(in crate::queues) struct Plain {
    /// Its head, to give back.
    pub(in crate::queues) head: u16,
    /// Bytes of it that are of use.
    pub(in crate::queues) len: u32,
    /// Where they are.
    pub(in crate::queues) ptr: *mut u8,
}

/// What came of taking a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pop {
    /// A chain; its iovecs were appended to the caller's list.
    Chain(Chain),
    /// A malformed chain: give `head` back with length 0. Nothing was appended.
    Malformed {
        /// The head to give back.
        head: u16,
        /// What is wrong with it.
        error: ChainError,
    },
    /// Nothing is available.
    Empty,
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// `next` is not an index of the table.
    #[error("descriptor index past the end of its table")]
    Index,
    /// More descriptors than the table has, or more descriptors or iovecs than [`MAX_CHAIN`].
    #[error("descriptor chain loops or is too long")]
    TooLong,
    /// More iovecs than [`most_iovecs`] for what is to be written.
    #[error("receive buffers in too many short pieces")]
    Scattered,
    /// A buffer or an indirect table is outside guest memory.
    #[error("descriptor address outside guest memory")]
    Address,
    /// A writable descriptor where we read, or a readable one where we write.
    #[error("descriptor has the wrong direction")]
    Direction,
    /// An indirect table inside an indirect table, with `next`, or of an impossible size.
    #[error("malformed indirect descriptor")]
    Indirect,
    /// The lengths add up to more than the longest frame, or a writable descriptor has none.
    #[error("descriptor length zero where we write, or lengths beyond the longest frame")]
    Length,
}

impl Virtqueue {
    /// Takes the next available chain and appends its iovecs to `iovecs`, which holds on to
    /// [`Virtqueue::memory`] from now on.
    ///
    /// # Errors
    /// The avail index or a head is impossible.
    ///
    /// # Panics
    /// `iovecs` has iovecs of another memory: the caller has not cleared it.
    #[inline(always)]
    pub fn pop(&mut self, access: Access, iovecs: &mut GuestIoVecs) -> Result<Pop, RingBroken> {
        if self.available_cached() == 0 && self.available()? == 0 {
            return Ok(Pop::Empty);
        }
        let head = self.avail_entry(self.next_avail());
        if head >= self.size() {
            return Err(RingBroken);
        }
        self.next_avail.advance();
        iovecs.hold(&self.memory);
        let start = iovecs.len();
        Ok(match self.walk(head, access, iovecs) {
            Ok(len) => Pop::Chain(Chain { head, len }),
            Err(error) => {
                iovecs.truncate(start);
                Pop::Malformed { head, error }
            }
        })
    }

    /// Takes the next available chain if it is what nearly all are: one buffer in one piece of memory, of which `access` has a use. `None` if it is
    /// anything else, or nothing is available, or the ring is broken: nothing was taken then, and [`Virtqueue::pop`] says which.
    ///
    /// The buffer is in [`Virtqueue::memory`]. If it is written, that is what is needed at least.
    #[inline(always)]
    pub(in crate::queues) fn pop_plain(&mut self, access: Access) -> Option<Plain> {
        if self.available_cached() == 0 && !matches!(self.available(), Ok(1..)) {
            // An impossible index is not believed, so `pop` looks again and finds it.
            self.avail_idx = self.next_avail;
            return None;
        }
        let head = self.avail_entry(self.next_avail());
        if head >= self.size() {
            return None;
        }
        work::count(Unit::Descriptor);
        // SAFETY: head < size, so the descriptor is inside the table that `new` checked. The copy
        // is what is checked and used; the guest may change its own as it likes.
        let desc = unsafe { self.desc.add(usize::from(head)).read_volatile() };
        if desc.flags & (F_NEXT | F_INDIRECT) != 0 {
            return None;
        }
        let len = match (access.usable(desc, access.bytes()), access) {
            (Ok(len @ 1..), Access::Read { .. }) => len,
            (Ok(len), Access::Write { need }) if len == need => len,
            _ => return None,
        };
        let (ptr, contiguous) = self.memory.translate(&mut self.region_hint, desc.addr, len)?;
        if contiguous != len {
            return None;
        }
        work::count(Unit::IoVec);
        self.next_avail.advance();
        Some(Plain { head, len, ptr })
    }

    /// Appends the iovecs of the chain at `head`; returns their bytes.
    #[inline(always)]
    fn walk(
        &mut self,
        head: u16,
        access: Access,
        iovecs: &mut GuestIoVecs,
    ) -> Result<u32, ChainError> {
        work::count(Unit::Descriptor);
        // SAFETY: head < size, so the descriptor is inside the table that `new` checked. The copy
        // is what is checked and used; the guest may change its own as it likes.
        let first = unsafe { self.desc.add(usize::from(head)).read_volatile() };
        let len = access.usable(first, access.bytes());
        // Nearly every chain: one buffer in one region. All else is looked at anew.
        if first.flags & (F_NEXT | F_INDIRECT) == 0
            && let Ok(len @ 1..) = len
            && let Some((ptr, contiguous)) =
                self.memory.translate(&mut self.region_hint, first.addr, len)
            && contiguous == len
        {
            work::count(Unit::IoVec);
            // SAFETY: `translate` checked the range in the memory that `iovecs` holds.
            unsafe { iovecs.push(ptr, len as usize) };
            return Ok(len);
        }
        self.walk_from(first, access, iovecs)
    }

    #[inline(never)]
    fn walk_from(
        &mut self,
        first: Descriptor,
        access: Access,
        iovecs: &mut GuestIoVecs,
    ) -> Result<u32, ChainError> {
        let (left, start) = (access.bytes(), iovecs.len());
        let (ordinary, end) = (start + ORDINARY, start + access.iovecs());
        let (memory, hint, scattered) = (&self.memory, &mut self.region_hint, &mut self.scattered);
        let mut walk = Walk { memory, hint, access, left, iovecs, ordinary, end, scattered };
        let (table, first) = if first.flags & F_INDIRECT == 0 {
            (Table { base: self.desc, len: u32::from(self.size.get()) }, first)
        } else {
            let table = walk.indirect_table(first)?;
            (table, table.get(0).ok_or(ChainError::Indirect)?)
        };
        walk.follow(table, first)?;
        Ok(left - walk.left)
    }
}

/// A descriptor table that was checked to lie in guest memory.
#[derive(Clone, Copy)]
struct Table {
    base: *const Descriptor,
    len: u32,
}

/// A guest may place an indirect table at any address.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Unaligned(Descriptor);

impl Table {
    fn get(self, index: u32) -> Option<Descriptor> {
        if index >= self.len {
            return None;
        }
        work::count(Unit::Descriptor);
        let entry = self.base.cast::<Unaligned>().wrapping_add(index as usize);
        // SAFETY: index < len, and whoever made the table checked `len` entries from `base` on. Volatile: it is read
        // once, here, and the copy is what is checked and used.
        Some(unsafe { entry.read_volatile() }.0)
    }
}

/// A chain that is being walked.
struct Walk<'a> {
    memory: &'a GuestMemory,
    hint: &'a mut usize,
    access: Access,
    /// Bytes that the chain may still have, or that are still needed.
    left: u32,
    iovecs: &'a mut GuestIoVecs,
    /// Where the ordinary ones of `iovecs` end.
    ordinary: usize,
    /// Where `iovecs` ends at the latest.
    end: usize,
    /// Scattered descriptors so far.
    scattered: &'a mut u64,
}

impl Walk<'_> {
    fn indirect_table(&mut self, desc: Descriptor) -> Result<Table, ChainError> {
        const ENTRY: u32 = size_of::<Descriptor>() as u32;
        if desc.flags & F_NEXT != 0 || desc.len == 0 || !desc.len.is_multiple_of(ENTRY) {
            return Err(ChainError::Indirect);
        }
        match self.memory.translate(self.hint, desc.addr, desc.len) {
            Some((base, contiguous)) if contiguous == desc.len => {
                Ok(Table { base: base.cast_const().cast(), len: desc.len / ENTRY })
            }
            _ => Err(ChainError::Address),
        }
    }

    /// Appends `first` and the descriptors of `table` that follow it.
    #[inline(always)]
    fn follow(&mut self, table: Table, first: Descriptor) -> Result<(), ChainError> {
        let mut desc = first;
        // A chain longer than its table visits a descriptor twice.
        for _ in 0..table.len.min(MAX_CHAIN as u32) {
            if desc.flags & F_INDIRECT != 0 {
                return Err(ChainError::Indirect);
            }
            self.append(desc)?;
            if desc.flags & F_NEXT == 0 || self.is_enough() {
                return Ok(());
            }
            desc = table.get(u32::from(desc.next)).ok_or(ChainError::Index)?;
        }
        Err(ChainError::TooLong)
    }

    /// Returns `true` if nothing that follows in the chain is going to be written.
    fn is_enough(&self) -> bool {
        self.left == 0 && matches!(self.access, Access::Write { .. })
    }

    /// Appends the buffer of one descriptor: one iovec, or more where it crosses regions.
    #[inline(always)]
    fn append(&mut self, desc: Descriptor) -> Result<(), ChainError> {
        let mut rest = self.access.usable(desc, self.left)?;
        self.left -= rest;
        let mut addr = desc.addr;
        *self.scattered += u64::from(desc.len < SHORT && self.iovecs.len() >= self.ordinary);
        while rest > 0 {
            if self.iovecs.len() == self.end {
                return Err(self.access.too_many());
            }
            work::count(Unit::IoVec);
            let (ptr, contiguous) =
                self.memory.translate(self.hint, addr, rest).ok_or(ChainError::Address)?;
            // SAFETY: `translate` checked the range in the memory that `iovecs` holds.
            unsafe { self.iovecs.push(ptr, contiguous as usize) };
            rest -= contiguous;
            addr = addr.wrapping_add(u64::from(contiguous));
        }
        Ok(())
    }
}
