//! Frames as a port's offload keeps them.

use std::sync::Arc;

use floodway_wire::vnet::VnetHdr;
use floodway_wire::{Meta, parse};

use super::frames;
use crate::frame;
use crate::frame::held::{About, Held};
use crate::frame::pool::Pool;

/// A frame that is kept, until it is dropped.
pub struct Stored(#[expect(dead_code, reason = "it is there to be dropped")] Held);

/// Keeps copies of one frame.
pub struct Stores {
    pool: Arc<Pool<About>>,
    bytes: Vec<u8>,
    meta: Meta,
}

impl Stores {
    /// Keeps TCP segments with `payload` bytes, in `limit` bytes of memory at most.
    ///
    /// # Panics
    /// Such a segment does not fit into a packet.
    #[must_use]
    pub fn new(payload: usize, limit: usize) -> Self {
        let bytes = frames::tcp(1, 2, false).build(&frames::pattern(1, payload));
        let meta = parse(&bytes, bytes.len()).expect("a segment");
        Self { pool: Arc::new(Pool::new(limit)), bytes, meta }
    }

    /// Keeps another copy. `None` when there is no memory.
    #[must_use]
    pub fn store(&self) -> Option<Stored> {
        frame::with_slice(VnetHdr::default(), &self.bytes, |frame| {
            Held::copy(&self.pool, frame, &self.meta).map(Stored)
        })
    }
}
