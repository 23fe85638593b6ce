//! Kills a VM without warning and boots it again on the same port.
//!
//! Each cycle kills the second guest (SIGKILL of QEMU), boots it with the same configuration, waits until it
//! reaches the host through the switch, and sends a stream between the guests in both directions, with SHA-256
//! compared at the ends. The switch runs through all cycles, so whatever it fails to give back for a
//! lost VM (descriptors, mappings of guest memory, memory of its own) adds up and shows.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::all_pairs::exchange;
use super::switch_restart::{growth, samples};
use super::testbed::{Network, Testbed};
use super::{Measured, RealScenario, Run};
use crate::kernel::Series;
use crate::switch_process::Usage;

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRestart {
    /// Kernel of the guests.
    pub kernel: Series,
    /// Kills, at least 2.
    pub cycles: u32,
    /// Bytes of one stream in MB, at least 1.
    pub transfer_mb: u64,
}

impl RealScenario for VmRestart {
    fn steps(&self) -> u64 {
        1 + u64::from(self.cycles)
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        ensure!(self.cycles >= 2, "cycles = {}: at least 2, to see a leak", self.cycles);
        ensure!(self.transfer_mb >= 1, "transfer_mb = {}: at least 1", self.transfer_mb);
        run.progress.step("booting two guests");
        let mut testbed = Testbed::start("vrestart", &[self.kernel; 2], &[Network::Floodway])?;
        let mut back = samples("until the guest is back", "s");
        let mut broken = 0_u32;
        let mut usage: Vec<Usage> = Vec::new();
        for cycle in 0..self.cycles {
            run.progress.step(&format!("kill {}/{}", cycle + 1, self.cycles));
            let time = testbed.reboot_guest(1).with_context(|| format!("cycle {}", cycle + 1))?;
            back.value.push(time.as_secs_f64());
            let pairs = [(0, 1), (1, 0)];
            let seed = run.seed.wrapping_add(cycle.into());
            broken += exchange(&testbed, Network::Floodway, &pairs, self.transfer_mb, seed)?;
            usage.push(testbed.switch()?.usage()?);
        }
        let mut measured = Measured::default();
        measured.add_samples(back);
        measured.add_value("streams broken", "streams", broken.into());
        let grown =
            |count: &dyn Fn(&Usage) -> usize| growth(&usage.iter().map(count).collect::<Vec<_>>());
        measured.add_value("descriptors leaked", "descriptors", grown(&|u| u.descriptors));
        measured.add_value("mappings leaked", "mappings", grown(&|u| u.mappings));
        let memory = grown(&|u| usize::try_from(u.anonymous_kib).unwrap_or(usize::MAX));
        measured.add_value("memory grown", "KiB", memory);
        Ok(measured)
    }
}
