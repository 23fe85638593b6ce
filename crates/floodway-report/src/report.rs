//! The report that every experiment writes, whatever world it ran in.
//!
//! # Theory of operation
//!
//! `report.json` is the contract with whoever reads results later: one row per figure, always with the
//! same nine fields, `null` where a field does not apply. A comparison is one row: `value` with
//! Floodway, `baseline` without it, `ratio` = value / baseline. The band `low..=high` is the
//! accepted range of the row's *headline*: the ratio where there is one, the value elsewhere. A row
//! with a band has the verdict `ok` or `short`; a row without one has none. A figure that could not be
//! measured although it has a band is `short`: silence is never a pass.
//!
//! Beside it lie `samples.json` (what the figures were computed from), `provenance.json` ([`crate::provenance`]) and `report.html` (see [`crate::html`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::stats;

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

    /// Sets band and paper's value, and draws the verdict.
    pub fn judge(&mut self, low: Option<f64>, high: Option<f64>, paper: Option<f64>) {
        (self.low, self.high, self.paper) = (low, high, paper);
        if low.is_none() && high.is_none() {
            self.verdict = None;
            return;
        }
        let inside = self.headline().is_some_and(|headline| {
            low.is_none_or(|low| headline >= low) && high.is_none_or(|high| headline <= high)
        });
        self.verdict = Some(if inside { Verdict::Ok } else { Verdict::BelowTarget });
    }
}

/// JSON has no infinities: a figure that is not finite is one that was not measured.
fn finite(figure: Option<f64>) -> Option<f64> {
    figure.filter(|figure| figure.is_finite())
}

impl Report {
    /// Rows whose verdict is short.
    pub fn below_target(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.verdict == Some(Verdict::BelowTarget))
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
        row.judge(low, high, None);
        row.verdict
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
    fn a_report_survives_writing_and_reading_with_all_nine_fields() {
        let mut row = Row::value("idle", "%", Some(0.25));
        row.judge(None, Some(1.0), None);
        let report = Report {
            experiment: "t".into(),
            world: World::Real,
            seed: 7,
            host: BTreeMap::from([("cpus".into(), 2.into())]),
            rows: vec![row],
            notes: Vec::new(),
        };
        let dir = tempfile::tempdir().unwrap();
        report.write(dir.path()).unwrap();
        let path = dir.path().join(REPORT_FILE);
        assert_eq!(Report::read(&path).unwrap(), report);
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let keys: Vec<_> = json["rows"][0].as_object().unwrap().keys().collect();
        let mut expected = ["name", "unit", "value", "baseline", "ratio", "paper"].to_vec();
        expected.extend(["low", "high", "verdict"]);
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
