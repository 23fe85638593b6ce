//! From what was seen to rows.

use std::collections::BTreeMap;

use floodway_report::{Bar, Drawn, Measured, Row, Samples, stats};

use super::SmallFlows;
use super::port::PortCounts;
use super::variant::Variant;

/// Percentiles of times.
const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
/// From which share on distributions are drawn.
const DRAWN_FROM: [f64; 2] = [0.0, 0.99];
/// Points of a distribution that are kept.
const POINTS: u32 = 400;

/// What the competing VM's stream carried.
pub(super) const BULK_RATE: &str = "bulk rate";
/// What the VM that computes got done.
pub(super) const HOG_RATE: &str = "hog rate";
/// CPU time of the switch.
pub(super) const SWITCH_CPU: &str = "switch CPU";
/// Mean time for which a vCPU had the core before another one got it.
pub(super) const TIME_SLICE: &str = "vCPU time slice";

fn unit(rate: &str) -> &'static str {
    match rate {
        BULK_RATE => "Mbit/s",
        SWITCH_CPU => "% of a core",
        TIME_SLICE => "ms",
        _ => "1000/s",
    }
}

/// What was seen of one variant in one round.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Times in ms, by name.
    pub times: BTreeMap<String, Vec<f64>>,
    /// Rates, by name.
    pub rates: BTreeMap<&'static str, f64>,
    pub port: Option<PortCounts>,
}

/// All that was seen, by case and variant.
#[derive(Debug, Default)]
pub(super) struct Cells(BTreeMap<(String, String), Vec<Seen>>);

/// Case and what of it.
pub(super) fn join(case: &str, what: &str) -> String {
    if case.is_empty() { what.to_owned() } else { format!("{case}/{what}") }
}

impl Cells {
    pub fn add(&mut self, case: &str, variant: &str, seen: Seen) {
        self.0.entry((case.into(), variant.into())).or_default().push(seen);
    }

    /// Rows of all variants against theirs.
    pub fn report(&self, scenario: &SmallFlows) -> Measured {
        let mut measured = Measured::default();
        for case in scenario.cases() {
            for (n, variant) in scenario.variant.iter().enumerate() {
                let first = scenario.variant.first().filter(|_| n > 0).map(|first| &first.name);
                let pair = Pair {
                    case: &case.name,
                    variant,
                    own: self.of(&case.name, &variant.name),
                    other: variant.against.as_ref().or(first).map(|name| self.of(&case.name, name)),
                    other_name: variant.against.as_ref().or(first).map_or("", |name| name),
                };
                if pair.other.is_some() || scenario.variant.len() == 1 {
                    pair.add_to(&mut measured);
                }
                pair.add_port(&mut measured);
            }
        }
        measured
    }

    fn of(&self, case: &str, variant: &str) -> &[Seen] {
        self.0.get(&(case.to_owned(), variant.to_owned())).map_or(&[], |seen| seen)
    }
}

/// A variant and the one that it is against.
struct Pair<'a> {
    case: &'a str,
    variant: &'a Variant,
    own: &'a [Seen],
    other: Option<&'a [Seen]>,
    other_name: &'a str,
}

impl Pair<'_> {
    fn name(&self, what: &str) -> String {
        format!("{} {}", join(self.case, what), self.variant.name)
    }

    fn add_to(&self, measured: &mut Measured) {
        for class in self.own.first().into_iter().flat_map(|seen| seen.times.keys()) {
            self.add_times(class, measured);
        }
        for rate in self.own.first().into_iter().flat_map(|seen| seen.rates.keys()) {
            self.compare(rate, unit(rate), |seen| seen.rates.get(rate).copied(), measured);
        }
    }

    fn add_times(&self, class: &str, measured: &mut Measured) {
        let mean = |seen: &Seen| stats::mean(seen.times.get(class)?);
        self.compare(&format!("{class} mean"), "ms", mean, measured);
        for (figure, share) in PERCENTILES {
            let percentile = |seen: &Seen| stats::quantile(seen.times.get(class)?, share);
            self.compare(&format!("{class} {figure}"), "ms", percentile, measured);
        }
        for from in DRAWN_FROM {
            let what = if from == 0.0 { "distribution" } else { "distribution of the slowest" };
            let chart = format!("{} {what}", join(self.case, class));
            measured.samples.push(Samples {
                name: format!("{chart} {}", self.variant.name),
                unit: "ms".into(),
                value: points(&times(self.own, class), from),
                baseline: self
                    .other
                    .map(|other| points(&times(other, class), from))
                    .unwrap_or_default(),
                variants: self.variants(),
                bar: Some(Bar {
                    chart,
                    series: self.variant.name.clone(),
                    label: from.to_string(),
                    drawn: Drawn::Distribution,
                }),
            });
        }
    }

    /// Adds the mean of a figure over all rounds, beside that of the other variant. Each round is a sample, if both variants have the figure in it.
    fn compare(
        &self,
        what: &str,
        unit: &str,
        figure: impl Fn(&Seen) -> Option<f64>,
        measured: &mut Measured,
    ) {
        let name = self.name(what);
        let (value, baseline): (Vec<f64>, Vec<f64>) = match self.other {
            Some(other) => {
                let rounds = self.own.iter().zip(other);
                rounds.filter_map(|(own, other)| figure(own).zip(figure(other))).unzip()
            }
            None => (self.own.iter().filter_map(&figure).collect(), Vec::new()),
        };
        let mean = stats::mean(&value);
        measured.rows.push(match self.other {
            Some(_) => Row::comparison(&name, unit, mean, stats::mean(&baseline)),
            None => Row::value(&name, unit, mean),
        });
        measured.samples.push(Samples {
            name,
            unit: unit.into(),
            value,
            baseline,
            variants: self.variants(),
            bar: None,
        });
    }

    /// What `value` and `baseline` of samples are.
    fn variants(&self) -> Option<[String; 2]> {
        Some([self.variant.name.clone(), self.other_name.into()])
    }

    /// What the port counted, by class where it has two.
    fn add_port(&self, measured: &mut Measured) {
        let counted = self.own.iter().filter_map(|seen| seen.port);
        let Some(PortCounts { high, low, missed }) = counted.reduce(|a, b| a.with(&b)) else {
            return;
        };
        let mut add = |what: &str, unit: &str, value: u64| {
            measured.add_value(self.name(what), unit, value as f64);
        };
        add("dropped by the port", "packets", high.dropped + low.dropped);
        add("missed by the emulator", "frames", missed);
        add("longest queue", "bytes", low.longest_queue);
        if self.variant.priority {
            add("longest queue of the high class", "bytes", high.longest_queue);
            add("packets of the high class", "packets", high.sent);
            add("packets of the low class", "packets", low.sent);
        }
    }
}

/// The times of a class in all rounds together.
fn times(all: &[Seen], class: &str) -> Vec<f64> {
    all.iter().filter_map(|seen| seen.times.get(class)).flatten().copied().collect()
}

/// Quantiles from `from` on, evenly spaced: as many points as a plot can show.
fn points(times: &[f64], from: f64) -> Vec<f64> {
    let share = |n: u32| from + (1.0 - from) * f64::from(n) / f64::from(POINTS);
    (1..=POINTS).filter_map(|n| stats::quantile(times, share(n))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::port::Class;
    use super::*;
    use floodway_report::report::add_intervals;

    fn seen(times: impl IntoIterator<Item = u32>, rate: f64) -> Seen {
        let times = times.into_iter().map(f64::from).collect();
        let class = |sent, dropped, longest_queue| Class { sent, dropped, longest_queue };
        let port = Some(PortCounts { high: class(5, 1, 60), low: class(9, 2, 900), missed: 0 });
        Seen { times: [("ping".into(), times)].into(), rates: [(BULK_RATE, rate)].into(), port }
    }

    fn scenario(variants: &str) -> SmallFlows {
        let text = format!("kernel = \"6.1\"\nvms = 1\nrounds = 1\nseconds = 1\n{variants}");
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn figures_are_means_over_rounds_and_variants_are_compared() {
        let mut cells = Cells::default();
        cells.add("", "a", seen(0..=500, 90.0));
        cells.add("", "a", seen(500..=1000, 110.0));
        for _ in 0..2 {
            cells.add("", "b", seen((0..=1000).map(|n| 2 * n), 50.0));
            cells.add("", "c", seen(0..=1000, 50.0));
        }
        let variants = "[[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\n[[variant]]\nname = \"c\"\nagainst = \"b\"";
        let measured = cells.report(&scenario(variants));
        let row = |name: &str| measured.rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(row("ping p50 b").ratio, Some(2.0));
        assert_eq!(
            (row("ping p99 b").value, row("ping p99 b").baseline),
            (Some(1980.0), Some(745.0))
        );
        assert_eq!(row("ping p99.9 c").ratio, Some(0.5));
        assert_eq!(row("bulk rate b").ratio, Some(0.5));
        assert_eq!(row("dropped by the port a").value, Some(6.0));
        assert_eq!(row("longest queue a").value, Some(900.0));
        assert!(measured.rows.iter().all(|row| row.name != "ping p50 a"));
        assert_eq!(measured.samples.len(), 14);
    }

    #[test]
    fn rounds_give_a_ratio_its_interval() {
        let mut cells = Cells::default();
        for round in [1, 10, 5] {
            cells.add("", "a", seen([round, 2 * round], 90.0));
            cells.add("", "b", seen([3 * round, 6 * round], 90.0));
        }
        let variants = "[[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"";
        let mut measured = cells.report(&scenario(variants));
        add_intervals(&mut measured.rows, &measured.samples, 1);
        let row = measured.rows.iter().find(|row| row.name == "ping p99 b").unwrap();
        let interval = row.interval.unwrap();
        assert!((interval.low - 3.0).abs() < 1e-9 && (interval.high - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_round_counts_if_both_variants_have_the_figure() {
        let mut cells = Cells::default();
        for (own, other) in [(vec![], vec![1]), (vec![6], vec![2]), (vec![9], vec![])] {
            cells.add("", "a", seen(other, 90.0));
            cells.add("", "b", seen(own, 90.0));
        }
        let variants = "[[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"";
        let measured = cells.report(&scenario(variants));
        let row = measured.rows.iter().find(|row| row.name == "ping mean b").unwrap();
        assert_eq!((row.value, row.baseline), (Some(6.0), Some(2.0)));
    }

    #[test]
    fn a_variant_alone_has_values() {
        let mut cells = Cells::default();
        cells.add("40 %", "a", seen([1, 2, 3], 90.0));
        let mut scenario = scenario("[[variant]]\nname = \"a\"");
        scenario.case = vec![super::super::Case { name: "40 %".into(), ..Default::default() }];
        let measured = cells.report(&scenario);
        let row = measured.rows.iter().find(|row| row.name == "40 %/ping p50 a").unwrap();
        assert_eq!((row.value, row.baseline), (Some(2.0), None));
        assert!(measured.rows.iter().all(|row| !row.name.contains("high class")));
    }

    #[test]
    fn a_port_with_two_classes_has_rows_for_each() {
        let mut cells = Cells::default();
        cells.add("", "a", seen([1], 90.0));
        cells.add("", "a", seen([2], 90.0));
        let measured = cells.report(&scenario("[[variant]]\nname = \"a\"\npriority = true"));
        let value = |name: &str| measured.rows.iter().find(|row| row.name == name).unwrap().value;
        assert_eq!(value("packets of the high class a"), Some(10.0));
        assert_eq!(value("packets of the low class a"), Some(18.0));
        assert_eq!(value("longest queue of the high class a"), Some(60.0));
    }
}
