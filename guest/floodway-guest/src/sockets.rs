//! What an application sees of a TCP connection: socket calls in order, and what each has returned.
//!
//! Scripts are for what a byte stream does not show: when `close` returns, what is still unacknowledged, which error ends a connection. Nothing in an
//! [`Outcome`] depends on time, so two runs over the same network have equal ones whatever lies between the ends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::IntoRawFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use crate::stream::{self, Bytes};
use crate::transfer::unacknowledged;

/// Bytes of a write.
const CHUNK: usize = 64 * 1024;
/// Between two looks at what is unacknowledged.
const LOOK: Duration = Duration::from_millis(5);

/// A connection, and what is done with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// Where to.
    pub address: SocketAddr,
    /// Longest wait of a call that does not say another.
    pub timeout_ms: u64,
    /// One after the other, up to the first that fails.
    pub calls: Vec<Call>,
}

/// A socket call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Writes pseudo-random bytes. Value: how many.
    Send {
        /// How many.
        bytes: u64,
        /// Seed of the bytes.
        seed: u64,
    },
    /// `SO_SNDBUF`, which the kernel doubles.
    SendBuffer {
        /// What may wait in the socket.
        bytes: usize,
    },
    /// `SO_LINGER`.
    Linger {
        /// How long `close` may wait for acknowledgements.
        seconds: u64,
    },
    /// `TCP_USER_TIMEOUT`.
    UserTimeout {
        /// How long bytes may be unacknowledged.
        ms: u32,
    },
    /// Waits until nothing is unacknowledged (`SIOCOUTQ`). Value: bytes that still are when the time is up.
    AwaitAcknowledged,
    /// `shutdown(SHUT_WR)`.
    ShutdownWrite,
    /// Reads to the end of the stream. Value: how many bytes.
    ReadToEnd,
    /// `close`. The last call.
    Close,
}

/// What a call has returned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Number of the error.
    pub error: Option<i32>,
    /// As the call says.
    pub value: u64,
    /// SHA-256 of what was read, in lower-case hexadecimal.
    pub sha256: Option<String>,
}

/// Connects, makes the calls, and returns what each has returned.
///
/// # Errors
/// There is no connection.
pub fn run(script: &Script) -> io::Result<Vec<Outcome>> {
    let timeout = Duration::from_millis(script.timeout_ms);
    let socket = TcpStream::connect_timeout(&script.address, timeout)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    let mut socket = Some(socket);
    let mut outcomes = Vec::new();
    for call in &script.calls {
        let result = match (&mut socket, call) {
            (Some(_), Call::Close) => close(socket.take()),
            (Some(socket), call) => make(socket, call, timeout),
            (None, _) => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        let outcome = result.unwrap_or_else(|error| Outcome {
            error: Some(error.raw_os_error().unwrap_or(libc::EIO)),
            ..Outcome::default()
        });
        let failed = outcome.error.is_some();
        outcomes.push(outcome);
        if failed {
            break;
        }
    }
    Ok(outcomes)
}

fn make(socket: &mut TcpStream, call: &Call, timeout: Duration) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    match *call {
        Call::Send { bytes, seed } => outcome.value = send(socket, bytes, seed)?,
        Call::SendBuffer { bytes } => sockopt::set_socket_send_buffer_size(&*socket, bytes)?,
        Call::Linger { seconds } => {
            sockopt::set_socket_linger(&*socket, Some(Duration::from_secs(seconds)))?;
        }
        Call::UserTimeout { ms } => sockopt::set_tcp_user_timeout(&*socket, ms)?,
        Call::AwaitAcknowledged => outcome.value = await_acknowledged(socket, timeout)?,
        Call::ShutdownWrite => socket.shutdown(Shutdown::Write)?,
        Call::ReadToEnd => {
            let mut counted = Counted { socket, bytes: 0 };
            outcome.sha256 = Some(stream::sha256(&mut counted)?);
            outcome.value = counted.bytes;
        }
        Call::Close => {}
    }
    Ok(outcome)
}

fn send(socket: &mut TcpStream, bytes: u64, seed: u64) -> io::Result<u64> {
    let mut source = Bytes::new(seed);
    let mut buffer = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let piece = &mut buffer[..left.min(CHUNK as u64) as usize];
        source.fill(piece);
        socket.write_all(piece)?;
        left -= piece.len() as u64;
    }
    Ok(bytes)
}

fn await_acknowledged(socket: &TcpStream, timeout: Duration) -> io::Result<u64> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = unacknowledged(socket)?;
        if left == 0 || Instant::now() >= deadline {
            return Ok(left);
        }
        thread::sleep(LOOK);
    }
}

/// Closes a socket and says what the kernel said, which dropping it does not.
fn close(socket: Option<TcpStream>) -> io::Result<Outcome> {
    let Some(socket) = socket else { return Ok(Outcome::default()) };
    // SAFETY: the descriptor was just given up by its only owner.
    let result = unsafe { libc::close(socket.into_raw_fd()) };
    if result == 0 { Ok(Outcome::default()) } else { Err(io::Error::last_os_error()) }
}

/// Counts what is read.
struct Counted<'a> {
    socket: &'a mut TcpStream,
    bytes: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.socket.read(buffer)?;
        self.bytes += len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn outcomes(calls: Vec<Call>, peer: impl FnOnce(TcpStream) + Send + 'static) -> Vec<Outcome> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || peer(listener.accept().unwrap().0));
        let outcomes = run(&Script { address, timeout_ms: 60_000, calls }).unwrap();
        peer.join().unwrap();
        outcomes
    }

    #[test]
    fn a_stream_is_half_closed_and_answered() {
        let calls = vec![
            Call::SendBuffer { bytes: 100_000 },
            Call::Linger { seconds: 9 },
            Call::UserTimeout { ms: 30_000 },
            Call::Send { bytes: 100_000, seed: 1 },
            Call::ShutdownWrite,
            Call::ReadToEnd,
            Call::AwaitAcknowledged,
            Call::Close,
        ];
        let outcomes = outcomes(calls, |mut socket| {
            let mut got = Vec::new();
            socket.read_to_end(&mut got).unwrap();
            assert_eq!(got.len(), 100_000);
            socket.write_all(b"abc").unwrap();
        });
        assert_eq!(outcomes.len(), 8);
        assert!(outcomes.iter().all(|outcome| outcome.error.is_none()), "{outcomes:?}");
        assert_eq!((outcomes[3].value, outcomes[5].value, outcomes[6].value), (100_000, 3, 0));
        assert_eq!(outcomes[5].sha256, stream::sha256(&mut &b"abc"[..]).ok());
    }

    #[test]
    fn calls_end_with_the_first_error() {
        let calls = vec![Call::Send { bytes: 64 << 20, seed: 1 }, Call::ShutdownWrite];
        let outcomes = outcomes(calls, |socket| {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        });
        let error = Some(libc::ECONNRESET);
        assert_eq!(outcomes, [Outcome { error, ..Outcome::default() }]);
    }
}
