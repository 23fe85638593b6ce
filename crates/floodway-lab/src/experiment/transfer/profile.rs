//! Kinds of host and guest.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use crate::cleanup::Guard;
use crate::vcpu;

/// The slice of Xen's credit scheduler.
const XEN_SLICE: Duration = Duration::from_millis(30);
/// All vCPUs have the same; the emulator has a higher one ([`super::contention`]).
const PRIORITY: u32 = 1;

/// A kind of host and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Profile {
    /// Like the papers': Reno, initial window 3, vCPUs in round robin with slices of 30 ms, which a VM that wakes
    /// up does not cut short.
    #[serde(rename = "2011")]
    Era2011,
    /// As Debian comes: CUBIC, initial window 10, the kernel's EEVDF with its default slice.
    #[serde(rename = "today")]
    Today,
}

impl Profile {
    /// As the file names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Era2011 => "2011",
            Self::Today => "today",
        }
    }

    /// By its kernel name.
    pub fn congestion_control(self) -> &'static str {
        match self {
            Self::Era2011 => "reno",
            Self::Today => "cubic",
        }
    }

    /// In segments (RFC 3390 for 1460 bytes, and RFC 6928).
    pub fn initial_window(self) -> u32 {
        match self {
            Self::Era2011 => 3,
            Self::Today => 10,
        }
    }

    /// Makes threads take turns on their CPU as the profile says, while the guard lives.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn schedule(self, threads: &[i32]) -> Result<Option<Guard>> {
        match self {
            Self::Era2011 => {
                let turn = vcpu::set_round_robin_turn(XEN_SLICE)?;
                threads.iter().try_for_each(|&thread| vcpu::set_round_robin(thread, PRIORITY))?;
                Ok(Some(turn))
            }
            Self::Today => {
                threads.iter().try_for_each(|&thread| vcpu::set_ordinary(thread))?;
                Ok(None)
            }
        }
    }
}
