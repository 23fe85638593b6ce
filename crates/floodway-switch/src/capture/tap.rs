//! A word for each port and uplink that says which captures want what of it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Capture;
use crate::api::capture::{MAX_CAPTURES, Stage};

/// Bits of the word that a capture has: three stages, whether it wants dropped frames only, and its tag.
const WIDTH: usize = 16;
const DROPS_ONLY: u64 = 8;
const TAG_SHIFT: u32 = 4;
const TAG_MASK: u64 = 0xfff;

const _: () = assert!(WIDTH * MAX_CAPTURES <= u64::BITS as usize);

/// Which captures want what of a port or an uplink. Zero if none does.
#[derive(Debug, Default)]
pub struct Tap(AtomicU64);

/// The value of a [`Tap`] at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch(u64);

const fn bit(stage: Stage) -> u64 {
    match stage {
        Stage::In => 1,
        Stage::Out => 2,
        Stage::Offload => 4,
    }
}

/// The bit of `stage` in every capture's part.
const fn in_all(stage: Stage) -> u64 {
    let (mut mask, mut slot) = (0, 0);
    while slot < MAX_CAPTURES {
        mask |= bit(stage) << (WIDTH * slot);
        slot += 1;
    }
    mask
}

impl Tap {
    /// What it says now.
    #[inline]
    #[must_use]
    pub fn watch(&self) -> Watch {
        // What a capture needs was made before it was named here, and rings order the rest.
        Watch(self.0.load(Ordering::Acquire))
    }

    /// Lets `capture` see these stages, or what is dropped there.
    pub fn set(&self, capture: &Capture, stages: &[Stage], drops: bool) {
        let stages = stages.iter().fold(0, |bits, &stage| bits | bit(stage));
        let tag = u64::from(Watch::tag(capture.id));
        let part = stages | if drops { DROPS_ONLY } else { 0 } | tag << TAG_SHIFT;
        self.put(capture.slot, part);
    }

    /// Lets `capture` see nothing more.
    pub fn clear(&self, capture: &Capture) {
        self.put(capture.slot, 0);
    }

    fn put(&self, slot: usize, part: u64) {
        let shift = WIDTH * slot;
        let others = |word: u64| word & !(0xffff << shift);
        let update = |word| Some(others(word) | part << shift);
        // It never refuses.
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, update);
    }
}

impl Watch {
    /// What the records of a capture with this number bear.
    #[must_use]
    pub const fn tag(id: u64) -> u16 {
        (id & TAG_MASK) as u16
    }

    /// Returns `true` if some capture wants frames of this stage.
    #[inline]
    #[must_use]
    pub const fn wants(self, stage: Stage) -> bool {
        self.0 & in_all(stage) != 0
    }

    /// Slots and tags of the captures that want a frame of this stage, which is dropped there or not.
    pub(super) fn captures(
        self,
        stage: Stage,
        dropped: bool,
    ) -> impl Iterator<Item = (usize, u16)> {
        let part = move |slot: usize| self.0 >> (WIDTH * slot);
        let wants = move |part: u64| part & bit(stage) != 0 && (dropped || part & DROPS_ONLY == 0);
        let parts = (0..MAX_CAPTURES).map(move |slot| (slot, part(slot)));
        parts
            .filter(move |&(_, part)| wants(part))
            .map(|(slot, part)| (slot, (part >> TAG_SHIFT & TAG_MASK) as u16))
    }
}
