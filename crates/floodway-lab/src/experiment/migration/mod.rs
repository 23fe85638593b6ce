//! A VM that moves between two hosts while a co-resident VM sends to it.
//!
//! # Theory of operation
//! ```text
//! VM mover ┐                      ┌ VM mover, later
//!          ├ switch - tap ┐ ┌ tap ┤
//! VM peer  ┘              bridge  └ switch
//! ```
//! Two hosts in one namespace, a switch each; the bridge between their uplinks is the network. The peer sends a TCP stream of
//! pseudo-random bytes, at a rate of its own. Meanwhile QEMU moves the other VM to the second host, as between machines: memory by a
//! socket, with the switch's dirty log. Before, the stream takes the path between VMs; afterwards, the uplinks.
//!
//! So that the network is seen, and not how soon the moved guest acknowledges (in emulation all its code has to be translated anew),
//! the peer also sends an echo request every `PROBE`, whether there are replies or not.
//!
//! The *gap at the move* is the time from the last frame that came to the VM on the first host to the first one on the second; the
//! *longest gap* is the longest of the whole stream, before and after as well. Both are looked at every `POLL`. SHA-256 of the
//! stream is compared at the ends. QEMU's own *downtime* is that of the VM, without the network.

mod followed;
mod hosts;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_report::Samples;
use floodway_switch::api::status::PortState;
use floodway_switch::config::Config;
use floodway_switch::control::ControlClient;
use serde::Deserialize;
use serde_json::json;

use super::testbed::{Network, wait_until_reachable};
use super::transfer::tcp::Place;
use super::{Measured, RealScenario, Run};
use crate::agent::Interface;
use crate::guest_image::GuestImage;
use crate::kernel::Series;
use crate::net;
use crate::switch_process::{self, Switch};
use crate::vm::{self, Vm};
use hosts::{Hosts, SUBNET};

pub use followed::Followed;

const NETWORK: &str = "move";
const MOVER: usize = 0;
const PEER: usize = 1;
const LISTENS: u16 = 5000;
const DIGEST: &str = "/tmp/digest";
/// How often the hosts are asked for frames to the VM.
const POLL: Duration = Duration::from_millis(2);
/// Between echo requests to the VM that moves, in seconds.
const PROBE: &str = "0.005";
/// Echo requests: they take as long as the stream, more or less, and longer than the move.
const PROBES: &str = "1600";
/// Time of the stream before and after the move.
const SETTLE: Duration = Duration::from_secs(2);
/// Ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migration {
    /// Kernel of the guests.
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

/// What one move showed.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    equal: bool,
    watched: Watched,
    /// Echo requests that the VM did not answer.
    unanswered: f64,
    downtime_ms: f64,
    retransmits: f64,
}

/// What was seen of a VM that moved.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    /// From the last frame on the first host to the first one on the second; zero if there was none.
    move_gap: Duration,
    /// The longest time without a frame.
    longest: Duration,
    /// Most frames that waited for it.
    waited: u64,
}

impl RealScenario for Migration {
    fn steps(&self) -> u64 {
        self.moves.into()
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        self.moves = 1;
        Some("quick: one move".into())
    }

    fn run(&self, run: &Run) -> Result<Measured> {
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
        add("gap at the move", "ms", &|outcome| milliseconds(outcome.watched.move_gap));
        add("gap between frames of any kind", "ms", &|outcome| {
            milliseconds(outcome.watched.longest)
        });
        add("downtime of the VM", "ms", &|outcome| outcome.downtime_ms);
        add("most frames that waited", "frames", &|outcome| outcome.watched.waited as f64);
        let equal = outcomes.iter().filter(|outcome| outcome.equal).count();
        measured.add_value(
            "streams with another SHA-256",
            "streams",
            (outcomes.len() - equal) as f64,
        );
        measured.add_value(
            "echo requests without a reply",
            "requests",
            outcomes.iter().map(|outcome| outcome.unanswered).sum(),
        );
        measured.add_value(
            "retransmissions in all moves",
            "segments",
            outcomes.iter().map(|outcome| outcome.retransmits).sum(),
        );
        let longest = |gap: fn(&Watched) -> Duration| {
            milliseconds(
                outcomes.iter().map(|outcome| gap(&outcome.watched)).max().unwrap_or_default(),
            )
        };
        measured.add_value("longest gap at a move", "ms", longest(|watched| watched.move_gap));
        measured.add_value("longest gap", "ms", longest(|watched| watched.longest));
        Ok(measured)
    }
}

/// Starts a listener that leaves the digest of what it received.
fn listen(mover: &Vm) -> Result<()> {
    let script = format!(
        "nc -l -p {LISTENS} </dev/null | sha256sum >{DIGEST}.part; mv {DIGEST}.part {DIGEST}"
    );
    mover.agent().spawn(&["sh", "-c", &script])?;
    wait_for("the listener", || {
        Ok(mover.agent().exec(&["ss", "-Hltn"])?.stdout_text().contains(":5000 "))
    })
}

/// Waits for the listener's digest.
fn digest(mover: &Vm) -> Result<String> {
    let script = format!("cat {DIGEST} || true");
    let mut digest = String::new();
    wait_for("the digest", || {
        digest = mover.agent().exec(&["sh", "-c", &script])?.stdout_text();
        Ok(!digest.is_empty())
    })?;
    Ok(digest)
}

impl Migration {
    fn move_once(&self, number: u32, seed: u64) -> Result<Outcome> {
        let hosts = start(number)?;
        let image = GuestImage::debian(self.kernel)?;
        let [mover, peer] = [MOVER, PEER].map(|index| guest(&hosts, index, 0, &image));
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
        mover.begin_and_cancel_migration()?;
        listen(&mover)?;
        let (retransmissions_before, unanswered_before) =
            (retransmissions(&peer)?, unanswered(&peer)?);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let address =
                SocketAddr::new(Network::Floodway.guest_address(MOVER)?.parse()?, LISTENS);
            let bytes = self.megabytes * 1_000_000;
            let peer = &peer;
            let probes = peer.agent().spawn(&[
                "ping",
                "-q",
                "-i",
                PROBE,
                "-c",
                PROBES,
                &address.ip().to_string(),
            ])?;
            let sender =
                scope.spawn(move || peer.agent().stream_send(address, bytes, seed, PATIENCE));
            let watch = scope.spawn(|| hosts.watch(&done));
            thread::sleep(SETTLE);
            let parameters = json!({
                "downtime-limit": self.downtime_ms,
                "max-bandwidth": 10_u64 << 30,
            });
            let moved = mover.migrate(guest(&hosts, MOVER, 1, &image), &parameters);
            thread::sleep(SETTLE);
            done.store(true, Ordering::Relaxed);
            let watched = watch.join().map_err(|_| anyhow!("the watch failed"))??;
            let (mover, moved) = moved?;
            peer.agent().wait(&probes, PATIENCE)?.context("ping does not end")?;
            let sent = sender.join().map_err(|_| anyhow!("the sender failed"))??;
            Ok(Outcome {
                equal: digest(&mover)?.split_whitespace().next() == Some(&sent.sha256),
                watched,
                unanswered: unanswered(peer)? - unanswered_before,
                downtime_ms: moved["downtime"].as_f64().unwrap_or(f64::NAN),
                retransmits: retransmissions(peer)? - retransmissions_before,
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

/// Echo requests that have left the guest, less the replies that have come. By its kernel: busybox's ping misses some of the
/// replies that its kernel has counted.
fn unanswered(guest: &Vm) -> Result<f64> {
    let counters = guest.agent().counters()?;
    let count = |name: &str| counters.get(name).copied().unwrap_or_default() as f64;
    Ok(count("IcmpOutEchos") - count("IcmpInEchoReps"))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_there()? {
        ensure!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Two hosts with ports for both VMs on the first one, and for the one that moves on the second.
fn start(number: u32) -> Result<Hosts> {
    Hosts::start(&format!("{NETWORK}{number}"), |dir, host| {
        let port = |index: usize, name: &str| {
            switch_process::port(
                name,
                &hosts::socket(dir, index, host),
                Network::Floodway.mac(index),
            )
        };
        let mut ports = vec![port(MOVER, "mover")];
        ports.extend((host == 0).then(|| port(PEER, "peer")));
        Config { ports, ..Config::default() }
    })
}

fn guest(hosts: &Hosts, index: usize, host: usize, image: &GuestImage) -> vm::Config {
    hosts.guest(index, if index == MOVER { "mover" } else { "peer" }, host, image)
}

impl Hosts {
    /// Watches the VM that moves until `done`.
    fn watch(&self, done: &AtomicBool) -> Result<Watched> {
        let clients: Vec<ControlClient> =
            self.switches.iter().map(Switch::client).collect::<Result<_>>()?;
        let mut watched = Watched::default();
        let (mut last, mut frames) = (None::<Instant>, [0; 2]);
        while !done.load(Ordering::Relaxed) {
            let before: u64 = frames.iter().sum();
            let mut has_left = false;
            for (host, client) in clients.iter().enumerate() {
                // Looks take CPU time from the VMs: only where it can be.
                let has_arrived = frames[1] > 0;
                if (host == 0 && has_arrived) || (host == 1 && !has_arrived && !has_left) {
                    continue;
                }
                let status = client.status()?;
                let mover = &status.ports[MOVER];
                has_left = mover.state != PortState::Running;
                frames[host] = mover.rx().packets;
                watched.waited = watched.waited.max(mover.pending().0);
            }
            let now = Instant::now();
            let seen: u64 = frames.iter().sum();
            // From the first bytes of the stream on.
            if seen > before + 1 || (last.is_some() && seen > before) {
                let gap = last.replace(now).map_or(Duration::ZERO, |before| now - before);
                watched.longest = watched.longest.max(gap);
                if frames[1] > 0 && watched.move_gap.is_zero() {
                    watched.move_gap = gap;
                }
            }
            thread::sleep(POLL);
        }
        Ok(watched)
    }
}
