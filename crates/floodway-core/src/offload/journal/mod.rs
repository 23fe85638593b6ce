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
//! | flow | state (generation, published) · addresses · ports, protocol, VLAN · *numbers* · two of the owner's · check |
//! | slot that a frame begins in | state (flow, its generation, published) · sequence number, length · bytes, next slot · one of the owner's · check |
//! | any other slot of a frame | 0 · 0 · next slot · 0 · 0 |
//!
//! Records come first, bytes of slots behind all of them: who adopts reads records alone, and memory that no frame has used stays unused.
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
//! **Status.** The switch keeps a journal for each port behind a broker ([`recording`](super::recording) says when it stores what), and adopts what an earlier data plane has left
//! ([`adoption`](super::adoption)); the end-to-end test `owed` kills data planes. The simulator and a switch of a single process keep none. Frames that wait in a queue and were not
//! acknowledged are not kept: TCP sends them again.
//!
//! **What is not here.** Congestion state, clocks and windows are not kept: an adopted flow is met in mid-stream, delivers what it owes, and is offline.
//!
//! **Cost.** A frame that is acknowledged is copied a second time, by words, into slots that need not lie one behind the other. The frames of the pool could live in slots themselves, if
//! these were as long as the longest frame or frames were delivered in pieces; then a keep would cost a record of 5 words for each slot. What a frame takes is in
//! [`Layout::for_budget`]. Nothing is allocated after the start, and no system call made.
//!
//! Source: the order is that of soft updates (Ganger and Patt, OSDI 1994): never point at what is not there yet, never reuse what is still pointed at.

mod adopt;
mod layout;
mod slots;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use floodway_wire::FiveTuple;

use crate::tcp::Seq;
pub use adopt::{Adopted, Lost, Retained, Verdict};
pub use layout::Layout;
use layout::{FlowRecord, FrameRecord};
use slots::Slots;

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

/// A frame to be kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Image<'a> {
    /// What else its owner has to know of it.
    pub about: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// A journal, in whatever words.
pub trait Keeper: fmt::Debug {
    /// Opens a place for the flow of `tuple`, whose next byte in order is `next`: all before it the guest has acknowledged. `about` is what else its owner has
    /// to know of it. Returns `None` if there is none left.
    fn open(&mut self, tuple: &FiveTuple, next: Seq, about: [u64; 2]) -> Option<FlowPlace>;
    /// Keeps a frame of the next `len` bytes in order, and notes that they are acknowledged. Returns `true` if the acknowledgement may leave; `false`, with
    /// nothing changed, if there is no room, or the frame is longer than 128 KiB.
    #[must_use]
    fn keep(&mut self, place: FlowPlace, len: u32, image: Image<'_>) -> bool;
    /// The guest has acknowledged all before `ack` itself.
    fn acknowledged(&mut self, place: FlowPlace, ack: Seq);
    /// Forgets a flow with all that it is owed.
    fn close(&mut self, place: FlowPlace);
    /// Forgets flows whose record is damaged.
    fn close_damaged(&mut self);
}

/// What was acknowledged for the guests of one port. See the module's theory of operation.
pub struct Journal<W> {
    words: W,
    layout: Layout,
    flows: Vec<Option<OpenFlow>>,
    free_flows: Vec<usize>,
    slots: Slots,
}

/// A published flow, as this process knows it.
#[derive(Clone, Copy, Debug)]
struct OpenFlow {
    generation: u32,
    acked: Seq,
    guest_ack: Seq,
    /// First slots of its first frame and of its last; none while it has no frames.
    frames: Option<(u32, u32)>,
}

impl<W> fmt::Debug for Journal<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl<W: Words> Journal<W> {
    /// A journal in words that are all zero, of which none is read.
    #[must_use]
    pub fn blank(words: W, layout: Layout) -> Self {
        let flows = vec![None; layout.flows];
        let slots = Slots::new(layout.slots, |_| true);
        Self { words, layout, flows, free_flows: (0..layout.flows).rev().collect(), slots }
    }

    /// Slots that nothing is kept in.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.slots.free()
    }

    /// Notes numbers of a flow.
    fn note(&self, place: usize, numbers: [Seq; 2]) {
        self.words.store(self.layout.flow(place) + layout::NUMBERS, layout::numbers(numbers));
    }

    /// Lets go of the frame that begins in slot `first`. Returns that of the flow's next one.
    fn release(&mut self, first: u32) -> Option<u32> {
        // The others are part of a frame only as long as this one says so.
        self.words.store(self.layout.slot(first as usize), 0);
        let next = self.slots.next_frame(first);
        self.slots.give_back(first);
        next
    }
}

impl<W: Words> Keeper for Journal<W> {
    fn open(&mut self, tuple: &FiveTuple, next: Seq, about: [u64; 2]) -> Option<FlowPlace> {
        let place = self.free_flows.pop()?;
        let at = self.layout.flow(place);
        let generation = layout::next_generation(self.words.load(at));
        let record = FlowRecord { tuple: *tuple, about, generation };
        record.write(&self.words, at, [next, next]);
        self.words.store(at, layout::published(generation));
        let flow = OpenFlow { generation, acked: next, guest_ack: next, frames: None };
        self.flows[place] = Some(flow);
        Some(FlowPlace(place))
    }

    fn keep(&mut self, FlowPlace(place): FlowPlace, len: u32, image: Image<'_>) -> bool {
        let Some(mut flow) = self.flows[place] else { return false };
        let Image { about, bytes } = image;
        if bytes.len() > layout::MAX_BYTES {
            return false;
        }
        let Some(first) = self.slots.take(self.layout.slots_for(bytes.len())) else { return false };
        let (seq, generation) = (flow.acked, flow.generation);
        let record = FrameRecord { place, generation, seq, len, about, bytes: bytes.len() };
        record.write(&self.words, &self.layout, self.slots.of_frame(first), bytes);
        self.words.store(self.layout.slot(first as usize), record.state());
        flow.acked = seq + len;
        self.note(place, [flow.acked, flow.guest_ack]);
        flow.frames = Some(self.slots.append(flow.frames, first, flow.acked));
        self.flows[place] = Some(flow);
        true
    }

    fn acknowledged(&mut self, FlowPlace(place): FlowPlace, ack: Seq) {
        let Some(mut flow) = self.flows[place] else { return };
        if !ack.after(flow.guest_ack) {
            return;
        }
        (flow.guest_ack, flow.acked) = (ack, flow.acked.max(ack));
        self.note(place, [flow.acked, flow.guest_ack]);
        while let Some((first, last)) = flow.frames
            && !self.slots.end(first).after(ack)
        {
            flow.frames = self.release(first).map(|next| (next, last));
        }
        self.flows[place] = Some(flow);
    }

    fn close(&mut self, FlowPlace(place): FlowPlace) {
        let Some(flow) = self.flows[place].take() else { return };
        self.words.store(self.layout.flow(place), layout::free(flow.generation));
        let mut next = flow.frames.map(|(first, _)| first);
        while let Some(first) = next {
            next = self.release(first);
        }
        self.free_flows.push(place);
    }

    fn close_damaged(&mut self) {
        for place in (0..self.layout.flows).filter(|&place| self.flows[place].is_none()) {
            let at = self.layout.flow(place);
            let state = self.words.load(at);
            if layout::is_published(state) {
                self.words.store(at, layout::free(layout::generation(state)));
                self.free_flows.push(place);
            }
        }
    }
}
