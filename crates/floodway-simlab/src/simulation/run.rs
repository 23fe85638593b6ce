//! Independent runs, and what they measure.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::fat_tree::FatTree;
use super::friendliness;
use super::inbound::Inbound;
use super::testbed::Testbed;
use super::transfer::Case;
use super::web::Web;

/// What tells a run apart from the others of its experiment: `column`, `bytes`, ... A sweep's table has a column for each.
pub type Parameters = BTreeMap<String, String>;

/// A run that needs nothing else: no file, no other run. It can be written down, taken to another machine and
/// executed there; the same run measures the same everywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name of the experiment.
    pub experiment: String,
    /// Which of its runs.
    pub parameters: Parameters,
    /// Seed of everything random in it.
    pub seed: u64,
    /// What to do.
    pub work: Work,
}

/// What a run does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Work {
    /// Timed transfers of a VM that waits for its processor.
    Transfer(Box<Case>),
    /// Transfers between many hosts.
    FatTree(Box<FatTree>),
    /// An offloaded flow beside another, or alone.
    Friendliness(Box<friendliness::Case>),
    /// Connections into the VMs of one host.
    Inbound(Box<Inbound>),
    /// A few machines with VMs that disturb each other.
    Testbed(Box<Testbed>),
    /// A web application of several servers.
    Web(Box<Web>),
}

impl Work {
    /// How long it takes, by no unit: for who decides what to run first.
    #[must_use]
    pub fn effort(&self) -> u64 {
        match self {
            Self::Transfer(case) => case.effort(),
            Self::FatTree(scene) => scene.effort(),
            Self::Friendliness(case) => case.effort(),
            Self::Inbound(scene) => scene.effort(),
            Self::Testbed(scene) => scene.effort(),
            Self::Web(scene) => scene.effort(),
        }
    }
}

/// One figure of a run: a row of a table in long format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Name of the experiment.
    pub experiment: String,
    /// The run's, and those of the figure alone.
    pub parameters: Parameters,
    /// Seed of the run.
    pub seed: u64,
    /// What was measured.
    pub metric: String,
    /// Of the value.
    pub unit: String,
    /// The figure.
    pub value: f64,
}

/// Collects what a run measures.
#[derive(Debug)]
pub(super) struct Recorder<'a> {
    run: &'a Run,
    measurements: Vec<Measurement>,
}

impl Recorder<'_> {
    pub(super) fn add(&mut self, metric: &str, unit: &str, value: f64) {
        self.add_of(&[], metric, unit, value);
    }

    /// Adds a figure with parameters of its own.
    pub(super) fn add_of(&mut self, own: &[(&str, String)], metric: &str, unit: &str, value: f64) {
        let mut parameters = self.run.parameters.clone();
        parameters.extend(own.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        self.measurements.push(Measurement {
            experiment: self.run.experiment.clone(),
            parameters,
            seed: self.run.seed,
            metric: metric.into(),
            unit: unit.into(),
            value,
        });
    }
}

impl Run {
    /// Runs it, in one thread.
    ///
    /// # Errors
    /// When its parameters make no sense.
    pub fn execute(&self) -> Result<Vec<Measurement>> {
        let mut recorder = Recorder { run: self, measurements: Vec::new() };
        match &self.work {
            Work::Transfer(case) => case.execute(self.seed, &mut recorder)?,
            Work::FatTree(scene) => scene.execute(self.seed, &mut recorder)?,
            Work::Friendliness(case) => case.execute(self.seed, &mut recorder)?,
            Work::Inbound(scene) => scene.execute(self.seed, &mut recorder)?,
            Work::Testbed(scene) => scene.execute(self.seed, &mut recorder)?,
            Work::Web(scene) => scene.execute(self.seed, &mut recorder)?,
        }
        Ok(recorder.measurements)
    }
}
