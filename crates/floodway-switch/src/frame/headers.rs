//! Headers of frames that leave: edited, refreshed, or made from nothing.
//!
//! A released range has a partial checksum, which the uplink's device or its software finishes; the
//! payload is not read for it. A segment of our own is short and leaves complete.

use std::net::IpAddr;

use floodway_core::offload::{Edit, Link, SynthesizedSegment, Transmission};
use floodway_core::seq::Seq;
use floodway_wire::checksum::{self, ChecksumState, Sum};
use floodway_wire::tcp::options::{KIND_NOP, KIND_SACK, KIND_TIMESTAMPS, SackBlock, Timestamps};
use floodway_wire::tcp::{self, Flags, HeaderMut};
use floodway_wire::vnet::{self, VnetHdr};
use floodway_wire::{FiveTuple, MacAddr, Meta, Network, ethernet, ipv4, name};

use super::held::Held;
use crate::frame::{self, Frame, PREFIX_LEN};

/// Bytes of the timestamps option with its padding.
const TIMESTAMPS_LEN: usize = 12;
/// Bytes of a SACK option without blocks, with its padding; and of a block.
const SACK_LEN: usize = 4;
const SACK_BLOCK_LEN: usize = 8;
const TTL: u8 = 64;

/// Headers up to the payload.
pub(crate) struct Headers {
    bytes: [u8; PREFIX_LEN],
    len: usize,
}

impl Headers {
    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn copy_of(bytes: &[u8]) -> Self {
        let len = bytes.len().min(PREFIX_LEN);
        let mut headers = Self { bytes: [0; PREFIX_LEN], len };
        headers.bytes[..len].copy_from_slice(&bytes[..len]);
        headers
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Calls `f` with `frame` as `edit` changes it. `meta` was parsed from the frame.
pub(crate) fn with_edit<R>(
    frame: &Frame<'_>,
    meta: &Meta,
    edit: &Edit,
    f: impl FnOnce(&Frame<'_>) -> R,
) -> R {
    let mut headers = Headers::copy_of(frame.prefix);
    let bytes = &mut headers.bytes[..headers.len];
    if let Ok(header) = HeaderMut::of_frame(bytes, meta, state_of(frame)) {
        apply(header, edit);
    }
    let vnet = with_cwr(frame.vnet, edit.flags);
    frame::with_headers(frame, vnet, headers.as_slice(), f)
}

/// As [`with_edit`], with `option` appended to the TCP options. Where it has no room, it is left out.
pub(crate) fn with_option<R>(
    frame: &Frame<'_>,
    meta: &Meta,
    edit: &Edit,
    option: &[u8; name::OPTION_LEN],
    f: impl FnOnce(&Frame<'_>) -> R,
) -> R {
    with_edit(frame, meta, edit, |frame| {
        let mut headers = Headers::copy_of(frame.prefix);
        let appended = name::append_option(&mut headers.bytes, meta, state_of(frame), option);
        let Some(len) = appended else { return f(frame) };
        headers.len = len;
        frame::with_longer_headers(frame, meta.payload_offset.into(), headers.as_slice(), f)
    })
}

/// What is known of the checksum of a frame whose headers are edited.
fn state_of(frame: &Frame<'_>) -> ChecksumState {
    if frame.vnet.needs_csum() { ChecksumState::Partial } else { ChecksumState::Unverified }
}

fn apply(mut header: HeaderMut<'_>, edit: &Edit) {
    if let Some(Seq(seq)) = edit.seq {
        header.set_sequence(seq);
    }
    if let Some(Seq(ack)) = edit.ack {
        header.set_acknowledgment(ack);
    }
    if let Some(window) = edit.window {
        header.set_window(window);
    }
    if let Some(flags) = edit.flags {
        header.set_flags(flags);
    }
    // Frames with malformed options never come here.
    if let Some(timestamps) = edit.timestamps {
        let _ = header.set_timestamps(timestamps);
    }
    if edit.strip_sack {
        let _ = header.strip_sack_blocks();
    }
}

/// A GSO packet says in its virtio-net header, too, whether it carries CWR.
fn with_cwr(vnet: VnetHdr, flags: Option<Flags>) -> VnetHdr {
    match flags {
        Some(flags) if vnet.is_gso() => {
            VnetHdr { gso_type: gso_type(vnet.gso_kind(), flags), ..vnet }
        }
        _ => vnet,
    }
}

fn gso_type(kind: u8, flags: Flags) -> u8 {
    kind | if flags.contains(Flags::CWR) { vnet::GSO_ECN } else { 0 }
}

/// The headers of a released range of `held` with `len` bytes of payload, and its offload state.
pub(crate) fn released(
    held: &Held,
    release: &Transmission,
    len: u32,
    id: u16,
) -> (Headers, VnetHdr) {
    let meta = held.meta();
    let mut headers = Headers::copy_of(held.headers());
    let transport_len = u32::from(meta.payload_offset - meta.transport_offset) + len;
    let (front, tcp) =
        headers.bytes[..headers.len].split_at_mut(usize::from(meta.transport_offset));
    let ip = &mut front[usize::from(meta.network_offset)..];
    refresh_ip(ip, meta.network, transport_len as u16, id, release.ecn.0);
    refresh_tcp(tcp, meta, release);
    let sum = pseudo_header(&meta.flow, transport_len).fold();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    (headers, released_vnet(meta, release, len))
}

fn released_vnet(meta: &Meta, release: &Transmission, len: u32) -> VnetHdr {
    let csum = VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        csum_start: meta.transport_offset,
        csum_offset: checksum::TCP_OFFSET,
        ..VnetHdr::default()
    };
    if release.mss == 0 || len <= u32::from(release.mss) {
        return csum;
    }
    let kind = if meta.network == Network::Ipv4 { vnet::GSO_TCPV4 } else { vnet::GSO_TCPV6 };
    VnetHdr {
        gso_type: gso_type(kind, release.flags),
        gso_size: release.mss,
        hdr_len: meta.payload_offset,
        ..csum
    }
}

/// Sets length, identification and ECN bits of an IP header without options.
fn refresh_ip(ip: &mut [u8], network: Network, transport_len: u16, id: u16, ecn: u8) {
    if network == Network::Ipv4 {
        let total_len = ipv4::MIN_HEADER_LEN as u16 + transport_len;
        ip[1] = ip[1] & !3 | ecn & 3;
        ip[2..4].copy_from_slice(&total_len.to_be_bytes());
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let checksum = checksum::checksum(ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        ip[1] = ip[1] & !0x30 | (ecn & 3) << 4;
        ip[4..6].copy_from_slice(&transport_len.to_be_bytes());
    }
}

fn refresh_tcp(tcp: &mut [u8], meta: &Meta, release: &Transmission) {
    let sent_ack = meta.tcp().map_or(0, |fields| fields.acknowledgment);
    let urgent = urgent_pointer(tcp, release);
    if tcp.len() >= tcp::MIN_HEADER_LEN {
        tcp[18..20].copy_from_slice(&urgent.unwrap_or(0).to_be_bytes());
    }
    let Ok(mut header) = HeaderMut::parse(tcp, ChecksumState::Partial) else { return };
    header.set_sequence(release.seq.0);
    header.set_acknowledgment(release.ack.0);
    header.set_window(release.window);
    header.set_flags(match urgent {
        Some(_) => release.flags,
        None => release.flags.without(Flags::URG),
    });
    if let Some(timestamps) = release.timestamps {
        let _ = header.set_timestamps(timestamps);
    }
    if release.ack.0 != sent_ack {
        // Blocks that a newer acknowledgement number has passed would be read as duplicates (RFC 2883).
        let _ = header.strip_sack_blocks();
    }
}

/// The urgent pointer of a range, counted from its start; `None` for one behind the urgent data. `tcp` is the
/// header of the frame from which the range is.
fn urgent_pointer(tcp: &[u8], release: &Transmission) -> Option<u16> {
    if !release.flags.contains(Flags::URG) {
        return None;
    }
    let pointer = tcp::Header::parse(tcp).ok()?.urgent_pointer();
    let offset = u16::try_from(release.offset).ok()?;
    pointer.checked_sub(offset).filter(|&left| left > 0)
}

fn pseudo_header(flow: &FiveTuple, transport_len: u32) -> Sum {
    if flow.is_ipv6 {
        checksum::pseudo_header_v6(&flow.src, &flow.dst, tcp::PROTOCOL, transport_len)
    } else {
        checksum::pseudo_header_v4(flow.src_v4(), flow.dst_v4(), tcp::PROTOCOL, transport_len)
    }
}

/// A whole frame without payload, from `src` to `dst`, checksums complete.
pub(crate) fn synthesized(
    header: &SynthesizedSegment,
    src: MacAddr,
    dst: MacAddr,
    id: u16,
) -> Headers {
    let mut frame = Headers { bytes: [0; PREFIX_LEN], len: 0 };
    push_link(&mut frame, &header.link, src, dst, header.flow.is_ipv6);
    let tcp_len = tcp::MIN_HEADER_LEN
        + header.timestamps.map_or(0, |_| TIMESTAMPS_LEN)
        + sack_len(header.sack.as_slice());
    push_ip(&mut frame, &header.flow, tcp_len as u16, id);
    let start = frame.len;
    push_tcp(&mut frame, header, tcp_len);
    let segment = &mut frame.bytes[start..frame.len];
    let checksum = pseudo_header(&header.flow, tcp_len as u32).plus(Sum::of(segment)).checksum();
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    frame
}

fn push_link(frame: &mut Headers, link: &Link, src: MacAddr, dst: MacAddr, is_ipv6: bool) {
    frame.push(&dst.0);
    frame.push(&src.0);
    if let Some(tci) = link.vlan {
        frame.push(&ethernet::TYPE_VLAN.to_be_bytes());
        frame.push(&tci.to_be_bytes());
    }
    let ethertype = if is_ipv6 { ethernet::TYPE_IPV6 } else { ethernet::TYPE_IPV4 };
    frame.push(&ethertype.to_be_bytes());
}

fn push_ip(frame: &mut Headers, flow: &FiveTuple, transport_len: u16, id: u16) {
    let start = frame.len;
    match (flow.src_ip(), flow.dst_ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.push(&[0x45, 0, 0, 0, 0, 0]);
            frame.push(&ipv4::FLAG_DF.to_be_bytes());
            frame.push(&[TTL, tcp::PROTOCOL, 0, 0]);
            frame.push(&src.octets());
            frame.push(&dst.octets());
            refresh_ip(&mut frame.bytes[start..frame.len], Network::Ipv4, transport_len, id, 0);
        }
        _ => {
            frame.push(&[0x60, 0, 0, 0, 0, 0, tcp::PROTOCOL, TTL]);
            frame.push(&flow.src.octets());
            frame.push(&flow.dst.octets());
            refresh_ip(&mut frame.bytes[start..frame.len], Network::Ipv6, transport_len, id, 0);
        }
    }
}

fn push_tcp(frame: &mut Headers, header: &SynthesizedSegment, tcp_len: usize) {
    frame.push(&header.flow.src_port.to_be_bytes());
    frame.push(&header.flow.dst_port.to_be_bytes());
    frame.push(&header.seq.0.to_be_bytes());
    frame.push(&header.ack.0.to_be_bytes());
    frame.push(&[(tcp_len as u8 / 4) << 4, header.flags.0]);
    frame.push(&header.window.to_be_bytes());
    frame.push(&[0; 4]);
    if let Some(Timestamps { value, echo }) = header.timestamps {
        frame.push(&[KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10]);
        frame.push(&value.to_be_bytes());
        frame.push(&echo.to_be_bytes());
    }
    let blocks = header.sack.as_slice();
    if !blocks.is_empty() {
        // The padding comes first, and counts for itself.
        frame.push(&[KIND_NOP, KIND_NOP, KIND_SACK, sack_len(blocks) as u8 - 2]);
    }
    for SackBlock { left, right } in blocks {
        frame.push(&left.to_be_bytes());
        frame.push(&right.to_be_bytes());
    }
}

/// Bytes that a SACK option with these blocks takes.
const fn sack_len(blocks: &[SackBlock]) -> usize {
    if blocks.is_empty() { 0 } else { SACK_LEN + SACK_BLOCK_LEN * blocks.len() }
}
