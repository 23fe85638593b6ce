//! The sending half of a connection.
//!
//! # Theory of operation
//! **States.** *Open*; *recovery*, from the detection of a loss until everything is acknowledged that had been sent
//! by then; *loss*, the same after a timeout.
//!
//! **Detection.** With SACK by the scoreboard (RFC 6675), or by three duplicate ACKs, so that few large losses are
//! found, too. Without SACK by three duplicates; each stands for one segment that has left the network, which
//! makes the arithmetic of `pipe` the same. A partial ACK then means that the next segment is lost (RFC 6582),
//! or ends recovery (Reno).
//!
//! **What may be sent**: lost segments first, then new ones, then, in recovery with SACK, doubtful ones (RFC 6675, `NextSeg`
//! rules 3 and 4: at the end of a transfer too little comes after a loss to prove it), while `pipe` leaves room in `cwnd` (set by PRR in
//! recovery), the peer's window and the send buffer have room. Duplicates shrink `pipe`, so limited
//! transmit (RFC 3042) needs no rule of its own. A piece that is smaller than an MSS for want of window waits
//! while anything is outstanding (silly-window avoidance). Who makes super-frames waits for them: until a third of the window
//! or a whole super-frame may go (Linux, `tcp_tso_should_defer`). So a transfer that is clocked by ACKs sends large ones.
//!
//! **Timer.** Runs while anything is outstanding, is set anew by each advance of `snd_una`, doubles at each expiry. With
//! a zero window and nothing outstanding it sends a probe of one byte instead.
//!
//! **Managed.** While a switch controls the flow, neither the congestion window nor a send buffer that is sized after
//! it binds what is sent, whatever happens to it; it goes on growing and shrinking as a shadow, and binds again when
//! the flow is not managed any more, or when the switch has not said hello for too long.

use std::ops::AddAssign;

use floodway_core::congestion::{Ack, Algorithm, Congestion, Controller, PartialAck, Prr, Window};
use floodway_core::rtt::RttEstimator;
use floodway_core::seq::Seq;

use super::config::TcpConfig;
use super::scoreboard::{News, Scoreboard};
use crate::{Duration, Instant};

const DUP_THRESH: u32 = 3;
/// The part of a window that a super-frame waits for at most (Linux, `tcp_tso_win_divisor`).
const TSO_WIN_DIVISOR: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Recovery { point: u64 },
    Loss { point: u64 },
}

/// What a sender has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Segments sent again.
    pub retransmissions: u64,
    /// Times at which fast recovery began.
    pub recoveries: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u64,
    /// Reductions because of marks.
    pub marks: u64,
}

impl AddAssign for SenderStats {
    fn add_assign(&mut self, other: Self) {
        self.retransmissions += other.retransmissions;
        self.recoveries += other.recoveries;
        self.timeouts += other.timeouts;
        self.marks += other.marks;
    }
}

/// A range of the stream to send: `start` is where its first byte, or the SYN, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub start: u64,
    /// Bytes of payload.
    pub len: u32,
    /// The FIN follows.
    pub fin: bool,
    /// Reaches the end of what the application has written.
    pub push: bool,
    /// Announces a reduction of the window (CWR).
    pub cwr: bool,
    /// Was sent before.
    pub repeated: bool,
}

/// What an incoming segment says to the sending half.
#[derive(Clone, Debug)]
pub(super) struct Feedback<'a> {
    pub ack: u64,
    /// The right edge of the peer's window.
    pub right_edge: u64,
    /// SACK blocks as offsets.
    pub sack: &'a [(u64, u64)],
    pub ece: bool,
    /// It has payload, SYN or FIN: then it is no duplicate ACK.
    pub has_data: bool,
}

/// The sending half.
#[derive(Clone, Debug)]
pub struct Sender {
    config: TcpConfig,
    mss: u32,
    window: Window,
    controller: Controller,
    prr: Option<Prr>,
    phase: Phase,
    pub(super) una: u64,
    pub(super) nxt: u64,
    /// Behind the last byte that the application has written.
    end: u64,
    fin: bool,
    right_edge: u64,
    largest_window: u64,
    board: Scoreboard,
    sack: bool,
    dupacks: u32,
    /// Without SACK: bytes that duplicates stand for.
    presumed: u32,
    rtt: RttEstimator,
    timer: Instant,
    /// `snd_nxt` when the congestion window last kept something back.
    limited_at: u64,
    /// The recovery point at the time of the last rescue retransmission.
    rescued: u64,
    last_sent: Instant,
    cwr: bool,
    managed: bool,
    hello_until: Instant,
    /// Managed by a switch that is alive, as of the last look.
    floods: bool,
    /// Expiries since anything was heard.
    unheard: u8,
    stats: SenderStats,
}

impl Sender {
    pub(super) fn new(config: &TcpConfig) -> Self {
        let mss = u32::from(config.mss);
        Self {
            config: *config,
            mss,
            window: Window::new(mss, config.initial_window.saturating_mul(mss)),
            controller: Controller::with_hystart(config.algorithm, config.hystart),
            prr: None,
            phase: Phase::Open,
            una: 0,
            nxt: 0,
            end: 1,
            fin: false,
            right_edge: 1,
            largest_window: 0,
            board: Scoreboard::default(),
            sack: false,
            dupacks: 0,
            presumed: 0,
            rtt: RttEstimator::new(),
            timer: Instant::NEVER,
            limited_at: 0,
            rescued: 0,
            last_sent: Instant::ZERO,
            cwr: false,
            managed: false,
            hello_until: Instant::ZERO,
            floods: false,
            unheard: 0,
            stats: SenderStats::default(),
        }
    }

    /// Congestion window and threshold.
    #[must_use]
    pub const fn window(&self) -> &Window {
        &self.window
    }

    /// Smoothed round trip.
    #[must_use]
    pub fn srtt(&self) -> Option<Duration> {
        self.rtt.srtt()
    }

    /// What it has done.
    #[must_use]
    pub const fn stats(&self) -> &SenderStats {
        &self.stats
    }

    /// Bytes of the application that the peer has acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.una.min(self.end).saturating_sub(1)
    }

    /// Bytes that the application has written and the peer has not acknowledged.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.end.saturating_sub(self.una.max(1))
    }

    /// Bytes sent and not acknowledged.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        (self.nxt - self.una) as u32
    }

    pub(super) fn write(&mut self, bytes: u64) {
        if !self.fin {
            self.end += bytes;
        }
    }

    pub(super) fn finish(&mut self) {
        self.fin = true;
    }

    pub(super) fn set_managed(&mut self, managed: bool) {
        self.managed = managed;
    }

    pub(super) fn set_hello(&mut self, until: Instant) {
        self.hello_until = until;
    }

    pub(super) const fn mss(&self) -> u32 {
        self.mss
    }

    pub(super) fn is_dctcp(&self) -> bool {
        self.config.algorithm == Algorithm::Dctcp
    }

    pub(super) fn fin_sent(&self) -> bool {
        self.fin && self.nxt > self.end
    }

    pub(super) fn fin_acknowledged(&self) -> bool {
        self.fin && self.una > self.end
    }

    pub(super) const fn timer(&self) -> Instant {
        self.timer
    }

    /// A SYN was sent. It is not part of the scoreboard: its timeout has rules of its own.
    pub(super) fn syn_sent(&mut self, now: Instant) {
        self.nxt = 1;
        let doubled = 1_u32.checked_shl(u32::from(self.rtt.backed_off())).unwrap_or(u32::MAX);
        let timeout = self.config.syn_rto.saturating_mul(doubled).min(self.config.rto.max);
        self.timer = now + timeout;
        self.last_sent = now;
    }

    pub(super) fn syn_timeout(&mut self) {
        self.stats.timeouts += 1;
        self.unheard = self.unheard.saturating_add(1);
        self.rtt.back_off();
        self.timer = Instant::NEVER;
    }

    /// The SYN was acknowledged: what was negotiated holds from now on.
    pub(super) fn established(&mut self, mss: u32, sack: bool, right_edge: u64, now: Instant) {
        self.mss = mss.max(1);
        let segments = if self.rtt.backed_off() > 0 { 1 } else { self.config.initial_window };
        self.window = Window::new(self.mss, segments.saturating_mul(self.mss));
        self.sack = sack;
        self.una = 1;
        self.see_edge(1, right_edge);
        if self.rtt.backed_off() == 0 {
            self.rtt.sample(now.since(self.last_sent), now);
        }
        self.rtt.reset_back_off();
        self.timer = Instant::NEVER;
    }

    pub(super) fn gave_up(&self) -> bool {
        self.unheard > self.config.retries
    }

    pub(super) fn on_ack(&mut self, feedback: &Feedback<'_>, now: Instant) {
        self.unheard = 0;
        let una = self.una;
        if feedback.ack > self.nxt || feedback.ack < una {
            return;
        }
        let outstanding = self.outstanding();
        let pipe = self.pipe();
        let mut news = News::default();
        self.board.acknowledge(feedback.ack, &mut news);
        self.una = feedback.ack;
        if self.sack {
            feedback.sack.iter().for_each(|&(l, r)| self.board.sack(l, r, &mut news));
        }
        let edge_moved = self.see_edge(feedback.ack, feedback.right_edge);
        let advanced = (feedback.ack - una) as u32;
        self.sample(&news, advanced, now);
        let same = advanced == 0 && outstanding > 0 && !feedback.has_data && !edge_moved;
        let duplicate = if self.sack { news.sacked > 0 } else { same };
        self.count_duplicate(duplicate, advanced, &mut news);
        self.leave_phase();
        let event = Congestion {
            now,
            flight: outstanding,
            snd_una: wire(self.una),
            snd_nxt: wire(self.nxt),
        };
        let marked = self.detect(&event, advanced);
        self.steer(&event, advanced, &news, pipe, feedback.ece);
        self.pace_recovery(news.delivered, advanced > 0 && marked == 0);
        match (advanced > 0, self.una == self.nxt) {
            (_, true) => self.timer = self.probe_time(now),
            (true, false) => self.timer = now + self.rtt.rto(&self.config.rto),
            (false, false) => {}
        }
    }

    fn see_edge(&mut self, ack: u64, edge: u64) -> bool {
        self.largest_window = self.largest_window.max(edge - ack);
        // An older segment may tell of an older window; edges are not taken back.
        let moved = edge > self.right_edge;
        self.right_edge = self.right_edge.max(edge);
        moved
    }

    fn sample(&mut self, news: &News, advanced: u32, now: Instant) {
        // Karn: what was sent twice tells nothing, nor does what it held up.
        if let Some(sent) = news.first_sent.filter(|_| !news.repeated) {
            self.rtt.sample(now.since(sent), now);
        } else if advanced > 0 {
            self.rtt.reset_back_off();
        }
    }

    fn count_duplicate(&mut self, duplicate: bool, advanced: u32, news: &mut News) {
        if advanced > 0 {
            self.dupacks = 0;
            // What duplicates stood for is now acknowledged for good, with the lost segment.
            let counted = self.presumed.min(advanced.saturating_sub(self.mss));
            self.presumed -= counted;
            news.delivered = news.delivered.saturating_sub(counted);
        }
        if duplicate {
            self.dupacks += 1;
            if !self.sack && !matches!(self.phase, Phase::Loss { .. }) {
                let room = self.outstanding().saturating_sub(self.presumed + self.mss);
                let one = self.mss.min(room);
                self.presumed += one;
                news.delivered += one;
            }
        }
    }

    fn leave_phase(&mut self) {
        match self.phase {
            Phase::Recovery { point } if self.una >= point => {
                self.window.leave_recovery();
                self.reopen();
            }
            Phase::Loss { point } if self.una >= point => self.reopen(),
            _ => {}
        }
    }

    fn reopen(&mut self) {
        self.phase = Phase::Open;
        self.prr = None;
        self.dupacks = 0;
        self.presumed = 0;
    }

    /// Finds losses; says how many bytes were newly marked.
    fn detect(&mut self, event: &Congestion, advanced: u32) -> u32 {
        match self.phase {
            Phase::Open => {
                let mut marked = if self.sack { self.board.find_losses(self.mss) } else { 0 };
                if marked == 0 && self.dupacks < DUP_THRESH {
                    return 0;
                }
                marked += self.board.first_is_lost();
                self.enter_recovery(event);
                marked
            }
            Phase::Recovery { .. } if self.sack => self.board.find_losses(self.mss),
            Phase::Recovery { .. } if advanced > 0 => match self.controller.partial_ack() {
                PartialAck::RetransmitsNext => self.board.first_is_lost(),
                PartialAck::EndsRecovery => {
                    self.window.leave_recovery();
                    self.reopen();
                    0
                }
            },
            Phase::Recovery { .. } => 0,
            Phase::Loss { .. } if self.sack => self.board.find_losses(self.mss),
            Phase::Loss { .. } => 0,
        }
    }

    fn enter_recovery(&mut self, event: &Congestion) {
        self.stats.recoveries += 1;
        self.controller.on_loss(event, &mut self.window);
        self.phase = Phase::Recovery { point: self.nxt };
        self.rescued = 0;
        self.prr = Some(Prr::new(event.flight));
        self.timer = event.now + self.rtt.rto(&self.config.rto);
    }

    /// In recovery, `cwnd` follows what was delivered.
    fn pace_recovery(&mut self, delivered: u32, safe: bool) {
        let pipe = self.pipe();
        if let Some(prr) = &mut self.prr {
            prr.on_ack(delivered, pipe, safe, &mut self.window);
        }
    }

    /// Tells congestion control.
    fn steer(&mut self, event: &Congestion, advanced: u32, news: &News, pipe: u32, ece: bool) {
        let recovering = matches!(self.phase, Phase::Recovery { .. });
        let before = self.una - u64::from(advanced);
        let used_half = self.window.in_slow_start() && event.flight > self.window.cwnd / 2;
        let limited = before < self.limited_at || used_half || self.floods;
        let ack = Ack {
            now: event.now,
            bytes_acked: self.counted(advanced),
            rtt: news.last_sent.filter(|_| !news.repeated).map(|sent| event.now.since(sent)),
            min_rtt: self.rtt.min_rtt(),
            flight: pipe,
            snd_una: event.snd_una,
            snd_nxt: event.snd_nxt,
            ecn_bytes: if ece { advanced } else { 0 },
            ece,
            cwnd_limited: limited && !recovering,
        };
        self.controller.on_ack(&ack, &mut self.window);
        if ece && self.controller.on_ecn(event, &mut self.window) {
            self.stats.marks += 1;
            self.cwr = true;
        }
    }

    /// How much of what an ACK acknowledges may widen the window.
    fn counted(&self, advanced: u32) -> u32 {
        match self.config.slow_start_limit {
            0 => advanced,
            _ if !self.window.in_slow_start() => advanced,
            segments => advanced.min(segments.saturating_mul(self.mss)),
        }
    }

    fn pipe(&self) -> u32 {
        self.board.pipe(self.outstanding()).saturating_sub(self.presumed)
    }

    fn cwnd(&self) -> u64 {
        if self.floods { u64::MAX } else { u64::from(self.window.cwnd) }
    }

    /// The timer has expired.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.timer = Instant::NEVER;
        self.unheard = self.unheard.saturating_add(1);
        let resent = self.rtt.backed_off() > 0;
        self.rtt.back_off();
        if self.right_edge <= self.una {
            // A closed window is no congestion: probe, or probe again.
            self.board.all_is_lost();
            return;
        }
        self.stats.timeouts += 1;
        let event = Congestion {
            now,
            flight: self.outstanding(),
            snd_una: wire(self.una),
            snd_nxt: wire(self.nxt),
        };
        self.controller.on_timeout(&event, resent, &mut self.window);
        self.board.all_is_lost();
        self.phase = Phase::Loss { point: self.nxt };
        (self.prr, self.dupacks, self.presumed) = (None, 0, 0);
    }

    /// What is to be sent now, if anything. What it returns counts as sent.
    pub(super) fn next(&mut self, now: Instant) -> Option<Range> {
        self.floods = self.managed && now < self.hello_until;
        let Some(range) = self.next_known(now).or_else(|| self.next_doubtful(now)) else {
            if self.timer == Instant::NEVER && self.una == self.nxt {
                self.timer = self.probe_time(now);
            }
            return None;
        };
        if let Some(prr) = &mut self.prr {
            prr.on_sent(range.len);
        }
        if self.timer == Instant::NEVER {
            self.timer = now + self.rtt.rto(&self.config.rto);
        }
        self.last_sent = now;
        Some(range)
    }

    fn next_known(&mut self, now: Instant) -> Option<Range> {
        self.next_lost(now).or_else(|| self.next_new(now))
    }

    fn next_lost(&mut self, now: Instant) -> Option<Range> {
        let (start, len) = self.board.next_lost()?;
        if !self.has_room(len) {
            return None;
        }
        self.board.resent(start, now);
        Some(self.again(start, len))
    }

    /// Nothing is known to be lost and nothing is new: a hole below what is sacked; else, once per recovery, the
    /// last segment, whose SACK tells of all below.
    fn next_doubtful(&mut self, now: Instant) -> Option<Range> {
        let Phase::Recovery { point } = self.phase else { return None };
        if !self.sack {
            return None;
        }
        let hole = self.board.first_hole();
        let rescue = || self.board.last_unsacked().filter(|_| self.una > self.rescued);
        let (start, len) = hole.or_else(rescue)?;
        if !self.has_room(len) {
            return None;
        }
        if hole.is_none() {
            self.rescued = point;
        }
        self.board.resent_in_doubt(start, now);
        Some(self.again(start, len))
    }

    fn has_room(&self, len: u32) -> bool {
        let pipe = self.pipe();
        pipe == 0 || u64::from(pipe) + u64::from(len) <= self.cwnd()
    }

    fn again(&mut self, start: u64, len: u32) -> Range {
        self.stats.retransmissions += 1;
        let end = start + u64::from(len);
        let fin = end > self.end;
        Range {
            start,
            len: len - u32::from(fin),
            fin,
            push: end >= self.end,
            cwr: false,
            repeated: true,
        }
    }

    fn next_new(&mut self, now: Instant) -> Option<Range> {
        let unsent = self.end.saturating_sub(self.nxt);
        let fin_due = self.fin && self.nxt <= self.end;
        if (unsent == 0 && !fin_due) || self.nxt == 0 {
            return None;
        }
        self.restart_if_idle(now);
        let len = self.new_payload(unsent)?;
        let fin = fin_due && u64::from(len) == unsent;
        if len == 0 && !fin {
            return None;
        }
        let range = Range {
            start: self.nxt,
            len,
            fin,
            push: u64::from(len) == unsent,
            cwr: len > 0 && std::mem::take(&mut self.cwr),
            repeated: false,
        };
        self.note_sent(len + u32::from(fin), now);
        Some(range)
    }

    /// How much payload may go now: `None` if windows forbid, zero if only a FIN is left.
    fn new_payload(&mut self, unsent: u64) -> Option<u32> {
        let mss = u64::from(self.mss);
        let pipe = self.pipe();
        let room = self.cwnd().saturating_sub(u64::from(pipe));
        let window = self.right_edge.saturating_sub(self.nxt).min(self.send_room());
        if window == 0 && unsent > 0 {
            return self.probe();
        }
        let one = unsent.min(mss);
        if room < one && pipe > 0 {
            self.limited_at = self.nxt;
            return None;
        }
        let most = unsent.min(room.max(one)).min(window);
        if self.defers(most, unsent) {
            self.limited_at = self.nxt;
            return None;
        }
        let most = most.min(u64::from(self.config.gso_max).max(mss));
        if most == unsent || most < mss {
            let silly = most < one && self.una < self.nxt && most < self.largest_window / 2;
            // Only the tail of the data may be smaller than a segment.
            return (!silly).then_some(most as u32);
        }
        Some((most - most % mss) as u32)
    }

    /// More may go soon, in one super-frame with these bytes.
    fn defers(&self, most: u64, unsent: u64) -> bool {
        let whole = u64::from(self.config.gso_max);
        let window = self.cwnd().min(self.right_edge.saturating_sub(self.una));
        let more = whole > u64::from(self.mss) && most < unsent && self.una < self.nxt;
        more && self.phase == Phase::Open && most < whole.min(window / TSO_WIN_DIVISOR)
    }

    fn send_room(&self) -> u64 {
        let buffer = self.config.send;
        let wanted = self.cwnd().saturating_mul(2).max(u64::from(buffer.initial));
        let wanted = wanted.min(u64::from(buffer.max));
        (self.una + wanted).saturating_sub(self.nxt)
    }

    /// One byte into a closed window, if that is due.
    fn probe(&self) -> Option<u32> {
        let due = self.una == self.nxt && self.timer == Instant::NEVER;
        (due && self.rtt.backed_off() > 0).then_some(1)
    }

    /// When to probe a closed window; never if it is open.
    fn probe_time(&self, now: Instant) -> Instant {
        let closed = self.right_edge <= self.nxt && self.end > self.nxt;
        if closed { now + self.rtt.rto(&self.config.rto) } else { Instant::NEVER }
    }

    fn restart_if_idle(&mut self, now: Instant) {
        if self.config.idle_restart && self.una == self.nxt {
            let initial = self.config.initial_window.saturating_mul(self.mss);
            let (idle, rto) = (now.since(self.last_sent), self.rtt.rto(&self.config.rto));
            self.controller.on_idle(idle, rto, initial, &mut self.window);
        }
    }

    fn note_sent(&mut self, mut bytes: u32, now: Instant) {
        while bytes > 0 {
            // A FIN behind a full segment is part of it.
            let len = if bytes == self.mss + 1 { bytes } else { bytes.min(self.mss) };
            self.board.sent(self.nxt, len, now);
            self.nxt += u64::from(len);
            bytes -= len;
        }
    }
}

/// Offsets as congestion control wants them: it only compares them with each other.
fn wire(offset: u64) -> Seq {
    Seq(offset as u32)
}
