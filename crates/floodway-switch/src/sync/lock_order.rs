//! The order in which threads take locks, checked in debug builds.
//!
//! # Theory of operation
//! **Goal**: no two threads wait for each other. A thread takes locks of the ranks below only in ascending order, and never two of one rank.
//!
//! | rank | lock | taken by |
//! |---|---|---|
//! | [`Rank::Transmit`] | a transmit queue | the port's worker for a turn; its socket thread, to start and stop the ring |
//! | [`Rank::Aside`] | connections of a port that are set aside | its socket thread, and who stops the port |
//! | [`Rank::Offload`] | a port's TCP offload | whoever has a frame or a timer for it |
//! | [`Rank::Clamp`] | a port's inbound clamp | the same, for frames that the offload lets pass |
//! | [`Rank::Receive`] | a receive queue | whoever has a frame for the guest |
//! | [`Rank::Last`] | an uplink's egress; the forwarding table | whoever has a frame for the network, or an address |
//! | [`Rank::Undelivered`] | a port's count of frames that came into no queue | whoever drops one, which may hold a receive queue |
//!
//! So an offload may send what it has to while it is locked, whoever runs it: the port's worker (which holds the transmit queue), an
//! uplink's, the control socket; and nobody waits for an offload while holding a lock that it may need.
//!
//! All other locks are leaves: no other lock is taken under one of them. The division of inbound rates is one, too: it is locked under a
//! clamp, and no clamp under it.
//!
//! Debug builds note for each thread which ranks it holds, before it waits for a lock, and panic when the order is broken: so every test
//! checks it. Other builds note nothing.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use crate::sync::lock;

/// A kind of lock. See the module's theory of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    Transmit,
    Aside,
    Offload,
    Clamp,
    Receive,
    Last,
    Undelivered,
}

/// The guard of a lock, and the note that this thread holds it.
pub struct Ordered<G> {
    guard: G,
    _note: Note,
}

impl<G> Ordered<G> {
    /// Takes a lock of `rank` by `take`, which may wait.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the same or a later rank.
    #[inline]
    pub(crate) fn take(rank: Rank, take: impl FnOnce() -> G) -> Self {
        let note = Note::new(rank);
        Self { guard: take(), _note: note }
    }
}

impl<'a, T> Ordered<MutexGuard<'a, T>> {
    /// Locks `mutex`, which is of `rank`.
    #[inline]
    pub(crate) fn lock(rank: Rank, mutex: &'a Mutex<T>) -> Self {
        Self::take(rank, || lock(mutex))
    }
}

impl<G: Deref> Deref for Ordered<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ordered<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod note {
    use std::cell::Cell;

    use super::Rank;

    thread_local! {
        /// One bit for each rank that this thread holds.
        static HELD: Cell<u8> = const { Cell::new(0) };
    }

    pub(super) struct Note(u8);

    impl Note {
        pub(super) fn new(rank: Rank) -> Self {
            let (bit, held) = (1 << rank as u8, HELD.get());
            assert!(held < bit, "lock order: {rank:?} is taken while ranks {held:#b} are held");
            HELD.set(held | bit);
            Self(bit)
        }
    }

    impl Drop for Note {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !self.0);
        }
    }
}

#[cfg(not(debug_assertions))]
mod note {
    pub(super) struct Note;

    impl Note {
        #[inline(always)]
        pub(super) const fn new(_rank: super::Rank) -> Self {
            Self
        }
    }
}

use note::Note;

#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use super::*;

    fn take(ranks: &[Rank]) {
        let _held: Vec<_> = ranks.iter().map(|&rank| Ordered::take(rank, || &())).collect();
    }

    #[test]
    fn locks_are_taken_in_ascending_order_and_again_when_they_are_free() {
        take(&[Rank::Transmit, Rank::Aside, Rank::Offload]);
        take(&[Rank::Offload, Rank::Clamp, Rank::Receive, Rank::Last]);
        take(&[Rank::Offload, Rank::Last]);
        take(&[Rank::Receive]);
    }

    #[test]
    #[should_panic(expected = "lock order: Transmit")]
    fn a_transmit_queue_is_not_taken_under_a_receive_queue() {
        take(&[Rank::Receive, Rank::Transmit]);
    }

    #[test]
    #[should_panic(expected = "lock order: Receive")]
    fn no_two_receive_queues_are_held() {
        take(&[Rank::Receive, Rank::Receive]);
    }
}
