//! What the offload would do with a segment, as far as that is certain: for traces.
//!
//! A flow that is established is a state machine with a clock, stored frames and a peer; what it makes of a segment is not guessed
//! here. Only what passes unchanged is certain.

use floodway_wire::FiveTuple;

use super::engine::Offload;
use super::flow::Phase;
use super::port::CERTAIN;
use super::summary::Reason;
use crate::tcp::Segment;

/// What becomes of a segment, by its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// It belongs to no flow and opens none: it passes as it is.
    Unknown,
    /// It opens a flow, if there is room for one, and passes as it is.
    Opens,
    /// Its flow's handshake is not over. It passes; what the guest is shown of the peer's answer may have a smaller window.
    Opening,
    /// Its flow is never offloaded: it passes as it is.
    Excluded(Reason),
    /// Its flow is followed, and neither side is offloaded now: it passes, perhaps with another window or acknowledgement.
    Offline(Reason),
    /// Bytes that were acknowledged for the guest are lost, or may be: it is dropped, and its connection reset, unless it is a reset itself or has no ACK.
    Reset,
    /// Its flow is offloaded: it may be stored, answered, edited or dropped.
    Online,
}

impl<B: 'static> Offload<B> {
    /// Returns what becomes of a segment of `flow`, which is given in the guest's direction. Nothing is changed.
    #[must_use]
    pub fn expectation(&self, flow: &FiveTuple, segment: &Segment) -> Expectation {
        let found = self.flows.find(flow).and_then(|id| self.flows.get(id));
        match found.map(|flow| &flow.phase) {
            None if self.is_opened_by(segment) => Expectation::Opens,
            None if self.port.doubtful_until != CERTAIN => Expectation::Reset,
            None => Expectation::Unknown,
            Some(Phase::Adopted(adopted)) if adopted.broken.is_some() => Expectation::Reset,
            Some(Phase::Adopted(_)) => Expectation::Offline(Reason::Adopted),
            Some(Phase::Opening(_)) => Expectation::Opening,
            Some(Phase::Excluded(exclusion)) => Expectation::Excluded(exclusion.reason),
            Some(Phase::Established(connection)) => {
                let is_receiving = connection.rx.state != super::RxState::Offline;
                match connection.tx.is_online() || is_receiving {
                    true => Expectation::Online,
                    false => Expectation::Offline(connection.tx.reason),
                }
            }
        }
    }
}
