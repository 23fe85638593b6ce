//! What was acknowledged for guests, in memory that outlives the process (rule R1 of [`super::receiver`] across its end).
//!
//! # Theory of operation
//! **Goal.** The peer has no copy of a byte that was acknowledged for a guest. If the process is killed, the next one has every such byte, or knows of each
//! connection that lacks one, to reset it. There is never a connection with a hole that neither end hears of.
//!
//! A *journal* is memory of fixed size for one port. It has places for *flows*, and *slots* of the pool in which frames are kept. Both begin with a word that
//! says whether they are *published*, which is the last one that is stored and the first one that is cleared. There is no list and no pointer that a
//! reader has to believe: whoever adopts a journal looks at every place and slot ([`adopt`]).
//!
//! | record | words |
//! |---|---|
//! | flow | state (generation, published) · addresses · ports, protocol, VLAN · *numbers* · check |
//! | slot that a frame begins in | state (flow, its generation, published) · sequence number, length · bytes, next slot · check |
//! | any other slot of a frame | 0 · 0 · next slot · 0 |
//!
//! *Numbers* are one word: what was acknowledged for the guest, and what the guest has acknowledged itself. A *generation* tells frames of a flow from those of an earlier
//! one at the same place.
//!
//! **States.** A place for a flow: free, published. A slot: free, written, published as the first of a frame, or part of such a frame. *Written* exists in this process
//! only: who adopts finds it free.
//!
//! **Order of stores**, and what a reader finds if the process ends behind each of them:
//!
//! | step | stores | found |
//! |---|---|---|
//! | open | addresses, numbers, check; then state | no flow; then a flow that is owed nothing |
//! | keep a frame | 1. its bytes and its record without state | as before |
//! | | 2. state of its first slot | a frame beyond what was acknowledged: discarded |
//! | | 3. numbers | the frame is owed |
//! | | 4. (the caller) the acknowledgement leaves | the same |
//! | the guest acknowledges | 1. numbers | frames that it has: discarded |
//! | | 2. state of each such frame's first slot | the same |
//! | close | 1. state of the flow | frames of nobody: discarded |
//! | | 2. state of each frame's first slot | the same |
//!
//! Acknowledging more than the peer has heard (between 3 and 4) is harmless: the peer still has what it sends again, and the guest gets it twice.
//!
//! **Why program order is enough.** A process ends at the boundary of an instruction. The stores before it are done, if perhaps not yet visible to other processors, and
//! the next process reads after the kernel has waited for this one; those behind it never happen. So only the compiler must not
//! reorder stores: [`Words::store`] releases. Nobody reads while somebody writes: a journal belongs to the lock of its port.
//!
//! **Invariants.**
//! - **J1** A published flow's frames cover what was acknowledged for the guest and not by it, without a gap.
//! - **J2** A slot is part of one frame at most.
//! - **J3** Adopting changes nothing that a second adoption would find, wherever the first one ends.
//!
//! **Strangers.** A process that was taken over, or ran wild before it died, may have written anything. Whatever is read is checked for its range, chains of slots for loops and
//! for slots that two frames claim, records by a sum that is there against accidents and not against attackers. What does not pass is as if it were not there: J1 is then
//! found broken, and the flow's verdict is [`Verdict::Broken`], an RST to both ends. A flow whose own record is damaged cannot even be named: it is
//! counted, and the caller has to take every connection of the port for broken. Not found are damage to the bit that publishes a flow, which is then taken for closed, and to
//! numbers, which have no sum since they change alone. Payload has none either: TCP's own is in the frame.
//!
//! **Status.** The mechanism is whole and tested by itself. The switch does not keep a journal yet: a data plane that dies leaves connections as the ignored
//! end-to-end test `owed` shows.
//!
//! **What is not here.** Congestion state, clocks and windows are not kept: an adopted flow is met in mid-stream, delivers what it owes, and is offline.
//!
//! Source: the order is that of soft updates (Ganger and Patt, OSDI 1994): never point at what is not there yet, never reuse what is still pointed at.

mod adopt;
mod layout;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use floodway_wire::FiveTuple;

use crate::tcp::Seq;
pub use adopt::{Adopted, Lost, Retained, Verdict};
pub use layout::Layout;
use layout::{FlowRecord, FrameRecord};

/// Words that outlive a process.
pub trait Words {
    /// The word at `index`.
    fn load(&self, index: usize) -> u64;
    /// Stores a word. Whoever sees it sees what was stored before.
    fn store(&self, index: usize, value: u64);
}

impl Words for &[AtomicU64] {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self[index].load(Acquire)
    }

    #[inline]
    fn store(&self, index: usize, value: u64) {
        self[index].store(value, Release);
    }
}

/// A place for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowPlace(usize);

/// What was acknowledged for the guests of one port. See the module's theory of operation.
#[derive(Debug)]
pub struct Journal<W> {
    words: W,
    layout: Layout,
    flows: Vec<Option<OpenFlow>>,
    free_flows: Vec<usize>,
    free_slots: Vec<usize>,
}

/// A published flow, as this process knows it.
#[derive(Debug)]
struct OpenFlow {
    generation: u32,
    acked: Seq,
    guest_ack: Seq,
    frames: VecDeque<KeptFrame>,
}

#[derive(Debug)]
struct KeptFrame {
    end: Seq,
    slots: Vec<usize>,
}

impl<W: Words> Journal<W> {
    /// Opens a place for the flow of `tuple`, whose next byte in order is `next`: all before it the guest has acknowledged. Returns `None` if there is none left.
    pub fn open(&mut self, tuple: &FiveTuple, next: Seq) -> Option<FlowPlace> {
        let place = self.free_flows.pop()?;
        let at = self.layout.flow(place);
        let generation = layout::next_generation(self.words.load(at));
        let record = FlowRecord { tuple: *tuple, generation };
        record.write(&self.words, at, [next, next]);
        self.words.store(at, layout::published(generation));
        let frames = VecDeque::new();
        self.flows[place] = Some(OpenFlow { generation, acked: next, guest_ack: next, frames });
        Some(FlowPlace(place))
    }

    /// Keeps `bytes`, the frame of the next `len` bytes in order, and notes that they are acknowledged. Returns `true` if the acknowledgement may leave; `false`, with
    /// nothing changed, if there is no room, or the frame is longer than 128 KiB.
    #[must_use]
    pub fn keep(&mut self, FlowPlace(place): FlowPlace, len: u32, bytes: &[u8]) -> bool {
        let Some(flow) = &mut self.flows[place] else { return false };
        if bytes.len() > layout::MAX_BYTES {
            return false;
        }
        let needed = self.layout.slots_for(bytes.len());
        let Some(left) = self.free_slots.len().checked_sub(needed) else { return false };
        let slots = self.free_slots.split_off(left);
        let (seq, generation) = (flow.acked, flow.generation);
        let record = FrameRecord { place, generation, seq, len, bytes: bytes.len() };
        record.write(&self.words, &self.layout, &slots, bytes);
        self.words.store(self.layout.slot(slots[0]), record.state());
        flow.acked = seq + len;
        let numbers = layout::numbers([flow.acked, flow.guest_ack]);
        self.words.store(self.layout.flow(place) + layout::NUMBERS, numbers);
        flow.frames.push_back(KeptFrame { end: flow.acked, slots });
        true
    }

    /// The guest has acknowledged all before `ack` itself.
    pub fn acknowledged(&mut self, FlowPlace(place): FlowPlace, ack: Seq) {
        let Some(flow) = &mut self.flows[place] else { return };
        if !ack.after(flow.guest_ack) {
            return;
        }
        (flow.guest_ack, flow.acked) = (ack, flow.acked.max(ack));
        let numbers = layout::numbers([flow.acked, flow.guest_ack]);
        self.words.store(self.layout.flow(place) + layout::NUMBERS, numbers);
        while let Some(first) = flow.frames.front()
            && !first.end.after(ack)
            && let Some(frame) = flow.frames.pop_front()
        {
            release(&self.words, &self.layout, &mut self.free_slots, frame);
        }
    }

    /// Forgets a flow with all that it is owed.
    pub fn close(&mut self, FlowPlace(place): FlowPlace) {
        let Some(flow) = self.flows[place].take() else { return };
        self.words.store(self.layout.flow(place), layout::free(flow.generation));
        for frame in flow.frames {
            release(&self.words, &self.layout, &mut self.free_slots, frame);
        }
        self.free_flows.push(place);
    }

    /// Slots that nothing is kept in.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.free_slots.len()
    }
}

fn release(words: &impl Words, layout: &Layout, free: &mut Vec<usize>, frame: KeptFrame) {
    // The others are part of a frame only as long as this one says so.
    words.store(layout.slot(frame.slots[0]), 0);
    free.extend(frame.slots);
}
