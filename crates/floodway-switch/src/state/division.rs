//! Core's [`Division`](floodway_core::inbound::Division) of the link among the ports, shared by the workers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use floodway_core::inbound::division::TICK;
use floodway_core::inbound::{Config, Division as Core};
use floodway_core::l2::PortId;
use floodway_core::time::Instant;
use floodway_core::work::Work;

use super::inbound::Machine;
use super::port::Port;
use crate::stats::ledger::Ledger;
use crate::sync::lock;

/// The division of a switch.
pub struct Division {
    /// When the next look at what ports use is due, in nanoseconds.
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

    /// When [`Shared::tick_inbound`](super::shared::Shared::tick_inbound) is due.
    #[inline]
    #[must_use]
    pub fn next_tick(&self) -> Instant {
        Instant::from_nanos(self.tick_at.load(Ordering::Relaxed))
    }

    pub(crate) fn with<R>(&self, work: impl FnOnce(&Core) -> R) -> R {
        work(&lock(&self.state))
    }
}

/// What a division among so many ports costs: each one's share is computed and published, in about the time that a descriptor takes. A guest
/// whose connections come and go causes one with every few frames, so it is charged.
fn division_work(ports: usize) -> Work {
    Work { descriptors: ports as u64, ..Work::default() }
}

fn publish_rates(ports: &[Arc<Port>], division: &Core) {
    for (port, &rate) in ports.iter().zip(division.rates()) {
        port.inbound.set_rate(rate);
    }
}

impl Division {
    /// The port with number `port` has `active` active connections now.
    pub(crate) fn set_active(
        &self,
        ports: &[Arc<Port>],
        ledger: &Ledger,
        port: PortId,
        active: u32,
    ) {
        let mut state = lock(&self.state);
        if state.set_active(port.index(), active) {
            publish_rates(ports, &state);
            ledger.charge(port, &division_work(ports.len()));
        }
    }

    /// Takes over other settings.
    pub(crate) fn configure(&self, ports: &[Arc<Port>], config: &Config, now: Instant) {
        let mut state = lock(&self.state);
        state.configure(config, now);
        publish_rates(ports, &state);
        self.tick_at.store(state.next_tick().as_nanos(), Ordering::Relaxed);
    }

    /// Looks at what ports use, if that is due. To be called by one worker.
    pub(crate) fn tick(&self, ports: &[Arc<Port>], now: Instant) {
        if self.next_tick() > now {
            return;
        }
        self.tick_at.store((now + TICK).as_nanos(), Ordering::Relaxed);
        // Not under the division's lock: a port asks for that one while it holds its own.
        let limit = |machine: &mut Machine| {
            let latest = machine.latest.max(now);
            machine.clamp.as_mut()?.limit(latest)
        };
        let limits: Vec<_> = ports.iter().map(|port| limit(&mut port.inbound.machine())).collect();
        let mut state = lock(&self.state);
        state.tick(|port| limits.get(port).copied().flatten(), now);
        publish_rates(ports, &state);
    }
}
