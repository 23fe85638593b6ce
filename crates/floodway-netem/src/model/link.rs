//! One direction of a link: queue, transmitter, wire.
//!
//! # Theory of operation
//! ```text
//! offer -> queue -> transmitter -> loss, corruption, duplication, reordering, delay -> take_due
//!          drops    one at a time                                      (the wire)
//! ```
//! The transmitter sends one packet at a time and takes the next from the queue at the very time
//! at which it finished the last, not when somebody looked: a caller that comes late finds the same
//! departures as one that comes in time, so its own delays cost no bandwidth. Packets are lost
//! behind the transmitter: a lost packet has used the link.
//!
//! Without a rate, packets pass queue and transmitter in no time. Then only the wire holds packets,
//! and [`MAX_WIRE_BYTES`] bounds what it holds.
//!
//! Invariants: `received + duplicated = delivered + dropped + lost + overflowed + held`; when a
//! packet waits, the transmitter is busy.

use floodway_core::time::Instant;

use super::Packet;
use super::config::LinkConfig;
use super::counters::LinkCounters;
use super::impairments::{Fate, Impairments};
use super::queue::{Class, Queue};
use super::transmitter::Transmitter;
use super::wire::Wire;

/// Most bytes on one wire: 200 ms at 10 Gbit/s.
const MAX_WIRE_BYTES: u64 = 256 << 20;

#[derive(Debug)]
struct Sending<P> {
    class: Class,
    packet: P,
    done: Instant,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link<P> {
    config: LinkConfig,
    queue: Queue<P>,
    transmitter: Transmitter,
    sending: Option<Sending<P>>,
    impairments: Impairments,
    wire: Wire<P>,
    counters: LinkCounters,
}

impl<P: Packet> Link<P> {
    /// An empty link, number `number` of a run with `seed`.
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64, number: u64) -> Self {
        Self {
            queue: Queue::new(config.queue.clone()),
            transmitter: Transmitter::default(),
            sending: None,
            impairments: Impairments::new(&config, seed, number),
            wire: Wire::default(),
            counters: LinkCounters::default(),
            config,
        }
    }

    /// Changes parameters from `now` on. What waits and what is on the wire stays; the packet in the
    /// transmitter is finished at the old rate.
    pub fn configure(&mut self, config: LinkConfig, now: Instant) {
        self.run(now);
        self.queue.configure(config.queue.clone());
        self.impairments.configure(&config);
        self.config = config;
    }

    /// A packet arrives at the queue.
    pub fn offer(&mut self, packet: P, now: Instant) {
        self.run(now);
        self.counters.received.add(packet.frame_len());
        if self.sending.is_none() {
            // An idle transmitter takes it at once, whatever room the queue has.
            let class = self.queue.class(&packet);
            self.start(class, packet, now, true);
        } else {
            self.queue.push(packet);
        }
    }

    /// When something happens next: a packet is sent or arrives.
    #[must_use]
    pub fn next_event(&self) -> Instant {
        let sent = self.sending.as_ref().map_or(Instant::NEVER, |sending| sending.done);
        sent.min(self.wire.next_due())
    }

    /// The next packet that has arrived at the other end by `now`, and when it did.
    pub fn take_due(&mut self, now: Instant) -> Option<(P, Instant)> {
        self.run(now);
        let (packet, due) = self.wire.take_due(now)?;
        self.counters.delivered.add(packet.frame_len());
        Some((packet, due))
    }

    /// The counters as they stand.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        let held = self.queue.len() + usize::from(self.sending.is_some()) + self.wire.len();
        LinkCounters {
            high: self.queue.counters(Class::High),
            low: self.queue.counters(Class::Low),
            held_packets: held as u64,
            ..self.counters
        }
    }

    /// Starts the high-water marks of the queue anew.
    pub fn reset_high_water(&mut self) {
        self.queue.reset_high_water();
    }

    /// Does what the transmitter has finished by `now`.
    fn run(&mut self, now: Instant) {
        while let Some(sending) = self.sending.take_if(|sending| sending.done <= now) {
            let Sending { class, packet, done } = sending;
            self.finish(class, packet, done);
            if let Some((class, next)) = self.queue.pop() {
                self.start(class, next, done, false);
            }
        }
    }

    fn start(&mut self, class: Class, packet: P, at: Instant, resting: bool) {
        match self.config.rate {
            None => {
                self.finish(class, packet, at);
                // Only a change of the rate leaves packets behind for a link without one.
                while let Some((class, next)) = self.queue.pop() {
                    self.finish(class, next, at);
                }
            }
            Some(rate) => {
                let done = at + self.transmitter.time(rate, packet.frame_len(), resting);
                self.sending = Some(Sending { class, packet, done });
            }
        }
    }

    /// Puts a packet that was sent at `done` on the wire.
    fn finish(&mut self, class: Class, mut packet: P, done: Instant) {
        let len = packet.frame_len();
        self.queue.count_sent(class, len);
        let Some(fate) = self.impairments.decide(done) else {
            self.counters.lost.add(len);
            return;
        };
        if self.wire.bytes() >= MAX_WIRE_BYTES {
            self.counters.overflowed.add(len);
            return;
        }
        if let Some(choice) = fate.corrupt {
            packet.flip_bit(choice);
            self.counters.corrupted.add(len);
        }
        if fate.held_back {
            self.counters.reordered.add(len);
        }
        if fate.twice {
            self.counters.duplicated.add(len);
            self.put_on_wire(packet.duplicate(), &fate);
        }
        self.put_on_wire(packet, &fate);
    }

    fn put_on_wire(&mut self, packet: P, fate: &Fate) {
        if fate.held_back {
            self.wire.put_aside(packet, fate.due);
        } else {
            self.wire.put(packet, fate.due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestPacket, plain};
    use super::super::{LossModel, Rate, Reordering};
    use super::*;
    use floodway_core::time::Duration;
    use proptest::prelude::*;

    const OVERHEAD: u32 = 24;

    fn mbit(rate: u64) -> Option<Rate> {
        Rate::new(rate * 1_000_000, OVERHEAD)
    }

    fn arrivals(link: &mut Link<TestPacket>, until: Instant) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| link.take_due(until))
            .map(|(packet, due)| (packet.id, due.as_nanos()))
            .collect()
    }

    #[test]
    fn packets_arrive_after_serialisation_and_delay() {
        let delay = Duration::from_millis(10);
        let config = LinkConfig { rate: mbit(100), delay, ..plain(1 << 20) };
        let mut link = Link::new(config, 1, 0);
        for id in 0..3 {
            link.offer(TestPacket::new(id, 1514), Instant::ZERO);
        }
        assert_eq!(link.next_event(), Instant::from_nanos(123_040));
        assert!(arrivals(&mut link, Instant::from_nanos(10_123_039)).is_empty());
        let expected = [(0, 10_123_040), (1, 10_246_080), (2, 10_369_120)];
        assert_eq!(arrivals(&mut link, Instant::from_millis(20)), expected);
        assert_eq!(link.next_event(), Instant::NEVER);
        // The link was idle in between: the next packet starts when it comes.
        link.offer(TestPacket::new(3, 1514), Instant::from_millis(30));
        assert_eq!(arrivals(&mut link, Instant::from_millis(50)), [(3, 40_123_040)]);
    }

    #[test]
    fn the_right_packets_are_dropped_in_front_of_a_busy_transmitter() {
        // One is sent, 43 wait (65 102 bytes of 65 536), the rest of the burst is dropped. After
        // one more transmission there is room for exactly one.
        let mut link = Link::new(LinkConfig { rate: mbit(100), ..plain(65_536) }, 1, 0);
        for id in 0..50 {
            link.offer(TestPacket::new(id, 1514), Instant::ZERO);
        }
        link.offer(TestPacket::new(50, 1514), Instant::from_nanos(123_039));
        link.offer(TestPacket::new(51, 1514), Instant::from_nanos(123_040));
        link.offer(TestPacket::new(52, 1514), Instant::from_nanos(123_040));
        let ids: Vec<u64> =
            arrivals(&mut link, Instant::from_millis(100)).iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, (0..44).chain([51]).collect::<Vec<_>>());
        assert_eq!(link.counters().low.dropped.packets, 6 + 2);
        assert_eq!(link.counters().low.queue_high_water_bytes, 43 * 1514);
    }

    #[test]
    fn high_priority_overtakes_what_waits_and_not_what_is_sent() {
        let mut link = Link::new(LinkConfig { rate: mbit(100), ..plain(1 << 20) }, 1, 0);
        for id in 0..3 {
            link.offer(TestPacket::new(id, 1514), Instant::ZERO);
        }
        link.offer(TestPacket::new(9, 60).dscp(46), Instant::from_nanos(1));
        let small = 84 * 8 * 10;
        let expected =
            [(0, 123_040), (9, 123_040 + small), (1, 246_080 + small), (2, 369_120 + small)];
        assert_eq!(arrivals(&mut link, Instant::from_millis(1)), expected);
        let counters = link.counters();
        assert_eq!((counters.high.sent.packets, counters.low.sent.packets), (1, 3));
    }

    #[test]
    fn a_late_caller_changes_nothing() {
        let config = LinkConfig { rate: mbit(300), ..plain(30_000) };
        let (mut on_time, mut late) = (Link::new(config.clone(), 1, 0), Link::new(config, 1, 0));
        let mut seen = Vec::new();
        for id in 0..200 {
            let now = Instant::from_micros(id * 25);
            seen.extend(arrivals(&mut on_time, now));
            on_time.offer(TestPacket::new(id, 1514), now);
            late.offer(TestPacket::new(id, 1514), now);
        }
        let end = Instant::from_millis(1000);
        seen.extend(arrivals(&mut on_time, end));
        assert_eq!(seen, arrivals(&mut late, end));
        assert_eq!(on_time.counters(), late.counters());
    }

    #[test]
    fn a_lost_packet_has_used_the_link() {
        let config = LinkConfig { rate: mbit(100), loss: LossModel::Random(1.0), ..plain(9000) };
        let mut link = Link::new(config.clone(), 1, 0);
        link.offer(TestPacket::new(0, 1514), Instant::ZERO);
        link.configure(
            LinkConfig { loss: LossModel::None, ..config },
            Instant::from_nanos(123_040),
        );
        link.offer(TestPacket::new(1, 1514), Instant::from_nanos(123_040));
        assert_eq!(arrivals(&mut link, Instant::from_millis(1)), [(1, 246_080)]);
        assert_eq!(link.counters().lost.packets, 1);
    }

    #[test]
    fn a_packet_that_is_held_back_is_overtaken() {
        let extra = Duration::from_millis(5);
        let reordering = |probability| Some(Reordering { probability, extra });
        let config = LinkConfig { rate: mbit(100), reordering: reordering(1.0), ..plain(9000) };
        let mut link = Link::new(config.clone(), 1, 0);
        link.offer(TestPacket::new(0, 1514), Instant::ZERO);
        link.configure(
            LinkConfig { reordering: reordering(0.0), ..config },
            Instant::from_micros(200),
        );
        link.offer(TestPacket::new(1, 1514), Instant::from_micros(200));
        let expected = [(1, 323_040), (0, 5_123_040)];
        assert_eq!(arrivals(&mut link, Instant::from_millis(10)), expected);
        assert_eq!(link.counters().reordered.packets, 1);
    }

    #[test]
    fn copies_and_flipped_bits_are_made_and_counted() {
        let config = LinkConfig { duplicate: 1.0, corrupt: 1.0, ..plain(9000) };
        let mut link = Link::new(config, 1, 0);
        link.offer(TestPacket::new(0, 1514), Instant::ZERO);
        let flips: Vec<u32> = std::iter::from_fn(|| link.take_due(Instant::ZERO))
            .map(|(packet, _)| packet.flipped)
            .collect();
        assert_eq!(flips, [1, 1]);
        let counters = link.counters();
        assert_eq!((counters.duplicated.packets, counters.corrupted.packets), (1, 1));
        assert_eq!((counters.received.packets, counters.delivered.packets), (1, 2));
    }

    #[test]
    fn a_link_that_loses_its_rate_lets_go_of_what_waits() {
        let config = LinkConfig { rate: mbit(1), ..plain(9000) };
        let mut link = Link::new(config.clone(), 1, 0);
        for id in 0..3 {
            link.offer(TestPacket::new(id, 1476), Instant::ZERO);
        }
        link.configure(LinkConfig { rate: None, ..config }, Instant::ZERO);
        let expected = [(0, 12_000_000), (1, 12_000_000), (2, 12_000_000)];
        assert_eq!(arrivals(&mut link, Instant::from_millis(12)), expected);
    }

    #[test]
    fn an_endless_wire_does_not_eat_all_memory() {
        let delay = Duration::from_secs(3600);
        let mut link = Link::new(LinkConfig { delay, ..plain(9000) }, 1, 0);
        let len = 1 << 20;
        for id in 0..300 {
            link.offer(TestPacket::new(id, len), Instant::ZERO);
        }
        let counters = link.counters();
        assert_eq!((counters.overflowed.packets, counters.held_packets), (44, 256));
    }

    proptest! {
        /// Every packet is accounted for, and jitter alone never reorders.
        #[test]
        fn nothing_disappears(
            seed: u64,
            lengths in proptest::collection::vec(60_u32..1515, 1..300),
            gap_us in 0_u64..200,
            loss in 0.0..0.5_f64,
        ) {
            let config = LinkConfig {
                rate: mbit(100),
                delay: Duration::from_millis(1),
                jitter: Duration::from_micros(900),
                loss: LossModel::Random(loss),
                duplicate: 0.1,
                ..plain(20_000)
            };
            let mut link = Link::new(config, seed, 0);
            let mut seen = Vec::new();
            let (mut now, mut last) = (Instant::ZERO, 0);
            for (id, len) in lengths.into_iter().enumerate() {
                seen.extend(arrivals(&mut link, now));
                link.offer(TestPacket::new(id as u64, len), now);
                now += Duration::from_micros(gap_us);
                let c = link.counters();
                let gone = c.delivered.packets + c.low.dropped.packets + c.lost.packets;
                prop_assert_eq!(c.received.packets + c.duplicated.packets, gone + c.held_packets);
            }
            seen.extend(arrivals(&mut link, Instant::NEVER));
            let c = link.counters();
            prop_assert_eq!(c.held_packets, 0);
            prop_assert_eq!(c.delivered.packets, seen.len() as u64);
            prop_assert_eq!(c.low.sent.packets, c.delivered.packets + c.lost.packets - c.duplicated.packets);
            for (id, _) in seen {
                prop_assert!(id >= last, "{} behind {}", id, last);
                last = id;
            }
        }
    }
}
