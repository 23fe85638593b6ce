//! What a service manager hears of the switch (sd_notify(3)): that it is ready, that it is alive, that it stops, and which descriptors to keep. Nothing where there
//! is none. A manager that does not read blocks whoever tells it more than its socket takes (ten messages, by the kernel's default).
//!
//! A sign of life is sent only after a check. In a switch of one process that is to read the status, which takes the lock of every queue: signs fail to
//! come when the process is stopped or a lock is never given back, and a supervisor with `WatchdogSec=` restarts the switch. A broker does the same with its
//! data plane, so its own signs say that it goes on doing that. A worker that stands still without a lock is found by the switch's own `[watchdog]`.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;

/// Tells the service manager. Dropped, it gives no more signs of life.
pub struct Notifier {
    /// Dropped to end the thread, which nobody waits for: it may wait for a lock.
    _alive: Option<Sender<()>>,
}

impl Notifier {
    /// Says that the switch is ready, described by `summary`, and begins to give signs of life if they are wanted: whenever `lives` returns `true`.
    ///
    /// # Errors
    /// Threads have run out.
    pub fn ready(lives: impl Fn() -> bool + Send + 'static, summary: &str) -> io::Result<Self> {
        notify(&[NotifyState::Ready, NotifyState::Status(summary)]);
        // Twice in the time that the manager allows.
        let interval = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        let alive = interval.map(|interval| give_signs(lives, interval)).transpose()?;
        Ok(Self { _alive: alive })
    }

    /// Says that the switch reads its configuration again.
    pub fn reloading(&self) {
        let mut states = vec![NotifyState::Reloading];
        states.extend(NotifyState::monotonic_usec_now().ok());
        notify(&states);
    }

    /// Says that it has.
    pub fn reloaded(&self) {
        notify(&[NotifyState::Ready]);
    }

    /// Says that the switch stops.
    pub fn stopping(self) {
        notify(&[NotifyState::Stopping]);
    }
}

/// Gives a sign of life every `interval` if `lives` returns `true`, until what is returned is dropped.
fn give_signs(
    lives: impl Fn() -> bool + Send + 'static,
    interval: Duration,
) -> io::Result<Sender<()>> {
    let (alive, ended) = mpsc::channel::<()>();
    thread::Builder::new().name("notify".to_owned()).spawn(move || {
        while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            if lives() {
                notify(&[NotifyState::Watchdog]);
            }
        }
    })?;
    Ok(alive)
}

/// Lets the service manager keep a duplicate of `file` under `name` for the next process that it starts, if it keeps any.
pub fn keep(name: &str, file: BorrowedFd<'_>) {
    warn_on_error(sd_notify::notify_with_fds(
        &[NotifyState::FdStore, NotifyState::FdName(name)],
        &[file],
    ));
}

/// Lets the service manager close what it has under `name`.
pub fn release(name: &str) {
    notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

fn notify(states: &[NotifyState<'_>]) {
    warn_on_error(sd_notify::notify(states));
}

fn warn_on_error(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}
