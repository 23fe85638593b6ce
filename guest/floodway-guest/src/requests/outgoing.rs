//! What a connection has to send.

use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;

use sha2::{Digest, Sha256};

use super::{BUFFER, DIGEST, digest};
use crate::stream::Bytes;

/// Bytes that are owed to the peer, made when there is room for them.
pub struct Outgoing {
    source: Bytes,
    hash: Sha256,
    /// Bytes that are not in the buffer yet, a multiple of 8.
    owed: u64,
    buffer: Vec<u8>,
    /// Of the buffer, this much was sent.
    sent: usize,
}

impl Outgoing {
    /// Sends `first`, and then what is owed: the bytes of `seed`.
    pub fn new(seed: u64, first: Vec<u8>) -> Self {
        let (source, hash) = (Bytes::new(seed), Sha256::new());
        Self { source, hash, owed: 0, buffer: first, sent: 0 }
    }

    /// Owes `bytes` more, a multiple of 8.
    pub fn owe(&mut self, bytes: u64) {
        self.owed += bytes;
    }

    /// Sends `last` behind what is in the buffer, and nothing after that.
    pub fn finish(&mut self, last: &[u8]) {
        self.owed = 0;
        self.buffer.extend_from_slice(last);
    }

    /// SHA-256 of what was made for the peer, `first` and `last` left out.
    pub fn digest(&self) -> [u8; DIGEST] {
        digest(&self.hash)
    }

    /// Writes as much as there is room for. Returns `true` if all is sent.
    pub fn write(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        while self.sent < self.buffer.len() || self.refill() {
            match socket.write(&self.buffer[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns `false` if nothing is owed.
    fn refill(&mut self) -> bool {
        let len = self.owed.min(BUFFER as u64);
        self.buffer.resize(len as usize, 0);
        self.sent = 0;
        self.source.fill(&mut self.buffer);
        self.hash.update(&self.buffer);
        self.owed -= len;
        len > 0
    }
}
