//! The switch's queue in front of an uplink, above a simulated network card.
//!
//! # Theory of operation
//! The scheduler is [`floodway_core::egress::qdisc::Scheduler`], the very code that the switch runs: two classes, turns of the sources
//! within each, and a fifo, `CoDel` or FQ-CoDel for each source and class. What the queue can choose between depends on how
//! large a packet is: with [`HostQueueConfig::segment`] a GSO packet is cut into packets on its way in, without it a
//! GSO packet is one packet here, and leaves for the card's ring whole.
//!
//! What the scheduler drops is freed here and counted; what it marks gets CE.
//!
//! Source: Xu et al., "Small is Better" (`SoCC` 2013), section 4.2; RFC 8289, RFC 8290.

use floodway_core::egress::qdisc::{Class, Config, Counters, Packet as Entry, Scheduler};

use super::queue::{Discipline, Refused};
use crate::Instant;
use crate::packet::{Address, Ecn, Packet, PacketId, Pool};

/// Settings of a host's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQueueConfig {
    /// The discipline of each source and class.
    pub discipline: Config,
    /// GSO packets are cut before they are queued.
    pub segment: bool,
    /// Code points of the high class: bit `n` stands for code point `n`.
    pub high_dscp: u64,
}

/// The queue of a host with its classes and sources.
#[derive(Debug)]
pub struct HostQueue {
    config: HostQueueConfig,
    scheduler: Scheduler<PacketId>,
    /// Their places are the sources' numbers.
    sources: Vec<Address>,
}

impl HostQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(config: HostQueueConfig) -> Self {
        Self { config, scheduler: Scheduler::new(config.discipline), sources: Vec::new() }
    }

    /// What its scheduler has done.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        self.scheduler.counters()
    }

    fn push(&mut self, id: PacketId, now: Instant, pool: &mut Pool) {
        let packet = pool.get(id);
        let high = self.config.high_dscp >> (packet.dscp & 63) & 1 != 0;
        let class = if high { Class::High } else { Class::Low };
        let entry = Entry {
            handle: id,
            len: pool.wire_len(id),
            flow: packet.hash.into(),
            ecn_capable: packet.ecn != Ecn::NotEct,
        };
        let source = packet.src;
        let at = self.sources.iter().position(|&known| known == source).unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
        });
        self.scheduler.enqueue(class, at as u16, entry, now, &mut |dropped, _| {
            pool.remove(dropped.handle);
        });
    }
}

impl Discipline for HostQueue {
    fn enqueue(&mut self, id: PacketId, now: Instant, pool: &mut Pool) -> Result<(), Refused> {
        while self.config.segment
            && let Some(first) = pool.edit(id, Packet::split_front)
        {
            let first = pool.insert(first);
            self.push(first, now, pool);
        }
        self.push(id, now, pool);
        Ok(())
    }

    fn dequeue(&mut self, now: Instant, pool: &mut Pool) -> Option<PacketId> {
        let served = self.scheduler.dequeue(now, &mut |dropped, _| {
            pool.remove(dropped.handle);
        })?;
        let id = served.departure.packet.handle;
        if served.departure.mark {
            pool.edit(id, |packet| packet.ecn = Ecn::Ce);
        }
        Some(id)
    }

    fn is_empty(&self) -> bool {
        self.scheduler.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Nic, NicConfig};
    use crate::packet::Packet;
    use crate::packet::tests::data;
    use floodway_core::egress::qdisc::Kind;

    fn queue(kind: Kind, segment: bool, limit_packets: u32) -> HostQueue {
        let discipline = Config { kind, limit_packets, ..Config::default() };
        HostQueue::new(HostQueueConfig { discipline, segment, high_dscp: 1 << 46 })
    }

    /// Packets that leave the card before one that comes behind two GSO packets of another flow.
    fn ahead(kind: Kind, segment: bool, dscp: u8) -> usize {
        let mut pool = Pool::default();
        let config = NicConfig { ring_bytes: 3_000, ..NicConfig::default() };
        let mut nic = Nic::with_discipline(config, Box::new(queue(kind, segment, 1000)));
        for _ in 0..2 {
            let bulk = pool.insert(data(40 * 1460, 1460));
            nic.offer(bulk, Instant::ZERO, &mut pool).unwrap();
        }
        let ping = pool.insert(Packet { hash: 7, dscp, ..data(60, 0) });
        nic.offer(ping, Instant::ZERO, &mut pool).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| nic.take(Instant::ZERO, &mut pool)).collect();
        assert_eq!(order.len(), 81);
        order.iter().position(|&id| id == ping).unwrap()
    }

    #[test]
    fn what_is_cut_can_be_overtaken() {
        assert_eq!(ahead(Kind::Fifo, true, 0), 80);
        assert_eq!(ahead(Kind::FqCodel, false, 0), 40, "the GSO packet that is with the card");
        assert_eq!(ahead(Kind::FqCodel, true, 0), 2, "what is with the card");
        assert_eq!(ahead(Kind::Fifo, true, 46), 2, "high goes first");
    }

    #[test]
    fn what_is_dropped_is_freed_and_counted() {
        let mut pool = Pool::default();
        let mut queue = queue(Kind::Fifo, true, 10);
        let bulk = pool.insert(data(40 * 1460, 1460));
        queue.enqueue(bulk, Instant::ZERO, &mut pool).unwrap();
        assert_eq!((pool.live(), queue.counters().dropped_full), (10, 30));
        while let Some(id) = queue.dequeue(Instant::ZERO, &mut pool) {
            pool.remove(id);
        }
        assert!(queue.is_empty() && pool.live() == 0);
    }
}
