//! A TAP device as uplink: what we send is received by the host's network stack, and what the
//! stack sends out through the interface is received by us.
//!
//! # Theory of operation
//! The interface is created if there is none of that name, and then goes away with the process,
//! addresses and all. To keep addresses and routes across restarts, create it first (`ip tuntap
//! add dev fw0 mode tap`) and configure it like any interface. It is set administratively up,
//! since an uplink that is down is never what an operator wants; nothing else of its configuration
//! is touched.
//!
//! The device is told that we take GSO packets of both families and unfinished checksums
//! (`TUNSETOFFLOAD`), so the host's stack does not segment what a guest of ours can take whole. A
//! frame is one `writev` straight from where its iovecs lie, or one `read` into a buffer of our
//! own. Frames that the host sends while we do not read are dropped by the interface, and counted
//! there (`ip -s link show dev fw0`).
//!
//! Source: Linux, `Documentation/networking/tuntap.rst`, `drivers/net/tun.c`.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use floodway_wire::vnet::{self, VnetHdr};

use super::gather::Gather;
use super::interface::Interface;
use super::{Capabilities, MAX_FRAME, OpenError, Received, Receiver, SendError, Sender};
use crate::frame::iovec::GuestIoVec;

const FLAGS: c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
const OFFLOADS: libc::c_uint =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// One byte more than fits: a read that fills the buffer was cut off.
const BUFFER_LEN: usize = vnet::LEN + MAX_FRAME + 1;
/// Frames in a row that are skipped as unreadable before others have their turn.
const MAX_SKIPPED: usize = 32;

/// Opens the TAP device named `device`, creates it if need be, and sets it up.
///
/// # Errors
/// The device cannot be used; the error names it and says what to do.
pub fn open(device: &str) -> Result<(TapReceiver, TapSender), OpenError> {
    Ok(halves(open_device(device)?, device))
}

/// As [`open`]; returns the descriptor of the device.
///
/// # Errors
/// As there.
pub fn open_device(device: &str) -> Result<OwnedFd, OpenError> {
    let interface = Interface::named(device)?;
    let tap = attach(device, &interface)?;
    let failed = |call| move |e| OpenError::from_call(device, call, "CAP_NET_ADMIN", e);
    set_header_len(&tap).map_err(failed("TUNSETVNETHDRSZ"))?;
    set_offloads(&tap).map_err(failed("TUNSETOFFLOAD"))?;
    if !interface.is_up().map_err(failed("SIOCGIFFLAGS"))? {
        interface.set_up().map_err(failed("SIOCSIFFLAGS"))?;
    }
    Ok(tap.into())
}

/// Makes both halves of the open device `tap`, which is named `device`.
#[must_use]
pub fn halves(tap: OwnedFd, device: &str) -> (TapReceiver, TapSender) {
    let tap = Arc::new(File::from(tap));
    let receiver = TapReceiver {
        tap: Arc::clone(&tap),
        device: device.to_owned(),
        buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
        lost: 0,
    };
    (receiver, TapSender { tap, list: Gather::new() })
}

fn attach(device: &str, interface: &Interface) -> Result<File, OpenError> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let tap = how.open("/dev/net/tun").map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            OpenError::NoTunDriver { device: device.to_owned() }
        }
        _ => OpenError::from_call(device, "open(/dev/net/tun)", "access to /dev/net/tun", e),
    })?;
    interface.attach_tun(tap.as_fd(), FLAGS).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Busy { device: device.to_owned() },
        Some(libc::EINVAL) => OpenError::NotTap { device: device.to_owned() },
        _ => OpenError::from_call(device, "TUNSETIFF", "CAP_NET_ADMIN", e),
    })?;
    Ok(tap)
}

fn set_header_len(tap: &File) -> io::Result<()> {
    let len = vnet::LEN as c_int;
    // SAFETY: TUNSETVNETHDRSZ reads an int behind the pointer during the call.
    match unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_offloads(tap: &File) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    match unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, OFFLOADS) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The receiving half of a TAP device.
pub struct TapReceiver {
    tap: Arc<File>,
    device: String,
    buffer: Box<[u8]>,
    lost: u64,
}

impl TapReceiver {
    /// Reads one frame with its header; the number of bytes, or `None` when there is none.
    fn read(&mut self) -> io::Result<Option<usize>> {
        loop {
            match (&*self.tap).read(&mut self.buffer) {
                Ok(n) => return Ok(Some(n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == Some(libc::EBADFD) => {
                    return Err(io::Error::other(format!("tap {} was removed", self.device)));
                }
                Err(e) => {
                    return Err(io::Error::new(e.kind(), format!("tap {}: {e}", self.device)));
                }
            }
        }
    }
}

impl Receiver for TapReceiver {
    fn fd(&self) -> RawFd {
        self.tap.as_raw_fd()
    }

    fn recv(&mut self) -> io::Result<Option<Received<'_>>> {
        for _ in 0..MAX_SKIPPED {
            let Some(len) = self.read()? else { return Ok(None) };
            if len > vnet::LEN && len < BUFFER_LEN {
                let mut header = [0; vnet::LEN];
                header.copy_from_slice(&self.buffer[..vnet::LEN]);
                let frame = &self.buffer[vnet::LEN..len];
                return Ok(Some(Received { vnet: VnetHdr::from_bytes(&header), frame }));
            }
            self.lost += 1;
        }
        Ok(None)
    }

    /// Only what was too long: frames that did not fit into the device's own queue are counted by
    /// the interface.
    fn lost(&mut self) -> u64 {
        self.lost
    }
}

/// The sending half of a TAP device.
pub struct TapSender {
    tap: Arc<File>,
    list: Gather,
}

impl Sender for TapSender {
    fn capabilities(&self) -> Capabilities {
        Capabilities { csum: true, tso: true }
    }

    fn send(&mut self, vnet: &VnetHdr, frame: &[GuestIoVec<'_>]) -> Result<(), SendError> {
        let fd = self.tap.as_raw_fd();
        // SAFETY: the iovecs are mapped and readable during the call (the contract of `GuestIoVec`);
        // there are at most UIO_MAXIOV of them.
        let writev =
            |list: &[libc::iovec]| unsafe { libc::writev(fd, list.as_ptr(), list.len() as c_int) };
        self.list.send(&vnet.to_bytes(), frame, writev)
    }
}
