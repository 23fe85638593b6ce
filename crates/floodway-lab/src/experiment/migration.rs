//! A VM that moves between two hosts while a neighbour sends to it.
//!
//! # Theory of operation
//! ```text
//! VM mover ┐                      ┌ VM mover, later
//!          ├ switch - tap ┐ ┌ tap ┤
//! VM peer  ┘              bridge  └ switch
//! ```
//! Two hosts in one namespace, a switch each; the bridge between their uplinks is the network. The peer sends a TCP stream of
//! pseudo-random bytes, at a rate of its own. Meanwhile QEMU moves the other VM to the second host, as between machines: memory by a
//! socket, with the switch's dirty log. Before, the stream takes the channel; afterwards, the uplinks.
//!
//! The *gap* is the longest time in which no frame came to the VM, on either host, looked at every [`POLL`]. SHA-256 of the
//! stream is compared at the ends. QEMU's own *downtime* is that of the VM, without the network.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_switch::control::ControlClient;
use serde::Deserialize;
use serde_json::json;

use super::testbed::{Network, wait_until_reachable};
use super::transfer::tcp::Place;
use super::{Measured, Run};
use crate::agent::Interface;
use crate::cleanup;
use crate::guest_image::GuestImage;
use crate::kernel::Series;
use crate::net::{self, Namespace};
use crate::report::Samples;
use crate::switch_process::{Config, Port, Switch, Uplink, Worker};
use crate::vm::{self, Nic, Vm};

const BRIDGE: &str = "br0";
const NETWORK: &str = "move";
const SUBNET: u8 = 1;
const MOVER: usize = 0;
const PEER: usize = 1;
const LISTENS: u16 = 5000;
const DIGEST: &str = "/tmp/digest";
/// How often the hosts are asked for frames to the VM.
const POLL: Duration = Duration::from_millis(1);
/// Time of the stream before and after the move.
const SETTLE: Duration = Duration::from_secs(2);
/// Ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migration {
    /// Kernel of the guests.
    #[serde(deserialize_with = "super::series")]
    pub kernel: Series,
    /// Moves, at least 1; each with VMs of its own.
    pub moves: u32,
    /// Rate of the stream, in Mbit/s.
    pub mbit: u32,
    /// Bytes of the stream, in millions.
    pub megabytes: u64,
    /// How long QEMU may stop the VM to copy the rest of its memory, in ms.
    pub downtime_ms: u64,
}

/// Two hosts and the network between them.
#[derive(Debug)]
struct Hosts {
    // Dropped in this order.
    switches: Vec<Switch>,
    namespace: Namespace,
    dir: PathBuf,
}

/// What one move showed.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    equal: bool,
    gap: Duration,
    downtime_ms: f64,
    retransmits: f64,
    waited: f64,
}

impl Migration {
    pub(super) fn steps(&self) -> u64 {
        self.moves.into()
    }

    /// Shortens it; answers what the report has to say of that.
    pub(super) fn quicken(&mut self) -> String {
        self.moves = 1;
        "quick: one move".into()
    }

    pub(super) fn run(&self, run: &Run) -> Result<Measured> {
        ensure!(self.moves >= 1 && self.mbit >= 1, "moves and mbit must be at least 1");
        let mut outcomes = Vec::new();
        for number in 0..self.moves {
            run.progress.step(&format!("move {}/{}", number + 1, self.moves));
            outcomes.push(self.move_once(number, run.seed)?);
        }
        let mut measured = Measured::default();
        let mut add = |name: &str, unit: &str, figure: &dyn Fn(&Outcome) -> f64| {
            measured.add_samples(Samples {
                name: name.into(),
                unit: unit.into(),
                value: outcomes.iter().map(figure).collect(),
                ..Samples::default()
            });
        };
        add("gap", "ms", &|outcome| outcome.gap.as_secs_f64() * 1e3);
        add("downtime of the VM", "ms", &|outcome| outcome.downtime_ms);
        add("retransmissions", "segments", &|outcome| outcome.retransmits);
        add("most frames that waited", "frames", &|outcome| outcome.waited);
        let equal = outcomes.iter().filter(|outcome| outcome.equal).count();
        measured.add_value(
            "streams with another SHA-256",
            "streams",
            (outcomes.len() - equal) as f64,
        );
        let longest = outcomes.iter().map(|outcome| outcome.gap).max().unwrap_or_default();
        measured.add_value("longest gap", "ms", longest.as_secs_f64() * 1e3);
        Ok(measured)
    }

    fn move_once(&self, number: u32, seed: u64) -> Result<Outcome> {
        let hosts = Hosts::start(number)?;
        let image = GuestImage::debian(self.kernel)?;
        let [mover, peer] = [MOVER, PEER].map(|index| hosts.guest(index, 0, &image));
        let mut guests = Vm::boot_all(vec![mover, peer])?;
        let (peer, mover) = guests.pop().zip(guests.pop()).context("two guests")?;
        for (index, guest) in [(MOVER, &mover), (PEER, &peer)] {
            let interface = Interface {
                name: "eth0".into(),
                addresses: vec![Network::Floodway.guest_address(index)? + "/24"],
                ..Interface::default()
            };
            guest.agent().configure_interface(&interface)?;
            wait_until_reachable(guest, &net::address(SUBNET, 1))?;
        }
        self.slow_down(&peer)?;
        let script = format!(
            "nc -l -p {LISTENS} </dev/null | sha256sum >{DIGEST}.part; mv {DIGEST}.part {DIGEST}"
        );
        mover.agent().spawn(&["sh", "-c", &script])?;
        let listens = || Ok(mover.agent().exec(&["ss", "-Hltn"])?.stdout_text().contains(":5000 "));
        wait_for("the listener", listens)?;
        let before = retransmissions(&peer)?;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let address =
                SocketAddr::new(Network::Floodway.guest_address(MOVER)?.parse()?, LISTENS);
            let bytes = self.megabytes * 1_000_000;
            let peer = &peer;
            let sender =
                scope.spawn(move || peer.agent().stream_send(address, bytes, seed, PATIENCE));
            let watch = scope.spawn(|| hosts.watch(&done));
            thread::sleep(SETTLE);
            let parameters = json!({
                "downtime-limit": self.downtime_ms,
                "max-bandwidth": 10_u64 << 30,
            });
            let moved = mover.migrate(hosts.guest(MOVER, 1, &image), &parameters);
            thread::sleep(SETTLE);
            done.store(true, Ordering::Relaxed);
            let (gap, waited) = watch.join().map_err(|_| anyhow!("the watch failed"))??;
            let (mover, moved) = moved?;
            let sent = sender.join().map_err(|_| anyhow!("the sender failed"))??;
            let mut digest = String::new();
            wait_for("the digest", || {
                digest = mover
                    .agent()
                    .exec(&["sh", "-c", &format!("cat {DIGEST} || true")])?
                    .stdout_text();
                Ok(!digest.is_empty())
            })?;
            Ok(Outcome {
                equal: digest.split_whitespace().next() == Some(&sent.sha256),
                gap,
                downtime_ms: moved["downtime"].as_f64().unwrap_or(f64::NAN),
                retransmits: retransmissions(peer)? - before,
                waited,
            })
        })
    }

    /// Lets the peer send no faster than it should.
    fn slow_down(&self, peer: &Vm) -> Result<()> {
        let rate = format!("{}mbit", self.mbit);
        let root =
            ["tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1"];
        Place::Guest(peer).run(&root)?;
        let class = [
            "tc", "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate",
            &rate,
        ];
        Place::Guest(peer).run(&class).map(drop)
    }
}

fn retransmissions(guest: &Vm) -> Result<f64> {
    let counters = guest.agent().counters()?;
    Ok(counters.get("TcpRetransSegs").copied().unwrap_or_default() as f64)
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_there()? {
        ensure!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Hosts {
    fn start(number: u32) -> Result<Self> {
        let name = format!("{NETWORK}{number}");
        let namespace = Namespace::create(&name)?;
        namespace.bridge(BRIDGE)?;
        namespace.add_address(BRIDGE, &net::cidr(SUBNET, 1))?;
        let dir = cleanup::run_dir()?.join(&name);
        let mut switches = Vec::new();
        for host in 0..2 {
            let tap = format!("fw{host}");
            namespace.tap(&tap)?;
            namespace.ip(&["link", "set", &tap, "master", BRIDGE, "up"])?;
            let port = |index: usize, name: &str| {
                Port::new(name, &socket(&dir, index, host), &Network::Floodway.mac(index))
            };
            let mut ports = vec![port(MOVER, "mover")];
            ports.extend((host == 0).then(|| port(PEER, "peer")));
            let config = Config {
                control: control(&dir, host),
                worker: vec![Worker::default()],
                port: ports,
                uplink: vec![Uplink::tap("network", &tap)],
            };
            switches.push(Switch::start(&format!("host{host}"), &dir, &config, Some(&namespace))?);
        }
        Ok(Self { switches, namespace, dir })
    }

    /// VM `index` as it is on a host.
    fn guest(&self, index: usize, host: usize, image: &GuestImage) -> vm::Config {
        let name = if index == MOVER { "mover" } else { "peer" };
        let mut config = vm::Config::new(name, image);
        config.namespace = Some(self.namespace.name().into());
        config.nic(Nic::vhost_user(socket(&self.dir, index, host), Network::Floodway.mac(index)))
    }

    /// Looks at both hosts until `done`: the longest time in which nothing came to the VM that moves, and most frames that waited for
    /// it.
    fn watch(&self, done: &AtomicBool) -> Result<(Duration, f64)> {
        let clients: Vec<ControlClient> =
            self.switches.iter().map(Switch::client).collect::<Result<_>>()?;
        let (mut last, mut seen) = (None::<Instant>, 0);
        let (mut gap, mut waited) = (Duration::ZERO, 0);
        while !done.load(Ordering::Relaxed) {
            let mut frames = 0;
            for client in &clients {
                let status = client.status()?;
                let mover = &status.ports[MOVER];
                frames += mover.rx().packets;
                waited = waited.max(mover.pending().0);
            }
            // From the first bytes of the stream on.
            if frames > seen + 1 || (last.is_some() && frames > seen) {
                let now = Instant::now();
                gap = gap.max(last.replace(now).map_or(Duration::ZERO, |before| now - before));
                seen = frames;
            }
            thread::sleep(POLL);
        }
        Ok((gap, waited as f64))
    }
}

fn socket(dir: &Path, index: usize, host: usize) -> PathBuf {
    dir.join(format!("vm{index}-host{host}.sock"))
}

fn control(dir: &Path, host: usize) -> PathBuf {
    dir.join(format!("control{host}.sock"))
}
