//! Files of front-ends, mapped.
//!
//! # Theory of operation
//! Guest memory and the dirty log arrive as descriptors. Each is mapped once, and the descriptor is closed: a port holds no more of them than its
//! rings need, whatever its front-end shares.
//!
//! **Only memory** is taken: memfds, files on tmpfs or hugetlbfs, DAX devices. A page of any other file comes when its file system has
//! fetched it, and a worker would wait for a disk, or, with FUSE, for the front-end itself, for ever.
//!
//! **Shrinking** a file takes pages away. Where the front-end allows it, the file is sealed against that (`F_SEAL_SHRINK`); QEMU does so by
//! itself. Where not, and where pages are missing for another reason, [`crate::memory::sigbus`] keeps the process alive.
//!
//! Source: `memfd_create(2)`, `fcntl(2)` (file sealing), `mmap(2)`.

#[cfg(any(test, feature = "testing"))]
use std::collections::BTreeMap;
use std::fs::{File, read_link};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;
#[cfg(any(test, feature = "testing"))]
use std::sync::Mutex;

use crate::memory::PAGE_SIZE;
use crate::memory::sigbus::{Faults, Kind, Registration};
#[cfg(any(test, feature = "testing"))]
use crate::sync::lock;

/// `SECRETMEM_MAGIC`: memory of `memfd_secret(2)`.
const SECRETMEM_MAGIC: libc::c_long = 0x5345_434d;
/// `RAMFS_MAGIC`, which libc does not have.
const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

/// Why a file was not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The file ends before the mapping does.
    #[error("the file is too short")]
    Short,
    /// No whole pages, none at all, or more than an address can name.
    #[error("offset and size are no whole pages")]
    Unaligned,
    /// Its pages may have to be fetched from somewhere.
    #[error("the file is not in memory (use a memfd, or a file on tmpfs or hugetlbfs)")]
    NotMemory,
    /// The kernel would soon refuse others' mappings.
    #[error("the switch has too many mappings")]
    TooMany,
    /// The system refused.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A part of a file that a front-end shares, mapped for reading and writing.
#[derive(Debug)]
pub struct SharedMapping {
    host: *mut u8,
    /// Bytes that may be used.
    size: usize,
    /// Bytes mapped: whole pages, which may be huge.
    mapped: usize,
    /// `None` only while it is being dropped.
    registration: Option<Registration>,
}

// SAFETY: the mapping belongs to the value; it is only handed out as raw pointers.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; nothing in it changes before it is dropped.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `size` bytes at `offset` of `file`. Faults are noted in `faults`.
    ///
    /// # Errors
    /// The file is not in memory, ends before, or cannot be mapped.
    pub fn new(
        file: &File,
        offset: u64,
        size: u64,
        kind: Kind,
        faults: &Arc<Faults>,
    ) -> Result<Self, MapError> {
        if size == 0 {
            return Err(MapError::Unaligned);
        }
        let page = page_size(file)?;
        // Sealed before its length is looked at: from here on it can only grow.
        seal(file);
        if !holds(file, offset, size) {
            return Err(MapError::Short);
        }
        let mapped = size.checked_next_multiple_of(page).and_then(|n| usize::try_from(n).ok());
        let (Some(mapped), Ok(offset)) = (mapped, libc::off_t::try_from(offset)) else {
            return Err(MapError::Unaligned);
        };
        let host = map(file, offset, mapped)?;
        let registration = Registration::new(host, mapped, page as usize, kind, faults);
        let refused = registration.is_none();
        let mapping = Self { host, size: size as usize, mapped, registration };
        if refused { Err(MapError::TooMany) } else { Ok(mapping) }
    }

    /// Where it starts.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.host
    }

    /// Bytes that are mapped: its size in whole pages, which may be huge.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.mapped
    }

    /// Its size in bytes.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

/// Mappings that threads have unmapped, by name of the thread.
#[cfg(any(test, feature = "testing"))]
static UNMAPPED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// How many mappings the thread named `thread` has unmapped.
#[cfg(any(test, feature = "testing"))]
#[must_use]
pub fn unmapped_by(thread: &str) -> u64 {
    lock(&UNMAPPED).get(thread).copied().unwrap_or(0)
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        #[cfg(any(test, feature = "testing"))]
        {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            *lock(&UNMAPPED).entry(name).or_default() += 1;
        }
        drop(self.registration.take());
        // SAFETY: the range was mapped by `map` and is ours; nobody may use pointers into it any more.
        let rc = unsafe { libc::munmap(self.host.cast(), self.mapped) };
        debug_assert_eq!(rc, 0, "munmap: {}", io::Error::last_os_error());
    }
}

fn map(file: &File, offset: libc::off_t, len: usize) -> Result<*mut u8, MapError> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let host = unsafe {
        libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), offset)
    };
    if host == libc::MAP_FAILED {
        return Err(failed("map it")(io::Error::last_os_error()));
    }
    Ok(host.cast())
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> MapError {
    move |source| MapError::System { action, source }
}

/// Size of the pages that the file consists of.
///
/// # Errors
/// They are not in memory.
fn page_size(file: &File) -> Result<u64, MapError> {
    let metadata = file.metadata().map_err(failed("look at it"))?;
    if metadata.file_type().is_char_device() {
        return if is_dax(metadata.rdev()) { Ok(PAGE_SIZE) } else { Err(MapError::NotMemory) };
    }
    let system = rustix::fs::fstatfs(file).map_err(|e| failed("look at it")(e.into()))?;
    match system.f_type {
        _ if !metadata.is_file() => Err(MapError::NotMemory),
        libc::HUGETLBFS_MAGIC => Ok(metadata.blksize().max(PAGE_SIZE)),
        libc::TMPFS_MAGIC | RAMFS_MAGIC | SECRETMEM_MAGIC => Ok(PAGE_SIZE),
        _ => Err(MapError::NotMemory),
    }
}

fn is_dax(device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let subsystem = read_link(format!("/sys/dev/char/{major}:{minor}/subsystem"));
    subsystem.is_ok_and(|path| path.ends_with("dax"))
}

/// Keeps the file from shrinking, if its maker has left that to us.
fn seal(file: &File) {
    // SAFETY: takes no pointers. Fails for what is no memfd, and for memfds whose seals are sealed.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
}

/// Returns `true` if the file has `size` bytes at `offset`. What is no regular file has no length to compare with; mapping it fails by itself.
fn holds(file: &File, offset: u64, size: u64) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    !metadata.is_file() || offset.checked_add(size).is_some_and(|end| end <= metadata.len())
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;
    use crate::testing::memory::memfd;

    fn mapped(file: &File, size: u64) -> Result<(SharedMapping, Arc<Faults>), MapError> {
        let faults = Arc::default();
        let mapping = SharedMapping::new(file, 0, size, Kind::GuestMemory, &faults)?;
        Ok((mapping, faults))
    }

    fn read(mapping: &SharedMapping, at: usize) -> u8 {
        assert!(at < mapping.size());
        // SAFETY: inside the mapping.
        unsafe { mapping.as_ptr().add(at).read_volatile() }
    }

    fn write(mapping: &SharedMapping, at: usize, byte: u8) {
        assert!(at < mapping.size());
        // SAFETY: inside the mapping.
        unsafe { mapping.as_ptr().add(at).write_volatile(byte) };
    }

    #[test]
    fn pages_that_go_read_as_zeros_and_are_noted() {
        let file = memfd(8 << 20);
        let (mapping, faults) = mapped(&file, 8 << 20).unwrap();
        let (other, untouched) = mapped(&file, 4096).unwrap();
        for at in [0, 5000, 7 << 20] {
            write(&mapping, at, 7);
        }
        assert_eq!(faults.first(), None);
        file.set_len(4096).unwrap();
        assert_eq!([0, 5000, 7 << 20].map(|at| read(&mapping, at)), [7, 0, 0]);
        write(&mapping, 5000, 9);
        assert_eq!(read(&mapping, 5000), 9, "what is written stays, for us");
        assert_eq!(faults.first(), Some(Kind::GuestMemory));
        assert_eq!(read(&other, 0), 7);
        assert_eq!(untouched.first(), None);
    }

    #[test]
    fn a_mapping_without_any_page_costs_a_bounded_number_of_faults() {
        const SIZE: u64 = 1 << 30;
        let file = memfd(SIZE);
        let (mapping, faults) = mapped(&file, SIZE).unwrap();
        file.set_len(0).unwrap();
        for page in (0..SIZE as usize).step_by(64 << 10) {
            assert_eq!(read(&mapping, page), 0);
        }
        assert_eq!(faults.count(), 65, "one for each chunk, and one for all that is left");
    }

    #[test]
    fn threads_that_fault_together_all_go_on() {
        let file = memfd(64 << 20);
        let (mapping, faults) = mapped(&file, 64 << 20).unwrap();
        file.set_len(0).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..64 << 20).step_by(4096).for_each(|at| write(&mapping, at, 1)));
            }
        });
        assert!(faults.first().is_some());
    }

    /// A file of 1 MiB on a file system that has room for two pages of it. `None` without the right to mount one.
    fn sparse_file_on_a_full_file_system() -> Option<File> {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
        use rustix::thread::{UnshareFlags, unshare_unsafe};
        let dir = tempfile::tempdir().unwrap();
        // A thread with a mount namespace of its own: nobody else sees the mount, and it goes with the file.
        let thread = std::thread::spawn(move || {
            // SAFETY: nothing in this thread relies on the file system that it shares with others.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.ok()?;
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private).unwrap();
            mount("none", dir.path(), "tmpfs", MountFlags::empty(), Some(c"size=8k")).unwrap();
            let path = dir.path().join("memory");
            let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
            file.set_len(1 << 20).unwrap();
            Some(file)
        });
        thread.join().unwrap()
    }

    #[test]
    fn holes_of_a_full_file_system_take_writes_and_are_noted() {
        let Some(file) = sparse_file_on_a_full_file_system() else {
            return eprintln!("not tested: it takes the right to mount");
        };
        let (mapping, faults) = mapped(&file, 1 << 20).unwrap();
        (0..1 << 20).step_by(4096).for_each(|at| write(&mapping, at, 1));
        assert_eq!(faults.first(), Some(Kind::GuestMemory));
        assert_eq!(read(&mapping, (1 << 20) - 4096), 1);
    }

    #[test]
    fn huge_pages_that_run_out_read_as_zeros() {
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), flags) };
        if fd < 0 {
            return eprintln!("not tested: the kernel has no huge pages of 2 MiB");
        }
        // SAFETY: a new descriptor without another owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(64 << 20).unwrap();
        // A page in the middle of the file, and not all of the last one.
        let faults = Arc::default();
        let mapping =
            SharedMapping::new(&file, 2 << 20, 5 << 20, Kind::GuestMemory, &faults).unwrap();
        file.set_len(0).unwrap();
        assert_eq!([0, 3 << 20, (5 << 20) - 1].map(|at| read(&mapping, at)), [0; 3]);
        assert_eq!(faults.first(), Some(Kind::GuestMemory));
    }

    #[test]
    fn a_file_that_may_be_sealed_cannot_shrink_any_more() {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; the new descriptor has no other owner.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags)) };
        file.set_len(8192).unwrap();
        let (mapping, _) = mapped(&file, 8192).unwrap();
        let error = file.set_len(0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert_eq!(read(&mapping, 4096), 0);
        file.set_len(16384).expect("growing is allowed");
    }

    #[test]
    fn what_is_not_in_memory_is_refused() {
        for path in ["/dev/zero", "/proc/self/environ"] {
            let file = File::open(path).unwrap();
            assert!(matches!(mapped(&file, 4096), Err(MapError::NotMemory)), "{path}");
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        assert!(matches!(mapped(&memfd(4096), 8192), Err(MapError::Short)));
        assert!(matches!(mapped(&memfd(4096), 0), Err(MapError::Unaligned)));
    }
}
