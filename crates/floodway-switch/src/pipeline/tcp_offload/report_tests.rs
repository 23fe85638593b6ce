//! What is acknowledged or reported of what comes, into a guest's queue that has room for it and into one that has none.

use std::path::Path;
use std::sync::Arc;

use floodway_wire::build::Tcp;
use floodway_wire::tcp::Flags;
use floodway_wire::vnet::VnetHdr;

use super::session::Session;
use crate::config::Config;
use crate::frame;
use crate::pipeline::delivery::{Delivery, Flush};
use crate::queues::ring::Ring;
use crate::queues::virtqueue::Virtqueue;
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::testing::frames::{mac, tcp};
use crate::testing::{Guest, GuestConfig};
use crate::vhost::features;

const MSS: u32 = 1448;
const SCALE: u8 = 7;

/// VM 1, whose guest does not run, and a peer beyond an uplink that nobody has to see.
struct Scene {
    port: Arc<Port>,
    delivery: Delivery,
    _guest: Guest,
}

fn segment(src: u8, dst: u8, seq: u32, ack: u32, flags: Flags) -> Tcp {
    let mut segment = tcp(src, dst, false);
    (segment.sequence, segment.acknowledgment) = (seq, ack);
    (segment.flags, segment.window) = (flags, 32_000);
    segment.options = match flags.contains(Flags::SYN) {
        // MSS, SACK permitted, window scale.
        true => vec![2, 4, 5, 0xb4, 4, 2, 1, 1, 1, 3, 3, SCALE],
        false => Vec::new(),
    };
    segment
}

impl Scene {
    fn new() -> Self {
        let text = format!(
            "[[port]]\nname = \"vm1\"\nsocket = \"/vm1\"\nmac = \"{}\"\nqueue_bytes = 131072\n[port.offload]\nreceive = true\n",
            mac(1)
        );
        let config = Config::parse(&text, Path::new("test")).unwrap();
        let shared = Shared::without_threads(&config).unwrap();
        let guest = Guest::new(GuestConfig { rx_buffer: 2048, ..GuestConfig::default() });
        let memory = Arc::new(guest.memory.map());
        let driver = &guest.queue(0).driver;
        let queue = Virtqueue::new(memory, driver.size(), driver.addresses(), true).unwrap();
        let port = Arc::clone(&shared.port_at(0));
        port.pairs[0].rx().start(Ring { queue, call: None }, features::rx(guest.config.features));
        port.update_rx_running();
        Self { port, delivery: Delivery::new(shared), _guest: guest }
    }

    fn session(&mut self, segment: &Tcp, payload: u32, from_network: bool) {
        let bytes = segment.build(&vec![7; payload as usize]);
        let port = Arc::clone(&self.port);
        frame::with_slice(VnetHdr::default(), &bytes, |frame| {
            let mut session = Session::open(&port, &mut self.delivery);
            let deliver = |delivery: &mut Delivery, frame: &frame::Frame<'_>| {
                delivery.deliver(port.origin(), port.id, 0, Flush::Later, frame);
            };
            if from_network {
                session.from_network(frame, &bytes, deliver).unwrap();
            } else {
                let [expected, ..] = session.look_up_batch(std::iter::once(*frame));
                session.from_guest(frame, &expected, |_, _| {}).unwrap();
            }
            session.flush();
        });
    }

    fn connect(&mut self) {
        self.session(&segment(2, 1, 0, 0, Flags::SYN), 0, true);
        self.session(&segment(1, 2, 100, 1, Flags::SYN.with(Flags::ACK)), 0, false);
        self.session(&segment(2, 1, 1, 101, Flags::ACK), 0, true);
        self.session(&segment(1, 2, 101, 1, Flags::ACK), 0, false);
    }

    fn dropped(&self) -> u64 {
        self.port.pairs[0].rx().traffic.all_drops()
    }
}

#[test]
fn only_what_is_in_the_guests_queue_is_reported() {
    let mut scene = Scene::new();
    scene.connect();
    let reports = |scene: &Scene| scene.port.offload.machine().engine.counters().early_sacks;
    let (mut sent, mut before) = (0, 0);
    while scene.dropped() < 10 {
        assert!(sent < 1200, "the queue is bounded");
        // Each lies apart from the others.
        let seq = 1 + (2 * sent + 1) * MSS;
        scene.session(&segment(2, 1, seq, 101, Flags::ACK), MSS, true);
        sent += 1;
        let (dropped, reported) = (scene.dropped(), reports(&scene));
        assert_eq!(reported + dropped, u64::from(sent), "{before} before");
        before = reported;
    }
    assert!(before > 10, "{before} reports");
}

#[test]
fn only_what_is_in_the_guests_queue_is_acknowledged() {
    let mut scene = Scene::new();
    scene.connect();
    let kept = |scene: &Scene| scene.port.offload.machine().engine.used().1;
    let mut sent = 0;
    while scene.dropped() == 0 {
        assert_eq!(kept(&scene), sent * MSS);
        assert!(sent < 1200, "the queue is bounded");
        scene.session(&segment(2, 1, 1 + sent * MSS, 101, Flags::ACK), MSS, true);
        sent += 1;
    }
    assert!(sent > 100, "{sent} segments");
    assert_eq!(kept(&scene), (sent - 1) * MSS);
    assert_eq!(scene.port.offload.machine().engine.counters().rx_withdrawn, 1);
}
