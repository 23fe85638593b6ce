//! Whole vhost-user messages from a front-end's socket.
//!
//! # Theory of operation
//! A stream has no borders: a message's header says how long the rest is. That length is all that the broker looks at. Descriptors belong to
//! the message that their bytes are part of, and the kernel ends a read after bytes that came with some, so reading exactly what is missing never
//! takes anything of the next message.
//!
//! **Bounds**: a message has at most [`MAX_VHOST_MESSAGE`] bytes and [`MAX_DESCRIPTORS`] descriptors. Nothing waits: [`Framer::read`] takes what is there. How long
//! a front-end may pause inside a message is its caller's business ([`Framer::is_inside`]).
//!
//! **Invariant**: never more than one message, and its descriptors, are held.
//!
//! Source: the vhost-user specification, "Header".

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use floodway_process::message::{MAX_DESCRIPTORS, MAX_VHOST_MESSAGE};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::record::Packet;

/// Request, flags and length of the rest, 32 bits each in the host's byte order.
pub const HEADER_LEN: usize = 12;
const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// No message is as long as that.
    #[error("a message of {0} bytes after its header (at most 4096)")]
    TooLong(u32),
    /// No message has so many descriptors, or the process may not open them.
    #[error("a message came with more descriptors than can be taken")]
    TooManyDescriptors,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    System(#[from] Errno),
}

/// What a read has led to.
#[derive(Debug)]
pub enum Progress {
    /// A message is complete.
    Message(Packet<OwnedFd>),
    /// The rest of it, or all of it, has not come yet.
    Partial,
    /// The front-end has hung up.
    Closed,
}

/// Puts the messages of one connection together.
#[derive(Debug, Default)]
pub struct Framer {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Framer {
    /// Returns `true` if part of a message has come.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Takes what `stream` has of the next message, without waiting.
    ///
    /// # Errors
    /// The front-end has sent what is no message, or the socket failed. The connection cannot go on.
    pub fn read(&mut self, stream: impl AsFd) -> Result<Progress, FramingError> {
        loop {
            let missing = self.missing()?;
            if missing == 0 {
                let bytes = std::mem::take(&mut self.bytes);
                let descriptors = std::mem::take(&mut self.descriptors);
                return Ok(Progress::Message(Packet { bytes, descriptors }));
            }
            match self.take(&stream, missing) {
                Ok(0) => return Ok(Progress::Closed),
                Ok(_) => {}
                Err(FramingError::System(Errno::AGAIN)) => return Ok(Progress::Partial),
                Err(FramingError::System(Errno::INTR)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the header that are missing, or, if it is there, of the rest.
    fn missing(&self) -> Result<usize, FramingError> {
        let Some(length) = self.bytes.get(8..HEADER_LEN) else {
            return Ok(HEADER_LEN - self.bytes.len());
        };
        let length = u32::from_ne_bytes([length[0], length[1], length[2], length[3]]);
        match usize::try_from(length) {
            Ok(rest) if HEADER_LEN + rest <= MAX_VHOST_MESSAGE => {
                Ok(HEADER_LEN + rest - self.bytes.len())
            }
            _ => Err(FramingError::TooLong(length)),
        }
    }

    /// Takes at most `missing` bytes and what comes beside them; returns the number of bytes.
    fn take(&mut self, stream: impl AsFd, missing: usize) -> Result<usize, FramingError> {
        let mut buffer = [0; MAX_VHOST_MESSAGE];
        let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = &mut [IoSliceMut::new(&mut buffer[..missing])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(stream, room, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.descriptors.extend(rights);
            }
        }
        let cut = received.flags.contains(ReturnFlags::CTRUNC);
        if cut || self.descriptors.len() > MAX_DESCRIPTORS {
            return Err(FramingError::TooManyDescriptors);
        }
        self.bytes.extend_from_slice(&buffer[..received.bytes]);
        Ok(received.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{IoSlice, Write};
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// A message whose bytes after the header are `rest`.
    fn message(request: u32, rest: &[u8]) -> Vec<u8> {
        let header = [request, 1, rest.len() as u32].map(u32::to_ne_bytes).concat();
        [&header[..], rest].concat()
    }

    fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty());
        assert_eq!(sent, Ok(bytes.len()));
    }

    fn next(framer: &mut Framer, stream: &UnixStream) -> Packet<OwnedFd> {
        match framer.read(stream).unwrap() {
            Progress::Message(packet) => packet,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_are_told_apart_however_they_arrive() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut framer = Framer::default();
        let (first, second) = (message(1, &[]), message(2, &[5; 300]));
        theirs.write_all(&[&first[..], &second, &first[..7]].concat()).unwrap();
        assert_eq!(next(&mut framer, &ours).bytes, first);
        assert_eq!(next(&mut framer, &ours).bytes, second);
        assert!(matches!(framer.read(&ours), Ok(Progress::Partial)));
        assert!(framer.is_inside());
        for byte in &first[7..] {
            assert!(matches!(framer.read(&ours), Ok(Progress::Partial)));
            theirs.write_all(&[*byte]).unwrap();
        }
        assert_eq!(next(&mut framer, &ours).bytes, first);
        assert!(!framer.is_inside());
        drop(theirs);
        assert!(matches!(framer.read(&ours), Ok(Progress::Closed)));
    }

    #[test]
    fn descriptors_stay_with_their_message() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let mut framer = Framer::default();
        let long = message(5, &[1; 40]);
        // With the header, with the rest, and with the message after that.
        send(&theirs, &long[..HEADER_LEN], &[file.as_fd()]);
        send(&theirs, &long[HEADER_LEN..], &[file.as_fd(), file.as_fd()]);
        send(&theirs, &message(12, &[0; 8]), &[file.as_fd()]);
        let counts = [3, 1].map(|_| next(&mut framer, &ours).descriptors.len());
        assert_eq!(counts, [3, 1]);
    }

    #[test]
    fn what_is_no_message_ends_the_connection() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let header = [1_u32, 1, 4097].map(u32::to_ne_bytes).concat();
        theirs.write_all(&header).unwrap();
        assert_eq!(Framer::default().read(&ours).unwrap_err(), FramingError::TooLong(4097));

        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        send(&theirs, &message(5, &[]), &[file.as_fd(); MAX_DESCRIPTORS + 1]);
        let error = Framer::default().read(&ours).unwrap_err();
        assert_eq!(error, FramingError::TooManyDescriptors);
    }

    #[test]
    fn descriptors_over_several_parts_are_bounded_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let long = message(5, &[1; 40]);
        for byte in &long[..30] {
            send(&theirs, &[*byte], &[file.as_fd(); 2]);
        }
        let error = Framer::default().read(&ours).unwrap_err();
        assert_eq!(error, FramingError::TooManyDescriptors);
    }
}
