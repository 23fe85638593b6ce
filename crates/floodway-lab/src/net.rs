//! Networks of an experiment: namespaces, bridges, taps, and shaped links between namespaces.
//!
//! # Theory of operation
//!
//! An experiment never touches the host's own network. Each host that it plays is a network
//! [`Namespace`], with an address range of its own ([`SUBNET`]), so that runs neither disturb the
//! machine nor one another. What lives in a namespace (bridges, taps, addresses, queue disciplines)
//! goes with it; only the namespace is registered with [`crate::cleanup`]. A namespace outlives its
//! name while a process is still inside, and guards run newest first: start processes after
//! making the namespace, and they are gone before it.
//!
//! Two hosts are two namespaces joined by a veth pair with a token bucket (TBF) on each end: rate, burst
//! and a queue bounded in bytes, which is what a port of a real switch has. TBF segments
//! GSO packets before it charges them, so the queue holds what a wire would carry.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cleanup::{self, Guard};
use crate::process;

/// First two octets of experiment networks: 198.18.0.0/15 is set aside for benchmarks (RFC 2544),
/// so no host network uses it.
pub const SUBNET: &str = "198.18";

/// Address of `host` (1..=254) on experiment network `net` (0..=255), without a prefix length.
#[must_use]
pub fn address(net: u8, host: u8) -> String {
    format!("{SUBNET}.{net}.{host}")
}

/// The same with `/24`, as `ip address add` takes it.
#[must_use]
pub fn cidr(net: u8, host: u8) -> String {
    address(net, host) + "/24"
}

/// What a [filter](Namespace::filter) answers to drop a frame: `TC_ACT_SHOT` of `linux/pkt_cls.h`.
pub const DROP: u32 = 2;

/// A network namespace, deleted when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    _guard: Guard,
}

impl Namespace {
    /// Creates a namespace with its loopback up. `suffix` must be unique in this process.
    ///
    /// # Errors
    /// Without root, or when the name is taken.
    pub fn create(suffix: &str) -> Result<Self> {
        cleanup::install()?;
        let name = cleanup::namespace_name(suffix);
        process::run(&["ip", "netns", "add", &name])?;
        let guard = cleanup::register_command(
            format!("network namespace {name}"),
            &["ip", "netns", "del", &name],
        )?;
        let namespace = Self { name, _guard: guard };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Its name, as `ip netns` knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it, for `setns`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// A command that will run inside. `ip` replaces itself by the program, so the process
    /// ID is the program's own.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip` on this namespace.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn ip(&self, args: &[&str]) -> Result<()> {
        process::run(&[&["ip", "-n", &self.name], args].concat()).map(drop)
    }

    /// Adds a bridge without spanning tree delay and brings it up.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn bridge(&self, name: &str) -> Result<()> {
        self.ip(&["link", "add", name, "type", "bridge", "stp_state", "0", "forward_delay", "0"])?;
        self.ip(&["link", "set", name, "up"])
    }

    /// Runs `tc` on this namespace.
    ///
    /// # Errors
    /// What `tc` says.
    pub fn traffic_control(&self, args: &[&str]) -> Result<()> {
        let mut command = self.command("tc");
        command.args(args);
        process::run_command(command).map(drop)
    }

    /// Adds a filter in classic BPF, whose result is the action, to a device with `clsact`. `direction` is `ingress` or `egress`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn filter(&self, device: &str, direction: &str, bytecode: &str) -> Result<()> {
        let at = ["filter", "add", "dev", device, direction];
        self.traffic_control(&[&at[..], &["bpf", "da", "bytecode", bytecode]].concat())
    }

    /// Adds a persistent tap that QEMU or the switch opens by name.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn tap(&self, name: &str) -> Result<()> {
        self.ip(&["tuntap", "add", "dev", name, "mode", "tap", "vnet_hdr"])
    }

    /// Adds an address (with prefix length) to a device and brings the device up.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_address(&self, device: &str, cidr: &str) -> Result<()> {
        self.ip(&["address", "add", cidr, "dev", device])?;
        self.ip(&["link", "set", device, "up"])
    }

    /// Shapes what leaves through `device`.
    ///
    /// # Errors
    /// When `rate` is out of range or the kernel refuses.
    fn shape(&self, device: &str, rate: Rate) -> Result<()> {
        let rate = rate.checked()?;
        let mbit = format!("{}mbit", rate.mbit);
        let burst = rate.burst_bytes().to_string();
        let queue = rate.queue_bytes.to_string();
        process::run(&[
            "tc", "-n", &self.name, "qdisc", "replace", "dev", device, "root", "tbf", "rate",
            &mbit, "burst", &burst, "limit", &queue,
        ])
        .map(drop)
    }
}

/// What one direction of a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Rate in Mbit/s, 1..=100000.
    pub mbit: u32,
    /// Bytes that may wait, 3000..=1 GiB: what does not fit is dropped.
    pub queue_bytes: u32,
}

impl Rate {
    fn checked(self) -> Result<Self> {
        ensure!(
            (1..=100_000).contains(&self.mbit),
            "mbit = {}: a link has 1 to 100000 Mbit/s",
            self.mbit
        );
        ensure!(
            (3000..=1 << 30).contains(&self.queue_bytes),
            "queue_bytes = {}: a queue holds 3000 bytes (two frames) to 1 GiB",
            self.queue_bytes
        );
        Ok(self)
    }

    /// One millisecond at the rate: coarse enough for the kernel's timer, small against any RTT
    /// that the lab plays. Never under two full frames.
    fn burst_bytes(self) -> u64 {
        (u64::from(self.mbit) * 1_000_000 / 8 / 1000).max(3036)
    }
}

/// Joins two namespaces by a veth pair, each direction shaped. The ends are called `device` in
/// both namespaces and are up.
///
/// # Errors
/// When a rate is out of range or the kernel refuses.
pub fn join(a: &Namespace, b: &Namespace, device: &str, rate: Rate) -> Result<()> {
    process::run(&[
        "ip", "link", "add", "name", device, "netns", &a.name, "type", "veth", "peer", "name",
        device, "netns", &b.name,
    ])
    .context("cannot join the two namespaces")?;
    for namespace in [a, b] {
        namespace.ip(&["link", "set", device, "up"])?;
        namespace.shape(device, rate)?;
    }
    Ok(())
}

/// Plugs a host into a port of an emulated network ([`crate::path`]): a veth pair whose end `device`
/// is the host's network card, and whose end `port` in `network` is for a packet port of the path.
/// Both are up. The port's end has no addresses, so that the kernel says nothing of its own there.
///
/// # Errors
/// When the kernel refuses.
pub fn plug(host: &Namespace, device: &str, network: &Namespace, port: &str) -> Result<()> {
    process::run(&[
        "ip",
        "link",
        "add",
        "name",
        device,
        "netns",
        &host.name,
        "type",
        "veth",
        "peer",
        "name",
        port,
        "netns",
        &network.name,
    ])
    .context("cannot plug the host in")?;
    network.ip(&["link", "set", port, "addrgenmode", "none"])?;
    network.ip(&["link", "set", port, "up"])?;
    host.ip(&["link", "set", device, "up"])
}

/// Whether the kernel has what [`Namespace`] and [`join`] use; names what is missing.
#[must_use]
pub fn missing_kernel_features() -> Vec<&'static str> {
    let present = |path: &str| fs::metadata(path).is_ok();
    [("/dev/net/tun", "tun/tap"), ("/proc/self/ns/net", "network namespaces")]
        .into_iter()
        .filter_map(|(path, feature)| (!present(path)).then_some(feature))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_the_benchmark_range() {
        assert_eq!(address(3, 1), "198.18.3.1");
        assert_eq!(cidr(3, 254), "198.18.3.254/24");
    }

    #[test]
    fn rates_out_of_range_are_refused_by_name() {
        let error = Rate { mbit: 0, queue_bytes: 1 << 20 }.checked().unwrap_err().to_string();
        assert!(error.starts_with("mbit = 0"), "{error}");
        let error = Rate { mbit: 100, queue_bytes: 10 }.checked().unwrap_err().to_string();
        assert!(error.starts_with("queue_bytes = 10"), "{error}");
    }

    #[test]
    fn a_burst_holds_two_frames_at_any_rate() {
        assert_eq!(Rate { mbit: 1, queue_bytes: 3000 }.burst_bytes(), 3036);
        assert_eq!(Rate { mbit: 1000, queue_bytes: 3000 }.burst_bytes(), 125_000);
    }
}
