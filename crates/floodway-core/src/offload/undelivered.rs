//! The frame of which the owner of the guest's queue has not said what became of it; [`delivered`](super::delivered) says what follows from that.

use super::receiver::Told;
use crate::seq::Seq;
use crate::tables::flow_table::FlowId;

/// A frame that was passed to the guest, and that the peer may hear of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Passed {
    /// It came in order and is acknowledged. `before` is what the peer was to be told until then.
    InOrder { before: Told },
    /// It came out of order.
    OutOfOrder { start: Seq, end: Seq },
}

/// The frame of which the owner of the guest's queue has not said what became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undelivered {
    pub flow: FlowId,
    pub passed: Passed,
}

impl Undelivered {
    /// A segment of `flow` after which all before `acked` is acknowledged; none if that was so `before`.
    #[inline]
    pub fn in_order(flow: FlowId, before: Told, acked: Seq) -> Option<Self> {
        (before.acked != acked).then_some(Self { flow, passed: Passed::InOrder { before } })
    }

    /// What the peer was to be told before the segment, if that is acknowledged.
    pub fn told_before(&self) -> Option<Told> {
        match self.passed {
            Passed::InOrder { before } => Some(before),
            Passed::OutOfOrder { .. } => None,
        }
    }
}
