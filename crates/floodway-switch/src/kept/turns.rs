//! Whose turn it is, in kept memory.
//!
//! # Theory of operation
//! Each worker has a cache line, in whose first word it notes the instance of the port that it serves, before it does anything for it, and zero afterwards. A broker finds the note when this
//! process has died, and cuts off ports that kill. It is one store for each turn of each port; another one at the end of a round.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use floodway_process::message::TURN_BYTES;

use super::{WORD, map};

/// Words of a worker.
const STRIDE: usize = TURN_BYTES / WORD;

/// The notes of all workers.
#[derive(Debug)]
pub struct KeptTurns(&'static [AtomicU64]);

/// Words that so many workers need.
#[must_use]
pub fn words(workers: usize) -> usize {
    workers * STRIDE
}

impl KeptTurns {
    /// The notes of `workers` in `file`, which has [`words`].
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(file: &OwnedFd, workers: usize) -> io::Result<Self> {
        map(file, words(workers)).map(Self)
    }

    /// The note of the worker with this number; [nobody's](Turn::default) if there is none.
    #[must_use]
    pub fn of_worker(&self, index: usize) -> Turn {
        Turn(self.0.get(index * STRIDE))
    }
}

/// Where a worker notes whose turn it is. By default nowhere: nobody would read it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn(Option<&'static AtomicU64>);

impl Turn {
    /// It is the turn of the port `instance`.
    #[inline]
    pub fn note(self, instance: u64) {
        if let Some(word) = self.0 {
            word.store(instance, Relaxed);
        }
    }

    /// It is no port's turn.
    #[inline]
    pub fn clear(self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::SealFlags;

    use super::super::tests::memory;
    use super::*;

    #[test]
    fn each_worker_has_a_line_of_its_own() {
        let file = memory(words(3), SealFlags::SHRINK);
        let turns = KeptTurns::open(&file, 3).unwrap();
        for index in 0..3 {
            turns.of_worker(index).note(index as u64 + 7);
        }
        turns.of_worker(1).clear();
        turns.of_worker(3).note(99);
        Turn::default().note(99);
        let words: Vec<_> = map(&file, words(3)).unwrap().iter().map(|w| w.load(Relaxed)).collect();
        let noted: Vec<_> = words.iter().enumerate().filter(|(_, word)| **word != 0).collect();
        assert_eq!(noted, [(0, &7), (2 * STRIDE, &9)]);
        assert!(KeptTurns::open(&file, 4).is_err(), "too short");
    }
}
