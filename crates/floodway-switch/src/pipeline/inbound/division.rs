//! Core's [`Division`](floodway_core::inbound::Division) of the link among the ports, shared by the workers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use floodway_core::inbound::division::TICK;
use floodway_core::inbound::{Config, Division as Core};
use floodway_core::l2::PortId;
use floodway_core::time::Instant;
use floodway_core::work::Work;

use crate::sync::lock;
use crate::switch::Shared;

/// The division of a switch.
pub struct Division {
    /// When [`Shared::tick_inbound`] is due, in nanoseconds.
    tick_at: AtomicU64,
    state: Mutex<Core>,
}

impl Division {
    /// A division among ports of these weights, switched off.
    #[must_use]
    pub fn new(weights: Vec<u32>) -> Self {
        Self {
            tick_at: AtomicU64::new(Instant::NEVER.as_nanos()),
            state: Mutex::new(Core::new(Config::default(), weights, Instant::ZERO)),
        }
    }

    /// When [`Shared::tick_inbound`] is due.
    #[inline]
    #[must_use]
    pub fn next_tick(&self) -> Instant {
        Instant::from_nanos(self.tick_at.load(Ordering::Relaxed))
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&Core) -> R) -> R {
        work(&lock(&self.state))
    }
}

/// What a division among so many ports costs: each one's share is computed and published, in about the time that a descriptor takes. A guest
/// whose connections come and go causes one with every few frames, so it is charged.
fn division_work(ports: usize) -> Work {
    Work { descriptors: ports as u64, ..Work::default() }
}

impl Shared {
    fn publish_rates(&self, division: &Core) {
        for (port, &rate) in self.ports.iter().zip(division.rates()) {
            port.inbound.set_rate(rate);
        }
    }

    /// A port has so many active connections now.
    pub(super) fn set_inbound_active(&self, port: PortId, active: u32) {
        let mut state = lock(&self.inbound.state);
        if state.set_active(port.index(), active) {
            self.publish_rates(&state);
            self.ledger.charge(port, &division_work(self.ports.len()));
        }
    }

    /// Takes over other settings.
    pub(super) fn configure_division(&self, config: &Config) {
        let mut state = lock(&self.inbound.state);
        state.configure(config, self.now());
        self.publish_rates(&state);
        self.inbound.tick_at.store(state.next_tick().as_nanos(), Ordering::Relaxed);
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
        state.tick(|port| limits.get(port).copied().flatten(), now);
        self.publish_rates(&state);
    }
}
