//! What the next process finds in a journal.

use floodway_wire::FiveTuple;

use super::layout::{self, FlowRecord, FrameRecord, Layout, Used};
use super::slots::Slots;
use super::{ABOUT_WORDS, Creditor, FlowPlace, Journal, Notes, OpenFlow, Words};
use crate::tcp::Seq;

/// A frame of which bytes were acknowledged in another's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// Where its payload begins.
    pub seq: Seq,
    /// Sequence numbers that it takes.
    pub len: u32,
    /// What its owner had to know of it.
    pub about: u64,
    /// As it was kept.
    pub bytes: Vec<u8>,
}

/// A flow that owes bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Where it is; to be closed when it is over.
    pub place: FlowPlace,
    /// Addresses and ports.
    pub tuple: FiveTuple,
    /// To whom it owes them.
    pub creditor: Creditor,
    /// What its owner had to know of it.
    pub about: [u64; ABOUT_WORDS],
    /// How it was, as its owner noted it last. Nothing guards that against damage.
    pub notes: Notes,
    /// What the creditor has acknowledged itself, at least.
    pub creditor_ack: Seq,
    /// What was acknowledged for it: as much as the other end has heard, or more.
    pub acked: Seq,
}

/// What can become of a flow that owes bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of them are there, in order: they are to be delivered until the creditor acknowledges them.
    Whole(Adopted, Vec<Retained>),
    /// Some are missing: both ends are to be reset before the place is closed.
    Broken(Adopted),
}

/// What was published and could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Records of flows that are damaged: any connection of the port may be broken.
    pub flows: usize,
}

/// A frame of a published flow.
struct Found {
    record: FrameRecord,
    slots: Vec<usize>,
}

impl<W: Words> Journal<W> {
    /// A journal in which nothing is kept, whatever was there before.
    #[must_use]
    pub fn format(words: W, layout: Layout) -> Self {
        (0..layout.flows).for_each(|place| {
            let state = words.load(layout.flow(place));
            words.store(layout.flow(place), layout::free(layout::generation(state)));
        });
        (0..layout.slots).for_each(|slot| words.store(layout.slot(slot), 0));
        Self::adopt(words, layout).0
    }

    /// The journal that another process has left in `words`, of which [`Layout::words`] are used. Flows that are owed nothing are closed.
    #[must_use]
    pub fn adopt(words: W, layout: Layout) -> (Self, Vec<Verdict>, Lost) {
        let all = Used { flows: layout.flows, slots: layout.slots };
        Self::adopt_used(words, layout, all)
    }

    /// As [`adopt`](Self::adopt), if no more than `used` was ever written: nothing else is read.
    #[must_use]
    pub fn adopt_used(words: W, layout: Layout, used: Used) -> (Self, Vec<Verdict>, Lost) {
        let (records, lost) = published_flows(&words, &layout, used.flows);
        let mut frames = published_frames(&words, &layout, used.slots, &records);
        let mut flows: Vec<Option<(OpenFlow, Vec<Found>)>> =
            (0..used.flows).map(|_| None).collect();
        let mut verdicts = Vec::new();
        for (place, record) in records.iter().enumerate() {
            let Some(record) = record else { continue };
            let at = layout.flow(place);
            let [acked, creditor_ack] = layout::parse_numbers(words.load(at + layout::NUMBERS));
            let adopted = Adopted {
                place: FlowPlace(place),
                tuple: record.tuple,
                creditor: record.creditor,
                about: record.about,
                notes: std::array::from_fn(|index| words.load(at + layout::NOTES + index)),
                creditor_ack,
                acked,
            };
            let owed = sort_out(&adopted, std::mem::take(&mut frames[place]));
            if acked == creditor_ack && owed.is_ok() {
                words.store(at, layout::free(record.generation));
                continue;
            }
            let (verdict, kept) = judge(&words, &layout, adopted, owed);
            verdicts.push(verdict);
            let generation = record.generation;
            flows[place] = Some((OpenFlow { generation, acked, creditor_ack, frames: None }, kept));
        }
        let (slots, flows) = sweep(&words, &layout, used.slots, flows);
        let is_free = |&place: &usize| !layout::is_published(words.load(layout.flow(place)));
        let mut free_flows = Vec::with_capacity(layout.flows);
        free_flows.extend((0..used.flows).rev().filter(is_free));
        (Self { words, layout, flows, free_flows, slots }, verdicts, lost)
    }
}

/// The record of each of the first `used` places' flow, if one is published there and not damaged.
fn published_flows(
    words: &impl Words,
    layout: &Layout,
    used: usize,
) -> (Vec<Option<FlowRecord>>, Lost) {
    let mut lost = Lost::default();
    let mut read = |place| {
        let at = layout.flow(place);
        if !layout::is_published(words.load(at)) {
            return None;
        }
        let record = FlowRecord::read(words, at);
        lost.flows += usize::from(record.is_none());
        record
    };
    let records = (0..used).map(&mut read).collect();
    (records, lost)
}

/// Frames of each published flow, of which all slots are among the first `used`. A slot that two of them claim is neither's.
fn published_frames(
    words: &impl Words,
    layout: &Layout,
    used: usize,
    flows: &[Option<FlowRecord>],
) -> Vec<Vec<Found>> {
    let is_of_flow = |frame: &FrameRecord| {
        let flow = flows.get(frame.place).copied().flatten();
        flow.is_some_and(|flow| flow.generation == frame.generation)
    };
    let first = |slot: &usize| words.load(layout.slot(*slot)) != 0;
    let read = |slot| FrameRecord::read(words, layout, slot);
    let found: Vec<_> = (0..used)
        .filter(first)
        .filter_map(read)
        .filter(|(record, slots)| is_of_flow(record) && slots.iter().all(|&slot| slot < used))
        .collect();
    let mut claims = vec![0_u32; used];
    found.iter().flat_map(|(_, slots)| slots).for_each(|&slot| claims[slot] += 1);
    let mut frames: Vec<Vec<Found>> = flows.iter().map(|_| Vec::new()).collect();
    for (record, slots) in found {
        if slots.iter().all(|&slot| claims[slot] == 1) {
            frames[record.place].push(Found { record, slots });
        }
    }
    frames
}

/// Those of a flow's frames that it is owed, in order; or all of them if they are not what it is owed.
fn sort_out(flow: &Adopted, mut frames: Vec<Found>) -> Result<Vec<Found>, Vec<Found>> {
    let end = |frame: &Found| frame.record.seq + frame.record.len;
    let to_guest = flow.creditor == Creditor::Guest;
    // Nothing of it was acknowledged. One frame at a time is kept for a guest, and any number for a peer.
    let is_unheard = |seq: Seq| seq == flow.acked || (!to_guest && seq.after(flow.acked));
    // The creditor has it, or its acknowledgement has not left.
    let is_over =
        |frame: &Found| !end(frame).after(flow.creditor_ack) || is_unheard(frame.record.seq);
    frames.retain(|frame| !is_over(frame));
    frames.sort_by_key(|frame| frame.record.seq.0.wrapping_sub(flow.creditor_ack.0).cast_signed());
    let mut covered = flow.creditor_ack;
    for frame in &frames {
        if frame.record.seq.after(covered) || (to_guest && end(frame).after(flow.acked)) {
            return Err(frames);
        }
        covered = covered.max(end(frame));
    }
    let is_whole = covered == flow.acked
        || (!to_guest && covered.after(flow.acked) && !flow.creditor_ack.after(flow.acked));
    if is_whole { Ok(frames) } else { Err(frames) }
}

/// What becomes of a flow, and the frames that are kept for it.
fn judge(
    words: &impl Words,
    layout: &Layout,
    flow: Adopted,
    owed: Result<Vec<Found>, Vec<Found>>,
) -> (Verdict, Vec<Found>) {
    let retained = |Found { record, slots }: &Found| Retained {
        seq: record.seq,
        len: record.len,
        about: record.about,
        bytes: layout::read_bytes(words, layout, slots, record.bytes),
    };
    match owed {
        Ok(frames) => (Verdict::Whole(flow, frames.iter().map(retained).collect()), frames),
        Err(frames) => (Verdict::Broken(flow), frames),
    }
}

/// Clears the state of what no flow keeps in the first `used` slots. Returns slots as they are used then, and flows with their frames.
fn sweep(
    words: &impl Words,
    layout: &Layout,
    used: usize,
    flows: Vec<Option<(OpenFlow, Vec<Found>)>>,
) -> (Slots, Vec<Option<OpenFlow>>) {
    let mut firsts = vec![false; used];
    let mut taken = vec![false; used];
    for frame in flows.iter().flatten().flat_map(|(_, frames)| frames) {
        firsts[frame.slots[0]] = true;
        frame.slots.iter().for_each(|&slot| taken[slot] = true);
    }
    for slot in (0..used).filter(|&slot| !firsts[slot]) {
        if words.load(layout.slot(slot)) != 0 {
            words.store(layout.slot(slot), 0);
        }
    }
    let mut slots = Slots::new(layout.slots, used, |slot| !taken[slot]);
    let mut with_frames = |(mut flow, frames): (OpenFlow, Vec<Found>)| {
        for Found { record, slots: own } in frames {
            if let Some(first) = slots.link(&own) {
                flow.frames = Some(slots.append(flow.frames, first, record.seq + record.len));
            }
        }
        flow
    };
    let mut known = Vec::with_capacity(layout.flows);
    known.extend(flows.into_iter().map(|flow| flow.map(&mut with_frames)));
    (slots, known)
}
