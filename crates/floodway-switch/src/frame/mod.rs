//! A frame on its way through the pipeline.

pub(crate) mod describe;
mod frames;
pub(crate) mod headers;
pub(crate) mod held;
pub mod iovec;
pub(crate) mod pool;
pub mod vlan;
pub mod vnet_offload;

pub use frames::{Frames, Sizes};

use std::iter::Sum;

use floodway_wire::vnet::VnetHdr;
use floodway_wire::{ethernet, parse, tcp};

use crate::frame::iovec::GuestIoVec;
use crate::stats::DropReason;

/// Bytes of a frame that are copied out of guest memory before anything looks at them. Enough for
/// Ethernet, two VLAN tags, IPv6 and TCP with all its options (122 bytes).
pub const PREFIX_LEN: usize = 128;

/// Longest frame: the largest IP packet behind an Ethernet header with two VLAN tags.
pub const MAX_FRAME_LEN: u32 = 65_535 + 14 + 8;

/// Segments of a GSO packet that are made before others have their turn, for who takes no GSO packets. TCP makes 45 of an Ethernet
/// segment's size; only small ones are more.
pub const CUT_AT_ONCE: u32 = 64;

/// Pieces of a frame for which nothing is allocated when its headers change. Linux makes at most 19.
const INLINE_PARTS: usize = 24;

/// Longest acknowledgement without data: an Ethernet header, an IP and a TCP header with all options.
const MAX_ACK_LEN: u32 = 14 + 60 + 60;
/// With one of these a segment says more than it acknowledges.
const NO_BARE_ACK: tcp::Flags = tcp::Flags::SYN.with(tcp::Flags::FIN).with(tcp::Flags::RST);
/// TCP's number as protocol or next header.
const TCP: u8 = 6;
/// Types of Ethernet frames as they lie in memory.
const IPV4: u16 = 0x0800_u16.to_be();
const IPV6: u16 = 0x86dd_u16.to_be();

/// A borrowed frame: headers that hold still, and the rest where it lies.
///
/// A guest can rewrite its buffers while we forward them. So the first [`PREFIX_LEN`] bytes are a
/// copy of ours; what was checked there is what the receiver gets. The rest is payload to us: it is
/// copied once, from the sender's memory to the receiver's.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Offload state: is the checksum still to be filled in, is it a GSO packet?
    pub vnet: VnetHdr,
    /// The first bytes of the frame; the same bytes as `parts[0]`.
    pub prefix: &'a [u8],
    /// All bytes of the frame, in order.
    pub parts: &'a [GuestIoVec<'a>],
    /// Length of the frame in bytes, the sum of `parts`.
    pub len: u32,
}

/// What frames are on a wire, where each segment of a GSO packet is a packet with headers of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireSize {
    /// Bytes of all headers and payload.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

impl Sum for WireSize {
    #[inline]
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), |sum, size| Self {
            bytes: sum.bytes + size.bytes,
            packets: sum.packets + size.packets,
        })
    }
}

impl WireSize {
    /// Of a frame of `len` bytes with the header `vnet`.
    #[inline]
    #[must_use]
    pub fn of(vnet: &VnetHdr, len: u32) -> Self {
        let bytes = u64::from(len);
        if !vnet.is_gso() {
            return Self { bytes, packets: 1 };
        }
        let packets = u64::from(segments(vnet, len));
        Self { bytes: bytes + (packets - 1) * u64::from(vnet.hdr_len), packets }
    }
}

/// Returns how many frames one of `len` bytes with the header `vnet` becomes where GSO packets are not taken; at least one.
#[inline]
fn segments(vnet: &VnetHdr, len: u32) -> u32 {
    if !vnet.is_gso() {
        return 1;
    }
    let payload = len.saturating_sub(vnet.hdr_len.into());
    payload.div_ceil(u32::from(vnet.gso_size).max(1)).max(1)
}

impl Frame<'_> {
    /// What it is on a wire.
    #[inline]
    #[must_use]
    pub fn wire_size(&self) -> WireSize {
        WireSize::of(&self.vnet, self.len)
    }

    /// Bytes that it is on a wire.
    #[inline]
    #[must_use]
    pub fn wire_len(&self) -> u32 {
        self.wire_size().bytes.try_into().unwrap_or(u32::MAX)
    }

    /// Bytes of the longest frame that it becomes where GSO packets are not taken.
    #[inline]
    #[must_use]
    pub fn segment_len(&self) -> u32 {
        match self.vnet.is_gso() {
            true => self.len.min(u32::from(self.vnet.hdr_len) + u32::from(self.vnet.gso_size)),
            false => self.len,
        }
    }

    /// Frames that it becomes where GSO packets are not taken; at least one.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> u32 {
        segments(&self.vnet, self.len)
    }

    /// A TCP segment that acknowledges and says nothing else. Those with VLAN tags or IPv6 extension headers are not recognized.
    #[inline]
    #[must_use]
    pub fn is_pure_ack(&self) -> bool {
        is_pure_ack(self.prefix, self.len)
    }

    /// Copies the whole frame to the end of `buffer`.
    pub fn append_to(&self, buffer: &mut Vec<u8>) {
        let end = buffer.len();
        // Zeroed first, then overwritten: this is not the hot path.
        buffer.resize(end + self.len as usize, 0);
        self.copy_to(&mut buffer[end..]);
    }

    /// Copies the frame to the start of `buffer`, as far as there is room.
    pub fn copy_to(&self, buffer: &mut [u8]) {
        let mut rest = buffer;
        for part in self.parts {
            let (to, more) = rest.split_at_mut(part.len().min(rest.len()));
            // SAFETY: the segment is readable and at least as long as `to`, which is ours alone and so
            // overlaps neither guest memory nor a borrowed slice.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to.as_mut_ptr(), to.len()) };
            rest = more;
        }
    }
}

/// As [`Frame::is_pure_ack`], for a frame of `len` bytes that begins with `prefix`.
#[inline]
pub(crate) fn is_pure_ack(prefix: &[u8], len: u32) -> bool {
    // Most frames are recognized by a byte or two. None without these is an acknowledgement.
    let Some(head) = prefix.first_chunk::<24>() else { return false };
    let protocol = match u16::from_ne_bytes([head[12], head[13]]) {
        IPV4 => head[14 + 9],
        IPV6 => head[14 + 6],
        _ => return false,
    };
    protocol == TCP && len <= MAX_ACK_LEN && only_acknowledges(prefix, len)
}

#[inline(never)]
fn only_acknowledges(prefix: &[u8], len: u32) -> bool {
    let Ok(meta) = parse(prefix, len as usize) else { return false };
    let flags = meta.tcp().map(|tcp| tcp.flags);
    meta.payload_len == 0 && flags.is_some_and(|flags| !flags.intersects(NO_BARE_ACK))
}

/// Checks the length of a frame, which is counted without its virtio-net header.
///
/// # Errors
/// It is shorter than an Ethernet header.
#[inline]
pub(crate) fn check_len(len: u32) -> Result<(), DropReason> {
    if (len as usize) < ethernet::HEADER_LEN { Err(DropReason::Runt) } else { Ok(()) }
}

/// Calls `f` with `frame` as it is with other first bytes: `headers`, which take the place of as many.
pub fn with_headers<R>(
    frame: &Frame<'_>,
    vnet: VnetHdr,
    headers: &[u8],
    f: impl FnOnce(&Frame<'_>) -> R,
) -> R {
    // As nearly all are: the prefix, and at most one piece more.
    if let [first, rest @ ..] = frame.parts
        && first.len() == headers.len()
        && rest.len() <= 1
    {
        let first = GuestIoVec::from_slice(headers);
        let parts = [first, rest.first().copied().unwrap_or(first)];
        return f(&Frame { vnet, prefix: headers, parts: &parts[..=rest.len()], len: frame.len });
    }
    spliced(frame, vnet, headers, headers.len(), frame.len, f)
}

/// Calls `f` with `frame` as it is with `headers` in the place of its first `skip` bytes, which are fewer.
pub fn with_longer_headers<R>(
    frame: &Frame<'_>,
    skip: usize,
    headers: &[u8],
    f: impl FnOnce(&Frame<'_>) -> R,
) -> R {
    let len = frame.len - skip as u32 + headers.len() as u32;
    spliced(frame, frame.vnet, headers, skip, len, f)
}

/// Calls `f` with `frame` with `headers` in the place of its first `skip` bytes, which makes it `len` bytes long.
fn spliced<R>(
    frame: &Frame<'_>,
    vnet: VnetHdr,
    headers: &[u8],
    mut skip: usize,
    len: u32,
    f: impl FnOnce(&Frame<'_>) -> R,
) -> R {
    let mut inline = [GuestIoVec::from_slice(&[]); INLINE_PARTS];
    let mut spilled = Vec::new();
    let parts = if frame.parts.len() < INLINE_PARTS {
        &mut inline[..=frame.parts.len()]
    } else {
        spilled.resize(frame.parts.len() + 1, GuestIoVec::from_slice(&[]));
        &mut spilled[..]
    };
    parts[0] = GuestIoVec::from_slice(headers);
    for (to, from) in parts[1..].iter_mut().zip(frame.parts) {
        *to = from.skip(skip);
        skip -= skip.min(from.len());
    }
    f(&Frame { vnet, prefix: headers, parts, len })
}

/// Calls `f` with `bytes` as a frame.
pub fn with_slice<R>(vnet: VnetHdr, bytes: &[u8], f: impl FnOnce(&Frame<'_>) -> R) -> R {
    let prefix = &bytes[..bytes.len().min(PREFIX_LEN)];
    let parts = [GuestIoVec::from_slice(bytes)];
    f(&Frame { vnet, prefix, parts: &parts, len: bytes.len() as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::frames::{numbered, partial, pattern, tcp as segment_of};
    use floodway_wire::segmentation::Segmenter;

    #[test]
    fn a_gso_packet_takes_what_its_segments_take() {
        for (v6, payload, gso_size) in [
            (false, 60_000, 1448),
            (true, 60_000, 1428),
            (false, 1448, 1448),
            (false, 1449, 1448),
            (false, 0, 48),
        ] {
            let bytes = segment_of(1, 9, v6).build_partial(&pattern(4, payload));
            let mut segmenter = Segmenter::new(&bytes, gso_size).unwrap();
            let (mut buffer, mut sum, mut longest) = (vec![0; 2000], 0, 0);
            while let Some(len) = segmenter.write_next(&mut buffer).unwrap() {
                sum += len as u32;
                longest = longest.max(len as u32);
            }
            with_slice(partial(&bytes, gso_size), &bytes, |frame| {
                assert_eq!(frame.segments() as usize, payload.div_ceil(gso_size.into()).max(1));
                assert_eq!(frame.wire_len(), sum);
                assert_eq!(frame.segment_len(), longest);
            });
            with_slice(VnetHdr::default(), &bytes, |frame| assert_eq!(frame.wire_len(), frame.len));
        }
    }

    #[test]
    fn a_bare_acknowledgement_says_nothing_else() {
        let is_bare = |bytes: &[u8]| {
            let (mut bare, vnet) = (false, VnetHdr::default());
            with_slice(vnet, bytes, |frame| bare = frame.is_pure_ack());
            bare
        };
        for v6 in [false, true] {
            let segment = segment_of(1, 9, v6);
            assert!(is_bare(&segment.build(&[])));
            assert!(!is_bare(&segment.build(&[1])));
            for flag in [tcp::Flags::SYN, tcp::Flags::FIN, tcp::Flags::RST] {
                let mut more = segment.clone();
                more.flags = more.flags.with(flag);
                assert!(!is_bare(&more.build(&[])));
            }
            let whole = segment.build(&[]);
            for end in 0..whole.len() {
                assert!(!is_bare(&whole[..end]), "cut at {end}");
            }
        }
        assert!(!is_bare(&numbered(1, 2, 0, 4)));
    }

    #[test]
    fn no_header_makes_its_length_overflow() {
        for (hdr_len, gso_size) in [(0, 0), (u16::MAX, 0), (u16::MAX, 1), (1, 1)] {
            let vnet = VnetHdr {
                gso_type: floodway_wire::vnet::GSO_TCPV4,
                hdr_len,
                gso_size,
                ..VnetHdr::default()
            };
            for len in [0, 1, MAX_FRAME_LEN, u32::MAX] {
                let frame = Frame { vnet, prefix: &[], parts: &[], len };
                assert!(frame.wire_len() >= len);
            }
        }
    }
}
