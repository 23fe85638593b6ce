//! One end of a connection.
//!
//! # Theory of operation
//! The states of RFC 9293 figure 5, without simultaneous open: a client goes CLOSED, SYN-SENT, ESTABLISHED; a
//! server LISTEN, SYN-RECEIVED, ESTABLISHED; either closes by FIN-WAIT-1 or CLOSE-WAIT. MSS, window scale,
//! SACK, timestamps and ECN hold if both SYNs have them.
//!
//! The owner calls [`Connection::on_segment`], [`Connection::on_timeout`] or a command, then takes segments with
//! [`Connection::poll`] until there are none, and then looks at [`Connection::next_timeout`].

use std::sync::Arc;

use floodway_core::seq::Seq;
use floodway_wire::tcp::options::{MAX_WINDOW_SCALE, SackBlock, Timestamps};
use floodway_wire::tcp::{Flags, OptionSummary};

use super::config::TcpConfig;
use super::receiver::{Arrival, Receiver};
use super::sender::{Feedback, Range, Sender};
use crate::packet::{Ecn, Segment};
use crate::{Duration, Instant};

/// States of RFC 9293 section 3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Waits for a SYN.
    Listen,
    /// Has sent a SYN.
    SynSent,
    /// Has sent a SYN in answer to one.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// Has sent a FIN.
    FinWait1,
    /// Its FIN is acknowledged.
    FinWait2,
    /// The peer has sent a FIN.
    CloseWait,
    /// Both have sent a FIN, ours is not acknowledged.
    Closing,
    /// Has sent a FIN after the peer's.
    LastAck,
    /// Both FINs are acknowledged; answers repeated ones.
    TimeWait,
    /// Given up, or refused.
    Aborted,
}

/// One end of a TCP connection.
#[derive(Clone, Debug)]
pub struct Connection {
    config: Arc<TcpConfig>,
    /// The smaller of both ends' MSS, once the peer's is known.
    mss: u16,
    state: State,
    /// Initial sequence numbers, ours and the peer's.
    iss: Seq,
    irs: Seq,
    sender: Sender,
    receiver: Receiver,
    closing: bool,
    syn_due: bool,
    /// What was negotiated.
    peer_scale: Option<u8>,
    timestamps: bool,
    sack: bool,
    ecn: bool,
    ts_recent: u32,
}

impl Connection {
    /// A client: the first segment that it sends is a SYN. `iss` is its initial sequence number.
    #[must_use]
    pub fn connect(config: &Arc<TcpConfig>, iss: u32) -> Self {
        Self { state: State::SynSent, syn_due: true, ..Self::listen(config, iss) }
    }

    /// A server that waits for a SYN.
    #[must_use]
    pub fn listen(config: &Arc<TcpConfig>, iss: u32) -> Self {
        Self {
            config: Arc::clone(config),
            mss: config.mss,
            state: State::Listen,
            iss: Seq(iss),
            irs: Seq(0),
            sender: Sender::new(config),
            receiver: Receiver::new(config),
            closing: false,
            syn_due: false,
            peer_scale: None,
            timestamps: config.timestamps,
            sack: config.sack,
            ecn: config.ecn,
            ts_recent: 0,
        }
    }

    /// Its state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// The sending half.
    #[must_use]
    pub const fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The receiving half.
    #[must_use]
    pub const fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Data can flow, or could before the peer closed.
    #[must_use]
    pub fn is_established(&self) -> bool {
        (State::Established..=State::TimeWait).contains(&self.state)
    }

    /// Nothing more will come of it, except answers to repeated segments.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::TimeWait | State::Aborted)
    }

    /// The application writes bytes; allowed from the start, they are sent when the connection stands.
    pub fn write(&mut self, bytes: u64) {
        self.sender.write(bytes);
    }

    /// The application has written all: a FIN follows.
    pub fn close(&mut self) {
        self.closing = true;
        self.sender.finish();
    }

    /// A switch controls the flow, or does not: see [`Sender`].
    pub fn set_managed(&mut self, managed: bool) {
        self.sender.set_managed(managed);
    }

    /// Until when that holds without another word of the switch.
    pub fn set_heartbeat(&mut self, until: Instant) {
        self.sender.set_heartbeat(until);
    }

    /// How many of its bytes the queues of its host hold, and how many they have ever taken. Somebody has to say so before
    /// [`poll`](Self::poll) and [`on_timeout`](Self::on_timeout) if the stack [asks](Self::tsq_enabled).
    pub fn set_queued(&mut self, bytes: u64, taken: u64) {
        self.sender.small_queue().set_queued(bytes, taken);
    }

    /// The stack limits what the host's queues hold, or does not repeat it.
    #[must_use]
    pub fn tsq_enabled(&self) -> bool {
        self.config.limit_output > 0 || self.config.skip_queued_rtx
    }

    /// Goes on when some of what is queued has left.
    #[must_use]
    pub const fn waits_for_queue(&self) -> bool {
        self.sender.waits_for_queue()
    }

    /// When [`on_timeout`](Self::on_timeout) is due; [`Instant::NEVER`] if nothing waits.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        self.sender.timer().min(self.receiver.delayed())
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.sender.timer() > now {
            return;
        }
        match self.state {
            State::SynSent | State::SynReceived => {
                self.sender.syn_timeout();
                self.syn_due = true;
            }
            _ => self.sender.on_timeout(now),
        }
        if self.sender.gave_up() {
            self.state = State::Aborted;
            self.syn_due = false;
        }
    }

    /// Takes a segment from the peer. `ce`: its packet carried a congestion mark.
    pub fn on_segment(&mut self, segment: &Segment, ce: bool, now: Instant) {
        if segment.flags.contains(Flags::RST) {
            self.state = State::Aborted;
            return;
        }
        match self.state {
            State::Aborted => {}
            State::Listen => self.on_syn(segment),
            State::SynSent => self.on_syn_ack(segment, now),
            _ => self.on_established(segment, ce, now),
        }
    }

    fn on_syn(&mut self, segment: &Segment) {
        if segment.flags.contains(Flags::SYN) && !segment.flags.contains(Flags::ACK) {
            self.irs = segment.seq;
            let ecn = Flags::ECE.with(Flags::CWR);
            self.ecn &= segment.flags.contains(ecn);
            self.negotiate(&segment.options);
            self.state = State::SynReceived;
            self.syn_due = true;
        }
    }

    fn on_syn_ack(&mut self, segment: &Segment, now: Instant) {
        let expected = segment.flags.contains(Flags::SYN.with(Flags::ACK));
        if !expected || segment.ack != self.iss + 1 {
            return;
        }
        self.irs = segment.seq;
        self.ecn &= segment.flags.contains(Flags::ECE);
        self.negotiate(&segment.options);
        // The window of a SYN is never scaled.
        let edge = 1 + u64::from(segment.window);
        self.stand(edge, now);
        self.receiver.owe_ack();
    }

    fn negotiate(&mut self, options: &OptionSummary) {
        let mss = options.mss.unwrap_or(536).min(self.mss);
        self.mss = mss;
        self.receiver.syn(u32::from(mss));
        self.peer_scale = options.window_scale.map(|shift| shift.min(MAX_WINDOW_SCALE));
        self.receiver.scale = if self.peer_scale.is_some() { self.own_scale() } else { 0 };
        self.sack &= options.sack_permitted;
        self.timestamps &= options.timestamps.is_some();
        self.ts_recent = options.timestamps.map_or(0, |t| t.value);
    }

    /// The smallest shift with which the largest buffer can be told.
    fn own_scale(&self) -> u8 {
        let max = self.config.receive.max.max(self.config.receive.initial);
        let bits = u32::BITS - max.leading_zeros();
        bits.saturating_sub(16).min(u32::from(MAX_WINDOW_SCALE)) as u8
    }

    fn stand(&mut self, edge: u64, now: Instant) {
        let options = if self.timestamps { 12 } else { 0 };
        let mss = u32::from(self.mss).saturating_sub(options);
        self.sender.established(mss, self.sack, edge, now);
        self.state = State::Established;
    }

    fn on_established(&mut self, segment: &Segment, ce: bool, now: Instant) {
        if segment.flags.contains(Flags::SYN) {
            // The peer repeats its SYN: it has not seen our answer.
            match self.state {
                State::SynReceived => self.syn_due = true,
                _ => self.receiver.owe_ack(),
            }
            return;
        }
        if self.is_outdated(segment) {
            self.receiver.owe_ack();
            return;
        }
        if segment.flags.contains(Flags::ACK) {
            self.on_ack(segment, now);
        }
        if segment.seq_len() > 0 && self.state > State::SynReceived {
            self.receiver.on_data(
                &Arrival {
                    start: unwrap(segment.seq, self.irs, self.receiver.nxt),
                    len: segment.len,
                    fin: segment.flags.contains(Flags::FIN),
                    ce,
                    cwr: segment.flags.contains(Flags::CWR),
                },
                self.round_trip(segment, now),
                now,
            );
        }
        self.advance_state();
    }

    /// A round trip as the receiver knows it: the sender's estimate, or how old the clock is that a full segment echoes
    /// (Linux `tcp_rcv_rtt_measure_ts`), at least one tick of it.
    fn round_trip(&self, segment: &Segment, now: Instant) -> Option<Duration> {
        let echo = || {
            let echo = segment.options.timestamps.filter(|t| self.timestamps && t.echo != 0)?.echo;
            let full = segment.len >= self.sender.mss();
            let ticks = self.clock(now)?.value.wrapping_sub(echo).max(1);
            full.then_some(Duration::from_millis(ticks.into()))
        };
        self.sender.srtt().filter(|_| self.sender.acknowledged() > 0).or_else(echo)
    }

    /// PAWS (RFC 7323 section 5), and the clock to echo.
    fn is_outdated(&mut self, segment: &Segment) -> bool {
        let Some(clock) = segment.options.timestamps.filter(|_| self.timestamps) else {
            return false;
        };
        if Seq(clock.value).before(Seq(self.ts_recent)) {
            return true;
        }
        let start = unwrap(segment.seq, self.irs, self.receiver.nxt);
        if start <= self.receiver.nxt {
            self.ts_recent = clock.value;
        }
        false
    }

    fn on_ack(&mut self, segment: &Segment, now: Instant) {
        let ack = unwrap(segment.ack, self.iss, self.sender.una);
        let window = u64::from(segment.window) << self.peer_scale.unwrap_or(0);
        if self.state == State::SynReceived {
            if ack == 1 {
                self.stand(ack + window, now);
            }
            return;
        }
        let blocks = segment.options.sack_blocks();
        let mut sack = [(0, 0); 4];
        let near = |seq| unwrap(Seq(seq), self.iss, self.sender.una);
        for (to, block) in sack.iter_mut().zip(blocks) {
            *to = (near(block.left), near(block.right));
        }
        let feedback = Feedback {
            ack,
            right_edge: ack + window,
            sack: &sack[..blocks.len().min(4)],
            ece: self.ecn && segment.flags.contains(Flags::ECE),
            has_data: segment.seq_len() > 0,
        };
        self.sender.on_ack(&feedback, now);
    }

    fn advance_state(&mut self) {
        if self.state < State::Established || self.state == State::Aborted {
            return;
        }
        let sent = self.closing && self.sender.fin_sent();
        let acknowledged = self.sender.fin_acknowledged();
        let before = self.state;
        self.state = match (sent, acknowledged, self.receiver.finished()) {
            (false, _, false) => State::Established,
            (false, _, true) => State::CloseWait,
            (true, false, false) => State::FinWait1,
            (true, true, false) => State::FinWait2,
            (true, false, true) if before == State::CloseWait || before == State::LastAck => {
                State::LastAck
            }
            (true, false, true) => State::Closing,
            (true, true, true) => State::TimeWait,
        };
    }

    /// Writes the next segment to send over `out`, all of it, and leaves that alone if there is none. What was written counts as sent.
    /// Returns the ECN bits of its packet. A segment is written where it stays: it is too large to be handed from function to function.
    pub fn poll(&mut self, now: Instant, out: &mut Segment) -> Option<Ecn> {
        match self.state {
            State::Listen | State::Aborted => None,
            State::SynSent | State::SynReceived => self.syn(now, out),
            _ => {
                if let Some(range) = self.sender.next(now) {
                    let (ack, echo) = self.receiver.acknowledge();
                    self.advance_state();
                    return Some(self.data(&range, ack, echo, now, out));
                }
                let (ack, echo) = self.receiver.take_ack(now)?;
                self.pure_ack(ack, echo, now, out);
                Some(Ecn::NotEct)
            }
        }
    }

    fn syn(&mut self, now: Instant, out: &mut Segment) -> Option<Ecn> {
        if !std::mem::take(&mut self.syn_due) {
            return None;
        }
        self.sender.syn_sent(now);
        let answering = self.state == State::SynReceived;
        let mut flags = if answering { Flags::SYN.with(Flags::ACK) } else { Flags::SYN };
        if self.ecn {
            flags = flags.with(Flags::ECE);
            if !answering {
                flags = flags.with(Flags::CWR);
            }
        }
        let scaled = !answering || self.peer_scale.is_some();
        let mut options = OptionSummary::default();
        options.mss = Some(self.mss);
        options.window_scale = scaled.then(|| self.own_scale());
        options.sack_permitted = self.sack;
        options.timestamps = self.clock(now);
        let nxt = self.receiver.nxt;
        let window = self.receiver.window(nxt, false);
        let ack = if answering { self.irs + nxt as u32 } else { Seq(0) };
        *out = Segment { seq: self.iss, ack, window, flags, options, ..Segment::default() };
        Some(Ecn::NotEct)
    }

    fn data(
        &mut self,
        range: &Range,
        ack: u64,
        echo: bool,
        now: Instant,
        out: &mut Segment,
    ) -> Ecn {
        let mut flags = Flags::ACK;
        for (set, flag) in
            [(range.fin, Flags::FIN), (range.push, Flags::PSH), (range.cwr, Flags::CWR)]
        {
            if set {
                flags = flags.with(flag);
            }
        }
        self.write_header(range.start, ack, echo, flags, now, out);
        out.len = range.len;
        let mss = self.sender.mss();
        out.gso_size = if range.len > mss { mss as u16 } else { 0 };
        // Repetitions are not ECN-capable (RFC 3168 section 6.1.5), but with DCTCP they are.
        let capable = self.ecn && range.len > 0 && (!range.repeated || self.sender.counts_marks());
        if capable { Ecn::Ect } else { Ecn::NotEct }
    }

    fn pure_ack(&mut self, ack: u64, echo: bool, now: Instant, out: &mut Segment) {
        self.write_header(self.sender.nxt, ack, echo, Flags::ACK, now, out);
        let most = if self.timestamps { 3 } else { 4 };
        let (blocks, count) = self.receiver.blocks(if self.sack { most } else { 0 });
        if count > 0 {
            let at = |offset: u64| (self.irs + offset as u32).0;
            let blocks = blocks.map(|(l, r)| SackBlock { left: at(l), right: at(r) });
            out.options.set_sack_blocks(&blocks[..count]);
        }
    }

    /// Writes what all segments of an established connection have. `start` is the offset of its first byte.
    fn write_header(
        &mut self,
        start: u64,
        ack: u64,
        echo: bool,
        flags: Flags,
        now: Instant,
        out: &mut Segment,
    ) {
        let Segment { seq, ack: out_ack, len, window, flags: out_flags, gso_size, options } = out;
        *seq = self.iss + start as u32;
        *window = self.receiver.window(ack, true);
        *out_ack = self.irs + ack as u32;
        *out_flags = if echo && self.ecn { flags.with(Flags::ECE) } else { flags };
        (*len, *gso_size) = (0, 0);
        options.clear();
        options.timestamps = self.clock(now);
    }

    fn clock(&self, now: Instant) -> Option<Timestamps> {
        // Milliseconds, from 1 on: zero would look like no clock.
        let value = (now.as_nanos() / 1_000_000) as u32 + 1;
        self.timestamps.then_some(Timestamps { value, echo: self.ts_recent })
    }
}

/// The offset of a sequence number, nearest to one that is known.
fn unwrap(seq: Seq, first: Seq, near: u64) -> u64 {
    let distance = seq.0.wrapping_sub((first + near as u32).0) as i32;
    near.saturating_add_signed(i64::from(distance))
}
