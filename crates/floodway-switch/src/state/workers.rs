//! What others know of workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::stats::Counter;

/// What everybody may know of a worker.
#[derive(Default)]
pub struct WorkerInfo {
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// What it has done.
    pub stats: Arc<WorkerStats>,
}

/// What a worker has done.
#[derive(Debug, Default)]
pub struct WorkerStats {
    /// Rounds over all ports and uplinks.
    pub polls: Counter,
    /// Rounds that found something to do.
    pub busy_polls: Counter,
    /// Times that it went to sleep.
    pub sleeps: Counter,
    /// Nanoseconds slept.
    pub slept_ns: Counter,
    /// Times that it stood still. Written by the watchdog.
    pub stalls: Counter,
    /// The table of ports that it has seen.
    generation: AtomicU64,
    /// Its thread, once it runs.
    thread: AtomicU32,
}

impl WorkerStats {
    /// Notes which table of ports it has seen.
    pub(crate) fn note_generation(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
    }

    /// The generation of the table of ports that it has seen. What it did with ports of earlier tables is over.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Notes that this thread is the worker's.
    pub(crate) fn note_thread(&self) {
        let thread = rustix::thread::gettid().as_raw_pid().unsigned_abs();
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// The kernel's number of its thread; zero before that runs.
    #[must_use]
    pub fn thread_id(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }
}
