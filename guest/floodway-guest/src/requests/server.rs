//! The end that answers.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use sha2::{Digest, Sha256};

use super::outgoing::Outgoing;
use super::{BUFFER, Header, Waiter, digest, raise_descriptor_limit};
use crate::background::Background;

/// Numbers of what is no connection.
const STOP: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// A server on a thread of its own, which ends with all its connections when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _thread: Background,
}

impl Server {
    /// Listens on `address`, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the address is not to be had, or the system lacks descriptors or threads.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        raise_descriptor_limit()?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let waiter = Waiter::new()?;
        waiter.add(&listener, LISTENER)?;
        let thread = Background::start("requests", move |stop| {
            let mut worker = Worker { listener, waiter, connections: Vec::new() };
            if let Err(error) = worker.run(&stop) {
                eprintln!("requests: {error}");
            }
        })?;
        Ok(Self { address, _thread: thread })
    }

    /// Where it listens, with the port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What the thread owns.
struct Worker {
    listener: TcpListener,
    waiter: Waiter,
    /// By number. Those that have ended leave their places empty.
    connections: Vec<Option<Connection>>,
}

struct Connection {
    socket: TcpStream,
    /// What has come of the header.
    head: Vec<u8>,
    /// What has come of the request.
    progress: u64,
    received: Sha256,
    /// From the header on.
    out: Option<(Header, Outgoing)>,
    /// The client sends no more.
    ended: bool,
}

impl Worker {
    fn run(&mut self, stop: &OwnedFd) -> io::Result<()> {
        self.waiter.add(stop, STOP)?;
        let mut buffer = vec![0; BUFFER];
        loop {
            for number in self.waiter.wait(None)? {
                match number {
                    STOP => return Ok(()),
                    LISTENER => self.accept(),
                    number => self.serve(number as usize, &mut buffer),
                }
            }
        }
    }

    /// A connection that cannot be taken shows at its client.
    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            let number = self.connections.len();
            if self.waiter.add_connection(&socket, number as u64).is_ok() {
                self.connections.push(Some(Connection::new(socket)));
            }
        }
    }

    fn serve(&mut self, number: usize, buffer: &mut [u8]) {
        let Some(place) = self.connections.get_mut(number) else { return };
        // One that breaks shows at its client, too.
        let goes_on = place.as_mut().is_some_and(|it| it.serve(buffer).unwrap_or(false));
        if !goes_on {
            *place = None;
        }
    }
}

impl Connection {
    fn new(socket: TcpStream) -> Self {
        let head = Vec::with_capacity(Header::BYTES);
        Self { socket, head, progress: 0, received: Sha256::new(), out: None, ended: false }
    }

    /// Reads what has come, and writes what is owed. Returns `false` when all is done.
    fn serve(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        while !self.ended {
            match self.socket.read(buffer) {
                Ok(0) => self.end(),
                Ok(len) => self.take(&buffer[..len])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let Some((_, out)) = &mut self.out else { return Ok(!self.ended) };
        let sent = out.write(&self.socket)?;
        Ok(!(sent && self.ended))
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let head = bytes.len().min(Header::BYTES - self.head.len());
        self.head.extend_from_slice(&bytes[..head]);
        if self.out.is_none() && self.head.len() == Header::BYTES {
            let header = Header::decode(&self.head)
                .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no client of ours"))?;
            self.out = Some((header, Outgoing::new(!header.seed, Vec::new())));
        }
        let Some((header, out)) = &mut self.out else { return Ok(()) };
        let content = &bytes[head..];
        self.received.update(content);
        self.progress += content.len() as u64;
        out.owe((self.progress / header.request_bytes).saturating_mul(header.response_bytes));
        self.progress %= header.request_bytes;
        Ok(())
    }

    /// Says how all was that came and went.
    fn end(&mut self) {
        self.ended = true;
        if let Some((_, out)) = &mut self.out {
            let digests = [digest(&self.received), out.digest()].concat();
            out.finish(&digests);
        }
    }
}
