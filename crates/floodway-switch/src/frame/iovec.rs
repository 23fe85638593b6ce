//! A piece of a frame where it lies: in guest memory or in a buffer of ours.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::memory::GuestMemory;

/// A readable range of bytes, at most as long-lived as `'a`, that somebody else may be writing to.
///
/// Guest memory is shared with a running guest, so a `&[u8]` over it would be a lie to the
/// compiler: the bytes can change under it. A segment is an address and a length that were
/// checked once, and the bytes are only ever copied out or handed to the kernel. Its layout is
/// that of `struct iovec`, so that a list of segments *is* the list that `writev` wants.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct GuestIoVec<'a> {
    iov: libc::iovec,
    memory: PhantomData<&'a ()>,
}

// SAFETY: a segment only names memory that stays mapped for `'a` (the contract of `from_raw`);
// every access to it is a raw copy, which makes no claim about other writers.
unsafe impl Send for GuestIoVec<'_> {}

impl<'a> GuestIoVec<'a> {
    /// Names `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The range must stay mapped and readable for `'a`.
    #[inline]
    #[must_use]
    pub unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Self {
            iov: libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len },
            memory: PhantomData,
        }
    }

    /// Names bytes of our own.
    #[inline]
    #[must_use]
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        // SAFETY: the slice is readable for 'a.
        unsafe { Self::from_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Where the bytes start.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.iov.iov_base.cast_const().cast()
    }

    /// Where the bytes start, for writing. Only segments of write-only descriptors are written to.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.iov.iov_base.cast()
    }

    /// The segment without its first `n` bytes (all of them if it is shorter).
    #[inline]
    #[must_use]
    pub fn skip(self, n: usize) -> Self {
        let n = n.min(self.len());
        // SAFETY: a part of a range that is good for 'a.
        unsafe { Self::from_raw(self.as_ptr().add(n), self.len() - n) }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.iov.iov_len
    }

    /// No bytes at all.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iov.iov_len == 0
    }

    /// The list as the kernel's scatter-gather calls take it.
    #[must_use]
    pub fn as_iovecs<'s>(segments: &'s [GuestIoVec<'a>]) -> &'s [libc::iovec] {
        // SAFETY: `GuestIoVec` is `repr(transparent)` over `iovec` (`PhantomData` has no size).
        unsafe { std::slice::from_raw_parts(segments.as_ptr().cast(), segments.len()) }
    }
}

/// Iovecs of one guest's memory, and a hold on its mappings: what is listed stays mapped.
///
/// Segments are only lent, so none outlives the list that keeps its memory:
///
/// ```compile_fail
/// let mut iovecs = floodway_switch::frame::iovec::GuestIoVecs::default();
/// let slice = iovecs.as_slice();
/// iovecs.release();
/// assert!(slice.is_empty());
/// ```
#[derive(Default)]
pub struct GuestIoVecs {
    memory: Option<Arc<GuestMemory>>,
    /// Good while `memory` is held. Handed out with shorter lifetimes only.
    iovecs: Vec<GuestIoVec<'static>>,
}

impl GuestIoVecs {
    /// What is listed, while the list does not change.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[GuestIoVec<'_>] {
        &self.iovecs
    }

    /// Iovecs in the list.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.iovecs.len()
    }

    /// Nothing is listed.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iovecs.is_empty()
    }

    /// Empties the list. The memory stays mapped, for the next chains are most likely in the same.
    #[inline]
    pub fn clear(&mut self) {
        self.iovecs.clear();
    }

    /// Empties the list and lets go of the memory.
    pub fn release(&mut self) {
        self.iovecs.clear();
        self.memory = None;
    }

    /// Holds on to `memory`, instead of what was held before.
    ///
    /// # Panics
    /// Iovecs of another memory are listed.
    #[inline]
    pub fn hold(&mut self, memory: &Arc<GuestMemory>) {
        if !self.memory.as_ref().is_some_and(|held| Arc::ptr_eq(held, memory)) {
            self.hold_another(memory);
        }
    }

    #[cold]
    fn hold_another(&mut self, memory: &Arc<GuestMemory>) {
        assert!(self.iovecs.is_empty(), "iovecs of two memories in one list");
        self.memory = Some(Arc::clone(memory));
    }

    /// Forgets all but the first `len` iovecs.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.iovecs.truncate(len);
    }

    /// Appends `len` bytes at `ptr`.
    ///
    /// # Safety
    /// They lie in the memory that is held.
    #[inline]
    pub(crate) unsafe fn push(&mut self, ptr: *const u8, len: usize) {
        // SAFETY: the range stays mapped while the list holds its memory, and copies live as long as a borrow of the list.
        self.iovecs.push(unsafe { GuestIoVec::from_raw(ptr, len) });
    }

    /// Appends an iovec without bytes, to be set later, and `len` bytes at `ptr`.
    ///
    /// # Safety
    /// As [`push`](Self::push).
    #[inline]
    pub(crate) unsafe fn push_behind_empty(&mut self, ptr: *const u8, len: usize) {
        // SAFETY: as in `push`.
        let iovec = unsafe { GuestIoVec::from_raw(ptr, len) };
        self.iovecs.extend_from_slice(&[GuestIoVec::from_slice(&[]), iovec]);
    }

    /// Appends an iovec without bytes, to be set later.
    #[inline]
    pub(crate) fn push_empty(&mut self) {
        self.iovecs.push(GuestIoVec::from_slice(&[]));
    }

    /// The list, to change it.
    ///
    /// # Safety
    /// What is put in stays readable until the list is next changed, and nothing is copied out for longer than that.
    #[inline]
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [GuestIoVec<'static>] {
        &mut self.iovecs
    }
}
