//! How much a sender has in flight each time that it sends something new, from a capture at its own card.
//!
//! # Theory of operation
//!
//! The flight of RFC 6675 (*pipe*) is what was sent and is neither acknowledged, reported by SACK, nor believed to be lost. What
//! the sender believes is seen from what it does ([`Scoreboard`]):
//!
//! - what lies more than three segments below something reported by SACK is lost (RFC 6675, section 4; Linux' RACK waits
//!   no longer once it has seen no reordering);
//! - when the first unacknowledged bytes are sent again although nothing said that they are lost, a timer has run out, and all is
//!   lost (RFC 6298; Linux marks all);
//! - what is sent again is in flight again.
//!
//! What the sender leaves out, it has sent before, and the card never had it: QEMU takes down the link of a card whose
//! switch has died, and Linux drops what goes out to a card without a link. The sender believes these bytes in flight until it learns
//! that they are lost; the network has not seen them, so they are in no flight here.
//!
//! A *tail loss probe* (RFC 8985, section 7.3) may be new data, of one segment, whatever the window is. It comes when nothing was
//! sent or heard for two round trips, and no other one does before something is heard.
//!
//! A capture sees a segment when the card takes it. With a dead switch behind the card, segments wait in the guest's queues
//! for a second and more; what counts is when TCP sent them. The timestamp that they carry (RFC 7323, 1 ms on Linux) says so: a
//! segment that the card took much later than its timestamp says is moved back to that time.
//!
//! Sequence numbers count from the SYN's, so a flow may carry up to 4 GB.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use floodway_wire::tcp::Flags;

use super::capture::Segment;
use super::scoreboard::Scoreboard;

/// What a host takes that does not say (RFC 9293, section 3.7.1).
const DEFAULT_MSS: u16 = 536;
/// Bytes of each segment when both ends have timestamps.
const TIMESTAMPS_LEN: u16 = 12;
/// Tick of the clock in timestamps.
const TICK_NS: i64 = 1_000_000;
/// A segment that left this much later than the one that left soonest was held up below TCP.
const HELD_UP_NS: i64 = 4 * TICK_NS;
/// Segments that must have come after one until it is believed lost (RFC 6675's DupThresh).
const DUP_THRESH: u32 = 3;

/// New data of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewData {
    /// By the clock of the capture.
    pub at_ns: i64,
    /// Bytes that were not sent before.
    pub len: u64,
    /// Bytes in flight, these included.
    pub flight: u64,
    /// Right edge of the receiver's window, from the first byte that is not acknowledged.
    pub window: u64,
    /// Largest payload of one packet.
    pub mss: u64,
    /// A tail loss probe, which no window bounds.
    pub is_probe: bool,
    /// Bytes before it that the sender has sent, and the card never had.
    pub never_left: u64,
}

/// What a machine at `address` sent, by its port. Flows whose SYN is not in the capture are left out.
pub fn new_data(segments: &[Segment], address: Ipv4Addr) -> BTreeMap<u16, Vec<NewData>> {
    let mut flows: BTreeMap<u16, Flow> = BTreeMap::new();
    let mut sent: BTreeMap<u16, Vec<NewData>> = BTreeMap::new();
    for segment in in_order_of_sending(segments, address) {
        if segment.source.0 == address {
            let port = segment.source.1;
            if segment.flags.contains(Flags::SYN) {
                flows.insert(port, Flow::new(&segment));
            } else if let Some(new) = flows.get_mut(&port).and_then(|flow| flow.sends(&segment)) {
                sent.entry(port).or_default().push(new);
            }
        } else if let Some(flow) = flows.get_mut(&segment.destination.1) {
            flow.hears(&segment);
        }
    }
    sent
}

/// The same segments, those of the sender at the time when its TCP sent them.
fn in_order_of_sending(segments: &[Segment], address: Ipv4Addr) -> Vec<Segment> {
    let own = |segment: &&Segment| segment.source.0 == address;
    // By port: the clock of the first segment, and when that clock stood at 0.
    let mut zeros: BTreeMap<u16, (u32, i64)> = BTreeMap::new();
    for segment in segments.iter().filter(own) {
        let Some(clock) = segment.clock else { continue };
        let (first, zero) = zeros.entry(segment.source.1).or_insert((clock, i64::MAX));
        *zero = (*zero).min(segment.at_ns - elapsed_ns(*first, clock));
    }
    let mut ordered = segments.to_vec();
    for segment in ordered.iter_mut().filter(|segment| segment.source.0 == address) {
        let zero = zeros.get(&segment.source.1).zip(segment.clock);
        let Some((&(first, zero), clock)) = zero else { continue };
        // The clock stood so until its next tick; later rather than sooner, or it would come before the ACK that let it go.
        let sent_ns = zero + elapsed_ns(first, clock) + TICK_NS;
        if segment.at_ns - sent_ns > HELD_UP_NS {
            segment.at_ns = sent_ns;
        }
    }
    ordered.sort_by_key(|segment| segment.at_ns);
    ordered
}

/// From one stand of a clock to another, which may have wrapped.
fn elapsed_ns(from: u32, to: u32) -> i64 {
    i64::from(to.wrapping_sub(from).cast_signed()) * TICK_NS
}

/// The sender's side of a connection. Numbers are relative to its SYN.
#[derive(Debug)]
struct Flow {
    initial: u32,
    una: u32,
    nxt: u32,
    /// Right edge that the receiver allows.
    edge: u32,
    peer_scale: u8,
    mss: u16,
    board: Scoreboard,
    /// When it began.
    syn_ns: i64,
    /// Round trip of the handshake.
    rtt_ns: Option<i64>,
    /// When something was sent or heard last.
    latest_ns: i64,
    /// Nothing was heard since the latest probe.
    has_probed: bool,
}

impl Flow {
    fn new(syn: &Segment) -> Self {
        Self {
            initial: syn.sequence,
            una: 0,
            nxt: 1,
            edge: 1,
            peer_scale: 0,
            mss: syn.mss.unwrap_or(DEFAULT_MSS),
            board: Scoreboard::default(),
            syn_ns: syn.at_ns,
            rtt_ns: None,
            latest_ns: syn.at_ns,
            has_probed: false,
        }
    }

    fn sends(&mut self, segment: &Segment) -> Option<NewData> {
        let start = segment.sequence.wrapping_sub(self.initial);
        let end = start.wrapping_add(segment.len);
        if segment.len == 0 || end < start || end <= self.una {
            return None;
        }
        let silence_ns = segment.at_ns - self.latest_ns;
        self.latest_ns = segment.at_ns;
        self.sends_again(start.max(self.una), end.min(self.nxt));
        if end <= self.nxt {
            return None;
        }
        let first = self.nxt.max(start);
        let never_left = first - self.nxt;
        self.board.never_left(self.nxt, first);
        self.board.sent(first, end, false);
        self.nxt = end;
        let is_probe = self.is_probe(end - first, silence_ns);
        self.has_probed |= is_probe;
        Some(NewData {
            at_ns: segment.at_ns,
            len: u64::from(end - first),
            flight: self.board.in_flight(),
            window: self.edge.saturating_sub(self.una).into(),
            mss: self.mss.into(),
            is_probe,
            never_left: u64::from(never_left),
        })
    }

    /// Returns `true` if `len` bytes of new data after a silence can only be a tail loss probe: the application always has data, so
    /// a sender that is silent has no window.
    fn is_probe(&self, len: u32, silence_ns: i64) -> bool {
        let waited = self.rtt_ns.is_some_and(|rtt_ns| silence_ns >= 2 * rtt_ns);
        waited && !self.has_probed && len <= self.mss.into()
    }

    fn sends_again(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        // The last segment is also sent again as a probe.
        if start == self.una && end < self.nxt && self.board.is_believed_in_flight(start) {
            self.board.lose_all();
        }
        self.board.sent(start, end, true);
    }

    fn hears(&mut self, segment: &Segment) {
        if !segment.flags.contains(Flags::ACK) {
            return;
        }
        self.latest_ns = segment.at_ns;
        self.has_probed = false;
        let syn = segment.flags.contains(Flags::SYN);
        if syn {
            self.rtt_ns = Some(segment.at_ns - self.syn_ns);
            self.peer_scale = segment.window_scale.unwrap_or(0).min(14);
            let options = if segment.clock.is_some() { TIMESTAMPS_LEN } else { 0 };
            self.mss = self.mss.min(segment.mss.unwrap_or(DEFAULT_MSS)).saturating_sub(options);
        }
        let ack = segment.acknowledgment.wrapping_sub(self.initial);
        if ack > self.nxt || ack < self.una {
            // Of what was never sent, or old.
            return;
        }
        self.una = ack;
        self.board.remove(0, ack);
        let scale = if syn { 0 } else { self.peer_scale };
        self.edge = self.edge.max(ack.saturating_add(u32::from(segment.window) << scale));
        for block in &segment.sack {
            let relative = |number: u32| number.wrapping_sub(self.initial);
            self.hears_of(relative(block.left), relative(block.right));
        }
    }

    fn hears_of(&mut self, left: u32, right: u32) {
        // D-SACK (RFC 2883) speaks of what is below; and nothing unsent can have come.
        if left >= right || left < self.una || right > self.nxt {
            return;
        }
        self.board.remove(left, right);
        self.board.lose_below(right.saturating_sub(DUP_THRESH * u32::from(self.mss)));
    }
}

#[cfg(test)]
mod tests {
    use floodway_wire::tcp::options::SackBlock;

    use super::*;

    const GUEST: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 1), 5000);
    const PEER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 2), 80);
    /// Numbers wrap inside the flow.
    const INITIAL: u32 = u32::MAX - 100;

    fn segment(at_ns: i64, source: (Ipv4Addr, u16), flags: Flags) -> Segment {
        let destination = if source == GUEST { PEER } else { GUEST };
        Segment {
            at_ns,
            source,
            destination,
            sequence: INITIAL,
            acknowledgment: 0,
            flags,
            window: 1000,
            window_scale: None,
            mss: None,
            clock: None,
            sack: Vec::new(),
            len: 0,
        }
    }

    fn data(at_ns: i64, from: u32, len: u32) -> Segment {
        let sequence = INITIAL.wrapping_add(from);
        Segment { sequence, len, ..segment(at_ns, GUEST, Flags::ACK) }
    }

    fn ack(number: u32, blocks: &[(u32, u32)]) -> Segment {
        let absolute = |number: u32| INITIAL.wrapping_add(number);
        let block = |&(left, right)| SackBlock { left: absolute(left), right: absolute(right) };
        let sack = blocks.iter().map(block).collect();
        Segment { acknowledgment: absolute(number), sack, ..segment(0, PEER, Flags::ACK) }
    }

    fn handshake() -> Vec<Segment> {
        let syn_ack = Segment {
            acknowledgment: INITIAL.wrapping_add(1),
            window_scale: Some(2),
            mss: Some(1460),
            clock: Some(1),
            ..segment(0, PEER, Flags(Flags::SYN.0 | Flags::ACK.0))
        };
        vec![Segment { mss: Some(1400), ..segment(0, GUEST, Flags::SYN) }, syn_ack]
    }

    /// ACKs come right after what is before them.
    fn in_time(mut segments: Vec<Segment>) -> Vec<Segment> {
        let mut now = 0;
        for segment in &mut segments {
            segment.at_ns = segment.at_ns.max(now);
            now = segment.at_ns;
        }
        segments
    }

    fn flights(after: Vec<Segment>) -> Vec<(i64, u64, u64)> {
        let sent = new_data(&in_time([handshake(), after].concat()), GUEST.0);
        let sent = sent.get(&GUEST.1).cloned().unwrap_or_default();
        sent.iter().map(|new| (new.at_ns, new.len, new.flight)).collect()
    }

    #[test]
    fn acknowledged_and_reported_bytes_are_not_in_flight() {
        let seen = flights(vec![
            data(1, 1, 100),
            data(2, 101, 100),
            ack(101, &[]),
            data(3, 201, 50),
            ack(101, &[(201, 251)]),
            data(4, 251, 50),
            // The same block again, and one that joins it.
            ack(101, &[(201, 251), (251, 301)]),
            data(5, 301, 10),
            ack(251, &[(251, 301)]),
            data(6, 311, 10),
        ]);
        let expected =
            [(1, 100, 100), (2, 100, 200), (3, 50, 150), (4, 50, 150), (5, 10, 110), (6, 10, 20)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_is_sent_again_is_not_new() {
        // The first bytes are sent again for no reason that was heard of: a timeout, all is lost.
        let seen = flights(vec![
            data(1, 1, 100),
            data(2, 101, 100),
            data(3, 1, 100),
            data(4, 201, 100),
            data(5, 51, 300),
        ]);
        assert_eq!(seen, [(1, 100, 100), (2, 100, 200), (4, 100, 200), (5, 50, 350)]);
        let probe = flights(vec![data(1, 1, 100), data(2, 1, 100), data(3, 101, 100)]);
        assert_eq!(probe, [(1, 100, 100), (3, 100, 200)]);
    }

    #[test]
    fn what_lies_far_below_a_reported_segment_is_lost() {
        let mss = 1388;
        let sent = |at, index| data(at, 1 + index * mss, mss);
        let reported = |first: u32, last: u32| (1 + first * mss, 1 + last * mss);
        let seen = flights(vec![
            sent(1, 0),
            sent(2, 1),
            sent(3, 2),
            sent(4, 3),
            sent(5, 4),
            ack(1, &[reported(4, 5)]),
            // Of the four that are missing, the first two are lost.
            sent(6, 5),
            sent(7, 0),
            sent(8, 6),
        ]);
        let flight = |segments: u64| segments * u64::from(mss);
        let flights: Vec<u64> = seen.iter().map(|(_, _, flight)| *flight).collect();
        assert_eq!(flights[5..], [flight(3), flight(5)]);
    }

    #[test]
    fn what_waited_below_tcp_counts_when_it_was_sent() {
        let ms = TICK_NS;
        let stamped =
            |at: i64, clock: u32, from| Segment { clock: Some(clock), ..data(at * ms, from, 10) };
        let syn = |segment: Segment| Segment { clock: Some(u32::MAX), ..segment };
        let mut all = handshake();
        all[0] = syn(all[0].clone());
        // The clock wraps; the third was sent at 3 ms and left at 900 ms.
        all.extend([
            stamped(1, 0, 1),
            stamped(3, 2, 11),
            stamped(900, 2, 21),
            stamped(900, 899, 31),
        ]);
        let sent = &new_data(&all, GUEST.0)[&GUEST.1];
        let times: Vec<i64> = sent.iter().map(|new| new.at_ns / ms).collect();
        assert_eq!(times, [1, 3, 4, 900]);
    }

    /// The link of a card whose switch has died is down: 300 bytes are dropped in the guest.
    #[test]
    fn what_the_card_never_had_is_neither_new_nor_in_flight() {
        let segments = vec![
            data(1, 1, 100),
            data(2, 401, 100),
            ack(1, &[]),
            data(3, 501, 100),
            // Sent again by a timeout, as the sender believes that it is in flight.
            ack(101, &[]),
            data(4, 101, 100),
            data(5, 601, 10),
        ];
        let sent = new_data(&in_time([handshake(), segments.clone()].concat()), GUEST.0);
        let never_left = sent[&GUEST.1].iter().map(|new| new.never_left);
        assert_eq!(never_left.collect::<Vec<_>>(), [0, 300, 0, 0]);
        let seen = flights(segments);
        assert_eq!(seen, [(1, 100, 100), (2, 100, 200), (3, 100, 300), (5, 10, 110)]);
    }

    #[test]
    fn a_lone_segment_after_a_silence_is_a_probe() {
        let mut all = handshake();
        all[1].at_ns = 10;
        let heard = |at_ns, number| Segment { at_ns, ..ack(number, &[]) };
        all.extend([
            data(11, 1, 1388),
            data(30, 1389, 1388),
            // 20 are two round trips.
            data(50, 2777, 1388),
            data(80, 4165, 1388),
            heard(85, 2777),
            data(104, 5553, 1388),
            data(125, 6941, 1389),
            heard(130, 2777),
            data(151, 8330, 1388),
        ]);
        let sent = &new_data(&all, GUEST.0)[&GUEST.1];
        let probes: Vec<_> = sent.iter().filter(|new| new.is_probe).map(|new| new.at_ns).collect();
        assert_eq!(probes, [50, 151]);
    }

    #[test]
    fn nonsense_changes_nothing() {
        let seen = flights(vec![
            data(1, 1, 100),
            ack(900, &[]),
            ack(1, &[(90, 200), (60, 50), (0, 1)]),
            data(2, 101, 100),
        ]);
        assert_eq!(seen, [(1, 100, 100), (2, 100, 200)]);
        assert!(new_data(&[data(1, 1, 100)], GUEST.0).is_empty(), "no SYN");
    }

    #[test]
    fn the_window_is_scaled_but_for_that_of_the_syn() {
        let all = [handshake(), vec![data(1, 1, 10), ack(11, &[]), data(2, 11, 10)]].concat();
        let sent = &new_data(&in_time(all), GUEST.0)[&GUEST.1];
        assert_eq!(sent.iter().map(|new| new.window).collect::<Vec<_>>(), [1000, 4000]);
        assert_eq!(sent[0].mss, 1388);
    }
}
