//! A worker that sleeps, and threads that bring its timers forward.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use floodway_core::time::Instant;
use loom::sync::Mutex;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::{Loom, Unfenced};
use crate::sync::atomics::Atomics;
use crate::sync::deadline::{Deadline, FirstDeadline, Sleeper};

const FAR: Instant = Instant::from_nanos(1000);
const NEAR: Instant = Instant::from_nanos(20);
const NEARER: Instant = Instant::from_nanos(10);
const SOON: Instant = Instant::from_nanos(15);

/// A worker with two timers.
struct World<A: Atomics> {
    /// Changed under the lock of what they belong to.
    deadlines: [(Mutex<()>, Deadline<A>); 2],
    sleeper: Sleeper<A>,
    /// Its event descriptor is readable.
    woken: AtomicBool,
}

impl<A: Atomics> World<A> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            deadlines: std::array::from_fn(|_| (Mutex::new(()), Deadline::default())),
            sleeper: Sleeper::default(),
            woken: AtomicBool::new(false),
        })
    }

    fn publish(&self, timer: usize, at: Instant) {
        let (lock, deadline) = &self.deadlines[timer];
        let _held = lock.lock().unwrap();
        if deadline.publish(at, &self.sleeper) {
            self.woken.store(true, Ordering::Release);
        }
    }

    fn first_deadline(&self) -> Instant {
        self.deadlines.iter().map(|(_, deadline)| deadline.get()).min().unwrap()
    }

    fn lie_down(&self) -> Instant {
        self.sleeper.lie_down(FAR, || self.first_deadline())
    }

    /// All others are done: who sleeps now does so until `until` or is woken.
    fn check(&self, until: Instant) {
        let first = self.first_deadline();
        assert!(
            until <= first || self.woken.load(Ordering::Acquire),
            "sleeps until {until:?} over {first:?}"
        );
    }
}

fn one_timer_twice<A: Atomics + 'static>() {
    let world = World::<A>::new();
    let other = Arc::clone(&world);
    let publisher = thread::spawn(move || {
        other.publish(0, NEAR);
        other.publish(0, NEARER);
    });
    let until = world.lie_down();
    publisher.join().unwrap();
    world.check(until);
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn a_worker_does_not_sleep_over_a_timer_that_is_brought_forward() {
    loom::model(one_timer_twice::<Loom>);
}

#[test]
#[ignore = "in a process of its own: make prove"]
#[should_panic(expected = "sleeps until")]
fn without_fences_a_worker_may_sleep_over_a_timer() {
    loom::model(one_timer_twice::<Unfenced>);
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn two_threads_that_bring_two_timers_forward_wake_a_worker() {
    loom::model(|| {
        let world = World::<Loom>::new();
        let publishers = [NEAR, NEARER].map(|at| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.publish(usize::from(at == NEAR), at))
        });
        let until = world.lie_down();
        publishers.into_iter().for_each(|thread| thread.join().unwrap());
        world.check(until);
    });
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn a_worker_that_was_woken_and_sleeps_again_does_not_sleep_over_a_timer() {
    loom::model(|| {
        let world = World::<Loom>::new();
        let other = Arc::clone(&world);
        let publisher = thread::spawn(move || {
            other.publish(0, NEAR);
            other.publish(0, NEARER);
        });
        world.lie_down();
        // Whatever woke it: its event is taken, too.
        world.woken.swap(false, Ordering::AcqRel);
        world.sleeper.get_up();
        let until = world.lie_down();
        publisher.join().unwrap();
        world.check(until);
    });
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn a_timer_that_is_put_off_wakes_nobody() {
    loom::model(|| {
        let world = World::<Loom>::new();
        world.publish(0, NEAR);
        let other = Arc::clone(&world);
        let publisher = thread::spawn(move || {
            other.publish(0, FAR);
            other.publish(0, Instant::NEVER);
        });
        world.lie_down();
        publisher.join().unwrap();
        assert!(!world.woken.load(Ordering::Acquire));
    });
}

/// A worker that is awake looks at two timers when the first one may be due, as others bring them forward.
fn awake<A: Atomics + 'static>() {
    struct Awake<A: Atomics> {
        timers: [Deadline<A>; 2],
        first: FirstDeadline<A>,
        sleeper: Sleeper<A>,
    }
    let shared = Arc::new(Awake::<A> {
        timers: std::array::from_fn(|_| Deadline::default()),
        first: FirstDeadline::default(),
        sleeper: Sleeper::default(),
    });
    let publishers = [NEARER, NEAR].map(|at| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            shared.timers[usize::from(at == NEAR)].publish(at, &shared.sleeper);
            shared.first.note(at);
        })
    });
    // At `SOON` one of both is due.
    let look = || {
        if !shared.first.take_due(SOON) {
            return 0;
        }
        let due = |timer: &Deadline<A>| {
            let is_due = timer.get() <= SOON;
            if !is_due {
                shared.first.note(timer.get());
            }
            usize::from(is_due)
        };
        shared.timers.iter().map(due).sum()
    };
    let before: usize = look();
    publishers.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(before + look() >= 1, "a timer that is due was overlooked");
    assert!(shared.first.take_due(NEAR), "a timer that will be due was forgotten");
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn a_worker_that_is_awake_overlooks_no_timer() {
    loom::model(awake::<Loom>);
}

#[test]
#[ignore = "in a process of its own: make prove"]
#[should_panic(expected = "was overlooked")]
fn without_fences_a_worker_that_is_awake_may_overlook_a_timer() {
    loom::model(awake::<Unfenced>);
}
