//! Timed transfers: what the experiments on contended VMs measure.
//!
//! # Theory of operation
//!
//! A *source* opens a connection, sends a fixed number of bytes, and waits for the *sink*'s reply, which the sink
//! sends as soon as it has the last byte. Either end may be in a guest or on the host; both are the
//! same code, so that only the place differs. Transfers come in *rounds*: the connections of
//! a round start together, the next round starts when the last of them is done, after a random pause, so that
//! rounds meet the VM scheduler in any phase. Or they come *back to back*: where a transfer ends, the next one starts at
//! once, whatever the others do; a place that has done its rounds goes on, uncounted, until all have, so that all
//! that counts is measured among as many others.
//!
//! Two intervals are taken, each by one clock, so no clocks have to agree:
//!
//! - the *whole* transfer, at the source: from `connect` to the last byte of the reply;
//! - the *data phase*: from the first byte to the last. At the receiving end it is taken from the kernel's receive
//!   timestamps (`SO_TIMESTAMPNS`), as a sink that waits for its CPU reads late. The source can also take it, from
//!   its first write until nothing is unacknowledged (`SIOCOUTQ`), for a receiver whose clock stands
//!   still with its VM.
//!
//! The first [`HEADER`] bytes say which transfer it is and how long. The others are a pseudo-random block,
//! repeated, that starts elsewhere for each transfer; the receiving end compares every byte, so that a lost, doubled or
//! swapped byte, or one of another connection, shows. The block's length is a prime, so that no power of two or
//! multiple of a segment maps it onto itself.

mod pattern;
mod receive;
mod sink;
mod source;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use pattern::{HEADER, Header};
pub(crate) use receive::unacknowledged;
pub use sink::Sink;
pub use source::send;

/// What a source does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Where to, and how many connections at once to each.
    pub receivers: Vec<Receiver>,
    /// Bytes of one transfer, at least [`HEADER`].
    pub bytes: u64,
    /// Bytes of the reply, at least 1.
    pub reply_bytes: u64,
    /// How many times.
    pub rounds: u32,
    /// Whether a transfer is followed at once by the next of its place, instead of by the next round.
    #[serde(default)]
    pub back_to_back: bool,
    /// Longest pause before a round, in microseconds. Pauses are uniform from 0 to this. Back to back there is
    /// one, at the start.
    pub pause_max_us: u64,
    /// Seed of the bytes and of the pauses.
    pub seed: u64,
    /// Number of the first transfer; the others follow, round by round, receiver by receiver.
    pub first_id: u64,
    /// Congestion control of the connections, by its kernel name; the system's default without it.
    #[serde(default)]
    pub congestion_control: Option<String>,
    /// Whether to watch when the last byte is acknowledged. It costs wake-ups every 100 us.
    pub watch_acks: bool,
    /// Longest time without any progress.
    pub timeout_ms: u64,
}

/// One destination of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receiver {
    /// A sink.
    pub address: SocketAddr,
    /// Connections at once.
    pub flows: u32,
}

/// One transfer, as its source saw it. Times are in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Its number.
    pub id: u64,
    /// Index into [`Plan::receivers`].
    pub receiver: usize,
    /// From `connect` until the connection was there.
    pub connect_ns: u64,
    /// From the first write until the last byte was acknowledged, if the plan asked for it.
    pub acked_ns: Option<u64>,
    /// From the first to the last byte of the reply.
    pub reply_ns: u64,
    /// From `connect` until the whole reply had been read.
    pub whole_ns: u64,
    /// Why it failed; the times are then meaningless.
    pub error: Option<String>,
}

/// One transfer, as its sink saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Its number.
    pub id: u64,
    /// Bytes that came.
    pub bytes: u64,
    /// Whether they were the right ones.
    pub intact: bool,
    /// When the first of them came, in nanoseconds of `CLOCK_REALTIME`.
    pub first_ns: u64,
    /// When the last of them came.
    pub last_ns: u64,
}

impl Plan {
    /// Connections of one round.
    #[must_use]
    pub fn flows(&self) -> u64 {
        self.receivers.iter().map(|receiver| u64::from(receiver.flows)).sum()
    }
}
