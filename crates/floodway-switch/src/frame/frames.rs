//! Frames that go to the same places.

use super::{Frame, WireSize};

/// Frames that go to the same places, in order. They are walked once for each place, and again where they are measured first.
pub trait Frames: Copy {
    /// The frames.
    fn iter(&self) -> impl Iterator<Item = Frame<'_>>;

    /// Returns the size on the wire of those frames that `fit`, which all do that have at most `always` bytes and are no GSO packets.
    #[inline]
    fn wire_size(&self, always: u32, fit: impl Fn(&Frame<'_>) -> bool) -> WireSize {
        let _ = always;
        self.iter().filter(fit).map(|frame| frame.wire_size()).sum()
    }

    /// Returns how many are bare acknowledgements.
    #[inline]
    fn pure_acks(&self) -> u64 {
        self.iter().map(|frame| u64::from(frame.is_pure_ack())).sum()
    }
}

impl Frames for &Frame<'_> {
    #[inline]
    fn iter(&self) -> impl Iterator<Item = Frame<'_>> {
        std::iter::once(**self)
    }
}
