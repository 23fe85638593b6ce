//! Who runs where, and who runs first.

use anyhow::{Context, Result};

use crate::experiment::transfer::Emulator;
use crate::experiment::transfer::contention::{OTHER, Slices, Threads, pin_all};
use crate::switch_process::Switch;
use crate::vcpu;
use crate::vm::Vm;

/// Below QEMU's own work for all VMs.
const PRIORITY: u32 = 1;

/// The VMs on their core.
pub(super) struct Places {
    /// vCPUs that take turns.
    ordinary: Vec<i32>,
    threads: Threads,
}

impl Places {
    /// Puts all VMs on one core, with vCPUs of those in `first` before the others.
    pub fn of(guests: &[Vm], first: &[u32]) -> Result<Self> {
        let threads = Threads::pin(guests)?;
        threads.place_emulators(Emulator::Above)?;
        let mut ordinary = Vec::new();
        for (guest, number) in guests.iter().zip(1..) {
            let vcpus = guest.vcpu_threads()?;
            if first.contains(&number) {
                vcpus.iter().try_for_each(|&thread| vcpu::set_fifo(thread, PRIORITY))?;
            } else {
                ordinary.extend(vcpus);
            }
        }
        Ok(Self { ordinary, threads })
    }

    /// What vCPUs had of their core so far.
    pub fn slices(&self) -> Slices {
        self.threads.slices()
    }

    /// Gives vCPUs that take turns the kernel's own slice: a switch that was killed has not.
    pub fn restore(&self) -> Result<()> {
        self.ordinary.iter().try_for_each(|&thread| vcpu::set_ordinary(thread))
    }
}

/// Keeps this process, and what it starts, off the VMs' core.
pub(super) fn put_aside() -> Result<()> {
    pin_all(std::process::id(), OTHER)
}

/// Keeps the switch off the VMs' core and gives it a real-time priority: as an ordinary thread it waits for a tick, up to 4 ms, in one wake-up of a
/// hundred, because it shares the other core with the clients. A switch of a real host has a core of its own.
pub(super) fn put_switch_aside(switch: &Switch) -> Result<()> {
    let pid = switch.id().context("the switch does not run")?;
    pin_all(pid, OTHER)?;
    vcpu::threads(pid)?.into_iter().try_for_each(|thread| vcpu::set_fifo(thread, PRIORITY))
}
