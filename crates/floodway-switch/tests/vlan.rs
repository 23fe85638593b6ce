//! Several networks over one uplink, with VLAN tags, through the whole switch and a veth pair. Needs root and ip(8).

mod netns;

use floodway_switch::Switch;
use floodway_switch::api::status::Status;
use floodway_switch::config::{Config, PortConfig};
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tagged, tcp, verified};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};
use floodway_switch::uplink::Sender;
use floodway_switch::uplink::packet::{self, PacketReceiver, PacketSender};
use floodway_wire::vnet::VnetHdr;

/// The host beyond the uplink, which has the same address in all networks.
const FAR: u8 = 9;
const RED: u16 = 10;
const BLUE: u16 = 20;

const NETWORKS: &str = "[[network]]\nname = \"default\"\nvid = 1\n[[network]]\nname = \"red\"\nvid = 10\n[[network]]\nname = \"blue\"\nvid = 20\n\
    [[network]]\nname = \"green\"\nvid = 30\n";
/// Network and address of each guest: two have the same.
const GUESTS: [(&str, u8); 3] = [("red", 1), ("blue", 1), ("default", 3)];

struct Scene {
    switch: Switch,
    guests: Vec<(Guest, Frontend)>,
    far: PacketReceiver,
    /// The other direction of the far end.
    speak: PacketSender,
}

impl Scene {
    fn status(&self) -> Status {
        self.switch.status_source().status()
    }

    fn send(&mut self, guest: usize, vnet: &VnetHdr, frame: &[u8]) {
        let guest = &mut self.guests[guest].0;
        wait("room to transmit", || guest.send(0, vnet, frame).then_some(()));
    }

    fn recv(&mut self, guest: usize) -> (VnetHdr, Vec<u8>) {
        wait("a frame for a guest", || self.guests[guest].0.recv(0))
    }

    fn speak(&mut self, frame: &[u8]) {
        self.speak.send(&VnetHdr::default(), &[GuestIoVec::from_slice(frame)]).expect("send");
    }

    /// The next frame of a guest that leaves the host.
    fn left(&mut self) -> (VnetHdr, Vec<u8>) {
        netns::receive(&mut self.far, |_, frame| frame[6..11] == mac(1).0[..5])
    }
}

/// Sets the scene with an uplink of these networks.
fn within(uplink: &str, test: impl FnOnce(&mut Scene) + Send) {
    within_with(uplink, "network = \"green\"\n", test);
}

/// As [`within`], with a fourth guest in the networks that `keys` say.
fn within_with(uplink: &str, keys: &str, test: impl FnOnce(&mut Scene) + Send) {
    netns::within(|| {
        netns::add_veth();
        let (far, speak) = packet::open("v1").expect("open the far end");
        let dir = tempfile::tempdir().expect("a directory");
        let mut text = format!("control = {:?}\n{NETWORKS}", dir.path().join("c.sock"));
        for (index, (network, address)) in GUESTS.into_iter().enumerate() {
            let socket = dir.path().join(format!("vm{index}.sock"));
            text += &format!(
                "[[port]]\nname = \"vm{index}\"\nsocket = {socket:?}\nnetwork = \"{network}\"\nmac = \"{}\"\n",
                mac(address)
            );
        }
        let (socket, mac) = (dir.path().join("vm3.sock"), mac(4));
        text += &format!("[[port]]\nname = \"vm3\"\nsocket = {socket:?}\nmac = \"{mac}\"\n{keys}");
        text +=
            &format!("[[uplink]]\nname = \"up0\"\nkind = \"packet\"\ndevice = \"v0\"\n{uplink}");
        let config = Config::parse(&text, "test".as_ref()).expect("a good configuration");
        let switch = Switch::start(&config).expect("start the switch");
        let attach = |port: &PortConfig| {
            let guest = Guest::new(GuestConfig::default());
            let frontend = Frontend::attach(&port.socket, &guest);
            (guest, frontend)
        };
        let guests = config.ports.iter().map(attach).collect();
        let mut scene = Scene { switch, guests, far, speak };
        wait_until("the guests", || {
            scene
                .status()
                .ports
                .iter()
                .all(|port| port.rx().dropped() == 0 && port.queue_pairs_enabled > 0)
        });
        test(&mut scene);
    });
}

const ALL: &str = "network = \"default\"\ntagged = [\"red\", \"blue\"]\n";

fn in_vlan(vid: Option<u16>, frame: &[u8]) -> Vec<u8> {
    vid.map_or_else(|| frame.to_vec(), |vid| tagged(vid, frame))
}

const VIDS: [Option<u16>; 3] = [Some(RED), Some(BLUE), None];

#[test]
fn networks_with_the_same_addresses_share_an_uplink_and_do_not_see_each_other() {
    within(ALL, |scene| {
        for round in 0..3 {
            for (guest, vid) in VIDS.into_iter().enumerate() {
                let number = 10 * round + guest as u32;
                let address = GUESTS[guest].1;
                // From the same host to the same address: what differs is the tag.
                let arriving = numbered(FAR, address, number, 100);
                scene.speak(&in_vlan(vid, &arriving));
                assert_eq!(scene.recv(guest).1, arriving);
                let mut broadcast = arriving.clone();
                broadcast[..6].fill(0xff);
                scene.speak(&in_vlan(vid, &broadcast));
                assert_eq!(scene.recv(guest).1, broadcast);
                let leaving = numbered(address, FAR, number, 100);
                scene.send(guest, &VnetHdr::default(), &leaving);
                let mut left = scene.left().1;
                // The meter's code point, and the header checksum with it.
                let ip = if vid.is_some() { 18 } else { 14 };
                let expected = in_vlan(vid, &leaving);
                for at in [ip + 1, ip + 10, ip + 11] {
                    left[at] = expected[at];
                }
                assert_eq!(left, expected);
            }
        }
        let status = scene.status();
        let place = |network: &str| {
            let is_it = |e: &&floodway_switch::api::status::L2Entry| {
                e.mac == mac(FAR).to_string() && e.network == network
            };
            status.l2.iter().filter(is_it).map(|entry| &*entry.port).collect::<Vec<_>>()
        };
        assert_eq!(["red", "blue", "default"].map(place), [["up0"], ["up0"], ["up0"]]);
        assert!(status.ports[..3].iter().all(|port| port.rx().packets == 6), "{:?}", status.ports);
        assert_eq!((status.uplinks[0].rx.dropped(), status.uplinks[0].tx.dropped()), (0, 0));
        assert_eq!(
            (&*status.uplinks[0].network, &*status.uplinks[0].tagged),
            ("default", &["red".to_owned(), "blue".to_owned()][..])
        );
    });
}

#[test]
fn what_is_of_no_network_of_the_uplink_is_dropped_and_counted() {
    let frame = |number| numbered(FAR, 3, number, 100);
    within(ALL, |scene| {
        let mut service = tagged(RED, &frame(0));
        service[12..14].copy_from_slice(&[0x88, 0xa8]);
        let twice = tagged(RED, &tagged(RED, &frame(1)));
        for bad in [tagged(30, &frame(2)), tagged(99, &frame(3)), service, twice] {
            scene.speak(&bad);
        }
        // A priority tag says nothing of a network.
        scene.speak(&tagged(0, &frame(5)));
        assert_eq!(scene.recv(2).1, frame(5));
        let status = scene.status();
        assert_eq!(status.uplinks[0].rx.drops["vlan_filtered"], 4);
        assert!(status.ports[..2].iter().all(|port| port.rx().packets == 0));
    });
    within("tagged = [\"red\"]\n", |scene| {
        for bad in [frame(0), tagged(0, &frame(1)), tagged(BLUE, &frame(2))] {
            scene.speak(&bad);
        }
        let good = numbered(FAR, 1, 3, 100);
        scene.speak(&tagged(RED, &good));
        assert_eq!(scene.recv(0).1, good);
        assert_eq!(scene.status().uplinks[0].rx.drops["vlan_filtered"], 3);
        // Nobody else is in these networks.
        scene.send(1, &VnetHdr::default(), &numbered(1, FAR, 4, 100));
        scene.send(2, &VnetHdr::default(), &numbered(3, FAR, 5, 100));
        wait_until("the drops", || {
            scene.status().ports[1..3].iter().all(|port| port.tx().drops["no_destination"] == 1)
        });
        assert_eq!(scene.status().uplinks[0].tx.packets, 0);
    });
}

#[test]
fn gso_packets_are_tagged_whole_and_cut() {
    let segment = tcp(1, FAR, false);
    let payload = pattern(3, 20_000);
    let bytes = segment.build_partial(&payload);
    within(&format!("{ALL}[uplink.queue]\nsegment = false\n"), |scene| {
        scene.speak(&tagged(RED, &numbered(FAR, 1, 0, 60)));
        scene.recv(0);
        scene.send(0, &partial(&bytes, 1400), &bytes);
        let (vnet, left) = scene.left();
        let sent = partial(&tagged(RED, &bytes), 1400);
        assert_eq!(
            (vnet.gso_size, vnet.csum_start, vnet.csum_offset),
            (1400, sent.csum_start, sent.csum_offset)
        );
        assert_eq!(left[12..16], [0x81, 0, 0, RED as u8]);
        assert!(left.ends_with(&payload) && left.len() == bytes.len() + 4);
    });
    within(&format!("{ALL}[uplink.queue]\nsegment = true\n"), |scene| {
        scene.speak(&tagged(BLUE, &numbered(FAR, 1, 0, 60)));
        scene.recv(1);
        scene.send(1, &partial(&bytes, 1400), &bytes);
        let mut got: Vec<u8> = Vec::new();
        while got.len() < payload.len() {
            let (_, frame) = scene.left();
            let meta = verified(&frame);
            assert_eq!(meta.vlan.outer_vid(), Some(BLUE));
            got.extend(&frame[usize::from(meta.payload_offset)..]);
        }
        assert_eq!(got, payload);
    });
}

/// A guest on a trunk port has the same tags as the uplink, and each side is tagged in its own way.
#[test]
fn a_trunk_port_and_an_uplink_tag_each_for_itself() {
    const TRUNK: &str = "network = \"red\"\ntagged = [\"default\", \"blue\"]\n";
    let segment = tcp(4, FAR, false);
    let payload = pattern(3, 20_000);
    let bytes = segment.build_partial(&payload);
    within_with(&format!("{ALL}[uplink.queue]\nsegment = true\n"), TRUNK, |scene| {
        let guest = GUESTS.len();
        // VLAN identifier at the guest and at the uplink.
        for (here, there) in [(None, Some(RED)), (Some(BLUE), Some(BLUE)), (Some(1), None)] {
            let arriving = numbered(FAR, 4, here.map_or(0, u32::from), 100);
            scene.speak(&in_vlan(there, &arriving));
            assert_eq!(scene.recv(guest).1, in_vlan(here, &arriving));
            let leaving = in_vlan(here, &bytes);
            scene.send(guest, &partial(&leaving, 1400), &leaving);
            let mut got: Vec<u8> = Vec::new();
            while got.len() < payload.len() {
                let (_, frame) = scene.left();
                let meta = verified(&frame);
                assert_eq!(meta.vlan.outer_vid(), there);
                got.extend(&frame[usize::from(meta.payload_offset)..]);
            }
            assert_eq!(got, payload);
        }
        let status = scene.status();
        assert_eq!(
            (status.ports[guest].tx().dropped(), status.ports[guest].rx().dropped()),
            (0, 0)
        );
    });
}
