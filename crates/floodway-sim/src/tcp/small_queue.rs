//! TCP small queues: how much of a connection may wait below TCP.
//!
//! # Theory of operation
//! **Goal.** A window that widens at once lets go more than the host's own queue holds. A sender that drops its own
//! packets there takes them for losses of the path, and even without drops all others wait behind them. So what is
//! not about to be sent stays in the socket.
//!
//! **State.** The bytes that the connection has in queues of its host: the VM's queue and ring, or the queue and ring of
//! a card; and all that have ever gone there. These queues are served in order, so the difference says what has left them.
//! The owner counts both ([`Packet::charge`](crate::packet::Packet::charge)) and says so before it asks for segments.
//!
//! **Rule.** A segment waits while more than the limit are queued, and anything is unacknowledged: the larger of two such
//! segments and what the connection sends in about a millisecond, and never more than
//! [`TcpConfig::limit_output`](super::TcpConfig::limit_output). The rate is that by which Linux would pace, twice the
//! window per round trip in slow start, 1.2 times later, so that a queue that is served does not run dry between two completions.
//! While a switch controls the flow no such rate is known, and only the upper limit counts. A connection that waits goes on when a
//! packet has left the queues.
//!
//! **Invariants.** A connection that waits has something queued, so it is called again. With nothing unacknowledged a segment
//! is always let go. Pure ACKs are not counted.
//!
//! Source: Linux, `tcp_small_queue_check` and `tcp_update_pacing_rate`, since 3.6; the numbers are those of 4.20 and later.

use crate::Duration;

/// A limit of about a millisecond: `sk_pacing_shift` is 10, so it is 1/1024 s.
pub(super) const PER_SECOND: u64 = 1024;

/// Bytes per second by which Linux would pace.
pub(super) fn pacing_rate(window: u64, slow_start: bool, srtt: Duration) -> u64 {
    let percent = if slow_start { 200 } else { 120 };
    let nanos = (srtt.as_nanos() as u64).max(1);
    let rate = u128::from(window) * percent * 10_000_000 / u128::from(nanos);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// A connection's bytes below TCP.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SmallQueue {
    /// Most bytes; zero: no limit at all.
    most: u32,
    queued: u64,
    taken: u64,
    waits: bool,
}

impl SmallQueue {
    pub(super) const fn new(most: u32) -> Self {
        Self { most, queued: 0, taken: 0, waits: false }
    }

    /// Bytes that are in the host's queues now, of those that they have ever taken.
    pub(super) fn set_queued(&mut self, bytes: u64, taken: u64) {
        (self.queued, self.taken) = (bytes, taken);
        self.waits = false;
    }

    /// Bytes that the host's queues have ever taken.
    pub(super) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes that have left them.
    pub(super) const fn left(&self) -> u64 {
        self.taken - self.queued
    }

    /// Something waits for a packet to leave.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }

    /// A segment of `len` bytes may join what is queued. `rate` in bytes per second, `None` if it is not known.
    pub(super) fn admits(&mut self, len: u32, rate: Option<u64>) -> bool {
        if self.most == 0 || self.queued == 0 {
            return true;
        }
        let limit = rate.map_or(u64::MAX, |rate| (2 * u64::from(len)).max(rate / PER_SECOND));
        self.waits = self.queued > limit.min(u64::from(self.most));
        !self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_segments_or_a_millisecond_or_the_limit() {
        let mut queue = SmallQueue::new(100_000);
        // 1000 bytes per ms.
        let slow = Some(1_024_000);
        queue.set_queued(0, 0);
        assert!(queue.admits(1_500, slow), "an empty queue takes anything");
        queue.set_queued(3_000, 3_000);
        assert!(queue.admits(1_500, slow), "two segments are queued, not more");
        queue.set_queued(3_001, 3_001);
        assert!(!queue.admits(1_500, slow) && queue.waits());
        // 50 KB per ms.
        let fast = Some(51_200_000);
        assert!(queue.admits(1_500, fast) && !queue.waits());
        queue.set_queued(50_001, 50_001);
        assert!(!queue.admits(1_500, fast));
        assert!(queue.admits(1_500, None), "only the limit counts");
        queue.set_queued(100_001, 100_001);
        assert!(!queue.admits(65_000, None));
        assert!(!queue.admits(65_000, Some(u64::MAX)));
    }

    #[test]
    fn none_is_none() {
        let mut queue = SmallQueue::new(0);
        queue.set_queued(u64::MAX, u64::MAX);
        assert!(queue.admits(u32::MAX, Some(1)) && !queue.waits());
    }

    #[test]
    fn the_rate_is_that_of_pacing() {
        let ms = Duration::from_millis(1);
        assert_eq!(pacing_rate(10_000, true, ms), 20_000_000);
        assert_eq!(pacing_rate(10_000, false, ms), 12_000_000);
        assert_eq!(pacing_rate(u64::MAX, true, Duration::ZERO), u64::MAX, "no division by zero");
    }
}
