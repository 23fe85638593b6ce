//! A piece of a frame where it lies: in guest memory or in a buffer of ours.

use std::marker::PhantomData;

/// A readable range of bytes, at most as long-lived as `'a`, that somebody else may be writing to.
///
/// Guest memory is shared with a running guest, so a `&[u8]` over it would be a lie to the
/// compiler: the bytes can change under it. A segment is an address and a length that were
/// checked once, and the bytes are only ever copied out or handed to the kernel. Its layout is
/// that of `struct iovec`, so that a list of segments *is* the list that `writev` wants.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    iov: libc::iovec,
    memory: PhantomData<&'a ()>,
}

// SAFETY: a segment only names memory that stays mapped for `'a` (the contract of `from_raw`);
// every access to it is a raw copy, which makes no claim about other writers.
unsafe impl Send for Segment<'_> {}

impl<'a> Segment<'a> {
    /// Names `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The range must stay mapped and readable for `'a`.
    #[must_use]
    pub unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Self {
            iov: libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len },
            memory: PhantomData,
        }
    }

    /// Names bytes of our own.
    #[must_use]
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        // SAFETY: the slice is readable for 'a.
        unsafe { Self::from_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Where the bytes start.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.iov.iov_base.cast_const().cast()
    }

    /// Where the bytes start, for writing. Only segments of write-only descriptors are written to.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.iov.iov_base.cast()
    }

    /// The segment without its first `n` bytes (all of them if it is shorter).
    #[must_use]
    pub fn skip(self, n: usize) -> Self {
        let n = n.min(self.len());
        // SAFETY: a part of a range that is good for 'a.
        unsafe { Self::from_raw(self.as_ptr().add(n), self.len() - n) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iov.iov_len
    }

    /// No bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iov.iov_len == 0
    }

    /// The list as the kernel's scatter-gather calls take it.
    #[must_use]
    pub fn as_iovecs<'s>(segments: &'s [Segment<'a>]) -> &'s [libc::iovec] {
        // SAFETY: `Segment` is `repr(transparent)` over `iovec` (`PhantomData` has no size).
        unsafe { std::slice::from_raw_parts(segments.as_ptr().cast(), segments.len()) }
    }
}
