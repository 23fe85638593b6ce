//! `floodway-lab sim EXPERIMENT --timeline FILE`: where the time of simulated transfers goes.
//!
//! # Theory of operation
//! One cell of an experiment is simulated again, all of its variants and replications, with a trace
//! ([`floodway_sim::trace`]). Of each transfer the critical path is followed ([`path`]); their means are a table. One transfer of each variant is drawn, below
//! each other on one axis of time: the one whose time is the median of its variant's, or the n-th. All of it is a function of cell and seed.

mod draw;
mod path;
mod play;
mod schedule;
mod table;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail, ensure};
use floodway_core::time::Instant;
use floodway_sim::engine;
use floodway_sim::traffic::Transfer;
use serde::Serialize;

use super::transfer::Case;
use super::{Experiment, Parameters, Run, Work};
use play::Played;
use table::Account;

/// The phases of a transfer.
const PHASES: [&str; 4] = ["handshake", "first byte", "data", "reply"];
/// Longest time that is drawn unless somebody asks for more, in ms.
const LONGEST_MS: f64 = 200.0;

/// Arguments of the command line.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// Draw one transfer of a cell as a timeline in this SVG file, each variant below the other, and print what transfers
    /// of the cell spend their time with
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "out", "all"])]
    timeline: Option<PathBuf>,
    /// The cell: a parameter of its runs, for example vms=3. More than once
    #[arg(long, value_name = "NAME=VALUE", requires = "timeline")]
    cell: Vec<String>,
    /// The n-th transfer of each variant [default: the one whose time is the median]
    #[arg(long, value_name = "N", requires = "timeline")]
    transfer: Option<NonZeroUsize>,
    /// Where the drawing begins, in ms from the transfer's beginning
    #[arg(long, value_name = "MS", requires = "timeline", default_value_t = 0.0)]
    from_ms: f64,
    /// Where the drawing ends [default: the end of the longest transfer, at most 200 ms]
    #[arg(long, value_name = "MS", requires = "timeline")]
    to_ms: Option<f64>,
}

/// What became of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the experiment.
    pub experiment: String,
    /// The cell.
    pub cell: Parameters,
    /// The variants, in the experiment's order.
    pub variants: Vec<Variant>,
    /// The drawing.
    #[serde(skip)]
    pub svg: String,
}

/// What became of a variant.
#[derive(Clone, Debug, Serialize)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// All of its transfers.
    pub account: Account,
    /// The transfer that is drawn.
    pub drawn: draw::Drawn,
}

impl Args {
    /// The file that is to be drawn, if one is.
    #[must_use]
    pub const fn file(&self) -> Option<&PathBuf> {
        self.timeline.as_ref()
    }

    /// Simulates the cell.
    ///
    /// # Errors
    /// When the window is none, not exactly one cell fits, or it has no such transfer; the error names what there is.
    pub fn run(&self, experiment: &Experiment, threads: Option<NonZeroUsize>) -> Result<Outcome> {
        self.check_window()?;
        let runs = self.select(experiment.runs()?)?;
        let threads = threads.or_else(|| available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
        let all = engine::sweep(&runs, threads, |run| play::all(case(run)?, run.seed), |_| ());
        let mut cell = runs[0].parameters.clone();
        cell.remove("variant");
        let mut variants: Vec<(String, Vec<(&Run, Played)>)> = Vec::new();
        for (run, all) in runs.iter().zip(all) {
            let name = &run.parameters["variant"];
            if variants.last().is_none_or(|last| last.0 != *name) {
                variants.push((name.clone(), Vec::new()));
            }
            let own = all?.into_iter().map(|played| (run, played));
            variants.last_mut().into_iter().for_each(|last| last.1.extend(own.clone()));
        }
        let mut seen = Vec::new();
        let mut accounts = Vec::new();
        for (name, all) in &variants {
            let (run, played) = self.pick(all).with_context(|| format!("variant {name}"))?;
            let case = case(run)?;
            let every: Vec<_> = all.iter().map(|(_, played)| played).collect();
            accounts.push((name.clone(), Account::of(&every)));
            seen.push((case, run.seed, play::one(case, run.seed, &played.transfer)?));
        }
        let title = describe(&experiment.name, &cell);
        let picture = draw::Picture { title: &title, from: self.from_ms, to: self.to_ms };
        let names: Vec<_> = accounts.iter().map(|(name, _)| &name[..]).collect();
        let (svg, drawn) = picture.draw(&names, &seen);
        let variants = accounts.into_iter().zip(drawn);
        let variant = |((name, account), drawn)| Variant { name, account, drawn };
        let variants = variants.map(variant).collect();
        Ok(Outcome { experiment: experiment.name.clone(), cell, variants, svg })
    }

    fn check_window(&self) -> Result<()> {
        let (from, to) = (self.from_ms, self.to_ms.unwrap_or(f64::MAX));
        ensure!(from.is_finite() && from >= 0.0, "--from-ms {from}: give at least 0");
        ensure!(to.is_finite() && to > from, "--to-ms {to}: give more than --from-ms, {from}");
        Ok(())
    }

    /// The runs of the one cell that is meant.
    fn select(&self, mut runs: Vec<Run>) -> Result<Vec<Run>> {
        // Of hosts that a sweep changes only those that somebody names.
        let mut wanted = vec![("host_variant", "")];
        for word in &self.cell {
            let pair =
                word.split_once('=').with_context(|| format!("--cell {word}: no NAME=VALUE"))?;
            wanted.retain(|(name, _)| *name != pair.0);
            wanted.push(pair);
        }
        runs.retain(|run| matches!(run.work, Work::Transfer(_)));
        ensure!(!runs.is_empty(), "only experiments of transfers have timelines");
        let fits = |run: &Run| {
            wanted.iter().all(|(name, value)| run.parameters.get(*name).is_some_and(|v| v == value))
        };
        let (fitting, others): (Vec<_>, Vec<_>) = runs.into_iter().partition(fits);
        let mut cells: Vec<String> = Vec::new();
        for run in if fitting.is_empty() { &others } else { &fitting } {
            let name = cell_of(&run.parameters);
            if !cells.contains(&name) {
                cells.push(name);
            }
        }
        if fitting.is_empty() || cells.len() > 1 {
            let what = if fitting.is_empty() { "no cell fits" } else { "several cells fit" };
            bail!("{what}; --cell chooses one of\n  {}", cells.join("\n  "));
        }
        Ok(fitting)
    }

    /// The transfer that is drawn.
    fn pick<'a>(&self, all: &'a [(&'a Run, Played)]) -> Result<(&'a Run, &'a Played)> {
        let count = all.len();
        let at = match self.transfer {
            Some(n) => n.get() - 1,
            None => {
                let mut order: Vec<_> = (0..count).collect();
                order.sort_by_key(|&n| {
                    let [begun, ended] = play::ends(&all[n].1.transfer);
                    ended.since(begun)
                });
                order.get(count / 2).copied().unwrap_or(count)
            }
        };
        let (run, played) =
            all.get(at).with_context(|| format!("there are {count} transfers in the trace"))?;
        Ok((run, played))
    }
}

impl Outcome {
    /// What the transfers of each variant spend their time with, as text.
    #[must_use]
    pub fn render(&self) -> String {
        let one = |variant: &Variant| {
            let Account { transfers, whole_median_ms, .. } = variant.account;
            let name = &variant.name;
            let table = variant.account.render();
            format!("{name}: {transfers} transfers, median {whole_median_ms:.2} ms\n{table}\n")
        };
        self.variants.iter().map(one).collect()
    }
}

fn case(run: &Run) -> Result<&Case> {
    match &run.work {
        Work::Transfer(case) => Ok(case),
        _ => bail!("only experiments of transfers have timelines"),
    }
}

/// What tells cells apart, as `--cell` takes it.
fn cell_of(parameters: &Parameters) -> String {
    let own = parameters.iter().filter(|(name, value)| *name != "variant" && !value.is_empty());
    own.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// A cell in words.
fn describe(experiment: &str, cell: &Parameters) -> String {
    let of = |name: &str| cell.get(name).map_or("", |value| &value[..]);
    let bytes: u64 = of("bytes").parse().unwrap_or_default();
    let load = of("load_percent");
    let changed = of("host_variant");
    let vms = match of("vms") {
        "1" => "1 VM".to_owned(),
        vms => format!("{vms} VMs"),
    };
    let changed = if changed.is_empty() { String::new() } else { format!(", {changed}") };
    format!("{experiment}: {} KB, {vms} at {load} %{changed}", bytes / 1000)
}

/// The phases of a transfer, in the order of [`PHASES`].
fn phases(transfer: &Transfer) -> [[Instant; 2]; PHASES.len()] {
    let [begun, ended] = play::ends(transfer);
    let at = [transfer.connected, transfer.first, transfer.last];
    [[begun, at[0]], [at[0], at[1]], [at[1], at[2]], [at[2], ended]]
}
