//! TCP sequence numbers: 32 bits that wrap (RFC 9293 section 3.4).

use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// A sequence number. Comparing is by distance: `a` is before `b` if it is less than 2^31 behind.
///
/// There is no `Ord` on purpose, since that order is not transitive over the whole circle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seq(pub u32);

impl Seq {
    /// `self` comes before `other`.
    #[must_use]
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// `self` comes after `other`.
    #[must_use]
    #[inline]
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Bytes from `earlier` to `self`; zero if `self` comes before it.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        if self.before(earlier) { 0 } else { self.0.wrapping_sub(earlier.0) }
    }

    /// The later of both.
    #[must_use]
    #[inline]
    pub const fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// The earlier of both.
    #[must_use]
    #[inline]
    pub const fn min(self, other: Self) -> Self {
        if other.before(self) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    #[inline]
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::Seq;

    #[test]
    fn order_survives_the_wrap() {
        let (old, new) = (Seq(u32::MAX - 1), Seq(3));
        assert!(old.before(new) && new.after(old) && !new.before(new));
        assert_eq!((new.since(old), old.since(new)), (5, 0));
        assert_eq!((old.max(new), old.min(new)), (new, old));
        assert_eq!((old + 5, new - 5), (new, old));
    }
}
