//! The scoreboard: what became of each segment that was released and is not acknowledged.
//!
//! # Theory of operation
//! Records lie in sequence order in a ring, one for each segment as it is on the wire: no record is longer than the MSS at the
//! time of its release, none spans two chunks, and none is split afterwards. So a record keeps its number for life, and
//! one is [found](search) by its sequence number. A SACK block that names a part of a record says nothing of it: receivers
//! hold whole segments, so only a block that was made up ends inside one. (A partial acknowledgement shortens
//! the first record. After the MSS has become smaller, all records are cut anew, once, when the first of them has to be
//! sent again: [`Board::cut`].)
//!
//! The work for an ACK is in proportion to the records whose state it changes, times the logarithm of their number. Where there
//! are no more than [`FEW`] records, they are just looked through. For more, four indexes are kept beside the ring from the first
//! mark on, which follow from the records' marks:
//! - *sacked*: passes what the peer is known to have in a step, however many records that are.
//! - *known*: sacked or lost. The first record outside of it is the oldest *first* transmission of which
//!   nothing is known, since segments are sent first in sequence order.
//! - *waiting*: lost and not sent again, in sequence order.
//! - *repairs*: what was sent again, in the order of that. Entries whose record has changed since are skipped, once.
//!
//! The first of *repairs* and the first outside of *known* are the heads of the two halves of RACK's list in order of transmission
//! (RFC 8985 section 6.2; Linux `tsorted_sent_queue`).
//!
//! Invariants: the counts and indexes are what the marks say; `in_repair` implies `lost`, and `sacked` excludes both.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::bits::{Bits, Wanted};
use super::{Freed, MAX_SPARE_RECORDS, change, search, step};
use crate::seq::Seq;
use crate::time::Instant;

/// So many records are looked through without an index.
const FEW: usize = 16;
/// No window is larger (RFC 7323 section 2.3).
const MAX_BYTES: u32 = 1 << 30;
/// Smallest capacity of an index.
const LEAST_INDEX: usize = 64;
/// Entries of the list of repairs beyond twice the records before it is tidied up.
const REPAIRS_SLACK: usize = 64;

/// What became of a released segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::offload) struct Sent {
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

impl Sent {
    /// It is lost and was not sent again.
    const fn waits(&self) -> bool {
        self.lost && !self.in_repair
    }
}

/// A record with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::offload) struct Place {
    pub index: usize,
    pub start: Seq,
    pub sent: Sent,
}

impl Place {
    /// Sequence numbers that it takes.
    pub fn len(&self) -> u32 {
        self.sent.end.since(self.start)
    }
}

/// A record was sent again at a time.
#[derive(Clone, Copy, Debug)]
struct Repair {
    number: u32,
    at: Instant,
}

/// A set of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// The peer has them.
    Sacked,
    /// SACKed or lost.
    Known,
    /// Lost and not sent again.
    Waiting,
}

impl Set {
    fn has(self, sent: &Sent) -> bool {
        match self {
            Self::Sacked => sent.sacked,
            Self::Known => sent.sacked || sent.lost,
            Self::Waiting => sent.waits(),
        }
    }
}

/// Records by their marks.
#[derive(Debug, Default)]
struct Index {
    sacked: Bits,
    known: Bits,
    waiting: Bits,
    repairs: VecDeque<Repair>,
}

impl Index {
    fn reset(&mut self, capacity: usize) {
        self.sacked.reset(capacity);
        self.known.reset(capacity);
        self.waiting.reset(capacity);
    }

    fn of(&self, set: Set) -> &Bits {
        match set {
            Set::Sacked => &self.sacked,
            Set::Known => &self.known,
            Set::Waiting => &self.waiting,
        }
    }

    fn insert(&mut self, number: u32, sent: &Sent) {
        if sent.sacked {
            self.sacked.insert(number);
        } else if sent.waits() {
            self.waiting.insert(number);
        }
        if sent.sacked || sent.lost {
            self.known.insert(number);
        }
    }

    fn remove(&mut self, number: u32, sent: &Sent) {
        if sent.sacked {
            self.sacked.remove(number);
        } else if sent.waits() {
            self.waiting.remove(number);
        }
        if sent.sacked || sent.lost {
            self.known.remove(number);
        }
    }
}

/// The records, and what they add up to. `una`, where the first one begins, is the caller's.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Board {
    sent: VecDeque<Sent>,
    /// Bytes released that the peer has out of order.
    pub sacked: u32,
    /// Bytes released and lost.
    pub lost: u32,
    /// Lost bytes that are on their way again.
    pub in_repair: u32,
    /// Number of the first record. It grows with each that is freed.
    first: u32,
    /// Absent until a record is marked while there are more than [`FEW`].
    index: Option<Box<Index>>,
}

impl Board {
    pub const EMPTY: Self =
        Self { sent: VecDeque::new(), sacked: 0, lost: 0, in_repair: 0, first: 0, index: None };

    /// What became of each segment, in order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = &Sent> {
        self.sent.iter()
    }

    /// The records `sent`, of which the first begins at `una`, as a stranger says they are. `None` if they contradict themselves.
    pub fn of_records(una: Seq, sent: Vec<Sent>) -> Option<Self> {
        let mut board = Self::EMPTY;
        let mut start = una;
        for record in &sent {
            let is_one = start.before(record.end)
                && !(record.sacked && record.lost)
                && (record.lost || !record.in_repair)
                && (record.repeated || !record.in_repair);
            if !is_one || record.end.since(una) > MAX_BYTES {
                return None;
            }
            board.count(record, record.end.since(start));
            start = record.end;
        }
        board.sent = sent.into();
        Some(board)
    }

    /// Forgets everything; returns `false` if it has grown too large to be kept.
    pub fn clear(&mut self) -> bool {
        if !self.is_quiet()
            && let Some(index) = &mut self.index
        {
            index.reset(LEAST_INDEX);
            index.repairs.clear();
        }
        self.sent.clear();
        (self.sacked, self.lost, self.in_repair) = (0, 0, 0);
        self.sent.capacity() <= MAX_SPARE_RECORDS
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// Nothing is marked.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.sacked == 0 && self.lost == 0
    }

    /// Notes that `start..end` was released in segments of `mss` bytes.
    #[inline]
    pub fn push(&mut self, mut start: Seq, end: Seq, at: Instant, mss: u32) {
        let sent = Sent { end, at, sacked: false, lost: false, in_repair: false, repeated: false };
        while end.0.wrapping_sub(start.0) > mss {
            start += mss;
            self.sent.push_back(Sent { end: start, ..sent });
        }
        self.sent.push_back(sent);
    }

    /// Frees what lies in `una..ack`; returns what that was and where the first record begins now.
    #[inline]
    pub fn acknowledge(&mut self, una: Seq, ack: Seq) -> (Freed, Seq) {
        let (mut freed, mut start) = (Freed::default(), una);
        while let Some(sent) = self.sent.front().copied() {
            let end = sent.end.min(ack);
            if !start.before(end) {
                break;
            }
            step();
            let bytes = end.since(start);
            freed.add(&sent, end, bytes);
            if sent.sacked | sent.lost {
                self.uncount(&sent, bytes);
            }
            if end == sent.end {
                self.pop(&sent);
            }
            start = end;
        }
        (freed, start)
    }

    #[inline]
    fn pop(&mut self, sent: &Sent) {
        change();
        if sent.sacked | sent.lost
            && let Some(index) = &mut self.index
        {
            index.remove(self.first, sent);
        }
        self.sent.pop_front();
        self.first = self.first.wrapping_add(1);
    }

    /// Takes `bytes` of a record out of the counts.
    fn uncount(&mut self, sent: &Sent, bytes: u32) {
        self.sacked -= if sent.sacked { bytes } else { 0 };
        self.lost -= if sent.lost { bytes } else { 0 };
        self.in_repair -= if sent.in_repair { bytes } else { 0 };
    }

    fn count(&mut self, sent: &Sent, bytes: u32) {
        self.sacked += if sent.sacked { bytes } else { 0 };
        self.lost += if sent.lost { bytes } else { 0 };
        self.in_repair += if sent.in_repair { bytes } else { 0 };
    }

    const fn number(&self, index: usize) -> u32 {
        self.first.wrapping_add(index as u32)
    }

    /// Behind the number of the last record.
    fn end(&self) -> u32 {
        self.number(self.sent.len())
    }

    /// The record at `index`.
    pub fn place(&self, una: Seq, index: usize) -> Option<Place> {
        let sent = *self.sent.get(index)?;
        let start = match index.checked_sub(1) {
            Some(before) => self.sent.get(before)?.end,
            None => una,
        };
        Some(Place { index, start, sent })
    }

    /// The index of the first record that ends behind `seq`.
    pub fn search(&self, una: Seq, seq: Seq) -> usize {
        search::first_behind(&self.sent, una, seq, |sent| sent.end)
    }

    /// The indexes, with room for all records, unless these are so few that there is none.
    #[inline]
    fn index(&mut self) -> Option<&mut Index> {
        let none = self.index.is_none() && self.sent.len() <= FEW;
        if none { None } else { self.whole_index() }
    }

    fn whole_index(&mut self) -> Option<&mut Index> {
        if self.index.is_none() {
            let repairs = self.repairs_in_order();
            self.index = Some(Box::new(Index { repairs, ..Index::default() }));
        }
        let index = self.index.as_deref_mut()?;
        let capacity = self.sent.len().next_power_of_two().max(LEAST_INDEX);
        if index.sacked.capacity() < capacity {
            index.reset(capacity);
            if self.sacked > 0 || self.lost > 0 {
                for (number, sent) in (self.first..=u32::MAX).chain(0..).zip(&self.sent) {
                    step();
                    index.insert(number, sent);
                }
            }
        }
        Some(index)
    }

    /// What was sent again, by time.
    fn repairs_in_order(&self) -> VecDeque<Repair> {
        let numbered = (self.first..=u32::MAX).chain(0..).zip(&self.sent);
        let mut repairs: Vec<_> = numbered
            .filter(|(_, sent)| sent.in_repair)
            .map(|(number, sent)| Repair { number, at: sent.at })
            .collect();
        // Stable, so that what was sent at once stays in sequence order.
        repairs.sort_by_key(|repair| repair.at);
        repairs.into()
    }

    /// The index of the first record from `from` on that is in the set, or not in it.
    fn find(&mut self, from: usize, set: Set, wanted: Wanted) -> Option<usize> {
        let (start, first, end) = (self.number(from), self.first, self.end());
        if let Some(index) = self.index() {
            let found = index.of(set).next(start, end, wanted)?;
            return Some(found.wrapping_sub(first) as usize);
        }
        let is_wanted = |sent: &Sent| {
            step();
            set.has(sent) == (wanted == Wanted::Members)
        };
        self.sent.iter().skip(from).position(is_wanted).map(|found| from + found)
    }

    /// Replaces the record at a place by one with other marks.
    fn mark(&mut self, place: &Place, sent: Sent) {
        step();
        change();
        let number = self.number(place.index);
        if let Some(index) = self.index() {
            index.remove(number, &place.sent);
            index.insert(number, &sent);
        }
        self.uncount(&place.sent, place.len());
        self.count(&sent, place.len());
        self.sent[place.index] = sent;
    }

    /// Marks the record at a place as held by the peer, if it was not; returns its bytes, or zero.
    pub fn mark_sacked(&mut self, place: &Place) -> u32 {
        if place.sent.sacked {
            return 0;
        }
        self.mark(place, Sent { sacked: true, lost: false, in_repair: false, ..place.sent });
        place.len()
    }

    /// Marks the record at a place as lost, also if it is on its way again; returns `true` if that is news.
    pub fn mark_lost(&mut self, place: &Place) -> bool {
        if place.sent.sacked || place.sent.waits() {
            return false;
        }
        self.mark(place, Sent { lost: true, in_repair: false, ..place.sent });
        true
    }

    /// Notes that the record at a place, which waits, was sent again.
    pub fn repaired(&mut self, place: &Place, at: Instant) {
        debug_assert!(place.sent.waits());
        self.mark(place, Sent { in_repair: true, repeated: true, at, ..place.sent });
        let repair = Repair { number: self.number(place.index), at };
        let most = 2 * self.sent.len() + REPAIRS_SLACK;
        let Some(Index { repairs, .. }) = self.index() else { return };
        repairs.push_back(repair);
        if repairs.len() > most {
            self.tidy_repairs();
        }
    }

    fn tidy_repairs(&mut self) {
        let Some(mut index) = self.index.take() else { return };
        index.repairs.retain(|repair| self.is_in_repair(repair));
        self.index = Some(index);
    }

    /// The record is still on its way as it was sent then.
    fn is_in_repair(&self, repair: &Repair) -> bool {
        step();
        let record = self.sent.get(repair.number.wrapping_sub(self.first) as usize);
        record.is_some_and(|sent| sent.in_repair && sent.at == repair.at)
    }

    /// Every record of which nothing is known and each that was sent again is lost.
    pub fn lose_everything(&mut self, una: Seq) {
        while let Some(place) = self.oldest_unknown(una) {
            self.mark_lost(&place);
        }
        while let Some(place) = self.oldest_repair(una) {
            self.mark_lost(&place);
        }
    }

    /// What the peer was believed to have out of order it has discarded: it has to be sent again.
    pub fn renege(&mut self, una: Seq) {
        while self.sacked > 0
            && let Some(found) = self.find(0, Set::Sacked, Wanted::Members)
            && let Some(place) = self.place(una, found)
        {
            // Whatever the peer says of it next may concern the first transmission, so no round trip is measured on it.
            self.mark(&place, Sent { sacked: false, lost: true, repeated: true, ..place.sent });
        }
    }

    /// What waits was not lost after all.
    pub fn forget_waiting(&mut self, una: Seq) {
        while let Some(place) = self.next_lost(una) {
            self.mark(&place, Sent { lost: false, ..place.sent });
        }
    }

    /// The first record that waits.
    pub fn next_lost(&mut self, una: Seq) -> Option<Place> {
        if self.lost == self.in_repair {
            return None;
        }
        let found = self.find(0, Set::Waiting, Wanted::Members)?;
        self.place(una, found)
    }

    /// The first record from `index` on that the peer is not known to have.
    pub fn next_unsacked(&mut self, una: Seq, index: usize) -> Option<Place> {
        if self.sacked == 0 {
            return self.place(una, index);
        }
        let found = self.find(index, Set::Sacked, Wanted::Others)?;
        self.place(una, found)
    }

    /// The last record that the peer is not known to have.
    pub fn last_unsacked(&mut self, una: Seq) -> Option<Place> {
        let (first, end) = (self.first, self.end());
        let found = match self.index() {
            Some(index) => {
                let found = index.sacked.last(first, end, Wanted::Others)?;
                found.wrapping_sub(first) as usize
            }
            None => self.sent.iter().rposition(|sent| !sent.sacked)?,
        };
        self.place(una, found)
    }

    /// The oldest transmission of which nothing is known, among the first ones of each segment.
    pub fn oldest_unknown(&mut self, una: Seq) -> Option<Place> {
        if self.is_quiet() {
            return self.place(una, 0);
        }
        let found = self.find(0, Set::Known, Wanted::Others)?;
        self.place(una, found)
    }

    /// The oldest transmission of which nothing is known, among those of what was lost.
    pub fn oldest_repair(&mut self, una: Seq) -> Option<Place> {
        if self.in_repair == 0 {
            return None;
        }
        if self.index().is_none() {
            let repairs = self.sent.iter().enumerate().filter(|(_, sent)| sent.in_repair);
            let (oldest, _) = repairs.min_by_key(|(_, sent)| sent.at)?;
            return self.place(una, oldest);
        }
        while let Some(repair) = self.index.as_ref()?.repairs.front().copied() {
            if self.is_in_repair(&repair) {
                return self.place(una, repair.number.wrapping_sub(self.first) as usize);
            }
            self.index()?.repairs.pop_front();
        }
        None
    }

    /// Records that the peer does not have become no longer than `mss`, and those that wait as long as they can be, within
    /// the chunks whose ends `chunk_end` returns for a sequence number. Their numbers change.
    pub fn cut(&mut self, una: Seq, mss: u32, chunk_end: impl Fn(Seq) -> Seq) {
        let old = std::mem::take(&mut self.sent);
        let mut open: Option<(Seq, Sent)> = None;
        let mut start = una;
        for sent in old {
            step();
            match &mut open {
                Some((from, run))
                    if run.waits() && sent.waits() && start.before(chunk_end(*from)) =>
                {
                    run.repeated |= sent.repeated;
                    (run.end, run.at) = (sent.end, run.at.max(sent.at));
                }
                _ => {
                    self.push_cut(open.replace((start, sent)), mss);
                }
            }
            start = sent.end;
        }
        self.push_cut(open, mss);
        // Made anew when it is needed.
        self.index = None;
    }

    fn push_cut(&mut self, run: Option<(Seq, Sent)>, mss: u32) {
        let Some((mut start, sent)) = run else { return };
        while !sent.sacked && sent.end.since(start) > mss {
            start += mss;
            self.sent.push_back(Sent { end: start, ..sent });
        }
        self.sent.push_back(sent);
    }
}

#[cfg(test)]
impl Board {
    /// The counts and indexes are what the records say. Returns where the last record ends.
    pub fn check(&self, una: Seq, chunk_end: impl Fn(Seq) -> Seq) -> Seq {
        let (mut counts, mut start, mut number) = ([0; 3], una, self.first);
        for sent in &self.sent {
            let bytes = sent.end.since(start);
            assert!(bytes > 0);
            assert!(!sent.in_repair || sent.lost);
            assert!(!(sent.sacked && sent.lost));
            for (count, on) in counts.iter_mut().zip([sent.sacked, sent.lost, sent.in_repair]) {
                *count += if on { bytes } else { 0 };
            }
            assert!(!sent.end.after(chunk_end(start)), "a record spans two chunks");
            self.check_index(number, sent);
            start = sent.end;
            number = number.wrapping_add(1);
        }
        assert_eq!(counts, [self.sacked, self.lost, self.in_repair]);
        start
    }

    fn check_index(&self, number: u32, sent: &Sent) {
        // One that is too small is made anew before it is used.
        let Some(index) = self.index.as_ref().filter(|i| i.sacked.capacity() >= self.sent.len())
        else {
            return;
        };
        let has =
            |bits: &Bits| bits.next(number, number.wrapping_add(1), Wanted::Members).is_some();
        let marks = [&index.sacked, &index.known, &index.waiting].map(has);
        assert_eq!(marks, [sent.sacked, sent.sacked | sent.lost, sent.waits()]);
        let repairs = index.repairs.iter().filter(|r| r.number == number && r.at == sent.at);
        assert!(!sent.in_repair || repairs.count() > 0);
    }
}
