//! The runs of a sweep, numbered.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use floodway_sim::engine::Digest;
use serde::{Deserialize, Serialize};

use crate::simulation::{Experiment, Measurement, Run};

/// One run of a sweep. As JSON it is all that another machine needs to execute it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its place in the sweep.
    pub run: usize,
    /// What to do.
    pub task: Run,
}

impl Task {
    /// For people: the seed and the parameters.
    #[must_use]
    pub fn describe(&self) -> String {
        let parameters = self.task.parameters.iter().filter(|(_, value)| !value.is_empty());
        let parameters: Vec<_> =
            parameters.map(|(name, value)| format!("{name}={value}")).collect();
        format!("run {}: seed {}, {}", self.run, self.task.seed, parameters.join(" "))
    }

    /// Executes it.
    ///
    /// # Errors
    /// When its parameters make no sense, it measures something that is no number, or it panics.
    pub fn execute(&self) -> Result<Vec<Measurement>> {
        let run = std::panic::AssertUnwindSafe(|| self.task.execute());
        let measured = std::panic::catch_unwind(run)
            .unwrap_or_else(|panic| Err(anyhow::anyhow!("panicked: {}", said(&*panic))))?;
        let odd = measured.iter().find(|one| !one.value.is_finite());
        ensure!(odd.is_none(), "{} is no number", odd.map_or("", |one| one.metric.as_str()));
        Ok(measured)
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// All runs of an experiment with several seeds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In the order of the table.
    pub tasks: Vec<Task>,
    /// Names the sweep: other runs, or another version of the lab, have another.
    pub digest: String,
}

impl Plan {
    /// Reads an experiment; its runs come once for each seed from `first_seed` on.
    ///
    /// # Errors
    /// When the file has no simulated form, or parameters make no sense.
    pub fn read(file: &Path, first_seed: u64, seeds: u32, quick: bool) -> Result<Self> {
        let mut experiment = Experiment::load(file)?;
        if quick {
            experiment.use_quick_profile();
        }
        let mut runs = Vec::new();
        for seed in (first_seed..).take(seeds as usize) {
            experiment.set_seed(seed);
            runs.extend(experiment.runs()?);
        }
        Self::of(runs).with_context(|| format!("sweep of {}", file.display()))
    }

    fn of(runs: Vec<Run>) -> Result<Self> {
        ensure!(!runs.is_empty(), "there is nothing to run");
        let mut digest = Digest::default();
        digest.write_str(env!("CARGO_PKG_VERSION"));
        for run in &runs {
            digest.write_str(&serde_json::to_string(run)?);
        }
        let tasks = runs.into_iter().enumerate().map(|(run, task)| Task { run, task });
        Ok(Self { tasks: tasks.collect(), digest: format!("{:016x}", digest.value()) })
    }
}
