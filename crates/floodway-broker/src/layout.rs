//! What data planes are to serve, and changes of it while they run.
//!
//! # Theory of operation
//! A [`Layout`] is a configuration with its ports, each with a thread that has its socket. Whoever changes it opens everything that the next one needs, and
//! leaves a request ([`Changes::make`]). The broker takes it when its data plane can be asked, or when there is none, and answers with the layout that is not in
//! force any more ([`transaction`](crate::transaction)). Ports that are only in that one end when it is dropped.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use floodway_process::sealed;
use rustix::event::{EventfdFlags, eventfd};

use crate::journal::Journal;
use crate::port::PortThread;
use crate::uplink::UplinkPlace;
use crate::vm::Vm;

/// A port of a layout.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its number, which no other port of the layout has.
    pub number: u16,
    /// What tells it from all other ports that there are and were.
    pub instance: u64,
    /// Its name.
    pub name: String,
    /// What tells its VM on all hosts, if it is known.
    pub vm: Option<Vm>,
    /// Has its socket.
    pub thread: Arc<PortThread>,
    /// Has what was acknowledged for its guest.
    pub journal: Arc<Journal>,
}

/// Room for the state of a port's connections beside the frames that they hold: for more than 20 000 that hold none.
pub(crate) const FLOWS_BYTES: u64 = 16 << 20;

impl Place {
    /// Most bytes that the state of its connections takes.
    #[must_use]
    pub(crate) fn room_for_flows(&self) -> u64 {
        FLOWS_BYTES + 2 * u64::from(self.journal.budget)
    }

    /// Memory for that, all zeros, and its length.
    ///
    /// # Errors
    /// Memory or descriptors have run out.
    pub(crate) fn memory_for_flows(&self) -> io::Result<(OwnedFd, u64)> {
        let bytes = self.room_for_flows();
        Ok((sealed::fixed("floodway-flows", bytes)?, bytes))
    }
}

/// A configuration with its ports and uplinks.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The text of the configuration.
    pub configuration: Arc<str>,
    /// Ports, in the order of the configuration.
    pub ports: Vec<Place>,
    /// Uplinks, in the order of the configuration.
    pub uplinks: Vec<UplinkPlace>,
}

impl Layout {
    /// Returns `true` if the port `instance` is one of these.
    #[must_use]
    pub fn has(&self, instance: u64) -> bool {
        self.ports.iter().any(|place| place.instance == instance)
    }

    /// The port with this number.
    #[must_use]
    pub fn port(&self, number: u16) -> Option<&Place> {
        self.ports.iter().find(|place| place.number == number)
    }

    /// The uplink with this number.
    #[must_use]
    pub fn uplink(&self, number: u16) -> Option<&UplinkPlace> {
        self.uplinks.iter().find(|place| place.number == number)
    }

    /// The uplinks that `last` does not have.
    #[must_use]
    pub fn new_uplinks(&self, last: &Self) -> Vec<UplinkPlace> {
        let new = self.uplinks.iter().filter(|place| last.uplink(place.number).is_none());
        new.cloned().collect()
    }

    /// Numbers of all uplinks, in the order of the configuration.
    #[must_use]
    pub fn uplink_numbers(&self) -> Vec<u16> {
        self.uplinks.iter().map(|place| place.number).collect()
    }
}

/// Why a layout was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// The data plane cannot have it.
    #[error("{0}")]
    Refused(String),
    /// There will be no data plane any more.
    #[error("the switch stops")]
    Stopping,
}

/// A change that is wanted.
pub(crate) struct Request {
    /// What is to be.
    pub(crate) layout: Layout,
    /// Keys of settings that are part of that, or have no port any more.
    pub(crate) settled: Vec<String>,
    /// Waits for what has become of it.
    pub(crate) answer: Sender<Result<(), NotChanged>>,
}

#[derive(Debug, Default)]
struct Inbox {
    request: Option<Request>,
    /// Nobody will take any more.
    is_closed: bool,
}

/// Where changes are left for a broker.
#[derive(Debug)]
pub struct Changes {
    inbox: Mutex<Inbox>,
    /// Readable while there may be a request.
    bell: OwnedFd,
}

impl Changes {
    /// No change yet.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { inbox: Mutex::default(), bell })
    }

    /// Lets `layout` be what data planes serve; returns when one does, or will from its start. Settings with the keys `settled` are forgotten then.
    /// Callers take turns.
    ///
    /// # Errors
    /// It is not in force, and what was before is.
    pub fn make(&self, layout: Layout, settled: Vec<String>) -> Result<(), NotChanged> {
        let (answer, answered) = mpsc::channel();
        let mut inbox = self.lock();
        if inbox.is_closed {
            return Err(NotChanged::Stopping);
        }
        inbox.request = Some(Request { layout, settled, answer });
        drop(inbox);
        // Fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        answered.recv().unwrap_or(Err(NotChanged::Stopping))
    }

    pub(crate) fn take(&self) -> Option<Request> {
        // Nothing to read: it was silent.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.lock().request.take()
    }

    /// Refuses what is waiting, and all that comes.
    pub(crate) fn close(&self) {
        let mut inbox = self.lock();
        inbox.is_closed = true;
        inbox.request = None;
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("layout", &self.layout).finish_non_exhaustive()
    }
}
