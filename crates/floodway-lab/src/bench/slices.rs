//! Slices in turns: all switches and their clients are alive, and one switch at a time moves frames.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use floodway_report::provenance::ProcessorTime;
use serde::Serialize;

use super::Args;
use super::case::Case;
use super::contention::PollerTime;
use super::generator::{Client, Generator, Measurement, Totals};
use super::peer::{PeerKind, Setup, Switch};
use crate::noise::{self, Disturbance};

/// Before each slice frames move for so long and are not counted: caches fill, and a switch that sleeps wakes up.
const SETTLE: Duration = Duration::from_millis(20);
/// The same before the first slice, in which tables fill, too.
const WARMUP: Duration = Duration::from_millis(500);
/// Disturbed slices are measured again until there are this many times as many as asked for.
const MOST: u32 = 2;

/// One case on one switch for a slice of time.
#[derive(Clone, Debug, Serialize)]
pub struct Slice {
    pub case: String,
    pub peer: PeerKind,
    /// Slices of the same number were measured one after the other.
    pub number: u32,
    pub measurement: Measurement,
    pub disturbance: Disturbance,
    /// Round trip of a cache line between the two cores before the round, in nanoseconds.
    pub round_trip_ns: Option<f64>,
    /// CPU time of the switch's processes that move frames by the slice's time: 1 is a core.
    pub switch_cpu: f64,
    pub tsc_hz: u64,
}

impl Slice {
    /// TSC cycles per delivered frame, when the switch was the bottleneck: only then are all of them spent on frames.
    pub fn cycles(&self) -> Option<f64> {
        let mpps = self.measurement.mpps();
        (self.measurement.is_saturated() && mpps > 0.0).then(|| self.tsc_hz as f64 / (mpps * 1e6))
    }
}

/// What has become of all frames of a case on a switch.
#[derive(Clone, Debug, Serialize)]
pub struct Carried {
    pub case: String,
    pub peer: PeerKind,
    pub totals: Totals,
}

/// A switch that is running, or stopped until its next slice.
#[derive(Debug)]
pub struct Contestant {
    pub kind: PeerKind,
    setup: Setup,
    switch: Switch,
}

impl Contestant {
    /// Starts a switch, which runs.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(kind: PeerKind, setup: Setup) -> Result<Self> {
        let switch = kind.start(&setup)?;
        Ok(Self { kind, setup, switch })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When a process does not go.
    pub fn stop(self) -> Result<()> {
        self.switch.stop()
    }

    fn failed(&self, error: anyhow::Error, case: &Case) -> anyhow::Error {
        let log = self.switch.log_tail();
        error.context(format!("{}; log of {}:\n{log}", case.name(), self.kind))
    }
}

/// A switch and its client, which take part in a case.
struct Entry<'a> {
    contestant: &'a Contestant,
    client: Client,
}

impl Entry<'_> {
    /// Measures a slice, in which the switch runs.
    fn slice(&mut self, case: &Case, number: u32, settle: Duration, args: &Args) -> Result<Slice> {
        let switch = &self.contestant.switch;
        switch.resume()?;
        let slice = self.measure(case, number, settle, args);
        switch.pause()?;
        slice
    }

    fn measure(
        &mut self,
        case: &Case,
        number: u32,
        settle: Duration,
        args: &Args,
    ) -> Result<Slice> {
        let Contestant { kind, switch, .. } = self.contestant;
        let time = Duration::from_millis(args.slice_ms.into());
        let (pids, processors) = (switch.pids(), ProcessorTime::read());
        let start = Instant::now();
        let before = PollerTime::read(&pids)?;
        let measurement = self.client.measure(settle, time)?;
        let (after, took) = (PollerTime::read(&pids)?, start.elapsed());
        let steal = processors.zip(ProcessorTime::read());
        let steal = steal.and_then(|(before, after)| after.steal_since(before)).unwrap_or(0.0);
        // Behind an uplink threads of the kernel take part.
        let takes_turns = kind.takes_turns() || case.uplink.is_some();
        let waited = if takes_turns { 0.0 } else { after.waited_since(&before) };
        let strangers = waited.max(measurement.client_waited());
        Ok(Slice {
            case: case.name(),
            peer: *kind,
            number,
            measurement,
            disturbance: Disturbance { steal, strangers },
            round_trip_ns: None,
            switch_cpu: after.ran_since(&before).as_secs_f64() / took.as_secs_f64(),
            tsc_hz: self.client.tsc_hz,
        })
    }

    /// Ends the client while the switch runs.
    fn finish(self, case: &Case) -> Result<Carried> {
        let Self { contestant: Contestant { kind, switch, .. }, client } = self;
        switch.resume()?;
        let totals = client.finish();
        switch.pause()?;
        let totals = totals?;
        let corrupt = if kind.copies_frames() { totals.corrupt } else { 0 };
        if let Some(damage) = (Totals { corrupt, ..totals.clone() }).damage() {
            bail!("{damage}");
        }
        Ok(Carried { case: case.name(), peer: *kind, totals })
    }
}

/// What a case has given.
#[derive(Debug, Default)]
pub struct Outcome {
    pub slices: Vec<Slice>,
    pub carried: Vec<Carried>,
    /// Switches on which something went wrong, after which they took no part any more.
    pub failed: Vec<(PeerKind, anyhow::Error)>,
}

/// Measures a case on all switches, which are stopped before and after.
pub fn measure(
    args: &Args,
    generator: &Generator,
    case: &Case,
    contestants: &[Contestant],
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for contestant in contestants {
        match enter(args, generator, case, contestant) {
            Ok(entry) => entries.push(entry),
            Err(error) => outcome.failed.push((contestant.kind, contestant.failed(error, case))),
        }
    }
    let (mut number, mut left) = (0, args.slices());
    while left > 0 && number < MOST * args.slices() && !entries.is_empty() {
        let quiet = round(args, case, number, &mut entries, &mut outcome);
        left -= u32::from(quiet);
        number += 1;
        if !entries.is_empty() {
            // Nobody always goes first.
            entries.rotate_left(1);
        }
    }
    for entry in entries {
        let contestant = entry.contestant;
        match entry.finish(case) {
            Ok(carried) => outcome.carried.push(carried),
            Err(error) => outcome.failed.push((contestant.kind, contestant.failed(error, case))),
        }
    }
    outcome
}

/// Starts the client of a switch, and lets both warm up.
fn enter<'a>(
    args: &Args,
    generator: &Generator,
    case: &Case,
    contestant: &'a Contestant,
) -> Result<Entry<'a>> {
    contestant.switch.resume()?;
    let client = generator.start(case, &contestant.setup, &contestant.switch);
    let client = client.inspect_err(|_| drop(contestant.switch.pause()))?;
    let mut entry = Entry { contestant, client };
    entry.slice(case, 0, WARMUP, args).context("warming up")?;
    Ok(entry)
}

/// A slice on each switch. Returns `true` if none was disturbed.
fn round(
    args: &Args,
    case: &Case,
    number: u32,
    entries: &mut Vec<Entry<'_>>,
    outcome: &mut Outcome,
) -> bool {
    let mut is_quiet = true;
    // Nothing runs between rounds.
    let round_trip_ns = noise::round_trip_ns([args.switch_core, args.client_core]);
    entries.retain_mut(|entry| match entry.slice(case, number, SETTLE, args) {
        Ok(slice) => {
            let slice = Slice { round_trip_ns, ..slice };
            is_quiet &= slice.disturbance.is_quiet();
            outcome.slices.push(slice);
            true
        }
        Err(error) => {
            let contestant = entry.contestant;
            outcome.failed.push((contestant.kind, contestant.failed(error, case)));
            false
        }
    });
    is_quiet
}
