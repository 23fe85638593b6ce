//! Command line of the lab.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use floodway_report::provenance::{Build, Recorder};
use floodway_report::report::REPORT_FILE;
use floodway_report::{Provenance, Report, Samples, Verdict, World, html, table};
use floodway_simlab::simulation::{self, command as simulator, timeline};
use floodway_simlab::{bench_sim, sweep};

use floodway_lab::accel::{self, Choice};
use floodway_lab::doctor::{self, Need};
use floodway_lab::experiment::Experiment;
use floodway_lab::{bench, cleanup, demo, path, results};

/// Experiments with Floodway, the virtual switch, on real VMs.
#[derive(Parser)]
#[command(name = "floodway-lab", version)]
struct Arguments {
    /// What executes the guests' instructions [default: FLOODWAY_LAB_ACCEL, or auto]
    #[arg(long, global = true, value_enum)]
    accel: Option<Choice>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run an experiment on QEMU virtual machines. Needs root
    Real {
        /// Experiment, for example experiments/demo.toml
        file: PathBuf,
        /// Measure less, for a look at whether all works. The report says so
        #[arg(long)]
        quick: bool,
        /// Only cells with such names, for example "reno * deep" (friendliness)
        #[arg(long)]
        cells: Option<String>,
        /// Go on with what an interrupted run has left in the output directory (friendliness)
        #[arg(long)]
        resume: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Run an experiment in virtual time
    Sim {
        /// Experiment, or `all` for every one in experiments/ that has a simulated form and is not long
        file: PathBuf,
        /// Measure less, for a look at whether all works. The report says so
        #[arg(long)]
        quick: bool,
        /// Runs at the same time [default: one per core]. Figures do not depend on it
        #[arg(long)]
        threads: Option<NonZeroUsize>,
        #[command(flatten)]
        timeline: timeline::Args,
        #[command(flatten)]
        output: Output,
    },
    /// Exit with 1 if a figure of a report is not inside its band
    Check {
        /// A report.json
        report: PathBuf,
    },
    /// Published runs, and the tables of README.md and docs/ that are made of them. In a checkout
    Results {
        #[command(subcommand)]
        action: results::Action,
    },
    /// Write the pages of all reports below a directory again, and a list of them, index.html
    Pages {
        /// The directory
        #[arg(default_value = OUT)]
        directory: PathBuf,
    },
    /// Play a network between interfaces: rate, buffers, delay, loss, priorities. Needs root
    Path {
        #[command(subcommand)]
        action: path::command::Action,
    },
    /// Compare the switch with Linux bridge and tap, and offload with none, in minutes. Needs root
    Demo {
        #[command(flatten)]
        output: Output,
    },
    /// Compare the switch with testpmd and OVS-DPDK on one core. Needs root, DPDK and huge pages
    Bench(bench::Args),
    /// Run all of an experiment's runs in virtual time, for many seeds, into one Parquet table. Goes on where it was
    /// stopped
    Sweep(sweep::Args),
    /// Execute the run of a sweep that is on standard input, and print what it measured
    SweepTask,
    /// Compare the simulator with ns-3: speed and completion times. Needs libns3-dev and g++
    BenchSim(bench_sim::Args),
    /// Run a scenario of bench-sim here, and write what became of its transfers
    Replay {
        /// The scenario
        scenario: PathBuf,
        /// Where the outcome goes
        outcome: PathBuf,
        /// Run the network in parts, by so many threads
        #[arg(long)]
        threads: Option<NonZeroUsize>,
    },
    /// Say what this machine lacks, and how to get it. Exit with 1 if the lab cannot run
    Doctor {
        /// Install missing Debian packages
        #[arg(long)]
        install: bool,
        /// Install also what only the benchmark against other switches needs
        #[arg(long, requires = "install")]
        bench: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(clap::Args)]
struct Output {
    /// Seed of everything random in the run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for report.json, samples.json and report.html, with a directory in it for each experiment of the
    /// demo [default: out/EXPERIMENT, or out/sim/EXPERIMENT in virtual time]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Print every figure, not only those that answer the question and those that are not inside their band
    #[arg(long)]
    all: bool,
}

/// Where reports go that nobody gives a directory.
const OUT: &str = "out";
/// Those of virtual time, so that they do not replace those of real VMs.
const OUT_SIM: &str = "out/sim";

/// What this program was built from: see `build.rs`.
const BUILD: Build = Build {
    commit: option_env!("FLOODWAY_COMMIT"),
    dirty: option_env!("FLOODWAY_DIRTY").is_some(),
};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    arguments.accel.into_iter().for_each(accel::choose);
    match run(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("floodway-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let recorder = Recorder::start(BUILD);
    match command {
        Command::Real { file, quick, cells, resume, output } => {
            let mut experiment = Experiment::load(&file)?;
            if quick {
                experiment.use_quick_profile()?;
            }
            if cells.is_some() || resume {
                let dir = directory(&experiment.name, World::Real, false, &output);
                experiment.select(cells.as_deref(), resume.then_some(&*dir))?;
            }
            real(&[experiment], Some(&file), &recorder, &output)
        }
        Command::Sim { file, threads, timeline, output, .. } if timeline.file().is_some() => {
            draw(&file, threads, &timeline, &output)
        }
        Command::Sim { file, quick, threads, timeline: _, output } => {
            simulate(&file, quick, threads, &recorder, &output)
        }
        Command::Check { report } => check(&report),
        Command::Results { action } => results::run(Path::new("."), action),
        Command::Pages { directory } => {
            let count = html::index::write_all(&directory)?;
            println!("{}: {count} reports", directory.join(html::index::INDEX_FILE).display());
            Ok(ExitCode::SUCCESS)
        }
        Command::Path { action } => path::command::run(action).map(|()| ExitCode::SUCCESS),
        Command::Demo { output } => real(&demo::experiments()?, None, &recorder, &output),
        Command::Bench(arguments) => bench::run(&arguments, &recorder).map(|()| ExitCode::SUCCESS),
        Command::Sweep(arguments) => {
            check_form(&arguments.file)?;
            sweep::run(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::SweepTask => sweep::run_task().map(|()| ExitCode::SUCCESS),
        Command::BenchSim(arguments) => {
            bench_sim::run(&arguments, &recorder).map(|()| ExitCode::SUCCESS)
        }
        Command::Replay { scenario, outcome, threads } => {
            bench_sim::replay(&scenario, &outcome, threads).map(|()| ExitCode::SUCCESS)
        }
        Command::Doctor { install, bench, json } => run_doctor(install, bench, json),
        Command::Completions { shell } => {
            let mut command = Arguments::command();
            clap_complete::generate(shell, &mut command, "floodway-lab", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs experiments, one after the other, and writes their reports. A figure outside of its band is no failure of the run: see
/// `check`.
fn real(
    experiments: &[Experiment],
    file: Option<&Path>,
    recorder: &Recorder,
    output: &Output,
) -> Result<ExitCode> {
    cleanup::install()?;
    let mut reports = Vec::new();
    for experiment in experiments {
        eprintln!("{}: {}", experiment.name, experiment.title);
        let (report, samples) = experiment.run_real(output.seed)?;
        let dir = directory(&experiment.name, World::Real, experiments.len() > 1, output);
        publish(&report, &samples, &recorder.finish(file), &dir, output)?;
        reports.push(report);
    }
    print_json(&reports, output)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a report, and shows it to people.
fn publish(
    report: &Report,
    samples: &[Samples],
    run: &Provenance,
    dir: &Path,
    output: &Output,
) -> Result<()> {
    floodway_report::write(report, samples, run, dir)?;
    if !output.json {
        println!("{}", table::render(report, output.all));
        report.about.terms.iter().for_each(|(label, text)| println!("{label}: {text}"));
        report.notes.iter().for_each(|note| println!("{note}"));
    }
    eprintln!("written: {} and {}", dir.join(REPORT_FILE).display(), html::HTML_FILE);
    if output.out.is_none() {
        // What was measured is written; a list that cannot be is no reason to fail.
        let listed = html::index::write(Path::new(OUT));
        listed.map_or_else(|error| eprintln!("no {OUT}/index.html: {error:#}"), |_| ());
    }
    Ok(())
}

fn print_json(reports: &[Report], output: &Output) -> Result<()> {
    match reports {
        _ if !output.json => {}
        [report] => println!("{}", serde_json::to_string_pretty(report)?),
        reports => println!("{}", serde_json::to_string_pretty(reports)?),
    }
    Ok(())
}

/// Where the report goes: `--out` itself, or a directory in it for each of several experiments.
fn directory(experiment: &str, world: World, one_of_many: bool, output: &Output) -> PathBuf {
    match &output.out {
        Some(out) if one_of_many => out.join(experiment),
        Some(out) => out.clone(),
        None if world == World::Sim => Path::new(OUT_SIM).join(experiment),
        None => Path::new(OUT).join(experiment),
    }
}

/// Runs experiments in virtual time, all at once, and writes their reports.
fn simulate(
    file: &Path,
    quick: bool,
    threads: Option<NonZeroUsize>,
    recorder: &Recorder,
    output: &Output,
) -> Result<ExitCode> {
    for file in simulator::files(file)? {
        check_form(&file)?;
    }
    let mut experiments = simulator::find(file)?;
    for experiment in &mut experiments {
        experiment.set_seed(output.seed);
        if quick {
            experiment.use_quick_profile();
        }
    }
    let mut reports = Vec::new();
    let measured = simulator::run(&experiments, threads)?;
    let run = recorder.finish(Some(file));
    for (report, samples) in measured {
        let dir = directory(&report.experiment, World::Sim, experiments.len() > 1, output);
        publish(&report, &samples, &run, &dir, output)?;
        reports.push(report);
    }
    print_json(&reports, output)?;
    Ok(ExitCode::SUCCESS)
}

/// Draws a cell of an experiment as a timeline, and prints what its transfers spend their time with.
fn draw(
    file: &Path,
    threads: Option<NonZeroUsize>,
    timeline: &timeline::Args,
    output: &Output,
) -> Result<ExitCode> {
    check_form(file)?;
    let mut experiment = simulation::Experiment::load(file)?;
    experiment.set_seed(output.seed);
    let outcome = timeline.run(&experiment, threads)?;
    if let Some(path) = timeline.file() {
        std::fs::write(path, &outcome.svg)
            .with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("written: {}", path.display());
    }
    match output.json {
        true => println!("{}", serde_json::to_string_pretty(&outcome)?),
        false => print!("{}", outcome.render()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The simulator looks at nothing that only real VMs have: this finds what is wrong there, too.
fn check_form(file: &Path) -> Result<()> {
    Experiment::load(file).map(drop)
}

fn check(path: &Path) -> Result<ExitCode> {
    let report = Report::read(path)?;
    let short: Vec<_> = report.below_target().collect();
    for row in &short {
        let headline = row.headline().map_or_else(|| "not measured".into(), table::number);
        let verdict = row.verdict.map_or("", Verdict::name);
        let interval = match table::interval(row) {
            interval if interval.is_empty() => interval,
            interval => format!(" (95 % {interval})"),
        };
        println!(
            "{verdict}: {} is {headline}{interval}, accepted is {}",
            row.name,
            table::band(row)
        );
    }
    if short.is_empty() {
        println!("{}: all figures with a band are ok", report.experiment);
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

fn run_doctor(install: bool, bench: bool, json: bool) -> Result<ExitCode> {
    let mut findings = doctor::examine();
    if install {
        let need = if bench { Need::Bench } else { Need::Lab };
        doctor::install(&findings, need).context("cannot install what is missing")?;
        findings = doctor::examine();
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        println!("{}", doctor::render(&findings));
    }
    let blocked = findings.iter().any(doctor::Finding::blocks);
    Ok(if blocked { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
