//! Many hosts on a fat tree, with transfers between all of them: section 5.5 of the small-flows paper, and beyond.
//!
//! # Theory of operation
//!
//! Each host has transfers at exponential gaps to hosts drawn uniformly, over connections that stay open or ones of their own. A meter at each host's
//! edge ([`floodway_sim::net::Tagger`]) tags what is small; switches have two queues per port, the high one of which is served
//! first, if `network.priority` says so. A host's own card may have the same (`network.host_priority`).
//!
//! **Delays.** A link to a host has a delay, edge switches and switches above have latencies, links between switches
//! have no delay: with these three, any round trips of the three distances can be met.
//!
//! **What counts.** Transfers that begin between `time.warm_up_ms` (when all connections are open) and the end of
//! `time.measured_ms`. Arrivals go on for `time.rest_ms` more, so that the last of them finish under the same
//! load; those that have not finished then count with the time that they have taken so far, which is the same for all variants.
//! Classes are by size.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodway_core::egress::meter;
use floodway_sim::Instant;
use floodway_sim::net::{
    Link, Net, NicConfig, QueueConfig, SwitchConfig, Tagger, TaggerConfig, fat_tree,
};
use floodway_sim::packet::Address;
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{
    Empirical, Pairing, Pending, Poisson, PoissonConfig, Samples, Sizes as Distribution,
};
use floodway_sim::world::World;
use serde::{Deserialize, Serialize};

use super::completion;
use super::host::Tcp;
use super::measurement::Recorder;

/// Distance in time between the connections that a host opens at the start.
const BETWEEN_OPENINGS: Duration = Duration::from_micros(50);

/// The scene.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FatTree {
    /// What is connected to what.
    pub tree: Shape,
    /// Links, switches and cards.
    pub network: Network,
    /// All stacks.
    pub tcp: Tcp,
    /// A connection falls back to the initial window after idle time.
    pub idle_restart: bool,
    /// The meter at every host.
    pub meter: Meter,
    /// What is transferred.
    pub traffic: Traffic,
    /// For how long.
    pub time: Time,
    /// Classes of transfers.
    pub class: Vec<Class>,
}

/// A fat tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Pods.
    pub pods: u32,
    /// Edge switches, and as many aggregation switches, per pod.
    pub edges: u32,
    /// Hosts per edge switch.
    pub hosts: u32,
    /// Core switches, a multiple of the edge switches of a pod.
    pub cores: u32,
}

/// Links, switches and cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Rate of links to hosts, in Mbit/s.
    pub access_mbit: u64,
    /// Rate of links between switches, in Mbit/s.
    pub fabric_mbit: u64,
    /// Delay of links to hosts, one way, in ns.
    pub access_delay_ns: u64,
    /// Latency of edge switches, in ns.
    pub edge_latency_ns: u64,
    /// Latency of the other switches, in ns.
    pub fabric_latency_ns: u64,
    /// Packets that wait at a port of a switch, in each class.
    pub queue_packets: u32,
    /// Switches serve the high class first.
    pub priority: bool,
    /// Packets that wait in front of a host's card, in each class.
    pub host_queue_packets: u32,
    /// Hosts do, too.
    pub host_priority: bool,
}

/// The meter of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meter {
    /// Without it nothing is tagged.
    pub enabled: bool,
    /// Rate of a pair that is high, in kbit/s.
    pub rate_kbit: u64,
    /// Bytes that are high at once.
    pub burst_bytes: u64,
    /// How often a low pair is looked at, in ms.
    pub recheck_ms: u64,
    /// When an idle pair is forgotten, in s.
    pub idle_s: u64,
    /// Most pairs of a source.
    pub max_pairs: u32,
}

/// What is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Sizes.
    pub sizes: Sizes,
    /// How many.
    pub arrivals: Arrivals,
    /// Over what.
    pub connections: Connections,
}

/// Connections of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connections {
    /// One for each pair of hosts, which stays open: transfers of a pair wait for each other.
    Permanent,
    /// One for each transfer.
    Fresh,
}

/// Sizes of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// A Pareto distribution that is cut off.
    #[serde(rename_all = "snake_case")]
    Pareto {
        /// Above 1.
        shape: f64,
        /// Mean without the cut-off.
        mean_bytes: f64,
        /// Largest.
        max_bytes: u64,
    },
    /// Of a web-search cluster.
    WebSearch {},
    /// Of a data-mining cluster.
    DataMining {},
}

/// How many transfers there are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Mean gap at each host, in µs.
    GapUs(u64),
    /// Payload by the rate of links to hosts, in percent.
    LoadPercent(f64),
}

/// Lengths, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Time {
    /// From when all connections are open.
    pub warm_up_ms: u64,
    /// In which transfers that count begin.
    pub measured_ms: u64,
    /// For them to finish.
    pub rest_ms: u64,
}

/// A class of transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// For the names of rows.
    pub name: String,
    /// Least bytes, exclusive.
    pub above: u64,
    /// Most bytes.
    pub to: u64,
}

/// A transfer that counts.
struct Seen {
    bytes: u64,
    time: Duration,
    /// Bytes that were before it on its connection.
    ahead: u64,
}

impl Class {
    /// Completion times of its transfers, and how many of them had to wait for others on their own connection, which no
    /// order in the network can help.
    fn tell(&self, transfers: &[Seen], to: &mut Recorder<'_>) {
        let own =
            || transfers.iter().filter(|seen| (self.above + 1..=self.to).contains(&seen.bytes));
        let all: Samples = own().map(|seen| seen.time).collect();
        completion::tell(&self.name, &all, to);
        let alone: Samples = own().filter(|seen| seen.ahead == 0).map(|seen| seen.time).collect();
        if alone.is_empty() || alone.len() == all.len() {
            return;
        }
        let of = |figure: &str| [("class", self.name.clone()), ("figure", figure.to_owned())];
        let behind = 100.0 - alone.len() as f64 / all.len() as f64 * 100.0;
        to.add_of(&of("behind others"), "share", "%", behind);
        for (figure, q) in [("p99 alone", 0.99), ("p99.9 alone", 0.999)] {
            if let Some(time) = alone.quantile(q) {
                to.add_of(&of(figure), "completion time", "ms", time.as_secs_f64() * 1e3);
            }
        }
    }
}

const NS: fn(u64) -> Duration = Duration::from_nanos;
const MS: fn(u64) -> Duration = Duration::from_millis;
const MBIT: u64 = 1_000_000;

impl Shape {
    const fn hosts(&self) -> u32 {
        self.pods * self.edges * self.hosts
    }
}

impl Meter {
    pub(super) fn config(&self) -> TaggerConfig {
        let meter = meter::Config {
            rate: self.rate_kbit * 125,
            burst: self.burst_bytes,
            recheck: MS(self.recheck_ms),
            idle: Duration::from_secs(self.idle_s),
            max_pairs: self.max_pairs,
            ..meter::Config::default()
        };
        TaggerConfig { meter, ..TaggerConfig::default() }
    }
}

impl Sizes {
    fn distribution(self) -> Distribution {
        match self {
            Self::Pareto { shape, mean_bytes, max_bytes } => {
                Distribution::Pareto { shape, mean: mean_bytes, max: max_bytes }
            }
            Self::WebSearch {} => Distribution::Empirical(Empirical::web_search()),
            Self::DataMining {} => Distribution::Empirical(Empirical::data_mining()),
        }
    }
}

impl FatTree {
    pub(super) fn check(&self) -> Result<()> {
        let Shape { pods, edges, hosts, cores } = self.tree;
        ensure!(pods * edges * hosts >= 2 && cores >= edges, "tree: too small to be one");
        ensure!(!self.class.is_empty(), "there is no class");
        if let Sizes::Pareto { shape, .. } = self.traffic.sizes {
            ensure!(shape > 1.0, "traffic.sizes: the shape must be above 1");
        }
        ensure!(!self.gap().is_zero(), "traffic.arrivals: there are too many");
        self.stack().map(drop)
    }

    fn gap(&self) -> Duration {
        match self.traffic.arrivals {
            Arrivals::GapUs(gap) => Duration::from_micros(gap),
            Arrivals::LoadPercent(percent) => {
                let bits = self.traffic.sizes.distribution().mean() * 8.0;
                let rate = (self.network.access_mbit * MBIT) as f64 * percent / 100.0;
                Duration::from_secs_f64((bits / rate.max(1.0)).min(1e6))
            }
        }
    }

    fn stack(&self) -> Result<TcpConfig> {
        let stack = self.tcp.stack().context("tcp")?;
        Ok(TcpConfig { idle_restart: self.idle_restart, ..stack })
    }

    /// How long it takes, by no unit.
    pub(super) fn effort(&self) -> u64 {
        let Time { warm_up_ms, measured_ms, rest_ms } = self.time;
        let bytes = self.traffic.sizes.distribution().mean() / self.gap().as_secs_f64();
        let ms = (warm_up_ms + measured_ms + rest_ms) as f64;
        (f64::from(self.tree.hosts()) * bytes * ms / 1e3) as u64
    }

    pub(super) fn execute(&self, seed: u64, to: &mut Recorder<'_>) -> Result<()> {
        let hosts = self.tree.hosts();
        let begin = BETWEEN_OPENINGS * (hosts + 1) + MS(self.time.warm_up_ms);
        let measured = begin + MS(self.time.measured_ms);
        let end = measured + MS(self.time.rest_ms);
        let mut world = World::new(self.network(seed));
        let all: Vec<Address> = (0..hosts).map(|host| world.add_bare(host)).collect();
        if self.meter.enabled {
            for host in 0..hosts {
                world.net_mut().set_tagger(host, Tagger::new(self.meter.config(), seed));
            }
        }
        let app = world.add_app(Poisson::new(PoissonConfig {
            senders: all.clone(),
            receivers: all,
            gap: self.gap(),
            sizes: self.traffic.sizes.distribution(),
            pairing: match self.traffic.connections {
                Connections::Permanent => Pairing::Opened(BETWEEN_OPENINGS),
                Connections::Fresh => Pairing::Fresh,
            },
            until: end,
            stack: self.stack()?,
            seed,
        }));
        world.run(Instant::ZERO + end);
        let app = world.app::<Poisson>(app).context("the application is gone")?;
        let counts = |begun: Instant| {
            let since = begun.since(Instant::ZERO);
            begin <= since && since < measured
        };
        let now = world.now();
        let finished = app.records().iter().zip(app.ahead());
        let mut transfers: Vec<_> = finished
            .filter(|(record, _)| counts(record.begun))
            .map(|(record, &ahead)| Seen { bytes: record.bytes, time: record.time(), ahead })
            .collect();
        let complete = transfers.len();
        transfers.extend(
            app.unfinished().filter(|transfer| counts(transfer.begun)).map(
                |Pending { begun, bytes, ahead }| Seen { bytes, time: now.since(begun), ahead },
            ),
        );
        for class in &self.class {
            class.tell(&transfers, to);
        }
        let of = |figure: &str| [("class", "all".to_owned()), ("figure", figure.to_owned())];
        let missing = (transfers.len() - complete) as f64;
        to.add_of(&of("not finished"), "count", "transfers", missing);
        self.tell_network(&world, end, to);
        to.add_of(&of("events"), "events", "events", world.events() as f64);
        Ok(())
    }

    pub(super) fn network(&self, seed: u64) -> Net {
        let n = &self.network;
        let queue = QueueConfig::packets(n.queue_packets);
        let high = TaggerConfig::default().high_dscp;
        let switch = |latency| SwitchConfig {
            latency,
            ..SwitchConfig::new(if n.priority { queue.with_high(high) } else { queue })
        };
        // The card takes one packet at a time, so that all that waits is in the queue.
        let queue = QueueConfig::packets(n.host_queue_packets);
        let nic = NicConfig {
            ring_bytes: u64::MAX,
            ring_slots: 1,
            queue: if n.host_priority { queue.with_high(high) } else { queue },
        };
        fat_tree(
            seed,
            &floodway_sim::net::FatTree {
                pods: self.tree.pods,
                edges: self.tree.edges,
                aggregations: self.tree.edges,
                cores: self.tree.cores,
                hosts: self.tree.hosts,
                access: Link::ethernet(n.access_mbit * MBIT, NS(n.access_delay_ns)),
                fabric: Link::ethernet(n.fabric_mbit * MBIT, Duration::ZERO),
                edge_switch: switch(NS(n.edge_latency_ns)),
                fabric_switch: switch(NS(n.fabric_latency_ns)),
                nic,
            },
        )
    }

    /// Load, drops, and how much of what was sent was high.
    fn tell_network(&self, world: &World, end: Duration, to: &mut Recorder<'_>) {
        let of = |figure: &str| [("class", "all".to_owned()), ("figure", figure.to_owned())];
        let hosts = self.tree.hosts();
        let sent: u64 =
            (0..hosts).map(|host| world.net().port(world.uplink(host)).stats().bytes).sum();
        let capacity = (self.network.access_mbit * MBIT) as f64 / 8.0 * end.as_secs_f64();
        let load = sent as f64 / (capacity * f64::from(hosts)) * 100.0;
        to.add_of(&of("load with headers"), "share", "%", load);
        let dropped: u64 = world.net().ports().iter().map(|port| port.stats().dropped).sum();
        to.add_of(&of("dropped"), "count", "packets", dropped as f64);
        let taggers = || (0..hosts).filter_map(|host| world.net().tagger(host));
        let high: u64 = taggers().map(Tagger::high_bytes).sum();
        let low: u64 = taggers().map(Tagger::low_bytes).sum();
        if high + low > 0 {
            let share = high as f64 / (high + low) as f64 * 100.0;
            to.add_of(&of("bytes in the high class"), "share", "%", share);
        }
    }
}
