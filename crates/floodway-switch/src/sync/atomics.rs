//! What protocols between threads ask of atomics, so that the code that runs is the code that is checked.
//!
//! A protocol whose correctness hangs on the order of two accesses ([`crate::sync::deadline`], [`crate::queues::virtqueue`]'s notifications) is written
//! once, over [`Atomics`]. The switch runs it on the processor's ([`Native`]); `make prove` runs it on loom's, which go through all
//! interleavings of the threads and all values that a load may return in each.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

/// A word that threads share.
pub(crate) trait Word<T> {
    fn new(value: T) -> Self;
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn fetch_min(&self, value: T, order: Ordering) -> T;
}

/// A family of words, and the fence that orders accesses to them.
pub(crate) trait Atomics {
    type U16: Word<u16>;
    type U64: Word<u64>;

    /// A sequentially consistent fence: of two threads that each store, fence and load what the other stores, at least one sees it.
    fn fence();
}

/// The processor's.
pub(crate) struct Native;

impl Atomics for Native {
    type U16 = AtomicU16;
    type U64 = AtomicU64;

    #[inline(always)]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

macro_rules! word {
    ($word:ty, $value:ty) => {
        impl Word<$value> for $word {
            fn new(value: $value) -> Self {
                <$word>::new(value)
            }

            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                <$word>::load(self, order)
            }

            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                <$word>::store(self, value, order);
            }

            #[inline(always)]
            fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                <$word>::fetch_min(self, value, order)
            }
        }
    };
}
#[cfg(test)]
pub(crate) use word;

word!(AtomicU16, u16);
word!(AtomicU64, u64);
