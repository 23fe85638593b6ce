//! Frames on their way into a device of our own making.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use floodway_core::egress::qdisc::Config as Discipline;
use floodway_wire::build::Tcp;
use floodway_wire::ethernet::TYPE_VLAN;
use floodway_wire::segmentation::Segmenter;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{parse, traffic_class};

use super::*;
use crate::frame::iovec::GuestIoVec;
use crate::stats::DropReason;
use crate::sync::lock;
use crate::testing::frames::{number_of, numbered, partial, pattern, tcp, verified};
use crate::uplink::{Capabilities, SendError};

/// A device that keeps what it is given.
#[derive(Default)]
struct Wire {
    frames: Vec<(VnetHdr, Vec<u8>)>,
    /// Frames that it takes before it is full.
    room: Option<usize>,
    /// What it says that it holds.
    outstanding: Option<u64>,
    /// It refuses frames to the VM of this number.
    refused: Option<u8>,
    /// Frames that it was offered.
    offered: u64,
}

#[derive(Clone, Default)]
struct Device(Arc<Mutex<Wire>>);

impl Sender for Device {
    fn capabilities(&self) -> Capabilities {
        Capabilities { csum: true, tso: true }
    }

    fn outstanding(&self) -> Option<u64> {
        lock(&self.0).outstanding
    }

    fn send(&mut self, vnet: &VnetHdr, frame: &[GuestIoVec<'_>]) -> Result<(), SendError> {
        let mut wire = lock(&self.0);
        wire.offered += 1;
        let mut start = [0; 14];
        Frame { vnet: *vnet, prefix: &[], parts: frame, len: 14 }.copy_to(&mut start);
        if wire.refused == Some(start[5]) {
            return Err(SendError::Refused);
        }
        if wire.room == Some(0) {
            return Err(SendError::Full);
        }
        wire.room = wire.room.map(|room| room - 1);
        let len = frame.iter().map(GuestIoVec::len).sum::<usize>();
        let mut bytes = vec![0; len];
        let whole = Frame { vnet: *vnet, prefix: &[], parts: frame, len: len as u32 };
        whole.copy_to(&mut bytes);
        wire.outstanding = wire.outstanding.map(|bytes| bytes + len as u64);
        wire.frames.push((*vnet, bytes));
        Ok(())
    }
}

struct Scene {
    egress: SharedEgress,
    device: Device,
    sent: Outbox,
    now: Instant,
}

impl Scene {
    fn new(change: impl FnOnce(&mut Settings, &mut Wire)) -> Self {
        let device = Device::default();
        let mut settings = Settings {
            queue: QueueConfig { segment: Some(true), ..QueueConfig::default() },
            meter: MeterConfig::default(),
            link: LinkRate::default(),
            guests: 4,
            seed: 7,
            counters: None,
        };
        change(&mut settings, &mut lock(&device.0));
        let egress = Egress::new(Box::new(device.clone()), &settings, Instant::ZERO);
        let egress = SharedEgress::new(egress);
        Self { egress, device, sent: Outbox::default(), now: Instant::ZERO }
    }

    fn next_look(&self) -> Instant {
        self.egress.with(|egress| egress.next_look())
    }

    fn pump(&self) {
        self.egress.with(|egress| egress.pump(self.now, &self.sent));
    }

    fn status(&self) -> crate::api::status::EgressStatus {
        self.egress.with(|egress| egress.status())
    }

    fn plain() -> Self {
        Self::new(|_, _| {})
    }

    fn send(&mut self, source: u16, vnet: VnetHdr, bytes: &[u8]) {
        let Self { egress, sent, now, .. } = self;
        frame::with_slice(vnet, bytes, |frame| {
            egress.send(PortId(source), *now, std::iter::once(*frame), sent, |_| ());
        });
    }

    /// Gives a source as many turns as it takes to have everything cut.
    fn resume_all(&self, source: u16) {
        while self.egress.resume(PortId(source), self.now, &self.sent, |_| ()).is_some() {}
    }

    /// What has left since this was last asked.
    fn wire(&self) -> Vec<Vec<u8>> {
        let frames = std::mem::take(&mut lock(&self.device.0).frames);
        frames.into_iter().map(|(_, bytes)| bytes).collect()
    }

    fn set_room(&self, room: Option<usize>) {
        lock(&self.device.0).room = room;
    }

    /// Looks when it is time, until nothing waits.
    fn drain(&mut self) -> Vec<Vec<u8>> {
        let mut all = self.wire();
        while self.next_look() < Instant::NEVER {
            self.now = self.now.max(self.next_look());
            self.pump();
            all.extend(self.wire());
        }
        all
    }
}

fn dscp(frame: &[u8]) -> u8 {
    traffic_class::traffic_class(frame).expect("an IP packet") >> 2
}

/// A TCP segment from VM 1 to VM 9 with this traffic class.
fn segment(class: u8, v6: bool) -> Tcp {
    let mut tcp = tcp(1, 9, v6);
    tcp.ip.traffic_class = class;
    tcp
}

#[test]
fn a_small_flow_is_tagged_high_and_a_large_one_low() {
    for v6 in [false, true] {
        let mut scene = Scene::plain();
        let mut tagged = segment(0, v6);
        tagged.link = tagged.link.tagged(TYPE_VLAN, 0x2064);
        for template in [segment(0b11, v6), tagged] {
            for _ in 0..50 {
                scene.send(0, VnetHdr::default(), &template.build(&pattern(1, 1400)));
            }
            let tags: Vec<_> = scene.wire().iter().map(|frame| dscp(frame)).collect();
            let high = tags.iter().filter(|&&tag| tag == 46).count();
            assert!(high <= 21 && tags[high..].iter().all(|&tag| tag == 0), "{tags:?}");
        }
    }
}

/// Whatever the guest wrote: the code point is ours, ECN and everything else its own, every checksum right.
#[test]
fn a_guests_code_point_never_leaves() {
    for v6 in [false, true] {
        for class in 0..=255 {
            let mut scene = Scene::plain();
            let frame = segment(class, v6).build(&pattern(2, 100));
            scene.send(0, VnetHdr::default(), &frame);
            let left = scene.wire().remove(0);
            assert_eq!(verified(&left).traffic_class, 46 << 2 | class & 3);
            let mut expected = frame.clone();
            traffic_class::set_dscp(&mut expected, 46);
            assert_eq!(left, expected);
        }
    }
}

/// Section 6 of the paper: forged code points and many connections leave the classes of frames as they are.
#[test]
fn cheating_gains_nothing() {
    let classes = |forged: u8, connections: u16| {
        let mut scene = Scene::plain();
        let mut tags = Vec::new();
        for i in 0..3000 {
            let mut tcp = segment(forged << 2, false);
            tcp.src_port = 1000 + i % connections;
            scene.now = Instant::from_micros(100 * u64::from(i));
            scene.send(0, VnetHdr::default(), &tcp.build(&pattern(3, 1400)));
            tags.extend(scene.wire().iter().map(|frame| dscp(frame)));
        }
        tags
    };
    let honest = classes(0, 1);
    assert!(honest.iter().filter(|&&tag| tag == 46).count() < 30);
    assert_eq!(classes(46, 1), honest);
    assert_eq!(classes(63, 1), honest);
    assert_eq!(classes(0, 500), honest);
}

/// A packet that no parser takes is still looked at by switches on the way.
#[test]
fn malformed_packets_do_not_keep_their_code_point() {
    let mut scene = Scene::plain();
    let good = segment(63 << 2, false).build(&pattern(2, 1400));
    for (at, value) in [(14, 0x4f), (14, 0x05), (16, 0xff), (46, 0x10)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(parse(&bad, bad.len()).is_err(), "{at}");
        scene.send(0, VnetHdr::default(), &bad);
    }
    assert!(scene.wire().iter().all(|frame| [0, 46].contains(&dscp(frame))));
}

#[test]
fn frames_of_other_uplinks_and_without_a_meter_keep_their_tags() {
    let frame = segment(12 << 2 | 1, false).build(b"x");
    let mut scene = Scene::plain();
    scene.send(4, VnetHdr::default(), &frame);
    assert!(scene.wire().iter().eq([&frame]));
    let mut off = Scene::new(|settings, _| settings.meter.enabled = false);
    off.send(0, VnetHdr::default(), &frame);
    assert_eq!(off.wire(), [frame]);
    assert!(off.status().meter.is_none());
}

/// Cut frames are those that any segmentation makes of the tagged GSO packet, from however many pieces.
#[test]
fn gso_packets_are_cut_into_the_right_frames() {
    for v6 in [false, true] {
        let original = segment(1, v6).build_partial(&pattern(4, 60_000));
        let vnet = partial(&original, 1400);
        let mut tagged = original.clone();
        traffic_class::set_dscp(&mut tagged, 0);
        let mut segmenter = Segmenter::new(&tagged, 1400).unwrap();
        let mut expected = Vec::new();
        let mut buffer = vec![0; 2000];
        while let Some(len) = segmenter.write_next(&mut buffer).unwrap() {
            expected.push(buffer[..len].to_vec());
        }
        for piece in [1, 7, 100, 4096, 70_000] {
            let mut scene = Scene::plain();
            let (prefix, rest) = original.split_at(128);
            let parts: Vec<_> = std::iter::once(GuestIoVec::from_slice(prefix))
                .chain(rest.chunks(piece).map(GuestIoVec::from_slice))
                .collect();
            let frame = Frame { vnet, prefix, parts: &parts, len: original.len() as u32 };
            let Scene { egress, sent, .. } = &mut scene;
            egress.send(PortId(0), Instant::ZERO, std::iter::once(frame), sent, |_| ());
            assert!(scene.wire() == expected, "pieces of {piece}");
            assert_eq!(scene.sent.packets.get(), expected.len() as u64);
        }
        let mut whole = Scene::new(|settings, _| settings.queue.segment = Some(false));
        whole.send(0, vnet, &original);
        assert_eq!(lock(&whole.device.0).frames, [(vnet, tagged)]);
    }
}

#[test]
fn a_full_device_is_waited_for_and_order_is_kept() {
    let mut scene = Scene::new(|_, wire| wire.room = Some(3));
    for n in 0..20 {
        scene.send(0, VnetHdr::default(), &numbered(1, 9, n, 100));
    }
    assert_eq!(scene.wire().len(), 3);
    assert_eq!(scene.status().high.packets, 17);
    assert!(scene.next_look() > scene.now);
    scene.set_room(None);
    let numbers: Vec<_> = scene.drain().iter().map(|frame| number_of(frame).unwrap()).collect();
    assert_eq!(numbers, (3..20).collect::<Vec<_>>());
    assert_eq!(scene.sent.packets.get(), 20);
    assert_eq!(scene.next_look(), Instant::NEVER);
}

#[test]
fn a_small_flow_overtakes_what_waits() {
    let mut scene = Scene::new(|_, wire| wire.room = Some(0));
    for n in 0..100 {
        scene.send(0, VnetHdr::default(), &numbered(1, 9, n, 1400));
    }
    scene.send(1, VnetHdr::default(), &numbered(2, 9, 1000, 100));
    scene.set_room(None);
    let order: Vec<_> = scene.drain().iter().map(|frame| number_of(frame).unwrap()).collect();
    let place = order.iter().position(|&n| n == 1000).unwrap();
    // Behind the first 30 KB of the other, which were high too, in turns with them: nearly at once.
    assert!(place <= 2, "{order:?}");
}

#[test]
fn the_device_holds_no_more_than_it_may() {
    let mut scene = Scene::new(|settings, wire| {
        settings.queue.device_bytes = Some(4000);
        wire.outstanding = Some(0);
    });
    for n in 0..10 {
        scene.send(0, VnetHdr::default(), &numbered(1, 9, n, 1458));
    }
    assert_eq!(scene.wire().len(), 3, "1500 bytes each");
    for left in [7, 6, 5] {
        lock(&scene.device.0).outstanding = Some(3000);
        scene.now = scene.next_look();
        scene.pump();
        assert_eq!(scene.wire().len(), 1);
        assert_eq!(scene.status().high.packets, left - 1);
    }
    let status = scene.status();
    assert_eq!((status.device_limit, status.device_bytes), (Some(4000), Some(4500)));
}

#[test]
fn nothing_leaves_faster_than_the_rate() {
    let mut scene = Scene::new(|settings, _| {
        // 1500 bytes take 1.2 ms; the first may leave at once, and 1 ms is left of the rest before it.
        settings.queue.rate = Some(10_000_000);
    });
    scene.now = Instant::from_millis(500);
    for n in 0..50 {
        scene.send(0, VnetHdr::default(), &numbered(1, 9, n, 1458));
    }
    assert_eq!(scene.drain().len(), 50);
    let took = scene.now.since(Instant::from_millis(500));
    assert_eq!(took, Duration::from_micros(49 * 1200 - 1000));
}

/// A link of a rate carries as much of a stream whether GSO packets are cut here or behind it.
#[test]
fn the_rate_is_that_of_the_wire() {
    let took = |segment| {
        let mut scene = Scene::new(|settings, _| {
            settings.queue.segment = Some(segment);
            settings.queue.rate = Some(10_000_000);
            settings.queue.discipline.kind = Kind::Fifo;
        });
        scene.now = Instant::from_millis(500);
        let original = tcp(1, 9, false).build_partial(&pattern(4, 60_000));
        for _ in 0..5 {
            scene.send(0, partial(&original, 1448), &original);
        }
        scene.send(0, VnetHdr::default(), &numbered(1, 9, 7, 100));
        scene.drain();
        scene.now.since(Instant::from_millis(500))
    };
    assert_eq!(took(true), took(false));
}

/// Frames of a stream leave some together; a small flow's frame does not wait for that.
#[test]
fn what_is_paced_is_looked_at_rarely_and_what_is_urgent_leaves_at_once() {
    let mut scene = Scene::new(|settings, _| {
        settings.queue.rate = Some(200_000_000);
    });
    scene.now = Instant::from_millis(500);
    for n in 0..1000 {
        scene.send(0, VnetHdr::default(), &numbered(1, 9, n, 1458));
    }
    scene.wire();
    let (start, mut looks, mut left) = (scene.now, 0, 0);
    while left < 400 {
        assert!(scene.next_look() > scene.now);
        scene.now = scene.next_look();
        scene.pump();
        left += scene.wire().len();
        looks += 1;
    }
    // 60 us each: 24 ms, and four or five at a look.
    assert!((80..=100).contains(&looks), "{looks}");
    assert!(scene.now.since(start) <= Duration::from_micros(24_300), "{:?}", scene.now);
    // Half of the time until the next look has made room for a frame: the other VM's takes it.
    let half = scene.next_look().since(scene.now) / 2;
    scene.now += half;
    scene.send(1, VnetHdr::default(), &numbered(2, 9, 7, 100));
    let first = scene.wire().swap_remove(0);
    assert_eq!((first[11], number_of(&first)), (2, Some(7)));
}

/// `CoDel`'s marks reach the header, with its checksum right.
#[test]
fn marks_are_written() {
    let mut scene = Scene::new(|settings, wire| {
        wire.room = Some(0);
        let ce_threshold = Some(Duration::from_micros(10));
        settings.queue.discipline.codel.ce_threshold = ce_threshold;
    });
    for class in [0, 1, 2, 3] {
        scene.send(0, VnetHdr::default(), &segment(class, false).build(b"x"));
    }
    scene.set_room(None);
    scene.now = Instant::from_millis(1);
    let classes: Vec<_> =
        scene.drain().iter().map(|frame| verified(frame).traffic_class & 3).collect();
    assert_eq!(classes, [0, 3, 3, 3]);
    assert_eq!(scene.status().marked, 3);
}

#[test]
fn a_guest_that_fills_its_queue_costs_the_other_no_frame() {
    let mut scene = Scene::new(|settings, wire| {
        wire.room = Some(0);
        settings.queue.discipline = Discipline { limit_packets: 50, ..Discipline::default() };
    });
    for n in 0..1000 {
        scene.send(0, VnetHdr::default(), &numbered(1, 9, n, 1400));
    }
    for n in 0..50 {
        scene.send(1, VnetHdr::default(), &numbered(2, 9, n, 100));
    }
    let dropped = scene.sent.drops(DropReason::UplinkQueueFull);
    scene.set_room(None);
    let left = scene.drain();
    let from = |vm: u8| left.iter().filter(|frame| frame[11] == vm).count();
    assert_eq!(from(2), 50);
    assert_eq!(left.len() as u64 + dropped, 1050);
    assert_eq!(scene.sent.packets.get() + dropped, 1050);
}

#[test]
fn defaults_follow_the_link() {
    let gigabit = LinkRate::new(Some(1_000_000_000));
    let fast = LinkRate::new(Some(10_000_000_000));
    assert!(gigabit.is_slow() && !fast.is_slow() && !LinkRate::default().is_slow());
    let meter = MeterConfig::default();
    assert_eq!(meter.pair(gigabit.bits_per_second()).rate, 1_250_000);
    assert_eq!(meter.pair(fast.bits_per_second()).rate, 12_500_000);
    assert_eq!(meter.pair(None).rate, 1_250_000);
    let own = MeterConfig { rate: Some(8_000_000), ..meter };
    assert_eq!(own.pair(gigabit.bits_per_second()).rate, 1_000_000);
}

/// The frames of one guest to one destination are refused: nobody else waits, in its own class or the other, and its
/// other frames leave afterwards, in order.
#[test]
fn a_frame_that_the_device_refuses_delays_its_sender_only() {
    let mut scene = Scene::new(|_, wire| wire.refused = Some(8));
    for n in 0..3 {
        scene.send(0, VnetHdr::default(), &numbered(1, 8, n, 100));
    }
    scene.send(0, VnetHdr::default(), &numbered(1, 9, 3, 100));
    for n in 0..100 {
        scene.send(1, VnetHdr::default(), &numbered(2, 9, n, 1400));
    }
    let left = scene.wire();
    assert!(
        left.iter().map(|frame| (frame[11], number_of(frame))).eq((0..100).map(|n| (2, Some(n))))
    );
    assert_eq!(lock(&scene.device.0).offered, 101, "the refused frame once");
    let late = scene.drain();
    assert_eq!((late.len(), number_of(&late[0])), (1, Some(3)));
    assert_eq!(scene.sent.drops(DropReason::UplinkRefused), 3);
    assert_eq!(scene.now, Instant::from_micros(3 * 750));
    assert_eq!(lock(&scene.device.0).offered, 100 + 3 * u64::from(queue::MAX_REFUSALS) + 1);
}

/// A device whose own queue was full for a moment loses nothing, and order holds.
#[test]
fn a_device_that_refuses_for_a_moment_loses_nothing() {
    let mut scene = Scene::new(|_, wire| wire.refused = Some(9));
    for n in 0..50 {
        scene.send(0, VnetHdr::default(), &numbered(1, 9, n, 100));
    }
    let bulk = tcp(1, 9, false).build_partial(&pattern(4, 60_000));
    scene.send(0, partial(&bulk, 1400), &bulk);
    scene.now = scene.next_look();
    scene.pump();
    assert!(scene.wire().is_empty());
    lock(&scene.device.0).refused = None;
    let left = scene.drain();
    let udp = left.iter().filter(|frame| frame[23] == 17);
    let numbers: Vec<_> = udp.map(|frame| number_of(frame).unwrap()).collect();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    let tcp: Vec<_> =
        left.iter().filter_map(|frame| verified(frame).tcp().map(|t| t.sequence)).collect();
    assert!(tcp.is_sorted() && tcp.len() == 43, "the low class in order, too");
    assert_eq!((left.len(), scene.sent.drops(DropReason::UplinkRefused)), (50 + 43, 0));
}

/// However many segments a GSO packet has, who sends meanwhile waits for few of them.
#[test]
fn the_lock_is_held_for_a_piece_of_a_gso_packet_at_a_time() {
    let scene = Scene::plain();
    let original = tcp(1, 9, false).build_partial(&pattern(4, 60_000));
    let (left, most) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let note = |_: &Egress| {
        let now = scene.sent.packets.get();
        most.set(most.get().max(now - left.get()));
        left.set(now);
    };
    for frames in [1, 40] {
        frame::with_slice(partial(&original, 48), &original, |frame| {
            let frames = std::iter::repeat_n(*frame, frames);
            scene.egress.send(PortId(0), scene.now, frames, &scene.sent, note);
        });
        while scene.egress.resume(PortId(0), scene.now, &scene.sent, note).is_some() {}
    }
    assert_eq!((left.get(), most.get()), (41 * 1250, PIECE as u64));
}

/// A GSO packet of very many segments leaves in pieces, one in each turn of its source; others leave in between, and what its source
/// sends behind it does so after it.
#[test]
fn a_gso_packet_of_many_segments_takes_many_turns() {
    let mut scene = Scene::plain();
    let (v6, payload) = (false, pattern(4, 48 * 100));
    let original = segment(1, v6).build_partial(&payload);
    scene.send(0, partial(&original, 48), &original);
    scene.send(0, VnetHdr::default(), &numbered(1, 9, 7, 100));
    scene.send(1, VnetHdr::default(), &numbered(2, 9, 8, 100));
    let left = scene.wire();
    assert_eq!(left.len(), 1, "not before its turns");
    assert_eq!(number_of(&left[0]), Some(8), "others leave");
    assert!(scene.egress.is_uncut(PortId(0)) && !scene.egress.is_uncut(PortId(1)));
    let mut turns = Vec::new();
    while let Some(work) = scene.egress.resume(PortId(0), scene.now, &scene.sent, |_| ()) {
        let left = scene.wire();
        turns.push((left.len() as u64, work.segments, work.device));
        if turns.len() == 5 {
            assert_eq!(number_of(&left[0]), Some(7), "behind it");
        }
    }
    // What waited behind it was charged when it came.
    assert_eq!(turns, [(32, 32, 32), (32, 32, 32), (32, 32, 32), (4, 4, 4), (1, 0, 0)]);
    assert!(!scene.egress.is_uncut(PortId(0)));
}

/// Pieces are those of the whole cut, with the code point of its class.
#[test]
fn what_is_cut_in_many_turns_is_what_is_cut_at_once() {
    let payload = pattern(4, 48 * 1000 + 5);
    for v6 in [false, true] {
        let original = segment(1, v6).build_partial(&payload);
        let mut tagged = original.clone();
        traffic_class::set_dscp(&mut tagged, 0);
        let mut segmenter = Segmenter::new(&tagged, 48).unwrap();
        let (mut expected, mut buffer) = (Vec::new(), vec![0; 2000]);
        while let Some(len) = segmenter.write_next(&mut buffer).unwrap() {
            expected.push(buffer[..len].to_vec());
        }
        let mut scene = Scene::plain();
        scene.send(0, partial(&original, 48), &original);
        scene.resume_all(0);
        assert!(scene.wire() == expected);
    }
}

/// Memory is bounded, whoever sends how much.
#[test]
fn no_source_keeps_more_to_be_cut_than_it_may() {
    let mut scene = Scene::plain();
    let original = segment(1, false).build_partial(&pattern(4, 60_000));
    for _ in 0..100 {
        scene.send(0, partial(&original, 48), &original);
    }
    let dropped = scene.sent.drops(DropReason::UplinkQueueFull);
    assert_eq!(dropped, 100 - (4_u64 << 20).div_ceil(original.len() as u64));
    scene.resume_all(0);
    assert_eq!(scene.wire().len() as u64, (100 - dropped) * 1250);
}

/// A guest that sends a little to each of 250 destinations has its share of the link, not all of it.
#[test]
fn invented_destinations_do_not_starve_the_bulk_of_another_guest() {
    let mut scene = Scene::new(|settings, _| {
        settings.queue.rate = Some(100_000_000);
        settings.link = LinkRate::new(Some(100_000_000));
    });
    let mut left = [0_usize; 3];
    for n in 0..6000 {
        scene.now += Duration::from_micros(100);
        for _ in 0..2 {
            scene.send(0, VnetHdr::default(), &numbered(1, (n % 250) as u8, n, 1400));
            scene.send(1, VnetHdr::default(), &numbered(2, 9, n, 1400));
        }
        let frames = scene.wire();
        // The first bursts, of as many destinations as have been met, are soon over.
        if n >= 2000 {
            frames.iter().for_each(|frame| left[usize::from(frame[11])] += 1);
        }
    }
    assert!(20 * left[2] >= 9 * (left[1] + left[2]), "nine tenths of its half: {left:?}");
    assert!(scene.status().meter.is_some_and(|meter| meter.capped_packets > 0));
}
