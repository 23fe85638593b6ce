//! Flows: a connection with both of its ends, or a pair of addresses that exchange datagrams.
//!
//! # Theory of operation
//! Packets carry the [`FlowId`] of their flow, so that a stack finds the connection by index and not by
//! hashing ports. A flow's slot is used again when both ends have closed; the id has a generation, so that a
//! late packet of the old flow finds nothing.
//!
//! **Parts.** If the network runs in parts, a flow between two of them is there twice, under one id: each part has the
//! connection of its own end and, of the other end, the address and the messages that it has written. So there is a
//! table of flows for each other part, in each direction. The part of the client chooses the places in the table, and uses one
//! again when both halves are gone.
//!
//! **Messages.** Applications exchange messages: a number of bytes and a tag. TCP does not know them.
//! The end that writes remembers at which offset each message ends; when the other end has everything
//! up to there in order, its application gets the tag.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use floodway_wire::FiveTuple;
use floodway_wire::tcp::PROTOCOL;

use crate::Instant;
use crate::engine::{Digest, Timer};
use crate::packet::{Address, Body, Ecn, Packet};
use crate::tcp::Connection;

pub use crate::ids::{FlowId, Side};

/// One end of a flow.
#[derive(Debug)]
pub struct End {
    /// Where it is.
    pub address: Address,
    /// Its connection; `None` if the flow has datagrams only.
    pub connection: Option<Connection>,
    /// Code point of what it sends.
    pub dscp: u8,
    pub(crate) hash: u32,
    /// The event of the connection's deadline, and its time: never later than the deadline.
    pub(crate) timer: Timer,
    pub(crate) armed: Instant,
    /// Ends of the messages that were written here and have not arrived over there.
    messages: VecDeque<(u64, u32)>,
    written: u64,
    /// Bytes that its host's queues hold, as far as its stack limits them.
    pub(crate) queued: u64,
    /// Bytes that they have ever taken.
    pub(crate) queue_taken: u64,
    /// Something written is not acknowledged, as far as the application knows.
    pub(crate) awaits_ack: bool,
    pub(crate) told_connected: bool,
    pub(crate) told_closed: bool,
}

impl End {
    fn new(address: Address, connection: Option<Connection>, hash: u32) -> Self {
        Self {
            address,
            connection,
            dscp: 0,
            hash,
            timer: Timer::NONE,
            armed: Instant::NEVER,
            messages: VecDeque::new(),
            written: 0,
            queued: 0,
            queue_taken: 0,
            awaits_ack: false,
            told_connected: false,
            told_closed: false,
        }
    }

    /// Bytes that the application has written.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// The messages that were written here and have not arrived over there, each with the offset of its end.
    pub(crate) const fn messages_mut(&mut self) -> &mut VecDeque<(u64, u32)> {
        &mut self.messages
    }

    pub(crate) fn write(&mut self, bytes: u64, first: Option<u32>, tag: u32) {
        if let Some(first) = first.filter(|_| bytes > 1) {
            self.messages.push_back((self.written + 1, first));
        }
        self.written += bytes;
        self.awaits_ack |= bytes > 0;
        self.messages.push_back((self.written, tag));
        if let Some(connection) = &mut self.connection {
            connection.write(bytes);
        }
    }

    /// The next message of this end that is complete at the other, which has `delivered` bytes.
    pub(crate) fn take_message(&mut self, delivered: u64) -> Option<u32> {
        let &(end, tag) = self.messages.front()?;
        if end > delivered {
            return None;
        }
        self.messages.pop_front();
        Some(tag)
    }
}

/// A flow.
#[derive(Debug)]
pub struct Flow {
    id: FlowId,
    /// The application that it belongs to.
    pub(crate) app: u16,
    ports: [u16; 2],
    ends: [End; 2],
}

impl Flow {
    /// Its name.
    #[must_use]
    pub const fn id(&self) -> FlowId {
        self.id
    }

    /// One of its ends.
    #[must_use]
    pub const fn end(&self, side: Side) -> &End {
        &self.ends[side.index()]
    }

    /// One of its ends, to change.
    pub const fn end_mut(&mut self, side: Side) -> &mut End {
        &mut self.ends[side.index()]
    }

    /// The 5-tuple of what `from` sends. Address `n` is `10.0.0.0 + n`.
    #[must_use]
    pub fn tuple(&self, from: Side) -> FiveTuple {
        let (to, from) = (from.other().index(), from.index());
        let ip = |side: usize| Ipv4Addr::from_bits(0x0a00_0000 + self.ends[side].address.0);
        FiveTuple::v4(ip(from), ip(to), PROTOCOL).with_ports(self.ports[from], self.ports[to])
    }
}

impl Packet {
    /// A packet that one end of a flow sends.
    #[must_use]
    pub fn of(flow: &Flow, from: Side, body: Body, ecn: Ecn) -> Self {
        let mut packet = Self { body, ..Self::empty() };
        packet.set_head(flow, from, ecn);
        packet
    }

    /// Sets all but `charge` and `body`, as of a packet that `side` of `flow` sends.
    #[inline]
    pub(crate) fn set_head(&mut self, flow: &Flow, side: Side, ecn_bits: Ecn) {
        let (end, to) = (flow.end(side), flow.end(side.other()));
        let Self { flow: id, from, src, dst, hash, dscp, ecn, charge: _, body: _ } = self;
        (*id, *from, *src, *dst) = (flow.id(), side, end.address, to.address);
        (*hash, *dscp, *ecn) = (end.hash, end.dscp, ecn_bits);
    }
}

/// Flows between two parts of the network, or within one.
#[derive(Debug, Default)]
struct Table {
    slots: Vec<Option<Flow>>,
    generations: Vec<u16>,
    free: Vec<u32>,
}

impl Table {
    fn place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            self.slots.len() as u32 - 1
        })
    }
}

/// How flows get their numbers.
#[derive(Debug)]
enum Numbers {
    /// In the order in which they were opened.
    Whole(u64),
    /// For each address, how many flows it has opened: that does not depend on other parts.
    ByClient(Vec<u32>),
}

/// All flows of a run, or of a part of the network.
#[derive(Debug)]
pub struct Flows {
    /// Flows that a client here has to a server in each part, then those that a client in each part has to a server here.
    tables: Vec<Table>,
    part: u8,
    len: usize,
    numbers: Numbers,
}

impl Default for Flows {
    fn default() -> Self {
        Self { tables: vec![Table::default()], part: 0, len: 0, numbers: Numbers::Whole(0) }
    }
}

impl Flows {
    /// The flows of one of several parts of a network with so many addresses.
    pub(crate) fn of_part(part: u8, parts: usize, addresses: usize) -> Self {
        let mut tables = Vec::new();
        tables.resize_with(2 * parts, Table::default);
        Self { tables, part, len: 0, numbers: Numbers::ByClient(vec![0; addresses]) }
    }

    /// Flows that exist.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A flow.
    #[must_use]
    #[inline]
    pub fn get(&self, id: FlowId) -> Option<&Flow> {
        let table = self.tables.get(self.table(id))?;
        table.slots.get(id.index as usize)?.as_ref().filter(|flow| flow.id == id)
    }

    /// A flow, to change.
    #[inline]
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        let at = self.table(id);
        let table = self.tables.get_mut(at)?;
        table.slots.get_mut(id.index as usize)?.as_mut().filter(|flow| flow.id == id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.tables.iter().flat_map(|table| table.slots.iter().flatten())
    }

    #[inline]
    fn table(&self, id: FlowId) -> usize {
        let [client, server] = id.parts;
        if client == self.part {
            usize::from(server)
        } else {
            self.tables.len() / 2 + usize::from(client)
        }
    }

    /// A number for the next flow of a client, different from those of all other flows of the run, for initial sequence
    /// numbers and ports.
    pub(crate) fn next_number(&mut self, client: Address) -> u64 {
        match &mut self.numbers {
            Numbers::Whole(opened) => {
                *opened += 1;
                *opened - 1
            }
            Numbers::ByClient(opened) => {
                let addresses = opened.len() as u64;
                let own = &mut opened[client.0 as usize];
                *own += 1;
                u64::from(*own - 1) * addresses + u64::from(client.0)
            }
        }
    }

    /// Adds a flow of this number from a client here to a server that is in the part `to`, and answers with its name.
    pub(crate) fn insert(
        &mut self,
        app: u16,
        number: u64,
        to: u8,
        addresses: [Address; 2],
        connections: [Option<Connection>; 2],
    ) -> FlowId {
        let table = &mut self.tables[usize::from(to)];
        let index = table.place();
        let generation = table.generations[index as usize];
        let id = FlowId { index, generation, parts: [self.part, to] };
        // Ports as a kernel that counts them up would choose them.
        let ports = [(32_768 + number % 28_232) as u16, 5001];
        let hash = |from: usize| {
            let mut digest = Digest::default();
            digest.write(u64::from(addresses[from].0) << 32 | u64::from(addresses[1 - from].0));
            digest.write(u64::from(ports[from]) << 16 | u64::from(ports[1 - from]));
            (digest.value() >> 32) as u32
        };
        let [client, server] = connections;
        let ends =
            [End::new(addresses[0], client, hash(0)), End::new(addresses[1], server, hash(1))];
        self.len += 1;
        self.tables[usize::from(to)].slots[index as usize] = Some(Flow { id, app, ports, ends });
        id
    }

    /// Takes the connection of the server out of a flow to another part; what comes back is that part's half of the flow.
    pub(crate) fn take_server(&mut self, id: FlowId) -> Option<Flow> {
        let Flow { app, ports, ends: [client, server], .. } = self.get_mut(id)?;
        let far = End::new(client.address, None, client.hash);
        let near = End::new(server.address, server.connection.take(), server.hash);
        Some(Flow { id, app: *app, ports: *ports, ends: [far, near] })
    }

    /// Adds the half of a flow that a client in another part has opened.
    pub(crate) fn accept(&mut self, flow: Flow) {
        let at = self.table(flow.id);
        let index = flow.id.index as usize;
        let slots = &mut self.tables[at].slots;
        if slots.len() <= index {
            slots.resize_with(index + 1, || None);
        }
        debug_assert!(slots[index].is_none(), "a place was used again before it was free");
        slots[index] = Some(flow);
        self.len += 1;
    }

    /// Removes a flow, or this part's half of it. The place of one that crosses parts is free after
    /// [`release`](Self::release).
    pub(crate) fn remove(&mut self, id: FlowId) -> Option<Flow> {
        self.get(id)?;
        let at = self.table(id);
        self.len -= 1;
        let removed = self.tables[at].slots[id.index as usize].take();
        if !id.crosses() {
            self.release(id);
        }
        removed
    }

    /// The place of a flow, which is gone, can be used again.
    pub(crate) fn release(&mut self, id: FlowId) {
        let at = self.table(id);
        let table = &mut self.tables[at];
        let generation = &mut table.generations[id.index as usize];
        debug_assert!(table.slots[id.index as usize].is_none() && *generation == id.generation);
        *generation = generation.wrapping_add(1);
        table.free.push(id.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_finds_nothing() {
        let mut flows = Flows::default();
        let first = flows.insert(0, 0, 0, [Address(0), Address(1)], [None, None]);
        assert!(flows.remove(first).is_some() && flows.remove(first).is_none());
        let second = flows.insert(0, 1, 0, [Address(2), Address(1)], [None, None]);
        assert!(flows.get(first).is_none());
        let flow = flows.get(second).unwrap();
        assert_eq!(flow.tuple(Side::Server), flow.tuple(Side::Client).reversed());
        assert_ne!(flow.end(Side::Client).hash, flow.end(Side::Server).hash);
        assert_eq!((flows.len(), flows.iter().count()), (1, 1));
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let mut end = End::new(Address(0), None, 0);
        end.write(100, Some(6), 7);
        end.write(50, None, 8);
        assert_eq!(end.take_message(99), Some(6));
        assert_eq!(end.take_message(99), None);
        let all: Vec<_> = std::iter::from_fn(|| end.take_message(150)).collect();
        assert_eq!((all, end.written()), (vec![7, 8], 150));
    }
}
