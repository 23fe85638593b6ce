//! Descriptor chains: from a head index to the pieces of guest memory that it stands for.

use super::{RingBroken, Virtqueue};
use crate::memory::GuestMemory;
use crate::segment::Segment;

const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;
const F_INDIRECT: u16 = 4;

/// Most pieces of one chain: what the kernel takes in one `writev`, less our own piece.
pub const MAX_CHAIN: usize = 1023;

/// One entry of a descriptor table, as the guest lays it out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// What a queue's chains must allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// We read (transmit queues).
    Read,
    /// We write (receive queues).
    Write,
}

/// A chain that was taken from the avail ring and has to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its head, to give back.
    pub head: u16,
    /// Bytes of all its pieces.
    pub len: u32,
}

/// What came of taking a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pop {
    /// A chain; its pieces were appended to the caller's list.
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
    /// More descriptors than the table has, or than [`MAX_CHAIN`].
    #[error("descriptor chain loops or is too long")]
    TooLong,
    /// A buffer or an indirect table is outside guest memory.
    #[error("descriptor address outside guest memory")]
    Address,
    /// A writable descriptor where we read, or a readable one where we write.
    #[error("descriptor has the wrong direction")]
    Direction,
    /// An indirect table inside an indirect table, with `next`, or of an impossible size.
    #[error("malformed indirect descriptor")]
    Indirect,
    /// The lengths add up to more than 32 bits hold, or a writable descriptor has none.
    #[error("descriptor length zero where we write, or lengths that overflow")]
    Length,
}

impl Virtqueue {
    /// Takes the next available chain and appends its pieces to `pieces`.
    ///
    /// The pieces name guest memory without a lifetime: they are good while
    /// [`Virtqueue::memory`], as it is now, is kept alive.
    ///
    /// # Errors
    /// The avail index or a head is impossible.
    #[inline]
    pub fn pop(
        &mut self,
        access: Access,
        pieces: &mut Vec<Segment<'static>>,
    ) -> Result<Pop, RingBroken> {
        if self.available_cached() == 0 && self.available()? == 0 {
            return Ok(Pop::Empty);
        }
        let head = self.avail_entry(self.next_avail);
        if head >= self.size {
            return Err(RingBroken);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        let start = pieces.len();
        let walked = self.walk(head, access, pieces);
        let crossings_fit = pieces.len() - start <= MAX_CHAIN;
        Ok(
            match walked
                .and_then(|len| if crossings_fit { Ok(len) } else { Err(ChainError::TooLong) })
            {
                Ok(len) => Pop::Chain(Chain { head, len }),
                Err(error) => {
                    pieces.truncate(start);
                    Pop::Malformed { head, error }
                }
            },
        )
    }

    #[inline]
    fn walk(
        &mut self,
        head: u16,
        access: Access,
        pieces: &mut Vec<Segment<'static>>,
    ) -> Result<u32, ChainError> {
        // SAFETY: head < size, so the descriptor is inside the table that `new` checked. The copy
        // is what is checked and used; the guest may change its own as it likes.
        let first = unsafe { self.desc.add(usize::from(head)).read_volatile() };
        let hint = &mut self.region_hint;
        if first.flags & (F_NEXT | F_INDIRECT) == 0 {
            return append(&self.memory, hint, first, access, pieces);
        }
        if first.flags & F_INDIRECT == 0 {
            let table = Table { base: self.desc, len: u32::from(self.size) };
            return walk_table(&self.memory, hint, table, first, access, pieces);
        }
        let table = indirect_table(&self.memory, hint, first)?;
        let first = table.get(0).ok_or(ChainError::Indirect)?;
        walk_table(&self.memory, hint, table, first, access, pieces)
    }
}

/// A descriptor table that was checked to lie in guest memory.
#[derive(Clone, Copy)]
struct Table {
    base: *const Descriptor,
    len: u32,
}

impl Table {
    fn get(self, index: u32) -> Option<Descriptor> {
        // SAFETY: index < len, and whoever made the table checked `len` entries from `base` on.
        // A guest may place an indirect table at any address.
        (index < self.len).then(|| unsafe { self.base.add(index as usize).read_unaligned() })
    }
}

fn indirect_table(
    memory: &GuestMemory,
    hint: &mut usize,
    desc: Descriptor,
) -> Result<Table, ChainError> {
    const ENTRY: u32 = size_of::<Descriptor>() as u32;
    if desc.flags & F_NEXT != 0 || desc.len == 0 || !desc.len.is_multiple_of(ENTRY) {
        return Err(ChainError::Indirect);
    }
    match memory.translate(hint, desc.addr, desc.len) {
        Some((base, contiguous)) if contiguous == desc.len => {
            Ok(Table { base: base.cast_const().cast(), len: desc.len / ENTRY })
        }
        _ => Err(ChainError::Address),
    }
}

fn walk_table(
    memory: &GuestMemory,
    hint: &mut usize,
    table: Table,
    first: Descriptor,
    access: Access,
    pieces: &mut Vec<Segment<'static>>,
) -> Result<u32, ChainError> {
    let mut desc = first;
    let mut total = 0u32;
    // A chain longer than its table visits a descriptor twice.
    for _ in 0..table.len.min(MAX_CHAIN as u32) {
        if desc.flags & F_INDIRECT != 0 {
            return Err(ChainError::Indirect);
        }
        let len = append(memory, hint, desc, access, pieces)?;
        total = total.checked_add(len).ok_or(ChainError::Length)?;
        if desc.flags & F_NEXT == 0 {
            return Ok(total);
        }
        desc = table.get(u32::from(desc.next)).ok_or(ChainError::Index)?;
    }
    Err(ChainError::TooLong)
}

/// Appends the buffer of one descriptor: one piece, or more where it crosses regions.
#[inline]
fn append(
    memory: &GuestMemory,
    hint: &mut usize,
    desc: Descriptor,
    access: Access,
    pieces: &mut Vec<Segment<'static>>,
) -> Result<u32, ChainError> {
    if (desc.flags & F_WRITE != 0) != (access == Access::Write) {
        return Err(ChainError::Direction);
    }
    if desc.len == 0 && access == Access::Write {
        // Of no use to anyone, and a ring full of chains of them would cost much to walk.
        return Err(ChainError::Length);
    }
    let mut addr = desc.addr;
    let mut left = desc.len;
    while left > 0 {
        let (ptr, contiguous) = memory.translate(hint, addr, left).ok_or(ChainError::Address)?;
        // SAFETY: `translate` checked the range; the caller of `pop` keeps the memory alive.
        pieces.push(unsafe { Segment::from_raw(ptr, contiguous as usize) });
        left -= contiguous;
        addr = addr.wrapping_add(u64::from(contiguous));
    }
    Ok(desc.len)
}
