//! Journals of what data planes have acknowledged.

use std::io;
use std::os::fd::OwnedFd;

use floodway_process::sealed;

/// Memory of a fixed size in which data planes of a port leave what they have acknowledged for its guest. It goes with the port.
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
}
