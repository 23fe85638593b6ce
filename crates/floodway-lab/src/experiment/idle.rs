//! What the switch uses while VMs are attached and nobody sends.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::testbed::{Network, Testbed};
use super::{Measured, RealScenario, Run};
use crate::kernel::Series;

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// Kernel of the guests.
    pub kernel: Series,
    /// Guests, 1..=32.
    pub vms: usize,
    /// Wait before measuring, in seconds: booted kernels still announce themselves.
    pub settle_s: u64,
    /// How long to measure, in seconds, at least 1.
    pub window_s: u64,
}

impl RealScenario for Idle {
    fn steps(&self) -> u64 {
        3
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        ensure!((1..=32).contains(&self.vms), "vms = {}: 1 to 32", self.vms);
        ensure!(self.window_s >= 1, "window_s = {}: at least 1", self.window_s);
        run.progress.step(&format!("booting {} guests", self.vms));
        let kernels = vec![self.kernel; self.vms];
        let testbed = Testbed::start("idle", &kernels, &[Network::Floodway])?;
        run.progress.step(&format!("letting them settle for {} s", self.settle_s));
        thread::sleep(Duration::from_secs(self.settle_s));
        run.progress.step(&format!("measuring for {} s", self.window_s));
        let (start, before) = (Instant::now(), testbed.switch()?.usage()?);
        thread::sleep(Duration::from_secs(self.window_s));
        let (elapsed, after) = (start.elapsed(), testbed.switch()?.usage()?);
        let used = after.cpu.saturating_sub(before.cpu);
        let mut measured = Measured::default();
        let percent = 100.0 * used.as_secs_f64() / elapsed.as_secs_f64();
        measured.add_value("switch CPU", "% of a core", percent);
        let memory = u32::try_from(after.anonymous_kib)?;
        measured.add_value("switch memory", "KiB", memory.into());
        Ok(measured)
    }
}
