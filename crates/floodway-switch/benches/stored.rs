//! Cost of transmit offload for a segment with the frames that the switch keeps, in cycles of the time-stamp counter, and memory of a connection.
//!
//! As bench `offload` of `floodway-core` (packets of flows chosen at random, in batches of 32; medians for one packet), which has a number for a frame. Here a frame is a buffer of the port's pool:
//! *headers* are copied alone, *payload* has 1448 bytes besides. *Store* is the guest's segment that leaves at once, *release* the ACK that frees it. What is sent goes nowhere.
//!
//! *Idle* is the resident memory of the process, from before the first connection to after the last one, for one connection that holds no frame.
//!
//! Run: `cargo bench -p floodway-switch --bench stored`; arguments choose numbers of flows. `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` puts the tables into huge pages.

#[path = "../../floodway-core/benches/driver/mod.rs"]
#[allow(dead_code, reason = "shared with another bench")]
mod driver;

use std::fs;

use floodway_core::offload::Side;
use floodway_switch::testing::stored::{Stored, Stores};

use driver::{Bench, MSS, Supply, measure};

const FLOWS: [u32; 4] = [1, 1_000, 100_000, 1_000_000];
/// Of frames, in bytes.
const LIMIT: usize = 8 << 30;

impl Supply for Stores {
    type Frame = Stored;

    fn frame(&mut self, _: u32) -> Option<Stored> {
        self.store()
    }
}

fn bench(payload: usize, flows: u32) -> Bench<Stores> {
    Bench::new(Stores::new(payload, LIMIT), flows, true, false, 60_000)
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or_default();
    kib * 1024
}

fn main() {
    let numbers: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    println!(
        "{:<12}{:>10}{:>10}{:>10}{:>14}",
        "cycles", "flows", "store", "release", "idle, bytes"
    );
    for flows in FLOWS {
        if !numbers.is_empty() && !numbers.contains(&flows.to_string()) {
            continue;
        }
        for (name, payload) in [("headers", 0), ("payload", MSS as usize)] {
            let before = resident();
            let bench = bench(payload, flows);
            let idle = resident().saturating_sub(before) / u64::from(flows);
            let [look_up, store, look_up_ack, release, _] = measure(bench, Side::Guest);
            let (store, release) = (look_up + store, look_up_ack + release);
            let idle = if flows >= 100_000 { idle.to_string() } else { String::new() };
            println!("{name:<12}{flows:>10}{store:>10.0}{release:>10.0}{idle:>14}");
        }
    }
}
