//! In steady state nothing is allocated per event.

#[path = "sim/support.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use floodway_sim::Duration;
use floodway_sim::net::{Link, QueueConfig};
use floodway_sim::tcp::TcpConfig;
use support::{AT, MBIT, US, bulk_pairs, pairs};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: everything is the system allocator's; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

#[test]
fn long_transfers_allocate_nothing() {
    let link = Link::ethernet(1000 * MBIT, US(100));
    let net = pairs(1, link, QueueConfig::bytes(300_000), &[Duration::ZERO; 5]);
    let (mut world, _) = bulk_pairs(net, TcpConfig::linux(), None);
    // Until windows and queues have been as large as they get.
    world.run(AT(6_000));
    let (events, allocations) = (world.events(), ALLOCATIONS.load(Ordering::Relaxed));
    world.run(AT(7_000));
    let events = world.events() - events;
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
    assert!(events > 300_000, "{events}");
    assert!(allocations < 10, "{allocations} allocations in {events} events");
}
