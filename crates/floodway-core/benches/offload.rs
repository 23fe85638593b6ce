//! Cost of the offload per packet, in cycles of the time-stamp counter, beside vFlood's table 2 as limits: look-up 78,
//! transmit (store a segment of the guest) 65, receive (an ACK: free, `cwnd`, release, grant; or data: keep, acknowledge)
//! 370, twice as much with a million flows. At 1, 1 k, 100 k and 1 M flows.
//!
//! Packets come in batches of 32 whose headers are at hand, as after parsing, each of a flow chosen at
//! random; their flows are looked up together ([`Offload::look_up`]). Then, as the path's own cost, their state is
//! brought into the cache ([`Offload::load`]), each is shown to the machine, and the flush ends the batch. All data is acknowledged, with timestamps in every segment. A result is the median of the
//! batches, for one packet; for timers, the mean. A frame is a cheap handle: the copy of its payload is measured by
//! itself and printed beside. With the frames that the switch keeps: bench `stored` of `floodway-switch`.
//!
//! *Floor* is what no machine can go below: the same choice of flows, looked up in a table whose entries are
//! as large, and one write to each of their cache lines. Run: `cargo bench -p floodway-core --bench offload`;
//! arguments (`transmit`, `receive`, `floor`, `1000`) choose rows and numbers of flows. `GLIBC_TUNABLES=
//! glibc.malloc.hugetlb=1` puts the tables into huge pages.

mod driver;

use std::hint::black_box;

use floodway_core::offload::{Offload, Side};
use floodway_core::tables::flow_table::FlowTable;
use floodway_core::time::Instant;

use driver::{BATCH, BATCHES, Bench, Choice, MSS, Supply, measure, median, stamp, tuple};

const FLOWS: [u32; 4] = [1, 1_000, 100_000, 1_000_000];
/// Cache lines of a flow's state.
const LINES: usize = Offload::<u32>::FLOW_SIZE.div_ceil(64);

/// Frames that are numbers.
struct Handles;

impl Supply for Handles {
    type Frame = u32;

    fn frame(&mut self, n: u32) -> Option<u32> {
        Some(n)
    }
}

/// A table with entries of the size of the offload's, and nothing to do with them.
fn floor(flows: u32) -> [f64; 2] {
    let mut table = FlowTable::new(flows, 0x9e37_79b9);
    let empty = || [[0_u64; 8]; LINES];
    for n in 0..flows {
        let inserted = table.insert(&tuple(n), Instant::ZERO, empty());
        inserted.expect("room for every flow");
    }
    let mut choice = Choice::new();
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
    let open = measure(Bench::new(Handles, flows, true, false, 60_000), Side::Guest);
    // The peer's window holds two segments. Those behind it wait for ACKs, as they do behind a full `cwnd`.
    let mut bench = Bench::new(Handles, flows, true, false, (2 * MSS).div_ceil(128) as u16);
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
    let t = measure(Bench::new(Handles, flows, false, true, 60_000), Side::Peer);
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
