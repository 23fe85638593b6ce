//! A host's network card and the queue above it.
//!
//! # Theory of operation
//! Packets wait in a queue discipline in software. The card has a ring of its own, in order, that software
//! cannot reorder any more; so it should be short. As with byte queue limits (Linux BQL), software hands
//! packets over while less than `ring_bytes` are with the card, the packet on the wire included; the last one
//! may exceed the limit. A GSO packet enters the ring whole and leaves in pieces: segmentation by
//! the card. That is why a ring that is short in bytes can still hold 64 KB of one flow ahead of everybody.

use super::queue::{ClassQueues, Discipline, QueueConfig, Refused};
use crate::Instant;
use crate::packet::{Fifo, PacketId, Pool};

/// Limits of a card and of its queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NicConfig {
    /// Bytes with the card from which on software holds packets back.
    pub ring_bytes: u64,
    /// Descriptors of the ring.
    pub ring_slots: u32,
    /// The queue above.
    pub queue: QueueConfig,
}

impl Default for NicConfig {
    /// A ring of 256 descriptors without byte limit below a queue of 1000 packets, as Linux had it
    /// before BQL.
    fn default() -> Self {
        Self { ring_bytes: u64::MAX, ring_slots: 256, queue: QueueConfig::packets(1000) }
    }
}

/// A card with its queue.
#[derive(Debug)]
pub struct Nic {
    ring: Fifo,
    on_wire: u64,
    ring_bytes: u64,
    ring_slots: u32,
    discipline: Box<dyn Discipline>,
}

impl Nic {
    /// With a strict-priority queue of two classes above.
    #[must_use]
    pub fn new(config: NicConfig) -> Self {
        Self::with_discipline(config, Box::new(ClassQueues::new(config.queue)))
    }

    /// With any queue discipline above; `config.queue` is not used.
    #[must_use]
    pub fn with_discipline(config: NicConfig, discipline: Box<dyn Discipline>) -> Self {
        Self {
            ring: Fifo::default(),
            on_wire: 0,
            ring_bytes: config.ring_bytes,
            ring_slots: config.ring_slots,
            discipline,
        }
    }

    pub(super) fn offer(
        &mut self,
        packet: PacketId,
        now: Instant,
        pool: &mut Pool,
    ) -> Result<(), Refused> {
        self.discipline.enqueue(packet, now, pool)?;
        self.refill(now, pool);
        Ok(())
    }

    pub(super) fn take(&mut self, now: Instant, pool: &mut Pool) -> Option<PacketId> {
        self.on_wire = 0;
        self.refill(now, pool);
        let packet = self.ring.pop_piece(pool)?;
        self.on_wire = u64::from(pool.wire_len(packet));
        Some(packet)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty() && self.discipline.is_empty()
    }

    fn refill(&mut self, now: Instant, pool: &mut Pool) {
        while self.ring.packets() < self.ring_slots
            && self.ring.bytes() + self.on_wire < self.ring_bytes
            && let Some(packet) = self.discipline.dequeue(now, pool)
        {
            self.ring.push(packet, pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;
    use crate::packet::tests::data;

    fn send(nic: &mut Nic, pool: &mut Pool, dscp: u8) -> PacketId {
        let id = pool.insert(Packet { dscp, ..data(1460, 0) });
        nic.offer(id, Instant::ZERO, pool).unwrap();
        id
    }

    #[test]
    fn only_what_is_not_in_the_ring_can_be_overtaken() {
        let queue = QueueConfig::packets(100).with_high(46);
        for (ring_bytes, overtaken) in [(3_000, 3), (1_500, 4), (1_501, 3)] {
            let mut pool = Pool::default();
            let mut nic = Nic::new(NicConfig { ring_bytes, queue, ..NicConfig::default() });
            (0..5).for_each(|_| {
                send(&mut nic, &mut pool, 0);
            });
            let urgent = send(&mut nic, &mut pool, 46);
            let order: Vec<_> = std::iter::from_fn(|| nic.take(Instant::ZERO, &mut pool)).collect();
            let place = order.iter().position(|&id| id == urgent).unwrap();
            assert_eq!(order.len() - 1 - place, overtaken, "{ring_bytes}");
            assert!(nic.is_empty());
        }
    }

    #[test]
    fn a_gso_packet_blocks_the_ring() {
        let mut pool = Pool::default();
        let queue = QueueConfig::packets(100).with_high(46);
        let mut nic = Nic::new(NicConfig { ring_bytes: 1_500, queue, ..NicConfig::default() });
        let bulk = pool.insert(data(10 * 1460, 1460));
        nic.offer(bulk, Instant::ZERO, &mut pool).unwrap();
        let urgent = send(&mut nic, &mut pool, 46);
        let order: Vec<_> = std::iter::from_fn(|| nic.take(Instant::ZERO, &mut pool)).collect();
        assert_eq!(order.iter().position(|&id| id == urgent), Some(10));
    }
}
