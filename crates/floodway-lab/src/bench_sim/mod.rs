//! The simulator beside ns-3: speed, and whether they agree.
//!
//! # Theory of operation
//! Both programs read one scenario: topology, queues, TCP's settings, and the list of transfers with their starts and
//! sizes. Both write when each transfer was complete. ns-3 is Debian's optimised build, without logging and traces, with a
//! look-up of routes that takes constant time, so that it is not slowed by what the comparison does not need.
//!
//! Each round runs both, one after the other, each with the processor for itself; rounds take turns in who goes
//! first. Wall time is that of the measured part without making the network. Speed is the median over rounds of the
//! ratio within a round. Virtual results do not depend on the round. They are judged on transfers
//! that are complete in both.

mod case;
mod contender;
mod figures;
mod outcome;
mod play;
mod scenario;
mod shapes;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::experiment::host;
use crate::report::{self, Report, World};
pub use case::Case;
use contender::Contender;
use outcome::Outcome;
use scenario::Scenario;

/// Name of the experiment in its report.
const EXPERIMENT: &str = "bench-sim";

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
    #[arg(long, default_value_t = 0.2)]
    pub seconds: f64,
    /// Seed of starts, sizes and delays
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the report goes
    #[arg(long, default_value = "out/bench-sim")]
    pub out: PathBuf,
}

/// One scenario, once on each simulator.
#[derive(Clone, Debug)]
struct Round {
    scenario: std::rc::Rc<Scenario>,
    floodway: Outcome,
    ns3: Outcome,
}

/// Runs the comparison, prints its table, and writes the report.
///
/// # Errors
/// When ns-3 is missing, a program fails, or the report cannot be written. A short figure is no error.
pub fn run(args: &Args) -> Result<()> {
    let contenders = [Contender::floodway()?, Contender::ns3()?];
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))?;
    let cases = if args.only.is_empty() { Case::ALL.to_vec() } else { args.only.clone() };
    let (mut rows, mut samples) = (Vec::new(), Vec::new());
    for case in cases {
        let rounds = measure(case, args, &contenders)?;
        let (more_rows, more_samples) = figures::rows(case, &rounds);
        rows.extend(more_rows);
        samples.extend(more_samples);
    }
    let report = Report {
        experiment: EXPERIMENT.into(),
        world: World::Sim,
        seed: args.seed,
        host: host::facts(),
        rows,
        notes: vec![format!("fat tree: {} s of virtual time", args.seconds)],
    };
    report.write(&args.out)?;
    report::write_samples(&args.out, &samples)?;
    println!("{}", figures::render(&report));
    println!("report: {}", args.out.join(report::REPORT_FILE).display());
    Ok(())
}

fn measure(case: Case, args: &Args, contenders: &[Contender; 2]) -> Result<Vec<Round>> {
    let scenario = std::rc::Rc::new(case.scenario(args.seconds, args.seed));
    let file = args.out.join(format!("{case}.txt"));
    fs::write(&file, scenario.render())
        .with_context(|| format!("cannot write {}", file.display()))?;
    let transfers = scenario.transfers().count();
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        eprintln!("{case}: round {}/{}, {transfers} transfers", round + 1, args.rounds);
        let mut outcomes = [None, None];
        let first = (round % 2) as usize;
        for n in [first, 1 - first] {
            let outcome = contenders[n].run(&file, transfers, &args.out)?;
            eprintln!("  {}: {:.3} s", contenders[n].simulator, outcome.measured.seconds);
            outcomes[n] = Some(outcome);
        }
        if let [Some(floodway), Some(ns3)] = outcomes {
            rounds.push(Round { scenario: scenario.clone(), floodway, ns3 });
        }
    }
    Ok(rounds)
}

/// `floodway-lab replay`: runs one scenario file here and writes its outcome.
///
/// # Errors
/// When the file is no scenario, or the outcome cannot be written.
pub fn replay(scenario: &Path, outcome: &Path) -> Result<()> {
    let text = fs::read_to_string(scenario)
        .with_context(|| format!("cannot read {}", scenario.display()))?;
    let scenario = Scenario::parse(&text)
        .with_context(|| format!("{} is not a scenario", scenario.display()))?;
    fs::write(outcome, play::play(&scenario).render())
        .with_context(|| format!("cannot write {}", outcome.display()))
}
