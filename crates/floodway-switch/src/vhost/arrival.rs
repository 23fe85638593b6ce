//! What has arrived of the next message.
//!
//! # Theory of operation
//! The `vhost` crate reads a header until it has all of it, and reads on when more descriptors came beside it than it takes: no time limit
//! applies to either. So the header is looked at (`MSG_PEEK`) before the crate reads. While part of it is missing, the port's thread waits for
//! other things too, and for a limited time; a message with too many descriptors ends the connection.
//!
//! Peeking at descriptors opens them once more; they are closed at once.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::messages::HEADER_LEN;

/// Most descriptors beside a message that the `vhost` crate takes (`MAX_ATTACHED_FD_ENTRIES`).
const MAX_DESCRIPTORS: usize = 32;
/// Bytes of their array.
const ARRAY_LEN: u32 = (MAX_DESCRIPTORS * size_of::<RawFd>()) as u32;
// SAFETY: CMSG_SPACE only computes.
const CONTROL_LEN: usize = unsafe { libc::CMSG_SPACE(ARRAY_LEN) } as usize;

/// Room for one control message, aligned as its header.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// How far the next message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Its header is there, or will never be: the front-end has hung up.
    Readable,
    /// Part of the header is missing.
    Partial,
    /// More descriptors came with it than a message can have, or than the process may open.
    TooManyDescriptors,
}

/// Looks at the next message without taking anything from `stream`.
///
/// # Errors
/// The socket failed.
pub(super) fn look(stream: &UnixStream) -> io::Result<Arrival> {
    let mut bytes = [0_u8; HEADER_LEN];
    let mut control = Control([0; CONTROL_LEN]);
    let mut iovec = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid msghdr: no address, no buffers, no flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iovec;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_LEN;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` describes `bytes` and `control`, which live until the end of this function.
    let n = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) };
    let Ok(n) = usize::try_from(n) else {
        let error = io::Error::last_os_error();
        let empty = error.kind() == io::ErrorKind::WouldBlock;
        return if empty { Ok(Arrival::Partial) } else { Err(error) };
    };
    close_descriptors(&message);
    Ok(match n {
        _ if message.msg_flags & libc::MSG_CTRUNC != 0 => Arrival::TooManyDescriptors,
        1..HEADER_LEN if !has_hung_up(stream) => Arrival::Partial,
        _ => Arrival::Readable,
    })
}

/// Closes what peeking has opened.
fn close_descriptors(message: &libc::msghdr) {
    // SAFETY: the kernel has filled the control buffer of `message` in, and set its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers that lie whole within the buffer.
        let (level, kind, len) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the data of an SCM_RIGHTS message are descriptors that belong to us alone since the call.
            unsafe { close_array(libc::CMSG_DATA(header), len - libc::CMSG_LEN(0) as usize) };
        }
        // SAFETY: `header` came from this message.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// Closes the descriptors in `len` bytes at `data`.
///
/// # Safety
/// There are so many bytes, and nobody else owns the descriptors.
unsafe fn close_array(data: *const u8, len: usize) {
    let fds = data.cast::<RawFd>();
    for index in 0..len / size_of::<RawFd>() {
        // SAFETY: within the array; and we are the owner, as the caller promises.
        drop(unsafe { OwnedFd::from_raw_fd(fds.add(index).read_unaligned()) });
    }
}

/// Returns `true` if nothing more will come.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: the pointer describes one pollfd.
    let n = unsafe { libc::poll(&raw mut polled, 1, 0) };
    n == 1
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use vmm_sys_util::sock_ctrl_msg::ScmSocket;

    use super::*;

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    fn arrival_of(bytes: &[u8], descriptors: usize) -> Arrival {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        theirs.send_with_fds(&[bytes], &vec![file.as_raw_fd(); descriptors]).unwrap();
        let first = look(&ours).unwrap();
        assert_eq!(look(&ours).unwrap(), first, "nothing was taken");
        first
    }

    #[test]
    fn a_header_is_readable_when_it_is_whole() {
        assert_eq!(arrival_of(&[1; HEADER_LEN - 1], 0), Arrival::Partial);
        assert_eq!(arrival_of(&[1; HEADER_LEN], 0), Arrival::Readable);
        assert_eq!(arrival_of(&[1; HEADER_LEN + 8], MAX_DESCRIPTORS), Arrival::Readable);
    }

    #[test]
    fn a_message_has_no_more_descriptors_than_can_be_taken() {
        assert_eq!(arrival_of(&[1; 20], MAX_DESCRIPTORS + 1), Arrival::TooManyDescriptors);
    }

    #[test]
    fn what_was_peeked_at_is_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        theirs.send_with_fds(&[&[1_u8; 20][..]], &[file.as_raw_fd(); 8]).unwrap();
        let before = open_descriptors();
        for _ in 0..100 {
            look(&ours).unwrap();
        }
        // Other tests of this process open files, too, but not hundreds.
        assert!(open_descriptors() < before + 400);
    }

    #[test]
    fn a_front_end_that_hangs_up_is_waited_for_no_longer() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(look(&ours).unwrap(), Arrival::Partial);
        theirs.write_all(&[1; 4]).unwrap();
        assert_eq!(look(&ours).unwrap(), Arrival::Partial);
        drop(theirs);
        assert_eq!(look(&ours).unwrap(), Arrival::Readable);
    }
}
