//! Checksums agree with a reference, whole and incrementally, and edits keep them right.

use crate::support::{payload, reference_sum, tcp};
use floodway_wire::build::{self, Link};
use floodway_wire::checksum::{self, ChecksumState, Sum, Verification};
use floodway_wire::tcp::options::Timestamps;
use floodway_wire::tcp::{Flags, HeaderMut, OptionSummary};
use floodway_wire::{MacAddr, parse};
use proptest::collection::vec;
use proptest::prelude::*;

/// What edits of a header are tested with.
fn edit(frame: &mut [u8], state: ChecksumState, (n, window, flags): (u32, u16, u8)) -> usize {
    let meta = parse(frame, frame.len()).unwrap();
    let mut header = HeaderMut::of_frame(frame, &meta, state).unwrap();
    header.set_sequence(n);
    header.set_acknowledgment(n ^ 0x5555);
    header.set_window(window);
    header.set_flags(Flags(flags & 0xf0));
    let clocks = Timestamps { value: n.rotate_left(8), echo: n.rotate_left(16) };
    header.set_timestamps(clocks).unwrap();
    header.strip_sack_blocks().unwrap()
}

proptest! {
    #[test]
    fn sum_agrees_with_the_reference(bytes in vec(any::<u8>(), 0..600)) {
        prop_assert_eq!(Sum::of(&bytes).fold(), reference_sum(&bytes));
        prop_assert_eq!(checksum::checksum(&bytes), !reference_sum(&bytes));
    }

    #[test]
    fn parts_add_up(bytes in vec(any::<u8>(), 1..300), at in any::<prop::sample::Index>()) {
        let at = at.index(bytes.len());
        let (left, right) = bytes.split_at(at);
        let right = if at % 2 == 0 { Sum::of(right) } else { Sum::of(right).swapped() };
        prop_assert_eq!(Sum::of(left).plus(right).fold(), reference_sum(&bytes));
    }

    #[test]
    fn an_update_agrees_with_computing_anew(
        mut bytes in vec(any::<u8>(), 4..200),
        at in any::<prop::sample::Index>(),
        new: u16,
    ) {
        bytes[0] |= 1;
        let at = 2 + at.index((bytes.len() - 2) / 2) * 2;
        let before = checksum::checksum(&bytes);
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
        prop_assert_eq!(checksum::update_u16(before, old, new), checksum::checksum(&bytes));
    }

    #[test]
    fn edits_keep_a_full_checksum_right(
        tcp in tcp(),
        odd: bool,
        numbers: (u32, u16, u8),
        len in 0usize..100,
    ) {
        let mut tcp = tcp;
        if odd && tcp.options.len() >= 12 {
            // Timestamps at an odd offset.
            tcp.options[..12].rotate_left(1);
        }
        let has_timestamps = !tcp.options.is_empty();
        let blocks = usize::from(tcp.options.len() > 12);
        let mut frame = tcp.build(&payload(len));
        prop_assert_eq!(edit(&mut frame, ChecksumState::Unverified, numbers), blocks);
        let meta = parse(&frame, frame.len()).unwrap();
        prop_assert_eq!(checksum::verify_transport(&frame, &meta), Ok(Verification::Good));
        let fields = meta.tcp().unwrap();
        prop_assert_eq!((fields.sequence, fields.window), (numbers.0, numbers.1));
        let at = usize::from(meta.transport_offset) + 20;
        let options = &frame[at..usize::from(meta.payload_offset)];
        let summary = OptionSummary::parse(options).unwrap();
        prop_assert_eq!(summary.timestamps.is_some(), has_timestamps);
        prop_assert!(summary.sack_blocks().is_empty());
        if let Some(clocks) = summary.timestamps {
            prop_assert_eq!(clocks.value, numbers.0.rotate_left(8));
        }
    }

    #[test]
    fn edits_under_a_partial_checksum_complete_to_a_right_one(
        tcp in tcp(),
        numbers: (u32, u16, u8),
        len in 0usize..100,
    ) {
        let mut frame = tcp.build_partial(&payload(len));
        edit(&mut frame, ChecksumState::Partial, numbers);
        let meta = parse(&frame, frame.len()).unwrap();
        let start = meta.transport_offset;
        checksum::complete(&mut frame, start, checksum::TCP_OFFSET).unwrap();
        prop_assert_eq!(checksum::verify_transport(&frame, &meta), Ok(Verification::Good));
    }

    #[test]
    fn completion_never_panics(mut frame in vec(any::<u8>(), 0..80), start: u16, offset: u16) {
        for (start, offset) in [(start, offset), (start % 90, offset % 90)] {
            let fits = usize::from(start) + usize::from(offset) + 2 <= frame.len();
            let done = checksum::complete(&mut frame, start, offset);
            prop_assert_eq!(done.is_ok(), fits);
        }
    }
}

#[test]
fn long_ranges_of_ones_do_not_overflow() {
    for len in [63, 64, 65, 1500, 65_535, 1 << 20] {
        let bytes = vec![0xff; len];
        assert_eq!(Sum::of(&bytes).fold(), reference_sum(&bytes), "{len}");
    }
}

#[test]
fn a_completed_checksum_is_never_zero() {
    let mut frame = [0xab, 0xff, 0xff, 0, 0];
    checksum::complete(&mut frame, 1, 2).unwrap();
    assert_eq!(frame, [0xab, 0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn udp_is_verified_and_zero_means_none() {
    let link = Link::new(MacAddr([2; 6]), MacAddr([4; 6]));
    for (src, dst) in [("10.0.0.1:5", "10.0.0.2:53"), ("[fd00::1]:5", "[fd00::2]:53")] {
        let mut frame = build::udp(&link, src.parse().unwrap(), dst.parse().unwrap(), b"hello");
        let meta = parse(&frame, frame.len()).unwrap();
        let verify = |frame: &[u8]| checksum::verify_transport(frame, &meta).unwrap();
        assert_eq!(verify(&frame), Verification::Good);
        assert!(checksum::verify_transport(&frame[..frame.len() - 1], &meta).is_err());
        let last = frame.len() - 1;
        frame[last] ^= 1;
        assert_eq!(verify(&frame), Verification::Bad);
        let field = usize::from(meta.transport_offset) + 6;
        frame[field..field + 2].fill(0);
        assert_eq!(verify(&frame), Verification::Absent);
    }
}
