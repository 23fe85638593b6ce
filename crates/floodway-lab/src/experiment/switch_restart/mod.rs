//! Kills the switch, its data plane or its broker, or upgrades it, under TCP connections, which must go on.
//!
//! # Theory of operation
//!
//! The *whole* switch is killed between two VMs, without offload: what an offload has acknowledged goes with both processes ([`whole`]). *Parts* of it
//! are replaced between a VM and its host, over the uplink, with transmit and receive offload on ([`replaced`]): under streams of iperf3, under many connections that ask and
//! are answered, and under one connection that goes on through all events ([`load`]). Both ends of the latter two hash all that goes either way.
//!
//! A connection counts as lost when it breaks; the outage is the longest time without anything from the switch ([`arrivals`]). What a machine
//! on which VMs share cores makes of it by itself is measured right before, and printed beside.
//!
//! Leaks are looked for where a lost back-end could leave something: descriptors of the QEMU
//! processes and of the new data plane, its memory, and files beside its sockets.

mod arrivals;
mod load;
mod replaced;
mod whole;

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use floodway_report::Samples;
use serde::Deserialize;

use super::testbed::{Network, Testbed};
use super::transfer::{Path, Variant};
use super::{Measured, RealScenario, Run};
use crate::kernel::Series;
use crate::switch_process::{self, Switch};
use crate::vm::Vm;
use load::Size;
use replaced::{Case, Part};

pub use load::Load;

/// How long a switch may take to close a connection of an operator who has hung up.
const CLOSING: Duration = Duration::from_millis(100);

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchRestart {
    /// Kernel of the guests.
    pub kernel: Series,
    /// What is killed or replaced.
    pub victims: Vec<Victim>,
    /// What is carried meanwhile, unless the victim is the switch.
    pub loads: Vec<Load>,
    /// How often, for each victim and load, at least 2.
    pub cycles: u32,
    /// Connections of the load `requests`, 1 to 4000 for each guest, divided by all.
    pub connections: u32,
    /// Guests that carry it, 1 to 16.
    #[serde(default = "one")]
    pub guests: u32,
    /// Budget of transmit offload of each port, in MiB, 1 to 1024: enough for its connections (`docs/src/guide/offload.md`, Budgets).
    #[serde(default = "default_budget")]
    pub budget_mib: u32,
    /// Key `early_ack_delay_ms` of each port: for how long a byte may be owed.
    pub early_ack_delay_ms: Option<u32>,
    /// Connections that have to owe bytes right before an event, which waits for that for a minute at most.
    #[serde(default)]
    pub owing: u64,
    /// What the switch does for the guests: `offload`, `agentless` or another one that transmits.
    #[serde(default = "both_offloads")]
    pub variant: Variant,
    /// Bytes of a response of the load `requests`, 1 to 1 GB.
    #[serde(default = "default_response")]
    pub response_bytes: u64,
    /// Time between a response and the next request of a connection of this load, in ms.
    #[serde(default = "default_interval")]
    pub interval_ms: u64,
    /// What lies between the host and the other end of it.
    #[serde(default = "Path::direct")]
    pub path: Path,
    /// Bytes of each stream under which the switch is killed, in MB, at least 10.
    pub transfer_mb: u64,
}

/// What is killed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// Broker and data plane are killed; the lab starts them again.
    Switch,
    /// The data plane is killed; the broker starts another one.
    DataPlane,
    /// The broker is killed; the lab starts another one.
    Broker,
    /// All processes are replaced by `floodway upgrade`.
    Upgrade,
}

impl Victim {
    /// Returns `None` for the whole switch.
    fn part(self) -> Option<Part> {
        match self {
            Self::Switch => None,
            Self::DataPlane => Some(Part::DataPlane),
            Self::Broker => Some(Part::Broker),
            Self::Upgrade => Some(Part::Upgrade),
        }
    }
}

impl RealScenario for SwitchRestart {
    fn steps(&self) -> u64 {
        let loads = |victim: &Victim| victim.part().map_or(1, |_| self.loads.len() as u64);
        1 + self.victims.iter().map(loads).sum::<u64>() * u64::from(self.cycles)
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        let parts: Vec<_> = self.victims.iter().filter_map(|victim| victim.part()).collect();
        let is_killed = parts.len() < self.victims.len();
        // It is killed between two of them.
        let count = if is_killed { self.guests.max(2) } else { self.guests };
        run.progress.step(&format!("booting {count} guests"));
        // Tests run several at once, for one victim each.
        let name = format!("restart{}", self.victims[0] as u8);
        let kernels = vec![self.kernel; count as usize];
        let mut testbed = Testbed::start(&name, &kernels, &[Network::Floodway])?;
        let (mut measured, mut whole) = (Measured::default(), Measured::default());
        if is_killed {
            let bytes = self.transfer_mb * 1_000_000;
            whole::kill(&mut testbed, (self.cycles, bytes), run, &mut whole)?;
        }
        let cases: Vec<_> = parts.iter().flat_map(|&part| self.cases(part)).collect();
        if !cases.is_empty() {
            testbed.switch_mut()?.restart_with(|config| self.set_offload(config))?;
            let guests = replaced::Guests { count: self.guests as usize, variant: self.variant };
            replaced::run(&cases, &mut testbed, (guests, &self.path), run, &mut measured)?;
        }
        // What two processes are for comes first.
        measured.rows.extend(whole.rows);
        measured.samples.extend(whole.samples);
        Ok(measured)
    }
}

impl SwitchRestart {
    /// A part under each load.
    fn cases(&self, part: Part) -> impl Iterator<Item = Case> {
        let size = Size {
            connections: self.connections / self.guests,
            response_bytes: self.response_bytes,
            interval: Duration::from_millis(self.interval_ms),
            seconds: part.seconds(),
        };
        let (events, owing) = (self.cycles, self.owing);
        self.loads.iter().map(move |&load| Case { part, load, events, size, owing })
    }

    /// Sets the keys of the offload of all ports in a switch's configuration.
    fn set_offload(&self, config: &mut toml::Table) {
        let ports = config.get_mut("port").and_then(toml::Value::as_array_mut);
        for port in ports.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
            let offload = port.entry("offload").or_insert_with(|| toml::Table::new().into());
            if let Some(offload) = offload.as_table_mut() {
                offload.insert("budget".into(), (i64::from(self.budget_mib) << 20).into());
                let delay = self.early_ack_delay_ms.map(i64::from);
                offload.extend(delay.map(|ms| ("early_ack_delay_ms".into(), ms.into())));
            }
        }
    }

    fn check(&self) -> Result<()> {
        let Self { cycles, connections, transfer_mb, .. } = self;
        ensure!(!self.victims.is_empty(), "victims: name at least one");
        ensure!(*cycles >= 2, "cycles = {cycles}: at least 2, to see a leak");
        // A guest's process has 4096 descriptors.
        let (guests, most) = (self.guests, 4000 * self.guests.min(16));
        ensure!((1..=16).contains(&guests), "guests = {guests}: must be 1 to 16");
        let fits = (guests..=most).contains(connections);
        ensure!(fits, "connections = {connections}: must be {guests} to {most}");
        ensure!(*transfer_mb >= 10, "transfer_mb = {transfer_mb}: at least 10");
        let (variant, response) = (self.variant, self.response_bytes);
        ensure!(variant.transmits(), "variant = {:?}: must be one that transmits", variant.name());
        ensure!(
            (1..=1_000_000_000).contains(&response),
            "response_bytes = {response}: must be 1 to 1000000000"
        );
        let (owing, loads) = (self.owing, &self.loads);
        ensure!(owing <= u64::from(*connections), "owing = {owing}: at most {connections}");
        let waits = owing == 0 || loads.iter().all(|&load| load == Load::Requests);
        ensure!(waits, "owing = {owing}: only under the load \"requests\"");
        let budget = self.budget_mib;
        ensure!((1..=1024).contains(&budget), "budget_mib = {budget}: must be 1 to 1024");
        Ok(())
    }
}

fn one() -> u32 {
    1
}

/// The switch's own.
fn default_budget() -> u32 {
    4
}

fn both_offloads() -> Variant {
    Variant::Offload
}

fn default_response() -> u64 {
    4096
}

/// Twice a second.
fn default_interval() -> u64 {
    500
}

/// What is held that something lost could leave behind.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Of the data plane and of the guests' VMMs.
    descriptors: usize,
    /// Anonymous memory of the data plane in KiB.
    memory: usize,
    /// Files beside the switch's sockets.
    files: usize,
}

impl Held {
    fn of(guests: &[Vm], switch: &Switch) -> Result<Self> {
        let pid = switch.id().context("the switch does not run")?;
        // The connection by which that was asked may not be closed yet.
        thread::sleep(CLOSING);
        let usage = switch_process::usage(pid)?;
        let mut descriptors = usage.descriptors;
        for guest in guests {
            descriptors += switch_process::usage(guest.pid())?.descriptors;
        }
        let memory = usize::try_from(usage.anonymous_kib).unwrap_or(usize::MAX);
        Ok(Self { descriptors, memory, files: switch.files()? })
    }

    /// Adds by how much it has grown. Names of rows begin with `prefix`.
    fn report(all: &[Self], prefix: &str, measured: &mut Measured) {
        let grown = |of: fn(&Self) -> usize| growth(&all.iter().map(of).collect::<Vec<_>>());
        for (what, unit, grown) in [
            ("descriptors leaked", "descriptors", grown(|held| held.descriptors)),
            ("memory grown", "KiB", grown(|held| held.memory)),
            ("files left", "files", grown(|held| held.files)),
        ] {
            measured.add_value(format!("{prefix}{what}"), unit, grown);
        }
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// Last minus first; the first cycle may still open what is opened once.
pub(super) fn growth(counts: &[usize]) -> f64 {
    let at = |count: Option<&usize>| count.map_or(0.0, |count| *count as f64);
    at(counts.last()) - at(counts.first())
}

pub(super) fn samples(name: &str, unit: &str) -> Samples {
    Samples { name: name.into(), unit: unit.into(), ..Samples::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Scenario};

    const TEXT: &str = r#"
        name = "t"
        title = "t"
        [scenario]
        kind = "switch-restart"
        kernel = "6.1"
        victims = ["switch", "data-plane", "broker", "upgrade"]
        loads = ["iperf3", "requests"]
        cycles = 3
        connections = 10
        transfer_mb = 20
    "#;

    fn parse(from: &str, to: &str) -> Result<SwitchRestart> {
        assert!(TEXT.contains(from));
        match Experiment::parse(&TEXT.replace(from, to))?.scenario {
            Scenario::SwitchRestart(scenario) => Ok(scenario),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_part_is_replaced_under_each_load() {
        let scenario = parse("20", "20").unwrap();
        scenario.check().unwrap();
        assert_eq!(scenario.steps(), 1 + 3 + 3 * 2 * 3);
        assert_eq!(parse("\"switch\", ", "").unwrap().steps(), 1 + 3 * 2 * 3);
    }

    #[test]
    fn all_ports_get_the_keys_of_the_offload() {
        let text =
            "[[port]]\nname = \"a\"\n[port.offload]\nreceive = true\n[[port]]\nname = \"b\"\n";
        let mut config: toml::Table = text.parse().unwrap();
        let scenario = parse("20", "20\nbudget_mib = 16\nearly_ack_delay_ms = 5000").unwrap();
        scenario.set_offload(&mut config);
        for (index, keys) in [(0, 3), (1, 2)] {
            let offload = config["port"][index]["offload"].as_table().unwrap();
            let keys_are = ["budget", "early_ack_delay_ms"].map(|key| offload[key].as_integer());
            assert_eq!((offload.len(), keys_are), (keys, [Some(16 << 20), Some(5000)]));
        }
    }

    #[test]
    fn senseless_parameters_are_refused_by_name() {
        let refused = |from: &str, to: &str| {
            let error = parse(from, to).and_then(|scenario| scenario.check());
            format!("{:#}", error.unwrap_err())
        };
        assert!(refused("= 3", "= 1").starts_with("cycles = 1"));
        assert!(refused("= 10", "= 0").starts_with("connections = 0"));
        assert!(refused("= 10", "= 4001").starts_with("connections = 4001"));
        assert!(refused("= 20", "= 9").starts_with("transfer_mb = 9"));
        for wrong in ["budget_mib = 1025", "response_bytes = 0", "variant = \"receive\""] {
            let refusal = refused("= 20", &format!("= 20\n{wrong}"));
            assert!(refusal.starts_with(wrong), "{refusal}");
        }
        assert!(refused("\"requests\"", "\"wrk\"").contains("wrk"));
        assert!(refused("= 20", "= 20\nowing = 11").starts_with("owing = 11: at most 10"));
        assert!(refused("= 20", "= 20\nowing = 5").starts_with("owing = 5: only under"));
    }
}
