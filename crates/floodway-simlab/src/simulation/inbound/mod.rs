//! Inbound rates in virtual time: the twin of scenarios of kind `inbound`, at the paper's scale.
//!
//! # Theory of operation
//!
//! The world is a star of 1 + `senders` hosts, 19 in the paper: a machine with VMs, each on a core of its own, and bare machines that send to
//! them. All of it meets at the switch's port to the machine, whose queue is finite. The machine's driver domain divides the
//! link ([`SwitchInbound`]), or passes everything. Connections go to the senders in turn, so that each has about one.
//!
//! Traffic is of two kinds, which a scene may have both: streams that always have more to send, of which one comes or goes every
//! `step_ms`, and queries, answered by all workers at once (partition and aggregate).
//!
//! **What counts** is seen every `LOOK`: bytes and drops at the port, the rate that each VM has and what came for it, and what each stream got. See
//! `figures`. `time.settle_ms` at the start are left out.

mod figures;
mod streams;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodway_core::inbound::{Config, Policy};
use floodway_sim::Instant;
use floodway_sim::cpu::VcpuSpec;
use floodway_sim::hooks::inbound::SwitchInbound;
use floodway_sim::machine::{Hook, PassThrough, VmConfig};
use floodway_sim::net::{Builder, Link, Net, NicConfig, Node, PortId, QueueConfig, SwitchConfig};
use floodway_sim::packet::Address;
use floodway_sim::traffic::{Aggregate, AggregateConfig};
use floodway_sim::world::{AppId, MachineId, World};
use serde::{Deserialize, Serialize};

use super::host::Host;
use super::measurement::Recorder;
use figures::Look;
use streams::{Stream, Streams};

/// How often it is looked at the port.
const LOOK: Duration = Duration::from_millis(50);
const MBIT: u64 = 1_000_000;
/// Number of the machine among hosts.
const MACHINE: u32 = 0;

/// The scene.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inbound {
    /// The machine, and all stacks. `network.rtt_us` is not used.
    pub host: Host,
    /// VMs.
    pub vms: u32,
    /// Hosts that send.
    pub senders: u32,
    /// Round trips of the senders without queues, in µs, in turn.
    pub rtt_us: Vec<u64>,
    /// Random delay of each packet on a sender's link, at most, in µs.
    pub jitter_us: u64,
    /// Bytes that the port to the machine queues, in thousands.
    pub queue_kb: u64,
    /// How the link is divided.
    pub division: Divide,
    /// Connections that always have more to send.
    pub streams: Vec<Group>,
    /// Questions to many at once.
    pub queries: Vec<Queries>,
    /// For how long.
    pub time: Time,
}

/// How the link is divided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Divide {
    /// Not at all without.
    pub enabled: bool,
    /// `connections` or `share`.
    pub policy: String,
    /// What the switch believes of the port, in percent of its rate.
    pub capacity_percent: u64,
    /// What may come at once, in percent of what the port queues.
    pub burst_percent: u64,
    /// What is not used is lent.
    pub water_fill: bool,
    /// A connection without data for so long does not count.
    pub idle_ms: u64,
    /// Processor time of the driver domain for a packet, in ns.
    pub cost_ns: u64,
}

/// Streams into one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The VM, from 0.
    pub vm: u32,
    /// Connections at the start.
    pub first: u32,
    /// Connections at the end.
    pub last: u32,
    /// One comes or goes every so many ms.
    pub step_ms: u64,
}

/// Queries of one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queries {
    /// The VM, from 0.
    pub vm: u32,
    /// Who is asked at once.
    pub workers: u32,
    /// Bytes of each answer.
    pub answer: u64,
    /// Mean pause between queries, in ms.
    pub pause_ms: u64,
}

/// Lengths, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// What does not count at the start.
    pub settle_ms: u64,
    /// All of it.
    pub length_ms: u64,
}

const US: fn(u64) -> Duration = Duration::from_micros;
const MS: fn(u64) -> Duration = Duration::from_millis;

/// Everything that is set up.
struct Stage {
    world: World,
    machine: MachineId,
    /// The port to the machine.
    port: PortId,
    senders: Vec<Address>,
    streams: AppId,
    queries: Vec<AppId>,
}

impl Inbound {
    pub(super) fn check(&self) -> Result<()> {
        ensure!((1..=64).contains(&self.vms) && self.senders >= 1, "vms, senders: at least 1");
        ensure!(!self.rtt_us.is_empty(), "rtt_us: name at least one");
        ensure!(self.time.settle_ms < self.time.length_ms, "time: nothing is left to measure");
        let known = self.streams.iter().map(|group| group.vm);
        for vm in known.chain(self.queries.iter().map(|queries| queries.vm)) {
            ensure!(vm < self.vms, "there is no VM {vm}");
        }
        self.config()?;
        self.host.stack().map(drop)
    }

    /// How long it takes, by no unit.
    pub(super) fn effort(&self) -> u64 {
        self.time.length_ms * self.host.network.rate_mbit
    }

    fn config(&self) -> Result<Config> {
        let divide = &self.division;
        let policy = Policy::ALL.into_iter().find(|policy| policy.name() == divide.policy);
        let burst = self.queue_kb * 10 * divide.burst_percent;
        Ok(Config {
            capacity: self.host.network.rate_mbit * MBIT / 8 * divide.capacity_percent / 100,
            policy: policy.with_context(|| format!("policy {:?} is unknown", divide.policy))?,
            water_fill: divide.water_fill,
            idle: MS(divide.idle_ms),
            burst: u32::try_from(burst).context("queue_kb")?,
            ..Config::default()
        })
    }

    pub(super) fn execute(&self, seed: u64, to: &mut Recorder<'_>) -> Result<()> {
        let mut stage = self.set_up(seed)?;
        let (settle, end) = (MS(self.time.settle_ms), MS(self.time.length_ms));
        let (mut looks, mut at) = (Vec::new(), settle);
        while at <= end {
            stage.world.run(Instant::ZERO + at);
            looks.push(self.look(&stage, at)?);
            at += LOOK;
        }
        figures::tell(self, &stage, &looks, to);
        Ok(())
    }

    fn look(&self, stage: &Stage, at: Duration) -> Result<Look> {
        let world = &stage.world;
        let port = world.net().port(stage.port);
        let stats = port.stats();
        let division = division(stage);
        let vms = 0..self.vms as usize;
        let rates = division.map_or_else(Vec::new, |division| division.rates().to_vec());
        Ok(Look {
            at,
            wire: stats.bytes + stats.packets * u64::from(port.link().overhead),
            dropped: stats.dropped,
            rates,
            received: vms.map(|vm| division.map_or(0, |d| d.received(vm))).collect(),
            streams: world
                .app::<Streams>(stage.streams)
                .context("the application is gone")?
                .received()
                .collect(),
        })
    }

    fn set_up(&self, seed: u64) -> Result<Stage> {
        let mut world = World::new(self.network(seed));
        let machine = world.add_machine(MACHINE, self.host.machine(), self.hook(seed)?);
        let vms: Vec<_> = (0..self.vms).map(|vm| world.add_vm(machine, &self.vm(vm))).collect();
        let senders: Vec<_> = (1..=self.senders).map(|host| world.add_bare(host)).collect();
        let port = world.net().ports_between(Node::Switch(0), Node::Host(MACHINE)).next();
        let port = port.context("no port leads to the machine")?;
        let mut places = senders.iter().copied().cycle();
        let stack = self.host.stack()?;
        let streams = Streams::new(self.streams(&vms, &mut places), stack);
        let streams = world.add_app(streams);
        let queries = self.queries.iter().map(|queries| {
            let workers = places.by_ref().take(queries.workers as usize).collect();
            world.add_app(Aggregate::new(AggregateConfig {
                aggregator: vms[queries.vm as usize],
                workers,
                request: 100,
                response: queries.answer,
                service: Duration::ZERO,
                pause: MS(queries.pause_ms),
                stack,
                seed,
            }))
        });
        let queries = queries.collect();
        Ok(Stage { world, machine, port, senders, streams, queries })
    }

    fn network(&self, seed: u64) -> Net {
        let network = &self.host.network;
        let mut builder = Builder::new(seed);
        let centre = builder.switch(SwitchConfig::new(QueueConfig::bytes(self.queue_kb * 1000)));
        let rate = network.rate_mbit * MBIT;
        let machine = builder.host(self.host.nic());
        builder.connect(machine, centre, Link::ethernet(rate, Duration::ZERO));
        for (_, &rtt) in (0..self.senders).zip(self.rtt_us.iter().cycle()) {
            let host = builder.host(NicConfig { ring_slots: 1, ..self.host.nic() });
            let link = Link::ethernet(rate, US(rtt) / 2).with_jitter(US(self.jitter_us));
            builder.connect(host, centre, link);
        }
        builder.build()
    }

    fn hook(&self, seed: u64) -> Result<Box<dyn Hook>> {
        let cost = Duration::from_nanos(self.division.cost_ns);
        Ok(match self.division.enabled {
            true => Box::new(SwitchInbound::new(self.config()?, self.vms as usize, cost, seed)),
            false => Box::new(PassThrough),
        })
    }

    /// A VM without a load, on a core of its own as far as there are cores.
    fn vm(&self, vm: u32) -> VmConfig {
        let cores = self.host.processors.count.saturating_sub(1).max(1);
        let config = self.host.vm(0, Duration::from_secs(1), Duration::ZERO);
        VmConfig { vcpu: VcpuSpec::pinned(vm % cores, 256), ..config }
    }

    fn streams(&self, vms: &[Address], places: &mut impl Iterator<Item = Address>) -> Vec<Stream> {
        let end = MS(self.time.length_ms);
        let mut streams = Vec::new();
        for group in &self.streams {
            let to = vms[group.vm as usize];
            let mut add = |begin: Duration, end: Duration| {
                let from = places.next().unwrap_or_default();
                streams.push(Stream { from, to, begin, end });
            };
            (0..group.first.min(group.last)).for_each(|_| add(Duration::ZERO, end));
            for change in 1..=group.first.abs_diff(group.last) {
                // The first change comes when the start does not count any more.
                let at = MS(self.time.settle_ms + u64::from(change) * group.step_ms).min(end);
                if group.first < group.last { add(at, end) } else { add(Duration::ZERO, at) }
            }
        }
        streams
    }
}

/// The division, if there is one.
fn division(stage: &Stage) -> Option<&SwitchInbound> {
    let hook: &dyn Any = stage.world.machine(stage.machine).hook();
    hook.downcast_ref()
}
