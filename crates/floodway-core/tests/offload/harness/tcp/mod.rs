//! A TCP endpoint in virtual time, small but right. The guest and its peer are both one of it.

mod receiving;
mod sending;

use floodway_core::offload::{Ecn, Segment};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::Timestamps;

use super::packet::{Packet, Position, unwrap};
pub use receiving::Digest;
use receiving::Receiving;
use sending::{Range, Sending, Word};

/// The other side's clock means nothing any more after this long (RFC 7323 section 5.5).
const CLOCK_LIFETIME: Duration = Duration::from_secs(24 * 86_400);

/// What an endpoint is and offers.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    pub isn: u32,
    /// Payload of its segments, timestamps already taken off.
    pub mss: u16,
    pub scale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
    /// AE flag, and CWR and ECE, of its SYN or SYN-ACK, if not those that follow from `ecn`.
    pub syn_ecn: Option<(bool, Flags)>,
    /// It is a host behind the guest.
    pub forwarded: bool,
    /// It echoes CE as DCTCP does: exactly (RFC 8257 section 3.2).
    pub dctcp: bool,
    /// An option that the switch does not know is in its SYN or SYN-ACK, and in all else that it sends.
    pub unknown_option: (bool, bool),
    /// Its SYN-ACK has no room for another option.
    pub full_options: bool,
    /// Receive buffer.
    pub buffer: u32,
    /// Bytes that the application reads in a millisecond; none reads all at once.
    pub read_rate: Option<u32>,
    /// Segments that an ACK waits for.
    pub ack_every: u32,
    pub delayed_ack: Duration,
    pub initial_window: u32,
    /// Largest frame that it sends.
    pub gso: u32,
    pub tlp: bool,
    /// A timer finds losses for which no ACK comes in time (RFC 8985 section 6.3).
    pub reo_timer: bool,
    pub min_rto: Duration,
    /// Start of its timestamp clock.
    pub clock: u32,
    /// Linux `tcp_retries2`: how long it repeats without progress, and how many probes of a window may stay without
    /// an answer, before it ends the connection.
    pub retries2: u32,
    /// It opens its window by however little, against RFC 9293 section 3.8.6.2.2.
    pub silly: bool,
    /// Linux `tcp_mtu_probing`: its segments become smaller with the third timeout in a row and each after it.
    pub mtu_probing: bool,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            isn: 1_000_000,
            mss: 1448,
            scale: Some(7),
            sack: true,
            timestamps: true,
            ecn: false,
            syn_ecn: None,
            forwarded: false,
            dctcp: false,
            unknown_option: (false, false),
            full_options: false,
            buffer: 1 << 20,
            read_rate: None,
            ack_every: 2,
            delayed_ack: Duration::from_millis(40),
            initial_window: 10,
            gso: 65_160,
            tlp: false,
            reo_timer: false,
            min_rto: Duration::from_millis(200),
            clock: 77_000,
            retries2: 15,
            silly: false,
            mtu_probing: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    Listen,
    SynSent,
    SynReceived,
    Established,
    /// Ended by a reset.
    Reset,
    /// Ended because the other side did not answer (`ETIMEDOUT`).
    TimedOut,
}

#[derive(Debug)]
pub struct Endpoint {
    pub config: TcpConfig,
    pub state: State,
    pub tx: Sending,
    pub rx: Receiving,
    peer_isn: u32,
    /// The MSS that it announces, whatever the other side does.
    announced_mss: u16,
    /// Shift of the windows that the other side advertises, and of ours.
    peer_scale: u8,
    pub my_scale: u8,
    syn_at: Instant,
    /// When the SYN was sent last.
    syn_sent: Instant,
    syn_retries: u32,
    out: Vec<Packet>,
    /// What comes beyond the window is dropped; it would be an error otherwise.
    pub tolerant: bool,
    /// Segments may be forged: the bytes of what is refused are not those that the other side wrote.
    pub expects_forgeries: bool,
    /// Largest window that the other side has advertised.
    max_window: i64,
    /// When the other side's clock was noted.
    clock_at: Instant,
}

impl Endpoint {
    pub fn new(config: TcpConfig) -> Self {
        Self {
            state: State::Closed,
            tx: Sending::new(&config),
            rx: Receiving::new(),
            peer_isn: 0,
            announced_mss: config.mss + if config.timestamps { 12 } else { 0 },
            peer_scale: 0,
            my_scale: 0,
            syn_at: Instant::NEVER,
            syn_sent: Instant::NEVER,
            syn_retries: 0,
            out: Vec::new(),
            tolerant: false,
            expects_forgeries: false,
            max_window: 0,
            clock_at: Instant::ZERO,
            config,
        }
    }

    pub fn listen(&mut self) {
        self.state = State::Listen;
    }

    pub fn connect(&mut self, now: Instant) {
        self.state = State::SynSent;
        self.tx.nxt = 1;
        self.syn(now);
    }

    /// The application writes.
    pub fn write(&mut self, bytes: i64, now: Instant) {
        self.tx.written += bytes;
        self.transmit(now);
    }

    pub fn close(&mut self, now: Instant) {
        self.tx.closing = true;
        self.transmit(now);
    }

    /// The application starts to read again.
    pub fn resume(&mut self, now: Instant) {
        self.rx.resume(&self.config, now);
        self.finish(now);
    }

    pub fn abort(&mut self, now: Instant) {
        let mut packet = self.packet(self.tx.nxt, now);
        packet.segment.flags = Flags::RST.with(Flags::ACK);
        self.rx.acknowledge(&mut packet, &self.config, self.my_scale, self.peer_isn);
        packet.segment.options.set_sack_blocks(&[]);
        self.out.push(packet);
        self.state = State::Reset;
    }

    /// A keepalive as Linux sends it (no payload), or as others do (one byte that was sent before).
    pub fn keepalive(&mut self, garbage: bool, now: Instant) {
        let mut packet = self.packet(self.tx.una - 1, now);
        packet.at = self.tx.una - 1;
        packet.segment.len = u32::from(garbage);
        self.rx.acknowledge(&mut packet, &self.config, self.my_scale, self.peer_isn);
        self.out.push(packet);
    }

    /// The path takes no more than `mss` bytes in a segment: what is under way is sent again (Linux
    /// `tcp_simple_retransmit`).
    pub fn too_big(&mut self, mss: u16, now: Instant) {
        if mss < self.config.mss {
            self.config.mss = mss;
            self.tx.lose_all();
            self.transmit(now);
        }
    }

    /// What it has to send.
    pub fn take_out(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.out)
    }

    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    pub fn is_established(&self) -> bool {
        self.state == State::Established
    }

    /// Both directions are closed and acknowledged.
    pub fn is_closed(&self) -> bool {
        self.tx.closing && self.tx.is_done() && self.rx.is_complete()
    }

    pub fn next(&self) -> Instant {
        match self.state {
            State::Closed | State::Listen | State::Reset | State::TimedOut => Instant::NEVER,
            State::SynSent | State::SynReceived => self.syn_at,
            State::Established => self.tx.next().min(self.rx.next()),
        }
    }

    pub fn on_time(&mut self, now: Instant) {
        match self.state {
            State::Closed | State::Listen | State::Reset | State::TimedOut => return,
            State::SynSent | State::SynReceived => {
                if self.syn_at <= now {
                    self.syn(now);
                }
                return;
            }
            State::Established => {}
        }
        self.rx.on_time(&self.config, now);
        if self.config.mtu_probing
            && let Some(retries) = self.tx.retries_with_timeout(now).filter(|&n| n >= 3)
        {
            let smaller = if retries == 3 { 1024 } else { self.config.mss / 2 };
            self.config.mss = self.config.mss.min(smaller.max(48));
        }
        if let Some(range) = self.tx.on_time(&self.config, now) {
            self.send_range(range, now);
        }
        if self.tx.gave_up {
            self.state = State::TimedOut;
            return;
        }
        self.finish(now);
    }

    fn syn(&mut self, now: Instant) {
        let mut packet = self.packet(0, now);
        let segment = &mut packet.segment;
        segment.flags = Flags::SYN;
        segment.window = self.config.buffer.min(65_535) as u16;
        let answers = self.state == State::SynReceived;
        segment.options.mss = Some(self.announced_mss);
        segment.options.window_scale = self.config.scale;
        segment.options.sack_permitted = self.config.sack;
        if self.config.timestamps {
            let value = self.clock(now);
            segment.options.timestamps = Some(Timestamps { value, echo: self.rx.ts_recent });
        }
        if answers {
            segment.flags = segment.flags.with(Flags::ACK);
            segment.ack = Seq(self.peer_isn.wrapping_add(1));
            if self.config.ecn {
                segment.flags = segment.flags.with(Flags::ECE);
            }
            self.rx.edge = self.rx.edge.max(1 + i64::from(segment.window));
        } else if self.config.ecn {
            segment.flags = segment.flags.with(Flags::ECE.with(Flags::CWR));
        }
        if let Some((ae, bits)) = self.config.syn_ecn {
            segment.ae = ae;
            segment.flags = segment.flags.without(Flags::ECE.with(Flags::CWR)).with(bits);
        }
        segment.options.unknown = self.config.unknown_option.0;
        segment.forwarded = self.config.forwarded;
        segment.has_room = answers && !self.config.full_options;
        self.out.push(packet);
        self.syn_sent = now;
        self.syn_at = now + Duration::from_secs(1 << self.syn_retries.min(6));
        self.syn_retries += 1;
    }

    fn clock(&self, now: Instant) -> u32 {
        self.config.clock.wrapping_add((now.as_nanos() / 1_000_000) as u32)
    }

    /// A segment of its own from a place in its stream on.
    pub fn packet(&self, at: Position, now: Instant) -> Packet {
        let mut segment = Segment { seq: self.seq(at), ..Segment::default() };
        if self.config.timestamps {
            let value = self.clock(now);
            segment.options.timestamps = Some(Timestamps { value, echo: self.rx.ts_recent });
        }
        segment.options.unknown = self.config.unknown_option.1;
        Packet { segment, at }
    }

    pub fn seq(&self, at: Position) -> Seq {
        Seq(self.config.isn.wrapping_add(at as u32))
    }

    fn transmit(&mut self, now: Instant) {
        if self.state != State::Established {
            return;
        }
        while let Some(range) = self.tx.next_range(&self.config, now) {
            self.send_range(range, now);
        }
    }

    fn send_range(&mut self, range: Range, now: Instant) {
        let Range { start, end, again } = range;
        let mut packet = self.packet(start, now);
        let fin = end > self.tx.written;
        let segment = &mut packet.segment;
        segment.len = (end - start - i64::from(fin)) as u32;
        segment.gso_size =
            if segment.len > u32::from(self.config.mss) { self.config.mss } else { 0 };
        if fin {
            segment.flags = segment.flags.with(Flags::FIN);
        }
        if end >= self.tx.written && segment.len > 0 {
            segment.flags = segment.flags.with(Flags::PSH);
        }
        if self.config.ecn && !again && segment.len > 0 {
            segment.ecn = Ecn(2);
            if std::mem::take(&mut self.tx.cwr) {
                segment.flags = segment.flags.with(Flags::CWR);
            }
        }
        self.rx.acknowledge(&mut packet, &self.config, self.my_scale, self.peer_isn);
        // Linux has no room for SACK blocks beside data and timestamps in TSO frames; it does send them,
        // but what matters is in the pure ACKs.
        packet.segment.options.set_sack_blocks(&[]);
        self.out.push(packet);
    }

    /// Sends what may be sent, and an ACK if one is due and nothing carries it.
    fn finish(&mut self, now: Instant) {
        if self.rx.ack_now && self.rx.has_gap() && self.state == State::Established {
            // What is out of order is told at once, by an ACK with SACK blocks.
            self.ack(now);
        }
        self.transmit(now);
        if self.rx.ack_now && self.state == State::Established {
            self.ack(now);
        }
    }

    /// The sequence number of an ACK: the other side takes none from beyond a window that it has shrunk (Linux `tcp_acceptable_seq`), by more than
    /// the rounding of its scale.
    fn acceptable(&self) -> Position {
        let (nxt, edge) = (self.tx.nxt, self.tx.edge);
        if nxt - edge < 1 << self.my_scale.max(self.peer_scale) { nxt } else { edge }
    }

    fn ack(&mut self, now: Instant) {
        let mut packet = self.packet(self.acceptable(), now);
        self.rx.acknowledge(&mut packet, &self.config, self.my_scale, self.peer_isn);
        self.out.push(packet);
    }

    pub fn on_packet(&mut self, packet: &Packet, now: Instant) {
        for segment in packet.segments() {
            self.on_segment(&segment, now);
        }
    }

    fn on_segment(&mut self, packet: &Packet, now: Instant) {
        match self.state {
            State::Closed | State::Reset | State::TimedOut => {}
            State::Listen | State::SynSent => self.on_handshake(packet, now),
            State::SynReceived | State::Established => self.on_connected(packet, now),
        }
    }

    fn on_handshake(&mut self, packet: &Packet, now: Instant) {
        let segment = &packet.segment;
        if !segment.has(Flags::SYN) {
            if segment.has(Flags::RST) && segment.ack == self.seq(1) {
                self.state = State::Reset;
            }
            return;
        }
        let answered = segment.has(Flags::ACK) && segment.ack == self.seq(1);
        if segment.has(Flags::ACK) && (!answered || self.state == State::Listen) {
            return;
        }
        self.peer_isn = segment.seq.0;
        let options = &segment.options;
        self.config.sack &= options.sack_permitted;
        self.config.timestamps &= options.timestamps.is_some();
        if let (Some(mine), Some(theirs)) = (self.config.scale, options.window_scale) {
            self.my_scale = mine;
            self.peer_scale = theirs;
        }
        let wants = segment.has(Flags::ECE)
            && (answered != segment.has(Flags::CWR) || segment.has(Flags::CWR));
        self.config.ecn &= wants;
        if let Some(mss) = options.mss {
            let theirs = mss - if self.config.timestamps { 12 } else { 0 };
            self.config.mss = self.config.mss.min(theirs);
        }
        self.rx.nxt = 1;
        self.rx.ts_recent = options.timestamps.map_or(0, |t| t.value);
        self.clock_at = now;
        self.tx.nxt = 1;
        self.tx.edge = 1 + i64::from(segment.window);
        self.max_window = i64::from(segment.window);
        if answered {
            self.tx.una = 1;
            self.rx.edge = 1 + i64::from(self.config.buffer.min(65_535));
            self.establish(now);
            self.rx.ack_now = true;
            self.finish(now);
        } else {
            self.state = State::SynReceived;
            self.syn(now);
        }
    }

    /// The SYN is acknowledged, which is the first measure of the round trip if it was sent once.
    fn establish(&mut self, now: Instant) {
        self.state = State::Established;
        if self.syn_retries == 1 {
            self.tx.sample(now.since(self.syn_sent));
        }
    }

    fn on_connected(&mut self, packet: &Packet, now: Instant) {
        let segment = &packet.segment;
        let start = unwrap(self.rx.nxt, self.peer_isn, segment.seq);
        let end = start + i64::from(segment.len) + i64::from(segment.has(Flags::FIN));
        if let Some(timestamps) = segment.options.timestamps
            && self.config.timestamps
            && Seq(timestamps.value).before(Seq(self.rx.ts_recent))
            && now.since(self.clock_at) < CLOCK_LIFETIME
            && !segment.has(Flags::RST)
        {
            // PAWS (RFC 7323 section 5.3).
            return self.ack(now);
        }
        if segment.has(Flags::RST) {
            if start == self.rx.nxt {
                self.state = State::Reset;
            } else if start > self.rx.nxt && start < self.rx.edge {
                self.ack(now);
            }
            return;
        }
        if segment.has(Flags::SYN) {
            let simultaneous = self.state == State::SynReceived && segment.ack == self.seq(1);
            if !simultaneous {
                if self.state == State::Established {
                    self.ack(now);
                } else {
                    self.syn(now);
                }
                return;
            }
        } else {
            let acceptable = if start == end {
                start >= self.rx.nxt && start <= self.rx.edge
            } else {
                end > self.rx.nxt && start < self.rx.edge
            };
            if !acceptable {
                self.take_unacceptable(packet, start, now);
                return;
            }
        }
        if !segment.has(Flags::ACK) || !self.take_ack(packet, now) {
            return;
        }
        if let Some(timestamps) = segment.options.timestamps
            && start <= self.rx.acked.max(1)
        {
            self.rx.ts_recent = timestamps.value;
            self.clock_at = now;
        }
        if !segment.has(Flags::SYN) {
            if end > self.rx.edge {
                assert!(self.tolerant, "{end} is beyond the window's end {}", self.rx.edge);
                return self.ack(now);
            }
            self.echo_exactly(segment, now);
            self.rx.take(start, packet, &self.config, now);
        }
        self.finish(now);
    }

    /// A DCTCP receiver acknowledges what came before at once when CE changes, with the echo that belongs to that.
    fn echo_exactly(&mut self, segment: &Segment, now: Instant) {
        let marked = segment.ecn == Ecn::CE;
        if !self.config.ecn || !self.config.dctcp || segment.len == 0 || marked == self.rx.echo {
            return;
        }
        if self.rx.nxt > self.rx.acked.max(1) {
            self.ack(now);
        }
        self.rx.echo = marked;
    }

    /// What comes twice is answered by an ACK.
    fn take_unacceptable(&mut self, packet: &Packet, start: Position, now: Instant) {
        let segment = &packet.segment;
        if segment.seq_len() > 0 && start < self.rx.nxt && !self.expects_forgeries {
            self.rx.take(start, packet, &self.config, now);
        }
        self.ack(now);
    }

    /// False for an ACK of what was never sent, or one that is too old (RFC 5961 section 5).
    fn take_ack(&mut self, packet: &Packet, now: Instant) -> bool {
        let segment = &packet.segment;
        let ack = unwrap(self.tx.una, self.config.isn, segment.ack);
        if ack > self.tx.nxt || ack < self.tx.una - self.max_window {
            self.ack(now);
            return false;
        }
        if self.state == State::SynReceived {
            if ack < 1 {
                return false;
            }
            self.establish(now);
            self.tx.una = 1;
            self.rx.ack_now |= segment.has(Flags::SYN);
        }
        let scale = if segment.has(Flags::SYN) { 0 } else { self.peer_scale };
        let edge = ack + (i64::from(segment.window) << scale);
        self.max_window = self.max_window.max(edge - ack);
        let una = self.tx.una;
        let sacks: Vec<_> = segment
            .options
            .sack_blocks()
            .iter()
            .map(|b| {
                let left = unwrap(una, self.config.isn, Seq(b.left));
                (left, unwrap(una, self.config.isn, Seq(b.right)))
            })
            .collect();
        let rtt = packet
            .timestamps()
            .filter(|t| self.config.timestamps && t.echo != 0)
            .map(|t| Duration::from_millis(u64::from(self.clock(now).wrapping_sub(t.echo))));
        let word = Word {
            ack,
            edge,
            pure: segment.is_pure_ack(),
            ece: segment.has(Flags::ECE),
            sacks: &sacks,
            rtt,
        };
        self.tx.on_ack(&word, &self.config, now);
        true
    }
}
