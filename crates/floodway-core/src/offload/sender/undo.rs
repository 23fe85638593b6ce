//! Recoveries that have turned out to be needless.
//!
//! # Theory of operation
//! **DSACKs.** A recovery is needless if every range that it sent again had arrived before: then the peer has got each of them
//! twice, and says so by a DSACK (RFC 2883, 3708). Duplicates that the path makes are told by DSACKs too, so only those count that
//! lie in a range that was sent again in this recovery. (Linux counts bytes, `undo_retrans`, and takes any.)
//!
//! The ranges are few: a run of segments that is sent again is one. What cannot be judged undoes nothing: a recovery
//! with more ranges than there is room for, and one that has sent something for the third time.
//!
//! **Timeouts** (F-RTO, RFC 5682; with SACK its section 3). After a timeout only the first segment is sent again. If the next
//! ACK advances, but not to all that was on its way, new bytes are sent instead of further repairs. If the ACK after
//! that names a segment from before the timeout that was sent once, it was no repair that has brought it: the path
//! was slow, and the timeout is undone, with its marks. Any other ACK goes on with the repairs. So does the absence of new bytes,
//! since the ACK of a repair may name what had arrived long before. A timeout that repeats another without progress between
//! them is judged as well, as Linux does; the delay may be several timeouts long. Timestamps (Eifel, RFC 3522) do not help: the
//! clock on the wire is the guest's, and stands while the guest has nothing to say, so that the repair has that of the original.
//!
//! Invariant: the ranges are not empty and do not touch each other.

use serde::{Deserialize, Serialize};

use super::{AckKind, Env, Sender};
use crate::seq::Seq;

/// How far it is known whether a timeout was needless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Frto {
    /// It is not asked, or it was not.
    Off,
    /// The first segment was sent again.
    Resent,
    /// The first ACK has advanced; new bytes instead of repairs are sent until the next.
    Probing,
}

impl<B: 'static> Sender<B> {
    /// What an ACK says of the timeout before it; `original` if it names a segment from before the timeout that was sent once.
    pub(super) fn judge_timeout<S>(&mut self, kind: AckKind, original: bool, env: &mut Env<'_, S>) {
        let partial = self.snd_una().before(self.recovery.recover);
        let says = matches!(kind, AckKind::Advanced | AckKind::Duplicate);
        let next = match self.recovery.frto {
            Frto::Resent if kind == AckKind::Advanced && partial => Frto::Probing,
            Frto::Probing if original => return self.undo_timeout(env),
            Frto::Resent | Frto::Probing if says => Frto::Off,
            same => same,
        };
        if next != self.recovery.frto {
            self.recovery.frto = next;
        }
    }

    /// Restores the window from before the last reduction; returns `false` if there is none.
    pub(super) fn undo_reduction(&mut self) -> bool {
        let restored = self.controller.on_spurious(&mut self.window);
        // What limited the sender was the smaller window (RFC 7661 section 4.3).
        self.cwnd_limited &= !restored;
        restored
    }

    fn undo_timeout<S>(&mut self, env: &mut Env<'_, S>) {
        self.recovery.frto = Frto::Off;
        if self.undo_reduction() {
            self.forget_timeout();
            env.counters.undone().add(1);
            self.end_recovery(env);
        }
    }

    /// What a needless timeout took for lost, nothing has shown to be; nor was it overtaken by a repair, since what has arrived
    /// was the original.
    pub(super) fn forget_timeout(&mut self) {
        self.store.forget_losses();
        self.recovery.forget_repair();
    }
}

/// Ranges that are remembered.
const MOST: usize = 8;

/// What was sent again in a recovery, without what DSACKs have named.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[repr(C)]
pub(super) struct Repairs {
    len: u8,
    /// There are, or were, some that are not among `ranges`.
    more: bool,
    /// A DSACK has named some of it.
    named: bool,
    ranges: [(Seq, Seq); MOST],
}

impl Repairs {
    pub const NONE: Self =
        Self { ranges: [(Seq(0), Seq(0)); MOST], len: 0, more: false, named: false };

    /// Returns `false` if a stranger has written it.
    pub fn is_possible(&self) -> bool {
        usize::from(self.len) <= MOST
    }

    /// Forgets them.
    #[inline]
    pub fn clear(&mut self) {
        (self.len, self.more, self.named) = (0, false, false);
    }

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

    /// A DSACK has named some of what was sent again.
    #[inline]
    pub fn are_named(&self) -> bool {
        self.named
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
