//! Sums of any bytes, cut anywhere, agree with the word-by-word definition; completion of any
//! range either is refused or makes the range sum up.
//!
//! No cost oracle: the loops run over slices, and nothing that an input holds makes them look at a byte twice.
#![no_main]

use floodway_wire::checksum::{self, Sum};
use libfuzzer_sys::fuzz_target;

fn reference(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| [w[0], w.get(1).copied().unwrap_or(0)]);
    let sum: u64 = words.map(|w| u64::from(u16::from_be_bytes(w))).sum();
    match sum {
        0 => 0,
        sum => ((sum - 1) % 0xffff + 1) as u16,
    }
}

fuzz_target!(|input: (u16, u16, &[u8])| {
    let (start, offset, bytes) = input;
    assert_eq!(Sum::of(bytes).fold(), reference(bytes));

    let (left, right) = bytes.split_at(usize::from(start).min(bytes.len()));
    let right = match left.len() % 2 {
        0 => Sum::of(right),
        _ => Sum::of(right).swapped(),
    };
    assert_eq!(Sum::of(left).plus(right).fold(), reference(bytes));

    let mut frame = bytes.to_vec();
    if checksum::complete(&mut frame, start, offset).is_err() {
        assert_eq!(frame, bytes);
        return;
    }
    // The field held what the sum has to include (the pseudo-header): take the old value away.
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    let field = |frame: &[u8]| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if offset % 2 == 0 {
        let sum = Sum::of(&frame[start..]).plus_u16(field(bytes));
        assert_eq!(sum.fold() % 0xffff, 0);
    }
});
