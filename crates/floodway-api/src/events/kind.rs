//! What can happen.

use std::net::IpAddr;

use derive_more::Display;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantNames};

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

/// What has happened. In documents the name of the kind is the key `event`, in snake case; fields are keys beside it. Its text is a phrase without the
/// port's name.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    IntoStaticStr,
    VariantNames,
)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs, reason = "fields are named for what they are; `text` says the rest")]
#[strum(serialize_all = "snake_case")]
pub enum EventKind {
    /// The process that moves frames has begun to.
    #[display("floodway {version} moves frames: ports {ports}, uplinks {uplinks}")]
    SwitchStarted { version: String, ports: usize, uplinks: usize },
    /// It has taken over from one that ended. So many have ended by now.
    #[display("took over from a data plane that ended{}", because(reason))]
    DataPlaneRestarted { restarts: u32, reason: Option<String> },
    /// It has taken over from one of another program, or of the same once more. Frames stood still for so many microseconds.
    #[display("upgraded from floodway {from} to {to}: frames stood still for {:.1} ms; {carried} of {online} offloaded connections go on so", *pause_us as f64 / 1e3)]
    SwitchUpgraded { from: String, to: String, pause_us: u64, online: u32, carried: u32 },
    /// An upgrade failed; what ran goes on.
    #[display("not upgraded: {reason}")]
    UpgradeFailed { reason: String },
    /// The configuration that runs is another one, by these changes.
    #[display("reconfigured: {changes}")]
    ConfigApplied { changes: String },
    /// A change of the configuration failed.
    #[display("not reconfigured: {reason}")]
    ConfigFailed { changes: String, reason: String },
    /// A front-end has connected.
    #[display("front-end connected")]
    PortConnected { port: String, pid: Option<i32> },
    /// The front-end has gone; with a reason if that was not its own wish.
    #[display("front-end disconnected{}", because(reason))]
    PortDisconnected { port: String, reason: Option<String> },
    /// A request of the front-end was refused.
    #[display("front-end refused: {reason}")]
    PortRefused { port: String, reason: String },
    /// A port in client mode cannot connect.
    #[display("{reason}")]
    PortUnreachable { port: String, reason: String },
    /// The front-end was cut off. `cause` is `guest_memory`, `dirty_log` or `crash`.
    #[display("front-end cut off: {reason}")]
    PortQuarantined { port: String, cause: String, reason: String },
    /// The guest's driver runs: it receives from now on.
    #[display("the guest receives")]
    GuestStarted { port: String },
    /// The guest's driver has stopped.
    #[display("the guest has stopped")]
    GuestStopped { port: String },
    /// The address of a guest that had stopped has shown up elsewhere: it has migrated.
    #[display("the guest's address has shown up elsewhere; what is kept follows it")]
    GuestMigrated { port: String },
    /// The guest has moved to another host, and its connections go on there; so many were online before, and so many are.
    #[display(
        "the guest has moved to {host}: {carried} of {online} offloaded connections go on so there"
    )]
    ConnectionsLeft { port: String, host: String, online: u32, carried: u32 },
    /// The guest has come from another host with its connections.
    #[display(
        "the guest has come from {host}: {carried} of {online} offloaded connections go on so"
    )]
    ConnectionsArrived { port: String, host: String, online: u32, carried: u32 },
    /// The guest moves from here, or has come, without the state of its connections: they go on without the offload.
    #[display("the guest {} without the offload of its connections: {reason}", way(host, *inward))]
    ConnectionsLeftBehind { port: String, host: String, inward: bool, reason: String },
    /// The guest wrote what makes no sense into a ring; it stops until the guest resets it.
    #[display("the guest broke the {} ring of queue pair {pair}; it stops until the guest resets it", direction.name())]
    RingBroken { port: String, pair: usize, direction: Direction },
    /// The guest uses a link-local address that is not its own, and its frames are dropped.
    #[display(
        "dropped: {address} is a link-local address that is neither the EUI-64 of the guest's MAC address nor in \"ips\" of the port; if it is the guest's own (RFC 7217), add it there"
    )]
    AddressRefused { port: String, address: IpAddr },
    /// An operator has changed the TCP offload of a port; these halves are on now.
    #[display("offload settings changed: {changes}; transmit {}, receive {}", on(*transmit), on(*receive))]
    OffloadChanged { port: String, transmit: bool, receive: bool, changes: String },
    /// A port's connections are taken off the offload: an operator wants it, or the guest is about to move.
    #[display("drain: connections are taken off the TCP offload")]
    DrainBegan { port: String },
    /// An operator has ended that.
    #[display("drain ended: the TCP offload takes connections")]
    DrainEnded { port: String },
    /// Bytes that an earlier process had acknowledged for a guest are there.
    #[display(
        "an earlier process had acknowledged bytes of {connections} connections; they are there"
    )]
    OffloadRestored { port: String, connections: u64 },
    /// Bytes that were acknowledged for a guest are lost; both ends are reset.
    #[display(
        "bytes of {connections} connections that were acknowledged are lost; both ends are reset"
    )]
    OffloadLost { port: String, connections: u64 },
    /// The record of what was acknowledged for a guest is damaged; all connections from before are reset.
    #[display(
        "{records} records of what was acknowledged are damaged; all connections from before are reset"
    )]
    OffloadDamaged { port: String, records: u64 },
    /// An operator has changed how the link into the host is divided.
    #[display("inbound settings changed: {changes}")]
    InboundChanged { changes: String },
    /// Frames of a port or uplink are copied for a user.
    #[display("capture {capture} begins, for uid {uid}")]
    CaptureBegan { port: String, capture: u64, uid: u32 },
    /// That is over.
    #[display("capture {capture} ends after {frames} frames, {lost} lost: {reason}")]
    CaptureEnded { port: String, capture: u64, frames: u64, lost: u64, reason: String },
    /// Frames are dropped for a reason, for which none were for a while. `rate_limit` is a port at its limit.
    #[display("drops {} frames: {reason}", direction.name())]
    DropsBegan { port: String, direction: Direction, reason: String },
    /// None were for a while: so many by then, since that began.
    #[display("drops no {} frames any more: {reason}, {frames} frames in all", direction.name())]
    DropsEnded { port: String, direction: Direction, reason: String, frames: u64 },
    /// An uplink's device has failed.
    #[display("the uplink failed, {device}: {reason}; trying to open it again")]
    UplinkDown { uplink: String, device: String, reason: String },
    /// It could be opened again.
    #[display("the uplink is back, {device}")]
    UplinkUp { uplink: String, device: String },
    /// A worker stands still. `waits_in` is the kernel's function that it waits in, 0 if it runs.
    #[display("worker {worker} stands still, in {waits_in}")]
    WorkerStalled { worker: usize, waits_in: String },
    /// It goes on.
    #[display("worker {worker} goes on after {stood_ms} ms")]
    WorkerResumed { worker: usize, stood_ms: u64 },
    /// Events that whoever reads was too slow for, or that are of a process before this one: then nobody knows how many. Those of all ports count.
    #[display("{}", lost(*count))]
    Lost { count: Option<u64> },
}

impl EventKind {
    /// The name of the kind.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.into()
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

/// A reason as it follows what happened; nothing if there is none.
fn because(reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
}

/// Which way a guest moves; it has no `host` until it is known where to.
fn way(host: &str, inward: bool) -> String {
    match (host, inward) {
        ("", _) => "moves".to_owned(),
        (host, true) => format!("comes from {host}"),
        (host, false) => format!("moves to {host}"),
    }
}

fn on(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn lost(count: Option<u64>) -> String {
    match count {
        Some(count) => format!("{count} events lost: read too late"),
        None => {
            "events lost: the last one that was read is of a process before this one".to_owned()
        }
    }
}
