//! Strategies for frames, and a reference checksum that is too simple to be wrong.
#![allow(dead_code, reason = "each test crate uses its own part")]

use floodway_wire::build::{Link, Tcp};
use floodway_wire::tcp::Flags;
use floodway_wire::{MacAddr, ethernet, ipv6};
use proptest::prelude::*;

/// RFC 1071, word by word.
pub fn reference_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A link between two stations with up to two tags.
pub fn link() -> impl Strategy<Value = Link> {
    (0usize..=2, any::<u16>()).prop_map(|(tags, tci)| {
        let link = Link::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let types = [ethernet::TYPE_QINQ, ethernet::TYPE_VLAN];
        let inner = types.into_iter().skip(2 - tags);
        inner.fold(link, |link, tag_type| link.tagged(tag_type, tci))
    })
}

/// TCP options as established connections have them.
pub fn options() -> impl Strategy<Value = Vec<u8>> {
    let timestamps = any::<[u8; 8]>().prop_map(|clocks| [&[1, 1, 8, 10], &clocks[..]].concat());
    let sack = any::<[u8; 8]>().prop_map(|block| [&[1, 1, 5, 10], &block[..]].concat());
    prop_oneof![
        Just(vec![]),
        timestamps.clone(),
        (timestamps, sack).prop_map(|(a, b)| [a, b].concat()),
    ]
}

/// An IPv4 or IPv6 data segment with ACK and perhaps PSH, FIN, ECE and CWR. IPv6 may have
/// destination options.
pub fn tcp() -> impl Strategy<Value = Tcp> {
    let flags = any::<u8>().prop_map(|bits| {
        let may = Flags::PSH.with(Flags::FIN).with(Flags::ECE).with(Flags::CWR);
        Flags(bits & may.0).with(Flags::ACK)
    });
    (
        (link(), options(), flags, any::<bool>(), any::<bool>()),
        (any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>()),
        (any::<u8>(), 1u8.., any::<u16>(), any::<u16>()),
    )
        .prop_map(|(shape, numbers, ip)| {
            let (link, options, flags, is_ipv6, extended) = shape;
            let (src, dst) = if is_ipv6 {
                ("[fd00::1]:1024", "[fd00::2]:80")
            } else {
                ("10.0.0.1:1024", "10.0.0.2:80")
            };
            let mut tcp = Tcp::new(link, src.parse().unwrap(), dst.parse().unwrap());
            (tcp.sequence, tcp.acknowledgment, tcp.window, _) = numbers;
            (tcp.flags, tcp.options) = (flags, options);
            (tcp.ip.traffic_class, tcp.ip.ttl, tcp.ip.identification, _) = ip;
            tcp.src_port = numbers.3;
            if is_ipv6 && extended {
                tcp.ip.first_extension = Some(ipv6::NEXT_DESTINATION);
                tcp.ip.options = vec![6, 0, 1, 4, 0, 0, 0, 0];
            }
            tcp
        })
}

/// `len` bytes that differ from place to place.
pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}
