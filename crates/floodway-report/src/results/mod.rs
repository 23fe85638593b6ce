//! Published results: chosen runs, each in a file of its own, and the tables and figures in texts that are made of them.
//!
//! # Theory of operation
//! **Goal**: a figure in a text is one that a run has measured, and whoever reads it can tell by which commit, when, and by which command.
//!
//! `docs/results/RUN.json` is a [`Run`]: a report, how it came about, and the samples that its figures are drawn from. A text has a block for each table, and for figures:
//!
//! ```text
//! <!-- results: RUN, RUN | ROWS, ROWS -->
//! the table, which nobody edits
//! <!-- end of results -->
//!
//! <!-- figures of results: RUNS, RUNS -->
//! the figures of these runs
//! <!-- end of results -->
//! ```
//!
//! A sentence or a cell of a table has a figure within its line:
//!
//! ```text
//! The switch sleeps: <!-- figure: RUN; ROW -->0.1 % of a core<!-- end -->.
//! ```
//!
//! It is the row's ratio or value with its 95 % interval; a third field asks for the `ratio` alone, for the `value` with Floodway, for that `without`, or, instead of the interval of its rounds, for that in which a
//! `further` run is expected ([`inline`]).
//!
//! `ROWS` are names of rows, in which `*` stands for any text. With one run the table has its figures, ratio, band and verdict; with several, trials of the same
//! experiment, the headline of each and their mean ([`table`]). [`Texts::render`] writes the tables of all texts, and tells those that it has changed: none, if every figure is
//! the file's.
//!
//! **Figures.** [`figures::render`] draws a run's figures as its page does ([`crate::html`]), into `docs/src/results/RUN.svg`. A text has them as images, with what they show in
//! words. `RUNS` are names of runs, in which `*` stands for any text.
//!
//! **Repeats.** What other runs of the same experiment measured stands beside a published one, and says where a further run's figures are to be expected ([`repeats`]).
//!
//! **Age.** A run is as old as the changes since its commit to what decides its figures, comments aside ([`age`]).
//!
//! **Invariants.** What is outside of blocks and figures stays as it is, to the byte. Rendering twice changes nothing the second time. One that names no run, no row, or has
//! no end is an error that names the text and the line.

pub mod age;
pub mod figures;
mod inline;
mod repeats;
mod table;
mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::html::{Picture, samples_of_figures};
use crate::provenance::Provenance;
use crate::report::{REPORT_FILE, Report, Samples, read_samples, write_json};
pub use repeats::Repeat;
pub use text::Texts;

/// Where runs are, below the root of the sources.
pub const DIRECTORY: &str = "docs/results";

/// A published run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// How it came about.
    pub provenance: Provenance,
    /// What it measured.
    pub report: Report,
    /// What its figures are drawn from besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Samples>,
    /// What other runs of the same experiment measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<Repeat>,
}

impl Run {
    /// Reads what a run has left in `dir`.
    ///
    /// # Errors
    /// When a file is missing or wrong, or the run was not that of a commit: nobody could make it again.
    pub fn of(dir: &Path) -> Result<Self> {
        let report = Report::read(&dir.join(REPORT_FILE))?;
        let mut provenance = Provenance::read(dir)?;
        provenance.command = without_directory(provenance.command);
        let is_known = provenance.commit.is_some() && !provenance.dirty;
        ensure!(
            is_known,
            "{}: built from {}; publish runs of a clean checkout",
            dir.display(),
            provenance.version()
        );
        let samples = samples_of_figures(&report, &read_samples(dir)?);
        Ok(Self { provenance, report, samples, repeats: Vec::new() })
    }

    /// Its figures; none if its experiment has none, or it was published without what they are drawn from.
    #[must_use]
    pub fn picture(&self) -> Option<Picture> {
        Picture::of(&self.report, &self.samples)
    }

    /// Publishes it as `name` in `directory`. Returns the file.
    ///
    /// # Errors
    /// When `name` is no plain name, or the file cannot be written.
    pub fn publish(&self, directory: &Path, name: &str) -> Result<PathBuf> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        ensure!(
            !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain),
            "{name:?}: give a name of letters, digits, `-`, `_` and `.`"
        );
        let file = format!("{name}.json");
        write_json(directory, &file, self)?;
        Ok(directory.join(file))
    }
}

/// `command` without the directory that its report went to, which decides no figure and is nobody else's.
fn without_directory(command: Vec<String>) -> Vec<String> {
    let mut words = command.into_iter();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" => drop(words.next()),
            word if word.starts_with("--out=") => {}
            _ => kept.push(word),
        }
    }
    kept
}

/// All published runs, by name.
pub type Runs = BTreeMap<String, Run>;

/// Reads the runs in `directory`.
///
/// # Errors
/// When the directory or a file cannot be read, or is something else; the error names it.
pub fn read(directory: &Path) -> Result<Runs> {
    let list = || format!("cannot list {}", directory.display());
    let mut runs = Runs::new();
    for entry in fs::read_dir(directory).with_context(list)? {
        let path = entry.with_context(list)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"))
        else {
            continue;
        };
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let run = serde_json::from_str(&text)
            .with_context(|| format!("{} is no published run", path.display()))?;
        runs.insert(name.to_owned(), run);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::about::{About, Figure, Form};
    use crate::band::Band;
    use crate::report::{Row, World, write_samples};

    /// A run of one comparison with this ratio.
    pub fn run(ratio: f64) -> Run {
        let mut row = Row::comparison("a/b", "Mbit/s", Some(ratio * 10.0), Some(10.0));
        row.judge_by(&Band { low: Some(0.8), high: Some(1.25), ..Band::default() });
        let report = Report {
            experiment: "e".into(),
            world: World::Real,
            seed: 1,
            host: BTreeMap::from([("cpu_model".into(), "x".into())]),
            rows: vec![row, Row::value("a/c", "ms", Some(2.5))],
            notes: Vec::new(),
            about: About::default(),
        };
        let provenance = Provenance {
            commit: Some("0123456789abcdef".into()),
            command: vec!["floodway-lab".into(), "real".into()],
            started: "2026-11-23T17:00:00Z".into(),
            ..Provenance::default()
        };
        Run { provenance, report, samples: Vec::new(), repeats: Vec::new() }
    }

    #[test]
    fn a_command_is_published_without_the_directory_of_its_report() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for command in ["lab real --out /a b.toml --seed 2", "lab real --out=/a b.toml --seed 2"] {
            assert_eq!(without_directory(words(command)), words("lab real b.toml --seed 2"));
        }
        assert!(without_directory(words("--out")).is_empty());
    }

    #[test]
    fn what_is_published_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (out, results) = (dir.path().join("out"), dir.path().join("results"));
        let mut left = run(1.0);
        let distribution =
            Figure { form: Form::Distribution, rows: "{x}".into(), ..Figure::default() };
        left.report.about.figure.push(distribution);
        let drawn = Samples { name: "a".into(), value: vec![1.5, 0.1], ..Samples::default() };
        let other = Samples { name: "a/b".into(), ..drawn.clone() };
        left.report.write(&out).unwrap();
        left.provenance.write(&out).unwrap();
        write_samples(&out, &[drawn.clone(), other]).unwrap();
        left.samples.push(drawn);
        let file = Run::of(&out).unwrap().publish(&results, "e-1").unwrap();
        assert_eq!(file, results.join("e-1.json"));
        assert_eq!(read(&results).unwrap(), Runs::from([("e-1".to_owned(), left)]));
    }

    #[test]
    fn a_run_of_no_commit_is_not_published() {
        let dir = tempfile::tempdir().unwrap();
        for (commit, dirty) in [(None, false), (Some("0123".to_owned()), true)] {
            let mut left = run(1.0);
            (left.provenance.commit, left.provenance.dirty) = (commit, dirty);
            left.report.write(dir.path()).unwrap();
            left.provenance.write(dir.path()).unwrap();
            let error = Run::of(dir.path()).unwrap_err().to_string();
            assert!(error.contains("clean checkout"), "{error}");
        }
    }

    #[test]
    fn a_name_stays_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "..", "../a", "a/b", ".a"] {
            assert!(run(1.0).publish(dir.path(), name).is_err(), "{name}");
        }
    }
}
