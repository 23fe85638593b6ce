//! The kernel's tail loss probes (RFC 8985 section 7), a setting of the whole guest.
//!
//! A guest whose flows are online must not probe: the switch repairs losses, and probes, itself, and by the time
//! the guest hears of a repaired loss its own probe says "something was lost" and costs it its window
//! (invariant I7). The kernel has no such setting for one socket, so flows that are offline do without probes as
//! well: a loss at the very end of what they send waits for the retransmission timeout.

use std::fs;

use anyhow::{Context, Result};

const SETTING: &str = "/proc/sys/net/ipv4/tcp_early_retrans";

/// No probes.
pub const OFF: &str = "0";

/// The present setting.
pub fn setting() -> Result<String> {
    let text = fs::read_to_string(SETTING).with_context(|| format!("cannot read {SETTING}"))?;
    Ok(text.trim().to_owned())
}

/// Changes it.
pub fn set(value: &str) -> Result<()> {
    fs::write(SETTING, value).with_context(|| format!("cannot write {value} to {SETTING}"))
}
