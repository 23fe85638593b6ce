//! Which packets are small flows', and how the network is told: the section `[meter]`.

use std::time::Duration;

use floodway_core::egress::meter::Config as PairConfig;

use super::error::Fault;
use super::keys::{Keys, integer, millis};
use super::section::Section;

/// Keys of the section, in the order in which errors list them.
pub(super) const KEYS: &[&str] = &[
    "enabled",
    "rate_kbit",
    "burst_bytes",
    "recheck_ms",
    "idle_s",
    "max_pairs",
    "high_pairs",
    "high_dscp",
    "low_dscp",
];

/// Highest code point.
const MAX_DSCP: u8 = 63;

/// The meter of VM pairs, and the tags that it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// Frames to uplinks are metered and tagged. Without it they keep what guests wrote, and are all of one class.
    pub enabled: bool,
    /// Rate in bits per second up to which a pair is small, 1 kbit/s to 1 Tbit/s. `None`: 1 % of the uplink's rate if
    /// that is known, else 10 Mbit/s.
    pub rate: Option<u64>,
    /// Bytes up to which a message is small, 0 to 1 GiB. Default 30 000.
    pub burst: u64,
    /// How often a large pair is looked at, 1 ms to 1000 s. Default 100 ms.
    pub recheck: Duration,
    /// When an idle pair is forgotten, 1 s to 1 000 000 s. Default 10 s.
    pub idle: Duration,
    /// Most pairs of a VM, 1 to 1 048 576. Default 1024.
    pub max_pairs: u32,
    /// A VM may send in the high class what so many small pairs may, 1 to 1 048 576. Default 25: a quarter of the link, if `rate` is
    /// not set.
    pub high_pairs: u32,
    /// Code point of small flows, 0 to 63. Default 46.
    pub high_dscp: u8,
    /// Code point of everything else, another one. Default 0.
    pub low_dscp: u8,
}

impl Default for MeterConfig {
    fn default() -> Self {
        let PairConfig { burst, recheck, idle, max_pairs, high_pairs, .. } = PairConfig::default();
        Self {
            enabled: true,
            rate: None,
            burst,
            recheck,
            idle,
            max_pairs,
            high_pairs,
            high_dscp: 46,
            low_dscp: 0,
        }
    }
}

impl MeterConfig {
    /// The settings of a pair on a link of `link` bits per second, if that is known.
    #[must_use]
    pub fn pair(&self, link: Option<u64>) -> PairConfig {
        let default = PairConfig::default();
        let bits = self.rate.or(link.map(|link| link / 100));
        PairConfig {
            rate: bits.map_or(default.rate, |bits| bits / 8),
            burst: self.burst,
            recheck: self.recheck,
            idle: self.idle,
            max_pairs: self.max_pairs,
            high_pairs: self.high_pairs,
        }
    }
}

/// The section of the file.
pub(super) fn section(root: &Section<'_, '_>) -> Result<MeterConfig, Fault> {
    let default = MeterConfig::default();
    let Some(section) = root.table("meter")? else {
        return Ok(default);
    };
    section.allow(KEYS)?;
    let rate: Option<u64> = section.integer("rate_kbit", 1..=1_000_000_000)?;
    let recheck = section.integer("recheck_ms", 1..=1_000_000)?.map(Duration::from_millis);
    let idle = section.integer("idle_s", 1..=1_000_000)?.map(Duration::from_secs);
    let dscp = |key| section.integer(key, 0..=MAX_DSCP);
    let config = MeterConfig {
        enabled: section.boolean("enabled")?.unwrap_or(default.enabled),
        rate: rate.map(|kbit| kbit * 1000),
        burst: section.integer("burst_bytes", 0..=1 << 30)?.unwrap_or(default.burst),
        recheck: recheck.unwrap_or(default.recheck),
        idle: idle.unwrap_or(default.idle),
        max_pairs: section.integer("max_pairs", 1..=1 << 20)?.unwrap_or(default.max_pairs),
        high_pairs: section.integer("high_pairs", 1..=1 << 20)?.unwrap_or(default.high_pairs),
        high_dscp: dscp("high_dscp")?.unwrap_or(default.high_dscp),
        low_dscp: dscp("low_dscp")?.unwrap_or(default.low_dscp),
    };
    if config.high_dscp == config.low_dscp {
        let key = if dscp("low_dscp")?.is_some() { "low_dscp" } else { "high_dscp" };
        let problem = "must not be the code point of the other class";
        return Err(section.fault(key, problem));
    }
    Ok(config)
}

/// The section that says `config`.
pub(super) fn keys(config: &MeterConfig) -> Keys {
    let MeterConfig {
        enabled,
        rate,
        burst,
        recheck,
        idle,
        max_pairs,
        high_pairs,
        high_dscp,
        low_dscp,
    } = config;
    let default = MeterConfig::default();
    Keys::default()
        .changed("enabled", *enabled, default.enabled)
        .given("rate_kbit", rate.map(|bits| integer(bits / 1000)))
        .changed("burst_bytes", integer(*burst), integer(default.burst))
        .changed("recheck_ms", millis(*recheck), millis(default.recheck))
        .changed("idle_s", integer(idle.as_secs()), integer(default.idle.as_secs()))
        .changed("max_pairs", integer(*max_pairs), integer(default.max_pairs))
        .changed("high_pairs", integer(*high_pairs), integer(default.high_pairs))
        .changed("high_dscp", integer(*high_dscp), integer(default.high_dscp))
        .changed("low_dscp", integer(*low_dscp), integer(default.low_dscp))
}
