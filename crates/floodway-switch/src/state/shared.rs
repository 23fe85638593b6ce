//! What all threads of a switch share.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time;

use floodway_core::inbound::Config;
use floodway_core::l2::{MacTable, PortId};
use floodway_core::time::Instant;

use super::division::Division;
use super::port::Port;
use super::uplink::UplinkSlot;
use super::workers::WorkerInfo;
use crate::api::status::{PredecessorsStatus, Sandbox};
use crate::stats::ledger::Ledger;
use crate::stats::pairs::Pairs;
use crate::sync::lock_order::{Ordered, Rank};

/// Called with the key and the value of each setting that an operator makes, before the operator is answered.
pub type SettingsKeeper = Box<dyn Fn(&str, Vec<u8>) + Send + Sync>;

/// What all workers share.
pub struct Shared {
    /// VM ports; a port's number is its index.
    pub ports: Vec<Arc<Port>>,
    /// Uplinks; their numbers follow the ports'.
    pub uplinks: Vec<Arc<UplinkSlot>>,
    /// Workers, in the order of the configuration.
    pub workers: Vec<WorkerInfo>,
    /// The division of the link into the host.
    pub inbound: Division,
    /// Who sends to whom.
    pub pairs: Pairs,
    /// What the work for each port and uplink has cost.
    pub ledger: Ledger,
    /// Data planes before this one, if there is a broker.
    pub(crate) predecessors: OnceLock<PredecessorsStatus>,
    /// What the process has given up; nothing if nobody says so.
    pub(crate) sandbox: OnceLock<Sandbox>,
    /// Takes settings that were made at run time, and keeps them beyond this process.
    pub(crate) settings_keeper: OnceLock<SettingsKeeper>,
    /// Which address is where.
    table: Arc<RwLock<MacTable>>,
    started: time::Instant,
}

impl Shared {
    /// The state of a switch with these ports and uplinks; `table` is that of the ports.
    #[must_use]
    pub(crate) fn new(
        ports: Vec<Arc<Port>>,
        uplinks: Vec<Arc<UplinkSlot>>,
        workers: Vec<WorkerInfo>,
        table: Arc<RwLock<MacTable>>,
    ) -> Self {
        let weights = ports.iter().map(|port| port.config.inbound_weight).collect();
        let places = ports.len() + uplinks.len();
        Self {
            ports,
            uplinks,
            workers,
            inbound: Division::new(weights),
            pairs: Pairs::new(places),
            ledger: Ledger::new(places),
            predecessors: OnceLock::new(),
            sandbox: OnceLock::new(),
            settings_keeper: OnceLock::new(),
            table,
            started: time::Instant::now(),
        }
    }

    /// Time since the switch started.
    #[inline]
    pub fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// The uplink with number `id`.
    #[inline]
    pub fn uplink(&self, id: PortId) -> Option<&Arc<UplinkSlot>> {
        self.uplinks.get(id.index().checked_sub(self.ports.len())?)
    }

    /// The forwarding table, for look-ups and refreshing.
    #[inline]
    pub fn table(&self) -> Ordered<RwLockReadGuard<'_, MacTable>> {
        Ordered::take(Rank::Last, || self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The forwarding table, for changes.
    pub fn table_mut(&self) -> Ordered<RwLockWriteGuard<'_, MacTable>> {
        Ordered::take(Rank::Last, || self.table.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// A port has so many active connections now.
    pub(crate) fn set_inbound_active(&self, port: PortId, active: u32) {
        self.inbound.set_active(&self.ports, &self.ledger, port, active);
    }

    /// Divides the link by other settings.
    pub(crate) fn configure_division(&self, config: &Config) {
        self.inbound.configure(&self.ports, config, self.now());
    }

    /// Looks at what ports use of the link, if that is due. To be called by one worker.
    pub fn tick_inbound(&self, now: Instant) {
        self.inbound.tick(&self.ports, now);
    }
}
