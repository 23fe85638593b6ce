//! Round-trip time and retransmission timeout of one flow.
//!
//! # Theory of operation
//! **Goal.** Estimate how long an acknowledgement takes, so that a timeout means a loss and not a
//! slow path.
//!
//! **Smoothing** (RFC 6298 section 2). The first sample `R` gives `srtt = R` and `rttvar = R/2`. Each
//! later one moves `rttvar` by a quarter of its distance to `|srtt - R|`, then `srtt` by an eighth
//! of its distance to `R`. Both are kept scaled (by 8 and by 4), so that these steps lose nothing
//! to rounding. Every acknowledgement may bring a sample; with several in one round trip the
//! estimate follows faster than with one, and the floor of the timeout is what keeps it safe
//! (RFC 7323 appendix G). Who calls follows Karn's rule: no sample from a retransmitted segment,
//! except by timestamps.
//!
//! **Timeout.** `rto = srtt + 4 * rttvar`, held between the limits of [`RtoLimits`] and doubled by each
//! [`back_off`](RttEstimator::back_off). A sample or [`reset_back_off`](RttEstimator::reset_back_off)
//! ends the back-off (RFC 6298 section 5.7; when it should stay, [`is_delay_suspected`](RttEstimator::is_delay_suspected) tells). Without a sample it is one second. The limits
//! are an argument, since they belong to a port and not to a flow.
//!
//! **Minimum.** Two buckets of 5 s: the smallest sample of the current one and of the one before. What
//! [`min_rtt`](RttEstimator::min_rtt) tells is the minimum of at least the last 5 s and at most the
//! last 10 s. A path that became longer is believed after 10 s. If samples stop, the last
//! minimum stays until the next sample.
//!
//! Invariants: `min <= rto <= max` whatever the samples are; no arithmetic overflows; samples are
//! held between 1 µs and 256 s.

use serde::{Deserialize, Serialize};

use crate::time::{Duration, Instant};

/// RFC 6298 section 2.1.
const INITIAL_RTO: Duration = Duration::from_secs(1);
/// Longest sample in microseconds. Times 8 it fits 32 bits.
const MAX_SAMPLE_US: u32 = 256_000_000;
/// Time is cut into units of 2^20 ns (1.05 ms) for the minimum: 32 bits last 52 days.
const UNIT_SHIFT: u32 = 20;
/// Length of a bucket of the minimum in those units: 5 s.
const BUCKET_UNITS: u32 = (5_000_000_000_u64 >> UNIT_SHIFT) as u32;
const NO_SAMPLE: u32 = u32::MAX;
/// Timeouts without a sample from which on Karn's algorithm keeps the back-off.
const KARN_TIMEOUTS: u8 = 2;

/// Bounds of the retransmission timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoLimits {
    /// Never less than this.
    pub min: Duration,
    /// Never more than this; wins if it is less than `min`.
    pub max: Duration,
}

impl RtoLimits {
    /// 200 ms to 120 s, as Linux has it. Linux counts its 200 ms on top of `srtt`; here, as in the
    /// RFC, the minimum is that of the whole timeout.
    pub const LINUX: Self = Self { min: Duration::from_millis(200), max: Duration::from_secs(120) };
    /// 1 s to 60 s (RFC 6298 section 2.4 and 2.5).
    pub const RFC6298: Self = Self { min: Duration::from_secs(1), max: Duration::from_secs(60) };
}

impl Default for RtoLimits {
    fn default() -> Self {
        Self::LINUX
    }
}

/// Smoothed round-trip time, its variation, its recent minimum, and the back-off of the timeout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RttEstimator {
    /// Microseconds times 8; zero before the first sample.
    srtt_8: u32,
    /// Microseconds times 4.
    rttvar_4: u32,
    bucket_min: u32,
    previous_min: u32,
    /// When the current bucket began.
    bucket_start: u32,
    backed_off: u8,
    /// Timeouts since the last sample that a delay of the peer may explain.
    suspicions: u8,
}

const _: () = assert!(size_of::<RttEstimator>() <= 24);

impl Default for RttEstimator {
    fn default() -> Self {
        Self::new()
    }
}

impl RttEstimator {
    /// Without any sample.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            srtt_8: 0,
            rttvar_4: 0,
            bucket_min: NO_SAMPLE,
            previous_min: NO_SAMPLE,
            bucket_start: 0,
            backed_off: 0,
            suspicions: 0,
        }
    }

    /// Returns `false` if no samples lead to it: a stranger has written it.
    pub(crate) fn is_possible(&self) -> bool {
        let is_sample = |us| us == NO_SAMPLE || us <= MAX_SAMPLE_US;
        let minima = [self.bucket_min, self.previous_min];
        self.srtt_8 <= 8 * MAX_SAMPLE_US
            && self.rttvar_4 <= 4 * MAX_SAMPLE_US
            && minima.into_iter().all(is_sample)
    }

    /// Takes a measured round trip and ends the back-off.
    pub fn sample(&mut self, rtt: Duration, now: Instant) {
        self.sample_micros(micros(rtt), now);
    }

    /// [`sample`](Self::sample) of a round trip in nanoseconds.
    #[inline]
    pub(crate) fn sample_nanos(&mut self, rtt: u64, now: Instant) {
        self.sample_micros(u32::try_from(rtt / 1000).unwrap_or(u32::MAX), now);
    }

    #[inline]
    fn sample_micros(&mut self, us: u32, now: Instant) {
        let us = us.clamp(1, MAX_SAMPLE_US);
        self.smooth(us);
        self.note_minimum(us, now);
        self.backed_off = 0;
        self.suspicions = 0;
    }

    /// The timer has expired, and the peer may only have delayed its ACK.
    pub fn suspect_delay(&mut self) {
        self.suspicions = self.suspicions.saturating_add(1);
    }

    /// Returns `true` if that has happened repeatedly without a sample in between: then the back-off should stay until
    /// there is one (Karn's algorithm, RFC 6298 section 5).
    #[must_use]
    #[inline]
    pub fn is_delay_suspected(&self) -> bool {
        self.suspicions >= KARN_TIMEOUTS
    }

    /// Smoothed round-trip time, `None` before the first sample.
    #[must_use]
    pub fn srtt(&self) -> Option<Duration> {
        (self.srtt_8 != 0).then(|| Duration::from_micros(u64::from(self.srtt_8 / 8)))
    }

    /// [`srtt`](Self::srtt) in nanoseconds.
    #[inline]
    pub(crate) fn srtt_nanos(&self) -> Option<u64> {
        self.srtt_micros().map(|micros| u64::from(micros) * 1000)
    }

    /// The same in microseconds.
    #[inline]
    pub(crate) fn srtt_micros(&self) -> Option<u32> {
        (self.srtt_8 != 0).then_some(self.srtt_8 / 8)
    }

    /// Variation of the round-trip time, zero before the first sample.
    #[must_use]
    pub fn rttvar(&self) -> Duration {
        Duration::from_micros(u64::from(self.rttvar_4 / 4))
    }

    /// The smallest sample of the last 5 s to 10 s, `None` before the first sample.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Duration> {
        let us = self.bucket_min.min(self.previous_min);
        (us != NO_SAMPLE).then(|| Duration::from_micros(u64::from(us)))
    }

    /// The retransmission timeout, back-off included.
    #[must_use]
    pub fn rto(&self, limits: &RtoLimits) -> Duration {
        self.timeout_after(Instant::ZERO, limits).since(Instant::ZERO)
    }

    /// When a retransmission timeout that starts to count at `base` is over: `base` and [`rto`](Self::rto), for less.
    #[must_use]
    #[inline]
    pub fn timeout_after(&self, base: Instant, limits: &RtoLimits) -> Instant {
        let zero = Instant::ZERO;
        let (min, max) = ((zero + limits.min).as_nanos(), (zero + limits.max).as_nanos());
        let rto = match self.srtt_8 {
            0 => (zero + INITIAL_RTO).as_nanos(),
            // At least one microsecond of variation: the granularity G of the RFC.
            srtt_8 => (u64::from(srtt_8 / 8) + u64::from(self.rttvar_4.max(1))) * 1000,
        };
        let rto = match self.backed_off {
            0 => rto.max(min),
            n => {
                let doubled = 1_u64.checked_shl(u32::from(n)).unwrap_or(u64::MAX);
                rto.max(min).saturating_mul(doubled)
            }
        };
        Instant::from_nanos(base.as_nanos().saturating_add(rto.min(max)))
    }

    /// Doubles the timeout: the timer has expired (RFC 6298 section 5.5).
    pub fn back_off(&mut self) {
        self.backed_off = self.backed_off.saturating_add(1);
    }

    /// Timeouts since the last sample or [`reset_back_off`](Self::reset_back_off).
    #[must_use]
    pub fn backed_off(&self) -> u8 {
        self.backed_off
    }

    /// Ends the back-off without a sample: new data was acknowledged.
    pub fn reset_back_off(&mut self) {
        self.backed_off = 0;
    }

    fn smooth(&mut self, us: u32) {
        if self.srtt_8 == 0 {
            self.srtt_8 = us * 8;
            self.rttvar_4 = us * 2;
            return;
        }
        let deviation = us.abs_diff(self.srtt_8 / 8);
        self.rttvar_4 = self.rttvar_4 - self.rttvar_4 / 4 + deviation;
        self.srtt_8 = self.srtt_8 - self.srtt_8 / 8 + us;
    }

    fn note_minimum(&mut self, us: u32, now: Instant) {
        let unit = (now.as_nanos() >> UNIT_SHIFT) as u32;
        let age = unit.wrapping_sub(self.bucket_start);
        if age >= BUCKET_UNITS || self.bucket_min == NO_SAMPLE {
            let stale = age >= 2 * BUCKET_UNITS;
            self.previous_min = if stale { NO_SAMPLE } else { self.bucket_min };
            self.bucket_min = NO_SAMPLE;
            self.bucket_start = unit;
        }
        self.bucket_min = self.bucket_min.min(us);
    }
}

/// Whole microseconds, the largest number if there are more.
#[inline]
pub(crate) fn micros(d: Duration) -> u32 {
    let whole = d.as_secs().saturating_mul(1_000_000);
    u32::try_from(whole.saturating_add(u64::from(d.subsec_micros()))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_first_sample_and_the_second() {
        let mut rtt = RttEstimator::new();
        assert_eq!((rtt.srtt(), rtt.min_rtt()), (None, None));
        assert_eq!(rtt.rto(&RtoLimits::LINUX), MS(1000));
        rtt.sample(MS(100), Instant::ZERO);
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(MS(100)), MS(50)));
        assert_eq!(rtt.rto(&RtoLimits::LINUX), MS(300));
        assert_eq!(rtt.rto(&RtoLimits::RFC6298), MS(1000));
        // rttvar = 3/4 * 50 + 1/4 * |100 - 180| = 57.5; srtt = 7/8 * 100 + 1/8 * 180 = 110.
        rtt.sample(MS(180), Instant::from_millis(200));
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(MS(110)), Duration::from_micros(57_500)));
        assert_eq!(rtt.rto(&RtoLimits::LINUX), MS(340));
    }

    #[test]
    fn backs_off_to_the_maximum_and_a_sample_ends_it() {
        let mut rtt = RttEstimator::new();
        rtt.sample(MS(10), Instant::ZERO);
        let limits = RtoLimits::LINUX;
        for n in 0..9 {
            assert_eq!(rtt.rto(&limits), MS(200 << n));
            rtt.back_off();
        }
        for _ in 0..300 {
            rtt.back_off();
            assert!(rtt.rto(&limits) >= MS(102_400) && rtt.rto(&limits) <= limits.max);
        }
        assert_eq!((rtt.rto(&limits), rtt.backed_off()), (limits.max, 255));
        rtt.sample(MS(10), Instant::ZERO);
        assert_eq!((rtt.rto(&limits), rtt.backed_off()), (MS(200), 0));
        rtt.back_off();
        rtt.reset_back_off();
        assert_eq!(rtt.rto(&limits), MS(200));
    }

    #[test]
    fn a_steady_path_converges() {
        let mut rtt = RttEstimator::new();
        rtt.sample(MS(900), Instant::ZERO);
        for _ in 0..200 {
            rtt.sample(Duration::from_micros(123), Instant::ZERO);
        }
        assert_eq!(rtt.srtt(), Some(Duration::from_micros(123)));
        assert!(rtt.rttvar() <= Duration::from_micros(1));
    }

    #[test]
    fn the_minimum_is_forgotten_after_two_buckets() {
        let mut rtt = RttEstimator::new();
        rtt.sample(MS(1), Instant::from_millis(10_000));
        let min_at = |rtt: &mut RttEstimator, ms: u64| {
            rtt.sample(MS(30), Instant::from_millis(ms));
            rtt.min_rtt().unwrap()
        };
        assert_eq!(min_at(&mut rtt, 14_900), MS(1));
        assert_eq!(min_at(&mut rtt, 15_100), MS(1));
        assert_eq!(min_at(&mut rtt, 19_900), MS(1));
        assert_eq!(min_at(&mut rtt, 20_200), MS(30));
        rtt.sample(MS(2), Instant::from_millis(21_000));
        assert_eq!(rtt.min_rtt(), Some(MS(2)));
        assert_eq!(min_at(&mut rtt, 60_000), MS(30));
    }

    proptest! {
        #[test]
        fn rto_stays_in_its_limits(
            samples in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 0..60),
            min in 0_u64..10_000, more in 0_u64..100_000,
        ) {
            let limits = RtoLimits { min: MS(min), max: MS(min + more) };
            let mut rtt = RttEstimator::new();
            for (sample, now, expired) in samples {
                rtt.sample(Duration::from_nanos(sample), Instant::from_nanos(now));
                if expired {
                    rtt.back_off();
                }
                let rto = rtt.rto(&limits);
                prop_assert!(limits.min <= rto && rto <= limits.max);
                prop_assert!(rtt.min_rtt().unwrap() <= Duration::from_secs(256));
            }
        }
    }
}
