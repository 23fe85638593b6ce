//! The congestion window and what happens to it, in bytes.

use serde::{Deserialize, Serialize};

use crate::seq::Seq;
use crate::time::{Duration, Instant};

/// Largest congestion window that growth leads to: no receiver can advertise more (RFC 7323
/// section 2.3).
pub const MAX_CWND: u32 = 1 << 30;

/// The sending window of one flow, all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Congestion window: what may be in flight.
    pub cwnd: u32,
    /// Slow-start threshold; `u32::MAX` until the first congestion.
    pub ssthresh: u32,
    /// Largest segment that is sent, without headers and options. Zero counts as one.
    pub mss: u32,
}

impl Window {
    /// A window before the first congestion. `cwnd` is raised to one MSS if it is less.
    #[must_use]
    pub fn new(mss: u32, cwnd: u32) -> Self {
        let mss = mss.max(1);
        Self { cwnd: cwnd.max(mss), ssthresh: u32::MAX, mss }
    }

    /// `cwnd` is below `ssthresh`.
    #[must_use]
    #[inline]
    pub const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Ends fast recovery: `cwnd` becomes `ssthresh` (RFC 5681 section 3.2 step 6, RFC 6937). Does
    /// nothing if there is no threshold, as after [`on_spurious`](super::Controller::on_spurious)
    /// in the first slow start.
    pub fn leave_recovery(&mut self) {
        if self.ssthresh != u32::MAX {
            self.cwnd = self.ssthresh.min(MAX_CWND).max(self.mss());
        }
    }

    /// A loss was found that needs no recovery: `cwnd` becomes `ssthresh` if it is more. It may be less, after idle time with an initial
    /// window of one segment.
    pub fn lower_to_ssthresh(&mut self) {
        self.lower_cwnd(self.ssthresh);
    }

    /// Sets `ssthresh`, but not below the two MSS of RFC 5681 equation 4.
    pub(super) fn set_ssthresh(&mut self, bytes: u32) {
        self.ssthresh = bytes.max(self.segments(2));
    }

    /// Sets `cwnd` to `bytes`, at least one MSS, and never raises it.
    pub(super) fn lower_cwnd(&mut self, bytes: u32) {
        self.cwnd = self.cwnd.min(bytes.max(self.mss()));
    }

    /// Raises `cwnd` by `bytes`, not above [`MAX_CWND`].
    #[inline]
    pub(super) fn grow(&mut self, bytes: u32) {
        self.cwnd = self.cwnd.max(self.cwnd.saturating_add(bytes).min(MAX_CWND));
    }

    /// Raises `cwnd` by `bytes` but not above `ssthresh`; gives back what was too much.
    #[inline]
    pub(super) fn grow_to_ssthresh(&mut self, bytes: u32) -> u32 {
        let taken = bytes.min(self.ssthresh.saturating_sub(self.cwnd));
        self.grow(taken);
        bytes - taken
    }

    /// Plain slow start: `bytes` were acknowledged. Gives back what is left for congestion avoidance.
    #[inline]
    pub(super) fn slow_start(&mut self, bytes: u32) -> u32 {
        if self.in_slow_start() { self.grow_to_ssthresh(bytes) } else { bytes }
    }

    #[inline]
    pub(super) fn mss(&self) -> u32 {
        self.mss.max(1)
    }

    #[inline]
    pub(super) fn segments(&self, n: u32) -> u32 {
        self.mss().saturating_mul(n)
    }
}

/// Initial window of RFC 6928: ten segments.
#[must_use]
pub fn initial_window(mss: u32) -> u32 {
    let mss = mss.max(1);
    mss.saturating_mul(10).min(mss.saturating_mul(2).max(14_600))
}

/// Initial window of RFC 3390: two to four segments (three of 1460 bytes).
#[must_use]
pub fn initial_window_rfc3390(mss: u32) -> u32 {
    let mss = mss.max(1);
    mss.saturating_mul(4).min(mss.saturating_mul(2).max(4_380))
}

/// What an acknowledgement says to congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// When it arrived.
    pub now: Instant,
    /// Bytes by which it moved `snd_una`; zero for a duplicate.
    pub bytes_acked: u32,
    /// The round trip that it measured, if it did.
    pub rtt: Option<Duration>,
    /// Recent minimum of the round trip ([`RttEstimator::min_rtt`](crate::rtt::RttEstimator::min_rtt)).
    pub min_rtt: Option<Duration>,
    /// Bytes in flight before it: without what was held lost or had been selectively acknowledged.
    pub flight: u32,
    /// The first unacknowledged byte, after it.
    pub snd_una: Seq,
    /// The next byte to send.
    pub snd_nxt: Seq,
    /// Of `bytes_acked`, the bytes that carried congestion-experienced marks: all of them if it has
    /// ECE (RFC 8257 section 3.3), or what more accurate feedback tells.
    pub ecn_bytes: u32,
    /// It has the ECE flag. The window does not grow by such an ACK (RFC 3168 section 6.1.2).
    pub ece: bool,
    /// The congestion window was what kept the sender from sending more, some time in the round trip
    /// that this ACK ends. Without it the window does not grow (RFC 7661 section 4.3; Linux
    /// `is_cwnd_limited`, where slow start counts as limited when more than half of `cwnd` was in
    /// flight at some time of it). False in fast recovery, where [`Prr`](super::Prr) rules.
    pub cwnd_limited: bool,
}

impl Ack {
    /// Bytes by which it lets the window grow: what it acknowledged, but not more than was in flight.
    ///
    /// The bound matters after a timeout: the ACK of the one segment that was sent again may jump over
    /// a whole window that had arrived before (RFC 3465 section 2.3).
    #[inline]
    pub(super) fn growth(&self, w: &Window) -> u32 {
        if !self.cwnd_limited || self.ece {
            return 0;
        }
        self.bytes_acked.min(self.flight.max(w.mss())).min(w.cwnd)
    }
}

/// The circumstances of a congestion signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Congestion {
    /// When it was noticed.
    pub now: Instant,
    /// Bytes sent and not acknowledged when it happened: before the ACK that told of it, and before
    /// anything was marked as lost.
    pub flight: u32,
    /// The congestion window was what kept the sender from sending more.
    pub cwnd_limited: bool,
    /// The first unacknowledged byte.
    pub snd_una: Seq,
    /// The next byte to send.
    pub snd_nxt: Seq,
}

impl Congestion {
    /// The window that was in use: not more than was in flight (RFC 5681 section 3.1) and not more
    /// than `cwnd`, since limited transmit may have sent two segments beyond it (RFC 3042).
    pub(super) fn used(&self, w: &Window) -> u32 {
        self.flight.min(w.cwnd)
    }

    /// `cwnd` if it was the limit: less is in flight then only because segments are sent whole and bursts are limited. RFC 9438 section
    /// 4.6 has the flight size here, and notes that other implementations take `cwnd`, as Linux does.
    pub(super) fn used_or_limit(&self, w: &Window) -> u32 {
        if self.cwnd_limited { w.cwnd } else { self.used(w) }
    }
}

/// Counts round trips: one ends when what was sent at its start is acknowledged.
///
/// A round's end always lies between `snd_una` and `snd_nxt`. If it does not, as before the
/// first ACK, a new round begins: no flag is needed. (A flow whose first window has
/// sequence number 0 in it has a first round that is too short, no more.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Round {
    end: Seq,
}

impl Round {
    /// True if this ACK ends a round, and the next one begins with it.
    #[inline]
    pub(super) fn ended(&mut self, ack: &Ack) -> bool {
        if ack.snd_una.before(self.end) && !self.end.after(ack.snd_nxt) {
            return false;
        }
        self.end = ack.snd_nxt;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_windows() {
        assert_eq!((initial_window(1460), initial_window(1448)), (14_600, 14_480));
        assert_eq!(initial_window(9000), 18_000);
        assert_eq!((initial_window_rfc3390(1460), initial_window_rfc3390(536)), (4_380, 2_144));
        assert_eq!(initial_window_rfc3390(9000), 18_000);
        assert_eq!(initial_window(0), 10);
        let w = Window::new(0, 0);
        assert_eq!((w.cwnd, w.mss), (1, 1));
    }

    #[test]
    fn recovery_ends_at_the_threshold_if_there_is_one() {
        let mut w = Window { cwnd: 3_000, ssthresh: 20_000, mss: 1000 };
        w.leave_recovery();
        assert_eq!(w.cwnd, 20_000);
        w.ssthresh = u32::MAX;
        w.leave_recovery();
        assert_eq!(w.cwnd, 20_000);
    }

    #[test]
    fn growth_stops_at_the_largest_window() {
        let mut w = Window::new(1000, MAX_CWND - 10);
        w.grow(u32::MAX);
        assert_eq!(w.cwnd, MAX_CWND);
        w.cwnd = u32::MAX;
        w.grow(u32::MAX);
        assert_eq!(w.cwnd, u32::MAX);
    }
}
