//! Work that guests cause, counted by what bounds it and not by the clock.
//!
//! Tests and fuzz targets check that what a guest writes costs no more than its limits allow. Other builds count nothing.

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A descriptor was read.
    Descriptor,
    /// An iovec of guest memory was appended to a list.
    IoVec,
    /// A memory region was compared with an address.
    Comparison,
    /// A page was marked in a dirty log.
    Page,
}

/// Units of each kind.
#[cfg(any(test, fuzzing))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Descriptors read.
    pub descriptors: u64,
    /// Iovecs of guest memory appended to a list.
    pub iovecs: u64,
    /// Memory regions compared with an address.
    pub comparisons: u64,
    /// Pages marked in a dirty log.
    pub pages: u64,
}

#[cfg(any(test, fuzzing))]
impl Work {
    const NONE: Self = Self { descriptors: 0, iovecs: 0, comparisons: 0, pages: 0 };

    /// All units, whatever their kind.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.descriptors + self.iovecs + self.comparisons + self.pages
    }
}

#[cfg(any(test, fuzzing))]
thread_local! {
    static WORK: std::cell::Cell<Work> = const { std::cell::Cell::new(Work::NONE) };
}

/// Counts a unit of work of this thread.
#[inline(always)]
pub(crate) fn count(unit: Unit) {
    #[cfg(any(test, fuzzing))]
    {
        let mut work = WORK.get();
        match unit {
            Unit::Descriptor => work.descriptors += 1,
            Unit::IoVec => work.iovecs += 1,
            Unit::Comparison => work.comparisons += 1,
            Unit::Page => work.pages += 1,
        }
        WORK.set(work);
    }
    #[cfg(not(any(test, fuzzing)))]
    let _ = unit;
}

/// Takes what this thread has counted since this was last called.
#[cfg(any(test, fuzzing))]
#[must_use]
pub fn take() -> Work {
    WORK.take()
}
