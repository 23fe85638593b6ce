//! What the broker's loop leaves for a port's thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::PortChannel;

/// What others leave for a port's thread.
#[derive(Debug, Default)]
pub(super) struct Letters {
    /// The channel of a new data plane, and its number.
    pub(super) channel: Option<(PortChannel, u32)>,
    /// Why the front-end is to be cut off.
    pub(super) cut_off: Option<String>,
    /// The thread is to end when no front-end is owed anything.
    pub(super) leave: bool,
    pub(super) stop: bool,
}

/// Where they leave it.
#[derive(Debug)]
pub(super) struct Mailbox {
    letters: Mutex<Letters>,
    /// Written after each change.
    pub(super) bell: OwnedFd,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { letters: Mutex::default(), bell })
    }

    /// Changes what lies there.
    pub(super) fn change(&self, change: impl FnOnce(&mut Letters)) {
        change(&mut self.letters.lock().unwrap_or_else(PoisonError::into_inner));
        // Fails only when the counter is full, and then it rings.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Takes what lies there.
    pub(super) fn take(&self) -> Letters {
        // Nothing to read is no news.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        let Letters { channel, cut_off, leave, stop } = &mut *letters;
        Letters { channel: channel.take(), cut_off: cut_off.take(), leave: *leave, stop: *stop }
    }
}
