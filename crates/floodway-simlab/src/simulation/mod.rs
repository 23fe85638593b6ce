//! Experiments in virtual time.
//!
//! # Theory of operation
//!
//! An experiment's file says what to do for both worlds ([`floodway_experiment`]); its table `[sim]` says what the
//! simulator needs beyond that: the host ([`host`]), replications, sweeps of parameters that the paper leaves open,
//! and bands of its own. From it follows a list of independent [`Run`]s, one per cell, variant and replication.
//! Each is a function of its parameters and seed ([`Run::execute`]), so they may be run in any order, by any number
//! of threads or machines, and again. [`Experiment::report`] makes the report from all measurements, in the
//! order of the runs: the same seed gives the same bytes.
//!
//! All variants of a cell meet the same seeds, so that they meet the same loads at the same phases.

pub mod command;
mod completion;
pub mod fat_tree;
mod figures;
mod form;
pub mod friendliness;
pub mod grid;
mod grid_figures;
#[cfg(test)]
mod grid_tests;
mod hook;
pub mod host;
pub mod inbound;
mod measurement;
mod run;
pub mod testbed;
#[cfg(test)]
mod tests;
pub mod timeline;
pub mod transfer;
mod validation;
pub mod web;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use floodway_experiment::transfer::{
    Direction, Fewer, HostLoad, Path as FarPath, Transfer as Scene, Variant,
};
use floodway_report::{Band, Report, Samples};
use serde::Deserialize;
use toml::{Table, Value};

use form::{File, Scenario};
use hook::Halves;
use host::Host;
use transfer::{Case, Peer};

pub use form::Experiment;
pub use measurement::{Measurement, Parameters};
pub use run::{Run, Work};
use validation::{Measured, Reference};

/// Rounds of a cell and variant in a quick run, at most.
const QUICK_ROUNDS: u32 = 10;

/// The table `[sim]` of an experiment's file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Files of the hosts, beside the experiment's: `hosts/xen-2011.toml`. One, or a list.
    pub host: Files,
    /// Parameters of the host that are different here, by dotted names.
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// Independent runs per cell and variant, which share the rounds.
    #[serde(default = "one")]
    pub replications: u32,
    /// Rounds of each cell and variant in all, if not `scenario.transfers`.
    pub transfers: Option<u32>,
    /// Fewer rounds for large sizes, if not `scenario.fewer`.
    pub fewer: Option<Fewer>,
    /// Sizes, if not `scenario.bytes`.
    pub bytes: Option<Vec<u64>>,
    /// Parameters to vary, one at a time, and their values.
    #[serde(default)]
    pub sweep: BTreeMap<String, Vec<Value>>,
    /// Parameters to change together, by dotted names.
    #[serde(default)]
    pub host_variant: Vec<BTreeMap<String, Value>>,
    /// Every so many ms, how much of the buffer each flow uses is written down.
    pub occupancy_ms: Option<u64>,
    /// Reports of the same cells on real VMs, whose ratios are to be predicted.
    #[serde(default)]
    pub measured: Vec<Measured>,
    /// What a reader of the report must know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Which figures are accepted.
    #[serde(default)]
    pub band: Vec<Band>,
}

fn one() -> u32 {
    1
}

/// Names of files.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Files {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Default for Files {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Files {
    fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
    }
}

/// The simulated twin of a scenario of kind `transfer`.
#[derive(Clone, Debug)]
pub struct Transfers {
    /// Name of the report and its directory.
    pub name: String,
    /// One line for people.
    pub title: String,
    scene: Scene,
    settings: Settings,
    hosts: Vec<Table>,
    measured: Vec<Reference>,
    notes: Vec<String>,
    seed: u64,
}

/// A host of the sweep: the base, whose label is empty, or one with a parameter changed.
#[derive(Clone, Debug)]
struct HostVariant {
    label: String,
    host: Host,
}

/// A cell of the sweep.
#[derive(Clone, Debug)]
struct Cell {
    host_variant: HostVariant,
    place: HostLoad,
    paths: Vec<FarPath>,
    bytes: u64,
    flows: Vec<u32>,
}

impl Transfers {
    /// Reads an experiment's file.
    ///
    /// # Errors
    /// When it cannot be read, is not an experiment, or has no simulated form; the error names the key.
    pub fn load(path: &Path) -> Result<Self> {
        let at = || format!("experiment {}", path.display());
        let experiment = File::load(path)?;
        let Some(table) = experiment.sim else {
            bail!("{}: has no table [sim], so no simulated form; try `floodway-lab real`", at())
        };
        let settings: Settings = table.try_into().with_context(|| format!("{}: sim", at()))?;
        let Scenario::Transfer(scene) = experiment.scenario else {
            bail!("{}: only scenarios of kind \"transfer\" can be simulated", at())
        };
        let mut hosts = Vec::new();
        for file in settings.host.names() {
            let mut host = host::load(&path.with_file_name(file))?;
            for (name, value) in &settings.set {
                host::set(&mut host, name, value).with_context(|| format!("{}: sim.set", at()))?;
            }
            hosts.push(host);
        }
        let measured = validation::read(path, &settings.measured).with_context(at)?;
        let experiment = Self {
            name: experiment.name,
            title: experiment.title,
            scene: *scene,
            notes: settings.notes.clone(),
            settings,
            hosts,
            measured,
            seed: 1,
        };
        experiment.check().with_context(at)?;
        Ok(experiment)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.settings.replications >= 1, "sim.replications must be at least 1");
        ensure!(!self.hosts.is_empty(), "sim.host names no file");
        ensure!(self.scene.direction != Direction::Both, "direction = \"both\" is not simulated");
        ensure!(!self.scene.variants.contains(&Variant::Bridge), "a bridge is not simulated");
        self.host_variants().map(drop)
    }

    /// The seed from which those of all runs follow; 1 without.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Makes it shorter, for a look at whether all works; the report will say so.
    pub fn use_quick_profile(&mut self) {
        let full = self.rounds();
        self.settings.transfers = Some(full.div_ceil(10).min(QUICK_ROUNDS));
        self.settings.replications = self.settings.replications.min(2);
        let rounds = self.rounds();
        self.notes.push(format!("quick run: {rounds} of {full} rounds; no measurement to rely on"));
    }

    fn rounds(&self) -> u32 {
        self.settings.transfers.unwrap_or(self.scene.transfers)
    }

    /// The independent runs of the experiment.
    ///
    /// # Errors
    /// When parameters make no sense.
    pub fn runs(&self) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for cell in self.cells()? {
            for &variant in &self.scene.variants {
                for replication in 0..self.replications(cell.bytes) {
                    runs.push(Run {
                        experiment: self.name.clone(),
                        parameters: self.parameters(&cell, variant),
                        seed: self.seed.wrapping_mul(1000).wrapping_add(replication.into()),
                        work: Work::Transfer(Box::new(self.case(&cell, variant)?)),
                    });
                }
            }
        }
        Ok(runs)
    }

    fn host_variants(&self) -> Result<Vec<HostVariant>> {
        let mut host_variants = Vec::new();
        for host in &self.hosts {
            host_variants.push(HostVariant { label: String::new(), host: Host::from_table(host)? });
            let one = |(name, values): (&String, &Vec<Value>)| -> Vec<BTreeMap<String, Value>> {
                values.iter().map(|value| [(name.clone(), value.clone())].into()).collect()
            };
            let swept = self.settings.sweep.iter().flat_map(one);
            for changes in swept.chain(self.settings.host_variant.iter().cloned()) {
                let mut table = host.clone();
                let mut label = Vec::new();
                for (name, value) in &changes {
                    host::set(&mut table, name, value).context("sim.sweep or sim.host_variant")?;
                    label.push(format!("{name} = {}", value.to_string().replace('"', "")));
                }
                let label = label.join(", ");
                host_variants.push(HostVariant { label, host: Host::from_table(&table)? });
            }
        }
        Ok(host_variants)
    }

    /// What is in front of the rows of each host_variant, once: nothing for the hosts as they are.
    fn labels(&self) -> Result<Vec<String>> {
        let mut labels = Vec::new();
        for host_variant in self.host_variants()? {
            if !labels.contains(&host_variant.label) {
                labels.push(host_variant.label);
            }
        }
        Ok(labels)
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let scene = &self.scene;
        let paths = scene.path_sets();
        let mut cells = Vec::new();
        for host_variant in self.host_variants()? {
            for &place in &scene.hosts {
                for paths in &paths {
                    for &bytes in self.settings.bytes.as_ref().unwrap_or(&scene.bytes) {
                        for flows in &scene.flows {
                            cells.push(Cell {
                                host_variant: host_variant.clone(),
                                place,
                                paths: paths.clone(),
                                bytes,
                                flows: flows.clone(),
                            });
                        }
                    }
                }
            }
        }
        Ok(cells)
    }

    fn case(&self, cell: &Cell, variant: Variant) -> Result<Case> {
        let each = cell.paths.iter().zip(&cell.flows);
        Ok(Case {
            host: cell.host_variant.host.clone(),
            outwards: self.scene.direction == Direction::Out,
            vms: cell.place.vms,
            load_percent: cell.place.load_percent,
            period_ms: self.scene.period_ms,
            bytes: cell.bytes,
            guest_receive_buffer: self.scene.guest_receive_buffer,
            peers: each
                .map(|(path, &flows)| Peer {
                    name: path.name.clone(),
                    flows,
                    rtt_ms: path.rtt_ms,
                    loss_percent: path.loss_percent,
                    mbit: path.mbit,
                })
                .collect(),
            rounds: self.rounds_of(cell.bytes).div_ceil(self.replications(cell.bytes)),
            back_to_back: self.scene.back_to_back,
            offload: halves(variant)?,
            occupancy_ms: self.settings.occupancy_ms,
        })
    }

    fn rounds_of(&self, bytes: u64) -> u32 {
        match self.settings.fewer.or(self.scene.fewer) {
            Some(fewer) if bytes >= fewer.from_bytes => fewer.transfers.min(self.rounds()),
            _ => self.rounds(),
        }
    }

    /// No more runs than rounds.
    fn replications(&self, bytes: u64) -> u32 {
        self.settings.replications.min(self.rounds_of(bytes)).max(1)
    }

    fn parameters(&self, cell: &Cell, variant: Variant) -> Parameters {
        let flows = cell.flows.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
        let paths = cell.paths.iter().map(|path| path.name.clone()).collect::<Vec<_>>().join("+");
        let all = [
            ("host", cell.host_variant.host.name.clone()),
            ("host_variant", cell.host_variant.label.clone()),
            ("vms", cell.place.vms.to_string()),
            ("load_percent", cell.place.load_percent.to_string()),
            ("path", paths),
            ("bytes", cell.bytes.to_string()),
            ("flows", flows),
            ("variant", variant.name().to_owned()),
        ];
        all.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// The report of the measurements of all runs, and the samples behind it.
    ///
    /// # Errors
    /// When measurements are missing, or a band meets no row.
    pub fn report(&self, measurements: &[Measurement]) -> Result<(Report, Vec<Samples>)> {
        figures::report(self, measurements)
    }
}

fn halves(variant: Variant) -> Result<Option<Halves>> {
    let (transmit, receive, policy) = match variant {
        Variant::Vanilla => return Ok(None),
        Variant::Bridge => bail!("a bridge is not simulated"),
        Variant::Transmit => (true, false, None),
        Variant::Receive => (false, true, None),
        Variant::Offload => (true, true, None),
        // No simulated guest has a module that could be heard and is not used.
        Variant::Agentless | Variant::Auto => (true, false, None),
        Variant::NoPolicy | Variant::Fair | Variant::Prioritised => {
            (true, false, Some(variant.name()))
        }
    };
    let early_ack = transmit && !variant.needs_module();
    Ok(Some(Halves { transmit, receive, policy: policy.map(str::to_owned), early_ack }))
}
