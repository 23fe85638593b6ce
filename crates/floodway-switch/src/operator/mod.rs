//! What the running switch does for its operator, and the TCP offload's part of it.

mod activity;
mod api;
mod capture;
mod diagnose;
pub(crate) mod episodes;
mod inbound;
mod pairs;
pub(crate) mod runtime_settings;
mod snapshot;
mod trace;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use floodway_core::offload::{Config, FlowSummary};
use floodway_wire::{FiveTuple, tcp};

use crate::api::capture::{CaptureList, CaptureRequest, CaptureStatus};
use crate::api::control::{
    ControlError, DrainStatus, FlowKey, FlowPage, FlowQuery, FlowStatus, InboundChange,
    InboundStatus, MAX_PAGE, OffloadChange, OffloadSettings, PairPage, PairQuery,
};
use crate::api::diagnosis::Diagnosis;
use crate::api::events::{EventKind, EventQuery};
use crate::api::settings;
use crate::api::status::{OffloadStatus, PortStatus};
use crate::api::trace::{Trace, TraceRequest};
use crate::api::transmit::TransmitSetting;
use crate::config::offload::NO_JOURNAL;
use crate::events::{EventReader, clip};
use crate::operator::runtime_settings::{Kept, keep};
use crate::pipeline::delivery::Delivery;
use crate::pipeline::tcp_offload::Session;
use crate::state::offload::PortOffload;
use crate::state::port::Port;
use crate::state::shared::Shared;

pub use api::{ConfigApi, ControlApi, StatusSource, UpgradeApi};
pub use capture::CaptureSink;
pub use snapshot::drops;

/// Flows in a page if nobody says how many.
const PAGE: usize = 100;
/// Places of a flow table that are looked at under one hold of its lock: the packet path waits meanwhile.
const PLACES_AT_ONCE: u32 = 64;

impl PortOffload {
    /// What it does and has done.
    #[must_use]
    pub fn status(&self) -> OffloadStatus {
        let machine = self.machine();
        let config = machine.engine.config();
        let counters = machine.engine.counters();
        let (used, kept) = machine.engine.used();
        OffloadStatus {
            transmit: config.transmit,
            receive: config.receive,
            draining: machine.is_draining(),
            tagged: self.tagged(),
            flows: machine.engine.len().into(),
            online: machine.engine.online().into(),
            budget_used: used.into(),
            kept: kept.into(),
            mode: config.transmit_mode().name().to_owned(),
            module_heard: machine.engine.hears_module(),
            owed: machine.engine.owed(),
            stored_bytes: machine.pool.used() as u64,
            counters: counters.iter().map(|(name, _, n)| (name.to_owned(), n)).collect(),
            rtt: (&machine.engine.rtts()).into(),
        }
    }

    fn settings(&self) -> OffloadSettings {
        let machine = self.machine();
        let config = machine.engine.config();
        OffloadSettings {
            transmit: TransmitSetting(config.transmit_mode()),
            receive: config.receive,
            local: config.local.name().to_owned(),
            congestion: config.congestion.name().to_owned(),
            initial_window: config.initial_window,
            buffer: config.buffer.name().to_owned(),
            budget: config.budget,
            receive_budget: config.receive_budget,
            max_flows: config.max_flows,
            idle_s: config.idle.as_secs(),
            min_rto_ms: config.min_rto.as_millis() as u64,
            early_ack_delay_ms: config.early_ack_delay.as_millis() as u64,
            peer_timeout_s: config.peer_timeout.as_secs(),
        }
    }

    fn drain_status(&self) -> DrainStatus {
        let machine = self.machine();
        DrainStatus {
            draining: machine.is_draining(),
            drained: machine.is_draining() && machine.engine.is_drained(),
            online: machine.engine.online().into(),
            stored_bytes: machine.pool.used() as u64,
        }
    }

    /// At most `limit` flows from place `from` of the table on, and where to go on.
    fn flows(&self, mut from: u32, limit: usize) -> (Vec<FlowSummary>, Option<u32>) {
        let mut flows = Vec::new();
        loop {
            let places = PLACES_AT_ONCE.min((limit - flows.len()) as u32);
            let (found, next) = self.machine().engine.flows(from, places);
            flows.extend(found);
            match next {
                Some(next) if flows.len() < limit => from = next,
                next => return (flows, next),
            }
        }
    }
}

impl ConfigApi for Arc<Shared> {}

impl ControlApi for Arc<Shared> {
    fn flows(&self, query: &FlowQuery) -> Result<FlowPage, ControlError> {
        let limit = query.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
        let (mut index, mut from) = match &query.cursor {
            None => (0, 0),
            Some(cursor) => {
                parse_cursor(cursor).ok_or_else(|| ControlError::BadCursor(excerpt(cursor)))?
            }
        };
        let ports = match &query.port {
            Some(name) => vec![self.port(name)?],
            None => self.ports().list().to_vec(),
        };
        let mut flows = Vec::new();
        while let Some(port) = ports.get(index) {
            let (found, next) = port.offload.flows(from, limit - flows.len());
            flows.extend(found.iter().map(|flow| flow_status(&port.config.name, flow)));
            (index, from) = next.map_or((index + 1, 0), |next| (index, next));
            if flows.len() >= limit {
                break;
            }
        }
        let next = (index < ports.len()).then(|| format!("{index}.{from}"));
        Ok(FlowPage { flows, next })
    }

    fn flow(&self, port: &str, key: &FlowKey) -> Result<FlowStatus, ControlError> {
        let port = self.port(port)?;
        let name = &port.config.name;
        let FlowKey { guest, peer, .. } = *key;
        let unknown = || ControlError::UnknownFlow { port: name.clone(), guest, peer };
        let tuple = tuple(key).ok_or_else(unknown)?;
        let flow = port.offload.machine().engine.flow(&tuple).ok_or_else(unknown)?;
        Ok(flow_status(name, &flow))
    }

    fn port_status(&self, port: &str) -> Result<PortStatus, ControlError> {
        let port = self.port(port)?;
        Ok(snapshot::port(&port, self.work(port.id)))
    }

    fn pairs(&self, query: &PairQuery) -> Result<PairPage, ControlError> {
        pairs::page(self, query)
    }

    fn offload(&self, port: &str, change: &OffloadChange) -> Result<OffloadSettings, ControlError> {
        let port = self.port(port)?;
        if *change != OffloadChange::default() {
            let mut delivery = Delivery::new(Arc::clone(self));
            let mut session = Session::open(&port, &mut delivery);
            let config = settings::offload(session.config(), change)?;
            check_journal(&config, &session)?;
            session.configure(config);
            drop(session);
            delivery.flush();
            let settings = port.offload.settings();
            let OffloadSettings { transmit, receive, .. } = settings;
            let transmit = transmit.is_on();
            let (port, changes) = (port.config.name.clone(), changed(change));
            keep(self, &Kept::Offload(&port, &settings));
            self.events.emit(EventKind::OffloadChanged { port, transmit, receive, changes });
        }
        Ok(port.offload.settings())
    }

    fn inbound(&self, change: &InboundChange) -> Result<InboundStatus, ControlError> {
        self.operate_inbound(change)
    }

    fn capture(
        &self,
        request: &CaptureRequest,
        uid: u32,
        sink: Box<dyn CaptureSink>,
    ) -> Result<u64, ControlError> {
        capture::begin(self, request, uid, sink)
    }

    fn captures(&self) -> CaptureList {
        capture::list(self)
    }

    fn end_capture(&self, id: u64) -> Result<CaptureStatus, ControlError> {
        capture::end(self, id)
    }

    fn events(&self, query: &EventQuery) -> Result<EventReader, ControlError> {
        if let Some(name) = &query.port
            && !self.events.know(name)
            && !self.ports().iter().any(|port| port.config.name == *name)
            && !self.uplinks().iter().any(|uplink| uplink.config.name == *name)
        {
            return Err(capture::unknown(self, name));
        }
        EventReader::new(&self.events, query)
    }

    fn diagnose(&self, port: &str) -> Result<Diagnosis, ControlError> {
        let port = self.port(port)?;
        Ok(diagnose::port(self, &port))
    }

    fn trace(&self, request: &TraceRequest) -> Result<Trace, ControlError> {
        trace::trace(self, request)
    }

    fn drain(&self, port: &str, draining: Option<bool>) -> Result<DrainStatus, ControlError> {
        let port = self.port(port)?;
        if let Some(draining) = draining {
            let mut delivery = Delivery::new(Arc::clone(self));
            Session::open(&port, &mut delivery).drain(draining);
            delivery.flush();
            let name = port.config.name.clone();
            self.events.emit(match draining {
                true => EventKind::DrainBegan { port: name },
                false => EventKind::DrainEnded { port: name },
            });
            keep(self, &Kept::Drain(&port.config.name, draining));
        }
        Ok(port.offload.drain_status())
    }
}

impl Shared {
    /// The port called `name`.
    pub(crate) fn port(&self, name: &str) -> Result<Arc<Port>, ControlError> {
        let ports = self.ports();
        ports.named(name).cloned().ok_or_else(|| ControlError::UnknownPort {
            name: excerpt(name),
            ports: ports.iter().map(|port| port.config.name.clone()).collect(),
        })
    }
}

/// The keys of a change that have a value, as text.
fn changed(change: &impl serde::Serialize) -> String {
    let Ok(serde_json::Value::Object(keys)) = serde_json::to_value(change) else {
        return String::new();
    };
    let keys = keys.iter().filter(|(_, value)| !value.is_null());
    clip(keys.map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", "))
}

/// The start of a text that somebody else wrote.
fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Index among the ports asked for, and place in that port's table.
fn parse_cursor(cursor: &str) -> Option<(usize, u32)> {
    let (index, from) = cursor.split_once('.')?;
    Some((index.parse().ok()?, from.parse().ok()?))
}

/// What the offload knows a connection by; none if its ends have addresses of two families.
fn tuple(FlowKey { guest, peer, vlan }: &FlowKey) -> Option<FiveTuple> {
    let tuple = match (guest.ip(), peer.ip()) {
        (IpAddr::V4(guest), IpAddr::V4(peer)) => FiveTuple::v4(guest, peer, tcp::PROTOCOL),
        (IpAddr::V6(guest), IpAddr::V6(peer)) => FiveTuple::v6(guest, peer, tcp::PROTOCOL),
        _ => return None,
    };
    Some(tuple.with_ports(guest.port(), peer.port()).in_vlan(vlan.unwrap_or(0)))
}

/// # Errors
/// The settings want a journal, and the port has none.
fn check_journal(config: &Config, session: &Session<'_>) -> Result<(), ControlError> {
    if config.transmit_mode().may_owe() && !session.has_journal() {
        return Err(ControlError::Invalid(NO_JOURNAL.to_owned()));
    }
    Ok(())
}

fn flow_status(port: &str, flow: &FlowSummary) -> FlowStatus {
    let FiveTuple { src_port, dst_port, .. } = flow.flow;
    let endpoint = |ip, port| SocketAddr::new(ip, port).to_string();
    FlowStatus {
        port: port.to_owned(),
        guest: endpoint(flow.flow.src_ip(), src_port),
        peer: endpoint(flow.flow.dst_ip(), dst_port),
        vlan: (flow.flow.vlan != 0).then_some(flow.flow.vlan),
        tx: flow.tx.name().to_owned(),
        rx: flow.rx.name().to_owned(),
        reason: flow.reason.name().to_owned(),
        cwnd: flow.cwnd,
        ssthresh: flow.ssthresh,
        held: flow.held,
        in_flight: flow.in_flight,
        granted: flow.granted,
        srtt_us: flow.srtt.map(|srtt| srtt.as_micros() as u64),
        kept: flow.kept,
        owed: flow.owed,
    }
}
