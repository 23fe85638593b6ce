//! Buffers for frames that are kept: by the TCP offload of a port, or in the queue of an uplink.
//!
//! # Theory of operation
//! **Goal**: no allocation per frame once the traffic is steady, and a bound on what a guest can make
//! the switch keep, whatever the size of its segments.
//!
//! Buffers come in classes, each twice as large as the one before, the last one large enough for any
//! frame. A buffer that is let go of is kept for the next frame of its class. All buffers together,
//! used and spare, never exceed the limit; when it is reached, spare ones of other classes make room.
//! Once a second half of the buffers go that nobody has needed since the last time.
//!
//! What is known of a frame lies beside its bytes and is used again with them, so that lists of frames that are kept have two words for each.
//!
//! **Invariants**: `allocated <= limit`; a buffer is in one place: in use, or spare.

use std::sync::{Arc, Mutex};

use crate::frame::MAX_FRAME_LEN;
use crate::sync::lock;

/// Bytes of the smallest buffer.
const SMALLEST: usize = 256;
/// Classes: 256 bytes to 64 KiB, and one for the longest frame.
const CLASSES: usize = 10;

/// The buffers of one owner. Each has a `T` beside its bytes.
pub(crate) struct Pool<T = ()> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    limit: usize,
    /// Bytes of all buffers.
    allocated: usize,
    /// Bytes of buffers in use.
    used: usize,
    spare: [Spare<T>; CLASSES],
}

struct Spare<T> {
    buffers: Vec<Box<Slot<T>>>,
    /// Fewest that there were since the last trim.
    low: usize,
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self { buffers: Vec::new(), low: 0 }
    }
}

/// A buffer's memory.
struct Slot<T> {
    about: T,
    bytes: Box<[u8]>,
}

/// A buffer in use. It goes back to its pool when it is dropped.
pub(crate) struct Buffer<T = ()> {
    /// Taken out when it is dropped.
    slot: Option<Box<Slot<T>>>,
    pool: Arc<Pool<T>>,
}

/// Bytes of a buffer of `class`.
const fn size(class: usize) -> usize {
    if class + 1 < CLASSES {
        SMALLEST << class
    } else {
        (MAX_FRAME_LEN as usize).next_multiple_of(64)
    }
}

/// The smallest class that `len` bytes fit in.
fn class_of(len: usize) -> Option<usize> {
    (0..CLASSES).find(|&class| len <= size(class))
}

impl<T> Pool<T> {
    /// A pool of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let inner = Inner { limit, allocated: 0, used: 0, spare: Default::default() };
        Self { inner: Mutex::new(inner) }
    }

    /// A buffer of at least `len` bytes, with arbitrary content, and `about`; `None` when the limit is reached, or
    /// `len` is more than a frame can have.
    #[inline]
    pub(crate) fn take(self: &Arc<Self>, len: usize, about: T) -> Option<Buffer<T>> {
        let class = class_of(len)?;
        let slot = lock(&self.inner).take(class, about)?;
        Some(Buffer { slot: Some(slot), pool: Arc::clone(self) })
    }

    /// Changes the limit. Buffers beyond it go when they are let go of.
    pub(crate) fn set_limit(&self, limit: usize) {
        lock(&self.inner).limit = limit;
    }

    /// Bytes of buffers in use.
    pub(crate) fn used(&self) -> usize {
        lock(&self.inner).used
    }

    /// Lets go of half of what was spare all the time since this was last called.
    pub(crate) fn trim(&self) {
        let inner = &mut *lock(&self.inner);
        for (class, spare) in inner.spare.iter_mut().enumerate() {
            let surplus = spare.low.div_ceil(2);
            spare.buffers.truncate(spare.buffers.len() - surplus);
            inner.allocated -= surplus * size(class);
            spare.low = spare.buffers.len();
        }
    }
}

impl<T> Inner<T> {
    #[inline]
    fn take(&mut self, class: usize, about: T) -> Option<Box<Slot<T>>> {
        let spare = &mut self.spare[class];
        let Some(mut slot) = spare.buffers.pop() else { return self.allocate(class, about) };
        spare.low = spare.low.min(spare.buffers.len());
        slot.about = about;
        self.used += slot.bytes.len();
        Some(slot)
    }

    #[cold]
    fn allocate(&mut self, class: usize, about: T) -> Option<Box<Slot<T>>> {
        let size = size(class);
        for spare in self.spare.iter_mut().rev() {
            while self.allocated + size > self.limit
                && let Some(slot) = spare.buffers.pop()
            {
                self.allocated -= slot.bytes.len();
                spare.low = spare.low.min(spare.buffers.len());
            }
        }
        if self.allocated + size > self.limit {
            return None;
        }
        self.allocated += size;
        self.used += size;
        Some(Box::new(Slot { about, bytes: vec![0; size].into_boxed_slice() }))
    }

    fn give_back(&mut self, slot: Box<Slot<T>>) {
        let len = slot.bytes.len();
        self.used -= len;
        match class_of(len) {
            Some(class) if self.allocated <= self.limit => self.spare[class].buffers.push(slot),
            _ => self.allocated -= len,
        }
    }
}

impl<T> Buffer<T> {
    #[inline]
    fn slot(&self) -> &Slot<T> {
        self.slot.as_deref().expect("it is taken out in drop only")
    }

    /// What is known of the frame.
    #[inline]
    pub(crate) fn about(&self) -> &T {
        &self.slot().about
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.slot().bytes
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.slot.as_deref_mut().map_or(&mut [], |slot| &mut slot.bytes)
    }
}

impl<T> Drop for Buffer<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            lock(&self.pool.inner).give_back(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(pool: &Pool) -> usize {
        lock(&pool.inner).allocated
    }

    #[test]
    fn buffers_fit_every_frame_and_no_more() {
        let pool = Arc::new(Pool::new(1 << 20));
        for len in [0, 1, 256, 257, 1514, 32_768, 65_536, MAX_FRAME_LEN as usize] {
            let buffer = pool.take(len, ()).unwrap();
            assert!(buffer.bytes().len() >= len && buffer.bytes().len() <= (2 * len).max(SMALLEST));
        }
        assert!(pool.take(MAX_FRAME_LEN as usize + 64, ()).is_none());
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_steady_load_allocates_nothing() {
        let pool = Arc::new(Pool::new(1 << 20));
        let held: Vec<_> = (0..8).map(|_| pool.take(1514, ()).unwrap()).collect();
        let before = allocated(&pool);
        drop(held);
        for _ in 0..100 {
            let _held: Vec<_> = (0..8).map(|_| pool.take(1514, ()).unwrap()).collect();
            assert_eq!(allocated(&pool), before);
        }
    }

    #[test]
    fn the_limit_holds_and_spare_buffers_make_room() {
        let pool = Arc::new(Pool::new(8 * 2048));
        let small: Vec<_> = std::iter::from_fn(|| pool.take(1514, ())).collect();
        assert_eq!((small.len(), allocated(&pool)), (8, 8 * 2048));
        assert!(pool.take(1, ()).is_none());
        drop(small);
        assert!(pool.take(16_384, ()).is_some(), "the spare ones make room");
        assert!(allocated(&pool) <= 8 * 2048);
    }

    #[test]
    fn what_nobody_needs_goes() {
        let pool = Arc::new(Pool::new(1 << 20));
        drop((0..64).map(|_| pool.take(1514, ()).unwrap()).collect::<Vec<_>>());
        (0..10).for_each(|_| pool.trim());
        assert_eq!(allocated(&pool), 0);
    }

    #[test]
    fn a_smaller_limit_is_reached_as_buffers_come_back() {
        let pool = Arc::new(Pool::new(1 << 20));
        let held: Vec<_> = (0..64).map(|_| pool.take(1514, ()).unwrap()).collect();
        pool.set_limit(4096);
        drop(held);
        assert!(allocated(&pool) <= 4096);
    }
}
