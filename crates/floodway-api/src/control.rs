//! What an operator can ask of and tell a running switch about its TCP offload and its meter: the documents of the
//! control socket. Changes of the configuration have a socket of their own where there is a broker ([`manage_path`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::offload::Refused;
use crate::config::{PortKeys, UplinkKeys};
use crate::status::{ProgramsStatus, WorkerStatus};
use crate::transmit::TransmitSetting;

/// Most flows in one page.
pub const MAX_PAGE: usize = 1000;

/// What the path of a manage socket has behind that of the control socket.
pub const MANAGE_SUFFIX: &str = ".manage";

/// Where the broker of a switch with this control socket takes changes of its configuration. It follows from the path alone: a data plane that was taken over
/// cannot send operators elsewhere.
#[must_use]
pub fn manage_path(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(MANAGE_SUFFIX);
    path.into()
}

/// What the name of the descriptor store's socket has behind that of the control socket.
pub const STORE_SUFFIX: &str = ".store";

/// Where the next broker of a switch with this control socket finds what the last one has left.
#[must_use]
pub fn store_path(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(STORE_SUFFIX);
    path.into()
}

/// Why the switch does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// No port has that name.
    #[error("no port \"{name}\"; the ports are {}", known(ports))]
    UnknownPort {
        /// What was asked for.
        name: String,
        /// Those that there are.
        ports: Vec<String>,
    },
    /// The port has no such connection, or not any more.
    #[error("port \"{port}\" has no connection from {guest} to {peer}")]
    UnknownFlow {
        /// The port.
        port: String,
        /// Address and port of the guest.
        guest: SocketAddr,
        /// Address and port of its peer.
        peer: SocketAddr,
    },
    /// No network has that name.
    #[error("no network \"{name}\"; the networks are {}", known(networks))]
    UnknownNetwork {
        /// What was asked for.
        name: String,
        /// Those that there are.
        networks: Vec<String>,
    },
    /// No uplink has that name.
    #[error("no uplink \"{name}\"; the uplinks are {}", known(uplinks))]
    UnknownUplink {
        /// What was asked for.
        name: String,
        /// Those that there are.
        uplinks: Vec<String>,
    },
    /// No port and no uplink has that name.
    #[error("no port or uplink \"{name}\"; there are {}", known(interfaces))]
    UnknownInterface {
        /// What was asked for.
        name: String,
        /// Those that there are.
        interfaces: Vec<String>,
    },
    /// No capture has that number.
    #[error("no capture {0}")]
    UnknownCapture(u64),
    /// As many captures run as there can be.
    #[error("{0} captures run already, and no more can; end one of them")]
    TooManyCaptures(usize),
    /// As many readers follow events as there can be.
    #[error("{0} readers follow events already, and no more can; end one of them")]
    TooManyReaders(usize),
    /// Who asks may not see what guests send.
    #[error("uid {0} may not capture frames (run as root, or as the user of the switch)")]
    MayNotCapture(u32),
    /// Not what the last page said.
    #[error("cursor = {0:?}: must be \"next\" of an earlier page")]
    BadCursor(String),
    /// A request or a configuration is not valid.
    #[error("{0}")]
    Invalid(String),
    /// Something that is fixed while the switch runs would have to change.
    #[error("cannot be changed while the switch runs: {0}; restart it")]
    NeedsRestart(String),
    /// The sockets of ports are not this process's.
    #[error(
        "the configuration of a switch of two processes is changed by its broker, at the path of the control socket with {MANAGE_SUFFIX} behind it"
    )]
    HasBroker,
    /// Who asks may not change anything.
    #[error("uid {0} may not change the configuration (run as root, or as the user of the switch)")]
    Forbidden(u32),
    /// It was changed since the entity tag of the request was given.
    #[error("it has changed since; look again")]
    Outdated,
    /// A socket, thread or number cannot be had. Nothing was changed, unless it says so.
    #[error("{0}")]
    Failed(String),
    /// A setting cannot have this value.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Asks for an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// Absolute path of the program that is to take the place of the one that runs, as the broker sees it.
    pub binary: PathBuf,
}

/// How upgrades of a switch stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeStatus {
    /// One is under way.
    pub running: bool,
    /// The programs that run, and what has become of earlier upgrades. The number of the one under way is that of the attempts.
    #[serde(flatten)]
    pub programs: ProgramsStatus,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// What is wrong, and the fix: one line.
    pub error: String,
}

/// The first names of a list that may be long.
fn known(ports: &[String]) -> String {
    match ports {
        [] => "none".to_owned(),
        ports if ports.len() <= 8 => ports.join(", "),
        ports => format!("{}, and {} more", ports[..8].join(", "), ports.len() - 8),
    }
}

/// Which flows are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowQuery {
    /// Only those of this port.
    pub port: Option<String>,
    /// At most so many, 1 to 1000; 100 by default.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub cursor: Option<String>,
}

/// Some flows. A flow that comes or goes between two pages may be missing or come twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowPage {
    /// The flows.
    pub flows: Vec<FlowStatus>,
    /// Cursor of the next page; none after the last.
    pub next: Option<String>,
}

/// One TCP connection of a guest. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowStatus {
    /// Name of the port.
    pub port: String,
    /// Address and port of the guest.
    pub guest: String,
    /// Address and port of its peer.
    pub peer: String,
    /// VLAN that the flow is in; none without a tag.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// State of the transmit side.
    pub tx: String,
    /// State of the receive side.
    pub rx: String,
    /// Why the transmit state changed last.
    pub reason: String,
    /// Congestion window towards the network.
    pub cwnd: u32,
    /// Slow-start threshold.
    pub ssthresh: u32,
    /// Sent by the guest and not released yet.
    pub held: u32,
    /// Released and not acknowledged yet.
    pub in_flight: u32,
    /// Granted to the guest and not sent by it yet.
    pub granted: u32,
    /// Smoothed round-trip time on the network, in microseconds.
    pub srtt_us: Option<u64>,
    /// Acknowledged for the guest and not by it yet.
    pub kept: u32,
    /// Acknowledged to the guest, and not by its peer yet.
    #[serde(default)]
    pub owed: u32,
}

/// Which connection of a port is asked for.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct FlowKey {
    /// Address and port of the guest.
    pub guest: SocketAddr,
    /// Address and port of its peer.
    pub peer: SocketAddr,
    /// VLAN that the connection is in; none without a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

/// Which pairs are asked for.
pub type PairQuery = FlowQuery;

/// Some pairs. One that comes or goes between two pages may be missing or come twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PairPage {
    /// The pairs.
    pub pairs: Vec<PairStatus>,
    /// Cursor of the next page; none after the last.
    pub next: Option<String>,
}

/// What a guest sends to one destination through one uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PairStatus {
    /// Name of the guest's port.
    pub port: String,
    /// Name of the uplink.
    pub uplink: String,
    /// Address of the destination; none for what is not IP.
    pub destination: Option<String>,
    /// `high` for a small flow, or `low`.
    pub class: String,
    /// Bits per second in the last whole period between two looks (100 ms unless configured).
    pub rate_bps: u64,
    /// Bytes that it may send at once and be small.
    pub tokens: u64,
    /// Milliseconds since its last frame.
    pub idle_ms: u64,
}

/// The offload settings of a port: those of `[port.offload]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffloadSettings {
    /// Congestion control for what the guest sends: `true` for guests with the module, `false`, `agentless` or `auto`.
    pub transmit: TransmitSetting,
    /// Acknowledgement of what the guest receives.
    pub receive: bool,
    /// Whose connections are offloaded: `own` or `any`.
    pub local: String,
    /// Congestion control towards the network.
    pub congestion: String,
    /// Segments of the first congestion window.
    pub initial_window: u8,
    /// How flows share the budget.
    pub buffer: String,
    /// Bytes that the flows may use.
    pub budget: u32,
    /// Bytes that may be acknowledged for the guest and not by it yet.
    pub receive_budget: u32,
    /// Flows that are known at once.
    pub max_flows: u32,
    /// Seconds after which an idle flow is forgotten.
    pub idle_s: u64,
    /// Milliseconds of the smallest retransmission time-out.
    pub min_rto_ms: u64,
    /// Nothing is acknowledged early that takes more milliseconds to be acknowledged by the peer.
    pub early_ack_delay_ms: u64,
    /// Seconds after which a silent peer that is owed bytes is dead.
    pub peer_timeout_s: u64,
}

/// Settings to be changed; the others stay as they are. `max_flows` is fixed from the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OffloadChange {
    /// See [`OffloadSettings::transmit`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transmit: Option<TransmitSetting>,
    /// See [`OffloadSettings::receive`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<bool>,
    /// See [`OffloadSettings::local`]. Connections that are known stay as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// See [`OffloadSettings::congestion`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// See [`OffloadSettings::initial_window`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_window: Option<u8>,
    /// See [`OffloadSettings::buffer`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<String>,
    /// See [`OffloadSettings::budget`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<u32>,
    /// See [`OffloadSettings::receive_budget`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_budget: Option<u32>,
    /// See [`OffloadSettings::idle_s`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// See [`OffloadSettings::min_rto_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rto_ms: Option<u64>,
    /// See [`OffloadSettings::early_ack_delay_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_ack_delay_ms: Option<u64>,
    /// See [`OffloadSettings::peer_timeout_s`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_timeout_s: Option<u64>,
}

impl From<&OffloadSettings> for OffloadChange {
    /// All that can be changed.
    fn from(settings: &OffloadSettings) -> Self {
        let settings = settings.clone();
        Self {
            transmit: Some(settings.transmit),
            receive: Some(settings.receive),
            local: Some(settings.local),
            congestion: Some(settings.congestion),
            initial_window: Some(settings.initial_window),
            buffer: Some(settings.buffer),
            budget: Some(settings.budget),
            receive_budget: Some(settings.receive_budget),
            idle_s: Some(settings.idle_s),
            min_rto_ms: Some(settings.min_rto_ms),
            early_ack_delay_ms: Some(settings.early_ack_delay_ms),
            peer_timeout_s: Some(settings.peer_timeout_s),
        }
    }
}

/// How the link into the host is divided: the settings of `[inbound]`, and every port. Rates count what frames take of
/// the link, in bits per second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InboundStatus {
    /// Rate of the link; zero if it is not divided.
    pub capacity_bps: u64,
    /// What each port has at least.
    pub minimum_bps: u64,
    /// Where weights come from.
    pub policy: String,
    /// Most connections of a port that count; zero is no cap.
    pub weight_cap: u32,
    /// What a port does not use is lent to the others.
    pub water_fill: bool,
    /// Milliseconds without data until a connection is not active.
    pub idle_ms: u64,
    /// Bytes that may arrive at once.
    pub burst_bytes: u32,
    /// UDP beyond a port's rate is dropped.
    pub police_udp: bool,
    /// Ports, in the order of the configuration.
    pub ports: Vec<InboundPort>,
}

/// A port's part of the link into the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InboundPort {
    /// Name of the port.
    pub name: String,
    /// Its weight now.
    pub weight: u32,
    /// Connections that are established and received data lately.
    pub active: u32,
    /// Connections that are known.
    pub connections: u32,
    /// Connections of which an ACK or a window update waits for its turn.
    pub waiting: u64,
    /// Its rate.
    pub rate_bps: u64,
    /// What arrived for it in the last 50 to 100 ms.
    pub measured_bps: u64,
    /// Bytes of the link that have arrived for it since the division was switched on.
    pub received_bytes: u64,
    /// Events by name; empty until the division is first switched on.
    pub counters: BTreeMap<String, u64>,
}

/// Settings of the division to be changed; the others stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InboundChange {
    /// Rate of the link in Mbit/s; zero switches the division off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_mbit: Option<u64>,
    /// What each port has at least, in kbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_kbit: Option<u64>,
    /// See [`InboundStatus::policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// See [`InboundStatus::weight_cap`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_cap: Option<u32>,
    /// See [`InboundStatus::water_fill`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub water_fill: Option<bool>,
    /// See [`InboundStatus::idle_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// See [`InboundStatus::burst_bytes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u32>,
    /// See [`InboundStatus::police_udp`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub police_udp: Option<bool>,
}

/// Which networks, ports, uplinks or workers are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// At most so many, 1 to 1000; 100 by default.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub cursor: Option<String>,
}

/// How a change of the configuration is to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeQuery {
    /// Only say what would change.
    pub dry_run: bool,
}

/// Which metrics are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsQuery {
    /// Also who has sent to whom.
    pub pairs: bool,
}

/// What is in a page if nobody says how much.
const PAGE: usize = 100;

impl PageQuery {
    /// Which of `names` are on the page that is asked for: those after the cursor's. Returns also the cursor of the next page; none after the last.
    ///
    /// # Errors
    /// The cursor is none of `names`.
    pub fn select(&self, names: &[&str]) -> Result<(Range<usize>, Option<String>), ControlError> {
        let after = match &self.cursor {
            None => 0,
            Some(cursor) => {
                let position = names.iter().position(|name| name == cursor);
                let bad = || ControlError::BadCursor(cursor.chars().take(64).collect());
                position.ok_or_else(bad)? + 1
            }
        };
        let limit = self.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
        let end = names.len().min(after + limit);
        let next = (end < names.len()).then(|| names[end - 1].to_owned());
        Ok((after..end, next))
    }
}

/// Some ports, in the order of the configuration, with the keys of theirs that do not have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortPage {
    /// The ports.
    #[schemars(with = "Vec<PortKeys>")]
    pub ports: Vec<serde_json::Map<String, serde_json::Value>>,
    /// Cursor of the next page; none after the last.
    pub next: Option<String>,
}

/// Some uplinks, in the order of the configuration, with the keys of theirs that do not have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkPage {
    /// The uplinks.
    #[schemars(with = "Vec<UplinkKeys>")]
    pub uplinks: Vec<serde_json::Map<String, serde_json::Value>>,
    /// Cursor of the next page; none after the last.
    pub next: Option<String>,
}

/// Some workers, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerPage {
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// Cursor of the next page; none after the last.
    pub next: Option<String>,
}

/// Whether to drain a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Take all flows offline and keep new ones there, or end that.
    pub draining: bool,
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainStatus {
    /// A drain was asked for.
    pub draining: bool,
    /// No flow is online and nothing is stored: the guest can leave.
    pub drained: bool,
    /// Flows that are still online.
    pub online: u64,
    /// Bytes of memory that stored frames still take.
    pub stored_bytes: u64,
}
