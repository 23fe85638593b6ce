//! A network in parts, each of which can be run by itself for a while.
//!
//! # Theory of operation
//! **Goal.** Parts of equal work that have few links between them, and those with a delay, which is how far a part can run
//! without hearing of the others. The result depends on the network and the number of parts only.
//!
//! **Rule.** A host is where its switch is. Hosts are numbered by where they are in all [topologies](super::fat_tree), so switches with
//! hosts, in the order of their first host, are cut into runs with the same number of hosts. Every other switch joins the part to
//! which it has most links, the one with the fewest links of such switches among equals; those next to switches with hosts first. So
//! the parts of a fat tree are pods, or halves of them, and core switches are spread over all.
//!
//! **Invariant.** A port, its queue and the memory that it shares are in the part of the node that sends by it. Links within a part may
//! have no delay.

use super::port::Port;
use super::switch::Switch;
use super::{Net, Node, PortId};
use crate::Duration;

/// The part that each host and switch of a network is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    parts: usize,
    hosts: Vec<u8>,
    switches: Vec<u8>,
}

/// A link between two parts has no delay, so that neither can go ahead of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the link from {from:?} to {to:?} has no delay and would be between two parts: use fewer parts, or give it one"
)]
pub struct NoDelay {
    /// Where the link begins.
    pub from: Node,
    /// Where it leads.
    pub to: Node,
}

impl Partition {
    /// The most parts that a network can have.
    pub const MOST: usize = 64;

    /// Divides a network into `parts` parts, or fewer if it has fewer switches with hosts.
    ///
    /// # Panics
    /// If `parts` is zero or more than [`MOST`](Self::MOST).
    #[must_use]
    pub fn new(net: &Net, parts: usize) -> Self {
        assert!((1..=Self::MOST).contains(&parts), "1 to {} parts", Self::MOST);
        let mut switches = vec![None; net.switches.len()];
        let parts = cut(net, parts, &mut switches);
        let mut load = vec![0; parts];
        while let joined = join(net, &switches, &mut load)
            && !joined.is_empty()
        {
            joined.into_iter().for_each(|(switch, part)| switches[switch] = Some(part));
        }
        // What is left is connected to nothing.
        let switches: Vec<u8> = switches.into_iter().map(Option::unwrap_or_default).collect();
        let of_host = |port: &PortId| match net.port(*port).to {
            Node::Switch(switch) => switches[switch as usize],
            Node::Host(_) => 0,
        };
        let hosts = net.uplinks.iter().map(of_host).collect();
        Self { parts, hosts, switches }
    }

    /// Number of parts.
    #[must_use]
    pub const fn parts(&self) -> usize {
        self.parts
    }

    /// The part that a node is in.
    #[must_use]
    pub fn part(&self, node: Node) -> u8 {
        match node {
            Node::Host(host) => self.hosts[host as usize],
            Node::Switch(switch) => self.switches[switch as usize],
        }
    }

    /// The least delay of the links between parts: what happens in one part has no effect on another before that time is over.
    /// `None` if there are no such links.
    ///
    /// # Errors
    /// With a link that has no delay.
    pub fn look_ahead(&self, net: &Net) -> Result<Option<Duration>, NoDelay> {
        let crosses = |port: &&Port| self.part(port.from) != self.part(port.to);
        let delay = |port: &Port| match port.delay() {
            Duration::ZERO => Err(NoDelay { from: port.from, to: port.to }),
            delay => Ok(delay),
        };
        let delays: Result<Vec<_>, _> = net.ports.iter().filter(crosses).map(delay).collect();
        Ok(delays?.into_iter().min())
    }
}

/// Cuts the switches with hosts into at most `parts` runs, notes the part of each, and returns how many parts there are.
fn cut(net: &Net, parts: usize, switches: &mut [Option<u8>]) -> usize {
    let hosts = net.uplinks.len().max(1);
    let mut runs = 0;
    let mut last = None;
    for (before, port) in net.uplinks.iter().enumerate() {
        if let Node::Switch(switch) = net.port(*port).to
            && switches[switch as usize].is_none()
        {
            let run = before * parts / hosts;
            if last.replace(run) != Some(run) {
                runs += 1;
            }
            switches[switch as usize] = Some((runs - 1) as u8);
        }
    }
    runs.max(1)
}

/// Returns the switches that have no part and links to one that has, with the part that each is to join. `load` is the
/// number of links that the parts have got in this way.
fn join(net: &Net, switches: &[Option<u8>], load: &mut [usize]) -> Vec<(usize, u8)> {
    let mut links = vec![vec![0; load.len()]; switches.len()];
    for port in &net.ports {
        if let (Node::Switch(from), Node::Switch(to)) = (port.from, port.to)
            && let (None, Some(part)) = (switches[from as usize], switches[to as usize])
        {
            links[from as usize][usize::from(part)] += 1;
        }
    }
    let mut joined = Vec::new();
    for (switch, links) in links.iter().enumerate() {
        let most = links.iter().copied().max().unwrap_or(0);
        let best = (0..load.len()).filter(|&part| links[part] == most);
        if most > 0
            && let Some(part) = best.min_by_key(|&part| load[part])
        {
            load[part] += links.iter().sum::<usize>();
            joined.push((switch, part as u8));
        }
    }
    joined
}

impl Net {
    /// Takes the network apart. Parts number hosts, switches and addresses as the whole does, and ports anew; with them comes where each port
    /// of the whole is: its part, and its number there.
    pub(crate) fn divide(self, partition: &Partition) -> (Vec<Self>, Vec<(u8, PortId)>) {
        let mut nets: Vec<Self> = (0..partition.parts).map(|_| self.without_ports()).collect();
        let mut places = Vec::new();
        for mut port in self.ports {
            let (from, to) = (partition.part(port.from), partition.part(port.to));
            port.beyond = (from != to).then_some(to);
            let net = &mut nets[usize::from(from)];
            places.push((from, PortId(net.ports.len() as u32)));
            net.ports.push(port);
        }
        let here = |id: PortId| places[id.0 as usize].1;
        for (place, mut switch) in self.switches.into_iter().enumerate() {
            switch.members.iter_mut().for_each(|id| *id = here(*id));
            nets[usize::from(partition.switches[place])].switches[place] = switch;
        }
        for (host, id) in self.uplinks.into_iter().enumerate() {
            nets[usize::from(partition.hosts[host])].uplinks[host] = here(id);
        }
        for (host, tagger) in (0..).zip(self.taggers) {
            if let Some(tagger) = tagger {
                nets[usize::from(partition.part(Node::Host(host)))].set_tagger(host, tagger);
            }
        }
        (nets, places)
    }

    fn without_ports(&self) -> Self {
        let mut net = Self::default();
        net.common.buffers.clone_from(&self.common.buffers);
        net.hosts.clone_from(&self.hosts);
        net.uplinks = vec![PortId(u32::MAX); self.uplinks.len()];
        let nowhere = |_: &Switch| Switch { salt: 0, groups: Vec::new(), members: Vec::new() };
        net.switches = self.switches.iter().map(nowhere).collect();
        net
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{
        Dumbbell, FatTree, Link, NicConfig, QueueConfig, Star, SwitchConfig, dumbbell, fat_tree,
        star,
    };

    const MICROS: fn(u64) -> Duration = Duration::from_micros;

    fn tree(edge_latency: Duration) -> Net {
        let link = |delay| Link::ethernet(1_000_000_000, delay);
        let switch =
            |latency| SwitchConfig { latency, ..SwitchConfig::new(QueueConfig::packets(9)) };
        fat_tree(
            1,
            &FatTree {
                pods: 4,
                edges: 2,
                aggregations: 2,
                cores: 4,
                hosts: 3,
                access: link(Duration::ZERO),
                fabric: link(MICROS(2)),
                edge_switch: switch(edge_latency),
                fabric_switch: switch(MICROS(3)),
                nic: NicConfig::default(),
            },
        )
    }

    #[test]
    fn the_parts_of_a_fat_tree_are_its_pods_and_share_the_cores() {
        let net = tree(MICROS(1));
        let partition = Partition::new(&net, 4);
        assert_eq!(partition.parts(), 4);
        let hosts: Vec<_> = (0..24).map(|host| partition.part(Node::Host(host))).collect();
        assert!(hosts.iter().enumerate().all(|(host, part)| host / 6 == usize::from(*part)));
        // Four cores, then two aggregation and two edge switches of each pod.
        let switches: Vec<_> = (0..20).map(|s| partition.part(Node::Switch(s))).collect();
        assert_eq!(switches[4..], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
        assert_eq!(switches[..4], [0, 1, 2, 3]);
        assert_eq!(partition.look_ahead(&net), Ok(Some(MICROS(5))));
        // A part for each edge switch: from above to an edge switch it takes 2 us and its latency.
        let partition = Partition::new(&net, 8);
        assert_eq!((partition.parts(), partition.look_ahead(&net)), (8, Ok(Some(MICROS(3)))));
        assert_eq!(Partition::new(&net, 64).parts(), 8);
    }

    #[test]
    fn every_port_is_in_one_part() {
        let net = tree(MICROS(1));
        let uplinks = net.uplinks.clone();
        let partition = Partition::new(&net, 4);
        let all: Vec<_> = net.ports.iter().map(|port| (port.from, port.to)).collect();
        let (nets, places) = net.divide(&partition);
        assert_eq!(nets.iter().map(|net| net.ports.len()).sum::<usize>(), all.len());
        for (number, (part, id)) in (0..).zip(&places) {
            let port = nets[usize::from(*part)].port(*id);
            assert_eq!(
                (port.number, port.from, port.to),
                (number, all[number as usize].0, all[number as usize].1)
            );
            assert_eq!(partition.part(port.from), *part);
            assert_eq!(port.beyond.unwrap_or(*part), partition.part(port.to));
        }
        for (host, id) in (0..).zip(uplinks) {
            let (part, place) = places[id.0 as usize];
            assert_eq!(nets[usize::from(part)].uplink(host), place);
        }
    }

    #[test]
    fn a_link_between_parts_needs_a_delay() {
        let link = |delay| Link::ethernet(1_000_000_000, delay);
        let switch = SwitchConfig::new(QueueConfig::packets(9));
        let nic = NicConfig::default();
        let shape = |delay| Dumbbell {
            left: vec![link(Duration::ZERO); 2],
            right: vec![link(Duration::ZERO); 2],
            bottleneck: link(delay),
            switch,
            nic,
        };
        let ahead = |delay, parts| {
            let net = dumbbell(1, &shape(delay));
            Partition::new(&net, parts).look_ahead(&net)
        };
        assert_eq!(ahead(MICROS(7), 2), Ok(Some(MICROS(7))));
        let error = ahead(Duration::ZERO, 2).unwrap_err();
        assert_eq!(error, NoDelay { from: Node::Switch(0), to: Node::Switch(1) });
        assert!(error.to_string().contains("Switch(0) to Switch(1) has no delay"), "{error}");
        assert_eq!(ahead(Duration::ZERO, 1), Ok(None));
        let net = star(1, &Star { links: vec![link(Duration::ZERO); 5], switch, nic });
        assert_eq!(Partition::new(&net, 8).parts(), 1);
    }
}
