//! The weights of the cost model by which workers share their work among ports ([`floodway_core::work::CostModel`]).
//!
//! Guests that send frames of different shapes take turns, a batch each, so that a machine that slows down does so for all of
//! them; a shape's figure is the median of its batches. Weights are differences between shapes. Bytes are copied from one guest's
//! memory to another's 1536-byte buffers, with rings and frames in the cache.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floodway_core::work::CostModel;
use floodway_switch::config::Config;
use floodway_switch::forward::Forwarder;
use floodway_switch::ring::Ring;
use floodway_switch::switch::Shared;
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tcp};
use floodway_switch::testing::{Guest, GuestConfig, TxShape};
use floodway_switch::tx::Batch;
use floodway_switch::vhost::features;
use floodway_switch::virtqueue::Virtqueue;
use floodway_wire::vnet::VnetHdr;

const ROUNDS: usize = 3000;
const PAYLOAD: usize = 60_000;
const MSS: [u16; 2] = [1448, 48];
const PIECES: u8 = 16;

/// What one guest sends to another one on a switch without threads.
struct Case {
    shared: Arc<Shared>,
    forwarder: Forwarder,
    batch: Batch,
    sender: Guest,
    receiver: Guest,
    vnet: VnetHdr,
    frame: Vec<u8>,
    frames: usize,
    times: Vec<Duration>,
}

impl Case {
    fn new(shape: TxShape, takes_tso: bool, frames: usize, vnet: VnetHdr, frame: Vec<u8>) -> Self {
        let port = |n: u8| {
            format!("[[port]]\nname = \"vm{n}\"\nsocket = \"/unused{n}\"\nmac = \"{}\"\n", mac(n))
        };
        let text = port(1) + &port(2);
        let config = Config::parse(&text, Path::new("bench")).expect("a good configuration");
        let shared = Shared::without_threads(&config).expect("a switch");
        let guest = |ring_size, tso: bool| {
            let refused = features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_ECN;
            let offered = GuestConfig::default().features;
            let features = if tso { offered } else { offered & !refused };
            let config =
                GuestConfig { ring_size, features, tx_shape: shape, ..GuestConfig::default() };
            let mut guest = Guest::new(config);
            guest.pairs.iter_mut().for_each(|pair| {
                pair.rx.driver.disable_interrupts();
                pair.tx.driver.disable_interrupts();
            });
            guest
        };
        let (sender, mut receiver) = (guest(1024, true), guest(2048, takes_tso));
        receiver.auto_refill = false;
        let case = Self {
            forwarder: Forwarder::new(Arc::clone(&shared)),
            shared,
            batch: Batch::default(),
            sender,
            receiver,
            vnet,
            frame,
            frames,
            times: Vec::new(),
        };
        case.attach(0, &case.sender);
        case.attach(1, &case.receiver);
        case
    }

    fn attach(&self, port: usize, guest: &Guest) {
        let memory = Arc::new(guest.memory.map());
        let ring = |index| {
            let driver = &guest.queue(index).driver;
            let queue =
                Virtqueue::new(Arc::clone(&memory), driver.size(), driver.addresses(), true);
            Ring { queue: queue.expect("good rings"), call: None }
        };
        let port = &self.shared.ports[port];
        let negotiated = guest.config.features;
        port.pairs[0].rx().start(ring(0), features::rx(negotiated));
        port.pairs[0].tx().start(ring(1), features::tx(negotiated));
        port.pairs[0].tx().set_enabled(true);
        port.update_rx_running();
    }

    /// Forwards a batch and notes the time that the switch took.
    fn run(&mut self) {
        for _ in 0..self.frames {
            assert!(self.sender.send_quietly(0, &self.vnet, &self.frame), "room to transmit");
        }
        let port = &self.shared.ports[0];
        let now = self.shared.now();
        let mut tx = port.pairs[0].tx();
        let start = Instant::now();
        tx.fill(&mut self.batch);
        self.forwarder.forward_batch(port, &mut self.batch, now);
        tx.complete(&mut self.batch);
        self.times.push(start.elapsed());
        drop(tx);
        while self.receiver.recv(0).is_some() {}
        self.receiver.refill(0, usize::MAX);
    }

    /// Picoseconds a frame.
    fn median(&mut self) -> f64 {
        self.times.sort_unstable();
        self.times[self.times.len() / 2].as_nanos() as f64 * 1000.0 / self.frames as f64
    }
}

fn main() {
    let rounds = if std::env::args().any(|arg| arg == "--test") { 3 } else { ROUNDS };
    let plain = VnetHdr::default();
    let small = || numbered(1, 2, 0, 22);
    let bulk = || tcp(1, 2, false).build_partial(&pattern(1, PAYLOAD));
    let whole = TxShape::Indirect(17);
    let mut cases = [
        // Dropped where its source is checked.
        Case::new(TxShape::Single, true, 32, plain, numbered(3, 2, 0, 22)),
        Case::new(TxShape::Single, true, 32, plain, small()),
        Case::new(TxShape::Indirect(PIECES), true, 32, plain, small()),
        Case::new(whole, true, 4, partial(&bulk(), MSS[0]), bulk()),
        Case::new(whole, false, 1, partial(&bulk(), MSS[0]), bulk()),
        Case::new(whole, false, 1, partial(&bulk(), MSS[1]), bulk()),
    ];
    for _ in 0..rounds {
        cases.iter_mut().for_each(Case::run);
    }
    let [dropped, one, pieces, whole, few, many] = cases.each_mut().map(Case::median);
    let segments = |mss: u16| PAYLOAD.div_ceil(mss.into()) as f64;
    let descriptor = (pieces - one) / f64::from(PIECES);
    let byte = (whole - one - 16.0 * descriptor) / PAYLOAD as f64;
    let measured = [
        ("chain", dropped - descriptor),
        ("descriptor", descriptor),
        ("copy", one - dropped - 64.0 * byte),
        ("byte", byte),
        ("segment", (many - few) / (segments(MSS[1]) - segments(MSS[0]))),
    ];
    let CostModel { chain, descriptor, copy, byte, segment, .. } = CostModel::MEASURED;
    println!("work: ps each, medians of {rounds} batches in turns, and the model's");
    for ((name, ps), model) in measured.iter().zip([chain, descriptor, copy, byte, segment]) {
        println!("{name:<12}{ps:>10.0}{model:>10}");
    }
    let shapes = [
        ("64 B dropped", dropped),
        ("64 B", one),
        ("64 B in 17 pieces", pieces),
        ("60 KB whole", whole),
        ("60 KB in 42 segments", few),
        ("60 KB in 1250 segments", many),
    ];
    for (name, ps) in shapes {
        println!("{name:<24}{:>12.1} ns a frame", ps / 1000.0);
    }
}
