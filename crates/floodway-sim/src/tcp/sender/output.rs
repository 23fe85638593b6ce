//! What a sender may send now.
//!
//! # Theory of operation
//! **Order**: lost segments first, then new ones, then, in recovery with SACK, doubtful ones (RFC 6675, `NextSeg`
//! rules 3 and 4: at the end of a transfer too little comes after a loss to prove it), but not with RACK, as in Linux.
//!
//! **Room**: `pipe` leaves room in `cwnd` (set by PRR in recovery), and the peer's window, the send buffer and the host's own
//! queues ([`SmallQueue`](crate::tcp::small_queue)) have room. Duplicates shrink `pipe`, so limited transmit
//! (RFC 3042) needs no rule of its own.
//!
//! **Size.** A piece that is smaller than an MSS for want of window waits while anything is outstanding (silly-window avoidance).
//! Who makes GSO packets waits for them: until a third of the window or a whole GSO packet may go (Linux,
//! `tcp_tso_should_defer`). So a transfer that is clocked by ACKs sends large ones. GSO packets of a millisecond do not wait
//! ([`TcpConfig::gso_autosize`](crate::tcp::TcpConfig::gso_autosize)).
//!
//! **Bursts.** Such a sender answers an ACK in congestion avoidance with no more than one GSO packet. What else the window has room
//! for leaves with the next ACK, or a little later: Linux defers it until its application writes again, which captures
//! show to be some milliseconds later, at a time that no ACK determines.
//!
//! Invariant: what [`Sender::next`] returns is in the scoreboard and counts as sent.

use super::{Phase, Sender};
use crate::Instant;
use crate::tcp::small_queue::{PER_SECOND, pacing_rate};

/// The part of a window that a GSO packet waits for at most (Linux, `tcp_tso_win_divisor`).
const TSO_WIN_DIVISOR: u64 = 3;

/// A range of the stream to send: `start` is where its first byte, or the SYN, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
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

impl Sender {
    /// What is to be sent now, if anything. What it returns counts as sent.
    pub(in crate::tcp) fn next(&mut self, now: Instant) -> Option<Range> {
        self.floods = self.managed && now < self.heartbeat_until;
        self.board.set_queue(self.small_queue.taken());
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
        if !self.has_room(len) || !self.may_queue(len) {
            return None;
        }
        self.board.resent(start, now);
        Some(self.again(start, len))
    }

    /// Nothing is known to be lost and nothing is new: a hole below what is sacked; else, once per recovery, the
    /// last segment, whose SACK tells of all below.
    fn next_doubtful(&mut self, now: Instant) -> Option<Range> {
        let Phase::Recovery { point } = self.phase else { return None };
        if !self.sack || self.config.rack {
            return None;
        }
        let hole = self.board.first_hole();
        let rescue = || self.board.last_unsacked().filter(|_| self.una > self.rescued);
        let (start, len) = hole.or_else(rescue)?;
        if !self.has_room(len) || !self.may_queue(len) {
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

    /// The host's own queues take another segment of this flow.
    fn may_queue(&mut self, len: u32) -> bool {
        if self.una == self.nxt {
            return true;
        }
        let window = &self.window;
        let flight = u64::from(window.cwnd).max(self.nxt - self.una);
        let starts = window.cwnd < window.ssthresh / 2;
        let srtt = self.rtt.srtt().filter(|_| !self.floods);
        self.small_queue.admits(len, srtt.map(|srtt| pacing_rate(flight, starts, srtt)))
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
        let len = self.new_payload(unsent, now)?;
        let fin = fin_due && u64::from(len) == unsent;
        if (len == 0 && !fin) || !self.may_queue(len) {
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
    fn new_payload(&mut self, unsent: u64, now: Instant) -> Option<u32> {
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
        if self.burst_is_over(one, now) {
            self.limited_at = self.nxt;
            return None;
        }
        let most = most.min(self.gso_goal().max(mss));
        if most == unsent || most < mss {
            let silly = most < one && self.una < self.nxt && most < self.largest_window / 2;
            // Only the tail of the data may be smaller than a segment.
            return (!silly).then_some(most as u32);
        }
        Some((most - most % mss) as u32)
    }

    /// As much as a GSO packet may leave again.
    pub(super) fn begin_burst(&mut self) {
        (self.burst_left, self.resume_at) = (self.gso_goal(), Instant::NEVER);
    }

    /// The next `bytes` have to wait for the next burst.
    fn burst_is_over(&mut self, bytes: u64, now: Instant) -> bool {
        let paced = self.config.gso_autosize && self.phase == Phase::Open && self.una < self.nxt;
        let Some(srtt) = self.rtt.srtt().filter(|_| paced && !self.window.in_slow_start()) else {
            return false;
        };
        let over = self.burst_left < bytes && !self.floods;
        if over && self.resume_at == Instant::NEVER {
            let parts = self.gso_goal().min(self.cwnd()) as f64 / self.cwnd().max(1) as f64;
            self.resume_at = now + srtt.mul_f64(parts * 5.0 / 6.0);
        }
        over
    }

    /// Bytes of a GSO packet that is worth waiting for.
    fn gso_goal(&self) -> u64 {
        let most = u64::from(self.config.gso_max);
        let srtt = self.rtt.srtt().filter(|_| self.config.gso_autosize && !self.floods);
        let Some(srtt) = srtt else { return most };
        let starts = self.window.cwnd < self.window.ssthresh / 2;
        let rate = pacing_rate(u64::from(self.window.cwnd).max(self.nxt - self.una), starts, srtt);
        let mss = u64::from(self.mss);
        (rate / PER_SECOND / mss * mss).max(2 * mss).min(most)
    }

    /// More may go soon, in one GSO packet with these bytes.
    fn defers(&self, most: u64, unsent: u64) -> bool {
        let whole = self.gso_goal();
        let window = self.cwnd().min(self.right_edge.saturating_sub(self.una));
        let waits = whole > u64::from(self.mss) && !self.config.gso_autosize;
        let more = waits && most < unsent && self.una < self.nxt;
        more && self.phase == Phase::Open && most < whole.min(window / TSO_WIN_DIVISOR)
    }

    fn send_room(&self) -> u64 {
        let buffer = self.config.send;
        // It is sized anew when an ACK of data makes room.
        let window = if self.una > 1 { self.cwnd() } else { 0 };
        let wanted = window.saturating_mul(2).max(u64::from(buffer.initial));
        let wanted = wanted.min(u64::from(buffer.max));
        // Linux looks whether there is room before it begins a segment or GSO packet, which it then fills.
        let wanted = wanted.next_multiple_of(u64::from(self.config.gso_max.max(self.mss)));
        (self.una + wanted).saturating_sub(self.nxt)
    }

    /// One byte into a closed window, if that is due.
    fn probe(&self) -> Option<u32> {
        let due = self.una == self.nxt && self.timer == Instant::NEVER;
        (due && self.rtt.backed_off() > 0).then_some(1)
    }

    fn restart_if_idle(&mut self, now: Instant) {
        if self.config.idle_restart && self.una == self.nxt {
            let initial = self.config.initial_window.saturating_mul(self.mss);
            let (idle, rto) = (now.since(self.last_sent), self.rtt.rto(&self.config.rto));
            self.controller.on_idle(idle, rto, initial, &mut self.window);
        }
    }

    fn note_sent(&mut self, mut bytes: u32, now: Instant) {
        self.burst_left = self.burst_left.saturating_sub(u64::from(bytes));
        while bytes > 0 {
            // A FIN behind a full segment is part of it.
            let len = if bytes == self.mss + 1 { bytes } else { bytes.min(self.mss) };
            self.board.sent(self.nxt, len, now);
            self.nxt += u64::from(len);
            bytes -= len;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Duration;
    use crate::tcp::sender::Feedback;
    use crate::tcp::{Buffer, TcpConfig};

    /// Sends all that may go; says how many bytes are outstanding then.
    fn flood(sender: &mut Sender, now: Instant) -> u32 {
        while sender.next(now).is_some() {}
        sender.outstanding()
    }

    #[test]
    fn a_flood_fills_the_first_send_buffer_and_an_ack_opens_the_next() {
        let now = Instant::from_millis(1);
        let send = Buffer { initial: 16_384, max: 1 << 20 };
        let config = Arc::new(TcpConfig { send, ..TcpConfig::linux_2_6() });
        let mut sender = Sender::new(&config);
        sender.syn_sent(Instant::ZERO);
        sender.established(1448, true, 500_001, now);
        sender.write(1_000_000);
        assert_eq!(flood(&mut sender, now), 3 * 1448, "the initial window");
        sender.set_managed(true);
        sender.set_heartbeat(now + Duration::from_secs(1));
        assert_eq!(flood(&mut sender, now), 12 * 1448, "the last one exceeds the buffer");
        let ack =
            Feedback { ack: 1449, right_edge: 500_001, sack: &[], ece: false, has_data: false };
        sender.on_ack(&ack, now);
        // What is left of the peer's window is less than a segment.
        assert_eq!(flood(&mut sender, now), 344 * 1448, "the peer's window");
    }
}
