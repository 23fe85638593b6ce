//! A few machines with VMs around one switch, which disturb each other: sections 5.1 to 5.4 of the small-flows paper.
//!
//! # Theory of operation
//!
//! VMs have a machine, a core, and maybe a hog: so many operations of processor time, a pause, and so on. The driver domain of a
//! machine and its scheduler are those of the host's file ([`super::host`]). Traffic has a name: pings, a bulk transfer, or
//! queries and answers. What is compared is the [`Policy`]: who may preempt whom, what the queue in front of a machine's
//! card is, and whether the switch serves small flows first.
//!
//! Each uplink of a machine has the switch's own queue ([`floodway_sim::net::HostQueue`]) above a ring that is bounded in bytes,
//! and its own meter ([`floodway_sim::net::Tagger`]).
//!
//! **What counts.** Whatever begins after `time.warm_up_ms`. An answer that has not come when the run ends counts with nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use floodway_core::egress::qdisc::{self, Kind};
use floodway_sim::Instant;
use floodway_sim::cpu::{Credit, CreditConfig, Debit, LoadConfig};
use floodway_sim::engine::Rng;
use floodway_sim::flow::Side;
use floodway_sim::machine::{MachineConfig, PassThrough, VmConfig};
use floodway_sim::net::{
    Builder, HostQueue, HostQueueConfig, Link, Net, Nic, NicConfig, QueueConfig, SwitchConfig,
    Tagger, TaggerConfig,
};
use floodway_sim::packet::Address;
use floodway_sim::traffic::{
    Arrivals, Bulk, BulkFlow, Echo, EchoConfig, Queries, QueryConfig, Record, Samples, Sizes,
};
use floodway_sim::world::{AppId, MachineId, World};
use serde::{Deserialize, Serialize};

use super::completion;
use super::fat_tree::Meter;
use super::host::{Host, SchedulerName};
use super::measurement::Recorder;

/// The scene.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Testbed {
    /// All machines and stacks.
    pub host: Host,
    /// Who is where.
    pub vms: BTreeMap<String, Vm>,
    /// What is compared.
    pub policy: Policy,
    /// The meter of each VM.
    pub meter: Meter,
    /// What is sent.
    pub traffic: BTreeMap<String, Traffic>,
    /// For how long.
    pub time: Time,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its machine.
    pub machine: String,
    /// The core on which it runs.
    pub core: u32,
    /// What it computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hog: Option<Hog>,
}

/// A program that computes and pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hog {
    /// It is there.
    pub enabled: bool,
    /// Operations between two pauses.
    pub operations: u32,
    /// Processor time of an operation, in µs.
    pub cost_us: u64,
    /// Length of a pause, in µs.
    pub pause_us: u64,
}

/// What the host and the network do for small flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// A VM that wakes up BOOSTed preempts one that runs BOOSTed.
    pub boost_preempts_boost: bool,
    /// The discipline in front of a card.
    pub host_queue: Discipline,
    /// GSO packets are cut before they are queued.
    pub segment: bool,
    /// Bytes that a card may hold; 0 for as many as its ring has descriptors for.
    pub ring_bytes: u64,
    /// The queue in front of a card serves the high class first.
    pub host_priority: bool,
    /// So does the switch.
    pub switch_priority: bool,
    /// Bytes that wait at a port of the switch, in each class.
    pub switch_bytes: u64,
}

/// Disciplines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// First in, first out; as long as the host's file says.
    Fifo,
    /// `CoDel`.
    Codel,
    /// FQ-CoDel.
    FqCodel,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Traffic {
    /// Datagrams that come back.
    Ping {
        /// It is there.
        enabled: bool,
        /// Who asks.
        from: String,
        /// Who answers.
        to: String,
        /// Payload.
        bytes: u32,
        /// Distance in time.
        every_us: u64,
    },
    /// A transfer without end.
    Bulk {
        /// It is there.
        enabled: bool,
        /// Sender.
        from: String,
        /// Receiver.
        to: String,
    },
    /// Queries at exponential gaps, and their answers, over a connection to each server.
    Queries {
        /// It is there.
        enabled: bool,
        /// Who asks.
        client: String,
        /// Who answers; they take part alike.
        servers: Vec<String>,
        /// Bytes of a query.
        request: u64,
        /// Bytes of an answer.
        response: u64,
        /// Mean gap between queries to all servers together.
        gap_us: u64,
    },
}

/// Lengths, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// Before anything counts.
    pub warm_up_ms: u64,
    /// After that.
    pub measured_ms: u64,
}

const US: fn(u64) -> Duration = Duration::from_micros;
const MS: fn(u64) -> Duration = Duration::from_millis;
/// More than any window: packets are what bounds a queue.
const NO_LIMIT_BYTES: u64 = 1 << 30;

/// The world of a scene.
struct Stage {
    world: World,
    /// By the machine's name.
    machines: BTreeMap<String, MachineId>,
    /// By the VM's name: its address, and its place on the machine.
    vms: BTreeMap<String, (Address, u32)>,
    apps: Vec<(String, AppId)>,
}

impl Testbed {
    pub(super) fn check(&self) -> Result<()> {
        let p = &self.host.processors;
        let credit = matches!(p.scheduler, SchedulerName::Xen33 | SchedulerName::Xen42);
        ensure!(
            credit,
            "host.processors.scheduler: only Xen's credit scheduler can be simulated here"
        );
        ensure!(self.host.network.rate_mbit >= 1, "host.network.rate_mbit must be at least 1");
        for (name, vm) in &self.vms {
            ensure!(vm.core < p.count, "vms.{name}: there is no core {}", vm.core);
        }
        for (name, traffic) in &self.traffic {
            for vm in traffic.ends() {
                ensure!(self.vms.contains_key(vm), "traffic.{name}: there is no VM {vm:?}");
            }
            if let Traffic::Ping { every_us: 0, .. } | Traffic::Queries { gap_us: 0, .. } = traffic
            {
                bail!("traffic.{name}: the gap must be at least 1 µs");
            }
        }
        self.host.tcp.stack().map(drop)
    }

    /// How long it takes, by no unit: all links are busy for some of the time.
    pub(super) fn effort(&self) -> u64 {
        let ms = self.time.warm_up_ms + self.time.measured_ms;
        let enabled = self.traffic.values().filter(|traffic| traffic.enabled()).count() as u64;
        ms * self.host.network.rate_mbit * 25 * enabled
    }

    pub(super) fn execute(&self, seed: u64, to: &mut Recorder<'_>) -> Result<()> {
        let mut stage = self.set_up(seed)?;
        let begin = Instant::ZERO + MS(self.time.warm_up_ms);
        stage.world.run(begin);
        let before = self.progress(&stage);
        stage.world.run(begin + MS(self.time.measured_ms));
        self.tell_times(&stage, begin, to);
        let seconds = MS(self.time.measured_ms).as_secs_f64();
        for (name, (unit, value)) in self.progress(&stage) {
            let rate = before.get(&name).map_or(0.0, |(_, before)| value - before) / seconds;
            let of = [("class", name), ("figure", "rate".to_owned())];
            to.add_of(&of, "progress", unit, rate);
        }
        self.tell_machines(&stage, to);
        Ok(())
    }

    fn set_up(&self, seed: u64) -> Result<Stage> {
        let mut names: Vec<&String> = self.vms.values().map(|vm| &vm.machine).collect();
        names.sort();
        names.dedup();
        let mut world = World::new(self.network(seed, names.len() as u32));
        let mut machines = BTreeMap::new();
        for (host, &name) in (0..).zip(&names) {
            let uplink = world.uplink(host);
            world.net_mut().port_mut(uplink).set_nic(self.nic());
            if self.meter.enabled {
                world.net_mut().set_tagger(host, Tagger::new(self.meter.config(), seed));
            }
            let machine = world.add_machine(host, self.machine(), Box::new(PassThrough));
            machines.insert(name.clone(), machine);
        }
        let mut vms: BTreeMap<String, (Address, u32)> = BTreeMap::new();
        for (number, (name, vm)) in (0..).zip(&self.vms) {
            let on_machine =
                vms.keys().filter(|other| self.vms[*other].machine == vm.machine).count();
            let config = self.vm(vm, &mut Rng::new(seed, "hog", number));
            let address = world.add_vm(machines[&vm.machine], &config);
            vms.insert(name.clone(), (address, on_machine as u32));
        }
        let mut stage = Stage { world, machines, vms, apps: Vec::new() };
        for (number, (name, traffic)) in (0..).zip(&self.traffic) {
            if traffic.enabled() {
                self.add_traffic(&mut stage, name, traffic, seed.wrapping_add(number << 32))?;
            }
        }
        Ok(stage)
    }

    fn network(&self, seed: u64, hosts: u32) -> Net {
        let mut builder = Builder::new(seed);
        let queue = QueueConfig::bytes(self.policy.switch_bytes);
        let high = TaggerConfig::default().high_dscp;
        let queue = if self.policy.switch_priority { queue.with_high(high) } else { queue };
        let centre = builder.switch(SwitchConfig::new(queue));
        let network = &self.host.network;
        let link = Link::ethernet(network.rate_mbit * 1_000_000, US(network.rtt_us) / 4);
        for _ in 0..hosts {
            let host = builder.host(NicConfig::default());
            builder.connect(host, centre, link);
        }
        builder.build()
    }

    fn nic(&self) -> Nic {
        let (policy, network) = (&self.policy, &self.host.network);
        let (kind, limit_packets) = match policy.host_queue {
            Discipline::Fifo => (Kind::Fifo, network.nic_queue),
            Discipline::Codel => (Kind::Codel, qdisc::Config::default().limit_packets),
            Discipline::FqCodel => (Kind::FqCodel, qdisc::Config::default().limit_packets),
        };
        let discipline = qdisc::Config {
            kind,
            limit_packets,
            limit_bytes: NO_LIMIT_BYTES,
            ..qdisc::Config::default()
        };
        let high_dscp = match policy.host_priority {
            true => 1 << TaggerConfig::default().high_dscp,
            false => 0,
        };
        let queue =
            HostQueue::new(HostQueueConfig { discipline, segment: policy.segment, high_dscp });
        let ring_bytes = if policy.ring_bytes == 0 { u64::MAX } else { policy.ring_bytes };
        let config = NicConfig { ring_bytes, ring_slots: network.nic_ring, ..NicConfig::default() };
        Nic::with_discipline(config, Box::new(queue))
    }

    fn machine(&self) -> MachineConfig {
        let p = &self.host.processors;
        let config = CreditConfig {
            slice: MS(p.slice_ms),
            rate_limit: US(p.rate_limit_us),
            debit: match p.scheduler {
                SchedulerName::Xen33 => Debit::Sampled,
                _ => Debit::Exact,
            },
            boost_preempts_boost: self.policy.boost_preempts_boost,
            ..CreditConfig::xen_4_2()
        };
        let scheduler = Box::new(Credit::new(p.count, config));
        MachineConfig { scheduler, ..self.host.machine() }
    }

    fn vm(&self, vm: &Vm, rng: &mut Rng) -> VmConfig {
        let load = vm.hog.filter(|hog| hog.enabled).map(|hog| {
            let busy = US(hog.cost_us) * hog.operations;
            let phase = Duration::from_nanos(rng.below(busy.as_nanos() as u64));
            let load = LoadConfig::operations(hog.operations, US(hog.cost_us), US(hog.pause_us));
            LoadConfig { phase, ..load }
        });
        // Only where it matters, so that other scenes draw as before.
        let tick_phase = match self.host.tick() {
            Duration::ZERO => Duration::ZERO,
            tick => Duration::from_nanos(rng.below(tick.as_nanos() as u64)),
        };
        self.host.guest_on(vm.core, load, tick_phase)
    }

    fn add_traffic(
        &self,
        stage: &mut Stage,
        name: &str,
        traffic: &Traffic,
        seed: u64,
    ) -> Result<()> {
        let stack = self.host.tcp.stack()?;
        let at = |vm: &String| stage.vms[vm].0;
        let length = MS(self.time.warm_up_ms + self.time.measured_ms);
        let mut apps = Vec::new();
        match traffic {
            Traffic::Ping { from, to, bytes, every_us, .. } => {
                let count = length.as_micros() / u128::from(*every_us);
                apps.push(stage.world.add_app(Echo::new(EchoConfig {
                    from: at(from),
                    to: at(to),
                    bytes: *bytes,
                    gap: US(*every_us),
                    random: false,
                    count: u32::try_from(count).unwrap_or(u32::MAX),
                    seed,
                })));
            }
            Traffic::Bulk { from, to, .. } => {
                let flow = BulkFlow {
                    from: at(from),
                    to: at(to),
                    bytes: None,
                    start: Duration::ZERO,
                    stack,
                };
                apps.push(stage.world.add_app(Bulk::new(vec![flow])));
            }
            Traffic::Queries { client, servers, request, response, gap_us, .. } => {
                for server in servers {
                    apps.push(stage.world.add_app(Queries::new(QueryConfig {
                        clients: vec![at(client)],
                        server: at(server),
                        request: *request,
                        response: Sizes::Fixed(*response),
                        service: Duration::ZERO,
                        arrivals: Arrivals::Open(US(*gap_us) * servers.len() as u32),
                        stack,
                        seed,
                    })));
                }
            }
        }
        stage.apps.extend(apps.into_iter().map(|app| (name.to_owned(), app)));
        Ok(())
    }

    /// Completion times and round trips, by the name of the traffic.
    fn tell_times(&self, stage: &Stage, begin: Instant, to: &mut Recorder<'_>) {
        for name in self.traffic.keys() {
            let own = stage.apps.iter().filter(|(of, _)| of == name);
            let times: Samples = own
                .flat_map(|(_, app)| records(&stage.world, *app))
                .filter(|record| record.begun >= begin)
                .map(Record::time)
                .collect();
            if !times.is_empty() {
                completion::tell(name, &times, to);
                completion::draw(name, &times, to);
            }
        }
    }

    /// What bulk transfers (Mbit) and hogs (operations) have done so far, with the unit of their rates.
    fn progress(&self, stage: &Stage) -> BTreeMap<String, (&'static str, f64)> {
        let mut all = BTreeMap::new();
        for (name, app) in &stage.apps {
            let bulk = stage.world.app::<Bulk>(*app);
            let flow = bulk.and_then(|bulk| bulk.flow(0));
            let connection = flow
                .and_then(|flow| stage.world.flows().get(flow))
                .and_then(|flow| flow.end(Side::Client).connection.as_ref());
            if let Some(connection) = connection {
                let bits = connection.sender().acknowledged() as f64 * 8.0;
                all.insert(name.clone(), ("Mbit/s", bits / 1e6));
            }
        }
        for (name, vm) in &self.vms {
            let machine = stage.world.machine(stage.machines[&vm.machine]);
            if let Some(load) = machine.load(stage.vms[name].1) {
                all.insert(name.clone(), ("operations/s", load.operations() as f64));
            }
        }
        all
    }

    fn tell_machines(&self, stage: &Stage, to: &mut Recorder<'_>) {
        let now = stage.world.now();
        let whole = now.since(Instant::ZERO).as_secs_f64();
        for (name, vm) in self.vms.iter().filter(|(_, vm)| vm.hog.is_some_and(|hog| hog.enabled)) {
            let machine = stage.world.machine(stage.machines[&vm.machine]);
            let times = machine.vm_times(stage.vms[name].1, now);
            let of = |figure: &str| [("class", name.clone()), ("figure", figure.to_owned())];
            to.add_of(&of("processor"), "share", "%", times.ran.as_secs_f64() / whole * 100.0);
            to.add_of(&of("preempted"), "rate", "1/s", times.preempted as f64 / whole);
        }
        let dropped: u64 = stage.world.net().ports().iter().map(|port| port.stats().dropped).sum();
        let of = [("class", "all".to_owned()), ("figure", "dropped at the switch".to_owned())];
        to.add_of(&of, "count", "packets", dropped as f64);
    }
}

impl Traffic {
    const fn enabled(&self) -> bool {
        match self {
            Self::Ping { enabled, .. }
            | Self::Bulk { enabled, .. }
            | Self::Queries { enabled, .. } => *enabled,
        }
    }

    fn ends(&self) -> Vec<&String> {
        match self {
            Self::Ping { from, to, .. } | Self::Bulk { from, to, .. } => vec![from, to],
            Self::Queries { client, servers, .. } => servers.iter().chain([client]).collect(),
        }
    }
}

fn records(world: &World, app: AppId) -> &[Record] {
    let echo = world.app::<Echo>(app).map(Echo::records);
    let queries = world.app::<Queries>(app).map(Queries::records);
    echo.or(queries).unwrap_or_default()
}
