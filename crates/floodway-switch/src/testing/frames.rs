//! Frames that tests send, and what a receiver may expect of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use floodway_wire::build::{self, Link, Tcp};
use floodway_wire::checksum::{Verification, verify_transport};
use floodway_wire::vnet::{self, VnetHdr};
use floodway_wire::{MacAddr, Meta, parse};

/// The address of VM `n`.
#[must_use]
pub const fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

/// The IPv4 address of VM `n`.
#[must_use]
pub const fn ipv4(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
}

/// The IPv6 address of VM `n`.
#[must_use]
pub const fn ipv6(n: u8) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n as u16))
}

/// Bytes that tell where they come from: `seed` and the offset.
#[must_use]
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(31) ^ i >> 8 ^ seed.wrapping_mul(0x9e37)) as u8)
        .collect()
}

/// A UDP frame from VM `src` to VM `dst` with a payload that starts with `number`, checksum complete.
#[must_use]
pub fn numbered(src: u8, dst: u8, number: u32, payload_len: usize) -> Vec<u8> {
    let mut payload = pattern(number, payload_len.max(4));
    payload[..4].copy_from_slice(&number.to_be_bytes());
    let from = SocketAddr::new(ipv4(src), 1000 + u16::from(src));
    let to = SocketAddr::new(ipv4(dst), 7);
    build::udp(&Link::new(mac(src), mac(dst)), from, to, &payload)
}

/// A frame behind an 802.1Q tag of VLAN `vid`.
#[must_use]
pub fn tagged(vid: u16, frame: &[u8]) -> Vec<u8> {
    let [high, low] = vid.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

/// The number that [`numbered`] put into a frame.
#[must_use]
pub fn number_of(frame: &[u8]) -> Option<u32> {
    let bytes = frame.get(42..46)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// A TCP segment from VM `src` to VM `dst`, over IPv4 or IPv6.
#[must_use]
pub fn tcp(src: u8, dst: u8, v6: bool) -> Tcp {
    let ip = |n| if v6 { ipv6(n) } else { ipv4(n) };
    let port = |n| SocketAddr::new(ip(n), 5000 + u16::from(n));
    let mut tcp = Tcp::new(Link::new(mac(src), mac(dst)), port(src), port(dst));
    // No-operation twice and timestamps, as on almost every segment.
    tcp.options = vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 5];
    tcp
}

/// The header of a TCP frame with a partial checksum; `gso_size` 0 is an ordinary frame.
///
/// # Panics
/// The frame is not TCP.
#[must_use]
pub fn partial(frame: &[u8], gso_size: u16) -> VnetHdr {
    let meta = parse(frame, frame.len()).expect("a good frame");
    let gso_type = match (gso_size, meta.flow.is_ipv6) {
        (0, _) => vnet::GSO_NONE,
        (_, false) => vnet::GSO_TCPV4,
        (_, true) => vnet::GSO_TCPV6,
    };
    VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        gso_type,
        hdr_len: if gso_size > 0 { meta.payload_offset } else { 0 },
        gso_size,
        csum_start: meta.transport_offset,
        csum_offset: 16,
        num_buffers: 0,
    }
}

/// Parses a frame that must be complete: good headers and good checksums.
///
/// # Panics
/// It is not.
#[must_use]
pub fn verified(frame: &[u8]) -> Meta {
    let meta = parse(frame, frame.len()).expect("a good frame");
    assert_eq!(verify_transport(frame, &meta), Ok(Verification::Good), "transport checksum");
    if let (false, IpAddr::V4(_)) = (meta.flow.is_ipv6, meta.flow.src_ip()) {
        let header = &frame[usize::from(meta.network_offset)..usize::from(meta.transport_offset)];
        assert_eq!(floodway_wire::checksum::checksum(header), 0, "IPv4 header checksum");
    }
    meta
}
