//! A row of the table, and the notation of a segment.

use std::fmt::{self, Display, Formatter};

use floodway_core::congestion::Algorithm;
use floodway_core::offload::{Ecn, Segment};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::SackBlock;
pub use floodway_wire::tcp::options::Timestamps;

use super::parse::ZERO;
use crate::harness::packet::Packet;

/// First sequence numbers of the guest and of the peer. Scripts count from these.
pub const GUEST_ISN: u32 = 1_000_000;
pub const PEER_ISN: u32 = 3_000_000_000;

/// Which runs a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    Both,
    /// Offload off: what the guest's own TCP does.
    Off,
    /// Offload on.
    On,
}

impl Runs {
    pub fn has(self, on: bool) -> bool {
        self == Self::Both || (self == Self::On) == on
    }
}

/// What happens, or has to happen, at a time.
#[derive(Clone, Debug)]
pub enum Event {
    /// The guest sends.
    Guest(SegmentText),
    /// The peer sends.
    Peer(SegmentText),
    /// The network gets.
    Wire(SegmentText),
    /// The guest gets.
    Vm(SegmentText),
    /// The guest's application writes bytes: the guest is [`super::sender::Sender`].
    Write(u32),
    /// The guest's application closes.
    Close,
    /// A router says that the segment at `seq` was too large for its MTU.
    TooBig { seq: u32, mtu: u32 },
}

/// One line of a script.
#[derive(Clone, Debug)]
pub struct Line {
    pub runs: Runs,
    pub at: Instant,
    pub event: Event,
    /// Key of the reason, if the runs differ here.
    pub reason: Option<&'static str>,
    pub text: &'static str,
}

/// What the connection of a row is like.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The script has the handshake itself.
    pub closed: bool,
    /// The peer opens.
    pub passive: bool,
    pub mss: u16,
    /// The SYNs do not give it.
    pub no_mss: bool,
    pub scale: Option<u8>,
    /// What the peer's SYN says, if that is something else.
    pub peer_mss: Option<u16>,
    pub peer_scale: Option<Option<u8>>,
    /// The guest's SYN is sent twice, so the handshake measures nothing.
    pub syn_repeated: bool,
    /// Window of segments that do not give it.
    pub window: u16,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
    /// Round trip of the handshake.
    pub rtt: Duration,
    /// Smallest timeout of the guest, and of the switch.
    pub min_rto: Duration,
    pub switch_min_rto: Duration,
    pub initial_window: u8,
    pub congestion: Algorithm,
    pub transmit: bool,
    pub receive: bool,
    /// What is stored is acknowledged to the guest early.
    pub early: bool,
    pub ipv6: bool,
    /// PSH of what leaves is compared, also where it is not written.
    pub push: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            closed: false,
            passive: false,
            mss: 1000,
            no_mss: false,
            scale: Some(7),
            peer_mss: None,
            peer_scale: None,
            syn_repeated: false,
            window: 511,
            sack: true,
            timestamps: false,
            ecn: false,
            rtt: Duration::from_millis(100),
            min_rto: Duration::from_millis(1000),
            switch_min_rto: Duration::from_millis(1000),
            initial_window: 10,
            congestion: Algorithm::NewReno,
            transmit: true,
            receive: true,
            early: false,
            ipv6: false,
            push: false,
        }
    }
}

/// A row: a rule, and an exchange that shows it.
#[derive(Clone, Debug)]
pub struct Row {
    pub file: &'static str,
    pub name: &'static str,
    /// RFC and section.
    pub source: &'static str,
    pub rule: &'static str,
    pub setup: Setup,
    pub lines: Vec<Line>,
    pub end: Instant,
}

impl Row {
    pub fn new(
        file: &'static str,
        name: &'static str,
        source: &'static str,
        rule: &'static str,
    ) -> Self {
        let (setup, lines, end) = (Setup::default(), Vec::new(), ZERO);
        Self { file, name, source, rule, setup, lines, end }
    }

    /// The guest is a TCP of its own, and not part of the script.
    pub fn is_live(&self) -> bool {
        self.lines.iter().any(|line| matches!(line.event, Event::Write(_) | Event::Close))
    }
}

/// A segment in a script. Of one that is expected, a window and timestamps that are not written are
/// not looked at.
#[derive(Clone, Debug, Default)]
pub struct SegmentText {
    pub flags: Flags,
    pub seq: i64,
    pub len: u32,
    pub ack: Option<i64>,
    pub window: Option<u16>,
    pub ecn: Ecn,
    pub gso: u16,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamps: Option<Timestamps>,
    /// It has no timestamps, although they were agreed on.
    pub no_timestamps: bool,
    pub sack: Vec<(i64, i64)>,
    /// It has an option of a kind that the switch does not know.
    pub unknown: bool,
    /// The AE flag of a SYN (RFC 9768).
    pub accurate_ecn: bool,
}

const fn number(isn: u32, at: i64) -> u32 {
    isn.wrapping_add(at as u32)
}

impl SegmentText {
    /// The segment, from the side with `isn` to the side with `other`.
    pub fn packet(&self, isn: u32, other: u32, window: u16, clock: Option<Timestamps>) -> Packet {
        let mut segment = Segment {
            seq: Seq(number(isn, self.seq)),
            ack: Seq(self.ack.map_or(0, |ack| number(other, ack))),
            len: self.len,
            window: self.window.unwrap_or(window),
            flags: self.flags,
            ecn: self.ecn,
            gso_size: self.gso,
            ae: self.accurate_ecn,
            ..Segment::default()
        };
        segment.options.mss = self.mss;
        segment.options.window_scale = self.scale;
        segment.options.sack_permitted = self.sack_permitted;
        segment.options.timestamps = self.timestamps.or(clock).filter(|_| !self.no_timestamps);
        segment.options.unknown = self.unknown;
        let blocks = self.blocks(other);
        segment.options.set_sack_blocks(&blocks);
        Packet { segment, at: self.seq }
    }

    fn blocks(&self, other: u32) -> Vec<SackBlock> {
        let block = |&(left, right): &(i64, i64)| SackBlock {
            left: number(other, left),
            right: number(other, right),
        };
        self.sack.iter().map(block).collect()
    }

    /// Returns `true` if a packet is what is written here. With `push`, PSH is nowhere where it is not written.
    pub fn matches(&self, isn: u32, other: u32, packet: &Packet, push: bool) -> bool {
        let expected = self.packet(isn, other, 0, None).segment;
        let actual = &packet.segment;
        let looked_at = push || self.flags.contains(Flags::PSH);
        let flags = if looked_at { actual.flags } else { actual.flags.without(Flags::PSH) };
        let mut options = actual.options;
        options.timestamps = self.timestamps;
        self.window.is_none_or(|window| window == actual.window)
            && (self.timestamps.is_none() || self.timestamps == actual.options.timestamps)
            && (expected.seq, expected.ack, expected.len) == (actual.seq, actual.ack, actual.len)
            && (expected.flags, expected.ae) == (flags, actual.ae)
            && expected.ecn == actual.ecn
            && expected.options == options
    }
}

/// A packet in the notation of scripts.
pub struct Shown<'a>(pub &'a Packet, pub u32, pub u32);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(Packet { segment, .. }, isn, other) = self;
        let relative = |base: u32, seq: u32| i64::from(seq.wrapping_sub(base) as i32);
        f.write_str(["", "[ect1] ", "[ect0] ", "[ce] "][usize::from(segment.ecn.0 & 3)])?;
        f.write_str(if segment.ae { "A" } else { "" })?;
        write_flags(segment.flags, f)?;
        let start = relative(*isn, segment.seq.0);
        write!(f, " {start}:{}({})", start + i64::from(segment.len), segment.len)?;
        if segment.has(Flags::ACK) {
            write!(f, " ack {}", relative(*other, segment.ack.0))?;
        }
        write!(f, " win {}", segment.window)?;
        let options = &segment.options;
        let mut list = Vec::new();
        list.extend(options.mss.map(|mss| format!("mss {mss}")));
        list.extend(options.sack_permitted.then(|| "sackOK".to_owned()));
        list.extend(options.timestamps.map(|t| format!("TS val {} ecr {}", t.value, t.echo)));
        list.extend(options.window_scale.map(|scale| format!("wscale {scale}")));
        list.extend(options.unknown.then(|| "opt".to_owned()));
        let blocks = options.sack_blocks().iter();
        let block =
            |b: &SackBlock| format!("{}:{}", relative(*other, b.left), relative(*other, b.right));
        let blocks: Vec<_> = blocks.map(block).collect();
        list.extend((!blocks.is_empty()).then(|| format!("sack {}", blocks.join(" "))));
        if list.is_empty() { Ok(()) } else { write!(f, " <{}>", list.join(",")) }
    }
}

fn write_flags(flags: Flags, f: &mut Formatter<'_>) -> fmt::Result {
    let letters = [
        (Flags::SYN, "S"),
        (Flags::FIN, "F"),
        (Flags::RST, "R"),
        (Flags::PSH, "P"),
        (Flags::URG, "U"),
        (Flags::ECE, "E"),
        (Flags::CWR, "W"),
        (Flags::ACK, "."),
    ];
    if flags == Flags(0) {
        return f.write_str("-");
    }
    letters.iter().filter(|(flag, _)| flags.contains(*flag)).try_for_each(|(_, l)| f.write_str(l))
}
