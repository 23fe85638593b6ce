//! Friendliness as a list of runs, one for each trial.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use floodway_experiment::friendliness::{Friendliness as Form, Trial, measured};
use floodway_report::report;
use floodway_report::{Band, Report, Samples, judge};
use serde::Deserialize;
use toml::{Table, Value};

use super::{File, Scenario};
use crate::simulation::friendliness::Case;
use crate::simulation::host::{self, Host};
use crate::simulation::measurement::report_of;
use crate::simulation::{Measurement, Run, Work};

/// The table `[sim]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// File of the guest's machine and of all stacks, beside the experiment.
    host: String,
    /// Parameters of the host that are different here, by dotted names.
    #[serde(default)]
    set: BTreeMap<String, Value>,
    /// Trials, if not as in the scenario.
    replications: Option<u32>,
    /// What a reader of the report must know.
    #[serde(default)]
    notes: Vec<String>,
    /// Takes minutes: `sim all` names it and leaves it out.
    #[serde(default)]
    long: bool,
    /// Which figures are accepted.
    #[serde(default)]
    band: Vec<Band>,
}

/// The experiment.
#[derive(Clone, Debug)]
pub(super) struct Friendliness {
    pub(super) name: String,
    scenario: Form,
    settings: Settings,
    host: Table,
    notes: Vec<String>,
    seed: u64,
}

impl Friendliness {
    pub(super) fn load(path: &Path) -> Result<Self> {
        let experiment = File::load(path)?;
        let table = experiment.sim.context("there is no table [sim]")?;
        let settings: Settings = table.try_into().context("sim")?;
        let Scenario::Friendliness(scenario) = experiment.scenario else {
            bail!("its scenario is of another kind than \"friendliness\"")
        };
        scenario.check()?;
        let mut host = host::load(&path.with_file_name(&settings.host))?;
        for (name, value) in &settings.set {
            host::set(&mut host, name, value).context("sim.set")?;
        }
        let notes = settings.notes.clone();
        let made = Self { name: experiment.name, scenario, settings, host, notes, seed: 1 };
        ensure!(made.rounds() >= 1, "sim.replications must be at least 1");
        made.runs()?;
        Ok(made)
    }

    pub(super) const fn is_long(&self) -> bool {
        self.settings.long
    }

    pub(super) fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    pub(super) fn use_quick_profile(&mut self) {
        self.settings.replications = Some(1);
        let note = self.scenario.shorten();
        self.notes.push(note);
    }

    fn rounds(&self) -> u32 {
        self.settings.replications.unwrap_or(self.scenario.rounds)
    }

    /// The trials: number of the cell, of the group, and round.
    fn trials(&self) -> Vec<(usize, usize, u32)> {
        let groups = 0..self.scenario.groups.len();
        let cells = 0..self.scenario.all_cells().len();
        cells
            .flat_map(|cell| groups.clone().map(move |group| (cell, group)))
            .flat_map(|(cell, group)| (0..self.rounds()).map(move |round| (cell, group, round)))
            .collect()
    }

    pub(super) fn runs(&self) -> Result<Vec<Run>> {
        let cells = self.scenario.all_cells();
        let run = |(cell, group, round): (usize, usize, u32)| {
            let mut host = self.host.clone();
            let congestion = Value::from(cells[cell].congestion.clone());
            host::set(&mut host, "tcp.congestion", &congestion)?;
            let case = Case {
                host: Host::from_table(&host)?,
                cell: cells[cell].clone(),
                group: self.scenario.groups[group].clone(),
                settle_s: self.scenario.settle_s,
                seconds: self.scenario.seconds,
            };
            let parameters = [
                ("cell", cells[cell].name()),
                ("group", case.group.iter().map(|s| s.name()).collect::<Vec<_>>().join("+")),
                ("round", round.to_string()),
            ];
            Ok(Run {
                experiment: self.name.clone(),
                parameters: parameters.map(|(name, value)| (name.to_owned(), value)).into(),
                seed: self.seed.wrapping_mul(1000).wrapping_add(round.into()),
                work: Work::Friendliness(Box::new(case)),
            })
        };
        self.trials().into_iter().map(run).collect()
    }

    pub(super) fn report(&self, measurements: &[Measurement]) -> Result<(Report, Vec<Samples>)> {
        let runs = self.runs()?;
        let trials = runs.iter().zip(self.trials()).map(|(run, (.., round))| {
            let Work::Friendliness(case) = &run.work else { bail!("a run of another kind") };
            case.trial(round, (run.seed, &run.parameters), measurements)
        });
        let trials: Vec<Trial> = trials.collect::<Result<_>>()?;
        let mut measured = measured(&trials);
        report::add_intervals(&mut measured.rows, &measured.samples, self.seed);
        judge(&mut measured.rows, &self.settings.band)?;
        let notes = [self.notes.clone(), measured.notes].concat();
        let report = report_of((&self.name, self.seed), &self.host, measured.rows, notes)?;
        Ok((report, measured.samples))
    }
}
