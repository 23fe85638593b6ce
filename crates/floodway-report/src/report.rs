//! The report that every experiment writes, whatever world it ran in.
//!
//! # Theory of operation
//!
//! `report.json` is the contract with whoever reads results later: one row per figure, always with the
//! same ten fields, `null` where a field does not apply. A comparison is one row: `value` with
//! Floodway, `baseline` without it, `ratio` = value / baseline. The band `low..=high` is the
//! accepted range of the row's *headline*: the ratio where there is one, the value elsewhere. A row
//! with a band has a verdict; a row without one has none. A figure that could not be measured although it
//! has a band is `below target`: silence is never a pass.
//!
//! A band can speak of the headline itself, or of its 95 % interval ([`Judged`]). An effect is judged by its interval: it
//! is `ok` if all of it is inside the band, `below target` if the band holds none of it, and `undecided` otherwise, which is no pass.
//!
//! Beside it lie `samples.json` (what the figures were computed from), `provenance.json` ([`crate::provenance`]) and `report.html` (see [`crate::html`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::about::About;
use crate::band::{Band, Judged};
use crate::stats::{self, Centre, Interval};

/// File name of the report inside an experiment's output directory.
pub const REPORT_FILE: &str = "report.json";
/// File name of the samples.
pub const SAMPLES_FILE: &str = "samples.json";

/// Where an experiment ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum World {
    /// QEMU virtual machines on this host.
    Real,
    /// Virtual time.
    Sim,
}

/// Whether a figure reached its band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Inside the band.
    Ok,
    /// Outside the band, or not measured.
    #[serde(rename = "below target", alias = "short")]
    BelowTarget,
    /// Judged by its interval, of which the band holds a part.
    Undecided,
}

impl Verdict {
    /// As people read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::BelowTarget => "below target",
            Self::Undecided => "undecided",
        }
    }
}

/// All results of one run of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Name of the experiment; also of its directory under `out/`.
    pub experiment: String,
    /// Where it ran.
    pub world: World,
    /// Seed of everything random in the run.
    pub seed: u64,
    /// What it ran on: `cpus`, `memory_gib`, `kernel`, `qemu`, ...
    pub host: BTreeMap<String, serde_json::Value>,
    /// The figures.
    pub rows: Vec<Row>,
    /// What a reader must know to take the figures for what they are: a run shorter than the file asks for, a
    /// difference that may be chance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What the experiment asks, and how a page shows the answer.
    #[serde(default, skip_serializing_if = "About::is_empty")]
    pub about: About,
}

/// One figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What was measured, unique in the report, for example `debian-6.1/vm-to-vm`.
    pub name: String,
    /// Unit of `value` and `baseline`, for example `Mbit/s`.
    pub unit: String,
    /// With Floodway.
    pub value: Option<f64>,
    /// Without Floodway, in the same run.
    pub baseline: Option<f64>,
    /// `value / baseline`.
    pub ratio: Option<f64>,
    /// 95 % interval of the headline.
    #[serde(default)]
    pub interval: Option<Interval>,
    /// What the paper says of the headline.
    pub paper: Option<f64>,
    /// Least accepted headline.
    pub low: Option<f64>,
    /// Greatest accepted headline.
    pub high: Option<f64>,
    /// Whether the headline lies in the band; none without a band.
    pub verdict: Option<Verdict>,
}

impl Row {
    /// A figure that has no counterpart without Floodway.
    #[must_use]
    pub fn value(name: impl Into<String>, unit: &str, value: Option<f64>) -> Self {
        Self { name: name.into(), unit: unit.into(), value: finite(value), ..Self::default() }
    }

    /// A comparison. The ratio is null when either side is missing or the baseline is 0.
    #[must_use]
    pub fn comparison(
        name: impl Into<String>,
        unit: &str,
        value: Option<f64>,
        baseline: Option<f64>,
    ) -> Self {
        let ratio = value.zip(baseline).map(|(value, baseline)| value / baseline);
        let mut row = Self::value(name, unit, value);
        row.baseline = finite(baseline);
        row.ratio = finite(ratio);
        row
    }

    /// What the band and the paper's value speak of: the ratio of a comparison, else the value.
    #[must_use]
    pub fn headline(&self) -> Option<f64> {
        if self.baseline.is_some() { self.ratio } else { self.value }
    }

    /// Sets band and paper's value, and draws the verdict of the headline itself.
    pub fn judge(&mut self, low: Option<f64>, high: Option<f64>, paper: Option<f64>) {
        self.judge_by(&Band { low, high, paper, ..Band::default() });
    }

    /// Sets band and paper's value, and draws the verdict. A paper's value stays if there is no other.
    pub fn judge_by(&mut self, band: &Band) {
        (self.low, self.high) = (band.low, band.high);
        self.paper = band.paper.or(self.paper);
        self.verdict = (band.low.is_some() || band.high.is_some()).then(|| match band.judge {
            Judged::Point => self.judge_point(),
            Judged::Interval => self.judge_interval(),
        });
    }

    fn judge_point(&self) -> Verdict {
        match self.headline() {
            Some(headline) if self.accepts(headline) => Verdict::Ok,
            _ => Verdict::BelowTarget,
        }
    }

    fn judge_interval(&self) -> Verdict {
        if self.headline().is_none() {
            return Verdict::BelowTarget;
        }
        let Some(Interval { low, high }) = self.interval else { return Verdict::Undecided };
        let is_apart =
            self.low.is_some_and(|least| high < least) || self.high.is_some_and(|most| low > most);
        // Not on a bound: an interval of 1 to 1 is no gain.
        let is_inside =
            self.low.is_none_or(|least| low > least) && self.high.is_none_or(|most| high < most);
        match (is_inside, is_apart) {
            (true, _) => Verdict::Ok,
            (_, true) => Verdict::BelowTarget,
            _ => Verdict::Undecided,
        }
    }

    fn accepts(&self, figure: f64) -> bool {
        self.low.is_none_or(|low| figure >= low) && self.high.is_none_or(|high| figure <= high)
    }

    /// Returns `true` if it is of a sweep of parameters: its name says which one, as in `load.busy = wall/whole`.
    #[must_use]
    pub fn is_swept(&self) -> bool {
        self.name.contains(" = ")
    }

    /// Returns `true` if nothing was counted on either side, and nobody judges that.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.verdict.is_none() && self.value == Some(0.0) && self.baseline.is_none_or(|b| b == 0.0)
    }
}

/// JSON has no infinities: a figure that is not finite is one that was not measured.
fn finite(figure: Option<f64>) -> Option<f64> {
    figure.filter(|figure| figure.is_finite())
}

impl Report {
    /// Rows with a verdict other than `ok`.
    pub fn below_target(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.verdict.is_some_and(|verdict| verdict != Verdict::Ok))
    }

    /// Reads a report.
    ///
    /// # Errors
    /// When the file cannot be read or is not a report; the error names the field.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read report {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a report", path.display()))
    }

    /// Writes `report.json` into `dir`, which is created when absent.
    ///
    /// # Errors
    /// When the directory or the file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_json(dir, REPORT_FILE, self)
    }
}

/// What one row was computed from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// Name of the row.
    pub name: String,
    /// Unit of the samples.
    pub unit: String,
    /// With Floodway, in the order of measuring.
    pub value: Vec<f64>,
    /// Without Floodway; entry *i* was measured in the same round as `value[i]`. Empty when there
    /// is nothing to compare with.
    pub baseline: Vec<f64>,
    /// What `value` and `baseline` are, when that is not "with Floodway" and "without".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "arms")]
    pub variants: Option<[String; 2]>,
    /// Where they stand in a chart of the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
}

/// Place in a chart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Title of the chart.
    pub chart: String,
    /// Bars of one colour.
    pub series: String,
    /// Bars beside each other; of a distribution, the share from which on it is drawn.
    pub label: String,
    /// What is drawn.
    #[serde(default)]
    pub drawn: Drawn,
}

/// What of samples a chart shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drawn {
    /// The ratio of the medians, in bars.
    #[default]
    Ratio,
    /// The medians themselves, in bars; the baseline's is a bar of its own.
    Values,
    /// Cumulative distributions, that of the baseline, too.
    Distribution,
    /// Lines over time: a sample of each second, of value and baseline.
    OverTime,
    /// A point for each label, which is a number, on logarithmic axes; the baseline is a line through its own.
    Points,
}

impl Samples {
    /// 95 % interval of their centre, or of the ratio of the centres. `None` for what was not measured in rounds.
    #[must_use]
    pub fn interval(&self, centre: Centre, is_ratio: bool, seed: u64) -> Option<Interval> {
        let is_series = self.bar.as_ref().is_some_and(|bar| bar.drawn == Drawn::OverTime);
        match (is_series, is_ratio) {
            (true, _) => None,
            (_, true) => stats::ratio_interval_of(centre, &self.value, &self.baseline, seed),
            (_, false) => stats::interval_of(centre, &self.value, seed),
        }
    }

    /// What of the samples the row's headline is; none if it is something else.
    fn centre_of(&self, row: &Row) -> Option<Centre> {
        let headline = row.headline()?;
        [Centre::Median, Centre::Mean].into_iter().find(|centre| {
            let value = centre.of(&self.value);
            let own = match row.baseline {
                Some(_) => value.zip(centre.of(&self.baseline)).map(|(value, base)| value / base),
                None => value,
            };
            own.is_some_and(|own| (own - headline).abs() <= 1e-9 * headline.abs())
        })
    }

    /// The row of the medians.
    #[must_use]
    pub fn median_row(&self) -> Row {
        let value = stats::median(&self.value);
        if self.baseline.is_empty() {
            return Row::value(&self.name, &self.unit, value);
        }
        Row::comparison(&self.name, &self.unit, value, stats::median(&self.baseline))
    }
}

/// What a scenario found.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The figures, not yet judged.
    pub rows: Vec<Row>,
    /// What they were computed from.
    pub samples: Vec<Samples>,
    /// What a reader must know to take them for what they are.
    pub notes: Vec<String>,
    /// Labels in names of rows, and what they stand for.
    pub terms: BTreeMap<String, String>,
}

impl Measured {
    /// Adds samples, and the row of their medians.
    pub fn add_samples(&mut self, samples: Samples) {
        self.rows.push(samples.median_row());
        self.samples.push(samples);
    }

    /// Adds a figure without samples.
    pub fn add_value(&mut self, name: impl Into<String>, unit: &str, value: f64) {
        self.rows.push(Row::value(name, unit, Some(value)));
    }
}

/// Gives 95 % intervals to the rows that are medians or means of samples, or their ratios: those with the samples' name, which may be followed by
/// `median` or `mean`. The same seed gives the same intervals.
pub fn add_intervals(rows: &mut [Row], samples: &[Samples], seed: u64) {
    let by_name: BTreeMap<&str, &Samples> =
        samples.iter().map(|samples| (samples.name.as_str(), samples)).collect();
    for row in rows.iter_mut().filter(|row| row.interval.is_none()) {
        let names = ["", " median", " mean"].map(|suffix| row.name.strip_suffix(suffix));
        let found = names.into_iter().flatten().find_map(|name| by_name.get(name).copied());
        row.interval = found.and_then(|samples| {
            let centre = samples.centre_of(row)?;
            samples.interval(centre, row.baseline.is_some(), seed)
        });
    }
}

/// Reads `samples.json` in `dir`; nothing if there is none.
///
/// # Errors
/// When it is something else.
pub fn read_samples(dir: &Path) -> Result<Vec<Samples>> {
    let path = dir.join(SAMPLES_FILE);
    let Ok(text) = fs::read_to_string(&path) else { return Ok(Vec::new()) };
    serde_json::from_str(&text).with_context(|| format!("{} is wrong", path.display()))
}

/// Writes `samples.json` into `dir`, which is created when absent.
///
/// # Errors
/// When the directory or the file cannot be written.
pub fn write_samples(dir: &Path, samples: &[Samples]) -> Result<()> {
    write_json(dir, SAMPLES_FILE, &samples)
}

pub(crate) fn write_json(dir: &Path, file: &str, content: &impl Serialize) -> Result<()> {
    fs::create_dir_all(dir)
        .with_context(|| format!("cannot create output directory {}", dir.display()))?;
    let path = dir.join(file);
    let text = serde_json::to_string_pretty(content)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(mut row: Row, low: Option<f64>, high: Option<f64>) -> Option<Verdict> {
        row.judge_by(&band(low, high));
        row.verdict
    }

    fn band(low: Option<f64>, high: Option<f64>) -> Band {
        Band { low, high, ..Band::default() }
    }

    #[test]
    fn an_effect_is_judged_by_its_interval() {
        let judged = |interval: Option<[f64; 2]>| {
            let mut row = Row::comparison("a", "s", Some(0.994), Some(1.0));
            row.interval = interval.map(|[low, high]| Interval { low, high });
            row.judge_by(&Band { judge: Judged::Interval, ..band(Some(1.0), None) });
            row.verdict
        };
        assert_eq!(judged(Some([1.1, 2.0])), Some(Verdict::Ok));
        assert_eq!(judged(Some([0.65, 2.0])), Some(Verdict::Undecided));
        assert_eq!(judged(Some([0.65, 0.9])), Some(Verdict::BelowTarget));
        assert_eq!(judged(Some([1.0, 1.0])), Some(Verdict::Undecided), "the same is no gain");
        assert_eq!(judged(None), Some(Verdict::Undecided), "silence is no pass");
    }

    #[test]
    fn rows_of_samples_have_intervals() {
        let samples = Samples {
            name: "a".into(),
            value: vec![2.0, 4.0, 6.0],
            baseline: vec![1.0, 2.0, 3.0],
            ..Samples::default()
        };
        let row = |name: &str| Row::comparison(name, "s", Some(4.0), Some(2.0));
        let other = Row::comparison("a", "s", Some(5.0), Some(2.0));
        let mut rows =
            [row("a median"), row("a mean"), row("b median"), samples.median_row(), other];
        add_intervals(&mut rows, std::slice::from_ref(&samples), 1);
        let found = rows.map(|row| row.interval.map(|interval| interval.holds(2.0)));
        assert_eq!(found, [Some(true), Some(true), None, Some(true), None]);
    }

    #[test]
    fn the_band_of_a_comparison_speaks_of_the_ratio() {
        let row = Row::comparison("a", "Mbit/s", Some(900.0), Some(1000.0));
        assert_eq!(row.ratio, Some(0.9));
        assert_eq!(judged(row.clone(), Some(0.9), None), Some(Verdict::Ok));
        assert_eq!(judged(row, Some(1.0), None), Some(Verdict::BelowTarget));
    }

    #[test]
    fn the_band_of_a_value_speaks_of_the_value() {
        let row = Row::value("errors", "errors", Some(0.0));
        assert_eq!(judged(row.clone(), None, Some(0.0)), Some(Verdict::Ok));
        assert_eq!(judged(row.clone(), None, None), None);
        assert_eq!(judged(row, Some(1.0), Some(2.0)), Some(Verdict::BelowTarget));
    }

    #[test]
    fn what_was_not_measured_is_short() {
        let missing = Row::value("a", "s", None);
        assert_eq!(judged(missing, None, Some(2.0)), Some(Verdict::BelowTarget));
        let no_baseline = Row::comparison("a", "s", Some(1.0), Some(0.0));
        assert_eq!(no_baseline.ratio, None);
        assert_eq!(judged(no_baseline, Some(0.5), None), Some(Verdict::BelowTarget));
        assert_eq!(Row::value("a", "s", Some(f64::NAN)).value, None);
    }

    #[test]
    fn a_report_survives_writing_and_reading_with_all_its_fields() {
        let mut row = Row::value("idle", "%", Some(0.25));
        row.judge_by(&band(None, Some(1.0)));
        let report = Report {
            experiment: "t".into(),
            world: World::Real,
            seed: 7,
            host: BTreeMap::from([("cpus".into(), 2.into())]),
            rows: vec![row],
            notes: Vec::new(),
            about: About::default(),
        };
        let dir = tempfile::tempdir().unwrap();
        report.write(dir.path()).unwrap();
        let path = dir.path().join(REPORT_FILE);
        assert_eq!(Report::read(&path).unwrap(), report);
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let keys: Vec<_> = json["rows"][0].as_object().unwrap().keys().collect();
        let mut expected = ["name", "unit", "value", "baseline", "ratio", "paper"].to_vec();
        expected.extend(["interval", "low", "high", "verdict"]);
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(json["rows"][0]["verdict"], "ok");
        assert_eq!(json["world"], "real");
    }

    #[test]
    fn a_file_that_is_no_report_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        fs::write(&path, r#"{"experiment": 3}"#).unwrap();
        let error = format!("{:#}", Report::read(&path).unwrap_err());
        assert!(error.contains("x.json") && error.contains("string"), "{error}");
    }
}
