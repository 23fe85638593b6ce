//! Guest to guest through the whole pipeline: transmit ring, headers, table, copy, receive ring. What the guests do themselves is not timed.
//!
//! A time is that of one frame in a batch of 32.
//!
//! - `forward`: guests and switch in one thread. Rings and frames stay in the cache of its core.
//! - `guarded`: the same between ports with what guards them.
//! - `cold`: the same with a receiver that comes back to a buffer after 24 MiB of others, so that frames are written to memory that is in no
//!   cache of the core.
//! - `apart`: the guests on another core, as on a real host: what they write comes from their core's cache, and what the switch has read
//!   or written goes back there. The time is that of the median batch, which a preemption of either thread does not change.
//! - `addresses`: the forwarding table with more addresses.
//! - `ports`: a worker's whole loop, with more ports than the two that have frames.
//!
//! Instructions of a batch: `valgrind --tool=callgrind --toggle-collect='*switch_batch*'`, with `--bench --profile-time 1 NAME` for the bench.

#![allow(missing_docs, reason = "criterion's macros generate public functions")]

mod guests;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use floodway_core::l2::{NetworkId, PortKind, Rate};
use floodway_switch::config::{LimitConfig, PortConfig};
use floodway_switch::pipeline::forward::Forwarder;
use floodway_switch::queues::tx::{BATCH, Batch};
use floodway_switch::runtime::polling::Polling;
use floodway_switch::runtime::worker::{Progress, Worker};
use floodway_switch::state::shared::Shared;
use floodway_switch::testing::frames::{ipv4, numbered, partial, pattern, tcp};
use floodway_switch::testing::{Guest, GuestConfig, TxShape};
use floodway_wire::MacAddr;
use floodway_wire::vnet::VnetHdr;

use guests::{attach, median, pin, polling_guest, port, shared_by};

/// The switch of `ports` ports, without threads.
fn shared(ports: u8) -> Arc<Shared> {
    shared_by((1..=ports).map(port).collect(), 1)
}

/// A guest that sends and one that receives, and what is sent.
struct Guests {
    sender: Guest,
    receiver: Guest,
    vnet: VnetHdr,
    /// Sent in turn.
    frames: Vec<Vec<u8>>,
    next: usize,
}

impl Guests {
    /// The guests of ports 0 and 1.
    fn new(shared: &Shared, tx_shape: TxShape, vnet: VnetHdr, frames: Vec<Vec<u8>>) -> Self {
        // Room for 32 GSO packets.
        Self::with_receive_ring(2048, shared, tx_shape, vnet, frames)
    }

    /// The same with so many receive buffers.
    fn with_receive_ring(
        buffers: u16,
        shared: &Shared,
        tx_shape: TxShape,
        vnet: VnetHdr,
        frames: Vec<Vec<u8>>,
    ) -> Self {
        let guest = |ring_size| {
            polling_guest(GuestConfig { ring_size, tx_shape, ..GuestConfig::default() })
        };
        let (sender, mut receiver) = (guest(256), guest(buffers));
        receiver.auto_refill = false;
        attach(shared, 0, &sender);
        attach(shared, 1, &receiver);
        Self { sender, receiver, vnet, frames, next: 0 }
    }

    fn send_batch(&mut self) {
        for _ in 0..BATCH {
            let frame = &self.frames[self.next];
            self.next = (self.next + 1) % self.frames.len();
            assert!(self.sender.send_quietly(0, &self.vnet, frame), "room to transmit");
        }
    }

    fn receive_batch(&mut self) {
        for _ in 0..BATCH {
            black_box(self.receiver.recv(0).expect("every frame arrives"));
        }
        self.receiver.refill(0, usize::MAX);
    }

    /// As [`receive_batch`](Self::receive_batch), of a worker that may have asked for a kick: this thread was off its core.
    fn receive_batch_of(&mut self, worker: &mut Worker, progress: &mut Progress) {
        self.sender.pairs[0].tx.kick();
        while self.receiver.pairs[0].rx.driver.used() < BATCH {
            worker.step(progress);
        }
        self.receive_batch();
    }
}

/// What a guests' thread is to do next, or that it has done so.
const DONE: u8 = 0;
const SEND: u8 = 1;
const RECEIVE: u8 = 2;
const END: u8 = 3;

/// Guests on another core.
struct Apart {
    order: Arc<AtomicU8>,
    thread: Option<JoinHandle<()>>,
}

impl Apart {
    fn new(mut guests: Guests) -> Self {
        let order = Arc::new(AtomicU8::new(DONE));
        let orders = Arc::clone(&order);
        let thread = thread::spawn(move || {
            pin(1);
            loop {
                match orders.load(Ordering::Acquire) {
                    SEND => guests.send_batch(),
                    RECEIVE => guests.receive_batch(),
                    END => return,
                    _ => {
                        thread::yield_now();
                        continue;
                    }
                }
                orders.store(DONE, Ordering::Release);
            }
        });
        Self { order, thread: Some(thread) }
    }

    /// Has the guests do something, and waits until they have.
    fn order(&self, what: u8) {
        self.order.store(what, Ordering::Release);
        while self.order.load(Ordering::Acquire) != DONE {
            thread::yield_now();
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.order.store(END, Ordering::Release);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A switch of two ports without its worker.
struct Switch {
    shared: Arc<Shared>,
    forwarder: Forwarder,
    batch: Batch,
}

impl Switch {
    fn new() -> Self {
        Self::with(shared(2))
    }

    fn with(shared: Arc<Shared>) -> Self {
        let forwarder = Forwarder::new(Arc::clone(&shared));
        Self { shared, forwarder, batch: Batch::default() }
    }

    /// Forwards a batch of port 0.
    #[inline(never)]
    fn switch_batch(&mut self) {
        let port = &self.shared.port_at(0);
        let now = self.shared.now();
        let mut tx = port.pairs[0].tx();
        tx.dequeue_burst(&mut self.batch);
        self.forwarder.forward_batch(port, &mut self.batch, now);
        tx.complete(&mut self.batch);
    }

    fn timed_batch(&mut self) -> Duration {
        let start = Instant::now();
        self.switch_batch();
        start.elapsed()
    }

    /// The time of `iterations` frames between guests in this thread.
    fn run(&mut self, guests: &mut Guests, iterations: u64) -> Duration {
        let batches = iterations.div_ceil(BATCH as u64);
        let mut total = Duration::ZERO;
        for _ in 0..batches {
            guests.send_batch();
            total += self.timed_batch();
            guests.receive_batch();
        }
        total.mul_f64(iterations as f64 / (batches * BATCH as u64) as f64)
    }

    /// As [`run`](Self::run), between guests on another core.
    fn run_apart(&mut self, guests: &Apart, iterations: u64) -> Duration {
        let batches = iterations.div_ceil(BATCH as u64);
        let times = (0..batches).map(|_| {
            guests.order(SEND);
            let time = self.timed_batch();
            guests.order(RECEIVE);
            time
        });
        median(times).mul_f64(iterations as f64 / BATCH as f64)
    }
}

type Case = (&'static str, TxShape, VnetHdr, Vec<u8>);

fn cases() -> [Case; 5] {
    let gso_packet = tcp(1, 2, false).build_partial(&pattern(0, 65_000));
    let udp = |frame_len: usize| numbered(1, 2, 0, frame_len - 42);
    [
        ("64 B", TxShape::Single, VnetHdr::default(), udp(64)),
        ("64 B, header apart", TxShape::HeaderApart, VnetHdr::default(), udp(64)),
        ("64 B, indirect", TxShape::Indirect(1), VnetHdr::default(), udp(64)),
        ("1500 B", TxShape::Single, VnetHdr::default(), udp(1514)),
        ("64 KB TSO", TxShape::Indirect(17), partial(&gso_packet, 1448), gso_packet),
    ]
}

fn forward(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward");
    for (name, shape, vnet, frame) in cases() {
        let mut switch = Switch::new();
        group.throughput(Throughput::Bytes(frame.len() as u64));
        let mut guests = Guests::new(&switch.shared, shape, vnet, vec![frame]);
        group.bench_function(name, |b| b.iter_custom(|n| switch.run(&mut guests, n)));
    }
}

/// Guards the port of a VM.
type Guard = fn(&mut PortConfig, u8);

/// One by one and together.
const GUARDS: [(&str, &[Guard]); 4] = [
    ("addresses", &[guard_addresses]),
    ("rate limits", &[limit_rates]),
    ("offload", &[offload]),
    ("all", &[guard_addresses, limit_rates, offload]),
];

fn guard_addresses(port: &mut PortConfig, n: u8) {
    (port.ips, port.allow_router, port.allow_dhcp_server) = (vec![ipv4(n)], false, false);
}

/// Limits that nothing reaches.
fn limit_rates(port: &mut PortConfig, _: u8) {
    let rate = Rate { bytes: Some(125_000_000_000), burst: None, packets: Some(1 << 32) };
    port.limit = LimitConfig { tx: rate, rx: rate };
}

fn offload(port: &mut PortConfig, _: u8) {
    (port.offload.transmit, port.offload.receive) = (true, true);
}

/// Frames of 64 bytes between guarded ports.
fn guarded(c: &mut Criterion) {
    let mut group = c.benchmark_group("guarded");
    for (name, guards) in GUARDS {
        let ports = [1, 2].map(|n| {
            let mut port = port(n);
            guards.iter().for_each(|guard| guard(&mut port, n));
            port
        });
        let mut switch = Switch::with(shared_by(ports.into(), 1));
        let frames = vec![numbered(1, 2, 0, 22)];
        let mut guests = Guests::new(&switch.shared, TxShape::Single, VnetHdr::default(), frames);
        group.bench_function(name, |b| b.iter_custom(|n| switch.run(&mut guests, n)));
    }
}

/// Receive buffers of 24 MiB.
const COLD: u16 = 16_384;

fn cold(c: &mut Criterion) {
    let mut group = c.benchmark_group("cold");
    for (name, shape, vnet, frame) in cases().into_iter().filter(|case| case.1 == TxShape::Single) {
        let mut switch = Switch::new();
        group.throughput(Throughput::Bytes(frame.len() as u64));
        let mut guests = Guests::with_receive_ring(COLD, &switch.shared, shape, vnet, vec![frame]);
        group.bench_function(name, |b| b.iter_custom(|n| switch.run(&mut guests, n)));
    }
}

fn apart(c: &mut Criterion) {
    pin(0);
    let mut group = c.benchmark_group("apart");
    for (name, shape, vnet, frame) in cases() {
        let mut switch = Switch::new();
        group.throughput(Throughput::Bytes(frame.len() as u64));
        let guests = Apart::new(Guests::new(&switch.shared, shape, vnet, vec![frame]));
        group.bench_function(name, |b| b.iter_custom(|n| switch.run_apart(&guests, n)));
    }
}

/// A worker with two guests that have frames, and other ports that have none.
fn ports(c: &mut Criterion) {
    let mut group = c.benchmark_group("ports");
    for (name, ports, is_connected) in
        [("2", 2, false), ("2 of 100", 100, false), ("2 of 100, all connected", 100, true)]
    {
        let shared = shared(ports);
        let idle = GuestConfig { ring_size: 64, tx_slots: 1, ..GuestConfig::default() };
        let guests = (2..usize::from(ports)).filter(|_| is_connected).map(|port| {
            let guest = polling_guest(idle.clone());
            attach(&shared, port, &guest);
            guest
        });
        let _idle: Vec<_> = guests.collect();
        let frame = numbered(1, 2, 0, 22);
        let mut guests = Guests::new(&shared, TxShape::Single, VnetHdr::default(), vec![frame]);
        let waker = Arc::clone(&shared.port_at(0).waker);
        waker.watch(&guests.sender.pairs[0].tx.kick, shared.port_at(0).id);
        let mut worker = Worker::new(shared, 0, waker, Polling::new(Duration::from_secs(1)));
        let mut progress = worker.begin();
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                let times = (0..iterations.div_ceil(BATCH as u64)).map(|_| {
                    guests.send_batch();
                    let start = Instant::now();
                    worker.step(&mut progress);
                    let time = start.elapsed();
                    guests.receive_batch_of(&mut worker, &mut progress);
                    time
                });
                median(times).mul_f64(iterations as f64 / BATCH as f64)
            });
        });
    }
}

/// What a look-up costs by the number of addresses in the table, each of which gets frames in turn.
fn addresses(c: &mut Criterion) {
    let mut group = c.benchmark_group("addresses");
    for count in [2_usize, 16, 256, 10_000] {
        let mut switch = Switch::new();
        let limit = u32::try_from(count).expect("a small number");
        let receiver = switch.shared.port_at(1).id;
        let now = switch.shared.now();
        let mut tables = switch.shared.tables_mut();
        let table = tables.of_mut(NetworkId::DEFAULT);
        table.add_port(receiver, PortKind::Local, limit);
        let frames: Vec<Vec<u8>> = (0..limit)
            .map(|number| {
                let mut frame = numbered(1, 2, number, 22);
                frame[..2].copy_from_slice(&[0x02, 0xee]);
                frame[2..6].copy_from_slice(&number.to_be_bytes());
                let mut octets = [0; 6];
                octets.copy_from_slice(&frame[..6]);
                table.learn(MacAddr(octets), receiver, false, now);
                frame
            })
            .collect();
        drop(tables);
        let mut guests = Guests::new(&switch.shared, TxShape::Single, VnetHdr::default(), frames);
        let name = format!("{count}");
        group.bench_function(name, |b| b.iter_custom(|n| switch.run(&mut guests, n)));
    }
}

criterion_group!(benches, forward, guarded, cold, apart, addresses, ports);
criterion_main!(benches);
