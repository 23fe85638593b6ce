//! The event queue beside three others, in the hold model: `n` events are pending; each step takes the
//! earliest and schedules one. Delays are those of a network: serialisation, propagation, timers.
//! The last group moves a timer in each step, as TCP does with its retransmission timer.

#![allow(missing_docs, reason = "criterion's macros generate public functions")]

mod queues;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use floodway_sim::engine::{EventQueue, Rng};
use floodway_sim::{Duration, Instant};
use queues::{BinaryHeapQueue, CalendarQueue, Queue, RadixHeap};

/// What simulations carry.
type Event = [u32; 4];

impl Queue for EventQueue<Event> {
    fn insert(&mut self, time: u64, event: Event) {
        self.push(Instant::from_nanos(time), event);
    }
    fn take(&mut self) -> (u64, Event) {
        let (time, event) = self.pop(Instant::NEVER).expect("never empty");
        (time.as_nanos(), event)
    }
}

/// Delays in nanoseconds, drawn beforehand so that only the queue is timed.
fn delays() -> Vec<u64> {
    let mut rng = Rng::new(1, "delays", 0);
    let one = |rng: &mut Rng| match rng.below(100) {
        0..=44 => 12_304 - 1_000 * rng.below(3),
        45..=84 => 20_000 + rng.below(2) * 30_000,
        85..=94 => rng.exponential(Duration::from_micros(500)).as_nanos() as u64,
        95..=97 => 40_000_000,
        _ => 200_000_000 + rng.below(50_000_000),
    };
    (0..1 << 16).map(|_| one(&mut rng)).collect()
}

fn hold<Q: Queue>(c: &mut Criterion, name: &str, make: impl Fn() -> Q) {
    let delays = delays();
    let mut group = c.benchmark_group("hold");
    group.throughput(Throughput::Elements(1));
    for pending in [64, 1024, 16_384, 262_144] {
        let mut queue = make();
        let mut n = 0;
        let mut delay = || {
            n = (n + 1) % delays.len();
            delays[n]
        };
        (0..pending).for_each(|_| queue.insert(delay(), [0; 4]));
        let mut step = || {
            let (time, event) = queue.take();
            queue.insert(time + delay(), event);
        };
        // Until the distribution of what is pending is that of the hold model.
        (0..pending * 20).for_each(|_| step());
        group.bench_function(BenchmarkId::new(name, pending), |b| b.iter(&mut step));
    }
    group.finish();
}

fn moved(c: &mut Criterion) {
    let delays = delays();
    let mut group = c.benchmark_group("hold and move a timer");
    group.throughput(Throughput::Elements(1));
    for pending in [64, 1024, 16_384, 262_144] {
        let mut queue = EventQueue::<Event>::new();
        let timers: Vec<_> =
            (0..1024).map(|_| queue.push(Instant::from_millis(200), [0; 4])).collect();
        let mut n = 0;
        (0..pending).for_each(|n| Queue::insert(&mut queue, delays[n % delays.len()], [0; 4]));
        let mut step = || {
            n = (n + 1) % delays.len();
            let (time, event) = queue.take();
            Queue::insert(&mut queue, time + delays[n], event);
            queue.reschedule(timers[n % timers.len()], Instant::from_nanos(time + 200_000_000));
        };
        (0..pending * 20).for_each(|_| step());
        group.bench_function(BenchmarkId::new("this", pending), |b| b.iter(&mut step));
    }
    group.finish();
}

fn all(c: &mut Criterion) {
    hold(c, "this", EventQueue::<Event>::new);
    hold(c, "binary heap", BinaryHeapQueue::default);
    hold(c, "radix heap", RadixHeap::default);
    hold(c, "calendar", CalendarQueue::default);
    moved(c);
}

criterion_group!(benches, all);
criterion_main!(benches);
