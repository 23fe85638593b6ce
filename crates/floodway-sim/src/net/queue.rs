//! Queues in front of a transmitter.
//!
//! # Theory of operation
//! [`ClassQueues`] is the output queue of a switch port: two first-in-first-out queues, of which the high one
//! is always served first; the code point of a packet decides ([`QueueConfig::high_dscp`]). A packet that does not
//! fit is dropped (drop-tail): by the limit of its class, or by the threshold of the
//! shared buffer of the switch. A packet that finds at least `mark_above` bytes queued in its
//! class is marked if it is ECN-capable (instantaneous threshold, RFC 8257 section 3.1); others are not
//! dropped for it.
//!
//! The packet that is being sent has left the queue and counts no more.

use super::buffer::SharedBuffer;
use crate::Instant;
use crate::packet::{Ecn, Fifo, PacketId, Pool};

/// The queue had no room; the packet is the caller's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// A queue discipline: what stands between a host's stack and its network card.
pub trait Discipline: std::fmt::Debug + Send {
    /// Takes a packet.
    ///
    /// # Errors
    /// [`Refused`] if it has no room. A discipline that drops another packet instead frees that
    /// itself.
    fn enqueue(&mut self, packet: PacketId, now: Instant, pool: &mut Pool) -> Result<(), Refused>;

    /// Gives the next packet.
    fn dequeue(&mut self, now: Instant, pool: &mut Pool) -> Option<PacketId>;

    /// Nothing waits.
    fn is_empty(&self) -> bool;
}

/// Limits of a port's queues; each class has them for itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueConfig {
    /// Most bytes of IP packets.
    pub bytes: u64,
    /// Most packets.
    pub packets: u32,
    /// Bytes queued from which on a packet is marked.
    pub mark_above: Option<u64>,
    /// Code points that go to the high class: bit `n` stands for code point `n`.
    pub high_dscp: u64,
}

impl QueueConfig {
    /// One class, drop-tail at a number of packets.
    #[must_use]
    pub const fn packets(packets: u32) -> Self {
        Self { bytes: u64::MAX, packets, mark_above: None, high_dscp: 0 }
    }

    /// One class, drop-tail at a number of bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self { bytes, packets: u32::MAX, mark_above: None, high_dscp: 0 }
    }

    /// The same, marking from `bytes` on.
    #[must_use]
    pub const fn with_marking(self, bytes: u64) -> Self {
        Self { mark_above: Some(bytes), ..self }
    }

    /// The same, with a code point in the high class.
    #[must_use]
    pub const fn with_high(self, dscp: u8) -> Self {
        Self { high_dscp: self.high_dscp | 1 << (dscp & 63), ..self }
    }
}

/// Two strict-priority drop-tail queues.
#[derive(Clone, Debug)]
pub struct ClassQueues {
    config: QueueConfig,
    high: Fifo,
    low: Fifo,
    marked: u64,
}

impl ClassQueues {
    /// Empty queues.
    #[must_use]
    pub fn new(config: QueueConfig) -> Self {
        Self { config, high: Fifo::default(), low: Fifo::default(), marked: 0 }
    }

    /// Bytes queued in both classes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.high.bytes() + self.low.bytes()
    }

    /// Packets queued in both classes.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        self.high.packets() + self.low.packets()
    }

    /// Packets marked so far.
    #[must_use]
    pub const fn marked(&self) -> u64 {
        self.marked
    }

    pub(super) fn offer(
        &mut self,
        packet: PacketId,
        buffer: Option<&mut SharedBuffer>,
        pool: &mut Pool,
    ) -> Result<(), Refused> {
        let len = u64::from(pool.wire_len(packet));
        let high = self.config.high_dscp >> (pool.get(packet).dscp & 63) & 1 != 0;
        let queue = if high { &mut self.high } else { &mut self.low };
        let full =
            queue.bytes() + len > self.config.bytes || queue.packets() >= self.config.packets;
        if full || buffer.is_some_and(|buffer| !buffer.take(queue.bytes(), len)) {
            return Err(Refused);
        }
        let above = self.config.mark_above.is_some_and(|k| queue.bytes() >= k);
        if above && pool.get(packet).ecn == Ecn::Ect {
            pool.edit(packet, |packet| packet.ecn = Ecn::Ce);
            self.marked += 1;
        }
        queue.push(packet, pool);
        Ok(())
    }

    pub(super) fn take(
        &mut self,
        buffer: Option<&mut SharedBuffer>,
        pool: &mut Pool,
    ) -> Option<PacketId> {
        let packet = self.high.pop(pool).or_else(|| self.low.pop(pool))?;
        if let Some(buffer) = buffer {
            buffer.give(u64::from(pool.wire_len(packet)));
        }
        Some(packet)
    }
}

impl Discipline for ClassQueues {
    fn enqueue(&mut self, packet: PacketId, _: Instant, pool: &mut Pool) -> Result<(), Refused> {
        self.offer(packet, None, pool)
    }

    fn dequeue(&mut self, _: Instant, pool: &mut Pool) -> Option<PacketId> {
        self.take(None, pool)
    }

    fn is_empty(&self) -> bool {
        self.packets() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::data;

    fn offer(queues: &mut ClassQueues, pool: &mut Pool, dscp: u8, ecn: Ecn) -> Option<PacketId> {
        let id = pool.insert(crate::packet::Packet { dscp, ecn, ..data(960, 0) });
        queues.offer(id, None, pool).ok().map(|()| id)
    }

    #[test]
    fn high_goes_first_and_has_a_limit_of_its_own() {
        let mut pool = Pool::default();
        let mut queues = ClassQueues::new(QueueConfig::packets(2).with_high(46));
        let low = offer(&mut queues, &mut pool, 0, Ecn::NotEct);
        let low_too = offer(&mut queues, &mut pool, 8, Ecn::NotEct);
        let high = offer(&mut queues, &mut pool, 46, Ecn::NotEct);
        assert_eq!(offer(&mut queues, &mut pool, 0, Ecn::NotEct), None);
        let high_too = offer(&mut queues, &mut pool, 46, Ecn::NotEct);
        assert_eq!(offer(&mut queues, &mut pool, 46, Ecn::NotEct), None);
        let order = [(); 5].map(|()| queues.take(None, &mut pool));
        assert_eq!(order, [high, high_too, low, low_too, None]);
    }

    #[test]
    fn marks_from_the_threshold_on_what_can_be_marked() {
        let mut pool = Pool::default();
        let mut queues = ClassQueues::new(QueueConfig::bytes(10_000).with_marking(2_000));
        let sent = [Ecn::Ect, Ecn::Ect, Ecn::Ect, Ecn::NotEct, Ecn::Ect];
        let ids = sent.map(|ecn| offer(&mut queues, &mut pool, 0, ecn).unwrap());
        let seen = ids.map(|id| pool.get(id).ecn);
        assert_eq!(seen, [Ecn::Ect, Ecn::Ect, Ecn::Ce, Ecn::NotEct, Ecn::Ce]);
        assert_eq!((queues.marked(), queues.bytes()), (2, 5_000));
        for _ in 0..5 {
            assert!(offer(&mut queues, &mut pool, 0, Ecn::Ect).is_some());
        }
        assert!(offer(&mut queues, &mut pool, 0, Ecn::Ect).is_none(), "10000 bytes are full");
    }
}
