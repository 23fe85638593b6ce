//! Finding losses and recovering from them.
//!
//! # Theory of operation
//! With SACK, RACK decides (RFC 8985 section 6): a range is lost if something that was sent after it,
//! by more than the reordering window, has arrived. That finds lost retransmissions, too, and does not
//! care how many duplicate ACKs there are. The window is a quarter of the smallest round trip once
//! reordering has been seen; before, three segments' worth of SACKed bytes close it to zero. Each
//! DSACK that tells of a needless repair widens it by one more quarter. Both last for 16 recoveries. The timer is set for the oldest
//! range that was overtaken, where RFC 8985 has the latest: so only the oldest has to be looked at. The order of
//! transmissions is that of the [scoreboard](crate::offload::store).
//!
//! Without SACK, three duplicate ACKs mean that the first segment is lost, and in recovery each partial
//! ACK that the next one is (RFC 6582, NewReno). Each duplicate ACK means that some segment has arrived.
//!
//! A tail loss probe (RFC 8985 section 7) repeats the last segment when ACKs fail to come for two
//! round trips, so that the peer's SACK shows what is missing. It takes the place of the segment that it repeats
//! in `pipe`, so that the estimate does not exceed `cwnd` (I1). If the segment had not been lost after all, one
//! MSS more is really on its way. Two things are other than in the RFC, since the guest's own timer runs (I7): a lone
//! segment is probed before the longest delay that its ACK may have, which is found out probe by
//! probe; and a recovery is probed too, when nothing more is heard of its repairs.
//!
//! The retransmission timeout (RFC 6298) takes everything for lost that is not SACKed. SACK marks outlive it, as RFC 6675
//! section 5.1 allows to senders that find out about reneging: a receiver that has discarded what it SACKed gives itself away by a
//! cumulative acknowledgement that stops there, and all SACK marks are lost segments then (`check_reneging`).
//!
//! The timeout's back-off ends with an ACK that advances, since the guest's own timer runs (I7). Only where two lone segments
//! have timed out without a round trip that could be measured between them, the peer may be one that delays its ACKs for
//! longer than the timeout: then the back-off stays until there is a measure (Karn's algorithm, RFC 6298 section 5). A
//! timeout that [turns out](super::undo) to have been needless is undone.
//!
//! A recovery that DSACKs show to have been [needless](super::undo) is undone: `cwnd` and `ssthresh` are as
//! before. Losses that it has not repaired yet stay losses.
//!
//! Phases: `Open`; `Fast`, with PRR (RFC 6937) as the window; `Loss` after a timeout, in slow start. The last
//! two end when what had been sent at their start is acknowledged.

use super::recovery::{Recovery, sent_before};
use super::undo::{Frto, Repairs};
use super::{AckKind, Env, MAX_UNANSWERED, Phase, Sender, Timer};
use crate::congestion::{Congestion, PartialAck};
use crate::offload::sink::Sink;
use crate::offload::state_pool::FreeList;
use crate::offload::store::{Lists, Place};
use crate::offload::summary::{Reason, TxState};
use crate::time::{Duration, Instant};

/// Duplicate ACKs, or segments SACKed, that mean a loss (RFC 5681, 6675).
pub(super) const DUP_THRESH: u8 = 3;
/// A peer may delay the ACK of a lone segment: the first guess of by how long. Each probe that was needless
/// because of it doubles the guess.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// Doublings of it: 200 ms (Linux `TCP_DELACK_MAX`).
const MAX_ACK_DELAY_SHIFT: u8 = 3;
/// Longest time by which the timer for reordering is late.
const MAX_SLACK: Duration = Duration::from_millis(10);
/// Without any sample the probe waits this long (RFC 8985 section 7.2).
const FIRST_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

impl<B: 'static> Sender<B> {
    /// Makes sure that there is a place for what is known of bytes on their way.
    #[inline]
    pub fn acquire_state(&mut self, free: &mut FreeList<Recovery>) {
        if !self.recovery.is_present() {
            self.recovery.fill(free);
            let (next, learnt) = (self.store.snd_una(), self.learnt);
            self.recovery.restart(next, learnt);
        }
    }

    /// Gives up what a sender at rest does not need.
    #[inline]
    pub fn park(&mut self, recoveries: &mut FreeList<Recovery>, lists: &mut FreeList<Lists<B>>) {
        if self.store.is_empty() && self.recovery.is_over() {
            self.return_state(recoveries, lists);
        }
    }

    /// Gives up all that is stored.
    #[inline]
    pub fn return_state(
        &mut self,
        recoveries: &mut FreeList<Recovery>,
        lists: &mut FreeList<Lists<B>>,
    ) {
        if let Some(recovery) = self.recovery.get_mut() {
            self.learnt = recovery.learnt;
        }
        self.store.return_state(lists);
        self.recovery.return_state(recoveries);
    }

    /// Bytes in flight, as far as is known.
    pub fn pipe(&self) -> u32 {
        self.store.pipe().saturating_sub(self.recovery.dup_bytes)
    }

    pub(super) fn congestion(&self, now: Instant, flight: u32) -> Congestion {
        let (snd_una, snd_nxt) = (self.snd_una(), self.store.snd_nxt());
        Congestion { now, flight, cwnd_limited: self.cwnd_limited, snd_una, snd_nxt }
    }

    /// Marks what is lost; returns whether anything is.
    pub(super) fn find_losses(&mut self, kind: AckKind, now: Instant) -> bool {
        if self.agreed.sack() {
            return self.find_by_time(now);
        }
        let partial = kind == AckKind::Advanced
            && self.recovery.phase == Phase::Fast
            && self.snd_una().before(self.recovery.recover)
            && self.controller.partial_ack() == PartialAck::RetransmitsNext;
        let third = self.recovery.phase == Phase::Open && self.recovery.dup_acks >= DUP_THRESH;
        (partial || third) && self.lose_first_segment()
    }

    fn lose_first_segment(&mut self) -> bool {
        self.store.mark_lost(0)
    }

    /// RACK: marks what is lost, oldest transmission first; returns `true` if anything is.
    fn find_by_time(&mut self, now: Instant) -> bool {
        let Some(patience) = self.patience() else { return false };
        let mut found = false;
        while let Some(place) = self.store.oldest_unknown()
            && self.is_overtaken(&place)
            && place.sent.at + patience <= now
        {
            found |= self.store.mark_lost(place.index);
        }
        while let Some(place) = self.store.oldest_repair()
            && self.is_overtaken(&place)
            && place.sent.at + patience <= now
        {
            found |= self.store.mark_lost(place.index);
        }
        found
    }

    /// When the timer marks the first of what was overtaken as lost.
    fn reordering_deadline(&mut self) -> Option<Instant> {
        let patience = self.patience()? + self.slack();
        let oldest = [self.store.oldest_unknown(), self.store.oldest_repair()];
        let overtaken = oldest.into_iter().flatten().filter(|place| self.is_overtaken(place));
        overtaken.map(|place| place.sent.at + patience).min()
    }

    /// How long after its transmission an overtaken range counts as lost; none if nothing can have
    /// been overtaken.
    fn patience(&self) -> Option<Duration> {
        let in_order = self.store.sacked() == 0
            && self.store.in_repair() == 0
            && !self.recovery.repair_arrived;
        if !self.agreed.sack() || in_order {
            return None;
        }
        Some(self.recovery.latest?.rtt + self.reordering_window())
    }

    /// How much longer than the reordering window the timer waits for an ACK that finds the loss: a repair right after the loss meets the
    /// queue that has just overflowed, and one in four is lost too. Linux waits for two ticks (`TCP_TIMEOUT_MIN`).
    fn slack(&self) -> Duration {
        (self.rtt.srtt().unwrap_or_default() / 4).min(MAX_SLACK)
    }

    /// Something that was sent after the record has arrived.
    fn is_overtaken(&self, place: &Place) -> bool {
        let (sent, latest) = (&place.sent, self.recovery.latest);
        latest.is_some_and(|latest| sent_before(sent.at, sent.end, latest.at, latest.end))
    }

    fn reordering_window(&self) -> Duration {
        let recovery = &self.recovery;
        let enough = self.store.sacked() >= u32::from(DUP_THRESH) * self.window.mss;
        if !recovery.learnt.reordering_seen && (recovery.phase != Phase::Open || enough) {
            return Duration::ZERO;
        }
        let min_rtt = self.rtt.min_rtt().unwrap_or_default();
        let srtt = self.rtt.srtt().unwrap_or_default();
        (min_rtt * u32::from(recovery.learnt.quarters) / 4).min(srtt)
    }

    /// A loss was found: begins fast recovery, unless one is going on.
    pub(super) fn enter_fast<S>(&mut self, flight: u32, env: &mut Env<'_, S>) {
        if self.recovery.phase != Phase::Open {
            return;
        }
        let event = self.congestion(env.now, flight);
        self.controller.on_loss(&event, &mut self.window);
        self.recovery.begin(Phase::Fast, self.store.snd_nxt(), flight);
        self.cwr_due |= self.agreed.ecn();
        env.counters.fast_recoveries().add(1);
        self.repairing(Reason::Loss, env);
    }

    fn repairing<S>(&mut self, reason: Reason, env: &mut Env<'_, S>) {
        if matches!(self.state, TxState::Active | TxState::NoBuffer) {
            self.enter(TxState::PacketLoss, reason, env.counters);
        }
    }

    /// Ends a recovery whose losses have all arrived, or undoes a needless one.
    pub(super) fn leave_recovery<S>(&mut self, kind: AckKind, env: &mut Env<'_, S>) {
        if self.recovery.phase == Phase::Open {
            return self.undo_past_recovery(env);
        }
        let recovery = &self.recovery;
        let any_new = kind == AckKind::Advanced
            && recovery.phase == Phase::Fast
            && !self.agreed.sack()
            && self.controller.partial_ack() == PartialAck::EndsRecovery;
        if recovery.repairs.are_needless() && self.undo_reduction() {
            if self.recovery.phase == Phase::Loss {
                // Other losses stay what they are.
                self.forget_timeout();
            }
            env.counters.undone().add(1);
        } else if self.snd_una().before(self.recovery.recover) && !any_new {
            return;
        } else if self.recovery.phase == Phase::Fast {
            self.window.leave_recovery();
        }
        self.end_recovery(env);
    }

    pub(super) fn end_recovery<S>(&mut self, env: &mut Env<'_, S>) {
        self.recovery.end();
        self.recovery.dup_acks = 0;
        if self.state == TxState::PacketLoss {
            self.enter(TxState::Active, Reason::Recovered, env.counters);
        }
    }

    /// The DSACKs of a recovery may come when it is over.
    fn undo_past_recovery<S>(&mut self, env: &mut Env<'_, S>) {
        if self.recovery.repairs.are_needless() {
            self.recovery.repairs = Repairs::NONE;
            env.counters.undone().add(u64::from(self.undo_reduction()));
        }
    }

    /// An ACK or DSACK tells what became of a tail loss probe (RFC 8985 section 7.4).
    pub(super) fn check_probe<S>(&mut self, kind: AckKind, dsack: bool, env: &mut Env<'_, S>) {
        let Some(end) = self.recovery.probe_end else { return };
        if dsack {
            // The original had arrived, and so did the probe.
            self.recovery.probe_end = None;
            if self.recovery.probe_lone {
                let shift = self.recovery.learnt.ack_delay_shift + 1;
                self.recovery.learnt.ack_delay_shift = shift.min(MAX_ACK_DELAY_SHIFT);
            }
        } else if self.snd_una() == end && kind == AckKind::Duplicate {
            // Both arrived, and the peer does not say which was the second.
            self.recovery.probe_end = None;
        } else if self.snd_una().after(end) {
            self.recovery.probe_end = None;
            // The probe repaired a loss that nobody else will see.
            if self.recovery.phase == Phase::Open {
                let event = self.congestion(env.now, self.window.cwnd);
                self.recovery.repairs = Repairs::NONE;
                self.controller.on_loss(&event, &mut self.window);
                self.window.lower_to_ssthresh();
                self.cwr_due |= self.agreed.ecn();
            }
        }
    }

    #[inline]
    pub(super) fn set_timer<S>(&mut self, env: &Env<'_, S>) {
        let in_order = self.store.is_quiet() && !self.recovery.repair_arrived;
        if self.store.records() == 0 || !in_order {
            return self.set_timer_in_full(env);
        }
        // All that is on its way was sent once, after all that has arrived.
        let timeout = self.timeout_after(self.recovery.rto_base, env.config);
        // Where the timeout is sooner, the probe takes its place (RFC 8985 section 7.2).
        let probe = self.probe_at(env.now).map(|at| at.min(timeout));
        if let Some(recovery) = self.recovery.get_mut() {
            recovery.timer = Some(match probe {
                Some(at) => (Timer::TailLossProbe, at),
                None => (Timer::Retransmission, timeout),
            });
        }
    }

    fn set_timer_in_full<S>(&mut self, env: &Env<'_, S>) {
        let watched = self.recovery.gap_until != Instant::NEVER;
        debug_assert!(!watched || self.has_gap(), "`gap_until` is not up to date");
        if self.store.records() == 0 {
            let held = self.held() > 0 && !watched;
            let first = self.timeout_after(env.now, env.config);
            if let Some(recovery) = self.recovery.get_mut() {
                recovery.timer = match recovery.timer {
                    _ if !held => None,
                    Some((Timer::WindowProbe, at)) => Some((Timer::WindowProbe, at)),
                    _ => Some((Timer::WindowProbe, first)),
                };
            }
            return;
        }
        let timeout = self.timeout_after(self.recovery.rto_base, env.config);
        self.recovery.timer = Some(match self.reordering_deadline() {
            Some(at) => (Timer::Reordering, at.min(timeout)),
            None => match self.probe_at(env.now) {
                Some(at) => (Timer::TailLossProbe, at.min(timeout)),
                None => (Timer::Retransmission, timeout),
            },
        });
    }

    /// When a tail loss probe is due, if one may be sent: so long after the last news that the ACK of what was
    /// sent last should have come.
    fn probe_at(&self, now: Instant) -> Option<Instant> {
        let recovery = &*self.recovery;
        if recovery.probed || !self.agreed.sack() || self.store.has_waiting() {
            return None;
        }
        let base = recovery.rto_base.max(self.last_release.near(now));
        let Some(srtt) = self.rtt.srtt_nanos() else { return Some(base + FIRST_PROBE_TIMEOUT) };
        let delay = if self.is_lone() {
            ACK_DELAY.as_nanos() as u64 * (1 << recovery.learnt.ack_delay_shift)
        } else {
            Duration::from_millis(2).as_nanos() as u64
        };
        Some(Instant::from_nanos(base.as_nanos().saturating_add(2 * srtt + delay)))
    }

    /// One segment at most is on its way.
    fn is_lone(&self) -> bool {
        self.pipe() <= self.window.mss
    }

    /// Does what the timer is for, if it is due.
    pub fn handle_timeout<S: Sink<B>>(&mut self, env: &mut Env<'_, S>) {
        let Some((timer, at)) = self.recovery.timer else { return };
        if at > env.now {
            return;
        }
        match timer {
            Timer::WindowProbe => return self.probe_window(env),
            Timer::Reordering => {
                if self.find_by_time(env.now) {
                    self.recovery.rto_base = env.now;
                    self.repair_by_timer(env);
                } else if self.timeout_after(self.recovery.rto_base, env.config) <= env.now {
                    self.time_out(env);
                }
            }
            Timer::TailLossProbe => self.probe_tail(env),
            Timer::Release => return self.release_by_timer(env),
            Timer::Retransmission => self.time_out(env),
        }
        self.pump(env);
    }

    /// The time of a burst has passed. What else is due goes first: it may lower `cwnd`.
    fn release_by_timer<S: Sink<B>>(&mut self, env: &mut Env<'_, S>) {
        self.set_timer(env);
        match self.recovery.timer {
            Some((_, at)) if at <= env.now => self.handle_timeout(env),
            _ => self.pump(env),
        }
    }

    /// The reordering window has passed without an ACK.
    fn repair_by_timer<S>(&mut self, env: &mut Env<'_, S>) {
        let out = self.store.snd_nxt().since(self.snd_una());
        self.enter_fast(out, env);
        if self.recovery.phase == Phase::Fast {
            let pipe = self.pipe();
            self.recovery.prr.on_ack(0, pipe, false, &mut self.window);
        }
    }

    /// Sends the last segment that the peer is not known to have again, whatever `cwnd` says (RFC 8985 section 7.3).
    fn probe_tail<S: Sink<B>>(&mut self, env: &mut Env<'_, S>) {
        env.counters.tail_loss_probes().add(1);
        self.recovery.probe_end = Some(self.store.snd_nxt());
        self.recovery.probe_lone = self.is_lone();
        self.recovery.probed = true;
        self.recovery.rto_base = env.now;
        let Some(mut last) = self.store.last_unsacked() else { return };
        if last.len() > self.window.mss {
            self.end_raise(env.now);
            self.store.cut(self.window.mss);
            last = self.store.last_unsacked().unwrap_or(last);
        }
        if self.store.mark_lost(last.index) {
            self.repair(last.index, 1, env);
        }
    }

    fn time_out<S>(&mut self, env: &mut Env<'_, S>) {
        env.counters.timeouts().add(1);
        env.counters.timeouts_after_slow_start().add(u64::from(self.window.ssthresh != u32::MAX));
        let flight = self.store.snd_nxt().since(self.snd_una());
        let event = self.congestion(env.now, flight);
        let resent = self.recovery.timed_out == Some(self.snd_una());
        let first = self.recovery.phase != Phase::Loss;
        if self.is_lone() && !resent {
            // A peer that had delayed the ACK of the first would have answered the second at once.
            self.rtt.suspect_delay();
        }
        self.controller.on_timeout(&event, resent, &mut self.window);
        self.rtt.back_off();
        self.note_unanswered(env);
        // The left edge is sent again whether or not it is SACKed (RFC 2018 section 8).
        self.check_reneging(env.counters);
        self.store.lose_everything();
        self.fall_back(env);
        self.recovery.begin(Phase::Loss, self.store.snd_nxt(), flight);
        self.recovery.timed_out = Some(self.snd_una());
        self.recovery.frto = if first || resent { Frto::Resent } else { Frto::Off };
        self.recovery.dup_bytes = 0;
        self.recovery.dup_acks = 0;
        self.recovery.rto_base = env.now;
        self.repairing(Reason::Timeout, env);
    }

    /// Why it must not go on, if it must not and nothing was acknowledged early (T1): the peer has not answered for so long that the connection is
    /// dead, or the guest has not repeated what we never saw.
    pub fn given_up(&self, now: Instant) -> Option<Reason> {
        if self.is_ahead() {
            return None;
        }
        if self.unanswered > MAX_UNANSWERED {
            return Some(Reason::Timeout);
        }
        (self.recovery.gap_until <= now).then_some(Reason::Gap)
    }
}
