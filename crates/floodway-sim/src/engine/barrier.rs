//! Where threads wait for each other, again and again.
//!
//! # Theory of operation
//! **Goal.** Threads that do a few hundred microseconds of work between two meetings lose no time in them, and none is held up for long by others
//! that need its processor.
//!
//! **Rule.** The last thread that arrives begins the next generation. The others look for that a number of times, in which nothing but
//! that word is read, and then sleep. The last one makes a system call only if somebody sleeps. Where there are more threads
//! than processors, nobody looks before it sleeps: the thread that it waits for may need the processor.
//!
//! **Invariants.** `asleep` and what wakes sleepers change under the lock, so nobody goes to sleep in a generation that is over. What a
//! thread has written before it arrives is seen by all behind the barrier. A thread that panics breaks the barrier,
//! and nobody waits at a broken one.
//!
//! Source: Mellor-Crummey and Scott, "Algorithms for scalable synchronization on shared-memory multiprocessors", 1991
//! (the centralized barrier).

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// How often a thread looks before it sleeps: tens to hundreds of microseconds, by how long the processor takes for a pause.
const LOOKS: u32 = 10_000;

/// A thread has panicked, so that the others would wait forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// A meeting point of a number of threads.
#[derive(Debug)]
pub(crate) struct Barrier {
    threads: usize,
    looks: u32,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    broken: AtomicBool,
    /// Number of threads that sleep.
    asleep: Mutex<usize>,
    wake: Condvar,
}

impl Barrier {
    /// For so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads,
            looks: if threads <= processors { LOOKS } else { 0 },
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            asleep: Mutex::new(0),
            wake: Condvar::new(),
        }
    }

    /// Waits for all threads.
    ///
    /// # Errors
    /// [`Broken`] if one of them will not come.
    pub(crate) fn wait(&self) -> Result<(), Broken> {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.release();
        } else {
            self.wait_for_others(generation);
        }
        if self.broken.load(Ordering::Acquire) { Err(Broken) } else { Ok(()) }
    }

    fn release(&self) {
        let asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::Release);
        if *asleep > 0 {
            self.wake.notify_all();
        }
    }

    fn wait_for_others(&self, generation: usize) {
        let over = || {
            self.generation.load(Ordering::Acquire) != generation
                || self.broken.load(Ordering::Relaxed)
        };
        for _ in 0..self.looks {
            if over() {
                return;
            }
            spin_loop();
        }
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        *asleep += 1;
        while !over() {
            asleep = self.wake.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        }
        *asleep -= 1;
    }

    /// Breaks the barrier, now and for good.
    fn break_up(&self) {
        self.broken.store(true, Ordering::Release);
        self.release();
    }

    /// Breaks the barrier if the thread that has it panics.
    pub(crate) const fn guard(&self) -> Guard<'_> {
        Guard(self)
    }
}

/// See [`Barrier::guard`].
pub(crate) struct Guard<'a>(&'a Barrier);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three threads count in turns, with a barrier between two turns.
    fn count(barrier: &Barrier) {
        let counter = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for turn in 1..=500 {
                        counter.fetch_add(1, Ordering::Relaxed);
                        barrier.wait().unwrap();
                        assert_eq!(counter.load(Ordering::Relaxed), 3 * turn);
                        barrier.wait().unwrap();
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), 1500);
        assert_eq!(*barrier.asleep.lock().unwrap(), 0);
    }

    #[test]
    fn nobody_goes_on_before_all_have_come() {
        for looks in [0, 3, LOOKS] {
            count(&Barrier { looks, ..Barrier::new(3) });
        }
    }

    #[test]
    fn a_thread_that_panics_is_not_waited_for() {
        for looks in [0, LOOKS] {
            let barrier = Barrier { looks, ..Barrier::new(2) };
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| barrier.wait());
                let dies = scope.spawn(|| {
                    let _guard = barrier.guard();
                    panic!("as it should");
                });
                assert!(dies.join().is_err());
                assert_eq!(waits.join().unwrap(), Err(Broken));
                // That holds for who comes later, too.
                assert_eq!(barrier.wait(), Err(Broken));
            });
        }
    }
}
