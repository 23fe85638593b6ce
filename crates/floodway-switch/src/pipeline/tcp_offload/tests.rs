//! Frames that leave: edited, released in parts, and made.

use std::sync::Arc;

use floodway_core::offload::{Ecn, Edit, Link, SynthesizedSegment, Transmission};
use floodway_core::seq::Seq;
use floodway_wire::checksum::{Verification, verify_transport};
use floodway_wire::segmentation::Segmenter;
use floodway_wire::tcp::options::{SackBlock, SackList, Timestamps};
use floodway_wire::tcp::{Flags, OptionSummary};
use floodway_wire::vnet::{self, VnetHdr};
use floodway_wire::{Meta, checksum, ethernet, parse};
use proptest::prelude::*;

use crate::frame::describe::{Direction, Special, Trust, describe, special};
use crate::frame::held::Held;
use crate::frame::iovec::GuestIoVec;
use crate::frame::pool::Pool;
use crate::frame::{self, Frame, headers};
use crate::testing::frames::{mac, partial, pattern, tcp, verified};

const TIMESTAMPS: Timestamps = Timestamps { value: 77, echo: 88 };

/// A frame as a guest sends it.
fn built(v6: bool, tagged: bool) -> floodway_wire::build::Tcp {
    let mut frame = tcp(1, 2, v6);
    frame.sequence = 1000;
    frame.acknowledgment = 2000;
    frame.flags = Flags::ACK.with(Flags::PSH);
    frame.ip.identification = 9;
    if tagged {
        frame.link = frame.link.tagged(ethernet::TYPE_VLAN, 0x2064);
    }

    frame
}

fn held(vnet: VnetHdr, bytes: &[u8]) -> Held {
    let pool = Arc::new(Pool::new(1 << 20));
    let meta = parse(bytes, bytes.len()).unwrap();
    frame::with_slice(vnet, bytes, |frame| Held::copy(&pool, frame, &meta)).unwrap()
}

fn release(offset: u32, len: u32) -> Transmission {
    Transmission {
        offset,
        len,
        mss: 1448,
        seq: Seq(1000 + offset),
        ack: Seq(2500),
        window: 321,
        flags: Flags::ACK,
        timestamps: Some(TIMESTAMPS),
        ecn: Ecn(2),
    }
}

/// The released frame in one piece, its checksum as it leaves.
fn assemble(held: &Held, release: &Transmission) -> (VnetHdr, Vec<u8>) {
    let (headers, vnet) = headers::released(held, release, release.len, 4711);
    let bytes = [headers.as_slice(), held.payload(release.offset, release.len)].concat();
    (vnet, bytes)
}

/// What a receiver gets of a frame: itself with its checksum filled in, or its segments.
fn received(vnet: &VnetHdr, bytes: &[u8]) -> Vec<(Meta, Vec<u8>)> {
    let mut frames = Vec::new();
    if vnet.is_gso() {
        let mut segmenter = Segmenter::new(bytes, vnet.gso_size).unwrap();
        let mut out = vec![0; bytes.len()];
        while let Some(len) = segmenter.write_next(&mut out).unwrap() {
            frames.push(out[..len].to_vec());
        }
    } else {
        let mut bytes = bytes.to_vec();
        if vnet.needs_csum() {
            checksum::complete(&mut bytes, vnet.csum_start, vnet.csum_offset).unwrap();
        }
        frames.push(bytes);
    }
    frames.into_iter().map(|frame| (verified(&frame), frame)).collect()
}

fn payload<'f>(meta: &Meta, frame: &'f [u8]) -> &'f [u8] {
    &frame[usize::from(meta.payload_offset)..meta.packet_end as usize]
}

fn options(meta: &Meta, frame: &[u8]) -> OptionSummary {
    let start = usize::from(meta.transport_offset) + 20;
    OptionSummary::parse(&frame[start..usize::from(meta.payload_offset)]).unwrap()
}

#[test]
fn a_released_range_is_a_frame_of_its_own() {
    for (v6, tagged) in [(false, false), (false, true), (true, false), (true, true)] {
        let data = pattern(1, 4000);
        let gso_packet = built(v6, tagged).build_partial(&data);
        let held = held(partial(&gso_packet, 1448), &gso_packet);
        let release = release(100, 1000);
        let (vnet, bytes) = assemble(&held, &release);
        assert!(vnet.needs_csum() && !vnet.is_gso());
        let [(meta, frame)] = &received(&vnet, &bytes)[..] else { panic!("one frame") };
        let fields = meta.tcp().unwrap();
        assert_eq!((fields.sequence, fields.acknowledgment), (1100, 2500));
        assert_eq!((fields.window, fields.flags), (321, Flags::ACK));
        assert_eq!(meta.traffic_class & 3, 2);
        assert_eq!(payload(meta, frame), &data[100..1100]);
        assert_eq!(options(meta, frame).timestamps, Some(TIMESTAMPS));
        assert_eq!((meta.flow, meta.vlan), (held.meta().flow, held.meta().vlan));
        assert_eq!((meta.src_mac, meta.dst_mac), (mac(1), mac(2)));
        if !v6 {
            assert_eq!(frame[usize::from(meta.network_offset) + 4..][..2], 4711u16.to_be_bytes());
        }
    }
}

#[test]
fn what_comes_with_a_bad_ip_header_is_none_of_the_offloads_business() {
    // The guest drops it: acknowledged and kept, it would be delivered again and again.
    let vnet = VnetHdr { flags: vnet::F_DATA_VALID, ..VnetHdr::default() };
    for tagged in [false, true] {
        let mut bytes = built(false, tagged).build(&pattern(1, 100));
        let described = |bytes: &[u8], direction| {
            frame::with_slice(vnet, bytes, |frame| describe(frame, direction).is_some())
        };
        assert!(described(&bytes, Direction::FromNetwork));
        let at = usize::from(verified(&bytes).network_offset) + 10;
        bytes[at] ^= 1;
        assert!(!described(&bytes, Direction::FromNetwork));
        assert!(described(&bytes, Direction::FromGuest), "a guest may harm itself");
    }
}

#[test]
fn the_same_addresses_in_two_vlans_are_two_flows() {
    for v6 in [false, true] {
        let flow = |tci: Option<u16>| {
            let mut frame = built(v6, false);
            if let Some(tci) = tci {
                frame.link = frame.link.tagged(ethernet::TYPE_VLAN, tci);
            }
            let bytes = frame.build(&pattern(1, 100));
            frame::with_slice(VnetHdr::default(), &bytes, |frame| {
                describe(frame, Direction::FromNetwork).unwrap().meta.flow
            })
        };
        let [plain, first, second] = [None, Some(0x2064), Some(0x0065)].map(flow);
        assert!(plain != first && first != second && plain != second);
        assert_ne!(first.hash(1), second.hash(1));
        // The priority is no part of the name, and neither is a tag with nothing but a priority.
        assert_eq!((flow(Some(0x4064)), flow(Some(0x2000))), (first, plain));
    }
}

#[test]
fn the_ae_flag_of_a_syn_and_unknown_options_are_told() {
    for v6 in [false, true] {
        for (flags, kind) in [(Flags::SYN, 30), (Flags::ACK, 30), (Flags::SYN, 1)] {
            let mut frame = built(v6, true);
            frame.flags = flags;
            frame.options = vec![kind, if kind == 1 { 1 } else { 4 }, 1, 1];
            let mut bytes = frame.build_partial(&[]);
            let vnet = partial(&bytes, 0);
            let transport = usize::from(parse(&bytes, bytes.len()).unwrap().transport_offset);
            for ae in [false, true] {
                bytes[transport + 12] = bytes[transport + 12] & !1 | u8::from(ae);
                let segment = frame::with_slice(vnet, &bytes, |frame| {
                    describe(frame, Direction::FromGuest).unwrap().segment
                });
                assert_eq!(segment.ae, ae && flags == Flags::SYN);
                assert_eq!(segment.options.unknown, kind == 30);
            }
        }
    }
}

#[test]
fn a_syn_ack_has_room_for_a_name_unless_it_has_data_or_is_a_gso_packet() {
    for v6 in [false, true] {
        let mut frame = built(v6, true);
        frame.flags = Flags::SYN.with(Flags::ACK);
        for (payload, gso_size, has_room) in [(0, 0, true), (1, 0, false), (0, 1448, false)] {
            let bytes = frame.build_partial(&pattern(1, payload));
            frame::with_slice(partial(&bytes, gso_size), &bytes, |frame| {
                let described = describe(frame, Direction::FromNetwork);
                let found = described.is_some_and(|described| described.segment.has_room);
                assert_eq!(found, has_room, "{payload} bytes, GSO {gso_size}");
            });
        }
    }
}

#[test]
fn urgent_pointers_count_from_their_range() {
    let mut bytes = built(false, false).build_partial(&pattern(1, 4000));
    let transport = usize::from(parse(&bytes, bytes.len()).unwrap().transport_offset);
    bytes[transport + 18..transport + 20].copy_from_slice(&2000_u16.to_be_bytes());
    let held = held(partial(&bytes, 1448), &bytes);
    let flags = Flags::ACK.with(Flags::URG);
    // From the start, in the middle, up to the last urgent byte, and behind it.
    for (offset, pointer) in [(0, Some(2000)), (1448, Some(552)), (1999, Some(1)), (2000, None)] {
        let (vnet, bytes) = assemble(&held, &Transmission { flags, ..release(offset, 1000) });
        let [(meta, frame)] = &received(&vnet, &bytes)[..] else { panic!("one frame") };
        let header = floodway_wire::tcp::Header::parse(&frame[transport..]).unwrap();
        assert_eq!(header.urgent_pointer(), pointer.unwrap_or(0));
        assert_eq!(meta.tcp().unwrap().flags.contains(Flags::URG), pointer.is_some());
    }
}

#[test]
fn what_is_longer_than_a_segment_leaves_as_a_gso_packet() {
    for v6 in [false, true] {
        let data = pattern(2, 60_000);
        let gso_packet = built(v6, false).build_partial(&data);
        let held = held(partial(&gso_packet, 1448), &gso_packet);
        let flags = Flags::ACK.with(Flags::PSH).with(Flags::CWR);
        let release = Transmission { flags, ..release(1448, 50_000) };
        let (vnet, bytes) = assemble(&held, &release);
        let kind = if v6 { vnet::GSO_TCPV6 } else { vnet::GSO_TCPV4 };
        assert_eq!((vnet.gso_type, vnet.gso_size), (kind | vnet::GSO_ECN, 1448));
        // As any virtio-net device would see it.
        let frames = received(&vnet, &bytes);
        assert_eq!(frames.len(), 50_000usize.div_ceil(1448));
        let got: Vec<u8> = frames.iter().flat_map(|(m, f)| payload(m, f).to_vec()).collect();
        assert_eq!(got, &data[1448..51_448]);
        assert_eq!(frames[1].0.tcp().unwrap().sequence, 1000 + 2 * 1448);
    }
}

#[test]
fn a_whole_frame_without_payload_is_released() {
    let mut fin = built(false, false);
    fin.flags = Flags::ACK.with(Flags::FIN);
    let bytes = fin.build(&[]);
    let held = held(VnetHdr::default(), &bytes);
    let release = Transmission { flags: fin.flags, ..release(0, 0) };
    let (vnet, bytes) = assemble(&held, &release);
    let [(meta, _)] = &received(&vnet, &bytes)[..] else { panic!("one frame") };
    assert_eq!((meta.payload_len, meta.tcp().unwrap().flags), (0, fin.flags));
}

/// Blocks that the acknowledgement number has passed would be taken for duplicates (RFC 2883).
#[test]
fn stale_sack_blocks_do_not_leave() {
    let mut frame = built(false, false);
    frame.options = vec![1, 1, 5, 10, 0, 0, 9, 0, 0, 0, 9, 9];
    let bytes = frame.build(b"data");
    let held = held(VnetHdr::default(), &bytes);
    let blocks = |release: &Transmission| {
        let (vnet, bytes) = assemble(&held, release);
        let [(meta, frame)] = &received(&vnet, &bytes)[..] else { panic!("one frame") };
        options(meta, frame).sack_blocks().len()
    };
    let release = Transmission { timestamps: None, ..release(0, 4) };
    assert_eq!(blocks(&release), 0);
    assert_eq!(blocks(&Transmission { ack: Seq(2000), ..release }), 1);
}

#[test]
fn padding_is_not_kept() {
    let mut bytes = built(false, false).build(b"x");
    let len = bytes.len();
    bytes.resize(len + 7, 0xee);
    let held = held(VnetHdr::default(), &bytes);
    assert_eq!(held.bytes(), &bytes[..len]);
    assert_eq!(held.payload(0, 10), b"x");
    assert_eq!(held.payload(5, 1), b"");
}

#[test]
fn made_segments_are_whole_frames() {
    // As many SACK blocks as a header has room for, and fewer.
    for (v6, vlan, timestamps, blocks) in [
        (false, None, None, 0),
        (false, None, None, 4),
        (true, Some(7), Some(TIMESTAMPS), 3),
        (false, Some(7), Some(TIMESTAMPS), 1),
    ] {
        let template = built(v6, false).build(&[]);
        let flow = verified(&template).flow.in_vlan(vlan.unwrap_or(0));
        let link = Link { guest: mac(1), peer: mac(2), vlan };
        let flags = Flags::ACK.with(Flags::ECE);
        let sack: SackList = (0..blocks).map(|n| SackBlock { left: n, right: 9 + n }).collect();
        let (seq, ack, window) = (Seq(5), Seq(6), 7);
        let segment = SynthesizedSegment { flow, link, seq, ack, window, flags, timestamps, sack };
        let frame = headers::synthesized(&segment, mac(1), mac(2), 99);
        let meta = verified(frame.as_slice());
        let fields = meta.tcp().unwrap();
        assert_eq!((meta.flow, meta.payload_len), (flow, 0));
        assert_eq!((meta.src_mac, meta.dst_mac), (mac(1), mac(2)));
        assert_eq!(meta.vlan.as_slice(), vlan.as_slice());
        assert_eq!((fields.sequence, fields.acknowledgment, fields.window), (5, 6, 7));
        assert_eq!(
            (fields.flags, options(&meta, frame.as_slice()).timestamps),
            (flags, timestamps)
        );
        assert_eq!(options(&meta, frame.as_slice()).sack_blocks(), sack.as_slice());
    }
}

/// A frame in `pieces` as it comes from a guest: the first 128 bytes apart.
fn with_pieces<R>(
    vnet: VnetHdr,
    bytes: &[u8],
    pieces: usize,
    f: impl FnOnce(&Frame<'_>) -> R,
) -> R {
    let (prefix, rest) = bytes.split_at(bytes.len().min(frame::PREFIX_LEN));
    let mut parts = vec![GuestIoVec::from_slice(prefix)];
    parts.extend(rest.chunks(rest.len().div_ceil(pieces).max(1)).map(GuestIoVec::from_slice));
    f(&Frame { vnet, prefix, parts: &parts, len: bytes.len() as u32 })
}

fn edit() -> Edit {
    Edit {
        seq: Some(Seq(11)),
        ack: Some(Seq(12)),
        window: Some(13),
        flags: Some(Flags::ACK.with(Flags::CWR)),
        timestamps: Some(TIMESTAMPS),
        strip_sack: true,
        append_name: false,
    }
}

#[test]
fn an_edit_changes_the_header_and_nothing_else() {
    for (v6, complete, pieces, len) in [
        (false, true, 1, 1000),
        (true, true, 30, 1000),
        (false, false, 17, 60_000),
        (true, false, 40, 60_000),
        (false, true, 1, 10),
    ] {
        let data = pattern(3, len);
        let template = built(v6, pieces == 17);
        let (vnet, bytes) = if complete {
            (VnetHdr::default(), template.build(&data))
        } else {
            let bytes = template.build_partial(&data);
            (partial(&bytes, 1448), bytes)
        };
        let meta = parse(&bytes, bytes.len()).unwrap();
        let (vnet, edited) = with_pieces(vnet, &bytes, pieces, |frame| {
            headers::with_edit(frame, &meta, &edit(), |edited| {
                let mut linear = Vec::new();
                edited.append_to(&mut linear);
                assert!(edited.prefix.len() == frame.prefix.len() && edited.len == frame.len);
                assert_eq!(edited.prefix, &linear[..edited.prefix.len()]);
                (edited.vnet, linear)
            })
        });
        assert_eq!(vnet.gso_type & vnet::GSO_ECN != 0, !complete);
        let frames = received(&vnet, &edited);
        let (first, frame) = &frames[0];
        let fields = first.tcp().unwrap();
        assert_eq!((fields.sequence, fields.acknowledgment, fields.window), (11, 12, 13));
        assert_eq!(fields.flags, Flags::ACK.with(Flags::CWR));
        assert_eq!(options(first, frame).timestamps, Some(TIMESTAMPS));
        let got: Vec<u8> = frames.iter().flat_map(|(m, f)| payload(m, f).to_vec()).collect();
        assert!(got == data);
    }
}

fn described(vnet: VnetHdr, bytes: &[u8]) -> Option<Trust> {
    let describe = |frame: &Frame<'_>| describe(frame, Direction::FromGuest);
    frame::with_slice(vnet, bytes, describe).map(|described| described.trust)
}

#[test]
fn what_passes_by_the_offload() {
    let plain = built(false, false);
    let frame = plain.build(b"data");
    assert_eq!(described(VnetHdr::default(), &frame), Some(Trust::Unverified));
    let validated = VnetHdr { flags: vnet::F_DATA_VALID, ..VnetHdr::default() };
    assert_eq!(described(validated, &frame), Some(Trust::Good));
    assert_eq!(described(partial(&frame, 0), &frame), Some(Trust::Good));
    // A checksum of something else.
    let inner = VnetHdr { csum_offset: 6, ..partial(&frame, 0) };
    assert_eq!(described(inner, &frame), None);

    let mut other = plain.clone();
    other.ip.options = vec![1; 4];
    assert_eq!(described(VnetHdr::default(), &other.build(b"data")), None, "IP options");
    let mut other = plain.clone();
    other.ip.fragmentation = 0x2000;
    assert_eq!(described(VnetHdr::default(), &other.build(b"data")), None, "a fragment");
    for tags in [&[ethernet::TYPE_QINQ][..], &[ethernet::TYPE_VLAN, ethernet::TYPE_VLAN]] {
        let mut other = plain.clone();
        for &tag in tags {
            other.link = other.link.tagged(tag, 5);
        }
        assert_eq!(described(VnetHdr::default(), &other.build(b"data")), None, "{tags:x?}");
    }
    let mut other = plain;
    other.options = vec![8, 3, 0, 0];
    assert_eq!(described(VnetHdr::default(), &other.build(b"data")), None, "bad options");
}

#[test]
fn notices_are_seen_behind_any_tags() {
    let link = built(false, false).link;
    let types = [ethernet::TYPE_VLAN, ethernet::TYPE_QINQ, ethernet::TYPE_QINQ_OLD];
    let mut tagged = link.clone();
    for tags in 0..5 {
        let notice = special(&tagged.frame(0x88b5, &[0; 46]));
        assert_eq!(notice, Some(Special::Notice), "{tags} tags");
        let other = special(&tagged.frame(0x88b6, &[0; 46]));
        assert_eq!(other, (tags > 0).then_some(Special::Tagged), "{tags} tags");
        tagged = tagged.tagged(types[tags % 3], 3);
    }
    assert_eq!(special(&link.frame(ethernet::TYPE_VLAN, &[])), Some(Special::Tagged));
}

proptest! {
    /// Any range of any frame leaves whole.
    #[test]
    fn every_range_leaves_with_good_checksums(
        v6: bool, tagged: bool, len in 1usize..5000, from in 0.0..1.0f64, to in 0.0..1.0f64, mss in 48u16..3000,
    ) {
        let data = pattern(4, len);
        let bytes = built(v6, tagged).build_partial(&data);
        let held = held(partial(&bytes, 1448), &bytes);
        let offset = (from * len as f64) as usize;
        let count = (to * (len - offset) as f64) as usize;
        let release = Transmission { mss, ..release(offset as u32, count as u32) };
        let (vnet, bytes) = assemble(&held, &release);
        let frames = received(&vnet, &bytes);
        let got: Vec<u8> = frames.iter().flat_map(|(m, f)| payload(m, f).to_vec()).collect();
        prop_assert_eq!(got, &data[offset..offset + count]);
        for (meta, frame) in &frames {
            prop_assert!(meta.payload_len <= u32::from(mss));
            prop_assert_eq!(verify_transport(frame, meta), Ok(Verification::Good));
        }
    }
}
