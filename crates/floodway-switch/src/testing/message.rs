//! Raw vhost-user messages, as the protocol's specification lays them out.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Protocol version 1, in the low bits of the flags.
pub const VERSION: u32 = 1;
/// Flag: this is a reply.
pub const REPLY: u32 = 1 << 2;
/// Flag: an acknowledgement is asked for.
pub const NEED_REPLY: u32 = 1 << 3;

macro_rules! requests {
    ($($name:ident = $code:literal,)+) => {
        $(#[allow(missing_docs)] pub const $name: u32 = $code;)+
    };
}

requests! {
    GET_FEATURES = 1,
    SET_FEATURES = 2,
    SET_OWNER = 3,
    RESET_OWNER = 4,
    SET_MEM_TABLE = 5,
    SET_LOG_BASE = 6,
    SET_VRING_NUM = 8,
    SET_VRING_ADDR = 9,
    SET_VRING_BASE = 10,
    GET_VRING_BASE = 11,
    SET_VRING_KICK = 12,
    SET_VRING_CALL = 13,
    SET_VRING_ERR = 14,
    GET_PROTOCOL_FEATURES = 15,
    SET_PROTOCOL_FEATURES = 16,
    GET_QUEUE_NUM = 17,
    SET_VRING_ENABLE = 18,
    SEND_RARP = 19,
    RESET_DEVICE = 34,
    GET_MAX_MEM_SLOTS = 36,
    ADD_MEM_REG = 37,
    REM_MEM_REG = 38,
    SET_STATUS = 39,
}

/// Header and payload in one piece; `size` is what the header claims.
#[must_use]
pub fn encode(request: u32, flags: u32, size: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(12 + payload.len());
    for word in [request, flags, size] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// Sends bytes with file descriptors beside them.
///
/// # Errors
/// The peer is gone.
pub fn send(stream: &UnixStream, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let sent = stream.send_with_fds(&[bytes], fds).map_err(io::Error::from)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives the reply to `request`: its payload.
///
/// # Errors
/// The peer is gone, silent for too long, or answers something else.
pub fn receive(mut stream: &UnixStream, request: u32) -> io::Result<Vec<u8>> {
    let mut header = [0; 12];
    stream.read_exact(&mut header)?;
    let word = |at: usize| {
        u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if (word(0), word(4)) != (request, VERSION | REPLY) {
        let what = format!("reply to {request} is {} with flags {:#x}", word(0), word(4));
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut payload = vec![0; word(8) as usize];
    stream.read_exact(&mut payload)?;
    Ok(payload)
}

/// The descriptors of some files.
pub fn fds<'a>(files: impl IntoIterator<Item = &'a std::fs::File>) -> Vec<RawFd> {
    files.into_iter().map(AsRawFd::as_raw_fd).collect()
}
