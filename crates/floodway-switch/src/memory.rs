//! Guest memory: the regions that a front-end shares with us, and the translation of guest
//! addresses into ours.
//!
//! # Theory of operation
//! A front-end sends its regions as file descriptors (`SET_MEM_TABLE`, `ADD_MEM_REG`). Each is
//! mapped once; a [`GuestMemory`] is an immutable list of mapped regions. A change of the table
//! makes a new list and swaps it under each queue's lock, and the old mappings go when their last
//! user lets go of them: nothing that a batch has translated can be unmapped under it.
//!
//! Translation answers with a raw pointer and the number of bytes that are contiguous there. The
//! bounds are checked here, once per descriptor, and nowhere else.
//!
//! A guest can only name addresses inside its own regions. The front-end process is trusted a
//! little more than its guest: it could truncate a file that we have mapped, which the kernel
//! answers with `SIGBUS` for us. QEMU seals its memory files against that.

use std::fs::File;
use std::sync::Arc;

use vm_memory::FileOffset;
use vm_memory::mmap::{MmapRegion, MmapRegionBuilder};

use crate::dirty_log::DirtyLog;

/// Most regions that one front-end may share.
pub const MAX_REGIONS: usize = 256;

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
        /// What the mapping said.
        source: vm_memory::mmap::MmapRegionError,
    },
    /// The file ends before the region does: touching the rest would kill us.
    #[error("guest memory region at {gpa:#x} of {size:#x} bytes is longer than its file")]
    Short {
        /// Guest physical address of the region.
        gpa: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// Size zero, or an end past the end of the address space.
    #[error("guest memory region at {gpa:#x} has an impossible size {size:#x}")]
    Size {
        /// Guest physical address of the region.
        gpa: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// Two regions share guest addresses.
    #[error("guest memory region at {gpa:#x} overlaps another region")]
    Overlap {
        /// Guest physical address of the region.
        gpa: u64,
    },
    /// More than [`MAX_REGIONS`].
    #[error("more than {MAX_REGIONS} guest memory regions")]
    TooMany,
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

#[derive(Clone, Debug)]
struct Region {
    layout: RegionLayout,
    host: *mut u8,
    // Keeps `host` mapped.
    mapping: Arc<MmapRegion>,
}

// SAFETY: `host` is the address of a shared mapping that `mapping` (Send + Sync) keeps alive; it is
// only handed out as raw pointers.
unsafe impl Send for Region {}
// SAFETY: as above; nothing in a region changes after its construction.
unsafe impl Sync for Region {}

/// The memory of one guest, as it was at one moment. See the module's theory of operation.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    regions: Vec<Region>,
    /// Where writes are noted, while the VM migrates.
    log: Option<Arc<DirtyLog>>,
}

impl GuestMemory {
    /// Maps `regions`, a whole table.
    ///
    /// # Errors
    /// The first region that cannot be mapped, has an impossible size, or overlaps another.
    pub fn map(
        regions: impl IntoIterator<Item = (RegionLayout, File)>,
    ) -> Result<Self, MemoryError> {
        regions
            .into_iter()
            .try_fold(Self::default(), |memory, (layout, file)| memory.with_region(layout, file))
    }

    /// The same memory and one more region.
    ///
    /// # Errors
    /// As [`GuestMemory::map`].
    pub fn with_region(&self, layout: RegionLayout, file: File) -> Result<Self, MemoryError> {
        let RegionLayout { gpa, size, .. } = layout;
        let end = gpa.checked_add(size).filter(|_| size > 0);
        let (Some(end), Ok(len)) = (end, usize::try_from(size)) else {
            return Err(MemoryError::Size { gpa, size });
        };
        if self.regions.len() >= MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        if self.regions.iter().any(|r| gpa < r.layout.gpa + r.layout.size && r.layout.gpa < end) {
            return Err(MemoryError::Overlap { gpa });
        }
        if !holds(&file, layout.file_offset, size) {
            return Err(MemoryError::Short { gpa, size });
        }
        let mapping = MmapRegionBuilder::new(len)
            .with_file_offset(FileOffset::new(file, layout.file_offset))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .build()
            .map_err(|source| MemoryError::Map { gpa, size, source })?;
        let mut regions = self.regions.clone();
        regions.push(Region { layout, host: mapping.as_ptr(), mapping: Arc::new(mapping) });
        Ok(Self { regions, log: self.log.clone() })
    }

    /// The same memory, whose writes are noted in `log`, or nowhere.
    #[must_use]
    pub fn with_log(&self, log: Option<Arc<DirtyLog>>) -> Self {
        Self { regions: self.regions.clone(), log }
    }

    /// Writes have to be noted.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// Notes that `len` bytes at `host`, an address of ours that lies in this memory, have been written.
    #[cold]
    pub fn note_write(&self, host: *const u8, len: usize) {
        let Some(log) = &self.log else { return };
        let offset = |r: &Region| (host as usize).wrapping_sub(r.host as usize) as u64;
        if let Some(region) = self.regions.iter().find(|r| offset(r) < r.layout.size) {
            log.mark(region.layout.gpa + offset(region), len as u64);
        }
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
        Ok(Self { regions, log: self.log.clone() })
    }

    /// Our address of guest physical address `gpa`, and how many of `len` bytes are contiguous
    /// there (at least 1). `None` if the address is in no region.
    ///
    /// `hint` is the region of the caller's last hit; almost every guest has its buffers in one.
    #[inline]
    #[must_use]
    pub fn translate(&self, hint: &mut usize, gpa: u64, len: u32) -> Option<(*mut u8, u32)> {
        let region = match self.regions.get(*hint) {
            Some(r) if gpa.wrapping_sub(r.layout.gpa) < r.layout.size => r,
            _ => self.find(hint, gpa)?,
        };
        let offset = gpa - region.layout.gpa;
        let contiguous = (region.layout.size - offset).min(u64::from(len)) as u32;
        // SAFETY: offset < size, and the mapping is `size` bytes long.
        Some((unsafe { region.host.add(offset as usize) }, contiguous))
    }

    #[cold]
    fn find(&self, hint: &mut usize, gpa: u64) -> Option<&Region> {
        let hit = |r: &Region| gpa.wrapping_sub(r.layout.gpa) < r.layout.size;
        *hint = self.regions.iter().position(hit)?;
        self.regions.get(*hint)
    }

    /// Our address of `len` bytes at the front-end's address `addr`, if they lie inside one region.
    #[must_use]
    pub fn translate_frontend(&self, addr: u64, len: u64) -> Option<*mut u8> {
        self.regions.iter().find_map(|r| {
            let offset = addr.checked_sub(r.layout.frontend_addr)?;
            let room = r.layout.size.checked_sub(offset)?;
            // SAFETY: offset <= size, and the mapping is `size` bytes long.
            (len <= room).then(|| unsafe { r.host.add(offset as usize) })
        })
    }

    /// Bytes mapped.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.mapping.size() as u64).sum()
    }
}

/// The file has `size` bytes at `offset`. What is no regular file (a DAX device) has no length to
/// compare with; mapping it fails by itself.
fn holds(file: &File, offset: u64, size: u64) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    !metadata.is_file() || offset.checked_add(size).is_some_and(|end| end <= metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn layout(gpa: u64, pages: u64) -> RegionLayout {
        RegionLayout {
            gpa,
            size: pages * PAGE,
            frontend_addr: gpa.wrapping_add(0x7000_0000),
            file_offset: 0,
        }
    }

    fn file(pages: u64) -> File {
        let f = tempfile::tempfile().unwrap();
        f.set_len(pages * PAGE).unwrap();
        f
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
    fn impossible_regions_are_refused() {
        let memory = GuestMemory::map([(layout(0, 2), file(2))]).unwrap();
        assert!(matches!(
            memory.with_region(layout(PAGE, 1), file(1)),
            Err(MemoryError::Overlap { .. })
        ));
        assert!(matches!(
            memory.with_region(layout(u64::MAX - 5, 1), file(1)),
            Err(MemoryError::Size { .. })
        ));
        assert!(matches!(
            memory.with_region(layout(8 * PAGE, 0), file(1)),
            Err(MemoryError::Size { .. })
        ));
        let beyond_the_file = memory.with_region(layout(8 * PAGE, 4), file(1));
        assert!(
            matches!(beyond_the_file, Err(MemoryError::Short { .. })),
            "a mapping past the end of its file"
        );
        assert!(matches!(memory.without_region(PAGE, PAGE), Err(MemoryError::Unknown { .. })));
        assert_eq!(memory.without_region(0, 2 * PAGE).unwrap().size(), 0);
    }
}
