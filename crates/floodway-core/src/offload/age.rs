//! How old a note of the peer's clock is, in one byte.

use serde::{Deserialize, Serialize};

use crate::time::Instant;

/// log2 of the nanoseconds of a unit of [`Age`]: 19.5 hours.
const AGE_SHIFT: u32 = 46;
/// Units, 23.6 days, after which a clock means nothing any more.
const CLOCK_LIFETIME: u8 = 29;

/// When the peer's clock was noted, coarsely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Age(u8);

impl Age {
    /// The unit that `now` lies in.
    #[inline]
    pub fn at(now: Instant) -> Self {
        Self((now.as_nanos() >> AGE_SHIFT) as u8)
    }

    /// Returns `true` if it lies more than 24 days before `now`.
    #[inline]
    pub fn is_over(self, now: Instant) -> bool {
        Self::at(now).0.wrapping_sub(self.0) > CLOCK_LIFETIME
    }

    /// Keeps one that is over from becoming young again when the units wrap.
    #[inline]
    pub fn keep_over(&mut self, now: Instant) {
        if self.is_over(now) {
            self.0 = Self::at(now).0.wrapping_sub(CLOCK_LIFETIME + 1);
        }
    }
}
