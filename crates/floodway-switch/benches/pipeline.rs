//! Guest to guest through the whole pipeline, in one thread: transmit ring, headers, table, copy,
//! receive ring. What the guests do themselves is not timed.
//!
//! A time is that of one frame in a batch of 32. Rings and frames stay in the cache, as between
//! guests that share a core's memory; on a real host a frame's bytes come from farther away.

#![allow(missing_docs, reason = "criterion's macros generate public functions")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use floodway_core::l2::{NetworkId, PortKind};
use floodway_switch::config::{Config, PortConfig, WorkerConfig};
use floodway_switch::pipeline::forward::Forwarder;
use floodway_switch::queues::ring::Ring;
use floodway_switch::queues::tx::{BATCH, Batch};
use floodway_switch::queues::virtqueue::Virtqueue;
use floodway_switch::state::shared::Shared;
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tcp};
use floodway_switch::testing::{Guest, GuestConfig, TxShape};
use floodway_switch::vhost::features;
use floodway_wire::MacAddr;
use floodway_wire::vnet::VnetHdr;

fn port(n: u8) -> PortConfig {
    PortConfig { mac: Some(mac(n)), storm_pps: 0, ..PortConfig::new(format!("vm{n}"), "unused") }
}

/// Two guests on a switch without threads.
struct Bench {
    shared: Arc<Shared>,
    forwarder: Forwarder,
    batch: Batch,
    sender: Guest,
    receiver: Guest,
}

impl Bench {
    fn new(tx_shape: TxShape) -> Self {
        let config = Config {
            workers: vec![WorkerConfig { core: None, poll: Duration::ZERO }],
            ports: vec![port(1), port(2)],
            ..Config::default()
        };
        let shared = Shared::without_threads(&config).expect("a switch");
        let guest = |ring_size| {
            // The guests poll: no interrupts.
            let config = GuestConfig { ring_size, tx_shape, ..GuestConfig::default() };
            let mut guest = Guest::new(config);
            for pair in &mut guest.pairs {
                pair.rx.driver.disable_interrupts();
                pair.tx.driver.disable_interrupts();
            }
            guest
        };
        let mut bench = Self {
            forwarder: Forwarder::new(Arc::clone(&shared)),
            shared,
            batch: Batch::default(),
            sender: guest(256),
            // Room for 32 GSO packets.
            receiver: guest(2048),
        };
        bench.receiver.auto_refill = false;
        bench.attach(0);
        bench.attach(1);
        bench
    }

    fn attach(&self, port: usize) {
        let guest = if port == 0 { &self.sender } else { &self.receiver };
        let memory = Arc::new(guest.memory.map());
        let ring = |index| {
            let driver = &guest.queue(index).driver;
            let memory = Arc::clone(&memory);
            let queue = Virtqueue::new(memory, driver.size(), driver.addresses(), true);
            Ring { queue: queue.expect("good rings"), call: None }
        };
        let port = &self.shared.port_at(port);
        let negotiated = guest.config.features;
        port.pairs[0].rx().start(ring(0), features::rx(negotiated));
        port.pairs[0].tx().start(ring(1), features::tx(negotiated));
        port.pairs[0].tx().set_enabled(true);
        port.update_rx_running();
    }

    /// Forwards a batch of frames from `frames`; answers the time that the switch took.
    fn run(&mut self, vnet: &VnetHdr, frames: &mut dyn Iterator<Item = &Vec<u8>>) -> Duration {
        for frame in frames.take(BATCH) {
            assert!(self.sender.send_quietly(0, vnet, frame), "room to transmit");
        }
        let port = &self.shared.port_at(0);
        let now = self.shared.now();
        let start = Instant::now();
        let mut tx = port.pairs[0].tx();
        tx.dequeue_burst(&mut self.batch);
        self.forwarder.forward_batch(port, &mut self.batch, now);
        tx.complete(&mut self.batch);
        let took = start.elapsed();
        drop(tx);
        for _ in 0..BATCH {
            black_box(self.receiver.recv(0).expect("every frame arrives"));
        }
        self.receiver.refill(0, usize::MAX);
        took
    }
}

fn forward(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward");
    let gso_packet = tcp(1, 2, false).build_partial(&pattern(0, 65_000));
    let udp = |frame_len: usize| numbered(1, 2, 0, frame_len - 42);
    let cases = [
        ("64 B", TxShape::Single, VnetHdr::default(), udp(64)),
        ("64 B, header apart", TxShape::HeaderApart, VnetHdr::default(), udp(64)),
        ("64 B, indirect", TxShape::Indirect(1), VnetHdr::default(), udp(64)),
        ("1500 B", TxShape::Single, VnetHdr::default(), udp(1514)),
        ("64 KB TSO", TxShape::Indirect(17), partial(&gso_packet, 1448), gso_packet),
    ];
    for (name, shape, vnet, frame) in cases {
        let mut bench = Bench::new(shape);
        group.throughput(Throughput::Bytes(frame.len() as u64));
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                let batches = iterations.div_ceil(BATCH as u64);
                let mut frames = std::iter::repeat(&frame);
                let total: Duration = (0..batches).map(|_| bench.run(&vnet, &mut frames)).sum();
                total.mul_f64(iterations as f64 / (batches * BATCH as u64) as f64)
            });
        });
    }
}

/// What a look-up costs by the number of addresses in the table, each of which gets frames in turn.
fn addresses(c: &mut Criterion) {
    let mut group = c.benchmark_group("addresses");
    for count in [2_usize, 16, 256, 10_000] {
        let mut bench = Bench::new(TxShape::Single);
        let limit = u32::try_from(count).expect("a small number");
        let receiver = bench.shared.port_at(1).id;
        bench.shared.tables_mut().of_mut(NetworkId::DEFAULT).add_port(
            receiver,
            PortKind::Local,
            limit,
        );
        let frames: Vec<Vec<u8>> = (0..limit)
            .map(|number| {
                let mut frame = numbered(1, 2, number, 22);
                frame[..2].copy_from_slice(&[0x02, 0xee]);
                frame[2..6].copy_from_slice(&number.to_be_bytes());
                let mut octets = [0; 6];
                octets.copy_from_slice(&frame[..6]);
                let now = bench.shared.now();
                bench.shared.tables_mut().of_mut(NetworkId::DEFAULT).learn(
                    MacAddr(octets),
                    receiver,
                    false,
                    now,
                );
                frame
            })
            .collect();
        group.bench_function(format!("{count}"), |b| {
            b.iter_custom(|iterations| {
                let batches = iterations.div_ceil(BATCH as u64);
                let mut cycle = frames.iter().cycle();
                let total: Duration =
                    (0..batches).map(|_| bench.run(&VnetHdr::default(), &mut cycle)).sum();
                total.mul_f64(iterations as f64 / (batches * BATCH as u64) as f64)
            });
        });
    }
}

criterion_group!(benches, forward, addresses);
criterion_main!(benches);
