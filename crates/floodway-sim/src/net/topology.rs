//! How networks are put together, and the usual ones.
//!
//! # Theory of operation
//! A [`Builder`] collects hosts, switches and links in both directions. [`Builder::build`] makes the ports and
//! computes, by a breadth-first search from every host, all shortest ways to it: a switch's group for a
//! host is every port that leads one hop closer. So any topology has ECMP without saying so.

use std::collections::VecDeque;

use super::buffer::SharedBuffer;
use super::link::Link;
use super::nic::{Nic, NicConfig};
use super::port::{Port, PortStats, Queue, Timing};
use super::queue::ClassQueues;
use super::switch::{Switch, SwitchConfig};
use super::{Net, Node, PortId};
use crate::engine::Rng;
use crate::{Duration, Instant};

/// A network in the making.
#[derive(Clone, Debug)]
pub struct Builder {
    seed: u64,
    hosts: Vec<NicConfig>,
    switches: Vec<SwitchConfig>,
    /// Each direction of each link.
    links: Vec<(Node, Node, Link)>,
}

impl Builder {
    /// Nothing yet. The seed is that of the run.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, hosts: Vec::new(), switches: Vec::new(), links: Vec::new() }
    }

    /// Adds a host.
    pub fn host(&mut self, nic: NicConfig) -> Node {
        self.hosts.push(nic);
        Node::Host(self.hosts.len() as u32 - 1)
    }

    /// Adds a switch.
    pub fn switch(&mut self, config: SwitchConfig) -> Node {
        self.switches.push(config);
        Node::Switch(self.switches.len() as u32 - 1)
    }

    /// Adds a link with the same properties in both directions.
    pub fn connect(&mut self, a: Node, b: Node, link: Link) {
        self.links.push((a, b, link));
        self.links.push((b, a, link));
    }

    /// Makes the network.
    ///
    /// # Panics
    /// If a host has not exactly one link.
    #[must_use]
    pub fn build(self) -> Net {
        let shared = |config: &SwitchConfig| config.shared;
        let mut net = Net::default();
        let mut buffer_of = Vec::new();
        for config in &self.switches {
            buffer_of.push(shared(config).map(|(capacity, alpha)| {
                net.common.buffers.push(SharedBuffer::new(capacity, alpha));
                net.common.buffers.len() as u32 - 1
            }));
        }
        for (n, &(from, to, link)) in (0_u32..).zip(&self.links) {
            let queue = match from {
                Node::Host(h) => Queue::Nic(Nic::new(self.hosts[h as usize])),
                Node::Switch(s) => Queue::Switch {
                    classes: ClassQueues::new(self.switches[s as usize].queue),
                    buffer: buffer_of[s as usize],
                },
            };
            net.ports.push(Port {
                number: n,
                link,
                latency: self.latency(to),
                from,
                to,
                beyond: None,
                queue,
                rng: Rng::new(self.seed, "link", n.into()),
                busy_until: Instant::ZERO,
                last_arrival: Instant::ZERO,
                waiting: false,
                timing: Timing::default(),
                stats: PortStats::default(),
            });
        }
        net.uplinks = (0..self.hosts.len() as u32).map(|h| self.uplink(Node::Host(h))).collect();
        net.switches = self.routes();
        net
    }

    fn latency(&self, node: Node) -> Duration {
        match node {
            Node::Host(_) => Duration::ZERO,
            Node::Switch(s) => self.switches[s as usize].latency,
        }
    }

    fn uplink(&self, host: Node) -> PortId {
        let mut own = (0..).zip(&self.links).filter(|(_, link)| link.0 == host);
        let (Some((port, _)), None) = (own.next(), own.next()) else {
            panic!("{host:?} must have exactly one link");
        };
        PortId(port)
    }

    fn routes(&self) -> Vec<Switch> {
        let salt = |s| Rng::new(self.seed, "ecmp", s).bits() as u32;
        let empty = |s| Switch { salt: salt(s), groups: Vec::new(), members: Vec::new() };
        let mut switches: Vec<_> = (0..self.switches.len() as u64).map(empty).collect();
        for host in 0..self.hosts.len() as u32 {
            let distance = self.distances(Node::Host(host));
            for (s, switch) in (0..).zip(&mut switches) {
                let first = switch.members.len() as u32;
                let closer = |to: &Node| {
                    let here = distance[self.index(Node::Switch(s))];
                    here.is_some() && distance[self.index(*to)].map(|d| d + 1) == here
                };
                let ways = (0..).zip(&self.links);
                let ways = ways.filter(|(_, (from, to, _))| *from == Node::Switch(s) && closer(to));
                switch.members.extend(ways.map(|(n, _)| PortId(n)));
                switch.groups.push((first, switch.members.len() as u32 - first));
            }
        }
        switches
    }

    fn index(&self, node: Node) -> usize {
        match node {
            Node::Host(h) => h as usize,
            Node::Switch(s) => self.hosts.len() + s as usize,
        }
    }

    /// Links to `target` from every node; hosts do not forward.
    fn distances(&self, target: Node) -> Vec<Option<u32>> {
        let mut distance = vec![None; self.hosts.len() + self.switches.len()];
        distance[self.index(target)] = Some(0);
        let mut queue = VecDeque::from([(target, 0)]);
        while let Some((node, d)) = queue.pop_front() {
            if node != target && matches!(node, Node::Host(_)) {
                continue;
            }
            for (from, _, _) in self.links.iter().filter(|link| link.1 == node) {
                let place = &mut distance[self.index(*from)];
                if place.is_none() {
                    *place = Some(d + 1);
                    queue.push_back((*from, d + 1));
                }
            }
        }
        distance
    }
}

/// Two hosts on one link.
#[must_use]
pub fn one_link(seed: u64, link: Link, nic: NicConfig) -> Net {
    let mut builder = Builder::new(seed);
    let (a, b) = (builder.host(nic), builder.host(nic));
    builder.connect(a, b, link);
    builder.build()
}

/// A number of hosts on each side of one link between two switches.
#[derive(Clone, Debug)]
pub struct Dumbbell {
    /// Access links on the left; hosts `0..left.len()`.
    pub left: Vec<Link>,
    /// Access links on the right; the hosts after those on the left.
    pub right: Vec<Link>,
    /// The link in the middle.
    pub bottleneck: Link,
    /// Both switches.
    pub switch: SwitchConfig,
    /// All hosts.
    pub nic: NicConfig,
}

/// Makes a dumbbell; switch 0 is on the left.
#[must_use]
pub fn dumbbell(seed: u64, shape: &Dumbbell) -> Net {
    let mut builder = Builder::new(seed);
    let (left, right) = (builder.switch(shape.switch), builder.switch(shape.switch));
    let sides = [(&shape.left, left), (&shape.right, right)];
    for (links, switch) in sides {
        for &link in links {
            let host = builder.host(shape.nic);
            builder.connect(host, switch, link);
        }
    }
    builder.connect(left, right, shape.bottleneck);
    builder.build()
}

/// Hosts around one switch.
#[derive(Clone, Debug)]
pub struct Star {
    /// The link of each host.
    pub links: Vec<Link>,
    /// The switch.
    pub switch: SwitchConfig,
    /// All hosts.
    pub nic: NicConfig,
}

/// Makes a star.
#[must_use]
pub fn star(seed: u64, shape: &Star) -> Net {
    let mut builder = Builder::new(seed);
    let centre = builder.switch(shape.switch);
    for &link in &shape.links {
        let host = builder.host(shape.nic);
        builder.connect(host, centre, link);
    }
    builder.build()
}

/// Three tiers. Each edge switch has a link to every aggregation switch of its pod; aggregation switch `i` of
/// each pod has a link to every core switch `c` with `c % aggregations == i`.
#[derive(Clone, Debug)]
pub struct FatTree {
    /// Pods.
    pub pods: u32,
    /// Edge switches per pod.
    pub edges: u32,
    /// Aggregation switches per pod.
    pub aggregations: u32,
    /// Core switches; at least one per aggregation switch of a pod.
    pub cores: u32,
    /// Hosts per edge switch.
    pub hosts: u32,
    /// Links between hosts and edge switches.
    pub access: Link,
    /// Links between switches.
    pub fabric: Link,
    /// Edge switches.
    pub edge_switch: SwitchConfig,
    /// Aggregation and core switches.
    pub fabric_switch: SwitchConfig,
    /// All hosts.
    pub nic: NicConfig,
}

/// Makes a fat tree. Hosts are numbered by pod, then by edge switch.
#[must_use]
pub fn fat_tree(seed: u64, shape: &FatTree) -> Net {
    let mut builder = Builder::new(seed);
    let cores: Vec<_> = (0..shape.cores).map(|_| builder.switch(shape.fabric_switch)).collect();
    for _ in 0..shape.pods {
        let aggregations: Vec<_> =
            (0..shape.aggregations).map(|_| builder.switch(shape.fabric_switch)).collect();
        for (n, &core) in cores.iter().enumerate() {
            builder.connect(aggregations[n % aggregations.len()], core, shape.fabric);
        }
        for _ in 0..shape.edges {
            let edge = builder.switch(shape.edge_switch);
            aggregations.iter().for_each(|&a| builder.connect(edge, a, shape.fabric));
            for _ in 0..shape.hosts {
                let host = builder.host(shape.nic);
                builder.connect(host, edge, shape.access);
            }
        }
    }
    builder.build()
}
