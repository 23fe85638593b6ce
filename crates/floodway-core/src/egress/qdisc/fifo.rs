//! First in, first out, dropping what does not fit: the baseline, and what most hosts have.

use super::arena::{Arena, Chain};
use super::{Backlog, Cause, Departure, Discipline, Dropped, Limits, Packet};
use crate::time::Instant;

/// A drop-tail queue.
#[derive(Debug)]
pub struct Fifo<H> {
    limits: Limits,
    arena: Arena<H>,
    queue: Chain,
}

impl<H> Fifo<H> {
    /// An empty queue.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, arena: Arena::new(), queue: Chain::EMPTY }
    }
}

impl<H> Discipline<H> for Fifo<H> {
    fn enqueue(&mut self, packet: Packet<H>, now: Instant, dropped: &mut Dropped<'_, H>) {
        if self.limits.admit(self.queue.backlog(), packet.len) {
            self.arena.push(&mut self.queue, packet, now);
        } else {
            dropped(packet, Cause::Full);
        }
    }

    fn dequeue(&mut self, now: Instant, _: &mut Dropped<'_, H>) -> Option<Departure<H>> {
        let queued = self.arena.pop(&mut self.queue)?;
        let sojourn = now.since(queued.arrived);
        Some(Departure { packet: queued.packet, mark: false, sojourn })
    }

    fn backlog(&self) -> Backlog {
        self.queue.backlog()
    }
}
