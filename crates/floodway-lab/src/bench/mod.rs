//! Floodway beside the switches that people use: DPDK's testpmd, OVS-DPDK, Linux bridge and tap; or beside itself as one process, to see what the second one costs.
//!
//! # Theory of operation
//!
//! One switch runs on one core. `vhgen` (DPDK's virtio-user ports, not our code) plays both guests on
//! another core: it fills the ring of port A and empties that of port B, so the switch is the bottleneck.
//! Machines drift, so switches are *interleaved*: each round runs every case on every switch, and
//! rounds start with another switch each time. Figures are medians over rounds, with the extremes beside them.
//!
//! | frames | load | touched |
//! |---|---|---|
//! | 64 B | ring kept full | headers |
//! | 1500 B | ring kept full | each cache line written by the sender, read and checked by the receiver |
//! | 9000 B, 64 KB TSO | as many in flight as the receive ring holds, as TCP's window would do | same |
//!
//! Cycles per packet are TSC cycles of the switch's core per delivered frame. They are given only
//! when the switch was the bottleneck (most of the client's bursts found no room) and no other program had
//! either core for a noticeable part of the time.
//!
//! A machine without huge pages, DPDK or a second core is not an error: the benchmark, or the one
//! switch, is skipped with the reason. A frame that arrives damaged, cut or out of order is an error.

mod case;
mod contention;
mod figures;
mod generator;
mod hugepages;
mod isolation;
mod peer;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use floodway_report::host;
use floodway_report::provenance::Recorder;
use floodway_report::report::{self, Report, World};
use floodway_report::{About, Provenance};
use serde::Serialize;

use crate::cleanup;
use case::{Case, Frames, Profile};
use contention::PollerTime;
use generator::{Generator, Measurement};
use hugepages::{DPDK_MIB, Reservation};
use peer::{PeerKind, Setup};

/// Name of the experiment in its report.
const EXPERIMENT: &str = "bench";
/// A core that others had for longer than this part of a measurement makes it doubtful.
const CONTENDED: f64 = 0.03;
/// Every measurement, beside the report.
const ROUNDS_FILE: &str = "rounds.json";

/// `floodway-lab bench`: compares Floodway with testpmd, OVS-DPDK, and Linux bridge and tap.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How often each case is measured on each switch.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Measure how an attacker slows others, instead of how fast frames move
    #[arg(long)]
    pub isolation: bool,
    /// Calm slices of each attack and load, and as many attacked ones (with --isolation)
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(3..=1000), requires = "isolation")]
    pub slices: u32,
    /// Milliseconds of each slice (with --isolation)
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(20..=10_000), requires = "isolation")]
    pub slice_ms: u32,
    /// Give the victims memory of 4 KiB pages instead of 2 MiB ones (with --isolation)
    #[arg(long, requires = "isolation")]
    pub small_pages: bool,
    /// Print the report as JSON, and the table to standard error (with --isolation)
    #[arg(long, requires = "isolation")]
    pub json: bool,
    /// Frame sizes (64, 1500, 9000, tso), or attacks with --isolation, to measure; all when absent.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Other switches to measure; all when absent, but for `single-process`: Floodway without its second process.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub peers: Vec<PeerKind>,
    /// Leave Floodway out: baselines of the other switches.
    #[arg(long)]
    pub without_floodway: bool,
    /// CPU of the switch.
    #[arg(long, default_value_t = 0)]
    pub switch_core: usize,
    /// CPU of the client.
    #[arg(long, default_value_t = 1)]
    pub client_core: usize,
    /// Where the report goes [default: out/bench, or out/bench-isolation].
    #[arg(long)]
    pub out: Option<PathBuf>,
}

impl Args {
    fn out(&self) -> PathBuf {
        let default = if self.isolation { isolation::EXPERIMENT } else { EXPERIMENT };
        self.out.clone().unwrap_or_else(|| Path::new("out").join(default))
    }

    /// What `--only` names.
    fn only<T: clap::ValueEnum>(&self) -> Result<Vec<T>> {
        let parse = |name: &String| {
            T::from_str(name, false).map_err(|_| {
                let values = T::value_variants().iter().filter_map(T::to_possible_value);
                let names: Vec<_> = values.map(|value| value.get_name().to_owned()).collect();
                anyhow!("--only {name}: give some of {}", names.join(", "))
            })
        };
        self.only.iter().map(parse).collect()
    }
}

/// One case on one switch in one round.
#[derive(Clone, Debug, Serialize)]
struct Round {
    round: u32,
    peer: PeerKind,
    case: String,
    measurement: Measurement,
    /// Part of the time in which another program ran on the switch's core, 0 to 1.
    switch_waited: f64,
    /// Part of the time in which another program ran on the client's core, 0 to 1.
    client_waited: f64,
}

impl Round {
    /// Other programs had the switch's or the client's core for a part of the time that matters.
    fn contended(&self) -> bool {
        self.switch_waited.max(self.client_waited) > CONTENDED
    }

    /// Cycles per delivered frame. TSC cycles are the switch's own only while it had its core to
    /// itself, and are spent on frames only while frames were waiting.
    fn cycles(&self) -> Option<f64> {
        if self.contended() { None } else { self.measurement.cycles() }
    }
}

/// What a run found.
#[derive(Debug, Default)]
struct Results {
    rounds: Vec<Round>,
    /// Switches that were left out, and why.
    skipped: BTreeMap<PeerKind, String>,
    /// Measurements that should have worked and did not.
    failures: Vec<String>,
}

impl Results {
    /// Another switch that never worked cannot be measured here. One that worked before, and Floodway
    /// always, has failed; later rounds go on, so that the report says how often.
    fn note_failure(&mut self, kind: PeerKind, reason: String) {
        let worked = self.rounds.iter().any(|round| round.peer == kind);
        if worked || kind.is_own() {
            eprintln!("{kind} failed: {reason}");
            self.failures.push(format!("{kind}: {reason}"));
        } else {
            skip(&mut self.skipped, kind, reason);
        }
    }
}

/// Runs the benchmark, prints its table, and writes the report.
///
/// # Errors
/// When the arguments make no sense, a measurement fails (the other rounds are done and reported
/// all the same), or the report cannot be written.
/// Missing prerequisites are no error: they are printed and noted in the report.
pub fn run(args: &Args, recorder: &Recorder) -> Result<()> {
    check(args)?;
    if args.isolation {
        return isolation::run(args, recorder);
    }
    let cases = case::all(&args.only::<Frames>()?);
    let results = match prepare(args) {
        Ok((generator, _reservation)) => measure(args, &cases, &generator)?,
        Err(reason) => {
            let reason = format!("{reason:#}");
            let skipped = switches(args).into_iter().map(|kind| (kind, reason.clone())).collect();
            Results { skipped, ..Results::default() }
        }
    };
    publish(args, &cases, &results, &recorder.finish(None))?;
    ensure!(
        results.failures.is_empty(),
        "{} measurements failed; the first: {}",
        results.failures.len(),
        results.failures[0]
    );
    Ok(())
}

fn check(args: &Args) -> Result<()> {
    ensure!((0.1..=600.0).contains(&args.seconds), "--seconds {}: give 0.1 to 600", args.seconds);
    ensure!(
        args.switch_core != args.client_core,
        "--switch-core {0} and --client-core {0}: give two different cores",
        args.switch_core
    );
    Ok(())
}

/// Floodway first, then the others, each once.
fn switches(args: &Args) -> Vec<PeerKind> {
    let all = [
        PeerKind::Floodway,
        PeerKind::SingleProcess,
        PeerKind::Testpmd,
        PeerKind::OvsDpdk,
        PeerKind::Bridge,
    ];
    all.into_iter()
        .filter(|kind| match kind {
            PeerKind::Floodway => !args.without_floodway,
            PeerKind::SingleProcess => args.peers.contains(kind),
            other => args.peers.is_empty() || args.peers.contains(other),
        })
        .collect()
}

/// What every measurement needs. An error is a reason to skip the benchmark.
fn prepare(args: &Args) -> Result<(Generator, Reservation)> {
    check_cores(args)?;
    let generator = Generator::build(args.client_core)?;
    Ok((generator, Reservation::acquire(DPDK_MIB)?))
}

fn check_cores(args: &Args) -> Result<()> {
    let cores = contention::cores_present()?;
    for core in [args.switch_core, args.client_core] {
        ensure!(
            cores.contains(&core),
            "CPU {core} is not there; the switch and its client need one each"
        );
    }
    Ok(())
}

fn measure(args: &Args, cases: &[Case], generator: &Generator) -> Result<Results> {
    let mut results = Results::default();
    let mut kinds = switches(args);
    kinds.retain(|kind| match kind.missing() {
        None => true,
        Some(reason) => {
            skip(&mut results.skipped, *kind, reason);
            false
        }
    });
    for round in 0..args.rounds {
        for profile in Profile::ALL {
            let cases: Vec<&Case> = cases.iter().filter(|case| case.profile() == profile).collect();
            for kind in &kinds {
                if cases.is_empty() || results.skipped.contains_key(kind) {
                    continue;
                }
                eprintln!("round {}/{}: {} on {kind}", round + 1, args.rounds, profile.describe());
                match measure_switch(args, generator, *kind, profile, &cases, round) {
                    Ok(rounds) => results.rounds.extend(rounds),
                    Err(error) => results.note_failure(*kind, format!("{error:#}")),
                }
            }
        }
        // Nobody always runs first, on a machine that warms up or is busy in bursts.
        if let Some(first) = (!kinds.is_empty()).then(|| kinds.remove(0)) {
            kinds.push(first);
        }
    }
    Ok(results)
}

fn skip(skipped: &mut BTreeMap<PeerKind, String>, kind: PeerKind, reason: String) {
    eprintln!("{kind} skipped: {reason}");
    skipped.insert(kind, reason);
}

/// All cases of one profile on one fresh switch.
fn measure_switch(
    args: &Args,
    generator: &Generator,
    kind: PeerKind,
    profile: Profile,
    cases: &[&Case],
    round: u32,
) -> Result<Vec<Round>> {
    let dir = cleanup::run_dir()?.join(kind.to_string());
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let setup = Setup::new(&dir, args.switch_core, profile);
    let switch = kind.start(&setup)?;
    let mut rounds = Vec::new();
    for case in cases {
        let before = PollerTime::read(&switch.pids())?;
        let measurement = generator
            .run(case, &setup, args.seconds)
            .with_context(|| format!("{}; log of {kind}:\n{}", case.name(), switch.log_tail()))?;
        let after = PollerTime::read(&switch.pids())?;
        if let Some(damage) = measurement.damage() {
            bail!("{}: {damage}", case.name());
        }
        rounds.push(Round {
            round,
            peer: kind,
            case: case.name(),
            switch_waited: if kind.takes_turns() { 0.0 } else { after.waited_since(&before) },
            client_waited: measurement.client_waited(),
            measurement,
        });
    }
    switch.stop()?;
    Ok(rounds)
}

fn publish(args: &Args, cases: &[Case], results: &Results, run: &Provenance) -> Result<()> {
    let compared = !args.without_floodway;
    let samples = figures::samples(cases, &switches(args), &results.rounds);
    let report = Report {
        about: About::default(),
        experiment: EXPERIMENT.into(),
        world: World::Real,
        seed: 0,
        host: host(results),
        rows: figures::rows(cases, &switches(args), &results.rounds, compared),
        notes: Vec::new(),
    };
    let out = args.out();
    report.write(&out)?;
    report::write_samples(&out, &samples)?;
    run.write(&out)?;
    write_rounds(&out, &results.rounds)?;
    if !results.rounds.is_empty() {
        println!("{}", figures::table(cases, &switches(args), &results.rounds));
    }
    for (kind, reason) in &results.skipped {
        println!("{kind}: skipped, {}", reason.lines().next().unwrap_or_default());
    }
    for caveat in figures::caveats(&results.rounds) {
        println!("caveat: {caveat}");
    }
    println!("report: {}", out.join(report::REPORT_FILE).display());
    Ok(())
}

fn host(results: &Results) -> BTreeMap<String, serde_json::Value> {
    let mut host = host::machine();
    if let Some(round) = results.rounds.first() {
        host.insert("tsc_hz".into(), round.measurement.tsc_hz.into());
    }
    for (kind, reason) in &results.skipped {
        host.insert(format!("skipped {kind}"), reason.as_str().into());
    }
    host
}

fn write_rounds(dir: &Path, rounds: &[Round]) -> Result<()> {
    let path = dir.join(ROUNDS_FILE);
    let text = serde_json::to_string_pretty(rounds)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(peer: PeerKind) -> Round {
        let measurement = generator::tests::measurement();
        Round {
            round: 0,
            peer,
            case: String::new(),
            measurement,
            switch_waited: 0.0,
            client_waited: 0.0,
        }
    }

    #[test]
    fn a_peer_that_never_worked_is_skipped_and_one_that_did_has_failed() {
        let mut results = Results::default();
        results.note_failure(PeerKind::Testpmd, "no DPDK".into());
        assert_eq!(results.skipped[&PeerKind::Testpmd], "no DPDK");
        assert!(results.failures.is_empty());
        results.rounds.push(measured(PeerKind::OvsDpdk));
        results.note_failure(PeerKind::OvsDpdk, "crashed".into());
        assert_eq!(results.failures, ["ovs-dpdk: crashed"]);
    }

    #[test]
    fn floodway_is_never_excused() {
        let mut results = Results::default();
        results.note_failure(PeerKind::Floodway, "no frame arrived".into());
        results.note_failure(PeerKind::SingleProcess, "no frame arrived".into());
        assert!(results.skipped.is_empty());
        let failures = ["floodway: no frame arrived", "single-process: no frame arrived"];
        assert_eq!(results.failures, failures);
    }
}
