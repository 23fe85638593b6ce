//! From measured cells to rows, samples and notes.

use anyhow::{Result, ensure};
use floodway_experiment::transfer::{join, size};
use floodway_report::stats::{self, Centre};
use floodway_report::{Bar, Row, Samples};

use super::cell::{Cell, Series};
use super::contention;
use super::measure::{Results, SWITCH};
use super::observation::Measure;
use super::phases::Phases;
use super::{Direction, Measured, Transfer, Variant};
use crate::noise::Repeats;

/// Lost before there is a connection that could be offloaded. The kernel counts each among its retransmissions
/// and timeouts as well, from which we take them.
const SYNS: &str = "TcpExtTCPSynRetrans";
const WITH_SYNS: [&str; 2] = ["TcpRetransSegs", "TcpExtTCPTimeouts"];
/// Counters of the guest's kernel that become rows: nstat's name, and ours.
const COUNTERS: [(&str, &str); 7] = [
    ("TcpRetransSegs", "retransmissions"),
    ("TcpExtTCPTimeouts", "timeouts"),
    (SYNS, "SYNs sent again"),
    ("TcpExtTCPLostRetransmit", "lost retransmissions"),
    ("TcpExtTCPSpuriousRtxHostQueues", "host-queue retransmissions put off"),
    ("TcpExtTCPLossProbes", "loss probes"),
    ("TcpExtTCPSpuriousRTOs", "spurious timeouts"),
];
/// Counters of the switch that become rows.
const SWITCH_COUNTERS: [(&str, &str); 4] = [
    ("timeouts", "timeouts"),
    ("timeouts_after_slow_start", "timeouts after slow start"),
    ("tail_loss_probes", "loss probes"),
    ("fast_recoveries", "fast recoveries"),
];
const CENTRES: [(Centre, &str); 2] = [(Centre::Median, "median"), (Centre::Mean, "mean")];

/// One comparison in one cell.
struct Comparison<'a> {
    scenario: &'a Transfer,
    cell: &'a Cell,
    pair: [Variant; 2],
    receiver: usize,
    measure: Measure,
    value: Vec<f64>,
    baseline: Vec<f64>,
}

/// The report of a scenario's results.
///
/// # Errors
/// When no transfer came to its end in some cell.
pub fn figures(scenario: &Transfer, results: &Results) -> Result<Measured> {
    let mut measured = Measured::default();
    let comparisons = comparisons(scenario, results)?;
    for comparison in &comparisons {
        comparison.add(&mut measured);
    }
    add_phases(scenario, results, &mut measured);
    add_growth(&comparisons, &mut measured);
    add_lone_column(scenario, results, &mut measured);
    add_health(scenario, results, &mut measured);
    add_profiles(scenario, results, &mut measured);
    Ok(measured)
}

fn comparisons<'a>(scenario: &'a Transfer, results: &'a Results) -> Result<Vec<Comparison<'a>>> {
    let mut comparisons = Vec::new();
    for cell in &results.cells {
        for pair in scenario.pairs() {
            let [with, without] = pair.map(|variant| series(cell, variant));
            for (value, baseline) in with.into_iter().zip(without) {
                let (receiver, measure) = (value.receiver, value.measure);
                let (value, baseline) = both(value, baseline);
                let (profile, place) = (cell.profile.name(), cell.place.label(scenario));
                ensure!(
                    !value.is_empty(),
                    "{profile} {place}: no round came to its end in both variants ({})",
                    results.first_failure.as_deref().unwrap_or("no reason known")
                );
                comparisons.push(Comparison {
                    scenario,
                    cell,
                    pair,
                    receiver,
                    measure,
                    value,
                    baseline,
                });
            }
        }
    }
    Ok(comparisons)
}

/// The series of a variant, in the same order for each variant.
fn series(cell: &Cell, variant: Variant) -> Vec<&Series> {
    cell.series.iter().filter(|series| series.variant == variant).collect()
}

/// Rounds that both series have.
fn both(value: &Series, baseline: &Series) -> (Vec<f64>, Vec<f64>) {
    let rounds = value.mbit_s.iter().zip(&baseline.mbit_s);
    rounds.filter_map(|(value, baseline)| value.zip(*baseline)).unzip()
}

impl Comparison<'_> {
    fn add(&self, measured: &mut Measured) {
        let name = self.name();
        for (centre, of) in CENTRES {
            let (value, baseline) = (centre.of(&self.value), centre.of(&self.baseline));
            measured.rows.push(Row::comparison(format!("{name} {of}"), "Mbit/s", value, baseline));
        }
        let times = |samples: &[f64]| stats::mean(&self.milliseconds(samples));
        let (value, baseline) = (times(&self.value), times(&self.baseline));
        measured.rows.push(Row::comparison(format!("{name} mean time"), "ms", value, baseline));
        let deciles = stats::deciles_above(&self.value, &self.baseline).map(f64::from);
        measured.rows.push(Row::value(format!("{name} deciles to the right"), "of 9", deciles));
        if let (Some(mbit), true) = (self.cell.place.mbit, self.is_data()) {
            let share = stats::median(&self.value).map(|rate| rate / f64::from(mbit));
            let row = Row::value(format!("{name} share of the bottleneck"), "x", share);
            measured.rows.push(row);
        }
        measured.samples.push(self.samples(name));
    }

    fn is_data(&self) -> bool {
        matches!(self.measure, Measure::DataOut | Measure::DataIn)
    }

    fn milliseconds(&self, mbit_s: &[f64]) -> Vec<f64> {
        let bits = self.cell.place.bytes as f64 * 8.0;
        mbit_s.iter().map(|rate| bits / (rate * 1e3)).collect()
    }

    fn samples(&self, name: String) -> Samples {
        let label = self.cell.place.label(self.scenario);
        Samples {
            name,
            unit: "Mbit/s".into(),
            value: self.value.clone(),
            baseline: self.baseline.clone(),
            variants: Some(self.pair.map(|variant| variant.name().to_owned())),
            bar: Some(Bar {
                chart: join(&[self.pair_label(), self.what()]),
                series: self.cell.profile.name().into(),
                label,
                ..Bar::default()
            }),
        }
    }

    /// For example `3 VMs 60 %, 100 KB/data-phase 2011`.
    fn name(&self) -> String {
        let what = format!("{} {}", self.what(), self.cell.profile.name());
        join(&[self.cell.place.label(self.scenario), self.pair_label(), what])
    }

    fn pair_label(&self) -> String {
        self.scenario.pair_label(self.pair)
    }

    /// The measure, and the receiver when there are several.
    fn what(&self) -> String {
        let measure = self.measure.name(self.scenario.direction);
        match self.scenario.path.get(self.receiver) {
            Some(path) if self.scenario.mixed => format!("{} {measure}", path.name),
            _ => measure.into(),
        }
    }
}

/// Where the time of single flows went.
fn add_phases(scenario: &Transfer, results: &Results, measured: &mut Measured) {
    if scenario.direction == Direction::Both {
        return;
    }
    for cell in &results.cells {
        let each: Vec<_> = cell.phases.iter().filter_map(Phases::describe).collect();
        if cell.place.flows.iter().sum::<u32>() == 1 && !each.is_empty() {
            let profile = cell.profile.name().to_owned();
            let of = join(&[cell.place.label(scenario), profile]);
            measured.notes.push(format!("{of}, mean time: {}", each.join("; ")));
        }
    }
}

/// Where hosts vary: the ratio on the last against that on the first, as "grows with the
/// number of VMs" asks.
fn add_growth(comparisons: &[Comparison<'_>], measured: &mut Measured) {
    let Some(scenario) = comparisons.first().map(|comparison| comparison.scenario) else { return };
    let [first, .., last] = &scenario.hosts[..] else { return };
    let ratio = |comparison: &Comparison<'_>| {
        Some(stats::median(&comparison.value)? / stats::median(&comparison.baseline)?)
    };
    let on =
        |host| comparisons.iter().filter(move |one| one.cell.place.host == host && one.is_data());
    for one in on(*last) {
        let same = |other: &&Comparison<'_>| {
            other.cell.profile == one.cell.profile
                && other.cell.place.label_without_host(scenario)
                    == one.cell.place.label_without_host(scenario)
                && (other.pair, other.receiver, other.measure)
                    == (one.pair, one.receiver, one.measure)
        };
        let before = on(*first).find(same);
        let growth = before.and_then(|before| Some(ratio(one)? / ratio(before)?));
        let what = format!("{} {} growth of the ratio", one.what(), one.cell.profile.name());
        let name = join(&[one.cell.place.label_without_host(scenario), one.pair_label(), what]);
        measured.rows.push(Row::value(name, "x", growth));
    }
}

/// Without anything to compare, figures of the one variant.
fn add_lone_column(scenario: &Transfer, results: &Results, measured: &mut Measured) {
    if !scenario.pairs().is_empty() {
        return;
    }
    for cell in &results.cells {
        for series in &cell.series {
            let what =
                format!("{} {}", series.measure.name(scenario.direction), cell.profile.name());
            let name = join(&[cell.place.label(scenario), what]);
            let value: Vec<f64> = series.mbit_s.iter().copied().flatten().collect();
            for (centre, of) in CENTRES {
                let row = Row::value(format!("{name} {of}"), "Mbit/s", centre.of(&value));
                measured.rows.push(row);
            }
            let unit = "Mbit/s".into();
            measured.samples.push(Samples { name, unit, value, ..Samples::default() });
        }
    }
}

/// Blocks that others on the machine disturbed.
fn add_repeats(results: &Results, measured: &mut Measured) {
    let sum = |of: fn(&Repeats) -> u32| results.repeats.iter().map(of).sum::<u32>();
    let (repeated, kept) = (sum(|cell| cell.repeated), sum(|cell| cell.kept));
    measured.add_value("blocks repeated", "blocks", repeated.into());
    measured.add_value("blocks disturbed", "blocks", kept.into());
    if kept > 0 {
        measured.notes.push(format!("disturbed: {kept} blocks count although others had more than a little of the machine; run again when it is quiet"));
    }
}

/// What variants and profiles are, and how long time slices really were in these.
fn add_profiles(scenario: &Transfer, results: &Results, measured: &mut Measured) {
    for &profile in &scenario.profiles {
        let slices = results.slices.get(&profile).copied().unwrap_or_default();
        contention::tell(measured, profile, scenario.emulator(profile), slices);
    }
    let variants = scenario.variants.iter();
    measured.terms.extend(variants.map(|v| (v.name().to_owned(), v.describe().to_owned())));
}

/// Whether the run was a healthy one: what failed, what the guests' kernels counted, and who else
/// was on the core.
fn add_health(scenario: &Transfer, results: &Results, measured: &mut Measured) {
    for ((profile, variant), counters) in &results.counters {
        for (counter, name) in COUNTERS {
            let row = format!("guest {name} {} {}", profile.name(), variant.name());
            let get = |counter| counters.get(counter).copied().unwrap_or(0);
            let syns = if WITH_SYNS.contains(&counter) { get(SYNS) } else { 0 };
            measured.add_value(row, "events", get(counter).saturating_sub(syns) as f64);
        }
        for (counter, name) in SWITCH_COUNTERS {
            if let Some(events) = counters.get(&format!("{SWITCH}{counter}")) {
                let row = format!("switch {name} {} {}", profile.name(), variant.name());
                measured.add_value(row, "events", *events as f64);
            }
        }
    }
    measured.add_value("transfers complete", "transfers", results.complete as f64);
    measured.add_value("transfers failed", "transfers", results.failed as f64);
    measured.add_value("transfers broken", "transfers", results.broken as f64);
    measured.add_value("others on the core of the VMs", "%", results.strangers * 100.0);
    add_repeats(results, measured);
    measured
        .notes
        .extend(results.first_failure.as_ref().map(|why| format!("first failure: {why}")));
    measured.notes.extend(scenario.fewer.map(|fewer| {
        format!(
            "from {} on: {} rounds in each variant instead of {}",
            size(fewer.from_bytes),
            fewer.transfers.min(scenario.transfers),
            scenario.transfers
        )
    }));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::experiment::transfer::cell::Place;
    use crate::experiment::{Experiment, Scenario};

    /// Results of a scenario in which every variant is twice as fast as the one before it.
    fn results(scenario: &Transfer) -> Results {
        let mut results = Results::default();
        for &host in &scenario.hosts {
            for paths in scenario.path_sets() {
                for &profile in &scenario.profiles {
                    for &bytes in &scenario.bytes {
                        for flows in &scenario.flows {
                            let place = Place {
                                host,
                                path: (paths.len() == 1).then(|| paths[0].name.clone()),
                                mbit: paths[0].mbit,
                                bytes,
                                flows: flows.clone(),
                            };
                            let series = all_series(scenario, flows);
                            results.cells.push(Cell { place, profile, series, phases: Vec::new() });
                        }
                    }
                    for &variant in &scenario.variants {
                        let of_switch = SWITCH_COUNTERS.iter().filter(|_| variant.offloads());
                        let counters = of_switch.map(|(name, _)| (format!("{SWITCH}{name}"), 0));
                        results.counters.insert((profile, variant), counters.collect());
                    }
                }
            }
        }
        results
    }

    fn all_series(scenario: &Transfer, flows: &[u32]) -> Vec<Series> {
        let mut all = Vec::new();
        for (index, &variant) in scenario.variants.iter().enumerate() {
            let factor = f64::from(1_u32 << index);
            for receiver in 0..flows.len() {
                for measure in Measure::of(scenario, flows) {
                    let mbit_s = [10.0, 20.0, 30.0].map(|rate| Some(rate * factor)).to_vec();
                    all.push(Series { variant, receiver, measure, mbit_s });
                }
            }
        }
        all
    }

    fn load(path: &Path) -> Option<(Transfer, Experiment)> {
        let experiment = Experiment::load(path).unwrap();
        match &experiment.scenario {
            Scenario::Transfer(transfer) => Some((*transfer.clone(), experiment)),
            _ => None,
        }
    }

    fn dir() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
    }

    #[test]
    fn every_band_of_every_experiment_meets_a_row_and_no_two_rows_share_a_name() {
        let mut seen = 0;
        for path in floodway_experiment::files(&dir()).unwrap() {
            let Some((transfer, experiment)) = load(&path) else { continue };
            transfer.check().unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
            let mut measured = figures(&transfer, &results(&transfer)).unwrap();
            floodway_report::judge(&mut measured.rows, &experiment.band)
                .unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
            let names: std::collections::BTreeSet<_> =
                measured.rows.iter().map(|row| &row.name).collect();
            assert_eq!(names.len(), measured.rows.len(), "{}", path.display());
            seen += 1;
        }
        assert!(seen >= 10, "{seen} experiments");
    }

    fn fig6() -> (Transfer, Measured) {
        let (transfer, _) = load(&dir().join("vflood-fig6.toml")).unwrap();
        let measured = figures(&transfer, &results(&transfer)).unwrap();
        (transfer, measured)
    }

    #[test]
    fn the_rows_of_the_headline_experiment_are_named_as_agreed() {
        let (_, measured) = fig6();
        let row = |name: &str| measured.rows.iter().find(|row| row.name == name).unwrap();
        for name in ["data-phase 2011 median", "data-phase 2011 mean", "data-phase today median"] {
            let row = row(name);
            assert_eq!((row.value, row.baseline, row.ratio), (Some(40.0), Some(20.0), Some(2.0)));
        }
        for name in ["whole 2011 median", "whole today median"] {
            assert_eq!(row(name).unit, "Mbit/s");
        }
        assert_eq!(row("data-phase 2011 deciles to the right").value, Some(9.0));
        assert_eq!(row("data-phase 2011 mean time").ratio, Some(0.5));
        assert_eq!(row("guest retransmissions 2011 transmit").value, Some(0.0));
        assert_eq!(row("vCPU time slice 2011").value, None, "no vCPU ran in this test");
        let profile = &measured.terms["2011"];
        assert!(profile.contains("on the VMs' core") && profile.ends_with("unknown"), "{profile}");
        assert!(measured.terms.contains_key("transmit"));
    }

    #[test]
    fn a_round_that_failed_in_one_variant_counts_in_neither() {
        let (transfer, _) = fig6();
        let mut results = results(&transfer);
        for series in results.cells.iter_mut().flat_map(|cell| &mut cell.series) {
            series.mbit_s = [10.0, 20.0, 30.0, 40.0].map(Some).to_vec();
        }
        // One variant fails in the first round, which then counts in neither.
        results.cells[0].series[0].mbit_s[0] = None;
        let mut measured = figures(&transfer, &results).unwrap();
        floodway_report::report::add_intervals(&mut measured.rows, &measured.samples, 1);
        let row = measured.rows.iter().find(|row| row.name == "data-phase 2011 median").unwrap();
        assert!(row.interval.is_some_and(|interval| interval.holds(1.0)), "{row:?}");
        assert_eq!(measured.samples[0].value, [20.0, 30.0, 40.0]);
        for series in &mut results.cells[0].series {
            series.mbit_s.fill(None);
        }
        results.first_failure = Some("connection refused".into());
        let error = figures(&transfer, &results).unwrap_err().to_string();
        assert!(error.contains("connection refused"), "{error}");
    }

    #[test]
    fn growth_compares_the_last_host_with_the_first() {
        let (transfer, _) = load(&dir().join("vflood-fig7.toml")).unwrap();
        let mut results = results(&transfer);
        let last = transfer.hosts.last().copied();
        for cell in results.cells.iter_mut().filter(|cell| Some(cell.place.host) == last) {
            for series in
                cell.series.iter_mut().filter(|series| series.variant == Variant::Transmit)
            {
                series.mbit_s.iter_mut().flatten().for_each(|rate| *rate *= 1.5);
            }
        }
        let measured = figures(&transfer, &results).unwrap();
        let name = "100 KB/data-phase 2011 growth of the ratio";
        let row = measured.rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(row.value, Some(1.5));
    }
}
