//! Byte streams for integrity tests: both ends make or hash the same pseudo-random bytes, so a single
//! wrong, lost, doubled or swapped byte shows in the digest. Used by the agent in guests, and by
//! the lab for the host's end.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes per read and write.
const CHUNK: usize = 64 * 1024;

/// Result of [`send`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Bytes sent.
    pub bytes: u64,
    /// Their SHA-256 in lower-case hexadecimal.
    pub sha256: String,
    /// From before the connection to the peer's close.
    pub elapsed_ns: u64,
}

/// Result of [`receive`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Bytes received.
    pub bytes: u64,
    /// Their SHA-256 in lower-case hexadecimal.
    pub sha256: String,
    /// From the first byte to the end of the stream.
    pub data_ns: u64,
}

/// Pseudo-random bytes by seed (SplitMix64, little-endian words).
#[derive(Debug, Clone)]
pub struct Bytes {
    state: u64,
}

impl Bytes {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Fills `buffer` with the next bytes. All buffers but the last must be multiples of 8 long: the rest of a word is dropped.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_mut(8) {
            word.copy_from_slice(&self.next_word().to_le_bytes()[..word.len()]);
        }
    }

    fn next_word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

/// Connects to `address`, sends `bytes` pseudo-random bytes, closes, and waits until the peer has
/// closed too. `timeout` is the longest wait without progress.
///
/// # Errors
/// When the connection fails, breaks, or makes no progress.
pub fn send(address: SocketAddr, bytes: u64, seed: u64, timeout: Duration) -> io::Result<Sent> {
    let start = Instant::now();
    let mut socket = TcpStream::connect_timeout(&address, timeout)?;
    socket.set_write_timeout(Some(timeout))?;
    socket.set_read_timeout(Some(timeout))?;
    let (mut source, mut hash) = (Bytes::new(seed), Sha256::new());
    let mut buffer = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let piece = &mut buffer[..left.min(CHUNK as u64) as usize];
        source.fill(piece);
        hash.update(&*piece);
        socket.write_all(piece)?;
        left -= piece.len() as u64;
    }
    socket.shutdown(Shutdown::Write)?;
    while read(&mut socket, &mut buffer)? > 0 {}
    Ok(Sent { bytes, sha256: hex(hash), elapsed_ns: nanoseconds(start.elapsed()) })
}

/// Accepts one connection, reads it to its end, hashes it, and closes it. `timeout` is the longest wait without progress.
///
/// # Errors
/// When nobody connects, or the connection breaks or makes no progress.
pub fn receive(listener: &TcpListener, timeout: Duration) -> io::Result<Received> {
    let mut socket = accept(listener, timeout)?;
    socket.set_read_timeout(Some(timeout))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; CHUNK]);
    let (mut bytes, mut first) = (0, None);
    loop {
        let len = read(&mut socket, &mut buffer)?;
        let first = *first.get_or_insert_with(Instant::now);
        if len == 0 {
            let data_ns = nanoseconds(first.elapsed());
            return Ok(Received { bytes, sha256: hex(hash), data_ns });
        }
        hash.update(&buffer[..len]);
        bytes += len as u64;
    }
}

/// A read with a timeout fails when the process is stopped and goes on (signal(7)); that is no end of a stream.
fn read(socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn accept(listener: &TcpListener, timeout: Duration) -> io::Result<TcpStream> {
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    let mut wait = [PollFd::new(listener, PollFlags::IN)];
    if poll(&mut wait, Some(&timeout))? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "nobody connected"));
    }
    Ok(listener.accept()?.0)
}

/// SHA-256 of everything that `source` yields, in lower-case hexadecimal.
///
/// # Errors
/// When reading fails.
pub fn sha256(source: &mut impl Read) -> io::Result<String> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match source.read(&mut buffer)? {
            0 => return Ok(hex(hash)),
            len => hash.update(&buffer[..len]),
        }
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn the_digest_is_sha256() {
        let digest = sha256(&mut &b"abc"[..]).unwrap();
        assert_eq!(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // First outputs of the reference implementation for seed 1234567.
        let mut bytes = Bytes::new(1_234_567);
        assert_eq!(bytes.next_word(), 6_457_827_717_110_365_317);
        assert_eq!(bytes.next_word(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn both_ends_see_the_same_bytes() {
        for bytes in [0, 1, 12_345, 3 * CHUNK as u64 + 5] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let receiver = std::thread::spawn(move || receive(&listener, TIMEOUT).unwrap());
            let sent = send(address, bytes, 7, TIMEOUT).unwrap();
            let received = receiver.join().unwrap();
            assert_eq!((received.bytes, &received.sha256), (bytes, &sent.sha256));
        }
    }

    #[test]
    fn seeds_differ() {
        let mut streams = [[0_u8; 16]; 2];
        Bytes::new(1).fill(&mut streams[0]);
        Bytes::new(2).fill(&mut streams[1]);
        assert_ne!(streams[0], streams[1]);
    }

    #[test]
    fn nobody_connecting_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = receive(&listener, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
