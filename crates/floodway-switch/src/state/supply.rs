//! Devices of an uplink that somebody else opens: a broker.
//!
//! # Theory of operation
//! A worker that has lost its uplink's device only notes that it wants another one, and looks once a second whether one has arrived: it waits for nobody.
//! The thread that speaks with the broker is woken by the [`Bell`], passes the request on, and leaves here what comes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

use crate::sync::lock;
use crate::uplink::Device;

/// Becomes readable when a worker wants something of the broker.
#[derive(Debug)]
pub struct Bell(std::os::fd::OwnedFd);

impl Bell {
    /// A bell that is silent.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    pub fn ring(&self) {
        // Fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it silent, before what it was rung for is looked at.
    pub fn silence(&self) {
        // Nothing to read: it was silent.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What is between an uplink's worker and the thread that speaks with the broker.
#[derive(Debug)]
pub struct DeviceSupply {
    wanted: AtomicBool,
    arrived: Mutex<Option<Device>>,
    bell: Arc<Bell>,
}

impl DeviceSupply {
    /// A supply that begins with `first`, and rings `bell` when more is wanted.
    #[must_use]
    pub fn new(first: Option<Device>, bell: Arc<Bell>) -> Self {
        Self { wanted: AtomicBool::new(false), arrived: Mutex::new(first), bell }
    }

    /// Leaves a device for the worker. One that it has not taken yet is closed.
    pub fn put(&self, device: Device) {
        *lock(&self.arrived) = Some(device);
    }

    /// Returns `true` once if the worker wants a device that has not arrived.
    #[must_use]
    pub fn take_request(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed) && lock(&self.arrived).is_none()
    }

    /// The device that has arrived.
    pub(crate) fn take(&self) -> Option<Device> {
        lock(&self.arrived).take()
    }

    /// Notes that a device is wanted.
    pub(crate) fn request(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::config::UplinkKind;

    fn device() -> Device {
        let file = File::open("/dev/null").unwrap();
        Device::from_descriptors(UplinkKind::Tap, vec![file.into()], None).unwrap()
    }

    fn is_rung(bell: &Bell) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn a_device_is_asked_for_once_until_it_is_wanted_again() {
        let bell = Arc::new(Bell::new().unwrap());
        let supply = DeviceSupply::new(Some(device()), Arc::clone(&bell));
        assert!(supply.take().is_some());
        assert!(!supply.take_request() && !is_rung(&bell));
        supply.request();
        assert!(is_rung(&bell));
        bell.silence();
        assert!(supply.take_request() && !supply.take_request() && !is_rung(&bell));
        supply.request();
        supply.put(device());
        assert!(!supply.take_request(), "it has arrived");
        assert!(supply.take().is_some() && supply.take().is_none());
    }
}
