//! The dirty log of a live migration: which pages of a guest's memory we have written.
//!
//! # Theory of operation
//! While a VM's memory is copied to another host, the front-end must know of every page that changes. It sees the guest's own writes,
//! not ours: so it shares a bitmap (`SET_LOG_BASE`), one bit for each page of 4 KiB by guest physical address, and switches
//! logging on with a feature bit (`SET_FEATURES`, `VHOST_F_LOG_ALL`). From then on we set the bit of each page *after* we have written
//! there: frames, used rings, event indices. It takes the bits and clears them while we go on.
//!
//! A bit that lies outside the bitmap is left out: a front-end that shares too small a bitmap harms its own guest only.
//!
//! Source: vhost-user protocol, section "Migration".

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::memory::mapping::{MapError, SharedMapping};
use crate::memory::sigbus::{Faults, Kind};

use crate::stats::work::{self, Unit};

/// Bytes that a bit stands for.
const PAGE_SHIFT: u64 = 12;
/// Most bytes of a bitmap: enough for guest physical addresses of 45 bits.
const MAX_BYTES: u64 = 1 << 30;

/// Why a dirty log was refused.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Larger than any guest needs.
    #[error("dirty log of {size:#x} bytes, more than {MAX_BYTES:#x}")]
    TooLarge {
        /// Its size in bytes.
        size: u64,
    },
    /// The file could not be mapped.
    #[error("cannot map a dirty log of {size:#x} bytes: {source}")]
    Map {
        /// Its size in bytes.
        size: u64,
        /// Why not.
        source: MapError,
    },
}

/// A bitmap that a front-end shares.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: SharedMapping,
}

impl DirtyLog {
    /// Maps `size` bytes at `offset` of `file`. Pages of it that go are noted in `faults`.
    ///
    /// # Errors
    /// The file cannot be mapped, ends before, or is larger than a log needs to be.
    pub fn map(
        file: &File,
        offset: u64,
        size: u64,
        faults: &Arc<Faults>,
    ) -> Result<Self, LogError> {
        if size > MAX_BYTES {
            return Err(LogError::TooLarge { size });
        }
        let mapping = SharedMapping::new(file, offset, size, Kind::DirtyLog, faults)
            .map_err(|source| LogError::Map { size, source })?;
        Ok(Self { mapping })
    }

    /// Notes that `len` bytes at guest physical address `gpa` have been written.
    pub fn mark(&self, gpa: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|n| gpa.checked_add(n)) else { return };
        for page in gpa >> PAGE_SHIFT..=last >> PAGE_SHIFT {
            let Some(byte) = usize::try_from(page / 8).ok().filter(|&at| at < self.mapping.size())
            else {
                return;
            };
            work::count(Unit::Page);
            // SAFETY: `byte` is inside the mapping, which lives as long as `self`; the front-end changes it with
            // atomic operations, too.
            let bits = unsafe { AtomicU8::from_ptr(self.mapping.as_ptr().add(byte)) };
            // Release: who sees the bit sees what was written.
            bits.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::testing::memory::memfd;

    fn log(bytes: u64) -> (File, DirtyLog) {
        let file = memfd(4096);
        let log = DirtyLog::map(&file, 0, bytes, &Arc::default()).unwrap();
        (file, log)
    }

    #[test]
    fn every_page_that_is_touched_has_its_bit() {
        let (file, log) = log(2);
        log.mark(0x1fff, 2);
        log.mark(0x9000, 0x1000);
        log.mark(0xf123, 0);
        let mut bits = [0; 4];
        file.read_at(&mut bits, 0).unwrap();
        assert_eq!(bits, [0b0000_0110, 0b0000_0010, 0, 0]);
    }

    #[test]
    fn pages_beyond_the_bitmap_are_left_out() {
        let (file, log) = log(2);
        log.mark(0xf000, 0x10_0000);
        log.mark(u64::MAX - 5, 100);
        log.mark(u64::MAX - 5, 2);
        let mut bits = [0; 4];
        file.read_at(&mut bits, 0).unwrap();
        assert_eq!(bits, [0, 0b1000_0000, 0, 0]);
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let map = |offset, size| DirtyLog::map(&memfd(100), offset, size, &Arc::default());
        let refused = |offset, size| map(offset, size).unwrap_err();
        assert!(matches!(refused(0, 4096), LogError::Map { source: MapError::Short, .. }));
        assert!(matches!(refused(u64::MAX, 2), LogError::Map { source: MapError::Short, .. }));
        assert!(matches!(refused(0, MAX_BYTES + 1), LogError::TooLarge { .. }));
    }
}
