//! Notifications between the two sides of a ring, in either direction.
//!
//! One side publishes an index and then looks whether the other one wants to hear of it; the other one says what it wants to hear of and
//! then looks at the index once more. With a full fence between the two accesses on both sides, at least one sees the other's: nobody
//! sleeps over published work. `make prove` checks that for all interleavings, with the guest's half as virtio 1.2 has it.

use std::sync::atomic::Ordering;

use crate::sync::atomics::{Atomics, Word};

/// Makes entries before `value` visible to the other side: they, and all that was written before, can be read by who sees the index.
#[inline]
pub(crate) fn publish<A: Atomics>(index: &A::U16, value: u16) {
    index.store(value, Ordering::Release);
}

/// Returns the other side's index; the entries before it may be read.
#[inline]
pub(crate) fn look<A: Atomics>(index: &A::U16) -> u16 {
    index.load(Ordering::Acquire)
}

/// Returns what the other side wants to hear of, after an index was published.
#[inline]
pub(crate) fn wish_of_other<A: Atomics>(wish: &A::U16) -> u16 {
    // The index must be visible before the wish is read.
    A::fence();
    wish.load(Ordering::Relaxed)
}

/// Says what we want to hear of, and returns the other side's index as it is after that.
#[inline]
pub(crate) fn wish_and_look<A: Atomics>(wish: &A::U16, value: u16, index: &A::U16) -> u16 {
    wish.store(value, Ordering::Relaxed);
    // The wish must be visible before the index is read again.
    A::fence();
    look::<A>(index)
}

/// Returns `true` if moving the index from `old` to `new` passed `event` (virtio 1.2, section 2.7.7.2).
#[inline]
pub(crate) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
