//! A VM that moves between two hosts, again and again, while its connections are offloaded.
//!
//! # Theory of operation
//! ```text
//!      VM, in turn
//!     ┌─────┴─────┐
//!  switch ─ TLS ─ switch        two hosts in one namespace
//!     └── bridge ─┘
//!           └ client            many connections, which ask and are answered all the time
//! ```
//! The client is at the bridge's address, or behind a path from there, so behind both uplinks: requests go through the receive offload, responses through the transmit offload, and both ends hash all that goes either way. The VM has the guest's module, unless
//! `variant` is one without.
//!
//! A move is watched from outside, by the status of both switches every [`POLL`]: the *time until online* goes from the first look at which the guest runs on the other host to the first one
//! at which as many connections are online there as were here at last. Those that are not within [`LIMIT`] are *not online*.
//!
//! *Followed* moves have `[migration]` on both hosts, with certificates that are made by the commands of the guide; in *alone* ones no host knows of another.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_guest::requests::{Client, Outcome, Plan};
use floodway_report::Samples;
use floodway_switch::api::status::{PortState, Status};
use floodway_switch::config::migration::{Host, Trust};
use floodway_switch::config::{Config, MigrationConfig, PortConfig};
use floodway_switch::control::ControlClient;
use serde::Deserialize;
use serde_json::json;

use super::hosts::{self, Hosts, SUBNET};
use super::{MOVER, milliseconds};
use crate::agent::Interface;
use crate::experiment::offloaded::Offloaded;
use crate::experiment::testbed::{Network, wait_until_reachable};
use crate::experiment::transfer::far_end::FarEnd;
use crate::experiment::transfer::{Path as TransferPath, Profile, Variant, variant};
use crate::experiment::{Measured, RealScenario, Run};
use crate::guest_image::GuestImage;
use crate::kernel::Series;
use crate::net;
use crate::process;
use crate::switch_process::{self, Switch};
use crate::transfer::inside;
use crate::vm::{self, Vm};

const NAME: &str = "mover";
/// Where the first host listens for the other one; that one listens at the next port.
const LISTENS: u16 = 4790;
/// Core of the path's emulator.
const PATH_CORE: usize = 0;
/// Between two looks at both hosts.
const POLL: Duration = Duration::from_millis(10);
/// How long connections may take to be online on the other host.
const LIMIT: Duration = Duration::from_secs(1);
/// Time of the load before each move.
const SETTLE: Duration = Duration::from_secs(2);
/// Ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Followed {
    /// Kernel of the guest.
    pub kernel: Series,
    /// Moves under each case, there and back in turn, at least 1.
    pub moves: u32,
    /// What is compared.
    pub cases: Vec<Case>,
    /// What the switches do for the guest: `offload`, `agentless` or another one that transmits.
    #[serde(default = "both_offloads")]
    pub variant: Variant,
    /// Connections, 1 to 4000.
    pub connections: u32,
    /// Bytes of a request, and of its response unless that has its own key.
    pub bytes: u64,
    /// Bytes of a response.
    pub response_bytes: Option<u64>,
    /// Time between a response and the next request of a connection, in ms.
    pub interval_ms: u64,
    /// How long QEMU may stop the VM to copy the rest of its memory, in ms.
    pub downtime_ms: u64,
    /// Budget of transmit offload, in MiB, 1 to 1024.
    #[serde(default = "default_budget")]
    pub budget_mib: u32,
    /// Key `early_ack_delay_ms` of the port.
    pub early_ack_delay_ms: Option<u64>,
    /// Connections that have to owe bytes right before a move, 0 to `connections`: it is waited for, up to a minute.
    #[serde(default)]
    pub owing: u64,
    /// Of the guest, at least 1.
    #[serde(default = "one")]
    pub vcpus: u32,
    /// What lies between the bridge and the client.
    #[serde(default = "TransferPath::direct")]
    pub path: TransferPath,
}

fn both_offloads() -> Variant {
    Variant::Offload
}

fn one() -> u32 {
    1
}

/// The switch's own.
fn default_budget() -> u32 {
    4
}

/// Whether the hosts know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Both have `[migration]`.
    Followed,
    /// Neither has.
    Alone,
}

/// What one move showed.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    /// Most that were online there, before the move and while memory was copied.
    at_first: u64,
    /// Online at last on the host that was left.
    before: u64,
    /// Bytes that this host owed at last.
    owed: u64,
    /// What connections were doing there before it began.
    offloaded: Offloaded,
    /// Most that were online on the other one within [`LIMIT`].
    after: u64,
    /// From the start of the guest there until they all were.
    time: Option<Duration>,
    downtime_ms: f64,
}

impl RealScenario for Followed {
    fn steps(&self) -> u64 {
        self.cases.len() as u64 * u64::from(self.moves)
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        self.moves = 2;
        Some("quick: two moves of each case".into())
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        ensure!(self.moves >= 1 && !self.cases.is_empty(), "moves and cases: at least one");
        let fits = (1..=4000).contains(&self.connections);
        ensure!(fits, "connections = {}: must be 1 to 4000", self.connections);
        let (name, budget) = (self.variant.name(), self.budget_mib);
        ensure!((1..=1024).contains(&budget), "budget_mib = {budget}: must be 1 to 1024");
        let (owing, connections) = (self.owing, self.connections);
        ensure!(
            owing <= connections.into(),
            "owing = {owing}: must be at most connections = {connections}"
        );
        ensure!(self.variant.transmits(), "variant = {name:?}: must be one that transmits");
        let mut measured = Measured::default();
        for &case in &self.cases {
            self.run_case(case, run, &mut measured).with_context(|| case.row("case"))?;
        }
        Ok(measured)
    }
}

impl Case {
    fn row(self, what: &str) -> String {
        let name = match self {
            Self::Followed => "followed",
            Self::Alone => "alone",
        };
        format!("{name}/{what}")
    }

    fn start(self, scenario: &Followed) -> Result<Hosts> {
        Hosts::start(&self.row("").replace('/', ""), |dir, host| Config {
            ports: vec![scenario.port(&hosts::socket(dir, MOVER, host))],
            migration: (self == Self::Followed).then(|| migration(dir, host)),
            ..Config::default()
        })
    }
}

/// What a host knows of the other one.
fn migration(dir: &Path, host: usize) -> MigrationConfig {
    let address = net::address(SUBNET, 1);
    let port = |host: usize| LISTENS + host as u16;
    let [certificate, key, authorities] =
        ["host.pem", "host.key", "ca.pem"].map(|name| certificates(dir).join(name));
    MigrationConfig {
        listen: address.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port(host))),
        hosts: vec![Host { name: address, port: port(1 - host) }],
        trust: Trust::Certificates { certificate, key, authorities },
    }
}

fn certificates(dir: &Path) -> PathBuf {
    dir.join("certificates")
}

/// Makes an authority and a certificate for `address`, as the guide says.
fn make_certificates(dir: &Path, address: &str) -> Result<()> {
    let dir = certificates(dir);
    fs::create_dir_all(&dir)?;
    let names = format!("subjectAltName=IP:{address}");
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let openssl = |words: &[&str], more: &[&str]| {
        let mut command = std::process::Command::new("openssl");
        command.args(words).args(more).current_dir(&dir);
        process::run_command(command).map(drop)
    };
    let authority = ["-x509", "-days", "3650", "-subj", "/CN=floodway migration"];
    openssl(
        &[&["req"], &curve[..]].concat(),
        &[&authority[..], &["-keyout", "ca.key", "-out", "ca.pem"]].concat(),
    )?;
    let request =
        ["-subj", "/CN=host", "-addext", &names, "-keyout", "host.key", "-out", "host.csr"];
    openssl(&[&["req"], &curve[..]].concat(), &request)?;
    let signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "365"];
    let copied = ["-copy_extensions", "copy", "-out", "host.pem"];
    openssl(&["x509", "-req", "-in", "host.csr"], &[&signed[..], &copied[..]].concat())
}

impl Followed {
    fn run_case(&self, case: Case, run: &Run, measured: &mut Measured) -> Result<()> {
        let dir = crate::cleanup::run_dir()?.join(case.row("").replace('/', ""));
        make_certificates(&dir, &net::address(SUBNET, 1))?;
        let hosts = case.start(self)?;
        let image = GuestImage::debian(self.kernel)?;
        let guest = Vm::boot(self.guest(&hosts, 0, &image))?;
        self.prepare(&hosts, &guest)?;
        let far = FarEnd::open(&hosts.namespace, &guest, &self.path, 0, (PATH_CORE, run.seed))?;
        let server = guest.agent().requests_serve("0.0.0.0:0".parse()?)?;
        let address = Network::Floodway.guest_address(MOVER)?;
        let address = format!("{address}:{}", server.address.port()).parse()?;
        // Connections that were left behind pass the switch from then on: others take their place.
        let together = if case == Case::Followed { self.moves } else { 1 };
        let (mut guest, mut moves, mut total) = (guest, Vec::new(), Outcome::default());
        while moves.len() < self.moves as usize {
            let client = Client::new(self.plan(address, run.seed + moves.len() as u64));
            let work = || -> Result<Vm> {
                let mut guest = guest;
                for _ in 0..together {
                    let number = moves.len();
                    run.progress.step(&case.row(&format!("move {}/{}", number + 1, self.moves)));
                    thread::sleep(SETTLE);
                    let (next, moved) = self.move_once(&hosts, guest, &image, number)?;
                    guest = next;
                    moves.push(moved);
                }
                thread::sleep(SETTLE);
                Ok(guest)
            };
            let (next, outcome) = carry(&far, &client, work)?;
            guest = next;
            total.add(outcome);
        }
        guest.agent().requests_close(&server)?;
        report(case, &moves, total, measured);
        report_hosts(case, &hosts, measured)
    }

    /// The guest as it is on a host.
    fn guest(&self, hosts: &Hosts, host: usize, image: &GuestImage) -> vm::Config {
        vm::Config { vcpus: self.vcpus, ..hosts.guest(MOVER, NAME, host, image) }
    }

    /// The guest's port on either host.
    fn port(&self, socket: &Path) -> PortConfig {
        let mut port = switch_process::port(NAME, socket, Network::Floodway.mac(MOVER));
        port.offload.budget = self.budget_mib << 20;
        let delay = self.early_ack_delay_ms.map(Duration::from_millis);
        port.offload.early_ack_delay = delay.unwrap_or(port.offload.early_ack_delay);
        port
    }

    /// Lets the guest be ready for the offload of both hosts.
    fn prepare(&self, hosts: &Hosts, guest: &Vm) -> Result<()> {
        let interface = Interface {
            name: "eth0".into(),
            addresses: vec![Network::Floodway.guest_address(MOVER)? + "/24"],
            ..Interface::default()
        };
        guest.agent().configure_interface(&interface)?;
        wait_until_reachable(guest, &net::address(SUBNET, 1))?;
        let all = [self.variant];
        variant::prepare(guest, &all, Profile::Today)?;
        for switch in &hosts.switches {
            variant::activate(self.variant, &all, Profile::Today, switch, guest)?;
        }
        Ok(())
    }

    fn plan(&self, address: SocketAddr, seed: u64) -> Plan {
        Plan {
            address,
            connections: self.connections,
            request_bytes: self.bytes,
            response_bytes: self.response_bytes.unwrap_or(self.bytes),
            interval: Duration::from_millis(self.interval_ms),
            seed,
            patience: PATIENCE,
        }
    }

    /// Moves the guest to the other host.
    fn move_once(
        &self,
        hosts: &Hosts,
        guest: Vm,
        image: &GuestImage,
        number: usize,
    ) -> Result<(Vm, Moved)> {
        let (from, to) = (number % 2, (number + 1) % 2);
        let parameters =
            json!({ "downtime-limit": self.downtime_ms, "max-bandwidth": 10_u64 << 30 });
        let offloaded = Offloaded::once_owing(&hosts.switches[from], self.owing)?;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| watch(&hosts.switches[from], &hosts.switches[to], &done));
            let moved = guest.migrate(self.guest(hosts, to, image), &parameters);
            done.store(true, Ordering::Relaxed);
            let watched = watch.join().map_err(|_| anyhow!("the watch failed"))??;
            let (guest, moved) = moved?;
            let downtime_ms = moved["downtime"].as_f64().unwrap_or(f64::NAN);
            Ok((guest, Moved { downtime_ms, offloaded, ..watched }))
        })
    }
}

/// Carries the load of `client` while `work` does its own.
fn carry<T>(
    far: &FarEnd<'_>,
    client: &Client,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Outcome)> {
    thread::scope(|scope| {
        let running = scope.spawn(|| inside(far.namespace(), || client.run()));
        let begun = Instant::now();
        while !client.is_warm() && !running.is_finished() && begun.elapsed() < PATIENCE {
            thread::sleep(POLL);
        }
        let result =
            if client.is_warm() { work() } else { Err(anyhow!("requests get no answers")) };
        client.stop();
        let outcome = running.join().map_err(|_| anyhow!("the client failed"))???;
        let first = outcome.first_failure.clone();
        Ok((result.with_context(|| format!("first failure: {first:?}"))?, outcome))
    })
}

/// Watches a guest that moves, until it is over there for [`LIMIT`] or all its connections are online there.
fn watch(from: &Switch, to: &Switch, done: &AtomicBool) -> Result<Moved> {
    let (from, to) = (from.client()?, to.client()?);
    let (mut moved, mut began) = (Moved::default(), None::<Instant>);
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let now = Instant::now();
        let (runs, online, _) = look(&to)?;
        if runs {
            let since = now - *began.get_or_insert(now);
            moved.after = moved.after.max(online);
            if online >= moved.before && moved.before > 0 {
                return Ok(Moved { time: Some(since), ..moved });
            }
            if since >= LIMIT {
                return Ok(moved);
            }
        } else if let (true, online, owed) = look(&from)? {
            moved.at_first = moved.at_first.max(online);
            (moved.before, moved.owed) = (online, owed);
        } else if done.load(Ordering::Relaxed) && begun.elapsed() >= LIMIT {
            // It has not moved: whoever moved it says why.
            return Ok(moved);
        }
        thread::sleep(POLL);
    }
    Ok(moved)
}

/// Whether the guest runs there, how many of its connections are online, and how many bytes they owe.
fn look(client: &ControlClient) -> Result<(bool, u64, u64)> {
    let status: Status = client.status()?;
    let port = status.ports.first().context("a port")?;
    Ok((port.state == PortState::Running, port.offload.online, port.offload.owed))
}

fn report(case: Case, moves: &[Moved], outcome: Outcome, measured: &mut Measured) {
    let mut samples = |what: &str, value: Vec<f64>| {
        measured.add_samples(Samples {
            name: case.row(what),
            unit: "ms".into(),
            value,
            ..Samples::default()
        });
    };
    samples("downtime of the VM", moves.iter().map(|moved| moved.downtime_ms).collect());
    let times: Vec<_> = moves.iter().filter_map(|moved| moved.time).map(milliseconds).collect();
    let longest = times.iter().copied().fold(0.0, f64::max);
    if case == Case::Followed {
        samples("time until online", times);
        measured.add_value(case.row("longest time until online"), "ms", longest);
    }
    let least = moves.iter().map(|moved| moved.at_first).min().unwrap_or_default();
    let at_last = moves.iter().map(|moved| moved.before).max().unwrap_or_default();
    let owed = moves.iter().map(|moved| moved.owed).min().unwrap_or_default();
    let offloaded: Vec<_> = moves.iter().map(|moved| moved.offloaded).collect();
    Offloaded::report(&offloaded, &case.row(""), measured);
    let missing: u64 = moves.iter().map(|moved| moved.before.saturating_sub(moved.after)).sum();
    let mut add = |what: &str, unit: &str, count: u64| {
        measured.add_value(case.row(what), unit, count as f64);
    };
    add("flows online before, least", "flows", least);
    match case {
        Case::Followed => {
            add("flows not online within 1 s", "flows", missing);
            add("bytes owed at the last look, least", "bytes", owed);
        }
        // What the drain by itself has not come to.
        Case::Alone => add("flows online when it stopped, most", "flows", at_last),
    }
    add("connections", "connections", outcome.connections);
    add("connections lost", "connections", outcome.lost);
    add("requests answered", "requests", outcome.answered);
    add("requests failed", "requests", outcome.failed);
    add("digests that differ", "digests", outcome.differing);
    let longest = milliseconds(Duration::from_nanos(outcome.longest_ns));
    measured.add_value(case.row("longest request"), "ms", longest);
    let first = outcome.first_failure;
    measured.notes.extend(first.map(|why| format!("{}: {why}", case.row("first failure"))));
}

/// What both switches say of the moves, and that their offloads took part.
fn report_hosts(case: Case, hosts: &Hosts, measured: &mut Measured) -> Result<()> {
    let (mut stored, mut acknowledged, mut left, mut failed) = (0, 0, 0, 0);
    for switch in &hosts.switches {
        let counters = switch.offload_counters(NAME)?;
        let of = |name: &str| counters.get(name).copied().unwrap_or_default();
        stored += of("stored_bytes");
        acknowledged += of("acknowledged_bytes");
        let moves = switch.client()?.status()?.switch.moves.unwrap_or_default();
        (left, failed) = (left + u64::from(moves.left), failed + u64::from(moves.failed));
        let problem = moves.last.and_then(|last| last.problem);
        measured.notes.extend(problem.map(|why| format!("{}: {why}", case.row("a move"))));
    }
    let mut add =
        |what: &str, unit: &str, value: f64| measured.add_value(case.row(what), unit, value);
    add("stored by transmit offload", "MB", stored as f64 / 1e6);
    add("acknowledged by receive offload", "MB", acknowledged as f64 / 1e6);
    if case == Case::Followed {
        add("moves with connections", "moves", left as f64);
        add("moves without", "moves", failed as f64);
    }
    Ok(())
}
