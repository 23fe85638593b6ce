//! A switch that dies, and the next one.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use floodway_core::offload::journal::{Journal, Layout};
use floodway_core::offload::{Adoption, Offload};

use super::World;

/// What outlives switches.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub words: &'static [AtomicU64],
    pub layout: Layout,
}

thread_local! {
    /// Memory that no world of this thread uses any more.
    static SPARE: RefCell<Vec<&'static [AtomicU64]>> = const { RefCell::new(Vec::new()) };
}

/// Memory of one world. It lasts as long as the process, as that of a switch must, and the next world has it then: a property
/// makes thousands of worlds.
pub struct Lease(&'static [AtomicU64]);

impl Lease {
    /// At least `words` words, all of them zero.
    fn new(words: usize) -> Self {
        let spare = SPARE.with_borrow_mut(|spare| {
            let index = spare.iter().position(|spare| spare.len() >= words)?;
            Some(spare.swap_remove(index))
        });
        let memory = spare
            .unwrap_or_else(|| (0..words).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak());
        memory.iter().for_each(|word| word.store(0, Relaxed));
        Self(memory)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push(self.0));
    }
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
        let lease = Lease::new(layout.words());
        let memory = Memory { words: &lease.0[..layout.words()], layout };
        self.journal = Some(lease);
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
        let now = self.switch.time(self.now);
        let adoption = self.switch.offload.adopt(found, now, |_, retained| {
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
        let now = self.switch.time(self.now);
        self.switch.offload.resume(now, &mut self.switch.actions);
        self.carry_out();
    }
}
