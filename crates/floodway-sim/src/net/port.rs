//! A transmitter: a queue, a link, and where the link leads.
//!
//! # Theory of operation
//! The transmitter is busy until a known time. A packet that finds it idle is sent at once, and its
//! arrival is the only event: nothing needs to happen when transmission ends. A packet that finds it busy is
//! queued, and an event at the end of the current transmission takes it out. So a hop costs one event
//! without contention and two with it.
//!
//! A link may lead to another part of the network, which has events of its own: then the packet leaves the pool and waits, as a
//! [`Crossing`], for whoever runs the parts.

use super::buffer::SharedBuffer;
use super::link::Link;
use super::nic::Nic;
use super::queue::ClassQueues;
use super::{NetEvent, Node, PortId};
use crate::engine::{Clock, Rng};
use crate::packet::{Packet, PacketId, Pool};
use crate::{Duration, Instant};

/// What a port has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets sent.
    pub packets: u64,
    /// Bytes of IP packets sent.
    pub bytes: u64,
    /// Packets for which the queue had no room; a GSO packet counts as one.
    pub dropped: u64,
    /// Packets lost on the link.
    pub lost: u64,
    /// Nanoseconds for which the transmitter was busy.
    pub busy_ns: u64,
}

/// How long packets of one length take on a port's link. Most packets are as long as the one before, and then nothing needs to be divided.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    /// Bytes of the packets; zero if nothing is known, as no packet has that length.
    len: u32,
    /// Nanoseconds for which one keeps the transmitter busy.
    busy_ns: u64,
    /// Nanoseconds from the end of its transmission to its arrival, without jitter.
    delay_ns: u64,
}

/// A packet on its way to another part of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    /// Which part.
    pub part: u8,
    /// When it arrives.
    pub arrival: Instant,
    /// The port that has sent it, by its place in the whole network.
    pub port: u32,
    /// Where it arrives, as that part numbers its nodes.
    pub to: Node,
    pub packet: Packet,
}

/// What the ports of a network share.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) buffers: Vec<SharedBuffer>,
    pub(super) outbox: Vec<Crossing>,
}

#[derive(Debug)]
pub(super) enum Queue {
    Switch { classes: ClassQueues, buffer: Option<u32> },
    Nic(Nic),
}

/// A transmitter of a switch or of a host.
#[derive(Debug)]
pub struct Port {
    /// Its place among the ports of the whole network.
    pub(super) number: u32,
    pub(super) link: Link,
    /// Delay between arrival and the receiver's handling of it: a switch's latency.
    pub(super) latency: Duration,
    pub(super) from: Node,
    pub(super) to: Node,
    /// The part of the network that its link leads to, if that is another one.
    pub(super) beyond: Option<u8>,
    pub(super) queue: Queue,
    pub(super) rng: Rng,
    pub(super) timing: Timing,
    pub(super) busy_until: Instant,
    /// Of the packets so far: jitter does not reorder.
    pub(super) last_arrival: Instant,
    /// A [`NetEvent::PortFree`] is pending.
    pub(super) waiting: bool,
    pub(super) stats: PortStats,
}

impl Port {
    /// Where it sends from.
    #[must_use]
    pub const fn from(&self) -> Node {
        self.from
    }

    /// Where its link leads.
    #[must_use]
    pub const fn to(&self) -> Node {
        self.to
    }

    /// Its link.
    #[must_use]
    pub const fn link(&self) -> &Link {
        &self.link
    }

    /// The least time from the end of a packet's transmission to its arrival.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.link.propagation + self.latency
    }

    /// Its link, to change. How long packets take on it is computed anew.
    pub fn link_mut(&mut self) -> &mut Link {
        self.timing = Timing::default();
        &mut self.link
    }

    /// Puts another network card and queue discipline at a host's port.
    ///
    /// # Panics
    /// If packets are queued.
    pub fn set_nic(&mut self, nic: Nic) {
        assert!(self.queue.is_empty(), "packets would be lost");
        self.queue = Queue::Nic(nic);
    }

    /// What it has done.
    #[must_use]
    pub const fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Packets marked by the port's queue.
    #[must_use]
    pub const fn marked(&self) -> u64 {
        match &self.queue {
            Queue::Switch { classes, .. } => classes.marked(),
            Queue::Nic(_) => 0,
        }
    }

    pub(super) fn send<E: Copy + From<NetEvent>>(
        &mut self,
        id: PortId,
        packet: PacketId,
        common: &mut Common,
        pool: &mut Pool,
        clock: &mut Clock<E>,
    ) {
        let now = clock.now();
        let idle = !self.waiting && now >= self.busy_until;
        if idle && pool.get(packet).packets() == 1 {
            return self.transmit(packet, common, pool, clock);
        }
        let offered = match &mut self.queue {
            Queue::Switch { classes, buffer } => {
                classes.offer(packet, shared(common, *buffer), pool)
            }
            Queue::Nic(nic) => nic.offer(packet, now, pool),
        };
        if offered.is_err() {
            self.stats.dropped += 1;
            pool.remove(packet);
        } else if idle {
            self.on_free(id, common, pool, clock);
        } else if !self.waiting {
            self.waiting = true;
            clock.at(self.busy_until, NetEvent::PortFree(id).into());
        }
    }

    pub(super) fn on_free<E: Copy + From<NetEvent>>(
        &mut self,
        id: PortId,
        common: &mut Common,
        pool: &mut Pool,
        clock: &mut Clock<E>,
    ) {
        self.waiting = false;
        let next = match &mut self.queue {
            Queue::Switch { classes, buffer } => classes.take(shared(common, *buffer), pool),
            Queue::Nic(nic) => nic.take(clock.now(), pool),
        };
        let Some(packet) = next else { return };
        self.transmit(packet, common, pool, clock);
        if !self.queue.is_empty() {
            self.waiting = true;
            clock.at(self.busy_until, NetEvent::PortFree(id).into());
        }
    }

    #[inline]
    fn timing(&mut self, len: u32) -> Timing {
        if self.timing.len != len {
            let busy = Instant::ZERO + self.link.transmission(len, 1);
            let arrival = Instant::ZERO + self.link.propagation + self.latency;
            self.timing = Timing { len, busy_ns: busy.as_nanos(), delay_ns: arrival.as_nanos() };
        }
        self.timing
    }

    #[inline]
    fn transmit<E: Copy + From<NetEvent>>(
        &mut self,
        packet: PacketId,
        common: &mut Common,
        pool: &mut Pool,
        clock: &mut Clock<E>,
    ) {
        // The card of a host has it: what its sender counted in the queues above ends here.
        pool.tx_completion(packet);
        let timing = self.timing(pool.wire_len(packet));
        self.busy_until = clock.now().plus_nanos(timing.busy_ns);
        self.stats.packets += 1;
        self.stats.bytes += u64::from(timing.len);
        self.stats.busy_ns += timing.busy_ns;
        if self.link.loss > 0.0 && self.rng.chance(self.link.loss) {
            self.stats.lost += 1;
            pool.remove(packet);
            return;
        }
        let mut arrival = self.busy_until.plus_nanos(timing.delay_ns);
        if !self.link.jitter.is_zero() {
            let jitter = self.rng.below(self.link.jitter.as_nanos() as u64);
            arrival = (arrival + Duration::from_nanos(jitter)).max(self.last_arrival);
            self.last_arrival = arrival;
        }
        match self.beyond {
            None => {
                clock.at(arrival, NetEvent::Arrive(self.to, packet).into());
            }
            Some(part) => {
                let Self { number: port, to, .. } = *self;
                let packet = pool.remove(packet);
                common.outbox.push(Crossing { part, arrival, port, to, packet });
            }
        }
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        match self {
            Self::Switch { classes, .. } => classes.packets() == 0,
            Self::Nic(nic) => nic.is_empty(),
        }
    }
}

fn shared(common: &mut Common, index: Option<u32>) -> Option<&mut SharedBuffer> {
    common.buffers.get_mut(index? as usize)
}
