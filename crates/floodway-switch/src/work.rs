//! Work that guests cause, counted by what bounds it and not by the clock.
//!
//! Tests and fuzz targets check that what a guest writes costs no more than its limits allow. A unit is a descriptor read, a piece
//! appended, a region compared, or a page marked in a dirty log. Other builds count nothing.

#[cfg(any(test, fuzzing))]
thread_local! {
    static UNITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts `units` of work of this thread.
#[inline(always)]
pub(crate) fn count(units: u64) {
    #[cfg(any(test, fuzzing))]
    UNITS.set(UNITS.get() + units);
    #[cfg(not(any(test, fuzzing)))]
    let _ = units;
}

/// Takes the number of units that this thread has counted since this was last called.
#[cfg(any(test, fuzzing))]
#[must_use]
pub fn take() -> u64 {
    UNITS.take()
}
