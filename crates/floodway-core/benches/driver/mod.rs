//! Packets of many flows through the offload, in batches, with the cycles that they take.

use std::hint::black_box;
use std::net::Ipv4Addr;

use floodway_core::offload::{
    Config, Edit, FlowNotice, Link, Offload, Packet, Segment, Side, Sink, SynthesizedSegment,
    Transmission,
};
use floodway_core::seq::Seq;
use floodway_core::tables::flow_table::FlowId;
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::Timestamps;

/// Packets that are looked up together.
pub const BATCH: usize = 32;
/// Batches that are measured.
pub const BATCHES: usize = 4_000;
/// Bytes of a segment.
pub const MSS: u32 = 1448;
/// Sequence numbers of the SYNs.
const GUEST: u32 = 1_000;
const PEER: u32 = 9_000;
/// Between two packets: two million a second.
const GAP: Duration = Duration::from_nanos(500);

#[cfg(target_arch = "x86_64")]
pub fn stamp() -> u64 {
    // SAFETY: every x86_64 processor has the counter.
    #[allow(unused_unsafe, reason = "safe in newer toolchains")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn stamp() -> u64 {
    0
}

/// Counts, so that nothing is optimised away.
#[derive(Default)]
struct Count(u64);

impl<F> Sink<F> for Count {
    fn release(&mut self, frame: &F, release: &Transmission) {
        black_box(frame);
        self.0 += u64::from(release.len);
    }
    fn to_network(&mut self, segment: &SynthesizedSegment) {
        self.0 += u64::from(segment.ack.0);
    }
    fn to_guest(&mut self, segment: &SynthesizedSegment) {
        self.0 += u64::from(segment.ack.0);
    }
    fn redeliver(&mut self, _: &F, _: &Edit) {}
    fn heartbeat(&mut self, _: &Link, _: u16) {}
    fn notify_flow(&mut self, _: &FiveTuple, _: &Link, _: FlowNotice) {}
}

pub fn tuple(n: u32) -> FiveTuple {
    let guest = Ipv4Addr::from_bits(0x0a00_0000 | n >> 12);
    FiveTuple::v4(guest, Ipv4Addr::new(10, 255, 0, 1), 6).with_ports(0x1000 | n as u16 & 0xfff, 80)
}

/// Chooses flows: xorshift, scaled.
pub struct Choice(u64);

impl Choice {
    pub const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub const fn next(&mut self, flows: usize) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * flows as u64) >> 32) as u32
    }
}

/// What a flow's ends have sent, and what its peer has acknowledged.
#[derive(Clone, Copy, Default)]
struct Ends {
    guest: u32,
    peer: u32,
    acked: u32,
}

/// Where frames come from that are kept.
pub trait Supply {
    type Frame: 'static;

    /// A frame of flow `n`; `None` if there is no memory.
    fn frame(&mut self, n: u32) -> Option<Self::Frame>;
}

/// A packet of a batch.
#[derive(Clone, Copy)]
struct Sent {
    n: u32,
    link: Link,
    flow: FiveTuple,
    segment: Segment,
}

/// Cycles of a batch: of look-ups, and of the machine.
#[derive(Clone, Copy, Default)]
struct Took {
    found: u64,
    done: u64,
}

pub struct Bench<S: Supply> {
    offload: Offload<S::Frame>,
    supply: S,
    sink: Count,
    now: Instant,
    ends: Vec<Ends>,
    choice: Choice,
    /// The window of the peer.
    window: u16,
}

impl<S: Supply> Bench<S> {
    /// An offload that has `flows` open connections with peers of this window.
    pub fn new(supply: S, flows: u32, transmit: bool, receive: bool, window: u16) -> Self {
        let config = Config {
            transmit,
            receive,
            budget: u32::MAX,
            receive_budget: u32::MAX,
            max_flows: flows,
            ..Config::default()
        };
        let mut bench = Self {
            offload: Offload::new(config, 0x9e37_79b9),
            supply,
            sink: Count::default(),
            now: Instant::from_millis(1),
            ends: vec![Ends::default(); flows as usize],
            choice: Choice::new(),
            window,
        };
        (0..flows).for_each(|n| bench.open(n));
        bench
    }

    fn open(&mut self, n: u32) {
        let syn = |from, seq: u32, ack: u32, flags| {
            let mut packet = self.packet(n, from, 0);
            let segment = &mut packet.segment;
            (segment.seq, segment.ack, segment.flags) = (Seq(seq), Seq(ack), flags);
            segment.window = 60_000;
            segment.options.mss = Some(MSS as u16 + 12);
            segment.options.window_scale = Some(7);
            segment.options.sack_permitted = true;
            packet
        };
        let (first, second) = (
            syn(Side::Guest, GUEST - 1, 0, Flags::SYN),
            syn(Side::Peer, PEER - 1, GUEST, Flags::SYN.with(Flags::ACK)),
        );
        let third = self.packet(n, Side::Guest, 0);
        self.show(Side::Guest, &first, None);
        self.show(Side::Peer, &second, None);
        self.show(Side::Guest, &third, None);
        self.offload.flush(self.now, &mut self.sink);
    }

    fn packet(&self, n: u32, from: Side, len: u32) -> Sent {
        let ends = self.ends[n as usize];
        let clock = (self.now.as_nanos() >> 20) as u32;
        let timestamps = Some(Timestamps { value: clock + 1, echo: clock });
        let (seq, ack, window, flow) = match from {
            Side::Guest => (GUEST + ends.guest, PEER + ends.peer, 60_000, tuple(n)),
            Side::Peer => (PEER + ends.peer, GUEST + ends.acked, self.window, tuple(n).reversed()),
        };
        let (seq, ack, flags) = (Seq(seq), Seq(ack), Flags::ACK);
        let mut segment = Segment { seq, ack, len, window, flags, ..Segment::default() };
        segment.options.timestamps = timestamps;
        Sent { n, link: Link::default(), flow, segment }
    }

    #[inline]
    fn show(&mut self, from: Side, packet: &Sent, found: Option<FlowId>) {
        let n = packet.n;
        let Sent { flow, link, segment, .. } = packet;
        let packet = Packet { flow, found, link, segment };
        let Self { offload, supply, sink, now, .. } = self;
        black_box(match from {
            Side::Guest => offload.from_guest(*now, &packet, || supply.frame(n), sink),
            Side::Peer => offload.from_network(*now, &packet, || supply.frame(n), sink),
        });
    }

    fn run(&mut self, from: Side, batch: &[Sent; BATCH]) -> Took {
        let batch = black_box(batch);
        let tuples = batch.map(|packet| tuple(packet.n));
        let mut flows = [None; BATCH];
        let start = stamp();
        self.offload.look_up(black_box(&tuples), &mut flows);
        let found = stamp();
        self.offload.load(black_box(&flows), from);
        for (packet, flow) in batch.iter().zip(flows) {
            self.show(from, packet, flow);
        }
        self.offload.flush(self.now, &mut self.sink);
        let done = stamp();
        Took { found: found - start, done: done - found }
    }

    /// Runs what is due; the cycles for it.
    fn run_timers(&mut self) -> u64 {
        let start = stamp();
        while self.offload.next_timeout() <= self.now {
            self.offload.handle_timeout(self.now, &mut self.sink);
        }
        stamp() - start
    }

    /// Data of `from`, then the other side's ACKs of it.
    fn round(&mut self, from: Side) -> (Took, Took, u64) {
        let data: [Sent; BATCH] = std::array::from_fn(|_| {
            let n = self.choice.next(self.ends.len());
            let packet = self.packet(n, from, MSS);
            let ends = &mut self.ends[n as usize];
            let sent = if from == Side::Guest { &mut ends.guest } else { &mut ends.peer };
            *sent = sent.wrapping_add(MSS);
            packet
        });
        self.now += GAP * BATCH as u32;
        let first = self.run(from, &data);
        let to = if from == Side::Guest { Side::Peer } else { Side::Guest };
        let acks = data.map(|packet| {
            let ends = &mut self.ends[packet.n as usize];
            if from == Side::Guest {
                ends.acked = ends.acked.wrapping_add(MSS);
            }
            self.packet(packet.n, to, 0)
        });
        self.now += GAP * BATCH as u32;
        let second = self.run(to, &acks);
        (first, second, self.run_timers())
    }

    /// Puts `frames` of every flow behind the window of the peer.
    pub fn fill(&mut self, frames: u32) {
        for n in 0..self.ends.len() as u32 {
            for _ in 0..frames {
                let packet = self.packet(n, Side::Guest, MSS);
                self.show(Side::Guest, &packet, None);
                self.ends[n as usize].guest += MSS;
            }
        }
        self.offload.flush(self.now, &mut self.sink);
    }
}

pub fn median(values: &mut [u64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable(middle).1 as f64 / BATCH as f64
}

/// Medians of the batches, for one packet.
#[derive(Default)]
struct Samples([Vec<u64>; 5]);

impl Samples {
    fn add(&mut self, first: Took, second: Took, timers: u64) {
        let values = [first.found, first.done, second.found, second.done];
        self.0.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
        self.0[4].push(timers);
    }
}

/// Look-up and work of data, look-up and work of its ACK, timers (the mean).
pub fn measure<S: Supply>(mut bench: Bench<S>, from: Side) -> [f64; 5] {
    // Each flow has its memory by then.
    for _ in 0..2 * bench.ends.len() / BATCH + 1 {
        bench.round(from);
    }
    let mut samples = Samples::default();
    for _ in 0..BATCHES {
        let (first, second, timers) = bench.round(from);
        samples.add(first, second, timers);
    }
    black_box(bench.sink.0);
    // Timers come in bursts, so the mean; without the turns in which another process had the CPU.
    let undisturbed = samples.0[4].iter().filter(|&&cycles| cycles < 200_000);
    let timers = undisturbed.sum::<u64>() as f64 / (2 * BATCHES * BATCH) as f64;
    let [a, b, c, d, _] = &mut samples.0;
    [median(a), median(b), median(c), median(d), timers]
}
