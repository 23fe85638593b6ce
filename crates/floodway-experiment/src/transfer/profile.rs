//! Kinds of host and guest.

use serde::Deserialize;

use super::Emulator;

/// A kind of host and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Profile {
    /// Like the papers': Reno, initial window 3, vCPUs in round robin with slices of 30 ms, which a VM that wakes
    /// up does not cut short. QEMU's main loop runs on the core of the VMs and preempts them, as a hypervisor does.
    #[serde(rename = "2011")]
    Era2011,
    /// The same with QEMU's main loop on another core, where it makes a vCPU sleep at each tick of its guest's timer: time slices
    /// are much shorter than 30 ms.
    #[serde(rename = "2011-apart")]
    Era2011Apart,
    /// As Debian comes: CUBIC, initial window 10, the kernel's EEVDF with its default slice.
    #[serde(rename = "today")]
    Today,
}

impl Profile {
    /// As the file names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Era2011 => "2011",
            Self::Era2011Apart => "2011-apart",
            Self::Today => "today",
        }
    }

    /// By its kernel name.
    #[must_use]
    pub const fn congestion_control(self) -> &'static str {
        match self {
            Self::Era2011 | Self::Era2011Apart => "reno",
            Self::Today => "cubic",
        }
    }

    /// In segments (RFC 3390 for 1460 bytes, and RFC 6928).
    #[must_use]
    pub const fn initial_window(self) -> u32 {
        match self {
            Self::Era2011 | Self::Era2011Apart => 3,
            Self::Today => 10,
        }
    }

    /// Where QEMU's main loop runs, unless a file says otherwise.
    #[must_use]
    pub const fn emulator(self) -> Emulator {
        match self {
            Self::Era2011 => Emulator::Above,
            Self::Era2011Apart | Self::Today => Emulator::Apart,
        }
    }

    /// What it is, for readers of a report.
    #[must_use]
    pub fn describe(self, emulator: Emulator) -> String {
        let vcpus = match self {
            Self::Era2011 | Self::Era2011Apart => "vCPUs in round robin (SCHED_RR), set to 30 ms",
            Self::Today => "vCPUs as ordinary threads (EEVDF) with the kernel's slice",
        };
        let place = match emulator {
            Emulator::Above => "on the VMs' core, above them",
            Emulator::Apart => "on another core",
        };
        let (congestion, window) = (self.congestion_control(), self.initial_window());
        format!(
            "guest with {congestion} and an initial window of {window}; {vcpus}; QEMU's main loop {place}"
        )
    }
}
