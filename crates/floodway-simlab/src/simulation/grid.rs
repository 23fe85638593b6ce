//! Experiments that are a scene with some of its parameters changed.
//!
//! # Theory of operation
//!
//! A *scene* is a table of parameters that is simulated as a whole: [`super::fat_tree`], [`super::inbound`],
//! [`super::testbed`], [`super::web`]. Its values
//! come from a base file, which several experiments share, and from the experiment. A *variant* is what is compared (the
//! mechanism off, on), a *case* is where (a load, a size of a bucket); both are a name and changes to parameters, by dotted
//! names. Each case is run in each variant, as many times as there are replications; a replication has the same seed
//! everywhere, so all variants and cases meet the same arrivals as far as their parameters let them.
//!
//! A run yields figures of classes (`2 KB p99`, `bulk rate`). A row compares one figure of one class in one case
//! between a variant and the one that it is `against`, the first if not told: medians over replications. Rows
//! are named `case/class figure variant`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use floodway_report::Band;
use serde::Deserialize;
use toml::{Table, Value};

use super::fat_tree::FatTree;
use super::inbound::Inbound;
use super::testbed::Testbed;
use super::web::Web;
use super::{Parameters, Run, Work, host};

/// The table `[sim]` of an experiment's file, if it has a scene.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) scene: Scene,
    /// File of parameters, beside the experiment's: `scenes/fat-tree.toml`. Its `host` may be the name of a file beside
    /// it instead of a table.
    base: String,
    /// Parameters beyond those of the file, and instead of them.
    #[serde(default)]
    with: Table,
    /// Independent runs of each case in each variant.
    #[serde(default = "one")]
    replications: u32,
    /// Takes many minutes: `sim all` names it and leaves it out.
    #[serde(default)]
    pub(super) long: bool,
    /// What is changed for a quick run.
    #[serde(default)]
    quick: BTreeMap<String, Value>,
    /// What is compared.
    pub(super) variant: Vec<Change>,
    /// Where.
    #[serde(default)]
    pub(super) case: Vec<Change>,
    /// What the charts of the page have along their axis.
    #[serde(default)]
    pub(super) chart: Along,
    /// What a reader of the report must know.
    #[serde(default)]
    notes: Vec<String>,
    /// Which figures are accepted.
    #[serde(default)]
    pub(super) band: Vec<Band>,
}

fn one() -> u32 {
    1
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Scene {
    FatTree,
    Inbound,
    Testbed,
    WebApplication,
}

/// What a chart has along its axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Along {
    /// The figures of a class in one case.
    #[default]
    Figures,
    /// The cases, for one figure of a class.
    Cases,
    /// The variants, for one figure of a class in one case.
    Variants,
}

/// A variant or a case.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    /// For the names of rows.
    pub(super) name: String,
    /// Parameters that are different, by dotted names.
    #[serde(default)]
    set: BTreeMap<String, Value>,
    /// The variant that this one is compared with, if not the first.
    pub(super) against: Option<String>,
}

/// An experiment with a scene.
#[derive(Clone, Debug)]
pub struct Grid {
    pub(super) name: String,
    pub(super) settings: Settings,
    pub(super) parameters: Table,
    pub(super) notes: Vec<String>,
    pub(super) seed: u64,
}

impl Grid {
    pub(super) fn load(file: &Path, name: &str, table: Table) -> Result<Self> {
        let settings: Settings = table.try_into()?;
        let base = file.with_file_name(&settings.base);
        let text = std::fs::read_to_string(&base)
            .with_context(|| format!("cannot read scene {}", base.display()))?;
        let mut parameters: Table =
            text.parse().with_context(|| format!("scene {}", base.display()))?;
        if let Some(Value::String(file)) = parameters.get("host") {
            let host = host::load(&base.with_file_name(file))?;
            parameters.insert("host".into(), Value::Table(host));
        }
        merge(&mut parameters, &settings.with);
        let mut grid = Self {
            name: name.into(),
            notes: settings.notes.clone(),
            settings,
            parameters,
            seed: 1,
        };
        if grid.settings.case.is_empty() {
            grid.settings.case.push(Change::default());
        }
        grid.check()?;
        Ok(grid)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.settings.replications >= 1, "replications must be at least 1");
        ensure!(!self.settings.variant.is_empty(), "there is no variant");
        for variant in &self.settings.variant {
            if let Some(against) = &variant.against {
                let known = self.settings.variant.iter().any(|other| other.name == *against);
                ensure!(known, "against = {against:?}: there is no such variant");
            }
        }
        self.runs().map(drop)
    }

    pub(super) fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    pub(super) fn use_quick_profile(&mut self) {
        // A name that does not exist shows when the runs are made.
        for (name, value) in std::mem::take(&mut self.settings.quick) {
            for change in &mut self.settings.variant {
                change.set.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        self.settings.replications = 1;
        self.notes.push("quick run: shorter, and once only; no measurement to rely on".into());
    }

    pub(super) fn runs(&self) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for case in &self.settings.case {
            for variant in &self.settings.variant {
                let work = self
                    .work(case, variant)
                    .with_context(|| format!("case {:?}, variant {:?}", case.name, variant.name))?;
                for replication in 0..self.settings.replications {
                    runs.push(Run {
                        experiment: self.name.clone(),
                        parameters: parameters(case, variant),
                        seed: self.seed.wrapping_mul(1000).wrapping_add(replication.into()),
                        work: work.clone(),
                    });
                }
            }
        }
        Ok(runs)
    }

    /// The scene of a case in a variant; what the variant says counts last.
    fn work(&self, case: &Change, variant: &Change) -> Result<Work> {
        let mut table = self.parameters.clone();
        for (name, value) in case.set.iter().chain(&variant.set) {
            host::set(&mut table, name, value)?;
        }
        let table = Value::Table(table);
        Ok(match self.settings.scene {
            Scene::FatTree => {
                let scene: FatTree = table.try_into()?;
                scene.check()?;
                Work::FatTree(Box::new(scene))
            }
            Scene::Inbound => {
                let scene: Inbound = table.try_into()?;
                scene.check()?;
                Work::Inbound(Box::new(scene))
            }
            Scene::Testbed => {
                let scene: Testbed = table.try_into()?;
                scene.check()?;
                Work::Testbed(Box::new(scene))
            }
            Scene::WebApplication => {
                let scene: Web = table.try_into()?;
                scene.check()?;
                Work::Web(Box::new(scene))
            }
        })
    }
}

pub(super) fn parameters(case: &Change, variant: &Change) -> Parameters {
    let all = [("case", &case.name), ("variant", &variant.name)];
    all.map(|(name, value)| (name.to_owned(), value.clone())).into()
}

/// Puts what is in `from` into `table`; tables that both have are merged.
fn merge(table: &mut Table, from: &Table) {
    for (name, value) in from {
        match (table.get_mut(name), value) {
            (Some(Value::Table(own)), Value::Table(other)) => merge(own, other),
            _ => {
                table.insert(name.clone(), value.clone());
            }
        }
    }
}
