//! Timed transfers of a VM that waits for its CPU: what their files say.
//!
//! Real VMs and simulated ones have this form in common; how each measures it is theirs.

mod label;
mod path;
mod profile;
mod variant;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use crate::series::Series;

pub use label::{join, size};
pub use path::Path;
pub use profile::Profile;
pub use variant::Variant;

/// Fewest bytes of a transfer: those that say what it is.
pub const LEAST_BYTES: u64 = 40;
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
    pub kernel: Series,
    /// What is compared; the first is the baseline of the others.
    pub variants: Vec<Variant>,
    /// Other pairs to compare, value and baseline, in place of "each with the first".
    #[serde(default)]
    pub compare: Vec<[Variant; 2]>,
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
    /// Rounds in each variant of a cell, at least 3.
    pub transfers: u32,
    /// Fewer rounds for large sizes, where the full number would take hours.
    pub fewer: Option<Fewer>,
    /// Rounds before the variants change; fewer of large transfers.
    #[serde(default = "ten")]
    pub block: u32,
    /// What the guest's sockets start with for reception, in bytes (the default of `net.ipv4.tcp_rmem`);
    /// none: the kernel's 128 KiB. Half of it is the window that the guest advertises at first.
    pub guest_receive_buffer: Option<u32>,
    /// What the switch may hold of what the contended VM sends, in bytes; none: the switch's default.
    pub budget: Option<u32>,
    /// Where QEMU's main loop runs, if not where the profile has it.
    pub emulator: Option<Emulator>,
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

/// Where QEMU's threads other than vCPUs run. It decides how long a VM's time slices really are.
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
    /// This many rounds in each variant.
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

impl Transfer {
    /// Fewer rounds, for a look at whether all works. Returns what the report has to say of that.
    pub fn shorten(&mut self) -> String {
        let full = self.transfers;
        self.transfers = (full / 10).clamp(LEAST_ROUNDS.min(full), QUICK_ROUNDS);
        self.fewer =
            self.fewer.map(|fewer| Fewer { transfers: fewer.transfers.min(LEAST_ROUNDS), ..fewer });
        self.block = self.block.min(self.transfers.div_ceil(2));
        format!(
            "quick run: {} of {full} rounds in each variant; no measurement to rely on",
            self.transfers
        )
    }

    /// Rounds in each variant for a size.
    #[must_use]
    pub fn rounds(&self, bytes: u64) -> u32 {
        match self.fewer {
            Some(fewer) if bytes >= fewer.from_bytes => fewer.transfers.min(self.transfers),
            _ => self.transfers,
        }
    }

    /// The paths that are there at once, by index; an empty list of paths is one direct path.
    #[must_use]
    pub fn path_sets(&self) -> Vec<Vec<Path>> {
        match &self.path[..] {
            [] => vec![vec![Path::direct()]],
            paths if self.mixed => vec![paths.to_vec()],
            paths => paths.iter().map(|path| vec![path.clone()]).collect(),
        }
    }

    /// The pairs of variants, value and baseline.
    #[must_use]
    pub fn pairs(&self) -> Vec<[Variant; 2]> {
        if !self.compare.is_empty() {
            return self.compare.clone();
        }
        let mut variants = self.variants.iter().copied();
        let Some(first) = variants.next() else { return Vec::new() };
        variants.map(|variant| [variant, first]).collect()
    }

    /// Where QEMU's main loop runs in a profile.
    #[must_use]
    pub fn emulator(&self, profile: Profile) -> Emulator {
        self.emulator.unwrap_or_else(|| profile.emulator())
    }

    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// When a parameter does not; the error names it.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.variants.is_empty(), "variants: name at least one");
        ensure!(!self.profiles.is_empty(), "profiles: name at least one");
        ensure!(
            self.compare.iter().flatten().all(|variant| self.variants.contains(variant)),
            "compare: only what `variants` names can be compared"
        );
        ensure!(self.block >= 1 && self.period_ms >= 1, "block and period_ms must be at least 1");
        ensure!(self.line_rate_mbit >= 1, "line_rate_mbit must be at least 1");
        for host in &self.hosts {
            ensure!((1..=8).contains(&host.vms), "vms = {}: must be 1 to 8", host.vms);
            let load = host.load_percent;
            ensure!(load <= 100, "load_percent = {load}: must be 0 to 100");
        }
        for &bytes in &self.bytes {
            ensure!(bytes >= LEAST_BYTES, "bytes = {bytes}: must be at least {LEAST_BYTES}");
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
        let bridge = self.variants.contains(&Variant::Bridge);
        if bridge && !self.path.iter().all(Path::is_direct) {
            bail!(
                "variants: an emulated path begins at the switch's uplink, where `bridge` does not pass"
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

    const TEXT: &str = r#"
        direction = "out"
        kernel = "6.1"
        variants = ["vanilla", "transmit"]
        hosts = [{ vms = 2, load_percent = 60 }, { vms = 3, load_percent = 60 }]
        bytes = [10_000, 1_000_000_000]
        fewer = { from_bytes = 100_000_000, transfers = 12 }
        transfers = 100
    "#;

    fn parse(change: impl FnOnce(String) -> String) -> Result<Transfer> {
        Ok(toml::from_str(&change(TEXT.to_owned()))?)
    }

    #[test]
    fn a_profile_says_where_the_emulator_runs_and_a_file_may_say_otherwise() {
        let transfer = parse(|text| text).unwrap();
        let places = [Profile::Era2011, Profile::Era2011Apart, Profile::Today];
        let places = places.map(|profile| transfer.emulator(profile));
        assert_eq!(places, [Emulator::Above, Emulator::Apart, Emulator::Apart]);
        let apart = parse(|text| text.replace("= 100\n", "= 100\nemulator = \"apart\"\n")).unwrap();
        assert_eq!(apart.emulator(Profile::Era2011), Emulator::Apart);
        let text = Profile::Era2011.describe(Emulator::Apart);
        assert!(text.contains("30 ms") && text.ends_with("on another core"), "{text}");
    }

    #[test]
    fn large_sizes_have_fewer_rounds() {
        let transfer = parse(|text| text).unwrap();
        transfer.check().unwrap();
        assert_eq!((transfer.rounds(10_000), transfer.rounds(1_000_000_000)), (100, 12));
    }

    #[test]
    fn a_quick_run_has_fewer_rounds_everywhere_and_says_so() {
        let mut transfer = parse(|text| text).unwrap();
        let note = transfer.shorten();
        assert_eq!((transfer.rounds(10_000), transfer.rounds(1_000_000_000)), (10, 3));
        assert!(note.contains("10 of 100"), "{note}");
        transfer.check().unwrap();
        transfer.transfers = 5;
        transfer.shorten();
        assert_eq!(transfer.transfers, 3);
    }

    #[test]
    fn pairs_are_with_the_first_column_or_as_named() {
        let transfer = parse(|text| text).unwrap();
        assert_eq!(transfer.pairs(), [[Variant::Transmit, Variant::Vanilla]]);
        let named = parse(|text| {
            text.replace(
                "[\"vanilla\", \"transmit\"]",
                "[\"none\", \"fair\"]\ncompare = [[\"fair\", \"none\"]]",
            )
        });
        assert_eq!(named.unwrap().pairs(), [[Variant::Fair, Variant::NoPolicy]]);
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
