//! What a sender notes of early acknowledgement: [`early_ack`](super::early_ack) and [`owed`](super::owed) work on it.

use serde::{Deserialize, Serialize};

use crate::offload::journal::FlowPlace;
use crate::seq::Seq;
use crate::time::Instant;

/// What the guest was told ahead of the peer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Ahead {
    /// Something was acknowledged early, and the port has not heard yet that it is settled.
    pub open: bool,
    /// Bytes that the port has counted as owed.
    pub counted: u32,
    /// Where the port's journal has it, if there is one.
    #[serde(skip)]
    pub place: Option<FlowPlace>,
    /// Up to where the journal has frames, if there is a place.
    pub recorded: Seq,
    /// The guest may have sent bytes up to here to an earlier process.
    pub sent_before: Option<Seq>,
    /// Acknowledged to the guest up to here; `None` if the peer has acknowledged as much.
    pub una: Option<Seq>,
    /// When the peer is dead, if it does not answer; `NEVER` while it answers.
    pub dead_at: Instant,
}

impl Ahead {
    pub const NONE: Self = Self {
        una: None,
        dead_at: Instant::NEVER,
        open: false,
        counted: 0,
        place: None,
        recorded: Seq(0),
        sent_before: None,
    };
}
