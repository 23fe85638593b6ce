//! How kinds of host let their VMs take turns.

use std::time::Duration;

use anyhow::Result;
use floodway_experiment::transfer::Profile;

use crate::cleanup::Guard;
use crate::vcpu;

/// The slice of Xen's credit scheduler.
const XEN_SLICE: Duration = Duration::from_millis(30);
/// All vCPUs have the same; the emulator has a higher one ([`super::contention`]).
const PRIORITY: u32 = 1;

/// Makes threads take turns on their CPU as the profile says, while the guard lives.
///
/// # Errors
/// When the kernel refuses.
pub fn schedule(profile: Profile, threads: &[i32]) -> Result<Option<Guard>> {
    match profile {
        Profile::Era2011 | Profile::Era2011Apart => {
            let turn = vcpu::set_round_robin_slice(XEN_SLICE)?;
            threads.iter().try_for_each(|&thread| vcpu::set_round_robin(thread, PRIORITY))?;
            Ok(Some(turn))
        }
        Profile::Today => {
            threads.iter().try_for_each(|&thread| vcpu::set_ordinary(thread))?;
            Ok(None)
        }
    }
}
