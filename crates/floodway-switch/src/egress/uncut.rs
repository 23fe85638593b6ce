//! GSO packets that are cut over several turns of their source.
//!
//! # Theory of operation
//! **Goal**: a GSO packet of 1365 segments costs 2 ms, most of it for system calls. Others whom the same worker serves have their turns in
//! between.
//!
//! One of more than [`CUT_AT_ONCE`](crate::frame::CUT_AT_ONCE) segments is copied, and its source's worker cuts it [`PIECE`](super::PIECE) by piece in the source's
//! turns, which is charged for each piece. What the source sends by this uplink meanwhile waits behind it, for order. That is the rest of a
//! batch and what other threads send for the source: the worker takes nothing from who has something here.
//!
//! **State**: the frames of each source, in order. The first may be with the thread that cuts it, without the lock.
//!
//! **Invariants**: a source has at most [`LIMIT`] bytes and a frame here; a source that is listed has a frame here, or its first one is being
//! cut.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use floodway_core::l2::PortId;
use floodway_wire::vnet::VnetHdr;

use super::Label;
use crate::frame::Frame;
use crate::sync::lock;

/// Bytes of a source above which nothing more waits: as much as the TCP offload keeps for a VM.
const LIMIT: usize = 4 << 20;

/// A frame that is to be cut, or waits behind one.
pub(super) struct Whole {
    pub(super) vnet: VnetHdr,
    pub(super) bytes: Box<[u8]>,
    /// Once it has begun: its class, and the segment that is next.
    pub(super) cut: Option<(Label, usize)>,
}

impl Whole {
    /// A copy of `frame`, to be cut from its first segment on if its class is known.
    pub(super) fn copy(frame: &Frame<'_>, label: Option<Label>) -> Self {
        let mut bytes = Vec::with_capacity(frame.len as usize);
        frame.append_to(&mut bytes);
        Self { vnet: frame.vnet, bytes: bytes.into(), cut: label.map(|label| (label, 0)) }
    }
}

struct Source {
    id: PortId,
    frames: VecDeque<Whole>,
    bytes: usize,
    /// The first is being cut.
    cutting: bool,
}

/// What is to be cut for an uplink.
#[derive(Default)]
pub(super) struct Backlog {
    /// Sources in the list, so that most who look need no lock.
    listed: AtomicUsize,
    sources: Mutex<Vec<Source>>,
}

impl Backlog {
    /// Returns `true` if frames of `id` wait.
    #[inline]
    pub(super) fn holds(&self, id: PortId) -> bool {
        self.listed.load(Ordering::Acquire) > 0
            && lock(&self.sources).iter().any(|source| source.id == id)
    }

    /// Lets a frame wait behind those of its source.
    ///
    /// # Errors
    /// There is no room: the frame comes back.
    pub(super) fn push(&self, id: PortId, frame: Whole) -> Result<(), Whole> {
        let mut sources = lock(&self.sources);
        let at = sources.iter().position(|source| source.id == id).unwrap_or_else(|| {
            sources.push(Source { id, frames: VecDeque::new(), bytes: 0, cutting: false });
            self.listed.store(sources.len(), Ordering::Release);
            sources.len() - 1
        });
        let source = &mut sources[at];
        if source.bytes >= LIMIT {
            return Err(frame);
        }
        source.bytes += frame.bytes.len();
        source.frames.push_back(frame);
        Ok(())
    }

    /// Takes out the first frame of `id`, to be given to [`put_back`](Self::put_back) or [`done`](Self::done). `None` if it has none, or
    /// that is out already.
    pub(super) fn take(&self, id: PortId) -> Option<Whole> {
        if self.listed.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut sources = lock(&self.sources);
        let source = sources.iter_mut().find(|source| source.id == id && !source.cutting)?;
        source.cutting = true;
        source.frames.pop_front()
    }

    /// Puts the first frame of `id` back: more of it is to be cut.
    pub(super) fn put_back(&self, id: PortId, frame: Whole) {
        let mut sources = lock(&self.sources);
        if let Some(source) = sources.iter_mut().find(|source| source.id == id) {
            source.cutting = false;
            source.frames.push_front(frame);
        }
    }

    /// Takes out all that waits.
    pub(super) fn clear(&self) -> Vec<Whole> {
        let mut sources = lock(&self.sources);
        self.listed.store(0, Ordering::Release);
        sources.drain(..).flat_map(|source| source.frames).collect()
    }

    /// The first frame of `id`, of `len` bytes, has left.
    pub(super) fn done(&self, id: PortId, len: usize) {
        let mut sources = lock(&self.sources);
        let Some(at) = sources.iter().position(|source| source.id == id) else { return };
        let source = &mut sources[at];
        source.cutting = false;
        source.bytes -= len;
        if source.frames.is_empty() {
            sources.swap_remove(at);
            self.listed.store(sources.len(), Ordering::Release);
        }
    }
}
