//! Fetching what comes next into the cache, while there is still other work.
//!
//! Guests' memory is cold: a ring of 256 leads through half a megabyte of buffers, and on a dense host many VMs have such rings. A store that misses
//! holds up all stores behind it, so the buffer of the next frame is fetched while this one is copied.

use super::Virtqueue;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a receive buffer that are fetched before the frame is there: the rest of a long frame follows in order, which processors see by themselves.
const PREFETCHED: u32 = 256;

impl Virtqueue {
    /// Starts fetching the descriptors of the next `n` available chains into the cache.
    #[inline]
    pub fn prefetch(&self, n: u16) {
        for i in 0..n.min(self.available_cached()) {
            let head = self.avail_entry(self.next_avail().wrapping_add(i)) & (self.size() - 1);
            // SAFETY: the masked index is inside the table; prefetching reads nothing anyway.
            prefetch(unsafe { self.desc.add(usize::from(head)) });
        }
    }

    /// Starts fetching the first of `len` bytes of the next chain's buffer into the cache, for writing. Does nothing unless that chain was seen
    /// available, and its buffer is in the same region as the last one's.
    #[inline]
    pub(in crate::queues) fn prefetch_next_buffer(&self, len: u32) {
        if self.available_cached() == 0 {
            return;
        }
        let head = self.avail_entry(self.next_avail()) & (self.size() - 1);
        // SAFETY: the masked index is inside the table, in memory that is mapped. What the guest writes there is only prefetched.
        let gpa = unsafe { (&raw const (*self.desc.add(usize::from(head))).addr).read_volatile() };
        if let Some(buffer) = self.memory.translate_near(self.region_hint, gpa) {
            for line in (0..len.min(PREFETCHED)).step_by(LINE) {
                prefetch_for_writing(buffer.wrapping_add(line as usize));
            }
        }
    }
}

/// Starts fetching the cache line at `p`.
#[inline]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed; it does not fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Starts fetching the cache line at `p`, which will be written.
#[inline]
fn prefetch_for_writing<T>(p: *mut T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed; it does not fault. All processors of this architecture take the instruction, some as one that does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
