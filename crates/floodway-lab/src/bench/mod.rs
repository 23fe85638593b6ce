//! Floodway beside the switches that people use: DPDK's testpmd, OVS-DPDK, Linux bridge and tap; or beside itself as one process, to see what the second one costs.
//!
//! # Theory of operation
//!
//! One switch runs on one core. `vhgen` (DPDK's virtio-user ports, not our code) plays both guests on
//! another core: it fills the ring of port A and empties that of port B, so the switch is the bottleneck.
//!
//! Machines drift by more than switches differ, so switches are *interleaved*: all of a case are alive, each with a client of its own, and take
//! turns. A slice of 150 ms is one switch's; the others are stopped (SIGSTOP) and their clients wait. Slices of the same number are a round, and
//! rounds start with another switch each time. A ratio is that of medians, with an interval drawn by pairs of slices of the same
//! round. A pair of which one slice was disturbed (by the hypervisor, or by others on one of the two cores) does not count, and is made up for.
//!
//! | frames | load | touched |
//! |---|---|---|
//! | 64 B | ring kept full | headers |
//! | 1500 B | ring kept full | each cache line written by the sender, read and checked by the receiver |
//! | 9000 B, 64 KB TSO | as many in flight as the receive ring holds, as TCP's window would do | same |
//! | bursts | all frames of a burst leave at once and are waited for, then the client pauses | same; of 64 B, headers |
//! | uplinks: 64 B, 1500 B, 64 KB TSO to the host | ring kept full; a counter of the kernel tells how many the host has received | written as above |
//! | uplinks: ICMP echo requests to the host | one is waited for, then the client pauses: some 10 000 in a second | headers |
//!
//! Cycles per packet are TSC cycles of the switch's core per delivered frame. They are given only
//! when the switch was the bottleneck (most of the client's bursts found no room).
//!
//! The client has a ceiling of its own: what it reaches with `null`, a peer that returns descriptors and copies nothing but headers.
//!
//! Bursts are how real guests send. There a switch that sleeps in the pauses saves its CPU time for VMs, and pays with a kick and a wake-up for each burst:
//! Floodway has its defaults then, and is compared with switches that always poll, itself among them. The rate is that of the exchanges, pauses left
//! out; CPU time is that of all threads of the processes that move frames.
//!
//! Uplinks are measured beside a bridge with the VM's tap: where the switch has a tap, which is the host's own card, the bridge is; where it has packet
//! sockets on a card, the card is a member of the bridge. Both have their defaults.
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
mod slices;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_report::host;
use floodway_report::provenance::Recorder;
use floodway_report::report::{self, Report, World};
use floodway_report::{About, Provenance};

use crate::cleanup;
use case::{Case, Group, Profile};
use generator::Generator;
use hugepages::Reservation;
use peer::{PeerKind, Setup};
use slices::{Carried, Contestant, Outcome, Slice};

/// Name of the experiment in its report.
const EXPERIMENT: &str = "bench";
/// Every slice, beside the report.
const SLICES_FILE: &str = "slices.json";
/// Slices of each case on each switch, and of each attack and load, calm and attacked.
const SLICES: u32 = 40;
const SLICES_OF_ATTACKS: u32 = 30;
/// Huge pages that DPDK's programs take beside what they are given, in MiB.
const DPDK_TABLES_MIB: u64 = 256;
/// Draws intervals.
const SEED: u64 = 1;

/// `floodway-lab bench`: compares Floodway with testpmd, OVS-DPDK, and Linux bridge and tap.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Measure how an attacker slows others, instead of how fast frames move
    #[arg(long)]
    pub isolation: bool,
    /// Slices of each case on each switch [default: 40], or of each attack and load, calm and attacked [default: 30]
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub slices: Option<u32>,
    /// Milliseconds of each slice
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(20..=10_000))]
    pub slice_ms: u32,
    /// Give the victims memory of 4 KiB pages instead of 2 MiB ones (with --isolation)
    #[arg(long, requires = "isolation")]
    pub small_pages: bool,
    /// Print the report as JSON, and the table to standard error
    #[arg(long)]
    pub json: bool,
    /// Cases (64, 1500, 9000, tso, bursts, uplinks), or attacks with --isolation, to measure; all when absent.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Other switches to measure; all when absent, but for `single-process` (Floodway without its second process) and `all-features` (with all that guards a port).
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

    fn slices(&self) -> u32 {
        self.slices.unwrap_or(if self.isolation { SLICES_OF_ATTACKS } else { SLICES })
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

/// What a run found.
#[derive(Debug, Default)]
struct Results {
    slices: Vec<Slice>,
    carried: Vec<Carried>,
    /// Switches that were left out, and why.
    skipped: BTreeMap<PeerKind, String>,
    /// Measurements that should have worked and did not.
    failures: Vec<String>,
}

impl Results {
    /// Another switch that never worked cannot be measured here. One that worked before, and Floodway
    /// always, has failed; later cases go on, so that the report tells how often.
    fn note_failure(&mut self, kind: PeerKind, reason: String) {
        let worked = self.slices.iter().any(|slice| slice.peer == kind);
        if worked || kind.is_own() {
            eprintln!("{kind} failed: {reason}");
            self.failures.push(format!("{kind}: {reason}"));
        } else {
            skip(&mut self.skipped, kind, reason);
        }
    }

    fn add(&mut self, outcome: Outcome) {
        self.slices.extend(outcome.slices);
        self.carried.extend(outcome.carried);
        for (kind, error) in outcome.failed {
            self.note_failure(kind, format!("{error:#}"));
        }
    }
}

/// Runs the benchmark, prints its table, and writes the report.
///
/// # Errors
/// When the arguments make no sense, a measurement fails (the others are done and reported
/// all the same), or the report cannot be written.
/// Missing prerequisites are no error: they are printed and noted in the report.
pub fn run(args: &Args, recorder: &Recorder) -> Result<()> {
    check(args)?;
    if args.isolation {
        return isolation::run(args, recorder);
    }
    let cases = case::all(&args.only::<Group>()?);
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
        PeerKind::AlwaysPolling,
        PeerKind::AllFeatures,
        PeerKind::Testpmd,
        PeerKind::OvsDpdk,
        PeerKind::Bridge,
        PeerKind::Null,
    ];
    all.into_iter()
        .filter(|kind| match kind {
            PeerKind::Floodway => !args.without_floodway,
            PeerKind::SingleProcess | PeerKind::AllFeatures => args.peers.contains(kind),
            other => args.peers.is_empty() || args.peers.contains(other),
        })
        .collect()
}

/// What every measurement needs. An error is a reason to skip the benchmark.
fn prepare(args: &Args) -> Result<(Generator, Reservation)> {
    check_cores(args)?;
    let generator = Generator::build(args.client_core)?;
    // All of them are alive at once, each with a client.
    let of_each = switches(args)
        .into_iter()
        .map(|kind| kind.huge_pages_mib() + u64::from(generator::MEMORY_MIB));
    Ok((generator, Reservation::acquire(of_each.sum::<u64>() + DPDK_TABLES_MIB)?))
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
    for kind in switches(args) {
        if let Some(reason) = kind.missing() {
            skip(&mut results.skipped, kind, reason);
        }
    }
    for profile in Profile::ALL {
        let cases: Vec<&Case> = cases.iter().filter(|case| case.profile() == profile).collect();
        if cases.is_empty() {
            continue;
        }
        let contestants = start(args, profile, &mut results)?;
        for case in cases {
            eprintln!(
                "{}: {} slices of {} ms on each switch",
                case.name(),
                args.slices(),
                args.slice_ms
            );
            results.add(slices::measure(args, generator, case, &contestants));
        }
        contestants.into_iter().try_for_each(Contestant::stop)?;
    }
    Ok(results)
}

/// Starts all switches for the cases of a profile.
fn start(args: &Args, profile: Profile, results: &mut Results) -> Result<Vec<Contestant>> {
    let mut contestants = Vec::new();
    for kind in switches(args) {
        if results.skipped.contains_key(&kind) || !kind.takes_part(profile) {
            continue;
        }
        let dir = cleanup::run_dir()?.join(kind.to_string());
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        match Contestant::start(kind, Setup::new(&dir, args.switch_core, profile)) {
            Ok(contestant) => contestants.push(contestant),
            Err(error) => results.note_failure(kind, format!("{}: {error:#}", profile.describe())),
        }
    }
    Ok(contestants)
}

fn skip(skipped: &mut BTreeMap<PeerKind, String>, kind: PeerKind, reason: String) {
    eprintln!("{kind} skipped: {reason}");
    skipped.insert(kind, reason);
}

fn publish(args: &Args, cases: &[Case], results: &Results, run: &Provenance) -> Result<()> {
    let (kinds, compared) = (switches(args), !args.without_floodway);
    let samples = figures::samples(cases, &kinds, &results.slices);
    let mut notes = figures::caveats(results);
    notes.extend(figures::ceilings(cases, &results.slices));
    for (kind, reason) in &results.skipped {
        notes.push(format!("{kind}: skipped, {}", reason.lines().next().unwrap_or_default()));
    }
    let report = Report {
        about: About::default(),
        experiment: EXPERIMENT.into(),
        world: World::Real,
        seed: SEED,
        host: host(args, results),
        rows: figures::rows(cases, &kinds, &results.slices, compared),
        notes,
    };
    let out = args.out();
    report.write(&out)?;
    report::write_samples(&out, &samples)?;
    run.write(&out)?;
    write_slices(&out, results)?;
    let table = figures::table(cases, &kinds, &results.slices);
    show(args, &report, &table, &out)
}

/// Prints the table and the notes, or the report as `--json` has it, and where the report is.
fn show(args: &Args, report: &Report, table: &str, out: &Path) -> Result<()> {
    if args.json {
        eprintln!("{table}");
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        println!("{table}");
        report.notes.iter().for_each(|note| println!("{note}"));
    }
    eprintln!("report: {}", out.join(report::REPORT_FILE).display());
    Ok(())
}

fn host(args: &Args, results: &Results) -> BTreeMap<String, serde_json::Value> {
    let mut host = host::machine();
    if let Some(slice) = results.slices.first() {
        host.insert("tsc_hz".into(), slice.tsc_hz.into());
    }
    host.insert("slices".into(), args.slices().into());
    host.insert("slice_ms".into(), args.slice_ms.into());
    for (kind, reason) in &results.skipped {
        host.insert(format!("skipped {kind}"), reason.as_str().into());
    }
    host
}

fn write_slices(dir: &Path, results: &Results) -> Result<()> {
    let path = dir.join(SLICES_FILE);
    let all = serde_json::json!({ "slices": results.slices, "carried": results.carried });
    let text = serde_json::to_string_pretty(&all)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_never_worked_is_skipped_and_one_that_did_has_failed() {
        let mut results = Results::default();
        results.note_failure(PeerKind::Testpmd, "no DPDK".into());
        assert_eq!(results.skipped[&PeerKind::Testpmd], "no DPDK");
        assert!(results.failures.is_empty());
        results.slices.push(figures::tests::slice(PeerKind::OvsDpdk, 0, 1.0));
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
