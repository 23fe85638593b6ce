//! From measurements to rows, samples and notes.
//!
//! Rows are named as those of the real lab: `3 VMs 60 %, 100 KB/whole xen-2011 median`. A cell of a sweep has the changed
//! parameter in front: `load.busy = wall/whole xen-2011 median`.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use floodway_experiment::transfer::{Variant, join, size};
use floodway_report::report;
use floodway_report::stats::{self, Centre};
use floodway_report::{Band, Bar, Report, Row, Samples, judge};

use super::measurement::report_of;
use super::{Cell, Measurement, Parameters, Transfers};

const CENTRES: [(Centre, &str); 2] = [(Centre::Median, "median"), (Centre::Mean, "mean")];
const RATES: [&str; 3] = ["data-phase", "whole", "aggregate"];
/// From this many sizes on, the one with the largest gain is a figure.
const PEAK_FROM: usize = 5;

/// Values by parameters and metric, in the order of the runs.
type Index<'a> = BTreeMap<(&'a Parameters, &'a str), Vec<f64>>;

/// One comparison in one cell.
struct Comparison<'a> {
    cell: &'a Cell,
    pair: [Variant; 2],
    receiver: Option<String>,
    metric: &'a str,
    value: Vec<f64>,
    baseline: Vec<f64>,
}

pub(super) fn report(
    experiment: &Transfers,
    measurements: &[Measurement],
) -> Result<(Report, Vec<Samples>)> {
    let mut index = Index::new();
    for m in measurements {
        index.entry((&m.parameters, &m.metric)).or_default().push(m.value);
    }
    let cells = experiment.cells()?;
    let mut page = Page { experiment, rows: Vec::new(), samples: Vec::new(), notes: Vec::new() };
    let mut comparisons = Vec::new();
    for cell in &cells {
        for pair in experiment.scene.pairs() {
            comparisons.extend(compare(experiment, &index, cell, pair));
        }
    }
    ensure!(!comparisons.is_empty(), "no round came to its end in both variants of any pair");
    comparisons.iter().for_each(|comparison| page.add(comparison));
    page.add_growth(&comparisons);
    page.add_peaks(&comparisons);
    for cell in &cells {
        page.add_occupancy(&index, cell);
    }
    for label in experiment.labels()? {
        page.add_health(measurements, &label);
    }
    for reference in &experiment.measured {
        reference.compare(&mut page.rows, &mut page.notes);
    }
    let mut rows = page.rows;
    report::add_intervals(&mut rows, &page.samples, experiment.seed);
    let rows = judge_apart(rows, &experiment.labels()?, &experiment.settings.band)?;
    let run = (&*experiment.name, experiment.seed);
    let notes = [experiment.notes.clone(), page.notes].concat();
    Ok((report_of(run, &experiment.hosts, rows, notes)?, page.samples))
}

/// Bands speak of the hosts as they are. One that is to speak of rows of a sweep names the parameter, as in `load.busy = wall/*`. Rows of
/// a sweep come behind all others.
fn judge_apart(rows: Vec<Row>, labels: &[String], bands: &[Band]) -> Result<Vec<Row>> {
    let swept = |row: &Row| {
        let of = |label: &String| row.name.strip_prefix(label).is_some_and(|n| n.starts_with('/'));
        labels.iter().any(|label| !label.is_empty() && of(label))
    };
    let (mut swept, mut rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(swept);
    let (of_sweep, of_host): (Vec<_>, Vec<_>) =
        bands.iter().cloned().partition(|band| band.rows.contains(" = "));
    judge(&mut rows, &of_host)?;
    judge(&mut swept, &of_sweep)?;
    rows.append(&mut swept);
    Ok(rows)
}

fn compare<'a>(
    experiment: &Transfers,
    index: &Index<'_>,
    cell: &'a Cell,
    pair: [Variant; 2],
) -> Vec<Comparison<'a>> {
    let mut all = Vec::new();
    for path in &cell.paths {
        for metric in RATES {
            let [value, baseline] = pair.map(|variant| {
                let mut key = experiment.parameters(cell, variant);
                key.insert("receiver".into(), path.name.clone());
                index.get(&(&key, metric)).cloned().unwrap_or_default()
            });
            let receiver = (cell.paths.len() > 1).then(|| path.name.clone());
            if !value.is_empty() && !baseline.is_empty() {
                all.push(Comparison { cell, pair, receiver, metric, value, baseline });
            }
        }
    }
    all
}

impl Transfers {
    /// What tells a cell apart from others of the experiment.
    fn label(&self, cell: &Cell, with_host: bool, with_size: bool) -> String {
        let mut parts = Vec::new();
        let place = cell.place;
        if with_host && self.scene.hosts.len() > 1 {
            let plural = if place.vms == 1 { "" } else { "s" };
            parts.push(format!("{} VM{plural} {} %", place.vms, place.load_percent));
        }
        if !self.scene.mixed && self.scene.path.len() > 1 {
            parts.extend(cell.paths.first().map(|path| path.name.clone()));
        }
        let sizes = self.settings.bytes.as_ref().unwrap_or(&self.scene.bytes).len();
        if with_size && sizes > 1 {
            parts.push(size(cell.bytes));
        }
        if self.scene.flows.len() > 1 {
            parts.push(self.scene.flows_label(&cell.flows));
        }
        join(&[cell.host_variant.label.clone(), parts.join(", ")])
    }
}

impl Comparison<'_> {
    fn ratio(&self) -> Option<f64> {
        Some(stats::median(&self.value)? / stats::median(&self.baseline)?)
    }

    fn what(&self) -> String {
        let what = match &self.receiver {
            Some(receiver) => format!("{receiver} {}", self.metric),
            None => self.metric.to_owned(),
        };
        format!("{what} {}", self.cell.host_variant.host.name)
    }

    /// The same measure of the same pair.
    fn is_like(&self, other: &Self) -> bool {
        (self.pair, &self.receiver, self.metric) == (other.pair, &other.receiver, other.metric)
    }
}

struct Page<'a> {
    experiment: &'a Transfers,
    rows: Vec<Row>,
    samples: Vec<Samples>,
    notes: Vec<String>,
}

impl Page<'_> {
    fn add(&mut self, one: &Comparison<'_>) {
        let pair = self.experiment.scene.pair_label(one.pair);
        let label = self.experiment.label(one.cell, true, true);
        let name = join(&[label.clone(), pair.clone(), one.what()]);
        for (centre, of) in CENTRES {
            let (value, baseline) = (centre.of(&one.value), centre.of(&one.baseline));
            self.rows.push(Row::comparison(format!("{name} {of}"), "Mbit/s", value, baseline));
        }
        let deciles = stats::deciles_above(&one.value, &one.baseline).map(f64::from);
        self.rows.push(Row::value(format!("{name} deciles to the right"), "of 9", deciles));
        self.samples.push(Samples {
            name,
            unit: "Mbit/s".into(),
            value: one.value.clone(),
            baseline: one.baseline.clone(),
            variants: Some(one.pair.map(|variant| variant.name().to_owned())),
            bar: Some(Bar {
                chart: join(&[pair, one.what()]),
                series: one.cell.host_variant.host.name.clone(),
                label,
                ..Bar::default()
            }),
        });
    }

    /// The ratio on the last host against that on the first, as "grows with the number of VMs" asks.
    fn add_growth(&mut self, comparisons: &[Comparison<'_>]) {
        let [first, .., last] = &self.experiment.scene.hosts[..] else { return };
        let on = |place| comparisons.iter().filter(move |one| one.cell.place == place);
        for one in on(*last) {
            let label = |cell: &Cell| self.experiment.label(cell, false, true);
            let same = |other: &&Comparison<'_>| {
                one.is_like(other) && label(one.cell) == label(other.cell)
            };
            let before = on(*first).find(same).and_then(Comparison::ratio);
            let growth = one.ratio().zip(before).map(|(after, before)| after / before);
            let pair = self.experiment.scene.pair_label(one.pair);
            let what = format!("{} growth of the ratio", one.what());
            let name = join(&[label(one.cell), pair, what]);
            self.rows.push(Row::value(name, "x", growth));
        }
    }

    /// Over many sizes: the one with the largest ratio.
    fn add_peaks(&mut self, comparisons: &[Comparison<'_>]) {
        let label = |one: &Comparison<'_>| {
            let cell = self.experiment.label(one.cell, true, false);
            join(&[cell, self.experiment.scene.pair_label(one.pair), one.what()])
        };
        let mut groups: Vec<(String, Vec<&Comparison<'_>>)> = Vec::new();
        for one in comparisons {
            let name = label(one);
            match groups.iter_mut().find(|group| group.0 == name) {
                Some(group) => group.1.push(one),
                None => groups.push((name, vec![one])),
            }
        }
        for (name, group) in groups.iter().filter(|group| group.1.len() >= PEAK_FROM) {
            let by = |a: &&&Comparison<'_>, b: &&&Comparison<'_>| {
                a.ratio().unwrap_or(0.0).total_cmp(&b.ratio().unwrap_or(0.0))
            };
            let peak = group.iter().max_by(by);
            let kilobytes = peak.map(|one| one.cell.bytes as f64 / 1e3);
            self.rows.push(Row::value(
                format!("{name} size of the largest ratio"),
                "KB",
                kilobytes,
            ));
            let ratio = peak.and_then(|one| one.ratio());
            self.rows.push(Row::value(format!("{name} largest ratio"), "x", ratio));
        }
    }

    /// How much of the buffer each receiver's flows use.
    fn add_occupancy(&mut self, index: &Index<'_>, cell: &Cell) {
        let host = &cell.host_variant.host.name;
        let series = |variant, receiver: &str| -> Vec<f64> {
            let mut wanted = self.experiment.parameters(cell, variant);
            wanted.insert("receiver".into(), receiver.to_owned());
            let mut all: Vec<(u64, f64)> = index
                .iter()
                .filter(|((parameters, metric), _)| {
                    *metric == "occupancy"
                        && wanted.iter().all(|(k, v)| parameters.get(k) == Some(v))
                })
                .flat_map(|((parameters, _), values)| {
                    let at = parameters.get("at_ms").and_then(|at| at.parse().ok()).unwrap_or(0);
                    values.iter().map(move |value| (at, *value))
                })
                .collect();
            all.sort_by_key(|sample| sample.0);
            all.into_iter().map(|sample| sample.1).collect()
        };
        let label = self.experiment.label(cell, true, true);
        let mut rows = Vec::new();
        for pair in self.experiment.scene.pairs() {
            for path in &cell.paths {
                let [value, baseline] = pair.map(|variant| series(variant, &path.name));
                if value.is_empty() {
                    continue;
                }
                let name = join(&[
                    label.clone(),
                    self.experiment.scene.pair_label(pair),
                    format!("occupancy {} {host}", path.name),
                ]);
                let peak = |all: &[f64]| all.iter().copied().reduce(f64::max);
                let (with, without) = (peak(&value), peak(&baseline));
                rows.push(Row::comparison(format!("{name} peak"), "KB", with, without));
                let (with, without) = (busy_mean(&value), busy_mean(&baseline));
                rows.push(Row::comparison(
                    format!("{name} mean while in use"),
                    "KB",
                    with,
                    without,
                ));
            }
        }
        self.rows.extend(rows);
    }

    /// Whether the runs on the hosts as they are, or with one parameter changed, were healthy ones.
    fn add_health(&mut self, measurements: &[Measurement], host_variant: &str) {
        for &variant in &self.experiment.scene.variants {
            let own = |metric: &str| {
                let of = |m: &&Measurement| {
                    m.metric == metric
                        && m.parameters.get("variant").is_some_and(|c| c == variant.name())
                        && m.parameters.get("host_variant").is_none_or(|v| v == host_variant)
                };
                measurements.iter().filter(of).map(|m| m.value).collect::<Vec<_>>()
            };
            for (metric, unit) in
                [("guest retransmissions", "segments"), ("transfers failed", "transfers")]
            {
                let name = format!("{metric} {}", variant.name());
                let name = join(&[host_variant.to_owned(), name]);
                self.rows.push(Row::value(name, unit, Some(own(metric).iter().sum())));
            }
            for metric in ["measured VM", "other VMs", "driver domain"] {
                let metric = format!("processor of the {metric}");
                let name = format!("{metric} {}", variant.name());
                let name = join(&[host_variant.to_owned(), name]);
                self.rows.push(Row::value(name, "%", stats::mean(&own(&metric))));
            }
        }
    }
}

/// Mean of what is not zero.
fn busy_mean(all: &[f64]) -> Option<f64> {
    let busy: Vec<f64> = all.iter().copied().filter(|&kilobytes| kilobytes > 0.0).collect();
    stats::mean(&busy)
}
