//! What can happen.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Severity;

/// Which way frames go, as a port's guest or an uplink's interface sees it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To it.
    Rx,
    /// From it.
    Tx,
}

impl Direction {
    /// Its name in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }
}

/// What has happened. In documents the name of the kind is the key `event`, in snake case; fields are keys beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs, reason = "fields are named for what they are; `text` says the rest")]
pub enum EventKind {
    /// The process that moves frames has begun to.
    SwitchStarted { version: String, ports: usize, uplinks: usize },
    /// It has taken over from one that ended. So many have ended by now.
    DataPlaneRestarted { restarts: u32, reason: Option<String> },
    /// It has taken over from one of another program, or of the same once more. Frames stood still for so many microseconds.
    SwitchUpgraded { from: String, to: String, pause_us: u64, online: u32, carried: u32 },
    /// An upgrade failed; what ran goes on.
    UpgradeFailed { reason: String },
    /// The configuration that runs is another one, by these changes.
    ConfigApplied { changes: String },
    /// A change of the configuration failed.
    ConfigFailed { changes: String, reason: String },
    /// A front-end has connected.
    PortConnected { port: String, pid: Option<i32> },
    /// The front-end has gone; with a reason if that was not its own wish.
    PortDisconnected { port: String, reason: Option<String> },
    /// A request of the front-end was refused.
    PortRefused { port: String, reason: String },
    /// A port in client mode cannot connect.
    PortUnreachable { port: String, reason: String },
    /// The front-end was cut off. `cause` is `guest_memory`, `dirty_log` or `crash`.
    PortQuarantined { port: String, cause: String, reason: String },
    /// The guest's driver runs: it receives from now on.
    GuestStarted { port: String },
    /// The guest's driver has stopped.
    GuestStopped { port: String },
    /// The address of a guest that had stopped has shown up elsewhere: it has migrated.
    GuestMigrated { port: String },
    /// The guest has moved to another host, and its connections go on there; so many were online before, and so many are.
    ConnectionsLeft { port: String, host: String, online: u32, carried: u32 },
    /// The guest has come from another host with its connections.
    ConnectionsArrived { port: String, host: String, online: u32, carried: u32 },
    /// The guest moves from here, or has come, without the state of its connections: they go on without the offload.
    ConnectionsLeftBehind { port: String, host: String, inward: bool, reason: String },
    /// The guest wrote what makes no sense into a ring; it stops until the guest resets it.
    RingBroken { port: String, pair: usize, direction: Direction },
    /// The guest uses a link-local address that is not its own, and its frames are dropped.
    AddressRefused { port: String, address: IpAddr },
    /// An operator has changed the TCP offload of a port; these halves are on now.
    OffloadChanged { port: String, transmit: bool, receive: bool, changes: String },
    /// A port's connections are taken off the offload: an operator wants it, or the guest is about to move.
    DrainBegan { port: String },
    /// An operator has ended that.
    DrainEnded { port: String },
    /// Bytes that an earlier process had acknowledged for a guest are there.
    OffloadRestored { port: String, connections: u64 },
    /// Bytes that were acknowledged for a guest are lost; both ends are reset.
    OffloadLost { port: String, connections: u64 },
    /// The record of what was acknowledged for a guest is damaged; all connections from before are reset.
    OffloadDamaged { port: String, records: u64 },
    /// An operator has changed how the link into the host is divided.
    InboundChanged { changes: String },
    /// Frames of a port or uplink are copied for a user.
    CaptureBegan { port: String, capture: u64, uid: u32 },
    /// That is over.
    CaptureEnded { port: String, capture: u64, frames: u64, lost: u64, reason: String },
    /// Frames are dropped for a reason, for which none were for a while. `rate_limit` is a port at its limit.
    DropsBegan { port: String, direction: Direction, reason: String },
    /// None were for a while: so many by then, since that began.
    DropsEnded { port: String, direction: Direction, reason: String, frames: u64 },
    /// An uplink's device has failed.
    UplinkDown { uplink: String, device: String, reason: String },
    /// It could be opened again.
    UplinkUp { uplink: String, device: String },
    /// A worker stands still. `waits_in` is the kernel's function that it waits in, 0 if it runs.
    WorkerStalled { worker: usize, waits_in: String },
    /// It goes on.
    WorkerResumed { worker: usize, stood_ms: u64 },
    /// Events that whoever reads was too slow for, or that are of a process before this one: then nobody knows how many. Those of all ports count.
    Lost { count: Option<u64> },
}

impl EventKind {
    /// The name of the kind.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SwitchStarted { .. } => "switch_started",
            Self::DataPlaneRestarted { .. } => "data_plane_restarted",
            Self::SwitchUpgraded { .. } => "switch_upgraded",
            Self::UpgradeFailed { .. } => "upgrade_failed",
            Self::ConfigApplied { .. } => "config_applied",
            Self::ConfigFailed { .. } => "config_failed",
            Self::PortConnected { .. } => "port_connected",
            Self::PortDisconnected { .. } => "port_disconnected",
            Self::PortRefused { .. } => "port_refused",
            Self::PortUnreachable { .. } => "port_unreachable",
            Self::PortQuarantined { .. } => "port_quarantined",
            Self::GuestStarted { .. } => "guest_started",
            Self::GuestStopped { .. } => "guest_stopped",
            Self::GuestMigrated { .. } => "guest_migrated",
            Self::ConnectionsLeft { .. } => "connections_left",
            Self::ConnectionsArrived { .. } => "connections_arrived",
            Self::ConnectionsLeftBehind { .. } => "connections_left_behind",
            Self::RingBroken { .. } => "ring_broken",
            Self::AddressRefused { .. } => "address_refused",
            Self::OffloadChanged { .. } => "offload_changed",
            Self::DrainBegan { .. } => "drain_began",
            Self::DrainEnded { .. } => "drain_ended",
            Self::OffloadRestored { .. } => "offload_restored",
            Self::OffloadLost { .. } => "offload_lost",
            Self::OffloadDamaged { .. } => "offload_damaged",
            Self::InboundChanged { .. } => "inbound_changed",
            Self::CaptureBegan { .. } => "capture_began",
            Self::CaptureEnded { .. } => "capture_ended",
            Self::DropsBegan { .. } => "drops_began",
            Self::DropsEnded { .. } => "drops_ended",
            Self::UplinkDown { .. } => "uplink_down",
            Self::UplinkUp { .. } => "uplink_up",
            Self::WorkerStalled { .. } => "worker_stalled",
            Self::WorkerResumed { .. } => "worker_resumed",
            Self::Lost { .. } => "lost",
        }
    }

    /// How much it matters.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        match self {
            Self::SwitchStarted { .. }
            | Self::SwitchUpgraded { .. }
            | Self::ConfigApplied { .. }
            | Self::PortConnected { .. }
            | Self::PortDisconnected { reason: None, .. }
            | Self::GuestStarted { .. }
            | Self::GuestStopped { .. }
            | Self::GuestMigrated { .. }
            | Self::ConnectionsLeft { .. }
            | Self::ConnectionsArrived { .. }
            | Self::OffloadChanged { .. }
            | Self::DrainBegan { .. }
            | Self::DrainEnded { .. }
            | Self::OffloadRestored { .. }
            | Self::InboundChanged { .. }
            | Self::CaptureBegan { .. }
            | Self::CaptureEnded { .. }
            | Self::DropsBegan { .. }
            | Self::DropsEnded { .. }
            | Self::UplinkUp { .. } => Severity::Info,
            Self::UpgradeFailed { .. }
            | Self::ConfigFailed { .. }
            | Self::PortDisconnected { .. }
            | Self::PortRefused { .. }
            | Self::PortUnreachable { .. }
            | Self::PortQuarantined { .. }
            | Self::ConnectionsLeftBehind { .. }
            | Self::RingBroken { .. }
            | Self::AddressRefused { .. }
            | Self::OffloadLost { .. }
            | Self::WorkerResumed { .. }
            | Self::Lost { .. } => Severity::Warning,
            Self::DataPlaneRestarted { .. }
            | Self::OffloadDamaged { .. }
            | Self::UplinkDown { .. }
            | Self::WorkerStalled { .. } => Severity::Error,
        }
    }

    /// The port or uplink that it is about; none if it is about the whole switch.
    #[must_use]
    pub fn port(&self) -> Option<&str> {
        match self {
            Self::PortConnected { port, .. }
            | Self::PortDisconnected { port, .. }
            | Self::PortRefused { port, .. }
            | Self::PortUnreachable { port, .. }
            | Self::PortQuarantined { port, .. }
            | Self::GuestStarted { port }
            | Self::GuestStopped { port }
            | Self::GuestMigrated { port }
            | Self::ConnectionsLeft { port, .. }
            | Self::ConnectionsArrived { port, .. }
            | Self::ConnectionsLeftBehind { port, .. }
            | Self::RingBroken { port, .. }
            | Self::AddressRefused { port, .. }
            | Self::OffloadChanged { port, .. }
            | Self::DrainBegan { port }
            | Self::DrainEnded { port }
            | Self::OffloadRestored { port, .. }
            | Self::OffloadLost { port, .. }
            | Self::OffloadDamaged { port, .. }
            | Self::CaptureBegan { port, .. }
            | Self::CaptureEnded { port, .. }
            | Self::DropsBegan { port, .. }
            | Self::DropsEnded { port, .. } => Some(port),
            Self::UplinkDown { uplink, .. } | Self::UplinkUp { uplink, .. } => Some(uplink),
            Self::SwitchStarted { .. }
            | Self::DataPlaneRestarted { .. }
            | Self::SwitchUpgraded { .. }
            | Self::UpgradeFailed { .. }
            | Self::ConfigApplied { .. }
            | Self::ConfigFailed { .. }
            | Self::InboundChanged { .. }
            | Self::WorkerStalled { .. }
            | Self::WorkerResumed { .. }
            | Self::Lost { .. } => None,
        }
    }
}

impl fmt::Display for EventKind {
    /// What has happened in words, without the port's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchStarted { version, ports, uplinks } => {
                write!(f, "floodway {version} moves frames: ports {ports}, uplinks {uplinks}")
            }
            Self::DataPlaneRestarted { reason, .. } => match reason {
                Some(reason) => write!(f, "took over from a data plane that ended: {reason}"),
                None => f.write_str("took over from a data plane that ended"),
            },
            Self::SwitchUpgraded { from, to, pause_us, online, carried } => {
                let ms = *pause_us as f64 / 1e3;
                write!(
                    f,
                    "upgraded from floodway {from} to {to}: frames stood still for {ms:.1} ms; {carried} of {online} offloaded connections go on so"
                )
            }
            Self::UpgradeFailed { reason } => write!(f, "not upgraded: {reason}"),
            Self::ConfigApplied { changes } => write!(f, "reconfigured: {changes}"),
            Self::ConfigFailed { reason, .. } => write!(f, "not reconfigured: {reason}"),
            Self::PortConnected { .. } => f.write_str("front-end connected"),
            Self::PortDisconnected { reason: None, .. } => f.write_str("front-end disconnected"),
            Self::PortDisconnected { reason: Some(reason), .. } => {
                write!(f, "front-end disconnected: {reason}")
            }
            Self::PortRefused { reason, .. } => write!(f, "front-end refused: {reason}"),
            Self::PortUnreachable { reason, .. } => f.write_str(reason),
            Self::PortQuarantined { reason, .. } => write!(f, "front-end cut off: {reason}"),
            Self::GuestStarted { .. } => f.write_str("the guest receives"),
            Self::GuestStopped { .. } => f.write_str("the guest has stopped"),
            Self::GuestMigrated { .. } => {
                f.write_str("the guest's address has shown up elsewhere; what is kept follows it")
            }
            Self::RingBroken { pair, direction, .. } => write!(
                f,
                "the guest broke the {} ring of queue pair {pair}; it stops until the guest resets it",
                direction.name()
            ),
            Self::AddressRefused { address, .. } => write!(
                f,
                "dropped: {address} is a link-local address that is neither the EUI-64 of the guest's MAC address nor in \"ips\" of the port; if it is the \
                 guest's own (RFC 7217), add it there"
            ),
            other => other.fmt_rest(f),
        }
    }
}

impl EventKind {
    fn fmt_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OffloadChanged { transmit, receive, changes, .. } => {
                let on = |on: &bool| if *on { "on" } else { "off" };
                let (transmit, receive) = (on(transmit), on(receive));
                write!(
                    f,
                    "offload settings changed: {changes}; transmit {transmit}, receive {receive}"
                )
            }
            Self::DrainBegan { .. } => {
                f.write_str("drain: connections are taken off the TCP offload")
            }
            Self::DrainEnded { .. } => {
                f.write_str("drain ended: the TCP offload takes connections")
            }
            Self::OffloadRestored { connections, .. } => write!(
                f,
                "an earlier process had acknowledged bytes of {connections} connections; they are there"
            ),
            Self::OffloadLost { connections, .. } => write!(
                f,
                "bytes of {connections} connections that were acknowledged are lost; both ends are reset"
            ),
            Self::OffloadDamaged { records, .. } => write!(
                f,
                "{records} records of what was acknowledged are damaged; all connections from before are reset"
            ),
            Self::InboundChanged { changes } => write!(f, "inbound settings changed: {changes}"),
            Self::CaptureBegan { capture, uid, .. } => {
                write!(f, "capture {capture} begins, for uid {uid}")
            }
            Self::CaptureEnded { capture, frames, lost, reason, .. } => {
                write!(f, "capture {capture} ends after {frames} frames, {lost} lost: {reason}")
            }
            Self::DropsBegan { direction, reason, .. } => {
                write!(f, "drops {} frames: {reason}", direction.name())
            }
            Self::DropsEnded { direction, reason, frames, .. } => {
                let direction = direction.name();
                write!(f, "drops no {direction} frames any more: {reason}, {frames} frames in all")
            }
            Self::UplinkDown { device, reason, .. } => {
                write!(f, "the uplink failed, {device}: {reason}; trying to open it again")
            }
            Self::UplinkUp { device, .. } => write!(f, "the uplink is back, {device}"),
            Self::WorkerStalled { worker, waits_in } => {
                write!(f, "worker {worker} stands still, in {waits_in}")
            }
            Self::WorkerResumed { worker, stood_ms } => {
                write!(f, "worker {worker} goes on after {stood_ms} ms")
            }
            Self::Lost { count: Some(count) } => write!(f, "{count} events lost: read too late"),
            Self::Lost { count: None } => f.write_str(
                "events lost: the last one that was read is of a process before this one",
            ),
            other => other.fmt_moves(f),
        }
    }

    fn fmt_moves(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionsLeft { host, online, carried, .. } => write!(
                f,
                "the guest has moved to {host}: {carried} of {online} offloaded connections go on so there"
            ),
            Self::ConnectionsArrived { host, online, carried, .. } => write!(
                f,
                "the guest has come from {host}: {carried} of {online} offloaded connections go on so"
            ),
            Self::ConnectionsLeftBehind { host, inward, reason, .. } => {
                let how = match (host.is_empty(), inward) {
                    (true, _) => "the guest moves".to_owned(),
                    (false, true) => format!("the guest comes from {host}"),
                    (false, false) => format!("the guest moves to {host}"),
                };
                write!(f, "{how} without the offload of its connections: {reason}")
            }
            // Others have the rest.
            _ => Ok(()),
        }
    }
}
