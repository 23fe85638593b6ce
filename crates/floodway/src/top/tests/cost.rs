//! What many ports cost, in allocations: time would say more of the machine than of the program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::*;
use crate::top::app::App;
use crate::top::model::Model;
use crate::top::once;
use crate::top::style::Look;
use crate::top::view;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what each thread allocates, in all tests of this program.
struct Counting;

// SAFETY: everything is the system allocator's; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, so from the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` gives back, and allocations in it.
fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.get();
    let result = work();
    (result, ALLOCATIONS.get() - before)
}

/// A minute of so many ports, all of them busy; allocations of the last look, and of drawing it.
fn minute(ports: usize) -> (Buffer, u64, u64) {
    let look = |n: u64| {
        let one = |k: usize| port(&format!("vm{k}"), n * 1_000_000 * (k as u64 + 1), n * 1000);
        sample(n as f64, (0..ports).map(one).collect())
    };
    let mut model = Model::default();
    (0..60).for_each(|n| model.take(look(n)));
    let last = look(60);
    let ((), taken) = counted(|| model.take(last));
    let mut app = App::new(Duration::from_secs(1));
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
    let mut draw = || view::draw(&mut buffer, Look::new(true, true), &model, &mut app);
    draw();
    let ((), drawn) = counted(draw);
    (buffer, taken, drawn)
}

#[test]
fn five_hundred_ports_fit_a_small_screen_and_cost_what_is_on_it() {
    let (few, many) = (minute(20), minute(500));
    let lines: Vec<String> = (0..24).map(|y| once::line(&many.0, y)).collect();
    assert!(lines[0].contains("500 of 500 ports running"), "{lines:#?}");
    let head = lines.iter().position(|line| line.starts_with("PORT")).expect("a table");
    assert!(lines[head + 1].starts_with(" vm499 "), "the busiest first: {lines:#?}");
    assert!(lines[23].starts_with("q quit"), "{lines:#?}");
    // The look grows with the ports, a few allocations each; the picture does not.
    assert!(many.1 <= 500 * (few.1 / 20 + 1), "{} of {}", many.1, few.1);
    assert!(many.2 <= few.2 + 50, "{} beside {}", many.2, few.2);
}
