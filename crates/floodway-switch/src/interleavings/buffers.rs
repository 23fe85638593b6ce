//! Frames that wait for buffers, in two receive queues of one port: a kick of the guest wakes the worker, which looks at the queues if
//! it was told that something waits (`Port::waiting`). The notifications are the switch's own code; the rest is what [`crate::pipeline::delivery`], [`crate::queues::rx`]
//! and [`crate::runtime::worker`] do, lock by lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::model::Builder;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU16};
use loom::thread;

use super::Loom;
use crate::queues::virtqueue::notify::{look, need_event, publish, wish_and_look, wish_of_other};

/// A receive queue: frames, and how many buffers are used up.
#[derive(Default)]
struct Queue {
    waiting: u16,
    placed: u16,
}

/// A queue and the words of its ring.
struct Ring {
    queue: Mutex<Queue>,
    available: AtomicU16,
    wish: AtomicU16,
}

struct World {
    rings: [Ring; 2],
    /// The worker is to look at what waits.
    waiting: AtomicBool,
    /// The worker's epoll has an event.
    woken: AtomicBool,
}

impl Ring {
    fn new() -> Self {
        // The worker polls: no kick is wanted.
        Self {
            queue: Mutex::default(),
            available: AtomicU16::new(0),
            wish: AtomicU16::new(1 << 15),
        }
    }

    /// As `RxQueue::deliver`, which drains where the first frame has to wait.
    fn deliver(&self, queue: &mut Queue) {
        queue.waiting += 1;
        if queue.waiting == 1 {
            self.drain(queue);
        }
    }

    /// As `RxQueue::drain`.
    fn drain(&self, queue: &mut Queue) {
        let mut available = look::<Loom>(&self.available);
        while queue.waiting > 0 {
            if queue.placed < available {
                (queue.placed, queue.waiting) = (queue.placed + 1, queue.waiting - 1);
                continue;
            }
            let seen = available;
            available = wish_and_look::<Loom>(&self.wish, seen, &self.available);
            if available == seen {
                return;
            }
        }
    }
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            rings: std::array::from_fn(|_| Ring::new()),
            waiting: AtomicBool::new(false),
            woken: AtomicBool::new(false),
        })
    }

    /// As `settle` of `delivery`; `once` is how it was: only who finds that nothing was known to wait looks again.
    fn settle(&self, ring: &Ring, queue: &mut Queue, once: bool) {
        if queue.waiting > 0 && !(self.waiting.swap(true, Ordering::AcqRel) && once) {
            ring.drain(queue);
        }
    }

    /// As `Delivery::deliver` and `Delivery::flush`: a frame to the first queue that the guest sees when the batch is over, and before that one
    /// to the second queue.
    fn send(&self, once: bool) {
        let [first, second] = &self.rings;
        first.deliver(&mut first.queue.lock().unwrap());
        let mut queue = second.queue.lock().unwrap();
        second.deliver(&mut queue);
        self.settle(second, &mut queue, once);
        drop(queue);
        self.settle(first, &mut first.queue.lock().unwrap(), once);
    }

    /// The guest makes a buffer of the first queue available.
    fn refill(&self) {
        let [first, _] = &self.rings;
        publish::<Loom>(&first.available, 1);
        if need_event(wish_of_other::<Loom>(&first.wish), 1, 0) {
            // As an eventfd, which adds to what it has.
            self.woken.swap(true, Ordering::AcqRel);
        }
    }

    /// The worker wakes if it was woken, and makes a round; returns `true` if it did.
    fn work(&self) -> bool {
        let woken = self.woken.swap(false, Ordering::AcqRel);
        if woken && self.waiting.load(Ordering::Relaxed) {
            self.waiting.store(false, Ordering::Relaxed);
            let left = self.rings.each_ref().map(|ring| {
                let mut queue = ring.queue.lock().unwrap();
                ring.drain(&mut queue);
                queue.waiting
            });
            if left != [0; 2] {
                self.waiting.store(true, Ordering::Relaxed);
            }
        }
        woken
    }
}

fn run(once: bool) {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let world = World::new();
        let [sender, guest] = [0, 1].map(|role| {
            let world = Arc::clone(&world);
            thread::spawn(move || if role == 0 { world.send(once) } else { world.refill() })
        });
        world.work();
        sender.join().unwrap();
        guest.join().unwrap();
        while world.work() {}
        let left = world.rings.each_ref().map(|ring| ring.queue.lock().unwrap().waiting);
        assert_eq!(left, [0, 1], "a frame waits beside its buffer");
    });
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn no_frame_is_left_waiting_beside_a_buffer() {
    run(false);
}

#[test]
#[ignore = "in a process of its own: make prove"]
#[should_panic(expected = "waits beside its buffer")]
fn a_kick_is_lost_if_a_queue_relies_on_what_another_has_announced() {
    run(true);
}
