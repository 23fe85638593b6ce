//! VMs that share one core, with everything else on another.
//!
//! # Theory of operation
//!
//! The vCPU threads run on [`CONTENDED`]. The switch, the other end of the transfers and the lab
//! itself run on [`OTHER`], so that, as with a driver domain on a core of its own, packets move and are answered
//! while a VM waits.
//!
//! QEMU's main loop fires timers and raises interrupts, under a lock that a vCPU needs for each
//! interrupt. Where it runs decides how long time slices are ([`Emulator`]):
//!
//! - *apart*, on [`OTHER`], it holds that lock just when the vCPU that it has interrupted wants it. The
//!   vCPU sleeps for a moment, some 250 times a second (a guest's timer tick), and each time goes to the end
//!   of the queue: time slices are of 1 to 4 ms, whatever the profile says.
//! - *above*, on [`CONTENDED`] and first-in-first-out over the vCPUs, as a hypervisor runs, it is done when the
//!   vCPU goes on, which keeps the rest of its time slice. A vCPU then sleeps 25 times a second, when its guest does.
//!   More transfers fit into one time slice.
//!
//! What strangers used of the contended core is measured (the core's busy time less QEMU's run
//! time), since a VM does not only wait for its like.
//!
//! Under round robin the kernel still gives ordinary threads 5 % of the core if they ask for it
//! (`sched_rt_runtime_us` and the fair server); that is left as it is, as a host that cannot run its own
//! kernel threads would not be one.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Emulator, HostLoad, Profile, Transfer, Variant, profile};
use crate::agent::Hog;
use crate::cleanup::Guard;
use crate::experiment::testbed::{Network, Testbed};
use crate::vcpu;
use crate::vm::Vm;

/// The core of the VMs.
pub const CONTENDED: usize = 1;
/// The core of everything else.
pub const OTHER: usize = 0;
/// Priority of the emulator's own work, above that of vCPUs in round robin.
const EMULATOR_PRIORITY: u32 = 2;

/// A testbed whose VMs share a core.
#[derive(Debug)]
pub struct Contended {
    testbed: Testbed,
    threads: Threads,
}

/// QEMU's threads on the contended core.
#[derive(Debug)]
pub struct Threads {
    vcpus: Vec<i32>,
    /// Others than vCPUs.
    emulators: Vec<i32>,
}

/// CPU time at one moment.
#[derive(Clone, Copy, Debug)]
pub struct CoreTime {
    busy: Duration,
    vms: Duration,
}

impl Contended {
    /// Boots the VMs and puts every thread in its place.
    ///
    /// # Errors
    /// When the machine has only one core, or the testbed does not start.
    pub fn start(name: &str, scenario: &Transfer, host: HostLoad) -> Result<Self> {
        // Not `available_parallelism`: an earlier run in this process has pinned us to one.
        let exists = vcpu::cpu_busy(CONTENDED).is_ok();
        ensure!(exists, "contention needs two cores: one for the VMs, one for the rest");
        pin_all(std::process::id(), OTHER)?;
        let mut networks = vec![Network::Floodway];
        if scenario.variants.contains(&Variant::Bridge) {
            networks.push(Network::Bridge);
        }
        let testbed = Testbed::start(name, &vec![scenario.kernel; host.vms as usize], &networks)?;
        let switch = testbed.switch()?.id().context("the switch does not run")?;
        pin_all(switch, OTHER)?;
        let threads = Threads::place(testbed.guests(), scenario.emulator)?;
        Ok(Self { testbed, threads })
    }

    /// The testbed.
    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// The VM whose transfers are measured.
    pub fn guest(&self) -> &Vm {
        &self.testbed.guests()[0]
    }

    /// The threads of its VMs.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }
}

/// Starts the load in every VM.
///
/// # Errors
/// When a guest refuses.
pub fn load(guests: &[Vm], percent: u32, period: Duration) -> Result<()> {
    if percent == 0 {
        return Ok(());
    }
    let hog = Hog {
        duty: f64::from(percent) / 100.0,
        period_us: u64::try_from(period.as_micros())?,
        vcpus: Vec::new(),
        nice: 0,
    };
    guests.iter().try_for_each(|guest| guest.agent().hog_start(&hog))
}

impl Threads {
    /// Puts the vCPUs of the VMs on the contended core, and QEMU's other threads where they are to be.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn place(guests: &[Vm], emulator: Emulator) -> Result<Self> {
        let (mut vcpus, mut emulators) = (Vec::new(), Vec::new());
        for guest in guests {
            vcpus.extend(guest.vcpu_threads()?);
            emulators.extend(guest.other_threads()?);
        }
        vcpus.iter().try_for_each(|&thread| vcpu::pin(thread, &[CONTENDED]))?;
        match emulator {
            Emulator::Apart => {
                emulators.iter().try_for_each(|&thread| vcpu::pin(thread, &[OTHER]))?;
                // Not on the VMs' core: it must not count as theirs.
                emulators.clear();
            }
            Emulator::Above => {
                for &thread in &emulators {
                    vcpu::pin(thread, &[CONTENDED])?;
                    vcpu::set_fifo(thread, EMULATOR_PRIORITY)?;
                }
            }
        }
        Ok(Self { vcpus, emulators })
    }

    /// Makes the VMs take turns as a profile says, while the guard lives.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn schedule(&self, profile: Profile) -> Result<Option<Guard>> {
        profile::schedule(profile, &self.vcpus)
    }

    /// CPU time of the contended core so far.
    ///
    /// # Errors
    /// When there is no such core.
    pub fn core_time(&self) -> Result<CoreTime> {
        let mut vms = Duration::ZERO;
        for &thread in self.vcpus.iter().chain(&self.emulators) {
            // A worker of the emulator may have ended; it did next to nothing.
            vms += vcpu::schedstat(thread).map_or(Duration::ZERO, |stat| stat.run);
        }
        Ok(CoreTime { busy: vcpu::cpu_busy(CONTENDED)?, vms })
    }
}

impl CoreTime {
    /// What others than the VMs used of the core since `earlier`.
    pub fn strangers_since(self, earlier: Self) -> Duration {
        let busy = self.busy.saturating_sub(earlier.busy);
        busy.saturating_sub(self.vms.saturating_sub(earlier.vms))
    }
}

/// Puts all threads of a process on one CPU; those that it starts later inherit the place of the one that starts them.
///
/// # Errors
/// When there is no such process or CPU.
pub fn pin_all(pid: u32, cpu: usize) -> Result<()> {
    for thread in vcpu::threads(pid)? {
        // A thread may end meanwhile.
        let pinned = vcpu::pin(thread, &[cpu]);
        if vcpu::threads(pid)?.contains(&thread) {
            pinned?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_have_what_the_vms_have_not() {
        let at = |busy, vms| CoreTime {
            busy: Duration::from_millis(busy),
            vms: Duration::from_millis(vms),
        };
        assert_eq!(at(1000, 900).strangers_since(at(100, 50)), Duration::from_millis(50));
        // Ticks are coarser than the scheduler's account.
        assert_eq!(at(1000, 1005).strangers_since(at(0, 0)), Duration::ZERO);
    }
}
