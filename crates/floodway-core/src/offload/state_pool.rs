//! Parts of a flow's state that it has only while something is under way.
//!
//! # Theory of operation
//! Most flows of a port are idle, and an idle sender has no scoreboard. Such a part lives in a box, which a
//! flow takes from the port's spare ones when it needs it and gives back when it is at rest. So an idle flow pays a
//! pointer for it, nothing is allocated in steady state, and whichever flow is active next gets the box that is
//! still in the cache.
//!
//! Invariant: an absent part is at rest, and reads as such.

use std::ops::{Deref, DerefMut};

/// Most boxes of a kind that a port keeps for later.
const MAX_SPARE: usize = 4096;

/// Boxes of one kind that no flow of the port uses now.
#[derive(Debug)]
pub(super) struct FreeList<T>(Vec<Box<T>>);

impl<T> Default for FreeList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// A part of a flow's state.
pub(super) trait Poolable: Sized + 'static {
    /// What an absent one reads as.
    const REST: &'static Self;

    /// One that is at rest.
    fn new() -> Self;

    /// Puts it to rest, whatever it holds. False if it has grown too large to be kept.
    fn clear(&mut self) -> bool;
}

/// A part that may be absent. Writing to an absent one allocates it.
#[derive(Debug)]
pub(super) struct Pooled<T>(Option<Box<T>>);

impl<T: Poolable> Pooled<T> {
    pub const EMPTY: Self = Self(None);

    #[inline]
    pub fn is_present(&self) -> bool {
        self.0.is_some()
    }

    /// The part, if it is present.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Makes it present, at rest if it was not.
    #[inline]
    pub fn fill(&mut self, free: &mut FreeList<T>) {
        if self.0.is_none() {
            self.0 = Some(free.0.pop().unwrap_or_else(|| Box::new(T::new())));
        }
    }

    /// Gives the box back, with nothing in it.
    #[inline]
    pub fn return_state(&mut self, free: &mut FreeList<T>) {
        if let Some(mut part) = self.0.take()
            && part.clear()
            && free.0.len() < MAX_SPARE
        {
            free.0.push(part);
        }
    }
}

impl<T: Poolable> Deref for Pooled<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::REST)
    }
}

impl<T: Poolable> DerefMut for Pooled<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(T::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Count(u32);

    impl Poolable for Count {
        const REST: &'static Self = &Self(0);
        fn new() -> Self {
            Self(0)
        }
        fn clear(&mut self) -> bool {
            self.0 = 0;
            true
        }
    }

    #[test]
    fn boxes_go_round() {
        let mut free = FreeList::default();
        let (mut a, mut b) = (Pooled::<Count>::EMPTY, Pooled::<Count>::EMPTY);
        a.fill(&mut free);
        a.0.as_mut().unwrap().0 = 7;
        let at = std::ptr::from_ref(&*a).addr();
        assert!(
            a.is_present() && !b.is_present() && (a.0.as_ref().unwrap().0, b.deref().0) == (7, 0)
        );
        a.return_state(&mut free);
        b.fill(&mut free);
        assert_eq!((std::ptr::from_ref(&*b).addr(), b.deref().0, free.0.len()), (at, 0, 0));
        a.return_state(&mut free);
        assert!(free.0.is_empty(), "there was nothing to give");
    }
}
