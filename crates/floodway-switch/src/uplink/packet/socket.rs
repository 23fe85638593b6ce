//! Packet sockets, set up for an uplink.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::Failure;

/// Wanted size of the kernel's queue in each direction: about 2 ms at 25 Gbit/s, or a burst of 64
/// GSO packets with what the kernel charges for them.
const QUEUE_BYTES: c_int = 8 << 20;

/// A raw packet socket with virtio-net headers, bound to one interface.
pub(super) struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// A socket that receives everything that arrives on interface number `index`.
    pub(super) fn receiving(index: c_int) -> Result<Self, Failure> {
        let socket = Self::new()?;
        socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1_i32, "PACKET_AUXDATA")?;
        socket.set(
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            &1_i32,
            "PACKET_IGNORE_OUTGOING",
        )?;
        socket.set_queue(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
        // Bound before the membership and to all protocols at once: nothing of another interface
        // is ever received.
        socket.bind(index, libc::ETH_P_ALL as u16)?;
        let promiscuous = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let option = libc::PACKET_ADD_MEMBERSHIP;
        socket.set(libc::SOL_PACKET, option, &promiscuous, "PACKET_ADD_MEMBERSHIP")?;
        Ok(socket)
    }

    /// A socket that sends on interface number `index` and receives nothing.
    pub(super) fn sending(index: c_int) -> Result<Self, Failure> {
        let socket = Self::new()?;
        socket.set_queue(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
        socket.bind(index, 0)?;
        Ok(socket)
    }

    /// Not bound, and with protocol 0: receives nothing yet.
    fn new() -> Result<Self, Failure> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(("socket(AF_PACKET)", io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that was just opened and that nobody else knows.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1_i32, "PACKET_VNET_HDR")?;
        Ok(socket)
    }

    /// Sets the size of a queue, beyond the system's limit if we may.
    fn set_queue(&self, force: c_int, polite: c_int) -> Result<(), Failure> {
        self.set(libc::SOL_SOCKET, force, &QUEUE_BYTES, "SO_*BUFFORCE")
            .or_else(|_| self.set(libc::SOL_SOCKET, polite, &QUEUE_BYTES, "SO_*BUF"))
    }

    fn bind(&self, index: c_int, protocol: u16) -> Result<(), Failure> {
        // SAFETY: all zeros is a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = index;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is of the length given and is read during the call only.
        match unsafe { libc::bind(self.fd(), (&raw const address).cast(), len) } {
            0 => Ok(()),
            _ => Err(("bind", io::Error::last_os_error())),
        }
    }

    fn set<T>(
        &self,
        level: c_int,
        option: c_int,
        value: &T,
        name: &'static str,
    ) -> Result<(), Failure> {
        let len = size_of::<T>() as libc::socklen_t;
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the value is of the length given and is read during the call only.
        match unsafe { libc::setsockopt(self.fd(), level, option, value, len) } {
            0 => Ok(()),
            _ => Err((name, io::Error::last_os_error())),
        }
    }

    /// Frames that did not fit into the kernel's queue since the last call.
    pub(super) fn take_drops(&self) -> io::Result<u32> {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of_val(&stats) as libc::socklen_t;
        let value = (&raw mut stats).cast();
        // SAFETY: value and length may be written during the call; any bytes are valid counters.
        let rc = unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                value,
                &raw mut len,
            )
        };
        if rc == 0 { Ok(stats.tp_drops) } else { Err(io::Error::last_os_error()) }
    }

    /// Bytes of sent frames that the interface has not let go of, with what the kernel charges for each.
    pub(super) fn outstanding(&self) -> io::Result<u64> {
        let mut bytes: c_int = 0;
        // SAFETY: TIOCOUTQ (on sockets SIOCOUTQ) writes an int behind the pointer during the call.
        let rc = unsafe { libc::ioctl(self.fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::from(bytes.unsigned_abs())) }
    }

    /// Sends one frame with its header; returns what sendmsg(2) does.
    ///
    /// # Safety
    /// The iovecs must be readable during the call.
    pub(super) unsafe fn send(&self, list: &[libc::iovec]) -> libc::ssize_t {
        // SAFETY: all zeros is a valid `msghdr`: no name, no control data, no iovecs.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = list.as_ptr().cast_mut();
        message.msg_iovlen = list.len() as _;
        // SAFETY: the list is valid during the call, and so are its iovecs, says the caller;
        // sendmsg does not write to them.
        unsafe { libc::sendmsg(self.fd(), &raw const message, 0) }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl From<OwnedFd> for PacketSocket {
    /// A socket that this process or another one has set up.
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> Self {
        socket.0
    }
}

/// The number of the interface that `socket` is bound to; `None` if that has been removed.
pub(super) fn interface_of(socket: &OwnedFd) -> Option<c_int> {
    // SAFETY: all zeros is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    let to = (&raw mut address).cast();
    // SAFETY: address and length may be written during the call; any bytes are a valid address.
    let rc = unsafe { libc::getsockname(socket.as_raw_fd(), to, &raw mut len) };
    (rc == 0 && address.sll_ifindex > 0).then_some(address.sll_ifindex)
}
