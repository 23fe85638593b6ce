//! What came out of order, and was reported to the peer before the guest has run.
//!
//! # Theory of operation
//! **Goal.** A hole in what the guest receives is repaired at the pace of the network. The peer learns of it by SACK blocks (RFC 2018), for which a guest that
//! waits for its CPU takes tens of milliseconds. A SACK block is no promise: a receiver may discard what it has reported (RFC 2018 section 8), and the peer
//! keeps it until the acknowledgement number has passed it. So what is reported is neither kept nor journalled, and the number stays the guest's to advance.
//!
//! **What is reported.** In `UNEXPECTED_SEQ`, where SACK was agreed on: what lies behind the next byte in order and within the guest's window, once it is in the guest's queue
//! ([`Offload::on_delivered`](super::Offload::on_delivered)). The block that changed last comes first, behind a DSACK if one is due; three blocks fit beside timestamps, else four.
//!
//! **When.** At the end of the batch, in one ACK for each flow. RFC 5681 section 4.2 wants an ACK at once for each segment out of order, for senders that count; those that
//! SACK count bytes and ranges (RFC 6675 section 4), or see by what arrived what did not (RFC 8985), and one ACK with all blocks tells them as much. Senders that
//! count duplicates get one for each segment nevertheless: reports and what passes of the guest's own are together as many as the guest sends.
//!
//! Nothing is reported
//! - while bytes in order are with the guest and not acknowledged: next to a later report the peer would take them for lost. So reports end when the hole is
//!   filled, and a hole behind it waits for the guest's ACK. `ACTIVE` does not begin there either: to acknowledge up to the next hole would promise what is not kept, and
//!   a number that ends where a block begins is that of a receiver that has discarded it;
//! - from a segment on of which only the guest knows what becomes of it: that may change the echo of CE (R6), is urgent (R7), has an unknown option or lacks timestamps, or overlaps what came in
//!   order. It cannot be left out of reports about later ones, for it would be taken for lost. It ends when the guest has caught up;
//! - of what the peer sends once more: the guest answers by a DSACK, which is told once;
//! - while the guest is stopped. When it runs again its queue may be another, and no ranges are known.
//!
//! A FIN is reported as Linux does, with its number: it is acknowledged by the guest alone (R7).
//!
//! **Fields.** Number, window (R3), echo of the clock (`TS.Recent`, that of the last segment in order: RFC 7323 section 4.3) and of CE are those that the peer has had last: nothing of them changes with
//! what is out of order.
//!
//! **The guest's own ACKs.** A pure ACK of the guest whose blocks the peer has had from here, and whose number it knows, is absorbed, once for each report. All that says more passes: a higher number, a
//! block that is not known here, a DSACK, another echo, a window. Those beyond the number of reports pass, too, so that a report that got lost is said again; after the one that says all that
//! was reported no more are absorbed, since they answer something else. What the peer knows never becomes less: blocks are not taken back.
//!
//! **Memory.** [`MAX_RANGES`] ranges in the box of what is kept ([`super::keeping`]), which a flow has while there is a hole. What an ACK has no room for is forgotten, the ranges first that changed
//! longest ago: about these the guest tells something new. So all that is known here was said to the peer, unless a report is due.
//!
//! **Cost.** A few comparisons for each segment out of order, whatever its size, and one ACK for a flow and batch; nothing for segments in order.
//!
//! States and timers: none. Invariants: ranges lie apart from each other, behind the next byte in order, and contain only what was delivered to the guest.
//!
//! Source: RFC 2018 sections 3, 4 and 8; RFC 2883 section 4; RFC 5681 section 4.2; RFC 6675 sections 2 and 4.

use floodway_wire::tcp::options::{MAX_SACK_BLOCKS, SackBlock, SackList};
use serde::{Deserialize, Serialize};

use super::sender::is_dsack;
use super::store::is_near;
use crate::seq::Seq;

/// Ranges of a flow that are known at most: what a header has room for.
const MAX_RANGES: usize = MAX_SACK_BLOCKS;

/// What of a flow came out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reports {
    /// The first `count` of them are in use, the one that changed last first.
    ranges: [(Seq, Seq); MAX_RANGES],
    count: u8,
    /// The peer has not heard of all of them.
    due: bool,
    /// Nothing is reported until the guest has caught up.
    silent: bool,
    /// Reports for which the guest has sent no ACK yet.
    unrepeated: u8,
}

impl Reports {
    pub const EMPTY: Self = Self {
        ranges: [(Seq(0), Seq(0)); MAX_RANGES],
        count: 0,
        due: false,
        silent: false,
        unrepeated: 0,
    };

    /// Nothing would be lost with it.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        self.count == 0 && !self.silent
    }

    /// The peer is to hear of a range of which it has not heard.
    pub fn is_due(&self) -> bool {
        self.due && !self.silent
    }

    /// Reports nothing until the guest has caught up.
    pub fn keep_silent(&mut self) {
        self.silent = true;
    }

    fn known(&self) -> &[(Seq, Seq)] {
        &self.ranges[..usize::from(self.count).min(MAX_RANGES)]
    }

    /// Notes that `start..end` was delivered.
    pub fn note(&mut self, start: Seq, end: Seq) {
        if self.known().iter().any(|&(left, right)| !start.before(left) && !end.after(right)) {
            return;
        }
        let (mut all, old) = ((start, end), *self);
        self.count = 1;
        for &(left, right) in old.known() {
            if left.after(all.1) || right.before(all.0) {
                self.append((left, right));
            } else {
                all = (all.0.min(left), all.1.max(right));
            }
        }
        self.ranges[0] = all;
        self.due = true;
    }

    /// The range that changed longest ago is forgotten if there is no room.
    fn append(&mut self, range: (Seq, Seq)) {
        if let Some(free) = self.ranges.get_mut(usize::from(self.count)) {
            *free = range;
            self.count += 1;
        }
    }

    /// Forgets what has come in order now that all before `next` has. Returns the next byte in order.
    pub fn advance(&mut self, mut next: Seq) -> Seq {
        // A range that is contiguous may be behind others.
        for _ in 0..self.count {
            for &(left, right) in self.known() {
                next = if left.after(next) { next } else { next.max(right) };
            }
        }
        let old = *self;
        self.count = 0;
        old.known().iter().filter(|(left, _)| left.after(next)).for_each(|&it| self.append(it));
        self.due &= self.count > 0;
        next
    }

    /// The guest has acknowledged something: all that it has said to reports has come.
    pub fn on_progress(&mut self) {
        self.unrepeated = 0;
    }

    /// Appends the ranges to `blocks`, of which a segment has room for `most`. What has no room is forgotten. Returns `true` if the peer learns something.
    pub fn say(&mut self, blocks: &mut SackList, most: usize) -> bool {
        if self.silent {
            return false;
        }
        let room = most.saturating_sub(blocks.as_slice().len());
        self.count = self.count.min(room as u8);
        for &(Seq(left), Seq(right)) in self.known() {
            blocks.push(SackBlock { left, right });
        }
        let is_news = std::mem::take(&mut self.due);
        self.unrepeated = self.unrepeated.saturating_add(u8::from(is_news));
        is_news
    }

    /// Takes in the blocks of a pure ACK of the guest with the number `ack`; the peer knows of all before `acked`. Returns `true` if a report has said all of it, and stands for this ACK.
    pub fn stand_for(&mut self, blocks: &[SackBlock], ack: Seq, acked: Seq) -> bool {
        let (Some(first), Some(&latest)) = (blocks.first(), self.known().first()) else {
            return false;
        };
        let behind = |block: &&SackBlock| Seq(block.right).after(acked);
        let stands = self.unrepeated > 0
            && !self.due
            && !is_dsack(blocks, ack)
            && blocks.iter().filter(behind).all(|block| self.has_said(block));
        self.unrepeated -= u8::from(stands);
        if contains(first, latest) {
            self.unrepeated = 0;
        }
        stands
    }

    fn has_said(&self, block: &SackBlock) -> bool {
        let (start, end) = (Seq(block.left), Seq(block.right));
        let is_within = |&(left, right): &(Seq, Seq)| !start.before(left) && !end.after(right);
        start.before(end) && self.known().iter().any(is_within)
    }

    /// Returns `false` if a stranger has written it. The next byte in order is `next`, and nothing has come behind `highest`.
    pub fn is_possible(&self, next: Seq, highest: Seq) -> bool {
        usize::from(self.count) <= MAX_RANGES
            && self.known().iter().all(|&(left, right)| {
                left.after(next)
                    && left.before(right)
                    && !right.after(highest)
                    && is_near(right, next)
            })
            && (self.count > 0 || !self.due)
    }
}

/// All of `range` lies in `block`.
fn contains(block: &SackBlock, (left, right): (Seq, Seq)) -> bool {
    !left.before(Seq(block.left)) && !right.after(Seq(block.right))
}
