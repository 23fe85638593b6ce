//! The diagnosis of a running port, read while it goes on.

use std::sync::Arc;
use std::time::Instant;

use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;

use crate::api::diagnosis::{
    Diagnosis, DropReport, ErrorReport, PeerReport, RegionReport, RingReport, RingState,
    SocketReport, UplinkReport,
};
use crate::api::status::{PortStatus, TrafficStatus, WorkStatus};
use crate::memory::RegionLayout;
use crate::operator::snapshot;
use crate::state::front_end::{Facts, Noted, Peer, VringFacts};
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::state::uplink::Uplink;
use crate::stats::{DropReason, Traffic};
use crate::sync::lock;

/// What a device does not take, and what its queue has no room for.
const UPLINK_DROPS: [DropReason; 4] = [
    DropReason::UplinkError,
    DropReason::UplinkRefused,
    DropReason::UplinkFull,
    DropReason::UplinkQueueFull,
];

/// What is known of `port`, with findings.
pub fn port(shared: &Shared, port: &Port) -> Diagnosis {
    let facts = port.front_end.facts();
    let status = snapshot::port(port, WorkStatus::default());
    let ring = |(index, vring)| ring(port, index, vring);
    let protocol = Protocol::from_bits_truncate(facts.protocol_features);
    let quarantine_cause = lock(&port.quarantine).reason().map(|(cause, _)| cause.label());
    let mut diagnosis = Diagnosis {
        port: port.config.name.clone(),
        state: status.state,
        socket: socket(port, &facts),
        peer: facts.peer.map(|Peer { pid, uid, gid }| PeerReport { pid, uid, gid }),
        last_error: facts.last_error.as_ref().map(|noted| error(noted, &facts)),
        quarantine_cause: quarantine_cause.map(str::to_owned),
        quarantine: status.quarantine.clone(),
        protocol_features: protocol.iter_names().map(|(name, _)| name.to_owned()).collect(),
        memory: facts.regions.iter().map(region).collect(),
        rings: facts.vrings.iter().enumerate().map(ring).collect(),
        top_drop: top_drop(&status),
        uplinks: uplinks(shared, port),
        features: status.features,
        recent: None,
        findings: Vec::new(),
    };
    diagnosis.judge();
    diagnosis
}

fn socket(port: &Port, facts: &Facts) -> SocketReport {
    let mut report = SocketReport {
        path: port.config.socket.display().to_string(),
        mode: port.config.mode.name().to_owned(),
        file: None,
        hidden: false,
        attempts: facts.attempts,
        problem: facts.connect_problem.clone(),
    };
    report.look();
    report
}

fn error(noted: &Noted, facts: &Facts) -> ErrorReport {
    ErrorReport {
        error: noted.text.clone(),
        ago_s: Instant::now().duration_since(noted.at).as_secs_f64(),
        current: facts.connected_at.is_none_or(|connected| noted.at >= connected),
    }
}

fn region(layout: &RegionLayout) -> RegionReport {
    RegionReport { address: layout.gpa, size: layout.size }
}

fn ring(port: &Port, index: usize, vring: &VringFacts) -> RingReport {
    let is_running = port.pairs.get(index / 2).is_some_and(|pair| {
        if index.is_multiple_of(2) { pair.rx().is_running() } else { pair.tx().is_running() }
    });
    let state = match vring {
        _ if is_running => RingState::Running,
        VringFacts { addressed: false, .. } => RingState::Unset,
        VringFacts { started: true, enabled: true, .. } => RingState::Broken,
        _ => RingState::Stopped,
    };
    let VringFacts { size, enabled, kick, call, .. } = *vring;
    RingReport { index, state, size, enabled, kick, call }
}

/// The uplinks of the port's networks.
fn uplinks(shared: &Shared, port: &Port) -> Vec<UplinkReport> {
    let carries = |uplink: &&Arc<Uplink>| {
        port.carried.networks().any(|network| uplink.carried.carries(network))
    };
    let report = |uplink: &Arc<Uplink>| UplinkReport {
        name: uplink.config.name.clone(),
        device: uplink.config.device.clone(),
        top_drop: top_uplink_drop(&uplink.sent.traffic),
        recent_drop: None,
    };
    shared.uplinks().iter().filter(carries).map(report).collect()
}

/// What most frames were dropped for that were to leave by an uplink.
fn top_uplink_drop(sent: &Traffic) -> Option<DropReport> {
    let frames = UPLINK_DROPS.map(|reason| (sent.drops(reason), reason));
    let (frames, reason) = frames.into_iter().max_by_key(|&(frames, _)| frames)?;
    let all = sent.packets.get() + DropReason::ALL.iter().map(|&it| sent.drops(it)).sum::<u64>();
    let (direction, reason) = ("tx".to_owned(), reason.name().to_owned());
    let share = frames as f64 / all.max(1) as f64;
    (frames > 0).then_some(DropReport { direction, reason, frames, share })
}

/// What most frames of either direction were dropped for.
fn top_drop(status: &PortStatus) -> Option<DropReport> {
    let of = |direction: &str, traffic: &TrafficStatus| {
        let (reason, &frames) = traffic.drops.iter().max_by_key(|&(_, frames)| *frames)?;
        let all = traffic.packets + traffic.dropped();
        let (direction, reason) = (direction.to_owned(), reason.clone());
        Some(DropReport { direction, reason, frames, share: frames as f64 / all.max(1) as f64 })
    };
    let found = [of("rx", &status.rx()), of("tx", &status.tx())];
    found.into_iter().flatten().max_by_key(|top| top.frames).filter(|top| top.frames > 0)
}
