//! Cost of an ACK with SACK blocks, in nanoseconds, for a flow with 10, 1 k and 8 k segments under way, and peers
//! whose blocks are made to cost as much as they can. The mean over all ACKs of an attack; the least of its
//! repetitions. The last column is the ratio of the largest flow to the smallest: at most 3 is the aim. That the *steps* of
//! an ACK do not grow with the number of segments is proven by a test (`sender::cost`), without a clock.
//!
//! Run: `cargo bench -p floodway-core --bench scoreboard`; arguments (`advancing`, `8190`) choose attacks and numbers of segments.

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
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let chosen = |name: &str| wanted.iter().any(|arg| arg.eq_ignore_ascii_case(name));
    let attacks: Vec<Attack> = Attack::ALL.into_iter().chain([Attack::Reneging]).collect();
    let any_attack = !attacks.iter().any(|attack| chosen(&format!("{attack:?}")));
    let any_size = !RECORDS.iter().any(|records| chosen(&records.to_string()));
    let sizes: Vec<u32> =
        RECORDS.into_iter().filter(|records| any_size || chosen(&records.to_string())).collect();
    let columns: String = sizes.iter().map(|records| format!("{records:>10}")).collect();
    println!("{:<14}{columns}{:>8}", "ns per ACK", "ratio");
    for attack in attacks {
        let name = format!("{attack:?}");
        if any_attack || chosen(&name) {
            let took: Vec<f64> = sizes.iter().map(|&records| measure(attack, records)).collect();
            let columns: String = took.iter().map(|ns| format!("{ns:>10.0}")).collect();
            println!("{name:<14}{columns}{:>8.1}", took[took.len() - 1] / took[0]);
        }
    }
}
