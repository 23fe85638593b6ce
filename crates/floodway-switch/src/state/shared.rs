//! What all threads of a switch share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time;

use crossbeam_utils::sync::{ShardedLockReadGuard, ShardedLockWriteGuard};
use floodway_core::inbound::Config;
use floodway_core::l2::{MacTables, PortId};
use floodway_core::time::Instant;

use super::allocator::BandwidthAllocator;
use super::offload::moved::Outbox;
use super::port::Port;
use super::ports::{Capacity, Ports};
use super::tables::Tables;
use super::uplink::Uplink;
use super::workers::WorkerInfo;
use crate::api::status::{MovesStatus, PredecessorsStatus, ProgramsStatus, Sandbox};
use crate::capture::Captures;
use crate::events::Events;
use crate::stats::Removed;
use crate::stats::ledger::Ledger;
use crate::stats::traffic_matrix::TrafficMatrix;
use crate::sync::lock_order::Ordered;

/// Called with the key and the value of each setting that an operator makes, before the operator is answered.
pub type SettingsKeeper = Box<dyn Fn(&str, Vec<u8>) + Send + Sync>;

/// What all workers share.
pub struct Shared {
    /// VM ports.
    ports: RwLock<Arc<Ports>>,
    /// The generation of `ports`.
    generation: AtomicU64,
    /// Numbers that ports can have; those of uplinks follow.
    pub capacity: usize,
    /// Numbers that uplinks can have.
    pub uplink_capacity: usize,
    /// Workers, in the order of the configuration.
    pub workers: Vec<WorkerInfo>,
    /// The division of the link into the host.
    pub inbound: BandwidthAllocator,
    /// Who sends to whom.
    pub traffic: TrafficMatrix,
    /// What the work for each port and uplink has cost.
    pub ledger: Ledger,
    /// Who looks at frames.
    pub captures: Arc<Captures>,
    /// Who hears of what happens.
    pub events: Arc<Events>,
    /// What ports have counted that were removed.
    pub removed: Mutex<Removed>,
    /// Data planes before this one, if there is a broker.
    pub(crate) predecessors: Mutex<Option<PredecessorsStatus>>,
    /// Which programs run, if there is a broker.
    pub(crate) programs: Mutex<Option<ProgramsStatus>>,
    /// Connections that follow VMs to other hosts, if there is a broker that lets them.
    pub(crate) moves: Mutex<Option<MovesStatus>>,
    /// What the process has given up; nothing if nobody says so.
    pub(crate) sandbox: OnceLock<Sandbox>,
    /// Takes settings that were made at run time, and keeps them beyond this process.
    pub(crate) settings_keeper: OnceLock<SettingsKeeper>,
    /// What is said of guests that move to another host or from one, if anybody speaks with others.
    pub(crate) outbox: OnceLock<Arc<Outbox>>,
    /// Which address is where, in each network.
    tables: Arc<Tables>,
    started: time::Instant,
}

impl Shared {
    /// The state of a switch with these ports and uplinks, and with as many numbers as `capacity` says; `tables` are those of the ports.
    #[must_use]
    pub(crate) fn new(
        ports: Vec<Arc<Port>>,
        capacity: Capacity,
        uplinks: Vec<Arc<Uplink>>,
        workers: Vec<WorkerInfo>,
        tables: Arc<Tables>,
        captures: Arc<Captures>,
        events: Arc<Events>,
    ) -> Self {
        let inbound = BandwidthAllocator::new(&ports);
        let places = capacity.ports + capacity.uplinks;
        Self {
            ports: RwLock::new(Arc::new(Ports::new(ports, uplinks.into(), capacity, 0))),
            generation: AtomicU64::new(0),
            capacity: capacity.ports,
            uplink_capacity: capacity.uplinks,
            workers,
            inbound,
            traffic: TrafficMatrix::new(places),
            ledger: Ledger::new(places),
            captures,
            events,
            removed: Mutex::default(),
            predecessors: Mutex::new(None),
            programs: Mutex::new(None),
            moves: Mutex::new(None),
            sandbox: OnceLock::new(),
            settings_keeper: OnceLock::new(),
            outbox: OnceLock::new(),
            tables,
            started: time::Instant::now(),
        }
    }

    /// When the switch started: the beginning of its clock.
    pub(crate) const fn started(&self) -> time::Instant {
        self.started
    }

    /// Time since the switch started.
    #[inline]
    pub fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// The ports now. For whoever looks once; workers keep what they have got.
    #[must_use]
    pub fn ports(&self) -> Arc<Ports> {
        Arc::clone(&self.ports.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The generation of [`ports`](Self::ports).
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        // Whoever finds another one takes the lock of the ports, which orders the rest.
        self.generation.load(Ordering::Relaxed)
    }

    /// Lets `list` be the ports from now on, and `uplinks` the uplinks. Returns the generation that workers have to see. One thread at a time may do this.
    pub(crate) fn publish(&self, list: Vec<Arc<Port>>, uplinks: Arc<[Arc<Uplink>]>) -> u64 {
        let generation = self.generation() + 1;
        let capacity = Capacity { ports: self.capacity, uplinks: self.uplink_capacity };
        let ports = Arc::new(Ports::new(list, uplinks, capacity, generation));
        *self.ports.write().unwrap_or_else(PoisonError::into_inner) = ports;
        self.generation.store(generation, Ordering::Relaxed);
        generation
    }

    /// The uplink with number `id`, now. For whoever looks once.
    #[must_use]
    pub fn uplink(&self, id: PortId) -> Option<Arc<Uplink>> {
        self.ports().uplink(id).cloned()
    }

    /// The uplinks now, in the order of the configuration. For whoever looks once.
    #[must_use]
    pub fn uplinks(&self) -> Arc<[Arc<Uplink>]> {
        Arc::clone(self.ports().uplinks())
    }

    /// The forwarding tables, for look-ups and refreshing.
    #[inline]
    pub fn tables(&self) -> Ordered<ShardedLockReadGuard<'_, MacTables>> {
        self.tables.read()
    }

    /// The forwarding tables, for changes.
    pub fn tables_mut(&self) -> Ordered<ShardedLockWriteGuard<'_, MacTables>> {
        self.tables.write()
    }

    /// A port has so many active connections now.
    pub(crate) fn set_inbound_active(&self, port: PortId, active: u32) {
        self.inbound.set_active(&self.ledger, port, active);
    }

    /// Divides the link by other settings.
    pub(crate) fn configure_division(&self, config: &Config) {
        self.inbound.configure(config, self.now());
    }

    /// Looks at what ports use of the link, if that is due. To be called by one worker.
    pub fn tick_inbound(&self, now: Instant) {
        self.inbound.tick(now);
    }
}

#[cfg(test)]
mod tests {
    use floodway_core::l2::{NetworkId, Origin};

    use super::*;
    use crate::config::{self, NetworkConfig, PortConfig};

    #[test]
    fn ports_are_separated_from_each_other_and_never_from_themselves() {
        let network = |vid: u16| NetworkConfig::new(format!("network{vid}"), vid);
        let port = |n: u8, vid: u16, isolate| PortConfig {
            network: Some(network(vid)),
            isolate,
            ..PortConfig::new(format!("vm{n}"), "unused")
        };
        let trunk = |n: u8, vids: [u16; 2], isolated| PortConfig {
            network: None,
            tagged: vids
                .map(|vid| NetworkConfig { isolate: Some(vid) == isolated, ..network(vid) })
                .into(),
            ..port(n, 0, false)
        };
        let connected_in = |vid: u16, ports: Vec<PortConfig>| {
            let shared =
                Shared::without_threads(&config::Config { ports, ..config::Config::default() })
                    .unwrap();
            let ports = shared.ports();
            let [one, other] = [0, 1].map(|index: usize| ports.list()[index].id);
            let from = |port| Origin { port, network: NetworkId(vid) };
            assert!(ports.connects(from(one), one) && ports.connects(from(other), other));
            assert_eq!(ports.connects(from(one), other), ports.connects(from(other), one));
            ports.connects(from(one), other)
        };
        let connected = |ports: Vec<PortConfig>| {
            let vid = ports[0].network.as_ref().map_or(0, |network| network.vid);
            connected_in(vid, ports)
        };
        assert!(connected(vec![port(1, 0, false), port(2, 0, false)]));
        assert!(connected(vec![port(1, 10, false), port(2, 10, false)]));
        assert!(!connected(vec![port(1, 10, false), port(2, 20, false)]));
        assert!(!connected(vec![port(1, 10, true), port(2, 10, false)]));
        assert!(!connected(vec![port(1, 10, true), port(2, 10, true)]));
        let in_two = |isolated| vec![port(1, 10, false), trunk(2, [10, 20], isolated)];
        assert!(connected_in(10, in_two(None)) && !connected_in(20, in_two(None)));
        assert!(connected_in(10, in_two(Some(20))) && !connected_in(10, in_two(Some(10))));
        let trunks = |isolated| vec![trunk(1, [10, 30], isolated), trunk(2, [10, 20], isolated)];
        assert!(connected_in(10, trunks(Some(20))) && !connected_in(10, trunks(Some(10))));
        assert!(!connected_in(20, trunks(None)) && !connected_in(30, trunks(None)));
    }
}
