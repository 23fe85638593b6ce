//! What would become of a frame in a receive queue: for traces.
//!
//! Receive chains are taken as for the frame itself, and put back: nothing is written, published or counted, and the guest is not
//! interrupted. Only GSO packets and unfinished checksums that the guest does not take are not looked into: they are what a guest or
//! the network sends, not what is traced.

use super::{Placed, RxFeatures, RxQueue};
use crate::frame::Frame;
use crate::queues::virtqueue::RingBroken;
use crate::stats::DropReason;

/// What would become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is placed in so many of the guest's buffers.
    Placed {
        /// Receive chains.
        buffers: usize,
    },
    /// It waits: the guest has too few buffers, or frames wait that came before.
    Waits,
    /// It waits for a guest that has stopped.
    WaitsForGuest,
    /// It is dropped.
    Dropped(DropReason),
}

impl RxQueue {
    /// Returns what would become of a frame that is delivered here. Takes the queue for itself, and leaves it as it was.
    pub fn fate(&mut self, frame: &Frame<'_>) -> Fate {
        if self.ring.is_none() {
            return self.fate_without_guest(frame);
        }
        if self.pending.frames.is_empty() {
            match self.try_chains(self.features.hdr_len + frame.len as usize) {
                Ok(Placed::Yes) => return Fate::Placed { buffers: self.chains.len() },
                Ok(Placed::Never(reason)) => return Fate::Dropped(reason),
                Ok(Placed::NoBuffers) => {}
                Err(RingBroken) => return Fate::Dropped(DropReason::BadDescriptor),
            }
        }
        match self.pending.has_room(frame.len as usize) {
            true => Fate::Waits,
            false => Fate::Dropped(DropReason::QueueFull),
        }
    }

    /// Returns what becomes of a frame while no guest runs.
    pub fn fate_without_guest(&self, frame: &Frame<'_>) -> Fate {
        if !self.stopped {
            Fate::Dropped(DropReason::PortDown)
        } else if self.pending.has_room(frame.len as usize) {
            Fate::WaitsForGuest
        } else {
            Fate::Dropped(DropReason::QueueFull)
        }
    }

    /// Takes chains as for a frame, and puts them back.
    fn try_chains(&mut self, need: usize) -> Result<Placed, RingBroken> {
        let Some(ring) = &self.ring else { return Ok(Placed::NoBuffers) };
        let position = ring.queue.position();
        let taken = self.take_chains(need);
        if let Some(ring) = &mut self.ring {
            ring.queue.restore(position);
        }
        taken
    }

    /// Chains that the guest has made available, if it runs and its ring is not broken.
    pub fn available(&mut self) -> Option<u16> {
        let queue = &mut self.ring.as_mut()?.queue;
        let position = queue.position();
        let available = queue.available();
        queue.restore(position);
        available.ok()
    }

    /// The guest's memory is copied to another host: what is written is noted.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.queue.is_logged())
    }

    /// What the guest has negotiated.
    #[must_use]
    pub const fn features(&self) -> RxFeatures {
        self.features
    }
}
