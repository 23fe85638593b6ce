//! The rings between a VM and the driver domain.
//!
//! # Theory of operation
//! As in Xen's `netfront` and `netback`: a ring of slots in shared memory and an event channel. For sending, the VM
//! puts requests into free slots and the driver domain answers each when it has taken the packet; the slot is
//! free again then. For receiving, the VM posts empty buffers and the driver domain fills them; the VM posts a
//! new one when it has taken a packet.
//!
//! An event is sent only if the other side has asked for it: the driver domain asks when it finds the TX rings
//! empty; the VM asks for packets when it has taken all, and for free slots when it found none, then as soon
//! as half of them are free (`netfront` sets `rsp_event` half-way).
//!
//! 240 slots are those of Xen 3.3 according to the vFlood paper (section 5.1); GSO packets take one slot per
//! 4096 bytes.
//!
//! Invariant: requests, and buffers that are filled, are never more than the slots.

use crate::packet::{Fifo, PacketId, Pool};

const PAGE: u32 = 4096;

/// Slots that a packet takes.
fn slots(packet: PacketId, pool: &Pool) -> u32 {
    pool.wire_len(packet).div_ceil(PAGE).max(1)
}

/// From the VM to the driver domain.
#[derive(Clone, Debug)]
pub struct TxRing {
    slots: u32,
    used: u32,
    requests: Fifo,
    /// The VM found no free slot.
    stopped: bool,
}

impl TxRing {
    /// An empty ring.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self { slots, used: 0, requests: Fifo::default(), stopped: false }
    }

    /// Packets that wait for the driver domain.
    #[must_use]
    pub const fn requests(&self) -> u32 {
        self.requests.packets()
    }

    /// The VM has been told to wait for slots.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// A packet fits; if not, the VM waits for the event.
    pub fn has_room(&mut self, packet: PacketId, pool: &Pool) -> bool {
        let needed = slots(packet, pool).min(self.slots);
        let fits = self.used + needed <= self.slots;
        self.stopped |= !fits;
        fits && !self.stopped
    }

    /// The VM sends a packet. Says whether it has to send an event: the driver domain saw the ring empty.
    pub fn push(&mut self, packet: PacketId, pool: &mut Pool) -> bool {
        self.used += slots(packet, pool).min(self.slots);
        self.requests.push(packet, pool);
        self.requests.packets() == 1
    }

    /// The driver domain takes a packet and answers. Says whether it has to send an event.
    pub fn take(&mut self, pool: &mut Pool) -> Option<(PacketId, bool)> {
        let packet = self.requests.pop(pool)?;
        self.used -= slots(packet, pool).min(self.slots);
        let call = self.stopped && self.used <= self.slots / 2;
        self.stopped &= !call;
        Some((packet, call))
    }
}

/// From the driver domain to the VM.
#[derive(Clone, Debug)]
pub struct RxRing {
    slots: u32,
    used: u32,
    filled: Fifo,
}

impl RxRing {
    /// A ring with all buffers posted.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self { slots, used: 0, filled: Fifo::default() }
    }

    /// Packets that wait for the VM.
    #[must_use]
    pub const fn filled(&self) -> u32 {
        self.filled.packets()
    }

    /// The packet that the VM takes next.
    #[must_use]
    pub fn first(&self) -> Option<PacketId> {
        self.filled.front()
    }

    /// There are buffers for a packet.
    #[must_use]
    pub fn has_room(&self, packet: PacketId, pool: &Pool) -> bool {
        self.used + slots(packet, pool).min(self.slots) <= self.slots
    }

    /// The driver domain fills a buffer. Says whether it has to send an event.
    pub fn push(&mut self, packet: PacketId, pool: &mut Pool) -> bool {
        self.used += slots(packet, pool).min(self.slots);
        self.filled.push(packet, pool);
        self.filled.packets() == 1
    }

    /// The VM takes a packet and posts another buffer.
    pub fn take(&mut self, pool: &mut Pool) -> Option<PacketId> {
        let packet = self.filled.pop(pool)?;
        self.used -= slots(packet, pool).min(self.slots);
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::data;

    #[test]
    fn a_full_ring_calls_when_half_is_free() {
        let mut pool = Pool::default();
        let mut ring = TxRing::new(8);
        let mut calls = Vec::new();
        for n in 0..8 {
            let id = pool.insert(data(1000, 0));
            assert!(ring.has_room(id, &pool));
            assert_eq!(ring.push(id, &mut pool), n == 0, "only an empty ring needs an event");
        }
        let waiting = pool.insert(data(1000, 0));
        assert!(!ring.has_room(waiting, &pool));
        for _ in 0..3 {
            calls.push(ring.take(&mut pool).unwrap().1);
            assert!(!ring.has_room(waiting, &pool), "it waits for the event");
        }
        calls.push(ring.take(&mut pool).unwrap().1);
        assert_eq!(calls, [false, false, false, true]);
        assert!(ring.has_room(waiting, &pool) && !ring.is_stopped());
    }

    #[test]
    fn gso_packets_take_a_slot_per_page() {
        let mut pool = Pool::default();
        let mut ring = RxRing::new(20);
        let large = pool.insert(data(64_000, 1460));
        assert!(ring.has_room(large, &pool));
        assert!(ring.push(large, &mut pool));
        let small = pool.insert(data(1, 0));
        let larger = pool.insert(data(20_000, 1460));
        assert!(ring.has_room(small, &pool) && !ring.has_room(larger, &pool));
        assert_eq!(ring.take(&mut pool), Some(large));
        assert!(ring.has_room(larger, &pool));
        assert_eq!((ring.filled(), ring.take(&mut pool)), (0, None));
    }
}
