//! What a front-end may have its port's threads do: one in the data plane, and one in the broker if there is one.
//!
//! # Theory of operation
//! **Goal**: a front-end that connects and goes thousands of times a second, or sends messages without end, takes no time from the workers, whose cores
//! the port's thread may have to share.
//!
//! **How**: a leaky bucket of the thread's CPU time. It may use [`SHARE`] of a core, and [`BURST`] at once, which is more than a VM takes to
//! start; beyond that the thread pauses before it goes on, so that on average it has used no more. Each connection counts as [`CONNECTION`], for
//! what the kernel does outside of the thread, so that a port takes ten at once and then one in 100 ms.
//!
//! The thread keeps its priority: it takes locks that workers wait for, and must not be left waiting for a core while it has one.
//!
//! **Invariant**: over any time t the thread uses at most `BURST` + t * `SHARE`, and the one step that took it over that; and at most
//! [`LONGEST`] passes before it goes on, whatever a step has cost (unmapping a large VM's memory is one).

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Part of a core: a 20th.
const SHARE: u32 = 20;
/// CPU time that may be used at once.
const BURST: Duration = Duration::from_millis(50);
/// What a connection costs besides the CPU time that its messages take.
const CONNECTION: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// How much of its allowance a port's thread has used. See the module's theory of operation.
#[derive(Debug)]
pub struct Allowance {
    /// CPU time that was used and has not leaked away.
    level: Duration,
    at: Instant,
    /// The thread's CPU time until then.
    used: Duration,
}

impl Allowance {
    /// Nothing used at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { level: Duration::ZERO, at: now, used: Duration::ZERO }
    }

    /// Charges a connection.
    pub fn connect(&mut self) {
        self.level += CONNECTION;
    }

    /// Returns how long the thread has to pause at `now`, when it has used `used` of CPU time since it began.
    pub fn pause(&mut self, used: Duration, now: Instant) -> Duration {
        let leaked = now.saturating_duration_since(self.at) / SHARE;
        let spent = used.saturating_sub(self.used);
        (self.at, self.used) = (now, used);
        let most = BURST + LONGEST / SHARE;
        self.level = (self.level.saturating_sub(leaked) + spent).min(most);
        self.level.saturating_sub(BURST) * SHARE
    }
}

/// CPU time that this thread has used.
#[must_use]
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(10);

    /// Steps that cost `cost` of CPU time, `every` so often if there is no pause. Returns how many there were in [`TIME`].
    fn steps(cost: Duration, every: Duration, connects: bool) -> u32 {
        let start = Instant::now();
        let (mut allowance, mut now, mut used, mut steps) =
            (Allowance::new(start), start, Duration::ZERO, 0);
        while now < start + TIME {
            if connects {
                allowance.connect();
            }
            (steps, used) = (steps + 1, used + cost);
            let pause = allowance.pause(used, now + cost);
            assert!(pause <= LONGEST);
            now += cost.max(every) + pause;
        }
        steps
    }

    #[test]
    fn a_front_end_that_connects_without_end_is_taken_ten_times_a_second() {
        let taken = steps(Duration::from_micros(300), Duration::from_micros(500), true);
        assert!((90..=111).contains(&taken), "{taken} in {TIME:?}");
    }

    #[test]
    fn messages_without_end_get_a_twentieth_of_a_core() {
        for micros in [20, 300, 4000] {
            let cost = Duration::from_micros(micros);
            let used = steps(cost, Duration::ZERO, false) * cost;
            let most = BURST + TIME / SHARE + cost;
            assert!(used <= most && used >= TIME / SHARE, "{used:?} of {most:?}");
        }
    }

    #[test]
    fn a_vm_that_starts_does_not_wait() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        allowance.connect();
        for message in 1..=100 {
            let used = Duration::from_micros(200) * message;
            assert_eq!(allowance.pause(used, start + used), Duration::ZERO);
        }
    }

    #[test]
    fn who_has_waited_may_do_it_again() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert_eq!(allowance.pause(Duration::from_secs(5), start), LONGEST);
        let later = start + 2 * LONGEST;
        assert_eq!(allowance.pause(Duration::from_secs(5), later), Duration::ZERO);
    }
}
