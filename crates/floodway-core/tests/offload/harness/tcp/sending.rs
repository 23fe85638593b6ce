//! The sending half, after Linux: RACK-like and duplicate-ACK recovery, RTO, TLP, zero-window
//! probes, and a congestion window that a "managed" flow ignores.

use std::collections::VecDeque;

use floodway_core::time::{Duration, Instant};

use super::TcpConfig;
use crate::harness::packet::Position;

const MAX_RTO: Duration = Duration::from_secs(120);
/// Linux `TCP_RTO_MIN`, on which `tcp_retries2` counts.
const RTO_BASE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
struct Sent {
    end: Position,
    at: Instant,
    times: u32,
    sacked: bool,
    lost: bool,
}

/// What a sender had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retransmissions {
    pub segments: u64,
    pub timeouts: u64,
    pub tail_probes: u64,
    pub window_probes: u64,
}

/// What to send.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub start: Position,
    pub end: Position,
    pub again: bool,
}

#[derive(Debug)]
pub struct Sending {
    pub una: Position,
    pub nxt: Position,
    /// Right edge that the other side advertised.
    pub edge: Position,
    /// Behind the last byte that the application has written.
    pub written: Position,
    /// FIN follows it.
    pub closing: bool,
    pub managed: bool,
    pub cwnd: i64,
    ssthresh: i64,
    /// Recovery ends when this is acknowledged.
    recover: Option<Position>,
    /// It began with a timeout: slow start (RFC 5681 section 3.1).
    timed_out: bool,
    sent: VecDeque<Sent>,
    srtt: Option<Duration>,
    rttvar: Duration,
    min_rtt: Duration,
    backed_off: u32,
    rto_at: Instant,
    tlp_at: Instant,
    tlp_done: bool,
    reo_at: Instant,
    persist_at: Instant,
    /// Probes of a closed window, and those since the other side was heard.
    persist_backed_off: u32,
    probes: u32,
    dup_acks: u32,
    /// The latest transmission that is known to have arrived, and how long its answer took (RFC 8985 section 6.2).
    latest: Option<(Instant, Position)>,
    latest_rtt: Duration,
    pub counts: Retransmissions,
    pub cwr: bool,
    reduced_until: Position,
    /// Bytes acknowledged by ACKs with ECE: what DCTCP takes for marked.
    pub echoed_bytes: Position,
    /// Timeouts since there was progress.
    retries: u32,
    /// When the first segment was repeated of those that were then out (Linux `retrans_stamp`).
    first_repeat: Option<Instant>,
    /// The connection has timed out.
    pub gave_up: bool,
}

/// What an ACK says.
#[derive(Clone, Debug)]
pub struct Word<'a> {
    pub ack: Position,
    pub edge: Position,
    pub pure: bool,
    pub ece: bool,
    pub sacks: &'a [(Position, Position)],
    /// Round trip by timestamps.
    pub rtt: Option<Duration>,
}

impl Sending {
    pub fn new(config: &TcpConfig) -> Self {
        Self {
            una: 0,
            nxt: 0,
            edge: 0,
            written: 1,
            closing: false,
            managed: false,
            cwnd: i64::from(config.initial_window) * i64::from(config.mss),
            ssthresh: i64::MAX,
            recover: None,
            timed_out: false,
            sent: VecDeque::new(),
            srtt: None,
            rttvar: Duration::ZERO,
            min_rtt: Duration::MAX,
            backed_off: 0,
            rto_at: Instant::NEVER,
            tlp_at: Instant::NEVER,
            tlp_done: false,
            reo_at: Instant::NEVER,
            persist_at: Instant::NEVER,
            persist_backed_off: 0,
            probes: 0,
            dup_acks: 0,
            latest: None,
            latest_rtt: Duration::ZERO,
            counts: Retransmissions::default(),
            cwr: false,
            reduced_until: 0,
            echoed_bytes: 0,
            retries: 0,
            first_repeat: None,
            gave_up: false,
        }
    }

    /// Behind everything that is to be sent.
    pub fn end(&self) -> Position {
        self.written + i64::from(self.closing)
    }

    pub fn is_done(&self) -> bool {
        self.una == self.end()
    }

    fn rto(&self, config: &TcpConfig) -> Duration {
        // As Linux: at least 200 ms on top of srtt.
        let base = self
            .srtt
            .map_or(Duration::from_secs(1), |srtt| srtt + (self.rttvar * 4).max(config.min_rto));
        base.saturating_mul(1 << self.backed_off.min(12)).min(MAX_RTO)
    }

    fn in_flight(&self) -> i64 {
        let mut start = self.una;
        let mut bytes = 0;
        for sent in &self.sent {
            if !sent.sacked && !sent.lost {
                bytes += sent.end - start;
            }
            start = sent.end;
        }
        bytes
    }

    fn start_of(&self, index: usize) -> Position {
        index.checked_sub(1).map_or(self.una, |before| self.sent[before].end)
    }

    /// The next range to send, noted as sent.
    pub fn next_range(&mut self, config: &TcpConfig, now: Instant) -> Option<Range> {
        let mss = i64::from(config.mss);
        let cwnd = if self.managed { i64::MAX / 2 } else { self.cwnd };
        let room = cwnd - self.in_flight();
        // As Linux: behind a window that has shrunk, only the first is repeated.
        if let Some(index) = self.sent.iter().position(|s| s.lost)
            && (index == 0 || self.start_of(index) < self.edge)
            && (room >= mss || self.in_flight() == 0)
        {
            return Some(self.again(index, mss, now));
        }
        let left = (self.end() - self.nxt).min(i64::from(config.gso));
        let n = left.min(self.edge - self.nxt).min(room);
        // No runts, unless it is the last of it.
        let n = if n < self.end() - self.nxt { n - n % mss } else { n };
        if n <= 0 {
            self.arm(config, now);
            return None;
        }
        let start = self.nxt;
        self.nxt += n;
        self.sent.push_back(Sent { end: self.nxt, at: now, times: 1, sacked: false, lost: false });
        self.arm(config, now);
        Some(Range { start, end: self.nxt, again: false })
    }

    /// How long `tcp_retries2` lasts (Linux `tcp_model_timeout`).
    fn patience(retries2: u32) -> Duration {
        let doublings = (MAX_RTO.as_millis() / RTO_BASE.as_millis()).ilog2();
        let first = retries2.min(doublings);
        MAX_RTO.saturating_mul(retries2 - first).saturating_add(RTO_BASE * ((2 << first) - 1))
    }

    /// The timer has run out: whether that is the last time (Linux `tcp_write_timeout`).
    fn has_timed_out(&self, config: &TcpConfig, now: Instant) -> bool {
        let since = self.first_repeat.map_or(Duration::ZERO, |first| now.since(first));
        self.retries > 0 && since >= Self::patience(config.retries2)
    }

    /// The timer has run out: for the how manieth time in a row.
    pub fn retries_with_timeout(&self, now: Instant) -> Option<u32> {
        (self.rto_at <= now && self.tlp_at > now).then_some(self.retries + 1)
    }

    fn again(&mut self, index: usize, mss: i64, now: Instant) -> Range {
        self.first_repeat = self.first_repeat.or(Some(now));
        let start = self.start_of(index);
        let end = self.sent[index].end.min(start + mss);
        self.split(end);
        let sent = &mut self.sent[index];
        sent.at = now;
        sent.times += 1;
        sent.lost = false;
        self.counts.segments += 1;
        Range { start, end, again: true }
    }

    /// Lets a record end at `at`.
    fn split(&mut self, at: Position) {
        let mut start = self.una;
        for index in 0..self.sent.len() {
            let sent = self.sent[index];
            if start < at && at < sent.end {
                self.sent.insert(index, Sent { end: at, ..sent });
                return;
            }
            start = sent.end;
        }
    }

    fn arm(&mut self, config: &TcpConfig, now: Instant) {
        if self.sent.is_empty() {
            self.rto_at = Instant::NEVER;
            self.tlp_at = Instant::NEVER;
            let waits = self.nxt < self.end();
            if waits && self.persist_at == Instant::NEVER {
                let wait = self.rto(config).saturating_mul(1 << self.persist_backed_off.min(12));
                self.persist_at = now + wait.min(MAX_RTO);
            } else if !waits {
                self.persist_at = Instant::NEVER;
            }
            return;
        }
        self.persist_at = Instant::NEVER;
        if self.rto_at == Instant::NEVER {
            self.rto_at = now + self.rto(config);
        }
        if config.tlp && !self.tlp_done && self.recover.is_none() {
            let wait = self.srtt.map_or(Duration::from_secs(1), |srtt| srtt * 2);
            self.tlp_at = now + wait + Duration::from_millis(2);
        }
    }

    pub fn next(&self) -> Instant {
        self.rto_at.min(self.tlp_at).min(self.persist_at).min(self.reo_at)
    }

    /// What a timer wants to be sent at once: a range, or a probe of the window (empty range).
    pub fn on_time(&mut self, config: &TcpConfig, now: Instant) -> Option<Range> {
        let mss = i64::from(config.mss);
        if self.reo_at <= now {
            self.find_lost(config, now);
            self.begin_recovery(mss);
            return None;
        }
        if self.tlp_at <= now {
            self.tlp_at = Instant::NEVER;
            self.tlp_done = true;
            self.rto_at = now + self.rto(config);
            self.counts.tail_probes += 1;
            let start = self.nxt - (self.nxt - self.una).min(mss);
            return Some(Range { start, end: self.nxt, again: true });
        }
        if self.rto_at <= now {
            if self.has_timed_out(config, now) {
                self.gave_up = true;
                return None;
            }
            self.counts.timeouts += 1;
            self.retries += 1;
            self.backed_off += 1;
            self.rto_at = now + self.rto(config);
            self.ssthresh = (self.in_flight() / 2).max(2 * mss);
            self.cwnd = mss;
            for sent in &mut self.sent {
                // Whoever holds nothing but SACKed bytes for so long may have been reneged on.
                sent.sacked = false;
                sent.lost = true;
            }
            self.recover = Some(self.nxt);
            self.timed_out = true;
            let head = self.sent.iter().position(|s| s.lost)?;
            return Some(self.again(head, mss, now));
        }
        if self.persist_at <= now {
            self.persist_at = Instant::NEVER;
            self.counts.window_probes += 1;
            let n = (self.edge - self.nxt).min(self.end() - self.nxt).clamp(0, mss);
            if n > 0 {
                let start = self.nxt;
                self.nxt += n;
                let end = self.nxt;
                self.sent.push_back(Sent { end, at: now, times: 1, sacked: false, lost: false });
                self.arm(config, now);
                return Some(Range { start, end, again: false });
            }
            if self.probes >= config.retries2 {
                self.gave_up = true;
                return None;
            }
            self.probes += 1;
            self.persist_backed_off += 1;
            self.arm(config, now);
            return Some(Range { start: self.una - 1, end: self.una - 1, again: true });
        }
        None
    }

    /// Takes in an ACK that is not ahead of what was sent.
    pub fn on_ack(&mut self, word: &Word<'_>, config: &TcpConfig, now: Instant) {
        if word.ack < self.una {
            return;
        }
        self.probes = 0;
        let opens = word.edge != self.edge;
        if word.ack > self.una || word.edge > self.edge {
            self.edge = word.edge;
        }
        if self.edge > self.nxt {
            self.persist_backed_off = 0;
        }
        let mss = i64::from(config.mss);
        let advanced = word.ack - self.una;
        if advanced > 0 && word.ece {
            self.echoed_bytes += advanced;
        }
        if advanced > 0 {
            self.advance(word, config, now);
        } else if word.pure && !self.sent.is_empty() && !opens {
            self.dup_acks += 1;
        }
        for &(left, right) in word.sacks {
            self.mark(left.max(self.una), right, now);
        }
        if config.sack {
            self.find_lost(config, now);
        } else if self.dup_acks == 3 || (advanced > 0 && self.recover.is_some()) {
            let end = (self.una + mss).min(self.nxt);
            self.split(end);
            if let Some(first) = self.sent.front_mut()
                && (first.times == 1 || advanced > 0)
            {
                first.lost = true;
            }
        }
        let lost = self.sent.iter().any(|s| s.lost);
        if self.recover.is_some_and(|recover| self.una >= recover) {
            (self.recover, self.timed_out) = (None, false);
            self.first_repeat = None;
            self.cwnd = self.cwnd.max(self.ssthresh.min(1 << 30));
        }
        if lost && self.recover.is_none() {
            self.begin_recovery(mss);
        } else if word.ece && config.ecn && self.una > self.reduced_until {
            self.reduce(mss);
            self.cwr = true;
        } else if advanced > 0 && (self.recover.is_none() || self.timed_out) {
            self.grow(advanced, mss);
        }
        if self.sent.is_empty() {
            self.arm(config, now);
        }
    }

    fn begin_recovery(&mut self, mss: i64) {
        if self.recover.is_none() && self.sent.iter().any(|sent| sent.lost) {
            self.reduce(mss);
            self.recover = Some(self.nxt);
        }
    }

    fn grow(&mut self, advanced: i64, mss: i64) {
        let step = if self.timed_out {
            // An ACK may jump over what had arrived before.
            advanced.min(mss).min((self.ssthresh - self.cwnd).max(0))
        } else if self.cwnd < self.ssthresh {
            advanced
        } else {
            advanced * mss / self.cwnd.max(1)
        };
        self.cwnd = (self.cwnd + step).min(1 << 30);
    }

    /// Everything under way is sent again.
    pub fn lose_all(&mut self) {
        for sent in self.sent.iter_mut().filter(|sent| !sent.sacked) {
            sent.lost = true;
        }
    }

    fn reduce(&mut self, mss: i64) {
        self.ssthresh = (self.in_flight() / 2).max(2 * mss);
        self.cwnd = self.ssthresh;
        self.reduced_until = self.nxt;
    }

    fn advance(&mut self, word: &Word<'_>, config: &TcpConfig, now: Instant) {
        let (mut measured, mut repaired, mut whole) = (None, false, false);
        self.dup_acks = 0;
        self.retries = 0;
        while let Some(first) = self.sent.front().copied() {
            if first.end > word.ack {
                break;
            }
            self.sent.pop_front();
            whole = true;
            self.una = first.end;
            self.arrived(first, now);
            repaired |= first.times > 1;
            if measured.is_none() && first.times == 1 && !first.sacked {
                measured = Some(now.since(first.at));
            }
        }
        whole |= word.ack - self.una >= i64::from(config.mss);
        self.una = word.ack;
        self.nxt = self.nxt.max(self.una);
        if !whole {
            // As Linux: less than a segment neither measures a round trip nor restarts a timer.
            return;
        }
        self.tlp_done = false;
        // What a repair has freed along with itself had arrived long before.
        if let Some(rtt) = measured.filter(|_| !repaired).or(word.rtt) {
            self.sample(rtt);
            self.backed_off = 0;
        }
        self.rto_at = Instant::NEVER;
        self.tlp_at = Instant::NEVER;
        self.arm(config, now);
    }

    pub fn sample(&mut self, rtt: Duration) {
        self.min_rtt = self.min_rtt.min(rtt);
        match self.srtt {
            None => {
                self.srtt = Some(rtt);
                self.rttvar = rtt / 2;
            }
            Some(srtt) => {
                self.rttvar = (self.rttvar * 3 + srtt.abs_diff(rtt)) / 4;
                self.srtt = Some((srtt * 7 + rtt) / 8);
            }
        }
    }

    fn arrived(&mut self, sent: Sent, now: Instant) {
        if sent.times > 1 && now.since(sent.at) < self.min_rtt {
            return;
        }
        let arrived = Some((sent.at, sent.end));
        if arrived > self.latest {
            (self.latest, self.latest_rtt) = (arrived, now.since(sent.at));
        }
    }

    fn mark(&mut self, left: Position, right: Position, now: Instant) {
        if left >= right {
            return;
        }
        self.split(left);
        self.split(right);
        let mut start = self.una;
        for index in 0..self.sent.len() {
            let sent = self.sent[index];
            if left <= start && sent.end <= right && !sent.sacked {
                self.sent[index].sacked = true;
                self.sent[index].lost = false;
                self.arrived(sent, now);
            }
            start = sent.end;
        }
    }

    /// RACK with a reordering window of a quarter of the smallest round trip.
    fn find_lost(&mut self, config: &TcpConfig, now: Instant) {
        self.reo_at = Instant::NEVER;
        let Some(latest) = self.latest else { return };
        let patience = self.latest_rtt + self.min_rtt.min(Duration::from_secs(1)) / 4;
        for sent in &mut self.sent {
            if sent.sacked || sent.lost || (sent.at, sent.end) >= latest {
                continue;
            }
            if sent.at + patience <= now {
                sent.lost = true;
            } else if config.reo_timer {
                self.reo_at = self.reo_at.min(sent.at + patience);
            }
        }
    }
}
