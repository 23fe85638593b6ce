//! Guests that move to another host and come from one, as whoever speaks with other hosts hears of them and decides.
//!
//! What is said here becomes orders of the ports' threads ([`moved`](crate::state::offload::moved)): nothing is waited for.

mod status;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use floodway_process::message::FromDataPlane;

use super::Switch;
use crate::kept::flows;
use crate::state::offload::moved::{Order, Outbox};
use crate::state::supply::Bell;

/// What is decided of a guest that moves: see the messages of the same names.
#[derive(Debug)]
pub enum MoveStep {
    /// Its connections go along.
    Export {
        /// Version of the format.
        flows: u32,
        /// Where they are to be written.
        file: OwnedFd,
        /// Bytes of the file.
        bytes: u64,
    },
    /// They do not.
    StayBehind,
    /// The other host has them.
    Released,
    /// A guest may arrive, or not any more.
    Arriving(bool),
    /// What a guest moves with.
    Import {
        /// Where the other host has written it.
        file: OwnedFd,
        /// Its length.
        bytes: u64,
    },
}

impl Switch {
    /// Lets ports ask what is to become of the connections of guests that are about to move. `bell` is rung when there is [something to be said](Self::take_said). Before that, and without it,
    /// such ports drain.
    pub fn speak_of_moves(&self, bell: Arc<Bell>) {
        let outbox = Arc::new(Outbox::new(bell, self.shared.started()));
        let outbox = self.shared.outbox.get_or_init(|| outbox);
        for port in self.shared.ports().iter() {
            port.offload.moving.connect(Arc::clone(outbox));
        }
    }

    /// Takes what is to be said to whoever speaks with other hosts.
    #[must_use]
    pub fn take_said(&self) -> Vec<FromDataPlane> {
        self.shared.outbox.get().map(|outbox| outbox.take()).unwrap_or_default()
    }

    /// Does what is decided of a guest of the port with this number.
    pub fn follow_move(&self, port: u16, step: MoveStep) {
        let ports = self.shared.ports();
        match ports.get(usize::from(port)) {
            Some(found) => found.offload.moving.order(order(step)),
            None => self.refuse_move(port, &step),
        }
    }

    /// Nobody is there any more who speaks with other hosts: guests that move leave their connections behind, and guests that come wait for none.
    pub fn end_moves(&self) {
        for port in self.shared.ports().iter() {
            port.offload.moving.order(Order::StayBehind);
            port.offload.moving.order(Order::Arriving(false));
        }
    }

    /// The port has gone meanwhile.
    fn refuse_move(&self, port: u16, step: &MoveStep) {
        let says = match step {
            MoveStep::Export { .. } => FromDataPlane::Leaving { port, leaving: false },
            MoveStep::Import { .. } => {
                FromDataPlane::Imported { port, taken: false, carried: 0, online: 0 }
            }
            MoveStep::StayBehind | MoveStep::Released | MoveStep::Arriving(_) => return,
        };
        if let Some(outbox) = self.shared.outbox.get() {
            outbox.say(says);
        }
    }
}

fn order(step: MoveStep) -> Order {
    match step {
        MoveStep::Export { flows, file, bytes } => Order::Export(flows, file, bytes),
        MoveStep::StayBehind => Order::StayBehind,
        MoveStep::Released => Order::Released,
        MoveStep::Arriving(arriving) => Order::Arriving(arriving),
        MoveStep::Import { file, bytes } => {
            let moved = flows::read_moved(file, bytes).inspect_err(|error| {
                tracing::warn!(%error, "connections of a guest that moves here are not believed");
            });
            Order::Import(moved.ok().map(Box::new))
        }
    }
}
