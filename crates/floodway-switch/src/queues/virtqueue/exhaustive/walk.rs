//! All tables of up to four descriptors, in the ring or indirect.

use std::sync::Arc;

use super::{Choices, all_runs};
use crate::frame::iovec::GuestIoVecs;
use crate::queues::virtqueue::{Access, Chain, ChainError, Plain, Pop, Virtqueue};
use crate::stats::work;
use crate::testing::driver::{F_INDIRECT, F_NEXT, F_WRITE};
use crate::testing::{DriverQueue, RawDescriptor, TestMemory};

const PAGE: u64 = 4096;
/// Two regions, adjacent for the guest, and nothing behind them.
const REGIONS: [(u64, u64); 2] = [(0, 2 * PAGE), (BORDER, PAGE)];
const BORDER: u64 = 2 * PAGE;
const END: u64 = 3 * PAGE;
const TABLE: u64 = PAGE;
const BUFFER: u64 = PAGE + 256;

/// Addresses and lengths of buffers: in one region, in two, empty, partly and wholly outside, around the end of the address
/// space, longer than all memory.
const BUFFERS: [(u64, u32); 7] = [
    (BUFFER, 3),
    (BORDER - 1, 2),
    (BUFFER, 0),
    (END - 1, 2),
    (END, 1),
    (u64::MAX, 2),
    (0, u32::MAX),
];

/// What stands in descriptors that nobody should read, and in `next` without `F_NEXT`: a good buffer that leads on.
const GARBAGE: RawDescriptor = RawDescriptor { addr: BUFFER, len: 1, flags: F_NEXT, next: 0 };

/// One run: what the guest's memory holds, as far as it was read.
struct Guest<'a> {
    choices: &'a mut Choices,
    /// Descriptors of the table that is walked, as far as they are chosen.
    table: Vec<Option<RawDescriptor>>,
    /// Times that a descriptor was read.
    reads: u64,
}

/// Where an indirect descriptor leads.
#[derive(Clone, Copy, Debug)]
struct IndirectTable {
    addr: u64,
    len: u32,
}

/// Tables of one to four entries, also at odd addresses, and those that cannot be: of impossible sizes, outside memory, and across
/// regions.
const TABLES: [IndirectTable; 11] = [
    IndirectTable { addr: TABLE, len: 16 },
    IndirectTable { addr: TABLE + 8, len: 32 },
    IndirectTable { addr: TABLE + 3, len: 48 },
    IndirectTable { addr: TABLE, len: 64 },
    IndirectTable { addr: TABLE, len: 0 },
    IndirectTable { addr: TABLE, len: 15 },
    IndirectTable { addr: TABLE, len: 17 },
    IndirectTable { addr: END, len: 16 },
    IndirectTable { addr: END - 16, len: 32 },
    IndirectTable { addr: BORDER - 16, len: 32 },
    IndirectTable { addr: u64::MAX - 15, len: 16 },
];

impl Guest<'_> {
    /// The descriptor at `index` of a table of `len`; `None` if there is none.
    fn read(&mut self, index: usize, len: usize) -> Option<RawDescriptor> {
        if index >= len {
            return None;
        }
        self.reads += 1;
        if self.table[index].is_none() {
            self.table[index] = Some(self.descriptor(len));
        }
        self.table[index]
    }

    /// Any descriptor that could stand in a table of `len`.
    fn descriptor(&mut self, len: usize) -> RawDescriptor {
        let flags = self.choices.choose(8) as u16;
        // `len` itself is the first index that is wrong.
        let next = if flags & F_NEXT != 0 { self.choices.choose(len + 1) as u16 } else { 0 };
        let (addr, len) = if flags & F_INDIRECT != 0 {
            let table = self.choices.pick(&TABLES);
            (table.addr, table.len)
        } else {
            self.choices.pick(&BUFFERS)
        };
        RawDescriptor { addr, len, flags, next }
    }
}

/// Ranges of guest memory that a chain stands for: where, and how many bytes.
type Ranges = Vec<(u64, u64)>;

/// What the chain at `head` is, by the words of virtio 1.2, section 2.7.5, and the limits of `access`.
fn model(
    guest: &mut Guest<'_>,
    head: usize,
    size: usize,
    access: Access,
) -> Result<Ranges, ChainError> {
    let first = guest.read(head, size).expect("heads are checked before");
    if first.flags & F_INDIRECT == 0 {
        return model_table(guest, first, size, access);
    }
    let entries = u64::from(first.len) / 16;
    if first.flags & F_NEXT != 0 || entries == 0 || u64::from(first.len) % 16 != 0 {
        return Err(ChainError::Indirect);
    }
    match regions_of(first.addr, u64::from(first.len)) {
        Some(ranges) if ranges.len() == 1 => {}
        _ => return Err(ChainError::Address),
    }
    // From here on the table is this one.
    guest.table = vec![None; entries as usize];
    let first = guest.read(0, entries as usize).expect("a table has a first entry");
    model_table(guest, first, entries as usize, access)
}

fn model_table(
    guest: &mut Guest<'_>,
    first: RawDescriptor,
    len: usize,
    access: Access,
) -> Result<Ranges, ChainError> {
    let mut ranges = Ranges::new();
    let mut desc = first;
    for visited in 1.. {
        if desc.flags & F_INDIRECT != 0 {
            return Err(ChainError::Indirect);
        }
        let has = ranges.iter().map(|&(_, n)| n).sum::<u64>();
        let wanted = match (access, desc.flags & F_WRITE != 0) {
            (Access::Read { .. }, true) | (Access::Write { .. }, false) => {
                return Err(ChainError::Direction);
            }
            (Access::Read { max }, _) if has + u64::from(desc.len) > u64::from(max) => {
                return Err(ChainError::Length);
            }
            (Access::Read { .. }, _) => u64::from(desc.len),
            (Access::Write { .. }, _) if desc.len == 0 => return Err(ChainError::Length),
            (Access::Write { need }, _) => u64::from(desc.len).min(u64::from(need) - has),
        };
        ranges.extend(regions_of(desc.addr, wanted).ok_or(ChainError::Address)?);
        let is_enough = matches!(access, Access::Write { need } if has + wanted == u64::from(need));
        if desc.flags & F_NEXT == 0 || is_enough {
            return Ok(ranges);
        }
        desc = guest.read(usize::from(desc.next), len).ok_or(ChainError::Index)?;
        if visited == len {
            return Err(ChainError::TooLong);
        }
    }
    unreachable!("a chain is at most as long as its table")
}

/// The range from `addr` on, cut where regions end; `None` if not all of it is in memory. Nothing is nowhere.
fn regions_of(addr: u64, len: u64) -> Option<Ranges> {
    let mut ranges = Ranges::new();
    let (mut at, mut left) = (u128::from(addr), u128::from(len));
    while left > 0 {
        let (gpa, size) = REGIONS
            .into_iter()
            .find(|&(gpa, size)| (u128::from(gpa)..u128::from(gpa + size)).contains(&at))?;
        let n = left.min(u128::from(gpa + size) - at);
        ranges.push((at as u64, n as u64));
        (at, left) = (at + n, left - n);
    }
    Some(ranges)
}

/// A ring of `size` entries of which one is available.
struct Ring {
    memory: Arc<TestMemory>,
    driver: DriverQueue,
    device: Virtqueue,
    iovecs: GuestIoVecs,
    start: u16,
}

impl Ring {
    fn new(size: u16) -> Self {
        let memory = TestMemory::new(&REGIONS);
        let mut driver = DriverQueue::new(Arc::clone(&memory), 0, size, true);
        driver.offer_raw(0);
        let mapped = Arc::new(memory.map());
        let device = Virtqueue::new(mapped, size, driver.addresses(), true).expect("a good ring");
        let start = device.next_avail();
        Self { memory, driver, device, iovecs: GuestIoVecs::default(), start }
    }

    /// What the switch makes of the chain at `head`, after the model has chosen what is in memory.
    fn check(&mut self, choices: &mut Choices, head: u16, access: Access) {
        let size = usize::from(self.driver.size());
        let mut guest = Guest { choices, table: vec![None; size], reads: 0 };
        let mut ring_table = None;
        let expected = {
            // The table of the ring is what was chosen before an indirect one took its place.
            let first = guest.read(usize::from(head), size).expect("a head in the ring");
            if first.flags & F_INDIRECT != 0 {
                ring_table = Some(guest.table.clone());
            }
            guest.reads = 0;
            model(&mut guest, usize::from(head), size, access)
        };
        let reads = guest.reads;
        let table = guest.table;
        let is_single = ring_table.is_none()
            && table[usize::from(head)].is_some_and(|first| first.flags & F_NEXT == 0);
        match ring_table {
            None => self.write(0, &table),
            Some(ring_table) => {
                let indirect = ring_table[usize::from(head)].expect("the head was read");
                self.write(0, &ring_table);
                if indirect.addr < END - 64 {
                    self.write(indirect.addr, &table);
                }
            }
        }
        self.driver.set_avail_entry(self.start, head);
        self.device.rewind(self.start);
        self.iovecs.clear();
        let _ = work::take();
        let popped = self.device.pop(access, &mut self.iovecs).expect("a good head");
        assert_eq!(work::take().descriptors, reads, "descriptors read");
        self.device.rewind(self.start);
        let plain = self.device.pop_plain(access);
        self.compare_plain(plain, is_single, head, access, expected.as_deref().ok());
        self.compare(head, popped, expected);
    }

    /// Checks what was taken as a plain chain: those of one buffer, in one range that is all that is needed, and nothing else.
    fn compare_plain(
        &self,
        plain: Option<Plain>,
        is_single: bool,
        head: u16,
        access: Access,
        ranges: Option<&[(u64, u64)]>,
    ) {
        let is_enough = |n: u64| match access {
            Access::Read { .. } => true,
            Access::Write { need } => n == u64::from(need),
        };
        let range = match ranges {
            Some(&[range]) if is_single && is_enough(range.1) => range,
            _ => {
                assert!(plain.is_none(), "{plain:?}");
                return assert_eq!(self.device.next_avail(), self.start, "nothing was taken");
            }
        };
        let (gpa, n) = range;
        let Plain { head: taken, len, ptr } = plain.expect("a plain chain");
        assert_eq!((taken, u64::from(len)), (head, n));
        let addr = self.memory.frontend_addr(gpa);
        assert_eq!(self.device.memory().translate_frontend(addr, 1), Some(ptr));
        assert_eq!(self.device.next_avail(), self.start.wrapping_add(1));
    }

    fn compare(&self, head: u16, popped: Pop, expected: Result<Ranges, ChainError>) {
        let iovecs = self.iovecs.as_slice().iter().map(|s| (s.as_ptr(), s.len() as u64));
        match expected {
            Ok(ranges) => {
                let len = ranges.iter().map(|&(_, n)| n).sum::<u64>() as u32;
                assert_eq!(popped, Pop::Chain(Chain { head, len }));
                let here = |gpa| {
                    let addr = self.memory.frontend_addr(gpa);
                    self.device.memory().translate_frontend(addr, 1).expect("in memory")
                };
                let ranges = ranges.iter().map(|&(gpa, n)| (here(gpa).cast_const(), n));
                assert!(iovecs.eq(ranges), "{head} {popped:?}");
            }
            Err(error) => {
                assert_eq!(popped, Pop::Malformed { head, error });
                assert!(self.iovecs.is_empty());
            }
        }
    }

    fn write(&self, at: u64, table: &[Option<RawDescriptor>]) {
        for (i, entry) in table.iter().enumerate() {
            self.driver.write_indirect(at, i as u16, entry.unwrap_or(GARBAGE));
        }
    }
}

/// Checks all tables in a ring of `size` whose chain starts at one of `heads`.
fn check_tables(size: u16, heads: std::ops::Range<u16>, limits: &[u32]) {
    let mut ring = Ring::new(size);
    for &limit in limits {
        for access in [Access::Read { max: limit }, Access::Write { need: limit }] {
            for head in heads.clone() {
                all_runs(|choices| ring.check(choices, head, access));
            }
        }
    }
}

#[test]
fn every_table_of_one_or_two_descriptors_is_walked_as_the_model_says() {
    for size in [1, 2] {
        check_tables(size, 0..size, &[1, 2, 3, 4, 5, 6, u32::MAX]);
    }
}

#[test]
fn every_table_of_four_descriptors_is_walked_as_the_model_says() {
    check_tables(4, 0..1, &[7]);
}

#[test]
#[ignore = "takes longer; part of make prove"]
fn every_table_of_four_descriptors_from_every_head_within_every_limit() {
    check_tables(4, 0..4, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, u32::MAX]);
}
