//! A capture's ring: one thread writes records, one reads them, and both look at the other's count only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use crate::capture::ring::{look, publish};
use crate::sync::atomics::Word;

const CELLS: usize = 2;
const RECORDS: u64 = 3;

/// What the sides share. Loom finds accesses to a cell that are in no order.
struct World<W> {
    head: W,
    tail: W,
    cells: [UnsafeCell<u64>; CELLS],
}

// SAFETY: access to the cells is what the model checks.
unsafe impl<W: Sync> Sync for World<W> {}

/// A word whose stores and loads order nothing else.
struct Loose(AtomicU64);

impl Word<u64> for Loose {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    fn load(&self, _: Ordering) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn store(&self, value: u64, _: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Writes records, and loses those for which there is no room.
fn write<W: Word<u64>>(world: &World<W>) {
    for record in 1..=RECORDS {
        let (head, tail) = look(&world.head, &world.tail);
        if head - tail < CELLS as u64 {
            // SAFETY: nobody else has the cell: that is what the model checks.
            world.cells[head as usize % CELLS].with_mut(|cell| unsafe { *cell = record });
            publish(&world.head, head + 1);
        }
    }
}

/// Reads what is there, as often as there can be something.
fn read<W: Word<u64>>(world: &World<W>) {
    let mut last = 0;
    for _ in 0..RECORDS {
        let (tail, head) = look(&world.tail, &world.head);
        if tail < head {
            // SAFETY: nobody else has the cell: that is what the model checks.
            let record = world.cells[tail as usize % CELLS].with(|cell| unsafe { *cell });
            assert!(record > last, "records come in order");
            last = record;
            publish(&world.tail, tail + 1);
        }
    }
}

fn run<W: Word<u64> + Send + Sync + 'static>() {
    let cells = std::array::from_fn(|_| UnsafeCell::new(0));
    let world = Arc::new(World { head: W::new(0), tail: W::new(0), cells });
    let writer = {
        let world = Arc::clone(&world);
        thread::spawn(move || write(&world))
    };
    read(&world);
    writer.join().unwrap();
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn a_record_is_read_whole_and_before_it_is_overwritten() {
    loom::model(run::<AtomicU64>);
}

#[test]
#[ignore = "in a process of its own: make prove"]
#[should_panic(expected = "Causality violation")]
fn without_order_a_record_may_be_read_while_it_is_written() {
    loom::model(run::<Loose>);
}
