//! Packets without payload bytes, and where they are kept.
//!
//! # Theory of operation
//! A packet stays in a [`Pool`]; events and queues carry its [`PacketId`]. A TCP segment is written into a free slot
//! ([`Pool::insert_with`]). A slot also keeps the packet's length, so packets are changed by [`Pool::edit`] only. It has a link to
//! another slot, so that a queue of packets ([`Fifo`]) is two indices and two counters and any number of queues
//! allocates nothing. A slot is freed when its packet is delivered, dropped or lost; the pool then holds
//! no more than was ever under way at once.
//!
//! A sender's stack may be bounded in what waits below it ([`Packet::charge`], TCP small queues). The charge ends when
//! the card or the other side of a ring takes the packet, or when it is dropped before; whoever drives the pool
//! takes the [`TxCompletion`]s and tells the senders.
//!
//! Lengths are those of the IP packet. What the link layer adds belongs to the link. A GSO packet (a
//! segment with more payload than its `gso_size`) counts as the packets that it will become.

use floodway_core::seq::Seq;
use floodway_wire::tcp::{Flags, OptionSummary};

use crate::Duration;
use crate::ids::{FlowId, Side};

pub use crate::ids::Address;

/// The two ECN bits (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct,
    /// ECN-capable, ECT(0).
    Ect,
    /// Congestion experienced.
    Ce,
}

/// The TCP part of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// First sequence number.
    pub seq: Seq,
    /// Acknowledgement number.
    pub ack: Seq,
    /// Bytes of payload.
    pub len: u32,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// Control bits.
    pub flags: Flags,
    /// Payload of each packet of a GSO packet; zero if it is one packet.
    pub gso_size: u16,
    /// Options.
    pub options: OptionSummary,
}

impl Segment {
    /// Sequence numbers that it takes.
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        let control = |flag| u32::from(self.flags.contains(flag));
        self.len + control(Flags::SYN) + control(Flags::FIN)
    }

    /// Bytes of TCP header with options, padded as Linux pads them.
    #[must_use]
    pub fn header_len(&self) -> u32 {
        let o = &self.options;
        let blocks = o.sack_blocks().len() as u32;
        let set_up = 4 * u32::from(o.mss.is_some())
            + 4 * u32::from(o.window_scale.is_some())
            + 4 * u32::from(o.sack_permitted && o.timestamps.is_none());
        let clocks = 12 * u32::from(o.timestamps.is_some());
        20 + set_up + clocks + if blocks > 0 { 4 + 8 * blocks } else { 0 }
    }

    /// Number of packets that it is on the wire.
    #[must_use]
    pub fn packets(&self) -> u32 {
        match u32::from(self.gso_size) {
            0 => 1,
            size => self.len.div_ceil(size).max(1),
        }
    }
}

/// What a switch tells the module in a guest that shares its work. It never leaves the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The switch is alive, and will have been for this long when the next is due.
    Heartbeat {
        /// How long the module may count on it.
        lifetime: Duration,
    },
    /// The switch controls the flow. That is a heartbeat as well.
    Managed {
        /// As in a heartbeat.
        lifetime: Duration,
    },
    /// The switch does not control the flow.
    Offline,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A TCP segment.
    Tcp(Segment),
    /// A datagram: `len` bytes of payload, and what it means to the application.
    Datagram {
        /// Bytes of payload.
        len: u32,
        /// For the application.
        tag: u32,
    },
    /// A word of the switch to a guest.
    Notice(Notice),
}

impl Body {
    /// Makes it a TCP segment, which is to be overwritten.
    #[inline]
    pub(crate) fn segment_mut(&mut self) -> &mut Segment {
        if !matches!(self, Self::Tcp(_)) {
            *self = Self::Tcp(Segment::default());
        }
        match self {
            Self::Tcp(segment) => segment,
            Self::Datagram { .. } | Self::Notice(_) => unreachable!("it was made a segment"),
        }
    }
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The flow to which it belongs.
    pub flow: FlowId,
    /// The side that sent it.
    pub from: Side,
    /// Sender.
    pub src: Address,
    /// Receiver.
    pub dst: Address,
    /// Hash of the 5-tuple in this direction, for ECMP.
    pub hash: u32,
    /// Differentiated-services code point, 6 bits.
    pub dscp: u8,
    /// ECN bits.
    pub ecn: Ecn,
    /// Bytes for which it counts with the sender until it has left the sender's queues; zero if nobody counts.
    pub charge: u32,
    /// What it carries.
    pub body: Body,
}

const IP_HEADER: u32 = 20;
const UDP_HEADER: u32 = 8;
/// The least that an Ethernet frame carries.
const NOTICE: u32 = 46;

impl Packet {
    /// A packet of nobody.
    pub(crate) fn empty() -> Self {
        Self {
            flow: FlowId::default(),
            from: Side::Client,
            src: Address::default(),
            dst: Address::default(),
            hash: 0,
            dscp: 0,
            ecn: Ecn::NotEct,
            charge: 0,
            body: Body::Tcp(Segment::default()),
        }
    }

    /// Number of packets that it is on the wire: more than one for a GSO packet.
    #[must_use]
    pub fn packets(&self) -> u32 {
        match &self.body {
            Body::Tcp(segment) => segment.packets(),
            Body::Datagram { .. } | Body::Notice(_) => 1,
        }
    }

    /// Bytes of IP packets that it is on the wire.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        match &self.body {
            Body::Tcp(s) => s.len + s.packets() * (IP_HEADER + s.header_len()),
            Body::Datagram { len, .. } => len + IP_HEADER + UDP_HEADER,
            Body::Notice(_) => NOTICE,
        }
    }

    /// Always false: headers are bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The TCP part.
    #[must_use]
    pub const fn tcp(&self) -> Option<&Segment> {
        match &self.body {
            Body::Tcp(segment) => Some(segment),
            Body::Datagram { .. } | Body::Notice(_) => None,
        }
    }

    /// Cuts the first packet off a GSO packet, as a network card does: FIN and PSH stay with the last, CWR with
    /// the first (RFC 3168 section 6.1.2). The last has the charge. `None` if it is one packet already.
    pub fn split_front(&mut self) -> Option<Self> {
        let Body::Tcp(rest) = &mut self.body else { return None };
        let size = u32::from(rest.gso_size);
        if rest.packets() < 2 {
            rest.gso_size = 0;
            return None;
        }
        let mut first = *rest;
        first.len = size;
        first.gso_size = 0;
        first.flags = first.flags.without(Flags::FIN).without(Flags::PSH);
        rest.len -= size;
        rest.seq += size;
        rest.flags = rest.flags.without(Flags::CWR);
        Some(Self { body: Body::Tcp(first), charge: 0, ..*self })
    }
}

/// Names a packet in a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketId(u32);

const NIL: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slot {
    packet: Packet,
    /// [`Packet::len`], which a packet is asked for at every hop.
    len: u32,
    next: u32,
    used: bool,
}

/// Bytes of a flow that have left their sender's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxCompletion {
    /// The flow.
    pub flow: FlowId,
    /// The end that sent them.
    pub side: Side,
    /// Their [`Packet::charge`].
    pub bytes: u32,
}

/// All packets of a run.
#[derive(Clone, Debug)]
pub struct Pool {
    slots: Vec<Slot>,
    free: u32,
    live: usize,
    tx_completions: Vec<TxCompletion>,
}

impl Default for Pool {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NIL, live: 0, tx_completions: Vec::new() }
    }
}

impl Pool {
    /// Keeps a packet.
    #[inline]
    pub fn insert(&mut self, packet: Packet) -> PacketId {
        self.live += 1;
        let len = packet.len();
        if self.free == NIL {
            self.slots.push(Slot { packet, len, next: NIL, used: true });
            return PacketId(self.slots.len() as u32 - 1);
        }
        let id = self.free;
        let slot = &mut self.slots[id as usize];
        self.free = slot.next;
        *slot = Slot { packet, len, next: NIL, used: true };
        PacketId(id)
    }

    /// Keeps the packet that `write` writes over what a freed packet has left, all of it; keeps none if it returns `None`.
    #[inline]
    pub(crate) fn insert_with(
        &mut self,
        write: impl FnOnce(&mut Packet) -> Option<()>,
    ) -> Option<PacketId> {
        if self.free == NIL {
            self.free = self.slots.len() as u32;
            self.slots.push(Slot { packet: Packet::empty(), len: 0, next: NIL, used: false });
        }
        let id = PacketId(self.free);
        let slot = &mut self.slots[id.0 as usize];
        write(&mut slot.packet)?;
        self.free = slot.next;
        (slot.len, slot.next, slot.used) = (slot.packet.len(), NIL, true);
        self.live += 1;
        Some(id)
    }

    /// Takes a packet out.
    #[inline]
    pub fn remove(&mut self, id: PacketId) -> Packet {
        let slot = &mut self.slots[id.0 as usize];
        assert!(slot.used, "a packet was used after it was freed");
        self.tx_completion(id);
        let slot = &mut self.slots[id.0 as usize];
        slot.used = false;
        slot.next = self.free;
        self.free = id.0;
        self.live -= 1;
        slot.packet
    }

    /// A packet.
    #[must_use]
    #[inline]
    pub fn get(&self, id: PacketId) -> &Packet {
        &self.slots[id.0 as usize].packet
    }

    /// Bytes of IP packets that a packet is on the wire: its [`Packet::len`].
    #[must_use]
    #[inline]
    pub fn wire_len(&self, id: PacketId) -> u32 {
        self.slots[id.0 as usize].len
    }

    /// Changes a packet. Returns what `change` does.
    #[inline]
    pub fn edit<R>(&mut self, id: PacketId, change: impl FnOnce(&mut Packet) -> R) -> R {
        let slot = &mut self.slots[id.0 as usize];
        let changed = change(&mut slot.packet);
        slot.len = slot.packet.len();
        changed
    }

    /// A packet has left its sender's queues.
    #[inline]
    pub fn tx_completion(&mut self, id: PacketId) {
        let packet = &mut self.slots[id.0 as usize].packet;
        let bytes = std::mem::take(&mut packet.charge);
        if bytes > 0 {
            self.tx_completions.push(TxCompletion { flow: packet.flow, side: packet.from, bytes });
        }
    }

    /// Something has left its sender's queues and was not taken.
    #[must_use]
    pub const fn has_tx_completion(&self) -> bool {
        !self.tx_completions.is_empty()
    }

    /// What has left its sender's queues and was not taken from here; the last first.
    #[inline]
    pub fn take_tx_completion(&mut self) -> Option<TxCompletion> {
        self.tx_completions.pop()
    }

    /// Packets that exist now.
    #[must_use]
    pub const fn live(&self) -> usize {
        self.live
    }
}

/// A queue of packets of a pool. A packet is in one queue at most.
#[derive(Clone, Debug)]
pub struct Fifo {
    head: u32,
    tail: u32,
    packets: u32,
    bytes: u64,
}

impl Default for Fifo {
    fn default() -> Self {
        Self { head: NIL, tail: NIL, packets: 0, bytes: 0 }
    }
}

impl Fifo {
    /// Packets in it; a GSO packet counts as one.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        self.packets
    }

    /// Bytes of IP packets in it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Nothing is in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Appends a packet.
    #[inline]
    pub fn push(&mut self, id: PacketId, pool: &mut Pool) {
        pool.slots[id.0 as usize].next = NIL;
        if self.tail == NIL {
            self.head = id.0;
        } else {
            pool.slots[self.tail as usize].next = id.0;
        }
        self.tail = id.0;
        self.packets += 1;
        self.bytes += u64::from(pool.wire_len(id));
    }

    /// The first packet.
    #[must_use]
    pub fn front(&self) -> Option<PacketId> {
        (self.head != NIL).then_some(PacketId(self.head))
    }

    /// Takes the first packet.
    #[inline]
    pub fn pop(&mut self, pool: &mut Pool) -> Option<PacketId> {
        let id = self.front()?;
        self.head = pool.slots[id.0 as usize].next;
        if self.head == NIL {
            self.tail = NIL;
        }
        self.packets -= 1;
        self.bytes -= u64::from(pool.wire_len(id));
        Some(id)
    }

    /// Takes the first packet; of a GSO packet the first piece, whose rest stays at the front.
    pub fn pop_piece(&mut self, pool: &mut Pool) -> Option<PacketId> {
        let id = self.front()?;
        let Some(first) = pool.edit(id, Packet::split_front) else { return self.pop(pool) };
        self.bytes -= u64::from(first.len());
        Some(pool.insert(first))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn data(len: u32, gso_size: u16) -> Packet {
        let segment = Segment {
            seq: Seq(1000),
            len,
            gso_size,
            flags: Flags::ACK.with(Flags::PSH).with(Flags::CWR),
            ..Segment::default()
        };
        Packet { dst: Address(1), body: Body::Tcp(segment), ..Packet::empty() }
    }

    #[test]
    fn a_gso_packet_counts_as_what_it_becomes() {
        let mut pool = Pool::default();
        let mut queue = Fifo::default();
        let id = pool.insert(data(3000, 1460));
        queue.push(id, &mut pool);
        assert_eq!((queue.packets(), queue.bytes()), (1, 3000 + 3 * 40));
        let mut pieces = Vec::new();
        while let Some(id) = queue.pop_piece(&mut pool) {
            pieces.push(*pool.remove(id).tcp().unwrap());
        }
        let seen: Vec<_> = pieces.iter().map(|s| (s.seq.0, s.len, s.gso_size)).collect();
        assert_eq!(seen, [(1000, 1460, 0), (2460, 1460, 0), (3920, 80, 0)]);
        let flags: Vec<_> = pieces.iter().map(|s| format!("{:?}", s.flags)).collect();
        assert_eq!(flags, ["[.W]", "[.]", "[P.]"]);
        assert_eq!((queue.bytes(), queue.packets(), pool.live()), (0, 0, 0));
    }

    #[test]
    fn header_lengths() {
        use floodway_wire::tcp::options::{SackBlock, Timestamps};
        let mut s = Segment::default();
        assert_eq!(s.header_len(), 20);
        s.options.timestamps = Some(Timestamps::default());
        assert_eq!(s.header_len(), 32);
        s.options.set_sack_blocks(&[SackBlock::default(); 3]);
        assert_eq!(s.header_len(), 60);
        let mut syn = Segment::default();
        syn.options.mss = Some(1460);
        syn.options.window_scale = Some(7);
        syn.options.sack_permitted = true;
        syn.options.timestamps = Some(Timestamps::default());
        assert_eq!(syn.header_len(), 40);
    }

    #[test]
    fn a_charge_ends_once_and_with_the_last_piece() {
        let mut pool = Pool::default();
        let mut queue = Fifo::default();
        let id = pool.insert(Packet { charge: 3_000, ..data(3_000, 1460) });
        queue.push(id, &mut pool);
        let mut ended = Vec::new();
        while let Some(id) = queue.pop_piece(&mut pool) {
            pool.tx_completion(id);
            ended.push(pool.take_tx_completion().map(|charge| charge.bytes));
            pool.remove(id);
        }
        assert_eq!(ended, [None, None, Some(3_000)]);
        assert_eq!(pool.take_tx_completion(), None);
        let dropped = pool.insert(Packet { charge: 7, ..data(1, 0) });
        pool.remove(dropped);
        assert_eq!(pool.take_tx_completion().map(|charge| charge.bytes), Some(7));
    }

    #[test]
    fn an_edit_changes_the_length_that_is_kept() {
        use floodway_wire::tcp::options::SackBlock;
        let mut pool = Pool::default();
        let id = pool.insert(data(1000, 0));
        let set = |packet: &mut Packet, blocks: &[SackBlock]| {
            packet.body.segment_mut().options.set_sack_blocks(blocks);
        };
        pool.edit(id, |packet| set(packet, &[SackBlock::default(); 2]));
        assert_eq!(pool.wire_len(id), 1000 + 40 + 20);
        pool.edit(id, |packet| set(packet, &[]));
        assert_eq!(pool.wire_len(id), 1000 + 40);
    }

    #[test]
    fn what_writes_nothing_keeps_nothing() {
        let mut pool = Pool::default();
        assert_eq!(pool.insert_with(|_| None), None);
        let first = pool.insert(data(1, 0));
        let second = pool.insert_with(|packet| {
            *packet = data(2, 0);
            Some(())
        });
        assert_eq!(second.map(|id| pool.wire_len(id)), Some(42));
        assert_eq!((pool.wire_len(first), pool.live(), pool.slots.len()), (41, 2, 2));
    }

    #[test]
    fn slots_are_used_again() {
        let mut pool = Pool::default();
        for _ in 0..10 {
            let (a, b) = (pool.insert(data(1, 0)), pool.insert(data(2, 0)));
            let mut queue = Fifo::default();
            queue.push(b, &mut pool);
            queue.push(a, &mut pool);
            assert_eq!((queue.pop(&mut pool), queue.pop(&mut pool)), (Some(b), Some(a)));
            assert_eq!(queue.pop(&mut pool), None);
            pool.remove(a);
            pool.remove(b);
        }
        assert_eq!((pool.slots.len(), pool.live()), (2, 0));
    }
}
