//! Cost of the offload per packet, in cycles of the time-stamp counter: what vFlood's table 2 gives as 65
//! (transmit), 370 (receive), 78 (look-up), 59 and 57 (buffer accounting, grant). At 1, 1 k, 100 k and 1 M flows.
//!
//! Every packet is of a flow chosen at random. A frame is a cheap handle: the copy of its payload is not
//! in the figures. One operation at a time between two readings of the counter, whose own cost is taken off;
//! the median of all. Run: `cargo bench -p floodway-core --bench offload`.

use std::hint::black_box;
use std::net::Ipv4Addr;

use floodway_core::offload::{
    Config, Edit, Link, Made, Naming, Offload, Release, Segment, Sink, Verdict,
};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

const FLOWS: [u32; 4] = [1, 1_000, 100_000, 1_000_000];
const OPERATIONS: usize = 40_000;
const MSS: u32 = 1448;
/// Sequence numbers of the SYNs.
const GUEST: u32 = 1_000;
const PEER: u32 = 9_000;

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
    fn release(&mut self, frame: &u32, release: &Release) {
        self.0 += u64::from(*frame) + u64::from(release.len);
    }
    fn to_network(&mut self, made: &Made) {
        self.0 += u64::from(made.ack.0);
    }
    fn to_guest(&mut self, made: &Made) {
        self.0 += u64::from(made.ack.0);
    }
    fn redeliver(&mut self, _: &u32, _: &Edit) {}
    fn hello(&mut self, _: &Link, _: u16) {}
    fn name(&mut self, _: &FiveTuple, _: &Link, _: Naming) {}
}

fn tuple(n: u32) -> FiveTuple {
    let guest = Ipv4Addr::from_bits(0x0a00_0000 | n >> 12);
    FiveTuple::v4(guest, Ipv4Addr::new(10, 255, 0, 1), 6).with_ports(0x1000 | n as u16 & 0xfff, 80)
}

struct Bench {
    offload: Offload<u32>,
    sink: Count,
    now: Instant,
    /// Bytes sent by guest and peer, by flow.
    sent: Vec<(u32, u32)>,
    state: u64,
    overhead: u64,
}

impl Bench {
    fn new(flows: u32, transmit: bool, receive: bool) -> Self {
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
            sent: vec![(0, 0); flows as usize],
            state: 0x9e37_79b9_7f4a_7c15,
            overhead: 0,
        };
        let mut empty: Vec<_> = (0..1000)
            .map(|_| {
                let start = stamp();
                stamp() - start
            })
            .collect();
        bench.overhead = median(&mut empty);
        for n in 0..flows {
            bench.open(n);
        }
        bench
    }

    fn open(&mut self, n: u32) {
        let syn = |seq: u32, ack: u32, flags| {
            let mut segment = Segment {
                seq: Seq(seq),
                ack: Seq(ack),
                window: 65_000,
                flags,
                ..Segment::default()
            };
            segment.options.mss = Some(MSS as u16);
            segment.options.window_scale = Some(7);
            segment.options.sack_permitted = true;
            segment
        };
        self.guest_sends(n, &syn(GUEST - 1, 0, Flags::SYN));
        self.peer_sends(n, &syn(PEER - 1, GUEST, Flags::SYN.with(Flags::ACK)));
        let ack = Segment {
            seq: Seq(GUEST),
            ack: Seq(PEER),
            window: 60_000,
            flags: Flags::ACK,
            ..Segment::default()
        };
        self.guest_sends(n, &ack);
        self.offload.flush(self.now, &mut self.sink);
    }

    fn guest_sends(&mut self, n: u32, segment: &Segment) -> Verdict {
        let link = Link::default();
        self.offload.from_guest(self.now, &tuple(n), &link, segment, || Some(n), &mut self.sink)
    }

    fn peer_sends(&mut self, n: u32, segment: &Segment) -> Verdict {
        let (link, flow) = (Link::default(), tuple(n).reversed());
        self.offload.from_network(self.now, &flow, &link, segment, || Some(n), &mut self.sink)
    }

    fn choose(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (((self.state >> 32) * self.sent.len() as u64) >> 32) as u32
    }

    fn timed(&mut self, n: u32, guest: bool, segment: &Segment) -> u64 {
        let (flow, link) = (if guest { tuple(n) } else { tuple(n).reversed() }, Link::default());
        let (flow, segment) = (black_box(flow), black_box(*segment));
        let start = stamp();
        let verdict = if guest {
            self.offload.from_guest(self.now, &flow, &link, &segment, || Some(n), &mut self.sink)
        } else {
            self.offload.from_network(self.now, &flow, &link, &segment, || Some(n), &mut self.sink)
        };
        let took = stamp() - start;
        black_box(verdict);
        took.saturating_sub(self.overhead)
    }

    fn segment(&self, n: u32, guest: bool, len: u32) -> Segment {
        let (up, down) = self.sent[n as usize];
        let (seq, ack) = if guest { (GUEST + up, PEER + down) } else { (PEER + down, GUEST + up) };
        Segment {
            seq: Seq(seq),
            ack: Seq(ack),
            len,
            window: 60_000,
            flags: Flags::ACK,
            ..Segment::default()
        }
    }

    /// A packet on its way, then its ACK: the cycles of both.
    fn round(&mut self, guest: bool) -> (u64, u64, u64) {
        let n = self.choose();
        self.now += Duration::from_micros(1);
        let data = self.segment(n, guest, MSS);
        let first = self.timed(n, guest, &data);
        let start = stamp();
        self.offload.flush(self.now, &mut self.sink);
        let flush = (stamp() - start).saturating_sub(self.overhead);
        let sent = &mut self.sent[n as usize];
        let sent = if guest { &mut sent.0 } else { &mut sent.1 };
        *sent = sent.wrapping_add(MSS);
        // Another flow's state is what the caches have by then.
        let ack = self.segment(n, !guest, 0);
        let second = self.timed(n, !guest, &ack);
        while self.offload.next_timeout() <= self.now {
            self.offload.handle_timeout(self.now, &mut self.sink);
        }
        (first, flush, second)
    }
}

fn median(values: &mut [u64]) -> u64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable(middle).1
}

fn measure(flows: u32, guest: bool) -> (u64, u64, u64) {
    let mut bench = Bench::new(flows, guest, !guest);
    if guest && bench.offload.online() < flows {
        println!("transmit: the budget has room for {} of {flows} flows", bench.offload.online());
        bench.sent.truncate(bench.offload.online() as usize);
    }
    // Each flow has its memory by then.
    for _ in 0..2 * bench.sent.len() {
        bench.round(guest);
    }
    let mut all: [Vec<u64>; 3] = Default::default();
    for _ in 0..OPERATIONS {
        let (first, flush, second) = bench.round(guest);
        all[0].push(first);
        all[1].push(flush);
        all[2].push(second);
    }
    black_box(bench.sink.0);
    let [first, flush, second] = &mut all;
    (median(first), median(flush), median(second))
}

fn main() {
    println!("cycles per packet, median       paper {}", FLOWS.map(|n| format!("{n:>9}")).concat());
    let transmit = FLOWS.map(|n| measure(n, true));
    let receive = FLOWS.map(|n| measure(n, false));
    let row = |name: &str, paper: &str, values: [u64; 4]| {
        println!("{name:<30} {paper:>6} {}", values.map(|n| format!("{n:>9}")).concat());
    };
    row("transmit: store and release", "65", transmit.map(|t| t.0));
    row("transmit: ACK, free and grant", "59+57", transmit.map(|t| t.2));
    row("receive: keep, acknowledge", "370", receive.map(|t| t.0 + t.1));
    row("receive: the guest's own ACK", "", receive.map(|t| t.2));
    println!("the look-up (paper: 78) is part of each; by itself: --bench flow_table");
}
