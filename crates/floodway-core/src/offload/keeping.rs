//! Frames that are kept for a guest until it has acknowledged them itself; [`redelivery`](super::redelivery) says when they are
//! delivered again.

use std::collections::VecDeque;

use floodway_wire::tcp::Flags;

use super::config::LEAST_FRAME;
use super::journal::FlowPlace;
use super::reports::Reports;
use super::state_pool::Poolable;
use crate::tcp::{Segment, Seq};
use crate::time::{Duration, Instant};

/// The guest is given this long to acknowledge before kept data is delivered again; doubles.
pub(super) const REDELIVERY: Duration = Duration::from_secs(1);
/// A longer list is not kept for later.
const MAX_SPARE_FRAMES: usize = 256;

#[derive(Debug)]
pub(super) struct Kept<B> {
    pub frame: B,
    pub end: Seq,
    /// What it counts for.
    pub charge: u32,
    pub flags: Flags,
    pub has_timestamps: bool,
}

/// What the guest has not acknowledged itself.
#[derive(Debug)]
pub(super) struct Keeping<B> {
    pub(super) kept: VecDeque<Kept<B>>,
    /// Bytes that the kept frames count for.
    pub(super) kept_bytes: u32,
    /// Duplicate ACKs of the guest in a row.
    pub(super) dup_acks: u8,
    /// Redeliveries in a row.
    pub(super) redeliveries: u8,
    pub(super) redeliver_at: Instant,
    /// The first kept frame has to be delivered again.
    pub(super) redelivery_due: bool,
    /// The next redelivery is of all kept frames: the guest was stopped, and what waited for it may be lost.
    pub(super) all_due: bool,
    /// The guest has lost something before this: what it acknowledges next ends where the next gap begins, as
    /// with a NewReno sender (RFC 6582).
    pub(super) recover: Option<Seq>,
    /// What the peer sent again although it was acknowledged: it is to hear that it came twice.
    pub(super) repeat: Option<(Seq, Seq)>,
    /// Where a journal has what is kept, if there is one ([`recording`](super::recording)).
    pub(super) place: Option<FlowPlace>,
    /// What came out of order.
    pub(super) reports: Reports,
}

/// A peer can make every flow of a port have one, by a hole.
const _: () = assert!(size_of::<Keeping<[u8; 64]>>() <= 160);

impl<B> Keeping<B> {
    pub(super) const EMPTY: Self = Self {
        kept: VecDeque::new(),
        kept_bytes: 0,
        dup_acks: 0,
        redeliveries: 0,
        redeliver_at: Instant::NEVER,
        redelivery_due: false,
        all_due: false,
        recover: None,
        repeat: None,
        place: None,
        reports: Reports::EMPTY,
    };
}

/// What a segment counts for while it is kept, in bytes.
pub(super) fn charge(segment: &Segment) -> u32 {
    segment.len.max(LEAST_FRAME)
}

impl<B> Keeping<B> {
    /// Returns `true` if no frame is kept.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keeps `frame`, whose segment is the next in order.
    #[inline]
    pub fn push(&mut self, frame: B, segment: &Segment, now: Instant) {
        if self.kept.is_empty() {
            self.redeliver_at = now + REDELIVERY;
        }
        let charge = charge(segment);
        let has_timestamps = segment.options.timestamps.is_some();
        let (end, flags) = (segment.end(), segment.flags);
        self.kept.push_back(Kept { frame, end, charge, flags, has_timestamps });
        self.kept_bytes += charge;
    }

    /// Gives up the frame that was kept last.
    pub fn pop_latest(&mut self) {
        if let Some(latest) = self.kept.pop_back() {
            self.kept_bytes -= latest.charge;
        }
        if self.kept.is_empty() {
            self.redeliver_at = Instant::NEVER;
        }
    }
}

impl<B: 'static> Poolable for Keeping<B> {
    const REST: &'static Self = &Self::EMPTY;

    fn new() -> Self {
        Self::EMPTY
    }

    fn clear(&mut self) -> bool {
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        let small = kept.capacity() <= MAX_SPARE_FRAMES;
        *self = Self { kept, ..Self::EMPTY };
        small
    }
}
