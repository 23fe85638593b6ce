//! The ports and uplinks of a running switch, which come and go.
//!
//! # Theory of operation
//! **Numbers.** A port has a number below the switch's capacity, by which the forwarding table, the ledger and the uplinks know it; the
//! uplinks' numbers follow. A number is not used again before all that has been free for longer was. An uplink that changes is another one, with another number.
//!
//! **Generations.** [`Ports`] is the table of ports and uplinks at one moment and never changes. A change publishes another one with the next generation
//! ([`Shared::publish`](super::shared::Shared::publish)). A worker keeps the table that it has looked at and compares generations between two
//! rounds, which is one relaxed load: a batch meets the same ports from its first frame to its last, and no lock is taken for it.
//!
//! **Removal.** A port that is no longer in the table gets no frames from workers that have seen that; each worker notes the generation that it
//! has seen. Its connection, its addresses and its number are given up only when all workers have seen a table without it. A frame that
//! was to go there meanwhile is counted as `port_down` for the switch.
//!
//! An uplink's receiving half belongs to a worker, which gives it up when it sees a table without that uplink, and takes over those of new
//! ones ([`WorkerInfo::arriving`](super::workers::WorkerInfo)).
//!
//! **Invariants**: a port or uplink in the table is at its own number; generations only grow.

use std::collections::BTreeMap;
use std::sync::Arc;

use floodway_core::l2::{NetworkId, Origin, PortId};
use floodway_wire::ethernet::HEADER_LEN;

use super::port::Port;
use super::uplink::Uplink;
use crate::frame::Frame;

/// How many numbers there are. Those of uplinks follow those of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// For ports.
    pub ports: usize,
    /// For uplinks.
    pub uplinks: usize,
}

/// The ports and uplinks at one moment. See the module's theory of operation.
#[derive(Default)]
pub struct Ports {
    /// By number.
    table: Box<[Option<Arc<Port>>]>,
    /// In the order of the configuration.
    list: Vec<Arc<Port>>,
    /// Uplinks, in the order of the configuration.
    uplinks: Arc<[Arc<Uplink>]>,
    /// Places of uplinks in that order, by their numbers beyond those of ports.
    uplink_places: Box<[Option<u16>]>,
    generation: u64,
    /// Some port is isolated or a trunk, or there are ports of several networks.
    separates: bool,
    /// Networks that have an MTU of their own.
    mtus: BTreeMap<NetworkId, u16>,
}

impl Ports {
    /// The table of ports and uplinks in the order of the configuration. Whoever has a number that is not below `capacity` is left out.
    #[must_use]
    pub fn new(
        list: Vec<Arc<Port>>,
        uplinks: Arc<[Arc<Uplink>]>,
        capacity: Capacity,
        generation: u64,
    ) -> Self {
        let uplink_places = places(&uplinks, capacity);
        let capacity = capacity.ports;
        let mut table: Box<[_]> = (0..capacity).map(|_| None).collect();
        let list: Vec<_> = list.into_iter().filter(|port| port.id.index() < capacity).collect();
        for port in &list {
            table[port.id.index()] = Some(Arc::clone(port));
        }
        let first = list.first().map(|port| port.network);
        let is_isolated = |port: &Port| port.carried.values().any(|of| of.is_isolated);
        let separates = list
            .iter()
            .any(|port| port.is_trunk() || is_isolated(port) || Some(port.network) != first);
        let networks = list.iter().flat_map(|port| port.config.networks());
        let mtus = networks.filter_map(|network| Some((NetworkId(network.vid), network.mtu?)));
        let mtus = mtus.collect();
        Self { table, list, uplinks, uplink_places, generation, separates, mtus }
    }

    /// The port with this number.
    #[inline]
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Arc<Port>> {
        self.table.get(number)?.as_ref()
    }

    /// Returns `true` if frames from `origin` may pass to another port or uplink, as far as ports have a say: if a port that it goes to is in their
    /// network, and, where both are ports, none is isolated there. What the switch itself says to a port comes from that port.
    #[inline]
    #[must_use]
    pub fn connects(&self, origin: Origin, other: PortId) -> bool {
        !self.separates || origin.port == other || self.connects_separated(origin, other)
    }

    #[cold]
    fn connects_separated(&self, origin: Origin, other: PortId) -> bool {
        let Some(other) = self.get(other.index()) else { return true };
        match self.get(origin.port.index()) {
            Some(one) => is_open(one, origin.network) && is_open(other, origin.network),
            None => other.carried.carries(origin.network),
        }
    }

    /// Returns `true` if a frame without a tag is not larger than the MTU of its network allows, nor any segment of a GSO packet.
    #[inline]
    #[must_use]
    pub fn fits(&self, network: NetworkId, frame: &Frame<'_>) -> bool {
        self.fit_all() || self.mtu_allows(network, frame)
    }

    /// Returns `true` if no network has an MTU that frames could exceed.
    #[inline]
    #[must_use]
    pub fn fit_all(&self) -> bool {
        self.mtus.is_empty()
    }

    #[inline(never)]
    fn mtu_allows(&self, network: NetworkId, frame: &Frame<'_>) -> bool {
        let fits = |mtu: &u16| frame.segment_len() <= u32::from(*mtu) + HEADER_LEN as u32;
        self.mtus.get(&network).is_none_or(fits)
    }

    /// The ports that a frame from `origin` is flooded to: those of its network that run, but the one that it comes from.
    pub fn flooded(&self, origin: Origin) -> impl Iterator<Item = &Arc<Port>> {
        let takes = move |p: &&Arc<Port>| {
            p.carried.carries(origin.network) && p.rx_running() > 0 && self.connects(origin, p.id)
        };
        self.iter().filter(move |p| p.id != origin.port).filter(takes)
    }

    /// The port with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<Port>> {
        self.list.iter().find(|port| port.config.name == name)
    }

    /// All ports, in the order of the configuration.
    #[inline]
    #[must_use]
    pub fn list(&self) -> &[Arc<Port>] {
        &self.list
    }

    /// All ports, in the order of the configuration.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<Port>> {
        self.list.iter()
    }

    /// The uplink with number `id`.
    #[inline]
    #[must_use]
    pub fn uplink(&self, id: PortId) -> Option<&Arc<Uplink>> {
        let place = *self.uplink_places.get(id.index().checked_sub(self.table.len())?)?;
        self.uplinks.get(usize::from(place?))
    }

    /// All uplinks, in the order of the configuration.
    #[inline]
    #[must_use]
    pub const fn uplinks(&self) -> &Arc<[Arc<Uplink>]> {
        &self.uplinks
    }

    /// The uplinks that a frame from `origin` is flooded to: those of its network, but the one that it comes from.
    pub fn flooded_uplinks(&self, origin: Origin) -> impl Iterator<Item = &Arc<Uplink>> {
        self.uplinks
            .iter()
            .filter(move |u| u.id != origin.port && u.carried.carries(origin.network))
    }

    /// Ports that there can be.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.table.len()
    }

    /// Which table this is.
    #[inline]
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The number of a port, as the forwarding table has it.
    #[must_use]
    pub fn id(number: usize) -> PortId {
        u16::try_from(number).map_or(PortId::MAX, PortId)
    }
}

/// Places of `uplinks`, by their numbers.
fn places(uplinks: &[Arc<Uplink>], capacity: Capacity) -> Box<[Option<u16>]> {
    let mut places: Box<[_]> = (0..capacity.uplinks).map(|_| None).collect();
    for (place, uplink) in (0..).zip(uplinks) {
        let number = uplink.id.index().checked_sub(capacity.ports);
        if let Some(known) = number.and_then(|number| places.get_mut(number)) {
            *known = Some(place);
        }
    }
    places
}

/// The port is in the network, and not isolated there.
fn is_open(port: &Port, network: NetworkId) -> bool {
    port.carried.get(network).is_some_and(|of| !of.is_isolated)
}
