//! State that outlives this process: in memory that a broker has made and gives to one data plane after the other.
//!
//! # Theory of operation
//! Such memory is a file without a name (`memfd_create(2)`) of fixed size, mapped for as long as the process runs. It is an array of 64-bit words, each of which is read and
//! written whole. The process that wrote them may have died at any point, and may have been taken over before: a reader takes every word for
//! what anybody could have written.
//!
//! | module | what it is |
//! |---|---|
//! | [`counters`] | traffic and drops of queues, ports and uplinks, and what mechanisms have done |
//! | [`journal`] | what was acknowledged for a guest |
//! | [`flows`] | connections that go on as they were |
//! | [`addresses`] | where learned addresses are |
//! | [`pairs`] | who sends to whom |
//! | [`turns`] | whose turn it is |

pub mod addresses;
pub mod counters;
pub mod flows;
pub mod journal;
pub mod pairs;
pub mod turns;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

/// Bytes of a word.
pub const WORD: usize = size_of::<u64>();

/// Maps the first `words` words of `file` for good.
///
/// # Errors
/// The file is shorter or may shrink, or cannot be mapped.
pub fn map(file: &OwnedFd, words: usize) -> io::Result<&'static [AtomicU64]> {
    let len = words * WORD;
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    // Otherwise a word that is gone would be a signal.
    let is_fixed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
    if len == 0 || size < len as u64 || !is_fixed {
        let problem = format!("kept state of {size} bytes (fixed: {is_fixed}) instead of {len}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    let (protection, to) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe { libc::mmap(to, len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is of `words` words, page-aligned, never unmapped, cannot shrink, and only accessed by atomic operations, for which any
    // bytes are valid; a process that shares it has ended or does not touch it.
    Ok(unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), words) })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::sync::atomic::Ordering::Relaxed;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::*;

    /// A file of `words` zero words, as a broker makes it.
    pub fn memory(words: usize, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let file = File::from(file);
        file.set_len((words * WORD) as u64).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    #[test]
    fn words_are_there_for_the_next_one() {
        let file = memory(3, SealFlags::SHRINK);
        map(&file, 3).unwrap()[2].store(7, Relaxed);
        assert_eq!(map(&file, 3).unwrap()[2].load(Relaxed), 7);
    }

    #[test]
    fn a_file_that_is_short_or_may_shrink_is_refused() {
        assert!(map(&memory(3, SealFlags::SHRINK), 4).is_err());
        assert!(map(&memory(3, SealFlags::GROW), 3).is_err());
        assert!(map(&File::open("/dev/null").unwrap().into(), 1).is_err());
    }
}
