//! The buffer of an output port: finite, drop-tail, one class or two.
//!
//! # Theory of operation
//! Packets wait in one of two classes. The high class is served whenever it has a packet (strict
//! priority); a packet that is being sent is not interrupted. A packet is of the high class if its
//! DSCP is in a list; with an empty list all are of the low class, and the queue is a FIFO.
//!
//! Each class has a limit of its own, in bytes of frames (no wire overhead) that *wait*: the packet
//! in the transmitter is not counted. What does not fit is dropped (drop-tail). With a marking
//! threshold, a packet that on arrival finds at least that many bytes waiting in its class is marked
//! "congestion experienced" if it is ECN-capable (RFC 3168; the threshold `K` of DCTCP, RFC 8257).
//!
//! Invariant: the bytes that wait in a class never exceed its limit.

use std::collections::VecDeque;

use super::Packet;
use super::counters::ClassCounters;

/// A class of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Served first.
    High,
    /// Served when no packet of the high class waits.
    Low,
}

impl Class {
    /// Both, the one that is served first first.
    pub const ALL: [Self; 2] = [Self::High, Self::Low];
}

/// Limits of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Bytes that may wait in the low class.
    pub low_bytes: u64,
    /// Bytes that may wait in the high class.
    pub high_bytes: u64,
    /// Bytes from which on packets are marked, in each class.
    pub ecn_bytes: Option<u64>,
    /// Bit `n` is set if packets of DSCP `n` are of the high class.
    pub high_dscp: u64,
}

#[derive(Debug)]
struct Lane<P> {
    waiting: VecDeque<P>,
    bytes: u64,
    counters: ClassCounters,
}

impl<P> Default for Lane<P> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, counters: ClassCounters::default() }
    }
}

/// The packets that wait for a transmitter.
#[derive(Debug)]
pub struct Queue<P> {
    config: QueueConfig,
    high: Lane<P>,
    low: Lane<P>,
}

impl<P: Packet> Queue<P> {
    /// An empty queue.
    #[must_use]
    pub fn new(config: QueueConfig) -> Self {
        Self { config, high: Lane::default(), low: Lane::default() }
    }

    /// Changes limits; what waits stays, even beyond a smaller limit.
    pub fn configure(&mut self, config: QueueConfig) {
        self.config = config;
    }

    /// The class of a packet.
    #[must_use]
    pub fn class(&self, packet: &P) -> Class {
        match packet.dscp() {
            Some(dscp) if self.config.high_dscp >> (dscp & 63) & 1 == 1 => Class::High,
            _ => Class::Low,
        }
    }

    /// Puts a packet behind those of its class, or drops it and says false.
    pub fn push(&mut self, mut packet: P) -> bool {
        let class = self.class(&packet);
        let (lane, limit) = match class {
            Class::High => (&mut self.high, self.config.high_bytes),
            Class::Low => (&mut self.low, self.config.low_bytes),
        };
        let len = packet.frame_len();
        if lane.bytes + u64::from(len) > limit {
            lane.counters.dropped.add(len);
            return false;
        }
        if self.config.ecn_bytes.is_some_and(|from| lane.bytes >= from) && packet.mark_congestion()
        {
            lane.counters.marked.add(len);
        }
        lane.bytes += u64::from(len);
        lane.counters.queue_high_water_bytes = lane.counters.queue_high_water_bytes.max(lane.bytes);
        lane.waiting.push_back(packet);
        true
    }

    /// Takes the packet that is to be sent next.
    pub fn pop(&mut self) -> Option<(Class, P)> {
        for class in Class::ALL {
            let lane = self.lane_mut(class);
            if let Some(packet) = lane.waiting.pop_front() {
                lane.bytes -= u64::from(packet.frame_len());
                return Some((class, packet));
            }
        }
        None
    }

    /// Counts a packet that has left the transmitter.
    pub fn count_sent(&mut self, class: Class, frame_len: u32) {
        self.lane_mut(class).counters.sent.add(frame_len);
    }

    /// Packets that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.high.waiting.len() + self.low.waiting.len()
    }

    /// No packet waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counters of a class.
    #[must_use]
    pub fn counters(&self, class: Class) -> ClassCounters {
        let lane = match class {
            Class::High => &self.high,
            Class::Low => &self.low,
        };
        ClassCounters { queue_bytes: lane.bytes, ..lane.counters }
    }

    /// Starts the high-water marks anew, from what waits now.
    pub fn reset_high_water(&mut self) {
        for class in Class::ALL {
            let lane = self.lane_mut(class);
            lane.counters.queue_high_water_bytes = lane.bytes;
        }
    }

    fn lane_mut(&mut self, class: Class) -> &mut Lane<P> {
        match class {
            Class::High => &mut self.high,
            Class::Low => &mut self.low,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestPacket;
    use super::*;
    use proptest::prelude::*;

    fn config(low_bytes: u64) -> QueueConfig {
        QueueConfig { low_bytes, high_bytes: low_bytes, ecn_bytes: None, high_dscp: 1 << 46 }
    }

    #[test]
    fn the_packet_that_does_not_fit_is_dropped() {
        // 64 KB: 43 frames of 1514 bytes are 65 102, 44 would be 66 616.
        let mut queue = Queue::new(config(65_536));
        let kept: Vec<bool> = (0..50).map(|n| queue.push(TestPacket::new(n, 1514))).collect();
        assert_eq!(kept.iter().position(|kept| !kept), Some(43));
        // A small one still fits behind them, byte by byte.
        assert!(!queue.push(TestPacket::new(50, 435)));
        assert!(queue.push(TestPacket::new(51, 434)));
        let low = queue.counters(Class::Low);
        assert_eq!((low.dropped.packets, low.dropped.bytes), (8, 7 * 1514 + 435));
        assert_eq!((low.queue_bytes, low.queue_high_water_bytes), (65_536, 65_536));
    }

    #[test]
    fn the_high_class_goes_first_and_has_its_own_room() {
        let mut queue = Queue::new(config(3000));
        for n in 0..3 {
            queue.push(TestPacket::new(n, 1500));
            queue.push(TestPacket::new(10 + n, 1500).dscp(46));
        }
        let order: Vec<u64> =
            std::iter::from_fn(|| queue.pop()).map(|(_, packet)| packet.id).collect();
        assert_eq!(order, [10, 11, 0, 1]);
        for class in Class::ALL {
            assert_eq!(queue.counters(class).dropped.packets, 1);
        }
    }

    #[test]
    fn marks_from_the_threshold_on_and_only_who_can() {
        let mut queue = Queue::new(QueueConfig { ecn_bytes: Some(3000), ..config(9000) });
        for n in 0..4 {
            queue.push(TestPacket::new(n, 1500).ect());
        }
        queue.push(TestPacket::new(4, 1500));
        let marked: Vec<bool> =
            std::iter::from_fn(|| queue.pop()).map(|(_, packet)| packet.congestion).collect();
        assert_eq!(marked, [false, false, true, true, false]);
        assert_eq!(queue.counters(Class::Low).marked.packets, 2);
    }

    proptest! {
        /// Bytes stay below the limits, order is kept in a class, nothing is lost but what was
        /// said to be dropped.
        #[test]
        fn a_bounded_pair_of_fifos(
            steps in proptest::collection::vec((60_u32..3000, any::<bool>(), any::<bool>()), 1..200),
        ) {
            let mut queue = Queue::<TestPacket>::new(config(8000));
            let (mut expected, mut id) = ([VecDeque::new(), VecDeque::new()], 0);
            for (len, high, pop) in steps {
                if pop {
                    let next = expected[0].pop_front().or_else(|| expected[1].pop_front());
                    prop_assert_eq!(queue.pop().map(|(_, packet)| packet.id), next);
                    continue;
                }
                let packet = TestPacket::new(id, len).dscp(if high { 46 } else { 0 });
                if queue.push(packet) {
                    expected[usize::from(!high)].push_back(id);
                }
                id += 1;
                for class in Class::ALL {
                    prop_assert!(queue.counters(class).queue_bytes <= 8000);
                }
            }
        }
    }
}
