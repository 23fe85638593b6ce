//! `floodway-lab sim`: all runs of some experiments on all cores, and their reports.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use floodway_report::progress::Progress;
use floodway_report::{Report, Samples};
use floodway_sim::engine;

use super::form::File;
use super::{Experiment, Measurement, Run};

/// Where experiments are, for `all`.
const EXPERIMENTS: &str = "experiments";

/// The files that a word on the command line means: one, or all.
///
/// # Errors
/// When there is no directory of experiments.
pub fn files(word: &Path) -> Result<Vec<PathBuf>> {
    if word == Path::new("all") {
        return floodway_experiment::files(Path::new(EXPERIMENTS));
    }
    Ok(vec![word.to_owned()])
}

/// The experiments that a word on the command line means: a file's, or those of all files that have a simulated
/// form and are not long. The long ones are named on the standard error.
///
/// # Errors
/// When a file cannot be read, is not an experiment, or has no simulated form.
pub fn find(word: &Path) -> Result<Vec<Experiment>> {
    if word != Path::new("all") {
        return Ok(vec![Experiment::load(word)?]);
    }
    let mut all = Vec::new();
    for file in files(word)? {
        if File::load(&file)?.sim.is_some() {
            all.push(Experiment::load(&file)?);
        }
    }
    let (long, all): (Vec<_>, Vec<_>) = all.into_iter().partition(Experiment::is_long);
    for experiment in long {
        let name = &experiment.name;
        eprintln!("not in `all`, for it takes long: floodway-lab sim {EXPERIMENTS}/{name}.toml");
    }
    ensure!(!all.is_empty(), "no experiment in {EXPERIMENTS}/ has a simulated form");
    Ok(all)
}

/// Executes the runs of all experiments on all cores; measurements are in the order of the runs.
///
/// # Errors
/// When the parameters of a run make no sense; the error names the run.
pub fn execute(runs: &[Run], threads: Option<NonZeroUsize>) -> Result<Vec<Measurement>> {
    let threads = threads.or_else(|| available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
    let progress = Progress::start(runs.len() as u64);
    // Long runs first, so that none is left alone at the end.
    let mut order: Vec<_> = (0..runs.len()).collect();
    order.sort_by_key(|&n| std::cmp::Reverse(runs[n].work.effort()));
    let results = engine::sweep(
        &order,
        threads,
        |&n| (n, runs[n].execute().with_context(|| format!("run {}", name(&runs[n])))),
        |done| progress.step(&name(&runs[order[done.job]])),
    );
    let mut ordered: Vec<_> = results;
    ordered.sort_by_key(|result| result.0);
    let mut measurements = Vec::new();
    for (_, result) in ordered {
        measurements.extend(result?);
    }
    Ok(measurements)
}

fn name(run: &Run) -> String {
    let values: Vec<_> =
        run.parameters.values().filter(|value| !value.is_empty()).cloned().collect();
    format!("{}: {}, seed {}", run.experiment, values.join(" "), run.seed)
}

/// Runs experiments and makes their reports, with the samples behind them.
///
/// # Errors
/// See [`execute`] and [`Experiment::report`].
pub fn run(
    experiments: &[Experiment],
    threads: Option<NonZeroUsize>,
) -> Result<Vec<(Report, Vec<Samples>)>> {
    let mut runs = Vec::new();
    for experiment in experiments {
        runs.extend(experiment.runs()?);
    }
    let measurements = execute(&runs, threads)?;
    let mut reports = Vec::new();
    for experiment in experiments {
        let own = |m: &&Measurement| m.experiment == experiment.name;
        let own: Vec<_> = measurements.iter().filter(own).cloned().collect();
        let (report, samples) =
            experiment.report(&own).with_context(|| format!("experiment {}", experiment.name))?;
        reports.push((report, samples));
    }
    Ok(reports)
}
