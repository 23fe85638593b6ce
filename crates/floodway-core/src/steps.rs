//! Work that guests cause, counted by what bounds it and not by the clock.
//!
//! Tests and fuzz targets check that what a guest sends costs no more than its length allows. Other builds count nothing.

#[cfg(any(test, fuzzing))]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts `steps` of work of this thread: slots looked at, entries compared or moved, options read.
#[inline(always)]
pub(crate) fn count(steps: usize) {
    #[cfg(any(test, fuzzing))]
    STEPS.set(STEPS.get() + steps as u64);
    #[cfg(not(any(test, fuzzing)))]
    let _ = steps;
}

/// Returns what this thread has counted since this was last called.
#[cfg(any(test, fuzzing))]
#[must_use]
pub fn take() -> u64 {
    STEPS.take()
}
