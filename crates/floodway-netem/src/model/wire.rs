//! Packets on their way: each arrives at a time of its own.
//!
//! Packets that are due at the same time arrive in the order in which they were put in. The wire
//! keeps the order of packets unless told otherwise: one that would overtake, because its delay is
//! shorter than that of the packet before, arrives together with that one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use floodway_core::time::Instant;

use super::Packet;

#[derive(Debug)]
struct Entry<P> {
    due: Instant,
    order: u64,
    packet: P,
}

impl<P> PartialEq for Entry<P> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<P> Eq for Entry<P> {}

impl<P> PartialOrd for Entry<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Entry<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

/// Packets sorted by their time of arrival.
#[derive(Debug)]
pub struct Wire<P> {
    packets: BinaryHeap<Reverse<Entry<P>>>,
    bytes: u64,
    order: u64,
    /// Nothing that keeps the order arrives before this.
    latest: Instant,
}

impl<P> Default for Wire<P> {
    fn default() -> Self {
        Self { packets: BinaryHeap::new(), bytes: 0, order: 0, latest: Instant::ZERO }
    }
}

impl<P: Packet> Wire<P> {
    /// A packet that arrives at `due`, not before those that were put in earlier.
    pub fn put(&mut self, packet: P, due: Instant) {
        self.latest = self.latest.max(due);
        self.insert(packet, self.latest);
    }

    /// A packet that arrives at `due`, and that others may overtake.
    pub fn put_aside(&mut self, packet: P, due: Instant) {
        self.insert(packet, due);
    }

    /// When the next packet arrives; [`Instant::NEVER`] without one.
    #[must_use]
    pub fn next_due(&self) -> Instant {
        self.packets.peek().map_or(Instant::NEVER, |Reverse(entry)| entry.due)
    }

    /// The next packet that has arrived by `now`, and when it did.
    pub fn take_due(&mut self, now: Instant) -> Option<(P, Instant)> {
        if self.next_due() > now {
            return None;
        }
        let Reverse(entry) = self.packets.pop()?;
        self.bytes -= u64::from(entry.packet.frame_len());
        Some((entry.packet, entry.due))
    }

    /// Packets on the wire.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Nothing is on the wire.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Bytes of frames on the wire.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn insert(&mut self, packet: P, due: Instant) {
        self.order += 1;
        self.bytes += u64::from(packet.frame_len());
        self.packets.push(Reverse(Entry { due, order: self.order, packet }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestPacket;
    use super::*;

    #[test]
    fn order_is_kept_unless_a_packet_is_put_aside() {
        let mut wire = Wire::default();
        let at = Instant::from_micros;
        wire.put(TestPacket::new(0, 100), at(20));
        wire.put(TestPacket::new(1, 100), at(10));
        wire.put_aside(TestPacket::new(2, 100), at(50));
        wire.put(TestPacket::new(3, 100), at(30));
        assert_eq!((wire.next_due(), wire.bytes()), (at(20), 400));
        assert!(wire.take_due(at(19)).is_none());
        let arrived: Vec<_> = std::iter::from_fn(|| wire.take_due(at(100)))
            .map(|(packet, due)| (packet.id, due))
            .collect();
        assert_eq!(arrived, [(0, at(20)), (1, at(20)), (3, at(30)), (2, at(50))]);
        assert_eq!((wire.next_due(), wire.bytes()), (Instant::NEVER, 0));
    }
}
