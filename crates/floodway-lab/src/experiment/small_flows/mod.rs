//! Small flows beside large ones, on real VMs: pings and short answers while a co-resident VM sends, or computes.
//!
//! # Theory of operation
//! ```text
//! VMs - switch - uplink [host namespace] - emulated port: rate, finite queue, classes - [namespace of the clients]
//! ```
//! The clients are beyond the uplink, where all clocks are the host's own: `ping` sends echo requests to a VM,
//! `queries` asks VMs for answers at times of a Poisson process, whatever became of those before, `bulk` receives one
//! endless stream. Without a `port` they are in the host's namespace, at the end of the uplink.
//!
//! What is compared are variants: the switch's queue and meter, its policies for vCPU threads, and whether
//! the port serves marked packets first. Variants take turns in each round, and the queries of a round come at the
//! same times in each variant. Each variant but the first is reported as a ratio to the one that it is `against`.
//!
//! All vCPUs and QEMU's threads share one core (`place`), everything else has the other one. Where waiting for that
//! core is not what is asked, the VM in question goes first (`first_vms`), as if it had one of its own.

mod bulk;
mod figures;
mod ping;
mod place;
mod port;
mod queries;
mod variant;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;

use super::testbed::{self, Network, Testbed};
use super::{Measured, RealScenario, Run};
use crate::agent::Hog;
use crate::kernel::Series;
use crate::net::Namespace;
use crate::vm::Vm;
use figures::{BULK_RATE, Cells, HOG_RATE, SWITCH_CPU, Seen, TIME_SLICE};
use ping::Ping;
use place::Places;
use port::{Port, PortParameters};
use queries::Query;
use variant::Variant;

/// What large transfers have to fill the queue before anything is measured.
const SETTLE: Duration = Duration::from_secs(1);
const MAX_VMS: u32 = 8;

/// The scenario's parameters. VMs are counted from 1.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmallFlows {
    /// Kernel of the guests.
    pub kernel: Series,
    /// VMs, 1 to 8.
    pub vms: u32,
    /// Rounds, at least 1.
    pub rounds: u32,
    /// Seconds of one variant in one round, at least 1.
    pub seconds: u32,
    /// VMs that never wait for their core.
    #[serde(default)]
    pub first_vms: Vec<u32>,
    /// Keys of the switch's `[uplink.queue]`, in all variants.
    #[serde(default)]
    pub queue: toml::Table,
    /// Keys of the switch's `[meter]`, in all variants.
    #[serde(default)]
    pub meter: toml::Table,
    /// The emulated port.
    pub port: Option<PortParameters>,
    /// Echo requests.
    #[serde(default)]
    pub ping: Vec<Ping>,
    /// Queries.
    #[serde(default)]
    pub query: Vec<Query>,
    /// The VM that sends an endless stream.
    pub bulk_vm: Option<u32>,
    /// VMs that compute.
    #[serde(default)]
    pub hog_vms: Vec<u32>,
    /// Loads, if there are several: other times between queries.
    #[serde(default)]
    pub case: Vec<Case>,
    /// What is compared; the first is what the others are against.
    pub variant: Vec<Variant>,
}

/// A load.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// For the names of rows.
    pub name: String,
    /// Mean time between queries of that name, in microseconds.
    #[serde(default)]
    pub gap_us: BTreeMap<String, u64>,
    /// Other VMs that compute.
    pub hog_vms: Option<Vec<u32>>,
}

impl Case {
    /// VMs that compute.
    fn hogs<'a>(&'a self, scenario: &'a SmallFlows) -> &'a [u32] {
        self.hog_vms.as_deref().unwrap_or(&scenario.hog_vms)
    }
}

/// All that runs.
struct Stage {
    testbed: Testbed,
    port: Option<Port>,
    places: Places,
}

impl Stage {
    /// Where the clients are, and under which address.
    fn clients(&self) -> (&Namespace, String) {
        match &self.port {
            Some(port) => (port.namespace(), port.address()),
            None => (self.testbed.host(), Network::Floodway.host_address()),
        }
    }

    /// CPU time of the switch so far.
    fn switch_cpu(&self) -> Result<Duration> {
        Ok(self.testbed.switch()?.usage()?.cpu)
    }

    fn vm(&self, number: u32) -> Result<&Vm> {
        let guest = (number as usize).checked_sub(1).and_then(|n| self.testbed.guests().get(n));
        guest.with_context(|| format!("there is no VM {number}"))
    }
}

impl RealScenario for SmallFlows {
    fn steps(&self) -> u64 {
        1 + u64::from(self.rounds) * (self.cases().len() * self.variant.len()) as u64
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        (self.rounds, self.seconds) = (1, self.seconds.min(5));
        Some(format!("quick: one round of {} s for each variant", self.seconds))
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        run.progress.step(&format!("booting {} guests", self.vms));
        let mut stage = self.start(run.seed)?;
        let mut cells = Cells::default();
        for round in 0..self.rounds {
            for case in self.cases() {
                let mut order: Vec<_> = self.variant.iter().collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                for variant in order {
                    run.progress.step(&figures::join(&case.name, &variant.name));
                    variant.apply(self, &mut stage)?;
                    let seed = run.seed.wrapping_add(u64::from(round) << 32);
                    let seen = self
                        .measure(&stage, &case, seed)
                        .with_context(|| format!("variant {:?}", variant.name))?;
                    cells.add(&case.name, &variant.name, seen);
                }
            }
        }
        let mut measured = cells.report(self);
        measured.notes.extend(self.port.as_ref().map(PortParameters::note));
        measured
            .notes
            .push("guests are emulated, on one core together; all else is on the other".into());
        Ok(measured)
    }
}

impl SmallFlows {
    fn cases(&self) -> Vec<Case> {
        if self.case.is_empty() { vec![Case::default()] } else { self.case.clone() }
    }

    fn check(&self) -> Result<()> {
        ensure!((1..=MAX_VMS).contains(&self.vms), "vms = {}: must be 1 to {MAX_VMS}", self.vms);
        ensure!(self.rounds >= 1 && self.seconds >= 1, "rounds and seconds must be at least 1");
        ensure!(!self.variant.is_empty(), "variant: name at least one");
        let pinged = self.ping.iter().map(|ping| ping.vm);
        let asked = self.query.iter().flat_map(|query| query.vms.iter().copied());
        let others = self.bulk_vm.iter().chain(&self.first_vms).copied();
        let hogs = self.cases().into_iter().flat_map(|case| case.hogs(self).to_vec());
        for vm in pinged.chain(asked).chain(others).chain(hogs) {
            ensure!((1..=self.vms).contains(&vm), "there is no VM {vm}");
        }
        self.ping.iter().try_for_each(Ping::check)?;
        self.query.iter().try_for_each(Query::check)?;
        for name in self.case.iter().flat_map(|case| case.gap_us.keys()) {
            let known = self.query.iter().any(|query| query.name == *name);
            ensure!(known, "case.gap_us: there is no query {name:?}");
        }
        for (n, variant) in self.variant.iter().enumerate() {
            let known = |other: &String| self.variant[..n].iter().any(|c| c.name == *other);
            if let Some(other) = variant.against.as_ref().filter(|other| !known(other)) {
                anyhow::bail!(
                    "variant {:?}: against {other:?}, which is none before it",
                    variant.name
                );
            }
            ensure!(
                self.port.is_some() || !variant.priority,
                "variant {:?}: priority is the port's, and there is no port",
                variant.name
            );
        }
        Ok(())
    }

    fn start(&self, seed: u64) -> Result<Stage> {
        place::put_aside()?;
        let kernels = vec![self.kernel; self.vms as usize];
        let testbed = Testbed::start("small", &kernels, &[Network::Floodway])?;
        let port = self.port.as_ref().map(|port| Port::start(port, &testbed, seed)).transpose()?;
        let places = Places::of(testbed.guests(), &self.first_vms)?;
        Ok(Stage { testbed, port, places })
    }

    /// One variant in one round.
    fn measure(&self, stage: &Stage, case: &Case, seed: u64) -> Result<Seen> {
        let hogs: Vec<_> = case.hogs(self).iter().map(|&vm| stage.vm(vm)).collect::<Result<_>>()?;
        let busy = Hog { duty: 1.0, period_us: 100_000, vcpus: Vec::new(), nice: 0 };
        hogs.iter().try_for_each(|vm| vm.agent().hog_start(&busy))?;
        let before =
            stage.port.as_ref().map(|port| port.reset_marks().and_then(|()| port.counters()));
        let before = before.transpose()?;
        let (begin, cpu, slices) = (Instant::now(), stage.switch_cpu()?, stage.places.slices());
        let mut seen = self.traffic(stage, case, seed)?;
        let cpu = stage.switch_cpu()?.saturating_sub(cpu);
        seen.rates.insert(SWITCH_CPU, 100.0 * cpu.as_secs_f64() / begin.elapsed().as_secs_f64());
        if !hogs.is_empty() {
            let slices = stage.places.slices().since(slices);
            seen.rates.extend(slices.mean_ms().map(|mean| (TIME_SLICE, mean)));
            let rates = hogs.iter().map(|vm| hog_rate(vm)).collect::<Result<Vec<_>>>()?;
            seen.rates.insert(HOG_RATE, rates.iter().sum());
        }
        if let (Some(port), Some(before)) = (&stage.port, before) {
            seen.port = Some(port.counters()?.since(&before));
        }
        Ok(seen)
    }

    /// All that is sent at once.
    fn traffic(&self, stage: &Stage, case: &Case, seed: u64) -> Result<Seen> {
        let (namespace, own) = stage.clients();
        let length = Duration::from_secs(self.seconds.into());
        let bulk = self.bulk_vm.map(|vm| stage.vm(vm)).transpose()?;
        let address = |vm: u32| Network::Floodway.guest_address(vm as usize - 1);
        let mut seen = Seen::default();
        thread::scope(|scope| -> Result<()> {
            let bulk = bulk.map(|vm| {
                let own = &own;
                scope.spawn(move || bulk::measure(vm, namespace, own, SETTLE + length))
            });
            thread::sleep(SETTLE);
            let mut small = Vec::new();
            for ping in &self.ping {
                let address = address(ping.vm)?;
                let pinged = scope.spawn(move || ping.run(namespace, &address, length));
                small.push((&ping.name, pinged));
            }
            for (query, seed) in self.query.iter().zip(seed..) {
                let gap_us = *case.gap_us.get(&query.name).unwrap_or(&query.gap_us);
                let servers = query.serve(|vm| stage.vm(vm), address)?;
                let gap = Duration::from_micros(gap_us);
                let asked = scope.spawn(move || servers.ask(namespace, gap, length, seed));
                small.push((&query.name, asked));
            }
            for (name, thread) in small {
                let times = join(thread)?.with_context(|| name.clone())?;
                seen.times.insert(name.clone(), times);
            }
            if let Some(thread) = bulk {
                seen.rates.insert(BULK_RATE, join(thread)??);
            }
            Ok(())
        })?;
        Ok(seen)
    }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))
}

/// Stops the hogs; answers the work that they did, in thousand rounds of the busy loop a second.
fn hog_rate(vm: &Vm) -> Result<f64> {
    let uses = vm.agent().hog_stop()?;
    let rates = uses.iter().map(|one| one.rounds as f64 * 1e6 / (one.busy_ns + one.idle_ns) as f64);
    Ok(rates.sum())
}

/// Waits until each VM reaches the host again.
fn wait_for_all(testbed: &Testbed) -> Result<()> {
    let host = Network::Floodway.host_address();
    testbed.guests().iter().try_for_each(|guest| testbed::wait_until_reachable(guest, &host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Scenario};

    const TEXT: &str = r#"
        name = "t"
        title = "t"
        [scenario]
        kind = "small-flows"
        kernel = "6.1"
        vms = 2
        rounds = 1
        seconds = 9
        bulk_vm = 2
        ping = [{ name = "ping", vm = 1, gap_ms = 5 }]
        [[scenario.query]]
        name = "2 KB"
        vms = [1]
        bytes = 2048
        gap_us = 5000
        [[scenario.case]]
        name = "40 %"
        gap_us = { "2 KB" = 9000 }
        [[scenario.variant]]
        name = "off"
        [[scenario.variant]]
        name = "on"
        against = "off"
        queue = { discipline = "fq_codel" }
    "#;

    fn scenario(text: &str) -> SmallFlows {
        match Experiment::parse(text).unwrap().scenario {
            Scenario::SmallFlows(scenario) => *scenario,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_says_it_all() {
        let mut scenario = scenario(TEXT);
        scenario.check().unwrap();
        assert_eq!(scenario.steps(), 3);
        assert!(scenario.use_quick_profile().unwrap().contains("5 s"));
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, expected) in [
            ("vms = 2", "vms = 9", "vms = 9"),
            ("bulk_vm = 2", "bulk_vm = 3", "no VM 3"),
            ("against = \"off\"", "against = \"of\"", "\"of\""),
            ("against = \"off\"", "priority = true", "there is no port"),
            ("\"2 KB\" = 9000", "\"3 KB\" = 9000", "\"3 KB\""),
            ("{ \"2 KB\" = 9000 }", "{}\nhog_vms = [1, 7]", "no VM 7"),
            ("gap_ms = 5", "gap_ms = 0", "gap_ms = 0"),
            ("bytes = 2048", "bytes = 0", "bytes = 0"),
        ] {
            let error = scenario(&TEXT.replace(from, to)).check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
