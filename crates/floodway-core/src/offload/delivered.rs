//! Whether the latest frame that was passed to the guest got into its receive queue.
//!
//! # Theory of operation
//! **Goal.** What the guest does not get is not acknowledged for it, nor reported as having come. Only the owner of the receive queue knows: the queue may be full, of
//! this connection's frames or of others'. It asks which frames matter ([`Offload::awaits_delivery`]), and reports the fate of each such frame before it
//! passes another ([`Offload::on_delivered`]).
//!
//! - A segment in order is acknowledged in the call that passes it, and the ACK leaves at the end of the batch, or on data of the guest that leaves before. What the same call sends still has
//!   the previous number. If the frame was dropped, the acknowledgement is withdrawn, and the flow is in `NO_BUFFER`. To the peer the segment is lost, as it would be without the switch: what follows is reported
//!   as out of order, the peer repairs the loss at the pace of the network, and its congestion control hears of it.
//! - A segment out of order is [reported](super::reports) once it is in the queue.
//!
//! A frame that is dropped later, after it has waited in the queue, stays acknowledged: it is kept, and delivered again (rule R1).
//!
//! Invariant: no number leaves that acknowledges a segment before its frame is in the queue.

use super::engine::Offload;
use super::flow::Phase;
use super::port::OffloadShared;
use super::receiver::Told;
use super::undelivered::{Passed, Undelivered};
use crate::seq::Seq;
use crate::tables::flow_table::FlowId;

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
            let OffloadShared { counters, journal, .. } = &mut self.port;
            connection.rx.on_dropped(before, counters, journal);
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
