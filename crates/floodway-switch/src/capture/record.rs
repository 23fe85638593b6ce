//! A record: what a ring has of a frame.

use std::fmt::{self, Write};

use floodway_core::time::Instant;
use floodway_wire::pcapng::Direction;

use super::{Ring, Seen};
use crate::frame::iovec::GuestIoVec;

/// Time, tag, length of the comment, direction, length of the frame.
const HEADER: usize = 16;
const OUTBOUND: u8 = 1;

/// A record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Nanoseconds since the switch started.
    pub time: u64,
    /// Of its capture.
    pub tag: u16,
    /// Which way the frame went.
    pub direction: Direction,
    /// Bytes that it had.
    pub original_len: u32,
    /// What is known of it.
    pub comment: &'a str,
    /// Its first bytes.
    pub bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record in `bytes`, which [`write`] has written.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Self {
        let (header, rest) = bytes.split_first_chunk::<HEADER>().expect("a record has a header");
        let [a, b, c, d, e, f, g, h, tag0, tag1, comment_len, direction, l0, l1, l2, l3] = *header;
        let (comment, bytes) = rest.split_at(comment_len.into());
        Self {
            time: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            tag: u16::from_le_bytes([tag0, tag1]),
            direction: match direction {
                OUTBOUND => Direction::Outbound,
                _ => Direction::Inbound,
            },
            original_len: u32::from_le_bytes([l0, l1, l2, l3]),
            // `Text` cuts between characters.
            comment: str::from_utf8(comment).unwrap_or_default(),
            bytes,
        }
    }
}

/// Puts a frame into `ring`, at most `snap_len` bytes of it. Returns the number of bytes that were copied.
pub(super) fn write(ring: &Ring, tag: u16, now: Instant, snap_len: u32, seen: &Seen<'_>) -> u64 {
    let comment = comment(seen);
    let comment = comment.as_bytes();
    // Of a malformed frame there may be less than it claims.
    let there: usize = seen.frame.parts.iter().map(GuestIoVec::len).sum();
    let captured = there.min(snap_len as usize).min(seen.frame.len as usize);
    let direction = match seen.direction {
        Direction::Inbound => 0,
        Direction::Outbound => OUTBOUND,
    };
    let pushed = ring.push(HEADER + comment.len() + captured, |bytes| {
        let (header, rest) = bytes.split_at_mut(HEADER);
        header[..8].copy_from_slice(&now.as_nanos().to_le_bytes());
        header[8..10].copy_from_slice(&tag.to_le_bytes());
        header[10..12].copy_from_slice(&[comment.len() as u8, direction]);
        header[12..].copy_from_slice(&seen.frame.len.to_le_bytes());
        let (text, bytes) = rest.split_at_mut(comment.len());
        text.copy_from_slice(comment);
        seen.frame.copy_to(bytes);
    });
    if pushed { captured as u64 } else { 0 }
}

/// Why it is dropped, what the offload does with it, its flow, and how it is to be cut.
fn comment(seen: &Seen<'_>) -> Text {
    let mut text = Text::default();
    if let Some(reason) = seen.drop {
        text.add(format_args!("drop={}", reason.name()));
    }
    if !seen.verdict.is_empty() {
        text.add(format_args!("offload={}", seen.verdict));
    }
    if let Some(flow) = seen.flow {
        text.add(format_args!(
            "tx={} rx={} reason={:?} cwnd={} held={} in_flight={} granted={} kept={}",
            flow.tx.name(),
            flow.rx.name(),
            flow.reason.name(),
            flow.cwnd,
            flow.held,
            flow.in_flight,
            flow.granted,
            flow.kept
        ));
        if let Some(srtt) = flow.srtt {
            text.add(format_args!("srtt_us={}", srtt.as_micros()));
        }
    }
    if seen.frame.vnet.is_gso() {
        let (segments, size) = (seen.frame.segments(), seen.frame.vnet.gso_size);
        text.add(format_args!("gso={segments}x{size}"));
    }
    text
}

/// A short text that is made without memory of the heap.
struct Text {
    bytes: [u8; 255],
    len: u8,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; 255], len: 0 }
    }
}

impl Text {
    fn add(&mut self, arguments: fmt::Arguments<'_>) {
        // What does not fit is left out.
        let _ = if self.len == 0 { Ok(()) } else { self.write_str(" ") };
        let _ = self.write_fmt(arguments);
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = &mut self.bytes[self.len.into()..];
        let fits = text.floor_char_boundary(rest.len());
        rest[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits as u8;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use floodway_core::offload::{FlowSummary, Reason, RxState, TxState};
    use floodway_wire::FiveTuple;
    use floodway_wire::vnet::VnetHdr;

    use super::*;
    use crate::frame;
    use crate::stats::DropReason;
    use crate::testing::frames::{partial, pattern, tcp};

    #[test]
    fn a_record_says_what_was_seen() {
        let ring = Ring::new(1 << 10);
        let packet = tcp(1, 2, false).build_partial(&pattern(1, 5000));
        let flow = FlowSummary {
            flow: FiveTuple::NONE,
            tx: TxState::Active,
            rx: RxState::Offline,
            reason: Reason::Opened,
            cwnd: u32::MAX,
            ssthresh: 0,
            held: 2,
            in_flight: 3,
            owed: 0,
            granted: 4,
            srtt: Some(Duration::from_micros(90)),
            kept: 5,
        };
        let copied = frame::with_slice(partial(&packet, 1448), &packet, |frame| {
            let mut seen = Seen::new(frame, Direction::Outbound, Some(DropReason::BeyondGrant));
            (seen.verdict, seen.flow) = ("dropped", Some(&flow));
            write(&ring, 9, Instant::from_nanos(77), 100, &seen)
        });
        assert_eq!(copied, 100);
        let reader = ring.reader().unwrap();
        let record = Record::read(reader.peek().unwrap());
        assert_eq!((record.time, record.tag, record.direction), (77, 9, Direction::Outbound));
        assert_eq!((record.original_len as usize, record.bytes), (packet.len(), &packet[..100]));
        let expected = format!(
            "drop=beyond_grant offload=dropped tx=ACTIVE rx=OFFLINE reason={:?} cwnd=4294967295 held=2 \
             in_flight=3 granted=4 kept=5 srtt_us=90 gso=4x1448",
            Reason::Opened.name()
        );
        assert_eq!(record.comment, expected);
    }

    #[test]
    fn of_a_frame_that_claims_more_only_what_is_there_is_captured() {
        let ring = Ring::new(1 << 10);
        let part = [GuestIoVec::from_slice(&[1; 30])];
        let lie = frame::Frame { vnet: VnetHdr::default(), prefix: &[], parts: &part, len: 4000 };
        let seen = Seen::new(&lie, Direction::Inbound, None);
        assert_eq!(write(&ring, 1, Instant::ZERO, u32::MAX, &seen), 30);
        let reader = ring.reader().unwrap();
        let record = Record::read(reader.peek().unwrap());
        assert_eq!((record.original_len, record.bytes.len(), record.comment), (4000, 30, ""));
    }

    #[test]
    fn a_text_that_is_too_long_ends_between_characters() {
        let mut text = Text::default();
        text.add(format_args!("{}", "a".repeat(252)));
        text.add(format_args!("äöü"));
        assert_eq!(text.as_bytes().len(), 255);
        assert!(std::str::from_utf8(text.as_bytes()).unwrap().ends_with(" ä"));
    }
}
