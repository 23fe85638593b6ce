//! What a flow's guest has sent and the peer has not acknowledged, in sequence order.
//!
//! # Theory of operation
//! Two lists over the same bytes, which a flow has while anything is stored ([`super::spare`]). *Chunks* are the guest's frames, each with its place in sequence
//! space; a chunk is freed when all of it is acknowledged, so that any byte can be sent again. Chunks
//! before `snd_nxt` have no gap; a gap behind it (a frame of the guest that was lost on its way to us)
//! stops the release there until the guest fills it.
//!
//! *Sent* records cover `snd_una..snd_nxt` without gaps, one for each range as it was released, with the
//! time of its latest transmission and what became of it: the scoreboard. No record spans two
//! chunks. A record is split where a SACK block, a loss or a retransmission ends inside it.
//!
//! The store counts what it is asked for all the time: bytes that are SACKed, lost, and sent again.
//! From these follows the estimate of what is in flight (RFC 6675 `pipe`):
//! `snd_nxt - snd_una - sacked - lost + retransmitted`, where only lost bytes count as retransmitted.
//!
//! Hostile peers: SACK blocks that cut inside records split them, so the number of records is
//! bounded by [`MAX_RECORDS`]; beyond it only whole records are marked.

use std::collections::VecDeque;

use floodway_wire::tcp::Flags;

use super::segment::{Ecn, Segment};
use super::spare::{Boxes, Part, Slot};
use crate::seq::Seq;
use crate::time::Instant;

/// Most records of a flow before SACK blocks stop splitting them.
const MAX_RECORDS: usize = 8192;
/// Longer lists are not kept for later.
const MAX_SPARE_RECORDS: usize = 256;

/// A frame of the guest, or the part of it that is new.
#[derive(Debug)]
pub(super) struct Chunk<B> {
    /// The bytes.
    pub frame: B,
    /// Sequence number of the first byte.
    pub seq: Seq,
    /// Where that byte is in the frame's payload.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u32,
    /// `TSval` that the guest wrote.
    pub tsval: u32,
    /// Control bits that the guest wrote.
    pub flags: Flags,
    /// ECN bits that the guest wrote.
    pub ecn: Ecn,
    /// FIN follows the last byte.
    pub fin: bool,
}

impl<B> Chunk<B> {
    /// Sequence number behind the chunk.
    pub fn end(&self) -> Seq {
        self.seq + self.len + u32::from(self.fin)
    }
}

/// What became of a released range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// Sequence number behind it. It starts where the one before it ends.
    pub end: Seq,
    /// When it was sent last.
    pub at: Instant,
    /// The peer has it, out of order.
    pub sacked: bool,
    /// It has to be sent again.
    pub lost: bool,
    /// It was lost, was sent again, and nothing is known of that yet.
    pub in_repair: bool,
    /// It was sent more than once.
    pub repeated: bool,
}

/// A record with its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub index: usize,
    pub start: Seq,
    pub sent: Sent,
}

/// What an acknowledgement freed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freed {
    /// Bytes that had not been SACKed before.
    pub delivered: u32,
    /// Latest transmission among the freed records that were sent once.
    pub sent_once_at: Option<Instant>,
    /// A record that was sent more than once is among them.
    pub any_repeated: bool,
    /// The record that was sent last among the freed ones.
    pub latest: Option<(Instant, Seq, bool)>,
}

/// The lists, and what the records add up to.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Lists<B> {
    chunks: VecDeque<Chunk<B>>,
    sent: VecDeque<Sent>,
    /// Bytes released that the peer has out of order.
    sacked: u32,
    /// Bytes released and lost.
    lost: u32,
    /// Lost bytes that are on their way again.
    in_repair: u32,
}

impl<B> Lists<B> {
    const EMPTY: Self =
        Self { chunks: VecDeque::new(), sent: VecDeque::new(), sacked: 0, lost: 0, in_repair: 0 };

    /// Takes `bytes` of a record out of the counts.
    fn forget_marks(&mut self, sent: &Sent, bytes: u32) {
        if sent.sacked {
            self.sacked -= bytes;
        }
        if sent.lost {
            self.lost -= bytes;
        }
        if sent.in_repair {
            self.in_repair -= bytes;
        }
    }
}

impl<B: 'static> Part for Lists<B> {
    const REST: &'static Self = &Self::EMPTY;

    fn new() -> Self {
        Self::EMPTY
    }

    fn clear(&mut self) -> bool {
        self.chunks.clear();
        self.sent.clear();
        (self.sacked, self.lost, self.in_repair) = (0, 0, 0);
        self.chunks.capacity().max(self.sent.capacity()) <= MAX_SPARE_RECORDS
    }
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Store<B> {
    /// First sequence number of the first record.
    una: Seq,
    /// Behind the last record.
    nxt: Seq,
    /// Absent while nothing is stored.
    lists: Slot<Lists<B>>,
}

impl<B: 'static> Store<B> {
    /// Nothing stored; the next byte is `una`.
    pub fn new(una: Seq) -> Self {
        Self { una, nxt: una, lists: Slot::EMPTY }
    }

    /// Makes sure that there are lists: cheaply, if a spare one is to be had.
    #[inline]
    pub fn fill(&mut self, spare: &mut Boxes<Lists<B>>) {
        self.lists.fill(spare);
    }

    /// Gives the lists back, and what is in them up.
    #[inline]
    pub fn give(&mut self, spare: &mut Boxes<Lists<B>>) {
        self.nxt = self.una;
        self.lists.give(spare);
    }

    /// A word of the last chunk, which is where the next one goes.
    #[inline]
    pub fn load(&self) -> u32 {
        self.last().map_or(0, |chunk| chunk.len)
    }

    /// Bytes released that the peer has out of order.
    #[inline]
    pub fn sacked(&self) -> u32 {
        self.lists.sacked
    }

    /// Bytes released and lost.
    #[inline]
    pub fn lost(&self) -> u32 {
        self.lists.lost
    }

    /// Lost bytes that are on their way again.
    #[inline]
    pub fn in_repair(&self) -> u32 {
        self.lists.in_repair
    }

    pub fn is_empty(&self) -> bool {
        self.lists.chunks.is_empty()
    }

    pub fn snd_una(&self) -> Seq {
        self.una
    }

    /// Behind the last released byte.
    pub fn snd_nxt(&self) -> Seq {
        self.nxt
    }

    /// Nothing is known to have arrived out of order or to be lost.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.lists.sacked == 0 && self.lists.lost == 0
    }

    /// Bytes on the network, as far as is known.
    pub fn pipe(&self) -> u32 {
        let out = self.snd_nxt().since(self.una);
        (out + self.lists.in_repair).saturating_sub(self.lists.sacked + self.lists.lost)
    }

    /// Frames kept.
    pub fn frames(&self) -> u32 {
        self.lists.chunks.len() as u32
    }

    pub fn records(&self) -> usize {
        self.lists.sent.len()
    }

    /// Stores the part of the guest's segment that is neither stored nor before `from`. `keep`
    /// makes the frame ours. Answers the number of new sequence numbers.
    pub fn insert(
        &mut self,
        segment: &Segment,
        from: Seq,
        keep: impl FnOnce() -> Option<B>,
    ) -> u32 {
        let Some((start, end, index)) = self.missing(segment.seq.max(from), segment.end()) else {
            return 0;
        };
        let Some(frame) = keep() else { return 0 };
        let offset = start.since(segment.seq);
        let fin = segment.has(Flags::FIN) && end == segment.end();
        let len = end.since(start) - u32::from(fin);
        let chunk = Chunk {
            frame,
            seq: start,
            offset,
            len,
            tsval: segment.options.timestamps.map_or(0, |t| t.value),
            flags: segment.flags,
            ecn: segment.ecn,
            fin,
        };
        self.lists.chunks.insert(index, chunk);
        end.since(start)
    }

    /// Stores a segment without FIN that begins where the last chunk ends, or at `snd_nxt`.
    #[inline]
    pub fn append(&mut self, segment: &Segment, frame: B) {
        debug_assert!(self.lists.chunks.back().map_or(self.snd_nxt(), Chunk::end) == segment.seq);
        self.lists.chunks.push_back(Chunk {
            frame,
            seq: segment.seq,
            offset: 0,
            len: segment.len,
            tsval: segment.options.timestamps.map_or(0, |t| t.value),
            flags: segment.flags,
            ecn: segment.ecn,
            fin: false,
        });
    }

    /// The chunk that is last in sequence order.
    #[inline]
    pub fn last(&self) -> Option<&Chunk<B>> {
        self.lists.chunks.back()
    }

    /// The first part of `start..end` that no chunk covers, and where its chunk belongs.
    fn missing(&self, mut start: Seq, mut end: Seq) -> Option<(Seq, Seq, usize)> {
        let mut index = self.lists.chunks.partition_point(|c| !c.end().after(start));
        while let Some(next) = self.lists.chunks.get(index) {
            if next.seq.after(start) {
                end = end.min(next.seq);
                break;
            }
            start = start.max(next.end());
            index += 1;
        }
        start.before(end).then_some((start, end, index))
    }

    /// The chunk with the byte (or FIN) at `seq`.
    #[inline]
    pub fn chunk_at(&self, seq: Seq) -> Option<&Chunk<B>> {
        let has = |c: &&Chunk<B>| !c.seq.after(seq) && c.end().after(seq);
        // Frames mostly leave whole, so that there is a record for each before it.
        let guess = if seq == self.nxt { self.lists.sent.len() } else { 0 };
        self.lists.chunks.get(guess).filter(has).or_else(|| self.chunk_searched(seq))
    }

    fn chunk_searched(&self, seq: Seq) -> Option<&Chunk<B>> {
        // Most often it is asked for what comes behind the last.
        if self.lists.chunks.back().is_none_or(|last| !last.end().after(seq)) {
            return None;
        }
        let index = self.lists.chunks.partition_point(|c| !c.end().after(seq));
        self.lists.chunks.get(index).filter(|c| !c.seq.after(seq))
    }

    /// Notes that `snd_nxt..end` was released.
    #[inline]
    pub fn released(&mut self, end: Seq, at: Instant) {
        let sent = Sent { end, at, sacked: false, lost: false, in_repair: false, repeated: false };
        self.lists.sent.push_back(sent);
        self.nxt = end;
    }

    /// Frees what is before `ack`, which is not behind [`Store::snd_nxt`].
    pub fn acknowledge(&mut self, ack: Seq) -> Freed {
        let mut freed = Freed::default();
        let Some(lists) = self.lists.get_mut() else { return freed };
        while let Some(first) = lists.sent.front().copied() {
            let start = self.una;
            let end = first.end.min(ack);
            if !start.before(end) {
                break;
            }
            let bytes = end.since(start);
            lists.forget_marks(&first, bytes);
            freed.any_repeated |= first.repeated;
            if !first.sacked {
                freed.delivered += bytes;
                if !first.repeated {
                    freed.sent_once_at = freed.sent_once_at.max(Some(first.at));
                }
                let newer = freed.latest.is_none_or(|(at, ..)| at <= first.at);
                if newer {
                    freed.latest = Some((first.at, end, first.repeated));
                }
            }
            self.una = end;
            if end == first.end {
                lists.sent.pop_front();
            }
        }
        while lists.chunks.front().is_some_and(|c| !c.end().after(self.una)) {
            lists.chunks.pop_front();
        }
        freed
    }

    /// The records that overlap `from..to`, from the first on.
    pub fn first_from(&self, from: Seq) -> Option<Place> {
        let index = self.lists.sent.partition_point(|s| !s.end.after(from));
        self.place(index)
    }

    /// The record at `index`.
    pub fn place(&self, index: usize) -> Option<Place> {
        let sent = *self.lists.sent.get(index)?;
        let start = match index.checked_sub(1) {
            Some(before) => self.lists.sent.get(before)?.end,
            None => self.una,
        };
        Some(Place { index, start, sent })
    }

    /// Splits the record at `index`, so that one ends at `at`. Without room the record stays whole and
    /// the answer is false.
    pub fn split(&mut self, index: usize, at: Seq) -> bool {
        let Some(place) = self.place(index) else { return false };
        if !place.start.before(at) || !at.before(place.sent.end) {
            return true;
        }
        if self.lists.sent.len() >= MAX_RECORDS {
            return false;
        }
        self.lists.sent.insert(index, Sent { end: at, ..place.sent });
        true
    }

    /// Marks the record at `index` as held by the peer; answers its bytes, zero if it was known.
    pub fn mark_sacked(&mut self, index: usize) -> u32 {
        let Some(place) = self.place(index) else { return 0 };
        if place.sent.sacked {
            return 0;
        }
        let bytes = place.sent.end.since(place.start);
        self.lists.forget_marks(&place.sent, bytes);
        self.lists.sacked += bytes;
        self.lists.sent[index] = Sent { sacked: true, lost: false, in_repair: false, ..place.sent };
        bytes
    }

    /// Marks the record at `index` as lost, also if it is on its way again; answers whether that is news.
    pub fn mark_lost(&mut self, index: usize) -> bool {
        let Some(place) = self.place(index) else { return false };
        if place.sent.sacked || (place.sent.lost && !place.sent.in_repair) {
            return false;
        }
        let bytes = place.sent.end.since(place.start);
        self.lists.forget_marks(&place.sent, bytes);
        self.lists.lost += bytes;
        self.lists.sent[index] = Sent { lost: true, in_repair: false, ..place.sent };
        true
    }

    /// Notes that the lost record at `index` was sent again.
    pub fn repaired(&mut self, index: usize, at: Instant) {
        let Some(place) = self.place(index) else { return };
        debug_assert!(place.sent.lost && !place.sent.in_repair);
        self.lists.in_repair += place.sent.end.since(place.start);
        self.lists.sent[index] = Sent { in_repair: true, repeated: true, at, ..place.sent };
    }

    /// After a time-out everything that the peer is not known to have is lost (RFC 6675 section 5.1).
    pub fn lose_everything(&mut self) {
        for index in 0..self.lists.sent.len() {
            self.mark_lost(index);
        }
    }

    /// Forgets every loss mark: the recovery was needless.
    pub fn forget_losses(&mut self) {
        for sent in &mut self.lists.sent {
            sent.lost = false;
            sent.in_repair = false;
        }
        self.lists.lost = 0;
        self.lists.in_repair = 0;
    }

    /// The first record from `index` on that is lost and not on its way again.
    pub fn next_lost(&self, index: usize) -> Option<Place> {
        if self.lists.lost == self.lists.in_repair {
            return None;
        }
        (index..self.lists.sent.len())
            .find(|&i| self.lists.sent[i].lost && !self.lists.sent[i].in_repair)
            .and_then(|i| self.place(i))
    }

    /// The counts are what the records say. For tests.
    #[cfg(test)]
    pub fn check(&self) {
        let (mut sacked, mut lost, mut in_repair, mut start) = (0, 0, 0, self.una);
        for sent in &self.lists.sent {
            let bytes = sent.end.since(start);
            assert!(bytes > 0);
            assert!(!sent.in_repair || sent.lost);
            assert!(!(sent.sacked && sent.lost));
            sacked += if sent.sacked { bytes } else { 0 };
            lost += if sent.lost { bytes } else { 0 };
            in_repair += if sent.in_repair { bytes } else { 0 };
            let chunk = self.chunk_at(start).expect("released bytes are stored");
            assert!(!sent.end.after(chunk.end()), "a record spans two chunks");
            start = sent.end;
        }
        assert_eq!(start, self.nxt);
        assert_eq!(
            (sacked, lost, in_repair),
            (self.lists.sacked, self.lists.lost, self.lists.in_repair)
        );
        for (a, b) in self.lists.chunks.iter().zip(self.lists.chunks.iter().skip(1)) {
            assert!(!b.seq.before(a.end()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(seq: u32, len: u32) -> Segment {
        Segment { seq: Seq(seq), len, flags: Flags::ACK, ..Segment::default() }
    }

    fn fin(seq: u32, len: u32) -> Segment {
        Segment { flags: Flags::ACK.with(Flags::FIN), ..segment(seq, len) }
    }

    fn store() -> Store<u32> {
        Store::new(Seq(100))
    }

    #[test]
    fn frames_may_overlap_and_come_out_of_order() {
        let mut store = store();
        assert_eq!(store.insert(&segment(100, 50), Seq(100), || Some(1)), 50);
        assert_eq!(store.insert(&segment(120, 60), Seq(100), || Some(2)), 30);
        assert_eq!(store.insert(&segment(100, 80), Seq(100), || panic!("nothing is new")), 0);
        assert_eq!(store.insert(&segment(200, 10), Seq(100), || Some(3)), 10);
        assert_eq!(store.insert(&fin(170, 60), Seq(100), || Some(4)), 20);
        assert_eq!(store.insert(&fin(170, 60), Seq(100), || Some(5)), 21);
        let chunk = store.chunk_at(Seq(155)).unwrap();
        assert_eq!((chunk.frame, chunk.offset, chunk.len), (2, 30, 30));
        let last = store.chunk_at(Seq(230)).unwrap();
        assert!(last.fin && last.frame == 5 && last.end() == Seq(231));
        store.check();
    }

    #[test]
    fn without_memory_nothing_is_stored() {
        let mut store = store();
        assert_eq!(store.insert(&segment(100, 50), Seq(100), || None), 0);
        assert!(store.is_empty());
    }

    #[test]
    fn the_scoreboard_counts() {
        let mut store = store();
        store.insert(&segment(100, 1000), Seq(100), || Some(1));
        store.released(Seq(1100), Instant::ZERO);
        assert_eq!(store.pipe(), 1000);
        assert!(store.split(0, Seq(300)) && store.split(1, Seq(600)));
        assert_eq!(store.mark_sacked(1), 300);
        assert_eq!(store.mark_sacked(1), 0);
        assert!(store.mark_lost(0) && !store.mark_lost(0) && !store.mark_lost(1));
        assert_eq!(store.pipe(), 500);
        store.repaired(0, Instant::from_millis(1));
        assert_eq!(store.pipe(), 700);
        assert!(store.mark_lost(0));
        assert_eq!(store.pipe(), 500);
        store.check();
        let freed = store.acknowledge(Seq(700));
        assert_eq!(freed.delivered, 300);
        assert_eq!(store.pipe(), 400);
        store.check();
        store.acknowledge(Seq(1100));
        assert!(store.is_empty() && store.records() == 0);
        store.check();
    }

    #[test]
    fn chunks_stay_until_all_of_them_is_acknowledged() {
        let mut store = store();
        store.insert(&fin(100, 10), Seq(100), || Some(1));
        store.released(Seq(111), Instant::ZERO);
        store.acknowledge(Seq(110));
        assert!(!store.is_empty());
        assert_eq!(store.chunk_at(Seq(110)).map(|c| c.fin), Some(true));
        store.acknowledge(Seq(111));
        assert!(store.is_empty());
    }
}
