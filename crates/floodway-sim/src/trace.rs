//! The way of packets through a machine and its peers, for whoever wants to know where a transfer's time goes.
//!
//! # Theory of operation
//! With [`World::trace`](crate::world::World::trace) on, each packet leaves a [`Passage`] at the points below, in the order in which the
//! simulator handles them: a passage that causes another one comes before it, also at the same time. Nothing is looked
//! at and nothing is scheduled, so a traced run has the same history as one that is not; a run that is not traced pays a
//! comparison per point. What vCPUs do at the same time is in [`Cpus::recorded`](crate::cpu::Cpus::recorded).
//!
//! ```text
//!  VM: stack ─Queued▶ queue ─Sent▶ TX ring ─TakenFromVm▶ driver domain ─ToNetwork▶ ... ─PeerReceived▶ peer
//!                ◀Received─ RX ring ◀ToVm─ driver domain ◀TakenFromCard─ card ◀AtCard─ ... ◀PeerSent─
//! ```

use crate::Instant;
use crate::packet::{Packet, PacketId};

/// Where a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A VM's stack has made it.
    Queued,
    /// It is in the VM's TX ring.
    Sent,
    /// The driver domain has taken it from the ring.
    TakenFromVm,
    /// The driver domain has given it to the card: a new packet, one that was held, or one that is repeated.
    ToNetwork,
    /// A bare machine's stack has it.
    PeerReceived,
    /// A bare machine has sent it.
    PeerSent,
    /// It has come over the link of a machine with VMs.
    AtCard,
    /// The driver domain has taken it from the card.
    TakenFromCard,
    /// The driver domain has put it into the VM's RX ring, or behind it.
    ToVm,
    /// The VM's stack has it.
    Received,
}

/// A packet at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// When.
    pub at: Instant,
    /// Where.
    pub point: Point,
    /// Its name in the pool: the same from one queue to the next, and used again when it is gone.
    pub id: PacketId,
    /// The packet.
    pub packet: Packet,
}

/// The passages of a run, in the order of the simulator's work.
#[derive(Clone, Debug)]
pub struct Trace {
    passages: Vec<Passage>,
    most: usize,
}

impl Trace {
    /// A trace of the first `most` passages.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { passages: Vec::new(), most }
    }

    /// What was recorded.
    #[must_use]
    pub fn passages(&self) -> &[Passage] {
        &self.passages
    }

    /// There is no room for more: what came later may be missing.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.passages.len() >= self.most
    }

    pub(crate) fn note(&mut self, passage: Passage) {
        if !self.is_full() {
            self.passages.push(passage);
        }
    }
}
