//! What keeps a VM's processor busy: the hogs of the papers.
//!
//! # Theory of operation
//! A load is busy for a while, then pauses, and so on. The load generators of the papers are not published, and
//! their wording leaves two things open, so both are settings:
//!
//! - *Busy* by processor time (a fixed amount of work), or by the clock on the wall: a loop that looks at the
//!   time, as most load generators do. Such a loop that waits for a processor through its busy time
//!   has done its duty without having run.
//! - *Pause* of a fixed length, or for what is left of a period.
//!
//! The vFlood paper's generator has a period of 30 ms ([`LoadConfig::duty_cycle`]); the memory scan of the
//! small-flows paper sleeps 1 ms after every 100 operations ([`LoadConfig::operations`]).
//!
//! Timers of real guests come late. Without that ([`LoadConfig::late`]), loads with one period keep their phases for ever, and a machine can come into a
//! rhythm that none leaves: a VM that wakes up just before the driver domain does so in every period.

use crate::engine::Rng;
use crate::{Duration, Instant};

/// How long a load is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Until it has run for this long.
    Processor(Duration),
    /// Until this long after it began, run or not.
    Wall(Duration),
}

/// How long a load pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// This long.
    Fixed(Duration),
    /// Until this long after it last began to be busy; not at all if that is over.
    Period(Duration),
}

/// Settings of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// How long it is busy.
    pub busy: Busy,
    /// How long it pauses.
    pub pause: Pause,
    /// When it is busy first. Random numbers of the load are seeded by it.
    pub phase: Duration,
    /// Pauses last longer by a random time from 0 to this, uniformly.
    pub late: Duration,
    /// Operations that are done in one busy time.
    pub operations: u32,
}

impl LoadConfig {
    /// Busy for `percent` of each `period`, by processor time.
    #[must_use]
    pub fn duty_cycle(percent: u32, period: Duration) -> Self {
        Self {
            busy: Busy::Processor(period * percent / 100),
            pause: Pause::Period(period),
            phase: Duration::ZERO,
            late: Duration::ZERO,
            operations: 1,
        }
    }

    /// Sleeps for `pause` after each `operations` operations of `cost` each.
    #[must_use]
    pub fn operations(operations: u32, cost: Duration, pause: Duration) -> Self {
        Self {
            busy: Busy::Processor(cost * operations),
            pause: Pause::Fixed(pause),
            phase: Duration::ZERO,
            late: Duration::ZERO,
            operations,
        }
    }
}

/// What a load does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadStep {
    /// Runs for this long, at most until then.
    Run(Duration, Instant),
    /// Sleeps until then.
    Sleep(Instant),
}

/// A load in a VM.
#[derive(Clone, Debug)]
pub struct Load {
    config: LoadConfig,
    began: Instant,
    /// Of the present busy time; `None` while it pauses.
    left: Option<Duration>,
    wake_at: Instant,
    rounds: u64,
    rng: Rng,
}

impl Load {
    /// A load that pauses until its phase.
    #[must_use]
    pub fn new(config: LoadConfig, now: Instant) -> Self {
        let rng = Rng::new(config.phase.as_nanos() as u64, "load", 0);
        Self { config, began: now, left: None, wake_at: now + config.phase, rounds: 0, rng }
    }

    /// Operations that are done.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.rounds * u64::from(self.config.operations)
    }

    pub(crate) fn next(&mut self, now: Instant) -> LoadStep {
        loop {
            match self.left {
                None if now < self.wake_at => return LoadStep::Sleep(self.wake_at),
                None => self.begin(now),
                Some(left) => {
                    let until = match self.config.busy {
                        Busy::Processor(_) => Instant::NEVER,
                        Busy::Wall(time) => self.began + time,
                    };
                    if !left.is_zero() && now < until {
                        return LoadStep::Run(left, until);
                    }
                    self.finish(now);
                    if self.wake_at <= now {
                        self.begin(now);
                        if self.left == Some(Duration::ZERO) {
                            // A load without work: sleep forever instead of spinning here.
                            return LoadStep::Sleep(Instant::NEVER);
                        }
                    }
                }
            }
        }
    }

    /// It ran, and this much of what it asked for is left.
    pub(crate) fn stopped(&mut self, left: Duration) {
        self.left = self.left.map(|_| left);
    }

    fn lateness(&mut self) -> Duration {
        match self.config.late {
            Duration::ZERO => Duration::ZERO,
            late => Duration::from_nanos(self.rng.below(late.as_nanos() as u64 + 1)),
        }
    }

    fn begin(&mut self, now: Instant) {
        let (Busy::Processor(time) | Busy::Wall(time)) = self.config.busy;
        self.began = match self.config.pause {
            // A period that was slept through exactly begins where it should.
            Pause::Period(_) => self.wake_at.max(now),
            Pause::Fixed(_) => now,
        };
        self.left = Some(time);
    }

    fn finish(&mut self, now: Instant) {
        self.rounds += 1;
        self.left = None;
        let wake_at = match self.config.pause {
            Pause::Fixed(time) => now + time,
            Pause::Period(time) => (self.began + time).max(now),
        };
        // Who does not pause waits for no timer.
        let late = if wake_at > now { self.lateness() } else { Duration::ZERO };
        self.wake_at = wake_at + late;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const AT: fn(u64) -> Instant = Instant::from_millis;

    #[test]
    fn a_duty_cycle_keeps_its_period_unless_it_is_late() {
        let mut load = Load::new(LoadConfig::duty_cycle(60, MS(30)), AT(0));
        assert_eq!(load.next(AT(0)), LoadStep::Run(MS(18), Instant::NEVER));
        load.stopped(MS(5));
        assert_eq!(load.next(AT(13)), LoadStep::Run(MS(5), Instant::NEVER));
        load.stopped(MS(0));
        assert_eq!(load.next(AT(25)), LoadStep::Sleep(AT(30)));
        assert_eq!(load.next(AT(30)), LoadStep::Run(MS(18), Instant::NEVER));
        load.stopped(MS(0));
        // 70 ms late: the next busy time begins at once.
        assert_eq!(load.next(AT(130)), LoadStep::Run(MS(18), Instant::NEVER));
        assert_eq!(load.operations(), 2);
    }

    #[test]
    fn a_loop_that_looks_at_the_wall_ends_without_having_run() {
        let config = LoadConfig {
            busy: Busy::Wall(MS(18)),
            pause: Pause::Fixed(MS(12)),
            ..LoadConfig::duty_cycle(60, MS(30))
        };
        let mut load = Load::new(config, AT(0));
        assert_eq!(load.next(AT(0)), LoadStep::Run(MS(18), AT(18)));
        load.stopped(MS(17));
        assert_eq!(load.next(AT(10)), LoadStep::Run(MS(17), AT(18)));
        assert_eq!(load.next(AT(20)), LoadStep::Sleep(AT(32)));
    }

    #[test]
    fn operations_count_when_they_are_done() {
        let config = LoadConfig::operations(100, Duration::from_micros(20), MS(1));
        let mut load = Load::new(config, AT(0));
        assert_eq!(load.next(AT(0)), LoadStep::Run(MS(2), Instant::NEVER));
        assert_eq!(load.operations(), 0);
        load.stopped(MS(0));
        assert_eq!(load.next(AT(2)), LoadStep::Sleep(AT(3)));
        assert_eq!(load.operations(), 100);
    }

    #[test]
    fn a_pause_is_too_long_by_no_more_than_timers_are_late() {
        let config = LoadConfig { late: MS(4), ..LoadConfig::duty_cycle(60, MS(30)) };
        let mut load = Load::new(config, AT(0));
        let mut late = Vec::new();
        let mut began = AT(0);
        for _ in 0..100 {
            assert_eq!(load.next(began), LoadStep::Run(MS(18), Instant::NEVER));
            load.stopped(MS(0));
            let LoadStep::Sleep(until) = load.next(began + MS(18)) else { panic!("it pauses") };
            late.push(until.since(began + MS(30)));
            began = until;
        }
        let (least, most) = (late.iter().min().unwrap(), late.iter().max().unwrap());
        assert!(*least < MS(1) && (MS(3)..=MS(4)).contains(most), "{late:?}");
    }

    #[test]
    fn who_is_too_late_to_pause_waits_for_no_timer() {
        let config = LoadConfig { late: MS(4), ..LoadConfig::duty_cycle(60, MS(30)) };
        let mut load = Load::new(config, AT(0));
        assert_eq!(load.next(AT(0)), LoadStep::Run(MS(18), Instant::NEVER));
        load.stopped(MS(0));
        assert_eq!(load.next(AT(31)), LoadStep::Run(MS(18), Instant::NEVER));
    }

    #[test]
    fn no_load_sleeps() {
        let mut load = Load::new(LoadConfig::duty_cycle(0, Duration::ZERO), AT(0));
        assert_eq!(load.next(AT(0)), LoadStep::Sleep(Instant::NEVER));
    }
}
