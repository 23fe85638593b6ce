//! TCP offload of a port: the section `[port.offload]`, and the same settings on the control socket.
//!
//! Both ways in share the ranges and the words of the errors, and names are those of core.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use floodway_core::congestion::Algorithm;
use floodway_core::offload::{BufferPolicy, Config, LocalFlows, Transmit};
use toml::Value;

use super::error::Fault;
use super::keys::{Keys, integer, millis};
use super::section::Section;
use crate::transmit::{self, TransmitSetting};

/// Keys of the section, in the order in which errors list them.
pub(super) const KEYS: &[&str] = &[
    "transmit",
    "receive",
    "local",
    "congestion",
    "initial_window",
    "buffer",
    "budget",
    "receive_budget",
    "max_flows",
    "idle_s",
    "min_rto_ms",
    "early_ack_delay_ms",
    "peer_timeout_s",
];

/// Segments of the first congestion window.
pub const INITIAL_WINDOW: RangeInclusive<u8> = 1..=64;
/// Bytes that the flows of a port may use: 64 KiB, which is one GSO packet, to 1 GiB.
pub const BUDGET: RangeInclusive<u32> = 64 << 10..=1 << 30;
/// Flows of a port that are known at once.
pub const MAX_FLOWS: RangeInclusive<u32> = 1..=4 << 20;
/// Seconds after which an idle flow is forgotten: up to a week.
pub const IDLE_S: RangeInclusive<u64> = 1..=7 * 86_400;
/// Milliseconds of the smallest retransmission time-out.
pub const MIN_RTO_MS: RangeInclusive<u64> = 1..=10_000;

/// Milliseconds within which the peer must be expected to acknowledge what is acknowledged early.
pub const EARLY_ACK_DELAY_MS: RangeInclusive<u64> = 10..=1000;
/// Seconds after which a silent peer that is owed bytes is dead: from RFC 1122's least of `R2` for data, 100 s, but for tests, to a day.
pub const PEER_TIMEOUT_S: RangeInclusive<u64> = 10..=86_400;

/// Why a switch of one process acknowledges nothing early.
pub const NO_JOURNAL: &str = "transmit = \"agentless\" or \"auto\" needs a switch of two processes, since what is acknowledged early must outlive the one that moves \
                              frames: run it without --single-process, or write transmit = \"module\"";

/// The settings of the port `port`.
pub(super) fn section(port: &Section<'_, '_>) -> Result<Config, Fault> {
    let mut config = Config::default();
    let Some(section) = port.table("offload")? else {
        return Ok(config);
    };
    section.allow(KEYS)?;
    let congestion: Vec<_> = Algorithm::ALL.map(|a| (a.name(), a)).into();
    let local: Vec<_> = LocalFlows::ALL.map(|l| (l.name(), l)).into();
    let buffer: Vec<_> = BufferPolicy::ALL.map(|p| (p.name(), p)).into();
    if let Some(TransmitSetting(mode)) = transmit(&section)? {
        config.set_transmit(mode);
    }
    set(&mut config.receive, section.boolean("receive")?);
    set(&mut config.local, section.choice("local", &local)?);
    set(&mut config.congestion, section.choice("congestion", &congestion)?);
    set(&mut config.initial_window, section.integer("initial_window", INITIAL_WINDOW)?);
    set(&mut config.buffer, section.choice("buffer", &buffer)?);
    set(&mut config.budget, section.integer("budget", BUDGET)?);
    set(&mut config.receive_budget, section.integer("receive_budget", BUDGET)?);
    set(&mut config.max_flows, section.integer("max_flows", MAX_FLOWS)?);
    set(&mut config.idle, section.integer("idle_s", IDLE_S)?.map(Duration::from_secs));
    let min_rto = section.integer("min_rto_ms", MIN_RTO_MS)?;
    set(&mut config.min_rto, min_rto.map(Duration::from_millis));
    let delay = section.integer("early_ack_delay_ms", EARLY_ACK_DELAY_MS)?;
    set(&mut config.early_ack_delay, delay.map(Duration::from_millis));
    let timeout = section.integer("peer_timeout_s", PEER_TIMEOUT_S)?;
    set(&mut config.peer_timeout, timeout.map(Duration::from_secs));
    Ok(config)
}

/// The key `transmit`, which is a boolean or the name of a mode.
fn transmit(section: &Section<'_, '_>) -> Result<Option<TransmitSetting>, Fault> {
    const KEY: &str = "transmit";
    let fault = || section.fault(KEY, transmit::MUST);
    match section.boolean(KEY) {
        Ok(on) => Ok(on.map(TransmitSetting::from)),
        Err(_) => {
            let name = section.string(KEY).map_err(|_| fault())?.unwrap_or_default();
            name.parse().map(Some).map_err(|_| fault())
        }
    }
}

/// [`TransmitSetting`] as it is written in a file.
fn written(mode: Transmit) -> Value {
    match mode {
        Transmit::Off => false.into(),
        Transmit::Module => true.into(),
        Transmit::Agentless | Transmit::Auto => mode.name().into(),
    }
}

/// The section that says `config`.
pub(super) fn keys(config: &Config) -> Keys {
    let Config {
        transmit: _,
        early_ack: _,
        early_ack_min_rtt: _,
        receive,
        local,
        congestion,
        initial_window,
        buffer,
        budget,
        receive_budget,
        max_flows,
        idle,
        min_rto,
        early_ack_delay,
        peer_timeout,
    } = config;
    let default = Config::default();
    Keys::default()
        .changed("transmit", written(config.transmit_mode()), false.into())
        .changed("receive", *receive, default.receive)
        .changed("local", local.name(), default.local.name())
        .changed("congestion", congestion.name(), default.congestion.name())
        .changed("initial_window", integer(*initial_window), integer(default.initial_window))
        .changed("buffer", buffer.name(), default.buffer.name())
        .changed("budget", integer(*budget), integer(default.budget))
        .changed("receive_budget", integer(*receive_budget), integer(default.receive_budget))
        .changed("max_flows", integer(*max_flows), integer(default.max_flows))
        .changed("idle_s", integer(idle.as_secs()), integer(default.idle.as_secs()))
        .changed("min_rto_ms", millis(*min_rto), millis(default.min_rto))
        .changed("early_ack_delay_ms", millis(*early_ack_delay), millis(default.early_ack_delay))
        .changed(
            "peer_timeout_s",
            integer(peer_timeout.as_secs()),
            integer(default.peer_timeout.as_secs()),
        )
}

/// Changes a setting for which there is a value.
pub(crate) fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

/// A setting that was refused at run time: key, value, and what it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {must}")]
pub struct Refused {
    key: &'static str,
    value: String,
    must: String,
}

impl Refused {
    /// The refusal of `value` for `key`.
    pub(super) fn new(key: &'static str, value: impl fmt::Display, must: String) -> Self {
        Self { key, value: value.to_string(), must }
    }

    /// What it must be.
    pub(super) fn must(&self) -> &str {
        &self.must
    }
}

/// `value` if it is in `range`.
///
/// # Errors
/// It is not.
pub fn check<T>(key: &'static str, value: T, range: &RangeInclusive<T>) -> Result<T, Refused>
where
    T: PartialOrd + fmt::Display,
{
    if range.contains(&value) {
        return Ok(value);
    }
    let must = format!("must be an integer from {} to {}", range.start(), range.end());
    Err(Refused { key, value: value.to_string(), must })
}

/// The one of `choices` that is called `name`.
///
/// # Errors
/// None is.
pub fn choose<T: Copy>(
    key: &'static str,
    name: &str,
    choices: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<T, Refused> {
    if let Some(&choice) = choices.iter().find(|&&choice| name_of(choice) == name) {
        return Ok(choice);
    }
    let names: Vec<_> = choices.iter().map(|&choice| name_of(choice)).collect();
    let must = format!("must be \"{}\"", names.join("\" or \""));
    Err(Refused { key, value: format!("{:?}", super::error::excerpt(name)), must })
}
