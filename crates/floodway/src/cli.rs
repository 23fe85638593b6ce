//! Commands and options.

mod capture;
mod change;
mod events;
#[cfg(test)]
mod tests;
mod trace;
mod upgrade;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use floodway_switch::api::transmit::{Transmit, TransmitSetting};
use floodway_switch::config::DEFAULT_CONTROL_SOCKET;
use tracing_subscriber::EnvFilter;

pub use capture::CaptureArgs;
pub use change::{
    ChangeArgs, DelArgs, KeysArgs, ListArgs, NetworkCommand, PortCommand, ShowArgs, UplinkCommand,
};
pub use events::EventsArgs;
pub use trace::TraceArgs;
pub use upgrade::UpgradeArgs;

/// A user-space virtual switch for hosts that run many VMs per core
#[derive(Debug, Parser)]
#[command(name = "floodway", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `floodway` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the switch in the foreground until SIGINT or SIGTERM; SIGHUP makes it what the file says by then
    Run(RunArgs),
    /// Show the ports, queues, drops and addresses of the running switch
    Status(StatusArgs),
    /// Show what the VMs of the running switch do, the busiest first: rates, drops, delay, what the offload does, waiting vCPUs
    Top(TopArgs),
    /// Show the TCP connections that the running switch offloads
    Flows(FlowsArgs),
    /// Show what the guests of the running switch send where, at which rate and in which class
    Pairs(FlowsArgs),
    /// Show or change the TCP offload settings of a port of the running switch
    Offload(OffloadArgs),
    /// Show or change how the link into the host is divided among the ports
    Inbound(InboundArgs),
    /// Copy frames of a port or uplink of the running switch to a file or pipe, as pcapng, for Wireshark or tcpdump
    Capture(CaptureArgs),
    /// Show what has happened to the running switch, and what happens: connections, drops, uplinks, alarms
    Events(EventsArgs),
    /// Show what would become of a frame, stage by stage, without sending it; exit code 3 if it would reach nobody
    Trace(TraceArgs),
    /// Show why a port does not work, and what to run next; exit code 3 for a warning, 4 for an error
    Diagnose(DiagnoseArgs),
    /// Show, add, change or remove ports of the running switch
    Port {
        /// What to do
        #[command(subcommand)]
        command: PortCommand,
    },
    /// Show, add, change or remove networks of the running switch
    Network {
        /// What to do
        #[command(subcommand)]
        command: NetworkCommand,
    },
    /// Show, add, change or remove uplinks of the running switch
    Uplink {
        /// What to do
        #[command(subcommand)]
        command: UplinkCommand,
    },
    /// Print the OpenAPI document of the control socket and the manage socket
    Openapi,
    /// Make the running switch what a configuration file says, and print what that changes
    Apply(ApplyArgs),
    /// Put another program in the place of the one that runs, without ending a connection
    Upgrade(UpgradeArgs),
    /// Add and remove ports as domains of libvirt start and end: what /etc/libvirt/hooks/qemu is to call
    LibvirtHook(HookArgs),
    /// Print metrics for Prometheus, or serve them to who may see and not touch
    Metrics(MetricsArgs),
    /// Serve a web page that shows what the VMs of the running switch do, as it happens, and changes nothing
    Web(WebArgs),
    /// Take a port's TCP connections off the offload, before its guest moves to another host
    Drain(DrainArgs),
    /// Move frames for the broker at the other end of standard input
    #[command(hide = true)]
    DataPlane(DataPlaneArgs),
    /// Keep what the broker at the other end of standard input holds, for the next one, which connects to standard output
    #[command(hide = true)]
    DescriptorStore,
    /// Print which messages between processes this program speaks, as JSON, for the broker that is asked to upgrade to it
    #[command(hide = true)]
    Speaks,
    /// Write a completion script for a shell to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages, one for each command, into a directory
    Man {
        /// The directory, which must be there
        directory: PathBuf,
    },
    /// Print the version
    Version,
}

/// Options of `floodway run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file (TOML)
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration and exit
    #[arg(long)]
    pub check: bool,
    /// Move frames in the process that holds sockets and rights, without a sandbox and without surviving a crash; for measurements
    #[arg(long, conflicts_with = "check")]
    pub single_process: bool,
    /// Let the process that moves frames keep all its rights, for debuggers: a guest that takes it over then has them
    #[arg(long, conflicts_with = "single_process")]
    pub no_sandbox: bool,
    /// End with this process, however it ends: no descriptor store keeps what the next `floodway run` could take over; for measurements and containers
    #[arg(long, env = "FLOODWAY_NO_DESCRIPTOR_STORE")]
    pub no_descriptor_store: bool,
    /// Longest pause, in milliseconds, before a data plane is replaced that did not live for long; for tests
    #[arg(long, value_name = "MS", default_value_t = 5000, hide = true)]
    pub longest_pause: u32,
    /// What to log to standard error: a level, or directives like "info,floodway_switch::vhost=debug"
    #[arg(long, value_name = "FILTER", env = "FLOODWAY_LOG", default_value = "info", value_parser = log_filter)]
    pub log: String,
}

/// Options of `floodway data-plane`, which `floodway run` starts.
#[derive(Debug, Args)]
pub struct DataPlaneArgs {
    /// What errors call the configuration, whose text comes from the broker
    #[arg(long, value_name = "FILE")]
    pub name: PathBuf,
    /// User to become
    #[arg(long, requires = "gid", conflicts_with = "no_sandbox")]
    pub uid: Option<u32>,
    /// Its only group
    #[arg(long, requires = "uid")]
    pub gid: Option<u32>,
    /// Give nothing up
    #[arg(long)]
    pub no_sandbox: bool,
    /// What to log, as for `floodway run`
    #[arg(long, value_name = "FILTER", value_parser = log_filter)]
    pub log: String,
}

/// Where to find the running switch.
#[derive(Debug, Args)]
pub struct ControlArgs {
    /// Control socket of the switch
    #[arg(long = "control", value_name = "PATH", env = "FLOODWAY_CONTROL", default_value = DEFAULT_CONTROL_SOCKET)]
    pub path: PathBuf,
}

/// Options of `floodway status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON, with every counter, instead of tables
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: ControlArgs,
    /// Show the status again every so many seconds, until interrupted (default 1)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

/// Options of `floodway top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// Print the rates of one interval and exit
    #[arg(long)]
    pub once: bool,
    /// Print JSON, one line for each interval, and with --once one document
    #[arg(long)]
    pub json: bool,
    /// What ports are sorted by
    #[arg(long, value_name = "FIGURE", default_value = "rate")]
    pub sort: Key,
    /// Only ports whose name or state has these words
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    pub filter: String,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// What `floodway top` sorts ports by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Key {
    /// Name, with numbers in it by their value.
    Name,
    /// Bits a second, both ways.
    #[default]
    Rate,
    /// Bits a second from the guest.
    Tx,
    /// Bits a second to the guest.
    Rx,
    /// Frames a second from the guest.
    TxFrames,
    /// Frames a second to the guest.
    RxFrames,
    /// Bytes that the offload stores.
    Stored,
    /// Bytes acknowledged for the guest.
    Kept,
    /// Repairs a second.
    Repairs,
    /// Time that frames wait.
    Delay,
    /// Drops a second.
    Drops,
    /// Share of the worker.
    Work,
    /// vCPUs that wait.
    Wait,
    /// Frames a second that the guest is spared.
    Saved,
}

/// Options of `floodway flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Only those of this port
    pub port: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Show at most so many
    #[arg(long, value_name = "N", default_value = "1000", value_parser = value_parser!(u64).range(1..))]
    pub limit: u64,
    #[command(flatten)]
    pub control: ControlArgs,
    /// Show them again every so many seconds, until interrupted (default 1)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

/// Options of `floodway offload`. Without settings it only shows.
#[derive(Debug, Args)]
pub struct OffloadArgs {
    /// The port
    pub port: String,
    /// Run congestion control for what the guest sends: on (module), off, agentless or auto
    #[arg(long, value_name = "MODE", value_parser = transmit)]
    pub transmit: Option<TransmitSetting>,
    /// Acknowledge for the guest what it receives
    #[arg(long)]
    pub receive: Option<Toggle>,
    /// Congestion control towards the network: reno, newreno, vegas, cubic or dctcp
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// How connections share the budget: none, fair or prioritised
    #[arg(long, alias = "buffers", value_name = "POLICY")]
    pub buffer: Option<String>,
    /// Bytes that the port's connections may use, as 4194304 or 4MiB
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub budget: Option<u32>,
    /// Bytes that may be acknowledged for the guest and not by it yet, as 4194304 or 4MiB
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub receive_budget: Option<u32>,
    /// Segments of the first congestion window
    #[arg(long, value_name = "N")]
    pub initial_window: Option<u8>,
    /// Acknowledge nothing early that takes the peer more milliseconds to acknowledge
    #[arg(long, value_name = "MS")]
    pub early_ack_delay: Option<u64>,
    /// Seconds after which a silent peer that is owed bytes is dead
    #[arg(long, value_name = "SECONDS")]
    pub peer_timeout: Option<u64>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// Options of `floodway inbound`. Without settings it only shows.
#[derive(Debug, Args)]
pub struct InboundArgs {
    /// Rate of the link into the host in Mbit/s; 0 switches the division off
    #[arg(long, value_name = "MBIT")]
    pub capacity: Option<u64>,
    /// What each port has at least, in kbit/s
    #[arg(long, value_name = "KBIT")]
    pub minimum: Option<u64>,
    /// Where weights come from: connections, fixed or share
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Most connections of a port that count; 0 is no cap
    #[arg(long, value_name = "N")]
    pub weight_cap: Option<u32>,
    /// Lend what a port does not use to the others
    #[arg(long)]
    pub water_fill: Option<Toggle>,
    /// Milliseconds without data until a connection is not active
    #[arg(long, value_name = "MS")]
    pub idle: Option<u64>,
    /// Bytes that may arrive at once, as 131072 or 128KiB
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub burst: Option<u32>,
    /// Drop UDP beyond a port's rate
    #[arg(long)]
    pub police_udp: Option<Toggle>,
    /// Print JSON, with every counter, instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: ControlArgs,
    /// Show it again every so many seconds, until interrupted (default 1)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Toggle {
    /// On
    On,
    /// Off
    Off,
}

/// Options of `floodway diagnose`.
#[derive(Debug, Args)]
pub struct DiagnoseArgs {
    /// The port
    pub port: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// Options of `floodway apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Configuration file (TOML)
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Print what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// Options of `floodway libvirt-hook`.
#[derive(Debug, Args)]
pub struct HookArgs {
    /// Look at sockets whose paths begin with this, and at no others
    #[arg(long, value_name = "PATH", default_value = "/run/floodway")]
    pub sockets: String,
    #[command(flatten)]
    pub how: ChangeArgs,
    /// The domain
    pub domain: String,
    /// What happens to it
    pub operation: String,
    /// And when: begin, end
    pub sub_operation: String,
    /// What else libvirt says
    #[arg(hide = true)]
    pub extra: Vec<String>,
}

/// Options of `floodway metrics`. Without an address or a socket it prints them once.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Serve them on this Unix socket, until a signal comes
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve them on this loopback address, like 127.0.0.1:9468, until a signal comes
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    pub listen: Option<SocketAddr>,
    /// Also who has sent to whom, which grows with the square of the number of ports
    #[arg(long)]
    pub pairs: bool,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// Options of `floodway web`. Without an address or a socket it is served on 127.0.0.1:9469.
#[derive(Debug, Args)]
pub struct WebArgs {
    /// Serve it on this loopback address, to who knows the token in the URL that is printed
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    pub listen: Option<SocketAddr>,
    /// Serve it on this Unix socket, to who may connect to it
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// Options of `floodway drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The port
    pub port: String,
    /// End a drain: connections may be offloaded again
    #[arg(long, conflicts_with = "timeout")]
    pub undo: bool,
    /// Give up after so many seconds; the port goes on draining
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = value_parser!(u64).range(0..=86_400))]
    pub timeout: u64,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// An address that no other host reaches.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback());
    address.ok_or_else(|| "must be a loopback address with a port, like 127.0.0.1:9468".to_owned())
}

/// A time between two looks, in seconds.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or("must be a number of seconds from 0.1 to 3600")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// A mode of the transmit offload.
fn transmit(text: &str) -> Result<TransmitSetting, String> {
    match text {
        "on" => Ok(TransmitSetting(Transmit::Module)),
        "off" => Ok(TransmitSetting(Transmit::Off)),
        mode => mode.parse().map_err(|_| "must be on, off, module, agentless or auto".to_owned()),
    }
}

/// A number of bytes, perhaps in KiB, MiB or GiB.
fn bytes(text: &str) -> Result<u32, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let unit = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let bytes = number.trim_end().parse::<u32>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| "must be a number of bytes below 4 GiB, like 4194304 or 4MiB".to_owned())
}

/// Accepts what the log filter will accept.
fn log_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}
