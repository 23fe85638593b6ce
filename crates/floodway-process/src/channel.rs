//! A socket between broker and data plane that carries messages.
//!
//! # Theory of operation
//! A pair of Unix sockets of type `SOCK_SEQPACKET`: a datagram is a [message](mod@crate::message), arrives whole or not at all, and the end of the peer is
//! seen as the end of the stream. Descriptors travel beside messages (`SCM_RIGHTS`), and only towards the data plane: the type of the
//! messages says whether an end takes any ([`Message::CARRIES`]). The broker's end has no room for them, so the kernel drops them before they have a number in its
//! table, and the datagram is a violation. From Linux 6.16 on the broker's end refuses them where they are sent (`SO_PASSRIGHTS`).
//!
//! **What a dead peer has sent is received.** A peer that dies with datagrams unread makes the kernel report `ECONNRESET` once, *before* what it
//! has sent itself. That is not the end: [`Channel::recv`] goes on until the stream ends. The hand-over rests on it: a
//! message is outstanding if and only if no `Handled` for it could be received.
//!
//! **Invariants**: a descriptor that was received has one owner, and is closed with the message if nobody takes it; all are close-on-exec.
//!
//! Source: `unix(7)`, `net/unix/af_unix.c` of Linux.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

use crate::message::{self, MAX_DATAGRAM, MAX_DESCRIPTORS, Message, Violation};

/// `SO_PASSRIGHTS`, which libc does not have yet.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Room for the descriptors of one message.
const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// Why nothing was sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer has broken the protocol, or we would have.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The system refused, the peer is gone ([`Errno::PIPE`]), or the time limit was reached ([`Errno::AGAIN`]).
    #[error("the channel failed: {0}")]
    System(#[from] Errno),
}

/// What was received.
#[derive(Debug)]
pub enum Received<M> {
    /// A message, with its descriptors.
    Message(M, Vec<OwnedFd>),
    /// Nothing now, or within the time limit.
    Nothing,
    /// The peer has closed its end, and everything that it had sent was received.
    Closed,
}

/// One end: sends messages of type `Out`, receives messages of type `In`.
#[derive(Debug)]
pub struct Channel<Out, In> {
    socket: OwnedFd,
    types: PhantomData<fn(Out) -> In>,
}

impl<Out: Message, In: Message> Channel<Out, In> {
    /// Makes two connected ends.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn pair() -> rustix::io::Result<(Self, Channel<In, Out>)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::from(ours), Channel::from(theirs)))
    }

    /// Lets every call wait for at most `limit`; for ever if there is none.
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_time_limit(&self, limit: Option<Duration>) -> rustix::io::Result<()> {
        set_socket_timeout(&self.socket, Timeout::Recv, limit)?;
        set_socket_timeout(&self.socket, Timeout::Send, limit)
    }

    /// Sends a message with descriptors, which stay the caller's.
    ///
    /// # Errors
    /// The message exceeds a bound, the peer is gone, or it does not read and the time limit is over.
    pub fn send(&self, message: &Out, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        if !message.descriptors().contains(&descriptors.len()) {
            let expected = message.descriptors();
            return Err(Violation::Descriptors { found: descriptors.len(), expected }.into());
        }
        let bytes = message::encode(message)?;
        let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Violation::Forbidden.into());
        }
        loop {
            let sent =
                sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
            match sent {
                Ok(_) => return Ok(()),
                // The peer has gone with messages unread; the next attempt says so.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives a message, waiting for one as long as the time limit says.
    ///
    /// # Errors
    /// The peer has broken the protocol, or the system failed.
    pub fn recv(&self) -> Result<Received<In>, ChannelError> {
        self.recv_with(RecvFlags::empty())
    }

    /// Receives a message if one is there.
    ///
    /// # Errors
    /// As [`Channel::recv`].
    pub fn try_recv(&self) -> Result<Received<In>, ChannelError> {
        self.recv_with(RecvFlags::DONTWAIT)
    }

    fn recv_with(&self, flags: RecvFlags) -> Result<Received<In>, ChannelError> {
        let mut bytes = [0; MAX_DATAGRAM];
        let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
        // Without room for descriptors the kernel drops them and says so.
        let room = if In::CARRIES { &mut space[..] } else { &mut [] };
        let mut control = RecvAncillaryBuffer::new(room);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            let room = &mut [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, room, &mut control, flags) {
                Ok(received) => break received,
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                // A dead peer had datagrams unread. What it has sent comes after this.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let descriptors = take_descriptors(&mut control);
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Violation::Forbidden.into());
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(Violation::TooLong.into());
        }
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        let message = message::decode(&bytes[..received.bytes], descriptors.len())?;
        Ok(Received::Message(message, descriptors))
    }
}

fn take_descriptors(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    descriptors
}

impl<Out, In: Message> From<OwnedFd> for Channel<Out, In> {
    /// The end that `socket` is: one that was inherited or received.
    fn from(socket: OwnedFd) -> Self {
        if !In::CARRIES {
            refuse_descriptors(&socket);
        }
        Self { socket, types: PhantomData }
    }
}

/// Lets the peer's attempt to send descriptors fail. Before Linux 6.16 there is no such option, and they are dropped when they arrive.
fn refuse_descriptors(socket: &OwnedFd) {
    let off: libc::c_int = 0;
    let len = size_of_val(&off) as libc::socklen_t;
    // SAFETY: the value is of the length given and is read during the call only.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            len,
        )
    };
}

impl<Out, In> AsFd for Channel<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<Out, In> AsRawFd for Channel<Out, In> {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl<Out, In> From<Channel<Out, In>> for OwnedFd {
    fn from(channel: Channel<Out, In>) -> Self {
        channel.socket
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;
    use crate::message::{FromPort, Handled, ToPort};

    type Ends = (Channel<ToPort, FromPort>, Channel<FromPort, ToPort>);

    fn ends() -> Ends {
        Channel::pair().unwrap()
    }

    fn message(number: u64) -> ToPort {
        ToPort::Message { session: 1, number, replayed: false, bytes: vec![7; 20] }
    }

    fn handled(number: u64) -> FromPort {
        FromPort::Handled(Handled { session: 1, number, ..Handled::default() })
    }

    /// Sends `bytes` with descriptors past all checks, as a data plane that was taken over may.
    fn send_raw(
        socket: impl AsFd,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
    }

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (broker, plane) = ends();
        let (mut reader, writer) = std::io::pipe().unwrap();
        broker.send(&message(3), &[writer.as_fd(), writer.as_fd()]).unwrap();
        drop(writer);
        let Received::Message(received, descriptors) = plane.recv().unwrap() else {
            panic!("no message")
        };
        assert_eq!((received, descriptors.len()), (message(3), 2));
        for descriptor in descriptors {
            let flags = rustix::io::fcntl_getfd(&descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            File::from(descriptor).write_all(b"x").unwrap();
        }
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "xx", "both ends were closed with their message");
    }

    #[test]
    fn the_broker_takes_no_descriptor() {
        let (broker, plane) = ends();
        let file = File::open("/dev/null").unwrap();
        let bytes = message::encode(&handled(1)).unwrap();
        match send_raw(&plane, &bytes, &[file.as_fd()]) {
            // Linux 6.16 and later.
            Err(Errno::PERM) => {
                assert!(matches!(broker.try_recv(), Ok(Received::Nothing)), "nothing arrived");
            }
            sent => {
                sent.unwrap();
                let error = broker.recv().unwrap_err();
                assert!(matches!(error, ChannelError::Violation(Violation::Forbidden)), "{error}");
            }
        }
    }

    #[test]
    fn what_is_no_message_is_a_violation() {
        let (broker, plane) = ends();
        for bytes in [&[0xff; 40][..], &[0; MAX_DATAGRAM + 1]] {
            send_raw(&plane, bytes, &[]).unwrap();
            assert!(matches!(broker.recv(), Err(ChannelError::Violation(_))));
        }
    }

    #[test]
    fn everything_that_a_dead_peer_has_sent_is_received() {
        let (broker, plane) = ends();
        // One that it will not read: the kernel then reports a reset.
        broker.send(&message(2), &[]).unwrap();
        plane.send(&handled(0), &[]).unwrap();
        plane.send(&handled(1), &[]).unwrap();
        drop(plane);
        for number in [0, 1] {
            let Ok(Received::Message(received, _)) = broker.recv() else {
                panic!("message {number} is lost")
            };
            assert_eq!(received, handled(number));
        }
        assert!(matches!(broker.recv(), Ok(Received::Closed)));
        let error = broker.send(&message(3), &[]).unwrap_err();
        assert!(matches!(error, ChannelError::System(Errno::PIPE)), "{error}");
    }

    #[test]
    fn a_peer_that_does_not_read_is_waited_for_no_longer_than_the_limit() {
        let (broker, _plane) = ends();
        broker.set_time_limit(Some(Duration::from_millis(10))).unwrap();
        let full = (0..100_000).find_map(|number| broker.send(&message(number), &[]).err());
        assert!(matches!(full, Some(ChannelError::System(Errno::AGAIN))), "{full:?}");
        assert!(matches!(broker.recv(), Ok(Received::Nothing)));
    }

    #[test]
    fn a_message_without_its_descriptors_is_not_sent() {
        let (broker, _plane) =
            Channel::<message::ToDataPlane, message::FromDataPlane>::pair().unwrap();
        let error = broker.send(&message::ToDataPlane::Control, &[]).unwrap_err();
        let text = "a message came with 0 descriptors instead of 1 to 1";
        assert_eq!(error.to_string(), text);
    }
}
