//! Frames to a guest that stops and shows up behind an uplink ([`crate::pipeline::migration`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::model::Builder;
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU16};
use loom::sync::{Mutex, RwLock};
use loom::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Port,
    Uplink,
}

/// A receive queue.
struct Queue {
    runs: bool,
    /// The guest may come back.
    stopped: bool,
    waiting: Vec<u16>,
    guest: Vec<u16>,
    dropped: Vec<u16>,
}

impl Queue {
    /// As `RxQueue::wait_for_guest`.
    fn wait_for_guest(&mut self, frame: u16) {
        if self.stopped { self.waiting.push(frame) } else { self.dropped.push(frame) }
    }

    /// As `RxQueue::deliver_as_is`, for a guest that has buffers: frames do not overtake those that wait.
    fn deliver(&mut self, frame: u16) {
        if self.waiting.is_empty() { self.guest.push(frame) } else { self.waiting.push(frame) }
    }

    /// As `RxQueue::drain`.
    fn drain(&mut self) {
        if self.runs {
            self.guest.append(&mut self.waiting);
        }
    }
}

/// A port, the forwarding table's entry of its guest, and an uplink.
struct World {
    running: AtomicU16,
    departed: AtomicU8,
    /// The port's worker is to look at what waits.
    waiting: AtomicBool,
    rx: Mutex<Queue>,
    table: RwLock<Place>,
    network: Mutex<Vec<u16>>,
}

impl World {
    fn new() -> Arc<Self> {
        let queue = Queue {
            runs: true,
            stopped: false,
            waiting: Vec::new(),
            guest: Vec::new(),
            dropped: Vec::new(),
        };
        Arc::new(Self {
            running: AtomicU16::new(1),
            departed: AtomicU8::new(0),
            waiting: AtomicBool::new(false),
            rx: Mutex::new(queue),
            table: RwLock::new(Place::Port),
            network: Mutex::new(Vec::new()),
        })
    }

    /// As `Delivery::send`.
    fn send(&self, frame: u16) {
        let place = *self.table.read().unwrap();
        match place {
            Place::Port => self.deliver(frame),
            Place::Uplink => self.network.lock().unwrap().push(frame),
        }
    }

    /// As `Delivery::deliver`.
    fn deliver(&self, frame: u16) {
        if self.running.load(Ordering::Acquire) == 0 {
            return self.deliver_to_stopped(frame);
        }
        let mut rx = self.rx.lock().unwrap();
        if !rx.runs {
            drop(rx);
            return self.deliver_to_stopped(frame);
        }
        rx.deliver(frame);
        self.settle(&mut rx);
    }

    /// As `settle` of `delivery`.
    fn settle(&self, rx: &mut Queue) {
        if !rx.waiting.is_empty() {
            self.waiting.store(true, Ordering::Release);
            rx.drain();
        }
    }

    /// As `Delivery::deliver_to_stopped`.
    fn deliver_to_stopped(&self, frame: u16) {
        let mut rx = self.rx.lock().unwrap();
        let place = *self.table.read().unwrap();
        if place != Place::Port {
            drop(rx);
            self.send(frame);
        } else if rx.runs {
            rx.deliver(frame);
            self.settle(&mut rx);
        } else {
            rx.wait_for_guest(frame);
        }
    }

    /// As `Device::stop`, and `Port::stop_guest` after that.
    fn stop(&self) {
        let mut rx = self.rx.lock().unwrap();
        (rx.runs, rx.stopped) = (false, true);
        drop(rx);
        self.departed.store(1, Ordering::Release);
        self.running.store(0, Ordering::Release);
        // The table knows the address.
        drop(self.table.write().unwrap());
    }

    /// As `Delivery::move_address`, for a frame from the guest that has come by the uplink.
    fn move_away(&self) {
        if self.departed.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut rx = self.rx.lock().unwrap();
        let waiting = std::mem::take(&mut rx.waiting);
        self.network.lock().unwrap().extend(waiting);
        *self.table.write().unwrap() = Place::Uplink;
    }

    /// As `Device::update`, and `Port::arrive` after that.
    fn start(&self) {
        let mut rx = self.rx.lock().unwrap();
        (rx.runs, rx.stopped) = (true, false);
        drop(rx);
        let table = self.table.write().unwrap();
        self.departed.store(0, Ordering::Release);
        self.running.store(1, Ordering::Release);
        drop(table);
        self.waiting.store(true, Ordering::Release);
    }

    /// As a worker's round.
    fn work(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.waiting.store(false, Ordering::Relaxed);
            self.rx.lock().unwrap().drain();
        }
    }

    /// Every frame is where it can still reach the guest, in order.
    fn check(&self, frames: u16) {
        let rx = self.rx.lock().unwrap();
        let network = self.network.lock().unwrap();
        assert!(rx.dropped.is_empty(), "dropped: {:?}", rx.dropped);
        assert!(rx.waiting.is_empty(), "left behind: {:?}", rx.waiting);
        let all: Vec<_> = rx.guest.iter().chain(&*network).copied().collect();
        assert_eq!(all, (1..=frames).collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn frames_to_a_guest_that_moves_away_follow_it_in_order() {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new();
        let sender = {
            let world = Arc::clone(&world);
            thread::spawn(move || (1..=3).for_each(|frame| world.send(frame)))
        };
        world.stop();
        world.move_away();
        sender.join().unwrap();
        world.check(3);
    });
}

#[test]
#[ignore = "in a process of its own: make prove"]
fn frames_to_a_guest_that_pauses_reach_it_in_order() {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new();
        let sender = {
            let world = Arc::clone(&world);
            thread::spawn(move || (1..=2).for_each(|frame| world.send(frame)))
        };
        world.stop();
        world.start();
        world.work();
        sender.join().unwrap();
        // The worker never rests while it has to look.
        world.work();
        world.check(2);
    });
}
