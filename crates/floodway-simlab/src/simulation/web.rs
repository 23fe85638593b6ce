//! The papers' application benchmark in virtual time: a web application of VMs on a machine each.
//!
//! # Theory of operation
//!
//! The application is a closed network of queues ([`floodway_sim::traffic::Tiers`]): visitors who think, a front with so many
//! workers, and tiers behind it. The front and each tier are a VM on a machine of its own, whose core it shares with other
//! VMs that are a load only; visitors are on a bare machine. All are around one switch, so that whatever the tiers say to
//! each other passes the driver domains, and the offload, of two machines.
//!
//! **What counts.** Operations that end between `time.warm_up_s` and `time.measured_s` after it, of all kinds and of each; the times
//! that they took; whether guests repeated anything; processor time of each VM of the application, in percent.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodway_sim::Instant;
use floodway_sim::engine::Rng;
use floodway_sim::net::{Builder, Link, Net, QueueConfig, SwitchConfig};
use floodway_sim::packet::Address;
use floodway_sim::traffic::{self, Samples, Sizes, Tiers, TiersConfig};
use floodway_sim::world::{AppId, MachineId, World};
use serde::{Deserialize, Serialize};

use super::completion;
use super::hook::{self, Halves};
use super::host::Host;
use super::measurement::Recorder;

/// The name of the front where tiers are named.
const FRONT: &str = "front";

/// The scene.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Web {
    /// All machines and stacks.
    pub host: Host,
    /// Who shares a core with a VM of the application.
    pub neighbours: Neighbours,
    /// What the switches do.
    pub offload: Halves,
    /// Who asks.
    pub visitors: Visitors,
    /// Processes of the front that serve a request each.
    pub workers: u32,
    /// The servers behind the front.
    pub tiers: BTreeMap<String, Tier>,
    /// By what the times and sizes of all operations are multiplied.
    pub factors: Factors,
    /// The mix.
    pub operation: Vec<Operation>,
    /// For how long.
    pub time: Time,
}

/// VMs with a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbours {
    /// On each machine.
    pub vms: u32,
    /// Share of each period that each is busy.
    pub load_percent: u32,
    /// Period of the load, in ms.
    pub period_ms: u64,
    /// Load of the application's own VMs, besides the application.
    pub own_load_percent: u32,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Visitors {
    /// How many.
    pub count: u32,
    /// Mean time that they think, in ms.
    pub think_ms: f64,
    /// Each keeps its connection from one operation to the next.
    pub keep_alive: bool,
}

/// A server behind the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Each call makes a connection.
    pub fresh: bool,
}

/// Multipliers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factors {
    /// Of processor times of the front.
    pub front: f64,
    /// Of processor times of the tiers.
    pub tiers: f64,
    /// Of waits of the tiers.
    pub waits: f64,
    /// Of answers' sizes.
    pub bytes: f64,
}

/// What a visitor does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// For the names of rows.
    pub name: String,
    /// How often, relative to the others.
    pub weight: f64,
    /// Its requests to the front.
    pub request: Vec<Request>,
}

/// Requests to the front.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// How many of the kind, one after the other.
    pub times: u32,
    /// Bytes of the request.
    pub bytes: u64,
    /// Mean processor time of the front, in ms.
    pub service_ms: f64,
    /// Bytes of the answer.
    pub response: u64,
    /// What the front asks for.
    #[serde(default)]
    pub calls: Vec<Call>,
}

/// Calls of a tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Which.
    pub tier: String,
    /// How many of the kind, one after the other.
    pub times: u32,
    /// Bytes of the question.
    pub bytes: u64,
    /// Mean time without the tier's processor, in ms.
    #[serde(default)]
    pub wait_ms: f64,
    /// Mean processor time of the tier, in ms.
    pub service_ms: f64,
    /// Bytes of the answer.
    pub response: u64,
}

/// Lengths, in s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// Not counted.
    pub warm_up_s: u64,
    /// Counted.
    pub measured_s: u64,
}

/// The world of a scene.
struct Stage {
    world: World,
    /// With their VM of the application.
    machines: Vec<(String, MachineId, Address)>,
    app: AppId,
}

impl Web {
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.workers >= 1, "workers must be at least 1");
        ensure!((1..=10_000).contains(&self.visitors.count), "visitors.count: 1 to 10000");
        ensure!(!self.operation.is_empty(), "there is no operation");
        ensure!(!self.tiers.contains_key(FRONT), "a tier cannot be called {FRONT:?}");
        ensure!(self.neighbours.period_ms >= 1, "neighbours.period_ms must be at least 1");
        ensure!(self.time.measured_s >= 1, "time.measured_s must be at least 1");
        for operation in &self.operation {
            let requests: u32 = operation.request.iter().map(|request| request.times).sum();
            ensure!(requests >= 1, "operation {:?} has no request", operation.name);
        }
        self.operations().map(drop)
    }

    /// Bytes that are transferred, roughly.
    pub(super) const fn effort(&self) -> u64 {
        (self.time.warm_up_s + self.time.measured_s) * 10_000_000
    }

    pub(super) fn execute(&self, seed: u64, to: &mut Recorder<'_>) -> Result<()> {
        self.check()?;
        let mut stage = self.set_up(seed)?;
        let begin = Instant::ZERO + Duration::from_secs(self.time.warm_up_s);
        stage.world.run(begin);
        let before: Vec<_> = stage.machines.iter().map(|m| usage(&stage.world, m)).collect();
        let end = begin + Duration::from_secs(self.time.measured_s);
        stage.world.run(end);
        self.tell(&stage, (begin, end), &before, to);
        Ok(())
    }

    fn set_up(&self, seed: u64) -> Result<Stage> {
        let names: Vec<_> =
            [FRONT].into_iter().chain(self.tiers.keys().map(String::as_str)).collect();
        let mut world = World::new(self.network(names.len(), seed));
        let period = Duration::from_millis(self.neighbours.period_ms);
        let mut rng = Rng::new(seed, "load", 0);
        let mut machines = Vec::new();
        for (place, name) in (0..).zip(&names) {
            let on = self.offload.transmit || self.offload.receive;
            let hook = hook::make(&self.host, on.then_some(&self.offload), seed)?;
            let machine = world.add_machine(place, self.host.machine(), hook);
            let mut phase = || Duration::from_nanos(rng.below(period.as_nanos() as u64));
            let own = self.host.vm(self.neighbours.own_load_percent, period, phase());
            let address = world.add_vm(machine, &own);
            for _ in 0..self.neighbours.vms {
                world.add_vm(machine, &self.host.vm(self.neighbours.load_percent, period, phase()));
            }
            machines.push(((*name).to_owned(), machine, address));
        }
        let visitors = world.add_bare(names.len() as u32);
        let app = world.add_app(Tiers::new(self.application(&machines, visitors, seed)?));
        Ok(Stage { world, machines, app })
    }

    /// A star: a machine for each server, and one for the visitors.
    fn network(&self, servers: usize, seed: u64) -> Net {
        let mut builder = Builder::new(seed);
        let queue = QueueConfig::packets(self.host.network.switch_queue);
        let centre = builder.switch(SwitchConfig::new(queue));
        let rate = self.host.network.rate_mbit * 1_000_000;
        for _ in 0..=servers {
            let end = builder.host(self.host.nic());
            builder.connect(end, centre, Link::ethernet(rate, self.host.rtt() / 4));
        }
        builder.build()
    }

    fn application(
        &self,
        machines: &[(String, MachineId, Address)],
        visitors: Address,
        seed: u64,
    ) -> Result<TiersConfig> {
        let tiers = self.tiers.values().zip(&machines[1..]);
        Ok(TiersConfig {
            visitors_at: vec![visitors],
            visitors: self.visitors.count,
            think: milliseconds(self.visitors.think_ms),
            keep_alive: self.visitors.keep_alive,
            front: machines[0].2,
            workers: self.workers,
            tiers: tiers.map(|(t, m)| traffic::Tier { address: m.2, fresh: t.fresh }).collect(),
            operations: self.operations()?,
            stack: self.host.stack()?,
            seed,
        })
    }

    fn operations(&self) -> Result<Vec<traffic::Operation>> {
        let one = |operation: &Operation| {
            let mut requests = Vec::new();
            for request in &operation.request {
                let made = self.request(request).with_context(|| operation.name.clone())?;
                requests.extend(std::iter::repeat_n(made, request.times as usize));
            }
            Ok(traffic::Operation { weight: operation.weight, requests })
        };
        self.operation.iter().map(one).collect()
    }

    fn request(&self, request: &Request) -> Result<traffic::Request> {
        let mut calls = Vec::new();
        for call in &request.calls {
            let known = self.tiers.keys().position(|name| *name == call.tier);
            let tier = known.with_context(|| format!("there is no tier {:?}", call.tier))?;
            let made = traffic::Call {
                tier,
                request: call.bytes,
                wait: milliseconds(call.wait_ms * self.factors.waits),
                service: milliseconds(call.service_ms * self.factors.tiers),
                response: self.size(call.response),
            };
            calls.extend(std::iter::repeat_n(made, call.times as usize));
        }
        Ok(traffic::Request {
            bytes: request.bytes,
            service: milliseconds(request.service_ms * self.factors.front),
            calls,
            response: self.size(request.response),
        })
    }

    fn size(&self, bytes: u64) -> Sizes {
        Sizes::Fixed((bytes as f64 * self.factors.bytes) as u64)
    }

    fn tell(
        &self,
        stage: &Stage,
        (begin, end): (Instant, Instant),
        before: &[(Duration, u64)],
        to: &mut Recorder<'_>,
    ) {
        let Some(app) = stage.world.app::<Tiers>(stage.app) else { return };
        let counted = || app.records().iter().filter(|(_, record)| record.done > begin);
        let seconds = end.since(begin).as_secs_f64();
        let mut say = |class: &str, figure: &str, unit: &str, value: f64| {
            let of = [("class", class.to_owned()), ("figure", figure.to_owned())];
            to.add_of(&of, figure, unit, value);
        };
        say("operations", "rate", "operations/s", counted().count() as f64 / seconds);
        say("operations", "failed", "operations", app.failed() as f64);
        for (place, operation) in self.operation.iter().enumerate() {
            let own = counted().filter(|(of, _)| *of == place).count();
            say(&operation.name, "rate", "operations/s", own as f64 / seconds);
        }
        let (mut retransmissions, mut named) = (0, Vec::new());
        for (machine, before) in stage.machines.iter().zip(before) {
            let (ran, repeated) = usage(&stage.world, machine);
            retransmissions += repeated - before.1;
            named.push((machine.0.clone(), (ran - before.0).as_secs_f64() / seconds * 100.0));
        }
        say("guests", "retransmissions", "segments", retransmissions as f64);
        for (name, percent) in named {
            say(&name, "processor", "%", percent);
        }
        let times: Samples = counted().map(|(_, record)| record.time()).collect();
        completion::tell("response", &times, to);
    }
}

/// Processor time of a VM of the application so far, and what it has repeated.
fn usage(world: &World, (_, machine, address): &(String, MachineId, Address)) -> (Duration, u64) {
    let ran = world.machine(*machine).vm_times(0, world.now()).ran;
    (ran, world.sender_stats(*address).retransmissions)
}

fn milliseconds(number: f64) -> Duration {
    Duration::from_secs_f64(number.max(0.0) / 1e3)
}
