//! How much a sender has in flight each time that it sends something new, from a capture at its own card.
//!
//! # Theory of operation
//!
//! Linux sends new data only when everything that it takes for lost has been sent again. At such a moment each byte that is
//! neither acknowledged nor reported by SACK counts once as in flight (RFC 6675's *pipe*), whatever became of it before: so the
//! flight right after new data is `snd_nxt - snd_una - sacked`, and nothing needs to be known of timers. A sender on a
//! window of W bytes has at most W in flight then.
//!
//! Sequence numbers count from the SYN's, so a flow may carry up to 4 GB.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use floodway_wire::tcp::Flags;

use super::capture::Segment;

/// What a host takes that does not say (RFC 9293, section 3.7.1).
const DEFAULT_MSS: u16 = 536;
/// Bytes of each segment when both ends have timestamps.
const TIMESTAMPS_LEN: u16 = 12;

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
}

/// What a machine at `address` sent, by its port. Flows whose SYN is not in the capture are left out.
pub fn new_data(segments: &[Segment], address: Ipv4Addr) -> BTreeMap<u16, Vec<NewData>> {
    let mut flows: BTreeMap<u16, Flow> = BTreeMap::new();
    let mut sent: BTreeMap<u16, Vec<NewData>> = BTreeMap::new();
    for segment in segments {
        if segment.source.0 == address {
            let port = segment.source.1;
            if segment.flags.contains(Flags::SYN) {
                flows.insert(port, Flow::new(segment));
            } else if let Some(new) = flows.get_mut(&port).and_then(|flow| flow.sends(segment)) {
                sent.entry(port).or_default().push(new);
            }
        } else if let Some(flow) = flows.get_mut(&segment.destination.1) {
            flow.hears(segment);
        }
    }
    sent
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
    /// Ranges above `una` that the receiver has: left and right ends, disjoint.
    sacked: BTreeMap<u32, u32>,
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
            sacked: BTreeMap::new(),
        }
    }

    fn sends(&mut self, segment: &Segment) -> Option<NewData> {
        let end = segment.sequence.wrapping_sub(self.initial).wrapping_add(segment.len);
        if segment.len == 0 || end <= self.nxt {
            return None;
        }
        let len = u64::from(end - self.nxt);
        self.nxt = end;
        let sacked: u64 = self.sacked.iter().map(|(left, right)| u64::from(right - left)).sum();
        Some(NewData {
            at_ns: segment.at_ns,
            len,
            flight: u64::from(self.nxt - self.una).saturating_sub(sacked),
            window: self.edge.saturating_sub(self.una).into(),
            mss: self.mss.into(),
        })
    }

    fn hears(&mut self, segment: &Segment) {
        if !segment.flags.contains(Flags::ACK) {
            return;
        }
        let syn = segment.flags.contains(Flags::SYN);
        if syn {
            self.peer_scale = segment.window_scale.unwrap_or(0).min(14);
            let options = if segment.timestamps { TIMESTAMPS_LEN } else { 0 };
            self.mss = self.mss.min(segment.mss.unwrap_or(DEFAULT_MSS)).saturating_sub(options);
        }
        let ack = segment.acknowledgment.wrapping_sub(self.initial);
        if ack > self.nxt || ack < self.una {
            // Of what was never sent, or old.
            return;
        }
        self.una = ack;
        let scale = if syn { 0 } else { self.peer_scale };
        self.edge = self.edge.max(ack.saturating_add(u32::from(segment.window) << scale));
        for block in &segment.sack {
            let relative = |number: u32| number.wrapping_sub(self.initial);
            self.add_sacked(relative(block.left), relative(block.right));
        }
        self.forget_acknowledged();
    }

    fn add_sacked(&mut self, mut left: u32, mut right: u32) {
        // D-SACK (RFC 2883) speaks of what is below; and nothing unsent can have come.
        if left >= right || left < self.una || right > self.nxt {
            return;
        }
        let touching = self.sacked.range(..=right).filter(|(_, end)| **end >= left);
        let touching: Vec<(u32, u32)> = touching.map(|(start, end)| (*start, *end)).collect();
        for (start, end) in touching {
            self.sacked.remove(&start);
            (left, right) = (left.min(start), right.max(end));
        }
        self.sacked.insert(left, right);
    }

    fn forget_acknowledged(&mut self) {
        let una = self.una;
        let above = self.sacked.iter().filter(|(_, right)| **right > una);
        self.sacked = above.map(|(left, right)| ((*left).max(una), *right)).collect();
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
            timestamps: false,
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
            timestamps: true,
            ..segment(0, PEER, Flags(Flags::SYN.0 | Flags::ACK.0))
        };
        vec![Segment { mss: Some(1400), ..segment(0, GUEST, Flags::SYN) }, syn_ack]
    }

    fn flights(after: Vec<Segment>) -> Vec<(i64, u64, u64)> {
        let all = [handshake(), after].concat();
        let sent = new_data(&all, GUEST.0);
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
        let seen = flights(vec![data(1, 1, 100), data(2, 1, 100), data(3, 51, 100)]);
        assert_eq!(seen, [(1, 100, 100), (3, 50, 150)]);
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
        let sent = &new_data(&all, GUEST.0)[&GUEST.1];
        assert_eq!(sent.iter().map(|new| new.window).collect::<Vec<_>>(), [1000, 4000]);
        assert_eq!(sent[0].mss, 1388);
    }
}
