//! Messages that the `vhost` crate does not understand, or not when front-ends send them.
//!
//! * `SET_VRING_ENABLE`: QEMU sends it before `SET_FEATURES`; the crate refuses it until then, and
//!   QEMU does not send it again.
//! * `SEND_RARP`, `NET_SET_MTU`, `SET_STATUS`, `GET_STATUS`: the crate has no handlers.
//!
//! None of these carries a file descriptor. So the next header is looked at without taking it from
//! the socket; a message of ours is then read and answered here, and all others are left for the
//! crate to read.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use vhost::vhost_user::VhostUserBackendReqHandlerMut;
use vhost::vhost_user::message::FrontendReq;

use super::device::Device;
use crate::api::events::EventKind;

const SET_VRING_ENABLE: u32 = 18;
const SEND_RARP: u32 = 19;
const NET_SET_MTU: u32 = 20;
const SET_STATUS: u32 = 39;
const GET_STATUS: u32 = 40;

const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Request, flags, and size of the payload, each 32 bits in the host's byte order.
pub(super) const HEADER_LEN: usize = 12;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was done.
    Done,
    /// It was understood and refused; the front-end was told if it asked.
    Refused,
    /// The front-end is gone, or the message cannot be understood: the connection is over.
    Over,
}

/// The header of a vhost-user message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    request: u32,
    flags: u32,
    size: u32,
}

impl Header {
    fn from_bytes(bytes: [u8; HEADER_LEN]) -> Self {
        let word =
            |i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        Self { request: word(0), flags: word(4), size: word(8) }
    }

    fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        for (chunk, word) in bytes.chunks_mut(4).zip([self.request, self.flags, self.size]) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// All of ours have a payload of 64 bits, or none to ask for the status.
    fn is_ours(self) -> bool {
        match self.request {
            SET_VRING_ENABLE | SEND_RARP | NET_SET_MTU | SET_STATUS => self.size == 8,
            GET_STATUS => self.size == 0,
            _ => false,
        }
    }
}

/// Handles the next message if it is one of ours; `None` if it is not.
///
/// # Errors
/// The socket failed.
pub(super) fn handle(stream: &mut UnixStream, device: &mut Device) -> io::Result<Option<Verdict>> {
    let Some(header) = peek(stream)? else { return Ok(None) };
    let request = FrontendReq::try_from(header.request);
    device.port().front_end.set_request(request.ok());
    let errors = device.port().front_end.errors();
    tracing::debug!(port = device.port().config.name, ?request, "vhost-user message");
    if !header.is_ours() {
        return Ok(None);
    }
    stream.read_exact(&mut [0; HEADER_LEN])?;
    let mut payload = [0; 8];
    stream.read_exact(&mut payload[..header.size as usize])?;
    let value = u64::from_ne_bytes(payload);
    let done = match header.request {
        SET_VRING_ENABLE => {
            // A vring index and a flag, 32 bits each.
            let [index, enable] = [value.to_ne_bytes(), (value >> 32).to_ne_bytes()]
                .map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            device.set_vring_enable(index, enable != 0)
        }
        SEND_RARP => device.send_rarp(value),
        NET_SET_MTU => device.set_mtu(value),
        SET_STATUS => device.set_status(value),
        _ => {
            reply(stream, header, u64::from(device.status()))?;
            return Ok(Some(Verdict::Done));
        }
    };
    if let Err(error) = &done {
        let port = device.port();
        port.front_end.note_error_since(errors, error);
        let reason = format!("request {}: {error}", header.request);
        port.emit(|port| EventKind::PortRefused { port, reason });
    }
    // Who asks for an acknowledgement gets one: zero is success.
    if header.flags & NEED_REPLY != 0 {
        reply(stream, header, u64::from(done.is_err()))?;
    }
    Ok(Some(if done.is_ok() { Verdict::Done } else { Verdict::Refused }))
}

fn reply(stream: &mut UnixStream, header: Header, value: u64) -> io::Result<()> {
    let head = Header { request: header.request, flags: VERSION | REPLY, size: 8 };
    stream.write_all(&[&head.to_bytes()[..], &value.to_ne_bytes()].concat())
}

/// The next header, still in the socket; `None` if it has not arrived whole.
fn peek(stream: &UnixStream) -> io::Result<Option<Header>> {
    let mut bytes = [0u8; HEADER_LEN];
    // SAFETY: the pointer and the length describe `bytes`.
    let n = unsafe {
        libc::recv(
            stream.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    match usize::try_from(n) {
        Ok(HEADER_LEN) => Ok(Some(Header::from_bytes(bytes))),
        Ok(_) => Ok(None),
        Err(_) => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            e => Err(e),
        },
    }
}
