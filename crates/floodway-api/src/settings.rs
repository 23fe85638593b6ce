//! Settings that operators make at run time, and configurations with them.
//!
//! Who keeps a setting has it under a key, in the words of the control socket: `offload/PORT` and `inbound` are parts of the configuration, `drain/PORT` is
//! none.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use floodway_core::congestion::Algorithm;
use floodway_core::inbound::{Config as InboundConfig, Policy};
use floodway_core::offload::{BufferPolicy, Config as OffloadConfig, LocalFlows};
use serde::de::DeserializeOwned;

use crate::config::Config;
use crate::config::inbound as inbound_ranges;
use crate::config::offload::{self as ranges, Refused, check, choose, set};
use crate::control::{ControlError, InboundChange, OffloadChange};
use crate::transmit::TransmitSetting;

/// `config` with `change`.
///
/// # Errors
/// A new value is out of its range.
pub fn offload(config: &OffloadConfig, change: &OffloadChange) -> Result<OffloadConfig, Refused> {
    let mut config = config.clone();
    let (local, congestion, buffer) = (&change.local, &change.congestion, &change.buffer);
    set(&mut config.receive, change.receive);
    set(&mut config.local, chosen("local", local, &LocalFlows::ALL, LocalFlows::name)?);
    set(
        &mut config.congestion,
        chosen("congestion", congestion, &Algorithm::ALL, Algorithm::name)?,
    );
    let window = checked("initial_window", change.initial_window, &ranges::INITIAL_WINDOW)?;
    set(&mut config.initial_window, window);
    set(&mut config.buffer, chosen("buffer", buffer, &BufferPolicy::ALL, BufferPolicy::name)?);
    set(&mut config.budget, checked("budget", change.budget, &ranges::BUDGET)?);
    let budget = checked("receive_budget", change.receive_budget, &ranges::BUDGET)?;
    set(&mut config.receive_budget, budget);
    let idle = checked("idle_s", change.idle_s, &ranges::IDLE_S)?;
    set(&mut config.idle, idle.map(Duration::from_secs));
    let min_rto = checked("min_rto_ms", change.min_rto_ms, &ranges::MIN_RTO_MS)?;
    set(&mut config.min_rto, min_rto.map(Duration::from_millis));
    let delay = change.early_ack_delay_ms;
    let delay = checked("early_ack_delay_ms", delay, &ranges::EARLY_ACK_DELAY_MS)?;
    set(&mut config.early_ack_delay, delay.map(Duration::from_millis));
    let timeout = checked("peer_timeout_s", change.peer_timeout_s, &ranges::PEER_TIMEOUT_S)?;
    set(&mut config.peer_timeout, timeout.map(Duration::from_secs));
    if let Some(TransmitSetting(mode)) = change.transmit {
        config.set_transmit(mode);
    }
    Ok(config)
}

/// `config` with `change`.
///
/// # Errors
/// A new value is out of its range.
pub fn inbound(config: &InboundConfig, change: &InboundChange) -> Result<InboundConfig, Refused> {
    let mut config = config.clone();
    // Zero switches it off.
    let on = change.capacity_mbit.filter(|mbit| *mbit > 0);
    checked("capacity_mbit", on, &inbound_ranges::CAPACITY_MBIT)?;
    set(&mut config.capacity, change.capacity_mbit.map(|mbit| mbit * inbound_ranges::MBIT));
    let minimum = checked("minimum_kbit", change.minimum_kbit, &inbound_ranges::MINIMUM_KBIT)?;
    set(&mut config.minimum, minimum.map(|kbit| kbit * inbound_ranges::KBIT));
    set(&mut config.policy, chosen("policy", &change.policy, &Policy::ALL, Policy::name)?);
    let cap = checked("weight_cap", change.weight_cap, &inbound_ranges::WEIGHT_CAP)?;
    set(&mut config.weight_cap, cap);
    let idle = checked("idle_ms", change.idle_ms, &inbound_ranges::IDLE_MS)?;
    set(&mut config.idle, idle.map(Duration::from_millis));
    let burst = checked("burst_bytes", change.burst_bytes, &inbound_ranges::BURST_BYTES)?;
    set(&mut config.burst, burst);
    set(&mut config.water_fill, change.water_fill);
    set(&mut config.police_udp, change.police_udp);
    Ok(config)
}

/// The new value of `key`, if there is one.
fn checked<T: PartialOrd + Display>(
    key: &'static str,
    value: Option<T>,
    range: &RangeInclusive<T>,
) -> Result<Option<T>, Refused> {
    value.map(|value| check(key, value, range)).transpose()
}

/// The one of `choices` that `key` is to be, if it is to change.
fn chosen<T: Copy>(
    key: &'static str,
    name: &Option<String>,
    choices: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<Option<T>, Refused> {
    name.as_ref().map(|name| choose(key, name, choices, name_of)).transpose()
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
