//! A flow with many tiny segments under way, and peers whose SACK blocks are made to cost as much as they can.
//! For the bench of that name, and for the test that counts steps.

use std::net::Ipv4Addr;

use floodway_core::offload::{
    Config, Edit, FlowNotice, Link, Offload, Packet, Segment, Sink, SynthesizedSegment,
    Transmission,
};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::SackBlock;

/// Bytes of each segment.
pub const LEN: u32 = 4;
/// Sequence number of the first byte.
const FIRST: u32 = 1_001;
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// Takes everything and keeps nothing.
struct Nowhere;

impl Sink<u32> for Nowhere {
    fn release(&mut self, _: &u32, _: &Transmission) {}
    fn to_network(&mut self, _: &SynthesizedSegment) {}
    fn to_guest(&mut self, _: &SynthesizedSegment) {}
    fn redeliver(&mut self, _: &u32, _: &Edit) {}
    fn heartbeat(&mut self, _: &Link, _: u16) {}
    fn notify_flow(&mut self, _: &FiveTuple, _: &Link, _: FlowNotice) {}
}

/// What the peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// None: the segments are acknowledged one by one.
    Plain,
    /// Wide blocks, each around the one before.
    Nested,
    /// Wide blocks, each within the one before.
    Shrinking,
    /// One byte in the middle of a segment here and there.
    OneByte,
    /// Every second segment, here and there.
    Alternating,
    /// As the one before, and the first segments are acknowledged two by two.
    Advancing,
    /// They are acknowledged one by one, also where the next was SACKed: the peer takes back all that it SACKed.
    Reneging,
}

impl Attack {
    /// Those whose every ACK has to be cheap: what many ACKs have SACKed can be taken back by one.
    pub const ALL: [Self; 6] = [
        Self::Plain,
        Self::Nested,
        Self::Shrinking,
        Self::OneByte,
        Self::Alternating,
        Self::Advancing,
    ];

    /// ACKs that it has for a flow of `records` segments.
    pub const fn acks(self, records: u32) -> u32 {
        match self {
            Self::Plain => records - 1,
            Self::Nested | Self::Shrinking => records / 2 - 1,
            Self::OneByte => 1_000,
            Self::Alternating => records / 6,
            Self::Advancing | Self::Reneging => records / 8,
        }
    }

    /// Segments that its ACK number `n` acknowledges, and those that its blocks begin and end with.
    fn ranges(self, n: u32, records: u32) -> (u32, [(u32, u32); 3]) {
        let middle = records / 2;
        // The same order without end, that visits each of `of` places once.
        let somewhere = |n: u32, of: u32| (n.wrapping_mul(0x9e37_79b1) >> 7) % of;
        match self {
            Self::Plain => (n + 1, [(0, 0); 3]),
            Self::Nested => (0, [(middle - n, middle + n + 1); 3]),
            Self::Shrinking => (0, [(1 + n, records - n), (2 + n, records), (1, records)]),
            Self::OneByte => {
                (0, [0, 1, 2].map(|i| somewhere(3 * n + i, records)).map(|at| (at, at)))
            }
            Self::Alternating | Self::Advancing | Self::Reneging => {
                let pairs = records / 2;
                let pair = |i| (3 * n + i) * 7 % pairs;
                let acked = match self {
                    Self::Advancing => 2 * n,
                    Self::Reneging => n,
                    _ => 0,
                };
                (acked, [0, 1, 2].map(pair).map(|pair| (2 * pair + 1, 2 * pair + 2)))
            }
        }
    }
}

/// The flow.
pub struct Victim {
    offload: Offload<u32>,
    now: Instant,
    records: u32,
}

impl Victim {
    /// One with `records` segments under way, of which nothing is known.
    pub fn new(records: u32) -> Self {
        let config = Config {
            transmit: true,
            budget: 16 << 20,
            initial_window: 64,
            max_flows: 1,
            ..Config::default()
        };
        let mut victim =
            Self { offload: Offload::new(config, 1), now: Instant::from_millis(1), records };
        victim.open();
        for n in 0..records {
            let seq = Seq(FIRST + n * LEN);
            let segment = Segment { seq, len: LEN, ..victim.segment(0) };
            victim.guest_sends(&segment);
        }
        victim.now += ROUND_TRIP;
        victim
    }

    fn flow() -> FiveTuple {
        let (guest, peer) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        FiveTuple::v4(guest, peer, 6).with_ports(40_000, 80)
    }

    fn segment(&self, acked: u32) -> Segment {
        let ack = Seq(FIRST + acked * LEN);
        Segment { seq: Seq(FIRST), ack, window: 60_000, flags: Flags::ACK, ..Segment::default() }
    }

    fn open(&mut self) {
        let mut syn = self.segment(0);
        (syn.seq, syn.ack, syn.flags) = (Seq(FIRST - 1), Seq(0), Flags::SYN);
        syn.options.mss = Some(1460);
        syn.options.window_scale = Some(7);
        syn.options.sack_permitted = true;
        self.guest_sends(&syn);
        (syn.ack, syn.flags) = (Seq(FIRST), Flags::SYN.with(Flags::ACK));
        self.now += ROUND_TRIP;
        self.peer_sends(&syn);
        let ack = self.segment(0);
        self.guest_sends(&ack);
        self.peer_sends(&ack);
    }

    fn guest_sends(&mut self, segment: &Segment) {
        let (flow, link) = (Self::flow(), Link::default());
        let packet = Packet::new(&flow, &link, segment);
        self.offload.from_guest(self.now, &packet, || Some(0), &mut Nowhere);
        self.offload.flush(self.now, &mut Nowhere);
    }

    fn peer_sends(&mut self, segment: &Segment) {
        let (flow, link) = (Self::flow().reversed(), Link::default());
        let packet = Packet::new(&flow, &link, segment);
        self.offload.from_network(self.now, &packet, || Some(0), &mut Nowhere);
    }

    /// ACK number `n` of an attack.
    pub fn acknowledge(&mut self, attack: Attack, n: u32) {
        let (acked, ranges) = attack.ranges(n, self.records);
        let mut segment = self.segment(acked);
        let blocks = ranges.map(|(from, to)| {
            let at = |n| FIRST + n * LEN;
            // A range that is empty is one byte within its segment.
            let (left, right) =
                if from == to { (at(from) + 1, at(from) + 2) } else { (at(from), at(to)) };
            SackBlock { left, right }
        });
        if attack != Attack::Plain {
            segment.options.set_sack_blocks(&blocks);
        }
        self.now += Duration::from_micros(1);
        self.peer_sends(&segment);
    }

    /// Bytes that were released and not acknowledged.
    pub fn in_flight(&self) -> u32 {
        self.offload.flows(0, 1).0.first().map_or(0, |flow| flow.in_flight)
    }
}
