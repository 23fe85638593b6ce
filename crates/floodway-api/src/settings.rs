//! Settings that operators make at run time, and configurations with them.
//!
//! Who keeps a setting has it under a key, in the words of the control socket: `offload/PORT` and `inbound` are parts of the configuration, `drain/PORT` is
//! none.

use std::time::Duration;

use floodway_core::congestion::Algorithm;
use floodway_core::inbound::{Config as InboundConfig, Policy};
use floodway_core::offload::{BufferPolicy, Config as OffloadConfig, LocalFlows};
use serde::de::DeserializeOwned;

use crate::config::Config;
use crate::config::inbound as inbound_ranges;
use crate::config::offload::{self as ranges, Refused, check, choose};
use crate::control::{ControlError, InboundChange, OffloadChange};
use crate::transmit::TransmitSetting;

/// `config` with `change`.
///
/// # Errors
/// A new value is out of its range.
pub fn offload(config: &OffloadConfig, change: &OffloadChange) -> Result<OffloadConfig, Refused> {
    let ranged = |key, value: Option<u32>, range, current| {
        value.map_or(Ok(current), |value| check(key, value, range))
    };
    let long = |key, value: Option<u64>, range, current| {
        value.map_or(Ok(current), |value| check(key, value, range))
    };
    let (idle, min_rto) = (config.idle.as_secs(), config.min_rto.as_millis() as u64);
    let delay = config.early_ack_delay.as_millis() as u64;
    let timeout = config.peer_timeout.as_secs();
    let mut changed = OffloadConfig {
        transmit: config.transmit,
        receive: change.receive.unwrap_or(config.receive),
        local: change.local.as_ref().map_or(Ok(config.local), |name| {
            choose("local", name, &LocalFlows::ALL, LocalFlows::name)
        })?,
        congestion: change.congestion.as_ref().map_or(Ok(config.congestion), |name| {
            choose("congestion", name, &Algorithm::ALL, Algorithm::name)
        })?,
        initial_window: change.initial_window.map_or(Ok(config.initial_window), |n| {
            check("initial_window", n, &ranges::INITIAL_WINDOW)
        })?,
        buffer: change.buffer.as_ref().map_or(Ok(config.buffer), |name| {
            choose("buffer", name, &BufferPolicy::ALL, BufferPolicy::name)
        })?,
        budget: ranged("budget", change.budget, &ranges::BUDGET, config.budget)?,
        receive_budget: ranged(
            "receive_budget",
            change.receive_budget,
            &ranges::BUDGET,
            config.receive_budget,
        )?,
        max_flows: config.max_flows,
        idle: Duration::from_secs(long("idle_s", change.idle_s, &ranges::IDLE_S, idle)?),
        min_rto: Duration::from_millis(long(
            "min_rto_ms",
            change.min_rto_ms,
            &ranges::MIN_RTO_MS,
            min_rto,
        )?),
        early_ack: config.early_ack,
        early_ack_delay: Duration::from_millis(long(
            "early_ack_delay_ms",
            change.early_ack_delay_ms,
            &ranges::EARLY_ACK_DELAY_MS,
            delay,
        )?),
        peer_timeout: Duration::from_secs(long(
            "peer_timeout_s",
            change.peer_timeout_s,
            &ranges::PEER_TIMEOUT_S,
            timeout,
        )?),
    };
    if let Some(TransmitSetting(mode)) = change.transmit {
        changed.set_transmit(mode);
    }
    Ok(changed)
}

/// `config` with `change`.
///
/// # Errors
/// A new value is out of its range.
pub fn inbound(config: &InboundConfig, change: &InboundChange) -> Result<InboundConfig, Refused> {
    let mut config = config.clone();
    if let Some(mbit) = change.capacity_mbit {
        // Zero switches it off.
        let mbit = if mbit == 0 {
            0
        } else {
            check("capacity_mbit", mbit, &inbound_ranges::CAPACITY_MBIT)?
        };
        config.capacity = mbit * inbound_ranges::MBIT;
    }
    if let Some(kbit) = change.minimum_kbit {
        config.minimum =
            check("minimum_kbit", kbit, &inbound_ranges::MINIMUM_KBIT)? * inbound_ranges::KBIT;
    }
    if let Some(name) = &change.policy {
        config.policy = choose("policy", name, &Policy::ALL, Policy::name)?;
    }
    if let Some(cap) = change.weight_cap {
        config.weight_cap = check("weight_cap", cap, &inbound_ranges::WEIGHT_CAP)?;
    }
    if let Some(ms) = change.idle_ms {
        config.idle = Duration::from_millis(check("idle_ms", ms, &inbound_ranges::IDLE_MS)?);
    }
    if let Some(bytes) = change.burst_bytes {
        config.burst = check("burst_bytes", bytes, &inbound_ranges::BURST_BYTES)?;
    }
    config.water_fill = change.water_fill.unwrap_or(config.water_fill);
    config.police_udp = change.police_udp.unwrap_or(config.police_udp);
    Ok(config)
}

/// Makes a setting that was kept part of `config`, if it is one of the configuration's: a drain is none.
///
/// # Errors
/// It is no setting, or not one of this configuration's; `config` is as before.
pub fn adopt(config: &mut Config, key: &str, value: &[u8]) -> Result<(), ControlError> {
    match key.split_once('/') {
        Some(("offload", name)) => {
            let change = read(key, value)?;
            let port = config.ports.iter_mut().find(|port| port.name == name);
            let port = port.ok_or_else(|| unknown(key))?;
            port.offload = offload(&port.offload, &change)?;
        }
        None if key == "inbound" => {
            let changed = inbound(&config.inbound, &read(key, value)?)?;
            inbound_ranges::check_minimum(&changed, config.ports.len())?;
            config.inbound = changed;
        }
        Some(("drain", _)) => {}
        _ => return Err(unknown(key)),
    }
    Ok(())
}

/// Keys of settings that a change of the configuration `before` settles: those that [`adopt`] has made part of it, and those of ports
/// that go or that come back as others (`gone`).
pub fn settled<'a>(before: &Config, gone: impl Iterator<Item = &'a str>) -> Vec<String> {
    let offload = before.ports.iter().map(|port| format!("offload/{}", port.name));
    let drains = gone.map(|name| format!("drain/{name}"));
    offload.chain(drains).chain(["inbound".to_owned()]).collect()
}

fn read<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, ControlError> {
    let unreadable =
        |error| ControlError::Invalid(format!("the value of setting \"{key}\": {error}"));
    serde_json::from_slice(value).map_err(unreadable)
}

fn unknown(key: &str) -> ControlError {
    ControlError::Invalid(format!("setting \"{key}\" is not known"))
}
