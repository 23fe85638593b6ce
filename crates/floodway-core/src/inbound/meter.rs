//! How fast a VM receives: bytes of the current interval and of the one before.

use crate::time::{Duration, Instant};

/// Length of an interval.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);

/// Bytes per second over the last one to two intervals.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// Number of the current interval.
    interval: u64,
    current: u64,
    previous: u64,
    total: u64,
}

impl Meter {
    /// Bytes have arrived.
    pub fn count(&mut self, bytes: u64, now: Instant) {
        self.turn(now);
        self.current += bytes;
        self.total += bytes;
    }

    /// Bytes that ever arrived.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Bytes per second.
    pub fn rate(&mut self, now: Instant) -> u64 {
        self.turn(now);
        let elapsed = now.as_nanos() % interval_nanos() + interval_nanos();
        let bytes = u128::from(self.previous) + u128::from(self.current);
        (bytes * 1_000_000_000 / u128::from(elapsed)) as u64
    }

    fn turn(&mut self, now: Instant) {
        let interval = now.as_nanos() / interval_nanos();
        match interval.saturating_sub(self.interval) {
            0 => return,
            1 => self.previous = self.current,
            _ => self.previous = 0,
        }
        (self.interval, self.current) = (interval, 0);
    }
}

const fn interval_nanos() -> u64 {
    INTERVAL.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_told_right_at_any_time() {
        let mut meter = Meter::default();
        for ms in 0..1000 {
            meter.count(1000, Instant::from_millis(ms));
            if ms > 100 {
                let rate = meter.rate(Instant::from_millis(ms));
                assert!((990_000..=1_020_000).contains(&rate), "{rate} at {ms}");
            }
        }
        assert_eq!(meter.total(), 1_000_000);
        assert_eq!(meter.rate(Instant::from_millis(1200)), 0);
        assert_eq!(meter.rate(Instant::ZERO), 0, "a clock that steps back");
    }
}
