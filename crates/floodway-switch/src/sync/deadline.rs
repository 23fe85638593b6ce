//! Deadlines of timers that one thread runs and any thread may bring forward.
//!
//! # Theory of operation
//! **Goal**: a worker that sleeps wakes up in time for a timer that another thread has set meanwhile, and who sets a timer makes a
//! system call only if the worker would be late.
//!
//! The owner of a timer publishes when it is due ([`Deadline`]); the worker that runs it publishes until when it sleeps ([`Sleeper`]).
//! Before it sleeps, the worker stores until when, fences, and looks at the deadlines once more; whoever changes a deadline stores it,
//! fences, and looks until when the worker sleeps. Whatever the order of the four accesses, one of the two sees what the other has
//! stored: the worker sleeps no longer than the deadline, or it is woken.
//!
//! **Awake**, the worker does not look at the deadlines of all its ports in each round, only at the first of them ([`FirstDeadline`]), which whoever
//! publishes one brings forward. When that is due, the worker forgets it, fences, looks at all deadlines and notes the first of those that
//! remain. It may be earlier than any of them, which costs a look.
//!
//! **Invariants** (checked for all interleavings by `make prove`): a worker never sleeps beyond a published deadline without having been woken
//! since it lay down; a published deadline that the worker has not seen is not before its first one. Changes of one deadline are made under the lock of what it belongs to, one at a time.

use std::sync::atomic::Ordering;

use floodway_core::time::Instant;

use crate::sync::atomics::{Atomics, Native, Word};

/// When a timer is due.
pub(crate) struct Deadline<A: Atomics = Native> {
    nanos: A::U64,
}

impl<A: Atomics> Default for Deadline<A> {
    fn default() -> Self {
        Self { nanos: A::U64::new(Instant::NEVER.as_nanos()) }
    }
}

impl<A: Atomics> Deadline<A> {
    /// When the timer is due; [`Instant::NEVER`] if it does not run.
    #[inline]
    pub(crate) fn get(&self) -> Instant {
        Instant::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    /// Puts the deadline off, or stops the timer. Nobody has to be woken for that.
    pub(crate) fn set(&self, at: Instant) {
        self.nanos.store(at.as_nanos(), Ordering::SeqCst);
    }

    /// Changes the deadline to `at`; returns `true` if `sleeper` has to be woken for it.
    #[inline]
    pub(crate) fn publish(&self, at: Instant, sleeper: &Sleeper<A>) -> bool {
        if at.as_nanos() == self.nanos.load(Ordering::Relaxed) {
            return false;
        }
        self.set(at);
        if at == Instant::NEVER {
            return false;
        }
        // Either the worker sees the deadline before it sleeps, or we see until when it sleeps.
        A::fence();
        sleeper.sleeps_beyond(at)
    }
}

/// The first of several deadlines, or earlier.
pub(crate) struct FirstDeadline<A: Atomics = Native> {
    nanos: A::U64,
}

impl<A: Atomics> Default for FirstDeadline<A> {
    /// Due at once: nobody has looked yet.
    fn default() -> Self {
        Self { nanos: A::U64::new(0) }
    }
}

impl<A: Atomics> FirstDeadline<A> {
    /// A deadline is `at` from now on. To be called after it was published.
    #[inline]
    pub(crate) fn note(&self, at: Instant) {
        if at == Instant::NEVER {
            return;
        }
        // Either the worker sees the deadline when it looks, or we see that it has forgotten the first one.
        A::fence();
        if at.as_nanos() < self.nanos.load(Ordering::SeqCst) {
            self.nanos.fetch_min(at.as_nanos(), Ordering::SeqCst);
        }
    }

    /// Returns `true` if some deadline may be due at `now`: all have to be looked at, and those that remain noted.
    #[inline]
    pub(crate) fn take_due(&self, now: Instant) -> bool {
        if self.nanos.load(Ordering::Relaxed) > now.as_nanos() {
            return false;
        }
        self.nanos.store(Instant::NEVER.as_nanos(), Ordering::SeqCst);
        A::fence();
        true
    }

    /// Has all deadlines looked at.
    pub(crate) fn expire(&self) {
        self.nanos.store(0, Ordering::SeqCst);
    }
}

/// Until when a worker sleeps.
pub(crate) struct Sleeper<A: Atomics = Native> {
    /// In nanoseconds; zero while it is awake.
    until: A::U64,
}

impl<A: Atomics> Default for Sleeper<A> {
    fn default() -> Self {
        Self { until: A::U64::new(0) }
    }
}

impl<A: Atomics> Sleeper<A> {
    /// Announces a sleep until `planned` at most; returns until when the worker may sleep. `first_deadline` returns the first of all deadlines.
    pub(crate) fn lie_down(
        &self,
        planned: Instant,
        first_deadline: impl Fn() -> Instant,
    ) -> Instant {
        let announced = planned.min(first_deadline());
        self.until.store(announced.as_nanos(), Ordering::SeqCst);
        // Either we see a timer that was brought forward, or who did it sees that we sleep.
        A::fence();
        announced.min(first_deadline())
    }

    /// The worker is awake.
    pub(crate) fn get_up(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// Returns `true` while the worker sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        self.until.load(Ordering::SeqCst) != 0
    }

    fn sleeps_beyond(&self, deadline: Instant) -> bool {
        self.until.load(Ordering::SeqCst) > deadline.as_nanos()
    }
}
