//! All indices of small rings: what is available, taken, used and published, and who is notified.

use std::sync::Arc;

use super::{Choices, all_runs};
use crate::frame::iovec::GuestIoVecs;
use crate::queues::virtqueue::notify::need_event;
use crate::queues::virtqueue::{Access, Chain, Pop, RingBroken, Virtqueue};
use crate::testing::driver::F_WRITE;
use crate::testing::{DriverQueue, RawDescriptor, TestMemory, Used};

const PAGE: u64 = 4096;
const BUFFER: u64 = 2 * PAGE;
const BYTES: u32 = 8;

/// Both sides of a ring.
struct Sides {
    driver: DriverQueue,
    device: Virtqueue,
    event_idx: bool,
    iovecs: GuestIoVecs,
}

impl Sides {
    /// A ring whose indices stand at `start`, and whose descriptors are a buffer each.
    fn new(size: u16, event_idx: bool, start: u16) -> Self {
        let memory = TestMemory::new(&[(0, 4 * PAGE)]);
        let driver = DriverQueue::new(Arc::clone(&memory), 0, size, event_idx);
        let device = Self::device(&memory, &driver, event_idx);
        let mut sides = Self { driver, device, event_idx, iovecs: GuestIoVecs::default() };
        for i in 0..size {
            let raw = RawDescriptor { addr: BUFFER, len: BYTES, flags: F_WRITE, next: 0 };
            sides.driver.write_descriptor(i, raw);
            sides.driver.set_avail_entry(i, i);
        }
        sides.restart(start);
        sides
    }

    fn device(memory: &Arc<TestMemory>, driver: &DriverQueue, event_idx: bool) -> Virtqueue {
        let mapped = Arc::new(memory.map());
        Virtqueue::new(mapped, driver.size(), driver.addresses(), event_idx).expect("a good ring")
    }

    /// Sets the ring up again, with all indices at `start`.
    fn restart(&mut self, start: u16) {
        self.driver.set_avail_idx(start);
        self.driver.set_used_idx(start);
        let memory = Arc::clone(self.device.memory());
        let addresses = self.driver.addresses();
        self.device = Virtqueue::new(memory, self.driver.size(), addresses, self.event_idx)
            .expect("a good ring");
    }

    fn pop(&mut self) -> Result<Pop, RingBroken> {
        self.iovecs.clear();
        self.device.pop(Access::Write { need: BYTES }, &mut self.iovecs)
    }
}

#[test]
fn every_head_is_in_the_ring_or_breaks_it() {
    for size in [1, 2, 4] {
        let mut sides = Sides::new(size, true, 0);
        sides.driver.set_avail_idx(1);
        for head in 0..=u16::MAX {
            sides.driver.set_avail_entry(0, head);
            sides.device.rewind(0);
            let expected = Pop::Chain(Chain { head, len: BYTES });
            assert_eq!(sides.pop(), if head < size { Ok(expected) } else { Err(RingBroken) });
        }
    }
}

/// Checks that a guest can have made available what fits, and no more: `start` is where we are, `avail` its index.
fn check_available(sides: &mut Sides, start: u16, avail: u16) {
    let size = sides.driver.size();
    sides.device.rewind(start);
    // How far the guest is ahead, by counting.
    let ahead = (0..=size).find(|&n| start.wrapping_add(n) == avail);
    assert_eq!(sides.device.available(), ahead.ok_or(RingBroken), "{start} {avail}");
}

#[test]
fn whatever_the_avail_index_is_a_ring_is_never_more_than_full() {
    for size in [1, 2, 4] {
        let mut sides = Sides::new(size, true, 0);
        for start in [0, 1, 3, 0x7fff, 0x8000, 0xfffe, 0xffff] {
            for avail in 0..=u16::MAX {
                sides.driver.set_avail_idx(avail);
                check_available(&mut sides, start, avail);
            }
        }
    }
}

#[test]
#[ignore = "takes longer; part of make prove"]
fn whatever_both_indices_are_a_ring_is_never_more_than_full() {
    let mut sides = Sides::new(4, true, 0);
    for avail in 0..=u16::MAX {
        sides.driver.set_avail_idx(avail);
        // All starts near the guest's index, and every 61st of the others.
        let near = (0..64).map(|i| avail.wrapping_add(32).wrapping_sub(i));
        for start in near.chain((0..=u16::MAX).step_by(61)) {
            check_available(&mut sides, start, avail);
        }
    }
}

/// Whether one of the steps from `old` to `new` made the entry `event` available.
fn passes(event: u16, new: u16, old: u16) -> bool {
    let mut index = old;
    while index != new {
        if index == event {
            return true;
        }
        index = index.wrapping_add(1);
    }
    false
}

#[test]
fn an_event_is_due_when_one_of_the_steps_passes_it() {
    for old in 0..=u16::MAX {
        for steps in 0..=8 {
            let new = old.wrapping_add(steps);
            let near = (0..20).map(|i| old.wrapping_add(14).wrapping_sub(i));
            let far = [0x7fff, 0x8000, 0x8001, 0x1234].map(|far| old.wrapping_add(far));
            for event in near.chain(far) {
                assert_eq!(need_event(event, new, old), passes(event, new, old), "{event} {old}");
            }
        }
    }
    for event in 0..=u16::MAX {
        assert_eq!(need_event(event, 3, 0xfffd), passes(event, 3, 0xfffd));
    }
}

#[test]
fn wherever_the_indices_stand_entries_are_given_back_in_order_and_kicks_come_when_asked_for() {
    for (size, event_idx) in [(1, false), (1, true), (2, true), (4, false), (4, true)] {
        let mut sides = Sides::new(size, event_idx, 0);
        for start in 0..=u16::MAX {
            sides.restart(start);
            sides.driver.set_used_event(start);
            check_round(&mut sides, start, start % (size + 1));
        }
    }
}

/// One round of `n` chains.
fn check_round(sides: &mut Sides, start: u16, n: u16) {
    let size = sides.driver.size();
    assert!(!would_kick(sides, start, size), "the device polls");
    assert_eq!(sides.device.enable_kick(), Ok(false));
    assert_eq!(would_kick(sides, start, n), n > 0);
    sides.driver.set_avail_idx(start.wrapping_add(n));
    for i in 0..n {
        let head = start.wrapping_add(i) % size;
        assert_eq!(sides.pop(), Ok(Pop::Chain(Chain { head, len: BYTES })));
        sides.device.push_used(head, u32::from(i) + 1);
        assert_eq!(sides.driver.used_idx(), start, "not published");
    }
    assert_eq!(sides.pop(), Ok(Pop::Empty));
    assert_eq!(sides.device.has_unpublished(), n > 0);
    sides.device.publish();
    assert_eq!(sides.driver.used_idx(), start.wrapping_add(n));
    for i in 0..n {
        let index = start.wrapping_add(i);
        assert_eq!(
            sides.driver.used_entry(index),
            Used { head: index % size, len: u32::from(i) + 1 }
        );
    }
    assert_eq!(sides.device.take_interrupt(), n > 0);
    assert!(!sides.device.take_interrupt(), "nothing new since");
}

/// Whether a driver that makes `n` chains available from `start` on has to kick.
fn would_kick(sides: &Sides, start: u16, n: u16) -> bool {
    if sides.event_idx {
        passes(sides.driver.avail_event(), start.wrapping_add(n), start)
    } else {
        n > 0 && sides.driver.used_flags() & 1 == 0
    }
}

/// What both sides have done, in numbers that do not wrap.
struct Model {
    size: u64,
    /// The guest's avail index, and what the device saw of it last.
    avail: u64,
    seen: u64,
    taken: u64,
    used: u64,
    published: u64,
    signalled: u64,
    /// The guest wants to hear of this used entry. With flags: an even one means that it wants to hear of all.
    used_event: u64,
}

impl Model {
    fn available(&mut self) -> Result<u64, RingBroken> {
        self.seen = self.avail;
        let ahead = self.seen.wrapping_sub(self.taken) % (1 << 16);
        if ahead > self.size { Err(RingBroken) } else { Ok(ahead) }
    }

    fn pop(&mut self) -> Result<Option<u16>, RingBroken> {
        if self.seen.wrapping_sub(self.taken).is_multiple_of(1 << 16) && self.available()? == 0 {
            return Ok(None);
        }
        self.taken += 1;
        Ok(Some(((self.taken - 1) % self.size) as u16))
    }

    fn wants_interrupt(&self, event_idx: bool) -> bool {
        let mut entries = self.signalled..self.published;
        if event_idx {
            entries.any(|entry| entry % (1 << 16) == self.used_event % (1 << 16))
        } else {
            !entries.is_empty() && self.used_event.is_multiple_of(2)
        }
    }
}

/// One step of a sequence, by the device or by the guest, which does what it likes.
fn step(choices: &mut Choices, sides: &mut Sides, model: &mut Model) {
    match choices.choose(9) {
        0 => {
            let ahead = choices.pick(&[-1, 0, 1, 2, model.size as i64, model.size as i64 + 1]);
            model.avail = model.taken.wrapping_add_signed(ahead);
            sides.driver.set_avail_idx(model.avail as u16);
        }
        1 => {
            let popped = match model.pop() {
                Ok(Some(head)) => Ok(Pop::Chain(Chain { head, len: BYTES })),
                Ok(None) => Ok(Pop::Empty),
                Err(broken) => Err(broken),
            };
            assert_eq!(sides.pop(), popped);
        }
        2 if model.taken > model.used => {
            model.taken = model.used;
            sides.device.rewind(model.taken as u16);
        }
        3 if model.taken > model.used => {
            let head = (model.used % model.size) as u16;
            sides.device.push_used(head, 7);
            assert_eq!(sides.driver.used_entry(model.used as u16), Used { head, len: 7 });
            model.used += 1;
        }
        4 => {
            sides.device.publish();
            model.published = model.used;
        }
        5 => {
            let wanted = model.wants_interrupt(sides.event_idx);
            assert_eq!(sides.device.take_interrupt(), wanted);
            model.signalled = model.published;
        }
        6 => {
            model.used_event = model.used.wrapping_add_signed(choices.pick(&[-1, 0, 1]));
            if sides.event_idx {
                sides.driver.set_used_event(model.used_event as u16);
            } else {
                sides.driver.set_avail_flags(model.used_event as u16 & 1);
            }
        }
        7 => enable_kick(sides, model),
        8 => disable_kick(sides, model),
        _ => {}
    }
    assert_eq!(sides.driver.used_idx(), model.published as u16);
    assert_eq!(sides.device.next_avail(), model.taken as u16);
    assert_eq!(sides.device.has_unpublished(), model.used != model.published);
}

fn enable_kick(sides: &mut Sides, model: &mut Model) {
    let seen_before = model.seen;
    let more = model.available().map(|ahead| ahead > 0);
    assert_eq!(sides.device.enable_kick(), more);
    if sides.event_idx {
        assert_eq!(sides.driver.avail_event(), seen_before as u16);
    } else {
        assert_eq!(sides.driver.used_flags(), 0);
    }
}

fn disable_kick(sides: &mut Sides, model: &Model) {
    sides.device.disable_kick();
    if sides.event_idx {
        let ahead = sides.driver.avail_event().wrapping_sub(model.taken as u16);
        assert!(ahead > sides.driver.size(), "out of reach");
    } else {
        assert_eq!(sides.driver.used_flags(), 1);
    }
}

/// Checks all sequences of `length` steps.
fn check_sequences(length: usize) {
    for (size, event_idx) in [(1, false), (1, true), (2, true), (4, false), (4, true)] {
        for start in [0_u16, 0xfffe, 0x7fff] {
            let mut sides = Sides::new(size, event_idx, start);
            all_runs(|choices| {
                sides.driver.set_used_event(0);
                sides.driver.set_avail_flags(0);
                sides.restart(start);
                // One lap on, so that nothing is below zero.
                let at = u64::from(start) + (1 << 16);
                let mut model = Model {
                    size: u64::from(size),
                    avail: at,
                    seen: at,
                    taken: at,
                    used: at,
                    published: at,
                    signalled: at,
                    used_event: 0,
                };
                (0..length).for_each(|_| step(choices, &mut sides, &mut model));
            });
        }
    }
}

#[test]
fn every_sequence_of_four_steps_goes_as_the_model_says() {
    check_sequences(4);
}

#[test]
#[ignore = "takes longer; part of make prove"]
fn every_sequence_of_five_steps_goes_as_the_model_says() {
    check_sequences(5);
}
