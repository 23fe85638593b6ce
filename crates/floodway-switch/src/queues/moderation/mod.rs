//! Interrupt moderation: when a guest hears of frames of a co-resident VM, and of its own frames that are done with.
//!
//! # Theory of operation
//! **Goal**: a stream of small messages between guests of one host must not cost an interrupt each, on either side. An interrupt is
//! work for the guest, and if the guest shares its core with the other one, it takes the core away from who
//! has more to do: two switches of VMs for one message ("Residency Aware Inter-VM Communication", section 4.3).
//!
//! Frames, and descriptors that are given back, become visible at once, whatever happens here. Only the interrupt waits. A
//! guest that looks by itself finds them.
//!
//! | interrupt | waits for | is not urgent because | module |
//! |---|---|---|---|
//! | frames have come | more frames of the stream | more are on their way | [`Moderation`] |
//! | frames are sent | the guest to pause | who sends frees what was sent before by itself | [`Completions`] |
//!
//! Linux's TCP gains from the second one twice. While something of a connection is not yet known to be sent, it puts small writes together
//! (`tcp_autocorking`): told after each frame, it sends more and smaller ones.
//!
//! **One way**: both wait only if the guest that sends does so for at least `RUN` frames in a row that nobody answers. Requests and
//! replies come in turns, and nobody would gain if they waited. A bare acknowledgement of TCP is neither a frame of such a row nor an answer:
//! who sends it has nothing to say. A message in several frames is expected to be answered after as many as the one before.
//!
//! **Not over**: the next frame is at most two mean gaps late. A sender that pauses may be waiting: for an answer, or for room.
//!
//! **Limit**: four times what an interrupt costs the sender, so that interrupts take at most a fifth of its time. The cost is the time
//! from an interrupt to the next frame beyond a usual gap: little where everybody has a core, and the other VM's whole turn where two
//! share one. The limit lies between `SHORTEST` and `LONGEST`.
//!
//! **Who ends it**: the worker that let an interrupt wait looks again at the time that it was told. Times are that worker's clock
//! readings.
//!
//! **Who pays**: an interrupt that waited is sent between turns, and charged to whose frames were let wait first, or are sent.
//!
//! **Invariant**: a guest that wants an interrupt gets it at most `LONGEST` after it was first let wait, plus the length of one
//! round of the worker. Interrupts for frames from uplinks never wait.

mod pace;
mod receive;
mod transmit;

use floodway_core::time::{Duration, Instant};

pub use receive::{Delivered, Moderation};
pub use transmit::{Completed, Completions};

/// Frames one way without an answer that make a stream.
const RUN: u64 = 4;
/// Limit where an interrupt costs the sender nothing.
const SHORTEST: Duration = Duration::from_micros(50);
/// Limit where it costs much.
const LONGEST: Duration = Duration::from_millis(1);

/// What became of an interrupt that was let wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moderated {
    /// It waits until then.
    Waits(Instant),
    /// It was sent.
    Sent,
    /// There was none, or the guest does not want it any more.
    Unwanted,
}

impl Moderated {
    /// Returns what became of one that is over: `interrupted` says whether the guest was interrupted.
    pub const fn over(interrupted: bool) -> Self {
        if interrupted { Self::Sent } else { Self::Unwanted }
    }
}
