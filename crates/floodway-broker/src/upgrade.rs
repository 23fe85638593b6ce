//! Upgrades: another program takes the place of the one that runs, and no connection ends.
//!
//! # Theory of operation
//! Whoever wants an upgrade opens and checks the program, and leaves it here ([`UpgradeControl::ask`]). The broker's loop does the rest
//! (`broker::upgrade`), in three steps of which the first can fail without effect:
//!
//! 1. A data plane of the other program starts beside the one that runs, is given the configuration, enters its sandbox and waits. Then the one that runs is given memory for
//!    the state of its connections, or takes them off its offload, if the other one reads another format.
//! 2. The one that runs lets go of all rings, devices and kept memory, and says so; the other one gets all of them.
//! 3. When it serves, the broker is replaced by the same program: its ports' threads end when no front-end is owed anything, and the
//!    process executes the program. What it held is in the [descriptor store](crate::store).
//!
//! Who asked is not answered at the end but looks ([`UpgradeControl::state`]): the process that was asked is another program by then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, mem};

use floodway_process::message::shorten;
use floodway_process::upgrade::{Program, Programs};
use rustix::event::{EventfdFlags, eventfd};

/// A program that is to take the place of the one that runs.
#[derive(Debug)]
pub struct Candidate {
    /// What it is.
    pub program: Program,
    /// Version of the format in which it takes connections over.
    pub flows: u32,
    /// Its file, which is executed wherever its path leads by then.
    pub file: OwnedFd,
}

/// Why an upgrade does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// Another one is under way.
    #[error("an upgrade is under way")]
    Busy,
    /// There will be no data plane any more.
    #[error("the switch stops")]
    Stopping,
}

/// How upgrades stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// One is under way: its number is that of the attempts.
    pub is_running: bool,
    /// The programs that run, and what has become of earlier ones.
    pub programs: Programs,
}

#[derive(Debug, Default)]
struct Inner {
    state: State,
    candidate: Option<Candidate>,
    /// Nobody will take any more.
    is_closed: bool,
}

/// Where upgrades are asked for, and what has become of them.
#[derive(Debug)]
pub struct UpgradeControl {
    inner: Mutex<Inner>,
    /// Readable while there may be a candidate.
    bell: OwnedFd,
}

impl UpgradeControl {
    /// No upgrade yet, in a switch that runs these programs.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn new(programs: Programs) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = State { is_running: false, programs };
        Ok(Self { inner: Mutex::new(Inner { state, ..Inner::default() }), bell })
    }

    /// Asks for an upgrade to `candidate`. Returns its number.
    ///
    /// # Errors
    /// It cannot begin now.
    pub fn ask(&self, candidate: Candidate) -> Result<u32, NotBegun> {
        let mut inner = self.lock();
        if inner.is_closed {
            return Err(NotBegun::Stopping);
        }
        if mem::replace(&mut inner.state.is_running, true) {
            return Err(NotBegun::Busy);
        }
        let attempts = &mut inner.state.programs.upgrades.attempts;
        *attempts = attempts.saturating_add(1);
        let number = *attempts;
        inner.candidate = Some(candidate);
        drop(inner);
        // Fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        Ok(number)
    }

    /// How upgrades stand.
    #[must_use]
    pub fn state(&self) -> State {
        self.lock().state.clone()
    }

    pub(crate) fn take(&self) -> Option<Candidate> {
        // Nothing to read: it was silent.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.lock().candidate.take()
    }

    /// Takes note of the programs that run.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Programs)) -> Programs {
        let mut inner = self.lock();
        change(&mut inner.state.programs);
        inner.state.programs.clone()
    }

    /// The upgrade that was under way has failed.
    pub(crate) fn fail(&self, problem: &str) -> Programs {
        let mut inner = self.lock();
        inner.state.is_running = false;
        inner.state.programs.upgrades.problem = Some(shorten(problem));
        inner.state.programs.clone()
    }

    /// Refuses what is waiting, and all that comes.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        inner.candidate = None;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for UpgradeControl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
