//! Transfers of a VM that waits for its CPU: the main measurement of vFlood and vSnoop.
//!
//! # Theory of operation
//!
//! Some VMs share one core of the host ([`contention`]); one of them, the first, has a TCP connection to a
//! machine that does not wait. Transfers run between the two ([`floodway_guest::transfer`]) in *cells*: one host
//! situation, one path, one size, one number of flows, one profile. Within a cell the *columns* under
//! comparison take turns block by block, A B B A, in the same VMs, so that whatever drifts meets all
//! columns alike. A profile is a kind of host and guest: `2011` (Reno, initial window 3, vCPUs in round robin with
//! slices of 30 ms, as on Xen without wake-up boost) and `today` (CUBIC, initial window 10, the host's
//! EEVDF as it is).
//!
//! Figures are throughputs, bytes by time, per round of flows (one flow unless the cell has more;
//! else the median of the round's flows, which with `back_to_back` are not of the same time):
//!
//! | measure | from | to | taken at |
//! |---|---|---|---|
//! | `data-phase` of what a VM sends | first byte comes | last byte comes | receiver, kernel timestamps |
//! | `data-phase` of what a VM receives | first write | nothing unacknowledged | sender |
//! | `whole` | `connect` | last byte of the reply read | whoever connects |
//! | `aggregate` (several flows) | first byte of any | last byte of any | receiver |
//!
//! A data phase is never counted shorter than its bytes take on a link of `line_rate_mbit`: what
//! arrives in one burst has no duration of its own. Rounds are independent draws from the
//! scheduler's phases; a round that failed in one column is left out of all.
//!
//! Beside them stand the guest kernel's own counters, because a guest that retransmits or times out
//! while the path is alive has been harmed by what was done for it.

mod cell;
pub(super) mod column;
pub(super) mod contention;
pub(super) mod far_end;
mod figures;
mod measure;
mod phases;
pub(super) mod profile;
pub(super) mod tcp;

use anyhow::{Result, bail, ensure};
use floodway_guest::transfer::HEADER;
use serde::Deserialize;

use super::testbed::Network;
use super::{Measured, RealScenario, Run};
use crate::kernel::Series;

pub use column::Column;
pub use far_end::Path;
pub use profile::Profile;

/// Rounds of a quick run, at most.
const QUICK_ROUNDS: u32 = 10;
/// Fewest rounds that say anything.
const LEAST_ROUNDS: u32 = 3;

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Whether the contended VM sends, receives, or does both.
    pub direction: Direction,
    /// Kernel of the guests.
    #[serde(deserialize_with = "super::series")]
    pub kernel: Series,
    /// What is compared; the first is the baseline of the others.
    pub columns: Vec<Column>,
    /// Other pairs to compare, value and baseline, in place of "each with the first".
    #[serde(default)]
    pub compare: Vec<[Column; 2]>,
    /// Profiles of host and guest.
    #[serde(default = "both_profiles")]
    pub profiles: Vec<Profile>,
    /// Host situations.
    pub hosts: Vec<HostLoad>,
    /// Sizes of transfers in bytes, at least 40.
    pub bytes: Vec<u64>,
    /// Connections of a round; with `mixed`, one number for each path.
    #[serde(default = "one_flow")]
    pub flows: Vec<Vec<u32>>,
    /// Paths to the other end. None is the host itself.
    #[serde(default)]
    pub path: Vec<Path>,
    /// All paths at once, each with its share of the flows, instead of one after the other.
    #[serde(default)]
    pub mixed: bool,
    /// The flows of a cell do not wait for each other: each is followed at once by the next one. Needs more than one.
    #[serde(default)]
    pub back_to_back: bool,
    /// Rounds in each column of a cell, at least 3.
    pub transfers: u32,
    /// Fewer rounds for large sizes, where the full number would take hours.
    pub fewer: Option<Fewer>,
    /// Rounds before the columns change.
    #[serde(default = "ten")]
    pub block: u32,
    /// What the guest's sockets start with for reception, in bytes (the default of `net.ipv4.tcp_rmem`);
    /// none: the kernel's 128 KiB. Half of it is the window that the guest advertises at first.
    pub guest_receive_buffer: Option<u32>,
    /// What the switch may hold of what the contended VM sends, in bytes; none: the switch's default.
    pub budget: Option<u32>,
    /// Where QEMU's main loop runs.
    #[serde(default)]
    pub emulator: Emulator,
    /// Period of the load in each VM, in ms.
    #[serde(default = "paper_period")]
    pub period_ms: u64,
    /// Rate that no data phase exceeds.
    #[serde(default = "paper_rate")]
    pub line_rate_mbit: u32,
}

/// Which way the bytes go, seen from the contended VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// It connects and sends (vFlood).
    Out,
    /// It is connected to and receives (vSnoop).
    In,
    /// It receives, and answers with as many bytes on the same connection.
    Both,
}

/// Where QEMU's threads other than vCPUs run. It decides how long a VM's turns really are: see
/// [`contention`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Emulator {
    /// On the core of the switch.
    #[default]
    Apart,
    /// On the core of the VMs, above them, as a hypervisor.
    Above,
}

/// VMs on the contended core, and what else they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLoad {
    /// VMs, 1 to 8, the measured one among them.
    pub vms: u32,
    /// Share of each period that each VM, the measured one too, is busy; 0 is no load.
    pub load_percent: u32,
}

/// An exception for sizes that take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fewer {
    /// From this size on, in bytes.
    pub from_bytes: u64,
    /// This many rounds in each column.
    pub transfers: u32,
}

fn both_profiles() -> Vec<Profile> {
    vec![Profile::Era2011, Profile::Today]
}

fn one_flow() -> Vec<Vec<u32>> {
    vec![vec![1]]
}

fn ten() -> u32 {
    10
}

/// 30 ms: the slice of Xen's scheduler, and the period of the papers' load generator.
fn paper_period() -> u64 {
    30
}

/// 1 Gbit/s: the papers' network.
fn paper_rate() -> u32 {
    1000
}

impl RealScenario for Transfer {
    fn steps(&self) -> u64 {
        let boots = self.hosts.len() as u64;
        let situations = boots * (self.path_sets().len() * self.profiles.len()) as u64;
        let blocks = |bytes: u64, flows: &[u32]| {
            let rounds = self.rounds(bytes);
            u64::from(rounds.div_ceil(self.block_rounds(rounds, flows))) * self.columns.len() as u64
        };
        let cells =
            self.bytes.iter().flat_map(|bytes| self.flows.iter().map(move |flows| (bytes, flows)));
        boots + situations * cells.map(|(bytes, flows)| blocks(*bytes, flows)).sum::<u64>()
    }

    fn quicken(&mut self) -> Option<String> {
        let full = self.transfers;
        self.transfers = (full / 10).clamp(LEAST_ROUNDS.min(full), QUICK_ROUNDS);
        self.fewer =
            self.fewer.map(|fewer| Fewer { transfers: fewer.transfers.min(LEAST_ROUNDS), ..fewer });
        self.block = self.block.min(self.transfers.div_ceil(2));
        Some(format!(
            "quick run: {} of {full} rounds in each column; no measurement to rely on",
            self.transfers
        ))
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        let results = measure::run(self, run)?;
        figures::figures(self, &results, run.seed)
    }
}

impl Transfer {
    /// Rounds in each column for a size.
    fn rounds(&self, bytes: u64) -> u32 {
        match self.fewer {
            Some(fewer) if bytes >= fewer.from_bytes => fewer.transfers.min(self.transfers),
            _ => self.transfers,
        }
    }

    /// Rounds of one block: no more than asked for, and no more results than fit into one answer
    /// of the agent.
    fn block_rounds(&self, rounds: u32, flows: &[u32]) -> u32 {
        const RESULTS: u32 = 1000;
        let flows: u32 = flows.iter().sum();
        self.block.min(rounds).min(RESULTS / flows.max(1)).max(1)
    }

    /// The paths that are there at once, by index; an empty list of paths is one direct path.
    fn path_sets(&self) -> Vec<Vec<Path>> {
        match &self.path[..] {
            [] => vec![vec![Path::direct()]],
            paths if self.mixed => vec![paths.to_vec()],
            paths => paths.iter().map(|path| vec![path.clone()]).collect(),
        }
    }

    /// The pairs of columns, value and baseline.
    fn pairs(&self) -> Vec<[Column; 2]> {
        if !self.compare.is_empty() {
            return self.compare.clone();
        }
        let mut columns = self.columns.iter().copied();
        let Some(first) = columns.next() else { return Vec::new() };
        columns.map(|column| [column, first]).collect()
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.columns.is_empty(), "columns: name at least one");
        ensure!(!self.profiles.is_empty(), "profiles: name at least one");
        ensure!(
            self.compare.iter().flatten().all(|column| self.columns.contains(column)),
            "compare: only what `columns` names can be compared"
        );
        ensure!(self.block >= 1 && self.period_ms >= 1, "block and period_ms must be at least 1");
        ensure!(self.line_rate_mbit >= 1, "line_rate_mbit must be at least 1");
        for host in &self.hosts {
            ensure!((1..=8).contains(&host.vms), "vms = {}: must be 1 to 8", host.vms);
            let load = host.load_percent;
            ensure!(load <= 100, "load_percent = {load}: must be 0 to 100");
        }
        for &bytes in &self.bytes {
            ensure!(bytes >= HEADER as u64, "bytes = {bytes}: must be at least {HEADER}");
            let rounds = self.rounds(bytes);
            ensure!(
                rounds >= LEAST_ROUNDS,
                "transfers = {rounds}: must be at least {LEAST_ROUNDS}"
            );
        }
        let paths = if self.mixed { self.path.len() } else { 1 };
        for flows in &self.flows {
            let fits = flows.len() == paths && flows.iter().all(|flows| (1..=200).contains(flows));
            ensure!(fits, "flows = {flows:?}: needs {paths} number(s) from 1 to 200");
        }
        let bridge = self.columns.iter().any(|column| column.network() == Network::Bridge);
        if bridge && !self.path.iter().all(Path::is_direct) {
            bail!(
                "columns: an emulated path begins at the switch's uplink, where `bridge` does not pass"
            );
        }
        if self.back_to_back && self.flows.iter().any(|flows| flows.iter().sum::<u32>() < 2) {
            bail!("back_to_back: needs at least two flows in each entry of `flows`");
        }
        if self.mixed && self.direction != Direction::Out {
            bail!("mixed: a VM that receives has one sender; use direction = \"out\"");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Scenario};

    const TEXT: &str = r#"
        name = "t"
        title = "t"
        [scenario]
        kind = "transfer"
        direction = "out"
        kernel = "6.1"
        columns = ["vanilla", "transmit"]
        hosts = [{ vms = 2, load_percent = 60 }, { vms = 3, load_percent = 60 }]
        bytes = [10_000, 1_000_000_000]
        fewer = { from_bytes = 100_000_000, transfers = 12 }
        transfers = 100
    "#;

    fn parse(change: impl FnOnce(String) -> String) -> Result<Transfer> {
        match Experiment::parse(&change(TEXT.to_owned()))?.scenario {
            Scenario::Transfer(transfer) => Ok(*transfer),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn large_sizes_have_fewer_rounds_and_steps_count_all_blocks() {
        let transfer = parse(|text| text).unwrap();
        transfer.check().unwrap();
        assert_eq!((transfer.rounds(10_000), transfer.rounds(1_000_000_000)), (100, 12));
        // 2 boots; 2 hosts, 2 profiles, 2 columns, 10 blocks of the small and 2 of the large size.
        assert_eq!(transfer.steps(), 2 + 2 * 2 * 2 * (10 + 2));
        assert_eq!(transfer.block_rounds(100, &[100]), 10);
        assert_eq!(transfer.block_rounds(100, &[200]), 5);
    }

    #[test]
    fn a_quick_run_has_fewer_rounds_everywhere_and_says_so() {
        let mut transfer = parse(|text| text).unwrap();
        let note = transfer.quicken().unwrap();
        assert_eq!((transfer.rounds(10_000), transfer.rounds(1_000_000_000)), (10, 3));
        assert!(note.contains("10 of 100"), "{note}");
        transfer.check().unwrap();
        transfer.transfers = 5;
        transfer.quicken();
        assert_eq!(transfer.transfers, 3);
    }

    #[test]
    fn pairs_are_with_the_first_column_or_as_named() {
        let transfer = parse(|text| text).unwrap();
        assert_eq!(transfer.pairs(), [[Column::Transmit, Column::Vanilla]]);
        let named = parse(|text| {
            text.replace(
                "[\"vanilla\", \"transmit\"]",
                "[\"none\", \"fair\"]\ncompare = [[\"fair\", \"none\"]]",
            )
        });
        assert_eq!(named.unwrap().pairs(), [[Column::Fair, Column::NoPolicy]]);
    }

    #[test]
    fn senseless_parameters_are_refused_by_name() {
        let refused = |from: &str, to: &str| {
            let error = parse(|text| text.replace(from, to)).and_then(|transfer| transfer.check());
            format!("{:#}", error.unwrap_err())
        };
        assert!(refused("vms = 2", "vms = 9").starts_with("vms = 9"));
        assert!(refused("60 }]", "101 }]").starts_with("load_percent = 101"));
        assert!(refused("10_000,", "39,").starts_with("bytes = 39"));
        assert!(refused("= 100\n", "= 2\n").starts_with("transfers = 2"));
        assert!(refused("= 100\n", "= 100\nflows = [[1, 2]]\n").starts_with("flows = [1, 2]"));
        assert!(
            refused("= 100\n", "= 100\ncompare = [[\"fair\", \"none\"]]\n").starts_with("compare")
        );
        assert!(refused("\"transmit\"", "\"magic\"").contains("magic"));
    }
}
