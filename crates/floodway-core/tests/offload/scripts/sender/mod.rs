//! The guest of an exchange: a plain TCP sender by the letter of the RFCs.
//!
//! It knows nothing of the offload but what a guest with the module does: while a flow is managed, its
//! own congestion window does not bind. Written from the RFCs and independent of `floodway_core`:
//! - growth: RFC 5681 section 3.1 with byte counting (RFC 3465) and no limit for an ACK, as Linux, and in slow start if more than half of `cwnd` was
//!   in flight in the round trip;
//! - loss: three duplicate ACKs (RFC 5681), `IsLost` of RFC 6675 with SACK, partial ACKs (RFC 6582),
//!   limited transmit (RFC 3042); `cwnd` in recovery by PRR (RFC 6937), SSRB;
//! - timeout: RFC 6298, its minimum set by the row; tail loss probe with SACK: RFC 8985 section 7;
//! - restart after idle time: RFC 5681 section 4.1; ECN: RFC 3168 section 6.1;
//! - windows: persist timer and sender's avoidance of silly windows, RFC 9293 section 3.8.6.
//!
//! Timers: retransmission, tail loss probe, persist.

mod acks;

use std::collections::VecDeque;

use floodway_core::offload::{Ecn, Segment};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;

use super::row::{GUEST_ISN, PEER_ISN, Setup, Timestamps};
use crate::harness::packet::{Packet, unwrap};

/// Delay that an ACK of a lone segment may have (RFC 8985 section 7.2, `TLP.max_ack_delay`).
const MAX_ACK_DELAY: Duration = Duration::from_millis(200);
const MAX_RTO: Duration = Duration::from_secs(60);
const DUP_THRESH: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Sent {
    start: i64,
    end: i64,
    at: Instant,
    pushed: bool,
    repeated: bool,
    sacked: bool,
    lost: bool,
}

/// Fast recovery (RFC 6582, 6675), with `cwnd` by RFC 6937.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    until: i64,
    flight: i64,
    delivered: i64,
    out: i64,
    /// Bytes sent again that no DSACK has shown to be needless, and the window to go back to.
    needed: i64,
    undo: Option<(i64, i64)>,
}

#[derive(Debug)]
pub struct Sender {
    mss: i64,
    scale: u8,
    initial_window: i64,
    min_rto: Duration,
    sack: bool,
    ecn: bool,
    clock: Option<u32>,
    pub managed: bool,
    una: i64,
    nxt: i64,
    edge: i64,
    largest_window: i64,
    written: i64,
    closing: bool,
    rcv_nxt: i64,
    window: u16,
    cwnd: i64,
    ssthresh: i64,
    acked_in_avoidance: i64,
    /// Most bytes in flight in a round trip, which ends when the second number is acknowledged.
    most_in_flight: (i64, i64),
    sent: VecDeque<Sent>,
    dup_acks: usize,
    recovery: Option<Recovery>,
    /// After a timeout until this is acknowledged.
    loss_until: Option<i64>,
    reduced_until: i64,
    cwr: bool,
    srtt: Option<Duration>,
    rttvar: Duration,
    backed_off: u32,
    rto_at: Instant,
    probe_at: Instant,
    probed: bool,
    /// A probe repeated a segment, and its answer has not come.
    probe_end: Option<i64>,
    persist_at: Instant,
    last_sent: Instant,
    echo: u32,
    out: Vec<Packet>,
}

impl Sender {
    /// An established connection without a measured round trip.
    pub fn new(setup: &Setup) -> Self {
        let options = if setup.timestamps { 12 } else { 0 };
        // RFC 6691: the options come out of the MSS.
        let mss = i64::from(setup.mss.min(setup.peer_mss.unwrap_or(setup.mss))) - options;
        let scale = setup.peer_scale.unwrap_or(setup.scale).filter(|_| setup.scale.is_some());
        let segments = i64::from(setup.initial_window) * mss;
        // RFC 6928 section 2.
        let initial_window = segments.min((2 * mss).max(14_600));
        Self {
            mss,
            scale: scale.unwrap_or(0).min(14),
            initial_window,
            min_rto: setup.min_rto,
            sack: setup.sack,
            ecn: setup.ecn,
            clock: setup.timestamps.then_some(0),
            managed: false,
            una: 1,
            nxt: 1,
            edge: 1,
            largest_window: 0,
            written: 1,
            closing: false,
            rcv_nxt: 1,
            window: setup.window,
            cwnd: initial_window,
            ssthresh: i64::MAX,
            acked_in_avoidance: 0,
            most_in_flight: (0, 0),
            sent: VecDeque::new(),
            dup_acks: 0,
            recovery: None,
            loss_until: None,
            reduced_until: 0,
            cwr: false,
            srtt: None,
            rttvar: Duration::ZERO,
            backed_off: 0,
            rto_at: Instant::NEVER,
            probe_at: Instant::NEVER,
            probed: false,
            probe_end: None,
            persist_at: Instant::NEVER,
            last_sent: Instant::NEVER,
            echo: 0,
            out: Vec::new(),
        }
    }

    pub fn take_out(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.out)
    }

    pub fn next(&self) -> Instant {
        self.rto_at.min(self.probe_at).min(self.persist_at)
    }

    pub fn write(&mut self, bytes: u32, now: Instant) {
        let idle = self.sent.is_empty() && self.last_sent != Instant::NEVER;
        if idle && now.since(self.last_sent) > self.rto() {
            self.cwnd = self.cwnd.min(self.initial_window);
        }
        self.written += i64::from(bytes);
        self.transmit(now);
    }

    pub fn close(&mut self, now: Instant) {
        self.closing = true;
        self.transmit(now);
    }

    /// RFC 1191 section 6.5: what was too large is sent again, smaller, and nothing else changes.
    pub fn too_big(&mut self, seq: i64, mss: i64, now: Instant) {
        // RFC 5927 section 7.2; RFC 8201 section 4.
        if seq < self.una || seq >= self.nxt || mss >= self.mss {
            return;
        }
        self.mss = mss;
        let whole: Vec<_> = self.sent.drain(..).collect();
        for sent in whole {
            let mut start = sent.start;
            while start < sent.end {
                let end = sent.end.min(start + mss);
                let lost = sent.end - sent.start > mss && !sent.sacked;
                let pushed = sent.pushed && end == sent.end;
                self.sent.push_back(Sent { start, end, pushed, lost, ..sent });
                start = end;
            }
        }
        self.transmit(now);
    }

    /// RFC 6298 section 2.
    pub fn sample(&mut self, rtt: Duration) {
        let Some(srtt) = self.srtt else {
            (self.srtt, self.rttvar) = (Some(rtt), rtt / 2);
            return;
        };
        self.rttvar = (self.rttvar * 3 + srtt.abs_diff(rtt)) / 4;
        self.srtt = Some((srtt * 7 + rtt) / 8);
    }

    fn rto(&self) -> Duration {
        // RFC 6298 section 5.7: there is no sample yet since the SYN was lost.
        let first = Duration::from_secs(3);
        let rto = self.srtt.map_or(first, |srtt| srtt + self.rttvar * 4).max(self.min_rto);
        (rto * (1 << self.backed_off.min(10))).min(MAX_RTO)
    }

    fn end(&self) -> i64 {
        self.written + i64::from(self.closing)
    }

    /// RFC 6675 section 4, `SetPipe`; without SACK a duplicate ACK stands for a segment.
    fn pipe(&self) -> i64 {
        let out = self.sent.iter().filter(|s| !s.sacked && !s.lost);
        let bytes: i64 = out.map(|s| s.end - s.start).sum();
        if self.sack { bytes } else { (bytes - self.dup_acks as i64 * self.mss).max(0) }
    }

    fn transmit(&mut self, now: Instant) {
        let cwnd = if self.managed { i64::MAX } else { self.cwnd };
        while let Some(index) = self.sent.iter().position(|s| s.lost) {
            let len = self.sent[index].end - self.sent[index].start;
            let first = self.recovery.is_some_and(|r| r.out == 0);
            if !first && self.pipe() + len > cwnd && self.pipe() > 0 {
                break;
            }
            self.repeat(index, now);
        }
        while let Some(len) = self.next_len(cwnd) {
            self.send_new(len, now);
        }
        self.arm(now);
    }

    /// Bytes of the next new segment (RFC 9293 section 3.8.6.2.1).
    fn next_len(&self, cwnd: i64) -> Option<i64> {
        let waiting = self.end() - self.nxt;
        let usable = (self.edge - self.nxt).min(cwnd.saturating_sub(self.pipe()));
        let len = waiting.min(self.mss);
        let (whole, rest) = (usable >= self.mss, usable >= waiting);
        if waiting <= 0 || usable <= 0 {
            return None;
        }
        let half = self.edge - self.nxt < self.mss && usable >= self.largest_window / 2;
        if whole || rest {
            // The FIN takes a number, but no room in the segment.
            let with_fin = rest && self.closing && waiting == self.mss + 1;
            return Some(len + i64::from(with_fin));
        }
        half.then_some(usable)
    }

    fn send_new(&mut self, len: i64, now: Instant) {
        let (start, end) = (self.nxt, self.nxt + len);
        self.nxt = end;
        let pushed = end >= self.written;
        let (repeated, sacked, lost) = (false, false, false);
        self.sent.push_back(Sent { start, end, at: now, pushed, repeated, sacked, lost });
        self.last_sent = now;
        let (flight, (most, until)) = (self.pipe(), self.most_in_flight);
        if flight > most || self.una >= until {
            self.most_in_flight = (flight, end);
        }
        self.emit(start, end, pushed, false, now);
        if let Some(recovery) = &mut self.recovery {
            recovery.out += len;
        }
    }

    fn repeat(&mut self, index: usize, now: Instant) {
        let sent = &mut self.sent[index];
        (sent.lost, sent.repeated, sent.at) = (false, true, now);
        let Sent { start, end, pushed, .. } = *sent;
        if index == 0 {
            self.rto_at = now + self.rto();
        }
        self.emit(start, end, pushed, true, now);
        if let Some(recovery) = &mut self.recovery {
            recovery.out += end - start;
            recovery.needed += end - start;
        }
    }

    fn segment(&self, at: i64, now: Instant) -> Segment {
        let mut segment = Segment {
            seq: Seq(GUEST_ISN.wrapping_add(at as u32)),
            ack: Seq(PEER_ISN.wrapping_add(self.rcv_nxt as u32)),
            window: self.window,
            flags: Flags::ACK,
            ..Segment::default()
        };
        let echo = self.echo;
        segment.options.timestamps = self.clock.map(|_| Timestamps { value: clock(now), echo });
        segment
    }

    fn emit(&mut self, start: i64, end: i64, pushed: bool, again: bool, now: Instant) {
        let mut segment = self.segment(start, now);
        let fin = end > self.written;
        segment.len = (end - start - i64::from(fin)) as u32;
        if fin {
            segment.flags = segment.flags.with(Flags::FIN);
        }
        if pushed && segment.len > 0 {
            segment.flags = segment.flags.with(Flags::PSH);
        }
        if self.ecn && !again && segment.len > 0 {
            segment.ecn = Ecn(2);
            if std::mem::take(&mut self.cwr) {
                segment.flags = segment.flags.with(Flags::CWR);
            }
        }
        self.out.push(Packet { segment, at: start });
    }

    fn arm(&mut self, now: Instant) {
        if self.sent.is_empty() {
            (self.rto_at, self.probe_at) = (Instant::NEVER, Instant::NEVER);
            let waits = self.end() > self.nxt;
            if !waits {
                self.persist_at = Instant::NEVER;
            } else if self.persist_at == Instant::NEVER {
                self.persist_at = now + self.rto();
            }
            return;
        }
        self.persist_at = Instant::NEVER;
        if self.rto_at == Instant::NEVER {
            self.rto_at = now + self.rto();
        }
        self.arm_probe(now);
    }

    /// RFC 8985 section 7.2: from the latest transmission or ACK on.
    fn arm_probe(&mut self, now: Instant) {
        let quiet = self.recovery.is_none() && self.loss_until.is_none();
        let sacked = self.sent.iter().any(|s| s.sacked);
        self.probe_at = match self.srtt {
            Some(srtt) if self.sack && quiet && !sacked && !self.probed => {
                let lone = self.pipe() <= self.mss;
                let wait = srtt * 2 + if lone { MAX_ACK_DELAY } else { Duration::from_millis(2) };
                (now + wait).min(self.rto_at)
            }
            _ => Instant::NEVER,
        };
    }

    pub fn on_time(&mut self, now: Instant) {
        if self.probe_at <= now {
            self.probe_tail(now);
        } else if self.rto_at <= now {
            self.time_out(now);
        } else if self.persist_at <= now {
            self.probe_window(now);
        }
    }

    fn probe_tail(&mut self, now: Instant) {
        (self.probed, self.probe_at) = (true, Instant::NEVER);
        self.rto_at = now + self.rto();
        let new = (self.end() - self.nxt).min(self.mss);
        if new > 0 && self.nxt + new <= self.edge {
            self.send_new(new, now);
            return self.arm(now);
        }
        let last = self.sent.len() - 1;
        let index = (0..=last).rev().find(|&i| !self.sent[i].sacked).unwrap_or(last);
        let Sent { start, end, pushed, .. } = self.sent[index];
        (self.sent[index].repeated, self.sent[index].at) = (true, now);
        self.probe_end = Some(self.nxt);
        self.emit(start, end, pushed, true, now);
        self.arm(now);
    }

    /// RFC 6298 section 5.4 to 5.6, RFC 5681 section 3.1 equation 4.
    fn time_out(&mut self, now: Instant) {
        if self.backed_off == 0 {
            self.ssthresh = ((self.nxt - self.una) / 2).max(2 * self.mss);
        }
        (self.cwnd, self.backed_off) = (self.mss, self.backed_off + 1);
        self.recovery = None;
        self.loss_until = Some(self.nxt);
        self.dup_acks = 0;
        for sent in &mut self.sent {
            // RFC 2018 section 8: what was SACKed may have been dropped.
            (sent.sacked, sent.lost) = (false, true);
        }
        self.probe_at = Instant::NEVER;
        self.transmit(now);
    }

    /// RFC 9293 section 3.8.6.1; the segment of Linux: no payload, an old number.
    fn probe_window(&mut self, now: Instant) {
        let len = (self.edge - self.nxt).min(self.end() - self.nxt);
        if len > 0 {
            // The override timeout of silly window avoidance.
            self.persist_at = Instant::NEVER;
            self.send_new(len, now);
            return self.arm(now);
        }
        let segment = self.segment(self.una - 1, now);
        self.out.push(Packet { segment, at: self.una - 1 });
        self.backed_off += 1;
        self.persist_at = now + self.rto();
    }

    pub fn on_packet(&mut self, packet: &Packet, now: Instant) {
        let segment = &packet.segment;
        let start = unwrap(self.rcv_nxt, PEER_ISN, segment.seq);
        if let Some(timestamps) = segment.options.timestamps {
            self.echo = timestamps.value;
        }
        if segment.has(Flags::ACK) {
            self.on_ack(segment, now);
        }
        let len = i64::from(segment.len) + i64::from(segment.has(Flags::FIN));
        if len > 0 && !segment.has(Flags::SYN) {
            if start <= self.rcv_nxt {
                self.rcv_nxt = self.rcv_nxt.max(start + len);
            }
            let ack = Packet { segment: self.segment(self.nxt, now), at: self.nxt };
            self.out.push(ack);
        }
    }
}

/// The guest's clock, in milliseconds.
pub fn clock(now: Instant) -> u32 {
    1000 + (now.as_nanos() / 1_000_000) as u32 - 10_000
}
