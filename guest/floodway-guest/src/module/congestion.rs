//! The kernel's list of congestion controls, and its default.

use std::fs;

use anyhow::{Context, Result};

/// Our name in it. At most 15 characters.
pub const NAME: &str = "floodway";

const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Whether `floodway` is registered.
pub fn is_registered() -> Result<bool> {
    Ok(read(AVAILABLE)?.split_whitespace().any(|name| name == NAME))
}

/// The default of new sockets.
pub fn default() -> Result<String> {
    read(DEFAULT)
}

/// Changes the default of new sockets.
pub fn set_default(name: &str) -> Result<()> {
    fs::write(DEFAULT, name)
        .with_context(|| format!("cannot make {name} the default congestion control"))
}

/// What to go back to when the default of before is not known: the kernel's first other one.
pub fn fallback() -> Result<String> {
    let available = read(AVAILABLE)?;
    let other = available.split_whitespace().find(|name| *name != NAME);
    Ok(other.unwrap_or("reno").to_owned())
}

fn read(path: &str) -> Result<String> {
    Ok(fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.trim().to_owned())
}
