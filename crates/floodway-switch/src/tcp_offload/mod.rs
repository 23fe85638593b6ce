//! TCP offload: how a port's engine ([`floodway_core::offload`]) is put into the packet path.
//!
//! # Theory of operation
//! The engine decides and owns no bytes; here are the bytes. Each port has one engine behind one
//! lock. A [`Session`] is one hold of that lock: it shows frames to the engine, carries out what the
//! engine asks for ([`egress`]) and forwards what the engine lets pass, edited ([`headers`]). Frames
//! that the engine keeps are copied once into buffers of the port ([`crate::pool`], [`held`]); from there
//! they leave with new headers and without another copy.
//!
//! **Which frames** ([`describe`]): whole TCP segments between a guest and an uplink, with at most one
//! VLAN tag, without IP options or extension headers, and with a checksum that is partial, validated
//! by the host's kernel, or found right here. All others pass by as they are. Frames between guests of this
//! switch never come here, and a port that does not use offload pays for one flag that it does not.
//!
//! **Order**: what an engine says must leave in the order in which it says it, although frames of a
//! port come to it from two workers, its own and its uplink's. So everything leaves inside the
//! session. The lock order in [`crate::port`] is what makes that safe.
//!
//! **Time**: an engine's next timeout is published outside of its lock ([`PortOffload::next_timeout`]). The
//! port's own worker runs it; whoever brings it forward wakes that worker if it sleeps for too long.
//!
//! **Invariants**: memory for kept frames is bounded by the port's budgets ([`crate::pool`]); what the
//! engine does not know passes unchanged; a frame that is not what its checksum says is never kept
//! and never changes a flow's state.

mod describe;
mod egress;
mod headers;
mod held;
mod operate;
mod session;
#[cfg(test)]
mod tests;
mod too_big;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

use floodway_core::offload::{Config, Offload};
use floodway_core::time::Instant;

use crate::pool::Pool;
use crate::port::lock;
use crate::worker::Waker;
use egress::{Nowhere, Output};
use held::Held;

pub use describe::is_notice;
pub(crate) use describe::{Direction, describe};
pub(crate) use headers::with_edit;
pub use session::Session;

/// The offload of one port, as the packet path sees it.
pub struct PortOffload {
    /// Frames of the port have to be shown to the engine.
    active: AtomicBool,
    /// When the engine's next timeout is due, in nanoseconds.
    deadline: AtomicU64,
    machine: Mutex<Machine>,
}

/// What a session works on.
struct Machine {
    engine: Offload<Held>,
    pool: Arc<Pool>,
    output: Output,
    /// The port is to be drained, or is.
    draining: bool,
    /// The latest time that the engine has heard: workers' clock readings can be a little out of order.
    latest: Instant,
}

impl PortOffload {
    /// The offload of a port that starts as `config` says.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let pool = Arc::new(Pool::new(pool_limit(&config)));
        let active = config.transmit || config.receive;
        let random = RandomState::new();
        Self {
            active: AtomicBool::new(active),
            deadline: AtomicU64::new(Instant::NEVER.as_nanos()),
            machine: Mutex::new(Machine {
                engine: Offload::new(config, random.hash_one(0)),
                pool,
                output: Output::new(new_epoch()),
                draining: false,
                latest: Instant::ZERO,
            }),
        }
    }

    /// Frames between the port and an uplink have to go through a [`Session`].
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// When [`Session::handle_timeout`] is due.
    #[inline]
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::SeqCst))
    }

    /// Forgets all flows and everything kept, and ends a drain: the guest is gone. The next one hears of another epoch.
    pub fn reset(&self) {
        let mut machine = lock(&self.machine);
        let latest = machine.latest;
        machine.engine.reset();
        machine.engine.drain(false, latest, &mut Nowhere);
        machine.output.epoch = new_epoch();
        machine.draining = false;
        self.publish(&machine, None);
    }

    /// Gives memory back that was not needed lately. Called once a second.
    pub fn trim(&self) {
        lock(&self.machine).pool.trim();
    }

    /// Makes known what a session has changed. `waker` is the worker that runs the timeouts.
    fn publish(&self, machine: &Machine, waker: Option<&Waker>) {
        let config = machine.engine.config();
        let active = config.transmit || config.receive || !machine.engine.is_empty();
        if active != self.is_active() {
            self.active.store(active, Ordering::Relaxed);
        }
        let deadline = machine.engine.next_timeout();
        if deadline.as_nanos() == self.deadline.load(Ordering::Relaxed) {
            return;
        }
        self.deadline.store(deadline.as_nanos(), Ordering::SeqCst);
        if let Some(waker) = waker {
            // Either the worker sees the deadline before it sleeps, or we see until when it sleeps.
            fence(Ordering::SeqCst);
            waker.wake_before(deadline);
        }
    }
}

/// Bytes of buffers that a port may have: all that its budgets allow, in buffers that are at worst
/// half empty.
fn pool_limit(config: &Config) -> usize {
    2 * (config.budget as usize + config.receive_budget as usize)
}

/// A number that says which incarnation of which switch speaks, never zero.
fn new_epoch() -> u32 {
    (RandomState::new().hash_one(0) as u32).max(1)
}
