//! Do all bytes arrive as they were, with both offloads on, over a path that loses, reorders and doubles packets?
//!
//! # Theory of operation
//!
//! One VM and a machine behind an emulated path (`FarEnd`) exchange streams of pseudo-random bytes, several at a time
//! (`lanes`); both ends hash what they sent or read, and a stream counts as *intact* when length and SHA-256
//! agree. A *cell* is one direction under one treatment: offload on all the time, or switched off and on again and
//! again over the control socket while streams begin, run and end (`flips`).
//!
//! A stream that runs when offload is switched off goes on as plain TCP, and stays so unless it falls idle. So that switching
//! meets connections in all their states, cells that switch use many short streams.
//!
//! A cell may also pause the VM again and again (`pauses`): what was acknowledged for it must survive that.
//!
//! What proves that the experiment was one: the emulator's own counts of lost, doubled and reordered packets each way, and
//! the share of the bytes that the offload handled, by the switch's counters. While offload is on, the
//! guest's kernel must count no retransmission and no timeout: losses are the switch's to repair.

mod flips;
pub(super) mod lanes;
mod pauses;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::testbed::{Network, Testbed};
use super::transfer::far_end::FarEnd;
use super::transfer::{Path, Profile, Variant, variant};
use super::{Measured, RealScenario, Run};
use crate::agent::Counters;
use crate::kernel::Series;
use crate::vm::Vm;
use flips::Flips;
use lanes::{Ends, Outcome};
use pauses::Pause;

/// What the guest is prepared for; cells that switch do so behind its back.
const VARIANTS: [Variant; 1] = [Variant::Offload];
/// Core of the path's emulator.
const PATH_CORE: usize = 0;
/// Most bytes of a cell of a quick run, in MB.
const QUICK_MB: u64 = 200;
/// Longest time without progress. Only ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Integrity {
    /// Kernel of the guest.
    pub kernel: Series,
    /// Bytes of each cell in MB, at least 1.
    pub total_mb: u64,
    /// What lies between the switch and the other end. It must do something.
    pub path: Path,
    /// What is measured, in this order.
    pub cell: Vec<Cell>,
}

/// One direction under one treatment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// For the names of rows.
    pub name: String,
    /// Which way the bytes go.
    pub direction: Direction,
    /// Streams at once, 1 to 16.
    pub streams: u32,
    /// Bytes of one stream in MB, at least 1; the last of a cell may have less.
    pub stream_mb: u64,
    /// Time between two switches of the offload, off or on, in ms; on all the time without it.
    pub flip_ms: Option<u64>,
    /// Pauses of the VM; none without it.
    pub pause: Option<Pause>,
}

/// Which way the bytes go, seen from the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// It sends.
    Out,
    /// It receives.
    In,
}

/// What the parts of the testbed have counted, at one moment.
struct Counts {
    guest: Counters,
    offload: BTreeMap<String, u64>,
    path: BTreeMap<&'static str, u64>,
}

impl RealScenario for Integrity {
    fn steps(&self) -> u64 {
        1 + self.cell.len() as u64
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        let full = self.total_mb;
        self.total_mb = full.min(QUICK_MB);
        Some(format!("quick run: {} of {full} MB in each cell", self.total_mb))
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        run.progress.step("booting the VM");
        let testbed = Testbed::start("integrity", &[self.kernel], &[Network::Floodway])?;
        let guest = &testbed.guests()[0];
        let end = FarEnd::open(testbed.host(), guest, &self.path, 0, (PATH_CORE, run.seed))?;
        variant::prepare(guest, &VARIANTS, Profile::Today)?;
        let mut measured = Measured::default();
        for (index, cell) in self.cell.iter().enumerate() {
            run.progress.step(&format!("{}, {} MB", cell.name, self.total_mb));
            // No two streams of a run have the same bytes.
            let seed = run.seed.wrapping_add((index as u64) << 32);
            cell.measure(self.total_mb, &testbed, &end, seed, &mut measured)
                .with_context(|| format!("cell `{}`", cell.name))?;
        }
        Ok(measured)
    }
}

impl Integrity {
    fn check(&self) -> Result<()> {
        ensure!(self.total_mb >= 1, "total_mb = 0: must be at least 1");
        ensure!(!self.path.is_direct(), "path: name something that it does to packets");
        ensure!(!self.cell.is_empty(), "cell: name at least one");
        for cell in &self.cell {
            let streams = cell.streams;
            ensure!((1..=16).contains(&streams), "streams = {streams}: must be 1 to 16");
            ensure!(cell.stream_mb >= 1, "stream_mb = 0: must be at least 1");
            ensure!(cell.flip_ms != Some(0), "flip_ms = 0: must be at least 1");
            cell.pause.map_or(Ok(()), |pause| pause.check())?;
        }
        Ok(())
    }
}

impl Cell {
    fn measure(
        &self,
        total_mb: u64,
        testbed: &Testbed,
        end: &FarEnd<'_>,
        seed: u64,
        measured: &mut Measured,
    ) -> Result<()> {
        let guest = &testbed.guests()[0];
        variant::activate(Variant::Offload, &VARIANTS, Profile::Today, testbed.switch()?, guest)?;
        let before = Counts::take(testbed, guest, end)?;
        let period = self.flip_ms.map(Duration::from_millis);
        let flips = period.map(|period| Flips::start(testbed.switch()?, guest.name(), period));
        let flips = flips.transpose()?;
        let started = Instant::now();
        let ends = Ends { guest, far: end, direction: self.direction, patience: PATIENCE };
        let transfer = || lanes::run(&ends, &self.lanes(total_mb), seed);
        let outcome = match &self.pause {
            None => transfer(),
            Some(pause) => {
                let (outcome, count) = pause.during(guest, transfer)?;
                measured.add_value(self.row("pauses"), "pauses", count as f64);
                outcome
            }
        }?;
        let elapsed = started.elapsed();
        if let Some(flips) = flips {
            let count = flips.stop()?;
            measured.add_value(self.row("switches of the offload"), "switches", count as f64);
        }
        let after = Counts::take(testbed, guest, end)?;
        self.report(&outcome, total_mb, elapsed, measured);
        self.report_counts(&before, &after, total_mb, measured);
        Ok(())
    }

    /// Bytes of each stream, one after the other, of each lane.
    fn lanes(&self, total_mb: u64) -> Vec<Vec<u64>> {
        let mut lanes = vec![Vec::new(); self.streams as usize];
        let (mut left, mut next) = (total_mb, 0);
        // A lane of its own for each stream at once, also where there are few bytes.
        let longest = self.stream_mb.min(total_mb.div_ceil(self.streams.into()));
        while left > 0 {
            let stream = left.min(longest);
            lanes[next].push(stream * 1_000_000);
            left -= stream;
            next = (next + 1) % lanes.len();
        }
        lanes
    }

    fn report(&self, outcome: &Outcome, total_mb: u64, elapsed: Duration, measured: &mut Measured) {
        let intact = outcome.intact_bytes as f64 / 1e6;
        measured.add_value(self.row("data intact"), "MB", intact);
        measured.add_value(self.row("share of the data intact"), "x", intact / total_mb as f64);
        measured.add_value(self.row("streams intact"), "streams", outcome.intact as f64);
        measured.add_value(self.row("streams broken"), "streams", outcome.broken as f64);
        let rate = intact * 8.0 / elapsed.as_secs_f64();
        measured.add_value(self.row("rate"), "Mbit/s", rate);
        let first = outcome.first_failure.iter();
        measured.notes.extend(first.map(|why| format!("{}: first failure: {why}", self.name)));
    }

    fn report_counts(
        &self,
        before: &Counts,
        after: &Counts,
        total_mb: u64,
        measured: &mut Measured,
    ) {
        let guest = |name: &str| {
            let of = |counts: &Counts| counts.guest.get(name).copied().unwrap_or(0);
            (of(after) - of(before)).max(0) as f64
        };
        // A SYN that is lost is the guest's own: there is no connection yet. The kernel counts it in both others.
        let syns = guest("TcpExtTCPSynRetrans");
        measured.add_value(self.row("guest SYNs sent again"), "segments", syns);
        let sent_again = guest("TcpRetransSegs") - syns;
        measured.add_value(self.row("guest retransmissions"), "segments", sent_again.max(0.0));
        let timeouts = guest("TcpExtTCPTimeouts") - syns;
        measured.add_value(self.row("guest timeouts"), "timeouts", timeouts.max(0.0));
        let handled = match self.direction {
            Direction::Out => "stored_bytes",
            Direction::In => "acknowledged_bytes",
        };
        let share = (after.offload(handled) - before.offload(handled)) as f64 / 1e6;
        measured.add_value(self.row("share offloaded"), "x", share / total_mb as f64);
        let repaired = (after.offload("retransmitted") - before.offload("retransmitted")) as f64;
        measured.add_value(self.row("repairs by the switch"), "ranges", repaired);
        for (name, count) in &after.path {
            let count = count - before.path.get(name).copied().unwrap_or(0);
            measured.add_value(self.row(name), "packets", count as f64);
        }
    }

    fn row(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }
}

impl Counts {
    fn take(testbed: &Testbed, guest: &Vm, end: &FarEnd<'_>) -> Result<Self> {
        Ok(Self {
            guest: guest.agent().counters()?,
            offload: testbed.switch()?.offload_counters(guest.name())?,
            path: path_counts(end)?,
        })
    }

    fn offload(&self, name: &str) -> u64 {
        self.offload.get(name).copied().unwrap_or(0)
    }
}

/// What the path did to packets, each way; the link to a host is the egress of its port.
fn path_counts(end: &FarEnd<'_>) -> Result<BTreeMap<&'static str, u64>> {
    let counters = end.counters()?.context("there is no emulated path")?;
    let link = |port| counters.port(port).with_context(|| format!("the path has no port {port}"));
    let (to, from) = (&link("near")?.egress, &link("far")?.egress);
    Ok(BTreeMap::from([
        ("lost on the way to the VM", to.lost.packets),
        ("doubled on the way to the VM", to.duplicated.packets),
        ("reordered on the way to the VM", to.reordered.packets),
        ("lost on the way from the VM", from.lost.packets),
        ("doubled on the way from the VM", from.duplicated.packets),
        ("reordered on the way from the VM", from.reordered.packets),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Scenario};

    const TEXT: &str = r#"
        name = "t"
        title = "t"
        [scenario]
        kind = "integrity"
        kernel = "6.1"
        total_mb = 5000
        [scenario.path]
        name = "bad"
        loss_percent = 1.0
        [[scenario.cell]]
        name = "out"
        direction = "out"
        streams = 3
        stream_mb = 40
        flip_ms = 100
    "#;

    fn parse(from: &str, to: &str) -> Result<Integrity> {
        assert!(TEXT.contains(from));
        match Experiment::parse(&TEXT.replace(from, to))?.scenario {
            Scenario::Integrity(scenario) => Ok(scenario),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lanes_carry_all_bytes_in_streams_of_the_size_asked_for() {
        let scenario = parse("5000", "310").unwrap();
        let mb = 1_000_000;
        let lanes = scenario.cell[0].lanes(scenario.total_mb);
        let expected =
            [vec![40 * mb, 40 * mb, 40 * mb], vec![40 * mb, 40 * mb, 30 * mb], vec![40 * mb; 2]];
        assert_eq!(lanes, expected);
        assert_eq!(scenario.cell[0].lanes(100), [[34 * mb], [34 * mb], [32 * mb]]);
    }

    #[test]
    fn a_quick_run_has_less_data_and_says_so() {
        let mut scenario = parse("5000", "5000").unwrap();
        assert_eq!(scenario.use_quick_profile().unwrap(), "quick run: 200 of 5000 MB in each cell");
        scenario.check().unwrap();
        let bytes: u64 = scenario.cell[0].lanes(scenario.total_mb).iter().flatten().sum();
        assert_eq!(bytes, 200_000_000);
    }

    #[test]
    fn senseless_parameters_are_refused_by_name() {
        let refused = |from: &str, to: &str| {
            let error = parse(from, to).and_then(|scenario| scenario.check());
            format!("{:#}", error.unwrap_err())
        };
        assert!(refused("5000", "0").starts_with("total_mb = 0"));
        assert!(refused("= 1.0", "= 0.0").starts_with("path"));
        assert!(refused("= 3", "= 17").starts_with("streams = 17"));
        assert!(refused("= 40", "= 0").starts_with("stream_mb = 0"));
        assert!(refused("= 100", "= 0").starts_with("flip_ms = 0"));
        let pause = "= 100\npause = { every_ms = 5, for_ms = 0 }";
        assert!(refused("= 100", pause).starts_with("pause.for_ms = 0"));
        assert!(refused("\"out\"\n        streams", "\"up\"\n        streams").contains("up"));
    }
}
