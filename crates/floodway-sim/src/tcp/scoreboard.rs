//! What was sent and not acknowledged, segment by segment.
//!
//! # Theory of operation
//! One entry per segment of at most one MSS, in order, from `snd_una` to `snd_nxt`. An entry is outstanding,
//! or selectively acknowledged (*sacked*), or marked *lost*; a lost one may be *resent*. Three counters
//! follow the marks, so that `pipe` (RFC 6675 section 4) is a subtraction:
//! `pipe = outstanding - sacked - lost + resent`.
//!
//! `IsLost` (RFC 6675): a segment is lost if more than `(DupThresh - 1) * MSS` bytes above it are sacked, or
//! `DupThresh` separate ranges. Since entries are sent in order, all unsacked entries below the first
//! one that is lost by this rule are lost, too. The walk starts at the highest sacked entry and stops at
//! `examined`, below which every entry is sacked or lost already, so that its cost is shared by the ACKs.
//!
//! ACKs repeat blocks, each a little longer than the last time. A sacked entry stays sacked until it is acknowledged, so
//! what a block covered once need not be looked at again: the last few blocks are kept, and a new block that begins inside a
//! kept one is walked only from where that one ends.
//!
//! Each entry knows what the queues of the host had taken before it. Whoever knows what has left them by now can tell whether
//! it is there still: a timeout says nothing about it then.
//!
//! Invariants (checked by the property test): counters equal the sums over the entries; sacked and lost
//! exclude each other; only a lost entry is resent; no entry that ends at or below `examined` is unmarked; every entry inside a kept block is
//! sacked.

use std::collections::VecDeque;

use floodway_wire::tcp::options::MAX_SACK_BLOCKS;

use crate::Instant;

const DUP_THRESH: u32 = 3;

/// A mark of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    None,
    Sacked,
    Lost,
    /// Lost and sent again.
    Resent,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    len: u32,
    mark: Mark,
    /// Sent more than once at any time: gives no round-trip sample (Karn).
    repeated: bool,
    sent: Instant,
    /// Bytes that the host's queues had taken before it was last sent.
    behind: u64,
}

impl Entry {
    /// It is in the host's queues, if so many bytes have left them.
    const fn is_queued(&self, left: u64) -> bool {
        self.behind >= left
    }

    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// What an ACK has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Bytes that were delivered and not known to be before.
    pub delivered: u32,
    /// When the earliest of the segments that it newly covers was sent, if none is a repetition.
    pub first_sent: Option<Instant>,
    /// When the latest was sent.
    pub last_sent: Option<Instant>,
    /// When the latest was sent, repetitions included.
    pub latest: Option<Instant>,
    /// It covers something that had been sent more than once.
    pub repeated: bool,
    /// Bytes newly sacked.
    pub sacked: u32,
}

impl News {
    fn add(&mut self, entry: &Entry) {
        self.delivered += entry.len;
        self.latest = self.latest.max(Some(entry.sent));
        self.repeated |= entry.repeated;
        if !entry.repeated {
            self.first_sent = self.first_sent.or(Some(entry.sent));
            self.last_sent = Some(entry.sent);
        }
    }
}

/// The retransmission queue of one sender.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    entries: VecDeque<Entry>,
    sacked: u32,
    lost: u32,
    resent: u32,
    highest_sacked: u64,
    /// No entry that ends here or below is unmarked.
    examined: u64,
    /// Blocks inside which every entry is sacked.
    blocks: [(u64, u64); MAX_SACK_BLOCKS],
    /// Where the next new block is kept.
    next_block: usize,
    /// No entry below is lost and not resent.
    resend_from: u64,
    /// Bytes that the host's queues have taken.
    queue_taken: u64,
}

impl Scoreboard {
    /// What is sent from now on comes behind so many bytes in the host's queues.
    pub(super) const fn set_queue(&mut self, taken: u64) {
        self.queue_taken = taken;
    }

    pub(super) fn sent(&mut self, start: u64, len: u32, now: Instant) {
        let behind = self.queue_taken;
        let entry = Entry { start, len, mark: Mark::None, repeated: false, sent: now, behind };
        self.entries.push_back(entry);
    }

    /// Bytes in flight, as far as is known, of `outstanding` bytes.
    pub(super) fn pipe(&self, outstanding: u32) -> u32 {
        (outstanding + self.resent).saturating_sub(self.sacked + self.lost)
    }

    /// Forgets what lies below `una`.
    pub(super) fn acknowledge(&mut self, una: u64, news: &mut News) {
        while let Some(&entry) = self.entries.front()
            && entry.start < una
        {
            let covered = Entry { len: (una.min(entry.end()) - entry.start) as u32, ..entry };
            if entry.mark != Mark::Sacked {
                news.add(&covered);
            }
            self.forget(entry.mark, covered.len);
            if covered.len == entry.len {
                self.entries.pop_front();
            } else if let Some(front) = self.entries.front_mut() {
                (front.start, front.len) = (una, entry.len - covered.len);
                // An entry across the left edge of a block may lie inside the block now.
                self.blocks = Default::default();
            }
        }
    }

    /// Marks what a block covers as sacked.
    pub(super) fn sack(&mut self, left: u64, right: u64, news: &mut News) {
        let right = right.min(self.entries.back().map_or(0, Entry::end));
        let Some(known) = self.keep_block(left, right) else { return };
        let first =
            self.entries.partition_point(|entry| entry.start < left || entry.end() <= known);
        for at in first..self.entries.len() {
            let entry = self.entries[at];
            if entry.end() > right {
                break;
            }
            if entry.mark == Mark::Sacked {
                continue;
            }
            self.forget(entry.mark, entry.len);
            self.entries[at].mark = Mark::Sacked;
            self.sacked += entry.len;
            news.sacked += entry.len;
            self.highest_sacked = self.highest_sacked.max(entry.end());
            news.add(&entry);
        }
    }

    /// Keeps a block, whose entries the caller marks now. Returns up to where they are sacked already; `None` if all are.
    fn keep_block(&mut self, left: u64, right: u64) -> Option<u64> {
        let begins_in = |&(l, r): &(u64, u64)| l <= left && left <= r;
        let Some(block) = self.blocks.iter_mut().find(|block| begins_in(block)) else {
            self.blocks[self.next_block] = (left, right);
            self.next_block = (self.next_block + 1) % MAX_SACK_BLOCKS;
            return Some(left);
        };
        let (_, known) = *block;
        if right <= known {
            return None;
        }
        // Not from the old left end on: an entry across `left` is not marked.
        *block = (left, right);
        Some(known)
    }

    /// Applies `IsLost`; says how many bytes it marked.
    pub(super) fn find_losses(&mut self, mss: u32) -> u32 {
        if self.sacked == 0 {
            return 0;
        }
        let top = self.entries.partition_point(|entry| entry.start < self.highest_sacked);
        let (mut bytes, mut ranges, mut in_range, mut marked) = (0, 0, false, 0);
        let mut examined = self.examined;
        for at in (0..top).rev() {
            let entry = self.entries[at];
            if entry.end() <= self.examined {
                break;
            }
            let lost = bytes > (DUP_THRESH - 1) * mss || ranges >= DUP_THRESH;
            if lost {
                examined = examined.max(entry.end());
            }
            if entry.mark == Mark::Sacked {
                bytes += entry.len;
                ranges += u32::from(!in_range);
                in_range = true;
                continue;
            }
            in_range = false;
            if lost && entry.mark == Mark::None {
                self.mark_lost(at);
                marked += entry.len;
            }
        }
        self.examined = examined;
        marked
    }

    /// Marks as lost again what was sent again before `latest`, when something was sent that has arrived (RFC 8985 without a
    /// reordering window). Returns how many bytes that is.
    pub(super) fn find_lost_repairs(&mut self, latest: Instant) -> u32 {
        if self.resent == 0 {
            return 0;
        }
        let mut marked = 0;
        for entry in &mut self.entries {
            if entry.mark == Mark::Resent && entry.sent < latest {
                entry.mark = Mark::Lost;
                marked += entry.len;
                self.resend_from = self.resend_from.min(entry.start);
            }
        }
        self.resent -= marked;
        marked
    }

    /// Marks the first segment as lost, if it is not sacked; says how many bytes that is.
    pub(super) fn first_is_lost(&mut self) -> u32 {
        match self.entries.front() {
            Some(entry) if entry.mark == Mark::None => {
                let len = entry.len;
                self.mark_lost(0);
                len
            }
            _ => 0,
        }
    }

    /// The first segment has not left the host's queues, which `left` bytes have left.
    pub(super) fn first_is_queued(&self, left: u64) -> bool {
        self.entries.front().is_some_and(|entry| entry.is_queued(left))
    }

    /// After a timeout: what is not sacked is lost, what was resent is lost again; except what has not left the host's
    /// queues, which `left` bytes have left.
    pub(super) fn all_is_lost(&mut self, left: u64) {
        let mut examined = None;
        for at in 0..self.entries.len() {
            let Entry { start, len, mark, .. } = self.entries[at];
            match mark {
                Mark::Sacked | Mark::Lost => {}
                Mark::None if self.entries[at].is_queued(left) => {
                    examined = examined.or(Some(start));
                }
                Mark::None => self.mark_lost(at),
                Mark::Resent if self.entries[at].is_queued(left) => {}
                Mark::Resent => {
                    self.entries[at].mark = Mark::Lost;
                    self.resent -= len;
                }
            }
        }
        self.resend_from = 0;
        self.examined = examined.unwrap_or_else(|| self.entries.back().map_or(0, Entry::end));
    }

    /// Something is marked as lost, sent again or not.
    pub(super) const fn has_losses(&self) -> bool {
        self.lost > 0
    }

    /// The first segment that is lost and was not sent again.
    pub(super) fn next_lost(&mut self) -> Option<(u64, u32)> {
        if self.lost == self.resent {
            return None;
        }
        let first = self.entries.partition_point(|entry| entry.start < self.resend_from);
        let found = self.entries.range(first..).find(|entry| entry.mark == Mark::Lost)?;
        self.resend_from = found.start;
        Some((found.start, found.len))
    }

    /// The segment at `start` was sent again.
    pub(super) fn resent(&mut self, start: u64, now: Instant) {
        let at = self.entries.partition_point(|entry| entry.start < start);
        if let Some(entry) = self.entries.get_mut(at)
            && entry.start == start
            && entry.mark == Mark::Lost
        {
            (entry.mark, entry.repeated, entry.sent) = (Mark::Resent, true, now);
            entry.behind = self.queue_taken;
            self.resent += entry.len;
        }
    }

    /// The first segment below the highest sacked one of which nothing is known.
    pub(super) fn first_hole(&self) -> Option<(u64, u32)> {
        if self.sacked == 0 {
            return None;
        }
        let first = self.entries.partition_point(|entry| entry.end() <= self.examined);
        let mut below = self.entries.range(first..).take_while(|e| e.start < self.highest_sacked);
        below.find(|e| e.mark == Mark::None).map(|e| (e.start, e.len))
    }

    /// The last segment, if it is neither sacked nor sent again.
    pub(super) fn last_unsacked(&self) -> Option<(u64, u32)> {
        self.entries.back().filter(|e| e.mark == Mark::None).map(|e| (e.start, e.len))
    }

    /// The segment at `start`, of which nothing is known, was sent again. It counts as lost, so that it is not in
    /// `pipe` twice.
    pub(super) fn resent_in_doubt(&mut self, start: u64, now: Instant) {
        let at = self.entries.partition_point(|entry| entry.start < start);
        if self.entries.get(at).is_some_and(|e| e.start == start && e.mark == Mark::None) {
            self.mark_lost(at);
            self.resent(start, now);
        }
    }

    fn mark_lost(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        entry.mark = Mark::Lost;
        self.lost += entry.len;
        self.resend_from = self.resend_from.min(entry.start);
    }

    /// Takes `bytes` of an entry with this mark off the counters.
    fn forget(&mut self, mark: Mark, bytes: u32) {
        match mark {
            Mark::None => {}
            Mark::Sacked => self.sacked -= bytes,
            Mark::Lost => self.lost -= bytes,
            Mark::Resent => {
                self.lost -= bytes;
                self.resent -= bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u32 = 100;

    fn board(segments: u64) -> Scoreboard {
        let mut board = Scoreboard::default();
        (0..segments).for_each(|n| board.sent(n * 100, MSS, Instant::from_nanos(n)));
        board
    }

    fn sack(board: &mut Scoreboard, left: u64, right: u64) -> News {
        let mut news = News::default();
        board.sack(left, right, &mut news);
        news
    }

    #[test]
    fn a_repair_that_something_sent_later_has_overtaken_is_lost_again() {
        let mut board = board(10);
        sack(&mut board, 200, 500);
        board.find_losses(MSS);
        board.resent(0, Instant::from_nanos(20));
        board.resent(100, Instant::from_nanos(30));
        let pipe = board.pipe(1000);
        assert_eq!(sack(&mut board, 500, 600).latest, Some(Instant::from_nanos(5)));
        assert_eq!(board.find_lost_repairs(Instant::from_nanos(5)), 0);
        // The second repair has arrived: the first was sent before it.
        let latest = sack(&mut board, 100, 200).latest;
        assert_eq!(latest, Some(Instant::from_nanos(30)));
        assert_eq!(board.find_lost_repairs(latest.unwrap()), 100);
        assert_eq!(board.next_lost(), Some((0, 100)));
        assert_eq!(board.pipe(1000), pipe - 300);
        assert_eq!(board.find_lost_repairs(Instant::from_nanos(99)), 0);
    }

    #[test]
    fn more_than_two_segments_above_make_a_loss() {
        let mut board = board(10);
        assert_eq!(sack(&mut board, 200, 400).delivered, 200);
        assert_eq!(board.find_losses(MSS), 0);
        assert_eq!(board.pipe(1000), 800);
        sack(&mut board, 400, 500);
        assert_eq!(board.find_losses(MSS), 200);
        assert_eq!(board.pipe(1000), 500);
        assert_eq!(board.next_lost(), Some((0, 100)));
        board.resent(0, Instant::ZERO);
        assert_eq!((board.next_lost(), board.pipe(1000)), (Some((100, 100)), 600));
    }

    #[test]
    fn three_ranges_above_make_a_loss() {
        let mut board = Scoreboard::default();
        // Segments of 10 bytes: three of them are far less than two MSS.
        (0..10).for_each(|n| board.sent(n * 10, 10, Instant::ZERO));
        for start in [10, 30] {
            sack(&mut board, start, start + 10);
            assert_eq!(board.find_losses(MSS), 0);
        }
        sack(&mut board, 50, 60);
        assert_eq!(board.find_losses(MSS), 10, "only the first has three ranges above it");
    }

    #[test]
    fn samples_come_from_what_was_sent_once() {
        let mut board = board(4);
        board.first_is_lost();
        board.resent(0, Instant::from_nanos(9));
        let mut news = News::default();
        board.acknowledge(100, &mut news);
        assert_eq!((news.first_sent, news.repeated, news.delivered), (None, true, 100));
        let mut news = News::default();
        board.acknowledge(350, &mut news);
        assert_eq!(news.first_sent, Some(Instant::from_nanos(1)));
        assert_eq!(news.last_sent, Some(Instant::from_nanos(3)));
        assert_eq!((news.delivered, board.pipe(50)), (250, 50));
    }

    #[test]
    fn after_a_timeout_everything_unsacked_goes_again() {
        let mut board = board(4);
        sack(&mut board, 200, 300);
        board.all_is_lost(u64::MAX);
        assert_eq!(board.pipe(400), 0);
        let mut order = Vec::new();
        while let Some((start, _)) = board.next_lost() {
            board.resent(start, Instant::ZERO);
            order.push(start);
        }
        assert_eq!((order, board.pipe(400)), (vec![0, 100, 300], 300));
        board.all_is_lost(u64::MAX);
        assert_eq!((board.pipe(400), board.next_lost()), (0, Some((0, 100))));
    }

    #[test]
    fn a_timeout_says_nothing_of_what_has_not_left_the_host() {
        let mut board = Scoreboard::default();
        for n in 0..4 {
            board.set_queue(n * 140);
            board.sent(n * 100, MSS, Instant::ZERO);
        }
        assert!(board.first_is_queued(0) && !board.first_is_queued(140));
        board.all_is_lost(280);
        assert_eq!(board.next_lost(), Some((0, 100)));
        board.set_queue(560);
        board.resent(0, Instant::ZERO);
        assert_eq!(board.next_lost(), Some((100, 100)));
        // Now the repetition is the last in the queue.
        board.all_is_lost(560);
        assert_eq!((board.pipe(400), board.next_lost()), (100, Some((100, 100))));
    }

    #[test]
    fn at_the_end_holes_and_the_last_segment_are_doubtful() {
        let mut board = board(6);
        assert_eq!(board.first_hole(), None, "nothing is sacked");
        sack(&mut board, 300, 400);
        assert_eq!((board.find_losses(MSS), board.first_hole()), (0, Some((0, 100))));
        for (start, next) in [(0, Some((100, 100))), (100, Some((200, 100))), (200, None)] {
            board.resent_in_doubt(start, Instant::ZERO);
            assert_eq!(board.first_hole(), next);
        }
        // Two are outstanding above; what was sent again is under way once.
        assert_eq!((board.pipe(600), board.last_unsacked()), (500, Some((500, 100))));
        board.resent_in_doubt(500, Instant::ZERO);
        assert_eq!((board.pipe(600), board.last_unsacked()), (500, None));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send(u8),
        Ack(u64),
        /// From the first multiple of 100 at or above `una` to the left edge, and from there to the right one.
        Sack(i64, i64),
        Find,
        Resend,
        Doubt,
        Rescue,
        Timeout(u64),
        Queue(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1_u8..8).prop_map(Step::Send),
            2 => (0_u64..600).prop_map(Step::Ack),
            2 => (0_i64..20, 1_i64..5).prop_map(|(a, n)| Step::Sack(a * 100, n * 100)),
            2 => (-300_i64..2_000, -50_i64..500).prop_map(|(a, n)| Step::Sack(a, n)),
            2 => Just(Step::Find),
            3 => Just(Step::Resend),
            1 => Just(Step::Doubt),
            1 => Just(Step::Rescue),
            1 => prop_oneof![Just(u64::MAX), 0_u64..2_000].prop_map(Step::Timeout),
            1 => (0_u64..2_000).prop_map(Step::Queue),
        ];
        proptest::collection::vec(step, 1..80)
    }

    proptest! {
        #[test]
        fn marks_and_counters_agree(steps in steps()) {
            let mut board = Scoreboard::default();
            let (mut una, mut nxt) = (0_u64, 0_u64);
            for step in steps {
                match step {
                    Step::Send(n) => (0..n).for_each(|_| {
                        board.sent(nxt, MSS, Instant::ZERO);
                        nxt += 100;
                    }),
                    Step::Ack(n) => {
                        una = (una + n).min(nxt);
                        board.acknowledge(una, &mut News::default());
                    }
                    Step::Sack(from, n) => {
                        let left = una.next_multiple_of(100).saturating_add_signed(from);
                        let right = left.saturating_add_signed(n);
                        let mut forgetful = board.clone();
                        forgetful.blocks = Default::default();
                        prop_assert_eq!(sack(&mut board, left, right), sack(&mut forgetful, left, right));
                        let marks = |board: &Scoreboard| board.entries.iter().map(|e| e.mark).collect::<Vec<_>>();
                        prop_assert_eq!(marks(&board), marks(&forgetful));
                    }
                    Step::Find => { board.find_losses(MSS); }
                    Step::Resend => if let Some((start, _)) = board.next_lost() {
                        board.resent(start, Instant::ZERO);
                    },
                    Step::Doubt => if let Some((start, _)) = board.first_hole() {
                        board.resent_in_doubt(start, Instant::ZERO);
                    },
                    Step::Rescue => if let Some((start, _)) = board.last_unsacked() {
                        board.resent_in_doubt(start, Instant::ZERO);
                    },
                    Step::Queue(taken) => board.set_queue(taken),
                    Step::Timeout(left) => board.all_is_lost(left),
                }
                let sum = |marks: &[Mark]| -> u32 {
                    let all = board.entries.iter().filter(|e| marks.contains(&e.mark));
                    all.map(|e| e.len).sum()
                };
                prop_assert_eq!(board.sacked, sum(&[Mark::Sacked]));
                prop_assert_eq!(board.lost, sum(&[Mark::Lost, Mark::Resent]));
                prop_assert_eq!(board.resent, sum(&[Mark::Resent]));
                let outstanding: u32 = board.entries.iter().map(|e| e.len).sum();
                prop_assert_eq!(u64::from(outstanding), nxt - una);
                let first_lost = board.entries.iter().find(|e| e.mark == Mark::Lost).map(|e| e.start);
                prop_assert_eq!(board.next_lost().map(|l| l.0), first_lost);
                let inside = |e: &Entry, (l, r): (u64, u64)| l <= e.start && e.end() <= r;
                for e in &board.entries {
                    prop_assert!(e.mark == Mark::Sacked || !board.blocks.iter().any(|&b| inside(e, b)));
                    prop_assert!(e.mark != Mark::None || e.end() > board.examined);
                }
                let mut below = board.entries.iter().take_while(|e| e.start < board.highest_sacked);
                let hole = below.find(|e| e.mark == Mark::None).filter(|_| board.sacked > 0);
                prop_assert_eq!(board.first_hole(), hole.map(|e| (e.start, e.len)));
            }
        }
    }
}
