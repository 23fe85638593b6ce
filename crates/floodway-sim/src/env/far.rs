//! What one part of a network has to know of the ends of flows that are in another.
//!
//! # Theory of operation
//! A part runs by itself for less than the look-ahead, then the parts exchange what they have for each other: packets and [`Word`]s. What is
//! told of an open flow and of messages is in place before the first packet that it matters for, since that takes the look-ahead
//! at least. An end closes, and the other learns of it exactly the look-ahead later: then it need not answer repeated
//! segments any more, and its half of the flow goes, as the whole flow does if both ends are in one part. The half of the server goes last or
//! tells so itself; then the client's part may use the flow's place again.
//!
//! **Invariants.** None of that depends on when parts exchange what they have, only on the times at which things happen.

use std::sync::Arc;

use super::{Env, Event, Notice};
use crate::flow::{Flow, FlowId, Side};
use crate::ids::{Address, AppId};
use crate::{Duration, Instant};

/// What a part of the network tells another.
#[derive(Debug)]
pub(crate) enum Word {
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

/// A world's place among others.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) part: Part,
    /// What other parts are to be told, and which.
    pub(crate) words: Vec<(u8, Word)>,
}

impl Env {
    /// The part that a server is in to which a client here opens a flow.
    ///
    /// # Panics
    /// If the client is elsewhere.
    pub(crate) fn part_of_server(&self, client: Address, server: Address) -> u8 {
        self.share.as_ref().map_or(0, |share| {
            assert!(share.part.has(client), "{client:?} opens a flow in another part");
            share.part.of(server)
        })
    }

    /// Hands the server's half of a new flow to its part, if that is another.
    pub(crate) fn tell_opened(&mut self, id: FlowId) {
        if id.crosses()
            && let Some(share) = &mut self.share
            && let Some(half) = self.flows.take_server(id)
        {
            share.words.push((id.parts[1], Word::Opened(Box::new(half))));
        }
    }

    /// Passes messages on that were written at an end here.
    pub(super) fn tell_written(&mut self, id: FlowId, side: Side) {
        if let Some(share) = &mut self.share
            && let Some(flow) = self.flows.get_mut(id)
        {
            let to = id.parts[side.other().index()];
            for (end, tag) in flow.end_mut(side).messages_mut().drain(..) {
                share.words.push((to, Word::Written { flow: id, side, end, tag }));
            }
        }
    }

    /// An end here has closed.
    pub(super) fn tell_closed(&mut self, id: FlowId, side: Side, aborted: bool) {
        let to = id.parts[side.other().index()];
        self.tell_event(to, Event::FarClosed { flow: id, side, aborted });
    }

    /// The half of a server here is about to go.
    pub(super) fn tell_released(&mut self, id: FlowId) {
        let here = self.share.as_ref().map(|share| share.part.number);
        if id.crosses() && here == Some(id.parts[1]) && self.flows.get(id).is_some() {
            self.tell_event(id.parts[0], Event::Released(id));
        }
    }

    fn tell_event(&mut self, to: u8, event: Event) {
        if let Some(share) = &mut self.share {
            let at = self.clock.now() + share.part.look_ahead;
            share.words.push((to, Word::Event(at, event)));
        }
    }

    /// Another part has told something.
    pub(crate) fn hear(&mut self, word: Word) {
        match word {
            Word::Opened(flow) => self.flows.accept(*flow),
            Word::Written { flow, side, end, tag } => {
                if let Some(flow) = self.flows.get_mut(flow) {
                    flow.end_mut(side).messages_mut().push_back((end, tag));
                }
            }
            Word::Event(at, event) => {
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
