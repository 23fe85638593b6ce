//! Independent runs.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::fat_tree::FatTree;
use super::friendliness;
use super::inbound::Inbound;
use super::measurement::{Measurement, Parameters, Recorder};
use super::testbed::Testbed;
use super::transfer::Case;
use super::web::Web;

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

impl Run {
    /// Runs it, in one thread.
    ///
    /// # Errors
    /// When its parameters make no sense.
    pub fn execute(&self) -> Result<Vec<Measurement>> {
        let mut recorder = Recorder::new(&self.experiment, &self.parameters, self.seed);
        match &self.work {
            Work::Transfer(case) => case.execute(self.seed, &mut recorder)?,
            Work::FatTree(scene) => scene.execute(self.seed, &mut recorder)?,
            Work::Friendliness(case) => case.execute(self.seed, &mut recorder)?,
            Work::Inbound(scene) => scene.execute(self.seed, &mut recorder)?,
            Work::Testbed(scene) => scene.execute(self.seed, &mut recorder)?,
            Work::Web(scene) => scene.execute(self.seed, &mut recorder)?,
        }
        Ok(recorder.into_measurements())
    }
}
