//! How many bytes a device may hold, so that what it holds is not a queue.
//!
//! # Theory of operation
//! A device (a ring of descriptors, a socket's send buffer) needs enough bytes to be busy until software looks
//! again, and any more is delay that no discipline can undo. The right number depends on the link's rate and on
//! how often completions are seen; [`DynamicLimit`] finds it, and a fixed number serves where it is known.
//!
//! The dynamic limit looks at each report of completions, an *interval* being the time between two reports:
//!
//! - The device ran empty although software had more and was held back by the limit: *starved*. The limit grows by
//!   the bytes that were completed beyond what the interval began with, plus how far over the limit the queue was.
//! - The device was busy for the whole interval: what was still there beyond twice the completions (one interval's worth
//!   to be busy, one for the next report to be late) was *slack*. The least slack of a `hold` time is taken
//!   off the limit. Twice: a limit cut to the bone starves at the first late report.
//! - Otherwise the interval says nothing.
//!
//! The last packet may go over the limit, as in Linux, so a limit smaller than a packet still sends.
//!
//! **Invariants**: the limit stays in its range; a device with nothing outstanding may always be given a packet;
//! what is outstanding is at most the limit and one packet.
//!
//! Source: T. Herbert, byte queue limits; Linux `lib/dynamic_queue_limits.c` (the rules, not the code).

use std::ops::RangeInclusive;

use crate::time::{Duration, Instant};

/// How long slack must be there before the limit shrinks: 1 s, as in Linux.
pub const HOLD: Duration = Duration::from_secs(1);

/// A limit on the bytes that a device holds.
#[derive(Clone, Debug)]
pub struct ByteLimit {
    queued: u64,
    completed: u64,
    policy: Policy,
}

#[derive(Clone, Debug)]
enum Policy {
    Fixed(u64),
    Dynamic(DynamicLimit),
}

impl ByteLimit {
    /// Always `bytes`. Zero lets one packet at a time out.
    #[must_use]
    pub const fn fixed(bytes: u64) -> Self {
        Self { queued: 0, completed: 0, policy: Policy::Fixed(bytes) }
    }

    /// As the device needs, within `range` bytes; starts with the least.
    #[must_use]
    pub fn dynamic(range: RangeInclusive<u64>, now: Instant) -> Self {
        let policy = Policy::Dynamic(DynamicLimit::new(range, now));
        Self { queued: 0, completed: 0, policy }
    }

    /// The device may be given another packet.
    #[inline]
    #[must_use]
    pub fn may_send(&self) -> bool {
        let outstanding = self.outstanding();
        match &self.policy {
            Policy::Fixed(bytes) => outstanding == 0 || outstanding < *bytes,
            // At the limit one more goes out: only a queue that is over it can be seen to starve.
            Policy::Dynamic(dynamic) => outstanding <= dynamic.limit,
        }
    }

    /// The device was given a packet of `len` bytes.
    #[inline]
    pub fn sent(&mut self, len: u32) {
        self.queued += u64::from(len);
        if let Policy::Dynamic(dynamic) = &mut self.policy {
            dynamic.last_packet = len.into();
        }
    }

    /// The device holds `outstanding` bytes now; the others are gone. More than were outstanding changes nothing.
    pub fn report(&mut self, outstanding: u64, now: Instant) {
        let done = self.outstanding().saturating_sub(outstanding);
        if done == 0 {
            return;
        }
        let completed = self.completed + done;
        if let Policy::Dynamic(dynamic) = &mut self.policy {
            dynamic.report(self.queued, self.completed, completed, now);
        }
        self.completed = completed;
    }

    /// Bytes that the device holds, as far as it has said.
    #[inline]
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.queued - self.completed
    }

    /// The limit now.
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match &self.policy {
            Policy::Fixed(bytes) => *bytes,
            Policy::Dynamic(dynamic) => dynamic.limit,
        }
    }
}

/// A limit that follows the device. See the [module](self).
#[derive(Clone, Debug)]
pub struct DynamicLimit {
    limit: u64,
    range: RangeInclusive<u64>,
    /// Bytes of the packet that was queued last.
    last_packet: u64,
    /// All bytes ever queued, at the last report.
    queued_then: u64,
    /// How far over the limit the queue was at the last report, and what had been queued last.
    over_then: u64,
    last_packet_then: u64,
    least_slack: u64,
    slack_since: Instant,
}

impl DynamicLimit {
    fn new(range: RangeInclusive<u64>, now: Instant) -> Self {
        Self {
            limit: *range.start(),
            range,
            last_packet: 0,
            queued_then: 0,
            over_then: 0,
            last_packet_then: 0,
            least_slack: u64::MAX,
            slack_since: now,
        }
    }

    /// Completions went from `before` to `completed`, both out of `queued` bytes ever queued.
    fn report(&mut self, queued: u64, before: u64, completed: u64, now: Instant) {
        let mut over = (queued - before).saturating_sub(self.limit);
        let is_empty = queued == completed;
        // All that was there when the interval began is gone: the device may have been idle since.
        let all_then_gone = completed >= self.queued_then;
        let limit = self.limit;
        if (over > 0 && is_empty) || (self.over_then > 0 && all_then_gone) {
            self.limit += completed.saturating_sub(self.queued_then) + self.over_then;
            self.forget_slack(now);
        } else if !is_empty && self.queued_then > before && !all_then_gone {
            self.note_slack(completed - before, now);
        }
        self.limit = self.limit.clamp(*self.range.start(), *self.range.end());
        if self.limit != limit {
            over = 0;
        }
        self.queued_then = queued;
        self.over_then = over;
        self.last_packet_then = self.last_packet;
    }

    /// The device was busy throughout, and did `done` bytes of work.
    fn note_slack(&mut self, done: u64, now: Instant) {
        let unused = (self.limit + self.over_then).saturating_sub(2 * done);
        // Of a packet that went over the limit, the part below it was not needed either.
        let below = match self.over_then {
            0 => 0,
            over => self.last_packet_then.saturating_sub(over),
        };
        self.least_slack = self.least_slack.min(unused.max(below));
        if now.since(self.slack_since) > HOLD {
            self.limit = self.limit.saturating_sub(self.least_slack);
            self.forget_slack(now);
        }
    }

    fn forget_slack(&mut self, now: Instant) {
        self.slack_since = now;
        self.least_slack = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A wire of `rate` bytes per report, with a backlog that never ends. Answers the idle bytes.
    fn drive(limit: &mut ByteLimit, rate: u64, reports: u64, from_ms: u64) -> u64 {
        let mut idle = 0;
        for i in 0..reports {
            while limit.may_send() {
                limit.sent(1514);
            }
            let held = limit.outstanding();
            idle += rate.saturating_sub(held);
            limit.report(held.saturating_sub(rate), Instant::from_millis(from_ms + i));
        }
        idle
    }

    #[test]
    fn grows_until_the_device_never_idles() {
        let mut limit = ByteLimit::dynamic(0..=1 << 20, Instant::ZERO);
        drive(&mut limit, 125_000, 100, 0);
        assert_eq!(drive(&mut limit, 125_000, 500, 100), 0, "1 Gbit/s, looked at every ms");
        assert!((125_000..300_000).contains(&limit.limit()), "{}", limit.limit());
    }

    #[test]
    fn shrinks_when_the_device_needs_less() {
        let mut limit = ByteLimit::dynamic(0..=1 << 20, Instant::ZERO);
        drive(&mut limit, 125_000, 1000, 0);
        drive(&mut limit, 12_500, 5000, 1000);
        assert!(limit.limit() < 2 * 12_500 + 2 * 1514, "{}", limit.limit());
        assert_eq!(drive(&mut limit, 12_500, 1000, 6000), 0);
    }

    #[test]
    fn a_fixed_limit_is_what_it_is() {
        let mut limit = ByteLimit::fixed(3000);
        drive(&mut limit, 1000, 100, 0);
        assert_eq!(limit.limit(), 3000);
        limit.report(0, Instant::ZERO);
        for sent in [1500, 3000] {
            assert!(limit.may_send());
            limit.sent(1500);
            assert_eq!(limit.outstanding(), sent);
        }
        assert!(!limit.may_send());
        let mut none = ByteLimit::fixed(0);
        assert!(none.may_send());
        none.sent(60);
        assert!(!none.may_send());
    }

    proptest! {
        #[test]
        fn never_beyond_the_limit_and_a_packet_and_never_stuck(
            steps in proptest::collection::vec((60_u32..65_000, 0_u64..200_000, 0_u64..3000), 1..300),
            dynamic: bool,
        ) {
            let range = 2000..=60_000;
            let mut limit = match dynamic {
                true => ByteLimit::dynamic(range.clone(), Instant::ZERO),
                false => ByteLimit::fixed(9000),
            };
            let mut now = 0;
            for (len, drain, ms) in steps {
                now += ms;
                let before = limit.outstanding();
                while limit.may_send() {
                    limit.sent(len);
                }
                // What the device already had may be more, if the limit has shrunk since.
                let most = before.max(limit.limit() + u64::from(len));
                prop_assert!(limit.outstanding() <= most);
                prop_assert!(!dynamic || range.contains(&limit.limit()));
                let held = limit.outstanding();
                limit.report(held.saturating_sub(drain), Instant::from_millis(now));
                prop_assert_eq!(limit.outstanding(), held.saturating_sub(drain));
                prop_assert!(limit.outstanding() > 0 || limit.may_send());
            }
        }
    }
}
