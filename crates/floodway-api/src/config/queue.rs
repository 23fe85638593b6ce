//! What happens to frames on their way out: the section `[uplink.queue]`.

use std::time::Duration;

use floodway_core::egress::qdisc::{CodelConfig, Config as Discipline, FqConfig, Kind};

use super::error::Fault;
use super::keys::{Keys, integer, micros};
use super::section::Section;

/// Keys of the section, in the order in which errors list them.
pub(super) const KEYS: &[&str] = &[
    "discipline",
    "segment",
    "rate_mbit",
    "device_bytes",
    "limit_packets",
    "limit_bytes",
    "high_percent",
    "target_us",
    "interval_us",
    "ecn",
    "ce_threshold_us",
    "flows",
    "quantum",
];

/// Fastest link that can be named, in Mbit/s: 1 Tbit/s.
const MAX_RATE_MBIT: u64 = 1_000_000;

/// The queue of an uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueConfig {
    /// The discipline and its limits, which each VM has for itself in each class. Ranges: 1 to 1 048 576 packets, 64 KiB
    /// (one GSO packet) to 1 GiB, delays of 1 us to 10 s, 1 to 65 536 flows, quantum of 256 to 65 536 bytes.
    pub discipline: Discipline,
    /// GSO packets are segmented before they are queued. `None`: if the link's rate is known (from `rate`, or because
    /// the interface says it) and below 10 Gbit/s.
    pub segment: Option<bool>,
    /// Rate in bits per second that nothing faster than leaves at. `None`: as fast as the device takes it.
    pub rate: Option<u64>,
    /// Bytes that the device may hold. `None`: as many as it needs to be busy.
    pub device_bytes: Option<u64>,
}

/// The queue of the uplink `uplink`.
pub(super) fn section(uplink: &Section<'_, '_>) -> Result<QueueConfig, Fault> {
    let mut config = QueueConfig::default();
    let Some(section) = uplink.table("queue")? else {
        return Ok(config);
    };
    section.allow(KEYS)?;
    config.segment = section.boolean("segment")?;
    config.rate = section.integer("rate_mbit", 1..=MAX_RATE_MBIT)?.map(|mbit| mbit * 1_000_000);
    config.device_bytes = section.integer("device_bytes", 0..=1 << 30)?;
    config.discipline = discipline(&section)?;
    Ok(config)
}

fn discipline(section: &Section<'_, '_>) -> Result<Discipline, Fault> {
    let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
    let default = Discipline::default();
    Ok(Discipline {
        kind: section.choice("discipline", &kinds)?.unwrap_or_default(),
        limit_packets: section
            .integer("limit_packets", 1..=1 << 20)?
            .unwrap_or(default.limit_packets),
        limit_bytes: section
            .integer("limit_bytes", 64 << 10..=1 << 30)?
            .unwrap_or(default.limit_bytes),
        high_percent: section.integer("high_percent", 1..=100)?.unwrap_or(default.high_percent),
        codel: codel(section)?,
        fq: FqConfig {
            flows: section.integer("flows", 1..=65_536)?.unwrap_or(default.fq.flows),
            quantum: section.integer("quantum", 256..=65_536)?.unwrap_or(default.fq.quantum),
        },
    })
}

fn codel(section: &Section<'_, '_>) -> Result<CodelConfig, Fault> {
    let default = CodelConfig::default();
    let delay = |key| section.integer(key, 1..=10_000_000).map(|us| us.map(Duration::from_micros));
    Ok(CodelConfig {
        target: delay("target_us")?.unwrap_or(default.target),
        interval: delay("interval_us")?.unwrap_or(default.interval),
        mtu: default.mtu,
        ecn: section.boolean("ecn")?.unwrap_or(default.ecn),
        ce_threshold: delay("ce_threshold_us")?,
    })
}

/// The section that says `config`.
pub(super) fn keys(config: &QueueConfig) -> Keys {
    let QueueConfig { discipline, segment, rate, device_bytes } = config;
    let Discipline { kind, limit_packets, limit_bytes, codel, fq, high_percent } = discipline;
    let default = Discipline::default();
    let keys = Keys::default()
        .changed("discipline", kind.name(), default.kind.name())
        .given("segment", *segment)
        .given("rate_mbit", rate.map(|bits| integer(bits / 1_000_000)))
        .given("device_bytes", device_bytes.map(integer))
        .changed("limit_packets", integer(*limit_packets), integer(default.limit_packets))
        .changed("limit_bytes", integer(*limit_bytes), integer(default.limit_bytes))
        .changed("high_percent", integer(*high_percent), integer(default.high_percent));
    let FqConfig { flows, quantum } = fq;
    codel_keys(keys, codel).changed("flows", integer(*flows), integer(default.fq.flows)).changed(
        "quantum",
        integer(*quantum),
        integer(default.fq.quantum),
    )
}

fn codel_keys(keys: Keys, config: &CodelConfig) -> Keys {
    // The MTU has no key.
    let CodelConfig { target, interval, mtu: _, ecn, ce_threshold } = config;
    let default = CodelConfig::default();
    keys.changed("target_us", micros(*target), micros(default.target))
        .changed("interval_us", micros(*interval), micros(default.interval))
        .changed("ecn", *ecn, default.ecn)
        .given("ce_threshold_us", ce_threshold.map(micros))
}
