//! How much a sender has in flight each time that it sends something new, from a capture at its own card.
//!
//! # Theory of operation
//!
//! The flight of RFC 6675 (*pipe*) is what was sent and is neither acknowledged, reported by SACK, nor believed to be lost. What
//! the sender believes is seen from what it does ([`Scoreboard`]):
//!
//! - what lies more than three segments below something reported by SACK is lost (RFC 6675, section 4);
//! - what was sent before something that the receiver has, by more than a quarter of the shortest round trip, is lost (RACK, RFC 8985, section 6.2);
//! - when the first unacknowledged bytes are sent again and a timer may have run out, all is
//!   lost (RFC 6298; Linux marks all); if it cannot have ([`Timing`]), what lies below the highest SACK is;
//! - what is sent again is in flight again.
//!
//! If the sender goes on behind bytes that the capture has not, it has sent them and the card never got them: QEMU takes down the link of a card whose
//! switch has died, and Linux drops what goes out to a card without a link. The sender believes these bytes in flight until it learns
//! that they are lost; the network has not seen them, so they are in no flight here. When they come to the card they are new to the network, and are looked at as new data
//! are. A receiver that has them all the same proves that the capture has gaps.
//!
//! New data that can be a *tail loss probe* is marked ([`NewData::is_probe`]); the mark is removed if more new data follow before anything is heard.
//!
//! Sequence numbers count from the SYN's, so a flow may carry up to 4 GB.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use floodway_wire::tcp::Flags;

use super::capture::Segment;
use super::order::in_order_of_sending;
use super::scoreboard::Scoreboard;
use super::timing::Timing;

/// What a host takes that does not say (RFC 9293, section 3.7.1).
const DEFAULT_MSS: u16 = 536;
/// Bytes of each segment when both ends have timestamps.
const TIMESTAMPS_LEN: u16 = 12;
/// Segments that must have come after one until it is believed lost (RFC 6675's DupThresh).
const DUP_THRESH: u32 = 3;

/// Data of a flow that the network has not seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewData {
    /// By the clock of the capture.
    pub at_ns: i64,
    /// Its bytes.
    pub len: u64,
    /// Bytes in flight, these included.
    pub flight: u64,
    /// Right edge of the receiver's window, from the first byte that is not acknowledged.
    pub window: u64,
    /// Largest payload of one packet.
    pub mss: u64,
    /// A tail loss probe, which no window bounds.
    pub is_probe: bool,
    /// Bytes right before it that the sender had sent, and the card never had.
    pub left_out: u64,
}

/// What a machine at `address` sent, by its port. Flows whose SYN is not in the capture are left out.
///
/// # Errors
/// The receiver has what the capture has not.
pub fn new_data(segments: &[Segment], address: Ipv4Addr) -> Result<BTreeMap<u16, Vec<NewData>>> {
    let mut flows: BTreeMap<u16, Flow> = BTreeMap::new();
    for segment in in_order_of_sending(segments, address) {
        if segment.source.0 == address {
            let port = segment.source.1;
            if segment.flags.contains(Flags::SYN) {
                flows.insert(port, Flow::new(&segment));
            } else if let Some(flow) = flows.get_mut(&port) {
                flow.sends(&segment);
            }
        } else if let Some(flow) = flows.get_mut(&segment.destination.1) {
            flow.hears(&segment);
        }
    }
    for (port, flow) in &flows {
        let missing = flow.impossible;
        ensure!(
            missing == 0,
            "port {port}: the receiver has {missing} bytes that the capture has not"
        );
    }
    Ok(flows.into_iter().map(|(port, flow)| (port, flow.sent)).collect())
}

/// The sender's side of a connection. Numbers are relative to its SYN.
#[derive(Debug)]
struct Flow {
    initial: u32,
    una: u32,
    nxt: u32,
    /// Behind the highest byte that the receiver is known to have.
    highest: u32,
    /// Right edge that the receiver allows.
    edge: u32,
    peer_scale: u8,
    mss: u16,
    board: Scoreboard,
    timing: Timing,
    /// When the latest of what the receiver has was sent.
    delivered_ns: i64,
    /// Bytes that the receiver has, and that never came to the card.
    impossible: u64,
    /// Something was heard since the latest new data.
    has_heard: bool,
    sent: Vec<NewData>,
}

impl Flow {
    fn new(syn: &Segment) -> Self {
        Self {
            initial: syn.sequence,
            una: 0,
            nxt: 1,
            highest: 0,
            edge: 1,
            peer_scale: 0,
            mss: syn.mss.unwrap_or(DEFAULT_MSS),
            board: Scoreboard::default(),
            timing: Timing::new(syn.at_ns),
            delivered_ns: i64::MIN,
            impossible: 0,
            has_heard: true,
            sent: Vec::new(),
        }
    }

    fn sends(&mut self, segment: &Segment) {
        let start = segment.sequence.wrapping_sub(self.initial);
        let end = start.wrapping_add(segment.len);
        if segment.len == 0 || end < start || end <= self.una {
            return;
        }
        let at_ns = segment.at_ns;
        let waited = self.timing.sends(at_ns);
        let unseen =
            self.sends_again(start.max(self.una), end.min(self.nxt), at_ns, waited.for_timeout);
        // What ends with the last byte, or begins behind it.
        let is_last = end == self.nxt || start >= self.nxt;
        let is_probe = waited.for_probe && is_last && segment.len <= self.mss.into();
        if is_probe {
            self.timing.probes(end);
        }
        let (left_out, new) = self.goes_on(start, end, at_ns);
        if unseen + new > 0 {
            self.note(NewData {
                at_ns,
                len: unseen + new,
                flight: self.board.in_flight(),
                window: self.edge.saturating_sub(self.una).into(),
                mss: self.mss.into(),
                is_probe,
                left_out,
            });
        }
    }

    /// Takes in what of a segment lies above `nxt`. Returns the bytes that are left out below it, and how many are new.
    fn goes_on(&mut self, start: u32, end: u32, at_ns: i64) -> (u64, u64) {
        if end <= self.nxt {
            return (0, 0);
        }
        let first = self.nxt.max(start);
        let left_out = first - self.nxt;
        self.timing.sends_new(end, self.una == self.nxt, at_ns);
        self.board.never_left(self.nxt, first, at_ns);
        self.board.sent(first, end, at_ns, false);
        self.nxt = end;
        (left_out.into(), (end - first).into())
    }

    fn note(&mut self, new: NewData) {
        if !self.has_heard
            && let Some(latest) = self.sent.last_mut()
        {
            // More follows at once: there was a window.
            latest.is_probe = false;
        }
        self.has_heard = false;
        self.sent.push(new);
    }

    /// Takes in what of a segment was sent before. Returns how many of these bytes the network has not seen.
    fn sends_again(&mut self, start: u32, end: u32, at_ns: i64, may_be_timeout: bool) -> u64 {
        if start >= end {
            return 0;
        }
        let is_first = start == self.una;
        // The last segment is also sent again as a probe.
        if is_first && end < self.nxt && self.board.is_believed_in_flight(start) {
            if may_be_timeout {
                self.board.lose_all();
            } else {
                self.board.lose_below(self.highest);
            }
        }
        self.timing.sends_again(start, is_first, at_ns);
        let unseen = self.board.unseen(start, end);
        self.board.sent(start, end, at_ns, true);
        unseen
    }

    fn hears(&mut self, segment: &Segment) {
        if !segment.flags.contains(Flags::ACK) {
            return;
        }
        let at_ns = segment.at_ns;
        self.timing.hears(at_ns);
        self.has_heard = true;
        let syn = segment.flags.contains(Flags::SYN);
        if syn {
            self.peer_scale = segment.window_scale.unwrap_or(0).min(14);
            let options = if segment.clock.is_some() { TIMESTAMPS_LEN } else { 0 };
            self.mss = self.mss.min(segment.mss.unwrap_or(DEFAULT_MSS)).saturating_sub(options);
        }
        let ack = segment.acknowledgment.wrapping_sub(self.initial);
        if ack > self.nxt || ack < self.una {
            // Of what was never sent, or old.
            return;
        }
        self.timing.acknowledged(ack, ack > self.una, at_ns);
        self.una = ack;
        self.delivered(0, ack, at_ns);
        let scale = if syn { 0 } else { self.peer_scale };
        self.edge = self.edge.max(ack.saturating_add(u32::from(segment.window) << scale));
        for block in &segment.sack {
            let relative = |number: u32| number.wrapping_sub(self.initial);
            self.hears_of(relative(block.left), relative(block.right), at_ns);
        }
        let margin_ns = self.timing.least_ns() / 4;
        self.board.lose_sent_before(self.delivered_ns.saturating_sub(margin_ns));
    }

    fn hears_of(&mut self, left: u32, right: u32, at_ns: i64) {
        // D-SACK (RFC 2883) speaks of what is below; and nothing unsent can have come.
        if left >= right || left < self.una || right > self.nxt {
            return;
        }
        self.delivered(left, right, at_ns);
        self.board.lose_below(right.saturating_sub(DUP_THRESH * u32::from(self.mss)));
    }

    fn delivered(&mut self, start: u32, end: u32, at_ns: i64) {
        self.highest = self.highest.max(end);
        let delivered = self.board.delivered(start, end, at_ns, self.timing.least_ns());
        self.delivered_ns = self.delivered_ns.max(delivered.sent_ns.unwrap_or(i64::MIN));
        self.impossible += delivered.impossible;
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
    const MS: i64 = 1_000_000;

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
        // A round trip that is long beside the times below.
        vec![Segment { mss: Some(1400), ..segment(-4000, GUEST, Flags::SYN) }, syn_ack]
    }

    /// ACKs come right after what is before them.
    fn in_time(mut segments: Vec<Segment>) -> Vec<Segment> {
        let mut now = i64::MIN;
        for segment in &mut segments {
            segment.at_ns = segment.at_ns.max(now);
            now = segment.at_ns;
        }
        segments
    }

    fn flights(after: Vec<Segment>) -> Vec<(i64, u64, u64)> {
        let sent = new_data(&in_time([handshake(), after].concat()), GUEST.0).unwrap();
        let sent = sent.get(&GUEST.1).cloned().unwrap_or_default();
        sent.iter().map(|new| (new.at_ns, new.len, new.flight)).collect()
    }

    #[test]
    fn acknowledged_and_reported_bytes_are_not_in_flight() {
        // All in one moment: none was sent long before another one.
        let seen = flights(vec![
            data(1, 1, 100),
            data(1, 101, 100),
            ack(101, &[]),
            data(1, 201, 50),
            ack(101, &[(201, 251)]),
            data(1, 251, 50),
            // The same block again, and one that joins it.
            ack(101, &[(201, 251), (251, 301)]),
            data(1, 301, 10),
            ack(251, &[(251, 301)]),
            data(1, 311, 10),
        ]);
        let expected =
            [(1, 100, 100), (1, 100, 200), (1, 50, 150), (1, 50, 150), (1, 10, 110), (1, 10, 20)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_is_sent_again_is_not_new() {
        // The first bytes are sent again after a long time: a timeout, all is lost.
        let late = 300 * MS;
        let seen = flights(vec![
            data(1, 1, 100),
            data(2, 101, 100),
            data(late, 1, 100),
            data(late + 1, 201, 100),
            data(late + 2, 51, 300),
        ]);
        let expected = [(1, 100, 100), (2, 100, 200), (late + 1, 100, 200), (late + 2, 50, 350)];
        assert_eq!(seen, expected);
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

    /// The link of a card whose switch has died is down: 300 bytes are dropped in the guest.
    #[test]
    fn what_the_card_never_had_is_in_no_flight_and_new_when_it_comes() {
        let segments = vec![
            data(1, 1, 100),
            data(2, 401, 100),
            data(3, 501, 100),
            ack(101, &[(401, 501)]),
            // Not all of it is sent again at once.
            data(4, 101, 200),
            data(5, 601, 10),
        ];
        let sent =
            &new_data(&in_time([handshake(), segments].concat()), GUEST.0).unwrap()[&GUEST.1];
        let seen: Vec<_> =
            sent.iter().map(|new| (new.at_ns, new.len, new.flight, new.left_out)).collect();
        let expected = [
            (1, 100, 100, 0),
            (2, 100, 200, 300),
            (3, 100, 300, 0),
            (4, 200, 300, 0),
            (5, 10, 310, 0),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_receiver_that_has_what_the_card_never_had_is_an_error() {
        for heard in [ack(450, &[]), ack(1, &[(300, 450)])] {
            let all = in_time([handshake(), vec![data(1, 401, 100), heard]].concat());
            let error = new_data(&all, GUEST.0).unwrap_err().to_string();
            assert!(error.starts_with("port 5000: the receiver has "), "{error}");
        }
    }

    /// What is new on a path with a round trip of 20 ms, of what is sent and heard at these times in ms.
    fn new_on_path(after: &[(i64, Segment)]) -> Vec<NewData> {
        let mut all = handshake();
        all[1].at_ns = 20 * MS;
        let timed =
            |(at_ms, segment): &(i64, Segment)| Segment { at_ns: at_ms * MS, ..segment.clone() };
        all.extend(after.iter().map(timed));
        new_data(&all, GUEST.0).unwrap().remove(&GUEST.1).unwrap()
    }

    fn probes(after: &[(i64, Segment)]) -> Vec<i64> {
        let sent = new_on_path(after);
        sent.iter().filter(|new| new.is_probe).map(|new| new.at_ns / MS).collect()
    }

    #[test]
    fn a_lone_segment_after_a_silence_is_a_probe() {
        let alone = [
            (21, data(0, 1, 1388)),
            (40, data(0, 1389, 1388)),
            (80, data(0, 2777, 1388)),
            (150, ack(1389, &[])),
            (200, data(0, 4165, 1388)),
            (210, ack(5553, &[])),
            (300, data(0, 5553, 1388)),
        ];
        assert_eq!(probes(&alone), [80, 300], "one until it is acknowledged");
        let more = [(21, data(0, 1, 1388)), (80, data(0, 1389, 1388)), (81, data(0, 2777, 1388))];
        assert!(probes(&more).is_empty(), "more follows");
        let long = [(21, data(0, 1, 1388)), (80, data(0, 1389, 1389))];
        assert!(probes(&long).is_empty(), "too long");
        let again = [(21, data(0, 1, 1388)), (80, data(0, 1, 1388)), (150, data(0, 1389, 1388))];
        assert!(probes(&again).is_empty(), "the first was sent again as a probe");
    }

    #[test]
    fn a_flood_after_a_gap_and_a_probe_is_seen() {
        let sent = new_on_path(&[
            (21, data(0, 1, 100)),
            // 10 000 bytes are left out. Then a probe, and all that was left out.
            (300, data(0, 10_101, 100)),
            (320, ack(101, &[(10_101, 10_201)])),
            (321, data(0, 101, 10_000)),
        ]);
        let seen: Vec<_> = sent.iter().map(|new| (new.len, new.flight, new.is_probe)).collect();
        assert_eq!(seen, [(100, 100, false), (100, 200, true), (10_000, 10_000, false)]);
    }

    #[test]
    fn what_was_sent_before_what_has_come_is_lost() {
        let mss = 1388;
        let segments = |index: u32, count: u32| data(0, 1 + index * mss, count * mss);
        let sent = new_on_path(&[
            (21, segments(0, 2)),
            (40, segments(2, 2)),
            // The second pair has come: the first was sent long before it.
            (61, ack(1, &[(1 + 2 * mss, 1 + 4 * mss)])),
            (62, segments(4, 1)),
        ]);
        let flights: Vec<u64> = sent.iter().map(|new| new.flight / u64::from(mss)).collect();
        assert_eq!(flights, [2, 4, 1]);
    }

    /// Sent again so soon, the first bytes are lost by RACK, and not all by a timeout.
    #[test]
    fn only_a_timer_loses_all() {
        let flight_when_resent_at = |at_ms| {
            let sent = new_on_path(&[
                (21, data(0, 1, 100)),
                (21, data(0, 101, 100)),
                (21, data(0, 201, 100)),
                (41, ack(1, &[(101, 201)])),
                (at_ms, data(0, 1, 100)),
                (at_ms, data(0, 301, 10)),
            ]);
            sent.last().unwrap().flight
        };
        assert_eq!(flight_when_resent_at(50), 210);
        assert_eq!(flight_when_resent_at(250), 110);
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
        assert!(new_data(&[data(1, 1, 100)], GUEST.0).unwrap().is_empty(), "no SYN");
    }

    #[test]
    fn the_window_is_scaled_but_for_that_of_the_syn() {
        let all = [handshake(), vec![data(1, 1, 10), ack(11, &[]), data(2, 11, 10)]].concat();
        let sent = &new_data(&in_time(all), GUEST.0).unwrap()[&GUEST.1];
        assert_eq!(sent.iter().map(|new| new.window).collect::<Vec<_>>(), [1000, 4000]);
        assert_eq!(sent[0].mss, 1388);
    }
}
