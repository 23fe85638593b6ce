//! Connections that go on in another process as they were: the state of flows, for an upgrade.
//!
//! # Theory of operation
//! **Goal.** A process that hands over in order says of each connection all that it knows ([`Offload::export`]), and the next one goes on with it
//! ([`Offload::take_over`]): what it does from then on is what the first one would have done. A flow that was online is online.
//!
//! **What is carried.** Connections whose handshake is over. One that is still opening, and one that is excluded, passes in the next process. One of an earlier process that
//! owes to its guest alone ([`adoption`](super::adoption)) is in the journal and found there again.
//!
//! **Format.** One record for the port, then one for each connection, in any order; [`FORMAT`] is the version of all of them, and whoever keeps them says it beside them. A
//! record is the `postcard` encoding of its fields in the order of their declaration, behind it the bytes of a connection's frames, one after the other: what is stored for the peer, in sequence
//! order, then what is kept for the guest. Numbers are varints, times nanoseconds since the epoch of the caller's clock, which has to be the same for both processes.
//!
//! | record | fields |
//! |---|---|
//! | port | whether the guest's module was heard · when it was last looked for · the next heartbeat and its Ethernet header · the next upkeep |
//! | connection | addresses, ports, protocol, VLAN · last use · place in the line for the budget · Ethernet header · FINs · times of the next notice and ACK for the guest · the peer's largest window and clock · sender · receiver |
//! | sender | first and last byte on their way · frames · scoreboard, a record for each segment · the edges of the grant and of the peer's window · what the guest has sent and heard · recovery, if anything is on its way · window, round trip, congestion control (a number for the algorithm, then its own fields) · what the SYNs agreed on · state and its reason |
//! | receiver | frames and when they are delivered again, and what was reported of a hole, if anything is kept or reported · numbers of both sides, their clocks and windows · state · echo of CE |
//!
//! What follows from these is not carried but counted anew: bytes of the budget, of what is kept and owed, marks and indexes of the scoreboard, timers. A change of any of these types
//! is another version (a test compares a record with one that is written down).
//!
//! **Strangers.** Whoever wrote the state may have been taken over. A record is refused, and nothing else with it, if it cannot be decoded, has bytes left, names a connection twice, or
//! contradicts itself: every number has to lie in reach of the others, every frame to contain the bytes that its description names, every segment in flight to lie in one frame. What passes can do no
//! more harm than a guest and a peer together can, to their own connection. The connection of a record that is refused is met in mid-stream.
//!
//! **Journals.** What was acknowledged in another's name is in the port's [journal](super::journal) besides, and stays there: the next process adopts the journal first, and goes on by the state only if
//! that names exactly what the journal has of the connection. Else the journal rules. If the next process ends early, the one after it finds the journal as the first one left it.
//! On another host there is no such journal: what is owed is written into the port's own first ([`moving`](super::moving)).
//!
//! **Cost.** Nothing before the hand-over.

use std::collections::BTreeMap;
use std::net::IpAddr;

use floodway_wire::{FiveTuple, MacAddr};
use serde::{Deserialize, Serialize};

use super::adopted::Owing;
use super::engine::{Offload, UPKEEP_INTERVAL};
use super::flow::Flow;
use super::flow::state::FlowState;
use super::frames::Refused;
use super::frames::{Frames, Revive, Revived};
use super::journal::{Creditor, Image, Owed, Retained};
use super::packed_link::{pack, unpack};
use super::port::CERTAIN;
use super::sink::Sink;
use crate::seq::Seq;
use crate::tables::flow_table::FlowId;
use crate::tcp::Segment;
use crate::time::Instant;

/// Version of the format. Other versions are not read.
pub const FORMAT: u32 = 3;

/// What flows of a port share that does not follow from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PortState {
    module_heard: bool,
    looked_for_module: Option<Instant>,
    heartbeat_at: Instant,
    heartbeat_link: [u64; 2],
    upkeep_at: Instant,
}

/// Records of a port that another process has written.
#[derive(Debug, Default)]
pub struct Carried {
    port: Option<PortState>,
    flows: BTreeMap<FiveTuple, (FlowState, Vec<u8>)>,
    done: Resumption,
    /// Flows that wait for room, by their places in the line.
    waiting: Vec<(u32, FlowId)>,
}

/// What has become of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumption {
    /// They go on as they were.
    pub carried: u32,
    /// Those of them that are online.
    pub online: u32,
    /// Their records were refused, or the table or the budget had no room.
    pub refused: u32,
    /// Those of them that are reset, because they owe bytes: see [`Offload::import`].
    pub broken: u32,
}

/// A flow that goes on.
pub(super) struct Resumed<B> {
    pub flow: Flow<B>,
    /// Where the first frame that is kept for the guest begins.
    pub kept_from: Option<Seq>,
    last_used: Instant,
    waiting: Option<u32>,
}

impl Carried {
    /// Takes the record of the port, which is the first one.
    ///
    /// # Errors
    /// It cannot be decoded.
    pub fn of_port(record: &[u8]) -> Result<Self, Refused> {
        let (port, rest) = postcard::take_from_bytes(record).map_err(|_| Refused)?;
        if !rest.is_empty() {
            return Err(Refused);
        }
        Ok(Self { port: Some(port), ..Self::default() })
    }

    /// Takes the record of a connection. One that cannot be read is counted.
    pub fn add(&mut self, record: &[u8]) {
        let Ok((state, frames)) = postcard::take_from_bytes::<FlowState>(record) else {
            self.done.refused += 1;
            return;
        };
        // Of two with a name neither is believed more.
        if self.flows.insert(state.tuple(), (state, frames.to_vec())).is_some() {
            self.done.refused += 1;
        }
    }

    /// The flow that goes on as `tuple` and owes what the journal has of it, if there is a record and both agree.
    pub(super) fn resume<B: 'static>(
        &mut self,
        tuple: &FiveTuple,
        debts: Owed,
        revive: &mut Revive<'_, B>,
    ) -> Option<Resumed<B>> {
        let (state, frames) = self.flows.remove(tuple)?;
        let (last_used, waiting) = (state.last_used, state.waiting);
        let mut frames = Revived::new(&frames, revive);
        let flow = Flow::import(state, debts, &mut frames);
        self.done.refused += u32::from(flow.is_err());
        Some(Resumed { flow: flow.ok()?, kept_from: frames.kept_from, last_used, waiting })
    }

    /// Returns `true` if every record so far can be read, and none names a connection that another one has named.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        self.done.refused == 0
    }

    /// The addresses of the guest in its connections: whoever goes on with them speaks in their name.
    pub fn guests(&self) -> impl Iterator<Item = (MacAddr, IpAddr)> {
        self.flows.iter().map(|(tuple, (state, _))| (state.guest(), tuple.src_ip()))
    }

    /// The connections, those first that were used last at the longest time ago.
    pub(super) fn names(&self) -> Vec<FiveTuple> {
        let mut names: Vec<_> =
            self.flows.iter().map(|(tuple, (state, _))| (state.last_used, *tuple)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, tuple)| tuple).collect()
    }

    /// The numbers of a connection that says that it owes bytes. `None` if it says that it owes none.
    pub(super) fn owing(&self, tuple: &FiveTuple) -> Option<Owing> {
        self.flows.get(tuple).and_then(|(state, _)| state.owing())
    }

    /// Notes what has become of a connection that does not go on, but for what [`resume`](Self::resume) notes.
    pub(super) fn note_refused(&mut self, is_read: bool, is_broken: bool) {
        self.done.refused += u32::from(is_read);
        self.done.broken += u32::from(is_broken);
    }
}

impl<B: 'static> Offload<B> {
    /// Writes what another process needs to go on: gives `put` one record after the other, that of the port first, until it returns `false`. `sink` makes bytes of
    /// frames. To be called between two batches, after [`Offload::flush`]. Nothing is changed. Returns `true` if everything that is owed was written: `false` also if the journal has
    /// records of somebody who cannot be named.
    pub fn export(&self, sink: &impl Sink<B>, mut put: impl FnMut(&[u8]) -> bool) -> bool {
        if !put(&encode(&self.port_state())) {
            return false;
        }
        let mut is_whole = self.port.doubtful_until == CERTAIN;
        let line: BTreeMap<_, _> = self.port.waiting.iter().copied().zip(0..).collect();
        let image: &dyn Fn(&B) -> Image<'_> = &|frame| sink.image(frame);
        for found in self.flows.iter_from(0, self.flows.slots()) {
            let mut frames = Frames::new(image);
            let Some(mut state) = Flow::export(&found, &mut frames) else {
                is_whole &= !(found.flow.owes_bytes() || found.flow.owes_peer());
                continue;
            };
            state.waiting = line.get(&found.id).copied();
            let mut record = encode(&state);
            record.extend_from_slice(&frames.into_bytes());
            if !put(&record) {
                return false;
            }
        }
        is_whole
    }

    fn port_state(&self) -> PortState {
        PortState {
            module_heard: self.port.module_heard,
            looked_for_module: self.port.looked_for_module,
            heartbeat_at: self.port.heartbeat_at,
            heartbeat_link: pack(&self.port.heartbeat_link),
            upkeep_at: self.upkeep_at,
        }
    }

    /// Goes on with the connections of another process that are not in the journal ([`Offload::adopt_carried`] comes before, if there is one), and returns what has
    /// become of all of them. `revive` makes a frame, and what its headers say, of what was written.
    pub fn take_over(
        &mut self,
        mut carried: Carried,
        now: Instant,
        mut revive: impl FnMut(Creditor, &Retained) -> Option<(B, Segment)>,
    ) -> Resumption {
        for tuple in carried.names() {
            let Some(resumed) = carried.resume(&tuple, Owed::default(), &mut revive) else {
                continue;
            };
            // What was acknowledged in another's name outlives a process only in the journal.
            let may_go_on = !(self.is_recording() && resumed.flow.has_debts());
            if !(may_go_on && self.insert_resumed(&tuple, resumed, &mut carried, now)) {
                carried.done.refused += 1;
            }
        }
        self.take_rest_over(carried, now)
    }

    /// Takes over what belongs to no connection, once all of these are there.
    pub(super) fn take_rest_over(&mut self, mut carried: Carried, now: Instant) -> Resumption {
        if let Some(port) = carried.port.take() {
            self.take_port_over(&port, now);
        }
        carried.waiting.sort_unstable();
        self.port.waiting.extend(carried.waiting.iter().map(|&(_, id)| id));
        carried.done
    }

    fn take_port_over(&mut self, port: &PortState, now: Instant) {
        self.port.module_heard = port.module_heard;
        self.port.choose_early_acks();
        self.port.looked_for_module = port.looked_for_module.map(|at| at.min(now));
        self.port.heartbeat_at = port.heartbeat_at;
        self.port.heartbeat_link = unpack(port.heartbeat_link);
        let latest = if self.flows.is_empty() { Instant::NEVER } else { now + UPKEEP_INTERVAL };
        self.upkeep_at = self.upkeep_at.min(port.upkeep_at).min(latest);
    }

    /// Returns `false` if table or budget have no room for it.
    pub(super) fn insert_resumed(
        &mut self,
        tuple: &FiveTuple,
        resumed: Resumed<B>,
        carried: &mut Carried,
        now: Instant,
    ) -> bool {
        let place = self.reserve(tuple, &resumed, now);
        place.map(|id| self.start_resumed(id, resumed, carried, now)).is_some()
    }

    /// A place in the table for a flow that goes on. `None` if table or budget have no room for it.
    pub(super) fn reserve(
        &mut self,
        tuple: &FiveTuple,
        resumed: &Resumed<B>,
        now: Instant,
    ) -> Option<FlowId> {
        let Resumed { flow, last_used, .. } = resumed;
        let empty = flow.fits(&self.port).then(|| Flow::new(flow.link))?;
        self.flows.insert(tuple, now.min(*last_used), empty).ok()
    }

    /// Goes on with a flow at the place that was [reserved](Self::reserve) for it.
    pub(super) fn start_resumed(
        &mut self,
        id: FlowId,
        resumed: Resumed<B>,
        carried: &mut Carried,
        now: Instant,
    ) {
        let Resumed { flow, waiting, .. } = resumed;
        let Some(place) = self.flows.get_mut(id) else { return };
        *place = flow;
        self.port.counters.flows_opened().add(1);
        carried.done.carried += 1;
        carried.done.online += u32::from(place.resume_in(id, waiting.is_some(), &mut self.port));
        place.set_timer(id, now, &mut self.timers);
        carried.waiting.extend(waiting.map(|place| (place, id)));
    }
}

/// The encoding of a record's fields.
fn encode(fields: &impl Serialize) -> Vec<u8> {
    // Fails only when memory has run out.
    postcard::to_allocvec(fields).unwrap_or_default()
}
