//! A TCP segment with what the offload needs to know beside it.

use floodway_wire::FiveTuple;

use super::sink::Link;
use crate::tables::flow_table::FlowId;
use crate::tcp::{Segment, Side};

/// A TCP segment as it is shown to the offload.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its 5-tuple, as it is in the packet.
    pub flow: &'a FiveTuple,
    /// Its flow, as [`Offload::look_up`](super::Offload::look_up) has found it. `None`, or a handle that became stale, costs
    /// a look-up; a handle of another flow is a mistake.
    pub found: Option<FlowId>,
    /// Fields of its Ethernet header.
    pub link: &'a Link,
    /// Its TCP header.
    pub segment: &'a Segment,
}

impl<'a> Packet<'a> {
    /// The 5-tuple of the connection in the guest's direction, of a packet that came from `side`.
    pub(super) fn guest_flow(&self, side: Side) -> FiveTuple {
        match side {
            Side::Guest => *self.flow,
            Side::Peer => self.flow.reversed(),
        }
    }

    /// A segment whose flow was not looked up before.
    #[must_use]
    pub const fn new(flow: &'a FiveTuple, link: &'a Link, segment: &'a Segment) -> Self {
        Self { flow, found: None, link, segment }
    }
}
