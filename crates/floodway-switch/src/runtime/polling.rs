//! How long a worker polls before it sleeps.
//!
//! # Theory of operation
//! Polling saves a sleep and a wake-up, a kick of the guest, and their latency, if the next frame
//! comes soon. If not, it burns time that a VM on the same core could use. What can be expected depends on the length of the gap.
//!
//! **Short gaps**, up to the limit (`poll_us`), cost less to poll through than a wake-up does. The last sleep tells whether there are any: one that ended within
//! the limit would have been avoided by polling, so the
//! budget doubles; a longer one would not, so the budget is halved, down to none. (KVM adapts its
//! halt polling by the same signal.) A sleep that a timer has ended could have been longer: a long one tells as much, a short one nothing, nor does a doze (below).
//!
//! **Long gaps**, up to [`REACH`] limits, are those in which a guest works on what it sends next: 100 to 300 µs for a burst of GSO packets. To sleep there costs not
//! only the wake-up: the guest kicks, and the worker comes back to cold caches, for each burst. A mean of the recent long gaps says how long the next
//! one will be. If it is within reach, the worker polls for twice as long, but only out of what it has earned: [`EARNED`] times the time
//! for which it had work, less one part in [`RENT`] of the gaps. So a guest that sends little has little polled for it, one that sends next to nothing has nothing,
//! and all that is polled in vain is a multiple of what was of use: if a tenth of the time is work, and the gaps are long, at most half of a core is used.
//!
//! **Regular gaps** beyond reach, up to [`LONGEST`] reaches, end when they are expected to. The worker *dozes* until shortly before that, then polls until shortly
//! after it: [`SPREADS`] mean deviations (as of RTTs in RFC 6298), and before it one limit more, in which it wakes up. It does so only if what it has earned
//! is enough for all of that. (Linux's hybrid polling for block devices sleeps for half of the mean time of a request.)
//!
//! **A core that others want** is not to be polled on for long. The thread's own clock shows it: a worker that was off its CPU while it polled
//! forgets what it has earned, and that long gaps were within reach.
//!
//! **Invariants**: no polling with a limit of zero; beyond the budget, which is at most the limit, the time that was polled is at most [`EARNED`] times that of work, and
//! one reach.
//!
//! Sources: KVM's halt polling (`Documentation/virt/kvm/halt-polling.rst`); Linux's busy polling of NAPI and its `gro_flush_timeout`, which bound
//! polling by time as well.

use std::ops::Range;
use std::time::Duration;

use floodway_core::time::Instant;

/// The first step up from no polling at all; below it polling is not worth reading the clock.
const SMALLEST: Duration = Duration::from_micros(2);

/// Longest gap to poll through, in limits.
const REACH: u64 = 10;
/// Time to poll in long gaps that a time of work earns.
const EARNED: u64 = 4;
/// Of what was earned one nanosecond is lost in so many of a gap.
const RENT: u64 = 100;
/// A long gap counts for at most so many reaches, so that one of an hour does not hide those that follow.
const LONGEST: u64 = 4;
/// The weight of the last long gap in the mean and the mean deviation is one in this number.
const MEMORY: u64 = 4;
/// How far from the mean a regular gap ends, in mean deviations.
const SPREADS: u64 = 2;
/// Nanoseconds off the CPU that are more than an interrupt's.
const PREEMPTED: u64 = 50_000;

/// How long to poll, by the traffic. See the module's theory of operation.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    limit: Duration,
    budget: Duration,
    /// Longest gap to poll through; this and the times that follow are in nanoseconds.
    reach: u64,
    /// Mean of recent gaps beyond the limit, and their mean deviation from it.
    long_gap: u64,
    deviation: u64,
    /// What may be polled beyond the budget.
    earned: u64,
    /// When there was work for the last time.
    last_work: Instant,
    gap: Gap,
}

/// What has happened in a gap so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    /// There is none: the last round had work.
    None,
    /// Polling within the budget.
    Short,
    /// Asleep until shortly before it is expected to end.
    Dozing,
    /// Polling out of what was earned, since the gap was so long and the thread's own clock was there, until it is so long.
    Long { from: u64, until: u64, cpu: Duration },
    /// Slept.
    Slept,
}

/// What a worker without work does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It looks for work again.
    Poll,
    /// It sleeps, until then at most.
    Doze(Instant),
    /// It sleeps.
    Sleep,
}

impl Polling {
    /// A budget of at most `limit`, which is where it starts.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        let reach = REACH.saturating_mul(nanos(limit));
        Self {
            limit,
            budget: limit,
            reach,
            long_gap: LONGEST.saturating_mul(reach),
            deviation: LONGEST.saturating_mul(reach),
            earned: 0,
            last_work: Instant::ZERO,
            gap: Gap::Slept,
        }
    }

    /// Returns `true` if the worker polls for a while yet, so that it need not look at the clock in each round.
    #[inline]
    #[must_use]
    pub fn is_polling(&self) -> bool {
        !self.limit.is_zero() && (self.gap != Gap::Slept || !self.budget.is_zero())
    }

    /// There was work from `began` until `now`. `cpu` returns the time for which this thread has run.
    #[inline]
    pub fn note_work(&mut self, began: Instant, now: Instant, cpu: impl FnOnce() -> Duration) {
        let mut from = self.last_work;
        if self.gap != Gap::None {
            // A burst may be a single round, which ends the gap by its beginning.
            from = began.max(from);
            self.end_gap(from.nanos_since(self.last_work), cpu);
        }
        let worked = now.nanos_since(from);
        self.earned = self.earned.saturating_add(EARNED * worked).min(self.reach);
        self.last_work = now;
    }

    #[inline(never)]
    fn end_gap(&mut self, gap: u64, cpu: impl FnOnce() -> Duration) {
        self.pay(gap, cpu);
        self.earned = self.earned.saturating_sub(gap / RENT);
        if gap > nanos(self.limit) {
            let longest = LONGEST.saturating_mul(self.reach);
            self.deviation = moved(self.deviation, gap.abs_diff(self.long_gap).min(longest));
            self.long_gap = moved(self.long_gap, gap.min(longest));
        }
        self.gap = Gap::None;
    }

    /// There is no work at `now`. Returns what to do: a worker that is told to sleep may find work instead, when it looks once more.
    pub fn next(&mut self, now: Instant, cpu: impl FnOnce() -> Duration) -> Next {
        let idle = now.as_nanos().saturating_sub(self.last_work.as_nanos());
        if self.gap == Gap::None {
            self.gap = Gap::Short;
        }
        match self.gap {
            Gap::Long { until, .. } if idle < until => return Next::Poll,
            Gap::None | Gap::Short | Gap::Slept if idle < nanos(self.budget) => return Next::Poll,
            Gap::None | Gap::Short | Gap::Dozing => {
                if let Some(next) = self.next_in_long_gap(idle, cpu) {
                    return next;
                }
            }
            Gap::Long { .. } => self.pay(idle, cpu),
            Gap::Slept => {}
        }
        self.gap = Gap::Slept;
        Next::Sleep
    }

    /// What to do in a gap that is longer than the budget; `None` if nothing is expected that would be worth polling for.
    fn next_in_long_gap(&mut self, idle: u64, cpu: impl FnOnce() -> Duration) -> Option<Next> {
        let Range { start, end } = self.affordable()?;
        if idle < start {
            self.gap = Gap::Dozing;
            return Some(Next::Doze(self.last_work + Duration::from_nanos(start)));
        }
        (idle < end).then(|| {
            let from = if self.gap == Gap::Dozing { idle } else { start };
            self.gap = Gap::Long { from, until: end, cpu: cpu() };
            Next::Poll
        })
    }

    /// The part of a gap in which to poll beyond the budget, in nanoseconds since the last work: what is expected, and was earned.
    fn affordable(&self) -> Option<Range<u64>> {
        let (budget, limit) = (nanos(self.budget), nanos(self.limit));
        if self.long_gap <= self.reach / 3 * 2 {
            let more = self.earned.min(2 * self.long_gap).min(self.reach);
            return Some(budget..budget + more);
        }
        let spread = SPREADS.saturating_mul(self.deviation);
        let start = self.long_gap.saturating_sub(spread.saturating_add(limit));
        let end = self.long_gap.saturating_add(spread);
        // A nap of less than the limit is not worth a wake-up.
        (start > budget.saturating_add(limit) && end - start <= self.earned).then_some(start..end)
    }

    /// Pays for what was polled beyond the budget in a gap that has lasted for `gap` nanoseconds.
    fn pay(&mut self, gap: u64, cpu: impl FnOnce() -> Duration) {
        let Gap::Long { from, cpu: before, .. } = self.gap else { return };
        let polled = gap.saturating_sub(from);
        self.earned = self.earned.saturating_sub(polled);
        let ran = nanos(cpu().saturating_sub(before));
        if ran.saturating_add(PREEMPTED) < polled {
            (self.earned, self.long_gap) = (0, LONGEST.saturating_mul(self.reach));
        }
    }

    /// The worker has slept for `slept` after it had polled in vain, until something came or, otherwise, until a timer.
    pub fn adapt(&mut self, slept: Duration, something_came: bool) {
        let is_short = slept <= self.limit;
        // A doze was meant to be long.
        if !something_came && (is_short || self.gap == Gap::Dozing) {
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

/// A mean after another value.
const fn moved(mean: u64, value: u64) -> u64 {
    (mean / MEMORY * (MEMORY - 1)).saturating_add(value / MEMORY)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: Duration = Duration::from_micros(1);

    /// A worker in virtual time, whose rounds take a microsecond.
    struct Host {
        polling: Polling,
        now: Instant,
        /// Microseconds of work, and of polling that found none.
        worked: u64,
        polled: u64,
        /// Sleeps that work has ended.
        sleeps: u64,
        /// Somebody else has the core while this one polls.
        is_preempted: bool,
    }

    impl Host {
        fn new() -> Self {
            let polling = Polling::new(50 * US);
            Self {
                polling,
                now: Instant::ZERO,
                worked: 0,
                polled: 0,
                sleeps: 0,
                is_preempted: false,
            }
        }

        fn cpu(&self) -> Duration {
            let polled = if self.is_preempted { 0 } else { self.polled };
            Duration::from_micros(self.worked + polled)
        }

        /// Work of `work` microseconds, and then none for `gap` microseconds.
        fn burst(&mut self, work: u64, gap: u64) {
            (0..work).for_each(|_| self.round(1));
            self.pause(gap);
        }

        /// A round with work of `work` microseconds.
        fn round(&mut self, work: u64) {
            let began = self.now;
            self.now += Duration::from_micros(work);
            self.worked += work;
            let cpu = self.cpu();
            self.polling.note_work(began, self.now, || cpu);
        }

        /// No work for `gap` microseconds.
        fn pause(&mut self, gap: u64) {
            let end = self.now + Duration::from_micros(gap);
            while self.now < end {
                self.now += US;
                self.polled += 1;
                let cpu = self.cpu();
                let until = match self.polling.next(self.now, || cpu) {
                    Next::Poll => continue,
                    Next::Doze(until) => until.min(end),
                    Next::Sleep => end,
                };
                self.sleeps += u64::from(until == end);
                self.polling.adapt(until.since(self.now), until == end);
                self.now = until;
            }
        }

        /// Sleeps of `count` such bursts.
        fn bursts(&mut self, count: u64, work: u64, gap: u64) -> u64 {
            let before = self.sleeps;
            (0..count).for_each(|_| self.burst(work, gap));
            self.sleeps - before
        }

        /// The part of all time for which the worker ran.
        fn share(&self) -> f64 {
            (self.worked + self.polled) as f64 / (self.now.as_nanos() as f64 / 1000.0)
        }
    }

    #[test]
    fn a_guest_that_works_between_bursts_finds_the_worker_awake() {
        for gap in [60, 100, 200, 300] {
            let mut host = Host::new();
            host.bursts(30, 250, gap);
            assert_eq!(host.bursts(100, 250, gap), 0, "{gap} us");
        }
    }

    /// All frames of a burst are in one batch.
    #[test]
    fn a_burst_of_one_round_earns_what_one_of_many_does() {
        for (work, gap) in [(250, 300), (110, 1500)] {
            let mut host = Host::new();
            let burst = |host: &mut Host| {
                host.round(work);
                host.pause(gap);
            };
            (0..50).for_each(|_| burst(&mut host));
            let before = host.sleeps;
            (0..100).for_each(|_| burst(&mut host));
            assert_eq!(host.sleeps, before, "{gap} us");
        }
    }

    /// Bursts whose frames are made available one by one.
    #[test]
    fn short_gaps_within_a_burst_do_not_hide_the_long_one_behind_it() {
        let mut host = Host::new();
        let burst = |host: &mut Host| {
            (0..30).for_each(|_| host.burst(8, 5));
            host.burst(8, 200);
        };
        (0..30).for_each(|_| burst(&mut host));
        let before = host.sleeps;
        (0..100).for_each(|_| burst(&mut host));
        assert_eq!(host.sleeps, before);
    }

    #[test]
    fn a_worker_dozes_through_regular_gaps_and_is_awake_when_they_end() {
        for (work, gap) in [(110, 1500), (60, 1000), (150, 1900)] {
            let mut host = Host::new();
            host.bursts(50, work, gap);
            let (now, ran) = (host.now, host.worked + host.polled);
            assert_eq!(host.bursts(100, work, gap), 0, "{gap} us");
            let ran = Duration::from_micros(host.worked + host.polled - ran);
            // The gap's first and last limit, besides work.
            let least = Duration::from_micros(100 * (work + 100));
            assert!(ran < least + least / 10, "{ran:?} in {:?}", host.now.since(now));
        }
    }

    #[test]
    fn short_gaps_within_a_burst_are_polled_through_although_it_was_dozed_before() {
        for short in [3, 8, 20, 40] {
            let mut host = Host::new();
            let burst = |host: &mut Host| {
                (0..12).for_each(|_| host.burst(8, short));
                host.burst(8, 1500);
            };
            (0..50).for_each(|_| burst(&mut host));
            let before = host.sleeps;
            (0..100).for_each(|_| burst(&mut host));
            assert_eq!(host.sleeps, before, "gaps of {short} us");
        }
    }

    #[test]
    fn gaps_that_are_not_regular_or_too_long_to_know_are_slept_through() {
        for gaps in [[700, 1900], [2500, 2500], [600, 5000]] {
            let mut host = Host::new();
            let bursts = |host: &mut Host| {
                (0..50).for_each(|_| gaps.iter().for_each(|&gap| host.burst(110, gap)));
            };
            bursts(&mut host);
            let (polled, sleeps) = (host.polled, host.sleeps);
            bursts(&mut host);
            assert_eq!(host.sleeps - sleeps, 100, "{gaps:?}");
            assert!(host.polled - polled <= 200, "{} us in {gaps:?}", host.polled - polled);
        }
    }

    #[test]
    fn polling_for_a_guest_that_sends_little_costs_a_multiple_of_what_it_sends() {
        // 10 % of the time is work; the gaps are within reach, and beyond it.
        for (work, gap) in [(25, 225), (40, 360), (100, 900), (500, 4500)] {
            let mut host = Host::new();
            host.bursts(2000, work, gap);
            assert!(host.share() <= 0.5, "{work} us and {gap} us: {}", host.share());
        }
    }

    #[test]
    fn an_idle_host_costs_less_than_a_hundredth_of_a_core() {
        for gap in [1500, 10_000, 1_000_000] {
            let mut host = Host::new();
            host.bursts(200, 5, gap);
            let (before, polled) = (host.now, host.polled);
            host.bursts(100, 5, gap);
            let polled = Duration::from_micros(host.polled - polled);
            assert!(100 * polled < host.now.since(before), "{polled:?} in gaps of {gap} us");
        }
    }

    #[test]
    fn answers_that_come_at_once_find_the_worker_awake() {
        let mut host = Host::new();
        assert_eq!(host.bursts(1000, 2, 30), 0);
    }

    #[test]
    fn a_worker_that_others_take_the_core_from_sleeps_in_long_gaps() {
        let mut host = Host::new();
        host.bursts(30, 250, 200);
        host.is_preempted = true;
        host.bursts(2, 250, 200);
        assert_eq!(host.bursts(5, 250, 200), 5);
    }

    proptest! {
        /// Beyond the budget, no traffic has more polled for it than was earned.
        #[test]
        fn what_is_polled_in_long_gaps_is_bounded_by_work(
            bursts in proptest::collection::vec((0_u64..300, 0_u64..700), 1..200),
        ) {
            let mut host = Host::new();
            let (mut beyond, reach) = (0, 500);
            for (work, gap) in bursts {
                let (polled, budget) = (host.polled, host.polling.budget);
                host.burst(work, gap);
                beyond += (host.polled - polled).saturating_sub(budget.as_micros() as u64 + 1);
                prop_assert!(beyond <= EARNED * host.worked + reach);
            }
        }
    }

    #[test]
    fn long_sleeps_end_polling_and_short_ones_bring_it_back() {
        let mut polling = Polling::new(50 * US);
        assert_eq!(polling.budget, 50 * US);
        (0..6).for_each(|_| polling.adapt(1000 * US, true));
        assert_eq!(polling.budget, Duration::ZERO);
        polling.adapt(20 * US, true);
        assert_eq!(polling.budget, SMALLEST);
        (0..20).for_each(|_| polling.adapt(20 * US, true));
        assert_eq!(polling.budget, 50 * US);
    }

    #[test]
    fn a_timer_that_ends_a_short_sleep_says_nothing_and_after_a_long_one_nothing_would_have_come() {
        let mut polling = Polling::new(50 * US);
        polling.adapt(1000 * US, true);
        (0..10).for_each(|_| polling.adapt(20 * US, false));
        assert_eq!(polling.budget, 25 * US);
        (0..6).for_each(|_| polling.adapt(51 * US, false));
        assert_eq!(polling.budget, Duration::ZERO);
    }

    #[test]
    fn a_limit_of_zero_never_polls() {
        let mut polling = Polling::new(Duration::ZERO);
        polling.adapt(Duration::ZERO, true);
        assert_eq!(polling.budget, Duration::ZERO);
        for us in 1..1000 {
            let now = Instant::ZERO + us * US;
            polling.note_work(now, now, || Duration::ZERO);
        }
        assert!(!polling.is_polling());
        assert_eq!(polling.next(Instant::ZERO + 1000 * US, || Duration::ZERO), Next::Sleep);
    }
}
