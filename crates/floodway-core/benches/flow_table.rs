//! Cost of what every packet of a managed flow pays: find the flow, mark it used, move its
//! deadline; and of what comes with new flows. At 1, 1 k, 100 k and 1 M flows.
//!
//! Every operation is on a flow chosen at random, the worst case for the caches, in batches of 32
//! whose tuples are at hand, as after parsing. A result is in cycles of the time-stamp counter (and
//! nanoseconds) for one operation: the median of the batches of a sample, so that what the scheduler
//! or an interrupt takes does not count.

#![allow(missing_docs, reason = "criterion's macros generate public functions")]

use std::cell::RefCell;
use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration as Wall;

use criterion::measurement::{Measurement, ValueFormatter};
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use floodway_core::tables::flow_table::{FlowId, FlowTable};
use floodway_core::tables::timer::{Deadline, TimerQueue};
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;

const FLOWS: [u32; 4] = [1, 1_000, 100_000, 1_000_000];
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
/// Ten million packets a second.
const GAP: Duration = Duration::from_nanos(100);
/// A retransmission timer of 200 ms, moved by every packet.
const RTO: Duration = Duration::from_millis(200);
const BATCH: usize = 32;

/// Cycles of the time-stamp counter.
struct Cycles;

/// Prints cycles and nanoseconds.
struct Format {
    per_ns: f64,
}

#[cfg(target_arch = "x86_64")]
fn stamp() -> u64 {
    // SAFETY: every x86_64 processor has the counter.
    #[allow(unused_unsafe, reason = "safe in newer toolchains")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
}

/// Nanoseconds where there is no such counter.
#[cfg(not(target_arch = "x86_64"))]
fn stamp() -> u64 {
    #[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a bench needs a clock")]
    std::time::Instant::now().elapsed().as_nanos() as u64
}

#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a bench needs a clock")]
fn stamps_per_ns() -> f64 {
    let (start, from) = (std::time::Instant::now(), stamp());
    while start.elapsed() < Wall::from_millis(50) {}
    (stamp() - from) as f64 / start.elapsed().as_nanos() as f64
}

impl Measurement for Cycles {
    type Intermediate = u64;
    type Value = u64;

    fn start(&self) -> u64 {
        stamp()
    }
    fn end(&self, start: u64) -> u64 {
        stamp() - start
    }
    fn add(&self, a: &u64, b: &u64) -> u64 {
        a + b
    }
    fn zero(&self) -> u64 {
        0
    }
    fn to_f64(&self, value: &u64) -> f64 {
        *value as f64
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        static FORMAT: std::sync::LazyLock<Format> =
            std::sync::LazyLock::new(|| Format { per_ns: stamps_per_ns() });
        &*FORMAT
    }
}

impl ValueFormatter for Format {
    fn format_value(&self, value: f64) -> String {
        format!("{value:.1} cycles ({:.1} ns)", value / self.per_ns)
    }
    fn scale_values(&self, _typical: f64, _values: &mut [f64]) -> &'static str {
        "cycles"
    }
    fn scale_throughputs(&self, _: f64, _: &Throughput, _: &mut [f64]) -> &'static str {
        "cycles"
    }
    fn scale_for_machines(&self, _values: &mut [f64]) -> &'static str {
        "cycles"
    }
}

/// A flow's state of the size that offload may have: 192 bytes, 256 with the table's own 64.
struct State {
    deadline: Deadline,
    bytes: u64,
    _rest: [u64; 21],
}

impl State {
    const NEW: Self = Self { deadline: Deadline::NEVER, bytes: 0, _rest: [0; 21] };
}

#[inline]
fn v4(n: u32) -> FiveTuple {
    let src = Ipv4Addr::from_bits(0x0a00_0000 | n >> 12);
    FiveTuple::v4(src, Ipv4Addr::new(10, 255, 0, 1), 6).with_ports(0x1000 | n as u16 & 0xfff, 80)
}

#[inline]
fn v6(n: u32) -> FiveTuple {
    let src = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n >> 12));
    FiveTuple::v6(src, Ipv6Addr::LOCALHOST, 6).with_ports(0x1000 | n as u16 & 0xfff, 80)
}

/// Chooses flows: xorshift, scaled.
struct Choice {
    state: u64,
    flows: u32,
}

impl Choice {
    const fn new(flows: u32) -> Self {
        Self { state: SEED, flows }
    }

    #[inline]
    const fn next(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (((self.state >> 32) * self.flows as u64) >> 32) as u32
    }
}

type Group<'a> = BenchmarkGroup<'a, Cycles>;

/// A flow of a batch: the tuple of a packet, and the handle for what comes after the look-up.
#[derive(Clone, Copy)]
struct Packet {
    tuple: FiveTuple,
    id: FlowId,
}

/// A table of flows, full.
struct Bench {
    table: FlowTable<State>,
    timers: TimerQueue,
    choice: Choice,
    tuple: fn(u32) -> FiveTuple,
    ids: Vec<FlowId>,
    now: Instant,
}

impl Bench {
    fn new(flows: u32, tuple: fn(u32) -> FiveTuple) -> Self {
        let mut table = FlowTable::new(flows, SEED);
        let insert = |n| table.insert(&tuple(n), Instant::ZERO, State::NEW);
        let ids = (0..flows).map(insert).collect::<Result<_, _>>().expect("room for every flow");
        let timers = TimerQueue::new(flows, Instant::ZERO);
        let choice = Choice::new(flows);
        Self { table, timers, choice, tuple, ids, now: Instant::ZERO }
    }

    /// A packet of a random flow.
    fn packet(&mut self) -> Packet {
        let n = self.choice.next();
        Packet { tuple: (self.tuple)(n), id: self.ids[n as usize] }
    }

    fn run(
        &mut self,
        group: &mut Group<'_>,
        name: &str,
        mut packet: impl FnMut(&mut Self) -> Packet,
        mut each: impl FnMut(&mut Self, &Packet),
        mut after: impl FnMut(&mut Self),
    ) {
        let id = format!("{name}/{}", self.choice.flows);
        let mut cycles = Vec::new();
        group.bench_function(id, |b| {
            b.iter_custom(|operations| {
                cycles.clear();
                for _ in 0..operations.div_ceil(BATCH as u64) {
                    let batch: [Packet; BATCH] = std::array::from_fn(|_| packet(self));
                    let batch = black_box(batch);
                    let start = stamp();
                    for packet in &batch {
                        each(self, packet);
                    }
                    after(self);
                    cycles.push(stamp() - start);
                    self.now += GAP * BATCH as u32;
                }
                let middle = cycles.len() / 2;
                let (_, &mut median, _) = cycles.select_nth_unstable(middle);
                (median as f64 / BATCH as f64 * operations as f64) as u64
            });
        });
    }

    /// What the caller does once a batch for timers that are due.
    fn work_off(&mut self) {
        let mut budget = 2 * BATCH as u32;
        while let Some(id) = self.timers.pop_due(self.now, &mut budget) {
            if let Some(state) = self.table.get_mut(id) {
                black_box(state.deadline.fired(self.now, id, &mut self.timers));
            }
        }
    }
}

fn look_up(group: &mut Group<'_>, flows: u32) {
    let find = |bench: &mut Bench, packet: &Packet| {
        black_box(bench.table.find(&packet.tuple).expect("every flow is there"));
    };
    Bench::new(flows, v6).run(group, "find_v6", Bench::packet, find, |_| ());
    let mut bench = Bench::new(flows, v4);
    bench.run(group, "find_v4", Bench::packet, find, |_| ());
    let absent = |bench: &mut Bench| {
        let packet = bench.packet();
        Packet { tuple: packet.tuple.reversed(), ..packet }
    };
    let find_absent = |bench: &mut Bench, packet: &Packet| {
        assert!(bench.table.find(&packet.tuple).is_none());
    };
    bench.run(group, "find_absent", absent, find_absent, |_| ());
    let find_touch = |bench: &mut Bench, packet: &Packet| {
        let id = bench.table.find(&packet.tuple).expect("every flow is there");
        bench.table.touch(id, bench.now).expect("a valid handle").bytes += 1;
    };
    bench.run(group, "find_touch", Bench::packet, find_touch, |_| ());
}

/// The look-ups of a batch together, and then the same with every flow marked as used.
fn look_up_batch(group: &mut Group<'_>, flows: u32) {
    for (name, touch) in [("find_batch", false), ("find_batch_touch", true)] {
        let tuples = RefCell::new(Vec::with_capacity(BATCH));
        let packet = |bench: &mut Bench| {
            let packet = bench.packet();
            let mut tuples = tuples.borrow_mut();
            if tuples.len() == BATCH {
                tuples.clear();
            }
            tuples.push(packet.tuple);
            packet
        };
        let after = |bench: &mut Bench| {
            let mut found = [None; BATCH];
            bench.table.find_batch(&tuples.borrow(), &mut found);
            for id in found {
                let id = id.expect("every flow is there");
                if touch {
                    bench.table.touch(id, bench.now).expect("a valid handle").bytes += 1;
                }
            }
            black_box(found);
        };
        Bench::new(flows, v4).run(group, name, packet, |_, _| (), after);
    }
}

/// A new flow takes the place of the oldest one.
fn churn(group: &mut Group<'_>, flows: u32) {
    let mut n = flows;
    let new = |bench: &mut Bench| {
        n = (n + 1) & 0xfff_ffff;
        Packet { tuple: v4(n), ..bench.packet() }
    };
    let replace = |bench: &mut Bench, packet: &Packet| {
        bench.table.evict(|_| true).expect("a flow to evict");
        bench.table.insert(&packet.tuple, bench.now, State::NEW).expect("room for it");
    };
    Bench::new(flows, v4).run(group, "evict_insert", new, replace, |_| ());
}

fn timers(group: &mut Group<'_>, flows: u32) {
    // Every packet moves a deadline; timers that fire meanwhile are part of the cost.
    let set = |bench: &mut Bench, packet: &Packet| {
        let at = bench.now + RTO;
        let state = bench.table.get_mut(packet.id).expect("a valid handle");
        state.deadline.set(at, packet.id, &mut bench.timers);
    };
    let mut bench = Bench::new(flows, v4);
    bench.run(group, "deadline_moved", Bench::packet, set, Bench::work_off);
    let schedule = |bench: &mut Bench, packet: &Packet| {
        let spread = Duration::from_nanos(u64::from(packet.id.index) << 10);
        assert!(bench.timers.schedule(packet.id, bench.now + RTO + spread));
    };
    Bench::new(flows, v4).run(group, "schedule", Bench::packet, schedule, |_| ());
}

fn all(c: &mut Criterion<Cycles>) {
    let mut group = c.benchmark_group("flow_table");
    group.sample_size(20).warm_up_time(Wall::from_millis(300));
    group.measurement_time(Wall::from_secs(1));
    for flows in FLOWS {
        look_up(&mut group, flows);
        look_up_batch(&mut group, flows);
        churn(&mut group, flows);
        timers(&mut group, flows);
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(Cycles);
    targets = all
}
criterion_main!(benches);
