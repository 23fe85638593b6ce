//! Search by sequence number among entries that lie in sequence order.
//!
//! # Theory of operation
//! The segments of a flow are mostly equally long, so the entry of a sequence number lies where its share of the bytes says
//! (interpolation search). From there the range is doubled until it holds the entry, and divided as in a binary search. So it takes two or three
//! looks where segments are equally long, and never more than twice the logarithm of their number, however a peer or a guest chose them.

use std::collections::VecDeque;

use super::step;
use crate::seq::Seq;

/// Returns the index of the first entry that ends behind `seq`, or the number of entries if none does.
///
/// `start` is where the first entry begins, `end` returns where an entry ends.
#[inline]
pub(super) fn first_behind<T>(
    entries: &VecDeque<T>,
    start: Seq,
    seq: Seq,
    end: impl Fn(&T) -> Seq,
) -> usize {
    let Some(last) = entries.back() else { return 0 };
    let total = end(last).since(start);
    let share = u64::from(seq.since(start).min(total)) * entries.len() as u64;
    let guess = share / u64::from(total.max(1));
    let is_before = |index: usize| {
        step();
        !end(&entries[index]).after(seq)
    };
    let (mut low, mut high) = around(entries.len(), guess as usize, is_before);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Returns a range of indexes around `guess`, of `len`, at whose end or within which `is_before` becomes false.
fn around(len: usize, guess: usize, is_before: impl Fn(usize) -> bool) -> (usize, usize) {
    let mut width = 1;
    if guess < len && is_before(guess) {
        let mut low = guess + 1;
        while low + width <= len {
            let probe = low + width - 1;
            if !is_before(probe) {
                return (low, probe);
            }
            low = probe + 1;
            width *= 2;
        }
        return (low, len);
    }
    let mut high = guess.min(len);
    while high > 0 {
        let probe = high.saturating_sub(width);
        if is_before(probe) {
            return (probe + 1, high);
        }
        high = probe;
        width *= 2;
    }
    (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_finds_what_a_binary_search_finds(
            lengths in proptest::collection::vec(1_u32..3000, 0..200),
            first: u32,
            at in 0_u32..700_000,
        ) {
            let mut end = Seq(first);
            let mut entries: VecDeque<Seq> = VecDeque::new();
            for length in lengths {
                end += length;
                entries.push_back(end);
            }
            for seq in [Seq(first) + at, end, Seq(first), Seq(first.wrapping_sub(at))] {
                let slow = entries.partition_point(|entry| !entry.after(seq));
                prop_assert_eq!(first_behind(&entries, Seq(first), seq, |entry| *entry), slow);
            }
        }
    }
}
