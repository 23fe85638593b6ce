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

use super::{CARD, HOST_DEVICE, Setup, Switch, add_card, quiet_namespace, set_up_host};
use crate::bench::case::{Profile, Uplink};
use crate::net::Namespace;
use crate::switch_process;

const BRIDGE: &str = "br0";

#[derive(Serialize)]
struct Config<'a> {
    control: PathBuf,
    meter: Meter,
    worker: [Worker; 1],
    port: [Port<'a>; 1],
    uplink: [UplinkConfig<'a>; 1],
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
struct UplinkConfig<'a> {
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
    let namespace = quiet_namespace("native")?;
    let mut ports = vec![("a", &setup.socket_a), ("b", &setup.socket_b)];
    let bridge = match setup.profile {
        Profile::Uplink(uplink) => {
            ports.truncate(1);
            bridge_to_host(&namespace, uplink)?
        }
        _ => add_bridge(&namespace, BRIDGE)?,
    };
    let mtu = setup.profile.mtu().to_string();
    let mut processes = Vec::new();
    for (name, socket) in ports {
        let tap = format!("tap-{name}");
        namespace.tap(&tap)?;
        namespace.ip(&["link", "set", &tap, "mtu", &mtu, "master", bridge, "up"])?;
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
    Ok(Switch { processes, log: setup.log("a"), namespace: Some(namespace) })
}

/// Behind a tap is the host itself, and so is a bridge. Packet sockets are for cards, of which a bridge has one as a member. Returns the bridge's name.
fn bridge_to_host(namespace: &Namespace, uplink: Uplink) -> Result<&'static str> {
    if uplink == Uplink::Tap {
        add_bridge(namespace, HOST_DEVICE)?;
        set_up_host(namespace)?;
        return Ok(HOST_DEVICE);
    }
    add_card(namespace)?;
    set_up_host(namespace)?;
    add_bridge(namespace, BRIDGE)?;
    namespace.ip(&["link", "set", CARD, "master", BRIDGE])?;
    Ok(BRIDGE)
}

/// Without snooping, for which a bridge joins a group of IPv4 and says so in frames that look like the client's. Returns its name.
fn add_bridge<'a>(namespace: &Namespace, name: &'a str) -> Result<&'a str> {
    let bridge = ["link", "add", name, "type", "bridge", "stp_state", "0", "forward_delay", "0"];
    namespace.ip(&[&bridge[..], &["mcast_snooping", "0"]].concat())?;
    namespace.ip(&["link", "set", name, "up"])?;
    Ok(name)
}

fn config<'a>(setup: &Setup, name: &'static str, socket: &'a Path, tap: &'a str) -> Config<'a> {
    Config {
        control: setup.dir.join(format!("{name}.control.sock")),
        meter: Meter { enabled: false },
        worker: [Worker { core: setup.core }],
        port: [Port { name, socket, mode: "client", mtu: setup.profile.mtu() }],
        uplink: [UplinkConfig {
            name: "up",
            kind: "tap",
            device: tap,
            queue: Queue { discipline: "fifo", segment: false },
        }],
    }
}
