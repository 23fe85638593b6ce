//! Sweeps: many independent runs, on all cores or on a cluster, into one table.
//!
//! # Theory of operation
//! A sweep is the list of an experiment's runs, for several seeds (`plan`). What a run measures depends on nothing but the
//! run, so it does not matter who executes it, where, in what order, or how often. Outcomes go to a journal
//! (`journal`), from which a sweep that was stopped goes on. When no run is left, the table is made from the journal, in
//! the order of the runs (`table`): its bytes are the same whichever engine ran and however often it was stopped.
//!
//! An *engine* takes the runs that are left and appends to the journal. The local one has a thread per core. That for
//! Ray is a Python package (`python/`), which asks this program for the runs that are left (`--list`), has each executed by this
//! program on some machine of the cluster (`sweep-task`), and writes the same journal.
//!
//! A run that fails is tried again, `RETRIES` times: memory or a machine may have been the reason. After that it is in the
//! journal as failed, the sweep goes on, and says at the end which seed and parameters failed. There is no
//! table then: a table with holes would be taken for a whole one.

mod journal;
mod local;
mod plan;
mod ray;
mod table;

use std::io::Read;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use journal::{Journal, Line};
use plan::{Plan, Task};

/// How often a run that failed is tried again.
const RETRIES: u32 = 2;

/// Who executes the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// Threads of this process.
    Local,
    /// Tasks of a Ray cluster; needs the Python package in `python/`.
    Ray,
}

/// `floodway-lab sweep`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Experiment that has a simulated form
    pub file: PathBuf,
    /// Who executes the runs
    #[arg(long, value_enum, default_value = "local")]
    pub engine: Engine,
    /// The table; its journal is beside it, and a sweep that was stopped goes on from there [default:
    /// out/EXPERIMENT.parquet]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// How many seeds, each with all runs of the experiment
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub seeds: u32,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads of the local engine [default: one per core]
    #[arg(long)]
    pub threads: Option<NonZeroUsize>,
    /// Make runs shorter, for a look at whether all works
    #[arg(long)]
    pub quick: bool,
    /// Print the runs that are left, a line of JSON each, and do nothing
    #[arg(long, conflicts_with = "collect")]
    pub list: bool,
    /// Make the table from the journal, and run nothing
    #[arg(long)]
    pub collect: bool,
}

impl Args {
    fn out(&self) -> PathBuf {
        let name = self.file.file_stem().unwrap_or_default();
        let default = || PathBuf::from("out").join(name).with_extension("parquet");
        self.out.clone().unwrap_or_else(default)
    }
}

/// Runs a sweep.
///
/// # Errors
/// When the experiment cannot be simulated, the journal belongs to another sweep, or runs have failed; the
/// error names their seeds and parameters.
pub fn run(args: &Args) -> Result<()> {
    let plan = Plan::read(&args.file, args.seed, args.seeds, args.quick)?;
    let out = args.out();
    if args.engine == Engine::Ray && !args.list && !args.collect {
        return ray::run(args, &out);
    }
    let mut journal = Journal::open(&Journal::path(&out), &plan)?;
    let left: Vec<&Task> = plan.tasks.iter().filter(|task| !journal.is_done(task.run)).collect();
    if args.list {
        for task in left {
            println!("{}", serde_json::to_string(task)?);
        }
        return Ok(());
    }
    if !args.collect {
        eprintln!(
            "{} runs, {} of them done before",
            plan.tasks.len(),
            plan.tasks.len() - left.len()
        );
        local::run(&left, args.threads, &mut journal)?;
    }
    check(&plan, &journal)?;
    table::write(&out, &plan, &journal)?;
    eprintln!("written: {}", out.display());
    Ok(())
}

/// Every run is done.
fn check(plan: &Plan, journal: &Journal) -> Result<()> {
    let mut failed = Vec::new();
    let mut missing = 0;
    for task in &plan.tasks {
        match journal.outcome(task.run) {
            Some(Ok(_)) => {}
            Some(Err(reason)) => failed.push(format!("{}: {reason}", task.describe())),
            None => missing += 1,
        }
    }
    ensure!(
        failed.is_empty(),
        "{} runs failed, {} times each; no table is written. They are tried again when the sweep is started again.\n{}",
        failed.len(),
        1 + RETRIES,
        failed.join("\n")
    );
    ensure!(missing == 0, "{missing} runs are not done yet");
    Ok(())
}

/// `floodway-lab sweep-task`: executes the task on standard input and prints the journal's line. A failure is a
/// line, too, and an error.
///
/// # Errors
/// When standard input is no task, or the task fails.
pub fn run_task() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    let task: Task = serde_json::from_str(&text).context("standard input is no task")?;
    let line = Line::new(task.run, task.execute());
    println!("{}", serde_json::to_string(&line)?);
    ensure!(line.failed.is_none(), "{}: {}", task.describe(), line.failed.unwrap_or_default());
    Ok(())
}
