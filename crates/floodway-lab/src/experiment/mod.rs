//! Experiments: one TOML file each, measured on real VMs, judged against bands.
//!
//! # Theory of operation
//!
//! A [`File`] says what to do (the [`Scenario`], by `kind`) and which figures are accepted (the
//! [`Band`]s). Running it yields rows and the samples behind them; the bands then draw the
//! verdicts.
//!
//! Scenarios compare in one run: each guest has a card on every network under comparison
//! ([`testbed`]), and the variants take turns within each round, so that both see the same machine.

pub mod all_pairs;
pub mod friendliness;
pub mod idle;
pub mod inbound;
pub mod integrity;
mod iperf;
pub mod migration;
mod offloaded;
pub mod residency;
pub mod small_flows;
pub mod switch_killed;
pub mod switch_restart;
pub mod testbed;
pub mod throughput;
pub mod transfer;
pub mod vm_restart;
pub mod web;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use floodway_experiment::File;
use floodway_report::progress::Progress;
use floodway_report::report::add_intervals;
use floodway_report::{About, Band, Measured, Report, Samples, World, host, judge};
use serde::Deserialize;

use crate::accel;
use crate::noise::Quiet;

pub use all_pairs::AllPairs;
pub use friendliness::Friendliness;
pub use idle::Idle;
pub use inbound::Inbound;
pub use integrity::Integrity;
pub use migration::{Followed, Migration};
pub use residency::Residency;
pub use small_flows::SmallFlows;
pub use switch_killed::SwitchKilled;
pub use switch_restart::SwitchRestart;
pub use throughput::Throughput;
pub use transfer::Transfer;
pub use vm_restart::VmRestart;
pub use web::WebApplication;

/// An experiment on real VMs.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name of the report and of its directory.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// What to do.
    pub scenario: Scenario,
    /// Which figures are accepted.
    pub band: Vec<Band>,
    /// What it says to readers of its reports.
    about: About,
    /// What a reader of the report must know of the run.
    notes: Vec<String>,
    /// Where an interrupted run has left what it measured.
    resume: Option<PathBuf>,
}

impl From<File<Scenario>> for Experiment {
    fn from(file: File<Scenario>) -> Self {
        let about = file.about();
        let File { name, title, scenario, band, .. } = file;
        Self { name, title, scenario, band, about, notes: Vec::new(), resume: None }
    }
}

/// What an experiment does.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Scenario {
    /// Rates between VMs and with the host, through the switch and through a Linux bridge.
    Throughput(Throughput),
    /// Kills the switch under a TCP connection.
    SwitchRestart(SwitchRestart),
    /// Kills the switch while flows are online.
    SwitchKilled(SwitchKilled),
    /// Kills a VM and boots it again.
    VmRestart(VmRestart),
    /// Every VM sends to every other.
    AllPairs(AllPairs),
    /// What the switch uses while nobody sends.
    Idle(Idle),
    /// Offloaded flows beside those of Linux hosts.
    Friendliness(Friendliness),
    /// Connections into several VMs behind one port of an emulated switch.
    Inbound(Inbound),
    /// Streams over a path that harms packets, compared at the ends.
    Integrity(Integrity),
    /// A VM that moves between two hosts under load.
    Migration(Migration),
    /// A VM that moves between two hosts, with connections that are offloaded.
    Moves(Followed),
    /// Messages between VMs of one host, from memory to memory and by bridge and tap.
    Residency(Residency),
    /// Small flows beside large ones, or beside a VM that computes.
    SmallFlows(Box<SmallFlows>),
    /// Timed transfers of a VM that waits for its CPU.
    Transfer(Box<Transfer>),
    /// A web application of four VMs that wait for their CPU.
    WebApplication(WebApplication),
    /// Nothing on real VMs: all is in `[sim]`.
    Simulated,
}

/// What a scenario is handed.
#[derive(Debug)]
pub struct Run {
    /// Seed of everything random.
    pub seed: u64,
    /// Where to say how far it is.
    pub progress: Progress,
    /// Directory in which an interrupted run has left what it measured, and this one does.
    pub resume: Option<PathBuf>,
}

/// What an experiment does on real VMs: all that tells one kind of scenario from another.
pub(crate) trait RealScenario {
    /// Steps that its run reports.
    fn steps(&self) -> u64;

    /// Runs it.
    ///
    /// # Errors
    /// When parameters make no sense, the machine lacks something, or a part of the testbed fails.
    fn run(&self, run: &Run) -> Result<Measured>;

    /// Makes it shorter, for a look at whether all works, and returns what the report has to say of that; `None`, and
    /// unchanged, if it has no shorter form.
    fn use_quick_profile(&mut self) -> Option<String> {
        None
    }

    /// Returns the pattern of the names of the cells to measure, if cells can be chosen and an interrupted run can go on.
    fn cell_pattern(&mut self) -> Option<&mut String> {
        None
    }
}

/// Calls something of the [`RealScenario`] that a [`Scenario`] is, or evaluates the last expression if it has no form on
/// real VMs.
macro_rules! dispatch {
    ($scenario:expr, $real:ident => $call:expr, $none:expr) => {
        match $scenario {
            Self::Throughput($real) => $call,
            Self::SwitchRestart($real) => $call,
            Self::SwitchKilled($real) => $call,
            Self::VmRestart($real) => $call,
            Self::AllPairs($real) => $call,
            Self::Idle($real) => $call,
            Self::Friendliness($real) => $call,
            Self::Inbound($real) => $call,
            Self::Integrity($real) => $call,
            Self::Migration($real) => $call,
            Self::Moves($real) => $call,
            Self::Residency($real) => $call,
            Self::SmallFlows($real) => $call,
            Self::Transfer($real) => $call,
            Self::WebApplication($real) => $call,
            Self::Simulated => $none,
        }
    };
}

impl RealScenario for Scenario {
    fn steps(&self) -> u64 {
        dispatch!(self, real => real.steps(), 0)
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        dispatch!(self, real => real.run(run), bail!("it has no form on real VMs; try `floodway-lab sim`"))
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        dispatch!(self, real => real.use_quick_profile(), None)
    }

    fn cell_pattern(&mut self) -> Option<&mut String> {
        dispatch!(self, real => real.cell_pattern(), None)
    }
}

impl Experiment {
    /// Reads an experiment file.
    ///
    /// # Errors
    /// When it cannot be read or is not an experiment; the error names the key.
    pub fn load(path: &Path) -> Result<Self> {
        File::load(path).map(Self::from)
    }

    /// Reads an experiment from text.
    ///
    /// # Errors
    /// When it is not an experiment; the error names the key.
    pub fn parse(text: &str) -> Result<Self> {
        File::parse(text).map(Self::from)
    }

    /// Makes it shorter, for a look at whether all works; the report will say so.
    ///
    /// # Errors
    /// When its scenario has no shorter form.
    pub fn use_quick_profile(&mut self) -> Result<()> {
        let Some(note) = self.scenario.use_quick_profile() else {
            bail!("experiment `{}` has no quick form", self.name)
        };
        self.notes.push(note);
        Ok(())
    }

    /// Restricts it to the cells that `pattern` names, and lets it go on with what an earlier run has left in `dir`.
    ///
    /// # Errors
    /// When its scenario has no such choice.
    pub fn select(&mut self, pattern: Option<&str>, dir: Option<&Path>) -> Result<()> {
        let Some(cells) = self.scenario.cell_pattern() else {
            bail!("experiment `{}` has no cells to choose or resume", self.name)
        };
        if let Some(pattern) = pattern {
            pattern.clone_into(cells);
        }
        self.resume = dir.map(Path::to_owned);
        Ok(())
    }

    /// Runs it on real VMs.
    ///
    /// # Errors
    /// When the machine lacks something, or a part of the testbed fails; a figure out of its band is no
    /// error, but a verdict.
    pub fn run_real(&self, seed: u64) -> Result<(Report, Vec<Samples>)> {
        let before = Quiet::measure();
        let progress = Progress::start(self.scenario.steps());
        let run = Run { seed, progress, resume: self.resume.clone() };
        let mut measured = self.scenario.run(&run)?;
        let mut notes = [self.notes.clone(), measured.notes].concat();
        add_intervals(&mut measured.rows, &measured.samples, seed);
        // Hours of measurements are not thrown away for a band that is wrong.
        if let Err(error) = judge(&mut measured.rows, &self.band) {
            notes.push(format!("{error:#}"));
        }
        let mut host = host::facts();
        if let Some(accelerator) = accel::used() {
            host.insert("accelerator".into(), accelerator.name().into());
            host.insert("accelerator_reason".into(), accelerator.reason.into());
        }
        host.insert("noise_before".into(), before.to_string().into());
        host.insert("noise_after".into(), Quiet::measure().to_string().into());
        let report = Report {
            experiment: self.name.clone(),
            world: World::Real,
            seed,
            host,
            rows: measured.rows,
            notes,
            about: About { terms: measured.terms, ..self.about.clone() },
        };
        Ok((report, measured.samples))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: &str = r#"
        name = "idle"
        title = "t"
        [scenario]
        kind = "idle"
        kernel = "6.1"
        vms = 2
        settle_s = 1
        window_s = 1
    "#;

    #[test]
    fn a_wrong_file_names_the_key() {
        for (from, to, expected) in [
            ("window_s = 1", "windows_s = 1", "windows_s"),
            ("\"6.1\"", "\"5.4\"", "5.4"),
            ("\"idle\"\n        title", "\"Id le\"\n        title", "Id le"),
            ("kind = \"idle\"", "kind = \"idel\"", "idel"),
        ] {
            let error = format!("{:#}", Experiment::parse(&IDLE.replace(from, to)).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        assert!(Experiment::parse(IDLE).is_ok());
    }

    #[test]
    fn every_experiment_of_the_project_can_be_read() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let files = floodway_experiment::files(&dir).unwrap();
        assert!(!files.is_empty());
        for file in files {
            let experiment = Experiment::load(&file).unwrap();
            assert_eq!(Some(experiment.name.as_str()), file.file_stem().and_then(|s| s.to_str()));
        }
    }
}
