//! Cost of the offload per packet, in cycles of the time-stamp counter, beside vFlood's table 2 as limits: look-up 78,
//! transmit (store a segment of the guest) 65, receive (an ACK: free, `cwnd`, release, grant; or data: keep, acknowledge)
//! 370, twice as much with a million flows. At 1, 1 k, 100 k and 1 M flows.
//!
//! Packets come in batches of 32 whose headers are at hand, as after parsing, each of a flow chosen at
//! random; their flows are looked up together ([`Offload::look_up`]). Then, as the path's own cost, their state is
//! brought into the cache ([`Offload::load`]), each is shown to the machine, and the flush ends the batch. All data is acknowledged, with timestamps in every segment. A result is the median of the
//! batches, for one packet; for timers, the mean. A frame is a cheap handle: the copy of its payload is measured by
//! itself and printed beside.
//!
//! *Floor* is what no machine can go below: the same choice of flows, looked up in a table whose entries are
//! as large, and one write to each of their cache lines. Run: `cargo bench -p floodway-core --bench offload`;
//! arguments (`transmit`, `receive`, `floor`, `1000`) choose rows and numbers of flows. `GLIBC_TUNABLES=
//! glibc.malloc.hugetlb=1` puts the tables into huge pages.

use std::hint::black_box;
use std::net::Ipv4Addr;

use floodway_core::offload::{
    Config, Edit, FlowNotice, Link, Offload, Packet, Segment, Side, Sink, SynthesizedSegment,
    Transmission,
};
use floodway_core::seq::Seq;
use floodway_core::tables::flow_table::{FlowId, FlowTable};
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::Timestamps;

const FLOWS: [u32; 4] = [1, 1_000, 100_000, 1_000_000];
const BATCH: usize = 32;
/// Batches that are measured.
const BATCHES: usize = 4_000;
const MSS: u32 = 1448;
/// Sequence numbers of the SYNs.
const GUEST: u32 = 1_000;
const PEER: u32 = 9_000;
/// Cache lines of a flow's state.
const LINES: usize = Offload::<u32>::FLOW_SIZE.div_ceil(64);
/// Between two packets: two million a second.
const GAP: Duration = Duration::from_nanos(500);

#[cfg(target_arch = "x86_64")]
fn stamp() -> u64 {
    // SAFETY: every x86_64 processor has the counter.
    #[allow(unused_unsafe, reason = "safe in newer toolchains")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stamp() -> u64 {
    0
}

/// Counts, so that nothing is optimised away.
#[derive(Default)]
struct Count(u64);

impl Sink<u32> for Count {
    fn release(&mut self, frame: &u32, release: &Transmission) {
        self.0 += u64::from(*frame) + u64::from(release.len);
    }
    fn to_network(&mut self, segment: &SynthesizedSegment) {
        self.0 += u64::from(segment.ack.0);
    }
    fn to_guest(&mut self, segment: &SynthesizedSegment) {
        self.0 += u64::from(segment.ack.0);
    }
    fn redeliver(&mut self, _: &u32, _: &Edit) {}
    fn heartbeat(&mut self, _: &Link, _: u16) {}
    fn notify_flow(&mut self, _: &FiveTuple, _: &Link, _: FlowNotice) {}
}

fn tuple(n: u32) -> FiveTuple {
    let guest = Ipv4Addr::from_bits(0x0a00_0000 | n >> 12);
    FiveTuple::v4(guest, Ipv4Addr::new(10, 255, 0, 1), 6).with_ports(0x1000 | n as u16 & 0xfff, 80)
}

/// Chooses flows: xorshift, scaled.
struct Choice(u64);

impl Choice {
    const fn next(&mut self, flows: usize) -> u32 {
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

struct Bench {
    offload: Offload<u32>,
    sink: Count,
    now: Instant,
    ends: Vec<Ends>,
    choice: Choice,
    /// The window of the peer.
    window: u16,
}

impl Bench {
    fn new(flows: u32, transmit: bool, receive: bool, window: u16) -> Self {
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
            sink: Count::default(),
            now: Instant::from_millis(1),
            ends: vec![Ends::default(); flows as usize],
            choice: Choice(0x9e37_79b9_7f4a_7c15),
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
        let (offload, sink) = (&mut self.offload, &mut self.sink);
        black_box(match from {
            Side::Guest => offload.from_guest(self.now, &packet, || Some(n), sink),
            Side::Peer => offload.from_network(self.now, &packet, || Some(n), sink),
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
    fn fill(&mut self, frames: u32) {
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

fn median(values: &mut [u64]) -> f64 {
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
fn measure(mut bench: Bench, from: Side) -> [f64; 5] {
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

/// A table with entries of the size of the offload's, and nothing to do with them.
fn floor(flows: u32) -> [f64; 2] {
    let mut table = FlowTable::new(flows, 0x9e37_79b9);
    let empty = || [[0_u64; 8]; LINES];
    for n in 0..flows {
        let inserted = table.insert(&tuple(n), Instant::ZERO, empty());
        inserted.expect("room for every flow");
    }
    let mut choice = Choice(0x9e37_79b9_7f4a_7c15);
    let mut samples: [Vec<u64>; 2] = Default::default();
    for _ in 0..BATCHES {
        let tuples = black_box([(); BATCH].map(|()| tuple(choice.next(flows as usize))));
        let mut found = [None; BATCH];
        let start = stamp();
        table.find_batch_with(&tuples, &mut found, |lines| {
            lines.iter().fold(0, |all, line| all ^ line[0] as u32)
        });
        let then = stamp();
        for id in found {
            let flow = id.and_then(|id| table.touch(id, Instant::ZERO)).expect("every flow");
            flow.iter_mut().for_each(|line| line[1] += 1);
        }
        black_box(&mut table);
        samples[0].push(then - start);
        samples[1].push(stamp() - then);
    }
    samples.each_mut().map(|all| median(all))
}

/// Cycles to copy the payload of one segment: out of a guest's ring of 256 buffers into a pool of 4 MiB.
fn copy() -> f64 {
    const BUFFER: usize = 2048;
    let (ring, mut pool) = (vec![1_u8; 256 * BUFFER], vec![0_u8; 2048 * BUFFER]);
    let (mut samples, mut n) = (Vec::new(), 0);
    for _ in 0..BATCHES {
        let start = stamp();
        for _ in 0..BATCH {
            let from = &ring[n % 256 * BUFFER..][..MSS as usize];
            pool[n % 2048 * BUFFER..][..MSS as usize].copy_from_slice(black_box(from));
            n += 1;
        }
        black_box(&mut pool);
        samples.push(stamp() - start);
    }
    median(&mut samples)
}

/// One line of the report.
struct Row {
    path: &'static str,
    look_up: f64,
    cycles: f64,
    /// At 1 k flows.
    limit: u32,
    /// Its payload is copied.
    copied: bool,
}

const LOOK_UP_LIMIT: u32 = 78;
const TRANSMIT_LIMIT: u32 = 65;
const RECEIVE_LIMIT: u32 = 370;

fn transmit(flows: u32) -> Vec<Row> {
    let row = |path, look_up, cycles, limit, copied| Row { path, look_up, cycles, limit, copied };
    let open = measure(Bench::new(flows, true, false, 60_000), Side::Guest);
    // The peer's window holds two segments. Those behind it wait for ACKs, as they do behind a full `cwnd`.
    let mut bench = Bench::new(flows, true, false, (2 * MSS).div_ceil(128) as u16);
    bench.fill(3);
    let full = measure(bench, Side::Guest);
    vec![
        row("transmit: store, window full", full[0], full[1], TRANSMIT_LIMIT, true),
        row("  its ACK: free, release next, grant", full[2], full[3], RECEIVE_LIMIT, false),
        row("  timers, per packet", 0.0, full[4], 0, false),
        row("transmit: store and release at once", open[0], open[1], TRANSMIT_LIMIT, true),
        row("  its ACK: free, grant", open[2], open[3], RECEIVE_LIMIT, false),
        row("  timers, per packet", 0.0, open[4], 0, false),
    ]
}

fn receive(flows: u32) -> Vec<Row> {
    let row = |path, look_up, cycles, limit, copied| Row { path, look_up, cycles, limit, copied };
    let t = measure(Bench::new(flows, false, true, 60_000), Side::Peer);
    vec![
        row("receive: keep, acknowledge", t[0], t[1], RECEIVE_LIMIT, true),
        row("  the guest's own ACK: free", t[2], t[3], RECEIVE_LIMIT, false),
        row("  timers, per packet", 0.0, t[4], 0, false),
    ]
}

fn print(flows: u32, copy: f64, rows: &[Row]) {
    // The limits hold at 1 k flows, and twice that at 1 M.
    let limit = |limit: u32| match (limit, flows) {
        (0, _) => String::new(),
        (limit, 1_000_000) => format!("(<= {})", 2 * limit),
        (limit, _) => format!("(<= {limit})"),
    };
    for Row { path, look_up, cycles, limit: most, copied } in rows {
        let copy = if *copied { format!("{copy:.0}") } else { String::new() };
        let look_up = if *look_up > 0.0 {
            format!("{look_up:.0} {}", limit(LOOK_UP_LIMIT))
        } else {
            String::new()
        };
        let path_cycles = format!("{cycles:.0} {}", limit(*most));
        println!("{path:<38}{flows:>8}{look_up:>16}{path_cycles:>16}{copy:>5}");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (numbers, names): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|a| a.parse::<u32>().is_ok());
    let chosen = |of: &[&String], name: &str| of.is_empty() || of.iter().any(|a| *a == name);
    println!("state of a flow: {} bytes", Offload::<u32>::FLOW_SIZE);
    println!(
        "{:<38}{:>8}{:>16}{:>16}{:>5}",
        "cycles per packet", "flows", "look-up", "path", "copy"
    );
    let copy = copy();
    for flows in FLOWS.into_iter().filter(|flows| chosen(&numbers, &flows.to_string())) {
        if chosen(&names, "transmit") {
            print(flows, copy, &transmit(flows));
        }
        if chosen(&names, "receive") {
            print(flows, copy, &receive(flows));
        }
        if chosen(&names, "floor") {
            let [look_up, cycles] = floor(flows);
            let path = "floor: every line of the flow, no work";
            print(flows, copy, &[Row { path, look_up, cycles, limit: 0, copied: false }]);
        }
    }
}
