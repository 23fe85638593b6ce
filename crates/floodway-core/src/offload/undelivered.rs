//! A frame that was passed to the guest, until it is known whether the guest's queue had room for it; [`delivered`](super::delivered) has the theory of operation.

use super::receiver::Told;
use crate::seq::Seq;
use crate::tables::flow_table::FlowId;

/// A frame that was passed to the guest, and that the peer may hear of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Passed {
    /// A segment in order, which is acknowledged. `before` is the acknowledgement that was due before it.
    InOrder { before: Told },
    /// A segment out of order.
    OutOfOrder { start: Seq, end: Seq },
}

/// A frame whose delivery the owner of the guest's queue has not reported yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undelivered {
    pub flow: FlowId,
    pub passed: Passed,
}

impl Undelivered {
    /// Returns the segment of `flow` that moved the acknowledgement from `before` to `acked`; `None` if it moved nothing.
    #[inline]
    pub fn in_order(flow: FlowId, before: Told, acked: Seq) -> Option<Self> {
        (before.acked != acked).then_some(Self { flow, passed: Passed::InOrder { before } })
    }

    /// Returns the acknowledgement that was due before a segment in order; `None` for one out of order.
    pub fn told_before(&self) -> Option<Told> {
        match self.passed {
            Passed::InOrder { before } => Some(before),
            Passed::OutOfOrder { .. } => None,
        }
    }
}
