//! Which repairs have turned out to be needless.
//!
//! # Theory of operation
//! A recovery is needless if every range that it sent again had arrived before: then the peer has got each of them
//! twice, and says so by a DSACK (RFC 2883, 3708). Duplicates that the path makes are told by DSACKs too, so only those count that
//! lie in a range that was sent again in this recovery. (Linux counts bytes, `undo_retrans`, and takes any.)
//!
//! The ranges are few: a run of segments that is sent again is one. What cannot be judged undoes nothing: a recovery
//! with more ranges than there is room for, and one that has sent something for the third time.
//!
//! Invariant: the ranges are not empty and do not touch each other.

use crate::seq::Seq;

/// Ranges that are remembered.
const MOST: usize = 8;

/// What was sent again in a recovery, without what DSACKs have named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repairs {
    ranges: [(Seq, Seq); MOST],
    len: u8,
    /// There are, or were, some that are not among `ranges`.
    more: bool,
    /// A DSACK has named some of it.
    named: bool,
}

impl Repairs {
    pub const NONE: Self =
        Self { ranges: [(Seq(0), Seq(0)); MOST], len: 0, more: false, named: false };

    /// `start..end` was sent again, for the second time if not `once`.
    pub fn add(&mut self, start: Seq, end: Seq, once: bool) {
        self.more |= !once;
        let len = usize::from(self.len);
        match self.ranges[..len].last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ if len < MOST => {
                self.ranges[len] = (start, end);
                self.len += 1;
            }
            _ => self.more = true,
        }
    }

    /// The peer got `left..right` twice. Returns `true` if any of that was sent again.
    pub fn on_dsack(&mut self, left: Seq, right: Seq) -> bool {
        let old = *self;
        self.len = 0;
        let mut named = false;
        for &(start, end) in &old.ranges[..usize::from(old.len)] {
            let (from, to) = (start.max(left), end.min(right));
            if !from.before(to) {
                self.keep(start, end);
                continue;
            }
            named = true;
            self.keep(start, from);
            self.keep(to, end);
        }
        self.named |= named;
        named
    }

    fn keep(&mut self, start: Seq, end: Seq) {
        if start.before(end) {
            self.add(start, end, true);
        }
    }

    /// DSACKs have named all that was sent again.
    pub fn are_needless(&self) -> bool {
        self.named && self.len == 0 && !self.more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repairs(ranges: &[(u32, u32)]) -> Repairs {
        let mut repairs = Repairs::NONE;
        ranges.iter().for_each(|&(start, end)| repairs.add(Seq(start), Seq(end), true));
        repairs
    }

    #[test]
    fn all_of_it_has_to_be_named() {
        let mut repairs = repairs(&[(10, 20), (20, 30), (50, 60)]);
        assert!(!repairs.on_dsack(Seq(30), Seq(50)), "made by the path");
        assert!(repairs.on_dsack(Seq(15), Seq(25)));
        assert!(!repairs.on_dsack(Seq(15), Seq(25)), "told twice");
        assert!(repairs.on_dsack(Seq(50), Seq(60)) && repairs.on_dsack(Seq(0), Seq(15)));
        assert!(!repairs.are_needless());
        assert!(repairs.on_dsack(Seq(25), Seq(30)) && repairs.are_needless());
    }

    #[test]
    fn what_cannot_be_judged_is_not_needless() {
        assert!(!Repairs::NONE.are_needless(), "nothing was repaired");
        let many: Vec<_> = (0..9).map(|n| (20 * n, 20 * n + 10)).collect();
        let mut repairs = repairs(&many);
        assert!(repairs.on_dsack(Seq(0), Seq(1000)) && !repairs.are_needless());
        let mut twice = Repairs::NONE;
        twice.add(Seq(5), Seq(6), true);
        twice.add(Seq(5), Seq(6), false);
        assert!(twice.on_dsack(Seq(5), Seq(6)) && !twice.are_needless());
    }
}
