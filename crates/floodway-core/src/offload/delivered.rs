//! Whether the latest frame that was passed to the guest got into its receive queue.
//!
//! # Theory of operation
//! **Goal.** What the guest does not get is not acknowledged for it, nor reported as having come. Only the owner of the receive queue knows: the queue may be full, of
//! this connection's frames or of others'. So it is told which frames matter ([`Offload::awaits_delivery`]), and says of each what became of it before it
//! comes with another ([`Offload::on_delivered`]).
//!
//! - A segment in order is acknowledged in the call that passes it, and the ACK leaves at the end of the batch. If the frame was dropped, the
//!   acknowledgement is withdrawn before that, and the flow is in `NO_BUFFER`. To the peer the segment is lost, as it would be without the switch: what follows is reported
//!   as out of order, the peer repairs the loss at the pace of the network, and its congestion control hears of it.
//! - A segment out of order is [reported](super::reports) once it is in the queue.
//!
//! An acknowledgement that has left within the same call, on data of the guest, stands. The frame is kept (rule R1), and is delivered again when the guest has
//! acknowledged what was before it, or at the next redelivery.
//!
//! A journal is not told: bytes that it has beyond what was acknowledged are harmless ([`super::journal`]).
//!
//! Invariant: nothing that the queue has dropped is acknowledged, unless it is kept.

use super::engine::Offload;
use super::flow::Phase;
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

impl<B: 'static> Offload<B> {
    /// Returns `true` if what the peer is told depends on the delivery of the latest frame that was passed to the guest: [`on_delivered`](Self::on_delivered)
    /// has to be called before anything else is.
    #[must_use]
    #[inline]
    pub const fn awaits_delivery(&self) -> bool {
        self.port.undelivered.is_some()
    }

    /// The latest frame that was passed to the guest is in the guest's queue (`delivered`), or was dropped.
    #[inline]
    pub fn on_delivered(&mut self, delivered: bool) {
        let Some(Undelivered { flow, passed }) = self.port.undelivered.take() else { return };
        match passed {
            Passed::InOrder { before } if !delivered => self.on_dropped(flow, before),
            Passed::OutOfOrder { start, end } if delivered => self.on_reportable(flow, start, end),
            Passed::InOrder { .. } | Passed::OutOfOrder { .. } => {}
        }
    }

    #[cold]
    fn on_dropped(&mut self, id: FlowId, before: Told) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let holdings = flow.holdings();
        if let Phase::Established(connection) = &mut flow.phase {
            connection.rx.on_dropped(before, &self.port.counters);
        }
        flow.settle(holdings, &mut self.port);
        flow.park(&mut self.state_pool);
    }

    #[cold]
    fn on_reportable(&mut self, id: FlowId, start: Seq, end: Seq) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        if let Phase::Established(connection) = &mut flow.phase {
            connection.rx.on_delivered((start, end), &mut self.state_pool.keeping);
            flow.flag(id, &mut self.port);
        }
    }
}
