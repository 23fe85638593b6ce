//! A switch with the victims' and the attackers' ports on one worker, and what it says of itself.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use floodway_switch::control::ControlClient;
use floodway_switch::testing::frames::{ipv4, mac};

use super::kind::{Kind, REFUSED, Uplink};
use super::victim::{PARTNER, VICTIM};
use super::vm::{Spec, Vm};
use crate::bench::peer::{PeerKind, Plan, PlannedPort, Setup, Switch};
use crate::net::{DROP, Namespace};
use crate::{process, transfer};

/// The hostile VM.
pub const ATTACKER: u8 = 3;
/// The VM that the attacker talks to. It is hostile, too.
pub const ACCOMPLICE: u8 = 4;
/// The uplink's interface, and the one that plays the network.
const NEAR_DEVICE: &str = "v0";
pub const FAR_DEVICE: &str = "v1";

/// How long a switch may take to connect to a port.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an interface may take to come up.
const UP_TIMEOUT: Duration = Duration::from_secs(10);
/// Never sleeps between bursts: OVS polls without end, too.
const POLL_US: u64 = 1_000_000;
/// The control socket's file.
const CONTROL: &str = "control.sock";
/// Names of ports, by VM.
const PORTS: [(u8, &str); 4] =
    [(VICTIM, "victim"), (PARTNER, "partner"), (ATTACKER, "attacker"), (ACCOMPLICE, "accomplice")];

/// A running switch.
pub struct Testbed {
    pub switch: Switch,
    dir: PathBuf,
    listeners: BTreeMap<u8, UnixListener>,
    /// Only of Floodway.
    control: Option<ControlClient>,
    qmp: Option<UnixListener>,
    /// What else than the attacker's ports is charged for what the attacker does.
    charges_uplink: bool,
    /// Goes after the switch.
    namespace: Option<Namespace>,
}

impl Testbed {
    /// Starts a switch for an attack.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(peer: PeerKind, kind: Kind, setup: &Setup) -> Result<Self> {
        let namespace = (kind.uplink() != Uplink::None).then(|| network(kind)).transpose()?;
        let dir = setup.dir.clone();
        let socket = |name: &str| dir.join(format!("{name}.sock"));
        let mut listeners = BTreeMap::new();
        for (n, name) in PORTS {
            if !(is_server(kind, n)) {
                let listener = UnixListener::bind(socket(name));
                listeners.insert(n, listener.with_context(|| format!("no socket for {name}"))?);
            }
        }
        let qmp_path = dir.join("qmp.sock");
        let qmp = (kind == Kind::SilentQmp).then(|| UnixListener::bind(&qmp_path)).transpose()?;
        let ports = PORTS.map(|(_, name)| PlannedPort { name: name.into(), socket: socket(name) });
        let control = dir.join(CONTROL);
        let plan = Plan {
            ports: ports.into(),
            config: config(kind, &dir, &control, setup.core),
            namespace: namespace.as_ref().map(|namespace| namespace.name().to_owned()),
        };
        let switch = peer.start_planned(setup, &plan)?;
        let control = match peer {
            PeerKind::Floodway => Some(ControlClient::new(&control)?),
            _ => None,
        };
        let charges_uplink = kind.uplink() == Uplink::Beside;
        Ok(Self { switch, dir, listeners, control, qmp, charges_uplink, namespace })
    }

    /// Runs `work` on a thread where the uplink's far end is.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match &self.namespace {
            Some(namespace) => transfer::inside(namespace, work)?,
            None => std::thread::scope(|scope| {
                scope.spawn(work).join().unwrap_or_else(|_| bail!("a thread panicked"))
            }),
        }
    }

    /// Boots VM `n`.
    ///
    /// # Errors
    /// When the switch does not connect to it or does not take it.
    pub fn boot(&self, n: u8, spec: &Spec) -> Result<Vm> {
        let listener = self.listeners.get(&n).context("that port listens itself")?;
        Vm::accept(listener, spec, CONNECT_TIMEOUT).with_context(|| format!("VM {n}"))
    }

    /// The name of VM `n`'s port.
    pub fn port(&self, n: u8) -> &'static str {
        PORTS.iter().find(|(number, _)| *number == n).map_or("", |(_, name)| name)
    }

    /// The socket of VM `n`'s port.
    pub fn socket(&self, n: u8) -> PathBuf {
        self.dir.join(format!("{}.sock", self.port(n)))
    }

    /// The control socket.
    pub fn control_path(&self) -> PathBuf {
        self.dir.join(CONTROL)
    }

    /// Where the attacker's VMM is asked for threads.
    pub fn qmp(&self) -> Option<UnixListener> {
        self.qmp.as_ref().and_then(|listener| listener.try_clone().ok())
    }

    /// Seconds of work that the attacker was charged for so far, and all together. None of a switch that does not say.
    ///
    /// # Errors
    /// When the switch should say and does not.
    pub fn charged(&self) -> Result<Option<[f64; 2]>> {
        let Some(control) = &self.control else { return Ok(None) };
        let status = control.status()?;
        let uplinks: f64 = status.uplinks.iter().map(|uplink| uplink.work.seconds).sum();
        let ports = |hostile: bool| -> f64 {
            let wanted = status.ports.iter().filter(|port| {
                !hostile || ["attacker", "accomplice"].contains(&port.name.as_str())
            });
            wanted.map(|port| port.work.seconds).sum()
        };
        let attacker = ports(true) + if self.charges_uplink { uplinks } else { 0.0 };
        Ok(Some([attacker, ports(false) + uplinks]))
    }
}

/// The attacker connects to its own port, over and over, only where that is the attack.
fn is_server(kind: Kind, n: u8) -> bool {
    kind == Kind::Reconnects && n == ATTACKER
}

/// What an operator would write for these VMs: each with its own addresses, all on one worker.
fn config(kind: Kind, dir: &Path, control: &Path, core: usize) -> String {
    let mut text = format!(
        "control = {control:?}\n[vcpu]\nlook_every_s = 1\n[[worker]]\ncore = {core}\npoll_us = {POLL_US}\n"
    );
    for (n, name) in PORTS {
        let mode = if is_server(kind, n) { "server" } else { "client" };
        let pairs = if n == ATTACKER { kind.queue_pairs() } else { 1 };
        let socket = dir.join(format!("{name}.sock"));
        let _ = write!(
            text,
            "[[port]]\nname = \"{name}\"\nsocket = {socket:?}\nmode = \"{mode}\"\nmac = \"{}\"\nips = [\"{}\"]\nqueue_pairs = {pairs}\n",
            mac(n),
            ipv4(n)
        );
        if kind == Kind::SilentQmp && n == ATTACKER {
            let qmp = dir.join("qmp.sock");
            let _ = write!(text, "[port.vcpu]\nqmp = {qmp:?}\npolicy = \"latency\"\n");
        }
    }
    if kind.uplink() != Uplink::None {
        let _ = write!(
            text,
            "[[uplink]]\nname = \"up\"\nkind = \"packet\"\ndevice = \"{NEAR_DEVICE}\"\n"
        );
    }
    if let Uplink::Between { rate_mbit: Some(rate) } = kind.uplink() {
        let _ = write!(text, "[uplink.queue]\nrate_mbit = {rate}\n");
    }
    text
}

/// A namespace with both ends of the uplink, about which the kernel has nothing to say: its own stack gets no frame of them. It would look up a route for
/// each broadcast, and let go of those by RCU callbacks, for which ksoftirqd takes the client's core for up to a millisecond now and then.
fn network(kind: Kind) -> Result<Namespace> {
    let namespace = Namespace::create("isolation")?;
    namespace.ip(&["link", "add", NEAR_DEVICE, "type", "veth", "peer", "name", FAR_DEVICE])?;
    for device in [NEAR_DEVICE, FAR_DEVICE] {
        namespace.ip(&["link", "set", device, "addrgenmode", "none"])?;
        namespace.ip(&["link", "set", device, "up"])?;
    }
    for device in [NEAR_DEVICE, FAR_DEVICE] {
        wait_until_up(&namespace, device)?;
        namespace.traffic_control(&["qdisc", "add", "dev", device, "clsact"])?;
        // Behind packet sockets.
        namespace.filter(device, "ingress", &format!("1,6 0 0 {DROP}"))?;
    }
    if kind == Kind::RefusedDestination {
        refuse(&namespace)?;
    }
    Ok(namespace)
}

fn wait_until_up(namespace: &Namespace, device: &str) -> Result<()> {
    let deadline = Instant::now() + UP_TIMEOUT;
    let shown =
        || process::run(&["ip", "-n", namespace.name(), "-oneline", "link", "show", device]);
    while !shown()?.contains(" state UP ") {
        ensure!(Instant::now() < deadline, "{device} does not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Lets the egress filter of the uplink's interface drop what goes to [`REFUSED`]. The switch sees ENOBUFS.
fn refuse(namespace: &Namespace) -> Result<()> {
    let drop = format!("4,32 0 0 2,21 0 1 {REFUSED},6 0 0 {DROP},6 0 0 4294967295");
    namespace.filter(NEAR_DEVICE, "egress", &drop)
}

/// Empties the directory of a switch.
///
/// # Errors
/// When it cannot.
pub fn fresh(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use floodway_switch::config::Config;

    #[test]
    fn the_switch_takes_the_configuration_of_each_attack() {
        for &kind in Kind::value_variants() {
            let text = config(kind, Path::new("/run/x"), Path::new("/run/x/control.sock"), 0);
            let config = Config::parse(&text, Path::new("test"));
            let config = config.unwrap_or_else(|error| panic!("{}: {error}\n{text}", kind.name()));
            assert_eq!((config.workers.len(), config.ports.len()), (1, 4));
            assert_eq!(config.ports[2].queue_pairs, kind.queue_pairs());
        }
    }
}
