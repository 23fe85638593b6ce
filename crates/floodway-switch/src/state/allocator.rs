//! Core's [`BandwidthAllocator`](floodway_core::inbound::BandwidthAllocator) of the link among the ports, shared by the workers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use floodway_core::inbound::allocator::TICK;
use floodway_core::inbound::{BandwidthAllocator as Core, Config};
use floodway_core::l2::PortId;
use floodway_core::time::Instant;
use floodway_core::work::Work;

use super::port::Port;
use crate::stats::ledger::Ledger;
use crate::sync::lock;

/// The division of a switch.
pub struct BandwidthAllocator {
    /// When the next look at what ports use is due, in nanoseconds.
    tick_at: AtomicU64,
    state: Mutex<State>,
}

/// Core's division, and the ports among which it divides, in its order.
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) ports: Vec<Arc<Port>>,
}

impl BandwidthAllocator {
    /// A division among these ports, switched off.
    #[must_use]
    pub fn new(ports: &[Arc<Port>]) -> Self {
        let weights = ports.iter().map(|port| port.config.inbound_weight).collect();
        let core = Core::new(Config::default(), weights, Instant::ZERO);
        Self {
            tick_at: AtomicU64::new(Instant::NEVER.as_nanos()),
            state: Mutex::new(State { core, ports: ports.to_vec() }),
        }
    }

    /// When [`Shared::tick_inbound`](super::shared::Shared::tick_inbound) is due.
    #[inline]
    #[must_use]
    pub fn next_tick(&self) -> Instant {
        Instant::from_nanos(self.tick_at.load(Ordering::Relaxed))
    }

    pub(crate) fn with<R>(&self, work: impl FnOnce(&State) -> R) -> R {
        work(&lock(&self.state))
    }
}

/// What a division among so many ports costs: each one's share is computed and published, in about the time that a descriptor takes. A guest
/// whose connections come and go causes one with every few frames, so it is charged.
fn division_work(ports: usize) -> Work {
    Work { descriptors: ports as u64, ..Work::default() }
}

impl State {
    fn position(&self, port: PortId) -> Option<usize> {
        self.ports.iter().position(|known| known.id == port)
    }

    fn publish_rates(&self) {
        for (port, &rate) in self.ports.iter().zip(self.core.rates()) {
            port.inbound.set_rate(rate);
        }
    }
}

impl BandwidthAllocator {
    /// The port with number `port` has `active` active connections now.
    pub(crate) fn set_active(&self, ledger: &Ledger, port: PortId, active: u32) {
        let mut state = lock(&self.state);
        let Some(position) = state.position(port) else { return };
        if state.core.set_active(position, active) {
            state.publish_rates();
            ledger.charge(port, &division_work(state.ports.len()));
        }
    }

    /// Takes over other settings.
    pub(crate) fn configure(&self, config: &Config, now: Instant) {
        let mut state = lock(&self.state);
        state.core.configure(config, now);
        state.publish_rates();
        self.tick_at.store(state.core.next_tick().as_nanos(), Ordering::Relaxed);
    }

    /// Divides among `ports` with these weights from now on. What is known of ports that stay is kept.
    pub(crate) fn rearrange(&self, ports: Vec<(Arc<Port>, u32)>, now: Instant) {
        let mut state = lock(&self.state);
        let (ports, weights): (Vec<_>, Vec<_>) = ports.into_iter().unzip();
        let mut core = Core::new(state.core.config().clone(), weights, now);
        for (position, port) in ports.iter().enumerate() {
            // Not by its number, which another port may have had.
            let before = state.ports.iter().position(|known| Arc::ptr_eq(known, port));
            let active = before.map_or(0, |before| state.core.active(before));
            core.set_active(position, active);
        }
        *state = State { core, ports };
        state.publish_rates();
        self.tick_at.store(state.core.next_tick().as_nanos(), Ordering::Relaxed);
    }

    /// Looks at what ports use, if that is due. To be called by one worker.
    pub(crate) fn tick(&self, now: Instant) {
        if self.next_tick() > now {
            return;
        }
        self.tick_at.store((now + TICK).as_nanos(), Ordering::Relaxed);
        // Not under the division's lock: a port asks for that one while it holds its own.
        let ports = self.with(|state| state.ports.clone());
        let limit = |port: &Arc<Port>| {
            let mut machine = port.inbound.machine();
            let latest = machine.latest.max(now);
            machine.clamp.as_mut()?.limit(latest)
        };
        let limits: Vec<_> = ports.iter().map(|port| (port.id, limit(port))).collect();
        let mut state = lock(&self.state);
        let State { core, ports } = &mut *state;
        let limit = |position: usize| {
            let (known, limit) = limits.get(position)?;
            // Ports may have come or gone meanwhile; the next look is soon.
            limit.filter(|_| ports.get(position).is_some_and(|port| port.id == *known))
        };
        core.tick(limit, now);
        state.publish_rates();
    }
}
