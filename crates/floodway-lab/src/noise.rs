//! How quiet the machine is: before and after a run, and while a block of it ran.
//!
//! # Theory of operation
//! Before and after a run nothing of ours runs, so a spin loop that is slower at times than at its best was interrupted or ran at another clock rate,
//! and a cache line that takes long between two cores met a busy one or a hypervisor's ([`Quiet`]). The report prints both, and
//! nobody is judged by them.
//!
//! While a block runs, a probe of ours would be noise itself. What can be read then is time that the hypervisor gave to others (*steal*) and time that
//! others than the VMs had on their core ([`Disturbance`]). A block with more than a limit of either is disturbed. Scenarios repeat such a
//! block, at most [`MOST_REPEATS`] times in a cell, so that a busy machine makes a run longer and not endless; a block that was still
//! disturbed then counts, and the report says so. Only samples of a repeated block are dropped: whatever failed in it is still counted as failed.

use std::fmt;
use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use floodway_report::stats;
use serde::Serialize;

use crate::vcpu;

/// Blocks of a cell that are measured again, at most.
pub const MOST_REPEATS: u32 = 3;
/// Largest share of all processors' time that may be stolen during a quiet block.
const STEAL: f64 = 0.02;
/// Largest share of the VMs' core that others may have during a quiet block.
const STRANGERS: f64 = 0.05;
/// Spin loops of a probe, and turns of each: about a millisecond.
const LOOPS: usize = 150;
const TURNS: u32 = 500_000;
/// Round trips of a batch, and batches.
const ROUND_TRIPS: u32 = 200;
const BATCHES: u32 = 50;
/// After so long a probe between cores gives up.
const PATIENCE: Duration = Duration::from_millis(500);
/// Cores of [`Quiet`]: those that experiments use.
const CORES: [usize; 2] = [0, 1];

/// What a probe found while nothing of ours ran. What could not be measured is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quiet {
    /// 90th percentile of the time of a spin loop by its least.
    pub spin: Option<f64>,
    /// Median round trip of a cache line between two cores, in nanoseconds.
    pub round_trip_ns: Option<f64>,
}

impl Quiet {
    /// Measures for a fraction of a second.
    #[must_use]
    pub fn measure() -> Self {
        Self { spin: spin(), round_trip_ns: round_trip_ns(CORES) }
    }
}

impl fmt::Display for Quiet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.spin {
            Some(spin) => write!(
                formatter,
                "spin loop {:.1} % slower at p90 than at its best",
                (spin - 1.0) * 100.0
            )?,
            None => write!(formatter, "spin loop not measured")?,
        }
        match self.round_trip_ns {
            Some(ns) => write!(formatter, ", {ns:.0} ns for a round trip between cores"),
            None => write!(formatter, ", no round trip between cores"),
        }
    }
}

fn spin() -> Option<f64> {
    let times: Vec<f64> = (0..LOOPS)
        .map(|_| {
            let start = Instant::now();
            // Xorshift needs each turn's result for the next one, and registers alone. A sum that goes through memory takes 1 cycle a turn or 5 or more on
            // cores that rename memory, whatever others do.
            let last = (0..TURNS).fold(hint::black_box(1_u64), |x, _| {
                let x = x ^ (x << 13);
                let x = x ^ (x >> 7);
                x ^ (x << 17)
            });
            hint::black_box(last);
            start.elapsed().as_secs_f64()
        })
        .collect();
    let least = stats::quantile(&times, 0.0).filter(|&least| least > 0.0)?;
    Some(stats::quantile(&times, 0.9)? / least)
}

/// Nanoseconds in which a cache line goes from one core to the other and back: the median of batches. Two threads pass a number to and fro, for a few milliseconds.
#[must_use]
pub fn round_trip_ns(cores: [usize; 2]) -> Option<f64> {
    let (number, until) = (AtomicU32::new(0), Instant::now() + PATIENCE);
    let last = 2 * ROUND_TRIPS * BATCHES;
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            pin_to(cores[1])?;
            (1..last).step_by(2).try_for_each(|odd| pass(&number, odd, until))
        });
        let asked = scope.spawn(|| {
            pin_to(cores[0])?;
            (0..BATCHES).map(|batch| batch_ns(&number, batch, until)).collect::<Option<Vec<f64>>>()
        });
        echo.join().ok()??;
        stats::median(&asked.join().ok()??)
    })
}

/// Nanoseconds of a round trip, by the mean of a batch.
fn batch_ns(number: &AtomicU32, batch: u32, until: Instant) -> Option<f64> {
    let start = Instant::now();
    for n in batch * ROUND_TRIPS..(batch + 1) * ROUND_TRIPS {
        pass(number, 2 * n, until)?;
    }
    Some(start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND_TRIPS))
}

/// Waits for a number and adds 1 to it; none if it does not come.
fn pass(number: &AtomicU32, expected: u32, until: Instant) -> Option<()> {
    let mut turns = 0_u32;
    while number.load(Ordering::Acquire) != expected {
        hint::spin_loop();
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1024) && Instant::now() > until {
            return None;
        }
    }
    number.store(expected + 1, Ordering::Release);
    Some(())
}

fn pin_to(core: usize) -> Option<()> {
    // SAFETY: gettid takes no arguments and cannot fail.
    let thread = unsafe { libc::gettid() };
    vcpu::pin(thread, &[core]).ok()
}

/// What others had of the machine while a block ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Disturbance {
    /// Share of all processors' time that was stolen.
    pub steal: f64,
    /// Share of the VMs' core that others had; of a benchmark, of the switch's or the client's, whichever is larger.
    pub strangers: f64,
}

impl Disturbance {
    /// Returns `true` if the block counts as undisturbed.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        self.steal <= STEAL && self.strangers <= STRANGERS
    }
}

/// Repetitions of one cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// Blocks that were measured again.
    pub repeated: u32,
    /// Blocks that count although they were disturbed.
    pub kept: u32,
}

impl Repeats {
    /// Returns `true` if a block that met `disturbance` is to be measured again, and counts it.
    pub fn again(&mut self, disturbance: Disturbance) -> bool {
        if disturbance.is_quiet() {
            return false;
        }
        let again = self.repeated < MOST_REPEATS;
        self.repeated += u32::from(again);
        self.kept += u32::from(!again);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_block_is_repeated_and_not_for_ever() {
        let (quiet, loud) = (Disturbance::default(), Disturbance { steal: 0.5, strangers: 0.0 });
        let crowded = Disturbance { steal: 0.0, strangers: 0.06 };
        let mut repeats = Repeats::default();
        assert!(!repeats.again(quiet) && repeats.again(loud) && repeats.again(crowded));
        assert!(repeats.again(loud), "three times in a cell");
        assert!(!repeats.again(loud) && !repeats.again(quiet));
        assert_eq!(repeats, Repeats { repeated: MOST_REPEATS, kept: 1 });
    }

    #[test]
    fn a_probe_ends_and_says_what_it_found() {
        let quiet = Quiet::measure();
        assert!(quiet.spin.is_some_and(|spin| spin >= 1.0), "{quiet:?}");
        assert!(quiet.to_string().contains("slower at p90"), "{quiet}");
        let none = Quiet { spin: None, round_trip_ns: None }.to_string();
        assert_eq!(none, "spin loop not measured, no round trip between cores");
    }

    #[test]
    fn a_number_that_does_not_come_is_not_waited_for() {
        assert_eq!(pass(&AtomicU32::new(7), 1, Instant::now()), None);
        assert_eq!(pass(&AtomicU32::new(1), 1, Instant::now()), Some(()));
    }
}
