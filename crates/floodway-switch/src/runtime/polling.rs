//! How long a worker polls before it sleeps.
//!
//! # Theory of operation
//! Polling saves a sleep and a wake-up, a kick of the guest, and their latency, if the next frame
//! comes soon. If not, it burns time that a VM on the same core could use. The last sleep tells
//! which it will be: one that ended within the limit would have been avoided by polling, so the
//! budget doubles; a longer one would not, so the budget is halved, down to none. (KVM adapts its
//! halt polling by the same signal.) A sleep that a timer has ended could have been longer: a long one tells as much, a short one nothing.
//!
//! **Invariant**: the budget is at most the limit; with a limit of zero it is zero.

use std::time::Duration;

/// The first step up from no polling at all; below it polling is not worth reading the clock.
const SMALLEST: Duration = Duration::from_micros(2);

/// A polling budget that follows the traffic. See the module's theory of operation.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    limit: Duration,
    budget: Duration,
}

impl Polling {
    /// A budget of at most `limit`, which is where it starts.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, budget: limit }
    }

    /// How long to poll after the last frame.
    #[must_use]
    pub fn budget(&self) -> Duration {
        self.budget
    }

    /// The worker has slept for `slept` after it had polled in vain, until something came or, otherwise, until a timer.
    pub fn adapt(&mut self, slept: Duration, something_came: bool) {
        let is_short = slept <= self.limit;
        if is_short && !something_came {
            return;
        }
        self.budget = if is_short {
            (2 * self.budget).max(SMALLEST).min(self.limit)
        } else if self.budget > SMALLEST {
            self.budget / 2
        } else {
            Duration::ZERO
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn long_sleeps_end_polling_and_short_ones_bring_it_back() {
        let mut polling = Polling::new(50 * US);
        assert_eq!(polling.budget(), 50 * US);
        (0..6).for_each(|_| polling.adapt(1000 * US, true));
        assert_eq!(polling.budget(), Duration::ZERO);
        polling.adapt(20 * US, true);
        assert_eq!(polling.budget(), SMALLEST);
        (0..20).for_each(|_| polling.adapt(20 * US, true));
        assert_eq!(polling.budget(), 50 * US);
    }

    #[test]
    fn a_timer_that_ends_a_short_sleep_says_nothing_and_after_a_long_one_nothing_would_have_come() {
        let mut polling = Polling::new(50 * US);
        polling.adapt(1000 * US, true);
        (0..10).for_each(|_| polling.adapt(20 * US, false));
        assert_eq!(polling.budget(), 25 * US);
        (0..6).for_each(|_| polling.adapt(51 * US, false));
        assert_eq!(polling.budget(), Duration::ZERO);
    }

    #[test]
    fn a_limit_of_zero_never_polls() {
        let mut polling = Polling::new(Duration::ZERO);
        polling.adapt(Duration::ZERO, true);
        assert_eq!(polling.budget(), Duration::ZERO);
    }
}
