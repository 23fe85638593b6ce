//! Words of routers that a segment of a guest was too large: ICMP "fragmentation needed" (RFC 792, 1191) and
//! "packet too big" (RFC 4443).
//!
//! The message quotes the headers of what was dropped, and at least 8 bytes behind them: ports and sequence
//! number. Whether that is to be believed, the engine decides; the frame goes on to the guest, whose own route
//! gets smaller with it.

use floodway_core::seq::Seq;
use floodway_wire::{FiveTuple, Meta, Transport, icmp, ipv4, ipv6, parse, tcp};

use crate::frame::Frame;
use crate::frame::describe::is_intact;

/// "Destination unreachable", "fragmentation needed and DF set".
const FRAGMENTATION_NEEDED: (u8, u8) = (3, 4);
/// "Packet too big".
const PACKET_TOO_BIG: (u8, u8) = (2, 0);
/// MTUs that are in use: what a router that names none (before RFC 1191) may have meant.
const PLATEAUS: [u16; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508];

/// A segment was too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooBig {
    /// The 5-tuple of the segment, in its sender's direction.
    pub(super) flow: FiveTuple,
    /// Its first sequence number.
    pub(super) seq: Seq,
    /// The largest packet that passes, in bytes.
    pub(super) mtu: u32,
}

impl TooBig {
    /// What `frame`, whose bytes are `bytes`, says, if that is it.
    pub(super) fn of(frame: &Frame<'_>, bytes: &[u8]) -> Option<Self> {
        let meta = parse(frame.prefix, frame.len as usize).ok()?;
        let v6 = match meta.transport {
            Transport::Icmp { kind, code } if (kind, code) == FRAGMENTATION_NEEDED => false,
            Transport::Icmpv6 { kind, code } if (kind, code) == PACKET_TOO_BIG => true,
            _ => return None,
        };
        if !is_intact(bytes, &meta) {
            return None;
        }
        let message = message(bytes, &meta)?;
        let quoted = message.get(icmp::HEADER_LEN..)?;
        let (flow, transport, len) = if v6 { quoted_v6(quoted)? } else { quoted_v4(quoted)? };
        // The packet was sent by the one who is told of it.
        if flow.src_ip() != meta.flow.dst_ip() {
            return None;
        }
        let &[a, b, c, d, e, f, g, h] = transport.first_chunk()?;
        let flow = flow.with_ports(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        // The router answers in the VLAN in which it was asked.
        let flow = flow.in_vlan(meta.flow.vlan);
        let &[_, _, _, _, i, j, k, l] = message.first_chunk()?;
        let mtu = if v6 {
            u32::from_be_bytes([i, j, k, l])
        } else {
            u32::from(named_mtu(u16::from_be_bytes([k, l]), len))
        };
        Some(Self { flow, seq: Seq(u32::from_be_bytes([e, f, g, h])), mtu })
    }
}

fn message<'a>(bytes: &'a [u8], meta: &Meta) -> Option<&'a [u8]> {
    bytes.get(usize::from(meta.transport_offset)..meta.packet_end as usize)
}

/// The MTU of a message about a packet of `len` bytes: as it is named, or the next that is in use.
fn named_mtu(named: u16, len: u16) -> u16 {
    if named > 0 {
        return named;
    }
    PLATEAUS.into_iter().find(|&plateau| plateau < len).unwrap_or(0)
}

/// Addresses, what follows the header, and length of a quoted packet with a TCP header.
fn quoted_v4(quoted: &[u8]) -> Option<(FiveTuple, &[u8], u16)> {
    let header = ipv4::Header::parse(quoted).ok()?;
    let first = header.fragmentation() & ipv4::OFFSET_MASK == 0;
    let flow = FiveTuple::v4(header.src(), header.dst(), header.protocol());
    let rest = quoted.get(usize::from(header.header_len())..)?;
    (first && header.protocol() == tcp::PROTOCOL).then_some((flow, rest, header.total_len()))
}

fn quoted_v6(quoted: &[u8]) -> Option<(FiveTuple, &[u8], u16)> {
    let header = ipv6::Header::parse(quoted).ok()?;
    let flow = FiveTuple::v6(header.src(), header.dst(), header.next_header());
    let rest = quoted.get(ipv6::HEADER_LEN..)?;
    (header.next_header() == tcp::PROTOCOL).then_some((flow, rest, header.payload_len()))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use floodway_wire::build::{Ip, Link};
    use floodway_wire::checksum::Sum;
    use floodway_wire::ethernet;
    use floodway_wire::vnet::VnetHdr;

    use super::*;
    use crate::frame;
    use crate::testing::frames::{mac, tcp};

    /// What a router answers to `dropped`, a frame of a guest; `mtu` as the message has it.
    fn answer(dropped: &[u8], mtu: u32) -> Vec<u8> {
        let meta = parse(dropped, dropped.len()).unwrap();
        let (v6, guest) = (meta.flow.is_ipv6, meta.flow.src_ip());
        let router: IpAddr =
            if v6 { "2001:db8::99".parse().unwrap() } else { "192.0.2.99".parse().unwrap() };
        let (kind, code) = if v6 { PACKET_TOO_BIG } else { FRAGMENTATION_NEEDED };
        let mut message = vec![kind, code, 0, 0];
        message.extend(mtu.to_be_bytes());
        let quoted = &dropped[ethernet::HEADER_LEN..];
        message.extend(&quoted[..usize::from(meta.transport_offset) - ethernet::HEADER_LEN + 8]);
        let ip = Ip::new(router, guest);
        let protocol = if v6 { icmp::PROTOCOL_V6 } else { icmp::PROTOCOL_V4 };
        let pseudo = if v6 { ip.pseudo_header(protocol, message.len()) } else { Sum::ZERO };
        let checksum = pseudo.plus(Sum::of(&message)).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        ip.frame(&Link::new(mac(9), mac(1)), protocol, &message)
    }

    fn of(bytes: &[u8]) -> Option<TooBig> {
        frame::with_slice(VnetHdr::default(), bytes, |frame| TooBig::of(frame, bytes))
    }

    #[test]
    fn messages_name_flow_sequence_number_and_mtu() {
        for v6 in [false, true] {
            let mut segment = tcp(1, 2, v6);
            segment.sequence = 0x0102_0304;
            let dropped = segment.build(&[0; 1400]);
            let flow = parse(&dropped, dropped.len()).unwrap().flow;
            let expected = TooBig { flow, seq: Seq(0x0102_0304), mtu: 1300 };
            assert_eq!(of(&answer(&dropped, 1300)), Some(expected));
        }
    }

    #[test]
    fn routers_that_name_no_mtu() {
        let dropped = tcp(1, 2, false).build(&[0; 1400]);
        assert_eq!(of(&answer(&dropped, 0)).map(|word| word.mtu), Some(1006));
        assert_eq!(named_mtu(0, 100), 0);
    }

    #[test]
    fn other_words_are_not_taken_for_it() {
        let dropped = tcp(1, 2, false).build(&[0; 1400]);
        let good = answer(&dropped, 1300);
        assert!(of(&good).is_some());
        for at in ethernet::HEADER_LEN + 20..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(of(&bad), None, "the checksum is wrong");
        }
        for len in 0..good.len() {
            assert_eq!(of(&good[..len]), None, "cut at {len}");
        }
        assert_eq!(of(&dropped), None);
        // A packet of somebody else.
        let other = tcp(1, 2, false).build(&[0; 10]);
        let mut quoted = other;
        quoted[ethernet::HEADER_LEN + 15] ^= 1;
        let mut forged = answer(&dropped, 1300);
        let at = ethernet::HEADER_LEN + 20 + icmp::HEADER_LEN;
        forged[at..at + 20].copy_from_slice(&quoted[ethernet::HEADER_LEN..][..20]);
        assert_eq!(of(&forged), None);
    }
}
