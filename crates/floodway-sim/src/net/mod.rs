//! The network: ports, links, switches and the topologies made of them.
//!
//! A [`Net`] is arrays of parts that name each other by number. It knows packets, not what is in
//! them: whatever reaches a host is handed back to the caller.

mod buffer;
mod host_queue;
mod link;
mod nic;
mod partition;
mod port;
mod queue;
mod switch;
mod tagger;
mod topology;

pub use buffer::SharedBuffer;
pub use host_queue::{HostQueue, HostQueueConfig};
pub use link::Link;
pub use nic::{Nic, NicConfig};
pub use partition::{NoDelay, Partition};
pub(crate) use port::Crossing;
pub use port::{Port, PortStats};
pub use queue::{ClassQueues, Discipline, QueueConfig, Refused};
pub use switch::{Switch, SwitchConfig};
pub use tagger::{Tagger, TaggerConfig};
pub use topology::{Builder, Dumbbell, FatTree, Star, dumbbell, fat_tree, one_link, star};

use port::Common;

use crate::engine::Clock;
use crate::packet::{Address, PacketId, Pool};

/// An element that packets arrive at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A switch.
    Switch(u32),
    /// A host: whatever stands at the edge.
    Host(u32),
}

/// Names a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortId(pub u32);

/// What happens in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// A port has sent its packet and has more.
    PortFree(PortId),
    /// A packet has come over a link.
    Arrive(Node, PacketId),
}

/// A network.
#[derive(Debug, Default)]
pub struct Net {
    ports: Vec<Port>,
    switches: Vec<Switch>,
    common: Common,
    /// The port of each host.
    uplinks: Vec<PortId>,
    /// The host at which each address is.
    hosts: Vec<u32>,
    /// By host; hosts beyond its end have none.
    taggers: Vec<Option<Tagger>>,
}

impl Net {
    /// The packets that have left for other parts of the network.
    pub(crate) const fn outbox(&mut self) -> &mut Vec<Crossing> {
        &mut self.common.outbox
    }

    /// Number of hosts.
    #[must_use]
    pub const fn hosts(&self) -> usize {
        self.uplinks.len()
    }

    /// Puts one more address at a host, and says which it is.
    pub fn attach(&mut self, host: u32) -> Address {
        assert!((host as usize) < self.uplinks.len(), "no such host");
        self.hosts.push(host);
        Address(self.hosts.len() as u32 - 1)
    }

    /// The port by which a host sends.
    #[must_use]
    pub fn uplink(&self, host: u32) -> PortId {
        self.uplinks[host as usize]
    }

    /// A port.
    #[must_use]
    pub fn port(&self, id: PortId) -> &Port {
        &self.ports[id.0 as usize]
    }

    /// A port, to change its settings.
    pub fn port_mut(&mut self, id: PortId) -> &mut Port {
        &mut self.ports[id.0 as usize]
    }

    /// All ports, in the order in which they were made.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Meters and tags what a host sends, from now on.
    pub fn set_tagger(&mut self, host: u32, tagger: Tagger) {
        let at = host as usize;
        if self.taggers.len() <= at {
            self.taggers.resize_with(at + 1, || None);
        }
        self.taggers[at] = Some(tagger);
    }

    /// The tagger of a host.
    #[must_use]
    pub fn tagger(&self, host: u32) -> Option<&Tagger> {
        self.taggers.get(host as usize)?.as_ref()
    }

    /// The ports that lead from one node to another.
    pub fn ports_between(&self, from: Node, to: Node) -> impl Iterator<Item = PortId> {
        let leads = move |port: &Port| port.from() == from && port.to() == to;
        (0..).zip(&self.ports).filter(move |(_, port)| leads(port)).map(|(n, _)| PortId(n))
    }

    /// A host sends a packet.
    #[inline]
    pub fn send<E>(&mut self, host: u32, packet: PacketId, pool: &mut Pool, clock: &mut Clock<E>)
    where
        E: Copy + From<NetEvent>,
    {
        if let Some(Some(tagger)) = self.taggers.get_mut(host as usize) {
            pool.edit(packet, |packet| tagger.tag(packet, clock.now()));
        }
        self.send_by(self.uplinks[host as usize], packet, pool, clock);
    }

    /// Handles an event; answers with a packet that has reached a host.
    #[inline]
    pub fn handle<E>(
        &mut self,
        event: NetEvent,
        pool: &mut Pool,
        clock: &mut Clock<E>,
    ) -> Option<(u32, PacketId)>
    where
        E: Copy + From<NetEvent>,
    {
        match event {
            NetEvent::PortFree(id) => {
                let port = &mut self.ports[id.0 as usize];
                port.on_free(id, &mut self.common, pool, clock);
                None
            }
            NetEvent::Arrive(Node::Host(host), packet) => Some((host, packet)),
            NetEvent::Arrive(Node::Switch(switch), packet) => {
                let destination = self.hosts[pool.get(packet).dst.0 as usize];
                let port = self.switches[switch as usize].route(destination, pool.get(packet));
                match port {
                    Some(port) => self.send_by(port, packet, pool, clock),
                    None => {
                        pool.remove(packet);
                    }
                }
                None
            }
        }
    }

    fn send_by<E>(&mut self, id: PortId, packet: PacketId, pool: &mut Pool, clock: &mut Clock<E>)
    where
        E: Copy + From<NetEvent>,
    {
        self.ports[id.0 as usize].send(id, packet, &mut self.common, pool, clock);
    }
}
