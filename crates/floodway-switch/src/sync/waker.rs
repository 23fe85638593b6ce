//! What wakes a worker: descriptors that it watches, and threads that bring a deadline forward (`deadline`).

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use floodway_core::time::Instant;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::deadline::{Deadline, Sleeper};

/// Most events taken from one `epoll_wait`. More stay queued and are seen by the next.
const EVENTS: usize = 32;

/// Wakes a worker, and knows the descriptors that do.
pub struct Waker {
    epoll: Epoll,
    wake: EventFd,
    /// Until when the worker sleeps.
    pub(crate) sleeper: Sleeper,
}

impl Waker {
    /// A waker that watches nothing yet.
    ///
    /// # Errors
    /// The kernel has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let waker = Self {
            epoll: Epoll::new()?,
            wake: EventFd::new(libc::EFD_NONBLOCK)?,
            sleeper: Sleeper::default(),
        };
        waker.add(waker.wake.as_raw_fd(), EventSet::IN | EventSet::EDGE_TRIGGERED)?;
        Ok(waker)
    }

    /// Wakes the worker.
    pub fn wake(&self) {
        // Fails only when the counter is full, and then the worker is awake.
        let _ = self.wake.write(1);
    }

    /// Changes a deadline that the worker looks at to `at`, and wakes the worker if it would sleep for longer.
    #[inline]
    pub(crate) fn publish(&self, deadline: &Deadline, at: Instant) {
        if deadline.publish(at, &self.sleeper) {
            self.wake();
        }
    }

    /// Returns `true` while the worker sleeps.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.sleeper.is_asleep()
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
    pub fn watch_uplink(&self, uplink: &impl AsRawFd) -> io::Result<()> {
        self.add(uplink.as_raw_fd(), EventSet::IN)
    }

    fn add(&self, fd: RawFd, events: EventSet) -> io::Result<()> {
        self.epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, 0))
    }

    /// Waits until something wakes the worker, for `timeout` at most.
    pub(crate) fn wait(&self, timeout: Duration) {
        let mut events = [EpollEvent::default(); EVENTS];
        let timespec = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        };
        // SAFETY: the pointers lead to an array of as many events and to a timespec, both of which live
        // during the call; there is no signal mask.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS,
                &raw const timespec,
                std::ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        if rc < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            // Linux before 5.11. Rounded down: early, the worker polls until it is time.
            let _ = self.epoll.wait(timeout.as_millis() as i32, &mut events);
        }
        // Any other error is a signal, which is a reason to look around like any other.
    }
}
