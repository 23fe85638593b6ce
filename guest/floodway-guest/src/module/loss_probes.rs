//! The kernel's tail loss probes (RFC 8985 section 7), a setting of the whole guest.
//!
//! The switch probes and repairs for flows that are online, so a guest's own probes of these are needless. The switch absorbs them,
//! and answers them by a DSACK, which tells the guest that nothing was lost. They cost the guest a segment now and then, no
//! window. The kernel has no such setting for one socket: switching probes off would make a loss at the end of what an *offline*
//! flow sends wait for the retransmission timeout. So that is left to the operator.

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
