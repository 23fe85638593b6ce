//! The receiving half of a packet uplink: frames in batches, with their VLAN tags put back.

use std::io;
use std::mem;
use std::os::fd::RawFd;

use floodway_wire::ethernet::{TAG_LEN, TYPE_VLAN};
use floodway_wire::vnet::{self, VnetHdr};

use super::socket::PacketSocket;
use crate::uplink::{MAX_FRAME, Received, Receiver};

/// Frames per system call.
const BATCH: usize = 32;
/// Bytes of one buffer: header and frame, rounded up to whole cache lines. Memory is only used
/// as far as frames ever reached.
const STRIDE: usize = (vnet::LEGACY_LEN + MAX_FRAME).next_multiple_of(64);
/// Both MAC addresses: what stands before a VLAN tag.
const ADDRESSES_LEN: usize = 12;

/// Room for one control message with a `tpacket_auxdata`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 64]);

/// Buffers for a batch, and the list of them that the kernel fills in.
struct Batch {
    buffers: Box<[u8]>,
    controls: Box<[Control]>,
    iovecs: Box<[libc::iovec]>,
    messages: Box<[libc::mmsghdr]>,
}

// SAFETY: the pointers in `iovecs` and `messages` lead to the other boxes of the same struct,
// which move with it and stay where they are on the heap.
unsafe impl Send for Batch {}

impl Batch {
    fn new() -> Self {
        let mut batch = Self {
            buffers: vec![0; BATCH * STRIDE].into_boxed_slice(),
            controls: vec![Control([0; 64]); BATCH].into_boxed_slice(),
            iovecs: Box::default(),
            messages: Box::default(),
        };
        batch.iovecs = batch
            .buffers
            .chunks_exact_mut(STRIDE)
            .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() })
            .collect();
        let controls = batch.controls.iter_mut();
        batch.messages =
            batch.iovecs.iter_mut().zip(controls).map(|(p, c)| message(p, c)).collect();
        batch
    }

    /// Receives as many frames as there are and fit; returns their number.
    fn fill(&mut self, socket: &PacketSocket) -> io::Result<usize> {
        for m in &mut self.messages {
            // The kernel has left here how much it used.
            m.msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
        let list = self.messages.as_mut_ptr();
        // SAFETY: each message leads to a buffer and a control buffer of its own, of the lengths
        // given, which nothing else refers to during the call.
        let n = unsafe {
            libc::recvmmsg(socket.fd(), list, BATCH as _, libc::MSG_DONTWAIT, std::ptr::null_mut())
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// The `i`th frame was received whole, and is one.
    fn is_whole(&self, i: usize) -> bool {
        let m = &self.messages[i];
        m.msg_hdr.msg_flags & libc::MSG_TRUNC == 0
            && m.msg_len as usize >= vnet::LEGACY_LEN + ADDRESSES_LEN
    }

    /// The `i`th frame that was received, if it [is whole](Self::is_whole).
    fn frame(&mut self, i: usize) -> Received<'_> {
        let m = &self.messages[i];
        let len = m.msg_len as usize;
        let tag = stripped_tag(&m.msg_hdr);
        let buffer = &mut self.buffers[i * STRIDE..][..len];
        let mut header = [0; vnet::LEN];
        header[..vnet::LEGACY_LEN].copy_from_slice(&buffer[..vnet::LEGACY_LEN]);
        let mut vnet = VnetHdr::from_bytes(&header);
        let Some(tag) = tag else {
            return Received { vnet, frame: &buffer[vnet::LEGACY_LEN..] };
        };
        restore_tag(buffer, tag);
        shift_offsets(&mut vnet);
        Received { vnet, frame: &buffer[vnet::LEGACY_LEN - TAG_LEN..] }
    }
}

fn message(iovec: &mut libc::iovec, control: &mut Control) -> libc::mmsghdr {
    // SAFETY: all zeros is a valid `mmsghdr`: no name, no buffers.
    let mut m: libc::mmsghdr = unsafe { mem::zeroed() };
    m.msg_hdr.msg_iov = iovec;
    m.msg_hdr.msg_iovlen = 1;
    m.msg_hdr.msg_control = std::ptr::from_mut(control).cast();
    m
}

/// The VLAN tag that the kernel took out of the frame, in wire order.
fn stripped_tag(message: &libc::msghdr) -> Option<[u8; TAG_LEN]> {
    // SAFETY: the message's control buffer was filled in by the kernel, with its length.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a whole header inside the buffer.
    while let Some(c) = unsafe { control.as_ref() } {
        if c.cmsg_level == libc::SOL_PACKET && c.cmsg_type == libc::PACKET_AUXDATA {
            // SAFETY: a control message of this type carries a `tpacket_auxdata`; any bytes are a
            // valid one.
            let aux: libc::tpacket_auxdata = unsafe {
                libc::CMSG_DATA(control).cast::<libc::tpacket_auxdata>().read_unaligned()
            };
            return tag_of(&aux);
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    None
}

fn tag_of(aux: &libc::tpacket_auxdata) -> Option<[u8; TAG_LEN]> {
    if aux.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let has_type = aux.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let tpid = if has_type { aux.tp_vlan_tpid } else { TYPE_VLAN };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}

/// Puts a tag behind the addresses. They move down into the space of the virtio-net header, which
/// has been read.
fn restore_tag(buffer: &mut [u8], tag: [u8; TAG_LEN]) {
    let start = vnet::LEGACY_LEN - TAG_LEN;
    buffer.copy_within(vnet::LEGACY_LEN..vnet::LEGACY_LEN + ADDRESSES_LEN, start);
    buffer[start + ADDRESSES_LEN..][..TAG_LEN].copy_from_slice(&tag);
}

/// The header speaks of the frame without its tag.
fn shift_offsets(vnet: &mut VnetHdr) {
    if vnet.needs_csum() {
        vnet.csum_start = vnet.csum_start.saturating_add(TAG_LEN as u16);
    }
    if vnet.hdr_len != 0 {
        vnet.hdr_len = vnet.hdr_len.saturating_add(TAG_LEN as u16);
    }
}

/// The receiving half of a packet uplink.
pub struct PacketReceiver {
    socket: PacketSocket,
    device: String,
    batch: Batch,
    /// Frames of the batch that are filled in, and how many of them have been returned.
    filled: usize,
    returned: usize,
    lost: u64,
}

impl PacketReceiver {
    pub(super) fn new(socket: PacketSocket, device: String) -> Self {
        Self { socket, device, batch: Batch::new(), filled: 0, returned: 0, lost: 0 }
    }

    /// Fills the batch again; false if there is nothing.
    fn refill(&mut self) -> io::Result<bool> {
        // A batch that was not full has emptied the kernel's queue: saying so needs no system
        // call, and the call after that asks again.
        let emptied = (1..BATCH).contains(&self.filled);
        (self.filled, self.returned) = (0, 0);
        if emptied {
            return Ok(false);
        }
        for _ in 0..BATCH {
            match self.batch.fill(&self.socket) {
                Ok(n) => {
                    self.filled = n;
                    return Ok(n > 0);
                }
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(false),
                    Some(libc::EINTR) => {}
                    // One GSO packet of a kind that the header has no word for (a tunnel's, say).
                    // The kernel has dropped it.
                    Some(libc::EINVAL) => self.lost += 1,
                    _ => return Err(self.failed(&e)),
                },
            }
        }
        Ok(false)
    }

    #[cold]
    fn failed(&self, e: &io::Error) -> io::Error {
        io::Error::new(e.kind(), format!("interface {}: {e}", self.device))
    }
}

impl Receiver for PacketReceiver {
    fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    fn recv(&mut self) -> io::Result<Option<Received<'_>>> {
        if self.returned == self.filled && !self.refill()? {
            return Ok(None);
        }
        while self.returned < self.filled {
            let i = self.returned;
            self.returned += 1;
            if self.batch.is_whole(i) {
                return Ok(Some(self.batch.frame(i)));
            }
            self.lost += 1;
        }
        Ok(None)
    }

    fn pending(&self) -> u64 {
        (self.filled - self.returned) as u64
    }

    fn lost(&mut self) -> u64 {
        self.lost += u64::from(self.socket.take_drops().unwrap_or(0));
        self.lost
    }
}
