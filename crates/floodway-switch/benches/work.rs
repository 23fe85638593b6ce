//! The weights of the cost model by which workers share their work among ports ([`floodway_core::work::CostModel`]).
//!
//! Guests that send frames of different shapes take turns, a batch each, so that a machine that slows down does so for all of
//! them; a shape's figure is the median of its batches. Weights are differences between shapes. Rings and frames are in the cache, as far
//! as the switch can have them there; "scattered" is a layout of 1023 descriptors that makes this impossible.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use floodway_core::l2::PortId;
use floodway_core::work::CostModel;
use floodway_switch::config::Config;
use floodway_switch::memory::GuestMemory;
use floodway_switch::pipeline::forward::Forwarder;
use floodway_switch::queues::ring::Ring;
use floodway_switch::queues::tx::Batch;
use floodway_switch::queues::virtqueue::Virtqueue;
use floodway_switch::state::shared::Shared;
use floodway_switch::testing::driver::F_INDIRECT;
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tcp};
use floodway_switch::testing::{
    DriverQueue, Guest, GuestConfig, RawDescriptor, TestMemory, TxShape,
};
use floodway_switch::vhost::features;
use floodway_wire::vnet::VnetHdr;

const ROUNDS: usize = 3000;
const PAYLOAD: usize = 60_000;
const MSS: [u16; 2] = [1448, 48];
const PIECES: u8 = 16;

/// Who sends.
enum Source {
    /// Frames laid out by a guest.
    Guest { guest: Box<Guest>, vnet: VnetHdr, frame: Vec<u8> },
    /// The same chains again and again.
    Scattered(Scattered),
}

impl Source {
    fn send(&mut self) {
        match self {
            Self::Guest { guest, vnet, frame } => {
                assert!(guest.send_quietly(0, vnet, frame), "room to transmit");
            }
            Self::Scattered(scattered) => scattered.send(),
        }
    }

    fn ring(&self) -> Ring {
        match self {
            Self::Guest { guest, .. } => ring(&Arc::new(guest.memory.map()), guest, 1),
            Self::Scattered(Scattered { memory, driver, .. }) => {
                let memory = Arc::new(memory.map());
                let queue = Virtqueue::new(memory, driver.size(), driver.addresses(), true);
                Ring { queue: queue.expect("good rings"), call: None }
            }
        }
    }
}

fn ring(memory: &Arc<GuestMemory>, guest: &Guest, index: u32) -> Ring {
    let driver = &guest.queue(index).driver;
    let queue = Virtqueue::new(Arc::clone(memory), driver.size(), driver.addresses(), true);
    Ring { queue: queue.expect("good rings"), call: None }
}

const PAGE: u64 = 4096;
/// Chains of a scattered layout, each with a table of its own.
const CHAINS: u16 = 32;
/// Descriptors of each.
const TABLE: u16 = 1023;

/// Frames whose first 64 bytes lie in one piece and the others in pieces of a byte, each in a page of its own.
struct Scattered {
    memory: Arc<TestMemory>,
    driver: DriverQueue,
    /// Chains that are with the guest.
    free: Vec<u16>,
}

impl Scattered {
    /// All over 254 regions of a page each, or over 32 times 1022 pages of one region.
    fn new(in_regions: bool) -> Self {
        let tables = DriverQueue::footprint(CHAINS).next_multiple_of(PAGE);
        let table_len = u64::from(TABLE) * RawDescriptor::SIZE;
        let heads = (tables + u64::from(CHAINS) * table_len).next_multiple_of(PAGE);
        let pages = heads + u64::from(CHAINS) * PAGE;
        let count = u64::from(TABLE - 1);
        let regions: Vec<_> = if in_regions {
            let small = (0..254).map(|n| (pages + (2 * n + 1) * PAGE, PAGE));
            std::iter::once((0, pages)).chain(small).collect()
        } else {
            vec![(0, pages + u64::from(CHAINS) * count * PAGE)]
        };
        let memory = TestMemory::new(&regions);
        let mut driver = DriverQueue::new(Arc::clone(&memory), 0, CHAINS, true);
        driver.disable_interrupts();
        let frame = [&VnetHdr::default().to_bytes()[..], &numbered(1, 2, 0, 22)].concat();
        for chain in 0..CHAINS {
            let (table, head) =
                (tables + u64::from(chain) * table_len, heads + u64::from(chain) * PAGE);
            memory.write(head, &frame);
            for index in 0..TABLE {
                // Far from the one before, so that no search and no prefetch is right.
                let n = u64::from(index) * 401 + u64::from(chain) * 7;
                let (addr, len) = match index {
                    0 => (head, frame.len() as u32),
                    _ if in_regions => (pages + (2 * (n % 254) + 1) * PAGE + n % PAGE, 1),
                    _ => (pages + (u64::from(chain) * count + n % count) * PAGE + n * 64 % PAGE, 1),
                };
                memory.write(addr, &frame[..len as usize]);
                let flags = u16::from(index + 1 < TABLE);
                let entry = RawDescriptor { addr, len, flags, next: index + 1 };
                driver.write_indirect(table, index, entry);
            }
            let entry =
                RawDescriptor { addr: table, len: table_len as u32, flags: F_INDIRECT, next: 0 };
            driver.write_descriptor(chain, entry);
        }
        Self { memory, driver, free: (0..CHAINS).rev().collect() }
    }

    fn send(&mut self) {
        while let Some(used) = self.driver.reap_raw() {
            self.free.insert(0, used.head);
        }
        self.driver.offer_raw(self.free.pop().expect("a chain"));
    }
}

/// What one guest sends to another one on a switch without threads.
struct Case {
    shared: Arc<Shared>,
    forwarder: Forwarder,
    batch: Batch,
    source: Source,
    receiver: Guest,
    frames: usize,
    times: Vec<Duration>,
}

impl Case {
    fn new(shape: TxShape, takes_tso: bool, frames: usize, vnet: VnetHdr, frame: Vec<u8>) -> Self {
        let config = GuestConfig { ring_size: 1024, tx_shape: shape, ..GuestConfig::default() };
        let mut guest = Box::new(Guest::new(config));
        guest.pairs[0].tx.driver.disable_interrupts();
        Self::with(Source::Guest { guest, vnet, frame }, takes_tso, frames, 1536)
    }

    /// `rx_buffer` is the bytes of each of the receiver's buffers.
    fn with(source: Source, takes_tso: bool, frames: usize, rx_buffer: u32) -> Self {
        let port = |n: u8| {
            format!("[[port]]\nname = \"vm{n}\"\nsocket = \"/unused{n}\"\nmac = \"{}\"\n", mac(n))
        };
        let text = port(1) + &port(2);
        let config = Config::parse(&text, Path::new("bench")).expect("a good configuration");
        let shared = Shared::without_threads(&config).expect("a switch");
        let refused = features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_ECN;
        let offered = GuestConfig::default().features;
        let features = if takes_tso { offered } else { offered & !refused };
        let ring_size = if rx_buffer > 1536 { 64 } else { 2048 };
        let config = GuestConfig { ring_size, features, rx_buffer, ..GuestConfig::default() };
        let mut receiver = Guest::new(config);
        receiver.pairs[0].rx.driver.disable_interrupts();
        receiver.auto_refill = false;
        let negotiated = receiver.config.features;
        let receive = ring(&Arc::new(receiver.memory.map()), &receiver, 0);
        shared.port_at(1).pairs[0].rx().start(receive, features::rx(negotiated));
        let tx_features = features::tx(GuestConfig::default().features);
        shared.port_at(0).pairs[0].tx().start(source.ring(), tx_features);
        shared.port_at(0).pairs[0].tx().set_enabled(true);
        shared.ports().iter().for_each(|port| port.update_rx_running());
        Self {
            forwarder: Forwarder::new(Arc::clone(&shared)),
            shared,
            batch: Batch::default(),
            source,
            receiver,
            frames,
            times: Vec::new(),
        }
    }

    /// Forwards a batch and notes the time that the switch took.
    fn run(&mut self) {
        for _ in 0..self.frames {
            self.source.send();
        }
        let port = &self.shared.port_at(0);
        let now = self.shared.now();
        let mut tx = port.pairs[0].tx();
        let start = Instant::now();
        tx.dequeue_burst(&mut self.batch);
        self.shared.ledger.charge(port.id, self.batch.taken());
        self.forwarder.forward_batch(port, &mut self.batch, now);
        tx.complete(&mut self.batch);
        drop(tx);
        // What is cut in later turns.
        let port = &self.shared.port_at(1);
        while port.waiting.load(Ordering::Relaxed) && port.pairs[0].rx().drain_within(u64::MAX) > 0
        {
            port.pairs[0].rx().flush();
        }
        self.times.push(start.elapsed());
        while self.receiver.recv(0).is_some() {}
        self.receiver.refill(0, usize::MAX);
    }

    /// Nanoseconds that a frame was charged.
    fn charged(&self, rounds: usize) -> f64 {
        self.shared.ledger.spent(PortId(0)) as f64 / (rounds * self.frames) as f64
    }

    /// Picoseconds a frame.
    fn median(&mut self) -> f64 {
        self.times.sort_unstable();
        self.times[self.times.len() / 2].as_nanos() as f64 * 1000.0 / self.frames as f64
    }
}

/// What is measured, in the order of [`SHAPES`].
fn cases() -> [Case; 10] {
    let plain = VnetHdr::default();
    let small = || numbered(1, 2, 0, 22);
    let bulk = || tcp(1, 2, false).build_partial(&pattern(1, PAYLOAD));
    let whole = TxShape::Indirect(17);
    let large_buffers = {
        let config = GuestConfig { ring_size: 1024, tx_shape: whole, ..GuestConfig::default() };
        let mut guest = Box::new(Guest::new(config));
        guest.pairs[0].tx.driver.disable_interrupts();
        let (vnet, frame) = (partial(&bulk(), MSS[0]), bulk());
        Case::with(Source::Guest { guest, vnet, frame }, true, 4, 65_550)
    };
    let scattered = |regions| Case::with(Source::Scattered(Scattered::new(regions)), true, 4, 1536);
    [
        // Dropped where its source is checked.
        Case::new(TxShape::Single, true, 32, plain, numbered(3, 2, 0, 22)),
        Case::new(TxShape::Single, true, 32, plain, small()),
        Case::new(TxShape::Indirect(PIECES), true, 32, plain, small()),
        Case::new(TxShape::Single, true, 32, plain, numbered(1, 2, 0, 1458)),
        large_buffers,
        Case::new(whole, true, 4, partial(&bulk(), MSS[0]), bulk()),
        Case::new(whole, false, 1, partial(&bulk(), MSS[0]), bulk()),
        Case::new(whole, false, 1, partial(&bulk(), MSS[1]), bulk()),
        scattered(true),
        scattered(false),
    ]
}

const SHAPES: [&str; 10] = [
    "64 B dropped",
    "64 B",
    "64 B in 17 pieces",
    "1500 B",
    "60 KB, large buffers",
    "60 KB whole",
    "60 KB in 42 segments",
    "60 KB in 1250 segments",
    "1023 pieces in 254 regions",
    "1023 pieces in 1022 pages",
];

fn main() {
    let rounds = if std::env::args().any(|arg| arg == "--test") { 3 } else { ROUNDS };
    let mut cases = cases();
    for _ in 0..rounds {
        cases.iter_mut().for_each(Case::run);
    }
    let medians = cases.each_mut().map(Case::median);
    let spent = cases.each_mut().map(|case| case.charged(rounds));
    let [dropped, one, pieces, _, large, whole, few, many, regions, pages] = medians;
    let segments = |mss: u16| PAYLOAD.div_ceil(mss.into()) as f64;
    let descriptor = (pieces - one) / f64::from(PIECES);
    // 16 more are walked, and copied from.
    let byte = (large - one - 32.0 * descriptor) / PAYLOAD as f64;
    let measured = [
        ("chain", dropped - descriptor),
        ("descriptor", descriptor),
        ("scattered", (regions.max(pages) - one) / f64::from(TABLE) - 2.0 * descriptor),
        ("copy", one - dropped - descriptor - 64.0 * byte),
        ("buffer", (whole - large) / (PAYLOAD as f64 / 1536.0)),
        ("byte", byte),
        ("segment", (many - few) / (segments(MSS[1]) - segments(MSS[0]))),
    ];
    let CostModel { chain, descriptor, scattered, copy, buffer, byte, segment, .. } =
        CostModel::MEASURED;
    println!("work: ps each, medians of {rounds} batches in turns, and the model's");
    let model = [chain, descriptor, scattered, copy, buffer, byte, segment];
    for ((name, ps), model) in measured.iter().zip(model) {
        println!("{name:<12}{ps:>10.0}{model:>10}");
    }
    println!("ns a frame, and what it is charged");
    for ((name, ps), charged) in SHAPES.into_iter().zip(medians).zip(spent) {
        println!("{name:<28}{:>12.1}{charged:>12.1}", ps / 1000.0);
    }
}
