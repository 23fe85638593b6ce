//! What others know of workers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use floodway_core::histogram::DurationHistogram;
use floodway_core::time::Instant;

use super::uplink::UplinkReceiver;
use crate::api::histogram;
use crate::queues::tx::BATCH;
use crate::stats::Counter;

/// What everybody may know of a worker.
#[derive(Default)]
pub struct WorkerInfo {
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// What it has done.
    pub stats: Arc<WorkerStats>,
    /// Receiving halves of uplinks that it is to take over with the next table of ports.
    pub arriving: Mutex<Vec<UplinkReceiver>>,
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
    /// Nanoseconds slept, without a sleep that goes on.
    slept_ns: Counter,
    /// Nanoseconds of the switch's clock at which that began; zero while it is awake.
    asleep_since_ns: AtomicU64,
    /// Times that it stood still. Written by the watchdog.
    pub stalls: Counter,
    /// How long rounds took that found something to do, each since the look at the clock before it.
    pub rounds: DurationHistogram,
    /// How many frames guests' batches had.
    pub batches: BatchSizes,
    /// The table of ports that it has seen.
    generation: AtomicU64,
    /// Its thread, once it runs.
    thread: AtomicU32,
}

impl WorkerStats {
    /// Notes that it sleeps from `now` on.
    pub(crate) fn note_asleep(&self, now: Instant) {
        self.sleeps.add(1);
        self.asleep_since_ns.store(now.as_nanos().max(1), Ordering::Relaxed);
    }

    /// Notes that it has slept for `slept`, and is awake.
    pub(crate) fn note_awake(&self, slept: Duration) {
        self.asleep_since_ns.store(0, Ordering::Relaxed);
        self.slept_ns.add(slept.as_nanos() as u64);
    }

    /// Seconds that it has slept until `now`. A reader that comes just when it wakes may miss the sleep that ends.
    #[must_use]
    pub fn slept_s(&self, now: Instant) -> f64 {
        let slept = self.slept_ns.get();
        let goes_on = match self.asleep_since_ns.load(Ordering::Relaxed) {
            0 => 0,
            since => now.as_nanos().saturating_sub(since),
        };
        (slept + goes_on) as f64 / 1e9
    }

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

/// How many frames batches had. One thread counts, any may read.
#[derive(Debug, Default)]
pub struct BatchSizes {
    /// Up to 1, 2, 4 ... and [`BATCH`] frames, each without those of the ones before.
    buckets: [Counter; BATCH.ilog2() as usize + 1],
    frames: Counter,
}

impl BatchSizes {
    /// Counts a batch of so many frames, at most [`BATCH`].
    #[inline]
    pub(crate) fn note(&self, frames: usize) {
        let bucket = frames.next_power_of_two().ilog2() as usize;
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.add(1);
            self.frames.add(frames as u64);
        }
    }

    /// What was counted so far.
    #[must_use]
    pub fn status(&self) -> histogram::BatchSizes {
        let frames = self.frames.get();
        let buckets = self.buckets.iter().map(Counter::get).filter(|_| frames > 0);
        histogram::BatchSizes { buckets: buckets.collect(), frames }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_counted_by_how_many_frames_they_have() {
        let sizes = BatchSizes::default();
        assert_eq!(sizes.status(), histogram::BatchSizes::default());
        [1, 2, 3, 4, 5, 16, 17, BATCH].iter().for_each(|&frames| sizes.note(frames));
        let status = sizes.status();
        assert_eq!((&status.buckets[..], status.frames), (&[1, 1, 2, 1, 1, 2][..], 80));
    }

    #[test]
    fn a_sleep_that_goes_on_counts() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let stats = WorkerStats::default();
        assert_eq!((stats.slept_s(at(500)), stats.sleeps.get()), (0.0, 0));
        stats.note_asleep(at(500));
        assert_eq!((stats.slept_s(at(500)), stats.slept_s(at(1500))), (0.0, 1.0));
        stats.note_awake(Duration::from_millis(1500));
        assert_eq!((stats.slept_s(at(9000)), stats.sleeps.get()), (1.5, 1));
        stats.note_asleep(at(10_000));
        assert_eq!(stats.slept_s(at(10_500)), 2.0);
    }
}
