//! Changes to the header of a segment that passes.

use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::Timestamps;

use super::seq::Seq;

/// Changes to the header of a frame that passes. `None` leaves a field alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Sequence number.
    pub seq: Option<Seq>,
    /// Acknowledgement number.
    pub ack: Option<Seq>,
    /// Window as on the wire.
    pub window: Option<u16>,
    /// Control bits.
    pub flags: Option<Flags>,
    /// Timestamps; only if the frame has them.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks are overwritten by padding.
    pub strip_sack: bool,
    /// The flow's name is appended to the options ([`Segment::has_room`](super::Segment::has_room)).
    pub append_name: bool,
}

impl Edit {
    /// Nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
