//! Watches the frames around the offload, knowing nothing of it, and checks what must hold of any sender.
//!
//! - Checksums of every frame that leaves are right.
//! - Nothing is sent to the peer beyond the window that it advertised (the receiver's half of I1).
//! - Acknowledgements to the peer never go back (R5), and acknowledge nothing that did not come (R2).
//! - The guest is told of no more than the peer has acknowledged.

use floodway_core::seq::Seq;
use floodway_switch::testing::frames::verified;
use floodway_wire::tcp::{Flags, OptionSummary};
use floodway_wire::{Meta, parse};

/// Bytes of a window that counts as closed: less than the smallest MSS that is used here.
const SMALL_WINDOW: u32 = 536;

/// A TCP segment of a frame.
#[derive(Clone, Copy, Debug)]
struct Segment {
    flags: Flags,
    seq: Seq,
    end: Seq,
    ack: Seq,
    window: u16,
    scale: Option<u8>,
    payload: u32,
}

impl Segment {
    fn of(frame: &[u8], meta: &Meta) -> Option<Self> {
        let fields = meta.tcp()?;
        let start = usize::from(meta.transport_offset) + 20;
        let options = OptionSummary::parse(&frame[start..usize::from(meta.payload_offset)]).ok()?;
        let flag = |flag| u32::from(fields.flags.contains(flag));
        let len = meta.payload_len + flag(Flags::SYN) + flag(Flags::FIN);
        let seq = Seq(fields.sequence);
        Some(Self {
            flags: fields.flags,
            seq,
            end: seq + len,
            ack: Seq(fields.acknowledgment),
            window: fields.window,
            scale: options.window_scale,
            payload: meta.payload_len,
        })
    }

    /// It says that there is no window, or one in which no sender puts a segment.
    fn closes_window(&self, scale: u8) -> bool {
        let window = u32::from(self.window) << scale;
        window < SMALL_WINDOW && self.has(Flags::ACK) && !self.has(Flags::RST)
    }

    fn has(&self, flag: Flags) -> bool {
        self.flags.contains(flag)
    }
}

/// What one end has sent.
#[derive(Debug, Default)]
struct End {
    scale: Option<u8>,
    /// Right edge of the window that it advertised.
    edge: Option<Seq>,
    /// Behind the last byte that it sent.
    nxt: Option<Seq>,
    /// Latest acknowledgement that it sent.
    ack: Option<Seq>,
}

impl End {
    fn note(&mut self, segment: &Segment, scale: u8) {
        self.nxt = Some(self.nxt.map_or(segment.end, |nxt| nxt.max(segment.end)));
        if segment.has(Flags::SYN) {
            self.scale = segment.scale;
        }
        if segment.has(Flags::ACK) {
            let edge = segment.ack + (u32::from(segment.window) << scale);
            self.edge = Some(self.edge.map_or(edge, |last| last.max(edge)));
            self.ack = Some(self.ack.map_or(segment.ack, |ack| ack.max(segment.ack)));
        }
    }
}

/// The observer of one connection.
#[derive(Debug, Default)]
pub struct Wire {
    guest: End,
    peer: End,
    /// Latest acknowledgement to the peer.
    acked: Option<Seq>,
    /// The guest may be told of more than the peer has acknowledged, by rule T3.
    early: bool,
    /// The guest has sent its FIN.
    guest_fin: bool,
    /// Payload that the guest's stack has sent, and what of it was sent before.
    pub guest_payload: u64,
    pub guest_repeats: u64,
    /// Segments that closed the window.
    pub closed_by_guest: u64,
    pub closed_by_peer: u64,
}

impl Wire {
    /// `early`: the guest may be told of more than the peer has acknowledged.
    pub fn new(early: bool) -> Self {
        Self { early, ..Self::default() }
    }

    /// What the window of an end is shifted by.
    fn scale(&self, of: &End, segment: &Segment) -> u8 {
        let both = self.guest.scale.is_some() && self.peer.scale.is_some();
        if both && !segment.has(Flags::SYN) { of.scale.unwrap_or(0) } else { 0 }
    }

    /// The guest's stack sends a frame.
    pub fn guest_sends(&mut self, frame: &[u8]) {
        let Some(segment) = parse_segment(frame) else { return };
        let scale = self.scale(&self.guest, &segment);
        self.closed_by_guest += u64::from(segment.closes_window(scale));
        self.guest_payload += u64::from(segment.payload);
        if segment.payload > 0
            && let Some(nxt) = self.guest.nxt
            && segment.seq.before(nxt)
        {
            self.guest_repeats += u64::from(segment.payload);
        }
        self.guest_fin |= segment.has(Flags::FIN);
        self.guest.note(&segment, scale);
    }

    /// A frame of the peer comes to the switch.
    pub fn peer_sends(&mut self, frame: &[u8]) {
        let Some(segment) = parse_segment(frame) else { return };
        let scale = self.scale(&self.peer, &segment);
        self.closed_by_peer += u64::from(segment.closes_window(scale));
        self.peer.note(&segment, scale);
    }

    /// The switch sends a frame to the network. `offloaded`: the switch controls what the flow sends.
    pub fn network_gets(&mut self, frame: &[u8], offloaded: bool) {
        let Some(segment) = checked(frame) else { return };
        if segment.has(Flags::SYN) || segment.has(Flags::RST) {
            return;
        }
        if let (true, true, Some(edge)) = (offloaded, segment.payload > 0, self.peer.edge) {
            assert!(!segment.end.after(edge + 1), "I1: beyond {edge:?}: {segment:?}");
        }
        if let Some(acked) = self.acked {
            assert!(!segment.ack.before(acked), "R5: an ACK after {acked:?}: {segment:?}");
        }
        self.acked = Some(segment.ack);
        if let Some(nxt) = self.peer.nxt {
            assert!(!segment.ack.after(nxt), "R2: acknowledged beyond {nxt:?}: {segment:?}");
        }
    }

    /// The switch delivers a frame to the guest.
    pub fn guest_gets(&mut self, frame: &[u8]) {
        let Some(segment) = checked(frame) else { return };
        if segment.has(Flags::RST) || !segment.has(Flags::ACK) {
            return;
        }
        let is_ahead = self.peer.ack.is_some_and(|ack| segment.ack.after(ack));
        if is_ahead {
            assert!(self.early, "more than the peer acknowledged: {segment:?}");
            let end = segment.ack + 1 + u32::from(self.guest_fin);
            let keeps_back = self.guest.nxt.is_some_and(|nxt| !end.after(nxt));
            assert!(keeps_back, "T3: the last byte or the FIN is acknowledged: {segment:?}");
        }
    }
}

/// A frame as a line of text.
pub fn describe(frame: &[u8]) -> String {
    match parse_segment(frame) {
        Some(s) => {
            format!("{:?} seq {} +{} ack {} win {}", s.flags, s.seq.0, s.payload, s.ack.0, s.window)
        }
        None => format!("{} bytes", frame.len()),
    }
}

fn parse_segment(frame: &[u8]) -> Option<Segment> {
    Segment::of(frame, &parse(frame, frame.len()).ok()?)
}

/// The segment of a frame whose checksums must be right; `None` if it is not TCP.
fn checked(frame: &[u8]) -> Option<Segment> {
    parse_segment(frame)?;
    Segment::of(frame, &verified(frame))
}
