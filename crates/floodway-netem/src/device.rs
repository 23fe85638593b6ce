//! The devices of a path: opened where they are, read in batches, written frame by frame.
//!
//! A device is opened by a short-lived thread that has entered the device's network namespace.
//! A packet socket or a tap stays with the namespace in which it was made, so the process itself
//! never leaves its own.

use std::fs::File;
use std::os::fd::{AsFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow};
use floodway_switch::config::UplinkKind;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::uplink::{self, Halves, Received, SendError};
use floodway_wire::vnet::VnetHdr;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::report::DeviceCounters;
use super::spec::{DeviceKind, PortSpec};

/// Where `ip netns` keeps its names.
const NAMESPACES: &str = "/run/netns";

/// An open device.
pub struct Device {
    name: String,
    halves: Halves,
    counters: DeviceCounters,
}

impl Device {
    /// Opens the device of a port.
    ///
    /// # Errors
    /// The namespace or the device cannot be used; the error says which and why.
    pub fn open(port: &PortSpec) -> Result<Self> {
        let kind = match port.kind {
            DeviceKind::Packet => UplinkKind::Packet,
            DeviceKind::Tap => UplinkKind::Tap,
        };
        let halves = in_namespace(port.namespace.as_deref(), || {
            uplink::open(kind, &port.device).map_err(Into::into)
        })
        .with_context(|| format!("port {}", port.name))?;
        Ok(Self { name: port.name.clone(), halves, counters: DeviceCounters::default() })
    }

    /// Becomes readable when a frame has arrived.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.halves.0.fd()
    }

    /// The next frame that has arrived, a GSO packet perhaps.
    ///
    /// # Errors
    /// The device failed or is gone.
    pub fn receive(&mut self) -> Result<Option<Received<'_>>> {
        let name = &self.name;
        let received = self.halves.0.recv().with_context(|| format!("port {name}"))?;
        if let Some(received) = &received {
            self.counters.received_frames += 1;
            self.counters.received_bytes += received.frame.len() as u64;
        }
        Ok(received)
    }

    /// Counts the frame that was received last as one that cannot be used.
    pub fn count_unusable(&mut self) {
        self.counters.unusable += 1;
    }

    /// Hands a packet to the host. What the host's side does not take is counted.
    pub fn send(&mut self, frame: &[u8]) {
        match self.halves.1.send(&VnetHdr::default(), &[GuestIoVec::from_slice(frame)]) {
            Ok(()) => self.counters.sent += 1,
            Err(SendError::Full | SendError::Refused) => self.counters.refused_full += 1,
            Err(SendError::Failed(_)) => self.counters.refused_failed += 1,
        }
    }

    /// Counters of the device itself.
    pub fn counters(&mut self) -> DeviceCounters {
        self.counters.missed = self.halves.0.lost();
        self.counters
    }
}

/// Runs `action` in a thread in the namespace of that name.
fn in_namespace<T: Send>(
    namespace: Option<&str>,
    action: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let Some(namespace) = namespace else { return action() };
    let path: PathBuf = Path::new(NAMESPACES).join(namespace);
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(&path).with_context(|| format!("namespace {namespace}"))?;
            action()
        });
        thread.join().map_err(|_| anyhow!("opening a device in {namespace} panicked"))?
    })
}

fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).context("setns")
}
