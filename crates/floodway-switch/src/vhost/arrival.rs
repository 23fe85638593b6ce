//! What has arrived of the next message.
//!
//! # Theory of operation
//! The `vhost` crate reads a header until it has all of it, and reads on when more descriptors came beside it than it takes: no time limit
//! applies to either. So the header is looked at (`MSG_PEEK`) before the crate reads. While part of it is missing, the port's thread waits for
//! other things too, and for a limited time; a message with too many descriptors ends the connection.
//!
//! Peeking at descriptors opens them once more; they are closed at once.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::messages::HEADER_LEN;

/// Most descriptors beside a message that the `vhost` crate takes (`MAX_ATTACHED_FD_ENTRIES`).
const MAX_DESCRIPTORS: usize = 32;
/// Room for those, and for one or two more, as its start has to be aligned.
const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

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
    let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(Arrival::Partial),
        Err(error) => return Err(error.into()),
    };
    let has_more = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(match received.bytes {
        _ if has_more || close_descriptors(&mut control) > MAX_DESCRIPTORS => {
            Arrival::TooManyDescriptors
        }
        1..HEADER_LEN if !has_hung_up(stream) => Arrival::Partial,
        _ => Arrival::Readable,
    })
}

/// Closes what peeking has opened. Returns how many that were.
fn close_descriptors(control: &mut RecvAncillaryBuffer<'_>) -> usize {
    let count = |message| match message {
        RecvAncillaryMessage::ScmRights(rights) => rights.count(),
        _ => 0,
    };
    control.drain().map(count).sum()
}

/// Returns `true` if nothing more will come.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec::default())) == Ok(1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

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
