//! What of the peer's bytes got into the guest's queue: nothing else may be reported to the peer.

use std::collections::BTreeMap;

use super::packet::Position;

/// Ranges that lie apart from each other, by where they begin.
#[derive(Debug, Default)]
pub struct Delivered(BTreeMap<Position, Position>);

impl Delivered {
    pub fn add(&mut self, mut start: Position, mut end: Position) {
        if start >= end {
            return;
        }
        let touching: Vec<_> =
            self.0.range(..=end).rev().take_while(|&(_, &e)| e >= start).map(|(&s, _)| s).collect();
        for first in touching {
            let last = self.0.remove(&first).unwrap();
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    /// Every SACK block, and every DSACK, that the peer hears of lies within.
    pub fn check(&self, blocks: impl Iterator<Item = (Position, Position)>) {
        for (left, right) in blocks {
            let last = self.0.range(..=left).next_back().map(|(_, &end)| end);
            let known = left < right && last.is_some_and(|end| right <= end);
            assert!(known, "{left}..{right} is reported, and was not delivered: {self:?}");
        }
    }
}
