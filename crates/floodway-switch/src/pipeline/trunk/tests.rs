//! Guests in several networks, without threads: what waits for one that has stopped, and what its offload sees.

use std::sync::Arc;

use floodway_core::l2::Rate;
use floodway_wire::MacAddr;
use floodway_wire::build::Tcp;
use floodway_wire::tcp::Flags;
use floodway_wire::vnet::VnetHdr;

use super::*;
use crate::config::{Config, LimitConfig, NetworkConfig, PortConfig, UplinkConfig, UplinkKind};
use crate::frame;
use crate::queues::ring::Ring;
use crate::queues::virtqueue::Virtqueue;
use crate::state::shared::Shared;
use crate::testing::frames::{numbered, tagged, tcp};
use crate::testing::{Guest, GuestConfig};
use crate::vhost::features;

const RED: u16 = 10;
const BLUE: u16 = 20;
const GREEN: u16 = 30;
/// The guest on the trunk, which is port 0.
const T: u8 = 9;

fn network(vid: u16) -> NetworkConfig {
    NetworkConfig::new(format!("network{vid}"), vid)
}

/// A switch whose port 0 is a trunk, red and blue with tags and green without, and whose other ports are in these networks.
struct Scene {
    shared: Arc<Shared>,
    forwarder: Forwarder,
    guests: Vec<Guest>,
}

impl Scene {
    fn new(access: &[u16]) -> Self {
        let mut trunk = PortConfig::new("trunk", "unused");
        trunk.network = Some(network(GREEN));
        trunk.tagged = vec![network(RED), network(BLUE)];
        (trunk.offload.transmit, trunk.offload.receive) = (true, true);
        let access = access.iter().enumerate().map(|(i, &vid)| PortConfig {
            network: Some(network(vid)),
            ..PortConfig::new(format!("vm{}", i + 1), "unused")
        });
        let mut uplink = UplinkConfig::new("up", UplinkKind::Tap, "unused");
        (uplink.network, uplink.tagged) = (Some(network(GREEN)), vec![network(RED)]);
        let ports = std::iter::once(trunk).chain(access).collect();
        let config = Config { ports, uplinks: vec![uplink], ..Config::default() };
        let shared = Shared::without_devices(&config).unwrap();
        let guests = shared.ports().iter().map(|port| attach(port)).collect();
        let forwarder = Forwarder::new(Arc::clone(&shared));
        Self { shared, forwarder, guests }
    }

    /// Guest `i` sends a frame.
    fn send(&mut self, i: usize, frame: &[u8]) {
        assert!(self.guests[i].send_quietly(0, &VnetHdr::default(), frame));
        let (port, mut batch) = (self.shared.port_at(i), Batch::default());
        let mut tx = port.pairs[0].tx();
        tx.dequeue_burst(&mut batch);
        self.forwarder.forward_batch(&port, &mut batch, Instant::ZERO);
        tx.complete(&mut batch);
    }

    /// A frame has arrived by the uplink.
    fn arrive(&mut self, bytes: &[u8]) {
        let uplink = Arc::clone(&self.shared.uplinks()[0]);
        frame::with_slice(VnetHdr::default(), bytes, |frame| {
            self.forwarder.forward_received(&uplink, frame, bytes, Instant::ZERO).unwrap();
        });
        self.forwarder.finish();
    }

    fn received(&mut self, i: usize) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| Some(self.guests[i].recv(0)?.1)).collect()
    }
}

fn attach(port: &Port) -> Guest {
    let guest = Guest::new(GuestConfig { two_regions: false, ..GuestConfig::default() });
    let memory = Arc::new(guest.memory.map());
    let ring = |index: u32| {
        let driver = &guest.queue(index).driver;
        let queue = Virtqueue::new(Arc::clone(&memory), driver.size(), driver.addresses(), true);
        Ring { queue: queue.expect("a good ring"), call: None }
    };
    port.pairs[0].rx().start(ring(0), features::rx(guest.config.features));
    port.pairs[0].tx().start(ring(1), features::tx(guest.config.features));
    port.pairs[0].tx().set_enabled(true);
    port.update_rx_running();
    guest
}

/// From the guest on the trunk.
fn hello(vid: u16) -> Vec<u8> {
    let mut frame = numbered(T, 0, vid.into(), 64);
    frame[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    if vid == GREEN { frame } else { tagged(vid, &frame) }
}

#[test]
fn what_waits_for_a_stopped_guest_follows_its_address_in_each_network() {
    let mut scene = Scene::new(&[RED, BLUE, GREEN, RED]);
    for vid in [RED, BLUE, GREEN] {
        scene.send(0, &hello(vid));
    }
    (1..=4).for_each(|i| assert_eq!(scene.received(i).len(), 1, "{i}"));
    let trunk = scene.shared.port_at(0);
    trunk.pairs[0].rx().stop();
    trunk.update_rx_running();
    let to_trunk = |src, number| numbered(src, T, number, 100);
    for (src, number) in [(1, 1), (2, 2), (3, 3), (1, 4)] {
        scene.send(src.into(), &to_trunk(src, number));
    }
    assert_eq!(trunk.pairs[0].rx().pending().0, 4);
    // The address shows up in red, behind another port.
    let mut moved = numbered(T, 0, 5, 64);
    moved[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    scene.send(4, &moved);
    assert_eq!(scene.received(4), [to_trunk(1, 1), to_trunk(1, 4)]);
    assert_eq!(trunk.pairs[0].rx().pending().0, 2);
    scene.send(2, &moved);
    assert_eq!(scene.received(2).len(), 1, "what waits in blue");
    assert_eq!(scene.received(3), [] as [Vec<u8>; 0]);
    scene.send(3, &moved);
    assert_eq!(scene.received(3), [to_trunk(3, 3)]);
    assert_eq!(trunk.pairs[0].rx().pending().0, 0);
}

#[test]
fn the_offload_sees_what_has_no_tag_and_counts_the_rest() {
    let mut scene = Scene::new(&[RED]);
    scene.arrive(&tagged(RED, &numbered(8, T, 0, 64)));
    scene.arrive(&numbered(8, T, 1, 64));
    scene.received(0);
    let trunk = scene.shared.port_at(0);
    let before = trunk.offload.tagged();
    let mut segment = tcp(T, 8, false);
    segment.flags = Flags::SYN;
    let syn = segment.build(&[]);
    scene.send(0, &tagged(RED, &syn));
    assert_eq!((trunk.offload.tagged() - before, trunk.offload.status().flows), (1, 0));
    scene.send(0, &syn);
    assert_eq!((trunk.offload.tagged() - before, trunk.offload.status().flows), (1, 1));
    // A priority tag is none.
    let mut other = segment.clone();
    other.src_port = 77;
    scene.send(0, &tagged(0, &other.build(&[])));
    assert_eq!((trunk.offload.tagged() - before, trunk.offload.status().flows), (1, 2));
    scene.send(0, &tagged(RED, &hello(GREEN)));
    assert_eq!(trunk.offload.tagged() - before, 2, "flooded, also to the uplink");
    scene.send(0, &tagged(RED, &numbered(T, 1, 3, 64)));
    assert_eq!(trunk.pairs[0].tx().traffic.drops(DropReason::VlanFiltered), 0);
}

/// What is dropped was not acknowledged: the limit is asked before the offload.
#[test]
fn a_frame_beyond_the_rate_is_not_acknowledged_for_the_guest() {
    let mut scene = Scene::new(&[]);
    let port = scene.shared.port_at(0);
    port.limits.configure(slow(), scene.shared.now());
    let segment = |from_guest: bool, flags: Flags, sequence, acknowledgment, payload: &[u8]| {
        let (src, dst) = if from_guest { (T, 8) } else { (8, T) };
        let syn = flags.contains(Flags::SYN);
        let options = if syn { vec![2, 4, 5, 0xb4, 1, 3, 3, 7] } else { Vec::new() };
        let fields = Tcp { flags, sequence, acknowledgment, options, ..tcp(src, dst, false) };
        fields.build(payload)
    };
    scene.arrive(&numbered(8, T, 0, 64));
    scene.send(0, &segment(true, Flags::SYN, 100, 0, &[]));
    scene.arrive(&segment(false, Flags::SYN.with(Flags::ACK), 500, 101, &[]));
    scene.send(0, &segment(true, Flags::ACK, 101, 501, &[]));
    let left = |scene: &Scene| {
        let sent = &scene.shared.uplinks()[0].sent.traffic;
        sent.packets.get() + sent.drops(DropReason::UplinkError)
    };
    let data = |n: u32| segment(false, Flags::ACK, 501 + 1000 * n, 101, &[7; 1000]);
    scene.received(0);
    let before = left(&scene);
    scene.arrive(&data(0));
    scene.arrive(&data(1));
    assert_eq!((left(&scene) > before, scene.received(0).len()), (true, 2), "acknowledged");
    let is_admitted = |bytes: &[u8]| {
        frame::with_slice(VnetHdr::default(), bytes, |frame| {
            port.limits.rx.admit(frame, scene.shared.now())
        })
    };
    assert!((0..1000).any(|_| !is_admitted(&data(2))), "nothing is left of the burst");
    let before = left(&scene);
    scene.arrive(&data(2));
    scene.arrive(&data(3));
    let drops = port.pairs[0].rx().traffic.drops(DropReason::RateLimit);
    assert_eq!((left(&scene) - before, scene.received(0).len(), drops), (0, 0, 2));
}

/// A byte a second for what the guest receives.
fn slow() -> LimitConfig {
    let rx = Rate { bytes: Some(1), ..Rate::default() };
    LimitConfig { rx, ..LimitConfig::default() }
}
