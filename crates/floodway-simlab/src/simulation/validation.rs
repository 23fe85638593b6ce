//! Predictions against what real VMs did.
//!
//! # Theory of operation
//!
//! An experiment that is simulated with the lab machine's own parameters should find the ratios that `floodway-lab real` found.
//! Rows of both worlds have the same names if the host's file has the name of a profile, so a *prediction* is a simulated row
//! and the row of a report with the same name: its value is the simulated ratio, its baseline the measured one, and its
//! own ratio says by how much the prediction is off. A report of an experiment with one cell names no cell; the
//! experiment's file says it instead.

use std::path::Path;

use anyhow::{Result, ensure};
use floodway_report::{Report, Row, World};
use serde::Deserialize;

/// A report to compare with.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// File, beside the experiment's.
    pub report: String,
    /// What stands in front of its rows, if it has one cell only: `3 VMs 60 %, 100 KB`.
    pub cell: Option<String>,
}

/// A report that was read.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    experiment: String,
    /// Comparisons, by their full names.
    rows: Vec<(String, f64)>,
}

/// Reads reports beside an experiment's file.
///
/// # Errors
/// When one cannot be read, or is not of real VMs.
pub(super) fn read(experiment: &Path, all: &[Measured]) -> Result<Vec<Reference>> {
    all.iter().map(|one| one.read(experiment)).collect()
}

impl Measured {
    fn read(&self, experiment: &Path) -> Result<Reference> {
        let path = experiment.with_file_name(&self.report);
        let report = Report::read(&path)?;
        ensure!(report.world == World::Real, "{} is not of real VMs", path.display());
        let name = |row: &Row| match &self.cell {
            Some(cell) => format!("{cell}/{}", row.name),
            None => row.name.clone(),
        };
        let rows = report.rows.iter().filter_map(|row| Some((name(row), row.ratio?))).collect();
        Ok(Reference { experiment: report.experiment, rows })
    }
}

impl Reference {
    /// Adds a row for each simulated one that was measured, too.
    pub(super) fn compare(&self, rows: &mut Vec<Row>, notes: &mut Vec<String>) {
        let find = |name: &str| self.rows.iter().find(|row| row.0 == name).map(|row| row.1);
        let predictions: Vec<_> = rows
            .iter()
            .filter_map(|row| Some((&row.name, row.ratio?, find(&row.name)?)))
            .map(|(name, simulated, measured)| {
                let name = format!("{} predicted/{name}", self.experiment);
                Row::comparison(name, "x", Some(simulated), Some(measured))
            })
            .collect();
        let off = |row: &Row| row.ratio.map(|ratio| ratio.ln().abs());
        let mut all: Vec<_> = predictions.iter().filter_map(off).collect();
        all.sort_by(f64::total_cmp);
        if let Some(median) = all.get(all.len() / 2) {
            notes.push(format!(
                "{}: {} ratios predicted, half of them within {:.0} %",
                self.experiment,
                all.len(),
                (median.exp() - 1.0) * 100.0
            ));
        }
        rows.extend(predictions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(cell: Option<&str>) -> Reference {
        let dir = tempfile::tempdir().unwrap();
        let rows = vec![
            Row::comparison("whole 2011 median", "Mbit/s", Some(20.0), Some(10.0)),
            Row::value("transfers failed", "transfers", Some(0.0)),
        ];
        let report = Report {
            about: floodway_report::About::default(),
            experiment: "fig".into(),
            world: World::Real,
            seed: 1,
            host: [].into(),
            rows,
            notes: Vec::new(),
        };
        report.write(dir.path()).unwrap();
        let cell = cell.map(str::to_owned);
        let measured = Measured { report: floodway_report::report::REPORT_FILE.into(), cell };
        read(&dir.path().join("experiment.toml"), &[measured]).unwrap().remove(0)
    }

    #[test]
    fn rows_of_the_same_name_are_compared_and_others_left_alone() {
        let simulated = |name: &str| Row::comparison(name, "Mbit/s", Some(3.0), Some(1.0));
        let mut rows = vec![
            simulated("3 VMs 60 %/whole 2011 median"),
            simulated("3 VMs 60 %/whole today median"),
            Row::value("transfers failed", "transfers", Some(0.0)),
        ];
        let mut notes = Vec::new();
        reference(Some("3 VMs 60 %")).compare(&mut rows, &mut notes);
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[3].name, "fig predicted/3 VMs 60 %/whole 2011 median");
        let row = &rows[3];
        assert_eq!((row.value, row.baseline, row.ratio), (Some(3.0), Some(2.0), Some(1.5)));
        assert_eq!(notes, ["fig: 1 ratios predicted, half of them within 50 %"]);
        reference(None).compare(&mut rows, &mut notes);
        assert_eq!(rows.len(), 4, "without the cell's name none is the same");
    }
}
