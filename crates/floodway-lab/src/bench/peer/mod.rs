//! The switches that are compared, each started fresh on one core with two vhost-user ports. Two are none: a bridge is what a host has
//! without, and `null` carries nothing.
//!
//! All of them are clients of the sockets that `vhgen` makes, and connect again when it comes
//! back: OVS offers TSO only so, and it makes the three alike.

mod bridge;
mod floodway;
mod null;
mod ovs;
mod testpmd;

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use super::case::Profile;
use crate::child::Process;
use crate::net::{DROP, Namespace};
use crate::process;
use crate::switch_process::data_plane;

/// The host's own device behind an uplink.
pub const HOST_DEVICE: &str = "host0";
/// The card of a switch with packet sockets.
const CARD: &str = "up0";
/// MAC address to which the client sends, and address that answers ICMP echo requests.
const HOST_MAC: &str = "52:54:00:be:00:0b";
const HOST_CIDR: &str = "198.18.0.3/24";
/// The client's.
const CLIENT_MAC: &str = "52:54:00:be:00:0a";
const CLIENT_IP: &str = "198.18.0.1";
/// Last bytes of a log that an error quotes.
const LOG_TAIL: usize = 2000;

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerKind {
    /// The switch under test.
    #[value(skip)]
    Floodway,
    /// The same program as one process: what the second one costs.
    SingleProcess,
    /// The same program without sleep between bursts.
    AlwaysPolling,
    /// The same program with all that guards a port, and TCP offload: what they cost.
    AllFeatures,
    /// DPDK's testpmd in io mode: from port to port, without looking at frames.
    Testpmd,
    /// Open vSwitch on DPDK with the NORMAL action: a learning switch.
    #[value(name = "ovs", alias = "ovs-dpdk")]
    OvsDpdk,
    /// Linux bridge and taps, with a process that does vhost-net's work for each VM.
    #[value(name = "bridge")]
    Bridge,
    /// No switch: descriptors are returned and nothing but headers is copied, which shows the client's own ceiling.
    Null,
}

impl fmt::Display for PeerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Floodway => "floodway",
            Self::SingleProcess => "single-process",
            Self::AlwaysPolling => "always-polling",
            Self::AllFeatures => "all-features",
            Self::Testpmd => "testpmd",
            Self::OvsDpdk => "ovs-dpdk",
            Self::Bridge => "bridge",
            Self::Null => "null",
        })
    }
}

impl PeerKind {
    /// Why it cannot be measured here, if so.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Testpmd => testpmd::missing(),
            Self::OvsDpdk => ovs::missing(),
            Self::Bridge => bridge::missing(),
            // Of the client's own build.
            Self::Null => None,
            Self::Floodway | Self::SingleProcess | Self::AlwaysPolling | Self::AllFeatures => {
                floodway::missing()
            }
        }
    }

    /// Whether it is measured with cases of a profile. Where Floodway may sleep it is compared with what never does.
    pub fn takes_part(self, profile: Profile) -> bool {
        match profile {
            Profile::Uplink(_) => matches!(self, Self::Floodway | Self::Bridge),
            Profile::Bursts => {
                matches!(self, Self::Floodway | Self::AlwaysPolling | Self::OvsDpdk | Self::Null)
            }
            _ => self != Self::AlwaysPolling,
        }
    }

    /// It is of this project: it has to work.
    pub fn is_own(self) -> bool {
        matches!(
            self,
            Self::Floodway | Self::SingleProcess | Self::AlwaysPolling | Self::AllFeatures
        )
    }

    /// It carries whole frames.
    pub fn copies_frames(self) -> bool {
        self != Self::Null
    }

    /// Its processes take turns on the switch's core, so that each waits although nobody else has the core.
    pub fn takes_turns(self) -> bool {
        self == Self::Bridge
    }

    /// Huge pages that it takes, in MiB.
    pub fn huge_pages_mib(self) -> u64 {
        match self {
            Self::Testpmd => testpmd::MEMORY_MIB.into(),
            Self::OvsDpdk => ovs::MOST_MEMORY_MIB.into(),
            _ => 0,
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it does not start; the error quotes its log.
    pub fn start(self, setup: &Setup) -> Result<Switch> {
        match self {
            Self::Floodway => floodway::start(setup),
            Self::SingleProcess => floodway::start_single(setup),
            Self::AlwaysPolling => floodway::start_polling(setup),
            Self::AllFeatures => floodway::start_guarded(setup),
            Self::Testpmd => testpmd::start(setup),
            Self::OvsDpdk => ovs::start(setup),
            Self::Bridge => bridge::start(setup),
            Self::Null => null::start(setup),
        }
    }

    /// Starts it with other ports than the usual two.
    ///
    /// # Errors
    /// As [`Self::start`], or when it always has two ports.
    pub fn start_planned(self, setup: &Setup, plan: &Plan) -> Result<Switch> {
        match self {
            Self::Floodway => floodway::start_planned(setup, plan),
            Self::OvsDpdk => {
                let switch = ovs::start_ports(setup, &plan.ports)?;
                ovs::wait_until_configured(setup)?;
                Ok(switch)
            }
            other => bail!("{other} has two ports"),
        }
    }
}

/// A switch with other ports than the usual two.
#[derive(Clone, Debug)]
pub struct Plan {
    pub ports: Vec<PlannedPort>,
    /// Floodway's whole configuration, which says the same and more.
    pub config: String,
    /// Network namespace of Floodway.
    pub namespace: Option<String>,
}

/// A port whose socket the client makes.
#[derive(Clone, Debug)]
pub struct PlannedPort {
    pub name: String,
    pub socket: PathBuf,
}

/// Where and how a switch runs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Private to the switch: its sockets, logs and databases.
    pub dir: PathBuf,
    pub socket_a: PathBuf,
    pub socket_b: PathBuf,
    pub core: usize,
    pub profile: Profile,
}

impl Setup {
    /// With both sockets in `dir`.
    pub fn new(dir: &Path, core: usize, profile: Profile) -> Self {
        let (socket_a, socket_b) = (dir.join("a.sock"), dir.join("b.sock"));
        Self { dir: dir.into(), socket_a, socket_b, core, profile }
    }

    /// Starts a program whose every thread stays on the switch's core, with its output in `NAME.log`.
    fn spawn(
        &self,
        name: &str,
        program: &Path,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Process> {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(self.core.to_string()).arg(program);
        configure(&mut command);
        let log = File::create(self.log(name))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Process::spawn(name, command)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }
}

/// A running switch, killed when dropped.
#[derive(Debug)]
pub struct Switch {
    /// The one that forwards first; killed in this order.
    processes: Vec<Process>,
    log: PathBuf,
    /// Goes after the processes in it. Behind an uplink it is the host, with the device [`HOST_DEVICE`].
    namespace: Option<Namespace>,
}

impl Switch {
    /// Processes of it that move frames.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(|process| data_plane(process.id())).collect()
    }

    /// Where the host of a switch with an uplink is.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// Stops all of its processes where they are, until [`resume`](Self::resume).
    ///
    /// # Errors
    /// When one has ended.
    pub fn pause(&self) -> Result<()> {
        self.processes.iter().try_for_each(|process| process.signal_group(libc::SIGSTOP))
    }

    /// Lets them go on.
    ///
    /// # Errors
    /// When one has ended.
    pub fn resume(&self) -> Result<()> {
        self.processes.iter().try_for_each(|process| process.signal_group(libc::SIGCONT))
    }

    /// How the one that forwards has ended; `None` while it runs.
    ///
    /// # Errors
    /// When the kernel does not know it.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        self.processes.first().map_or(Ok(None), Process::try_wait)
    }

    /// The end of the log of the one that forwards.
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }

    /// Ends it. Nothing that it made outlives it, so it need not be asked.
    ///
    /// # Errors
    /// When a process does not go.
    pub fn stop(self) -> Result<()> {
        self.processes.into_iter().try_for_each(Process::kill)
    }
}

/// Where `vhgen` and `vhnull` are built.
///
/// # Errors
/// When the kernel does not know where this program is.
pub fn build_dir() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    Ok(own.with_file_name("vhgen-build"))
}

/// A namespace whose kernel says nothing of its own accord, which no client has sent: so no IPv6.
fn quiet_namespace(name: &str) -> Result<Namespace> {
    let namespace = Namespace::create(name)?;
    let quiet = ["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"];
    let mut command = namespace.command("sysctl");
    command.args(["-q", "-w"]).args(quiet);
    process::run_command(command)?;
    Ok(namespace)
}

/// Adds a veth pair, of which [`CARD`] is the switch's and [`HOST_DEVICE`] the host's.
fn add_card(namespace: &Namespace) -> Result<()> {
    namespace.ip(&["link", "add", HOST_DEVICE, "type", "veth", "peer", "name", CARD])?;
    namespace.ip(&["link", "set", CARD, "up"])
}

/// Makes [`HOST_DEVICE`], which is there, what the client sends to. UDP and TCP go no further: the stack would look up a route for each packet, which costs more than its way.
fn set_up_host(namespace: &Namespace) -> Result<()> {
    namespace.ip(&["link", "set", HOST_DEVICE, "address", HOST_MAC])?;
    namespace.add_address(HOST_DEVICE, HOST_CIDR)?;
    namespace.traffic_control(&["qdisc", "add", "dev", HOST_DEVICE, "clsact"])?;
    // The protocol of an IPv4 header behind an Ethernet header: TCP or UDP.
    let bytecode = format!("5,48 0 0 23,21 2 0 6,21 1 0 17,6 0 0 4294967295,6 0 0 {DROP}");
    namespace.filter(HOST_DEVICE, "ingress", &bytecode)?;
    namespace.ip(&["neigh", "replace", CLIENT_IP, "lladdr", CLIENT_MAC, "dev", HOST_DEVICE])
}

/// The end of a log, empty when there is none.
pub fn tail(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(LOG_TAIL)..];
    String::from_utf8_lossy(tail).trim().to_owned()
}

/// `None` when a program is in `PATH`.
fn missing_program(name: &str, package: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    (!found).then(|| format!("{name} is missing: apt-get install {package}"))
}
