//! Runs of a cell once more, with a trace.

use std::time::Duration;

use anyhow::{Result, ensure};
use floodway_core::time::Instant;
use floodway_sim::flow::Side;
use floodway_sim::trace::Passage;
use floodway_sim::traffic::{Transfer, Transfers};

use super::super::measurement::{Parameters, Recorder};
use super::super::transfer::{Case, Stage, offload};
use super::path::{self, Stretch};
use super::schedule::Schedule;

/// Passages of a run that are kept at most.
const MOST: usize = 1 << 21;
/// Looks at the congestion window during a transfer.
const LOOKS: u32 = 1200;

/// A transfer and what its time is spent with.
#[derive(Clone, Debug)]
pub struct Played {
    /// Its times.
    pub transfer: Transfer,
    /// Its critical path, from its beginning to its end.
    pub path: Vec<Stretch>,
}

/// A transfer with all that was recorded of it.
#[derive(Debug)]
pub struct Seen {
    /// Its times, and its critical path.
    pub played: Played,
    /// What the machine's vCPUs did during the run.
    pub schedule: Schedule,
    /// The way of its packets.
    pub passages: Vec<Passage>,
    /// How much may be sent, in bytes from the beginning: what is acknowledged, and the congestion window. The switch's window where it
    /// has one for the connection, else the sender's.
    pub limits: Vec<(Instant, u64)>,
}

/// When a transfer begins and ends: the measure `whole`.
pub const fn ends(transfer: &Transfer) -> [Instant; 2] {
    [transfer.begun, transfer.replied]
}

/// All transfers of a run, in their order, but those whose packets are not all in the trace.
///
/// # Errors
/// When the parameters of the case make no sense.
pub fn all(case: &Case, seed: u64) -> Result<Vec<Played>> {
    let mut case = case.clone();
    case.occupancy_ms = None;
    let mut stage = traced(&case, seed)?;
    let none = Parameters::new();
    case.play(&mut stage, &mut Recorder::new("", &none, seed));
    let schedule = schedule(&case, &stage);
    let Some(app) = stage.world.app::<Transfers>(stage.app) else { return Ok(Vec::new()) };
    let until = full_at(&stage);
    let whole = app.complete().iter().filter(|transfer| ends(transfer)[1] <= until);
    Ok(whole.map(|transfer| played(&case, &stage, transfer, &schedule)).collect())
}

/// One of the transfers that [`all`] has found, again.
///
/// # Errors
/// When the parameters of the case make no sense, or the seed is another one.
pub fn one(case: &Case, seed: u64, transfer: &Transfer) -> Result<Seen> {
    let mut stage = traced(case, seed)?;
    let [begun, ended] = ends(transfer);
    stage.world.run(begun);
    let step = (ended.since(begun) / LOOKS).max(Duration::from_nanos(1));
    let mut limits = Vec::new();
    while stage.world.now() < ended {
        stage.world.run(ended.min(stage.world.now() + step));
        limits.extend(limit(&stage, transfer).map(|limit| (stage.world.now(), limit)));
    }
    stage.world.run(ended + Duration::from_nanos(1));
    let schedule = schedule(case, &stage);
    let played = played(case, &stage, transfer, &schedule);
    let passages = passages(&stage, transfer);
    ensure!(!passages.is_empty(), "there is no such transfer in the run of seed {seed}");
    Ok(Seen { played, schedule, passages, limits })
}

fn traced(case: &Case, seed: u64) -> Result<Stage> {
    let mut stage = case.set_up(seed)?;
    stage.world.trace(MOST);
    Ok(stage)
}

fn schedule(case: &Case, stage: &Stage) -> Schedule {
    let recorded = stage.world.machine(stage.machine).cpus().recorded();
    Schedule::new(case.vms as usize + 1, recorded)
}

/// Until when the trace has everything.
fn full_at(stage: &Stage) -> Instant {
    let full = stage.world.traced().filter(|trace| trace.is_full());
    full.and_then(|trace| trace.passages().last()).map_or(Instant::NEVER, |last| last.at)
}

fn played(case: &Case, stage: &Stage, transfer: &Transfer, schedule: &Schedule) -> Played {
    let path = path::follow(&passages(stage, transfer), schedule, case.outwards, ends(transfer));
    Played { transfer: *transfer, path }
}

fn passages(stage: &Stage, transfer: &Transfer) -> Vec<Passage> {
    let all = stage.world.traced().map_or(&[][..], |trace| trace.passages());
    let own =
        |passage: &&Passage| passage.packet.flow == transfer.flow && passage.packet.tcp().is_some();
    all.iter().filter(own).copied().collect()
}

fn limit(stage: &Stage, transfer: &Transfer) -> Option<u64> {
    let flow = stage.world.flows().get(transfer.flow)?;
    let sender = flow.end(Side::Client).connection.as_ref()?.sender();
    let tuple = flow.tuple(Side::Client);
    let engine = offload(stage).and_then(|offload| offload.engine(0));
    let flows = engine.map(|engine| engine.flows(0, u32::MAX).0).unwrap_or_default();
    let own = flows.iter().find(|flow| flow.flow == tuple);
    Some(match own {
        // What the guest sent, less what the switch holds and what is under way, is acknowledged.
        Some(own) if own.cwnd > 0 => {
            let sent = sender.acknowledged() + u64::from(sender.outstanding());
            sent.saturating_sub(u64::from(own.held + own.in_flight)) + u64::from(own.cwnd)
        }
        _ => sender.acknowledged() + u64::from(sender.window().cwnd),
    })
}
