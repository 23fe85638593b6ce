//! Uplinks: where frames leave the host's switch for the host's own stack or the network.
//!
//! # Theory of operation
//! An uplink is a network device, opened as two halves that share nothing but the device: the
//! [`Receiver`] belongs to one worker; the [`Sender`] may be handed from worker to worker. Neither
//! ever blocks. GSO packets and unfinished checksums cross in both directions as they are,
//! described by a virtio-net header.
//!
//! - [`tap`]: the frames go to and come from the host's own network stack.
//! - [`packet`]: the frames go to and come from an existing interface, and so the network.
//!
//! A device that fails, goes down (packet) or is removed makes [`Receiver::recv`] return an error
//! from then on or for that call; the uplink is of no more use, and the way back is to [`open`] it
//! again. A frame that a device fails to send is gone: a network drops. One that it has no room for, or refuses for now, is the
//! caller's; holding frames for a device is the job of [`crate::egress`]. Sending half and receiving half name the device in errors.

pub mod absent;
mod device;
mod error;
mod gather;
mod interface;
pub mod packet;
pub mod tap;

use std::io;
use std::os::fd::RawFd;

use floodway_wire::vnet::VnetHdr;

pub use device::Device;
pub use error::OpenError;

use crate::config::UplinkKind;
use crate::frame::iovec::GuestIoVec;

/// Longest frame that is received, in bytes: the largest GSO packet of a device without "BIG TCP"
/// (64 KiB of IP packet) with its Ethernet header and tags. A longer one is counted as lost.
pub const MAX_FRAME: usize = 65_536 + 64;

/// What an uplink's device takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Frames whose checksum is not filled in yet may be sent.
    pub csum: bool,
    /// IPv4 and IPv6 GSO packets may be sent.
    pub tso: bool,
}

/// A frame received from an uplink. It stays valid until the next call of the receiver.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Offload state of the frame.
    pub vnet: VnetHdr,
    /// The frame from its Ethernet header on (VLAN tag included, if it has one).
    pub frame: &'a [u8],
}

/// Why a frame was not sent.
#[derive(Debug)]
pub enum SendError {
    /// The device's queue is full; the frame was not taken, and no other one would be.
    Full,
    /// The system has dropped this frame for want of room or memory, or because a filter of the host's says so
    /// (`ENOBUFS` stands for all of them); it may take others, and this one later.
    Refused,
    /// The device failed or refused the frame (it is down, the frame is longer than its MTU, the
    /// offload state contradicts the frame); the frame is gone.
    Failed(io::Error),
}

/// The half of an uplink that receives. Never blocks.
pub trait Receiver: Send {
    /// Becomes readable when a frame has arrived. Level-triggered.
    fn fd(&self) -> RawFd;

    /// The next frame that has arrived, or `None` when there is none now. Frames are taken from
    /// the device in batches: only after `None` does [`fd`](Self::fd) speak for all that is there.
    ///
    /// # Errors
    /// The device failed or is gone. Open the uplink again.
    fn recv(&mut self) -> io::Result<Option<Received<'_>>>;

    /// Frames that had arrived for us and were lost before [`recv`](Self::recv) could return
    /// them, since the uplink was opened: our share of the device's queue was full, or the frame
    /// was longer than [`MAX_FRAME`] or of a kind that no virtio-net header can describe.
    fn lost(&mut self) -> u64;

    /// Frames that were taken from the device in a batch and that [`recv`](Self::recv) has not returned yet.
    fn pending(&self) -> u64 {
        0
    }
}

/// The half of an uplink that sends. Never blocks.
pub trait Sender: Send {
    /// What may be sent.
    fn capabilities(&self) -> Capabilities;

    /// Bytes that were sent and that the device has not let go of, as the system counts them (a little more than the
    /// frames have). `None` for a device that does not say, which takes what it gets at once.
    fn outstanding(&self) -> Option<u64> {
        None
    }

    /// Returns `false` for a sender that stands for a device that is not there.
    fn is_present(&self) -> bool {
        true
    }

    /// Sends one frame whose bytes are the concatenation of `frame`.
    ///
    /// # Errors
    /// The frame was not sent; the reason is to be counted.
    fn send(&mut self, vnet: &VnetHdr, frame: &[GuestIoVec<'_>]) -> Result<(), SendError>;
}

/// The two halves of an uplink.
pub type Halves = (Box<dyn Receiver>, Box<dyn Sender>);

/// Opens the interface named `device` as an uplink.
///
/// # Errors
/// The device cannot be used; the error names it and says what to do.
pub fn open(kind: UplinkKind, device: &str) -> Result<Halves, OpenError> {
    Ok(Device::open(kind, device)?.halves(device))
}
