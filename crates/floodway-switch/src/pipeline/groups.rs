//! The frames of a batch by what becomes of them.

use super::decide::Verdict;
use crate::queues::tx::BATCH;

/// Frames of a batch, each group of the same verdict, in the order of their first frames.
pub(super) struct Groups {
    /// A verdict, and a bit for each frame that has it. Those from `len` on mean nothing.
    groups: [(Verdict, u32); BATCH],
    len: usize,
    /// The group of the last frame, which is most likely that of the next.
    last: usize,
}

impl Groups {
    /// No frames.
    pub(super) const fn new() -> Self {
        Self { groups: [(Verdict::Flood, 0); BATCH], len: 0, last: 0 }
    }

    /// Adds frame `i`.
    #[inline]
    pub(super) fn add(&mut self, i: usize, verdict: Verdict) {
        if self.groups[self.last].0 != verdict || self.len == 0 {
            self.last = self.group_of(verdict);
        }
        self.groups[self.last].1 |= 1 << i;
    }

    /// The place of the group of `verdict`, which is a new one if need be.
    #[inline(never)]
    fn group_of(&mut self, verdict: Verdict) -> usize {
        let groups = &self.groups[..self.len];
        groups.iter().position(|group| group.0 == verdict).unwrap_or_else(|| {
            self.groups[self.len] = (verdict, 0);
            self.len += 1;
            self.len - 1
        })
    }

    /// The groups.
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Verdict, u32)> + '_ {
        self.groups[..self.len].iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use floodway_core::l2::PortId;
    use proptest::prelude::*;

    use super::*;
    use crate::stats::DropReason;

    proptest! {
        #[test]
        fn every_frame_is_in_the_group_of_its_verdict(kinds in proptest::collection::vec(0_u16..6, 0..=BATCH)) {
            let verdict = |kind: u16| match kind {
                0 => Verdict::Flood,
                1 => Verdict::Drop(DropReason::Storm),
                kind => Verdict::To { dst: PortId(kind), pair: kind % 2 },
            };
            let mut groups = Groups::new();
            kinds.iter().enumerate().for_each(|(i, &kind)| groups.add(i, verdict(kind)));
            let groups: Vec<_> = groups.iter().collect();
            let mut expected: Vec<(Verdict, u32)> = Vec::new();
            for (i, &kind) in kinds.iter().enumerate() {
                match expected.iter_mut().find(|group| group.0 == verdict(kind)) {
                    Some(group) => group.1 |= 1 << i,
                    None => expected.push((verdict(kind), 1 << i)),
                }
            }
            prop_assert_eq!(groups, expected);
        }
    }
}
