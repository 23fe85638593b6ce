//! Frames that wait for receive buffers.
//!
//! # Theory of operation
//! **Goal**: frames for which the guest has too few buffers reach it in order once it has posted some, and neither memory nor the
//! worker's time that they take is without a bound.
//!
//! The queue is bounded in bytes. What is placed at one time is bounded by a limit in nanoseconds of the cost model
//! ([`RxQueue::drain_within`](super::RxQueue::drain_within)). A GSO packet that has to be cut for the guest waits uncut, and is cut from where it was left: a
//! GSO packet of more than [`CUT_AT_ONCE`](crate::frame::CUT_AT_ONCE) segments always waits here, so that others have their turns before all of them are placed.
//!
//! **Who pays**: the sender, when the frame comes to wait (it is copied twice then), so that nobody's share is used up by who sends to him.
//! Only what waited while the guest was stopped is paid by the guest's own port, which could be back or not.

use std::collections::VecDeque;
use std::time::Instant;

use floodway_wire::vnet::VnetHdr;

use crate::frame::{Frame, vlan};

/// What one waiting frame costs its queue at least, in bytes, so that tiny frames are bounded too.
const MIN_CHARGE: usize = 1024;

/// A frame that waits for receive buffers.
pub struct PendingFrame {
    /// Offload state.
    pub vnet: VnetHdr,
    /// The frame.
    pub bytes: Box<[u8]>,
    /// When it came.
    pub(super) since: Instant,
    /// Segments that the guest has, of a GSO packet that is cut for it.
    pub(super) given: usize,
    /// Placing it is paid for.
    pub(super) paid: bool,
}

impl PendingFrame {
    /// The frame without its outermost tag, which [is whole](vlan::outer_vid).
    pub(crate) fn without_tag(self) -> Self {
        let vnet = vlan::header_without_tag(self.vnet);
        let bytes = vlan::bytes_without_tag(&self.bytes).into_boxed_slice();
        Self { vnet, bytes, ..self }
    }
}

/// Frames that wait for receive buffers, bounded in bytes.
#[derive(Default)]
pub(super) struct Pending {
    pub frames: VecDeque<PendingFrame>,
    pub charged: usize,
    pub bound: usize,
    /// Available chains that were too few for the first frame.
    pub too_few: Option<u16>,
    /// The first frame waits for the port's next turn, not for buffers.
    pub paused: bool,
}

impl Pending {
    fn charge(len: usize) -> usize {
        len.max(MIN_CHARGE)
    }

    /// Returns `true` if a frame of `len` bytes finds room.
    pub fn has_room(&self, len: usize) -> bool {
        self.charged + Self::charge(len) <= self.bound
    }

    /// Keeps a copy of a frame, for which its sender pays if `paid`. Returns `false` if there is no room.
    pub fn push(&mut self, frame: &Frame<'_>, paid: bool) -> bool {
        if !self.has_room(frame.len as usize) {
            return false;
        }
        let mut bytes = Vec::with_capacity(frame.len as usize);
        frame.append_to(&mut bytes);
        let bytes = bytes.into_boxed_slice();
        self.push_owned(PendingFrame {
            vnet: frame.vnet,
            bytes,
            since: Instant::now(),
            given: 0,
            paid,
        })
    }

    /// Keeps a frame. Returns `false` if there is no room.
    pub fn push_owned(&mut self, frame: PendingFrame) -> bool {
        let charge = Self::charge(frame.bytes.len());
        if !self.has_room(frame.bytes.len()) {
            return false;
        }
        self.frames.push_back(frame);
        self.charged += charge;
        true
    }

    /// Takes the frames out that are `meant`, in order.
    pub fn take(&mut self, meant: impl Fn(&PendingFrame) -> bool) -> Vec<PendingFrame> {
        let (taken, rest): (Vec<_>, Vec<_>) = self.frames.drain(..).partition(meant);
        self.charged = rest.iter().map(|frame| Self::charge(frame.bytes.len())).sum();
        self.look_again();
        self.frames = rest.into();
        taken
    }

    /// Takes the first frame out.
    pub fn pop(&mut self) {
        self.look_again();
        if let Some(frame) = self.frames.pop_front() {
            self.charged -= Self::charge(frame.bytes.len());
        }
    }

    /// Takes all frames out.
    pub fn take_all(&mut self) -> VecDeque<PendingFrame> {
        self.charged = 0;
        self.look_again();
        std::mem::take(&mut self.frames)
    }

    /// What the first frame waits for is not known any more.
    pub fn look_again(&mut self) {
        self.too_few = None;
        self.paused = false;
    }
}
