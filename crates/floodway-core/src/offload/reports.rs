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
//! - likewise, once a batch has brought more ranges than an ACK has room for: the peer would take those between for lost;
//! - of what the peer sends once more: the guest answers by a DSACK, and once is enough;
//! - while the guest is stopped. When it runs again its queue may be another, and no ranges are known.
//!
//! A FIN is reported as Linux does, with its number: it is acknowledged by the guest alone (R7).
//!
//! **Fields.** Number, window (R3), echo of the clock (`TS.Recent`, that of the last segment in order: RFC 7323 section 4.3) and of CE are those that the peer has had last: nothing of them changes with
//! what is out of order.
//!
//! **The guest's own ACKs.** A pure ACK of the guest whose blocks the peer has had from here, and whose number it knows, is absorbed, once for each report. All that carries more passes: a higher number, a
//! block that is not known here, a DSACK, another echo, a window. Those beyond the number of reports pass, too, so that a report that got lost is repeated; after the one that carries all that
//! was reported no more are absorbed, since they answer something else. What the peer knows never becomes less: blocks are not taken back.
//!
//! **Price.** Where the path merely reorders, what fills the hole comes a little later, and the peer hears of that from the guest alone. Meanwhile a sender with a reordering
//! timer (RFC 8985) may repeat one segment in vain, which the guest's DSACK tells it. Without reports it would have heard of neither. What is reordered within a batch is not reported.
//!
//! **Memory.** [`MAX_RANGES`] ranges in the box of what is kept ([`super::keeping`]), which a flow has while there is a hole. What an ACK has no room for is forgotten, the ranges first that changed
//! longest ago: the guest's own SACK of these is news to the peer. So all that is known here was reported to the peer, but for the first ranges while a report is due.
//!
//! **Cost.** Here a few comparisons for each segment out of order, whatever its size, and in the switch two looks at a count of drops, and one ACK for a flow and batch.
//!
//! States and timers: none. Invariants: ranges lie apart from each other, behind the acknowledgement number, and contain only what was delivered to the guest.
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
    /// So many of the first ones have changed since the peer has heard of them.
    unreported: u8,
    /// Nothing is reported until the guest has caught up.
    silent: bool,
    /// Reports for which the guest has sent no ACK yet.
    unrepeated: u8,
}

impl Reports {
    pub const EMPTY: Self = Self {
        ranges: [(Seq(0), Seq(0)); MAX_RANGES],
        count: 0,
        unreported: 0,
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
        self.unreported > 0 && !self.silent
    }

    /// Reports nothing until the guest has caught up.
    pub fn keep_silent(&mut self) {
        self.silent = true;
    }

    /// Knows no more of what has come. What only the guest can judge is still with the guest.
    pub fn forget_ranges(&mut self) {
        *self = Self { silent: self.silent, ..Self::EMPTY };
    }

    fn known(&self) -> &[(Seq, Seq)] {
        &self.ranges[..usize::from(self.count).min(MAX_RANGES)]
    }

    fn reported(&self) -> &[(Seq, Seq)] {
        &self.known()[usize::from(self.unreported.min(self.count))..]
    }

    /// Notes that `start..end` was delivered.
    pub fn note(&mut self, start: Seq, end: Seq) {
        let is_within = |&(left, right): &(Seq, Seq)| !start.before(left) && !end.after(right);
        if self.silent || self.known().iter().any(is_within) {
            return;
        }
        let (mut all, old) = ((start, end), *self);
        (self.count, self.unreported) = (1, 1);
        for (n, &(left, right)) in (0..).zip(old.known()) {
            if left.after(all.1) || right.before(all.0) {
                self.append((left, right), n < old.unreported);
            } else {
                all = (all.0.min(left), all.1.max(right));
            }
        }
        self.ranges[0] = all;
    }

    /// The range that changed longest ago is forgotten if there is no room.
    fn append(&mut self, range: (Seq, Seq), is_unreported: bool) {
        if let Some(free) = self.ranges.get_mut(usize::from(self.count)) {
            *free = range;
            self.count += 1;
            self.unreported += u8::from(is_unreported);
        } else {
            self.silent |= is_unreported;
        }
    }

    /// Returns the next byte in order when all before `next` has come in order.
    pub fn skip(&self, mut next: Seq) -> Seq {
        // A range that is contiguous may be behind others.
        for _ in self.known() {
            for &(left, right) in self.known() {
                next = if left.after(next) { next } else { next.max(right) };
            }
        }
        next
    }

    /// The guest has acknowledged all before `acked`, and more than before: its ACKs for reports have come.
    pub fn on_progress(&mut self, acked: Seq) {
        let old = *self;
        (self.count, self.unreported, self.unrepeated) = (0, 0, 0);
        for (n, &(left, right)) in (0..).zip(old.known()) {
            if left.after(acked) {
                self.append((left, right), n < old.unreported);
            }
        }
    }

    /// Appends the ranges to `blocks`, of which a segment has room for `most`. What has no room is forgotten. Returns `true` if the peer learns something.
    pub fn report(&mut self, blocks: &mut SackList, most: usize) -> bool {
        let room = most.saturating_sub(blocks.as_slice().len());
        self.silent |= usize::from(self.unreported) > room;
        if self.silent {
            return false;
        }
        self.count = self.count.min(room as u8);
        for &(Seq(left), Seq(right)) in self.known() {
            blocks.push(SackBlock { left, right });
        }
        let is_news = std::mem::take(&mut self.unreported) > 0;
        self.unrepeated = self.unrepeated.saturating_add(u8::from(is_news));
        is_news
    }

    /// Takes in the blocks of a pure ACK of the guest with the number `ack`; the peer knows of all before `acked`. Returns `true` if all of it has been reported, and one report stands for this ACK.
    pub fn stand_for(&mut self, blocks: &[SackBlock], ack: Seq, acked: Seq) -> bool {
        let (Some(first), Some(&latest)) = (blocks.first(), self.known().first()) else {
            return false;
        };
        let behind = |block: &&SackBlock| Seq(block.right).after(acked);
        let stands = self.unrepeated > 0
            && !is_dsack(blocks, ack)
            && blocks.iter().filter(behind).all(|block| self.has_reported(block));
        self.unrepeated -= u8::from(stands);
        if contains(first, latest) {
            self.unrepeated = 0;
            self.leave_unreported_to(blocks);
        }
        stands
    }

    /// Nothing is left to report if `blocks` of the guest have all of it.
    fn leave_unreported_to(&mut self, blocks: &[SackBlock]) {
        let (unreported, _) = self.known().split_at(usize::from(self.unreported.min(self.count)));
        if unreported.iter().all(|&range| blocks.iter().any(|block| contains(block, range))) {
            self.unreported = 0;
        }
    }

    fn has_reported(&self, block: &SackBlock) -> bool {
        let (start, end) = (Seq(block.left), Seq(block.right));
        let is_within = |&(left, right): &(Seq, Seq)| !start.before(left) && !end.after(right);
        start.before(end) && self.reported().iter().any(is_within)
    }

    /// Returns `false` if a stranger has written it. The peer knows of all before `acked`, and nothing has come behind `highest`.
    pub fn is_possible(&self, acked: Seq, highest: Seq) -> bool {
        let is_possible = |&(left, right): &(Seq, Seq)| {
            let is_behind = left.after(acked) && left.before(right) && is_near(right, acked);
            is_behind && !right.after(highest)
        };
        usize::from(self.count) <= MAX_RANGES
            && self.unreported <= self.count
            && self.known().iter().all(is_possible)
    }
}

/// All of `range` lies in `block`.
fn contains(block: &SackBlock, (left, right): (Seq, Seq)) -> bool {
    !left.before(Seq(block.left)) && !right.after(Seq(block.right))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(reports: &mut Reports, most: usize) -> Vec<(u32, u32)> {
        let mut blocks = SackList::default();
        reports.report(&mut blocks, most);
        blocks.as_slice().iter().map(|block| (block.left, block.right)).collect()
    }

    fn after(noted: &[(u32, u32)]) -> Reports {
        let mut reports = Reports::EMPTY;
        noted.iter().for_each(|&(start, end)| reports.note(Seq(start), Seq(end)));
        reports
    }

    #[test]
    fn the_range_that_changed_last_comes_first_and_ranges_that_touch_are_one() {
        let mut reports = after(&[(10, 20), (30, 40), (50, 60), (20, 30)]);
        assert_eq!(blocks(&mut reports, 4), [(10, 40), (50, 60)]);
        reports.note(Seq(55), Seq(60));
        assert!(!reports.is_due(), "nothing is new");
        reports.note(Seq(u32::MAX - 9), Seq(5));
        assert_eq!(blocks(&mut reports, 4), [(u32::MAX - 9, 5), (10, 40), (50, 60)]);
    }

    #[test]
    fn what_has_no_room_is_forgotten() {
        let mut reports = Reports::EMPTY;
        for n in 1..=5 {
            reports.note(Seq(10 * n), Seq(10 * n + 1));
            blocks(&mut reports, 4);
        }
        assert_eq!(reports.known().len(), 4);
        assert_eq!(blocks(&mut reports, 3), [(50, 51), (40, 41), (30, 31)]);
        assert_eq!(blocks(&mut reports, 4), [(50, 51), (40, 41), (30, 31)]);
        assert!(!reports.has_reported(&SackBlock { left: 20, right: 21 }));
    }

    #[test]
    fn more_ranges_at_once_than_an_ack_has_room_for_are_the_guests_to_report() {
        let five = after(&[(10, 11), (20, 21), (30, 31), (40, 41), (50, 51)]);
        let four = after(&[(10, 11), (20, 21), (30, 31), (40, 41)]);
        for (mut reports, most, expected) in [(five, 4, 0), (four, 3, 0), (four, 4, 4)] {
            assert_eq!(blocks(&mut reports, most).len(), expected);
            assert!(!reports.is_due());
        }
    }

    #[test]
    fn what_is_contiguous_is_skipped_in_whatever_order_it_came() {
        let reports = after(&[(10, 20), (40, 50), (20, 25), (27, 40)]);
        assert_eq!(
            [9, 10, 24, 25, 26, 27].map(|next| reports.skip(Seq(next)).0),
            [9, 25, 25, 25, 26, 50]
        );
    }

    #[test]
    fn the_guest_repeats_what_was_reported_once_for_each_report() {
        let ack = |reports: &mut Reports, list: &[(u32, u32)]| {
            let list: Vec<_> =
                list.iter().map(|&(left, right)| SackBlock { left, right }).collect();
            reports.stand_for(&list, Seq(5), Seq(5))
        };
        let mut reports = after(&[(10, 20)]);
        assert!(!ack(&mut reports, &[(10, 15)]), "the peer has not heard of it");
        blocks(&mut reports, 4);
        reports.note(Seq(20), Seq(30));
        blocks(&mut reports, 4);
        assert!(!ack(&mut reports, &[(1, 2), (10, 20)]), "a DSACK");
        assert!(!ack(&mut reports, &[(10, 20), (40, 41)]), "more than is known here");
        reports.note(Seq(20), Seq(40));
        reports.note(Seq(50), Seq(60));
        blocks(&mut reports, 4);
        assert!(ack(&mut reports, &[(10, 20)]) && ack(&mut reports, &[(10, 40)]));
        assert!(ack(&mut reports, &[(50, 60), (10, 40)]), "it has all of it");
        assert!(!ack(&mut reports, &[(50, 60), (10, 40)]), "and answers something else");
    }

    #[test]
    fn what_the_guest_has_reported_is_not_reported_again() {
        let [first, second] = [(10, 20), (30, 40)].map(|(left, right)| SackBlock { left, right });
        let mut reports = after(&[(10, 20), (30, 40)]);
        assert!(!reports.stand_for(&[first], Seq(5), Seq(5)) && reports.is_due());
        assert!(!reports.stand_for(&[second], Seq(5), Seq(5)) && reports.is_due());
        assert!(!reports.stand_for(&[second, first], Seq(5), Seq(5)) && !reports.is_due());
    }

    #[test]
    fn progress_forgets_what_lies_before_it() {
        let mut reports = after(&[(10, 20), (30, 40)]);
        blocks(&mut reports, 4);
        reports.note(Seq(50), Seq(60));
        reports.on_progress(Seq(15));
        assert_eq!((reports.count, reports.unreported, reports.unrepeated), (2, 1, 0));
        assert!(reports.is_possible(Seq(15), Seq(60)) && !reports.is_possible(Seq(30), Seq(60)));
        reports.on_progress(Seq(60));
        assert!(reports.is_at_rest() && !reports.is_due());
    }

    #[test]
    fn what_a_stranger_has_written_is_believed_only_if_it_can_be() {
        let good = after(&[(10, 20), (30, 40)]);
        assert!(good.is_possible(Seq(9), Seq(40)));
        let bad = [
            Reports { count: 5, ..good },
            Reports { unreported: 3, ..good },
            Reports { ranges: [(Seq(20), Seq(10)); 4], ..good },
            Reports { ranges: [(Seq(20), Seq(20)); 4], ..good },
            Reports { ranges: [(Seq(9), Seq(10)); 4], ..good },
            Reports { ranges: [(Seq(30), Seq(41)); 4], ..good },
        ];
        assert!(bad.iter().all(|bad| !bad.is_possible(Seq(9), Seq(40))));
        assert!(!good.is_possible(Seq(9), Seq(39)) && !good.is_possible(Seq(10), Seq(40)));
    }

    #[test]
    fn silence_lasts_until_the_guest_has_caught_up() {
        let mut reports = after(&[(10, 20)]);
        reports.keep_silent();
        reports.note(Seq(30), Seq(40));
        assert!(!reports.is_due() && blocks(&mut reports, 4).is_empty() && !reports.is_at_rest());
        reports.forget_ranges();
        reports.note(Seq(30), Seq(40));
        assert!(!reports.is_due() && !reports.is_at_rest());
    }
}
