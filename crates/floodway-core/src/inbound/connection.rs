//! One connection of a VM.

use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::Timestamps;

use super::handshake::{Agreed, Excluded, Handshake};
use super::unused_credit::UnusedCredit;
use super::waiting::{MAX_HOLD, Waiting};
use super::window::Window;
use super::window_rtt::WindowRtt;
use crate::seq::Seq;
use crate::tables::timer::Deadline;
use crate::tcp::{Edit, Segment, Side};
use crate::time::{Duration, Instant};

/// A window may be so many times the rate times the loop, and what the port may queue: pacing bounds the rate,
/// and a sender that is late must find room to catch up.
const GAIN: u32 = 2;
/// No window is larger.
const MAX_WINDOW: u64 = 1 << 29;

/// How much is known of a connection.
#[derive(Debug)]
pub(super) enum Phase {
    /// Not every SYN has been seen and answered.
    Opening(Handshake),
    /// All is known.
    Established,
    /// Met in mid-stream: its window scale is not known. `counted` once the VM has acknowledged data.
    Opaque { counted: bool },
    /// Nothing of it is ever changed or held.
    Excluded(Excluded),
}

/// An entry of a VM's flow table.
#[derive(Debug)]
pub(super) struct Connection<B> {
    pub phase: Phase,
    pub window: Window,
    pub time: WindowRtt,
    pub unused_credit: UnusedCredit,
    /// Payload of a full segment to the VM.
    pub mss: u32,
    /// Bytes of a segment besides its payload.
    pub headers: u32,
    /// Behind the highest byte from the peer.
    pub highest: Seq,
    /// Behind the highest byte of the VM.
    pub guest_next: Seq,
    /// Latest clocks of the VM.
    timestamps: Option<Timestamps>,
    /// A pure ACK of the VM: one that waits, or the pattern of a window update.
    pub held: Option<B>,
    /// Since when an ACK waits; [`Instant::NEVER`] if none does.
    pub held_since: Instant,
    /// A request or a SYN-ACK that waits.
    pub waiting: Option<Waiting<B>>,
    /// It waits for its turn.
    pub queued: bool,
    /// It counts as active.
    pub active: bool,
    /// Until when, if no more data comes.
    pub active_until: Instant,
    pub deadline: Deadline,
    /// Behind the FIN of the VM, and of its peer.
    pub fins: [Option<Seq>; 2],
    /// What the peer has acknowledged.
    pub peer_ack: Seq,
}

impl<B> Connection<B> {
    pub fn new(phase: Phase, headers: u32) -> Self {
        Self {
            phase,
            window: Window::default(),
            time: WindowRtt::default(),
            unused_credit: UnusedCredit::new(Seq(0), Instant::ZERO),
            mss: 536,
            headers,
            highest: Seq(0),
            guest_next: Seq(0),
            timestamps: None,
            held: None,
            held_since: Instant::NEVER,
            waiting: None,
            queued: false,
            active: false,
            active_until: Instant::NEVER,
            deadline: Deadline::NEVER,
            fins: [None; 2],
            peer_ack: Seq(0),
        }
    }

    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }

    /// Returns `true` if a SYN begins another connection than the one that is known.
    pub fn begins_anew(&mut self, side: Side, segment: &Segment) -> bool {
        match &mut self.phase {
            Phase::Opening(_) => false,
            Phase::Excluded(excluded) => !excluded.on_syn(side, segment),
            Phase::Established => self.guest_next != segment.end(),
            Phase::Opaque { .. } => side == Side::Peer || self.guest_next != segment.end(),
        }
    }

    /// Excludes the connection if its SYNs say so. Returns `true` if it is excluded.
    pub fn exclude(&mut self) -> bool {
        if let Phase::Opening(handshake) = &self.phase
            && let Some(excluded) = handshake.exclusion()
        {
            self.phase = Phase::Excluded(excluded);
            return true;
        }
        false
    }

    /// An ACK of the VM waits.
    pub fn is_holding(&self) -> bool {
        self.held_since != Instant::NEVER
    }

    /// When something of the VM that waits leaves at the latest; [`Instant::NEVER`] if nothing does.
    pub fn latest(&self) -> Instant {
        let other = self.waiting.as_ref().map_or(Instant::NEVER, Waiting::due);
        other.min(self.held_since + MAX_HOLD)
    }

    /// Nothing waits, and it does not count: it may be forgotten.
    pub fn is_idle(&self) -> bool {
        !self.active && self.latest() == Instant::NEVER
    }

    /// The peer will send nothing more, and the VM knows.
    pub fn is_received(&self) -> bool {
        self.fins[1].is_some_and(|fin| !self.window.guest_ack.before(fin))
    }

    /// Both sides have closed and acknowledged each other's FIN.
    pub fn is_over(&self) -> bool {
        self.is_received() && self.fins[0].is_some_and(|fin| !self.peer_ack.before(fin))
    }

    /// The handshake is complete.
    pub fn establish(&mut self, agreed: &Agreed, now: Instant) {
        self.phase = Phase::Established;
        self.window = Window::new(agreed.peer_next, agreed.scale, agreed.offered, agreed.told);
        self.mss = u32::from(agreed.mss);
        self.highest = agreed.peer_next;
        self.unused_credit = UnusedCredit::new(agreed.peer_next, now);
        self.peer_ack = agreed.guest_next;
        if let Some(took) = agreed.took {
            self.time.handshake(took, now);
        }
    }

    /// The edge has left `old` behind.
    pub fn advanced(&mut self, old: Seq, now: Instant) {
        self.time.advanced(old, now);
        self.unused_credit.advanced(now);
    }

    /// A grant that its sender has a use for is used within this time.
    pub fn in_time(&self, queueing: Duration) -> Duration {
        self.time.total(queueing) + queueing
    }

    /// Granted data up to `end` has arrived. Answers how many bytes of it the pacer has forgotten.
    pub fn arrived(&mut self, end: Seq, queueing: Duration, now: Instant) -> u32 {
        let (edge, in_time) = (self.window.advertised_edge, self.in_time(queueing));
        let late = self.unused_credit.arrived(self.highest, end, edge, in_time, now);
        self.time.arrived(self.highest, end, self.mss, now);
        self.highest = end;
        late
    }

    /// Notes how far the VM has sent, and its clocks.
    pub fn note_sent(&mut self, segment: &Segment) {
        let first = self.guest_next == Seq(0) && self.timestamps.is_none();
        if first || segment.has(Flags::SYN) || !segment.end().before(self.guest_next) {
            self.guest_next = segment.end();
            self.timestamps = segment.options.timestamps;
        }
        if segment.has(Flags::FIN) {
            self.fins[0] = Some(segment.end());
        }
    }

    /// Bytes on the link of `payload` bytes to the VM, as part of full segments.
    pub fn cost(&self, payload: u32) -> u64 {
        let full = u64::from(self.mss + self.headers);
        (u64::from(payload) * full).div_ceil(u64::from(self.mss))
    }

    /// Payload that fits `bytes` on the link.
    pub fn payload_of(&self, bytes: u64) -> u32 {
        let payload =
            u128::from(bytes) * u128::from(self.mss) / u128::from(self.mss + self.headers);
        u32::try_from(payload).unwrap_or(u32::MAX)
    }

    /// The least window.
    pub fn floor(&self) -> u32 {
        2 * self.mss
    }

    /// The window of eq. 4 for a rate in bytes per second.
    pub fn fair_window(&self, rate: u64, queueing: Duration) -> u32 {
        let time = self.time.total(queueing) * GAIN + queueing;
        let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).min(MAX_WINDOW);
        self.payload_of(bytes).max(self.floor())
    }

    /// Behind the highest byte of the VM that has left.
    pub fn left(&self) -> Seq {
        self.waiting.as_ref().map_or(self.guest_next, Waiting::seq)
    }

    /// The header of what is held, as of now, with a window field.
    pub fn refreshed(&self, field: u16) -> Edit {
        Edit {
            seq: Some(self.left()),
            ack: Some(self.window.guest_ack),
            window: Some(field),
            timestamps: self.timestamps,
            ..Edit::default()
        }
    }
}
