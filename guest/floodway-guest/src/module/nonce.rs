//! The nonce: what the switch's notices must bear to be believed.
//!
//! # Theory of operation
//! It is drawn at each installation and known to the BPF programs only, which say it to the nearest bridge when they see a notice without it
//! (`bpf/reader.h`). So that the first flow need not wait for that, the loader says it once at the end of an installation. Nobody answers, and it does not matter
//! whether anybody hears it. The format is described in `crates/floodway-wire/src/notice.rs`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

use super::interfaces::Interface;

const ETHERTYPE: u16 = 0x88b5;
/// The group address of the nearest bridge, which none forwards.
const NEAREST_BRIDGE: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
const FRAME_LEN: usize = 74;

/// Draws a number that nobody else knows, and not 0.
///
/// # Errors
/// There is no randomness to be had.
pub fn draw() -> Result<u64> {
    let mut bytes = [0; 8];
    let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    random.context("cannot read /dev/urandom")?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

/// Says the nonce on an interface, and whether names in SYN-ACKs are read.
///
/// # Errors
/// The interface is down, or has no Ethernet address.
pub fn say(interface: &Interface, nonce: u64, reads_names: bool) -> io::Result<()> {
    let no_address = || io::Error::from(io::ErrorKind::AddrNotAvailable);
    let own = interface.address().ok_or_else(no_address)?;
    send(interface.index, &frame(own, nonce, reads_names))
}

/// The BPF programs compare the nonce byte by byte with what is in the frame: in their memory's order.
fn frame(own: [u8; 6], nonce: u64, reads_names: bool) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    frame[..6].copy_from_slice(&NEAREST_BRIDGE);
    frame[6..12].copy_from_slice(&own);
    frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    // Magic, version, kind.
    frame[14..18].copy_from_slice(&[b'F', b'W', 1, 4]);
    // Features.
    frame[25] = reads_names.into();
    frame[66..].copy_from_slice(&nonce.to_ne_bytes());
    frame
}

fn send(interface: u32, frame: &[u8]) -> io::Result<()> {
    // SAFETY: socket takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an all-zero sockaddr_ll is one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = interface.cast_signed();
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: frame and address are as long as is said, and live through the call.
    let sent = unsafe {
        let address = (&raw const address).cast();
        libc::sendto(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, address, len)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are the contract with the switch.
    #[test]
    fn the_frame_says_the_nonce_to_the_nearest_bridge() {
        let nonce = u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
        let own = [0x52, 0x54, 0, 0, 0, 1];
        assert_eq!(frame(own, nonce, true)[24..26], [0, 1]);
        let frame = frame(own, nonce, false);
        assert_eq!(frame[..12], [0x01, 0x80, 0xc2, 0, 0, 0x0e, 0x52, 0x54, 0, 0, 0, 1]);
        assert_eq!(frame[12..18], [0x88, 0xb5, 0x46, 0x57, 1, 4]);
        assert!(frame[18..66].iter().all(|&byte| byte == 0));
        assert_eq!(frame[66..], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn each_is_another() {
        let (one, other) = (draw().unwrap(), draw().unwrap());
        assert!(one != other && one != 0 && other != 0);
    }
}
