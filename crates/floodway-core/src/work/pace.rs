//! How long work takes, as a multiple of what the cost model says.

/// The ratio of time to cost of one member's recent work.
///
/// # Theory of operation
/// What a byte or a descriptor takes depends on where it lies: forwarding a frame of 1500 bytes took 130 to 305 ns on one machine, by how much of
/// it the caches had. No weight is right for all, so the model's cost only says beforehand what a batch will take; the clock says
/// it afterwards. The ratio is a mean over the last [`MEMORY`] nanoseconds of cost, so that batches are cut where they use up the
/// credit, and the clock has little left to correct.
///
/// A turn's time is bounded by multiples of its cost: a thread that was preempted in a turn, or a clock that stands still, is not
/// the member's doing.
///
/// **Invariants**: [`time`](Self::time) is between a [`FASTEST`]th of the cost and [`SLOWEST`] times it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time of a unit of cost, in 1024ths.
    factor: u64,
}

/// A factor of one.
const ONE: u64 = 1024;
/// Nanoseconds of cost that count as much as the next one of them does.
const MEMORY: u64 = 256_000;
/// Shorter turns say nothing: most of their time is that of the turn itself.
const SHORT: u64 = 4_000;
/// Work takes at least this part of its cost.
const FASTEST: u64 = 4;
/// Work takes at most so many times its cost.
const SLOWEST: u64 = 8;

impl Default for Pace {
    /// As the model says.
    fn default() -> Self {
        Self { factor: ONE }
    }
}

impl Pace {
    /// The time in nanoseconds that work of this cost is expected to take.
    #[inline]
    #[must_use]
    pub const fn time(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.factor) / ONE
    }

    /// The cost of the work that is expected to take `time` nanoseconds, at least 1.
    #[inline]
    #[must_use]
    pub const fn cost(&self, time: u64) -> u64 {
        let cost = time.saturating_mul(ONE) / self.factor;
        if cost == 0 { 1 } else { cost }
    }

    /// Work of this cost took `time` nanoseconds. Returns the time within its bounds.
    #[inline]
    pub fn learn(&mut self, cost: u64, time: u64) -> u64 {
        let time = time.clamp(cost / FASTEST, cost.saturating_mul(SLOWEST));
        if cost < SHORT {
            return time;
        }
        let recent = self.factor.saturating_mul(MEMORY);
        let sum = recent.saturating_add(time.saturating_mul(ONE));
        self.factor = (sum / MEMORY.saturating_add(cost)).clamp(ONE / FASTEST, ONE * SLOWEST);
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn work_that_takes_half_of_its_cost_is_expected_to() {
        let mut pace = Pace::default();
        assert_eq!((pace.time(1000), pace.cost(1000)), (1000, 1000));
        for _ in 0..100 {
            assert_eq!(pace.learn(32_000, 16_000), 16_000);
        }
        assert!((495..=505).contains(&pace.time(1000)), "{pace:?}");
        assert!((1980..=2020).contains(&pace.cost(1000)), "{pace:?}");
    }

    #[test]
    fn short_turns_are_charged_for_their_time_and_say_nothing_of_long_ones() {
        let mut pace = Pace::default();
        (0..10_000).for_each(|_| assert_eq!(pace.learn(200, 1400), 1400));
        assert_eq!(pace, Pace::default());
    }

    #[test]
    fn who_was_preempted_is_charged_for_a_bounded_time() {
        let mut pace = Pace::default();
        assert_eq!(pace.learn(32_000, 4_000_000), 8 * 32_000);
        assert!(pace.time(1000) <= 1800, "{pace:?}");
        assert_eq!(Pace::default().learn(32_000, 0), 8_000, "a clock that stands still");
    }

    proptest! {
        /// No history takes the expectation out of its bounds, and none overflows.
        #[test]
        fn what_is_expected_is_bounded(turns in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..50), cost in any::<u32>()) {
            let mut pace = Pace::default();
            for (cost, time) in turns {
                pace.learn(cost, time);
            }
            let (cost, time) = (u64::from(cost), pace.time(cost.into()));
            prop_assert!(time >= cost / 4 && time <= cost * 8);
            prop_assert!(pace.cost(cost) >= 1);
        }
    }
}
