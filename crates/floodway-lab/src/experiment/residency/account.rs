//! What each party had of the CPUs: the columns of Xenmon, from the kernel's accounts of threads.
//!
//! A VM *runs*, *waits* for a CPU, or is *blocked* (the rest of the time). A *switch* is a time slice on a CPU, and CPU time *per execution* what one
//! such time slice was long. The driver, Xen's domain 0, is all that moves packets between VMs and is none: QEMU's threads other than vCPUs, and
//! the switch. A bridge's work is done by whoever hands it a frame, which is one of QEMU's threads here.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Cores;
use crate::experiment::testbed::{Network, Testbed};
use crate::vcpu::{self, SchedStat};

/// Threads of each party.
#[derive(Clone, Debug)]
pub(super) struct Parties {
    sender: Vec<i32>,
    receiver: Vec<i32>,
    driver: Vec<i32>,
}

impl Parties {
    pub fn of(testbed: &Testbed) -> Result<Self> {
        let [sender, receiver] = testbed.guests() else {
            anyhow::bail!("a sender and a receiver are needed, and no other");
        };
        let mut driver = vcpu::threads(testbed.switch()?.id().context("the switch does not run")?)?;
        driver.extend(sender.other_threads()?);
        driver.extend(receiver.other_threads()?);
        Ok(Self { sender: sender.vcpu_threads()?, receiver: receiver.vcpu_threads()?, driver })
    }

    /// Puts every thread where it is to run.
    pub fn place(&self, cores: Cores) -> Result<()> {
        let (sender, driver): (usize, &[usize]) = match cores {
            Cores::Shared => (1, &[0]),
            Cores::Separate => (0, &[0, 1]),
        };
        let pin = |threads: &[i32], cpus: &[usize]| {
            threads.iter().try_for_each(|&thread| vcpu::pin(thread, cpus))
        };
        pin(&self.sender, &[sender])?;
        pin(&self.receiver, &[1])?;
        // Some of QEMU's come and go.
        self.driver.iter().for_each(|&thread| drop(vcpu::pin(thread, driver)));
        Ok(())
    }
}

/// What the parties had up to one moment, or between two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accounts {
    at: Instant,
    length: Duration,
    sender: SchedStat,
    receiver: SchedStat,
    driver: SchedStat,
    /// Interrupts of the receiver by the switch, and frames to it.
    interrupts: f64,
    frames: f64,
}

impl Accounts {
    pub fn read(testbed: &Testbed, parties: &Parties) -> Result<Self> {
        let status = testbed.switch()?.client()?.status()?;
        let queues = status.ports.get(1).map_or(&[][..], |port| &port.queues);
        let interrupts: u64 = queues.iter().map(|queue| queue.rx.notifications.sent).sum();
        let frames: u64 = queues.iter().map(|queue| queue.rx.traffic.packets).sum();
        Ok(Self {
            at: Instant::now(),
            length: Duration::ZERO,
            sender: sum(&parties.sender),
            receiver: sum(&parties.receiver),
            driver: sum(&parties.driver),
            interrupts: interrupts as f64,
            frames: frames as f64,
        })
    }

    pub fn since(self, before: &Self) -> Self {
        Self {
            length: self.at - before.at,
            sender: since(self.sender, before.sender),
            receiver: since(self.receiver, before.receiver),
            driver: since(self.driver, before.driver),
            interrupts: self.interrupts - before.interrupts,
            frames: self.frames - before.frames,
            ..self
        }
    }

    /// Seconds between the two moments.
    pub fn seconds(&self) -> f64 {
        self.length.as_secs_f64()
    }

    /// Name, unit and value of each figure.
    pub fn figures(&self, network: Network) -> Vec<(String, &'static str, f64)> {
        let percent = |time: Duration| 100.0 * time.as_secs_f64() / self.length.as_secs_f64();
        let mut figures = Vec::new();
        for (party, stat) in [("sender", self.sender), ("receiver", self.receiver)] {
            let (run, wait) = (percent(stat.run), percent(stat.wait));
            figures.push((format!("{party} runs"), "%", run));
            figures.push((format!("{party} waits"), "%", wait));
            figures.push((format!("{party} blocked"), "%", (100.0 - run - wait).max(0.0)));
            let switches = stat.slices as f64;
            let rate = switches / self.length.as_secs_f64();
            figures.push((format!("{party} switches"), "1/s", rate));
            let execution = stat.run.as_secs_f64() * 1e6 / switches.max(1.0);
            figures.push((format!("{party} per execution"), "us", execution));
        }
        figures.push(("driver runs".into(), "%", percent(self.driver.run)));
        if network == Network::Floodway && self.frames > 0.0 {
            let each = self.interrupts / self.frames;
            figures.push(("interrupts for a frame".into(), "1", each));
        }
        figures
    }
}

/// The sum over threads; one that has ended counts no more.
fn sum(threads: &[i32]) -> SchedStat {
    let stats = threads.iter().filter_map(|&thread| vcpu::schedstat(thread).ok());
    stats.fold(SchedStat::default(), |sum, stat| SchedStat {
        run: sum.run + stat.run,
        wait: sum.wait + stat.wait,
        slices: sum.slices + stat.slices,
    })
}

fn since(now: SchedStat, before: SchedStat) -> SchedStat {
    SchedStat {
        run: now.run.saturating_sub(before.run),
        wait: now.wait.saturating_sub(before.wait),
        slices: now.slices.saturating_sub(before.slices),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_runs_waits_or_is_blocked() {
        let stat = |run, wait, slices| SchedStat {
            run: Duration::from_millis(run),
            wait: Duration::from_millis(wait),
            slices,
        };
        let accounts = Accounts {
            at: Instant::now(),
            length: Duration::from_secs(2),
            sender: stat(1000, 500, 100),
            receiver: stat(0, 0, 0),
            driver: stat(3000, 0, 7),
            interrupts: 50.0,
            frames: 100.0,
        };
        let figures = accounts.figures(Network::Floodway);
        let figure =
            |name: &str| figures.iter().find(|(n, ..)| n == name).map(|&(.., value)| value);
        assert_eq!(figure("sender runs"), Some(50.0));
        assert_eq!((figure("sender waits"), figure("sender blocked")), (Some(25.0), Some(25.0)));
        assert_eq!(
            (figure("sender switches"), figure("sender per execution")),
            (Some(50.0), Some(10_000.0))
        );
        assert_eq!(
            (figure("receiver blocked"), figure("receiver per execution")),
            (Some(100.0), Some(0.0))
        );
        assert_eq!(
            (figure("driver runs"), figure("interrupts for a frame")),
            (Some(150.0), Some(0.5))
        );
    }
}
