//! Requests and responses over many connections at once: what experiments put on a switch that is being replaced.
//!
//! # Theory of operation
//!
//! A *client* opens connections to a *server*; either end may be in a guest or on the host. On each connection the client sends a request,
//! waits for the whole response, and sends the next request when an interval has passed since the last one, or at once if there is none. Requests and
//! responses are pseudo-random bytes; each end hashes all that it sends and all that it receives.
//!
//! When the client is stopped, connections end after the response that they wait for: the client closes its direction, and the server replies with two
//! SHA-256 digests, of what it has received and of what it has sent. The client compares them with its own. So each connection, however long it lasts and
//! whatever happens on the way, is a stream in both directions that is compared at its ends.
//!
//! A connection is *lost* if it breaks, or if a response or the digests are not there in time after the stop. It is never made anew.
//!
//! Each end is one thread that waits for all its connections by epoll(7), edge-triggered.

mod client;
mod outgoing;
mod server;

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sha2::{Digest, Sha256};

pub use client::{Client, Outcome, Plan};
pub use server::Server;

/// Bytes of a SHA-256.
const DIGEST: usize = 32;
/// Bytes per read.
const BUFFER: usize = 64 * 1024;
/// Most events that are taken at once.
const EVENTS: usize = 256;

/// What a client says first on each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    /// Bytes of each request, a multiple of 8, as [`Bytes`](crate::stream::Bytes) wants it.
    request_bytes: u64,
    /// Bytes of each response, a multiple of 8.
    response_bytes: u64,
    /// Seed of the client's bytes; its complement is that of the server's.
    seed: u64,
}

impl Header {
    const BYTES: usize = 24;

    fn encode(self) -> Vec<u8> {
        [self.request_bytes, self.response_bytes, self.seed].map(u64::to_le_bytes).concat()
    }

    /// Returns `None` if it is not one that a client sends.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |index: usize| {
            let bytes = bytes.get(8 * index..8 * index + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let header = Self { request_bytes: word(0)?, response_bytes: word(1)?, seed: word(2)? };
        header.is_possible().then_some(header)
    }

    fn is_possible(self) -> bool {
        [self.request_bytes, self.response_bytes].iter().all(|&bytes| bytes > 0 && bytes % 8 == 0)
    }
}

/// Sockets that are waited for, by numbers.
struct Waiter {
    epoll: OwnedFd,
}

impl Waiter {
    fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Tells of `source` whenever it has become readable.
    fn add(&self, source: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(number), EventFlags::IN)?)
    }

    /// Makes `socket` non-blocking, and tells of it whenever something has come or there is room again.
    fn add_connection(&self, socket: &TcpStream, number: u64) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(number), flags)?)
    }

    /// Returns the numbers of those of which there is something to tell, after `timeout` at the latest.
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<u64>> {
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut events = Vec::<Event>::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.iter().map(|event| event.data.u64()).collect())
    }
}

/// Raises the limit of open descriptors as far as the hard one allows.
fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

fn digest(hash: &Sha256) -> [u8; DIGEST] {
    hash.clone().finalize().into()
}

#[cfg(test)]
mod tests;
