//! How the flows of a port share its budget.
//!
//! # Theory of operation
//! The budget bounds what a VM can make the switch keep. A flow *uses* what lies between `snd_una`
//! and the right edge that its guest was granted: bytes sent and not acknowledged, bytes held, and
//! bytes granted that the guest has not sent yet, which it may send at any time. To that comes the
//! rounding of windows, less than one unit of the window scale. The sum over all flows never exceeds
//! the budget (invariant I4); each port has a budget of its own, so no VM costs another anything.
//!
//! Within a port the threshold of a flow is dynamic (Choudhury and Hahne): `T_i = alpha_i * (B - Q)`,
//! with `B` the budget and `Q` what all flows use. A single flow with `alpha = 1` gets half of it, two get a
//! third each, and some is always left for the next flow. Source: vFlood section 3.3, eq. 1.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Below this round-trip time a flow gains most by flooding (vFlood section 3.3).
const LOW_RTT: Duration = Duration::from_millis(1);

/// How flows of a port share the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPolicy {
    /// First come, first served.
    None,
    /// The same threshold for all.
    Fair,
    /// A larger threshold for flows with a round-trip time under 1 ms.
    Prioritised,
}

impl BufferPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::None, Self::Fair, Self::Prioritised];

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fair => "fair",
            Self::Prioritised => "prioritised",
        }
    }

    /// What a flow may use, in bytes, when others leave `available` to it: the balance of
    /// `use = in_window + alpha * (available - use)`, so that what it has in flight is no part of its
    /// threshold (eq. 2). `in_window` is the smaller of `cwnd` and the receive window.
    #[must_use]
    pub fn share(self, available: u32, in_window: u32, srtt: Option<Duration>) -> u32 {
        let (available, in_window) = (u64::from(available), u64::from(in_window));
        // What alpha is, as a fraction, decides how much of each counts.
        let share = match self {
            Self::None => available,
            Self::Fair => u64::midpoint(available, in_window),
            // Unmeasured flows are young, and short ones are those that it is all about.
            Self::Prioritised if srtt.is_none_or(|rtt| rtt < LOW_RTT) => {
                (4 * available + in_window) / 5
            }
            Self::Prioritised => (available + 4 * in_window) / 5,
        };
        share.min(available).min(u64::from(u32::MAX)) as u32
    }
}

impl fmt::Display for BufferPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BufferPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or(UnknownPolicy)
    }
}

/// No policy has that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a buffer policy; use none, fair or prioritised")
    }
}

impl std::error::Error for UnknownPolicy {}

/// What is used of a port's budget.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    total: u32,
    used: u32,
}

impl Budget {
    /// `total` bytes, all free.
    #[must_use]
    pub const fn new(total: u32) -> Self {
        Self { total, used: 0 }
    }

    /// Changes the size; what is used beyond it goes away as it is acknowledged.
    pub const fn resize(&mut self, total: u32) {
        self.total = total;
    }

    /// Its size.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Bytes that nobody uses.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.total.saturating_sub(self.used)
    }

    /// Bytes in use.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// A flow uses `now` bytes instead of `before`. The caller has asked [`Budget::free`].
    pub const fn change(&mut self, before: u32, now: u32) {
        self.used = self.used.wrapping_sub(before).wrapping_add(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        let (fast, slow) = (Some(Duration::from_micros(100)), Some(Duration::from_millis(60)));
        assert_eq!(BufferPolicy::None.share(1000, 0, slow), 1000);
        assert_eq!(BufferPolicy::Fair.share(1000, 100, slow), 550);
        assert_eq!(BufferPolicy::Prioritised.share(1000, 0, fast), 800);
        assert_eq!(BufferPolicy::Prioritised.share(1000, 0, None), 800);
        assert_eq!(BufferPolicy::Prioritised.share(1000, 0, slow), 200);
        assert_eq!(BufferPolicy::Fair.share(1000, u32::MAX, None), 1000);
    }

    #[test]
    fn one_fair_flow_gets_half_and_two_a_third_each() {
        for flows in 1..=2 {
            let mut budget = Budget::new(6000);
            let mut used = vec![0; flows];
            for round in 0..40 {
                for u in &mut used {
                    let share = BufferPolicy::Fair.share(budget.free() + *u, 0, None);
                    // What was granted is not taken back, but used up.
                    let next = if round % 2 == 0 { share } else { (*u).min(share) };
                    budget.change(*u, next);
                    *u = next;
                }
            }
            let expected = 6000 / (flows as u32 + 1);
            assert!(used.iter().all(|u| u.abs_diff(expected) < 20), "{used:?}");
        }
    }

    #[test]
    fn names() {
        for policy in BufferPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("best".parse::<BufferPolicy>().is_err());
    }
}
