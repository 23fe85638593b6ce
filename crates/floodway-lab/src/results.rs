//! `floodway-lab results`: publishes runs, and makes the tables and figures of texts from them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use floodway_report::results::{self, Run, Runs, Texts, age, figures};
use serde::Serialize;

/// What is done with published runs.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Put a run's report among the published ones
    Publish {
        /// Where the run left its report, for example out/demo
        directory: PathBuf,
        /// Name of the published run [default: the experiment's]
        #[arg(long = "as")]
        name: Option<String>,
    },
    /// Add runs of the same experiment to a published one, so that texts say where a further run is to be expected
    Repeat {
        /// Name of the published run
        name: String,
        /// Where the other runs left their reports, for example out/demo-2
        #[arg(required = true)]
        directories: Vec<PathBuf>,
    },
    /// Make the tables and figures of README.md and docs/ from published runs
    Render {
        /// Change nothing; exit with 1 if a table or a figure differs
        #[arg(long)]
        check: bool,
    },
    /// Show published runs, and how many commits since have changed what decides their figures
    List {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
}

/// Runs `action` in the checkout at `root`.
///
/// # Errors
/// When a run, a text or git's answer cannot be read, is wrong, or cannot be written.
pub fn run(root: &Path, action: Action) -> Result<ExitCode> {
    let directory = root.join(results::DIRECTORY);
    match action {
        Action::Publish { directory: left, name } => {
            let run = Run::of(&left)?;
            let name = name.unwrap_or_else(|| run.report.experiment.clone());
            println!("{}", run.publish(&directory, &name)?.display());
            Ok(ExitCode::SUCCESS)
        }
        Action::Repeat { name, directories } => repeat(root, &name, &directories),
        Action::Render { check } => render(root, &results::read(&directory)?, check),
        Action::List { json } => list(root, &results::read(&directory)?, json),
    }
}

/// Adds the runs that left their reports in `directories` to the published one, all or none.
fn repeat(root: &Path, name: &str, directories: &[PathBuf]) -> Result<ExitCode> {
    let published = root.join(results::DIRECTORY);
    let mut runs = results::read(&published)?;
    let run = runs.get_mut(name).with_context(|| format!("no run {name:?} is published"))?;
    for directory in directories {
        let what = || format!("{} is no repeat of {name}", directory.display());
        run.add_repeat(root, &Run::of(directory)?).with_context(what)?;
    }
    println!("{}: repeated {} times", run.publish(&published, name)?.display(), run.repeats.len());
    Ok(ExitCode::SUCCESS)
}

fn render(root: &Path, runs: &Runs, check: bool) -> Result<ExitCode> {
    ensure!(root.join("README.md").is_file(), "{}: no README.md here", root.display());
    let changed = differing(root, runs, check)?;
    for path in &changed {
        let what = if check { "differs from its results" } else { "written" };
        println!("{}: {what}", path.display());
    }
    Ok(if check && !changed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Makes figures and texts of `root` from `runs`, or just compares them. Returns the files that differ.
fn differing(root: &Path, runs: &Runs, check: bool) -> Result<Vec<PathBuf>> {
    let mut files = figures::render(root, runs, check)?;
    files.extend(Texts::below(root)?.render(runs, check)?);
    Ok(files)
}

/// A published run in the list.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    commit: Option<&'a str>,
    started: &'a str,
    below_target: usize,
    /// None if git does not know the commit.
    commits_since: Option<u64>,
}

fn list(root: &Path, runs: &Runs, json: bool) -> Result<ExitCode> {
    let entries: Vec<_> = runs
        .iter()
        .map(|(name, run)| Entry {
            name,
            commit: run.provenance.commit.as_deref(),
            started: &run.provenance.started,
            below_target: run.report.below_target().count(),
            commits_since: age::commits_since(root, run).ok(),
        })
        .collect();
    if json {
        println!("{}", serde_json::to_string_pretty(&entries)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["run", "commit", "started", "below target", "commits since"]);
    for entry in &entries {
        let commit = entry.commit.map_or("unknown", |commit| commit.get(..12).unwrap_or(commit));
        let since = entry.commits_since.map_or_else(|| "unknown".into(), |since| since.to_string());
        let below = entry.below_target.to_string();
        table.add_row([entry.name, commit, entry.started, &below, &since]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a figure, at most: it is read over networks, and kept in the history of each checkout.
    const LARGEST: u64 = 100_000;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn tables_and_figures_of_the_project_are_those_of_its_published_runs() {
        let runs = results::read(&root().join(results::DIRECTORY)).unwrap();
        let differ = differing(&root(), &runs, true).unwrap();
        assert!(differ.is_empty(), "run `floodway-lab results render`: {differ:?}");
    }

    #[test]
    fn figures_of_the_project_are_small() {
        let Ok(files) = std::fs::read_dir(root().join(figures::DIRECTORY)) else { return };
        for file in files.map(Result::unwrap) {
            let bytes = file.metadata().unwrap().len();
            assert!(bytes <= LARGEST, "{}: {bytes} bytes", file.path().display());
        }
    }
}
