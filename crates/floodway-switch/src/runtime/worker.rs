//! Workers: the threads that move frames.
//!
//! # Theory of operation
//! A worker owns some ports and uplinks: it alone takes frames out of them. It polls them in
//! turn (`schedule`), but for ports that have had nothing for a while (`polled`), as long as there is something to do, and after that
//! as long as that pays ([`crate::runtime::polling`]). Then it
//! asks all its guests for kicks, looks once more, and sleeps in `epoll_pwait2` until a guest kicks,
//! an uplink has a frame, a ring is set up ([`Waker::wake`]), or it is time: for a timer of a port's TCP
//! offload or of an uplink's queue, or for housekeeping.
//!
//! While it polls, guests need not kick and mostly do not: that saves them an exit per batch.
//! Putting frames *into* a guest is done by whichever worker has the frame, under the lock of
//! the receive queue; only frames that wait for buffers are left to the port's own worker.
//!
//! Interrupts that wait ([`crate::queues::moderation`]) are sent by the worker that let them wait.
//!
//! Timers (of a port's TCP offload, of an uplink's queue) are run by the port's or uplink's own worker, at its looks at
//! the clock. Another worker can bring a timer forward, and wakes the worker if need be (`deadline`). The
//! kernel ends a sleep within 0.1 % of its length: the thread's timer slack is set to nothing.

mod polled;
mod schedule;
#[cfg(test)]
mod tests;

use std::mem;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_process::allowance::thread_time;
use rustix::thread::set_current_timer_slack;

use crate::capture;
use crate::kept::turns::Turn;
use crate::pipeline::forward::Forwarder;
use crate::queues::moderation::Moderated;
use crate::queues::tx::{Batch, TxQueue};
use crate::runtime::polling::{Next, Polling};
use crate::state::port::Port;
use crate::state::ports::Ports;
use crate::state::shared::Shared;
use crate::state::uplink::UplinkReceiver;
use crate::state::workers::WorkerStats;
use crate::sync::lock;
use crate::sync::waker::{Event, Waker};

use polled::PolledPorts;
#[cfg(any(test, fuzzing))]
pub(crate) use schedule::QUANTUM;
pub use schedule::Schedule;

/// How often a sleeping worker wakes up for housekeeping.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Rounds without work between two looks at the clock, which costs more than such a round.
const CLOCK_EVERY: u32 = 16;

/// One worker; [`Worker::run`] is its thread.
pub struct Worker {
    /// What the switch knows.
    pub shared: Arc<Shared>,
    /// What wakes it.
    pub waker: Arc<Waker>,
    /// Its number.
    pub index: usize,
    /// Which table of ports it has seen.
    pub generation: u64,
    /// The ports that it takes frames from.
    pub ports: Vec<Arc<Port>>,
    /// Which of them it polls.
    polled: PolledPorts,
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
    /// When some guest may have to hear that frames of its own are sent; [`Instant::NEVER`] if none waits for that.
    pub next_completion: Instant,
    /// Who may have how much done.
    pub schedule: Schedule,
    /// The last round had work.
    pub was_busy: bool,
    /// Where it notes which port it serves.
    pub turn: Turn,
}

/// Where a worker is in its loop, and what it works with there.
pub struct Progress {
    forwarder: Forwarder,
    batch: Batch,
    /// When it last looked at the clock.
    now: Instant,
    next_housekeeping: Instant,
    /// Rounds without work since the last one that had some.
    idle_polls: u32,
}

impl Worker {
    /// The worker with number `index` of `shared`, which serves the ports that are configured for it.
    ///
    /// # Panics
    /// There is no such worker.
    #[must_use]
    pub fn new(shared: Arc<Shared>, index: usize, waker: Arc<Waker>, polling: Polling) -> Self {
        let ports = shared.ports();
        let mine = |port: &&Arc<Port>| port.config.worker == index;
        let ports: Vec<_> = ports.iter().filter(mine).cloned().collect();
        let polled = PolledPorts::new(ports.iter().map(|port| port.id), shared.now());
        Self {
            waker,
            index,
            generation: 0,
            polled,
            schedule: Schedule::of(&ports, &[]),
            ports,
            uplinks: Vec::new(),
            polling,
            stats: Arc::clone(&shared.workers[index].stats),
            stop: Arc::default(),
            housekeeper: index == 0,
            next_completion: Instant::NEVER,
            was_busy: false,
            turn: Turn::default(),
            shared,
        }
    }

    /// Serves these uplinks, too, and charges turns for their time.
    #[must_use]
    pub fn with_uplinks(mut self, uplinks: Vec<UplinkReceiver>) -> Self {
        self.schedule = Schedule::of(&self.ports, &uplinks).timed();
        self.uplinks = uplinks;
        self
    }

    /// Moves frames until the switch stops.
    pub fn run(mut self) {
        end_sleeps_on_time();
        capture::set_worker(self.index);
        self.stats.note_thread();
        let mut progress = self.begin();
        while !self.stop.load(Ordering::Relaxed) {
            self.step(&mut progress);
        }
    }

    /// Returns where its loop begins.
    #[must_use]
    pub fn begin(&mut self) -> Progress {
        self.each_tx(TxQueue::disable_kick);
        let now = self.shared.now();
        Progress {
            forwarder: Forwarder::new(Arc::clone(&self.shared)),
            batch: Batch::default(),
            now,
            next_housekeeping: now + HOUSEKEEPING,
            idle_polls: 0,
        }
    }

    /// One round, and what is due after it; a sleep if there is nothing to do.
    pub fn step(&mut self, progress: &mut Progress) {
        let Progress { forwarder, batch, now, next_housekeeping, idle_polls } = progress;
        if self.shared.generation() != self.generation {
            self.take_ports(forwarder, batch);
        }
        let mut busy = self.poll(forwarder, batch, *now);
        self.stats.polls.add(1);
        *idle_polls = if busy { 0 } else { *idle_polls + 1 };
        if !idle_polls.is_multiple_of(CLOCK_EVERY) && self.polling.is_polling() {
            return;
        }
        let before = mem::replace(now, self.shared.now());
        busy |= self.run_timers(forwarder, *now);
        if self.polled.begin_look(*now, !busy) {
            self.look_at_ports(*now);
        }
        if *now >= *next_housekeeping {
            *next_housekeeping = *now + HOUSEKEEPING;
            self.run_housekeeping(forwarder, batch, *now);
        }
        if busy {
            self.stats.busy_polls.add(1);
            self.stats.rounds.observe_nanos(now.nanos_since(before), 1);
            self.polling.note_work(before, *now, thread_time);
            return;
        }
        let until = match self.polling.next(*now, thread_time) {
            Next::Poll => return,
            Next::Doze(until) => until,
            Next::Sleep => Instant::NEVER,
        };
        batch.release();
        let interrupt = forwarder.next_interrupt().min(self.next_completion);
        self.sleep(until.min(*next_housekeeping).min(interrupt));
        *now = self.shared.now();
        *idle_polls = 0;
    }

    /// Takes over the ports that there are now, and notes that it has.
    #[cold]
    fn take_ports(&mut self, forwarder: &mut Forwarder, batch: &mut Batch) {
        let ports = self.shared.ports();
        batch.release();
        self.generation = ports.generation();
        let mine = |port: &&Arc<Port>| port.config.worker == self.index;
        self.ports = ports.iter().filter(mine).cloned().collect();
        self.take_uplinks(&ports);
        self.schedule.take_ports(&self.ports, &self.uplinks, &self.shared.ledger);
        self.polled = PolledPorts::new(self.ports.iter().map(|port| port.id), self.shared.now());
        self.waker.first.expire();
        forwarder.take_ports(ports);
        self.each_tx(TxQueue::disable_kick);
        // What it has done for ports that are gone is over before anybody sees this.
        self.stats.note_generation(self.generation);
    }

    /// Gives up uplinks that are not in `ports`, and takes over those that have arrived.
    fn take_uplinks(&mut self, ports: &Ports) {
        let is_there = |uplink: &UplinkReceiver| ports.uplink(uplink.slot().id).is_some();
        for gone in self.uplinks.extract_if(.., |uplink| !is_there(uplink)) {
            // The broker has the same device open.
            self.waker.unwatch(&gone);
            gone.close();
        }
        for uplink in lock(&self.shared.workers[self.index].arriving).drain(..) {
            if let Err(error) = self.waker.watch_uplink(&uplink) {
                tracing::error!(%error, "cannot watch an uplink; it will be served late");
            }
            self.uplinks.push(uplink);
        }
    }

    /// Runs the timers that are due; returns whether there were any.
    fn run_timers(&mut self, forwarder: &mut Forwarder, now: Instant) -> bool {
        let mut busy = false;
        if self.waker.first.take_due(now) {
            for index in 0..self.ports.len() {
                busy |= self.run_timers_of(index, forwarder, now);
            }
            self.turn.clear();
        }
        // An interrupt that was let wait is no frame: it does not keep the worker from sleeping.
        forwarder.interrupt(now);
        if self.next_completion <= now {
            self.next_completion = self.completions(now);
        }
        if self.housekeeper {
            self.shared.tick_inbound(now);
        }
        self.uplinks.iter().fold(busy, |busy, uplink| uplink.slot().run_timer(now) | busy)
    }

    /// Runs the timers of a port that are due, and notes when the next ones will be; returns whether there were any. A port for which work was left is
    /// polled.
    fn run_timers_of(&mut self, index: usize, forwarder: &mut Forwarder, now: Instant) -> bool {
        let port = &self.ports[index];
        self.turn.note(port.instance);
        let busy = forwarder.run_timers(port, now);
        self.waker.first.note(port.offload.next_timeout().min(port.inbound.next_timeout()));
        if port.is_waiting() {
            self.poll_port(index, now);
        }
        busy
    }

    /// Parks ports that have had nothing for a while, and polls those again that have had an event.
    fn look_at_ports(&mut self, now: Instant) {
        let Self { polled, schedule, ports, .. } = self;
        polled.park_idle(now, |index| park(&ports[index]) && schedule.leave_out(index));
        if self.polled.has_parked() {
            self.take_events(Duration::ZERO);
        }
    }

    /// Waits for events for `timeout` at most, and polls the ports that they concern.
    fn take_events(&mut self, timeout: Duration) {
        let waker = Arc::clone(&self.waker);
        waker.wait(timeout, |event| {
            let now = self.shared.now();
            match event {
                Event::Kick(id) => {
                    if let Some(index) = self.polled.index_of(id) {
                        self.poll_port(index, now);
                    }
                }
                Event::Woken => (0..self.polled.len()).for_each(|index| self.poll_port(index, now)),
                Event::Timer | Event::Uplink => {}
            }
        });
    }

    /// Polls a port again, if it was parked.
    fn poll_port(&mut self, index: usize, now: Instant) {
        if self.polled.poll(index, now) {
            self.schedule.take_in(index, &self.shared.ledger);
            self.ports[index].pairs.iter().for_each(|pair| pair.tx().disable_kick());
        }
    }

    /// Interrupts guests whose frames have been sent for long enough; answers when the next one's will have.
    fn completions(&self, now: Instant) -> Instant {
        let mut next = Instant::NEVER;
        // A guest that waits for that is not parked.
        let ports = self.polled.list().iter().map(|&index| &self.ports[index]);
        for (port, pair) in ports.flat_map(|port| port.pairs.iter().map(move |p| (port, p))) {
            match pair.tx().interrupt_if_due(now) {
                Moderated::Waits(due) => next = next.min(due),
                Moderated::Sent => self.shared.ledger.charge_interrupt(port.id),
                Moderated::Unwanted => {}
            }
        }
        next
    }

    /// When the first timer is due.
    fn next_timer(&self) -> Instant {
        let due = |port: &Arc<Port>| {
            let timers = port.offload.next_timeout().min(port.inbound.next_timeout());
            timers.min(port.resume_at.get())
        };
        let ports = self.ports.iter().map(due);
        let uplinks = self.uplinks.iter().map(|uplink| uplink.slot().next_timeout());
        let tick = self.housekeeper.then(|| self.shared.inbound.next_tick());
        ports.chain(uplinks).chain(tick).min().unwrap_or(Instant::NEVER)
    }

    /// What is done once a second.
    fn run_housekeeping(&mut self, forwarder: &mut Forwarder, batch: &mut Batch, now: Instant) {
        // A worker that always finds something never sleeps, and a guest that has gone sends nothing that would take its memory's place.
        batch.release();
        self.waker.first.expire();
        self.schedule.note_shares(&self.shared.ledger);
        for port in &self.ports {
            forwarder.end_abandoned(port);
            port.offload.trim();
            port.expire_stopped_guest();
        }
        if self.housekeeper {
            while self.shared.tables().age_due(now) {
                self.shared.tables_mut().age(now);
            }
        }
        for uplink in &mut self.uplinks {
            uplink.count_lost();
            uplink.slot().run_housekeeping(now);
            if uplink.has_failed()
                && uplink.reopen()
                && let Err(error) = self.waker.watch_uplink(uplink)
            {
                tracing::error!(%error, "cannot watch an uplink; it will be served late");
            }
        }
    }

    /// One round over everything; returns whether there was something to do.
    pub(crate) fn poll(
        &mut self,
        forwarder: &mut Forwarder,
        batch: &mut Batch,
        now: Instant,
    ) -> bool {
        self.schedule.begin_round(self.was_busy, || self.shared.now());
        let mut busy = false;
        for place in 0..self.polled.list().len() {
            let i = self.polled.list()[place];
            self.turn.note(self.ports[i].instance);
            if self.serve_port(i, forwarder, batch, now) {
                self.polled.note_busy(i);
                busy = true;
            }
        }
        self.turn.clear();
        for i in 0..self.uplinks.len() {
            busy |= self.serve_uplink(i, forwarder, now);
        }
        // Who is in debt was not even looked at.
        self.was_busy = busy || self.schedule.skip_rounds();
        self.was_busy
    }

    /// The turn of a port: what waits for its guest, then batches of its queue pairs, one after the other, until it has spent its credit or has
    /// nothing more. In debt it gets nothing.
    /// Returns `true` if it had anything.
    fn serve_port(
        &mut self,
        index: usize,
        forwarder: &mut Forwarder,
        batch: &mut Batch,
        now: Instant,
    ) -> bool {
        let (mut busy, mut without) = (false, 0);
        let credit = self.schedule.begin(index, &self.shared.ledger);
        let has_waited = self.ports[index].is_waiting();
        if has_waited {
            busy = self.resume_port(index, forwarder, now, credit);
        }
        let port = &self.ports[index];
        let ledger = &self.shared.ledger;
        let clock = || self.shared.now();
        let mut left = self.schedule.begin_timed(index, ledger, has_waited, clock);
        // What was left to be cut goes first.
        while let Some(limit) = left
            && without < port.pairs.len()
            && !port.is_interrupted()
        {
            let mut tx = port.pairs[self.schedule.next_pair(index)].tx();
            tx.fill_within(batch, limit);
            if batch.is_empty() {
                without += 1;
                continue;
            }
            ledger.charge(port.id, batch.taken());
            self.stats.batches.note(batch.len());
            without = if batch.has_more() { 0 } else { without + 1 };
            forwarder.forward_batch(port, batch, now);
            let due = tx.complete_moderated(batch, now, port.sent(), port.received());
            self.next_completion = due.unwrap_or(Instant::NEVER).min(self.next_completion);
            left = self.schedule.settle(index, ledger);
            busy = true;
        }
        self.schedule.end(index, ledger, left.is_some(), clock);
        busy
    }

    /// Goes on with what a port has left: frames that wait for its guest, and GSO packets that are to be cut. Nothing more is taken from the
    /// guest before that is done. Returns `true` if there was something to do.
    #[cold]
    fn resume_port(
        &mut self,
        index: usize,
        forwarder: &mut Forwarder,
        now: Instant,
        credit: Option<u64>,
    ) -> bool {
        let (port, ledger) = (&self.ports[index], &self.shared.ledger);
        let waits = port.waiting.load(Ordering::Relaxed);
        let (mut left, mut busy) = (credit, false);
        if let Some(limit) = credit {
            // Cleared first: whoever leaves something from here on sets it again.
            port.begin_resuming();
            if waits {
                busy |= drain(&self.shared, port, limit);
                left = self.schedule.settle(index, ledger);
            }
            while left.is_some() && forwarder.resume(port.id, now) {
                busy = true;
                left = self.schedule.settle(index, ledger);
            }
            if left.is_none() {
                // Perhaps there is more: it is looked at once the port has credit again.
                port.resume_soon();
            }
        }
        if waits {
            forwarder.settle_guest(port, now);
        }
        busy
    }

    /// The turn of an uplink. Returns `true` if it had anything.
    fn serve_uplink(&mut self, index: usize, forwarder: &mut Forwarder, now: Instant) -> bool {
        let uplink = &mut self.uplinks[index];
        let (member, ledger) = (self.ports.len() + index, &self.shared.ledger);
        if uplink.has_failed() {
            return false;
        }
        let (mut busy, id) = (false, uplink.slot().id);
        let clock = || self.shared.now();
        self.schedule.begin(member, ledger);
        let mut left = self.schedule.begin_timed(member, ledger, false, clock);
        while left.is_some() && forwarder.resume(id, now) {
            busy = true;
            left = self.schedule.settle(member, ledger);
        }
        let mut is_spent = left.is_none();
        while let Some(limit) = left {
            let more = forwarder.forward_uplink(uplink, now, limit);
            busy |= more.is_some();
            left = self.schedule.settle(member, ledger);
            is_spent = left.is_none();
            left = left.filter(|_| more == Some(true));
        }
        self.schedule.end(member, ledger, !is_spent, clock);
        if uplink.has_failed() {
            // A failed device stays readable for ever: it must not keep the worker awake.
            self.waker.unwatch(uplink);
        }
        busy
    }

    /// Sleeps until there is something to do, at most until `housekeeping`.
    fn sleep(&mut self, housekeeping: Instant) {
        let mut work = false;
        self.each_polled_tx(|tx| work |= tx.enable_kick());
        if !work {
            let until = self.waker.sleeper.lie_down(housekeeping, || self.next_timer());
            let before = self.shared.now();
            self.stats.note_asleep(before);
            let allowed = until.since(before);
            self.take_events(allowed);
            self.waker.sleeper.get_up();
            let slept = self.shared.now().since(before);
            self.stats.note_awake(slept);
            self.polling.adapt(slept, slept < allowed);
        }
        self.each_polled_tx(TxQueue::disable_kick);
    }

    fn each_polled_tx(&self, mut f: impl FnMut(&mut TxQueue)) {
        let ports = self.polled.list().iter().map(|&index| &self.ports[index]);
        for pair in ports.flat_map(|port| &port.pairs) {
            f(&mut pair.tx());
        }
    }

    fn each_tx(&self, mut f: impl FnMut(&mut TxQueue)) {
        for pair in self.ports.iter().flat_map(|port| &port.pairs) {
            f(&mut pair.tx());
        }
    }
}

/// Asks the guest of a port for kicks; returns `true` if there is nothing to do for the port that it will not kick for.
fn park(port: &Port) -> bool {
    let is_quiet = |tx: &mut TxQueue| !tx.owes_interrupt() && !tx.enable_kick();
    let is_idle = !port.is_waiting() && port.pairs.iter().all(|pair| is_quiet(&mut pair.tx()));
    if !is_idle {
        port.pairs.iter().for_each(|pair| pair.tx().disable_kick());
    }
    is_idle
}

/// Lets the kernel end this thread's sleeps when they should end, and not up to 50 us later to save wake-ups.
fn end_sleeps_on_time() {
    // One nanosecond is the least there is.
    if let Err(error) = set_current_timer_slack(Some(NonZeroU64::MIN)) {
        tracing::warn!(%error, "timers of the TCP offload will be up to 50 us late");
    }
}

/// Delivers what waits in the port's receive queues until that has cost `limit` nanoseconds by the cost model, which is divided among
/// them. Returns `true` if anything could be delivered.
fn drain(shared: &Shared, port: &Port, limit: u64) -> bool {
    // Cleared first: whoever makes a frame wait from here on sets it again.
    port.waiting.store(false, Ordering::Relaxed);
    let (mut spent, mut unpaid, mut remains) = (0, Work::default(), false);
    let each = (limit / port.pairs.len() as u64).max(1);
    for pair in &port.pairs {
        let mut rx = pair.rx();
        spent += rx.drain_within(each);
        rx.flush();
        unpaid += rx.take_unpaid();
        remains |= rx.pending().0 > 0;
    }
    if remains {
        port.waiting.store(true, Ordering::Relaxed);
    }
    shared.ledger.charge(port.id, &unpaid);
    spent > 0
}
