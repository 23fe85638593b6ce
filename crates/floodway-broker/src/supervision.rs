//! Why a data plane ended, and when the next one starts.
//!
//! # Theory of operation
//! A data plane that ends is replaced at once: every millisecond is one without frames. One that had not lived for long ([`YOUNG`]) may die of its start, and
//! then replacing it at once would burn a core and fill the log; so after it comes a pause, doubled each time up to the longest ([`LONGEST_PAUSE`] unless a test
//! wants another). One that lived longer ends the series.
//!
//! A data plane that hangs is found by its signs of life: none at [`SILENT_LOOKS`] looks, and it is killed. Looks are counted and not time, since a host that
//! lets nobody run for a while lets the broker look as little as the data plane give signs.

use std::fmt;
use std::time::Duration;

/// A data plane that ended before this age may have died of its start.
pub const YOUNG: Duration = Duration::from_secs(10);
/// The pause after the second young death in a row; the first has none.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, if nobody says otherwise.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time between two looks for signs of life.
pub const LOOK: Duration = Duration::from_millis(500);
/// Looks without a sign after which a data plane is dead.
pub const SILENT_LOOKS: u32 = 10;
/// The same for one that is not ready: it may have many devices to open.
pub const START_LOOKS: u32 = 120;

/// Why a data plane ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this exit code.
    Exited(i32),
    /// By a signal of somebody's, or of the kernel's.
    Signalled(i32),
    /// Killed: it gave no sign of life.
    Silent,
    /// Killed: it broke the protocol.
    Fault(String),
    /// It was started by a broker that has died, and only a parent is told.
    Unknown,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "it ended with exit code {code}"),
            Self::Signalled(signal) => write!(f, "signal {signal} ({})", name(*signal)),
            Self::Silent => write!(f, "it gave no sign of life"),
            Self::Fault(fault) => write!(f, "it broke the protocol: {fault}"),
            Self::Unknown => write!(f, "unknown: its broker had died before it"),
        }
    }
}

impl End {
    /// Returns `true` if it was something that the data plane did, and not what somebody did to it, as far as that shows. `SIGKILL` comes from
    /// operators, and where memory has run out.
    #[must_use]
    pub fn is_crash(&self) -> bool {
        use rustix::process::Signal;
        let faults =
            [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::ILL, Signal::FPE, Signal::SYS];
        match self {
            Self::Signalled(signal) => faults.iter().any(|fault| fault.as_raw() == *signal),
            Self::Silent => true,
            Self::Exited(_) | Self::Fault(_) | Self::Unknown => false,
        }
    }
}

/// What a signal means to an operator.
fn name(signal: i32) -> &'static str {
    use rustix::process::Signal;
    let names = [
        (Signal::ABORT, "SIGABRT: a panic, or a thread that stood still"),
        (Signal::KILL, "SIGKILL: killed, perhaps for want of memory"),
        (Signal::SEGV, "SIGSEGV: a fault of the program"),
        (Signal::BUS, "SIGBUS: memory that went away"),
        (Signal::ILL, "SIGILL: a fault of the program"),
        (Signal::SYS, "SIGSYS: a system call outside the sandbox"),
        (Signal::TERM, "SIGTERM"),
    ];
    let found = names.into_iter().find(|(known, _)| known.as_raw() == signal);
    found.map_or("see signal(7)", |(_, name)| name)
}

/// When the next data plane starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restarts {
    longest: Duration,
    total: u32,
    /// Young deaths in a row.
    series: u32,
}

impl Restarts {
    /// None so far; no pause is to be longer than `longest`.
    #[must_use]
    pub const fn new(longest: Duration) -> Self {
        Self { longest, total: 0, series: 0 }
    }

    /// So many had ended under brokers of before.
    pub(crate) fn resume(&mut self, ended: u32) {
        self.total = ended;
    }

    /// Data planes that have ended.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// A data plane has ended at the age of `lived`. Returns how long to wait before the next one starts.
    pub fn on_end(&mut self, lived: Duration) -> Duration {
        self.total = self.total.saturating_add(1);
        self.series = if lived < YOUNG { self.series.saturating_add(1) } else { 0 };
        match self.series {
            0 | 1 => Duration::ZERO,
            n => FIRST_PAUSE.saturating_mul(1 << (n - 2).min(16)).min(self.longest),
        }
    }
}

/// A data plane's signs of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    is_ready: bool,
    count: u64,
    /// Looks since the last sign.
    looks: u32,
}

impl Pulse {
    /// The data plane serves.
    pub fn on_ready(&mut self) {
        (self.is_ready, self.looks) = (true, 0);
    }

    /// Returns `true` once the data plane serves.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// It has given sign `count`. One that repeats itself does not live.
    pub fn on_sign(&mut self, count: u64) {
        if count > self.count {
            (self.count, self.looks) = (count, 0);
        }
    }

    /// To be called every [`LOOK`]. Returns `true` if the data plane is dead.
    pub fn look(&mut self) -> bool {
        self.looks += 1;
        self.looks >= if self.is_ready { SILENT_LOOKS } else { START_LOOKS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_death_has_no_pause_and_a_series_of_them_longer_ones() {
        let mut restarts = Restarts::new(LONGEST_PAUSE);
        let second = Duration::from_secs(1);
        let pauses: Vec<_> = (0..9).map(|_| restarts.on_end(second).as_millis()).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(restarts.on_end(YOUNG), Duration::ZERO, "this one had lived");
        assert_eq!(restarts.on_end(second), Duration::ZERO, "a new series");
        assert_eq!(restarts.total(), 11);
        for _ in 0..100 {
            assert!(restarts.on_end(second) <= LONGEST_PAUSE);
        }
        let mut hurried = Restarts::new(Duration::ZERO);
        assert!((0..9).all(|_| hurried.on_end(second).is_zero()));
    }

    #[test]
    fn a_sign_that_repeats_itself_is_none() {
        let mut pulse = Pulse::default();
        pulse.on_ready();
        let mut dead = |signs: &[u64]| {
            let mut died = false;
            for _ in 0..SILENT_LOOKS - 1 {
                signs.iter().for_each(|&sign| pulse.on_sign(sign));
                died |= pulse.look();
            }
            died
        };
        assert!(!dead(&[1]), "the first of them is one");
        assert!(dead(&[1, 0]));
        assert!(!dead(&[2]));
    }

    #[test]
    fn a_data_plane_that_starts_has_more_time() {
        let mut pulse = Pulse::default();
        assert_eq!((1..).find(|_| pulse.look()), Some(START_LOOKS));
        pulse.on_ready();
        assert_eq!((1..).find(|_| pulse.look()), Some(SILENT_LOOKS));
    }

    #[test]
    fn what_somebody_does_to_a_data_plane_is_no_crash() {
        let signals =
            |numbers: &[i32]| numbers.iter().map(|&n| End::Signalled(n)).collect::<Vec<_>>();
        assert!(signals(&[4, 6, 7, 8, 11, 31]).iter().all(End::is_crash) && End::Silent.is_crash());
        assert!(!signals(&[2, 9, 15, 64]).iter().any(End::is_crash));
        assert!(!End::Exited(1).is_crash() && !End::Fault(String::new()).is_crash());
    }

    #[test]
    fn the_reason_is_one_that_an_operator_can_use() {
        let texts = [End::Signalled(9), End::Exited(1), End::Signalled(64), End::Silent]
            .map(|end| end.to_string());
        assert_eq!(
            texts,
            [
                "signal 9 (SIGKILL: killed, perhaps for want of memory)",
                "it ended with exit code 1",
                "signal 64 (see signal(7))",
                "it gave no sign of life",
            ]
        );
    }
}
