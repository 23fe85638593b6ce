//! Paces what leaves to a rate, for a device that takes everything at once.
//!
//! # Theory of operation
//! A clock runs ahead by the time that each packet takes at the rate; the next packet may leave when the clock is not
//! ahead of now. Software that is late gets up to `slack` of the time back, so that the rate is kept on average
//! although nobody wakes up to the nanosecond. What is left over of a nanosecond is carried on: no drift.
//!
//! Not all lateness is software's: a link that had nothing to send was idle. Whoever knows that nothing waited says so
//! ([`idle`](Shaper::idle)), and less is left to burst with.
//!
//! A wake-up for each packet costs more than the packet does. [`look_at`](Shaper::look_at) is when it pays to look: when
//! some time's worth may leave, or all that waits if that is sooner. Packets then leave *later* than they might, in small bursts, and never
//! earlier: whatever comes meanwhile and is more urgent finds the rate unused, and goes at once.
//!
//! **Invariant**: in any interval of `t`, at most `rate * (t + slack)` bytes and one packet leave.

use crate::time::{Duration, Instant};

const NS_PER_S: u128 = 1_000_000_000;

/// A pacing clock.
#[derive(Clone, Debug)]
pub struct Shaper {
    /// Bytes per second, at least 1.
    rate: u64,
    slack: Duration,
    free_at: Instant,
    /// Part of a nanosecond by which `free_at` is too early, in units of 1/rate.
    carry: u64,
}

impl Shaper {
    /// At most `rate` bytes per second (0 is taken for 1) with `slack` for late software.
    #[must_use]
    pub fn new(rate: u64, slack: Duration) -> Self {
        Self { rate: rate.max(1), slack, free_at: Instant::ZERO, carry: 0 }
    }

    /// When the next packet may leave.
    #[inline]
    #[must_use]
    pub const fn ready_at(&self) -> Instant {
        self.free_at
    }

    /// When to look if `waiting` bytes wait, and what may leave is let collect for up to `release`. In the past if packets
    /// may leave now.
    #[must_use]
    pub fn look_at(&self, waiting: u64, release: Duration, now: Instant) -> Instant {
        if self.free_at <= now {
            return self.free_at;
        }
        let all = u128::from(waiting) * NS_PER_S / u128::from(self.rate);
        self.free_at + release.min(Duration::from_nanos(u64::try_from(all).unwrap_or(u64::MAX)))
    }

    /// Nothing has waited until `now`: of the time that went unused, at most `keep` is left.
    #[inline]
    pub fn idle(&mut self, keep: Duration, now: Instant) {
        let earliest = now - keep;
        if self.free_at < earliest {
            (self.free_at, self.carry) = (earliest, 0);
        }
    }

    /// A packet of `len` bytes leaves at `now`.
    pub fn sent(&mut self, len: u32, now: Instant) {
        self.idle(self.slack, now);
        let total = u128::from(len) * NS_PER_S + u128::from(self.carry);
        let rate = u128::from(self.rate);
        // At one byte a second a packet of 4 GiB takes 2^62 ns; the rest is below the rate.
        self.free_at += Duration::from_nanos((total / rate) as u64);
        self.carry = (total % rate) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_packet_after_the_other_at_the_rate() {
        let mut shaper = Shaper::new(125_000_000, Duration::ZERO);
        let now = Instant::from_micros(10);
        shaper.sent(1500, now);
        assert_eq!(shaper.ready_at(), now + Duration::from_micros(12));
        shaper.sent(1500, shaper.ready_at());
        assert_eq!(shaper.ready_at(), now + Duration::from_micros(24));
    }

    #[test]
    fn nothing_drifts() {
        // 3 bytes a second: 333 333 333.3 ns a byte.
        let mut shaper = Shaper::new(3, Duration::ZERO);
        let start = Instant::from_millis(1);
        for _ in 0..3000 {
            shaper.sent(1, shaper.ready_at().max(start));
        }
        assert_eq!(shaper.ready_at(), start + Duration::from_secs(1000));
    }

    #[test]
    fn a_look_waits_for_what_can_leave_together() {
        let mut shaper = Shaper::new(125_000_000, Duration::from_millis(1));
        let (now, release) = (Instant::from_millis(10), Duration::from_micros(250));
        // It may leave now: no waiting.
        assert!(shaper.look_at(1 << 20, release, now) <= now);
        // The clock is a millisecond behind at most, and each packet moves it by 12 us.
        while shaper.ready_at() <= now {
            shaper.sent(1500, now);
        }
        let ready = shaper.ready_at();
        assert_eq!(shaper.look_at(0, release, now), ready);
        assert_eq!(shaper.look_at(3000, release, now), ready + Duration::from_micros(24));
        assert_eq!(shaper.look_at(u64::MAX, release, now), ready + release);
    }

    #[test]
    fn after_a_rest_there_is_less_to_burst_with_than_after_a_delay() {
        let (keep, slack) = (Duration::from_micros(24), Duration::from_millis(5));
        let burst = |is_idle: bool| {
            let mut shaper = Shaper::new(125_000_000, slack);
            let (now, mut packets) = (Instant::from_millis(1000), 0);
            if is_idle {
                shaper.idle(keep, now);
            }
            while shaper.ready_at() <= now {
                shaper.sent(1500, now);
                packets += 1;
            }
            packets
        };
        assert_eq!((burst(true), burst(false)), (3, 417));
    }

    #[test]
    fn looking_rarely_keeps_the_rate() {
        let release = Duration::from_micros(250);
        let mut shaper = Shaper::new(25_000_000, release);
        let (mut now, mut bytes, mut looks) = (Instant::from_millis(1), 0_u64, 0);
        let end = now + Duration::from_secs(1);
        while now < end {
            while shaper.ready_at() <= now {
                shaper.sent(1514, now);
                bytes += 1514;
            }
            looks += 1;
            now = shaper.look_at(1 << 20, release, now);
        }
        assert!((24_990_000..25_020_000).contains(&bytes), "{bytes}");
        // A look for each packet would be 16 500.
        assert!(looks < 4100, "{looks}");
    }

    proptest! {
        #[test]
        fn every_interval_conforms(
            rate in 1_u64..2_000_000_000,
            slack_us in 0_u64..2000,
            steps in proptest::collection::vec((1_u32..65_536, 0_u64..5_000_000), 1..100),
        ) {
            let slack = Duration::from_micros(slack_us);
            let mut shaper = Shaper::new(rate, slack);
            let (mut now, mut sent) = (1_000_000_000_u64, Vec::new());
            for (len, wait) in steps {
                now += wait;
                if shaper.ready_at() <= Instant::from_nanos(now) {
                    shaper.sent(len, Instant::from_nanos(now));
                    sent.push((now, len));
                }
            }
            for first in 0..sent.len() {
                let mut bytes = 0_u128;
                for &(at, len) in &sent[first..] {
                    let time = u128::from(at - sent[first].0) + slack.as_nanos() + 1;
                    prop_assert!(bytes * NS_PER_S <= u128::from(rate) * time);
                    bytes += u128::from(len);
                }
            }
        }
    }
}
