//! Where the words of a journal are, and what is in them.

use std::net::Ipv6Addr;
use std::ops::Range;

use floodway_wire::FiveTuple;

use super::super::config::LEAST_FRAME;
use super::{Creditor, Words};
use crate::tcp::Seq;

/// Words of a flow.
pub(super) const FLOW_WORDS: usize = FLOW_CHECK + 1;
/// Those of [`super::Journal`]'s numbers, of its owner's notes, and of the check.
pub(super) const NUMBERS: usize = 6;
pub(super) const NOTES: usize = 7;
const FLOW_ABOUT: usize = NOTES + NOTE_WORDS;
const FLOW_CHECK: usize = FLOW_ABOUT + ABOUT_WORDS;
/// Words in which the owner notes what changes of a flow.
pub const NOTE_WORDS: usize = 4;
/// Words in which the owner says what does not change of it.
pub const ABOUT_WORDS: usize = 3;
/// Words of a slot's record.
pub(super) const SLOT_WORDS: usize = 5;
const BYTES_AND_NEXT: usize = 2;
const FRAME_ABOUT: usize = 3;
const FRAME_CHECK: usize = 4;
/// Bytes of a frame in a slot of [`Layout::for_budget`]: what the smallest frame counts for.
const SLOT_BYTES: usize = LEAST_FRAME as usize;
/// Slots for what counts for as much as one has bytes: headers and what is left of the last slot are not counted, and come to no more than that.
const SLOTS_PER_CHARGE: usize = 2;
/// Most places for flows.
const MAX_FLOWS: usize = 1 << 16;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Longest frame that is kept, more than any GSO packet has: a longer one is damage.
pub(super) const MAX_BYTES: usize = 1 << 17;
/// Mixes words of a sum.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many of what a journal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Places for flows, at most 2^16.
    pub flows: usize,
    /// Slots, fewer than 2^32.
    pub slots: usize,
    /// Bytes of a frame in a slot, a multiple of 8.
    pub slot_bytes: usize,
}

/// How many of the first places and slots of a journal may have been written: all behind them are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    pub(super) flows: usize,
    pub(super) slots: usize,
}

impl Layout {
    /// What may have been written, if `end_of` returns where that ends in a range of words: all behind it, up to the range's end, are zero.
    #[must_use]
    pub fn used(&self, end_of: impl Fn(Range<usize>) -> usize) -> Used {
        let count = |first: usize, end: usize, each: usize| {
            let written = end_of(first..end).clamp(first, end) - first;
            written.div_ceil(each)
        };
        let flows = count(self.flow(0), self.flow(self.flows), FLOW_WORDS);
        let slots = count(self.slot(0), self.slot(self.slots), SLOT_WORDS);
        Used { flows, slots }
    }

    /// That of a port that keeps so many bytes, as [`Config::receive_budget`](crate::offload::Config::receive_budget) counts them, and never refuses any of them.
    /// A sender's budget does not count frames: many small ones take more room than there is.
    #[must_use]
    pub const fn for_budget(bytes: u32) -> Self {
        let frames = (bytes as usize).div_ceil(SLOT_BYTES);
        let flows = if frames < MAX_FLOWS { frames } else { MAX_FLOWS };
        Self { flows, slots: SLOTS_PER_CHARGE * frames, slot_bytes: SLOT_BYTES }
    }

    /// Words that it needs.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.bytes(self.slots)
    }

    pub(super) const fn flow(&self, place: usize) -> usize {
        place * FLOW_WORDS
    }

    pub(super) const fn slot(&self, slot: usize) -> usize {
        self.flows * FLOW_WORDS + slot * SLOT_WORDS
    }

    /// Where the bytes of a slot begin.
    const fn bytes(&self, slot: usize) -> usize {
        self.slot(self.slots) + slot * (self.slot_bytes / WORD)
    }

    /// Slots that so many bytes take.
    pub(super) fn slots_for(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.slot_bytes).max(1)
    }
}

/// The state of a place whose flow has this generation.
pub(super) const fn published(generation: u32) -> u64 {
    (generation as u64) << 1 | 1
}

/// The state of a place that is free, and was that of a flow with this generation.
pub(super) const fn free(generation: u32) -> u64 {
    (generation as u64) << 1
}

/// The generation of the next flow at a place with this state.
pub(super) const fn next_generation(state: u64) -> u32 {
    generation(state).wrapping_add(1)
}

pub(super) const fn generation(state: u64) -> u32 {
    (state >> 1) as u32
}

pub(super) const fn is_published(state: u64) -> bool {
    state & 1 == 1
}

/// What was acknowledged for the creditor, and by it.
pub(super) const fn numbers([acked, creditor_ack]: [Seq; 2]) -> u64 {
    (acked.0 as u64) << 32 | creditor_ack.0 as u64
}

pub(super) const fn parse_numbers(word: u64) -> [Seq; 2] {
    [Seq((word >> 32) as u32), Seq(word as u32)]
}

fn check(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(MIX, |sum, word| (sum ^ word).wrapping_mul(MIX).rotate_left(29))
}

/// What of a flow does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowRecord {
    pub tuple: FiveTuple,
    pub creditor: Creditor,
    pub about: [u64; ABOUT_WORDS],
    pub generation: u32,
}

/// Of the fifth word: bytes are owed to the peer.
const OWED_TO_PEER: u64 = 1 << 1;

impl FlowRecord {
    fn words(&self) -> [u64; 5] {
        let FiveTuple { src, dst, src_port, dst_port, protocol, is_ipv6, vlan } = self.tuple;
        let [src, dst] = [src, dst].map(Ipv6Addr::to_bits);
        let ports = u64::from(src_port) << 48 | u64::from(dst_port) << 32;
        let creditor = if self.creditor == Creditor::Peer { OWED_TO_PEER } else { 0 };
        let rest = u64::from(vlan) << 16 | u64::from(protocol) << 8 | u64::from(is_ipv6) | creditor;
        [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64, ports | rest]
    }

    fn check(&self) -> u64 {
        check(self.words().into_iter().chain(self.about).chain([self.generation.into()]))
    }

    /// Writes all but the state.
    pub fn write(&self, words: &impl Words, at: usize, numbers: [Seq; 2]) {
        let about = (FLOW_ABOUT..).zip(self.about);
        for (index, word) in (1..).zip(self.words()).chain(about) {
            words.store(at + index, word);
        }
        words.store(at + NUMBERS, self::numbers(numbers));
        words.store(at + FLOW_CHECK, self.check());
    }

    /// The published record at `at`; `None` if it is damaged.
    pub fn read(words: &impl Words, at: usize) -> Option<Self> {
        let [src_high, src, dst_high, dst, rest] =
            std::array::from_fn(|index| words.load(at + 1 + index));
        let address = |high, low| Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        let tuple = FiveTuple {
            src: address(src_high, src),
            dst: address(dst_high, dst),
            src_port: (rest >> 48) as u16,
            dst_port: (rest >> 32) as u16,
            protocol: (rest >> 8) as u8,
            is_ipv6: rest & 1 == 1,
            vlan: (rest >> 16) as u16,
        };
        let about = std::array::from_fn(|index| words.load(at + FLOW_ABOUT + index));
        let creditor = if rest & OWED_TO_PEER != 0 { Creditor::Peer } else { Creditor::Guest };
        let record = Self { tuple, creditor, about, generation: generation(words.load(at)) };
        (words.load(at + FLOW_CHECK) == record.check()).then_some(record)
    }
}

/// The record of a frame, which is in its first slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameRecord {
    pub place: usize,
    pub generation: u32,
    pub seq: Seq,
    pub len: u32,
    pub about: u64,
    pub bytes: usize,
}

impl FrameRecord {
    /// The word that publishes it; never zero.
    pub fn state(&self) -> u64 {
        u64::from(self.generation) << 32 | (self.place as u64) << 1 | 1
    }

    fn range(&self) -> u64 {
        u64::from(self.seq.0) << 32 | u64::from(self.len)
    }

    fn check(&self, slots: impl Iterator<Item = usize>) -> u64 {
        let own = [self.state(), self.range(), self.bytes as u64, self.about];
        check(own.into_iter().chain(slots.map(|slot| slot as u64)))
    }

    /// Writes bytes and record into `slots`, all but the state.
    pub fn write(
        &self,
        words: &impl Words,
        layout: &Layout,
        slots: impl Iterator<Item = usize> + Clone,
        bytes: &[u8],
    ) {
        let mut pieces = bytes.chunks(layout.slot_bytes);
        let mut following = slots.clone().skip(1);
        for (index, slot) in slots.clone().enumerate() {
            let next = following.next().map_or(0, |next| next as u64 + 1);
            let len = if index == 0 { self.bytes as u64 } else { 0 };
            words.store(layout.slot(slot) + BYTES_AND_NEXT, len << 32 | next);
            write_bytes(words, layout.bytes(slot), pieces.next().unwrap_or_default());
        }
        let Some(first) = slots.clone().next() else { return };
        let at = layout.slot(first);
        words.store(at + 1, self.range());
        words.store(at + FRAME_ABOUT, self.about);
        words.store(at + FRAME_CHECK, self.check(slots));
    }

    /// The published frame that begins in `slot`, and its slots; `None` if it is damaged.
    pub fn read(words: &impl Words, layout: &Layout, slot: usize) -> Option<(Self, Vec<usize>)> {
        let at = layout.slot(slot);
        let [state, range, sizes, about, sum] = std::array::from_fn(|index| words.load(at + index));
        let record = Self {
            place: (state as u32 >> 1) as usize,
            generation: (state >> 32) as u32,
            seq: Seq((range >> 32) as u32),
            len: range as u32,
            about,
            bytes: (sizes >> 32) as usize,
        };
        let is_in_range = record.place < layout.flows && record.bytes <= MAX_BYTES;
        let slots = chain(words, layout, slot, is_in_range.then_some(record.bytes)?)?;
        (record.check(slots.iter().copied()) == sum).then_some((record, slots))
    }
}

/// The slots of a frame of so many bytes that begins in `first`; `None` if they are not as many as it takes.
fn chain(words: &impl Words, layout: &Layout, first: usize, bytes: usize) -> Option<Vec<usize>> {
    let mut slots = vec![first];
    while slots.len() < layout.slots_for(bytes) {
        let next = words.load(layout.slot(*slots.last()?) + BYTES_AND_NEXT) as u32;
        let next = (next as usize).checked_sub(1).filter(|&next| next < layout.slots)?;
        slots.push(next);
    }
    Some(slots)
}

fn write_bytes(words: &impl Words, at: usize, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<WORD>();
    for (index, &word) in whole.iter().enumerate() {
        words.store(at + index, u64::from_le_bytes(word));
    }
    if !rest.is_empty() {
        let mut word = [0; WORD];
        word[..rest.len()].copy_from_slice(rest);
        words.store(at + whole.len(), u64::from_le_bytes(word));
    }
}

/// The bytes of a frame in `slots`.
pub(super) fn read_bytes(
    words: &impl Words,
    layout: &Layout,
    slots: &[usize],
    len: usize,
) -> Vec<u8> {
    let word = |at| words.load(at).to_le_bytes();
    let of_slot = |&slot: &usize| {
        let at = layout.bytes(slot);
        (at..at + layout.slot_bytes / WORD).flat_map(word)
    };
    slots.iter().flat_map(of_slot).take(len).collect()
}
