//! What one part of a network has to know of the ends of flows that are in another.
//!
//! # Theory of operation
//! A part runs by itself for less than the look-ahead, then the parts exchange what they have for each other: packets and [`Update`]s. An
//! update on a flow that was opened, or on a message, is in place before the first packet that it matters for, since that takes the look-ahead
//! at least. An end closes, and the other learns of it exactly the look-ahead later: then it need not answer repeated
//! segments any more, and its half of the flow goes, as the whole flow does if both ends are in one part. When the half of the server goes, an
//! update follows, and the client's part may use the flow's place again.
//!
//! **Invariants.** None of that depends on when parts exchange what they have, only on the times at which things happen.

use std::sync::Arc;

use super::{Env, Event, Notice};
use crate::flow::{Flow, FlowId, Side};
use crate::ids::{Address, AppId};
use crate::{Duration, Instant};

/// What a part of the network sends another beside packets.
#[derive(Debug)]
pub(crate) enum Update {
    /// A flow was opened; here is the half of its server.
    Opened(Box<Flow>),
    /// A message was written at an end over there, which is complete with the byte before `end`.
    Written { flow: FlowId, side: Side, end: u64, tag: u32 },
    /// Something happens at a time that is the look-ahead away.
    Event(Instant, Event),
}

/// Which part of a network a world is.
#[derive(Clone, Debug)]
pub struct Part {
    pub(crate) number: u8,
    pub(crate) parts: usize,
    pub(crate) look_ahead: Duration,
    /// The part of each address.
    pub(crate) part_of: Arc<[u8]>,
}

impl Part {
    /// The part that an address is in.
    pub(crate) fn of(&self, address: Address) -> u8 {
        self.part_of[address.0 as usize]
    }

    /// Returns `true` if an address is in this part.
    #[must_use]
    pub fn has(&self, address: Address) -> bool {
        self.of(address) == self.number
    }
}

/// Of which network a world is a part, and what it has for the others.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) part: Part,
    /// Updates that are to be sent, each with the part that gets it.
    pub(crate) updates: Vec<(u8, Update)>,
}

impl Env {
    /// The part that a server is in to which a client here opens a flow.
    ///
    /// # Panics
    /// If the client is elsewhere.
    pub(crate) fn part_of_server(&self, client: Address, server: Address) -> u8 {
        self.membership.as_ref().map_or(0, |membership| {
            assert!(membership.part.has(client), "{client:?} opens a flow in another part");
            membership.part.of(server)
        })
    }

    /// Hands the server's half of a new flow to its part, if that is another.
    pub(crate) fn send_opened(&mut self, id: FlowId) {
        if id.crosses()
            && let Some(membership) = &mut self.membership
            && let Some(half) = self.flows.take_server(id)
        {
            membership.updates.push((id.parts[1], Update::Opened(Box::new(half))));
        }
    }

    /// Passes messages on that were written at an end here.
    pub(super) fn send_written(&mut self, id: FlowId, side: Side) {
        if let Some(membership) = &mut self.membership
            && let Some(flow) = self.flows.get_mut(id)
        {
            let to = id.parts[side.other().index()];
            for (end, tag) in flow.end_mut(side).messages_mut().drain(..) {
                membership.updates.push((to, Update::Written { flow: id, side, end, tag }));
            }
        }
    }

    /// An end here has closed.
    pub(super) fn send_closed(&mut self, id: FlowId, side: Side, aborted: bool) {
        let to = id.parts[side.other().index()];
        self.send_event(to, Event::FarClosed { flow: id, side, aborted });
    }

    /// The half of a server here is about to go.
    pub(super) fn send_released(&mut self, id: FlowId) {
        let here = self.membership.as_ref().map(|membership| membership.part.number);
        if id.crosses() && here == Some(id.parts[1]) && self.flows.get(id).is_some() {
            self.send_event(id.parts[0], Event::Released(id));
        }
    }

    fn send_event(&mut self, to: u8, event: Event) {
        if let Some(membership) = &mut self.membership {
            let at = self.clock.now() + membership.part.look_ahead;
            membership.updates.push((to, Update::Event(at, event)));
        }
    }

    /// Applies an update of another part.
    pub(crate) fn apply(&mut self, update: Update) {
        match update {
            Update::Opened(flow) => self.flows.accept(*flow),
            Update::Written { flow, side, end, tag } => {
                if let Some(flow) = self.flows.get_mut(flow) {
                    flow.end_mut(side).messages_mut().push_back((end, tag));
                }
            }
            Update::Event(at, event) => {
                self.clock.at(at, event);
            }
        }
    }

    /// The end of a flow in another part has closed.
    pub(crate) fn far_closed(&mut self, id: FlowId, side: Side, aborted: bool) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        flow.end_mut(side).told_closed = true;
        if aborted || flow.end(side.other()).told_closed {
            let app = AppId(flow.app);
            self.notices.push_back((app, Notice::Closed(id)));
        }
    }
}
