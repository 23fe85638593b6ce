//! Rate limit of a port in one direction.
//!
//! # Theory of operation
//! Two token buckets, one of bytes and one of packets; a frame passes if both have enough, and takes from both, or else from none. What counts is what the frame is
//! on a wire: a GSO packet counts with the headers of all its segments, and as so many packets.
//!
//! A burst is never smaller than the largest frame, so that none is refused for ever: a GSO packet of the smallest segments that are believed becomes
//! 1366 packets of up to 122 bytes of headers each. Else it is a tenth of a second's bytes, or what was configured, and a second's packets.
//!
//! **Invariant**: in any interval of `t` seconds at most `burst + rate * t` bytes and packets pass.

use crate::time::Instant;
use crate::token_bucket::TokenBucket;

/// Smallest burst in bytes; no frame has more. See the module's theory of operation.
pub const MIN_BURST_BYTES: u64 = 256 << 10;
/// Smallest burst in packets; no frame is more.
const MIN_BURST_PACKETS: u64 = 1366;

/// What a port may send or receive. The default is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bytes per second; `None` is no limit.
    pub bytes: Option<u64>,
    /// Bytes at once, [`MIN_BURST_BYTES`] at least; `None` is a tenth of a second's.
    pub burst: Option<u64>,
    /// Packets per second; `None` is no limit.
    pub packets: Option<u64>,
}

/// The limit of one port in one direction. See the module's theory of operation.
#[derive(Clone, Debug)]
pub struct RateLimit {
    bytes: Option<TokenBucket>,
    packets: Option<TokenBucket>,
}

impl RateLimit {
    /// A limit whose buckets are full.
    #[must_use]
    pub fn new(rate: Rate, now: Instant) -> Self {
        let bytes = rate.bytes.map(|bytes| {
            let burst = rate.burst.unwrap_or(bytes / 10).max(MIN_BURST_BYTES);
            TokenBucket::new(bytes, burst, now)
        });
        let packets = |n: u64| TokenBucket::new(n, n.max(MIN_BURST_PACKETS), now);
        Self { bytes, packets: rate.packets.map(packets) }
    }

    /// Returns `true` if there is a limit at all.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.bytes.is_some() || self.packets.is_some()
    }

    /// Returns `true` if a frame of so many bytes and packets on the wire may pass at `now`, and takes them. Frames of which all may pass can be asked for as one.
    pub fn admit(&mut self, bytes: u64, packets: u64, now: Instant) -> bool {
        let passes = self.would_admit(bytes, packets, now);
        if passes {
            for (bucket, n) in [(&mut self.bytes, bytes), (&mut self.packets, packets)] {
                let _ = bucket.as_mut().map(|bucket| bucket.take(n, now));
            }
        }
        passes
    }

    /// Returns what [`admit`](Self::admit) would, and takes nothing.
    #[must_use]
    pub fn would_admit(&self, bytes: u64, packets: u64, now: Instant) -> bool {
        let has = |bucket: &Option<TokenBucket>, n: u64| {
            bucket.as_ref().is_none_or(|bucket| bucket.has(n, now))
        };
        has(&self.bytes, bytes) && has(&self.packets, packets)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn passed(limit: &mut RateLimit, len: u64, ms: u64) -> u64 {
        (0..100_000).take_while(|_| limit.admit(len, 1, Instant::from_millis(ms))).count() as u64
    }

    #[test]
    fn a_burst_then_the_rate_in_bytes_and_packets() {
        let bytes = Rate { bytes: Some(10_000_000), ..Rate::default() };
        let mut limit = RateLimit::new(bytes, Instant::ZERO);
        assert_eq!(passed(&mut limit, 1000, 0), 1000);
        assert_eq!(passed(&mut limit, 1000, 10), 100);
        let small = Rate { burst: Some(300_000), ..bytes };
        assert_eq!(passed(&mut RateLimit::new(small, Instant::ZERO), 1000, 0), 300);
        let packets = Rate { packets: Some(2000), ..Rate::default() };
        let mut limit = RateLimit::new(packets, Instant::ZERO);
        assert_eq!(passed(&mut limit, 9000, 0), 2000);
        assert_eq!(passed(&mut limit, 9000, 5), 10);
        assert!(!RateLimit::new(Rate::default(), Instant::ZERO).is_limited());
    }

    #[test]
    fn no_frame_is_too_large_for_a_limit() {
        let slow = Rate { bytes: Some(1), burst: Some(0), packets: Some(1) };
        let mut limit = RateLimit::new(slow, Instant::ZERO);
        let (packets, payload) = (65_535_u64.div_ceil(48), 65_535);
        assert!(limit.admit(payload + packets * 122, packets, Instant::ZERO));
        assert!(!limit.admit(65_535, 1366, Instant::ZERO));
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate(
            rate in 0_u64..2_000_000,
            packets in 0_u64..10_000,
            frames in prop::collection::vec((0_u64..70_000, 1_u64..50, 0_u64..20), 1..300),
        ) {
            let config = Rate { bytes: Some(rate), burst: None, packets: Some(packets) };
            let mut limit = RateLimit::new(config, Instant::ZERO);
            let (mut ms, mut sum) = (0, (0, 0));
            for (len, segments, pause) in frames {
                ms += pause;
                let before = limit.would_admit(len, segments, Instant::from_millis(ms));
                let passes = limit.admit(len, segments, Instant::from_millis(ms));
                prop_assert_eq!(before, passes);
                if passes {
                    sum = (sum.0 + len, sum.1 + segments);
                }
                prop_assert!(sum.0 <= (rate / 10).max(MIN_BURST_BYTES) + rate * ms / 1000);
                prop_assert!(sum.1 <= packets.max(MIN_BURST_PACKETS) + packets * ms / 1000);
            }
        }
    }
}
