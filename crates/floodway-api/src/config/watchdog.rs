//! What is done about a worker that stands still: the section `[watchdog]`.

use std::time::Duration;

use super::error::Fault;
use super::keys::{Keys, millis};
use super::section::Section;

/// Keys of the section, in the order in which errors list them.
pub(super) const KEYS: &[&str] = &["stall_ms", "restart"];

/// The watchdog of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogConfig {
    /// A worker that has stood still for this long is counted and logged, 100 ms to 10 minutes. `None` does not look.
    /// Default 1 s.
    pub stall: Option<Duration>,
    /// The process is ended then, for its supervisor to start it again. Default false.
    pub restart: bool,
}

impl Default for WatchdogConfig {
    fn default() -> Self {
        Self { stall: Some(Duration::from_secs(1)), restart: false }
    }
}

/// The section of the file.
pub(super) fn section(root: &Section<'_, '_>) -> Result<WatchdogConfig, Fault> {
    let default = WatchdogConfig::default();
    let Some(section) = root.table("watchdog")? else {
        return Ok(default);
    };
    section.allow(KEYS)?;
    let stall = match section.integer("stall_ms", 0..=600_000)? {
        None => default.stall,
        Some(0) => None,
        Some(1..100) => {
            return Err(section.fault("stall_ms", "must be 0 (off) or 100 to 600000"));
        }
        Some(ms) => Some(Duration::from_millis(ms)),
    };
    let restart = section.boolean("restart")?.unwrap_or(default.restart);
    if restart && stall.is_none() {
        return Err(section.fault("restart", "needs stall_ms; it is 0, which is off"));
    }
    Ok(WatchdogConfig { stall, restart })
}

/// The section that says `config`.
pub(super) fn keys(config: WatchdogConfig) -> Keys {
    let WatchdogConfig { stall, restart } = config;
    let default = WatchdogConfig::default();
    // Zero is off.
    let written = |stall: Option<Duration>| millis(stall.unwrap_or_default());
    Keys::default().changed("stall_ms", written(stall), written(default.stall)).changed(
        "restart",
        restart,
        default.restart,
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, ConfigError};

    const UPLINK: &str = "[[uplink]]\nname = \"up0\"\nkind = \"tap\"\ndevice = \"fw0\"\n";

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("f.toml"))
    }

    fn error(text: &str) -> String {
        parse(text).expect_err("wrong").to_string()
    }

    #[test]
    fn the_watchdog_is_on_and_restarts_nothing_unless_told() {
        let watchdog = |text: &str| parse(&(text.to_owned() + UPLINK)).unwrap().watchdog;
        let second = WatchdogConfig { stall: Some(Duration::from_secs(1)), restart: false };
        assert_eq!(watchdog(""), second);
        let written = watchdog("[watchdog]\nstall_ms = 100\nrestart = true\n");
        let short = WatchdogConfig { stall: Some(Duration::from_millis(100)), restart: true };
        assert_eq!(written, short);
        assert_eq!(watchdog("[watchdog]\nstall_ms = 0\n").stall, None);
        for (text, expected) in [
            ("stall_ms = 99", "2: watchdog.stall_ms = 99: must be 0 (off) or 100 to 600000"),
            (
                "stall_ms = 600001",
                "2: watchdog.stall_ms = 600001: must be an integer from 0 to 600000",
            ),
            ("restart = 1", "2: watchdog.restart = 1: must be true or false"),
            (
                "restart = true\nstall_ms = 0",
                "2: watchdog.restart = true: needs stall_ms; it is 0, which is off",
            ),
            ("stal_ms = 1", "2: watchdog.stal_ms: unknown key; did you mean \"stall_ms\"?"),
        ] {
            assert_eq!(error(&format!("[watchdog]\n{text}\n")), format!("f.toml:{expected}"));
        }
    }
}
