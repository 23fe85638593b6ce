//! From the measurements of a [`Grid`] to rows, samples and charts.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use floodway_report::report;
use floodway_report::{Bar, Drawn, Report, Samples, judge};

use super::Measurement;
use super::grid::{Along, Change, Grid};
use super::measurement::report_of;

/// Metric of points of a distribution, which are no figures.
const DISTRIBUTION: &str = "distribution";

/// A figure of a class, in the order of the first run that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    class: String,
    figure: String,
    unit: String,
}

impl Key {
    fn of(m: &Measurement) -> Option<Self> {
        let own = |name: &str| m.parameters.get(name).cloned();
        (m.metric != DISTRIBUTION).then_some(())?;
        Some(Self { class: own("class")?, figure: own("figure")?, unit: m.unit.clone() })
    }

    fn name(&self) -> String {
        format!("{} {}", self.class, self.figure)
    }
}

/// The measurements of a cell.
struct Cell<'a> {
    case: &'a Change,
    variant: &'a Change,
    own: Vec<&'a Measurement>,
}

impl Cell<'_> {
    /// The values of a figure by seed.
    fn values(&self, key: &Key) -> BTreeMap<u64, f64> {
        let own = self.own.iter().filter(|m| Key::of(m).as_ref() == Some(key));
        own.map(|m| (m.seed, m.value)).collect()
    }

    /// The points of a distribution, of all replications together, from a share on.
    fn points(&self, class: &str, from: &str) -> Vec<f64> {
        let is = |m: &Measurement, name: &str, value: &str| {
            m.parameters.get(name).is_some_and(|own| own == value)
        };
        let own = self
            .own
            .iter()
            .filter(|m| m.metric == DISTRIBUTION && is(m, "class", class) && is(m, "from", from));
        own.map(|m| m.value).collect()
    }
}

pub(super) fn report(grid: &Grid, all: &[Measurement]) -> Result<(Report, Vec<Samples>)> {
    let (mut rows, mut samples) = (Vec::new(), Vec::new());
    for case in &grid.settings.case {
        let cells: Vec<_> =
            grid.settings.variant.iter().map(|variant| cell(case, variant, all)).collect();
        let mut keys: Vec<Key> = Vec::new();
        for key in cells.iter().flat_map(|cell| &cell.own).filter_map(|m| Key::of(m)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        ensure!(!keys.is_empty(), "case {:?}: nothing was measured", case.name);
        for (n, one) in cells.iter().enumerate() {
            let against = match &one.variant.against {
                Some(name) => cells.iter().find(|other| other.variant.name == *name),
                None => cells.first().filter(|_| n > 0),
            };
            if against.is_none() && cells.len() > 1 {
                continue;
            }
            for key in &keys {
                let made = compare(grid, one, against, key);
                // Some variants leave out what others have.
                if !made.value.is_empty() {
                    rows.push(made.median_row());
                    samples.push(made);
                }
            }
            samples.extend(distributions(one, against));
        }
    }
    report::add_intervals(&mut rows, &samples, grid.seed);
    judge(&mut rows, &grid.settings.band)?;
    let run = (&*grid.name, grid.seed);
    Ok((report_of(run, &grid.parameters, rows, grid.notes.clone())?, samples))
}

fn cell<'a>(case: &'a Change, variant: &'a Change, all: &'a [Measurement]) -> Cell<'a> {
    let is = |m: &Measurement, name: &str, value: &str| {
        m.parameters.get(name).is_some_and(|own| own == value)
    };
    let own = |m: &&Measurement| is(m, "case", &case.name) && is(m, "variant", &variant.name);
    Cell { case, variant, own: all.iter().filter(own).collect() }
}

/// A figure in one variant and the one that it is against; replications that lack it in either do not count.
fn compare(grid: &Grid, one: &Cell<'_>, against: Option<&Cell<'_>>, key: &Key) -> Samples {
    let values = one.values(key);
    // What only this variant has (the share of what is tagged, say) stands alone.
    let others = against.map(|other| other.values(key)).filter(|others| !others.is_empty());
    let both = |seed: &u64| others.as_ref().is_none_or(|others| others.contains_key(seed));
    let pick = |from: &BTreeMap<u64, f64>| -> Vec<f64> {
        let own = from.iter().filter(|(seed, _)| both(seed) && values.contains_key(*seed));
        own.map(|(_, value)| *value).collect()
    };
    let case = &one.case.name;
    let (chart, label) = match grid.settings.chart {
        Along::Figures => (join(case, &key.class), key.figure.clone()),
        Along::Cases => (key.name(), case.clone()),
        Along::Variants => (join(case, &key.name()), one.variant.name.clone()),
    };
    let is_time = key.unit == "ms";
    Samples {
        name: format!("{} {}", join(case, &key.name()), one.variant.name),
        unit: key.unit.clone(),
        value: pick(&values),
        baseline: others.as_ref().map(pick).unwrap_or_default(),
        variants: variants(one, against),
        bar: is_time.then(|| Bar {
            chart,
            series: match grid.settings.chart {
                Along::Variants => "this variant".to_owned(),
                Along::Figures | Along::Cases => one.variant.name.clone(),
            },
            label,
            drawn: Drawn::Values,
        }),
    }
}

/// The distributions of all classes that have one, whole and from the 99th percentile on.
fn distributions(one: &Cell<'_>, against: Option<&Cell<'_>>) -> Vec<Samples> {
    let mut classes: Vec<(&String, &String)> = Vec::new();
    for m in one.own.iter().filter(|m| m.metric == DISTRIBUTION) {
        if let (Some(class), Some(from)) = (m.parameters.get("class"), m.parameters.get("from"))
            && !classes.contains(&(class, from))
        {
            classes.push((class, from));
        }
    }
    let made = classes.into_iter().map(|(class, from)| {
        let what = if from == "0" { "distribution" } else { "distribution of the slowest" };
        let chart = format!("{} {what}", join(&one.case.name, class));
        Samples {
            name: format!("{chart} {}", one.variant.name),
            unit: "ms".into(),
            value: one.points(class, from),
            baseline: against.map(|other| other.points(class, from)).unwrap_or_default(),
            variants: variants(one, against),
            bar: Some(Bar {
                chart,
                series: one.variant.name.clone(),
                label: from.clone(),
                drawn: Drawn::Distribution,
            }),
        }
    });
    made.collect()
}

fn variants(one: &Cell<'_>, against: Option<&Cell<'_>>) -> Option<[String; 2]> {
    let other = against.map_or(String::new(), |other| other.variant.name.clone());
    Some([one.variant.name.clone(), other])
}

fn join(case: &str, what: &str) -> String {
    if case.is_empty() { what.to_owned() } else { format!("{case}/{what}") }
}
