//! From slices to the table, the report's rows and its samples.

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use floodway_report::table::number;
use floodway_report::{Row, Samples, report, stats};

use super::case::{Case, Frames};
use super::peer::PeerKind;
use super::slices::Slice;
use super::{Results, SEED};

/// A loss above this part of all frames is worth a word.
const LOSSY: f64 = 0.01;

/// Least accepted ratio of the way from guest to guest to bridge and tap.
const CHANNEL_BESIDE_NATIVE: f64 = 1.5;

/// Least accepted ratio of the way from a guest to its host to that by bridge and tap, and greatest accepted ratio of the 99th percentile of exchanges.
const UPLINK_BESIDE_NATIVE: f64 = 1.1;
const ECHO_BESIDE_NATIVE: f64 = 1.0;

/// Least accepted ratio to the same program as one process.
const TWO_PROCESSES_BESIDE_ONE: f64 = 0.98;

/// Greatest accepted ratio to the same program with all features.
const WITHOUT_FEATURES: f64 = 1.05;

/// Greatest accepted ratio of the time of an exchange of single frames to that of the same program without sleep.
const PING_BESIDE_POLLING: f64 = 1.1;

/// What a cache line takes from one core to the other and back.
const ROUND_TRIP: &str = "cache line round trip";

/// From this part of the client's own ceiling on, the ceiling binds and not the switch.
const BINDS: f64 = 0.9;

/// What a case is judged by.
struct Metric {
    name: &'static str,
    unit: &'static str,
    of: fn(&Case, &Slice) -> Option<f64>,
}

const PACKETS: Metric =
    Metric { name: "pps", unit: "Mpps", of: |_, slice| Some(slice.measurement.mpps()) };
const BYTES: Metric = Metric {
    name: "throughput",
    unit: "Gbit/s",
    of: |case, slice| Some(slice.measurement.mpps() * f64::from(case.size()) * 8e-3),
};
const CYCLES: Metric =
    Metric { name: "cycles per packet", unit: "cycles", of: |_, slice| slice.cycles() };

const BYTES_IN_EXCHANGES: Metric = Metric {
    name: "throughput",
    unit: "Gbit/s",
    of: |case, slice| Some(slice.measurement.mpps_in_exchanges()? * f64::from(case.size()) * 8e-3),
};
const EXCHANGE: Metric = Metric {
    name: "exchange p50",
    unit: "us",
    of: |_, slice| Some(slice.measurement.exchanges.as_ref()?.p50_us),
};
const EXCHANGE_P99: Metric = Metric {
    name: "exchange p99",
    unit: "us",
    of: |_, slice| Some(slice.measurement.exchanges.as_ref()?.p99_us),
};
const CPU: Metric =
    Metric { name: "switch CPU", unit: "cores", of: |_, slice| Some(slice.switch_cpu) };

/// What the table shows first. GSO packets are counted in bits, for that is what they are for; of single frames the time counts.
const fn headline(case: &Case) -> Metric {
    match (case.bursts.is_some(), case.frames) {
        (false, Frames::Tso) => BYTES,
        (false, _) => PACKETS,
        (true, Frames::Tso) => BYTES_IN_EXCHANGES,
        (true, _) => EXCHANGE,
    }
}

/// What is measured of a case.
fn metrics(case: &Case) -> Vec<Metric> {
    match case.bursts {
        None => vec![headline(case), CYCLES],
        Some(_) => vec![BYTES_IN_EXCHANGES, EXCHANGE, EXCHANGE_P99, CPU],
    }
}

/// The comparisons of all cases. Bands only where Floodway was asked for (`compared`).
pub fn rows(cases: &[Case], kinds: &[PeerKind], slices: &[Slice], compared: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, peer) in pairs(cases, kinds) {
        for metric in metrics(case) {
            let mut row = comparison(case, peer, slices, &metric).median_row();
            let [low, high] = accepted(case, peer, &metric);
            if compared && (low.is_some() || high.is_some()) {
                row.judge(low, high, None);
            }
            rows.push(row);
        }
    }
    report::add_intervals(&mut rows, &samples(cases, kinds, slices), SEED);
    let between_cores = cases.iter().map(|case| {
        Row::value(format!("{ROUND_TRIP} {}", case.name()), "ns", round_trip(case, slices))
    });
    rows.extend(between_cores);
    rows
}

/// Least and greatest accepted ratio.
fn accepted(case: &Case, peer: PeerKind, metric: &Metric) -> [Option<f64>; 2] {
    match (peer, metric.name) {
        (PeerKind::AlwaysPolling, "exchange p50") if case.is_ping_pong() => {
            [None, Some(PING_BESIDE_POLLING)]
        }
        (PeerKind::Bridge, "exchange p99") => [None, Some(ECHO_BESIDE_NATIVE)],
        (PeerKind::OvsDpdk, "switch CPU") => [None, case.accepted_cpu()],
        (_, name) if name != headline(case).name => [None; 2],
        (PeerKind::AllFeatures, _) => [None, Some(WITHOUT_FEATURES)],
        (PeerKind::SingleProcess, _) => [Some(TWO_PROCESSES_BESIDE_ONE), None],
        (PeerKind::Testpmd, _) => [Some(case.accepted_ratio_to_testpmd()), None],
        (PeerKind::OvsDpdk, _) => [case.accepted_ratio_to_ovs(), None],
        (PeerKind::Bridge, "exchange p50") => [None; 2],
        (PeerKind::Bridge, _) if case.uplink.is_some() => [Some(UPLINK_BESIDE_NATIVE), None],
        (PeerKind::Bridge, _) => [Some(CHANNEL_BESIDE_NATIVE), None],
        (PeerKind::Floodway | PeerKind::AlwaysPolling | PeerKind::Null, _) => [None; 2],
    }
}

/// What [`rows`] were computed from.
pub fn samples(cases: &[Case], kinds: &[PeerKind], slices: &[Slice]) -> Vec<Samples> {
    pairs(cases, kinds)
        .flat_map(|(case, peer)| {
            metrics(case).into_iter().map(move |metric| comparison(case, peer, slices, &metric))
        })
        .collect()
}

fn pairs<'a>(
    cases: &'a [Case],
    kinds: &'a [PeerKind],
) -> impl Iterator<Item = (&'a Case, PeerKind)> {
    let peers = kinds.iter().copied().filter(|kind| *kind != PeerKind::Floodway);
    cases.iter().flat_map(move |case| {
        let peers = peers.clone().filter(|peer| peer.takes_part(case.profile()));
        peers.map(move |peer| (case, peer))
    })
}

/// Entry *i* of both is of the same round. Of rounds without Floodway there is the other switch alone.
fn comparison(case: &Case, peer: PeerKind, slices: &[Slice], metric: &Metric) -> Samples {
    let (own, other) = (quiet(case, PeerKind::Floodway, slices), quiet(case, peer, slices));
    let value = |slice: &Slice| (metric.of)(case, slice);
    let (value, baseline) = if own.is_empty() {
        (Vec::new(), other.values().filter_map(|slice| value(slice)).collect())
    } else {
        let both = own.iter().filter_map(|(number, own)| Some((own, other.get(number)?)));
        both.filter_map(|(own, other)| value(own).zip(value(other))).unzip()
    };
    let (name, unit) = (format!("{} {} vs {peer}", metric.name, case.name()), metric.unit.into());
    Samples { name, unit, value, baseline, ..Samples::default() }
}

/// Median round trip of a cache line between the two cores while a case was measured, in nanoseconds.
fn round_trip(case: &Case, slices: &[Slice]) -> Option<f64> {
    let name = case.name();
    let of_case = slices.iter().filter(|slice| slice.case == name);
    stats::median(&of_case.filter_map(|slice| slice.round_trip_ns).collect::<Vec<_>>())
}

/// Slices that nothing has disturbed, by number.
fn quiet<'a>(case: &Case, peer: PeerKind, slices: &'a [Slice]) -> BTreeMap<u32, &'a Slice> {
    let quiet = of(case, peer, slices).filter(|slice| slice.disturbance.is_quiet());
    quiet.map(|slice| (slice.number, slice)).collect()
}

fn of<'a>(case: &Case, peer: PeerKind, slices: &'a [Slice]) -> impl Iterator<Item = &'a Slice> {
    let name = case.name();
    slices.iter().filter(move |slice| slice.peer == peer && slice.case == name)
}

/// One line per case, one column per switch: median, cycles, and Floodway's ratio with its interval; and how far apart the two cores were.
pub fn table(cases: &[Case], kinds: &[PeerKind], slices: &[Slice]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    let header = kinds.iter().map(ToString::to_string);
    let header = ["case".to_owned(), "unit".to_owned()].into_iter().chain(header);
    table.set_header(header.chain([ROUND_TRIP.to_owned()]));
    for case in cases {
        let cells = kinds.iter().map(|kind| cell(case, *kind, slices));
        let cells = [case.name(), headline(case).unit.to_owned()].into_iter().chain(cells);
        let between_cores = round_trip(case, slices).map_or("-".into(), |ns| format!("{ns:.0} ns"));
        table.add_row(cells.chain([between_cores]));
    }
    table.to_string()
}

fn cell(case: &Case, kind: PeerKind, slices: &[Slice]) -> String {
    let of = |metric: &Metric| {
        let quiet = quiet(case, kind, slices).into_values();
        stats::median(&quiet.filter_map(|slice| (metric.of)(case, slice)).collect::<Vec<_>>())
    };
    let Some(median) = of(&headline(case)) else { return "-".into() };
    let mut text = number(median);
    match case.bursts {
        None => text += &of(&CYCLES).map_or_else(String::new, |n| format!(", {n:.0} cycles")),
        Some(_) => text += &of(&CPU).map_or_else(String::new, |n| format!(", {n:.2} cores")),
    }
    if kind != PeerKind::Floodway {
        text += &ratio(&comparison(case, kind, slices, &headline(case)));
    }
    text
}

/// A line with the ratio and its interval, if it was measured.
fn ratio(paired: &Samples) -> String {
    let Some(ratio) = paired.median_row().headline().filter(|_| !paired.value.is_empty()) else {
        return String::new();
    };
    let interval = stats::ratio_interval(&paired.value, &paired.baseline, SEED);
    let interval = interval.map_or_else(String::new, |interval| {
        format!(" [{:.2} to {:.2}]", interval.low, interval.high)
    });
    format!("\nfloodway {ratio:.2}x{interval}")
}

/// What a reader must know before trusting the figures.
pub fn caveats(results: &Results) -> Vec<String> {
    let (slices, mut caveats) = (&results.slices, Vec::new());
    let count = |wanted: fn(&Slice) -> bool| slices.iter().filter(|slice| wanted(slice)).count();
    let disturbed = count(|slice| !slice.disturbance.is_quiet());
    if disturbed > 0 {
        caveats.push(format!(
            "{disturbed} of {} slices were disturbed by the hypervisor or by others on one of the two cores, and do not count",
            slices.len()
        ));
    }
    let unsaturated =
        count(|slice| slice.measurement.exchanges.is_none() && !slice.measurement.is_saturated());
    if unsaturated > 0 {
        caveats.push(format!(
            "in {unsaturated} of {} slices the client was the bottleneck: the switch is at least that fast, and no cycles are given",
            slices.len()
        ));
    }
    let lost = slices.iter().filter_map(|slice| Some(slice.measurement.exchanges.as_ref()?.lost));
    let lost: u64 = lost.sum();
    if lost > 0 {
        caveats.push(format!("{lost} exchanges were given up after 200 ms, and count as so long"));
    }
    for carried in results.carried.iter().filter(|carried| carried.totals.loss() > LOSSY) {
        caveats.push(format!(
            "{} on {}: {:.1} % of the frames were lost; rates count what arrived",
            carried.case,
            carried.peer,
            100.0 * carried.totals.loss()
        ));
    }
    caveats
}

/// The cases in which Floodway is about as fast as the client without a switch.
pub fn ceilings(cases: &[Case], slices: &[Slice]) -> Vec<String> {
    let full = cases.iter().filter(|case| case.bursts.is_none() && case.uplink.is_none());
    let reached = full.filter_map(|case| {
        let part = comparison(case, PeerKind::Null, slices, &headline(case)).median_row();
        Some((case.name(), part.headline().filter(|part| *part >= BINDS)?))
    });
    reached
        .map(|(case, part)| {
            format!(
                "{case}: {part:.2} of what the client moves without a switch: its own ceiling binds"
            )
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::generator::Exchanges;
    use super::super::generator::tests::{measurement, totals};
    use super::super::slices::Carried;
    use super::*;
    use crate::bench::case::{self, Group};
    use crate::noise::Disturbance;
    use floodway_report::Verdict;

    /// A slice of 64-byte frames of one flow.
    pub fn slice(peer: PeerKind, number: u32, mpps: f64) -> Slice {
        let mut measurement = measurement();
        measurement.received = (mpps * measurement.seconds * 1e6) as u64;
        let (case, disturbance) = ("64B 1 flow".into(), Disturbance::default());
        let (round_trip_ns, switch_cpu, tsc_hz) = (Some(200.0), 1.0, 2_600_000_000);
        Slice { case, peer, number, measurement, disturbance, round_trip_ns, switch_cpu, tsc_hz }
    }

    const KINDS: [PeerKind; 2] = [PeerKind::Floodway, PeerKind::OvsDpdk];

    /// Rounds of Floodway and OVS.
    fn rounds(rates: &[[f64; 2]]) -> Vec<Slice> {
        let rounds = (0..).zip(rates);
        let slices = |(number, rates): (u32, &[f64; 2])| {
            [slice(KINDS[0], number, rates[0]), slice(KINDS[1], number, rates[1])]
        };
        rounds.flat_map(slices).collect()
    }

    #[test]
    fn a_row_compares_medians_and_is_judged_against_ovs() {
        let cases = case::all(&[Group::B64]);
        let slices = rounds(&[[8.0, 8.0], [11.0, 10.0], [33.0, 30.0]]);
        let rows = rows(&cases, &KINDS, &slices, true);
        assert_eq!(rows[0].name, "pps 64B 1 flow vs ovs-dpdk");
        assert_eq!((rows[0].value, rows[0].baseline), (Some(11.0), Some(10.0)));
        assert_eq!(rows[0].verdict, Some(Verdict::Ok));
        assert!(rows[0].interval.unwrap().holds(1.1));
        assert_eq!((rows[1].unit.as_str(), rows[1].baseline), ("cycles", Some(260.0)));
        // The case with many flows was never measured: that is short, not a pass.
        assert_eq!(rows[2].verdict, Some(Verdict::BelowTarget));
        let round_trip = &rows[4];
        assert_eq!(
            (round_trip.name.as_str(), round_trip.value),
            ("cache line round trip 64B 1 flow", Some(200.0))
        );
    }

    #[test]
    fn a_disturbed_slice_takes_its_pair_along() {
        let cases = case::all(&[Group::B64]);
        let mut slices = rounds(&[[8.0, 8.0], [1.0, 10.0], [33.0, 30.0]]);
        slices[2].disturbance.steal = 0.5;
        let paired = comparison(&cases[0], PeerKind::OvsDpdk, &slices, &PACKETS);
        assert_eq!((&paired.value[..], &paired.baseline[..]), (&[8.0, 33.0][..], &[8.0, 30.0][..]));
    }

    #[test]
    fn two_processes_may_cost_two_percent() {
        let (cases, kinds) =
            (case::all(&[Group::B64]), [PeerKind::Floodway, PeerKind::SingleProcess]);
        let verdict = |mpps| {
            let slices = [slice(kinds[0], 0, mpps), slice(kinds[1], 0, 10.0)];
            rows(&cases, &kinds, &slices, true)[0].verdict
        };
        assert_eq!(verdict(9.81), Some(Verdict::Ok));
        assert_eq!(verdict(9.79), Some(Verdict::BelowTarget));
    }

    #[test]
    fn baselines_alone_are_not_judged() {
        let cases = case::all(&[Group::B64]);
        let rows = rows(&cases, &[PeerKind::OvsDpdk], &[slice(PeerKind::OvsDpdk, 0, 8.0)], false);
        assert!(rows.iter().all(|row| row.verdict.is_none()));
        assert_eq!((rows[0].value, rows[0].baseline), (None, Some(8.0)));
    }

    #[test]
    fn a_ceiling_that_binds_is_put_in_words() {
        let cases = case::all(&[Group::B64]);
        let with_null = |mpps| [slice(KINDS[0], 0, mpps), slice(PeerKind::Null, 0, 10.0)];
        let binding = ceilings(&cases, &with_null(9.1));
        assert!(binding[0].starts_with("64B 1 flow: 0.91 of"), "{binding:?}");
        assert!(ceilings(&cases, &with_null(8.9)).is_empty());
        assert!(ceilings(&cases, &with_null(8.9)[..1]).is_empty());
    }

    #[test]
    fn doubts_are_put_in_words() {
        let mut results = Results::default();
        results.slices.push(slice(PeerKind::Floodway, 0, 1.0));
        let (case, peer) = ("64B 1 flow".into(), PeerKind::Floodway);
        results.carried.push(Carried { case, peer, totals: totals() });
        assert!(caveats(&results).is_empty());
        results.slices[0].disturbance.strangers = 0.5;
        results.slices[0].measurement.full_bursts = 0;
        results.carried[0].totals.received /= 2;
        assert_eq!(results.slices[0].cycles(), None);
        assert_eq!(caveats(&results).len(), 3);
    }

    #[test]
    fn of_bursts_the_exchanges_count_and_the_cpu_time() {
        let cases = case::all(&[Group::Bursts]);
        let kinds = [KINDS[0], PeerKind::AlwaysPolling, KINDS[1]];
        let slices = |case: &Case, p50_us: f64, cpu: f64| {
            let exchanges = Exchanges { count: 10, lost: 0, seconds: 0.1, p50_us, p99_us: 90.0 };
            let slice = |(peer, factor): (PeerKind, f64)| {
                let mut slice = slice(peer, 0, 1.0);
                slice.case = case.name();
                slice.measurement.exchanges =
                    Some(Exchanges { p50_us: p50_us * factor, ..exchanges.clone() });
                slice.switch_cpu = if factor > 1.0 { cpu } else { 1.0 };
                slice
            };
            [(kinds[0], 1.09), (kinds[1], 1.0), (kinds[2], 0.5)].map(slice).to_vec()
        };
        let (tenth, ping) = (&cases[2], &cases[3]);
        let all = [slices(tenth, 500.0, 0.4), slices(ping, 4.0, 0.9)].concat();
        let rows = rows(&cases, &kinds, &all, true);
        let verdict = |name: String| rows.iter().find(|row| row.name == name).unwrap().verdict;
        assert_eq!(verdict(format!("switch CPU {} vs ovs-dpdk", tenth.name())), Some(Verdict::Ok));
        assert_eq!(
            verdict(format!("exchange p50 {} vs always-polling", ping.name())),
            Some(Verdict::Ok)
        );
        assert_eq!(verdict(format!("exchange p50 {} vs ovs-dpdk", ping.name())), None);
        let throughput = verdict(format!("throughput {} vs ovs-dpdk", tenth.name()));
        assert_eq!(throughput, Some(Verdict::BelowTarget), "equal is not 1.3 times as fast");
    }

    #[test]
    fn a_cell_has_the_ratio_with_its_interval() {
        let slices = rounds(&[[8.0, 10.0], [16.0, 20.0], [4.0, 5.0]]);
        let text = table(&case::all(&[Group::B64]), &KINDS, &slices);
        assert!(text.contains("0.80x [0.80 to 0.80]"), "{text}");
    }
}
