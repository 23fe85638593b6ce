//! Frames that go to the same places.

use super::{Frame, WireSize};

/// Sizes of some frames, none of which is a GSO packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// All of them on the wire.
    pub all: WireSize,
    /// Bytes of the longest.
    pub longest: u32,
}

/// Frames that go to the same places, in order. They are walked once for each place, and again where they are measured first.
pub trait Frames: Copy {
    /// The frames.
    fn iter(&self) -> impl Iterator<Item = Frame<'_>>;

    /// Returns the sizes of all, if they are known without a walk and none is a GSO packet.
    #[inline]
    fn sizes(&self) -> Option<Sizes> {
        None
    }

    /// Returns the size on the wire of those frames that `fit`, which all do that have at most `always` bytes and are no GSO packets.
    #[inline]
    fn wire_size(&self, always: u32, fit: impl Fn(&Frame<'_>) -> bool) -> WireSize {
        match self.sizes().filter(|sizes| sizes.longest <= always) {
            Some(sizes) => sizes.all,
            None => self.iter().filter(fit).map(|frame| frame.wire_size()).sum(),
        }
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
