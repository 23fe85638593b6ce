//! An uplink without a device: nothing arrives, and what is sent is dropped.
//!
//! It takes the place of a device that a broker could not give a new data plane, until it can. The receiving half has failed from the start, so its
//! worker asks for another device as for any that has failed.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use floodway_wire::vnet::VnetHdr;
use vmm_sys_util::eventfd::EventFd;

use super::{Capabilities, Halves, Received, Receiver, SendError, Sender};
use crate::frame::iovec::GuestIoVec;

/// Makes both halves.
///
/// # Errors
/// Descriptors have run out.
pub fn halves() -> io::Result<Halves> {
    Ok((Box::new(AbsentReceiver(EventFd::new(libc::EFD_NONBLOCK)?)), Box::new(AbsentSender)))
}

fn absent() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}

/// Nothing signals its event.
struct AbsentReceiver(EventFd);

impl Receiver for AbsentReceiver {
    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn recv(&mut self) -> io::Result<Option<Received<'_>>> {
        Err(absent())
    }

    fn lost(&mut self) -> u64 {
        0
    }
}

struct AbsentSender;

impl Sender for AbsentSender {
    fn capabilities(&self) -> Capabilities {
        Capabilities { csum: true, tso: true }
    }

    fn is_present(&self) -> bool {
        false
    }

    fn send(&mut self, _: &VnetHdr, _: &[GuestIoVec<'_>]) -> Result<(), SendError> {
        Err(SendError::Failed(absent()))
    }
}
