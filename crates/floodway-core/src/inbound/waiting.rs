//! What of a VM waits for its turn: a request, or the answer to a SYN. [`request_pacing`](super::request_pacing) decides when it leaves.

use super::paced_queue::Place;
use super::unused_credit::Request;
use crate::tcp::{Segment, Seq};
use crate::time::{Duration, Instant};

/// No ACK waits for longer: half of the least retransmission time-out of Linux.
pub const MAX_HOLD: Duration = Duration::from_millis(100);

/// Something of the VM that waits, and is not a bare ACK.
#[derive(Debug)]
pub(super) struct Waiting<B> {
    pub frame: B,
    pub seq: Seq,
    pub len: u32,
    pub since: Instant,
    pub what: What,
    /// Where in the line of its kind.
    pub place: Place,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Request(Request),
    /// A SYN-ACK, with the window that it tells.
    SynAck {
        window: u16,
        cost: u64,
    },
}

impl<B> Waiting<B> {
    /// When it leaves at the latest.
    pub fn due(&self) -> Instant {
        self.since + MAX_HOLD
    }

    /// The first sequence number that has not left: what overtakes it carries this one.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The segment is what waits, once more.
    pub fn is(&self, segment: &Segment) -> bool {
        (segment.seq, segment.len) == (self.seq, self.len)
    }
}

/// What becomes of data of the VM.
pub(super) enum Admission {
    /// It goes on to the clamp.
    Passes,
    /// It waits already.
    Absorb,
    /// It is a request that has to wait.
    Waits(Request),
}
