//! Flows: a connection with both of its ends, or a pair of addresses that exchange datagrams.
//!
//! # Theory of operation
//! Packets carry the [`FlowId`] of their flow, so that a stack finds the connection by index and not by
//! hashing ports. A flow's slot is used again when both ends have closed; the id has a generation, so that a
//! late packet of the old flow finds nothing.
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
        let (end, to) = (flow.end(from), flow.end(from.other()));
        Self {
            flow: flow.id(),
            from,
            src: end.address,
            dst: to.address,
            hash: end.hash,
            dscp: end.dscp,
            ecn,
            charge: 0,
            body,
        }
    }
}

/// All flows of a run.
#[derive(Debug, Default)]
pub struct Flows {
    slots: Vec<Option<Flow>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    opened: u64,
}

impl Flows {
    /// Flows that exist.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
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
        self.slots.get(id.index as usize)?.as_ref().filter(|flow| flow.id == id)
    }

    /// A flow, to change.
    #[inline]
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.slots.get_mut(id.index as usize)?.as_mut().filter(|flow| flow.id == id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.slots.iter().flatten()
    }

    /// A number that is different for each flow of a run, for initial sequence numbers.
    pub(crate) const fn opened(&self) -> u64 {
        self.opened
    }

    pub(crate) fn insert(
        &mut self,
        app: u16,
        addresses: [Address; 2],
        connections: [Option<Connection>; 2],
    ) -> FlowId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            self.slots.len() as u32 - 1
        });
        let id = FlowId { index, generation: self.generations[index as usize] };
        // Ports as a kernel that counts them up would choose them.
        let ports = [(32_768 + self.opened % 28_232) as u16, 5001];
        let hash = |from: usize| {
            let mut digest = Digest::default();
            digest.write(u64::from(addresses[from].0) << 32 | u64::from(addresses[1 - from].0));
            digest.write(u64::from(ports[from]) << 16 | u64::from(ports[1 - from]));
            (digest.value() >> 32) as u32
        };
        let [client, server] = connections;
        let ends =
            [End::new(addresses[0], client, hash(0)), End::new(addresses[1], server, hash(1))];
        self.opened += 1;
        self.slots[index as usize] = Some(Flow { id, app, ports, ends });
        id
    }

    pub(crate) fn remove(&mut self, id: FlowId) -> Option<Flow> {
        self.get(id)?;
        let at = id.index as usize;
        self.generations[at] = self.generations[at].wrapping_add(1);
        self.free.push(id.index);
        self.slots[at].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_finds_nothing() {
        let mut flows = Flows::default();
        let first = flows.insert(0, [Address(0), Address(1)], [None, None]);
        assert!(flows.remove(first).is_some() && flows.remove(first).is_none());
        let second = flows.insert(0, [Address(2), Address(1)], [None, None]);
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
