//! What guests send to the network, through the whole switch and a veth pair. Needs root and ip(8).

mod netns;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use floodway_switch::Switch;
use floodway_switch::api::control::PairQuery;
use floodway_switch::config::Config;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::testing::frames::{
    ipv4, mac, number_of, numbered, partial, pattern, tcp, verified,
};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};
use floodway_switch::uplink::Sender;
use floodway_switch::uplink::packet::{self, PacketReceiver, PacketSender};
use floodway_wire::traffic_class::{set_dscp, traffic_class};
use floodway_wire::vnet::VnetHdr;

/// The host beyond the uplink.
const FAR: u8 = 9;

/// A guest on its port.
struct Vm {
    guest: Guest,
    _frontend: Frontend,
}

impl Vm {
    fn send(&mut self, vnet: &VnetHdr, frame: &[u8]) {
        wait("room to transmit", || self.guest.send(0, vnet, frame).then_some(()));
    }
}

/// Two guests, and a receiver at the far end of the uplink.
struct Scene {
    switch: Switch,
    vms: [Vm; 2],
    far: PacketReceiver,
    /// The other direction of the far end.
    speak: PacketSender,
}

impl Scene {
    fn frame(&mut self) -> Vec<u8> {
        netns::receive(&mut self.far, |_, frame| frame[6..11] == mac(1).0[..5]).1
    }
}

/// Sets the scene with `extra` sections, the first of which belongs to the uplink.
fn within(extra: &str, test: impl FnOnce(&mut Scene) + Send) {
    within_ports("", extra, test);
}

/// As [`within`], with more keys for the ports.
fn within_ports(keys: &str, extra: &str, test: impl FnOnce(&mut Scene) + Send) {
    netns::within(|| {
        netns::add_veth();
        let (far, mut speak) = packet::open("v1").expect("open the far end");
        let dir = tempfile::tempdir().expect("a directory");
        let port = |n: u8| {
            let socket = dir.path().join(format!("vm{n}.sock"));
            format!("[[port]]\nname = \"vm{n}\"\nsocket = {socket:?}\nmac = \"{}\"\n{keys}", mac(n))
        };
        let text = format!(
            "control = {:?}\n{}{}[[uplink]]\nname = \"up0\"\nkind = \"packet\"\ndevice = \"v0\"\n{extra}",
            dir.path().join("c.sock"),
            port(1),
            port(2),
        );
        let config = Config::parse(&text, Path::new("test")).expect("a good configuration");
        let switch = Switch::start(&config).expect("start the switch");
        let vms = [0, 1].map(|i: usize| {
            let guest = Guest::new(GuestConfig::default());
            let frontend = Frontend::attach(&config.ports[i].socket, &guest);
            Vm { guest, _frontend: frontend }
        });
        // So that the switch knows where the far end is, and need not flood.
        let hello = numbered(FAR, 1, 0, 60);
        wait("the far end in the table", || {
            let _ = speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&hello)]);
            let status = switch.status_source().status();
            status.l2.iter().any(|entry| entry.mac == mac(FAR).to_string()).then_some(())
        });
        test(&mut Scene { switch, vms, far, speak });
    });
}

#[test]
fn what_leaves_carries_our_code_point_and_what_stays_carries_theirs() {
    within("", |scene| {
        for number in 0..60 {
            let mut frame = numbered(1, FAR, number, 1400);
            set_dscp(&mut frame, 46);
            let ecn = number as u8 & 3;
            frame[15] |= ecn;
            // By hand: the header checksum of what was just changed.
            let header: [u8; 20] = frame[14..34].try_into().expect("a header");
            let mut zeroed = header;
            zeroed[10..12].fill(0);
            let checksum = floodway_wire::checksum::checksum(&zeroed);
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            scene.vms[0].send(&VnetHdr::default(), &frame);
        }
        let mut high = 0;
        for number in 0..60 {
            let frame = scene.frame();
            assert_eq!(number_of(&frame), Some(number), "in order");
            let class = verified(&frame).traffic_class;
            assert_eq!(class & 3, number as u8 & 3, "ECN is the guest's");
            assert!([0, 46].contains(&(class >> 2)));
            high += u32::from(class >> 2 == 46);
        }
        // 30 KB, and what 10 Mbit/s bring while the test runs.
        assert!((20..60).contains(&high), "{high}");
        let operator = scene.switch.operator();
        let page = operator.pairs(&PairQuery::default()).expect("pairs");
        let pair = &page.pairs[0];
        assert_eq!((pair.port.as_str(), pair.uplink.as_str()), ("vm1", "up0"));
        assert_eq!(pair.destination, Some(ipv4(FAR).to_string()));
        let meter = operator.status().uplinks[0].egress.meter.expect("a meter");
        assert_eq!((meter.pairs, meter.high_packets + meter.low_packets), (1, 60));
        assert_eq!(meter.high_packets, u64::from(high));

        let mut frame = numbered(1, 2, 7, 1400);
        set_dscp(&mut frame, 63);
        scene.vms[0].send(&VnetHdr::default(), &frame);
        let (_, got) = wait("a frame for VM 2", || scene.vms[1].guest.recv(0));
        assert_eq!(got, frame, "co-resident frames are nobody's business");
    });
}

#[test]
fn a_small_flow_overtakes_another_vms_gso_packets() {
    // A fifo drops nothing before it is full.
    let slow = "[uplink.queue]\ndiscipline = \"fifo\"\nrate_mbit = 20\n";
    within(slow, |scene| {
        let bulk = tcp(1, FAR, false).build_partial(&pattern(1, 60_000));
        let vnet = partial(&bulk, 1400);
        for _ in 0..4 {
            scene.vms[0].send(&vnet, &bulk);
        }
        wait_until("a queue", || {
            scene.switch.status_source().status().uplinks[0].egress.low.packets > 20
        });
        scene.vms[1].send(&VnetHdr::default(), &numbered(2, FAR, 1, 100));
        let mut bulk_before = 0;
        let mut frames = 0;
        let small = loop {
            let frame = scene.frame();
            frames += 1;
            if frame[11] == 2 {
                break frame;
            }
            assert_eq!(verified(&frame).traffic_class >> 2, 0, "a large flow");
            bulk_before += 1;
        };
        assert_eq!(traffic_class(&small).map(|class| class >> 2), Some(46));
        // All that it waits for is behind it: 4 * 43 segments, of which more than 20 were still queued.
        while frames < 4 * 43 + 1 {
            assert_eq!(scene.frame()[11], 1);
            frames += 1;
        }
        assert!(bulk_before + 20 < 4 * 43, "{bulk_before}");
        let egress = &scene.switch.status_source().status().uplinks[0].egress;
        assert!(egress.segment && egress.queued > 0);
        assert_eq!((egress.low.packets, egress.high.packets), (0, 0));
    });
}

#[test]
fn what_waits_leaves_by_itself() {
    // A worker that sleeps at once has only its timer to rely on.
    within("[uplink.queue]\nrate_mbit = 20\n[[worker]]\npoll_us = 0\n", |scene| {
        for number in 0..50 {
            scene.vms[0].send(&VnetHdr::default(), &numbered(1, FAR, number, 1400));
        }
        for number in 0..50 {
            assert_eq!(number_of(&scene.frame()), Some(number));
        }
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(scene.switch.status_source().status().uplinks[0].tx.dropped(), 0);
    });
}

#[test]
fn what_the_network_floods_is_limited() {
    // The limit belongs to the uplink, which is the last section so far.
    within("storm_pps = 1\n", |scene| {
        for number in 0..200 {
            let frame = numbered(FAR, 77, number, 100);
            scene.speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&frame)]).expect("send");
        }
        let drops = || scene.switch.status_source().status().uplinks[0].rx.drops["storm"];
        wait_until("most of it dropped", || drops() >= 150);
        let known = numbered(FAR, 2, 7, 100);
        scene.vms[1].send(&VnetHdr::default(), &numbered(2, FAR, 0, 60));
        scene.frame();
        scene.speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&known)]).expect("send");
        wait("a frame to a known address", || {
            scene.vms[1].guest.recv(0).filter(|(_, frame)| *frame == known)
        });
    });
}

#[test]
fn multicast_from_the_network_has_a_limit_of_its_own() {
    within("storm_pps = 1\n", |scene| {
        let send = |scene: &mut Scene, dst: [u8; 6], number| {
            let mut frame = numbered(FAR, 77, number, 100);
            frame[..6].copy_from_slice(&dst);
            scene.speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&frame)]).expect("send");
        };
        // The first one uses the limit of broadcasts up.
        send(scene, [0xff; 6], 0);
        (1..200).for_each(|number| send(scene, [1, 0, 0x5e, 0, 0, 1], number));
        for number in 0..200 {
            let frame = wait("a flooded frame", || scene.vms[1].guest.recv(0)).1;
            assert_eq!(number_of(&frame), Some(number));
        }
    });
    within("storm_pps = 0\nmulticast_pps = 1\n", |scene| {
        for number in 0..200 {
            let mut frame = numbered(FAR, 77, number, 100);
            frame[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 1]);
            scene.speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&frame)]).expect("send");
        }
        let drops = || scene.switch.status_source().status().uplinks[0].rx.drops["storm"];
        wait_until("most of it dropped", || drops() >= 150);
    });
}

#[test]
fn isolated_guests_reach_the_network_and_are_reached_from_there() {
    isolated_guests("isolate = true\n", "");
}

#[test]
fn guests_of_an_isolated_network_reach_the_network_and_are_reached_from_there() {
    let red = "network = \"red\"\n";
    isolated_guests(red, &format!("{red}{RED}isolate = true\n"));
}

const RED: &str = "[[network]]\nname = \"red\"\nvid = 10\n";

fn isolated_guests(keys: &str, extra: &str) {
    within_ports(keys, extra, |scene| {
        let mut broadcast = numbered(1, 2, 1, 100);
        broadcast[..6].fill(0xff);
        for frame in [&numbered(1, 2, 0, 100), &broadcast, &numbered(1, FAR, 2, 100)] {
            scene.vms[0].send(&VnetHdr::default(), frame);
        }
        for number in [1, 2] {
            assert_eq!(number_of(&scene.frame()), Some(number));
        }
        let drops = || scene.switch.status_source().status().ports[0].tx().drops["isolated"];
        wait_until("the drop of the frame to the other guest", || drops() == 1);
        let answer = numbered(FAR, 2, 3, 100);
        scene.speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&answer)]).expect("send");
        let (_, frame) = wait("the frame from the network", || scene.vms[1].guest.recv(0));
        assert_eq!(number_of(&frame), Some(3), "and nothing of the other guest's before");
    });
}

#[test]
fn an_uplink_of_another_network_is_not_reached() {
    within_ports("network = \"red\"\n", RED, |scene| {
        let status = |scene: &Scene| scene.switch.status_source().status();
        let mut broadcast = numbered(1, 2, 1, 100);
        broadcast[..6].fill(0xff);
        // Where the far end is, is known in the network of the uplink only.
        for frame in [&numbered(1, FAR, 0, 100), &broadcast] {
            scene.vms[0].send(&VnetHdr::default(), frame);
            let (_, got) = wait("a flooded frame", || scene.vms[1].guest.recv(0));
            assert_eq!(got, *frame);
        }
        assert_eq!(status(scene).uplinks[0].tx.packets, 0);
        let stray = numbered(FAR, 2, 3, 100);
        let mut fence = stray.clone();
        fence.splice(12..12, [0x81, 0, 0, 10]);
        for frame in [&stray, &fence] {
            scene.speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(frame)]).expect("send");
        }
        wait_until("the fence", || status(scene).uplinks[0].rx.drops["vlan_filtered"] == 1);
        assert!(status(scene).uplinks[0].rx.drops["no_destination"] > 0);
        assert_eq!(status(scene).ports[1].rx().packets, 2);
    });
}

#[test]
fn tags_from_the_network_are_dropped_and_counted() {
    within("", |scene| {
        let mut tagged = numbered(FAR, 2, 1, 100);
        tagged.splice(12..12, [0x81, 0, 0, 10]);
        let plain = numbered(FAR, 2, 2, 100);
        for frame in [&tagged, &plain] {
            scene.speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(frame)]).expect("send");
        }
        let (_, got) = wait("the frame without a tag", || scene.vms[1].guest.recv(0));
        assert_eq!(got, plain);
        let status = scene.switch.status_source().status();
        assert_eq!(status.uplinks[0].rx.drops["vlan_filtered"], 1);
    });
}

/// Lets the egress filter of `device` drop what goes to host `n`. The sender sees ENOBUFS.
fn filter_out(device: &str, n: u8) {
    let drop = format!("4,32 0 0 2,21 0 1 {n},6 0 0 2,6 0 0 4294967295");
    let filter = format!("filter add dev {device} egress bpf da bytecode");
    let tc = |args: &str, last: Option<&str>| {
        let status = Command::new("tc").args(args.split_whitespace()).args(last).status();
        assert!(status.is_ok_and(|status| status.success()), "tc {args}");
    };
    tc(&format!("qdisc add dev {device} clsact"), None);
    tc(&filter, Some(&drop));
}

#[test]
fn a_destination_that_the_host_filters_out_stalls_nobody_else() {
    within("", |scene| {
        filter_out("v0", 8);
        for number in 0..20 {
            scene.vms[0].send(&VnetHdr::default(), &numbered(1, 8, number, 100));
        }
        let status = || scene.switch.status_source().status();
        wait_until("the filtered frames on their way", || status().ports[0].tx().packets == 20);
        for number in 0..20 {
            scene.vms[1].send(&VnetHdr::default(), &numbered(2, FAR, number, 100));
        }
        for number in 0..20 {
            let frame = netns::receive(&mut scene.far, |_, frame| frame[6..11] == mac(1).0[..5]).1;
            assert_eq!((frame[11], number_of(&frame)), (2, Some(number)));
        }
        wait_until("all refused", || status().uplinks[0].tx.drops["uplink_refused"] == 20);
        scene.vms[0].send(&VnetHdr::default(), &numbered(1, FAR, 99, 100));
        assert_eq!(number_of(&scene.frame()), Some(99), "the guest's other destinations are open");
    });
}
