//! Repeats of a published run: what other runs of the same experiment measured, and where a further one's figures are to be expected.
//!
//! # Theory of operation
//! **Goal**: an interval that contains the figures of whoever runs an experiment again. The 95 % interval of a row describes the rounds of one run. It does not contain what is
//! the same in all of these rounds and different in the next run, above all the pace of the machine, which can stay different for as long as a run takes.
//!
//! **Method**: the figures of all `n` runs, including the published one, are treated as draws from a normal distribution; their logarithms are, if all figures are above 0. The
//! prediction interval for the next draw, with a probability of 95 %, is `mean ± t s sqrt(1 + 1/n)`, where `s` is the standard deviation and `t` the 97.5 % quantile of
//! Student's distribution with `n - 1` degrees of freedom; where no figure is below 0, it is cut at 0. It takes at least [`LEAST`] runs. Runs made one after the other share some
//! of the machine's pace: the interval is then too narrow.
//!
//! **Invariants**: repeats are of the same experiment file and the same model of processor, and no commit between them and the published run has changed what decides its
//! figures ([`age`]), so that they differ by chance. Nothing here can tell whether a run was left out; adding only those that one likes makes the interval worthless.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Run, age};
use crate::stats::{self, Interval};

/// The least number of runs, including the published one, that a prediction is made from.
const LEAST: usize = 3;

/// 97.5 % quantiles of Student's distribution with 1, 2, 3 and more degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// What another run of the same experiment measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// Of its build.
    pub commit: String,
    /// When.
    pub started: String,
    /// Headlines of the rows that have an interval or a band, by name.
    pub figures: BTreeMap<String, f64>,
}

impl Run {
    /// Adds `other` as a repeat.
    ///
    /// # Errors
    /// When it is a run of something else or on another model of processor, is here already, or what decides figures has changed between the two in the checkout at `root`.
    pub fn add_repeat(&mut self, root: &Path, other: &Self) -> Result<()> {
        let about = |run: &Self| (run.report.experiment.clone(), run.report.world);
        ensure!(about(self) == about(other), "a run of {:?}", other.report.experiment);
        // `demo` has its experiments built in, and the bench has none: their commits tell.
        let files = self.provenance.file.as_ref().zip(other.provenance.file.as_ref());
        let is_same = files.is_none_or(|(own, other)| own == other);
        ensure!(is_same, "another experiment file than the published run's");
        let processor = |run: &Self| run.report.host.get("cpu_model").cloned();
        ensure!(processor(self) == processor(other), "another model of processor");
        let started = &other.provenance.started;
        let mut known = self.repeats.iter().map(|repeat| &repeat.started);
        let is_new = *started != self.provenance.started && !known.any(|known| known == started);
        ensure!(is_new, "the run of {started} is here already");
        let commit = other.provenance.commit.clone().context("built from no commit")?;
        let changes = age::commits_between(root, self, &commit)?;
        ensure!(changes == 0, "{changes} commits between the two runs changed what decides them");
        self.repeats.push(Repeat { commit, started: started.clone(), figures: other.figures() });
        self.repeats.sort_by(|one, next| one.started.cmp(&next.started));
        Ok(())
    }

    /// Headlines of the rows that have an interval or a band.
    fn figures(&self) -> BTreeMap<String, f64> {
        let rows = self.report.rows.iter();
        let counting = rows.filter(|row| row.interval.is_some() || row.verdict.is_some());
        counting.filter_map(|row| Some((row.name.clone(), row.headline()?))).collect()
    }

    /// Returns the prediction interval of a further run's headline of the row, with a probability of 95 %; `None` if too few runs have measured it.
    #[must_use]
    pub fn expected(&self, row: &str) -> Option<Interval> {
        let own = self.report.rows.iter().find(|one| one.name == row)?.headline()?;
        let others = self.repeats.iter().filter_map(|repeat| repeat.figures.get(row).copied());
        next(&std::iter::once(own).chain(others).collect::<Vec<_>>())
    }
}

/// Returns the prediction interval of the next draw, with a probability of 95 %; `None` for fewer than [`LEAST`].
fn next(draws: &[f64]) -> Option<Interval> {
    if draws.len() < LEAST {
        return None;
    }
    if draws.iter().all(|&draw| draw > 0.0) {
        let logarithms: Vec<_> = draws.iter().map(|draw| draw.ln()).collect();
        let Interval { low, high } = normal(&logarithms)?;
        return Some(Interval { low: low.exp(), high: high.exp() });
    }
    let Interval { low, high } = normal(draws)?;
    let is_signed = draws.iter().any(|&draw| draw < 0.0);
    Some(Interval { low: if is_signed { low } else { low.max(0.0) }, high })
}

/// The same for draws from a normal distribution.
fn normal(draws: &[f64]) -> Option<Interval> {
    let (mean, n) = (stats::mean(draws)?, draws.len() as f64);
    let squares: f64 = draws.iter().map(|draw| (draw - mean).powi(2)).sum();
    let deviation = (squares / (n - 1.0)).sqrt();
    let quantile = STUDENT[(draws.len() - 2).min(STUDENT.len() - 1)];
    let reach = quantile * deviation * (1.0 + 1.0 / n).sqrt();
    Some(Interval { low: mean - reach, high: mean + reach })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::age::tests::{commit, published};
    use super::super::tests::run;
    use super::*;

    fn repeat(ratio: f64) -> Repeat {
        let (commit, started) = ("0123".into(), "2026-11-24T00:00:00Z".into());
        Repeat { commit, started, figures: BTreeMap::from([("a/b".into(), ratio)]) }
    }

    fn close(interval: Interval, low: f64, high: f64) -> bool {
        (interval.low - low).abs() < 1e-3 && (interval.high - high).abs() < 1e-3
    }

    #[test]
    fn a_further_run_is_expected_where_the_others_scatter() {
        let mut one = run(1.0);
        assert_eq!(one.expected("a/b"), None);
        one.repeats = vec![repeat(2.0), repeat(4.0)];
        // Logarithms to base 2 are 0, 1 and 2: 1 ± 4.303 * 1 * sqrt(4 / 3).
        let reach = 4.303 * (4.0_f64 / 3.0).sqrt();
        let expected = one.expected("a/b").unwrap();
        assert!(close(expected, (1.0 - reach).exp2(), (1.0 + reach).exp2()), "{expected:?}");
        assert_eq!((one.expected("a/c"), one.expected("a/z")), (None, None));
    }

    #[test]
    fn counts_may_be_zero() {
        assert!(close(next(&[0.0; 4]).unwrap(), 0.0, 0.0));
        // The mean is 1, the deviation 1.
        let reach = 4.303 * (4.0_f64 / 3.0).sqrt();
        assert!(close(next(&[0.0, 1.0, 2.0]).unwrap(), 0.0, 1.0 + reach));
        // What has been below 0 may be so again.
        assert!(close(next(&[-1.0, 0.0, 1.0]).unwrap(), -reach, reach));
    }

    #[test]
    fn another_run_is_added_once_and_unless_what_decides_it_has_changed() {
        let (dir, mut one) = published("README.md", "");
        let mut other = run(2.0);
        other.provenance.commit.clone_from(&one.provenance.commit);
        other.provenance.started = "2026-11-24T00:00:00Z".into();
        one.add_repeat(dir.path(), &other).unwrap();
        let figures = BTreeMap::from([("a/b".to_owned(), 2.0)]);
        assert_eq!(one.repeats[0].figures, figures, "those without band and interval do not count");
        let again = one.add_repeat(dir.path(), &other).unwrap_err().to_string();
        assert!(again.contains("here already"), "{again}");
        commit(dir.path(), "crates/floodway-core/src/a.rs", "1");
        other.provenance.commit = Some("HEAD".into());
        other.provenance.started = "2026-11-25T00:00:00Z".into();
        let changed = one.add_repeat(dir.path(), &other).unwrap_err().to_string();
        assert!(changed.starts_with("1 commits between"), "{changed}");
    }

    #[test]
    fn what_is_no_repeat_is_an_error() {
        let root = Path::new("/");
        let refused = |change: fn(&mut Run)| {
            let (mut one, mut other) = (run(1.0), run(1.0));
            one.provenance.file = Some("0".into());
            other.provenance.started = "2026-11-24T00:00:00Z".into();
            change(&mut other);
            one.add_repeat(root, &other).unwrap_err().to_string()
        };
        assert_eq!(refused(|other| other.report.experiment = "f".into()), "a run of \"f\"");
        assert!(
            refused(|other| other.provenance.file = Some("1".into())).contains("experiment file")
        );
        assert!(refused(|other| other.report.host.clear()).contains("model of processor"));
        assert!(
            refused(|other| other.provenance.started = "2026-11-23T17:00:00Z".into())
                .contains("here already")
        );
        assert_eq!(refused(|other| other.provenance.commit = None), "built from no commit");
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_mean_and_scales_with_the_draws(
            draws in prop::collection::vec(0.1_f64..10.0, 3..40),
            factor in 0.1_f64..10.0,
        ) {
            let interval = next(&draws).unwrap();
            let logarithms: Vec<_> = draws.iter().map(|draw| draw.ln()).collect();
            let mean = stats::mean(&logarithms).unwrap().exp();
            prop_assert!(interval.low <= mean * 1.000_001 && mean <= interval.high * 1.000_001);
            let scaled = next(&draws.iter().map(|draw| draw * factor).collect::<Vec<_>>()).unwrap();
            prop_assert!((scaled.low / interval.low / factor - 1.0).abs() < 1e-6);
            prop_assert!((scaled.high / interval.high / factor - 1.0).abs() < 1e-6);
        }
    }
}
