//! The switch's offload as the hook of a simulated machine.

use std::time::Duration;

use anyhow::Result;
use floodway_core::offload::{Config, EarlyAck};
use floodway_sim::hooks::offload::{OffloadConfig, SwitchOffload};
use floodway_sim::machine::{Hook, PassThrough};
use serde::{Deserialize, Serialize};

use super::host::Host;

/// Which halves of the offload are on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Halves {
    /// Congestion control for what the VM sends.
    pub transmit: bool,
    /// Acknowledgement for what it receives.
    pub receive: bool,
    /// Buffer policy, if not the host's.
    pub policy: Option<String>,
    /// What the VM sends is acknowledged to it early, and its TCP hears no notices.
    #[serde(default)]
    pub early_ack: bool,
}

/// The offload with the host's settings; without halves, everything passes.
pub(super) fn make(host: &Host, halves: Option<&Halves>, seed: u64) -> Result<Box<dyn Hook>> {
    let Some(halves) = halves else { return Ok(Box::new(PassThrough)) };
    let offload = &host.offload;
    let port = Config {
        transmit: halves.transmit,
        receive: halves.receive,
        early_ack: if halves.early_ack { EarlyAck::Always } else { EarlyAck::Never },
        congestion: host.algorithm()?,
        initial_window: host.tcp.initial_window,
        buffer: match &halves.policy {
            Some(policy) => policy.parse()?,
            None => host.policy()?,
        },
        budget: offload.segments.saturating_mul(offload.segment_bytes),
        receive_budget: offload.segments.saturating_mul(offload.segment_bytes),
        min_rto: Duration::from_millis(offload.min_rto_ms),
        ..Config::default()
    };
    let config = OffloadConfig {
        port,
        tx_cost: Duration::from_nanos(offload.tx_cost_ns),
        rx_cost: Duration::from_nanos(offload.rx_cost_ns),
    };
    Ok(Box::new(SwitchOffload::new(config, seed)))
}
