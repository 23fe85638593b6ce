//! Two sides of a ring: one that makes entries available or used, and one that takes them and then sleeps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicBool, AtomicU16};
use loom::thread;

use super::{Loom, Unfenced};
use crate::queues::virtqueue::notify::{look, need_event, publish, wish_and_look, wish_of_other};
use crate::sync::atomics::Atomics;

const ENTRIES: u16 = 2;
const NO_NOTIFICATION: u16 = 1;

/// What the sides share: guest memory, and a kick or an interrupt.
struct World {
    entries: [AtomicU16; ENTRIES as usize],
    index: AtomicU16,
    /// The event index, or flags.
    wish: AtomicU16,
    event_idx: bool,
    notified: AtomicBool,
}

/// Makes entries visible one by one, and looks whether the other side wants to hear of it, each time or once for all.
fn produce<A: Atomics<U16 = AtomicU16>>(world: &World, each: bool) {
    let mut considered = 0;
    for i in 0..ENTRIES {
        world.entries[usize::from(i)].store(i + 7, Ordering::Relaxed);
        publish::<A>(&world.index, i + 1);
        if each || i + 1 == ENTRIES {
            let wish = wish_of_other::<A>(&world.wish);
            let wanted = match world.event_idx {
                true => need_event(wish, i + 1, considered),
                false => wish & NO_NOTIFICATION == 0,
            };
            considered = i + 1;
            if wanted {
                world.notified.store(true, Ordering::Release);
            }
        }
    }
}

/// Takes entries until there are none, and goes to sleep; returns how many it has taken.
fn consume<A: Atomics<U16 = AtomicU16>>(world: &World) -> u16 {
    let mut taken = 0;
    let mut index = look::<A>(&world.index);
    loop {
        for i in taken..index {
            assert_eq!(world.entries[usize::from(i)].load(Ordering::Relaxed), i + 7);
        }
        taken = index;
        let wish = if world.event_idx { taken } else { 0 };
        index = wish_and_look::<A>(&world.wish, wish, &world.index);
        if index == taken {
            return taken;
        }
    }
}

fn run<A: Atomics<U16 = AtomicU16> + 'static>(event_idx: bool, each: bool) {
    let world = Arc::new(World {
        entries: std::array::from_fn(|_| AtomicU16::new(0)),
        index: AtomicU16::new(0),
        // The consumer polls.
        wish: AtomicU16::new(if event_idx { 1 << 15 } else { NO_NOTIFICATION }),
        event_idx,
        notified: AtomicBool::new(false),
    });
    let producer = {
        let world = Arc::clone(&world);
        thread::spawn(move || produce::<A>(&world, each))
    };
    let taken = consume::<A>(&world);
    producer.join().unwrap();
    let is_notified = world.notified.load(Ordering::Acquire);
    assert!(taken == ENTRIES || is_notified, "sleeps over {} entries", ENTRIES - taken);
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn nobody_sleeps_over_published_entries() {
    for event_idx in [false, true] {
        for each in [false, true] {
            loom::model(move || run::<Loom>(event_idx, each));
        }
    }
}

#[test]
#[ignore = "in a process of its own: make prove"]
#[should_panic(expected = "sleeps over")]
fn without_fences_a_side_with_event_index_may_sleep_over_entries() {
    loom::model(|| run::<Unfenced>(true, true));
}

#[test]
#[ignore = "in a process of its own: make prove"]
#[should_panic(expected = "sleeps over")]
fn without_fences_a_side_with_flags_may_sleep_over_entries() {
    loom::model(|| run::<Unfenced>(false, true));
}
