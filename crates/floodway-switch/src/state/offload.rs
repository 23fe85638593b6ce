//! TCP offload of a port: its engine behind its lock, and what is known of it without the lock. The theory of operation is that of
//! [`crate::pipeline::tcp_offload`], which works on it.

pub(crate) mod moved;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use floodway_core::offload::journal::{Creditor, Image, Retained};
use floodway_core::offload::{
    Adoption, Config, Edit, FlowNotice, Link, Offload, Resumption, Segment, Sink,
    SynthesizedSegment, Transmission,
};
use floodway_core::time::Instant;
use floodway_wire::{FiveTuple, MacAddr};

use crate::frame::describe::Direction;
use crate::frame::held::{About, Held};
use crate::frame::pool::Pool;
use crate::kept::flows::{Arrived, FlowsWriter};
use crate::kept::journal::KeptJournal;
use crate::sync::deadline::Deadline;
use crate::sync::lock_order::{Ordered, Rank};
use crate::sync::waker::Waker;
use moved::Moving;

/// The offload of one port, as the packet path sees it.
pub struct PortOffload {
    /// Frames of the port have to be shown to the engine.
    active: AtomicBool,
    /// When the engine's next timeout is due.
    deadline: Deadline,
    /// Address of a stopped guest for which bytes are kept; zero if there is none.
    owed_to: AtomicU64,
    /// What the port's worker has to tell the engine of the guest: a [`GuestEvent`], or zero.
    event: AtomicU8,
    /// The front-end notes what the switch writes: the guest is about to move.
    migrating: AtomicBool,
    /// The engine has not been told so yet, or that it is over.
    migration_changed: AtomicBool,
    /// Seconds without a front-end.
    abandoned_for: AtomicU8,
    /// Frames with tags, which pass by.
    tagged: AtomicU64,
    /// What is said between the port and whoever speaks with other hosts.
    pub(crate) moving: Moving,
    machine: Mutex<Machine>,
}

/// What has become of a stopped guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GuestEvent {
    /// Its rings run again.
    Runs = 1,
    /// Its address is elsewhere.
    Moved = 2,
}

/// Seconds without a front-end after which a guest is taken for dead. Counted in whole ticks: it takes one to two.
const DEAD_AFTER: u8 = 2;

/// What a session works on.
pub(crate) struct Machine {
    pub(crate) engine: Offload<Held>,
    pub(crate) pool: Arc<Pool<About>>,
    pub(crate) output: Output,
    /// An operator wants the port to be drained.
    pub(crate) draining: bool,
    /// The front-end's migration wants that.
    pub(crate) migrating: bool,
    /// The latest time that the engine has heard: workers' clock readings can be a little out of order.
    pub(crate) latest: Instant,
    /// By how many nanoseconds the engine's clock is ahead of the switch's: an earlier process has begun it, or another host, where it may be behind as well.
    ahead: i64,
    /// Connections are [set aside](moved), and the guest has shown up elsewhere since.
    moved_since: Option<bool>,
    /// Where to record what is acknowledged once it is to be.
    journal: Option<KeptJournal>,
}

/// What a port has found of earlier processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// What they owed the guest and its peers; `None` if they recorded nothing.
    pub(crate) owed: Option<Adoption>,
    /// What has become of connections that were handed over.
    pub(crate) handed_over: Resumption,
}

impl Machine {
    /// The engine's time when the switch says `now`.
    pub(crate) fn time(&self, now: Instant) -> Instant {
        shift(now, self.ahead).max(self.latest)
    }

    /// Returns `true` if the port is to be drained, or is.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining || self.migrating
    }

    /// What is acknowledged is recorded, or will be.
    pub(crate) fn has_journal(&self) -> bool {
        self.journal.is_some() || self.engine.is_recording()
    }

    /// Begins to record what is acknowledged, if anything is and it can be recorded.
    pub(crate) fn begin_recording(&mut self) {
        let config = self.engine.config();
        let records = config.receive || config.transmit_mode().may_owe();
        if let Some(journal) = self.journal.take_if(|_| records) {
            self.engine.record_in(journal.begin());
        }
    }
}

impl PortOffload {
    /// The offload of a port that starts as `config` says.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let pool = Arc::new(Pool::new(pool_limit(&config)));
        let active = config.transmit || config.receive;
        let random = RandomState::new();
        Self {
            active: AtomicBool::new(active),
            deadline: Deadline::default(),
            owed_to: AtomicU64::new(0),
            event: AtomicU8::new(0),
            migrating: AtomicBool::new(false),
            migration_changed: AtomicBool::new(false),
            abandoned_for: AtomicU8::new(0),
            tagged: AtomicU64::new(0),
            moving: Moving::default(),
            machine: Mutex::new(Machine {
                engine: Offload::new(config, random.hash_one(0)),
                pool,
                output: Output::new(new_epoch()),
                draining: false,
                migrating: false,
                latest: Instant::ZERO,
                ahead: 0,
                moved_since: None,
                journal: None,
            }),
        }
    }

    pub(crate) fn machine(&self) -> Ordered<MutexGuard<'_, Machine>> {
        Ordered::lock(Rank::Offload, &self.machine)
    }

    /// Records what is acknowledged in `journal` from now on, and goes on with connections that another process has handed over. Returns what was found; if anything was,
    /// the guest counts as stopped.
    pub(crate) fn take_up(
        &self,
        journal: Option<KeptJournal>,
        arrived: Option<Arrived>,
        now: Instant,
    ) -> Found {
        let mut machine = self.machine();
        machine.ahead = arrived.as_ref().map_or(0, |arrived| arrived.ahead(now));
        let now = machine.time(now);
        let has_arrived = arrived.is_some();
        let mut carried = arrived.map(|arrived| arrived.carried).unwrap_or_default();
        let mut found = Found::default();
        let revive = reviver(Arc::clone(&machine.pool));
        if !has_arrived && journal.is_none_or(|journal| journal.is_blank()) {
            machine.engine.watch_forgotten(now);
        }
        match journal {
            Some(journal) if journal.is_blank() => {
                machine.journal = Some(journal);
                machine.begin_recording();
            }
            Some(journal) => {
                let owed =
                    machine.engine.adopt_carried(journal.adopt(), &mut carried, now, &revive);
                found.owed = Some(owed);
            }
            None => {}
        }
        found.handed_over = machine.engine.take_over(carried, now, revive);
        if found.handed_over.carried > 0 {
            machine.engine.suspend();
        }
        self.publish(&machine, None);
        found
    }

    /// Writes the port's connections for another process. Nothing may change them any more.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn hand_over(
        &self,
        instance: u64,
        now: Instant,
        flows: &mut FlowsWriter,
    ) -> io::Result<()> {
        let machine = self.machine();
        let now = machine.time(now);
        flows.port(instance, now, |put| {
            machine.engine.export(&Nowhere, put);
        })
    }

    /// Frames between the port and an uplink have to go through a session of `pipeline::tcp_offload`.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// When the session's `handle_timeout` is due.
    #[inline]
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        self.deadline.get()
    }

    /// The guest's receive rings have stopped. `mac` is its address, if that is known.
    pub fn suspend(&self, mac: Option<MacAddr>) {
        let mut machine = self.machine();
        machine.engine.suspend();
        let owed_to = machine.engine.owed_to().map(|found| mac.unwrap_or(found));
        self.owed_to.store(owed_to.map_or(0, as_number), Ordering::Release);
        self.event.store(0, Ordering::Release);
    }

    /// Ends a drain: the front-end is gone.
    pub fn end_drain(&self) {
        let mut machine = self.machine();
        let latest = machine.latest;
        machine.engine.drain(false, latest, &mut Nowhere);
        (machine.draining, machine.migrating) = (false, false);
        self.migrating.store(false, Ordering::Release);
        self.publish(&machine, None);
    }

    /// Returns `true` if bytes are kept for a stopped guest with the address `mac`.
    #[must_use]
    pub fn owes(&self, mac: MacAddr) -> bool {
        self.owed_to.load(Ordering::Acquire) == as_number(mac)
    }

    /// Lets the port's worker tell the engine what has become of the guest, by a session's `on_guest_event`.
    pub fn report(&self, event: GuestEvent) {
        self.owed_to.store(0, Ordering::Release);
        self.event.store(event as u8, Ordering::Release);
    }

    /// Notes whether the front-end notes what the switch writes. Returns `true` if that is new; the port's worker has to look at it then.
    pub fn set_migrating(&self, migrating: bool) -> bool {
        let is_new = self.migrating.swap(migrating, Ordering::AcqRel) != migrating;
        if is_new {
            self.migration_changed.store(true, Ordering::Release);
        }
        is_new
    }

    /// Whether the guest is about to move, if that has changed since this was last called.
    #[must_use]
    pub fn take_migration(&self) -> Option<bool> {
        let changed = self.migration_changed.load(Ordering::Relaxed)
            && self.migration_changed.swap(false, Ordering::AcqRel);
        changed.then(|| self.migrating.load(Ordering::Acquire))
    }

    /// What was [reported](Self::report) since this was last called.
    #[must_use]
    pub fn take_event(&self) -> Option<GuestEvent> {
        match self.event.swap(0, Ordering::AcqRel) {
            0 => None,
            1 => Some(GuestEvent::Runs),
            _ => Some(GuestEvent::Moved),
        }
    }

    /// Returns `true` if the guest is dead: no front-end has been `connected` for one to two seconds. To be called once a
    /// second.
    #[must_use]
    pub fn is_abandoned(&self, connected: bool) -> bool {
        if connected || self.machine().engine.is_empty() {
            self.abandoned_for.store(0, Ordering::Relaxed);
            return false;
        }
        self.abandoned_for.fetch_add(1, Ordering::Relaxed) + 1 >= DEAD_AFTER
    }

    /// Counts a frame with a tag between the guest and an uplink: it passes by while the offload is active.
    pub(crate) fn count_tagged(&self) {
        self.tagged.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames with tags that have passed by.
    #[must_use]
    pub fn tagged(&self) -> u64 {
        self.tagged.load(Ordering::Relaxed)
    }

    /// Gives memory back that was not needed lately. Called once a second.
    pub fn trim(&self) {
        self.machine().pool.trim();
    }

    /// Makes known what a session has changed. `waker` is the worker that runs the timeouts.
    pub(crate) fn publish(&self, machine: &Machine, waker: Option<&Waker>) {
        let config = machine.engine.config();
        let active = config.transmit || config.receive || !machine.engine.is_empty();
        if active != self.is_active() {
            self.active.store(active, Ordering::Relaxed);
        }
        let deadline = match machine.engine.next_timeout() {
            Instant::NEVER => Instant::NEVER,
            due => shift(due, machine.ahead.wrapping_neg()),
        };
        match waker {
            Some(waker) => waker.publish_for_port(&self.deadline, deadline),
            None => self.deadline.set(deadline),
        }
    }
}

/// `at`, so many nanoseconds later, or earlier if they are negative.
fn shift(at: Instant, by: i64) -> Instant {
    Instant::from_nanos(at.as_nanos().saturating_add_signed(by))
}

/// Bytes of buffers that a port may have: all that its budgets allow, in buffers that are at worst
/// half empty.
pub(crate) fn pool_limit(config: &Config) -> usize {
    2 * (config.budget as usize + config.receive_budget as usize)
}

/// An address in one word, never zero.
fn as_number(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
    u64::from_be_bytes([0, 1, a, b, c, d, e, f])
}

/// A number that says which incarnation of which switch speaks, never zero.
pub(crate) fn new_epoch() -> u32 {
    (RandomState::new().hash_one(0) as u32).max(1)
}

/// What a port's frames of our own have in common.
pub(crate) struct Output {
    /// Incarnation that notices name, never zero.
    pub(crate) epoch: u32,
    /// The nonce of the guest's module that was last sent a heartbeat, or a notice that is one, of this incarnation; zero if there was none.
    introduced_to: u64,
    /// IPv4 identification of the next frame.
    identification: u16,
    /// A frame in one piece, while its checksum is verified.
    pub(crate) linear: Vec<u8>,
}

impl Output {
    pub(crate) fn new(epoch: u32) -> Self {
        Self { epoch, introduced_to: 0, identification: epoch as u16, linear: Vec::new() }
    }

    /// Another incarnation speaks from now on, of which no guest knows.
    pub(crate) fn renew_epoch(&mut self) {
        (self.epoch, self.introduced_to) = (new_epoch(), 0);
    }

    /// A heartbeat, or a notice that is one, is sent to the module with this nonce.
    pub(crate) fn introduce(&mut self, nonce: u64) {
        self.introduced_to = nonce;
    }

    /// Returns `true` if the module with this nonce knows the incarnation, unless the notice was lost. None has nonce zero.
    pub(crate) fn is_introduced(&self, nonce: u64) -> bool {
        nonce != 0 && self.introduced_to == nonce
    }

    /// Identifications for `segments` segments: the first of them.
    pub(crate) fn identify(&mut self, segments: u32) -> u16 {
        let first = self.identification;
        self.identification = first.wrapping_add(segments as u16);
        first
    }
}

/// Makes frames of what an earlier process has left.
fn reviver(pool: Arc<Pool<About>>) -> impl Fn(Creditor, &Retained) -> Option<(Held, Segment)> {
    move |creditor, retained| {
        let direction = match creditor {
            Creditor::Guest => Direction::FromNetwork,
            Creditor::Peer => Direction::FromGuest,
        };
        Held::revive(&pool, direction, retained)
    }
}

/// A sink for an engine that has nothing to say: it has just forgotten everything, or only says what it is.
pub(crate) struct Nowhere;

impl Sink<Held> for Nowhere {
    fn release(&mut self, _: &Held, _: &Transmission) {}
    fn to_network(&mut self, _: &SynthesizedSegment) {}
    fn to_guest(&mut self, _: &SynthesizedSegment) {}
    fn redeliver(&mut self, _: &Held, _: &Edit) {}
    fn heartbeat(&mut self, _: &Link, _: u16) {}
    fn notify_flow(&mut self, _: &FiveTuple, _: &Link, _: FlowNotice) {}
    fn image<'f>(&self, held: &'f Held) -> Image<'f> {
        held.image()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_knows_the_incarnation_that_it_has_heard() {
        let mut output = Output::new(7);
        assert!(!output.is_introduced(5) && !output.is_introduced(0));
        // Notices that no module can believe.
        output.introduce(0);
        assert!(!output.is_introduced(0));
        output.introduce(5);
        assert!(output.is_introduced(5));
        assert!(!output.is_introduced(6), "another installation of the module");
        output.renew_epoch();
        assert!(!output.is_introduced(5) && output.epoch != 7);
    }
}
