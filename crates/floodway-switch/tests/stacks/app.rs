//! The program above a stack: it writes a stream, reads the other one, and decides when to close.

use std::time::Duration;

use floodway_core::time::Instant;
use sha2::{Digest, Sha256};

use super::random::Random;
use super::stack::Stack;

/// When a program ends its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// As soon as all is written.
    WhenWritten,
    /// When all is written and the other side has ended its stream: the other side closes actively.
    AfterPeer,
}

/// How a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// At once, all there is.
    AtOnce,
    /// It stops for `pause` after each `bytes`, longer than the window lasts: the window closes.
    Pauses { bytes: u64, pause: Duration },
}

/// What a program does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes that it writes.
    pub bytes: u64,
    pub reading: Reading,
    pub close: Close,
    /// The FIN waits until all bytes have been acknowledged for [`QUIET`]: it never rides on data, and no ACK of
    /// repeated data comes after it.
    pub lone_fin: bool,
}

/// A stream by its length and SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    pub bytes: u64,
    pub digest: Vec<u8>,
}

/// Longer than a repeat and its ACK are under way.
const QUIET: Duration = Duration::from_millis(500);

/// One program.
pub struct App {
    plan: Plan,
    source: Random,
    /// Produced and not yet taken by the stack.
    unsent: Vec<u8>,
    produced: u64,
    closed: bool,
    /// When the quiet time before a lone FIN ends.
    close_at: Option<Instant>,
    read: u64,
    /// Bytes to read before the next pause.
    until_pause: u64,
    paused_until: Option<Instant>,
    written_digest: Sha256,
    read_digest: Sha256,
}

/// Bytes that a program writes or reads in one call.
const CHUNK: usize = 16 << 10;

impl App {
    /// A program that writes what follows from `seed`.
    pub fn new(plan: Plan, seed: u64) -> Self {
        let until_pause = match plan.reading {
            Reading::AtOnce => u64::MAX,
            Reading::Pauses { bytes, .. } => bytes,
        };
        Self {
            plan,
            source: Random::new(seed),
            unsent: Vec::new(),
            produced: 0,
            closed: false,
            close_at: None,
            read: 0,
            until_pause,
            paused_until: None,
            written_digest: Sha256::new(),
            read_digest: Sha256::new(),
        }
    }

    /// Writes and reads what it can. Returns `true` if the stack has something new to do.
    pub fn run(&mut self, now: Instant, stack: &mut dyn Stack) -> bool {
        if !stack.status().established {
            return false;
        }
        let before = (self.produced, self.unsent.len(), self.read, self.closed);
        self.read(now, stack);
        self.write(now, stack);
        before != (self.produced, self.unsent.len(), self.read, self.closed)
    }

    /// When it has something to do of itself.
    pub fn next(&self) -> Instant {
        let close_at = self.close_at.filter(|_| !self.closed);
        self.paused_until.unwrap_or(Instant::NEVER).min(close_at.unwrap_or(Instant::NEVER))
    }

    pub fn written(&self) -> Stream {
        Stream { bytes: self.produced, digest: self.written_digest.clone().finalize().to_vec() }
    }

    pub fn read_so_far(&self) -> Stream {
        Stream { bytes: self.read, digest: self.read_digest.clone().finalize().to_vec() }
    }

    /// It has written all, and has ended its stream.
    pub fn is_done_writing(&self) -> bool {
        self.closed
    }

    fn write(&mut self, now: Instant, stack: &mut dyn Stack) {
        loop {
            if self.unsent.is_empty() {
                let len = (self.plan.bytes - self.produced).min(CHUNK as u64) as usize;
                self.unsent.resize(len, 0);
                self.source.fill(&mut self.unsent);
                self.written_digest.update(&self.unsent);
                self.produced += len as u64;
            }
            if self.unsent.is_empty() {
                break;
            }
            let taken = stack.send(&self.unsent);
            self.unsent.drain(..taken);
            if taken == 0 {
                return;
            }
        }
        if !self.closed && self.may_close(now, stack) {
            self.closed = true;
            stack.close();
        }
    }

    fn may_close(&mut self, now: Instant, stack: &mut dyn Stack) -> bool {
        if self.plan.close == Close::AfterPeer && !stack.status().ended {
            return false;
        }
        if !self.plan.lone_fin {
            return true;
        }
        if self.close_at.is_none() && stack.is_all_acknowledged() {
            self.close_at = Some(now + QUIET);
        }
        self.close_at.is_some_and(|at| at <= now)
    }

    fn read(&mut self, now: Instant, stack: &mut dyn Stack) {
        if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        self.paused_until = None;
        while self.paused_until.is_none() {
            let bytes = stack.recv(CHUNK.min(self.until_pause as usize));
            if bytes.is_empty() {
                return;
            }
            self.read += bytes.len() as u64;
            self.until_pause -= bytes.len() as u64;
            self.read_digest.update(&bytes);
            if let Reading::Pauses { bytes, pause } = self.plan.reading
                && self.until_pause == 0
            {
                self.until_pause = bytes;
                self.paused_until = Some(now + pause);
            }
        }
    }
}
