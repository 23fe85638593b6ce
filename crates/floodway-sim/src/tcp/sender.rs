//! The sending half of a connection.
//!
//! # Theory of operation
//! **States.** *Open*; *recovery*, from the detection of a loss until everything is acknowledged that had been sent
//! by then; *loss*, the same after a timeout.
//!
//! **Detection.** With SACK by the scoreboard (RFC 6675), or by three duplicate ACKs, so that few large losses are
//! found, too. What was sent again and is lost again is found by RACK's rule ([`TcpConfig::rack`]), or by the timer. Without SACK by three duplicates; each stands for one segment that has left the network, which
//! makes the arithmetic of `pipe` the same. A partial ACK then means that the next segment is lost (RFC 6582),
//! or ends recovery (Reno).
//!
//! **What may be sent** is in [`output`].
//!
//! **Timer.** Runs while anything is outstanding, is set anew by each advance of `snd_una`, doubles at each expiry. With
//! a zero window and nothing outstanding it sends a probe of one byte instead. What the host's own queues still hold has not timed
//! out, if the stack [looks](TcpConfig::skip_queued_rtx): Linux does not repeat it and takes back, with the first ACK (F-RTO), what it
//! had concluded.
//!
//! **Managed.** While a switch controls the flow, the congestion window does not bind what is sent, whatever happens to it, nor, once an
//! ACK has made room in it, the send buffer, which is sized after that window ([`output`]); the window goes on growing and shrinking as a shadow, and binds again when
//! the flow is not managed any more, or when the switch has not sent a heartbeat for too long.

mod output;

use std::ops::AddAssign;
use std::sync::Arc;

use floodway_core::congestion::{Ack, Congestion, Controller, PartialAck, Prr, Window};
use floodway_core::rtt::RttEstimator;
use floodway_core::seq::Seq;

use super::config::TcpConfig;
use super::scoreboard::{News, Scoreboard};
use super::small_queue::SmallQueue;
use crate::{Duration, Instant};

pub(super) use output::Range;

const DUP_THRESH: u32 = 3;

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
    config: Arc<TcpConfig>,
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
    /// Bytes that may still leave in this burst, and when the next one begins without an ACK.
    burst_left: u64,
    resume_at: Instant,
    /// `snd_nxt` when the congestion window last kept something back.
    limited_at: u64,
    /// The recovery point at the time of the last rescue retransmission.
    rescued: u64,
    last_sent: Instant,
    cwr: bool,
    managed: bool,
    heartbeat_until: Instant,
    /// Managed by a switch that is alive, as of the last look.
    floods: bool,
    /// Expiries since anything was heard.
    unheard: u8,
    small_queue: SmallQueue,
    stats: SenderStats,
}

impl Sender {
    pub(super) fn new(config: &Arc<TcpConfig>) -> Self {
        let mss = u32::from(config.mss);
        Self {
            config: Arc::clone(config),
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
            burst_left: 0,
            resume_at: Instant::NEVER,
            limited_at: 0,
            rescued: 0,
            last_sent: Instant::ZERO,
            cwr: false,
            managed: false,
            heartbeat_until: Instant::ZERO,
            floods: false,
            unheard: 0,
            small_queue: SmallQueue::new(config.limit_output),
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

    pub(super) fn set_heartbeat(&mut self, until: Instant) {
        self.heartbeat_until = until;
    }

    pub(super) const fn small_queue(&mut self) -> &mut SmallQueue {
        &mut self.small_queue
    }

    pub(super) const fn waits_for_queue(&self) -> bool {
        self.small_queue.waits()
    }

    pub(super) const fn mss(&self) -> u32 {
        self.mss
    }

    pub(super) fn counts_marks(&self) -> bool {
        self.config.algorithm.counts_marks()
    }

    pub(super) fn fin_sent(&self) -> bool {
        self.fin && self.nxt > self.end
    }

    pub(super) fn fin_acknowledged(&self) -> bool {
        self.fin && self.una > self.end
    }

    pub(super) fn timer(&self) -> Instant {
        self.timer.min(self.resume_at)
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
            cwnd_limited: false,
            snd_una: wire(self.una),
            snd_nxt: wire(self.nxt),
        };
        let marked = self.detect(&event, advanced) + self.find_lost_repairs(&news, now);
        self.steer(&event, advanced, &news, pipe, feedback.ece);
        self.pace_recovery(news.delivered, advanced > 0 && marked == 0);
        self.begin_burst();
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
                // Linux begins the next recovery while anything is marked: it was sent in the last one.
                let known = self.config.rack && self.board.has_losses();
                if marked == 0 && self.dupacks < DUP_THRESH {
                    if known {
                        self.enter_recovery(event);
                    }
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

    /// Finds lost repairs, if the stack does; says how many bytes were newly marked.
    fn find_lost_repairs(&mut self, news: &News, now: Instant) -> u32 {
        let repairing = self.sack && self.config.rack && self.phase != Phase::Open;
        // What comes sooner than any round trip may be the answer to the original.
        let soon = |at: &Instant| self.rtt.min_rtt().is_some_and(|min| now.since(*at) < min);
        match news.latest.filter(|at| !(news.repeated && soon(at))) {
            Some(latest) if repairing => self.board.find_lost_repairs(latest),
            _ => 0,
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
        let unasked = self.floods || !self.config.validate_window;
        let limited = before < self.limited_at || used_half || unasked;
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
        if self.resume_at <= now {
            self.begin_burst();
            if self.timer > now {
                return;
            }
        }
        let left = if self.config.skip_queued_rtx { self.small_queue.left() } else { u64::MAX };
        if self.board.first_is_queued(left) {
            self.rtt.back_off();
            self.timer = now + self.rtt.rto(&self.config.rto);
            return;
        }
        self.timer = Instant::NEVER;
        self.unheard = self.unheard.saturating_add(1);
        let resent = self.rtt.backed_off() > 0;
        self.rtt.back_off();
        if self.right_edge <= self.una {
            // A closed window is no congestion: probe, or probe again.
            self.board.all_is_lost(left);
            return;
        }
        self.stats.timeouts += 1;
        let event = Congestion {
            now,
            flight: self.outstanding(),
            cwnd_limited: false,
            snd_una: wire(self.una),
            snd_nxt: wire(self.nxt),
        };
        self.controller.on_timeout(&event, resent, &mut self.window);
        self.board.all_is_lost(left);
        self.phase = Phase::Loss { point: self.nxt };
        (self.prr, self.dupacks, self.presumed) = (None, 0, 0);
    }

    /// When to probe a closed window; never if it is open.
    fn probe_time(&self, now: Instant) -> Instant {
        let closed = self.right_edge <= self.nxt && self.end > self.nxt;
        if closed { now + self.rtt.rto(&self.config.rto) } else { Instant::NEVER }
    }
}

/// Offsets as congestion control wants them: it only compares them with each other.
fn wire(offset: u64) -> Seq {
    Seq(offset as u32)
}
