//! From bytes to metadata: every kind of frame, cut anywhere, and any bytes at all.

use crate::support::{payload, tcp};
use floodway_wire::build::{self, Ip, Link};
use floodway_wire::{
    Error, FiveTuple, Layer, MacAddr, Network, Transport, announced_mac, arp, ethernet, icmp, ipv4,
    ipv6, parse,
};
use proptest::collection::vec;
use proptest::prelude::*;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn link() -> Link {
    Link::new(A, MacAddr::BROADCAST)
}

proptest! {
    #[test]
    fn tcp_fields_come_out_as_they_went_in(tcp in tcp(), len in 0usize..300, padding in 0usize..50) {
        let mut frame = tcp.build(&payload(len));
        let end = frame.len();
        frame.resize(end + padding, 0);
        let meta = parse(&frame, frame.len()).unwrap();
        let fields = meta.tcp().unwrap();
        prop_assert_eq!((meta.flow.src_port, meta.flow.dst_port), (tcp.src_port, 80));
        prop_assert_eq!((meta.flow.src_ip(), meta.flow.dst_ip()), (tcp.ip.src, tcp.ip.dst));
        prop_assert_eq!((fields.sequence, fields.acknowledgment), (tcp.sequence, tcp.acknowledgment));
        prop_assert_eq!((fields.window, fields.flags), (tcp.window, tcp.flags));
        prop_assert_eq!(meta.traffic_class, tcp.ip.traffic_class);
        prop_assert_eq!(meta.vlan.as_slice().len(), tcp.link.vlan.len());
        prop_assert_eq!(usize::from(meta.payload_offset), end - len);
        prop_assert_eq!((meta.payload_len as usize, meta.packet_end as usize), (len, end));
    }

    #[test]
    fn a_short_prefix_is_told_from_a_short_frame(tcp in tcp(), cut in any::<prop::sample::Index>()) {
        let frame = tcp.build(&payload(40));
        let whole = parse(&frame, frame.len()).unwrap();
        let cut = cut.index(frame.len());
        let by_prefix = parse(&frame[..cut], frame.len());
        if cut >= usize::from(whole.payload_offset) {
            prop_assert_eq!(by_prefix, Ok(whole));
        } else {
            prop_assert!(matches!(by_prefix, Err(Error::PrefixTooShort(_))));
        }
        let by_frame = parse(&frame[..cut], cut);
        let is_final = matches!(by_frame, Err(Error::Truncated(_) | Error::BadField { .. }));
        prop_assert!(is_final, "{:?}", by_frame);
    }

    #[test]
    fn any_bytes_give_a_consistent_answer(
        mut bytes in vec(any::<u8>(), 0..200),
        ethertype in prop::sample::select(vec![0x0800u16, 0x86dd, 0x8100, 0x0806]),
        first in prop::sample::select(vec![0x45u8, 0x46, 0x60]),
        beyond in 0usize..2000,
    ) {
        if bytes.len() > 15 {
            bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
            bytes[14] = first;
        }
        let frame_len = bytes.len() + beyond;
        if let Ok(meta) = parse(&bytes, frame_len) {
            prop_assert!(meta.network_offset <= meta.transport_offset);
            prop_assert!(meta.transport_offset <= meta.payload_offset);
            prop_assert!(u32::from(meta.payload_offset) + meta.payload_len <= meta.packet_end);
            prop_assert!(meta.packet_end as usize <= frame_len);
            let _ = announced_mac(&bytes, &meta);
        }
    }
}

#[test]
fn lengths_that_contradict_each_other() {
    let socket = |text: &str| text.parse().unwrap();
    let tcp = build::Tcp::new(link(), socket("10.0.0.1:1"), socket("10.0.0.2:2"));
    let good = tcp.build(b"data");
    let bad = |changes: &[(usize, u8)]| {
        let mut frame = good.clone();
        changes.iter().for_each(|&(at, value)| frame[at] = value);
        parse(&frame, frame.len()).unwrap_err()
    };
    let field = |layer, field, value| Error::BadField { layer, field, value };
    assert_eq!(bad(&[(17, 45)]), field(Layer::Ipv4, "total length", 45));
    assert_eq!(bad(&[(17, 19)]), field(Layer::Ipv4, "total length", 19));
    assert_eq!(bad(&[(17, 39)]), field(Layer::Ipv4, "payload", 19));
    assert_eq!(bad(&[(46, 0x70)]), Error::Truncated(Layer::TcpOptions));
    assert_eq!(bad(&[(17, 40), (46, 0x60)]), field(Layer::Tcp, "data offset", 6));
}

#[test]
fn fragments_have_no_transport() {
    let mut ip = Ip::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    for fragmentation in [ipv4::FLAG_MF, 5, ipv4::FLAG_MF | 5] {
        ip.fragmentation = fragmentation;
        let frame = ip.frame(&link(), 6, &payload(30));
        let meta = parse(&frame, frame.len()).unwrap();
        assert!(meta.is_fragment);
        assert_eq!(meta.transport, Transport::Other);
        assert_eq!((meta.flow.src_port, meta.payload_len), (0, 30));
    }
    let mut ip = Ip::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    ip.first_extension = Some(ipv6::NEXT_FRAGMENT);
    ip.options = vec![17, 0, 0, 1, 0, 0, 0, 9];
    let frame = ip.frame(&link(), 17, &payload(16));
    let meta = parse(&frame, frame.len()).unwrap();
    assert!(meta.is_fragment);
    assert_eq!((meta.flow.protocol, meta.payload_len), (17, 16));
    assert_eq!(meta.flow.src_port, 0);
}

#[test]
fn other_protocols() {
    let ip = Ip::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    let frame = ip.frame(&link(), 1, &[8, 0, 0, 0, 0, 1, 0, 1, 42]);
    let meta = parse(&frame, frame.len()).unwrap();
    assert_eq!(meta.transport, Transport::Icmp { kind: 8, code: 0 });
    assert_eq!((meta.transport_len(), meta.payload_len), (9, 1));
    let frame = ip.frame(&link(), 89, &[]);
    let meta = parse(&frame, frame.len()).unwrap();
    assert_eq!((meta.transport, meta.ip_len()), (Transport::Other, 20));

    let frame = link().frame(0x88cc, &[1, 2, 3]);
    let meta = parse(&frame, frame.len()).unwrap();
    assert_eq!((meta.network, meta.payload_len), (Network::Other, 3));
    assert_eq!((meta.flow, meta.ip_len()), (FiveTuple::NONE, 0));
}

#[test]
fn moves_are_announced() {
    let ip = [10, 0, 0, 1].into();
    let mut packet = arp::Packet {
        operation: arp::REQUEST,
        sender_mac: A,
        sender_ip: ip,
        target_mac: MacAddr::default(),
        target_ip: ip,
    };
    let announced = |frame: &[u8]| announced_mac(frame, &parse(frame, frame.len()).unwrap());
    assert_eq!(announced(&link().arp(&packet)), Some(A));
    let tagged = link().tagged(ethernet::TYPE_VLAN, 5);
    assert_eq!(announced(&tagged.arp(&packet)), Some(A));
    packet.target_ip = [10, 0, 0, 2].into();
    assert_eq!(announced(&link().arp(&packet)), None);
    packet.operation = arp::RARP_REQUEST;
    packet.target_mac = A;
    assert_eq!(announced(&link().arp(&packet)), Some(A));

    let ip = Ip::new("fe80::1".parse().unwrap(), "ff02::1".parse().unwrap());
    let mut message = vec![icmp::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let frame = |message: &[u8]| ip.frame(&link(), icmp::PROTOCOL_V6, message);
    assert_eq!(announced(&frame(&message)), Some(A), "falls back to the source");
    message.extend([2, 1, 2, 0, 0, 0, 0, 7]);
    let other = MacAddr([2, 0, 0, 0, 0, 7]);
    assert_eq!(announced(&frame(&message)), Some(other));
    message[4] = 0x60;
    assert_eq!(announced(&frame(&message)), None, "an answer is no announcement");
}
