//! The configuration file of `floodway run`.
//!
//! # Theory of operation
//! The goal is that a wrong file is understood from its one error message. The text goes through
//! three steps: the `toml` crate parses it into a tree whose every key and value knows its place
//! in the text; `section` takes typed values out of a table by key; `parse` says, one line for
//! each key, which type, range and default it has, and what must hold between sections.
//! The first thing that is wrong ends the work with a [`ConfigError`] that names the file and line,
//! the key with its full path, the value, and the fix.
//!
//! A derived `Deserialize` would do the same with less control: its errors know neither the
//! section's name nor the range that the value should have been in.
//!
//! The way back is in `keys`: a [`Config`] is written as the file that says it, which is how programs that start switches
//! make theirs.
//!
//! Invariants: a [`Config`] that was read was checked, so its users need not check again. What only
//! the running host can tell (does the core exist, is the device there) is checked at the start.
//! Keys that the file may not hold are errors, never ignored.

mod claims;
mod error;
pub mod inbound;
mod keys;
mod limit;
mod meter;
pub mod migration;
mod network;
pub mod offload;
mod parse;
mod permissions;
mod queue;
mod schema;
mod section;
#[cfg(test)]
mod tests;
mod vcpu;
mod watchdog;
mod write;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use floodway_core::inbound::Config as InboundConfig;
use floodway_core::offload::Config as OffloadConfig;
use floodway_wire::ethernet::MacAddr;

pub use error::ConfigError;
pub use limit::LimitConfig;
pub use meter::MeterConfig;
pub use migration::MigrationConfig;
pub use network::{DEFAULT_NETWORK, NetworkConfig};
pub use permissions::Permissions;
pub use queue::QueueConfig;
pub use schema::{NetworkKeys, PortKeys, UplinkKeys};
pub use vcpu::{Policy, SLICES, Slices, VcpuConfig, Vm};
pub use watchdog::WatchdogConfig;

/// Where the control socket is unless the configuration says otherwise.
pub const DEFAULT_CONTROL_SOCKET: &str = "/run/floodway/control.sock";

/// Ports and uplinks that one switch can have together.
pub const MAX_PORTS: usize = parse::MAX_PORTS;

/// A checked configuration of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Path of the control socket, at most 107 bytes. Default [`DEFAULT_CONTROL_SOCKET`].
    pub control: PathBuf,
    /// What ports' sockets have that say nothing else: the section `[permissions]`.
    pub permissions: Permissions,
    /// MAC learning.
    pub l2: L2Config,
    /// The meter of VM pairs and its tags, on every uplink.
    pub meter: MeterConfig,
    /// Slices of vCPU threads.
    pub vcpu: Slices,
    /// What is done about a worker that stands still.
    pub watchdog: WatchdogConfig,
    /// Inbound rates: the section `[inbound]`. Off without it (capacity zero); ranges are those of [`inbound`].
    pub inbound: InboundConfig,
    /// Hosts between which connections follow VMs that move. `None` without the section `[migration]`.
    pub migration: Option<MigrationConfig>,
    /// Workers; ports and uplinks name them by index. Never empty.
    pub workers: Vec<WorkerConfig>,
    /// Networks that have sections. Ports and uplinks hold a copy of theirs.
    pub networks: Vec<NetworkConfig>,
    /// Ports, one for each VM interface.
    pub ports: Vec<PortConfig>,
    /// Uplinks.
    pub uplinks: Vec<UplinkConfig>,
}

/// MAC learning: the section `[l2]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L2Config {
    /// A learnt address is forgotten when it was not seen for this long, 1 s to 1 000 000 s. Default 300 s.
    pub ageing: Duration,
}

impl Default for L2Config {
    fn default() -> Self {
        Self { ageing: Duration::from_secs(300) }
    }
}

/// One thread that moves frames: a section `[[worker]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Core that the thread is pinned to, 0 to 1023; `None` leaves it to the scheduler. Whether the core
    /// exists is known only at the start.
    pub core: Option<usize>,
    /// How long to keep polling after the last frame before sleeping, at most (0 to 1 s); less while
    /// that does not pay. Zero sleeps at once.
    /// Default 50 µs.
    pub poll: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self { core: None, poll: Duration::from_micros(50) }
    }
}

/// Which side of a port's socket listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketMode {
    /// Floodway listens, the VMM connects.
    #[default]
    Server,
    /// The VMM listens, Floodway connects, and connects again for ever when the connection ends.
    Client,
}

impl SocketMode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Server, Self::Client];

    /// As the file names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// A VM's interface: a section `[[port]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Name in status, metrics and logs; unique among ports and uplinks.
    pub name: String,
    /// Path of the vhost-user socket; unique, at most 107 bytes.
    pub socket: PathBuf,
    /// Which side listens.
    pub mode: SocketMode,
    /// The network whose frames the guest sends and receives without tags. Default: that called `default`, or none if there are networks with
    /// tags.
    pub network: Option<NetworkConfig>,
    /// Networks whose frames the guest sends and receives with tags (802.1Q). Default none.
    pub tagged: Vec<NetworkConfig>,
    /// Who may connect to the socket in server mode: the section `[port.permissions]`.
    pub permissions: Permissions,
    /// The guest's unicast address; frames from any other source are dropped. `None` checks nothing.
    pub mac: Option<MacAddr>,
    /// The guest's addresses; IP packets, ARP and neighbour discovery in any other name are dropped, save the EUI-64
    /// link-local address of its MAC address. Empty checks nothing.
    pub ips: Vec<IpAddr>,
    /// The guest may send router advertisements and redirects. Default: only if there are no `ips`.
    pub allow_router: bool,
    /// The guest may send what only DHCP servers send. Default: only if there are no `ips`.
    pub allow_dhcp_server: bool,
    /// The guest may take a MAC address that is in use behind another port or uplink; only without `mac`. Default `false`.
    pub allow_mac_takeover: bool,
    /// No frame passes between this port and another port, isolated or not; uplinks are open. Default `false`.
    pub isolate: bool,
    /// Queue pairs offered to the guest, 1 to 16. Default 1.
    pub queue_pairs: u16,
    /// Largest IP packet in bytes, offered to the guest, 68 to 65535; not more than the largest of its networks. Default: that, or 1500.
    pub mtu: u16,
    /// Bound in bytes of the queue of frames that wait for the guest's receive buffers,
    /// 128 KiB (two GSO packets) to 1 GiB. Default 4 MiB.
    pub queue_bytes: usize,
    /// Frames per second from this guest that may be broadcast, multicast or flooded, each segment of a GSO packet
    /// counted; the burst is the same number. Zero is no limit. Default 1000.
    pub storm_pps: u32,
    /// What the guest may send and receive: the section `[port.limit]`. Default: no limit.
    pub limit: LimitConfig,
    /// Index of the worker that serves the port. Default 0.
    pub worker: usize,
    /// Weight of the guest in the policies `fixed` and `share` of inbound rates, 1 to 1000. Default 1.
    pub inbound_weight: u32,
    /// TCP offload: the section `[port.offload]`. Off by default; ranges are those of [`offload`].
    pub offload: OffloadConfig,
    /// How the VM's CPUs are scheduled: the section `[port.vcpu]`. `None` leaves them alone.
    pub vcpu: Option<VcpuConfig>,
}

impl Config {
    /// The first port on which bytes may be acknowledged to the guest that its peer has not acknowledged: they have to outlive the process that moves frames.
    #[must_use]
    pub fn port_that_may_owe(&self) -> Option<&PortConfig> {
        self.ports.iter().find(|port| port.offload.transmit_mode().may_owe())
    }
}

impl PortConfig {
    /// A port with all defaults.
    #[must_use]
    pub fn new(name: impl Into<String>, socket: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            socket: socket.into(),
            mode: SocketMode::default(),
            network: Some(NetworkConfig::default()),
            tagged: Vec::new(),
            permissions: Permissions::default(),
            mac: None,
            ips: Vec::new(),
            allow_router: true,
            allow_dhcp_server: true,
            allow_mac_takeover: false,
            isolate: false,
            queue_pairs: 1,
            mtu: 1500,
            queue_bytes: 4 << 20,
            storm_pps: 1000,
            limit: LimitConfig::default(),
            worker: 0,
            inbound_weight: 1,
            offload: OffloadConfig::default(),
            vcpu: None,
        }
    }
}

impl PortConfig {
    /// The networks that its guest is in, without tags and with.
    pub fn networks(&self) -> impl Iterator<Item = &NetworkConfig> {
        self.network.iter().chain(&self.tagged)
    }

    /// No frame of `network` passes between this port and another port: the port says so, or the network does.
    #[must_use]
    pub const fn is_isolated_in(&self, network: &NetworkConfig) -> bool {
        self.isolate || network.isolate
    }
}

/// What an uplink's device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UplinkKind {
    /// A TAP device, created if it is not there.
    Tap,
    /// An existing interface, through `AF_PACKET`.
    Packet,
}

impl UplinkKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tap, Self::Packet];

    /// As the file names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Packet => "packet",
        }
    }
}

/// A way off the host's switch: a section `[[uplink]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkConfig {
    /// Name in status, metrics and logs; unique among ports and uplinks.
    pub name: String,
    /// What the device is.
    pub kind: UplinkKind,
    /// Name of the network interface, 1 to 15 bytes; unique among the uplinks.
    pub device: String,
    /// The network whose frames it carries without tags. Default: that called `default`, or none if it carries networks with tags.
    pub network: Option<NetworkConfig>,
    /// Networks whose frames it carries with tags (802.1Q). Default none.
    pub tagged: Vec<NetworkConfig>,
    /// Frames per second from each network that may be broadcast or flooded, each segment of a GSO packet counted; the burst is the
    /// same number. Zero is no limit. Default 10 000.
    pub storm_pps: u32,
    /// As `storm_pps`, for multicast: much of that is payload. Default 100 000.
    pub multicast_pps: u32,
    /// Unicast addresses that no guest may take, whether or not they were seen: gateways, the host itself. Default none.
    pub gateway_macs: Vec<MacAddr>,
    /// Index of the worker that serves the uplink. Default 0.
    pub worker: usize,
    /// What happens to frames on their way out: the section `[uplink.queue]`.
    pub queue: QueueConfig,
}

impl UplinkConfig {
    /// An uplink with all defaults.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: UplinkKind, device: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind,
            device: device.into(),
            network: Some(NetworkConfig::default()),
            tagged: Vec::new(),
            storm_pps: 10_000,
            multicast_pps: 100_000,
            gateway_macs: Vec::new(),
            worker: 0,
            queue: QueueConfig::default(),
        }
    }
}

impl UplinkConfig {
    /// The networks that it carries, without tags and with.
    pub fn networks(&self) -> impl Iterator<Item = &NetworkConfig> {
        self.network.iter().chain(&self.tagged)
    }
}

impl Default for Config {
    /// One worker, and nothing to switch yet: ports can come while the switch runs.
    fn default() -> Self {
        Self {
            control: DEFAULT_CONTROL_SOCKET.into(),
            permissions: Permissions::default(),
            l2: L2Config::default(),
            meter: MeterConfig::default(),
            vcpu: Slices::default(),
            watchdog: WatchdogConfig::default(),
            inbound: InboundConfig::default(),
            migration: None,
            workers: vec![WorkerConfig::default()],
            networks: Vec::new(),
            ports: Vec::new(),
            uplinks: Vec::new(),
        }
    }
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or is not a valid configuration.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Checks `text`; `path` is the file that errors name.
    ///
    /// # Errors
    /// The text is not TOML, or is not a valid configuration.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        parse::document(text).map_err(|fault| ConfigError::Invalid {
            path: path.to_owned(),
            line: fault.line(text),
            fault: fault.to_string(),
        })
    }
}
