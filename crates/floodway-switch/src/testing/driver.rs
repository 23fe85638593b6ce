//! The driver side of a split virtqueue (virtio 1.2, section 2.7).
//!
//! The upper half of [`DriverQueue`] is a correct driver: it posts chains, reaps used ones in
//! whatever order they come, and follows the notification rules. The lower half reads and writes the
//! ring's words as they are, for tests of what a correct driver would never do.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::memory::TestMemory;
use crate::queues::virtqueue::RingAddresses;

/// Descriptor flag: another descriptor follows.
pub const F_NEXT: u16 = 1;
/// Descriptor flag: the device writes.
pub const F_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const F_INDIRECT: u16 = 4;

/// One piece of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest physical address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// The device writes to it.
    pub writable: bool,
}

impl Buffer {
    /// A buffer that the device reads.
    #[must_use]
    pub const fn readable(addr: u64, len: u32) -> Self {
        Self { addr, len, writable: false }
    }

    /// A buffer that the device writes.
    #[must_use]
    pub const fn writable(addr: u64, len: u32) -> Self {
        Self { addr, len, writable: true }
    }

    const fn flags(self) -> u16 {
        if self.writable { F_WRITE } else { 0 }
    }
}

/// A descriptor as it lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawDescriptor {
    /// Guest physical address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// `F_*` bits.
    pub flags: u16,
    /// Index of the next descriptor.
    pub next: u16,
}

impl RawDescriptor {
    /// Bytes in memory.
    pub const SIZE: u64 = 16;

    fn to_bytes(self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&self.addr.to_le_bytes());
        b[8..12].copy_from_slice(&self.len.to_le_bytes());
        b[12..14].copy_from_slice(&self.flags.to_le_bytes());
        b[14..].copy_from_slice(&self.next.to_le_bytes());
        b
    }
}

/// A used element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Head of the chain.
    pub head: u16,
    /// Bytes written.
    pub len: u32,
}

/// The driver side of one virtqueue.
pub struct DriverQueue {
    memory: Arc<TestMemory>,
    size: u16,
    event_idx: bool,
    desc: u64,
    avail: u64,
    used: u64,
    /// Descriptors that belong to no chain.
    free: Vec<u16>,
    /// Descriptors of the chain that starts at each head; empty when there is none.
    chains: Vec<Vec<u16>>,
    avail_idx: u16,
    /// `avail_idx` when a kick was last considered.
    kick_signalled: u16,
    last_used: u16,
}

impl DriverQueue {
    /// Bytes that a ring of `size` entries takes.
    #[must_use]
    pub const fn footprint(size: u16) -> u64 {
        let n = size as u64;
        (16 * n + 6 + 2 * n).next_multiple_of(4) + 6 + 8 * n
    }

    /// A zeroed ring of `size` entries at guest physical address `at`, a multiple of 16.
    #[must_use]
    pub fn new(memory: Arc<TestMemory>, at: u64, size: u16, event_idx: bool) -> Self {
        let avail = at + 16 * u64::from(size);
        let used = (avail + 6 + 2 * u64::from(size)).next_multiple_of(4);
        memory.write(at, &vec![0; Self::footprint(size) as usize]);
        Self {
            memory,
            size,
            event_idx,
            desc: at,
            avail,
            used,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); usize::from(size)],
            avail_idx: 0,
            kick_signalled: 0,
            last_used: 0,
        }
    }

    /// Lets all indices start at `index`, as if the ring had run for a while.
    #[must_use]
    pub fn starting_at(mut self, index: u16) -> Self {
        self.avail_idx = index;
        self.kick_signalled = index;
        self.last_used = index;
        self.set_avail_idx(index);
        self.set_used_idx(index);
        self
    }

    /// Where the ring lies, in the front-end's addresses.
    #[must_use]
    pub fn addresses(&self) -> RingAddresses {
        RingAddresses {
            desc: self.memory.frontend_addr(self.desc),
            avail: self.memory.frontend_addr(self.avail),
            used: self.memory.frontend_addr(self.used),
        }
    }

    /// The same ring in other memory, into which it has been copied.
    pub fn move_to(&mut self, memory: &Arc<TestMemory>) {
        self.memory = Arc::clone(memory);
    }

    /// Guest physical ranges (address, bytes) that only the driver writes: descriptors and the avail ring.
    #[must_use]
    pub fn written_by_driver(&self) -> [(u64, u64); 2] {
        let n = u64::from(self.size);
        [(self.desc, RawDescriptor::SIZE * n), (self.avail, 6 + 2 * n)]
    }

    /// Entries of the ring.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Descriptors that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Chains posted and not reaped.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.avail_idx.wrapping_sub(self.last_used)
    }

    /// The driver's avail index.
    #[must_use]
    pub fn avail_idx(&self) -> u16 {
        self.avail_idx
    }

    /// Makes a chain of `buffers` available, one descriptor each. `None` if too few are free.
    ///
    /// # Panics
    /// `buffers` is empty.
    pub fn post(&mut self, buffers: &[Buffer]) -> Option<u16> {
        let descriptors = self.take(buffers.len())?;
        for (i, buffer) in buffers.iter().enumerate() {
            let next = descriptors.get(i + 1).copied();
            let flags = buffer.flags() | next.map_or(0, |_| F_NEXT);
            let raw = RawDescriptor {
                addr: buffer.addr,
                len: buffer.len,
                flags,
                next: next.unwrap_or(0),
            };
            self.write_descriptor(descriptors[i], raw);
        }
        Some(self.offer(descriptors))
    }

    /// Makes a chain available whose descriptors lie in an indirect table at `table`.
    pub fn post_indirect(&mut self, table: u64, buffers: &[Buffer]) -> Option<u16> {
        let descriptors = self.take(1)?;
        let last = buffers.len() - 1;
        for (i, buffer) in buffers.iter().enumerate() {
            let flags = buffer.flags() | if i < last { F_NEXT } else { 0 };
            let raw =
                RawDescriptor { addr: buffer.addr, len: buffer.len, flags, next: i as u16 + 1 };
            self.memory.write(table + RawDescriptor::SIZE * i as u64, &raw.to_bytes());
        }
        let len = RawDescriptor::SIZE as u32 * buffers.len() as u32;
        let raw = RawDescriptor { addr: table, len, flags: F_INDIRECT, next: 0 };
        self.write_descriptor(descriptors[0], raw);
        Some(self.offer(descriptors))
    }

    fn take(&mut self, n: usize) -> Option<Vec<u16>> {
        assert!(n > 0, "a chain has at least one descriptor");
        let rest = self.free.len().checked_sub(n)?;
        let mut taken = self.free.split_off(rest);
        taken.reverse();
        Some(taken)
    }

    fn offer(&mut self, descriptors: Vec<u16>) -> u16 {
        let head = descriptors[0];
        self.chains[usize::from(head)] = descriptors;
        self.set_avail_entry(self.avail_idx, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.set_avail_idx(self.avail_idx);
        head
    }

    /// Used chains that were not reaped yet.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used_idx().wrapping_sub(self.last_used).into()
    }

    /// The next used chain; its descriptors are free again.
    ///
    /// # Panics
    /// The device gave back a head that is in no chain.
    pub fn reap(&mut self) -> Option<Used> {
        if self.used_idx() == self.last_used {
            return None;
        }
        let used = self.used_entry(self.last_used);
        self.last_used = self.last_used.wrapping_add(1);
        let chain = std::mem::take(&mut self.chains[usize::from(used.head)]);
        assert!(!chain.is_empty(), "head {} was given back and is not in flight", used.head);
        self.free.extend(chain.into_iter().rev());
        Some(used)
    }

    /// Whether the device wants a kick for what was posted since this was last asked.
    pub fn needs_kick(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let old = std::mem::replace(&mut self.kick_signalled, self.avail_idx);
        let new = self.avail_idx;
        if old == new {
            false
        } else if self.event_idx {
            new.wrapping_sub(self.avail_event()).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.used_flags() & 1 == 0
        }
    }

    /// Asks for an interrupt at the next used chain. Returns whether there is one already: then
    /// none may come.
    pub fn enable_interrupts(&mut self) -> bool {
        if self.event_idx {
            self.set_used_event(self.last_used);
        } else {
            self.set_avail_flags(0);
        }
        fence(Ordering::SeqCst);
        self.used_idx() != self.last_used
    }

    /// Asks for no interrupts.
    pub fn disable_interrupts(&mut self) {
        if self.event_idx {
            self.set_used_event(self.last_used.wrapping_sub(1));
        } else {
            self.set_avail_flags(1);
        }
    }
}

/// The ring's words as they are.
impl DriverQueue {
    /// Writes descriptor `index` of the table.
    pub fn write_descriptor(&self, index: u16, raw: RawDescriptor) {
        self.memory.write(self.desc + RawDescriptor::SIZE * u64::from(index), &raw.to_bytes());
    }

    /// Writes descriptor `index` of an indirect table at `table`.
    pub fn write_indirect(&self, table: u64, index: u16, raw: RawDescriptor) {
        self.memory.write(table + RawDescriptor::SIZE * u64::from(index), &raw.to_bytes());
    }

    /// Makes `head` available without any bookkeeping.
    pub fn offer_raw(&mut self, head: u16) {
        self.set_avail_entry(self.avail_idx, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.set_avail_idx(self.avail_idx);
    }

    /// Takes a used element without any bookkeeping.
    pub fn reap_raw(&mut self) -> Option<Used> {
        (self.used_idx() != self.last_used).then(|| {
            let used = self.used_entry(self.last_used);
            self.last_used = self.last_used.wrapping_add(1);
            used
        })
    }

    /// `avail.flags`.
    pub fn set_avail_flags(&self, flags: u16) {
        self.memory.store(self.avail, flags);
    }

    /// `avail.idx`.
    pub fn set_avail_idx(&self, index: u16) {
        self.memory.store(self.avail + 2, index);
    }

    /// The avail ring's entry for `index`.
    pub fn set_avail_entry(&self, index: u16, head: u16) {
        self.memory.store(self.avail + 4 + 2 * u64::from(index % self.size), head);
    }

    /// `used_event`, at the end of the avail ring.
    pub fn set_used_event(&self, event: u16) {
        self.memory.store(self.avail + 4 + 2 * u64::from(self.size), event);
    }

    /// `used.flags`.
    #[must_use]
    pub fn used_flags(&self) -> u16 {
        self.memory.load(self.used)
    }

    /// `used.idx`.
    #[must_use]
    pub fn used_idx(&self) -> u16 {
        self.memory.load(self.used + 2)
    }

    /// Overwrites `used.idx`, which belongs to the device.
    pub fn set_used_idx(&self, index: u16) {
        self.memory.store(self.used + 2, index);
    }

    /// The used ring's element for `index`.
    ///
    /// # Panics
    /// Never: the element is eight bytes.
    #[must_use]
    pub fn used_entry(&self, index: u16) -> Used {
        let bytes = self.memory.read(self.used + 4 + 8 * u64::from(index % self.size), 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        Used { head: word(0) as u16, len: word(4) }
    }

    /// `avail_event`, at the end of the used ring.
    #[must_use]
    pub fn avail_event(&self) -> u16 {
        self.memory.load(self.used + 4 + 8 * u64::from(self.size))
    }

    /// Fills descriptor table, avail ring and used ring with `bytes`, over and over.
    pub fn scribble(&self, bytes: &[u8]) {
        let len = Self::footprint(self.size) as usize;
        let garbage: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
        self.memory.write(self.desc, &garbage);
    }
}
