//! Linux bridge and tap, "native": what a host has without a switch of its own.
//!
//! On a host with KVM a thread of the kernel (vhost-net) moves frames between each VM's rings and its tap. It cannot be had without the
//! module, so one of our switches stands for each: a port, and a tap as its uplink. Their work on rings is the same as that of the switch
//! under test, so what differs is the way between two VMs: here two processes, two crossings of the kernel and a bridge, there one copy. Both
//! processes share the one core that each switch has here; they sleep when they have nothing to do, as the kernel's threads would.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Setup, Switch};
use crate::net::Namespace;
use crate::process;
use crate::switch_process;

const BRIDGE: &str = "br0";

#[derive(Serialize)]
struct Config<'a> {
    control: PathBuf,
    meter: Meter,
    worker: [Worker; 1],
    port: [Port<'a>; 1],
    uplink: [Uplink<'a>; 1],
}

#[derive(Serialize)]
struct Meter {
    enabled: bool,
}

#[derive(Serialize)]
struct Worker {
    core: usize,
}

#[derive(Serialize)]
struct Port<'a> {
    name: &'static str,
    socket: &'a Path,
    mode: &'static str,
    mtu: u32,
}

#[derive(Serialize)]
struct Uplink<'a> {
    name: &'static str,
    kind: &'static str,
    device: &'a str,
    queue: Queue,
}

#[derive(Serialize)]
struct Queue {
    discipline: &'static str,
    segment: bool,
}

pub fn missing() -> Option<String> {
    switch_process::binary().err().map(|error| format!("{error:#}"))
}

pub fn start(setup: &Setup) -> Result<Switch> {
    let namespace = Namespace::create("native")?;
    // The kernel would say things of its own, which no client has sent: so no IPv6, and no snooping, for which a bridge joins a group of
    // IPv4 and says so in frames that look like the client's.
    let quiet = ["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"];
    let mut command = namespace.command("sysctl");
    command.args(["-q", "-w"]).args(quiet);
    process::run_command(command)?;
    let bridge = ["link", "add", BRIDGE, "type", "bridge", "stp_state", "0", "forward_delay", "0"];
    namespace.ip(&[&bridge[..], &["mcast_snooping", "0"]].concat())?;
    namespace.ip(&["link", "set", BRIDGE, "up"])?;
    let mtu = setup.profile.mtu().to_string();
    let mut processes = Vec::new();
    for (name, socket) in [("a", &setup.socket_a), ("b", &setup.socket_b)] {
        let tap = format!("tap-{name}");
        namespace.tap(&tap)?;
        namespace.ip(&["link", "set", &tap, "mtu", &mtu, "master", BRIDGE, "up"])?;
        let path = setup.dir.join(format!("{name}.toml"));
        fs::write(&path, toml::to_string(&config(setup, name, socket, &tap))?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let process = setup.spawn(name, Path::new("ip"), |command| {
            command.args(["netns", "exec", namespace.name()]);
            command.arg(switch_process::binary().unwrap_or_default());
            command.env(switch_process::NO_STORE_VARIABLE, "true");
            command.arg("run").arg("--config").arg(&path);
        })?;
        processes.push(process);
    }
    Ok(Switch { processes, log: setup.log("a"), _namespace: Some(namespace) })
}

fn config<'a>(setup: &Setup, name: &'static str, socket: &'a Path, tap: &'a str) -> Config<'a> {
    Config {
        control: setup.dir.join(format!("{name}.control.sock")),
        meter: Meter { enabled: false },
        worker: [Worker { core: setup.core }],
        port: [Port { name, socket, mode: "client", mtu: setup.profile.mtu() }],
        uplink: [Uplink {
            name: "up",
            kind: "tap",
            device: tap,
            queue: Queue { discipline: "fifo", segment: false },
        }],
    }
}
