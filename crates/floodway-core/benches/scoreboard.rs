//! Cost of an ACK with SACK blocks, in nanoseconds, for a flow with 10, 1 k and 8 k segments under way, and peers
//! whose blocks are made to cost as much as they can. The mean over all ACKs of an attack; the least of its
//! repetitions. The last column is the ratio of the largest flow to the smallest: at most 3 is the aim. That the *steps* of
//! an ACK do not grow with the number of segments is proven by a test (`sender::cost`), without a clock.
//!
//! Run: `cargo bench -p floodway-core --bench scoreboard`.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a bench measures real time"
)]

use std::hint::black_box;
use std::time::Instant;

mod hostile;

use hostile::{Attack, Victim};

const RECORDS: [u32; 3] = [10, 1_000, 8_190];
/// ACKs that are measured for each figure.
const ACKS: u32 = 60_000;

/// Nanoseconds per ACK: the least of the repetitions, which nothing else has disturbed.
fn measure(attack: Attack, records: u32) -> f64 {
    let acks = attack.acks(records).max(1);
    let samples = (0..(ACKS / acks).max(3)).map(|_| {
        let mut victim = black_box(Victim::new(records));
        let start = Instant::now();
        for n in 0..acks {
            victim.acknowledge(attack, n);
        }
        let took = start.elapsed();
        black_box(victim.in_flight());
        took.as_nanos() as f64 / f64::from(acks)
    });
    samples.fold(f64::INFINITY, f64::min)
}

fn main() {
    let [few, some, many] = RECORDS;
    println!("{:<14}{few:>10}{some:>10}{many:>10}{:>8}", "ns per ACK", "ratio");
    for attack in Attack::ALL.into_iter().chain([Attack::Reneging]) {
        let [few, some, many] = RECORDS.map(|records| measure(attack, records));
        let name = format!("{attack:?}");
        println!("{name:<14}{few:>10.0}{some:>10.0}{many:>10.0}{:>8.1}", many / few);
    }
}
