//! The scenarios that are compared.
//!
//! # Theory of operation
//! Arrivals and sizes come from named generators of the seed, so a scenario is the same on every machine. Delays of
//! the dumbbell's senders differ, or flows would fall into step with the drops of the queue (phase effects), and
//! the two simulators would differ by that alone.
//!
//! The fat tree is that of the small-flows paper's section 5.5: 128 hosts in four pods of four edge and four aggregation
//! switches, eight core switches, 1 Gbit/s to hosts and 10 Gbit/s between switches, a connection that stays open from
//! every host to every other, Poisson arrivals of 2 ms per host, sizes Pareto 1.05 with a mean of 100 KB, cut off at 1 GB.
//! The delays are such that round trips are the paper's 220, 276.7 and 305.2 us; ns-3 has no latency in switches,
//! so all delay is on the links.

use std::time::Duration;

use floodway_sim::engine::Rng;
use floodway_sim::traffic::Sizes;

use super::scenario::{Link, Scenario, Tcp, Work};

const GIGABIT: u64 = 1_000_000_000;

/// One bottleneck of 1 Gbit/s between pairs of hosts: left hosts first.
fn dumbbell(pairs: u32, seed: u64) -> Scenario {
    let mut rng = Rng::new(seed, "delays", 0);
    let [left, right] = [2 * pairs, 2 * pairs + 1];
    let access = |host, switch, delay| Link { nodes: [host, switch], rate: 10 * GIGABIT, delay };
    let mut links = Vec::new();
    for pair in 0..pairs {
        let delay = Duration::from_nanos(10_000 + rng.below(200_000));
        links.push(access(pair, left, delay));
        links.push(access(pairs + pair, right, Duration::from_micros(10)));
    }
    links.push(Link { nodes: [left, right], rate: GIGABIT, delay: Duration::from_millis(1) });
    Scenario {
        hosts: 2 * pairs,
        switches: 2,
        queue_packets: 200,
        tcp: Tcp::default(),
        links,
        ..Scenario::default()
    }
}

/// A transfer of `bytes` on each pair, begun at random in the first second.
#[must_use]
pub fn dumbbell_bulk(pairs: u32, bytes: u64, seed: u64) -> Scenario {
    let mut rng = Rng::new(seed, "starts", 0);
    let mut scenario = dumbbell(pairs, seed);
    scenario.work = (0..pairs)
        .map(|pair| Work {
            start: Duration::from_nanos(rng.below(GIGABIT)),
            from: pair,
            to: pairs + pair,
            bytes: Some(bytes),
        })
        .collect();
    scenario.work.sort_by_key(|work| work.start);
    // Twice what the bottleneck needs, and a few timeouts.
    let needed = Duration::from_secs_f64(f64::from(pairs) * bytes as f64 * 8.0 / GIGABIT as f64);
    scenario.until = needed * 2 + Duration::from_secs(3);
    scenario
}

/// Poisson arrivals of heavy-tailed sizes on random pairs, each on a new connection: 50 % load for `length`. A lost
/// SYN costs 200 ms, as other losses do: with a second, the mean of all would be the luck of a few SYNs.
#[must_use]
pub fn dumbbell_mixed(pairs: u32, length: Duration, seed: u64) -> Scenario {
    const LOAD: f64 = 0.5;
    let sizes = Sizes::Pareto { shape: 1.5, mean: 100e3, max: 20_000_000 };
    let gap = Duration::from_secs_f64(sizes.mean() * 8.0 / (LOAD * GIGABIT as f64));
    let mut rng = Rng::new(seed, "arrivals", 0);
    let mut scenario = dumbbell(pairs, seed);
    scenario.tcp.syn_rto = scenario.tcp.min_rto;
    let mut start = rng.exponential(gap);
    while start < length {
        let pair = rng.below(u64::from(pairs)) as u32;
        let bytes = Some(sizes.sample(&mut rng));
        scenario.work.push(Work { start, from: pair, to: pairs + pair, bytes });
        start += rng.exponential(gap);
    }
    scenario.until = length + Duration::from_secs(1);
    scenario
}

/// A three-tier fat tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Pods.
    pub pods: u32,
    /// Edge switches, and as many aggregation switches, per pod.
    pub edges: u32,
    /// Hosts per edge switch.
    pub hosts: u32,
    /// Core switches, a multiple of the aggregation switches of a pod.
    pub cores: u32,
}

impl Tree {
    /// The paper's: 128 hosts.
    pub const PAPER: Self = Self { pods: 4, edges: 4, hosts: 8, cores: 8 };
    /// Eight times as large.
    pub const LARGE: Self = Self { pods: 8, edges: 8, hosts: 16, cores: 16 };

    const fn hosts(&self) -> u32 {
        self.pods * self.edges * self.hosts
    }

    fn links(&self) -> Vec<Link> {
        let fabric = |nodes, delay| Link { nodes, rate: 10 * GIGABIT, delay };
        let first_core = self.hosts();
        let first_aggregation = first_core + self.cores;
        let first_edge = first_aggregation + self.pods * self.edges;
        let mut links = Vec::new();
        for pod in 0..self.pods {
            for n in 0..self.edges {
                let aggregation = first_aggregation + pod * self.edges + n;
                let edge = first_edge + pod * self.edges + n;
                let cores = (0..self.cores).filter(|core| core % self.edges == n);
                let up = Duration::from_nanos(7_125);
                links.extend(cores.map(|core| fabric([aggregation, first_core + core], up)));
                let aggregations =
                    (0..self.edges).map(|m| first_aggregation + pod * self.edges + m);
                let up = Duration::from_nanos(14_175);
                links.extend(aggregations.map(|above| fabric([edge, above], up)));
                let first_host = (pod * self.edges + n) * self.hosts;
                links.extend((first_host..first_host + self.hosts).map(|host| Link {
                    nodes: [host, edge],
                    rate: GIGABIT,
                    delay: Duration::from_micros(55),
                }));
            }
        }
        links
    }
}

/// The paper's work on a fat tree, for `length` after all connections are open.
#[must_use]
pub fn fat_tree(tree: &Tree, length: Duration, seed: u64) -> Scenario {
    let hosts = tree.hosts();
    // A host opens one connection after the other, so that no queue is full of SYNs.
    let between = Duration::from_micros(50);
    let measure_from = between * hosts + Duration::from_millis(2);
    let mut work = Vec::new();
    for from in 0..hosts {
        let others = (1..hosts).map(|distance| (distance, (from + distance) % hosts));
        work.extend(others.map(|(n, to)| Work { start: between * n, from, to, bytes: None }));
    }
    let sizes = Sizes::Pareto { shape: 1.05, mean: 100e3, max: 1_000_000_000 };
    let until = measure_from + length;
    for from in 0..hosts {
        let mut rng = Rng::new(seed, "arrivals", u64::from(from));
        let gap = Duration::from_millis(2);
        let mut start = measure_from + rng.exponential(gap);
        while start < until {
            let to = (from + 1 + rng.below(u64::from(hosts) - 1) as u32) % hosts;
            work.push(Work { start, from, to, bytes: Some(sizes.sample(&mut rng)) });
            start += rng.exponential(gap);
        }
    }
    work.sort_by_key(|work| work.start);
    Scenario {
        hosts,
        switches: tree.cores + 2 * tree.pods * tree.edges,
        queue_packets: 100,
        measure_from,
        until,
        tcp: Tcp::default(),
        links: tree.links(),
        work,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_tree_has_its_connections_and_ports() {
        let scenario = fat_tree(&Tree::PAPER, Duration::from_millis(100), 1);
        assert_eq!((scenario.hosts, scenario.switches), (128, 40));
        let opened = scenario.work.iter().filter(|work| work.bytes.is_none()).count();
        assert_eq!(opened, 16_256);
        let ports = |node| scenario.links.iter().filter(|link| link.nodes.contains(&node)).count();
        assert_eq!((ports(0), ports(128), ports(136), ports(152)), (1, 4, 6, 12));
        // 128 hosts, 50 arrivals each.
        let transfers = scenario.transfers().count();
        assert!((6_000..6_800).contains(&transfers), "{transfers}");
    }

    #[test]
    fn the_mixed_load_is_what_it_says() {
        let length = Duration::from_secs(20);
        let scenario = dumbbell_mixed(100, length, 1);
        let bytes: u64 = scenario.transfers().map(|(_, bytes)| bytes).sum();
        let load = bytes as f64 * 8.0 / 20e9;
        assert!((0.42..0.58).contains(&load), "{load}");
        assert!(scenario.work.is_sorted_by_key(|work| work.start));
    }
}
