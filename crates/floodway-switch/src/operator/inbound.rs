//! The control socket's view of inbound rates.

use std::sync::Arc;

use floodway_core::inbound::Config;

use crate::api::control::{ControlError, InboundChange, InboundPort, InboundStatus};
use crate::api::events::EventKind;
use crate::api::settings as api_settings;
use crate::config::inbound as settings;
use crate::operator::changed;
use crate::operator::runtime_settings::{Kept, keep};
use crate::state::port::Port;
use crate::state::shared::Shared;

/// Bits per second of bytes per second.
const BITS: u64 = 8;

impl Shared {
    /// What is divided, and how, after `change`.
    pub(crate) fn operate_inbound(
        self: &Arc<Self>,
        change: &InboundChange,
    ) -> Result<InboundStatus, ControlError> {
        if *change != InboundChange::default() {
            let config =
                self.inbound.with(|state| api_settings::inbound(state.core.config(), change))?;
            settings::check_minimum(&config, self.ports().list().len())?;
            self.configure_inbound(&config);
            self.events.emit(EventKind::InboundChanged { changes: changed(change) });
            keep(self, &Kept::Inbound(&change_to(&config)));
        }
        Ok(self.inbound_status())
    }

    fn inbound_status(&self) -> InboundStatus {
        let (config, ports) = self.inbound.with(|state| {
            let weights = state.core.demands().iter().map(|demand| demand.weight);
            let ports: Vec<_> = state.ports.iter().cloned().zip(weights).collect();
            (state.core.config().clone(), ports)
        });
        let ports = ports.iter().map(|(port, weight)| self.inbound_port(port, *weight));
        InboundStatus {
            capacity_bps: config.capacity * BITS,
            minimum_bps: config.minimum * BITS,
            policy: config.policy.name().to_owned(),
            weight_cap: config.weight_cap,
            water_fill: config.water_fill,
            idle_ms: config.idle.as_millis() as u64,
            burst_bytes: config.burst,
            police_udp: config.police_udp,
            ports: ports.collect(),
        }
    }

    fn inbound_port(&self, port: &Port, weight: u32) -> InboundPort {
        let rate = port.inbound.rate.load(std::sync::atomic::Ordering::Relaxed);
        let mut machine = port.inbound.machine();
        let now = machine.latest.max(self.now());
        let known = InboundPort {
            name: port.config.name.clone(),
            weight,
            rate_bps: rate * BITS,
            ..InboundPort::default()
        };
        let Some(clamp) = &mut machine.clamp else { return known };
        InboundPort {
            active: clamp.active(),
            connections: clamp.connections(),
            waiting: clamp.waiting() as u64,
            measured_bps: clamp.measured(now) * BITS,
            received_bytes: clamp.received(),
            counters: clamp.counters().iter().map(|(name, _, n)| (name.to_owned(), n)).collect(),
            ..known
        }
    }
}

/// The change that leads to `config` from any other.
fn change_to(config: &Config) -> InboundChange {
    InboundChange {
        capacity_mbit: Some(config.capacity / settings::MBIT),
        minimum_kbit: Some(config.minimum / settings::KBIT),
        policy: Some(config.policy.name().to_owned()),
        weight_cap: Some(config.weight_cap),
        water_fill: Some(config.water_fill),
        idle_ms: Some(config.idle.as_millis() as u64),
        burst_bytes: Some(config.burst),
        police_udp: Some(config.police_udp),
    }
}
