//! Captures of ports of a real switch.

use std::sync::atomic::Ordering;

use floodway_switch::api::capture::{CaptureRequest, MAX_CAPTURES, Stage};
use floodway_switch::api::control::ControlError;
use floodway_switch::testing::capture::Running;
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tcp};
use floodway_switch::testing::{GuestConfig, wait};
use floodway_wire::pcapng::Direction;
use floodway_wire::vnet::VnetHdr;

use crate::net::{Net, port};

fn begin(net: &Net, request: &CaptureRequest) -> Result<Running, ControlError> {
    Running::begin(&net.switch.as_ref().expect("the switch runs").operator(), request)
}

fn dropped(request: CaptureRequest, stage: Stage) -> CaptureRequest {
    CaptureRequest { stages: vec![stage], drops: true, ..request }
}

#[test]
fn a_port_is_seen_both_ways() {
    let net = Net::of(3);
    let [mut one, mut two, mut three] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    let capture = begin(&net, &CaptureRequest::new("vm1")).unwrap();
    let (there, back, elsewhere) =
        (numbered(1, 2, 1, 100), numbered(2, 1, 2, 900), numbered(2, 3, 3, 100));
    one.send(&there);
    two.expect(&there);
    two.send(&elsewhere);
    three.expect(&elsewhere);
    two.send(&back);
    one.expect(&back);
    capture.wait_for(2);
    let file = capture.end();
    assert_eq!((&*file.interface, &*file.end), ("vm1", "ended by its user"));
    let [first, second] = &file.packets[..] else { panic!("{:?}", file.packets) };
    assert_eq!((&first.bytes, first.direction), (&there, Direction::Inbound));
    assert_eq!((&second.bytes, second.direction), (&back, Direction::Outbound));
    assert!(second.time_ns > first.time_ns && first.comment.is_empty());
    assert_eq!((file.seen(), file.lost()), (2, 0));
}

#[test]
fn dropped_frames_have_their_reasons() {
    let net = Net::of(2);
    let mut one = net.boot(1, GuestConfig::default());
    let sent = begin(&net, &dropped(CaptureRequest::new("vm1"), Stage::In)).unwrap();
    let mut spoofed = numbered(1, 2, 1, 60);
    spoofed[6..12].copy_from_slice(&mac(9).0);
    let mut hairpin = numbered(1, 1, 2, 60);
    hairpin[..6].copy_from_slice(&mac(1).0);
    for frame in [&spoofed, &hairpin, &numbered(1, 2, 3, 60), &vec![1; 5]] {
        one.send(frame);
    }
    let nonsense = VnetHdr { gso_type: 77, ..VnetHdr::default() };
    one.send_with(&nonsense, &numbered(1, 2, 4, 1000));
    sent.wait_for(5);
    let file = sent.end();
    let reasons = ["spoofed_mac", "hairpin", "no_destination", "runt", "bad_offload"];
    assert_eq!(file.comments(), reasons.map(|reason| format!("drop={reason}")));
    let lens: Vec<_> = file.packets.iter().map(|p| (p.bytes.len(), p.original_len)).collect();
    assert_eq!((lens[2], lens[3]), ((102, 102), (0, 5)), "of wrong ones the first bytes, if any");
    assert!(lens[4].0 < 1042 && lens[4].1 == 1042, "{lens:?}");
    assert!(numbered(1, 2, 4, 1000).starts_with(&file.packets[4].bytes));
    assert_eq!((&file.packets[0].bytes, &file.packets[1].bytes), (&spoofed, &hairpin));
}

#[test]
fn frames_for_a_guest_without_buffers_are_seen_when_they_are_dropped() {
    let small = floodway_switch::config::PortConfig { queue_bytes: 8192, ..port(2) };
    let net = Net::start(vec![port(1), small]);
    let mut one = net.boot(1, GuestConfig::default());
    // It takes what its buffers hold and gives none back.
    let _two = net.boot(2, GuestConfig::default());
    let capture = begin(&net, &dropped(CaptureRequest::new("vm2"), Stage::Out)).unwrap();
    for n in 0..400 {
        one.send(&numbered(1, 2, n, 1000));
    }
    one.wait_sent();
    let expected = wait("drops", || Some(net.rx_drops(2, "queue_full")).filter(|&n| n > 20));
    capture.wait_for(expected as usize);
    let file = capture.end();
    assert!(file.comments().iter().all(|&comment| comment == "drop=queue_full"));
    assert_eq!(file.packets.len() as u64, net.rx_drops(2, "queue_full"));
}

#[test]
fn a_full_ring_loses_copies_and_no_frame() {
    const FRAMES: u32 = 300;
    let net = Net::of(2);
    let [mut one, mut two] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let capture = begin(&net, &CaptureRequest::new("vm1")).unwrap();
    capture.memory.stuck.store(true, Ordering::Release);
    let packet = tcp(1, 2, false).build_partial(&pattern(1, 60_000));
    for _ in 0..FRAMES {
        one.send_with(&partial(&packet, 1448), &packet);
        assert!(two.recv().1 == packet);
    }
    one.wait_sent();
    capture.memory.stuck.store(false, Ordering::Release);
    let file = capture.end();
    assert_eq!(file.seen(), u64::from(FRAMES));
    assert_eq!(file.packets.len() as u64 + file.lost(), u64::from(FRAMES));
    assert!(file.lost() > 100 && file.packets.len() > 60, "{} lost", file.lost());
    assert!(file.packets.iter().all(|p| p.bytes == packet && p.comment == "gso=42x1448"));
}

#[test]
fn a_capture_ends_with_its_frames_and_its_snap_length_cuts() {
    let net = Net::of(2);
    let [mut one, mut two] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let request = CaptureRequest { packets: Some(3), snap_len: 64, ..CaptureRequest::new("vm2") };
    let capture = begin(&net, &request).unwrap();
    for n in 0..10 {
        one.send(&numbered(1, 2, n, 500));
        two.expect(&numbered(1, 2, n, 500));
    }
    let file = capture.wait_end();
    assert_eq!((file.packets.len(), &*file.end), (3, "all frames that were asked for"));
    for (n, packet) in (0..).zip(&file.packets) {
        let frame = numbered(1, 2, n, 500);
        assert_eq!((&packet.bytes[..], packet.original_len), (&frame[..64], frame.len() as u32));
    }
}

#[test]
fn a_filter_selects() {
    let net = Net::of(2);
    let [mut one, mut two] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    // The last byte of the number that a frame has is 7.
    let filter = vec![(0x30, 0, 0, 45), (0x15, 0, 1, 7), (6, 0, 0, 262_144), (6, 0, 0, 0)];
    let request = CaptureRequest { filter, ..CaptureRequest::new("vm1") };
    let capture = begin(&net, &request).unwrap();
    for n in 0..20 {
        one.send(&numbered(1, 2, n, 64));
        two.expect(&numbered(1, 2, n, 64));
    }
    one.wait_sent();
    let file = capture.end();
    assert_eq!(file.packets.len(), 1);
    assert_eq!(file.packets[0].bytes, numbered(1, 2, 7, 64));
    assert_eq!((file.seen(), file.statistics[&6]), (20, 1));
}

#[test]
fn a_capture_follows_a_port_that_changes_and_ends_with_it() {
    let net = Net::of(2);
    let api = net.switch.as_ref().expect("the switch runs").operator();
    let capture = begin(&net, &CaptureRequest::new("vm1")).unwrap();
    let change = |edit: &dyn Fn(&mut floodway_switch::config::Config)| {
        let edit = |running: &floodway_switch::config::Config| {
            let mut config = running.clone();
            edit(&mut config);
            Ok(config)
        };
        api.reconfigure(&edit, false).unwrap();
    };
    change(&|config| config.ports[0].mtu = 9000);
    let mut one = net.boot(1, GuestConfig::default());
    // Until the capture has found the port again nothing is seen.
    wait("a captured frame", || {
        one.send(&numbered(1, 2, 1, 60));
        (!capture.file().packets.is_empty()).then_some(())
    });
    change(&|config| drop(config.ports.remove(0)));
    let file = capture.wait_end();
    assert_eq!(file.end, "the port was removed");
}

#[test]
fn captures_are_few_and_end_when_nobody_listens() {
    let net = Net::of(1);
    let request = CaptureRequest::new("vm1");
    let all: Vec<_> = (0..MAX_CAPTURES).map(|_| begin(&net, &request).unwrap()).collect();
    assert_eq!(begin(&net, &request).err(), Some(ControlError::TooManyCaptures(MAX_CAPTURES)));
    all[1].memory.closed.store(true, Ordering::Release);
    let file = all[1].wait_end();
    assert_eq!(file.end, "nobody listens");
    let next = begin(&net, &request).unwrap();
    assert_eq!((next.status().uid, next.status().running), (7, true));
}

#[test]
fn what_cannot_be_captured_is_refused() {
    let net = Net::of(1);
    let vm1 = CaptureRequest::new("vm1");
    let error = |request: &CaptureRequest| begin(&net, request).err().unwrap().to_string();
    assert_eq!(error(&CaptureRequest::new("x")), "no port or uplink \"x\"; there are vm1");
    let request = CaptureRequest { stages: vec![], ..vm1.clone() };
    assert_eq!(error(&request), "stages: at least one of in, out, offload");
    let request = CaptureRequest { snap_len: 1 << 20, ..vm1.clone() };
    assert_eq!(error(&request), "snap_len = 1048576: must be 14 to 262144");
    let request = CaptureRequest { filter: vec![(5, 0, 0, 9)], ..vm1 };
    assert_eq!(error(&request), "instruction 0 of the filter jumps out of it");
}
