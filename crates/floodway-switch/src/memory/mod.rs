//! Guest memory: the regions that a front-end shares with us, and the translation of guest
//! addresses into ours.
//!
//! # Theory of operation
//! A front-end sends its regions as file descriptors (`SET_MEM_TABLE`, `ADD_MEM_REG`). Each is
//! mapped once; a [`GuestMemory`] is an immutable list of mapped regions. A change of the table
//! makes a new list and swaps it under each queue's lock, and the old mappings go when their last
//! user lets go of them: nothing that a batch has translated can be unmapped under it. That last user is the port's own thread
//! ([`crate::vhost::device`]): unmapping gigabytes takes longer than a worker may.
//!
//! Regions consist of whole pages, do not overlap and are sorted by guest address. Looking an address up
//! (`lookup`) is a comparison with the region of the last hit, or else a binary search: at most 9 comparisons
//! with the most regions that there can be, in a list of 2 KiB that has nothing else in it and so stays in the cache. As no region is smaller than a page, a buffer crosses at most one border for each page.
//!
//! Translation answers with a raw pointer and the number of bytes that are contiguous there. The
//! bounds are checked here, once per descriptor, and nowhere else.
//!
//! A guest can only name addresses inside its own regions. Its front-end is trusted no more than the guest: it may take the pages
//! away again ([`crate::memory::sigbus`]), and shares at most what its [`budget`] allows, so that mappings and addresses are left for other ports.

pub mod budget;
pub(crate) mod copy;
pub mod dirty_log;
mod lookup;
pub mod mapping;
pub mod sigbus;

use std::fs::File;
use std::sync::Arc;

use crate::memory::dirty_log::DirtyLog;
use crate::memory::mapping::{MapError, SharedMapping};
use crate::memory::sigbus::{Faults, Kind};
use crate::stats::work::{self, Unit};
use budget::{Amount, Lease, Share};

/// Most regions that one front-end may share.
pub const MAX_REGIONS: usize = 256;
/// Most bytes that one front-end may share.
pub const MAX_BYTES: u64 = 16 << 40;

/// What addresses and sizes of regions are multiples of, in bytes.
pub const PAGE_SIZE: u64 = 4096;

/// Why a region was refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file could not be mapped.
    #[error("cannot map guest memory region at {gpa:#x} of {size:#x} bytes: {source}")]
    Map {
        /// Guest physical address of the region.
        gpa: u64,
        /// Its size in bytes.
        size: u64,
        /// Why not.
        source: MapError,
    },
    /// Size zero, or an end past the end of the address space.
    #[error("guest memory region at {gpa:#x} has an impossible size {size:#x}")]
    Size {
        /// Guest physical address of the region.
        gpa: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// Not made of whole pages. With regions of a few bytes a guest could have a buffer cut into any number of pieces.
    #[error(
        "guest memory region at {gpa:#x} of {size:#x} bytes: its {field} {value:#x} is not a multiple of the page size \
         ({PAGE_SIZE:#x}); the VMM has to share whole pages"
    )]
    Unaligned {
        /// Guest physical address of the region.
        gpa: u64,
        /// Its size in bytes.
        size: u64,
        /// Which number is wrong.
        field: &'static str,
        /// The number.
        value: u64,
    },
    /// Two regions share guest addresses.
    #[error("guest memory region at {gpa:#x} overlaps another region")]
    Overlap {
        /// Guest physical address of the region.
        gpa: u64,
    },
    /// More than [`MAX_REGIONS`].
    #[error("more than {MAX_REGIONS} guest memory regions (share fewer and larger ones)")]
    TooMany,
    /// More than [`MAX_BYTES`].
    #[error(
        "guest memory of more than {MAX_BYTES:#x} bytes, with the region at {gpa:#x} of {size:#x} bytes (give the VM less memory)"
    )]
    TooLarge {
        /// Guest physical address of the region.
        gpa: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// Other front-ends would have too little: see [`budget`].
    #[error(
        "guest memory region at {gpa:#x} of {size:#x} bytes is more than the switch has left for this port: it always gets {} \
         regions and {:#x} bytes, and more while others need less (give this or other VMs less memory in fewer regions, or configure fewer ports)",
        part.regions,
        part.bytes
    )]
    OverBudget {
        /// Guest physical address of the region.
        gpa: u64,
        /// Its size in bytes.
        size: u64,
        /// What the port always gets.
        part: Amount,
    },
    /// A region to be removed is not there.
    #[error("no guest memory region at {gpa:#x} of {size:#x} bytes")]
    Unknown {
        /// Guest physical address of the region.
        gpa: u64,
        /// Its size in bytes.
        size: u64,
    },
}

/// Where a region lies, in the three address spaces that know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// Guest physical address.
    pub gpa: u64,
    /// Size in bytes.
    pub size: u64,
    /// Address in the front-end's process; ring addresses arrive in this space.
    pub frontend_addr: u64,
    /// Where the region starts in its file.
    pub file_offset: u64,
}

impl RegionLayout {
    /// Checks that the region is made of whole pages.
    fn check_alignment(&self) -> Result<(), MemoryError> {
        let Self { gpa, size, file_offset, .. } = *self;
        let fields = [("guest address", gpa), ("size", size), ("offset in its file", file_offset)];
        match fields.into_iter().find(|(_, value)| !value.is_multiple_of(PAGE_SIZE)) {
            Some((field, value)) => Err(MemoryError::Unaligned { gpa, size, field, value }),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug)]
struct Region {
    layout: RegionLayout,
    /// Device and inode.
    file: (u64, u64),
    host: *mut u8,
    // Keeps `host` mapped.
    mapping: Arc<Leased>,
}

/// Device and inode of a file; `None` if the kernel does not say.
fn identity(file: &File) -> Option<(u64, u64)> {
    let found = rustix::fs::fstat(file).ok()?;
    Some((found.st_dev, found.st_ino))
}

/// A mapping, and what it takes of its port's share: given back when it has gone, so this is the order of the fields.
#[derive(Debug)]
struct Leased {
    mapping: SharedMapping,
    _lease: Lease,
}

// SAFETY: `host` is the address of a shared mapping that `mapping` (Send + Sync) keeps alive; it is
// only handed out as raw pointers.
unsafe impl Send for Region {}
// SAFETY: as above; nothing in a region changes after its construction.
unsafe impl Sync for Region {}

/// The memory of one guest, as it was at one moment. See the module's theory of operation.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    /// Sorted by guest address.
    regions: Vec<Region>,
    /// Guest addresses of `regions`.
    starts: Vec<u64>,
    /// Indices of `regions`, sorted by where they are mapped here.
    by_host: Vec<u16>,
    /// Where writes are noted, while the VM migrates.
    log: Option<Arc<DirtyLog>>,
    share: Share,
    /// Where it is noted that pages have gone.
    faults: Arc<Faults>,
}

impl GuestMemory {
    /// Memory without regions, for the connection whose faults are noted in `faults`, of a port with `share`.
    #[must_use]
    pub fn new(share: Share, faults: Arc<Faults>) -> Self {
        Self { share, faults, ..Self::default() }
    }

    /// Maps `regions`, a whole table, for tests.
    ///
    /// # Errors
    /// As [`GuestMemory::with_table`].
    #[cfg(any(test, feature = "testing"))]
    pub fn map(
        regions: impl IntoIterator<Item = (RegionLayout, File)>,
    ) -> Result<Self, MemoryError> {
        Self::default().with_table(regions)
    }

    /// Memory of the same connection with `regions`, a whole table, in place of its own.
    ///
    /// # Errors
    /// The first region that cannot be mapped, has an impossible size, overlaps another, or is more than is allowed.
    pub fn with_table(
        &self,
        regions: impl IntoIterator<Item = (RegionLayout, File)>,
    ) -> Result<Self, MemoryError> {
        let empty = Self::new(self.share.clone(), Arc::clone(&self.faults));
        regions
            .into_iter()
            .try_fold(empty, |memory, (layout, file)| memory.with_region(layout, &file))
    }

    /// The same memory and one more region.
    ///
    /// # Errors
    /// As [`GuestMemory::with_table`].
    pub fn with_region(&self, layout: RegionLayout, file: &File) -> Result<Self, MemoryError> {
        let at = self.place(layout)?;
        let mapping = self.map_region(layout, file)?;
        let mut regions = self.regions.clone();
        let host = mapping.mapping.as_ptr();
        let file = identity(file).unwrap_or_default();
        let region = Region { layout, file, host, mapping: Arc::new(mapping) };
        regions.insert(at, region);
        Ok(self.of(regions))
    }

    fn map_region(&self, layout: RegionLayout, file: &File) -> Result<Leased, MemoryError> {
        let RegionLayout { gpa, size, file_offset, .. } = layout;
        let over_budget = || MemoryError::OverBudget { gpa, size, part: self.share.part() };
        let mut lease = self.share.lease(Amount::mapping(size)).ok_or_else(over_budget)?;
        let mapping = SharedMapping::new(file, file_offset, size, Kind::GuestMemory, &self.faults)
            .map_err(|source| MemoryError::Map { gpa, size, source })?;
        // Huge pages are mapped whole.
        let more = mapping.mapped() as u64 - size;
        if !lease.extend(Amount { regions: 0, bytes: more }) {
            return Err(over_budget());
        }
        Ok(Leased { mapping, _lease: lease })
    }

    /// Checks a region; returns its place among the others.
    fn place(&self, layout: RegionLayout) -> Result<usize, MemoryError> {
        let RegionLayout { gpa, size, .. } = layout;
        let Some(end) = gpa.checked_add(size).filter(|_| size > 0) else {
            return Err(MemoryError::Size { gpa, size });
        };
        layout.check_alignment()?;
        if self.regions.len() >= MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        if size > MAX_BYTES.saturating_sub(self.size()) {
            return Err(MemoryError::TooLarge { gpa, size });
        }
        let at = self.regions.partition_point(|r| r.layout.gpa < end);
        if self.regions[..at].last().is_some_and(|r| gpa < r.layout.gpa + r.layout.size) {
            return Err(MemoryError::Overlap { gpa });
        }
        Ok(at)
    }

    /// The same memory, whose writes are noted in `log`, or nowhere.
    #[must_use]
    pub fn with_log(&self, log: Option<Arc<DirtyLog>>) -> Self {
        Self { log, ..self.clone() }
    }

    /// Returns `true` if there is this region, of this file.
    #[must_use]
    pub fn has(&self, layout: RegionLayout, file: &File) -> bool {
        let is_it =
            |region: &Region| region.layout == layout && Some(region.file) == identity(file);
        self.regions.iter().any(is_it)
    }

    /// The same memory without the region at `gpa` of `size` bytes.
    ///
    /// # Errors
    /// There is no such region.
    pub fn without_region(&self, gpa: u64, size: u64) -> Result<Self, MemoryError> {
        let is_it = |r: &Region| r.layout.gpa == gpa && r.layout.size == size;
        if !self.regions.iter().any(is_it) {
            return Err(MemoryError::Unknown { gpa, size });
        }
        let regions = self.regions.iter().filter(|r| !is_it(r)).cloned().collect();
        Ok(self.of(regions))
    }

    /// The same memory with `regions`, which are sorted by guest address, in place of its own.
    fn of(&self, regions: Vec<Region>) -> Self {
        let mut by_host: Vec<u16> = (0..regions.len() as u16).collect();
        by_host.sort_unstable_by_key(|&i| {
            work::count(Unit::Comparison);
            regions[usize::from(i)].host
        });
        let starts = regions.iter().map(|region| region.layout.gpa).collect();
        Self { regions, starts, by_host, ..self.clone() }
    }

    /// Where the regions lie, sorted by guest address.
    #[must_use]
    pub fn layouts(&self) -> Vec<RegionLayout> {
        self.regions.iter().map(|region| region.layout).collect()
    }

    /// Bytes mapped.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.mapping.mapping.size() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::budget::Budget;
    use super::*;
    use crate::testing::memory::memfd;

    const PAGE: u64 = PAGE_SIZE;

    fn layout(gpa: u64, pages: u64) -> RegionLayout {
        RegionLayout {
            gpa,
            size: pages * PAGE,
            frontend_addr: gpa.wrapping_add(0x7000_0000),
            file_offset: 0,
        }
    }

    fn file(pages: u64) -> File {
        memfd(pages * PAGE)
    }

    #[test]
    fn translation_stops_at_the_end_of_a_region() {
        let memory =
            GuestMemory::map([(layout(0, 2), file(2)), (layout(4 * PAGE, 1), file(1))]).unwrap();
        let mut hint = 0;
        let (_, n) = memory.translate(&mut hint, PAGE, 3 * PAGE as u32).unwrap();
        assert_eq!(n, PAGE as u32);
        assert!(memory.translate(&mut hint, 2 * PAGE, 1).is_none());
        assert!(memory.translate(&mut hint, u64::MAX, 1).is_none());
        let (_, n) = memory.translate(&mut hint, 5 * PAGE - 1, 8).unwrap();
        assert_eq!((n, hint), (1, 1));
        assert!(memory.translate_frontend(0x7000_0000, 2 * PAGE).is_some());
        assert!(memory.translate_frontend(0x7000_0000 + 1, 2 * PAGE).is_none());
        assert!(memory.translate_frontend(0, 1).is_none());
    }

    #[test]
    fn a_look_up_takes_nine_comparisons_whatever_the_order_of_the_regions() {
        let at = |i: u64| 3 * PAGE * (i * 37 % MAX_REGIONS as u64);
        let regions = (0..MAX_REGIONS as u64).map(|i| (layout(at(i), 2), file(2)));
        let memory = GuestMemory::map(regions).unwrap();
        assert!(matches!(
            memory.with_region(layout(1 << 40, 1), &file(1)),
            Err(MemoryError::TooMany)
        ));
        for page in 0..3 * MAX_REGIONS as u64 {
            for hint in [0, 77, MAX_REGIONS - 1, usize::MAX] {
                let (mut hint, gpa) = (hint, page * PAGE);
                let _ = work::take();
                let found = memory.translate(&mut hint, gpa + 5, 2 * PAGE as u32);
                assert!(work::take().comparisons <= 9);
                let contiguous = (2 * PAGE).checked_sub(page % 3 * PAGE + 5);
                assert_eq!(found.map(|(_, n)| u64::from(n)), contiguous);
                assert_eq!(
                    found.map(|(host, _)| host),
                    memory.translate_frontend(0x7000_0000 + gpa + 5, 1)
                );
            }
        }
    }

    #[test]
    fn impossible_regions_are_refused() {
        let memory = GuestMemory::map([(layout(0, 2), file(2))]).unwrap();
        assert!(matches!(
            memory.with_region(layout(PAGE, 1), &file(1)),
            Err(MemoryError::Overlap { .. })
        ));
        assert!(matches!(
            memory.with_region(layout(u64::MAX - 5, 1), &file(1)),
            Err(MemoryError::Size { .. })
        ));
        assert!(matches!(
            memory.with_region(layout(8 * PAGE, 0), &file(1)),
            Err(MemoryError::Size { .. })
        ));
        let beyond_the_file = memory.with_region(layout(8 * PAGE, 4), &file(1));
        assert!(
            matches!(beyond_the_file, Err(MemoryError::Map { source: MapError::Short, .. })),
            "a mapping past the end of its file"
        );
        for (field, wrong) in [
            ("size", RegionLayout { size: 1, ..layout(8 * PAGE, 1) }),
            ("size", RegionLayout { size: PAGE + 512, ..layout(8 * PAGE, 1) }),
            ("guest address", layout(8 * PAGE + 8, 1)),
            ("offset in its file", RegionLayout { file_offset: 100, ..layout(8 * PAGE, 1) }),
        ] {
            let refused = memory.with_region(wrong, &file(2));
            assert!(
                matches!(refused, Err(MemoryError::Unaligned { field: named, .. }) if named == field),
                "{field}: {refused:?}"
            );
        }
        assert!(matches!(memory.without_region(PAGE, PAGE), Err(MemoryError::Unknown { .. })));
        assert_eq!(memory.without_region(0, 2 * PAGE).unwrap().size(), 0);
    }

    #[test]
    fn a_front_end_shares_no_more_than_its_port_may() {
        let file = memfd(PAGE);
        file.set_len(MAX_BYTES + PAGE).unwrap();
        let whole = layout(0, MAX_BYTES / PAGE);
        let memory = GuestMemory::map([(whole, file.try_clone().unwrap())]).unwrap();
        let more = memory.with_region(layout(MAX_BYTES, 1), &file);
        assert!(matches!(more, Err(MemoryError::TooLarge { .. })));
    }

    /// A table that replaces another one is mapped beside it.
    #[test]
    fn what_is_replaced_counts_until_it_is_unmapped() {
        let shares = Share::of(Budget::new(4096));
        let memory = GuestMemory::new(shares.clone(), Arc::default());
        let table = |n: u64| (0..n).map(|i| (layout(2 * i * PAGE, 1), file(1)));
        let before = shares.held();
        let mut tables = Vec::new();
        let refused = loop {
            match memory.with_table(table(200)) {
                Ok(table) => tables.push(table),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, MemoryError::OverBudget { .. }), "{refused}");
        // Half of the common half.
        let most = budget::TOTAL.regions / 4 + shares.part().regions;
        let held = tables.len() as u64 * 200;
        assert!(held <= most && held + 200 > most, "{held}");
        assert_eq!(shares.held(), Amount { regions: held, bytes: held * PAGE });
        // A region that is in several tables is mapped once.
        let last = tables.pop().unwrap();
        let less = last.without_region(0, PAGE).unwrap();
        assert_eq!(shares.held().regions, held);
        drop((last, tables));
        assert_eq!(shares.held().regions, 199);
        drop(less);
        assert_eq!(shares.held(), before);
    }
}
