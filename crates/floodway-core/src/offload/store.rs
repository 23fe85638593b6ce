//! What a flow's guest has sent and the peer has not acknowledged, in sequence order.
//!
//! # Theory of operation
//! Two lists over the same bytes, which a flow has while anything is stored ([`super::state_pool`]). *Chunks* are the guest's frames, each with its place in sequence
//! space; a chunk is freed when all of it is acknowledged, so that any byte can be sent again. Chunks
//! before `snd_nxt` have no gap; a gap behind it (a frame of the guest that was lost on its way to us)
//! stops the release there until the guest fills it.
//!
//! The *scoreboard* ([`board`]) covers `snd_una..snd_nxt` without gaps: a record for each segment that was released, with the
//! time of its latest transmission and what became of it. No record spans two chunks.
//!
//! The store counts what it is asked for all the time: bytes that are SACKed, lost, and sent again.
//! From these follows the estimate of what is in flight (RFC 6675 `pipe`):
//! `snd_nxt - snd_una - sacked - lost + retransmitted`, where only lost bytes count as retransmitted.
//!
//! Tiny segments: a flow has no more than [`MAX_RECORDS`] records, unless they are as long as half an MSS on average.
//! Then new bytes are held until ACKs have freed records: nothing is lost, and as long as there are records the
//! retransmission timer runs.

mod bits;
mod board;
#[cfg(test)]
mod model;
mod search;
pub(super) mod state;

use std::collections::VecDeque;

use floodway_wire::tcp::Flags;

pub(super) use board::Place;
use board::{Board, Sent};

use super::state_pool::{FreeList, Poolable, Pooled};
use crate::seq::Seq;
use crate::tcp::{Ecn, Segment};
use crate::time::Instant;

/// Most records of a flow whose segments are tiny.
const MAX_RECORDS: usize = 8192;
/// Most bytes between two numbers of one connection that belong to the same window: none is larger (RFC 7323 section 2.3).
const MAX_APART: u32 = 1 << 30;
/// Longer lists of chunks and of records are not kept for later.
const MAX_SPARE_CHUNKS: usize = 256;
const MAX_SPARE_RECORDS: usize = 1024;

/// Returns `true` if `a` and `b` are no farther apart than a window can be.
pub(super) fn is_near(a: Seq, b: Seq) -> bool {
    a.since(b) <= MAX_APART && b.since(a) <= MAX_APART
}

/// Notes a step whose number must not grow with that of the records, for tests: the records and words that are looked at.
#[inline(always)]
fn step() {
    #[cfg(test)]
    cost::STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Notes that a record has changed its state or was freed, for tests.
#[inline(always)]
fn change() {
    #[cfg(test)]
    cost::CHANGES.with(|changes| changes.set(changes.get() + 1));
}

/// Steps and changes of this thread.
#[cfg(test)]
pub(super) mod cost {
    use std::cell::Cell;

    thread_local! {
        pub(super) static STEPS: Cell<u64> = const { Cell::new(0) };
        pub(super) static CHANGES: Cell<u64> = const { Cell::new(0) };
    }

    /// Returns the steps and the changes that `work` makes.
    pub fn of(work: impl FnOnce()) -> (u64, u64) {
        let before = (STEPS.get(), CHANGES.get());
        work();
        (STEPS.get() - before.0, CHANGES.get() - before.1)
    }
}

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
    /// Behind the first record that was sent once and had not been SACKed.
    pub first_once: Option<Seq>,
}

impl Freed {
    /// `bytes` of a record are freed, up to `end`.
    #[inline]
    fn add(&mut self, sent: &Sent, end: Seq, bytes: u32) {
        self.any_repeated |= sent.repeated;
        if sent.sacked {
            return;
        }
        self.delivered += bytes;
        if !sent.repeated {
            self.sent_once_at = self.sent_once_at.max(Some(sent.at));
            self.first_once = self.first_once.or(Some(end));
        }
        if self.latest.is_none_or(|(at, ..)| at <= sent.at) {
            self.latest = Some((sent.at, end, sent.repeated));
        }
    }
}

/// The lists, in the order in which they are needed.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Lists<B> {
    chunks: VecDeque<Chunk<B>>,
    board: Board,
}

impl<B> Lists<B> {
    const EMPTY: Self = Self { chunks: VecDeque::new(), board: Board::EMPTY };
}

impl<B: 'static> Poolable for Lists<B> {
    const REST: &'static Self = &Self::EMPTY;

    fn new() -> Self {
        Self::EMPTY
    }

    fn clear(&mut self) -> bool {
        self.chunks.clear();
        self.board.clear() && self.chunks.capacity() <= MAX_SPARE_CHUNKS
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
    lists: Pooled<Lists<B>>,
}

impl<B: 'static> Store<B> {
    /// Nothing stored; the next byte is `una`.
    pub fn new(una: Seq) -> Self {
        Self { una, nxt: una, lists: Pooled::EMPTY }
    }

    /// Makes sure that there are lists: cheaply, if a spare one is to be had.
    #[inline]
    pub fn fill(&mut self, free: &mut FreeList<Lists<B>>) {
        self.lists.fill(free);
    }

    /// Gives the lists back, and what is in them up.
    #[inline]
    pub fn return_state(&mut self, free: &mut FreeList<Lists<B>>) {
        self.nxt = self.una;
        self.lists.return_state(free);
    }

    /// A word of the last chunk, which is where the next one goes.
    #[inline]
    pub fn load(&self) -> u32 {
        self.last().map_or(0, |chunk| chunk.len)
    }

    /// Bytes released that the peer has out of order.
    #[inline]
    pub fn sacked(&self) -> u32 {
        self.lists.board.sacked
    }

    /// Bytes released and lost.
    #[inline]
    pub fn lost(&self) -> u32 {
        self.lists.board.lost
    }

    /// Something is lost and was not sent again.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.lost() != self.in_repair()
    }

    /// Lost bytes that are on their way again.
    #[inline]
    pub fn in_repair(&self) -> u32 {
        self.lists.board.in_repair
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
        self.lists.board.is_quiet()
    }

    /// Bytes on the network, as far as is known.
    pub fn pipe(&self) -> u32 {
        let out = self.snd_nxt().since(self.una);
        let board = &self.lists.board;
        (out + board.in_repair).saturating_sub(board.sacked + board.lost)
    }

    /// Frames kept.
    pub fn frames(&self) -> u32 {
        self.lists.chunks.len() as u32
    }

    #[inline]
    pub fn records(&self) -> usize {
        self.lists.board.len()
    }

    /// Another segment may be released: there are not too many tiny ones.
    #[inline]
    pub fn has_room(&self, mss: u32) -> bool {
        self.records() < MAX_RECORDS || self.is_well_filled(mss)
    }

    /// The records are as long as half an MSS on average.
    #[cold]
    fn is_well_filled(&self, mss: u32) -> bool {
        let records = u32::try_from(self.records()).unwrap_or(u32::MAX);
        records.saturating_mul(mss / 2) <= self.nxt.since(self.una)
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
        let mut index = chunk_index(&self.lists.chunks, start);
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
        let guess = if seq == self.nxt { self.records() } else { 0 };
        self.lists.chunks.get(guess).filter(has).or_else(|| self.chunk_searched(seq))
    }

    fn chunk_searched(&self, seq: Seq) -> Option<&Chunk<B>> {
        // Most often it is asked for what comes behind the last.
        if self.lists.chunks.back().is_none_or(|last| !last.end().after(seq)) {
            return None;
        }
        let index = chunk_index(&self.lists.chunks, seq);
        self.lists.chunks.get(index).filter(|c| !c.seq.after(seq))
    }

    /// Notes that `snd_nxt..end` was released in segments of `mss` bytes.
    #[inline]
    pub fn released(&mut self, end: Seq, at: Instant, mss: u32) {
        self.lists.board.push(self.nxt, end, at, mss);
        self.nxt = end;
    }

    /// Frees what is before `ack`, which is not behind [`Store::snd_nxt`].
    #[inline]
    pub fn acknowledge(&mut self, ack: Seq) -> Freed {
        let Some(lists) = self.lists.get_mut() else { return Freed::default() };
        let (freed, una) = lists.board.acknowledge(self.una, ack);
        self.una = una;
        while lists.chunks.front().is_some_and(|c| !c.end().after(una)) {
            lists.chunks.pop_front();
        }
        freed
    }

    /// The first record that ends behind `from`.
    pub fn first_from(&self, from: Seq) -> Option<Place> {
        self.place(self.lists.board.search(self.una, from))
    }

    /// The record at `index`.
    pub fn place(&self, index: usize) -> Option<Place> {
        self.lists.board.place(self.una, index)
    }

    /// The first record from `index` on that the peer is not known to have.
    pub fn next_unsacked(&mut self, index: usize) -> Option<Place> {
        self.lists.get_mut()?.board.next_unsacked(self.una, index)
    }

    /// The last record that the peer is not known to have.
    pub fn last_unsacked(&mut self) -> Option<Place> {
        self.lists.get_mut()?.board.last_unsacked(self.una)
    }

    /// The oldest transmission of which nothing is known, among the first ones of each segment.
    pub fn oldest_unknown(&mut self) -> Option<Place> {
        self.lists.get_mut()?.board.oldest_unknown(self.una)
    }

    /// The oldest transmission of which nothing is known, among those of what was lost.
    pub fn oldest_repair(&mut self) -> Option<Place> {
        self.lists.get_mut()?.board.oldest_repair(self.una)
    }

    /// The first record that is lost and not on its way again.
    pub fn next_lost(&mut self) -> Option<Place> {
        self.lists.get_mut()?.board.next_lost(self.una)
    }

    /// Marks the record at `index` as held by the peer; returns its bytes, zero if it was known.
    pub fn mark_sacked(&mut self, index: usize) -> u32 {
        let Some(place) = self.place(index) else { return 0 };
        self.lists.board.mark_sacked(&place)
    }

    /// Marks the record at `index` as lost, also if it is on its way again; returns `true` if that is news.
    pub fn mark_lost(&mut self, index: usize) -> bool {
        let Some(place) = self.place(index) else { return false };
        self.lists.board.mark_lost(&place)
    }

    /// Notes that the lost record at `index` was sent again.
    pub fn repaired(&mut self, index: usize, at: Instant) {
        let Some(place) = self.place(index) else { return };
        self.lists.board.repaired(&place, at);
    }

    /// After a time-out everything that the peer is not known to have is lost (RFC 6675 section 5.1).
    pub fn lose_everything(&mut self) {
        if let Some(lists) = self.lists.get_mut() {
            lists.board.lose_everything(self.una);
        }
    }

    /// Returns `true` if the peer was believed to have the first byte that it has not acknowledged.
    #[inline]
    pub fn is_first_sacked(&self) -> bool {
        self.sacked() > 0 && self.place(0).is_some_and(|first| first.sent.sacked)
    }

    /// The peer has discarded what it had out of order (RFC 2018 section 8): all of that is lost.
    pub fn renege(&mut self) {
        if let Some(lists) = self.lists.get_mut() {
            lists.board.renege(self.una);
        }
    }

    /// Forgets the losses that were not repaired: the recovery was needless.
    pub fn forget_losses(&mut self) {
        if let Some(lists) = self.lists.get_mut() {
            lists.board.forget_waiting(self.una);
        }
    }

    /// What the peer is not known to have is sent again in segments of `mss` bytes at most.
    pub fn cut(&mut self, mss: u32) {
        let Some(Lists { chunks, board }) = self.lists.get_mut() else { return };
        board.cut(self.una, mss, |seq| chunk_end(chunks, seq));
    }

    /// The counts are what the records say. For tests.
    #[cfg(test)]
    pub fn check(&self) {
        let chunks = &self.lists.chunks;
        let end = self.lists.board.check(self.una, |seq| chunk_end(chunks, seq));
        assert_eq!(end, self.nxt);
        for (a, b) in chunks.iter().zip(chunks.iter().skip(1)) {
            assert!(!b.seq.before(a.end()));
        }
    }
}

/// Where the chunk with the byte at `seq` ends.
fn chunk_end<B>(chunks: &VecDeque<Chunk<B>>, seq: Seq) -> Seq {
    chunks.get(chunk_index(chunks, seq)).map_or(seq, Chunk::end)
}

/// The index of the first chunk that ends behind `seq`.
fn chunk_index<B>(chunks: &VecDeque<Chunk<B>>, seq: Seq) -> usize {
    let start = chunks.front().map_or(seq, |chunk| chunk.seq);
    search::first_behind(chunks, start, seq, Chunk::end)
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
        store.released(Seq(1100), Instant::ZERO, 300);
        assert_eq!((store.pipe(), store.records()), (1000, 4));
        assert_eq!(store.mark_sacked(1), 300);
        assert_eq!(store.mark_sacked(1), 0);
        assert!(store.mark_lost(0) && !store.mark_lost(0) && !store.mark_lost(1));
        assert_eq!(store.pipe(), 400);
        store.repaired(0, Instant::from_millis(1));
        assert_eq!(store.pipe(), 700);
        assert!(store.mark_lost(0));
        assert_eq!(store.pipe(), 400);
        store.check();
        let freed = store.acknowledge(Seq(750));
        assert_eq!(freed.delivered, 350);
        assert_eq!(store.pipe(), 350);
        store.check();
        store.acknowledge(Seq(1100));
        assert!(store.is_empty() && store.records() == 0);
        store.check();
    }

    #[test]
    fn what_the_peer_has_discarded_is_lost() {
        let mut store = store();
        store.insert(&segment(100, 1000), Seq(100), || Some(1));
        store.released(Seq(1100), Instant::ZERO, 100);
        for index in [3, 4, 6, 9] {
            store.mark_sacked(index);
        }
        store.mark_lost(0);
        store.acknowledge(Seq(400));
        assert!(store.is_first_sacked());
        store.renege();
        assert_eq!((store.sacked(), store.lost(), store.pipe()), (0, 400, 300));
        assert_eq!(store.next_lost().map(|place| place.start), Some(Seq(400)));
        store.check();
    }

    #[test]
    fn chunks_stay_until_all_of_them_is_acknowledged() {
        let mut store = store();
        store.insert(&fin(100, 10), Seq(100), || Some(1));
        store.released(Seq(111), Instant::ZERO, 10);
        store.acknowledge(Seq(110));
        assert!(!store.is_empty());
        assert_eq!(store.chunk_at(Seq(110)).map(|c| c.fin), Some(true));
        store.acknowledge(Seq(111));
        assert!(store.is_empty());
    }
}
