//! The receiving end: takes transfers, checks them, and replies.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};

use super::Arrival;
use super::pattern::{Block, HEADER, Header, Way};
use super::receive::{ask_for_timestamps, receive};
use crate::background::Background;

/// Bytes per read.
const BUFFER: usize = 256 * 1024;

/// A sink on a thread of its own, which ends when this is dropped.
///
/// One thread serves all connections in turn: a hundred of them need no more wake-ups than one.
#[derive(Debug)]
pub struct Sink {
    address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    _thread: Background,
}

impl Sink {
    /// Listens on `address`, in the network namespace and on the CPUs of the calling thread.
    ///
    /// # Errors
    /// When the address is not to be had, or no thread can be started.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        ask_for_timestamps(&listener)?;
        let address = listener.local_addr()?;
        let arrivals = Arc::<Mutex<Vec<Arrival>>>::default();
        let shared = Arc::clone(&arrivals);
        let thread = Background::start("sink", move |stop| {
            let connections = Vec::new();
            let (block, buffer) = (Block::new(0), vec![0; BUFFER]);
            Server { listener, stop, connections, block, buffer, arrivals: shared }.run();
        })?;
        Ok(Self { address, arrivals, _thread: thread })
    }

    /// Where it listens, with the port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes what has come whole since the last call. A transfer is in it before its source has
    /// the reply.
    #[must_use]
    pub fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut lock(&self.arrivals))
    }
}

fn lock(arrivals: &Mutex<Vec<Arrival>>) -> MutexGuard<'_, Vec<Arrival>> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread owns.
struct Server {
    listener: TcpListener,
    stop: OwnedFd,
    connections: Vec<Connection>,
    block: Block,
    buffer: Vec<u8>,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
}

struct Connection {
    socket: TcpStream,
    start: [u8; HEADER],
    header: Option<Header>,
    received: u64,
    intact: bool,
    first_ns: u64,
    /// Bytes of the reply that were sent; none before the last byte has come.
    replied: Option<u64>,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Open,
    Close,
}

impl Server {
    fn run(&mut self) {
        loop {
            let ready = match self.wait() {
                Ok(Some(ready)) => ready,
                Ok(None) => return,
                Err(error) => return eprintln!("sink: cannot wait: {error}"),
            };
            let mut index = 0;
            self.connections.retain_mut(|connection| {
                index += 1;
                if !ready[index - 1] {
                    return true;
                }
                // A connection that breaks shows at its source, which reports it.
                let next = connection.serve(&mut self.block, &mut self.buffer, &self.arrivals);
                matches!(next, Ok(Next::Open))
            });
            self.accept();
        }
    }

    /// Which connections have something to do; `None` when the sink is to end.
    fn wait(&self) -> io::Result<Option<Vec<bool>>> {
        let mut set = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        set.extend(self.connections.iter().map(|connection| {
            let replying = connection.replied.is_some_and(|sent| !connection.has_replied(sent));
            let interest = if replying { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&connection.socket, interest)
        }));
        loop {
            match poll(&mut set, None) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        let mut ready = set.iter().map(|entry| !entry.revents().is_empty());
        if ready.next() == Some(true) {
            return Ok(None);
        }
        Ok(Some(ready.skip(1).collect()))
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            if socket.set_nonblocking(true).is_ok() {
                self.connections.push(Connection {
                    socket,
                    start: [0; HEADER],
                    header: None,
                    received: 0,
                    intact: true,
                    first_ns: 0,
                    replied: None,
                });
            }
        }
    }
}

impl Connection {
    fn has_replied(&self, sent: u64) -> bool {
        self.header.is_none_or(|header| sent >= header.reply_bytes)
    }

    fn serve(
        &mut self,
        block: &mut Block,
        buffer: &mut [u8],
        arrivals: &Mutex<Vec<Arrival>>,
    ) -> io::Result<Next> {
        while self.replied.is_none() {
            match receive(&self.socket, buffer) {
                Ok((0, _)) => return Ok(Next::Close),
                Ok((len, time)) => {
                    let Some(arrival) = self.take(&buffer[..len], time, block)? else { continue };
                    lock(arrivals).push(arrival);
                    self.replied = Some(0);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Next::Open),
                Err(error) => return Err(error),
            }
        }
        self.reply(block)?;
        let done = self.replied.is_some_and(|sent| self.has_replied(sent));
        // The source closes first, so that its end has the waiting time of TCP.
        if done && matches!(receive(&self.socket, buffer), Ok((0, _))) {
            return Ok(Next::Close);
        }
        Ok(Next::Open)
    }

    /// Takes bytes that have come; the arrival when they are the last ones.
    fn take(&mut self, bytes: &[u8], time: u64, block: &mut Block) -> io::Result<Option<Arrival>> {
        if self.received == 0 {
            self.first_ns = time;
        }
        let offset = self.received;
        self.received += bytes.len() as u64;
        // Of the header, this many bytes are here; what follows is content.
        let head = bytes.len().min(HEADER.saturating_sub(offset as usize));
        if head > 0 {
            let place = offset as usize;
            self.start[place..place + head].copy_from_slice(&bytes[..head]);
        }
        if self.received < HEADER as u64 {
            return Ok(None);
        }
        let header = match self.header {
            Some(header) => header,
            None => Header::decode(&self.start)
                .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no transfer"))?,
        };
        self.header = Some(header);
        if block.seed() != header.seed {
            *block = Block::new(header.seed);
        }
        let content = offset.max(HEADER as u64) - HEADER as u64;
        self.intact &= block.holds(header.id, Way::There, content, &bytes[head..]);
        Ok((self.received >= header.bytes).then_some(Arrival {
            id: header.id,
            bytes: self.received,
            intact: self.intact && self.received == header.bytes,
            first_ns: self.first_ns,
            last_ns: time,
        }))
    }

    fn reply(&mut self, block: &Block) -> io::Result<()> {
        let (Some(header), Some(sent)) = (self.header, &mut self.replied) else { return Ok(()) };
        while *sent < header.reply_bytes {
            let left = header.reply_bytes - *sent;
            match self.socket.write_vectored(&block.slices(header.id, Way::Back, *sent, left)) {
                Ok(len) => *sent += len as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
