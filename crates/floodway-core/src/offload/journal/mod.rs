//! What was acknowledged in another's name, in memory that outlives the process (rules R1 of [`super::receiver`] and T1 of
//! [early acknowledgement](super::sender) across its end).
//!
//! # Theory of operation
//! **Goal.** The peer has no copy of a byte that was acknowledged for a guest, nor the guest of one that was acknowledged for its peer. If the process is killed, the next one has every such byte, or knows of each
//! connection that lacks one, to reset it. There is never a connection with a hole that neither end hears of.
//!
//! Bytes are owed to the [*creditor*](Creditor): the end in whose name they were acknowledged, and which has not acknowledged them itself. A connection that owes to both has two records.
//!
//! A *journal* is memory of fixed size for one port, for both directions: what a record says, the order of stores and what may be believed of them are the same,
//! one file is made, handed over and adopted, and neither side starves the other as long as each keeps to the budget that the journal was made for. It has places for *flows*, and *slots* of the pool in which frames are kept. Both begin with a word that
//! says whether they are *published*, which is the last one that is stored and the first one that is cleared. There is no list and no pointer that a
//! reader has to believe: whoever adopts a journal looks at every place and slot that may have been written ([`adopt`], [`Used`]).
//!
//! | record | words |
//! |---|---|
//! | flow | state (generation, published) · addresses · ports, protocol, VLAN, creditor · *numbers* · four *notes* and three other words of the owner's · check |
//! | slot that a frame begins in | state (flow, its generation, published) · sequence number, length · bytes, next slot · one of the owner's · check |
//! | any other slot of a frame | 0 · 0 · next slot · 0 · 0 |
//!
//! Records come first, bytes of slots behind all of them: who adopts reads records alone, and memory that no frame has used stays unused.
//!
//! *Numbers* are one word: what was acknowledged for the creditor, and what it has acknowledged itself. A *generation* tells frames of a flow from those of an earlier
//! one at the same place. *Notes* change with the flow, and say what is needed to go on with it: clocks, edges of windows. None of the bytes depends on them, and they have no sum.
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
//! | keep a frame for the peer | 1., 2. the same | as before; a frame of which nothing is acknowledged: discarded |
//! | | 3. notes, numbers: once for all frames of a batch, of the last one perhaps a part | these bytes are owed |
//! | | 4. (the caller) the acknowledgement leaves | the same |
//! | withdraw the frame kept last | 1. numbers | a frame beyond what was acknowledged: discarded |
//! | | 2. state of its first slot | the same |
//! | the creditor acknowledges | 1. numbers | frames that it has: discarded |
//! | | 2. state of each such frame's first slot | the same |
//! | close | 1. state of the flow | frames of nobody: discarded |
//! | | 2. state of each frame's first slot | the same |
//!
//! Acknowledging more than was heard (between 3 and 4) is harmless: the sender still has what it sends again, and the creditor gets it twice.
//!
//! **Why program order is enough.** A process ends at the boundary of an instruction. The stores before it are done, if perhaps not yet visible to other processors, and
//! the next process reads after the kernel has waited for this one; those behind it never happen. So only the compiler must not
//! reorder stores: [`Words::store`] releases. Nobody reads while somebody writes: a journal belongs to the lock of its port.
//!
//! **Invariants.**
//! - **J1** A published flow's frames cover what was acknowledged for the creditor and not by it, without a gap. Those for a guest cover nothing else.
//! - **J2** A slot is part of one frame at most.
//! - **J3** Adopting changes nothing that a second adoption would find, wherever the first one ends.
//!
//! **Strangers.** A process that was taken over, or ran wild before it died, may have written anything. Whatever is read is checked for its range, chains of slots for loops and
//! for slots that two frames claim, records by a sum that is there against accidents and not against attackers. What does not pass is as if it were not there: J1 is then
//! found broken, and the flow's verdict is [`Verdict::Broken`], an RST to both ends. A flow whose own record is damaged cannot even be named: it is
//! counted, and the caller has to take every connection of the port for broken. Not found are damage to the bit that publishes a flow, which is then taken for closed, and to
//! numbers, which have no sum since they change alone. Payload has none either: TCP's own is in the frame.
//!
//! **Status.** The switch keeps a journal for each port behind a broker ([`recording`](super::recording) and `sender::owed` say when it stores what), and adopts what an earlier data plane has left
//! ([`adoption`](super::adoption)); the end-to-end test `owed` kills data planes. The simulator and a switch of a single process keep none. Frames that wait in a queue and were not
//! acknowledged are not kept: TCP sends them again.
//!
//! **What is not here.** Congestion state is not kept. Nor are clocks and windows of a flow that owes to its guest alone: it is met in mid-stream, delivers what it owes, and is offline.
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
pub use layout::{ABOUT_WORDS, Layout, NOTE_WORDS, Used};
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

/// To whom bytes are owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creditor {
    /// The guest: they were acknowledged to its peer.
    Guest,
    /// The peer: they were acknowledged to the guest.
    Peer,
}

/// Where a journal has what a connection owes, with the numbers there: acknowledged by the creditor, and to its other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owed {
    pub to_guest: Option<(FlowPlace, Seq, Seq)>,
    pub to_peer: Option<(FlowPlace, Seq, Seq)>,
}

/// A flow that owes bytes.
#[derive(Clone, Copy, Debug)]
pub struct Debtor<'a> {
    /// Addresses and ports in the guest's direction.
    pub tuple: &'a FiveTuple,
    /// To whom.
    pub creditor: Creditor,
    /// What else its owner has to know of it.
    pub about: [u64; ABOUT_WORDS],
}

/// What changes of a flow, as its owner notes it.
pub type Notes = [u64; NOTE_WORDS];

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
    /// Opens a place for `flow`, whose next byte in order is `next`: all before it the creditor has acknowledged. Returns `None` if there is none left.
    fn open(&mut self, flow: &Debtor<'_>, next: Seq) -> Option<FlowPlace>;
    /// Keeps a frame of the next `len` bytes in order, and notes that they are acknowledged. Returns `true` if the acknowledgement may leave; `false`, with
    /// nothing changed, if there is no room, or the frame is longer than 128 KiB.
    #[must_use]
    fn keep(&mut self, place: FlowPlace, len: u32, image: Image<'_>) -> bool;
    /// Keeps a frame that begins at `seq`, no later than where the frames before it end, and has `len` sequence numbers. Nothing of it is acknowledged before
    /// [`promise`](Self::promise). Returns `false`, with nothing changed, as [`keep`](Self::keep) does.
    #[must_use]
    fn store(&mut self, place: FlowPlace, seq: Seq, len: u32, image: Image<'_>) -> bool;
    /// Notes that all before `acked`, which frames cover, is acknowledged, and how the flow is now. The acknowledgement may leave.
    fn promise(&mut self, place: FlowPlace, acked: Seq, notes: &Notes);
    /// Gives up the frame that was kept last, whose acknowledgement has not left. All before `acked`, where it begins, stays acknowledged.
    fn withdraw(&mut self, place: FlowPlace, acked: Seq);
    /// The creditor has acknowledged all before `ack` itself.
    fn acknowledged(&mut self, place: FlowPlace, ack: Seq);
    /// Notes how a flow is now.
    fn note(&mut self, place: FlowPlace, notes: &Notes);
    /// Forgets a flow with all that it owes.
    fn close(&mut self, place: FlowPlace);
    /// Forgets flows whose record is damaged.
    fn close_damaged(&mut self);
}

/// The journal of a port, if it has one.
pub(super) type Recorder = Option<Box<dyn Keeper + Send>>;

/// What was acknowledged for guests of one port and for their peers. See the module's theory of operation.
pub struct Journal<W> {
    words: W,
    layout: Layout,
    /// At places that were in use at some time: those behind were not, and take no memory.
    flows: Vec<Option<OpenFlow>>,
    /// Those of these places that are free.
    free_flows: Vec<usize>,
    slots: Slots,
}

/// A published flow, as this process knows it.
#[derive(Clone, Copy, Debug)]
struct OpenFlow {
    generation: u32,
    acked: Seq,
    /// What the creditor has acknowledged.
    creditor_ack: Seq,
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
        let slots = Slots::new(layout.slots, 0, |_| false);
        let flows = Vec::with_capacity(layout.flows);
        let free_flows = Vec::with_capacity(layout.flows);
        Self { words, layout, flows, free_flows, slots }
    }

    /// Slots that nothing is kept in.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.slots.free()
    }

    /// Takes a free place, if there is one.
    fn take_place(&mut self) -> Option<usize> {
        if let Some(place) = self.free_flows.pop() {
            return Some(place);
        }
        let place = self.flows.len();
        (place < self.layout.flows).then(|| {
            self.flows.push(None);
            place
        })
    }

    /// Stores the numbers of a flow.
    fn store_numbers(&self, place: usize, flow: &OpenFlow) {
        let numbers = layout::numbers([flow.acked, flow.creditor_ack]);
        self.words.store(self.layout.flow(place) + layout::NUMBERS, numbers);
    }

    fn store_notes(&self, place: usize, notes: &Notes) {
        let at = self.layout.flow(place) + layout::NOTES;
        for (index, &note) in notes.iter().enumerate() {
            self.words.store(at + index, note);
        }
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
    fn open(&mut self, flow: &Debtor<'_>, next: Seq) -> Option<FlowPlace> {
        let place = self.take_place()?;
        let at = self.layout.flow(place);
        let generation = layout::next_generation(self.words.load(at));
        let &Debtor { tuple, creditor, about } = flow;
        let record = FlowRecord { tuple: *tuple, creditor, about, generation };
        record.write(&self.words, at, [next, next]);
        self.words.store(at, layout::published(generation));
        let flow = OpenFlow { generation, acked: next, creditor_ack: next, frames: None };
        self.flows[place] = Some(flow);
        Some(FlowPlace(place))
    }

    fn keep(&mut self, place: FlowPlace, len: u32, image: Image<'_>) -> bool {
        let FlowPlace(index) = place;
        let Some(seq) = self.flows[index].map(|flow| flow.acked) else { return false };
        let kept = self.store(place, seq, len, image);
        if kept && let Some(flow) = &mut self.flows[index] {
            flow.acked = seq + len;
            let flow = *flow;
            self.store_numbers(index, &flow);
        }
        kept
    }

    fn store(&mut self, FlowPlace(place): FlowPlace, seq: Seq, len: u32, image: Image<'_>) -> bool {
        let Some(mut flow) = self.flows[place] else { return false };
        let Image { about, bytes } = image;
        if bytes.len() > layout::MAX_BYTES {
            return false;
        }
        let Some(first) = self.slots.take(self.layout.slots_for(bytes.len())) else { return false };
        let generation = flow.generation;
        let record = FrameRecord { place, generation, seq, len, about, bytes: bytes.len() };
        record.write(&self.words, &self.layout, self.slots.of_frame(first), bytes);
        self.words.store(self.layout.slot(first as usize), record.state());
        flow.frames = Some(self.slots.append(flow.frames, first, seq + len));
        self.flows[place] = Some(flow);
        true
    }

    fn promise(&mut self, FlowPlace(place): FlowPlace, acked: Seq, notes: &Notes) {
        let Some(mut flow) = self.flows[place] else { return };
        flow.acked = flow.acked.max(acked);
        self.store_notes(place, notes);
        self.store_numbers(place, &flow);
        self.flows[place] = Some(flow);
    }

    fn note(&mut self, FlowPlace(place): FlowPlace, notes: &Notes) {
        if self.flows[place].is_some() {
            self.store_notes(place, notes);
        }
    }

    fn withdraw(&mut self, FlowPlace(place): FlowPlace, acked: Seq) {
        let Some(mut flow) = self.flows[place] else { return };
        flow.acked = acked;
        self.store_numbers(place, &flow);
        if let Some((first, last)) = flow.frames
            && self.slots.end(last).after(acked)
        {
            flow.frames = self.slots.cut_last(first, last).map(|before| (first, before));
            self.release(last);
        }
        self.flows[place] = Some(flow);
    }

    fn acknowledged(&mut self, FlowPlace(place): FlowPlace, ack: Seq) {
        let Some(mut flow) = self.flows[place] else { return };
        if !ack.after(flow.creditor_ack) {
            return;
        }
        (flow.creditor_ack, flow.acked) = (ack, flow.acked.max(ack));
        self.store_numbers(place, &flow);
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
        for place in 0..self.flows.len() {
            if self.flows[place].is_some() {
                continue;
            }
            let at = self.layout.flow(place);
            let state = self.words.load(at);
            if layout::is_published(state) {
                self.words.store(at, layout::free(layout::generation(state)));
                self.free_flows.push(place);
            }
        }
    }
}
