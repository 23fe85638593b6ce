//! What simulated experiments have in common, whatever is simulated.

mod friendliness;

use std::path::Path;

use anyhow::{Context, Result, bail};
use floodway_experiment::friendliness::Friendliness as FriendlinessForm;
use floodway_experiment::transfer::Transfer;
use floodway_report::{About, Report, Samples};
use serde::Deserialize;

use super::grid::Grid;
use super::{Measurement, Run, Transfers, grid_figures};
use friendliness::Friendliness;

/// What `[scenario]` says of what can be simulated. The twins of all other kinds are scenes, which are in `[sim]` alone.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Scenario {
    Transfer(Box<Transfer>),
    Friendliness(FriendlinessForm),
    #[serde(other)]
    Other,
}

/// An experiment's file as the simulator reads it.
pub(super) type File = floodway_experiment::File<Scenario>;

/// An experiment that can be simulated.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name of the report and its directory.
    pub name: String,
    /// One line for people.
    pub title: String,
    about: About,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Transfers(Box<Transfers>),
    Grid(Box<Grid>),
    Friendliness(Box<Friendliness>),
}

impl Experiment {
    /// Reads an experiment's file. A table `[sim]` with a `scene` is a [`Grid`]; one without is the simulated twin of
    /// `[scenario]`.
    ///
    /// # Errors
    /// When it cannot be read, is not an experiment, or has no simulated form; the error names the key.
    pub fn load(path: &Path) -> Result<Self> {
        let at = || format!("experiment {}", path.display());
        let experiment = File::load(path)?;
        let Some(table) = experiment.sim.clone() else {
            bail!("{}: has no table [sim], so no simulated form; try `floodway-lab real`", at())
        };
        let kind = &experiment.scenario;
        let form = match table.contains_key("scene") {
            false if matches!(kind, Scenario::Friendliness(_)) => {
                Form::Friendliness(Box::new(Friendliness::load(path).with_context(at)?))
            }
            true => {
                let grid = Grid::load(path, &experiment.name, table);
                Form::Grid(Box::new(grid.with_context(|| format!("{}: sim", at()))?))
            }
            false => Form::Transfers(Box::new(Transfers::load(path)?)),
        };
        let about = experiment.about();
        Ok(Self { name: experiment.name, title: experiment.title, about, form })
    }

    /// It takes many minutes, and is no part of `all`.
    #[must_use]
    pub fn is_long(&self) -> bool {
        match &self.form {
            Form::Transfers(_) => false,
            Form::Friendliness(form) => form.is_long(),
            Form::Grid(form) => form.settings.long,
        }
    }

    /// The seed from which those of all runs follow; 1 without.
    pub fn set_seed(&mut self, seed: u64) {
        match &mut self.form {
            Form::Transfers(form) => form.set_seed(seed),
            Form::Grid(form) => form.set_seed(seed),
            Form::Friendliness(form) => form.set_seed(seed),
        }
    }

    /// Makes it shorter, for a look at whether all works; the report will say so.
    pub fn use_quick_profile(&mut self) {
        match &mut self.form {
            Form::Transfers(form) => form.use_quick_profile(),
            Form::Grid(form) => form.use_quick_profile(),
            Form::Friendliness(form) => form.use_quick_profile(),
        }
    }

    /// The independent runs of the experiment.
    ///
    /// # Errors
    /// When parameters make no sense.
    pub fn runs(&self) -> Result<Vec<Run>> {
        match &self.form {
            Form::Transfers(form) => form.runs(),
            Form::Grid(form) => form.runs(),
            Form::Friendliness(form) => form.runs(),
        }
    }

    /// The report of the measurements of all runs, and the samples behind it.
    ///
    /// # Errors
    /// When measurements are missing, or a band meets no row.
    pub fn report(&self, measurements: &[Measurement]) -> Result<(Report, Vec<Samples>)> {
        let (mut report, samples) = match &self.form {
            Form::Transfers(form) => form.report(measurements),
            Form::Grid(form) => grid_figures::report(form, measurements),
            Form::Friendliness(form) => form.report(measurements),
        }?;
        report.about = self.about.clone();
        Ok((report, samples))
    }
}

#[cfg(test)]
impl From<Transfers> for Experiment {
    fn from(form: Transfers) -> Self {
        let (name, title) = (form.name.clone(), form.title.clone());
        Self { name, title, about: About::default(), form: Form::Transfers(Box::new(form)) }
    }
}
