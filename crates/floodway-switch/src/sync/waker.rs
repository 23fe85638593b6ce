//! What wakes a worker: descriptors that it watches, and threads that bring a deadline forward (`deadline`).

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use floodway_core::l2::PortId;
use floodway_core::time::Instant;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::deadline::{Deadline, FirstDeadline, Sleeper};

/// Most events taken from one `epoll_wait`. More stay queued and are seen by the next.
const EVENTS: usize = 32;

/// What the events of the worker's own descriptor and of uplinks carry where those of a kick carry the port's number.
const OWN: u64 = u64::MAX;
const UPLINK: u64 = u64::MAX - 1;

/// What has woken a worker, or would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The guest of the port with this number has kicked.
    Kick(usize),
    /// An uplink has frames.
    Uplink,
    /// Somebody has called [`Waker::wake`].
    Woken,
    /// A deadline was brought forward.
    Timer,
}

/// Wakes a worker, and knows the descriptors that do.
pub struct Waker {
    epoll: Epoll,
    wake: EventFd,
    /// It was for more than a deadline.
    is_called: AtomicBool,
    /// Until when the worker sleeps.
    pub(crate) sleeper: Sleeper,
    /// The first of the deadlines of its ports.
    pub(crate) first: FirstDeadline,
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
            is_called: AtomicBool::new(false),
            sleeper: Sleeper::default(),
            first: FirstDeadline::default(),
        };
        waker.add(waker.wake.as_raw_fd(), EventSet::IN | EventSet::EDGE_TRIGGERED, OWN)?;
        Ok(waker)
    }

    /// Wakes the worker, and has it look at all its ports.
    pub fn wake(&self) {
        self.is_called.store(true, Ordering::Release);
        self.signal();
    }

    fn signal(&self) {
        // Fails only when the counter is full, and then the worker is awake.
        let _ = self.wake.write(1);
    }

    /// Changes a deadline that the worker looks at to `at`, and wakes the worker if it would sleep for longer.
    #[inline]
    pub(crate) fn publish(&self, deadline: &Deadline, at: Instant) {
        if deadline.publish(at, &self.sleeper) {
            self.signal();
        }
    }

    /// As [`publish`](Self::publish), for a deadline of a port.
    #[inline]
    pub(crate) fn publish_for_port(&self, deadline: &Deadline, at: Instant) {
        self.publish(deadline, at);
        self.first.note(at);
    }

    /// Returns `true` while the worker sleeps.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.sleeper.is_asleep()
    }

    /// Lets kicks of the guest of `port` wake the worker. Each kick is an edge: the counter is never read.
    pub fn watch(&self, kick: &EventFd, port: PortId) {
        let events = EventSet::IN | EventSet::EDGE_TRIGGERED;
        if let Err(error) = self.add(kick.as_raw_fd(), events, u64::from(port.0)) {
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
        self.add(uplink.as_raw_fd(), EventSet::IN, UPLINK)
    }

    fn add(&self, fd: RawFd, events: EventSet, data: u64) -> io::Result<()> {
        self.epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, data))
    }

    /// Waits until something wakes the worker, for `timeout` at most, and calls `on_event` with what it is. More than [`EVENTS`] are left for the next call.
    pub(crate) fn wait(&self, timeout: Duration, on_event: impl FnMut(Event)) {
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
        let mut count = usize::try_from(rc).unwrap_or(0);
        if rc < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            // Linux before 5.11. Rounded down: early, the worker polls until it is time.
            count = self.epoll.wait(timeout.as_millis() as i32, &mut events).unwrap_or(0);
        }
        // Any other error is a signal, which is a reason to look around like any other.
        events.iter().take(count).map(|event| self.event(event.data())).for_each(on_event);
    }

    /// The event whose data is `data`.
    fn event(&self, data: u64) -> Event {
        match data {
            OWN if self.is_called.swap(false, Ordering::Acquire) => Event::Woken,
            OWN => Event::Timer,
            UPLINK => Event::Uplink,
            port => Event::Kick(port as usize),
        }
    }
}
