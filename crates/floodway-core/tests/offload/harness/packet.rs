//! A segment together with the bytes that it carries.

use floodway_core::offload::{Edit, Segment, SynthesizedSegment, Transmission};
use floodway_core::seq::Seq;
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::Timestamps;

/// A place in a byte stream: 0 is the SYN, 1 the first byte of payload.
pub type Position = i64;

/// A segment. Its payload is given by its place in its sender's stream: byte `n` of a stream is
/// [`byte_at`]`(n)`, and to check the place is to check every byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub segment: Segment,
    /// Place of the first byte of payload.
    pub at: Position,
}

/// The byte at a place.
pub const fn byte_at(position: Position) -> u8 {
    let n = (position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n >> 56) as u8
}

impl Packet {
    pub fn payload(&self) -> Vec<u8> {
        (self.at..self.at + i64::from(self.segment.len)).map(byte_at).collect()
    }

    /// The part of this frame that is released.
    pub fn released(&self, release: &Transmission) -> Self {
        assert!(release.offset + release.len <= self.segment.len, "bytes that the frame has not");
        let mut segment = self.segment;
        segment.seq = release.seq;
        segment.ack = release.ack;
        segment.len = release.len;
        segment.window = release.window;
        segment.flags = release.flags;
        segment.ecn = release.ecn;
        segment.gso_size = if release.len > u32::from(release.mss) { release.mss } else { 0 };
        segment.options.timestamps = release.timestamps;
        segment.options.set_sack_blocks(&[]);
        Self { segment, at: self.at + i64::from(release.offset) }
    }

    pub fn synthesized(header: &SynthesizedSegment) -> Self {
        let mut segment = Segment {
            seq: header.seq,
            ack: header.ack,
            window: header.window,
            flags: header.flags,
            ..Segment::default()
        };
        segment.options.timestamps = header.timestamps;
        segment.options.set_sack_blocks(header.sack.as_slice());
        Self { segment, at: 0 }
    }

    pub fn edited(mut self, edit: &Edit) -> Self {
        let segment = &mut self.segment;
        segment.seq = edit.seq.unwrap_or(segment.seq);
        segment.ack = edit.ack.unwrap_or(segment.ack);
        segment.window = edit.window.unwrap_or(segment.window);
        segment.flags = edit.flags.unwrap_or(segment.flags);
        if let Some(timestamps) = edit.timestamps {
            assert!(segment.options.timestamps.is_some(), "an option that the frame has not");
            segment.options.timestamps = Some(timestamps);
        }
        if edit.strip_sack {
            segment.options.set_sack_blocks(&[]);
        }
        self
    }

    /// The segments of a GSO packet, as a network card cuts it.
    pub fn segments(&self) -> impl Iterator<Item = Self> {
        let whole = self.segment;
        let size = if whole.gso_size == 0 { u32::MAX } else { u32::from(whole.gso_size) };
        let count = whole.len.div_ceil(size).max(1);
        (0..count).map(move |n| {
            let (start, last) = (n * size, n + 1 == count);
            let mut segment = whole;
            segment.gso_size = 0;
            segment.seq = whole.seq + start;
            segment.len = if last { whole.len - start } else { size };
            if !last {
                segment.flags = segment.flags.without(Flags::FIN.with(Flags::PSH));
            }
            if n > 0 {
                segment.flags = segment.flags.without(Flags::CWR);
            }
            Self { segment, at: self.at + i64::from(start) }
        })
    }

    /// Bytes on the wire.
    pub fn wire_len(&self) -> u64 {
        u64::from(self.segment.len) + 78
    }

    pub fn timestamps(&self) -> Option<Timestamps> {
        self.segment.options.timestamps
    }
}

/// The place of a sequence number near `base`, in a stream whose SYN has `isn`.
pub fn unwrap(base: Position, isn: u32, seq: Seq) -> Position {
    let expected = isn.wrapping_add(base as u32);
    base + i64::from(seq.0.wrapping_sub(expected) as i32)
}
