//! From outcomes to figures.

use std::num::NonZeroUsize;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use floodway_report::{Report, Row, Samples, stats, table};

use super::Round;
use super::case::Case;
use super::outcome::Outcome;

/// How many times faster two threads have to be than one.
const LEAST_SPEED_OF_TWO: f64 = 1.6;

/// Rows of one case and what they come from.
#[must_use]
pub fn rows(case: Case, rounds: &[Round]) -> (Vec<Row>, Vec<Samples>) {
    let of = |pick: fn(&Outcome) -> f64| -> (Vec<f64>, Vec<f64>) {
        rounds.iter().map(|round| (pick(&round.floodway), pick(&round.ns3))).unzip()
    };
    let mut rows = Vec::new();
    let mut all = Vec::new();
    let mut compare = |name: &str, unit: &str, (value, baseline): (Vec<f64>, Vec<f64>)| {
        let name = format!("{case}/{name}");
        let variants = Some(["floodway-sim".into(), "ns-3".into()]);
        let samples = Samples { name, unit: unit.into(), value, baseline, variants, bar: None };
        rows.push(samples.median_row());
        all.push(samples);
    };
    compare("wall time", "s", of(|outcome| outcome.measured.seconds));
    compare("processor time", "s", of(|outcome| outcome.measured.cpu_seconds));
    compare("events", "events", of(|outcome| outcome.measured.events as f64));
    compare(
        "event rate",
        "events/s",
        of(|outcome| outcome.measured.events as f64 / outcome.measured.seconds),
    );
    compare("memory", "MiB", of(|outcome| outcome.memory_kib as f64 / 1024.0));
    rows.push(speed(case, rounds));
    rows.extend(times(case, rounds));
    (rows, all)
}

fn speed(case: Case, rounds: &[Round]) -> Row {
    let faster = |round: &Round| round.ns3.measured.seconds / round.floodway.measured.seconds;
    let ratios: Vec<f64> = rounds.iter().map(faster).collect();
    let mut row = Row::value(format!("{case}/times faster"), "x", stats::median(&ratios));
    row.judge(Some(case.least_speed()), None, None);
    row
}

fn times(case: Case, rounds: &[Round]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (class, sizes) in case.classes() {
        let pick = |own: fn(&Round) -> &Outcome, other: fn(&Round) -> &Outcome| -> Vec<f64> {
            let of = |round| own(round).times_ms(other(round), &round.scenario, &sizes);
            rounds.iter().flat_map(of).collect()
        };
        let value = pick(|round| &round.floodway, |round| &round.ns3);
        let baseline = pick(|round| &round.ns3, |round| &round.floodway);
        for (name, figure, tolerance) in case.figures() {
            let name = format!("{case}/{class}{name}");
            let mut row = Row::comparison(name, "ms", figure.of(&value), figure.of(&baseline));
            let (low, high) = tolerance.map(|off: f64| (1.0 - off, 1.0 + off)).unzip();
            row.judge(low, high, None);
            rows.push(row);
        }
        let name = format!("{case}/{class}compared");
        rows.push(Row::value(name, "transfers", Some(value.len() as f64)));
    }
    rows
}

/// Rows of a tree that ran in parts, by one thread and by several, and what they come from.
#[must_use]
pub fn threads(threads: NonZeroUsize, one: &[Outcome], several: &[Outcome]) -> (Vec<Row>, Samples) {
    let seconds = |outcomes: &[Outcome]| -> Vec<f64> {
        outcomes.iter().map(|outcome| outcome.measured.seconds).collect()
    };
    let samples = Samples {
        name: "fat-tree-1024/wall time in parts".into(),
        unit: "s".into(),
        value: seconds(several),
        baseline: seconds(one),
        variants: Some([format!("{threads} threads"), "1 thread".into()]),
        bar: None,
    };
    let faster = samples.baseline.iter().zip(&samples.value).map(|(one, several)| one / several);
    let name = format!("fat-tree-1024/times faster with {threads} threads");
    let mut speed = Row::value(name, "x", stats::median(&faster.collect::<Vec<_>>()));
    if threads.get() == 2 {
        speed.judge(Some(LEAST_SPEED_OF_TWO), None, None);
    }
    // No column of the table is one thread's.
    let time = |by: String, seconds: &[f64]| {
        Row::value(format!("fat-tree-1024/wall time by {by}"), "s", stats::median(seconds))
    };
    let [of_one, of_several] = [
        time("1 thread".into(), &samples.baseline),
        time(format!("{threads} threads"), &samples.value),
    ];
    (vec![of_one, of_several, speed], samples)
}

/// For people.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut shown = Table::new();
    shown.load_style(UTF8_FULL_CONDENSED);
    shown.set_header(["figure", "unit", "floodway-sim", "ns-3", "ratio", "accepted", "verdict"]);
    let number = |figure: Option<f64>| figure.map_or_else(|| "-".into(), table::number);
    for row in &report.rows {
        let verdict = match row.verdict {
            Some(verdict) => verdict.name(),
            None => "",
        };
        shown.add_row([
            Cell::new(&row.name),
            Cell::new(&row.unit),
            Cell::new(number(row.value)),
            Cell::new(number(row.baseline)),
            Cell::new(number(row.ratio)),
            Cell::new(table::band(row)),
            Cell::new(verdict),
        ]);
    }
    for column in shown.column_iter_mut().skip(2).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    shown.to_string()
}
