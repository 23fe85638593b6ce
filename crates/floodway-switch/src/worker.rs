//! Workers: the threads that move frames.
//!
//! # Theory of operation
//! A worker owns some ports and uplinks: it alone takes frames out of them. It polls them in
//! turn, a batch each, as long as there is something to do, and for a while after that, at most
//! `poll_us` and less if that does not pay ([`crate::polling`]). Then it
//! asks all its guests for kicks, looks once more, and sleeps in `epoll_wait` until a guest kicks,
//! an uplink has a frame, a ring is set up ([`Waker::wake`]), or it is time for housekeeping.
//!
//! While it polls, guests need not kick and mostly do not: that saves them an exit per batch.
//! Putting frames *into* a guest is done by whichever worker has the frame, under the lock of
//! the receive queue; only frames that wait for buffers are left to the port's own worker.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use floodway_core::time::Instant;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::forward::Forwarder;
use crate::polling::Polling;
use crate::port::Port;
use crate::stats::Counter;
use crate::switch::Shared;
use crate::tx::{Batch, TxQueue};
use crate::uplink::slot::UplinkReceiver;

/// How often a sleeping worker wakes up for housekeeping.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Rounds without work between two looks at the clock, which costs more than such a round.
const CLOCK_EVERY: u32 = 16;

/// Most events taken from one `epoll_wait`. More stay queued and are seen by the next.
const EVENTS: usize = 32;

/// Wakes a worker, and knows the descriptors that do.
pub struct Waker {
    epoll: Epoll,
    wake: EventFd,
}

impl Waker {
    /// A waker that watches nothing yet.
    ///
    /// # Errors
    /// The kernel has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let waker = Self { epoll: Epoll::new()?, wake: EventFd::new(libc::EFD_NONBLOCK)? };
        waker.add(waker.wake.as_raw_fd(), EventSet::IN | EventSet::EDGE_TRIGGERED)?;
        Ok(waker)
    }

    /// Wakes the worker.
    pub fn wake(&self) {
        // Fails only when the counter is full, and then the worker is awake.
        let _ = self.wake.write(1);
    }

    /// Lets a guest's kicks wake the worker. Each kick is an edge: the counter is never read.
    pub fn watch(&self, kick: &EventFd) {
        if let Err(error) = self.add(kick.as_raw_fd(), EventSet::IN | EventSet::EDGE_TRIGGERED) {
            tracing::error!(%error, "cannot watch a kick descriptor; the guest will be served late");
        }
    }

    /// Forgets a descriptor. For a kick the front-end holds the same file open, so closing ours is not
    /// enough.
    pub fn unwatch(&self, fd: &impl AsRawFd) {
        let event = EpollEvent::default();
        if let Err(error) = self.epoll.ctl(ControlOperation::Delete, fd.as_raw_fd(), event) {
            tracing::debug!(%error, "a descriptor was not watched");
        }
    }

    /// Lets an uplink's frames wake the worker, as long as there are any.
    ///
    /// # Errors
    /// The descriptor cannot be polled.
    pub fn watch_uplink(&self, uplink: &UplinkReceiver) -> io::Result<()> {
        self.add(uplink.as_raw_fd(), EventSet::IN)
    }

    fn add(&self, fd: RawFd, events: EventSet) -> io::Result<()> {
        self.epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, 0))
    }

    fn wait(&self, timeout: Duration) {
        let mut events = [EpollEvent::default(); EVENTS];
        // The only error is a signal, which is a reason to look around like any other.
        let _ = self.epoll.wait(timeout.as_millis() as i32, &mut events);
    }
}

/// What a worker has done.
#[derive(Debug, Default)]
pub struct WorkerStats {
    /// Rounds over all ports and uplinks.
    pub polls: Counter,
    /// Rounds that found something to do.
    pub busy_polls: Counter,
    /// Times that it went to sleep.
    pub sleeps: Counter,
    /// Nanoseconds slept.
    pub slept_ns: Counter,
}

/// One worker; [`Worker::run`] is its thread.
pub struct Worker {
    /// What the switch knows.
    pub shared: Arc<Shared>,
    /// What wakes it.
    pub waker: Arc<Waker>,
    /// The ports that it takes frames from.
    pub ports: Vec<Arc<Port>>,
    /// The uplinks that it takes frames from.
    pub uplinks: Vec<UplinkReceiver>,
    /// How long it polls after the last frame before it sleeps.
    pub polling: Polling,
    /// What it has done.
    pub stats: Arc<WorkerStats>,
    /// Set when the switch stops.
    pub stop: Arc<AtomicBool>,
    /// It looks after the forwarding table, for all workers.
    pub housekeeper: bool,
}

impl Worker {
    /// Moves frames until the switch stops.
    pub fn run(mut self) {
        let mut forwarder = Forwarder::new(Arc::clone(&self.shared));
        let mut batch = Batch::default();
        let mut now = self.shared.now();
        let mut last_busy = now;
        let mut next_housekeeping = now + HOUSEKEEPING;
        let mut idle_polls = 0u32;
        self.each_tx(TxQueue::disable_kick);
        while !self.stop.load(Ordering::Relaxed) {
            let busy = self.poll(&mut forwarder, &mut batch, now);
            self.stats.polls.add(1);
            idle_polls = if busy { 0 } else { idle_polls + 1 };
            let budget = self.polling.budget();
            if !budget.is_zero() && !idle_polls.is_multiple_of(CLOCK_EVERY) {
                continue;
            }
            now = self.shared.now();
            if now >= next_housekeeping {
                next_housekeeping = now + HOUSEKEEPING;
                self.keep_house(now);
            }
            if busy {
                self.stats.busy_polls.add(1);
                last_busy = now;
            } else if now.since(last_busy) >= budget {
                batch.release();
                self.sleep(next_housekeeping.since(now));
                now = self.shared.now();
                idle_polls = 0;
            }
        }
    }

    /// What is done once a second.
    fn keep_house(&mut self, now: Instant) {
        if self.housekeeper {
            while self.shared.table().age_due(now) {
                self.shared.table_mut().age(now);
            }
        }
        for uplink in &mut self.uplinks {
            uplink.count_lost();
            if uplink.has_failed()
                && uplink.reopen()
                && let Err(error) = self.waker.watch_uplink(uplink)
            {
                tracing::error!(%error, "cannot watch an uplink; it will be served late");
            }
        }
    }

    /// One round over everything; answers whether there was something to do.
    fn poll(&mut self, forwarder: &mut Forwarder, batch: &mut Batch, now: Instant) -> bool {
        let mut busy = false;
        for port in &self.ports {
            if port.waiting.load(Ordering::Relaxed) {
                busy |= drain(port);
            }
            for pair in &port.pairs {
                let mut tx = pair.tx();
                tx.fill(batch);
                if !batch.is_empty() {
                    forwarder.forward_batch(port, batch, now);
                    tx.complete(batch);
                    busy = true;
                }
            }
        }
        for uplink in &mut self.uplinks {
            if uplink.has_failed() {
                continue;
            }
            busy |= forwarder.forward_uplink(uplink, now);
            if uplink.has_failed() {
                // A failed device stays readable for ever: it must not keep the worker awake.
                self.waker.unwatch(uplink);
            }
        }
        busy
    }

    fn sleep(&mut self, timeout: Duration) {
        let mut work = false;
        self.each_tx(|tx| work |= tx.enable_kick());
        if !work {
            self.stats.sleeps.add(1);
            let before = self.shared.now();
            // Rounded up: waking up early for housekeeping would mean a second short sleep.
            self.waker.wait(timeout + Duration::from_millis(1));
            let slept = self.shared.now().since(before);
            self.stats.slept_ns.add(slept.as_nanos() as u64);
            self.polling.adapt(slept);
        }
        self.each_tx(TxQueue::disable_kick);
    }

    fn each_tx(&self, mut f: impl FnMut(&mut TxQueue)) {
        for pair in self.ports.iter().flat_map(|port| &port.pairs) {
            f(&mut pair.tx());
        }
    }
}

/// Delivers what waits in the port's receive queues; answers whether anything could be.
fn drain(port: &Port) -> bool {
    let (mut before, mut after) = (0, 0);
    // Cleared first: whoever makes a frame wait from here on sets it again.
    port.waiting.store(false, Ordering::Relaxed);
    for pair in &port.pairs {
        let mut rx = pair.rx();
        before += rx.pending().0;
        rx.drain();
        rx.flush();
        after += rx.pending().0;
    }
    if after > 0 {
        port.waiting.store(true, Ordering::Relaxed);
    }
    after < before
}
