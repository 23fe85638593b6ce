//! A connection to another host, in which nothing waits for ever.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use floodway_process::sealed;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use serde::Serialize;

use super::inbox::Inbox;
use super::protocol::{self, Bounded, GREETING, MAX_MESSAGE, VERSION};
use floodway_process::poll::{is_readable, wait_for};

/// Bytes of state that are moved at once.
const PIECE: usize = 64 << 10;

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The other host has closed it.
    #[error("it hung up")]
    Closed,
    /// It says nothing, or reads nothing.
    #[error("it did not answer in time")]
    Late,
    /// What it says is not a message.
    #[error("it sent something that is not a message")]
    NoMessage,
    /// It does not stop talking.
    #[error("it sent more messages than it may")]
    TooMuch,
    /// It speaks another version.
    #[error("it speaks version {0} of the protocol between hosts, and this is version {VERSION}")]
    Version(u32),
    /// It is something other than Floodway.
    #[error("it is not a Floodway that takes connections in")]
    Stranger,
    /// The connection failed, or who is at its other end is not who it should be.
    #[error("the connection failed: {0}")]
    System(io::Error),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::Late,
            ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted => Self::Closed,
            _ => Self::System(error),
        }
    }
}

/// A socket whose reads and writes end at a time.
#[derive(Debug)]
pub(crate) struct Timed {
    socket: TcpStream,
    deadline: Instant,
}

impl Timed {
    /// What is left of the time.
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

enum Stream {
    Plain(Timed),
    Client(Box<StreamOwned<ClientConnection, Timed>>),
    Server(Box<StreamOwned<ServerConnection, Timed>>),
}

/// A connection, encrypted or not.
pub(crate) struct Link(Stream);

/// Who is at the other end, for bounds: its certificate, or its address where there are none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Identity {
    /// In DER.
    Certificate(Vec<u8>),
    /// Without certificates.
    Address(IpAddr),
}

impl Link {
    /// Connects to `address` before `deadline`.
    ///
    /// # Errors
    /// Nobody listens there, or does not answer.
    pub(crate) fn connect(address: &SocketAddr, deadline: Instant) -> Result<Timed, LinkError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::Late);
        }
        Ok(Self::of(TcpStream::connect_timeout(address, left)?, deadline)?)
    }

    /// `socket`, for which the first step has to be over before `deadline`.
    pub(crate) fn of(socket: TcpStream, deadline: Instant) -> io::Result<Timed> {
        socket.set_nodelay(true)?;
        Ok(Timed { socket, deadline })
    }

    /// A connection in which everybody reads.
    pub(crate) fn plain(socket: Timed) -> Self {
        Self(Stream::Plain(socket))
    }

    /// One to a host that listens.
    pub(crate) fn client(connection: ClientConnection, socket: Timed) -> Self {
        Self(Stream::Client(Box::new(StreamOwned::new(connection, socket))))
    }

    /// One from another host.
    pub(crate) fn server(connection: ServerConnection, socket: Timed) -> Self {
        Self(Stream::Server(Box::new(StreamOwned::new(connection, socket))))
    }

    /// Says who both are, or finds that the other end is somebody else: until the deadline with which the socket was made.
    ///
    /// # Errors
    /// As it says.
    pub(crate) fn greet(&mut self) -> Result<(), LinkError> {
        let ours = [GREETING.as_slice(), &VERSION.to_be_bytes()].concat();
        self.stream().write_all(&ours)?;
        self.stream().flush()?;
        let (mut greeting, mut version) = ([0; GREETING.len()], [0; 4]);
        self.stream().read_exact(&mut greeting)?;
        if greeting != *GREETING {
            return Err(LinkError::Stranger);
        }
        self.stream().read_exact(&mut version)?;
        match u32::from_be_bytes(version) {
            VERSION => Ok(()),
            other => Err(LinkError::Version(other)),
        }
    }

    /// Who is at the other end, once it has been [greeted](Self::greet).
    ///
    /// # Errors
    /// It has gone.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        let certificates = match &self.0 {
            Stream::Plain(_) => None,
            Stream::Client(stream) => stream.conn.peer_certificates(),
            Stream::Server(stream) => stream.conn.peer_certificates(),
        };
        match certificates.and_then(<[_]>::first) {
            Some(certificate) => Ok(Identity::Certificate(certificate.to_vec())),
            None => Ok(Identity::Address(self.timed().socket.peer_addr()?.ip())),
        }
    }

    /// Sends `message`, for at most `limit`.
    ///
    /// # Errors
    /// The other host does not read, or has gone.
    pub(crate) fn send<M: Serialize>(
        &mut self,
        message: &M,
        limit: Duration,
    ) -> Result<(), LinkError> {
        let bytes = protocol::encode(message).ok_or(LinkError::NoMessage)?;
        self.begin(limit);
        self.stream().write_all(&bytes)?;
        Ok(self.stream().flush()?)
    }

    /// Receives a message, for at most `limit`.
    ///
    /// # Errors
    /// None comes, or something else.
    pub(crate) fn recv<M: Bounded>(&mut self, limit: Duration) -> Result<M, LinkError> {
        self.begin(limit);
        let (mut length, mut body) = ([0; 4], [0; MAX_MESSAGE]);
        self.stream().read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        let body = body.get_mut(..length).ok_or(LinkError::NoMessage)?;
        self.stream().read_exact(body)?;
        protocol::decode(body).ok_or(LinkError::NoMessage)
    }

    /// Sends the first `bytes` of `file`, for at most `limit`.
    ///
    /// # Errors
    /// The other host does not read, or the file is shorter.
    pub(crate) fn send_file(
        &mut self,
        file: &File,
        bytes: u64,
        limit: Duration,
    ) -> Result<(), LinkError> {
        self.begin(limit);
        let (mut piece, mut at) = (vec![0; PIECE], 0);
        while at < bytes {
            let piece = &mut piece[..len_of_piece(bytes - at)];
            file.read_exact_at(piece, at)?;
            self.stream().write_all(piece)?;
            at += piece.len() as u64;
        }
        Ok(self.stream().flush()?)
    }

    /// Receives so many bytes into memory of that size, for at most `limit`.
    ///
    /// # Errors
    /// They do not come, or there is no memory.
    pub(crate) fn recv_file(&mut self, bytes: u64, limit: Duration) -> Result<OwnedFd, LinkError> {
        self.begin(limit);
        let file = File::from(sealed::fixed("floodway-flows", bytes).map_err(LinkError::System)?);
        let (mut piece, mut at) = (vec![0; PIECE], 0);
        while at < bytes {
            let piece = &mut piece[..len_of_piece(bytes - at)];
            self.stream().read_exact(piece)?;
            file.write_all_at(piece, at).map_err(LinkError::System)?;
            at += piece.len() as u64;
        }
        Ok(file.into())
    }

    /// Ends the connection so that all that was sent arrives: what comes meanwhile would make the kernel throw it away. Waits for the other end for at most `limit`.
    pub(crate) fn finish(&mut self, limit: Duration) {
        self.begin(limit);
        let timed = self.timed_mut();
        // Fails when it has gone.
        let is_open = timed.socket.shutdown(Shutdown::Write).is_ok();
        let mut rest = [0; MAX_MESSAGE];
        while is_open && timed.read(&mut rest).is_ok_and(|bytes| bytes > 0) {}
    }

    /// Sends what may be no message.
    #[cfg(test)]
    pub(crate) fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream().write_all(bytes)?;
        self.stream().flush()
    }

    /// Says that nothing follows.
    #[cfg(test)]
    pub(crate) fn shut_down(&self) {
        self.timed().socket.shutdown(Shutdown::Write).unwrap();
    }

    /// Waits until something was left in `inbox`, or the other host has said something or gone, for at most `limit`.
    pub(crate) fn wait<T>(&self, inbox: &Inbox<T>, limit: Duration) {
        if !self.has_decrypted() {
            wait_for(&[inbox.as_fd(), self.as_fd()], Some(limit));
        }
    }

    /// Returns `true` if the other host has said something, or has gone.
    pub(crate) fn is_ready(&self) -> bool {
        self.has_decrypted() || is_readable(self.as_fd())
    }

    /// Something has been received, and not been read.
    fn has_decrypted(&self) -> bool {
        match &self.0 {
            Stream::Plain(_) => false,
            Stream::Client(stream) => !stream.conn.wants_read(),
            Stream::Server(stream) => !stream.conn.wants_read(),
        }
    }

    fn begin(&mut self, limit: Duration) {
        self.timed_mut().deadline = Instant::now() + limit;
    }

    fn timed_mut(&mut self) -> &mut Timed {
        match &mut self.0 {
            Stream::Plain(timed) => timed,
            Stream::Client(stream) => &mut stream.sock,
            Stream::Server(stream) => &mut stream.sock,
        }
    }

    fn timed(&self) -> &Timed {
        match &self.0 {
            Stream::Plain(timed) => timed,
            Stream::Client(stream) => &stream.sock,
            Stream::Server(stream) => &stream.sock,
        }
    }

    fn stream(&mut self) -> &mut dyn ReadWrite {
        match &mut self.0 {
            Stream::Plain(timed) => timed,
            Stream::Client(stream) => &mut **stream,
            Stream::Server(stream) => &mut **stream,
        }
    }
}

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timed().socket.as_fd()
    }
}

fn len_of_piece(left: u64) -> usize {
    usize::try_from(left).map_or(PIECE, |left| left.min(PIECE))
}
