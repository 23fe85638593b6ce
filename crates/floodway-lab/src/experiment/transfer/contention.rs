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

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use floodway_report::provenance::ProcessorTime;
use floodway_report::{Measured, Row};

use super::{Emulator, HostLoad, Profile, Transfer, Variant, profile};
use crate::agent::Hog;
use crate::cleanup::Guard;
use crate::experiment::testbed::{Network, Testbed};
use crate::noise::Disturbance;
use crate::vcpu;
use crate::vm::Vm;

/// The core of the VMs.
pub const CONTENDED: usize = 1;
/// The core of everything else.
pub const OTHER: usize = 0;
/// Priority of the emulator's own work, above that of vCPUs in round robin.
const EMULATOR_PRIORITY: u32 = 2;
/// Resolution of what the kernel says of a core.
const TICK: Duration = Duration::from_millis(10);
/// Least time that vCPUs wait for each second that they run where they have time slices at all. Waiting for the emulator alone is a few percent.
const CONTENTION: f64 = 0.1;

/// A testbed whose VMs share a core.
#[derive(Debug)]
pub struct Contended {
    testbed: Testbed,
    threads: Threads,
}

/// QEMU's threads.
#[derive(Debug)]
pub struct Threads {
    vcpus: Vec<i32>,
    /// Others than vCPUs.
    emulators: Vec<i32>,
    /// They run on the contended core now.
    above: AtomicBool,
}

/// How often vCPUs had the contended core, and for how long, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slices {
    /// CPU time of all vCPUs.
    run: Duration,
    /// Time for which they were ready and waited for it.
    wait: Duration,
    /// Times that one of them got the core.
    arrivals: u64,
    /// Times that the emulator got it, where it preempts them.
    preemptions: u64,
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
        let threads = Threads::pin(testbed.guests())?;
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
    /// Puts the vCPUs of the VMs on the contended core, and QEMU's other threads on [`OTHER`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pin(guests: &[Vm]) -> Result<Self> {
        let (mut vcpus, mut emulators) = (Vec::new(), Vec::new());
        for guest in guests {
            vcpus.extend(guest.vcpu_threads()?);
            emulators.extend(guest.other_threads()?);
        }
        vcpus.iter().try_for_each(|&thread| vcpu::pin(thread, &[CONTENDED]))?;
        let threads = Self { vcpus, emulators, above: AtomicBool::default() };
        threads.place_emulators(Emulator::Apart)?;
        Ok(threads)
    }

    /// Puts QEMU's threads other than vCPUs where they are to be.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn place_emulators(&self, emulator: Emulator) -> Result<()> {
        for &thread in &self.emulators {
            match emulator {
                Emulator::Apart => {
                    vcpu::pin(thread, &[OTHER])?;
                    vcpu::set_ordinary(thread)?;
                }
                Emulator::Above => {
                    vcpu::pin(thread, &[CONTENDED])?;
                    vcpu::set_fifo(thread, EMULATOR_PRIORITY)?;
                }
            }
        }
        self.above.store(emulator == Emulator::Above, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the VMs take turns as a profile says, while the guard lives.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn schedule(&self, profile: Profile, emulator: Emulator) -> Result<Option<Guard>> {
        self.place_emulators(emulator)?;
        profile::schedule(profile, &self.vcpus)
    }

    /// Those of QEMU's threads other than vCPUs that run on the contended core; others must not count as the VMs'.
    fn emulators_above(&self) -> &[i32] {
        if self.above.load(Ordering::Relaxed) { &self.emulators } else { &[] }
    }

    /// How often vCPUs had the contended core so far, and for how long. What has no such thread any more did next to nothing.
    pub fn slices(&self) -> Slices {
        let stat = |&thread: &i32| vcpu::schedstat(thread).unwrap_or_default();
        let of_vcpus = self.vcpus.iter().map(stat).fold(Slices::default(), |sum, stat| Slices {
            run: sum.run + stat.run,
            wait: sum.wait + stat.wait,
            arrivals: sum.arrivals + stat.slices,
            ..sum
        });
        let preemptions = self.emulators_above().iter().map(stat).map(|stat| stat.slices).sum();
        Slices { preemptions, ..of_vcpus }
    }

    /// CPU time of the contended core so far.
    ///
    /// # Errors
    /// When there is no such core.
    pub fn core_time(&self) -> Result<CoreTime> {
        let mut vms = Duration::ZERO;
        for &thread in self.vcpus.iter().chain(self.emulators_above()) {
            // A worker of the emulator may have ended; it did next to nothing.
            vms += vcpu::schedstat(thread).map_or(Duration::ZERO, |stat| stat.run);
        }
        Ok(CoreTime { busy: vcpu::cpu_busy(CONTENDED)?, vms })
    }
}

/// What others have of the machine, from now on.
#[derive(Debug)]
pub struct Watch {
    core: CoreTime,
    processors: Option<ProcessorTime>,
    since: Instant,
}

impl Watch {
    /// Begins.
    ///
    /// # Errors
    /// As [`Threads::core_time`].
    pub fn start(threads: &Threads) -> Result<Self> {
        let processors = ProcessorTime::read();
        Ok(Self { core: threads.core_time()?, processors, since: Instant::now() })
    }

    /// What others had until now.
    ///
    /// # Errors
    /// As [`Threads::core_time`].
    pub fn end(&self, threads: &Threads) -> Result<Disturbance> {
        let processors = self.processors.zip(ProcessorTime::read());
        let strangers = threads.core_time()?.strangers_since(self.core);
        let elapsed = self.since.elapsed().max(TICK);
        Ok(Disturbance {
            steal: processors.and_then(|(before, now)| now.steal_since(before)).unwrap_or(0.0),
            // Less than a tick of the accounts is nobody.
            strangers: strangers.saturating_sub(TICK).as_secs_f64() / elapsed.as_secs_f64(),
        })
    }
}

impl Slices {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            run: self.run + other.run,
            wait: self.wait + other.wait,
            arrivals: self.arrivals + other.arrivals,
            preemptions: self.preemptions + other.preemptions,
        }
    }

    /// What came after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            run: self.run.saturating_sub(earlier.run),
            wait: self.wait.saturating_sub(earlier.wait),
            arrivals: self.arrivals.saturating_sub(earlier.arrivals),
            preemptions: self.preemptions.saturating_sub(earlier.preemptions),
        }
    }

    /// Mean time for which a vCPU had the core before another one got it, in ms; none if none had it, or if they hardly waited for it. The emulator preempts a
    /// vCPU for a moment, and the same one goes on after it: that ends no time slice. Where the core was idle when the
    /// emulator got it, a time slice is counted too long for it, so that with much idle time this is an upper bound.
    #[must_use]
    pub fn mean_ms(self) -> Option<f64> {
        if self.hardly_waited() {
            return None;
        }
        let ended =
            self.arrivals.saturating_sub(self.preemptions).max(u64::from(self.arrivals > 0));
        (ended > 0).then(|| self.run.as_secs_f64() * 1e3 / ended as f64)
    }

    /// Returns `true` if vCPUs waited for less than [`CONTENTION`] of the time for which they ran: they slept, and nobody's time slice ended.
    fn hardly_waited(self) -> bool {
        self.wait < self.run.mul_f64(CONTENTION)
    }

    /// What to tell about the length of time slices.
    fn describe(self) -> String {
        match self.mean_ms() {
            Some(mean) => format!("{mean:.1} ms on average"),
            None if self.hardly_waited() => "none, as VMs hardly waited for the core".into(),
            None => "unknown".into(),
        }
    }
}

impl CoreTime {
    /// What others than the VMs used of the core since `earlier`.
    pub fn strangers_since(self, earlier: Self) -> Duration {
        let busy = self.busy.saturating_sub(earlier.busy);
        busy.saturating_sub(self.vms.saturating_sub(earlier.vms))
    }
}

/// Says what a profile is, and how long its time slices were.
pub fn tell(measured: &mut Measured, profile: Profile, emulator: Emulator, slices: Slices) {
    let mean = slices.mean_ms();
    let row = Row::value(format!("vCPU time slice {}", profile.name()), "ms", mean);
    measured.rows.push(row);
    let length = slices.describe();
    let text = format!("{}; measured time slices: {length}", profile.describe(emulator));
    measured.terms.insert(profile.name().into(), text);
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
    fn the_emulator_s_moments_end_no_time_slice() {
        let at = |run, arrivals, preemptions| Slices {
            run: Duration::from_millis(run),
            wait: Duration::from_millis(run),
            arrivals,
            preemptions,
        };
        let apart = at(1100, 60, 0).since(at(100, 10, 0));
        assert_eq!(apart.mean_ms(), Some(20.0));
        assert_eq!(at(1000, 250, 200).mean_ms(), Some(20.0));
        assert_eq!(apart.plus(at(1000, 250, 200)).mean_ms(), Some(20.0));
        assert_eq!(apart.describe(), "20.0 ms on average");
        assert_eq!(at(0, 0, 0).mean_ms(), None);
        assert_eq!(at(10, 1, 5).mean_ms(), Some(10.0), "idle time does not divide by nothing");
    }

    #[test]
    fn vms_that_do_not_wait_for_each_other_have_no_time_slices() {
        let slices = Slices {
            run: Duration::from_secs(20),
            wait: Duration::from_secs(1),
            arrivals: 5010,
            preemptions: 5000,
        };
        assert_eq!(slices.mean_ms(), None);
        assert_eq!(slices.describe(), "none, as VMs hardly waited for the core");
    }

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
