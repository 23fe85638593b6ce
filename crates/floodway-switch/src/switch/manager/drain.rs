//! Connections off the offload, so that whatever comes next loses nothing of them.
//!
//! # Theory of operation
//! A port that is drained takes no new connections, gives its guest what was acknowledged for it, and sends what it stores. A connection that neither end is owed
//! anything for passes through from then on. Guests and peers may take their time, so whoever drains waits for a limited one. What is not drained by then is met as after a
//! crash: the guest sends again what was stored for it, and what was acknowledged for it is in the journal.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{LOOK, Manager, Parts};
use crate::pipeline::delivery::Delivery;
use crate::pipeline::tcp_offload::Session;
use crate::state::port::Port;

/// How long a guest whose port changes has to acknowledge what was acknowledged for it.
const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// Ports that are drained for what the switch is about to do, and not by an operator.
pub struct Drain(Vec<Arc<Port>>);

impl Drain {
    /// Returns `true` if all of them are drained.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.iter().all(|port| port.offload.machine().engine.is_drained())
    }
}

impl Manager {
    /// Gives guests whose ports come back the time to acknowledge what was acknowledged for them.
    pub(super) fn drain(&self, Parts { gone, early, late, .. }: &Parts) {
        let comes_back =
            |port: &Port| early.iter().chain(late).any(|new| new.name == port.config.name);
        let waits = |port: &&Arc<Port>| {
            comes_back(port) && port.offload.is_active() && port.rx_running() > 0
        };
        let ports: Vec<_> = gone.iter().filter(waits).collect();
        let mut delivery = Delivery::new(Arc::clone(&self.shared));
        for port in &ports {
            Session::open(port, &mut delivery).drain(true);
        }
        delivery.flush();
        let deadline = Instant::now() + DRAINED_WITHIN;
        let is_drained = |port: &Arc<Port>| port.offload.machine().engine.is_drained();
        while !ports.iter().all(|port| is_drained(port)) && Instant::now() < deadline {
            thread::sleep(LOOK);
        }
    }

    /// Drains all ports, until that is taken back or the process ends.
    pub(in crate::switch) fn begin_drain(&self) -> Drain {
        let is_to_be = |port: &&Arc<Port>| port.offload.is_active() && port.rx_running() > 0;
        let ports: Vec<_> = self.shared.ports().iter().filter(is_to_be).cloned().collect();
        self.set_draining(&ports, true);
        Drain(ports)
    }

    /// Takes it back: ports are as their operator has said.
    pub(in crate::switch) fn end_drain(&self, Drain(ports): Drain) {
        self.set_draining(&ports, false);
    }

    fn set_draining(&self, ports: &[Arc<Port>], draining: bool) {
        let mut delivery = Delivery::new(Arc::clone(&self.shared));
        for port in ports {
            Session::open(port, &mut delivery).drain_for_now(draining);
        }
        delivery.flush();
    }
}
