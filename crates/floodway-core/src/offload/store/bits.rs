//! A set of consecutive numbers that move on, with a search for the next member or non-member.
//!
//! # Theory of operation
//! One bit for each number, at the number modulo the capacity, which is a power of two: the numbers in use lie in a window
//! that is no longer. Above the words lie two summaries, one bit for each word: one tells which words have a
//! member, the other which have a non-member. A search looks at one word and then at the summaries, so that it
//! passes 4096 numbers a step. Numbers that are in no set cost nothing: they are not written at all.
//!
//! Invariant: a summary bit is set if and only if its word has such a number.

use super::step;

/// Bits of a word.
const WORD: u32 = u64::BITS;

/// Which numbers a search is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Members,
    Others,
}

impl Wanted {
    /// Makes what is wanted the ones of a word.
    const fn ones(self, word: u64) -> u64 {
        match self {
            Self::Members => word,
            Self::Others => !word,
        }
    }
}

/// The set.
#[derive(Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    /// Words that have a member.
    some: Vec<u64>,
    /// Words that have a non-member.
    gaps: Vec<u64>,
}

const fn bit(n: u32) -> u64 {
    1 << (n % WORD)
}

impl Bits {
    /// Removes every number, and makes room for windows of `capacity`, a power of two from 64 on.
    pub fn reset(&mut self, capacity: usize) {
        debug_assert!(capacity.is_power_of_two() && capacity >= WORD as usize);
        let words = capacity / WORD as usize;
        let summary = words.div_ceil(WORD as usize);
        let valid = if words < WORD as usize { bit(words as u32) - 1 } else { u64::MAX };
        for (list, len, value) in [
            (&mut self.words, words, 0),
            (&mut self.some, summary, 0),
            (&mut self.gaps, summary, valid),
        ] {
            list.clear();
            list.resize(len, value);
        }
    }

    /// Longest window.
    pub fn capacity(&self) -> usize {
        self.words.len() * WORD as usize
    }

    fn word_of(&self, n: u32) -> u32 {
        (n / WORD) & (self.words.len() as u32 - 1)
    }

    pub fn insert(&mut self, n: u32) {
        let word = self.word_of(n);
        let (bits, summary) = (&mut self.words[word as usize], (word / WORD) as usize);
        *bits |= bit(n);
        self.some[summary] |= bit(word);
        if *bits == u64::MAX {
            self.gaps[summary] &= !bit(word);
        }
    }

    pub fn remove(&mut self, n: u32) {
        let word = self.word_of(n);
        let (bits, summary) = (&mut self.words[word as usize], (word / WORD) as usize);
        *bits &= !bit(n);
        self.gaps[summary] |= bit(word);
        if *bits == 0 {
            self.some[summary] &= !bit(word);
        }
    }

    /// The first wanted number of `from..end`, a window.
    pub fn next(&self, from: u32, end: u32, wanted: Wanted) -> Option<u32> {
        let first =
            wanted.ones(self.words[self.word_of(from) as usize]) & (u64::MAX << (from % WORD));
        step();
        let found = if first == 0 {
            self.next_word(from, end, wanted)
        } else {
            from - from % WORD + first.trailing_zeros()
        };
        (found.wrapping_sub(from) < end.wrapping_sub(from)).then_some(found)
    }

    /// The first wanted number behind the word of `from`, or one that is not before `end`.
    fn next_word(&self, from: u32, end: u32, wanted: Wanted) -> u32 {
        let (words, len) = (self.words.len() as u32, end.wrapping_sub(from));
        let summary = if wanted == Wanted::Members { &self.some } else { &self.gaps };
        let mut n = (from - from % WORD).wrapping_add(WORD);
        while n.wrapping_sub(from) < len {
            step();
            let word = self.word_of(n);
            let later = summary[(word / WORD) as usize] & (u64::MAX << (word % WORD));
            if later != 0 {
                let ahead = later.trailing_zeros() - word % WORD;
                let bits = wanted.ones(self.words[(word + ahead) as usize]);
                return n.wrapping_add(ahead * WORD + bits.trailing_zeros());
            }
            n = n.wrapping_add((WORD - word % WORD).min(words - word) * WORD);
        }
        end
    }

    /// The last wanted number of `from..end`, a window.
    pub fn last(&self, from: u32, end: u32, wanted: Wanted) -> Option<u32> {
        let len = end.wrapping_sub(from);
        let mut before = end;
        while before.wrapping_sub(from) <= len && before != from {
            step();
            let n = before.wrapping_sub(1);
            let word = self.word_of(n);
            let bits = wanted.ones(self.words[word as usize]) & (u64::MAX >> (WORD - 1 - n % WORD));
            if bits != 0 {
                let found = (n - n % WORD) + (WORD - 1 - bits.leading_zeros());
                return (found.wrapping_sub(from) < len).then_some(found);
            }
            before = self.skip_back(n - n % WORD, word, wanted);
        }
        None
    }

    /// Where a search goes on that has come back to `start`, the begin of `word`, without success.
    fn skip_back(&self, start: u32, word: u32, wanted: Wanted) -> u32 {
        let summary = if wanted == Wanted::Members { &self.some } else { &self.gaps };
        let earlier = summary[(word / WORD) as usize] & (bit(word) - 1);
        let (at, to) = match earlier {
            0 => (word % WORD, 0),
            _ => (word % WORD, WORD - earlier.leading_zeros()),
        };
        start.wrapping_sub((at - to) * WORD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain list, in windows that wrap around the capacity and around 2^32.
        #[test]
        fn searches_find_what_a_scan_finds(
            start in prop_oneof![any::<u32>(), Just(u32::MAX - 300)],
            capacity in prop::sample::select(vec![64_usize, 128, 4096, 8192, 16_384]),
            runs in prop::collection::vec((0_usize..6000, 1_usize..5000, any::<bool>()), 1..8),
            asked in prop::collection::vec((0_usize..16_384, 0_usize..16_384), 20),
        ) {
            let mut bits = Bits::default();
            bits.reset(capacity);
            let mut list = vec![false; capacity];
            let mut at = 0;
            for (skip, len, on) in runs {
                at = (at + skip) % capacity;
                let to = (at + len).min(capacity);
                list[at..to].fill(on);
                for n in at..to {
                    let number = start.wrapping_add(n as u32);
                    if on { bits.insert(number) } else { bits.remove(number) }
                }
            }
            for (a, b) in asked {
                let (from, end) = ((a.min(b)) % capacity, a.max(b).min(capacity));
                let end = end.max(from);
                let number = |n: usize| start.wrapping_add(n as u32);
                for wanted in [Wanted::Members, Wanted::Others] {
                    let is = |n: &usize| list[*n] == (wanted == Wanted::Members);
                    let (first, last) = ((from..end).find(is), (from..end).rev().find(is));
                    let (from, end) = (number(from), number(end));
                    prop_assert_eq!(bits.next(from, end, wanted), first.map(number));
                    prop_assert_eq!(bits.last(from, end, wanted), last.map(number));
                }
            }
        }
    }
}
