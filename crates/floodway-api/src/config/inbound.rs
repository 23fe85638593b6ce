//! Inbound rates: the section `[inbound]`, and the same settings on the control socket.

use std::ops::RangeInclusive;
use std::time::Duration;

use floodway_core::inbound::{Config, Policy};

use super::error::Fault;
use super::keys::{Keys, integer, millis};
use super::offload::{Refused, set};
use super::section::Section;

/// Keys of the section, in the order in which errors list them.
pub(super) const KEYS: &[&str] = &[
    "capacity_mbit",
    "minimum_kbit",
    "policy",
    "weight_cap",
    "water_fill",
    "idle_ms",
    "burst_bytes",
    "police_udp",
    "frame_overhead_bytes",
    "max_connections",
];

/// Bytes per second of 1 Mbit/s, and of 1 kbit/s.
pub const MBIT: u64 = 125_000;
/// See [`MBIT`].
pub const KBIT: u64 = 125;

/// Capacity of the link in Mbit/s, up to 1 Tbit/s.
pub const CAPACITY_MBIT: RangeInclusive<u64> = 1..=1_000_000;
/// What each VM gets at least, in kbit/s.
pub const MINIMUM_KBIT: RangeInclusive<u64> = 0..=1_000_000_000;
/// Connections that count at most; zero is no cap.
pub const WEIGHT_CAP: RangeInclusive<u32> = 0..=1_000_000;
/// Milliseconds without data until a connection is not active.
pub const IDLE_MS: RangeInclusive<u64> = 10..=60_000;
/// Bytes that may arrive at once.
pub const BURST_BYTES: RangeInclusive<u32> = 4096..=1 << 30;
/// Weight of a port.
pub const WEIGHT: RangeInclusive<u32> = 1..=1000;

/// The settings of the file whose root is `root`, for `ports` ports.
pub(super) fn section(root: &Section<'_, '_>, ports: usize) -> Result<Config, Fault> {
    let mut config = Config::default();
    let Some(section) = root.table("inbound")? else {
        return Ok(config);
    };
    section.allow(KEYS)?;
    let missing = || {
        section.fault(
            "capacity_mbit",
            "missing; add capacity_mbit = 1000, the rate of the link into this host",
        )
    };
    config.capacity = section.integer("capacity_mbit", CAPACITY_MBIT)?.ok_or_else(missing)? * MBIT;
    set(&mut config.minimum, section.integer("minimum_kbit", MINIMUM_KBIT)?.map(|n| n * KBIT));
    set(&mut config.policy, section.choice("policy", &Policy::ALL.map(|p| (p.name(), p)))?);
    set(&mut config.weight_cap, section.integer("weight_cap", WEIGHT_CAP)?);
    set(&mut config.water_fill, section.boolean("water_fill")?);
    set(&mut config.idle, section.integer("idle_ms", IDLE_MS)?.map(Duration::from_millis));
    set(&mut config.burst, section.integer("burst_bytes", BURST_BYTES)?);
    set(&mut config.police_udp, section.boolean("police_udp")?);
    set(&mut config.frame_overhead, section.integer("frame_overhead_bytes", 0..=1000)?);
    set(&mut config.max_connections, section.integer("max_connections", 1..=4 << 20)?);
    if let Err(refused) = check_minimum(&config, ports) {
        return Err(section.fault("minimum_kbit", refused.must()));
    }
    Ok(config)
}

/// The section that says `config`: none if the mechanism is off.
pub(super) fn keys(config: &Config) -> Keys {
    let Config {
        capacity,
        minimum,
        policy,
        weight_cap,
        water_fill,
        idle,
        burst,
        police_udp,
        frame_overhead,
        max_connections,
    } = config;
    if *capacity == 0 {
        return Keys::default();
    }
    let default = Config::default();
    Keys::default()
        .set("capacity_mbit", integer(capacity / MBIT))
        .changed("minimum_kbit", integer(minimum / KBIT), integer(default.minimum / KBIT))
        .changed("policy", policy.name(), default.policy.name())
        .changed("weight_cap", integer(*weight_cap), integer(default.weight_cap))
        .changed("water_fill", *water_fill, default.water_fill)
        .changed("idle_ms", millis(*idle), millis(default.idle))
        .changed("burst_bytes", integer(*burst), integer(default.burst))
        .changed("police_udp", *police_udp, default.police_udp)
        .changed("frame_overhead_bytes", integer(*frame_overhead), integer(default.frame_overhead))
        .changed("max_connections", integer(*max_connections), integer(default.max_connections))
}

/// The minimums of all ports are not more than the capacity.
///
/// # Errors
/// They are.
pub fn check_minimum(config: &Config, ports: usize) -> Result<(), Refused> {
    let all = config.minimum.saturating_mul(ports as u64);
    if config.capacity == 0 || all <= config.capacity {
        return Ok(());
    }
    let most = config.capacity / (ports.max(1) as u64) / KBIT;
    let capacity = config.capacity / MBIT;
    let must = format!(
        "{ports} ports with so much each are more than the capacity of {capacity} Mbit/s; at most {most}"
    );
    Err(Refused::new("minimum_kbit", config.minimum / KBIT, must))
}
