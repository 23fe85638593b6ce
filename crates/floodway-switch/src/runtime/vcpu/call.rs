//! One question to a VM's QMP socket, without ever waiting for it.
//!
//! The socket takes one client at a time, so each question is a connection of its own, of at most [`PATIENCE`].

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::peer::Peer;
use super::qmp::Conversation;
use super::threads::Thread;

/// How long a question may take from the connect to the answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Pieces in which an answer may come: who sends it byte by byte wakes us up for each.
const MAX_READS: u32 = 1000;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// A question that has no answer yet.
pub struct Call {
    stream: UnixStream,
    peer: Peer,
    conversation: Conversation,
    reads: u32,
    /// When it has taken too long.
    pub deadline: Instant,
}

impl Call {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens on the socket, or so many wait there already that one more would have to wait, too.
    pub fn open(socket: &Path, now: Instant) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        net::connect(&fd, &SocketAddrUnix::new(socket)?).map_err(io::Error::from).map_err(busy)?;
        let stream = UnixStream::from(fd);
        let peer = Peer::of(&stream)?;
        let conversation = Conversation::default();
        Ok(Self { stream, peer, conversation, reads: 0, deadline: now + PATIENCE })
    }

    /// Reads what has come. Returns the VM's vCPU threads when they are known, `None` before; each is the peer's own.
    ///
    /// # Errors
    /// The deadline is over, or the peer has hung up, says something else, or names threads of others.
    pub fn advance(
        &mut self,
        buffer: &mut Vec<u8>,
        now: Instant,
    ) -> io::Result<Option<Vec<Thread>>> {
        buffer.resize(PIECE, 0);
        loop {
            let n = match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && now < self.deadline => {
                    return Ok(None);
                }
                Err(e) => return Err(busy(e)),
            };
            self.reads += 1;
            if self.reads > MAX_READS {
                let problem = "the answer comes in too many pieces";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            let mut commands = Vec::new();
            let threads = self.conversation.receive(&buffer[..n], &mut commands)?;
            // A few bytes: only a peer that does not read has no room for them.
            self.stream.write_all(&commands).map_err(busy)?;
            if let Some(ids) = threads {
                return self.peer.own_threads(&ids).map(Some);
            }
        }
    }
}

impl AsFd for Call {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// What an operation means that would have to wait.
fn busy(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::WouldBlock {
        return error;
    }
    let problem = "no answer; another client may be connected, give floodway a socket of its own";
    io::Error::new(io::ErrorKind::TimedOut, problem)
}
