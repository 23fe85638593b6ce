//! Segmentation and coalescing undo each other, and what they produce is what TCP expects.

use crate::support::{payload, tcp};
use floodway_wire::checksum::{self, ChecksumState, Verification};
use floodway_wire::coalescing::{Coalescer, Offer};
use floodway_wire::segmentation::Segmenter;
use floodway_wire::tcp::Flags;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{ipv4, parse, vnet};
use proptest::prelude::*;

fn segments(frame: &[u8], gso_size: u16) -> Vec<Vec<u8>> {
    let mut segmenter = Segmenter::new(frame, gso_size).unwrap();
    let mut out = vec![0; segmenter.plan().max_frame_len()];
    let mut frames = Vec::new();
    while let Some(len) = segmenter.write_next(&mut out).unwrap() {
        frames.push(out[..len].to_vec());
    }
    frames
}

fn coalesce(frames: &[Vec<u8>]) -> (VnetHdr, Vec<u8>) {
    let mut coalescer = Coalescer::new(vec![0; 70_000]);
    for frame in frames {
        let meta = parse(frame, frame.len()).unwrap();
        let offer = coalescer.offer(frame, &meta, ChecksumState::Unverified);
        assert_ne!(offer, Offer::Refused);
    }
    let (hdr, frame) = coalescer.finish().unwrap();
    (hdr, frame.to_vec())
}

proptest! {
    #[test]
    fn segmentation_then_coalescing_is_the_identity(
        tcp in tcp(),
        gso_size in 8u16..9000,
        len in 1usize..60_000,
    ) {
        let len = usize::from(gso_size) + len.min(usize::from(gso_size) * 60);
        let len = len.min(65_000);
        let frame = tcp.build_partial(&payload(len));
        let (hdr, joined) = coalesce(&segments(&frame, gso_size));
        prop_assert!(joined == frame);
        prop_assert_eq!(hdr.gso_size, gso_size);
        prop_assert_eq!(hdr.gso_type & vnet::GSO_ECN != 0, tcp.flags.contains(Flags::CWR));
        prop_assert!(hdr.needs_csum());
        prop_assert_eq!(hdr.csum_start + 16 + 4 + tcp.options.len() as u16, hdr.hdr_len);
    }

    #[test]
    fn every_segment_is_a_finished_frame(
        tcp in tcp(),
        partial: bool,
        gso_size in 8u16..2000,
        len in 0usize..20_000,
    ) {
        let data = payload(len);
        let frame = if partial { tcp.build_partial(&data) } else { tcp.build(&data) };
        let frames = segments(&frame, gso_size);
        let last = frames.len() - 1;
        let mut received = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            let meta = parse(frame, frame.len()).unwrap();
            let fields = meta.tcp().unwrap();
            prop_assert_eq!(checksum::verify_transport(frame, &meta), Ok(Verification::Good));
            prop_assert_eq!(meta.packet_end as usize, frame.len());
            prop_assert!(meta.payload_len <= u32::from(gso_size));
            let sequence = tcp.sequence.wrapping_add(received.len() as u32);
            prop_assert_eq!(fields.sequence, sequence);
            let ends = Flags::PSH.with(Flags::FIN);
            let mut expected = tcp.flags;
            if i > 0 { expected = expected.without(Flags::CWR); }
            if i < last { expected = expected.without(ends); }
            prop_assert_eq!(fields.flags, expected);
            if !meta.flow.is_ipv6 {
                let ip = ipv4::Header::parse(&frame[usize::from(meta.network_offset)..]).unwrap();
                prop_assert!(ip.checksum_ok());
                let id = tcp.ip.identification.wrapping_add(i as u16);
                prop_assert_eq!(ip.identification(), id);
            }
            received.extend_from_slice(&frame[usize::from(meta.payload_offset)..]);
        }
        prop_assert!(received == data);
    }

    #[test]
    fn a_cut_that_is_no_cut_is_completion(tcp in tcp(), len in 0usize..1400) {
        let mut frame = tcp.build_partial(&payload(len));
        let frames = segments(&frame, 1400);
        let start = parse(&frame, frame.len()).unwrap().transport_offset;
        checksum::complete(&mut frame, start, checksum::TCP_OFFSET).unwrap();
        let frames: Vec<_> = frames.into_iter().map(with_one_zero).collect();
        prop_assert_eq!(&frames, &[frame.clone()]);
        prop_assert_eq!(frame, with_one_zero(tcp.build(&payload(len))));
    }
}

/// The frame with a TCP checksum of zero as `0xffff`, the same number in one's complement: completion writes that, as it does not know UDP,
/// where zero means that there is none, from TCP, where it does not.
fn with_one_zero(mut frame: Vec<u8>) -> Vec<u8> {
    let at = usize::from(parse(&frame, frame.len()).unwrap().transport_offset)
        + usize::from(checksum::TCP_OFFSET);
    if frame[at..at + 2] == [0, 0] {
        frame[at..at + 2].fill(0xff);
    }
    frame
}

#[test]
fn ipv4_options_are_copied_and_urgent_data_stays_where_it_is() {
    let mut tcp = plain();
    tcp.ip.options = vec![148, 4, 0, 0];
    tcp.flags = Flags::ACK.with(Flags::URG);
    tcp.urgent_pointer = 150;
    let frame = tcp.build(&payload(300));
    let frames = segments(&frame, 100);
    let urgent: Vec<_> = frames
        .iter()
        .map(|f| {
            let meta = parse(f, f.len()).unwrap();
            assert_eq!(f[34..38], [148, 4, 0, 0]);
            let valid = checksum::verify_transport(f, &meta);
            assert_eq!(valid, Ok(Verification::Good));
            let urg = meta.tcp().unwrap().flags.contains(Flags::URG);
            let at = usize::from(meta.transport_offset) + 18;
            (urg, u16::from_be_bytes([f[at], f[at + 1]]))
        })
        .collect();
    assert_eq!(urgent, [(true, 150), (true, 50), (false, 0)]);
}

#[test]
fn what_cannot_be_cut_is_an_error() {
    let frame = plain().build(&payload(300));
    assert!(Segmenter::new(&frame, 7).is_err());
    assert!(Segmenter::new(&frame[..60], 100).is_err());
    let mut syn = plain();
    syn.flags = Flags::SYN;
    assert!(Segmenter::new(&syn.build(&payload(300)), 100).is_err());
    let mut fragment = plain();
    fragment.ip.fragmentation = ipv4::FLAG_MF;
    assert!(Segmenter::new(&fragment.build(&payload(300)), 100).is_err());
    let mut segmenter = Segmenter::new(&frame, 100).unwrap();
    assert!(segmenter.write_next(&mut [0; 153]).is_err());
    assert_eq!(segmenter.remaining(), 3, "the frame is still to be written");
    assert_eq!(segmenter.write_next(&mut [0; 154]), Ok(Some(154)));
}

fn plain() -> floodway_wire::build::Tcp {
    use floodway_wire::{MacAddr, build};
    let link = build::Link::new(MacAddr([2; 6]), MacAddr([4; 6]));
    let sockets = ("10.0.0.1:1024".parse(), "10.0.0.2:80".parse());
    build::Tcp::new(link, sockets.0.unwrap(), sockets.1.unwrap())
}

/// Offers a first segment and then `second`, and says what became of the second.
fn offer_second(second: &[u8]) -> Offer {
    let mut coalescer = Coalescer::new(vec![0; 4000]);
    for (frame, last) in [(&plain().build(&payload(100))[..], false), (second, true)] {
        let meta = parse(frame, frame.len()).unwrap();
        let offer = coalescer.offer(frame, &meta, ChecksumState::Unverified);
        if last {
            return offer;
        }
        assert_eq!(offer, Offer::Taken);
    }
    unreachable!("the second frame is the last")
}

fn second() -> floodway_wire::build::Tcp {
    let mut tcp = plain();
    tcp.sequence = 100;
    tcp.ip.identification = 1;
    tcp
}

#[test]
fn what_follows_is_taken() {
    assert_eq!(offer_second(&second().build(&payload(100))), Offer::Taken);
    let short = second().build(&payload(99));
    assert_eq!(offer_second(&short), Offer::TakenLast);
    let mut padded = second().build(&payload(1));
    padded.resize(60, 0);
    assert_eq!(offer_second(&padded), Offer::TakenLast);
    for flag in [Flags::PSH, Flags::FIN] {
        let mut tcp = second();
        tcp.flags = tcp.flags.with(flag);
        assert_eq!(offer_second(&tcp.build(&payload(100))), Offer::TakenLast);
    }
    let mut fixed_id = second();
    fixed_id.ip.identification = 0;
    assert_eq!(offer_second(&fixed_id.build(&payload(100))), Offer::Taken);
}

#[test]
fn what_does_not_follow_is_refused() {
    type Change = fn(&mut floodway_wire::build::Tcp);
    let changes: [(&str, Change); 14] = [
        ("gap", |t| t.sequence += 1),
        ("overlap", |t| t.sequence -= 1),
        ("acknowledgment", |t| t.acknowledgment += 1),
        ("window", |t| t.window -= 1),
        ("options", |t| t.options = vec![1; 4]),
        ("ECE", |t| t.flags = t.flags.with(Flags::ECE)),
        ("CWR", |t| t.flags = t.flags.with(Flags::CWR)),
        ("SYN", |t| t.flags = t.flags.with(Flags::SYN)),
        ("no ACK", |t| t.flags = Flags::default()),
        ("ECN", |t| t.ip.traffic_class = 3),
        ("TTL", |t| t.ip.ttl -= 1),
        ("identification", |t| t.ip.identification = 2),
        ("DF", |t| t.ip.fragmentation = 0),
        ("port", |t| t.src_port += 1),
    ];
    for (name, change) in changes {
        let mut tcp = second();
        change(&mut tcp);
        let frame = tcp.build(&payload(100));
        assert_eq!(offer_second(&frame), Offer::Refused, "{name}");
    }
    let long = second().build(&payload(101));
    assert_eq!(offer_second(&long), Offer::Refused, "longer than the first");
    let empty = second().build(&[]);
    assert_eq!(offer_second(&empty), Offer::Refused, "pure ACK");
    for at in [0, 24, 50, 60] {
        let mut broken = second().build(&payload(100));
        broken[at] ^= 1;
        assert_eq!(offer_second(&broken), Offer::Refused, "bit flip at {at}");
    }
}

#[test]
fn newer_timestamps_are_refused() {
    let mut tcp = plain();
    tcp.options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 9];
    let first = tcp.build(&payload(100));
    (tcp.sequence, tcp.ip.identification) = (100, 1);
    let same = tcp.build(&payload(100));
    tcp.options[7] = 2;
    let newer = tcp.build(&payload(100));
    for (second, expected) in [(same, Offer::Taken), (newer, Offer::Refused)] {
        let mut coalescer = Coalescer::new([0; 2000]);
        for (frame, expected) in [(&first, Offer::Taken), (&second, expected)] {
            let meta = parse(frame, frame.len()).unwrap();
            let offer = coalescer.offer(frame, &meta, ChecksumState::Unverified);
            assert_eq!(offer, expected);
        }
    }
}

#[test]
fn a_run_ends_where_the_buffer_or_the_ip_length_does() {
    for (capacity, expected) in [(4000, 3), (70_000, 65)] {
        let mut coalescer = Coalescer::new(vec![0; capacity]);
        let mut taken = 0;
        let mut tcp = plain();
        loop {
            let frame = tcp.build(&payload(1000));
            let meta = parse(&frame, frame.len()).unwrap();
            if coalescer.offer(&frame, &meta, ChecksumState::Verified) == Offer::Refused {
                break;
            }
            taken += 1;
            tcp.sequence += 1000;
            tcp.ip.identification += 1;
        }
        assert_eq!(taken, expected);
        let (hdr, frame) = coalescer.finish().unwrap();
        assert_eq!(frame.len(), 54 + 1000 * expected);
        assert_eq!(parse(frame, frame.len()).unwrap().ip_len() as usize, frame.len() - 14);
        assert_eq!((hdr.gso_type, hdr.gso_size), (vnet::GSO_TCPV4, 1000));
        assert!(coalescer.is_empty());
    }
}

#[test]
fn a_lone_segment_comes_out_as_it_went_in() {
    for (state, flags) in [
        (ChecksumState::Unverified, vnet::F_DATA_VALID),
        (ChecksumState::Partial, vnet::F_NEEDS_CSUM),
    ] {
        let frame = match state {
            ChecksumState::Partial => plain().build_partial(&payload(100)),
            _ => plain().build(&payload(100)),
        };
        let meta = parse(&frame, frame.len()).unwrap();
        let mut coalescer = Coalescer::new([0; 2000]);
        assert_eq!(coalescer.offer(&frame, &meta, state), Offer::Taken);
        assert_eq!(coalescer.first(), Some(&meta));
        let (hdr, out) = coalescer.finish().unwrap();
        assert_eq!(out, frame);
        assert_eq!((hdr.flags, hdr.gso_type), (flags, vnet::GSO_NONE));
    }
}
