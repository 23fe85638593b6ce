//! A running virtqueue with the event descriptors that go with it.

use std::sync::Arc;

use floodway_process::fault::{self, Point};

use crate::queues::call::Call;
use crate::queues::virtqueue::Virtqueue;
use crate::stats::Counter;

/// Interrupts to the guest, sent and saved.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// Interrupts sent.
    pub sent: Counter,
    /// Publications that needed none, because the guest was polling or already told.
    pub suppressed: Counter,
}

/// A running virtqueue.
#[derive(Debug)]
pub struct Ring {
    /// The ring itself.
    pub queue: Virtqueue,
    /// Where to interrupt the guest; without it the guest polls.
    pub call: Option<Arc<Call>>,
}

impl Ring {
    /// Makes used entries visible and interrupts the guest if it wants that.
    #[inline]
    pub fn publish(&mut self, interrupts: &Interrupts) {
        if !self.queue.has_unpublished() {
            return;
        }
        self.queue.publish();
        self.signal_if_needed(interrupts);
    }

    /// Interrupts the guest if it wants that for what it can see; returns whether it did.
    #[inline]
    pub fn signal_if_needed(&mut self, interrupts: &Interrupts) -> bool {
        let wanted = self.queue.take_interrupt();
        if wanted {
            interrupts.sent.add(1);
            self.interrupt();
        } else {
            interrupts.suppressed.add(1);
        }
        wanted
    }

    /// Interrupts the guest. Never blocks, whatever the front-end does with the descriptor.
    pub fn interrupt(&self) {
        if let Some(call) = &self.call {
            call.signal();
            fault::pass(Point::Interrupted);
        }
    }
}
