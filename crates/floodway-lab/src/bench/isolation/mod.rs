//! What an attacker costs others that share its worker: Floodway and OVS-DPDK.
//!
//! # Theory of operation
//! Two VMs exchange frames (the *victims*) beside a hostile VM, front-end or host (the *attacker*), all on one worker of a real switch
//! process. The VMs are in this process, on the other core.
//!
//! The attack is *interleaved*: within one run it is paused and resumed, so that calm and attacked slices of 150 ms take turns, for round
//! trips and a stream each, and the machine's moods hit all four alike. Pairs of slices begin with the calm and with the attacked one in
//! turns. Figures are medians over slices; a slice's own figures are the median and the 99 % quantile of its round trips, and the rate of
//! its stream. The ratio's interval is drawn by pairs of slices.
//!
//! Before each slice there is a while in which its load and the attack run and are not measured, and after it one in which
//! nobody sends and the switch gets through what the attacker has left in its rings, so that slices do not leak into each other.
//!
//! **What must hold.** The victims keep 0.9 of their fair share of the stream and of the rate of round trips, and the 99 % quantile of
//! round trips stays within twice that of calm slices and 200 µs. Fair: an attacker that always has work is due half of the worker, and
//! what it is not charged for is the victims'. Round trips take so little of a worker that all of them are within a fair share. The
//! attacker's share is what the switch itself charges it for (`WORK` of `status`); were that too little, the victims would lose more than the
//! fair share leaves them, so it is no way out.
//!
//! What the machine itself takes from a stream that shares a core is measured besides ([`machine`]), and judges nothing.
//!
//! All threads of the switch are on one core, also those that serve sockets: what front-ends make these do is at the cost of the
//! worker, which is the worst that can happen.

mod attack;
mod figures;
mod kind;
mod machine;
mod run;
mod slices;
mod testbed;
mod victim;
mod vm;

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use floodway_report::host;
use floodway_report::provenance::Recorder;
use floodway_report::report::{self, Report, World};
use floodway_report::{About, Provenance};
use serde::Serialize;

use super::hugepages::Reservation;
use super::peer::PeerKind;
use super::{Args, DPDK_TABLES_MIB, check_cores, show};
use floodway_switch::testing::memory::Pages;
use kind::Kind;
use slices::Slice;
use vm::Spec;

/// Name of the experiment in its report.
pub const EXPERIMENT: &str = "bench-isolation";
/// Every slice, beside the report.
const SLICES_FILE: &str = "slices.json";
/// With fewer slices of each kind a median is not worth much.
const ENOUGH: u32 = 30;

/// An attack on a switch.
#[derive(Clone, Debug, Serialize)]
struct Case {
    peer: PeerKind,
    attack: Kind,
    slices: Vec<Slice>,
    /// Why there are fewer slices than asked for: what became of the switch.
    ended: Option<String>,
}

/// What a run has found.
#[derive(Debug, Default)]
struct Results {
    cases: Vec<Case>,
    /// Attacks and switches that were left out, and why.
    skipped: BTreeMap<String, String>,
    /// How much longer this machine takes for a frame of a stream that shares its core.
    dearer: Option<f64>,
}

/// Runs the benchmark, prints its table, and writes the report. A figure out of its band is no error: see `check`.
///
/// # Errors
/// When the arguments make no sense, there are not two cores, or the report cannot be written.
pub fn run(args: &Args, recorder: &Recorder) -> Result<()> {
    let kinds: Vec<Kind> = args.only()?;
    let kinds = if kinds.is_empty() { Kind::value_variants().to_vec() } else { kinds };
    let peers = peers(args)?;
    check_cores(args)?;
    let mut results = Results::default();
    let _victims = reserve(args, 0)?;
    results.dearer = Some(machine::dearer(args.switch_core)?);
    let (peers, _reservation) = available(args, &peers, &mut results);
    for (number, kind) in kinds.iter().enumerate() {
        for peer in &peers {
            eprintln!("{}/{}: {} on {peer}", number + 1, kinds.len(), kind.name());
            measure(args, *peer, *kind, &mut results);
        }
    }
    publish(args, &results, &recorder.finish(None))
}

fn measure(args: &Args, peer: PeerKind, kind: Kind, results: &mut Results) {
    let not_there = kind.not_on_ovs().filter(|_| peer == PeerKind::OvsDpdk);
    if let Some(reason) = not_there {
        results.skipped.insert(format!("{peer}/{}", kind.name()), reason.into());
        return;
    }
    match run::case(args, peer, kind) {
        Ok(case) => results.cases.push(case),
        // Not measured is a result, too: the rows are there, without values.
        Err(error) => {
            eprintln!("{peer}/{}: not measured: {error:#}", kind.name());
            let ended = Some(format!("not measured: {}", error.root_cause()));
            results.cases.push(Case { peer, attack: kind, slices: Vec::new(), ended });
        }
    }
}

/// The switches that are asked for.
fn peers(args: &Args) -> Result<Vec<PeerKind>> {
    let others = if args.peers.is_empty() { vec![PeerKind::OvsDpdk] } else { args.peers.clone() };
    let strange = others.iter().find(|peer| **peer != PeerKind::OvsDpdk);
    ensure!(strange.is_none(), "--peers: --isolation compares with ovs only");
    let own = (!args.without_floodway).then_some(PeerKind::Floodway);
    Ok(own.into_iter().chain(others).collect())
}

/// Huge pages for the victims, and `more` MiB.
fn reserve(args: &Args, more: u64) -> Result<Option<Reservation>> {
    let pages = run::pages(args);
    let victims = if pages == Pages::Huge { (2 * Spec::victim(pages).end()) >> 20 } else { 0 };
    let mib = victims + more;
    (mib > 0)
        .then(|| Reservation::acquire(mib))
        .transpose()
        .context("memory for VMs (--small-pages gives the victims 4 KiB pages)")
}

/// Those that can be had, with the huge pages that they need.
fn available(
    args: &Args,
    peers: &[PeerKind],
    results: &mut Results,
) -> (Vec<PeerKind>, Option<Reservation>) {
    let (mut available, mut reservation) = (Vec::new(), None);
    for &peer in peers {
        let missing = peer.missing().or_else(|| {
            if peer != PeerKind::OvsDpdk {
                return None;
            }
            let pages = reserve(args, peer.huge_pages_mib() + DPDK_TABLES_MIB);
            pages.map(|pages| reservation = pages).err().map(|error| format!("{error:#}"))
        });
        match missing {
            Some(reason) => {
                eprintln!("{peer} skipped: {reason}");
                results.skipped.insert(peer.to_string(), reason);
            }
            None => available.push(peer),
        }
    }
    (available, reservation)
}

fn publish(args: &Args, results: &Results, run: &Provenance) -> Result<()> {
    let out = args.out();
    let report = Report {
        about: About::default(),
        experiment: EXPERIMENT.into(),
        world: World::Real,
        seed: 0,
        host: host(args),
        rows: results.cases.iter().flat_map(figures::rows).collect(),
        notes: figures::notes(results, args.slices() < ENOUGH),
    };
    report.write(&out)?;
    let samples: Vec<_> = results.cases.iter().flat_map(figures::samples).collect();
    report::write_samples(&out, &samples)?;
    run.write(&out)?;
    let path = out.join(SLICES_FILE);
    let text = serde_json::to_string_pretty(&results.cases)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let table = figures::table(&results.cases);
    show(args, &report, &table, &out)
}

fn host(args: &Args) -> BTreeMap<String, serde_json::Value> {
    let mut host = host::machine();
    host.insert("victims_page_kib".into(), (run::pages(args).bytes() >> 10).into());
    host.insert("slices".into(), args.slices().into());
    host.insert("slice_ms".into(), args.slice_ms.into());
    host.insert("switch_core".into(), args.switch_core.into());
    host.insert("client_core".into(), args.client_core.into());
    host
}
