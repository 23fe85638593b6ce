//! Friendliness on real VMs: the form and the figures are [`floodway_experiment::friendliness`]'s, this makes the trials.

mod journal;
mod receiver;
mod sender;
mod world;

use anyhow::Result;
use floodway_experiment::friendliness::measured;

pub use floodway_experiment::friendliness::Friendliness;
use floodway_experiment::friendliness::{Cell, LOOK, Look, Sender, Trace, Trial};

use super::{Measured, RealScenario, Run};

impl RealScenario for Friendliness {
    fn steps(&self) -> u64 {
        1 + (self.all_cells().len() * self.groups.len()) as u64 * u64::from(self.rounds)
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        Some(self.shorten())
    }

    fn cell_pattern(&mut self) -> Option<&mut String> {
        Some(&mut self.cells)
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        let trials = world::run(self, run)?;
        Ok(measured(&trials))
    }
}
