//! A switch that dies, and the next one.

use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use floodway_core::offload::journal::{Journal, Layout};
use floodway_core::offload::{Adoption, Offload};

use super::World;

/// What outlives switches.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub words: &'static [AtomicU64],
    pub layout: Layout,
}

impl World {
    /// Lets the switch record what it acknowledges.
    pub fn record(&mut self) -> Memory {
        let config = self.switch.offload.config();
        let layout = Layout::for_budget(config.receive_budget + config.budget);
        self.record_as(layout)
    }

    /// As [`record`](Self::record), with room for `slots` frames that fit one.
    pub fn record_with(&mut self, slots: usize) -> Memory {
        self.record_as(Layout { flows: 4, slots, slot_bytes: 1 << 16 })
    }

    fn record_as(&mut self, layout: Layout) -> Memory {
        let words: Vec<_> = (0..layout.words()).map(|_| AtomicU64::new(0)).collect();
        // As long as the test runs.
        let memory = Memory { words: words.leak(), layout };
        self.switch.offload.record_in(Journal::blank(memory.words, layout));
        memory
    }

    /// The switch dies and another one takes its place, to which the frames are there that `is_there` says. What waits in the guest's queue stays there.
    pub fn replace_switch(&mut self, memory: Memory, is_there: impl Fn(u64) -> bool) -> Adoption {
        let config = self.switch.offload.config().clone();
        self.monitor.off = true;
        // The module hears no heartbeats any more.
        self.guest.tx.managed = false;
        (self.guest.tolerant, self.peer.tolerant) = (true, true);
        self.switch.offload = Offload::new(config, 0x5eed);
        let kept = self.switch.actions.1.borrow();
        let found = Journal::adopt(memory.words, memory.layout);
        let adoption = self.switch.offload.adopt(found, self.now, |_, retained| {
            let frame = kept.get(retained.about as usize).filter(|_| is_there(retained.about))?;
            Some((Rc::clone(frame), frame.segment))
        });
        drop(kept);
        adoption
    }

    /// What waits in the guest's queue is lost.
    pub fn lose_queue(&mut self) {
        self.inbox.clear();
    }

    /// The rings run again.
    pub fn serve_guest(&mut self) {
        self.switch.offload.resume(self.now, &mut self.switch.actions);
        self.carry_out();
    }
}
