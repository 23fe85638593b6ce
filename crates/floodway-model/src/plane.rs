//! What a data plane does: its worker, its port thread, its main thread.

use std::iter::repeat_n;

use crate::scenario::{Scenario, Variant};
use crate::step::{JOURNAL, RELAY, Step};
use crate::world::{Down, Item, Journal, Message, Number, Peer, Plane, Up, World};

/// What the worker of a data plane may begin.
pub fn worker_jobs(scenario: &Scenario, world: &World, plane: &Plane) -> Vec<Vec<Step>> {
    if !plane.serves || !plane.runs {
        return Vec::new();
    }
    let jobs = [
        batch(scenario, plane),
        segment(scenario, world, plane),
        ack(scenario, world, plane),
        owed(plane),
    ];
    jobs.into_iter().flatten().collect()
}

/// A batch. The interrupt may wait until it is over (`Flush::Moderated` of the switch's `pipeline::delivery`); one that comes earlier is no worse.
fn batch(scenario: &Scenario, plane: &Plane) -> Option<Vec<Step>> {
    let frames = scenario.frames.saturating_sub(plane.tx_next).min(scenario.batch);
    if frames == 0 {
        return None;
    }
    let each = |step| repeat_n(step, frames.into());
    let (publish, complete, interrupt) = (Step::PublishUsed, Step::CompleteBatch, Step::Interrupt);
    let mut job = vec![Step::TakeBatch(frames)];
    if scenario.variant == Some(Variant::PublishedBeforeCopied) {
        job.extend(each(Step::PlaceEmpty).chain([publish]).chain(each(Step::FillEmpty)));
        job.extend([complete, interrupt]);
        return Some(job);
    }
    job.extend(each(Step::PlaceFrame));
    match scenario.variant {
        Some(Variant::CompletedBeforePublished) => job.extend([complete, publish, interrupt]),
        Some(Variant::CompletedInTheEnd) if plane.tx_next + frames < scenario.frames => {
            job.extend([publish, interrupt]);
        }
        _ => job.extend([publish, complete, interrupt]),
    }
    Some(job)
}

fn segment(scenario: &Scenario, world: &World, plane: &Plane) -> Option<Vec<Step>> {
    let &segment = world.peer.queue.front()?;
    let next = if world.journal.open { Some(world.journal.acked) } else { plane.heard };
    let has_room = plane.slots.contains(&false);
    let mut job = vec![Step::ReceiveSegment];
    if !plane.offline && next == Some(segment) && has_room {
        job.extend((!world.journal.open).then_some(Step::OpenFlow));
        job.extend(keeping(scenario.variant));
    }
    job.extend([Step::PlaceSegment, Step::PublishUsed, Step::Interrupt]);
    Some(job)
}

/// How a segment is kept and acknowledged (`recording::record`, and the engine's sink).
fn keeping(variant: Option<Variant>) -> [Step; 4] {
    let (write, publish) = (Step::WriteFrame, Step::PublishFrame);
    let (note, acknowledge) = (Step::NoteAcked, Step::SendAck);
    match variant {
        Some(Variant::AckBeforeJournal) => [write, publish, acknowledge, note],
        Some(Variant::NumbersBeforeFrame) => [write, note, publish, acknowledge],
        Some(Variant::BytesAfterNumbers) => [publish, note, write, acknowledge],
        _ => [write, publish, note, acknowledge],
    }
}

fn ack(scenario: &Scenario, world: &World, plane: &Plane) -> Option<Vec<Step>> {
    let acked = world.guest.acked();
    if plane.heard == Some(acked) || acked == 0 {
        return None;
    }
    let mut job = vec![Step::HearGuest];
    if world.journal.open {
        let note = if acked >= world.journal.acked { Step::CloseFlow } else { Step::NoteGuest };
        job.extend(match scenario.variant {
            Some(Variant::ReleasedBeforeNoted) => [Step::ReleaseFrames, note],
            _ => [note, Step::ReleaseFrames],
        });
    }
    job.push(Step::PassAck);
    Some(job)
}

fn owed(plane: &Plane) -> Option<Vec<Step>> {
    (!plane.owed.is_empty()).then(|| vec![Step::PlaceOwed, Step::PublishUsed, Step::Interrupt])
}

/// What its port thread does with what comes next, if something has come.
pub fn relay_jobs(scenario: &Scenario, plane: &Plane) -> Option<Vec<Step>> {
    if !plane.serves {
        return None;
    }
    Some(match plane.down.front()? {
        Down::Message(session, _) if plane.session != Some(*session) => vec![Step::ReceiveMessage],
        Down::Message(..) if scenario.variant == Some(Variant::RepliedDirectly) => {
            vec![Step::ReceiveMessage, Step::Act, Step::ReplyDirectly, Step::SendHandled]
        }
        Down::Message(..) => vec![Step::ReceiveMessage, Step::Act, Step::SendHandled],
        Down::EndOfReplay(session) if plane.session == Some(*session) => vec![Step::SendResumed],
        _ => vec![Step::ActOnReplay],
    })
}

/// Returns `true` if the step does not have to wait: the device takes the locks of queues, which the worker has while it has a batch.
pub fn is_free(plane: &Plane, step: Step) -> bool {
    !matches!(step, Step::Act | Step::ActOnReplay) || plane.worker.is_empty()
}

/// The main thread's start.
pub fn main_jobs(plane: &Plane) -> Option<Vec<Step>> {
    (plane.supplied && !plane.serves).then(|| vec![Step::Equip, Step::SendReady])
}

/// Does `step` in data plane `number`.
pub fn run(scenario: &Scenario, world: &mut World, number: Number, step: Step) {
    let mut plane = std::mem::take(&mut world.planes[usize::from(number)]);
    match step {
        Step::Equip => equip(&mut plane, &mut world.journal, number),
        Step::SendReady => plane.said_ready = true,
        step if RELAY.contains(&step) => run_relay(scenario, world, &mut plane, step),
        step if JOURNAL.contains(&step) => store(&mut world.journal, &mut plane, step),
        _ => move_frames(world, &mut plane, step),
    }
    world.planes[usize::from(number)] = plane;
}

/// Adopts what the last one has left. Core's tests end a process at each store of that.
fn equip(plane: &mut Plane, journal: &mut Journal, number: Number) {
    plane.serves = true;
    plane.heard = (number == 0).then_some(0);
    let owed: Vec<_> = (0..8).filter(|&segment| journal.owes(segment)).collect();
    for slot in &mut journal.slots {
        slot.published = slot.published.filter(|segment| owed.contains(segment));
    }
    plane.slots = journal.slots.iter().map(|slot| slot.published.is_some()).collect();
    if owed.is_empty() {
        journal.open = false;
    } else {
        plane.offline = true;
        plane.heard = Some(journal.guest);
        plane.owed = owed;
    }
}

fn run_relay(scenario: &Scenario, world: &mut World, plane: &mut Plane, step: Step) {
    match step {
        Step::ReceiveMessage => {
            if let Some(Down::Message(session, message)) = plane.down.pop_front() {
                plane.message = Some((session, message)).filter(|_| plane.session == Some(session));
            }
        }
        Step::Act => {
            let message = plane.message.map(|(_, message)| scenario.script[usize::from(message)]);
            message.into_iter().for_each(|message| act(scenario, world, plane, message));
        }
        Step::ReplyDirectly => {
            let message = plane.message.map(|(_, message)| usize::from(message));
            message.into_iter().for_each(|message| world.front_end.replies[message] += 1);
        }
        Step::SendHandled => {
            let handled = plane.message.take();
            plane.up.extend(handled.map(|(session, message)| Up::Handled(session, message)));
        }
        _ => replay(scenario, world, plane),
    }
}

/// Acts on the record, and on the coming and going of front-ends.
fn replay(scenario: &Scenario, world: &mut World, plane: &mut Plane) {
    match plane.down.pop_front() {
        Some(Down::Connected(session)) => (plane.session, plane.runs) = (Some(session), false),
        Some(Down::Replayed(message)) => act(scenario, world, plane, message),
        Some(Down::EndOfReplay(session)) if plane.session == Some(session) => {
            plane.up.push_back(Up::Resumed(session));
        }
        Some(Down::Disconnected(session)) if plane.session == Some(session) => {
            (plane.session, plane.runs) = (None, false);
        }
        _ => {}
    }
}

/// The device acts on a message (`Device`).
fn act(scenario: &Scenario, world: &mut World, plane: &mut Plane, message: Message) {
    match message {
        Message::Start => {
            let used = [world.guest.tx_used, world.guest.rx_used];
            let from_record = scenario.variant == Some(Variant::PositionsFromRecord);
            [plane.tx_next, plane.rx_next] = if from_record { [0; 2] } else { used };
            plane.runs = true;
            world.guest.rx_entries.truncate(usize::from(plane.rx_next));
            world.guest.interrupted |= scenario.variant != Some(Variant::NoInterruptAtStart);
        }
        Message::Ask => {}
        Message::Stop => plane.runs = false,
    }
}

fn move_frames(world: &mut World, plane: &mut Plane, step: Step) {
    match step {
        Step::TakeBatch(frames) => {
            plane.placing = plane.tx_next;
            plane.tx_next += frames;
        }
        Step::PlaceFrame => {
            place(world, plane, Item::Frame(plane.placing));
            plane.placing += 1;
        }
        Step::PlaceEmpty => place(world, plane, Item::Garbage),
        Step::FillEmpty => fill(world, plane),
        Step::PublishUsed => {
            publish(world, plane);
            plane.hand = None;
        }
        Step::Interrupt => world.guest.interrupted = true,
        Step::CompleteBatch => {
            world.history.went_back |= plane.tx_next < world.guest.tx_used;
            world.guest.tx_used = plane.tx_next;
        }
        _ => move_segments(world, plane, step),
    }
}

fn move_segments(world: &mut World, plane: &mut Plane, step: Step) {
    match step {
        Step::ReceiveSegment => plane.hand = world.peer.queue.pop_front(),
        Step::PlaceSegment => {
            let hand = plane.hand;
            hand.iter().for_each(|&segment| place(world, plane, Item::Segment(segment)));
        }
        Step::PlaceOwed => {
            let owed = std::mem::take(&mut plane.owed);
            owed.iter().for_each(|&segment| place(world, plane, Item::Segment(segment)));
        }
        Step::SendAck => hear(&mut world.peer, plane.hand.map_or(0, |segment| segment + 1)),
        Step::HearGuest => plane.heard = Some(world.guest.acked()),
        Step::PassAck => hear(&mut world.peer, plane.heard.unwrap_or(0)),
        _ => unreachable!("{step:?} is no step of a worker"),
    }
}

fn hear(peer: &mut Peer, ack: Number) {
    peer.acked = peer.acked.max(ack);
}

fn fill(world: &mut World, plane: &mut Plane) {
    let empty = world.guest.rx_entries.iter_mut().find(|entry| **entry == Item::Garbage);
    empty.into_iter().for_each(|entry| *entry = Item::Frame(plane.placing));
    plane.placing += 1;
}

fn place(world: &mut World, plane: &mut Plane, item: Item) {
    world.guest.rx_entries.truncate(usize::from(plane.rx_next));
    world.guest.rx_entries.push(item);
    plane.rx_next += 1;
}

fn publish(world: &mut World, plane: &Plane) {
    let before = std::mem::replace(&mut world.guest.rx_used, plane.rx_next);
    world.history.went_back |= plane.rx_next < before;
    let new = usize::from(before.min(plane.rx_next))..usize::from(plane.rx_next);
    for item in &world.guest.rx_entries[new] {
        if let Item::Frame(frame) = *item {
            let delivered = &mut world.history.delivered[usize::from(frame)];
            world.history.again += u8::from(*delivered > 0);
            *delivered += 1;
        }
    }
}

/// A store into the journal.
fn store(journal: &mut Journal, plane: &mut Plane, step: Step) {
    let heard = plane.heard.unwrap_or(0);
    match step {
        Step::NoteGuest => (journal.guest, journal.acked) = (heard, journal.acked.max(heard)),
        Step::CloseFlow => (journal.open, plane.offline) = (false, false),
        Step::ReleaseFrames => release(journal, plane, heard),
        _ => plane
            .hand
            .iter()
            .copied()
            .for_each(|segment| keep(journal, &mut plane.slots, segment, step)),
    }
}

fn release(journal: &mut Journal, plane: &mut Plane, heard: Number) {
    for (slot, used) in journal.slots.iter_mut().zip(&mut plane.slots) {
        if slot.published.is_some_and(|segment| segment < heard) {
            (slot.published, *used) = (None, false);
        }
    }
}

/// A store that keeps `segment`.
fn keep(journal: &mut Journal, used: &mut [bool], segment: Number, step: Step) {
    match step {
        Step::OpenFlow => (journal.open, journal.acked, journal.guest) = (true, segment, segment),
        Step::NoteAcked => journal.acked = segment + 1,
        _ => {
            let Some(at) = own_slot(journal, used, segment) else { return };
            let slot = &mut journal.slots[at];
            if step == Step::WriteFrame {
                slot.bytes = Some(segment);
            } else {
                slot.published = Some(segment);
            }
        }
    }
}

/// The slot that the worker writes `segment` into: the one that it has begun, or else the first free one.
fn own_slot(journal: &Journal, used: &mut [bool], segment: Number) -> Option<usize> {
    let begun = |at: &usize| {
        let slot = &journal.slots[*at];
        used[*at] && (slot.bytes == Some(segment) || slot.published == Some(segment))
    };
    let begun = (0..journal.slots.len()).find(begun);
    let at = begun.or_else(|| used.iter().position(|used| !used))?;
    used[at] = true;
    Some(at)
}
