//! Looking up addresses in a guest's memory: the guest's, the front-end's and our own.

use super::{GuestMemory, Region};
use crate::stats::work::{self, Unit};

impl GuestMemory {
    /// Our address of guest physical address `gpa`, and how many of `len` bytes are contiguous
    /// there (at least 1). `None` if the address is in no region.
    ///
    /// `hint` is the region of the caller's last hit; almost every guest has its buffers in one.
    #[inline(always)]
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
        let after = self.starts.partition_point(|&start| {
            work::count(Unit::Comparison);
            start <= gpa
        });
        let at = after.checked_sub(1)?;
        let region = self.regions.get(at).filter(|r| gpa - r.layout.gpa < r.layout.size)?;
        *hint = at;
        Some(region)
    }

    /// Our address of `len` bytes at the front-end's address `addr`, if they lie inside one region.
    #[must_use]
    pub fn translate_frontend(&self, addr: u64, len: u64) -> Option<*mut u8> {
        self.regions.iter().find_map(|r| {
            work::count(Unit::Comparison);
            let offset = addr.checked_sub(r.layout.frontend_addr)?;
            let room = r.layout.size.checked_sub(offset)?;
            // SAFETY: offset <= size, and the mapping is `size` bytes long.
            (len <= room).then(|| unsafe { r.host.add(offset as usize) })
        })
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
        let after = self.by_host.partition_point(|&i| {
            work::count(Unit::Comparison);
            self.regions[usize::from(i)].host.cast_const() <= host
        });
        let Some(&i) = after.checked_sub(1).and_then(|at| self.by_host.get(at)) else { return };
        let layout = &self.regions[usize::from(i)].layout;
        let offset = (host.addr() - self.regions[usize::from(i)].host.addr()) as u64;
        if offset < layout.size {
            log.mark(layout.gpa + offset, len as u64);
        }
    }
}
