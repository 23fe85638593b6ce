//! A ring of records: one thread writes, one reads, nobody waits.
//!
//! # Theory of operation
//! Records lie one behind the other in a block of bytes, each in one piece behind a word with its length; one that would go over the end starts at the
//! front, and a word says so. `head` counts bytes that were ever written, `tail` those that were read. The writer publishes a
//! record by storing `head`, the reader returns its room by storing `tail`.
//!
//! That there is one writer and one reader at a time is not trusted: each side has a flag. Who finds the writer's flag set does not wait but
//! counts its record as lost.
//!
//! **Invariants**: `tail <= head <= tail + size`; the writer writes only between `head` and `tail + size`, the reader reads only between `tail` and `head`.
//! `tail`, `head` and sizes of records are multiples of 8.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sync::atomics::Word;

/// The length that says: the next record is at the front.
const WRAP: u64 = u64::MAX;
const WORD: usize = 8;

/// On a cache line of its own: the sides do not disturb each other.
#[repr(align(128))]
#[derive(Default)]
struct Side {
    /// Bytes that this side has dealt with.
    count: AtomicU64,
    /// Somebody is on this side.
    taken: AtomicBool,
}

/// Returns how far this side has come, and the other: what that has done up to there is seen.
pub(crate) fn look<W: Word<u64>>(own: &W, other: &W) -> (u64, u64) {
    (own.load(Ordering::Relaxed), other.load(Ordering::Acquire))
}

/// Lets the other side know how far this one has come, after all that it has done up to there.
pub(crate) fn publish<W: Word<u64>>(own: &W, count: u64) {
    own.store(count, Ordering::Release);
}

/// See the module's theory of operation.
pub struct Ring {
    words: Box<[UnsafeCell<u64>]>,
    writer: Side,
    reader: Side,
    lost: AtomicU64,
}

// SAFETY: all access to the words is by `push` and `Reader`, of which the flags let only one each at a time, and by the module's invariant they touch different words.
unsafe impl Sync for Ring {}

impl Ring {
    /// An empty ring of `size` bytes, a power of two.
    #[must_use]
    pub fn new(size: usize) -> Self {
        assert!(size.is_power_of_two() && size > WORD, "a ring has a power of two of bytes");
        let words = vec![0_u64; size / WORD].into_boxed_slice();
        // Zeroed memory that nobody has touched takes no room, so it is not gone through word by word.
        // SAFETY: a cell is laid out as what is in it, and the box was this function's alone.
        let words = unsafe { Box::from_raw(Box::into_raw(words) as *mut [UnsafeCell<u64>]) };
        Self { words, writer: Side::default(), reader: Side::default(), lost: AtomicU64::new(0) }
    }

    fn size(&self) -> u64 {
        (self.words.len() * WORD) as u64
    }

    /// The byte with number `at`, counted since the beginning; those behind it are in one piece up to the end of the ring.
    fn place(&self, at: u64) -> *mut u8 {
        let index = (at & (self.size() - 1)) as usize / WORD;
        // SAFETY: the index is below the number of words, which is the size by WORD.
        unsafe { UnsafeCell::raw_get(self.words.as_ptr().add(index)).cast() }
    }

    /// Records that found no room, or the ring in use.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Appends a record of `len` bytes, which `fill` writes. Returns `false` if it is lost.
    pub fn push(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let done = !self.writer.taken.swap(true, Ordering::Acquire) && {
            let done = self.write(len, fill);
            self.writer.taken.store(false, Ordering::Release);
            done
        };
        if !done {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// As [`push`](Self::push), for who has the writer's flag.
    fn write(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let (head, tail) = look(&self.writer.count, &self.reader.count);
        let need = (WORD + len.next_multiple_of(WORD)) as u64;
        let left = self.size() - (head & (self.size() - 1));
        let skip = if need > left { left } else { 0 };
        if head + skip + need - tail > self.size() {
            return false;
        }
        let start = head + skip;
        // SAFETY: between `head` and `tail + size` nobody else reads or writes; `place` is aligned to a word; the record's bytes are in
        // one piece, for `need` is not more than what is left behind `start`. The memory is initialized.
        let bytes = unsafe {
            if skip > 0 {
                self.place(head).cast::<u64>().write(WRAP);
            }
            let place = self.place(start);
            place.cast::<u64>().write(len as u64);
            std::slice::from_raw_parts_mut(place.add(WORD), len)
        };
        fill(bytes);
        publish(&self.writer.count, start + need);
        true
    }

    /// The reading side; `None` if somebody has it.
    #[must_use]
    pub fn reader(&self) -> Option<Reader<'_>> {
        let free = !self.reader.taken.swap(true, Ordering::Acquire);
        free.then(|| Reader { ring: self })
    }
}

/// Exclusive use of the reading side of a [`Ring`].
pub struct Reader<'a> {
    ring: &'a Ring,
}

impl Reader<'_> {
    /// The oldest record.
    #[must_use]
    pub fn peek(&self) -> Option<&[u8]> {
        let (start, len) = self.first()?;
        // SAFETY: between `tail` and `head` nobody writes before `advance`, which takes `self` for itself; the record is in one piece.
        Some(unsafe { std::slice::from_raw_parts(self.ring.place(start).add(WORD), len) })
    }

    /// Where the oldest record starts, and how long it is.
    fn first(&self) -> Option<(u64, usize)> {
        let ring = self.ring;
        let (tail, head) = look(&ring.reader.count, &ring.writer.count);
        if head == tail {
            return None;
        }
        // SAFETY: as in `peek`; a record starts with a word, and one that says WRAP is followed by another at the front.
        let (start, len) = unsafe {
            match ring.place(tail).cast::<u64>().read() {
                WRAP => {
                    let front = tail + ring.size() - (tail & (ring.size() - 1));
                    (front, ring.place(front).cast::<u64>().read())
                }
                len => (tail, len),
            }
        };
        Some((start, len as usize))
    }

    /// Lets go of the oldest record.
    pub fn advance(&mut self) {
        if let Some((start, len)) = self.first() {
            let end = start + (WORD + len.next_multiple_of(WORD)) as u64;
            publish(&self.ring.reader.count, end);
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.ring.reader.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn push(ring: &Ring, record: &[u8]) -> bool {
        ring.push(record.len(), |bytes| bytes.copy_from_slice(record))
    }

    #[test]
    fn a_full_ring_loses_what_comes_and_keeps_what_is_there() {
        let ring = Ring::new(64);
        assert!(push(&ring, &[1; 24]) && push(&ring, &[2; 16]));
        assert!(!push(&ring, &[3; 8]), "8 bytes are left, and it needs 16");
        assert_eq!(ring.lost(), 1);
        let mut reader = ring.reader().unwrap();
        assert!(ring.reader().is_none(), "one reader at a time");
        assert_eq!(reader.peek(), Some(&[1; 24][..]));
        reader.advance();
        assert!(push(&ring, &[4; 20]), "over the end");
        for expected in [&[2; 16][..], &[4; 20]] {
            assert_eq!(reader.peek(), Some(expected));
            reader.advance();
        }
        assert_eq!(reader.peek(), None);
        reader.advance();
        assert!(!push(&ring, &[5; 64]), "larger than the ring");
        assert!(push(&ring, &[]));
        assert_eq!(reader.peek(), Some(&[][..]));
        drop(reader);
        assert!(ring.reader().is_some());
    }

    #[test]
    fn who_finds_the_ring_in_use_loses_and_does_not_wait() {
        let ring = Ring::new(64);
        assert!(ring.push(1, |_| assert!(!push(&ring, &[1]))));
        assert_eq!(ring.lost(), 1);
        assert!(push(&ring, &[1]));
    }

    proptest! {
        #[test]
        fn records_come_out_as_they_went_in(
            steps in prop::collection::vec((any::<bool>(), 0..200_usize), 1..200),
        ) {
            let (ring, mut model) = (Ring::new(512), VecDeque::new());
            let mut lost = 0;
            for (i, (writes, len)) in steps.into_iter().enumerate() {
                if writes {
                    let record = vec![i as u8; len];
                    if push(&ring, &record) { model.push_back(record) } else { lost += 1 }
                } else {
                    let mut reader = ring.reader().unwrap();
                    let expected = model.pop_front();
                    prop_assert_eq!(reader.peek(), expected.as_deref());
                    reader.advance();
                }
            }
            prop_assert_eq!(ring.lost(), lost);
        }
    }

    #[test]
    fn two_threads_agree() {
        const RECORDS: u32 = 20_000;
        let ring = Ring::new(1024);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0_u32;
                while n < RECORDS {
                    let record = [n.to_le_bytes(), (!n).to_le_bytes()].concat();
                    match push(&ring, &record) {
                        true => n += 1,
                        false => thread::yield_now(),
                    }
                }
            });
            let (mut reader, mut n) = (ring.reader().unwrap(), 0_u32);
            while n < RECORDS {
                let Some(record) = reader.peek() else {
                    thread::yield_now();
                    continue;
                };
                assert_eq!(record, [n.to_le_bytes(), (!n).to_le_bytes()].concat());
                reader.advance();
                n += 1;
            }
        });
    }
}
