//! The division of the link among the ports.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use floodway_core::inbound::allocation::Demand;
use floodway_core::inbound::{Allocator, Config};
use floodway_core::l2::PortId;
use floodway_core::time::Instant;

use crate::port::lock;
use crate::switch::Shared;

/// How often it is looked at what ports use, while unused shares are lent.
pub const TICK: Duration = Duration::from_millis(50);

/// The division of a switch.
pub struct Division {
    /// When [`Shared::tick_inbound`] is due, in nanoseconds.
    tick_at: AtomicU64,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) config: Config,
    /// Weights of the ports in the configuration.
    weights: Vec<u32>,
    active: Vec<u32>,
    pub(super) allocator: Allocator,
}

impl State {
    fn demand(&self, port: usize, limit: Option<u64>) -> Demand {
        let active = self.active.get(port).copied().unwrap_or(0);
        let configured = self.weights.get(port).copied().unwrap_or(0);
        let weight = self.config.policy.weight(active, self.config.weight_cap, configured);
        Demand { weight, limit: limit.filter(|_| self.config.water_fill) }
    }

    fn demand_all(&mut self, limits: impl Fn(usize) -> Option<u64>) {
        let demands: Vec<_> =
            (0..self.active.len()).map(|port| self.demand(port, limits(port))).collect();
        self.allocator.set_all(demands);
    }
}

impl Division {
    /// A division among ports of these weights, switched off.
    #[must_use]
    pub fn new(weights: Vec<u32>) -> Self {
        let config = Config::default();
        let allocator = Allocator::new(&config, weights.len());
        let active = vec![0; weights.len()];
        Self {
            tick_at: AtomicU64::new(Instant::NEVER.as_nanos()),
            state: Mutex::new(State { config, weights, active, allocator }),
        }
    }

    /// When [`Shared::tick_inbound`] is due.
    #[inline]
    #[must_use]
    pub fn next_tick(&self) -> Instant {
        Instant::from_nanos(self.tick_at.load(Ordering::Relaxed))
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&State) -> R) -> R {
        work(&lock(&self.state))
    }
}

impl Shared {
    fn publish_rates(&self, state: &State) {
        for (port, &rate) in self.ports.iter().zip(state.allocator.rates()) {
            port.inbound.set_rate(rate);
        }
    }

    /// A port has so many active connections now.
    pub(super) fn set_inbound_active(&self, port: PortId, active: u32) {
        let mut state = lock(&self.inbound.state);
        let index = port.index();
        if let Some(known) = state.active.get_mut(index) {
            *known = active;
        }
        // What it can use it has to show first.
        let demand = state.demand(index, None);
        if state.allocator.set(index, demand) {
            self.publish_rates(&state);
        }
    }

    /// Takes over other settings.
    pub(super) fn configure_division(&self, config: &Config) {
        let mut state = lock(&self.inbound.state);
        state.config = config.clone();
        state.allocator.configure(config);
        if config.capacity == 0 {
            state.active.fill(0);
        }
        state.demand_all(|_| None);
        self.publish_rates(&state);
        let ticks = config.capacity > 0 && config.water_fill;
        let at = if ticks { self.now() + TICK } else { Instant::NEVER };
        self.inbound.tick_at.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// Looks at what ports use. To be called by one worker.
    pub fn tick_inbound(&self, now: Instant) {
        if self.inbound.next_tick() > now {
            return;
        }
        self.inbound.tick_at.store((now + TICK).as_nanos(), Ordering::Relaxed);
        // Not under the division's lock: a port asks for that one while it holds its own.
        let limit = |machine: &mut super::Machine| {
            let latest = machine.latest.max(now);
            machine.clamp.as_mut()?.limit(latest)
        };
        let limits: Vec<_> =
            self.ports.iter().map(|port| limit(&mut port.inbound.machine())).collect();
        let mut state = lock(&self.inbound.state);
        state.demand_all(|port| limits.get(port).copied().flatten());
        self.publish_rates(&state);
    }
}
