//! What is left undone on the way, and who may be left with it.

use floodway_switch::testing::frames::{numbered, partial, pattern, tcp, verified};
use floodway_switch::testing::{GuestConfig, TxShape, wait_until};
use floodway_switch::vhost::features as f;
use floodway_wire::vnet::{self, VnetHdr};

use crate::net::{Net, Vm};

fn without(features: u64) -> GuestConfig {
    GuestConfig { features: f::offered(1) & !features, ..GuestConfig::default() }
}

const RX_OFFLOADS: u64 = f::GUEST_CSUM | f::GUEST_TSO4 | f::GUEST_TSO6 | f::GUEST_ECN;
const RX_TSO: u64 = f::GUEST_TSO4 | f::GUEST_TSO6 | f::GUEST_ECN;

/// Two VMs: an ordinary sender and a receiver.
fn pair(receiver: GuestConfig) -> (Net, Vm, Vm) {
    let net = Net::of(2);
    let [a, b] = [(1, GuestConfig::default()), (2, receiver)].map(|(n, c)| net.boot(n, c));
    (net, a, b)
}

#[test]
fn gso_packets_between_guests_stay_whole_in_every_shape() {
    let shapes = [
        TxShape::Single,
        TxShape::HeaderApart,
        TxShape::Pieces(1),
        TxShape::Pieces(17),
        TxShape::Indirect(1),
        TxShape::Indirect(63),
    ];
    for tx_shape in shapes {
        let net = Net::of(2);
        let mut a = net.boot(1, GuestConfig { tx_shape, ..GuestConfig::default() });
        let mut b = net.boot(2, GuestConfig::default());
        for (i, v6) in [false, true].into_iter().enumerate() {
            for len in [1449, 20_000, 65_000] {
                let frame = tcp(1, 2, v6).build_partial(&pattern(len as u32, len));
                let sent = partial(&frame, 1448);
                a.send_with(&sent, &frame);
                let (got, bytes) = b.recv();
                assert!(bytes == frame, "{tx_shape:?} v6={v6} {len}");
                let buffers = (12 + frame.len()).div_ceil(1536) as u16;
                assert_eq!(got, VnetHdr { num_buffers: buffers, ..sent });
            }
            wait_until("counters", || net.port(2).rx().gso_packets == 3 * (i as u64 + 1));
        }
        assert_eq!(net.port(2).rx().packets, 6, "one frame each");
    }
}

#[test]
fn a_receiver_without_checksum_offload_gets_finished_checksums() {
    let (_net, mut a, mut b) = pair(without(RX_OFFLOADS));
    for v6 in [false, true] {
        for len in [0, 1, 2, 99, 1400] {
            let tcp = tcp(1, 2, v6);
            let payload = pattern(7, len);
            let frame = tcp.build_partial(&payload);
            a.send_with(&partial(&frame, 0), &frame);
            b.expect(&tcp.build(&payload));
        }
    }
}

#[test]
fn a_receiver_without_tso_gets_good_segments() {
    for missing in [RX_TSO, RX_OFFLOADS] {
        let (_net, mut a, mut b) = pair(without(missing));
        for v6 in [false, true] {
            let payload = pattern(1, 30_011);
            let frame = tcp(1, 2, v6).build_partial(&payload);
            a.send_with(&partial(&frame, 1400), &frame);
            let mut got: Vec<u8> = Vec::new();
            while got.len() < payload.len() {
                let (vnet, segment) = b.recv();
                assert!(!vnet.is_gso() && !vnet.needs_csum());
                let meta = verified(&segment);
                assert_eq!(meta.tcp().unwrap().sequence as usize, got.len());
                assert!(meta.payload_len <= 1400);
                got.extend(&segment[usize::from(meta.payload_offset)..]);
            }
            assert!(got == payload);
        }
    }
}

#[test]
fn only_the_negotiated_ip_version_stays_whole() {
    let (_net, mut a, mut b) = pair(without(f::GUEST_TSO6));
    let v4 = tcp(1, 2, false).build_partial(&pattern(4, 5000));
    let v6 = tcp(1, 2, true).build_partial(&pattern(6, 5000));
    a.send_with(&partial(&v6, 1000), &v6);
    for _ in 0..5 {
        assert_eq!(verified(&b.recv().1).payload_len, 1000);
    }
    a.send_with(&partial(&v4, 1000), &v4);
    assert!(b.recv().1 == v4);
}

/// Whatever a guest negotiates, what comes to it fits that, and says the same.
#[test]
fn no_combination_of_features_lets_an_offload_through() {
    let choices = [f::GUEST_CSUM, f::GUEST_TSO4, f::GUEST_TSO6, f::GUEST_ECN];
    for mask in 0..16u32 {
        let missing = choices.iter().enumerate().filter(|(i, _)| mask >> i & 1 != 0);
        let missing = missing.fold(0, |sum, (_, bit)| sum | bit);
        let (_net, mut a, mut b) = pair(without(missing));
        let has = b.guest.config.features;
        let payload = pattern(mask, 4000);
        for (v6, gso_size, ecn) in [
            (false, 0, 0),
            (true, 0, 0),
            (false, 1000, 0),
            (true, 1000, 0),
            (false, 1000, vnet::GSO_ECN),
            (true, 1000, vnet::GSO_ECN),
        ] {
            let payload = &payload[..if gso_size == 0 { 1000 } else { 4000 }];
            let frame = tcp(1, 2, v6).build_partial(payload);
            let mut hdr = partial(&frame, gso_size);
            hdr.gso_type |= ecn;
            a.send_with(&hdr, &frame);
            let mut got = 0;
            while got < payload.len() {
                let (vnet, frame) = b.recv();
                assert!(!vnet.needs_csum() || has & f::GUEST_CSUM != 0);
                match vnet.gso_kind() {
                    vnet::GSO_TCPV4 => assert!(has & f::GUEST_TSO4 != 0),
                    vnet::GSO_TCPV6 => assert!(has & f::GUEST_TSO6 != 0),
                    kind => assert_eq!(kind, vnet::GSO_NONE),
                }
                assert!(vnet.gso_type & vnet::GSO_ECN == 0 || has & f::GUEST_ECN != 0);
                let meta = if vnet.needs_csum() {
                    floodway_wire::parse(&frame, frame.len()).unwrap()
                } else {
                    verified(&frame)
                };
                let bytes = &frame[usize::from(meta.payload_offset)..];
                assert!(bytes == &payload[got..got + bytes.len()]);
                got += bytes.len();
            }
        }
    }
}

#[test]
fn receivers_without_mergeable_buffers() {
    let large = GuestConfig { rx_buffer: 65_562, ring_size: 32, ..without(f::MRG_RXBUF) };
    let (_net, mut a, mut b) = pair(large);
    let frame = tcp(1, 2, false).build_partial(&pattern(3, 60_000));
    a.send_with(&partial(&frame, 1448), &frame);
    assert!(b.recv().1 == frame);

    let (net, mut a, mut b) = pair(without(f::MRG_RXBUF));
    a.send_with(&partial(&frame, 1448), &frame);
    let small = numbered(1, 2, 1, 1400);
    a.send(&small);
    // The one that cannot fit does not hold up those that can.
    b.expect(&small);
    wait_until("counters", || net.rx_drops(2, "no_large_buffer") == 1);
}

#[test]
fn legacy_guests_have_a_shorter_header() {
    let legacy = f::VERSION_1 | f::MRG_RXBUF;
    for tx_shape in [TxShape::HeaderApart, TxShape::Single] {
        let net = Net::of(2);
        let config = GuestConfig { tx_shape, ..without(legacy) };
        let [mut a, mut b] = [1, 2].map(|n| net.boot(n, config.clone()));
        assert_eq!(a.guest.hdr_len(), 10);
        let frame = numbered(1, 2, 0, 1200);
        a.send(&frame);
        b.expect(&frame);
        // Of ten bytes the last two say where the checksum is.
        let frame = tcp(1, 2, false).build_partial(&pattern(0, 1000));
        let claim = partial(&frame, 0);
        a.send_with(&claim, &frame);
        let (vnet, got) = b.recv();
        assert_eq!((vnet.csum_start, vnet.csum_offset), (claim.csum_start, claim.csum_offset));
        assert!(vnet.needs_csum() && got == frame, "{tx_shape:?}: {vnet:?}");
    }
}

#[test]
fn headers_that_lie_are_dropped() {
    let (net, mut a, mut b) = pair(GuestConfig::default());
    let tcp_frame = tcp(1, 2, false).build_partial(&pattern(0, 4000));
    let good = partial(&tcp_frame, 1448);
    let udp = numbered(1, 2, 0, 1000);
    let lies: Vec<(&str, VnetHdr, &[u8])> = vec![
        ("gso without checksum", VnetHdr { flags: 0, ..good }, &tcp_frame),
        ("gso of size zero", VnetHdr { gso_size: 0, ..good }, &tcp_frame),
        ("the other IP version", VnetHdr { gso_type: vnet::GSO_TCPV6, ..good }, &tcp_frame),
        ("UDP fragmentation", VnetHdr { gso_type: vnet::GSO_UDP, ..good }, &tcp_frame),
        ("UDP segmentation", VnetHdr { gso_type: vnet::GSO_UDP_L4, ..good }, &tcp_frame),
        ("unknown gso type", VnetHdr { gso_type: 77, ..good }, &tcp_frame),
        ("TCP gso of UDP", good, &udp),
        ("checksum starts elsewhere", VnetHdr { csum_start: 35, ..good }, &tcp_frame),
        ("checksum is elsewhere", VnetHdr { csum_offset: 6, ..good }, &tcp_frame),
        (
            "checksum past the frame",
            VnetHdr { csum_start: 4065, ..partial(&tcp_frame, 0) },
            &tcp_frame,
        ),
        ("checksum far past", VnetHdr { csum_offset: 65535, ..partial(&tcp_frame, 0) }, &tcp_frame),
        (
            "checksum in the addresses",
            VnetHdr { csum_start: 0, ..partial(&tcp_frame, 0) },
            &tcp_frame,
        ),
    ];
    for (i, (what, hdr, frame)) in lies.iter().enumerate() {
        a.send_with(hdr, frame);
        let fence = numbered(1, 2, i as u32, 64);
        a.send(&fence);
        let (_, got) = b.recv();
        assert!(got == fence, "{what} came through");
        wait_until(what, || net.tx_drops(1, "bad_offload") == i as u64 + 1);
    }
}

#[test]
fn offloads_that_the_sender_did_not_negotiate_are_refused() {
    let net = Net::of(2);
    let mut a = net.boot(1, without(f::CSUM | f::HOST_TSO4 | f::HOST_TSO6 | f::HOST_ECN));
    let mut b = net.boot(2, GuestConfig::default());
    let frame = tcp(1, 2, false).build_partial(&pattern(0, 1000));
    a.send_with(&partial(&frame, 0), &frame);
    a.send_with(&partial(&frame, 500), &frame);
    let fence = numbered(1, 2, 0, 64);
    a.send(&fence);
    b.expect(&fence);
    wait_until("counters", || net.tx_drops(1, "bad_offload") == 2);
}
