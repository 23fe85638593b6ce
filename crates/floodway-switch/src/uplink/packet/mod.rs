//! An existing interface as uplink, through packet sockets (packet(7)).
//!
//! # Theory of operation
//! Two sockets. One receives: bound to the interface and to all protocols, in promiscuous mode
//! (our guests' addresses are not the interface's), and blind to what the host itself sends. The
//! other one only sends: bound to no protocol, so that nothing is ever queued on it, and an error
//! that one half is told of is not lost for the other.
//!
//! Both carry a virtio-net header before each frame (`PACKET_VNET_HDR`, 10 bytes), so GSO packets
//! that the interface has coalesced or that a peer over veth has never segmented arrive whole, and
//! ours leave whole and are segmented by the interface. The kernel strips the outermost VLAN tag
//! from what it receives and passes it beside the frame (`PACKET_AUXDATA`); it is put back where
//! it was: it says which network the frame is in.
//!
//! The interface belongs to the operator: it must exist and be up, and it should have no addresses
//! of its own, since the host's stack sees the same frames. When it goes down or away the receiver
//! says so once and the uplink is of no more use until it is opened again.
//!
//! Source: Linux, `Documentation/networking/packet_mmap.rst`, `net/packet/af_packet.c`.

mod receiver;
mod socket;

use std::io;
use std::os::fd::OwnedFd;

use floodway_wire::vnet::{self, VnetHdr};

pub use receiver::PacketReceiver;

use self::socket::PacketSocket;
use super::gather::Gather;
use super::interface::Interface;
use super::{Capabilities, OpenError, SendError, Sender};
use crate::frame::iovec::GuestIoVec;

const CAPABILITY: &str = "CAP_NET_RAW";

/// Opens the Ethernet interface named `device`.
///
/// # Errors
/// The interface cannot be used; the error names it and says what to do.
pub fn open(device: &str) -> Result<(PacketReceiver, PacketSender), OpenError> {
    let (receiving, sending) = open_device(device)?;
    Ok(halves(receiving, sending, device))
}

/// As [`open`]; returns a socket that receives and one that sends.
///
/// # Errors
/// As there.
pub fn open_device(device: &str) -> Result<(OwnedFd, OwnedFd), OpenError> {
    let interface = Interface::named(device)?;
    let failed = |call| move |e| OpenError::from_call(device, call, CAPABILITY, e);
    let index = interface.index().map_err(failed("SIOCGIFINDEX"))?;
    if !interface.is_ethernet().map_err(failed("SIOCGIFHWADDR"))? {
        return Err(OpenError::NotEthernet { device: device.to_owned() });
    }
    if !interface.is_up().map_err(failed("SIOCGIFFLAGS"))? {
        return Err(OpenError::Down { device: device.to_owned() });
    }
    let receiving = PacketSocket::receiving(index).map_err(|(call, e)| failed(call)(e))?;
    let sending = PacketSocket::sending(index).map_err(|(call, e)| failed(call)(e))?;
    Ok((receiving.into(), sending.into()))
}

/// Makes both halves of two open sockets of the interface named `device`.
#[must_use]
pub fn halves(
    receiving: OwnedFd,
    sending: OwnedFd,
    device: &str,
) -> (PacketReceiver, PacketSender) {
    let receiver = PacketReceiver::new(receiving.into(), device.to_owned());
    (receiver, PacketSender { socket: sending.into(), list: Gather::new() })
}

/// Returns `true` if the interface that `socket` is bound to is still there.
#[must_use]
pub fn is_bound(socket: &OwnedFd) -> bool {
    socket::interface_of(socket).is_some()
}

/// The sending half of a packet uplink.
pub struct PacketSender {
    socket: PacketSocket,
    list: Gather,
}

impl Sender for PacketSender {
    fn capabilities(&self) -> Capabilities {
        Capabilities { csum: true, tso: true }
    }

    fn outstanding(&self) -> Option<u64> {
        self.socket.outstanding().ok()
    }

    fn send(&mut self, vnet: &VnetHdr, frame: &[GuestIoVec<'_>]) -> Result<(), SendError> {
        let header = &vnet.to_bytes()[..vnet::LEGACY_LEN];
        // SAFETY: the iovecs are mapped and readable during the call (the contract of `GuestIoVec`).
        self.list.send(header, frame, |list| unsafe { self.socket.send(list) })
    }
}

/// A system call by name, and its answer.
type Failure = (&'static str, io::Error);
