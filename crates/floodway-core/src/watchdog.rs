//! Notices a thread that stands still.
//!
//! # Theory of operation
//! **Goal**: a thread that never comes back from a call, or never ends a loop, is known of within about a second.
//!
//! A watched thread publishes a number that changes whenever it comes round, and says when it sleeps of its own will. The watchdog looks at
//! regular intervals. A thread that is awake and has the same number as at the look before has *stood still* for one more interval; after
//! `limit` intervals in a row it is *stalled*, and stays so until it moves or sleeps.
//!
//! What counts is looks, not time. A process that was stopped, or whose machine was suspended, finds neither its threads nor its watchdog running: the
//! look after that is one look. A thread that merely gets no CPU while the watchdog gets some is reported; that is worth knowing, too.
//!
//! **Invariant**: each stall is reported once when it begins and once when it ends.

/// The watchdog of some threads, which are numbered from 0. See the [module](self).
#[derive(Clone, Debug)]
pub struct Watchdog {
    limit: u32,
    threads: Box<[Thread]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    /// `None` before the first look.
    progress: Option<u64>,
    /// Looks in a row that found it standing still.
    still: u32,
}

/// What a thread shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// Changes whenever the thread comes round.
    pub progress: u64,
    /// It sleeps of its own will.
    pub asleep: bool,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing new.
    Nothing,
    /// The thread has stalled.
    Stalled,
    /// It goes on, after it stood still at this many looks.
    Recovered(u32),
}

impl Watchdog {
    /// A watchdog of `threads` threads that are stalled after `limit` looks (at least 1) without progress.
    #[must_use]
    pub fn new(threads: usize, limit: u32) -> Self {
        Self { limit: limit.max(1), threads: vec![Thread::default(); threads].into() }
    }

    /// Looks at a thread.
    pub fn look(&mut self, thread: usize, sign: Sign) -> Finding {
        let Some(thread) = self.threads.get_mut(thread) else { return Finding::Nothing };
        let moved = sign.asleep || thread.progress != Some(sign.progress);
        thread.progress = Some(sign.progress);
        let before = thread.still;
        thread.still = if moved { 0 } else { before.saturating_add(1) };
        if before >= self.limit && moved {
            Finding::Recovered(before)
        } else if before < self.limit && thread.still >= self.limit {
            Finding::Stalled
        } else {
            Finding::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Finding::{Nothing, Recovered, Stalled};

    fn awake(progress: u64) -> Sign {
        Sign { progress, asleep: false }
    }

    #[test]
    fn a_stall_is_reported_when_it_begins_and_when_it_ends() {
        let mut dog = Watchdog::new(2, 3);
        let looks = [7, 7, 7, 7, 7, 7, 8, 8, 9].map(|n| dog.look(0, awake(n)));
        let (n, s) = (Nothing, Stalled);
        assert_eq!(looks, [n, n, n, s, n, n, Recovered(5), n, n]);
        assert_eq!(dog.look(1, awake(7)), Nothing, "each for itself");
        assert_eq!(dog.look(2, awake(7)), Nothing, "nobody");
    }

    #[test]
    fn a_thread_that_sleeps_is_not_stalled() {
        let mut dog = Watchdog::new(1, 1);
        let asleep = Sign { progress: 5, asleep: true };
        assert!((0..10).all(|_| dog.look(0, asleep) == Nothing));
        assert_eq!([dog.look(0, awake(5)), dog.look(0, asleep)], [Stalled, Recovered(1)]);
    }

    #[test]
    fn little_progress_is_progress() {
        let mut dog = Watchdog::new(1, 2);
        assert!((0..100).all(|n| dog.look(0, awake(n / 2)) == Nothing));
    }
}
