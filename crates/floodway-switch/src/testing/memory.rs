//! A VM's memory as the VM and its VMM see it.

use std::fs::File;
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use vm_memory::FileOffset;
use vm_memory::mmap::{MmapRegion, MmapRegionBuilder};

use crate::memory::{GuestMemory, RegionLayout};

/// How far the front-end's addresses are from guest physical ones: no address is good in both spaces.
pub const FRONTEND_BASE: u64 = 0x7f12_0000_0000;

/// Gap that the front-end has between two regions, so that none is contiguous with the next there.
const FRONTEND_GAP: u64 = 1 << 32;

struct Region {
    layout: RegionLayout,
    file: File,
    map: MmapRegion,
}

/// Guest memory in memfds. All accesses are by guest physical address and may cross regions.
pub struct TestMemory {
    regions: Vec<Region>,
}

/// What memory is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB.
    #[default]
    Small,
    /// 2 MiB, of the kernel's pool.
    Huge,
}

impl Pages {
    /// Bytes of a page.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Small => 4 << 10,
            Self::Huge => 2 << 20,
        }
    }

    fn flags(self) -> libc::c_uint {
        match self {
            Self::Small => 0,
            Self::Huge => libc::MFD_HUGETLB | libc::MFD_HUGE_2MB,
        }
    }
}

/// A memory file of `size` bytes.
///
/// # Panics
/// The system has none left.
#[must_use]
pub fn memfd(size: u64) -> File {
    memfd_of(Pages::Small, size)
}

fn memfd_of(pages: Pages, size: u64) -> File {
    let flags = libc::MFD_CLOEXEC | pages.flags();
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"floodway-test".as_ptr(), flags) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor that nobody else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size).expect("memfd takes its size");
    file
}

impl TestMemory {
    /// Memory with a region for each (guest physical address, size) in bytes; sizes are whole pages.
    ///
    /// # Panics
    /// The system has no memory files or mappings left.
    #[must_use]
    pub fn new(regions: &[(u64, u64)]) -> Arc<Self> {
        Self::of(Pages::Small, regions)
    }

    /// As [`TestMemory::new`], of such pages.
    ///
    /// # Panics
    /// As [`TestMemory::new`]; or the kernel's pool has too few huge pages.
    #[must_use]
    pub fn of(pages: Pages, regions: &[(u64, u64)]) -> Arc<Self> {
        let region = |(i, &(gpa, size)): (usize, &(u64, u64))| {
            let file = memfd_of(pages, size);
            let offset = FileOffset::new(file.try_clone().expect("descriptors left"), 0);
            let map = MmapRegionBuilder::new(size as usize)
                .with_file_offset(offset)
                .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
                .with_mmap_flags(libc::MAP_SHARED)
                .build()
                .expect("a memfd can be mapped");
            let frontend_addr = FRONTEND_BASE + gpa + i as u64 * FRONTEND_GAP;
            Region { layout: RegionLayout { gpa, size, frontend_addr, file_offset: 0 }, file, map }
        };
        Arc::new(Self { regions: regions.iter().enumerate().map(region).collect() })
    }

    /// Layouts of all regions.
    pub fn layouts(&self) -> impl Iterator<Item = RegionLayout> + '_ {
        self.regions.iter().map(|r| r.layout)
    }

    /// The file of region `i`.
    ///
    /// # Panics
    /// There is no such region.
    #[must_use]
    pub fn file(&self, i: usize) -> &File {
        &self.regions[i].file
    }

    /// The same memory as the switch maps it.
    ///
    /// # Panics
    /// The system has no mappings left.
    #[must_use]
    pub fn map(&self) -> GuestMemory {
        let files = self.regions.iter().map(|r| r.file.try_clone().expect("descriptors left"));
        GuestMemory::map(self.layouts().zip(files)).expect("good regions")
    }

    /// The front-end's address of `gpa`.
    ///
    /// # Panics
    /// The address is in no region.
    #[must_use]
    pub fn frontend_addr(&self, gpa: u64) -> u64 {
        let (region, offset) = self.at(gpa).expect("an address in guest memory");
        region.layout.frontend_addr + offset
    }

    fn at(&self, gpa: u64) -> Option<(&Region, u64)> {
        self.regions.iter().find_map(|r| {
            let offset = gpa.checked_sub(r.layout.gpa)?;
            (offset < r.layout.size).then_some((r, offset))
        })
    }

    fn each_piece(&self, gpa: u64, len: usize, mut f: impl FnMut(*mut u8, usize, usize)) {
        let mut done = 0;
        while done < len {
            let (region, offset) = self.at(gpa + done as u64).expect("an address in guest memory");
            let n = (len - done).min((region.layout.size - offset) as usize);
            // SAFETY: `offset` is inside the mapping.
            f(unsafe { region.map.as_ptr().add(offset as usize) }, done, n);
            done += n;
        }
    }

    /// Copies `bytes` to `gpa`.
    ///
    /// # Panics
    /// The range is not in guest memory.
    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        self.each_piece(gpa, bytes.len(), |p, done, n| {
            // SAFETY: n bytes are mapped at p, and as many are left in `bytes`; nobody has a
            // reference to guest memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), p, n) };
        });
    }

    /// Copies `len` bytes from `gpa`.
    ///
    /// # Panics
    /// As [`TestMemory::write`].
    #[must_use]
    pub fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; len];
        self.each_piece(gpa, len, |p, done, n| {
            // SAFETY: as in `write`.
            unsafe { std::ptr::copy_nonoverlapping(p.cast_const(), bytes[done..].as_mut_ptr(), n) };
        });
        bytes
    }

    /// The aligned 16-bit word at `gpa`, shared with whoever else maps this memory.
    ///
    /// # Panics
    /// The address is odd or not in guest memory.
    #[must_use]
    pub fn word(&self, gpa: u64) -> &AtomicU16 {
        let (region, offset) = self.at(gpa).expect("an address in guest memory");
        assert!(offset.is_multiple_of(2), "{gpa:#x} is odd");
        // SAFETY: aligned, inside a mapping that lives as long as `self`, only accessed as atomic.
        unsafe { AtomicU16::from_ptr(region.map.as_ptr().add(offset as usize).cast()) }
    }

    /// Loads the word at `gpa` before anything that follows.
    #[must_use]
    pub fn load(&self, gpa: u64) -> u16 {
        self.word(gpa).load(Ordering::Acquire)
    }

    /// Stores the word at `gpa` after everything that came before.
    pub fn store(&self, gpa: u64, value: u16) {
        self.word(gpa).store(value, Ordering::Release);
    }
}
