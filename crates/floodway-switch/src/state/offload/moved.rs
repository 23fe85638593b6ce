//! Connections of a port that leave with its guest, and those that come with one.
//!
//! # Theory of operation
//! The thread of a port knows when rings stop and start, so it alone takes connections out of the engine and puts them in (`vhost/moves`). Whoever speaks with other hosts only leaves [`Order`]s for it,
//! and wakes it; what it has to say goes into the [`Outbox`], and rings the bell of whoever sends that.
//!
//! Connections that have left are *set aside*: the port's engine knows none then, so that whatever comes passes, and the records of what is owed stay in the journal until another host has all of it
//! ([`Offload::set_aside`]). They are written then, while frames of others go on. Whoever stops the port finds them, and takes them back before what is owed ends with the journal.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time;

use floodway_core::l2::SourcePolicy;
use floodway_core::offload::journal::{Creditor, Retained};
use floodway_core::offload::{Offload, Resumption};
use floodway_core::time::Instant;
use floodway_process::message::FromDataPlane;
use floodway_wire::parse;
use vmm_sys_util::eventfd::EventFd;

use super::{GuestEvent, Machine, Nowhere, PortOffload, as_number, reviver};
use crate::frame::PREFIX_LEN;
use crate::frame::held::Held;
use crate::kept::flows::{FlowsWriter, Moved};
use crate::state::supply::Bell;
use crate::sync::lock;
use crate::sync::lock_order::{Ordered, Rank};

/// What is said of moves to whoever speaks with other hosts.
#[derive(Debug)]
pub(crate) struct Outbox {
    said: Mutex<Vec<FromDataPlane>>,
    bell: Arc<Bell>,
    /// The beginning of the switch's clock.
    started: time::Instant,
}

impl Outbox {
    /// An outbox that rings `bell`, of a switch whose clock began at `started`.
    pub(crate) fn new(bell: Arc<Bell>, started: time::Instant) -> Self {
        Self { said: Mutex::default(), bell, started }
    }

    /// Says something, and rings.
    pub(crate) fn say(&self, message: FromDataPlane) {
        lock(&self.said).push(message);
        self.bell.ring();
    }

    /// Takes what was said.
    pub(crate) fn take(&self) -> Vec<FromDataPlane> {
        std::mem::take(&mut lock(&self.said))
    }
}

/// What a port is to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// Its connections go with its guest: into this file, of so many bytes, in this version of the format.
    Export(u32, OwnedFd, u64),
    /// They do not.
    StayBehind,
    /// Another host has them.
    Released,
    /// A guest may arrive here, or not any more.
    Arriving(bool),
    /// What a guest has moved with; nothing if it cannot be read.
    Import(Option<Box<Moved>>),
}

/// What is between a port and whoever speaks with other hosts.
#[derive(Default)]
pub(crate) struct Moving {
    orders: Mutex<VecDeque<Order>>,
    /// Wakes the port's thread.
    alarm: OnceLock<Arc<EventFd>>,
    outbox: OnceLock<Arc<Outbox>>,
    /// Connections that are set aside, or are being written.
    aside: Mutex<Option<Aside>>,
}

impl Moving {
    /// Connections that are set aside.
    pub(crate) fn aside(&self) -> Ordered<MutexGuard<'_, Option<Aside>>> {
        Ordered::lock(Rank::Aside, &self.aside)
    }

    /// Lets the port speak with other hosts.
    pub(crate) fn connect(&self, outbox: Arc<Outbox>) {
        self.outbox.get_or_init(|| outbox);
    }

    /// There is somebody who may know of other hosts.
    pub(crate) fn is_connected(&self) -> bool {
        self.outbox.get().is_some()
    }

    /// Lets `alarm` be signalled when an order comes.
    pub(crate) fn wake_by(&self, alarm: Arc<EventFd>) {
        self.alarm.get_or_init(|| alarm);
    }

    /// Leaves an order for the port's thread.
    pub(crate) fn order(&self, order: Order) {
        lock(&self.orders).push_back(order);
        if let Some(alarm) = self.alarm.get() {
            // Fails only when the counter is full, and then it is readable.
            let _ = alarm.write(1);
        }
    }

    /// The next order.
    pub(crate) fn take(&self) -> Option<Order> {
        lock(&self.orders).pop_front()
    }

    /// Says something to whoever speaks with other hosts.
    pub(crate) fn say(&self, message: FromDataPlane) {
        if let Some(outbox) = self.outbox.get() {
            outbox.say(message);
        }
    }

    /// The switch's clock.
    fn now(&self) -> Instant {
        let since = self.outbox.get().map_or(0, |outbox| outbox.started.elapsed().as_nanos());
        Instant::from_nanos(since as u64)
    }
}

/// Connections that are set aside.
pub(crate) struct Aside(Box<Offload<Held>>);

impl Aside {
    /// Returns `true` if a frame for the guest belongs to a connection that is set aside.
    pub(crate) fn knows(&self, frame: &[u8]) -> bool {
        let meta = parse(frame, frame.len()).ok();
        meta.is_some_and(|meta| self.0.flow(&meta.flow.reversed()).is_some())
    }

    /// Writes them into `file`, of `bytes`, as they are at `now`. `None` if something is owed that cannot be written.
    fn write(
        &self,
        file: OwnedFd,
        bytes: u64,
        now: Instant,
        nonce: u64,
    ) -> io::Result<Option<Left>> {
        let mut flows = FlowsWriter::begin(file, bytes)?;
        let mut is_whole = false;
        flows.moved(now, nonce, |put| is_whole = self.0.export(&Nowhere, put))?;
        let bytes = flows.end()?;
        Ok(is_whole.then(|| Left { online: self.0.online(), bytes }))
    }
}

/// What was written of connections that leave.
#[derive(Clone, Copy, Default)]
pub(crate) struct Left {
    /// Those that were online.
    pub(crate) online: u32,
    /// Bytes from the start of the file.
    pub(crate) bytes: u64,
}

impl PortOffload {
    /// Sets all connections aside, and writes them into `file`, of `bytes`. The guest's rings have stopped, and it wants to find `nonce` in notices. They are back, and `None` is returned, if
    /// something is owed that cannot be written.
    ///
    /// # Errors
    /// The file takes no more. They are back.
    pub(crate) fn leave(&self, file: OwnedFd, bytes: u64, nonce: u64) -> io::Result<Option<Left>> {
        let mut place = self.moving.aside();
        let (aside, now) = self.set_aside();
        let written = aside.write(file, bytes, now, nonce);
        match written {
            Ok(Some(_)) => *place = Some(aside),
            _ => self.take_back(aside),
        }
        written
    }

    /// Takes all connections out of the engine. Returns its time, too.
    fn set_aside(&self) -> (Aside, Instant) {
        let mut machine = self.machine();
        let now = machine.time(self.moving.now());
        machine.latest = now;
        let aside = Aside(Box::new(machine.engine.set_aside(seed())));
        machine.moved_since = Some(false);
        self.publish(&machine, None);
        (aside, now)
    }

    /// Goes on with what was set aside; returns `true` if anything was. The port's worker has to look at it then.
    pub(crate) fn bring_back(&self) -> bool {
        let mut place = self.moving.aside();
        let aside = place.take();
        aside.map(|aside| self.take_back(aside)).is_some()
    }

    fn take_back(&self, Aside(aside): Aside) {
        let mut machine = self.machine();
        machine.engine.bring_back(*aside);
        if machine.moved_since.take() == Some(true) {
            self.report(GuestEvent::Moved);
        }
        self.note_change(&machine);
    }

    /// Another host has all that was set aside.
    pub(crate) fn forget(&self) {
        let mut place = self.moving.aside();
        let Some(Aside(aside)) = place.take() else { return };
        let mut machine = self.machine();
        machine.engine.forget_aside(*aside);
        machine.moved_since = None;
        self.owed_to.store(0, Ordering::Release);
        self.publish(&machine, None);
    }

    /// Another host has all that an earlier process has left of a guest, which does not run here.
    pub(crate) fn forget_found(&self) {
        let mut machine = self.machine();
        machine.engine.reset();
        self.owed_to.store(0, Ordering::Release);
        self.publish(&machine, None);
    }

    /// No connection is known, and none is set aside.
    pub(crate) fn is_free(&self) -> bool {
        let machine = self.machine();
        machine.engine.is_free() && machine.moved_since.is_none()
    }

    /// Goes on with what a guest has moved with, whose rings do not run yet. The port [is free](Self::is_free). Frames that `policy` would refuse are not
    /// believed to be the guest's. Returns what has become of it.
    pub(crate) fn take_in(&self, moved: Moved, policy: &SourcePolicy) -> Resumption {
        let Moved { carried, at, .. } = moved;
        let mut machine = self.machine();
        // A clock of its own, which may be behind the one that it had.
        drop(machine.engine.set_aside(seed()));
        let ahead = at.as_nanos().wrapping_sub(self.moving.now().as_nanos());
        (machine.latest, machine.ahead) = (at, ahead.cast_signed());
        if let Some(journal) = machine.journal.take() {
            machine.engine.record_in(journal.begin());
        }
        let revive = reviver(Arc::clone(&machine.pool));
        let is_refused = |creditor, frame: &Retained| {
            let prefix = &frame.bytes[..frame.bytes.len().min(PREFIX_LEN)];
            creditor == Creditor::Peer && policy.check(prefix).is_err()
        };
        let revive = |creditor, frame: &Retained| {
            if is_refused(creditor, frame) { None } else { revive(creditor, frame) }
        };
        let found = machine.engine.import(carried, at, &Nowhere, revive);
        let owed_to = machine.engine.owed_to();
        self.owed_to.store(owed_to.map_or(0, as_number), Ordering::Release);
        self.note_change(&machine);
        found
    }

    /// Lets the port's worker look what of its connections the port wants.
    fn note_change(&self, machine: &Machine) {
        self.migration_changed.store(true, Ordering::Release);
        self.publish(machine, None);
    }
}

impl Machine {
    /// The guest has shown up elsewhere. Returns `true` if what it left is set aside, where it stays until it is known whether the other host has it.
    pub(crate) fn note_moved(&mut self) -> bool {
        self.moved_since.as_mut().map(|since| *since = true).is_some()
    }
}

/// What keeps guests from making look-ups slow.
fn seed() -> u64 {
    RandomState::new().hash_one(0)
}
