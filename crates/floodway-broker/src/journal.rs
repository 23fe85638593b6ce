//! Journals of what data planes have acknowledged.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use floodway_process::sealed;
use rustix::fs::fstat;

/// Memory of a fixed size in which data planes of a port leave what they have acknowledged for its guest. It goes with the port, but for the duplicate that a service manager may have.
#[derive(Debug)]
pub struct Journal {
    pub(crate) file: OwnedFd,
    /// What it was made for.
    pub(crate) budget: u32,
}

impl Journal {
    /// Makes `bytes` of memory, all zeros, none of which is there before it is written: as many as it takes to keep `budget` bytes of data.
    ///
    /// # Errors
    /// Memory or descriptors have run out.
    pub fn new(budget: u32, bytes: u64) -> io::Result<Self> {
        Ok(Self { file: sealed::fixed("floodway-journal", bytes)?, budget })
    }

    /// The journal in `file`, which [is one](Self::is_journal) and was made for `budget`.
    #[must_use]
    pub fn from_file(file: OwnedFd, budget: u32) -> Self {
        Self { file, budget }
    }

    /// Returns `true` if `file` has `bytes` of memory that always stay there, as a journal has.
    #[must_use]
    pub fn is_journal(file: &OwnedFd, bytes: u64) -> bool {
        sealed::is_fixed(file, bytes)
    }

    /// Returns `true` if `file` is a duplicate of this one.
    #[must_use]
    pub fn is_same_file(&self, file: &OwnedFd) -> bool {
        let number = |file: &OwnedFd| fstat(file).map(|status| (status.st_dev, status.st_ino));
        number(&self.file).is_ok_and(|own| number(file) == Ok(own))
    }

    /// The budget that it was made for, in bytes.
    #[must_use]
    pub fn budget(&self) -> u32 {
        self.budget
    }
}

impl AsFd for Journal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
