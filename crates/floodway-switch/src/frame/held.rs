//! A frame that the engine keeps.

use std::sync::Arc;

use floodway_wire::Meta;
use floodway_wire::vnet::VnetHdr;

use crate::frame::Frame;
use crate::frame::pool::{Buffer, Pool};

/// A copy of a whole frame, in one piece, and where its headers lie.
pub(crate) struct Held {
    buffer: Buffer,
    /// Offload state, as the frame came.
    pub(crate) vnet: VnetHdr,
    /// The parsed headers. The frame ends where its packet ends.
    pub(crate) meta: Meta,
}

impl Held {
    /// Copies `frame`, without Ethernet padding. `None` when there is no memory.
    pub(crate) fn copy(pool: &Arc<Pool>, frame: &Frame<'_>, meta: &Meta) -> Option<Self> {
        let mut buffer = pool.take(meta.packet_end as usize)?;
        frame.copy_to(&mut buffer.bytes_mut()[..meta.packet_end as usize]);
        let meta = Meta { frame_len: meta.packet_end, ..*meta };
        Some(Self { buffer, vnet: frame.vnet, meta })
    }

    /// The frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[..self.meta.packet_end as usize]
    }

    /// Its headers up to the payload.
    pub(crate) fn headers(&self) -> &[u8] {
        &self.bytes()[..usize::from(self.meta.payload_offset)]
    }

    /// `len` bytes of payload from `offset` on, as far as there are so many.
    pub(crate) fn payload(&self, offset: u32, len: u32) -> &[u8] {
        let payload = &self.bytes()[usize::from(self.meta.payload_offset)..];
        let rest = payload.get(offset as usize..).unwrap_or_default();
        &rest[..rest.len().min(len as usize)]
    }
}
