//! What an ACK changes: the window, the scoreboard, losses, and `cwnd`.

use floodway_core::offload::Segment;
use floodway_core::seq::Seq;
use floodway_core::time::Instant;
use floodway_wire::tcp::Flags;

use super::{DUP_THRESH, Recovery, Sender};
use crate::harness::packet::unwrap;
use crate::scripts::row::GUEST_ISN;

impl Sender {
    pub(super) fn on_ack(&mut self, segment: &Segment, now: Instant) {
        let ack = unwrap(self.una, GUEST_ISN, segment.ack);
        if ack > self.nxt || ack < self.una {
            return;
        }
        let before = self.una;
        let flight = self.pipe();
        let opened = self.move_window(segment, ack, now);
        let newly_sacked = self.mark_sacked(segment);
        let delivered = self.advance(ack, now) + newly_sacked;
        let advanced = ack - before;
        let duplicate = advanced == 0 && segment.is_pure_ack() && !self.sent.is_empty();
        let counts = if self.sack { newly_sacked > 0 } else { !opened };
        if duplicate && counts {
            self.dup_acks += 1;
        }
        let dsack = self.take_dsack(segment);
        self.check_probe(ack, duplicate && newly_sacked == 0, dsack);
        self.find_lost(advanced);
        let echo = segment.has(Flags::ECE) && !segment.has(Flags::SYN);
        self.finish(advanced, flight, delivered, echo);
        // Limited transmit (RFC 3042): `pipe` has come down by a segment.
        self.transmit(now);
    }

    fn move_window(&mut self, segment: &Segment, ack: i64, now: Instant) -> bool {
        let scale = if segment.has(Flags::SYN) { 0 } else { self.scale };
        let window = i64::from(segment.window) << scale;
        let edge = ack + window;
        let opened = edge != self.edge;
        self.largest_window = self.largest_window.max(window);
        if (ack > self.una || edge > self.edge) && opened {
            self.edge = edge;
            self.persist_at = Instant::NEVER;
            if self.sent.is_empty() {
                self.backed_off = 0;
            }
            self.arm(now);
        }
        opened
    }

    fn mark_sacked(&mut self, segment: &Segment) -> i64 {
        let mut bytes = 0;
        for block in segment.options.sack_blocks().iter().filter(|_| self.sack) {
            let left = unwrap(self.una, GUEST_ISN, Seq(block.left));
            let right = unwrap(self.una, GUEST_ISN, Seq(block.right));
            for sent in self.sent.iter_mut().filter(|s| left <= s.start && s.end <= right) {
                if !sent.sacked {
                    bytes += sent.end - sent.start;
                }
                (sent.sacked, sent.lost) = (true, false);
            }
        }
        bytes
    }

    /// Takes in the cumulative part; returns the bytes that it says have arrived.
    fn advance(&mut self, ack: i64, now: Instant) -> i64 {
        let advanced = ack - self.una;
        if advanced == 0 {
            return if self.sack { 0 } else { self.mss };
        }
        let (mut bytes, mut sample, mut repeated) = (0, None, false);
        while let Some(first) = self.sent.front().copied().filter(|first| first.start < ack) {
            if first.end > ack {
                self.sent[0].start = ack;
                break;
            }
            self.sent.pop_front();
            repeated |= first.repeated;
            bytes += if first.sacked { 0 } else { first.end - first.start };
            sample = if first.sacked { sample } else { Some(now.since(first.at)) };
        }
        // Karn's algorithm (RFC 6298 section 3).
        if let Some(rtt) = sample.filter(|_| !repeated) {
            self.sample(rtt);
        }
        let known = if self.sack { 0 } else { self.dup_acks as i64 * self.mss };
        (self.una, self.backed_off, self.probed) = (ack, 0, false);
        if self.recovery.is_none() {
            self.dup_acks = 0;
        } else {
            self.dup_acks = self.dup_acks.saturating_sub((advanced / self.mss).max(1) as usize);
        }
        self.rto_at = Instant::NEVER;
        (bytes - known).max(0)
    }

    /// RFC 2883: the first block lies below the acknowledgement. Returns `true` if it does.
    fn take_dsack(&mut self, segment: &Segment) -> bool {
        let Some(first) = segment.options.sack_blocks().first().filter(|_| self.sack) else {
            return false;
        };
        if Seq(first.right).after(segment.ack) {
            return false;
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.needed -= i64::from(first.right.wrapping_sub(first.left));
            // RFC 3708 section 2, as Linux: all that was sent again was sent in vain.
            if recovery.needed <= 0
                && let Some((cwnd, ssthresh)) = recovery.undo
            {
                (self.cwnd, self.ssthresh, self.recovery) = (cwnd, ssthresh, None);
            }
        }
        true
    }

    /// RFC 8985 section 7.4.
    fn check_probe(&mut self, ack: i64, duplicate: bool, dsack: bool) {
        let Some(end) = self.probe_end.filter(|&end| ack >= end) else { return };
        if dsack || duplicate {
            self.probe_end = None;
        } else if ack > end {
            self.probe_end = None;
            self.ssthresh = (self.cwnd / 2).max(2 * self.mss);
            self.cwnd = self.ssthresh;
        }
    }

    fn find_lost(&mut self, advanced: i64) {
        let partial = advanced > 0 && self.recovery.is_some_and(|r| self.una < r.until);
        let third = self.dup_acks == DUP_THRESH && self.recovery.is_none();
        let again = self.loss_until.is_some();
        if self.sack {
            // RFC 6675 section 4, IsLost.
            let (mut above, mut islands) = (0, 0);
            for sent in self.sent.iter_mut().rev() {
                if sent.sacked {
                    above += sent.end - sent.start;
                    islands += 1;
                } else if !sent.repeated && (above > 2 * self.mss || islands >= DUP_THRESH) {
                    sent.lost = true;
                }
            }
        } else if ((third && !again) || partial)
            && let Some(first) = self.sent.front_mut()
        {
            first.lost = true;
        }
        if self.recovery.is_none() && !again && self.sent.iter().any(|s| s.lost) && !self.managed {
            self.begin_recovery();
        }
    }

    fn begin_recovery(&mut self) {
        let flight = self.nxt - self.una;
        let undo = Some((self.cwnd, self.ssthresh));
        if self.una > self.reduced_until {
            self.ssthresh = (flight.min(self.cwnd) / 2).max(2 * self.mss);
            self.reduced_until = self.nxt - 1;
            self.cwr |= self.ecn;
        }
        let until = self.nxt;
        self.recovery = Some(Recovery { until, flight, delivered: 0, out: 0, needed: 0, undo });
        self.probe_end = None;
    }

    /// Growth, PRR, the echo of marks, and the end of a recovery.
    fn finish(&mut self, advanced: i64, flight: i64, delivered: i64, ece: bool) {
        if self.loss_until.is_some_and(|until| self.una >= until) {
            self.loss_until = None;
        }
        if let Some(mut recovery) = self.recovery {
            if self.una >= recovery.until {
                self.recovery = None;
                self.dup_acks = 0;
                self.cwnd = self.ssthresh;
                return;
            }
            recovery.delivered += delivered;
            self.cwnd = self.prr(&recovery, delivered, advanced);
            self.recovery = Some(recovery);
            return;
        }
        if ece && self.ecn {
            // Something sent after the reduction is acknowledged, so that CWR may have arrived (RFC 3168 section 6.1.2).
            if self.una > self.reduced_until + 1 {
                self.ssthresh = (self.cwnd / 2).max(2 * self.mss);
                self.cwnd = (self.cwnd / 2).max(self.mss);
                self.reduced_until = self.nxt - 1;
                self.cwr = true;
            }
        } else if advanced > 0 {
            self.grow(advanced.min(flight.max(self.mss)), flight);
        }
    }

    /// RFC 6937 section 3, with the slow-start reduction bound.
    fn prr(&self, recovery: &Recovery, delivered: i64, advanced: i64) -> i64 {
        let pipe = self.pipe();
        let allowed = if pipe > self.ssthresh {
            let total = (recovery.delivered * self.ssthresh).div_euclid(recovery.flight)
                + i64::from((recovery.delivered * self.ssthresh) % recovery.flight != 0);
            total - recovery.out
        } else {
            let extra = if advanced > 0 { self.mss } else { 0 };
            let conserved = (recovery.delivered - recovery.out).max(delivered);
            (conserved + extra).min(self.ssthresh - pipe)
        };
        let allowed = if recovery.out == 0 { allowed.max(self.mss) } else { allowed.max(0) };
        pipe + allowed
    }

    fn grow(&mut self, bytes: i64, flight: i64) {
        let most = flight.max(self.most_in_flight.0);
        let slow_start = self.cwnd < self.ssthresh;
        let limited = flight + self.mss > self.cwnd || (slow_start && most > self.cwnd / 2);
        if !limited {
            return;
        }
        if self.cwnd < self.ssthresh {
            let step = bytes.min(self.ssthresh - self.cwnd);
            self.cwnd += step;
            return self.count_avoidance(bytes - step);
        }
        self.count_avoidance(bytes);
    }

    fn count_avoidance(&mut self, bytes: i64) {
        self.acked_in_avoidance += bytes;
        if bytes > 0 && self.acked_in_avoidance >= self.cwnd {
            self.acked_in_avoidance -= self.cwnd;
            self.cwnd += self.mss;
        }
    }
}
