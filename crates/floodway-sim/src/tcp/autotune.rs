//! How large the buffers of a socket are.
//!
//! # Theory of operation
//! **Receive.** A window that is smaller than the bandwidth-delay product throttles the sender; one that is
//! large from the start wastes memory. Dynamic right-sizing: measure how many bytes the application
//! took within one round trip. If that is more than in any round trip before, the window has to hold
//! twice as much, since the sender may double in the next one. The receiver finds its round trip as the time
//! that it takes to receive one window from when that was advertised; with timestamps the age of the clock that
//! comes back is better, with data in both directions the sender's estimate.
//!
//! **Send.** Twice the congestion window (Linux `tcp_sndbuf_expand`): one in flight, one for the
//! application to be ahead with. Linux looks at the window when an ACK makes room (`tcp_new_space`). So a window that is opened
//! all at once, as that of a guest whose flow a switch controls, finds the first size until the first ACK of data.
//!
//! Invariant: neither ever shrinks.

use crate::{Duration, Instant};

/// First and largest size of a buffer in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// At the start.
    pub initial: u32,
    /// At most.
    pub max: u32,
}

/// The receive window of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveTuning {
    window: u32,
    max: u32,
    rtt: Option<Duration>,
    /// The measurement of the round trip that is under way: ends when this offset has come.
    until: u64,
    since: Instant,
    /// The measurement of what the application took.
    round_start: Instant,
    round_offset: u64,
    most: u64,
}

impl ReceiveTuning {
    pub(super) fn new(buffer: Buffer) -> Self {
        Self {
            window: buffer.initial.min(buffer.max),
            max: buffer.max,
            rtt: None,
            until: 0,
            since: Instant::ZERO,
            round_start: Instant::ZERO,
            round_offset: 0,
            most: u64::from(buffer.initial / 2),
        }
    }

    pub(super) const fn window(&self) -> u32 {
        self.window
    }

    /// In-order data was taken by the application up to `offset`. `known` is the sender half's estimate.
    pub(super) fn on_data(&mut self, offset: u64, mss: u32, known: Option<Duration>, now: Instant) {
        if self.window >= self.max {
            return;
        }
        self.measure(offset, now);
        let Some(rtt) = known.or(self.rtt) else { return };
        if now.since(self.round_start) < rtt {
            return;
        }
        let taken = offset.saturating_sub(self.round_offset);
        (self.round_start, self.round_offset) = (now, offset);
        if taken > self.most {
            self.most = taken;
            let wanted = 2 * taken + 16 * u64::from(mss);
            let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
            self.window = self.window.max(wanted.min(self.max));
        }
    }

    fn measure(&mut self, offset: u64, now: Instant) {
        if offset < self.until {
            return;
        }
        if self.until > 0 {
            let sample = now.since(self.since);
            // The smallest so far: an application-limited sender makes windows last longer.
            self.rtt = Some(self.rtt.map_or(sample, |rtt| rtt.min(sample)));
        } else {
            (self.round_start, self.round_offset) = (now, offset);
        }
        (self.until, self.since) = (offset + u64::from(self.window), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    #[test]
    fn a_faster_sender_gets_a_larger_window() {
        let mut tuning = ReceiveTuning::new(Buffer { initial: 64_000, max: 1_000_000 });
        // 32 KB a round trip never fill half of the window.
        for n in 1..10 {
            tuning.on_data(n * 32_000, 1460, Some(Duration::from_millis(10)), MS(n * 10));
        }
        assert_eq!(tuning.window(), 64_000);
        let start = 9 * 32_000;
        tuning.on_data(start + 60_000, 1460, Some(Duration::from_millis(10)), MS(100));
        assert_eq!(tuning.window(), 120_000 + 16 * 1460);
        tuning.on_data(start + 160_000, 1460, Some(Duration::from_millis(10)), MS(110));
        assert_eq!(tuning.window(), 200_000 + 16 * 1460);
        tuning.on_data(start + 9_160_000, 1460, Some(Duration::from_millis(10)), MS(120));
        assert_eq!(tuning.window(), 1_000_000);
    }

    #[test]
    fn a_pure_receiver_measures_by_windows() {
        let mut tuning = ReceiveTuning::new(Buffer { initial: 10_000, max: 1_000_000 });
        for n in 0..100 {
            // A window every 10 ms.
            tuning.on_data(n * 1_000 + 1, 1000, None, Instant::from_micros(n * 1_000));
        }
        assert!(tuning.window() > 30_000, "{}", tuning.window());
    }
}
