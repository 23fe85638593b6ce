//! Frames of a port and its peer through the clamp, without an uplink: the peer is behind another port, where ACKs that
//! waited arrive.

use std::path::Path;
use std::sync::Arc;

use floodway_core::l2::PortId;
use floodway_wire::build::Tcp;
use floodway_wire::ethernet;
use floodway_wire::tcp::Flags;
use floodway_wire::vnet::VnetHdr;

use super::{from_network, handle_timeout, to_network};
use crate::api::control::InboundChange;
use crate::config::Config;
use crate::frame;
use crate::operator::ControlApi;
use crate::pipeline::delivery::Delivery;
use crate::queues::ring::Ring;
use crate::queues::virtqueue::Virtqueue;
use crate::state::shared::Shared;
use crate::stats::ledger::MODEL;
use crate::testing::frames::{mac, numbered, partial, tcp, verified};
use crate::testing::{Guest, GuestConfig};
use crate::vhost::features;

const MSS: usize = 1448;
const SCALE: u8 = 7;

/// VM 1, whose inbound rate is what this is about, and VM 2, which stands for the network.
struct Scene {
    shared: Arc<Shared>,
    delivery: Delivery,
    network: Guest,
    v6: bool,
    tagged: bool,
    partial: bool,
}

impl Scene {
    fn new(inbound: &str, (v6, tagged, partial): (bool, bool, bool)) -> Self {
        let port =
            |n| format!("[[port]]\nname = \"vm{n}\"\nsocket = \"/vm{n}\"\nmac = \"{}\"\n", mac(n));
        let text = format!("{}{}{inbound}", port(1), port(2));
        let config = Config::parse(&text, Path::new("test")).unwrap();
        let shared = Shared::without_threads(&config).unwrap();
        let network = Guest::new(GuestConfig { rx_buffer: 2048, ..GuestConfig::default() });
        let memory = Arc::new(network.memory.map());
        let driver = &network.queue(0).driver;
        let queue = Virtqueue::new(memory, driver.size(), driver.addresses(), true).unwrap();
        let ring = Ring { queue, call: None };
        shared.port_at(1).pairs[0].rx().start(ring, features::rx(network.config.features));
        shared.port_at(1).update_rx_running();
        let delivery = Delivery::new(Arc::clone(&shared));
        Self { shared, delivery, network, v6, tagged, partial }
    }

    fn segment(&self, src: u8, dst: u8, seq: u32, ack: u32, flags: Flags) -> Tcp {
        let mut segment = tcp(src, dst, self.v6);
        (segment.sequence, segment.acknowledgment) = (seq, ack);
        (segment.flags, segment.window) = (flags, 10_000);
        if flags.contains(Flags::SYN) {
            segment.options = vec![2, 4, 5, 0xb4, 1, 3, 3, SCALE];
        } else {
            segment.options = Vec::new();
        }
        if self.tagged {
            segment.link = segment.link.tagged(ethernet::TYPE_VLAN, 0x2064);
        }
        segment
    }

    fn peer_sends(&mut self, segment: &Tcp, payload: usize) {
        let bytes = segment.build(&vec![7; payload]);
        let port = Arc::clone(&self.shared.port_at(0));
        frame::with_slice(VnetHdr::default(), &bytes, |frame| {
            from_network(&port, &mut self.delivery, frame).unwrap();
        });
    }

    /// What leaves of a segment of VM 1, if anything does at once: its window.
    fn vm_sends(&mut self, segment: &Tcp) -> Option<u16> {
        let (vnet, bytes) = if self.partial {
            let bytes = segment.build_partial(&[]);
            (partial(&bytes, 0), bytes)
        } else {
            (VnetHdr::default(), segment.build(&[]))
        };
        let port = Arc::clone(&self.shared.port_at(0));
        let mut left = None;
        frame::with_slice(vnet, &bytes, |frame| {
            to_network(&port, &mut self.delivery, frame, |_, frame| {
                let mut bytes = Vec::new();
                frame.append_to(&mut bytes);
                assert_eq!(bytes[..frame.prefix.len()], *frame.prefix);
                left = Some(window(frame.vnet, bytes));
            });
        });
        left
    }

    /// What the network has got of what waited: windows.
    fn arrived(&mut self) -> Vec<u16> {
        self.delivery.flush();
        std::iter::from_fn(|| self.network.recv(0))
            .map(|(vnet, bytes)| window(vnet, bytes))
            .collect()
    }

    /// VM 2 opens a connection, whose first byte is 1.
    fn connect(&mut self) -> Option<u16> {
        self.peer_sends(&self.segment(2, 1, 0, 0, Flags::SYN), 0);
        let told = self.vm_sends(&self.segment(1, 2, 100, 1, Flags::SYN.with(Flags::ACK)));
        self.peer_sends(&self.segment(2, 1, 1, 101, Flags::ACK), 0);
        told
    }
}

/// The window of a frame whose checksum is right once it is complete.
fn window(vnet: VnetHdr, mut bytes: Vec<u8>) -> u16 {
    if vnet.needs_csum() {
        floodway_wire::checksum::complete(&mut bytes, vnet.csum_start, vnet.csum_offset).unwrap();
    }
    verified(&bytes).tcp().unwrap().window
}

/// 8 Mbit/s: two segments take 3 ms.
const SLOW: &str =
    "[inbound]\ncapacity_mbit = 8\nminimum_kbit = 0\nburst_bytes = 4096\nidle_ms = 60000\n";

#[test]
fn windows_are_clamped_and_acks_wait_whatever_the_frame_is_like() {
    let kinds = [false, true];
    for kind in kinds.iter().flat_map(|&v6| {
        kinds.iter().flat_map(move |&tagged| kinds.map(move |partial| (v6, tagged, partial)))
    }) {
        let mut scene = Scene::new(SLOW, kind);
        assert_eq!(scene.connect(), Some(2920), "two segments, not scaled");
        // Many segments, one ACK each: the rate allows for few.
        let (mut left, mut edge) = (0, 1 + 2920_u32);
        for number in 0..20 {
            let seq = 1 + number * MSS as u32;
            scene.peer_sends(&scene.segment(2, 1, seq, 101, Flags::ACK), MSS);
            let ack = seq + MSS as u32;
            if let Some(window) = scene.vm_sends(&scene.segment(1, 2, 101, ack, Flags::ACK)) {
                let told = ack + (u32::from(window) << SCALE);
                assert!(told >= edge, "{kind:?}: an edge was taken back");
                assert!(u32::from(window) << SCALE >= 2 * MSS as u32, "{kind:?}: {window}");
                (left, edge) = (left + 1, told);
            }
        }
        assert!(left < 10, "{kind:?}: {left} left");
        assert!(scene.arrived().is_empty());
        std::thread::sleep(std::time::Duration::from_millis(150));
        let port = Arc::clone(&scene.shared.port_at(0));
        assert!(port.inbound.next_timeout() <= scene.shared.now());
        handle_timeout(&port, &mut scene.delivery);
        let arrived = scene.arrived();
        // One ACK speaks for all of them.
        assert_eq!(arrived.len(), 1, "{kind:?}");
        let last = 1 + 20 * MSS as u32;
        assert!(last + (u32::from(arrived[0]) << SCALE) > edge);
        let status = ControlApi::inbound(&scene.shared, &InboundChange::default()).unwrap();
        let vm1 = &status.ports[0];
        assert_eq!((vm1.active, vm1.weight, vm1.rate_bps), (1, 1, 8_000_000));
        assert_eq!(vm1.counters["released"], 1);
    }
}

#[test]
fn a_division_is_charged_to_the_port_that_causes_it() {
    let ports = (0..50).map(|n| format!("[[port]]\nname = \"vm{n}\"\nsocket = \"/vm{n}\"\n"));
    let text = ports.collect::<String>() + SLOW;
    let config = Config::parse(&text, Path::new("test")).unwrap();
    let shared = Shared::without_threads(&config).unwrap();
    let spent = |n: u16| shared.ledger.spent(PortId(n));
    assert_eq!(spent(0), 0);
    shared.set_inbound_active(PortId(0), 1);
    let once = spent(0);
    assert!(once >= 50 * MODEL.descriptor / 1000, "{once} ns for 50 shares");
    shared.set_inbound_active(PortId(0), 1);
    assert_eq!((spent(0), spent(1)), (once, 0), "nothing has changed, and nobody else pays");
}

#[test]
fn the_mechanism_can_be_switched_off_and_on_again() {
    let mut scene = Scene::new("", (false, false, false));
    assert_eq!(scene.connect(), Some(10_000), "off");
    let change = |mbit| InboundChange { capacity_mbit: Some(mbit), ..InboundChange::default() };
    let set = |scene: &Scene, change: &InboundChange| ControlApi::inbound(&scene.shared, change);
    let status = set(&scene, &change(100)).unwrap();
    assert_eq!((status.capacity_bps, status.ports.len()), (100_000_000, 2));
    assert_eq!(status.ports.iter().map(|port| port.rate_bps).sum::<u64>(), 100_000_000);
    // Its scale is not known.
    assert_eq!(scene.vm_sends(&scene.segment(1, 2, 101, 1, Flags::ACK)), Some(10_000));
    let minimum = InboundChange { minimum_kbit: Some(60_000), ..InboundChange::default() };
    let refused = set(&scene, &minimum).unwrap_err().to_string();
    assert_eq!(
        refused,
        "minimum_kbit = 60000: 2 ports with so much each are more than the capacity of 100 Mbit/s; at most 50000"
    );
    set(&scene, &change(0)).unwrap();
    assert!(!scene.shared.port_at(0).inbound.is_active());
    set(&scene, &change(8)).unwrap();
    scene.v6 = true;
    assert_eq!(scene.connect(), Some(2920));
    set(&scene, &change(0)).unwrap();
    assert_eq!(scene.shared.port_at(0).inbound.rate.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn udp_beyond_the_rate_is_dropped_if_that_is_wanted() {
    let mut scene = Scene::new(&format!("{SLOW}police_udp = true\n"), (false, false, false));
    let bytes = numbered(2, 1, 0, 1000);
    let port = Arc::clone(&scene.shared.port_at(0));
    let passed = (0..100).filter(|_| {
        frame::with_slice(VnetHdr::default(), &bytes, |frame| {
            from_network(&port, &mut scene.delivery, frame).is_ok()
        })
    });
    let passed = passed.count();
    assert!((3..100).contains(&passed), "{passed}");
}
