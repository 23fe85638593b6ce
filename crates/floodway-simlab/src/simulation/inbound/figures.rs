//! From what was seen to figures.
//!
//! | figure | is |
//! |---|---|
//! | `total` | bytes on the wire at the port, by what it carries |
//! | `worst second` | the least total of any second |
//! | `drops` | packets that the port dropped |
//! | `Jain's index` | over the rates of connections that were there all the time |
//! | `follows` | share of looks at which a VM with connections received within 10 % of its rate, from 100 ms after a change of rates on |
//! | `time-outs`, `retransmissions` | of all senders, from the first moment on |
//!
//! `queries` have the times from question to last answer.

use std::time::Duration;

use floodway_sim::traffic::{Aggregate, Record, Samples};

use super::streams::{Stream, Streams};
use super::{Inbound, MBIT, Stage, division};
use crate::simulation::completion;
use crate::simulation::measurement::Recorder;

/// A change of rates counts as done after this long.
const CONVERGED: Duration = Duration::from_millis(100);
/// A VM may be off its rate by so much.
const TOLERANCE: f64 = 0.1;

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub at: Duration,
    /// Bytes on the wire that the port has sent, and packets that it dropped.
    pub wire: u64,
    pub dropped: u64,
    /// For each VM: its rate in bytes per second, if the link is divided, and bytes of the link that came for it.
    pub rates: Vec<u64>,
    pub received: Vec<u64>,
    /// Bytes that each stream has got.
    pub streams: Vec<u64>,
}

pub(super) fn tell(scene: &Inbound, stage: &Stage, looks: &[Look], to: &mut Recorder<'_>) {
    let [first, .., last] = looks else { return };
    let link = (scene.host.network.rate_mbit * MBIT) as f64 / 8.0;
    let mut say = |class: &str, figure: &str, metric: &str, unit: &str, value: f64| {
        let of = [("class", class.to_owned()), ("figure", figure.to_owned())];
        to.add_of(&of, metric, unit, value);
    };
    say("all", "total", "share", "of the port's rate", rate(first, last) / link);
    say("all", "worst second", "share", "of the port's rate", worst_second(looks) / link);
    say("all", "drops", "count", "packets", (last.dropped - first.dropped) as f64);
    if let Some(streams) = stage.world.app::<Streams>(stage.streams) {
        tell_streams(scene, streams.streams(), first, last, &mut say);
    }
    if let Some(division) = division(stage) {
        say("all", "follows", "share", "1", follows(looks));
        for name in ["held", "released_late", "updates"] {
            let of_vm = |vm| {
                let found = division.counters(vm);
                found.iter().find(|(own, ..)| *own == name).map_or(0, |(.., value)| value)
            };
            let all: u64 = (0..scene.vms as usize).map(of_vm).sum();
            say("clamp", name, "count", "ACKs", all as f64);
        }
    }
    let senders = stage.senders.iter().map(|&sender| stage.world.sender_stats(sender));
    let (timeouts, again) = senders.fold((0, 0), |(timeouts, again), stats| {
        (timeouts + stats.timeouts, again + stats.retransmissions)
    });
    say("all", "time-outs", "count", "time-outs", timeouts as f64);
    say("all", "retransmissions", "count", "segments", again as f64);
    let queries = stage.queries.iter().filter_map(|&app| stage.world.app::<Aggregate>(app));
    let times: Samples = queries.flat_map(Aggregate::records).map(Record::time).collect();
    if !times.is_empty() {
        completion::tell("queries", &times, to);
    }
}

fn tell_streams(
    scene: &Inbound,
    streams: &[Stream],
    first: &Look,
    last: &Look,
    say: &mut impl FnMut(&str, &str, &str, &str, f64),
) {
    let seconds = (last.at - first.at).as_secs_f64();
    let got = last.streams.iter().zip(&first.streams).map(|(last, first)| (last - first) as f64);
    let steady = |stream: &Stream| stream.begin.is_zero() && stream.end >= last.at;
    let each: Vec<_> = streams.iter().zip(got).collect();
    let rates: Vec<_> = each.iter().filter(|(stream, _)| steady(stream)).map(|(_, b)| *b).collect();
    if rates.len() == streams.len() && rates.len() > 1 {
        say("all", "Jain's index", "index", "1", jain(&rates));
    }
    let mut vms: Vec<_> = streams.iter().map(|stream| stream.to).collect();
    vms.sort();
    vms.dedup();
    for (vm, to) in (1..=scene.vms).zip(vms) {
        let bytes: f64 = each.iter().filter(|(stream, _)| stream.to == to).map(|(_, b)| b).sum();
        say(&format!("vm{vm}"), "rate", "rate", "Mbit/s", bytes * 8e-6 / seconds);
    }
}

/// Bytes per second between two looks.
fn rate(first: &Look, last: &Look) -> f64 {
    (last.wire - first.wire) as f64 / (last.at - first.at).as_secs_f64()
}

fn worst_second(looks: &[Look]) -> f64 {
    let seconds = (0..looks.len()).filter_map(|from| {
        let first = looks.get(from)?;
        let last = looks.iter().find(|look| look.at >= first.at + Duration::from_secs(1))?;
        Some(rate(first, last))
    });
    seconds.fold(f64::INFINITY, f64::min)
}

fn follows(looks: &[Look]) -> f64 {
    let (mut within, mut all) = (0_u32, 0_u32);
    let mut changed = Duration::ZERO;
    for pair in looks.windows(2) {
        let [before, now] = pair else { continue };
        if before.rates != now.rates {
            changed = now.at;
        }
        if now.at < changed + CONVERGED {
            continue;
        }
        let seconds = (now.at - before.at).as_secs_f64();
        for ((&rate, now), before) in now.rates.iter().zip(&now.received).zip(&before.received) {
            let measured = (now - before) as f64 / seconds;
            if measured > 0.0 {
                all += 1;
                within += u32::from((measured / rate as f64 - 1.0).abs() <= TOLERANCE);
            }
        }
    }
    f64::from(within) / f64::from(all.max(1))
}

fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) = rates.iter().fold((0.0, 0.0), |(s, q), r| (s + r, q + r * r));
    sum * sum / (rates.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(ms: u64, wire: u64, rate: u64, received: u64) -> Look {
        let at = Duration::from_millis(ms);
        Look { at, wire, rates: vec![rate], received: vec![received], ..Look::default() }
    }

    #[test]
    fn a_change_has_its_time_and_a_slow_second_shows() {
        // 100 bytes per ms all the time; the rate changes by half at 500 ms, and the VM follows 150 ms later.
        let mut received = 0;
        let looks: Vec<_> = (0..40_u64)
            .map(|n| {
                let ms = 50 * n;
                received += if ms <= 650 { 5000 } else { 2500 };
                look(ms, 100 * ms, if ms < 500 { 100_000 } else { 50_000 }, received)
            })
            .collect();
        assert!((worst_second(&looks) - 100_000.0).abs() < 1.0);
        // Late at 600 and 650 ms, of the 8 looks from 100 to 450 ms and the 28 from 600 ms on: the beginning is a change, too.
        let expected = 1.0 - 2.0 / 36.0;
        assert!((follows(&looks) - expected).abs() < 1e-9, "{}", follows(&looks));
    }

    #[test]
    fn jains_index() {
        assert_eq!((jain(&[2.0, 2.0]), jain(&[2.0, 0.0])), (1.0, 0.5));
    }
}
