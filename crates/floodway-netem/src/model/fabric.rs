//! Links joined: a path between two ports, or a switch.
//!
//! # Theory of operation
//! Each port has an *egress* link, towards the host, and may have an *ingress* link, from the host:
//! the host's own network card and cable. A packet that arrives by a port passes its ingress link
//! if there is one, is forwarded without delay, and passes the egress link of each port that it
//! goes to. A path forwards to the other port. A switch learns source addresses with core's
//! forwarding table, and copies what is unknown, multicast or broadcast to all other ports.
//!
//! Ingress links feed egress links, so they are run in the order of their events: a packet is
//! offered to an egress link with the time at which it left the ingress link, however late
//! [`Fabric::run`] is called.

use floodway_core::l2::{MacTable, Observed, PortId, PortKind};
use floodway_core::time::Instant;

use super::Packet;
use super::config::{Forwarding, LinkConfig};
use super::counters::{FabricCounters, LinkCounters};
use super::link::Link;

/// The links of one port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// From the host; without one, packets arrive as fast as the host makes them.
    pub ingress: Option<LinkConfig>,
    /// To the host.
    pub egress: LinkConfig,
}

#[derive(Debug)]
struct Port<P> {
    ingress: Option<Link<P>>,
    egress: Link<P>,
}

/// Ports and what joins them.
pub struct Fabric<P> {
    forwarding: Forwarding,
    table: MacTable,
    ports: Vec<Port<P>>,
    counters: FabricCounters,
}

impl<P: Packet> Fabric<P> {
    /// Joins `ports`; a path must have two. At most [`PortId::MAX`] ports are joined.
    #[must_use]
    pub fn new(forwarding: Forwarding, ports: Vec<PortConfig>, seed: u64) -> Self {
        let mut table = MacTable::new([seed, seed], MacTable::DEFAULT_AGEING);
        let links = |(number, config): (u64, PortConfig)| Port {
            ingress: config.ingress.map(|ingress| Link::new(ingress, seed, 2 * number)),
            egress: Link::new(config.egress, seed, 2 * number + 1),
        };
        for port in (0..=PortId::MAX.0).take(ports.len()) {
            table.add_port(PortId(port), PortKind::Uplink, MacTable::DEFAULT_UPLINK_LIMIT);
        }
        let ports = (0..).zip(ports).map(links).collect();
        Self { forwarding, table, ports, counters: FabricCounters::default() }
    }

    /// A packet arrives from the host at `port`.
    pub fn arrive(&mut self, port: usize, packet: P, now: Instant) {
        self.run(now);
        match self.ports.get_mut(port).and_then(|port| port.ingress.as_mut()) {
            Some(ingress) => ingress.offer(packet, now),
            None => self.forward(port, packet, now),
        }
    }

    /// Does what is due by `now`.
    pub fn run(&mut self, now: Instant) {
        while let Some((port, at)) = self.next_ingress().filter(|(_, at)| *at <= now) {
            while let Some((packet, due)) = self.ingress_due(port, at) {
                self.forward(port, packet, due);
            }
        }
        self.table.age(now);
    }

    /// The next packet that has reached the host at `port` by `now`, and when it did. Call
    /// [`run`](Self::run) before.
    pub fn take_due(&mut self, port: usize, now: Instant) -> Option<(P, Instant)> {
        self.ports.get_mut(port)?.egress.take_due(now)
    }

    /// When something happens next; [`Instant::NEVER`] if all is empty.
    #[must_use]
    pub fn next_event(&self) -> Instant {
        let egress = self.ports.iter().map(|port| port.egress.next_event()).min();
        let ingress = self.next_ingress().map(|(_, at)| at);
        egress.into_iter().chain(ingress).min().unwrap_or(Instant::NEVER)
    }

    /// Changes the egress link of a port.
    pub fn configure_egress(&mut self, port: usize, config: LinkConfig, now: Instant) {
        self.run(now);
        if let Some(port) = self.ports.get_mut(port) {
            port.egress.configure(config, now);
        }
    }

    /// Changes the ingress link of a port; false if it has none.
    pub fn configure_ingress(&mut self, port: usize, config: LinkConfig, now: Instant) -> bool {
        self.run(now);
        let ingress = self.ports.get_mut(port).and_then(|port| port.ingress.as_mut());
        ingress.map(|ingress| ingress.configure(config, now)).is_some()
    }

    /// Counters of the joint.
    #[must_use]
    pub fn counters(&self) -> FabricCounters {
        self.counters
    }

    /// Counters of the egress link of a port.
    #[must_use]
    pub fn egress(&self, port: usize) -> Option<LinkCounters> {
        self.ports.get(port).map(|port| port.egress.counters())
    }

    /// Counters of the ingress link of a port, if it has one.
    #[must_use]
    pub fn ingress(&self, port: usize) -> Option<LinkCounters> {
        self.ports.get(port)?.ingress.as_ref().map(Link::counters)
    }

    /// Starts the high-water marks of all queues anew.
    pub fn reset_high_water(&mut self) {
        for port in &mut self.ports {
            port.egress.reset_high_water();
            if let Some(ingress) = &mut port.ingress {
                ingress.reset_high_water();
            }
        }
    }

    /// The ingress link whose next event is the earliest.
    fn next_ingress(&self) -> Option<(usize, Instant)> {
        let events = self.ports.iter().enumerate().filter_map(|(number, port)| {
            port.ingress.as_ref().map(|ingress| (number, ingress.next_event()))
        });
        events.min_by_key(|(_, at)| *at).filter(|(_, at)| *at < Instant::NEVER)
    }

    fn ingress_due(&mut self, port: usize, at: Instant) -> Option<(P, Instant)> {
        self.ports.get_mut(port)?.ingress.as_mut()?.take_due(at)
    }

    fn forward(&mut self, from: usize, packet: P, now: Instant) {
        match self.forwarding {
            Forwarding::Path => self.send(1 - from.min(1), packet, now),
            Forwarding::Switch => self.switch(from, packet, now),
        }
    }

    fn switch(&mut self, from: usize, packet: P, now: Instant) {
        if !self.learn(from, packet.source(), now) {
            self.counters.filtered += 1;
            return;
        }
        match self.table.lookup(packet.destination()).map(PortId::index) {
            Some(to) if to == from => self.counters.filtered += 1,
            Some(to) => self.send(to, packet, now),
            None => self.flood(from, packet, now),
        }
    }

    /// False for a source address that no host can have.
    fn learn(
        &mut self,
        from: usize,
        source: floodway_wire::ethernet::MacAddr,
        now: Instant,
    ) -> bool {
        let Ok(from) = u16::try_from(from).map(PortId) else { return false };
        match self.table.observe(source, from, false, now) {
            Observed::Known => true,
            Observed::Changed => {
                self.table.learn(source, from, false, now);
                true
            }
            // A port with too many addresses still sends: its frames are flooded to.
            Observed::Refused(_) => !source.is_multicast() && !source.is_zero(),
        }
    }

    fn flood(&mut self, from: usize, packet: P, now: Instant) {
        let mut others = (0..self.ports.len()).filter(|port| *port != from);
        let Some(first) = others.next() else {
            self.counters.filtered += 1;
            return;
        };
        for other in others {
            self.counters.flood_copies += 1;
            self.offer(other, packet.duplicate(), now);
        }
        self.send(first, packet, now);
    }

    fn send(&mut self, to: usize, packet: P, now: Instant) {
        self.counters.forwarded += 1;
        self.offer(to, packet, now);
    }

    fn offer(&mut self, to: usize, packet: P, now: Instant) {
        if let Some(port) = self.ports.get_mut(to) {
            port.egress.offer(packet, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rate;
    use super::super::testing::{TestPacket, plain};
    use super::*;
    use floodway_core::time::Duration;

    fn ports(count: usize, egress: &LinkConfig) -> Vec<PortConfig> {
        vec![PortConfig { ingress: None, egress: egress.clone() }; count]
    }

    fn due(fabric: &mut Fabric<TestPacket>, port: usize, now: Instant) -> Vec<(u64, u64)> {
        fabric.run(now);
        std::iter::from_fn(|| fabric.take_due(port, now))
            .map(|(packet, due)| (packet.id, due.as_nanos()))
            .collect()
    }

    fn ids(fabric: &mut Fabric<TestPacket>, port: usize) -> Vec<u64> {
        due(fabric, port, Instant::from_millis(1000)).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn a_path_leads_to_the_other_end() {
        let mut fabric = Fabric::new(Forwarding::Path, ports(2, &plain(9000)), 1);
        fabric.arrive(0, TestPacket::new(0, 100), Instant::ZERO);
        fabric.arrive(1, TestPacket::new(1, 100), Instant::ZERO);
        assert_eq!((ids(&mut fabric, 0), ids(&mut fabric, 1)), (vec![1], vec![0]));
        assert_eq!(fabric.counters().forwarded, 2);
    }

    #[test]
    fn a_switch_floods_learns_and_filters() {
        let mut fabric = Fabric::new(Forwarding::Switch, ports(3, &plain(9000)), 1);
        let mut arrive = |port, id, source, destination| {
            let packet = TestPacket::new(id, 100).between(source, destination);
            fabric.arrive(port, packet, Instant::ZERO);
        };
        arrive(0, 0, 1, 2);
        arrive(1, 1, 2, 1);
        arrive(0, 2, 1, 2);
        arrive(0, 3, 3, 1);
        arrive(2, 4, 4, 255);
        arrive(2, 5, 255, 1);
        assert_eq!(ids(&mut fabric, 0), [1, 4]);
        assert_eq!(ids(&mut fabric, 1), [0, 2, 4]);
        assert_eq!(ids(&mut fabric, 2), [0]);
        let expected = FabricCounters { forwarded: 4, flood_copies: 2, filtered: 2 };
        assert_eq!(fabric.counters(), expected);
    }

    #[test]
    fn two_senders_meet_in_the_queue_of_one_port() {
        let gigabit = LinkConfig { rate: Rate::new(1_000_000_000, 24), ..plain(1 << 20) };
        let port = PortConfig { ingress: Some(gigabit.clone()), egress: gigabit };
        let mut fabric = Fabric::new(Forwarding::Switch, vec![port; 3], 1);
        fabric.arrive(2, TestPacket::new(100, 60).between(3, 255), Instant::ZERO);
        let start = Instant::from_millis(1);
        assert_eq!(due(&mut fabric, 0, start), [(100, 1344)]);
        for id in 0..10 {
            fabric.arrive(0, TestPacket::new(id, 1514).between(1, 3), start);
            fabric.arrive(1, TestPacket::new(20 + id, 1514).between(2, 3), start);
        }
        // Nobody looks before all is over; all the same, the packets of the two hosts have left
        // in turn, 12 304 ns each, behind the first one's time on its host's cable.
        let arrivals = due(&mut fabric, 2, Instant::from_millis(10));
        let times: Vec<u64> = arrivals.iter().map(|(_, at)| at - start.as_nanos()).collect();
        assert_eq!(times, (2..22).map(|n| n * 12_304).collect::<Vec<_>>());
        let expected: Vec<u64> = (0..10).flat_map(|id| [id, 20 + id]).collect();
        assert_eq!(arrivals.iter().map(|(id, _)| *id).collect::<Vec<_>>(), expected);
        let counters = fabric.egress(2).unwrap();
        assert_eq!(counters.low.queue_high_water_bytes, 10 * 1514);
        assert_eq!(fabric.ingress(0).unwrap().delivered.packets, 10);
    }

    #[test]
    fn with_two_classes_small_flows_do_not_wait_for_large_ones() {
        let egress = LinkConfig { rate: Rate::new(100_000_000, 24), ..plain(1 << 20) };
        let mut fabric = Fabric::new(Forwarding::Switch, ports(3, &egress), 1);
        for id in 0..100 {
            fabric.arrive(0, TestPacket::new(id, 1514).between(1, 3), Instant::ZERO);
        }
        let now = Instant::from_nanos(61_520);
        fabric.arrive(1, TestPacket::new(1000, 1514).dscp(46).between(2, 3), now);
        assert!(due(&mut fabric, 0, Instant::ZERO).is_empty());
        let arrivals = due(&mut fabric, 2, Instant::from_millis(1000));
        assert_eq!(arrivals[1], (1000, 246_080));
        let low: Vec<u64> = arrivals.iter().map(|(id, _)| *id).filter(|id| *id < 1000).collect();
        assert_eq!(low, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn links_can_be_changed_while_packets_are_under_way() {
        let mut fabric = Fabric::new(Forwarding::Path, ports(2, &plain(9000)), 1);
        assert_eq!(fabric.next_event(), Instant::NEVER);
        let slow = LinkConfig { delay: Duration::from_millis(1), ..plain(9000) };
        fabric.configure_egress(1, slow.clone(), Instant::ZERO);
        assert!(!fabric.configure_ingress(1, slow, Instant::ZERO));
        fabric.arrive(0, TestPacket::new(0, 100), Instant::ZERO);
        assert_eq!(fabric.next_event(), Instant::from_millis(1));
        fabric.configure_egress(1, plain(9000), Instant::from_micros(500));
        fabric.arrive(0, TestPacket::new(1, 100), Instant::from_micros(500));
        let expected = [(0, 1_000_000), (1, 1_000_000)];
        assert_eq!(due(&mut fabric, 1, Instant::from_millis(2)), expected);
    }
}
