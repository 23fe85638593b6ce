//! The simulator beside ns-3: speed, and whether they agree.
//!
//! # Theory of operation
//! Both programs read one scenario: topology, queues, TCP's settings, and the list of transfers with their starts and
//! sizes. Both write when each transfer was complete. ns-3 is Debian's optimised build, without logging and traces, with a
//! look-up of routes that takes constant time, so that it is not slowed by what the comparison does not need.
//!
//! Each round runs both, one after the other; rounds take turns in who goes first. Wall time is that of the measured
//! part without making the network; processor time, beside it, shows whether others had the processor. Speed is
//! the median over rounds of the ratio within a round.
//!
//! Each round has a seed of its own: a queue that overflows is chaos, where one packet more or less decides who waits for
//! a timeout, so that only many transfers can be compared. Completion times are judged over all rounds together, on
//! transfers that are complete in both.
//!
//! A tree of 1024 hosts runs here only: as a whole, and in parts, by one thread and by several, in turn. The digests of all its events
//! have to be equal.

mod case;
mod child;
mod contender;
mod figures;
mod outcome;
mod play;
mod scenario;
mod shapes;

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodway_report::About;
use floodway_report::Samples;
use floodway_report::host;
use floodway_report::provenance::Recorder;
use floodway_report::report::{self, Report, Row, World};

pub use case::Case;
use contender::Contender;
use outcome::Outcome;
use scenario::Scenario;
use shapes::Tree;

/// Name of the experiment in its report.
const EXPERIMENT: &str = "bench-sim";
/// Virtual time of the tree of 1024 hosts, after its connections are open.
const LARGE_LENGTH: Duration = Duration::from_millis(50);
/// What it may take.
const LARGE_MEMORY_MIB: f64 = 4096.0;

/// `floodway-lab bench-sim`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to compare; all when absent
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Case>,
    /// How often each case is run on each simulator
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Virtual seconds of the fat tree; ns-3 needs minutes for one
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Seed of starts, sizes and delays
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads of the tree of 1024 hosts in parts, beside one thread
    #[arg(long, default_value = "2")]
    pub threads: NonZeroUsize,
    /// Run only the tree of 1024 hosts, for which ns-3 is not needed
    #[arg(long, conflicts_with = "only")]
    pub large_only: bool,
    /// Where the report goes
    #[arg(long, default_value = "out/bench-sim")]
    pub out: PathBuf,
}

/// One scenario, once on each simulator.
#[derive(Clone, Debug)]
struct Round {
    scenario: Scenario,
    floodway: Outcome,
    ns3: Outcome,
}

/// Runs the comparison, prints its table, and writes the report.
///
/// # Errors
/// When ns-3 is missing, a program fails, or the report cannot be written. A short figure is no error.
pub fn run(args: &Args, recorder: &Recorder) -> Result<()> {
    let floodway = Contender::floodway()?;
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))?;
    let (mut rows, mut samples) = (Vec::new(), Vec::new());
    let mut add = |(more_rows, more_samples): (Vec<Row>, Vec<Samples>)| {
        rows.extend(more_rows);
        samples.extend(more_samples);
    };
    if !args.large_only {
        let cases = if args.only.is_empty() { Case::ALL.to_vec() } else { args.only.clone() };
        let contenders = [floodway.clone(), Contender::ns3()?];
        for case in cases {
            add(figures::rows(case, &measure(case, args, &contenders)?));
        }
    }
    if args.only.is_empty() {
        add(large(args, &floodway)?);
    }
    let report = Report {
        about: About::default(),
        experiment: EXPERIMENT.into(),
        world: World::Sim,
        seed: args.seed,
        host: host::facts(),
        rows,
        notes: vec![format!("fat tree: {} s of virtual time", args.seconds)],
    };
    report.write(&args.out)?;
    report::write_samples(&args.out, &samples)?;
    recorder.finish(None).write(&args.out)?;
    println!("{}", figures::render(&report));
    println!("report: {}", args.out.join(report::REPORT_FILE).display());
    Ok(())
}

fn measure(case: Case, args: &Args, contenders: &[Contender; 2]) -> Result<Vec<Round>> {
    (0..args.rounds).map(|round| measure_round(case, round, args, contenders)).collect()
}

fn measure_round(
    case: Case,
    round: u32,
    args: &Args,
    contenders: &[Contender; 2],
) -> Result<Round> {
    let scenario = case.scenario(args.seconds, args.seed + u64::from(round));
    let file = args.out.join(format!("{case}.txt"));
    fs::write(&file, scenario.render())
        .with_context(|| format!("cannot write {}", file.display()))?;
    let transfers = scenario.transfers().count();
    eprintln!("{case}: round {}/{}, {transfers} transfers", round + 1, args.rounds);
    let run = |contender: &Contender| {
        let outcome = contender.run(&file, transfers, &args.out)?;
        eprintln!("  {}: {:.3} s", contender.simulator, outcome.measured.seconds);
        Ok::<_, anyhow::Error>(outcome)
    };
    let [floodway, ns3] = contenders;
    let (floodway, ns3) = if round.is_multiple_of(2) {
        let first = run(floodway)?;
        (first, run(ns3)?)
    } else {
        let first = run(ns3)?;
        (run(floodway)?, first)
    };
    Ok(Round { scenario, floodway, ns3 })
}

/// A tree for which ns-3 would need days: what it needs here, and how much faster several threads are.
fn large(args: &Args, floodway: &Contender) -> Result<(Vec<Row>, Vec<Samples>)> {
    let scenario = shapes::fat_tree(&Tree::LARGE, LARGE_LENGTH, args.seed);
    let file = args.out.join("fat-tree-1024.txt");
    fs::write(&file, scenario.render())
        .with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!("fat-tree-1024: {} connections and transfers", scenario.work.len());
    let transfers = scenario.transfers().count();
    let outcome = floodway.run(&file, transfers, &args.out)?;
    let mib = outcome.memory_kib as f64 / 1024.0;
    let mut memory = Row::value("fat-tree-1024/memory", "MiB", Some(mib));
    memory.judge(None, Some(LARGE_MEMORY_MIB), None);
    let seconds = outcome.measured.seconds / LARGE_LENGTH.as_secs_f64();
    let name = "fat-tree-1024/wall time of a virtual second";
    let mut rows = vec![memory, Row::value(name, "s", Some(seconds))];
    let [one, several] = in_turn(args, |threads| {
        let outcome = floodway.run_by(Some(threads), &file, transfers, &args.out)?;
        eprintln!("  threads: {threads}, {:.3} s", outcome.measured.seconds);
        Ok(outcome)
    })?;
    let (more_rows, samples) = figures::threads(args.threads, &one, &several);
    rows.extend(more_rows);
    Ok((rows, vec![samples]))
}

/// Runs with one thread and with several, as often as there are rounds; these take turns in who goes first.
fn in_turn(
    args: &Args,
    run: impl Fn(NonZeroUsize) -> Result<Outcome>,
) -> Result<[Vec<Outcome>; 2]> {
    let (mut one, mut several) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let (first, second) = if round.is_multiple_of(2) {
            let first = run(NonZeroUsize::MIN)?;
            (first, run(args.threads)?)
        } else {
            let second = run(args.threads)?;
            (run(NonZeroUsize::MIN)?, second)
        };
        ensure!(
            first.digest == second.digest && first.done == second.done,
            "one thread and {} threads have different results: please report this",
            args.threads
        );
        one.push(first);
        several.push(second);
    }
    Ok([one, several])
}

/// `floodway-lab replay`: runs one scenario file here, in parts if a number of threads is given, and writes its outcome.
///
/// # Errors
/// When the file is no scenario, or the outcome cannot be written.
pub fn replay(scenario: &Path, outcome: &Path, threads: Option<NonZeroUsize>) -> Result<()> {
    let text = fs::read_to_string(scenario)
        .with_context(|| format!("cannot read {}", scenario.display()))?;
    let scenario = Scenario::parse(&text)
        .with_context(|| format!("{} is not a scenario", scenario.display()))?;
    let played = match threads {
        None => play::play(&scenario),
        Some(threads) => play::play_in_parts(&scenario, threads)?,
    };
    fs::write(outcome, played.render())
        .with_context(|| format!("cannot write {}", outcome.display()))
}
