//! The switch under test, as an operator would run it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{
    CARD, CLIENT_IP, CLIENT_MAC, HOST_DEVICE, HOST_MAC, Plan, Setup, Switch, add_card,
    quiet_namespace, set_up_host,
};
use crate::bench::case::{Profile, Uplink};
use crate::switch_process;

const NAME: &str = "floodway";
const CONTROL: &str = "control.sock";
/// Never sleeps between bursts: the others poll without end, too.
const POLL_US: u64 = 1_000_000;

#[derive(Serialize)]
struct Config<'a> {
    control: &'a Path,
    worker: [Worker; 1],
    port: Vec<Port<'a>>,
    uplink: Vec<UplinkConfig>,
}

#[derive(Serialize)]
struct UplinkConfig {
    name: &'static str,
    kind: &'static str,
    device: &'static str,
}

#[derive(Serialize)]
struct Worker {
    core: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_us: Option<u64>,
}

#[derive(Serialize)]
struct Port<'a> {
    name: &'static str,
    socket: &'a Path,
    mode: &'static str,
    mtu: u32,
    #[serde(flatten)]
    guards: Option<Guards>,
}

/// All that guards a port, with limits that nothing reaches, and TCP offload.
#[derive(Serialize)]
struct Guards {
    mac: &'static str,
    ips: [&'static str; 1],
    limit: BTreeMap<&'static str, u32>,
    offload: BTreeMap<&'static str, bool>,
}

impl Guards {
    /// Of a client with these addresses, which are `vhgen`'s.
    fn new(mac: &'static str, ip: &'static str) -> Self {
        let rates = ["tx_rate_kbit", "rx_rate_kbit"].map(|key| (key, 1_000_000_000));
        let packets = ["tx_pps", "rx_pps"].map(|key| (key, u32::MAX));
        let limit = rates.into_iter().chain(packets).collect();
        let offload = ["transmit", "receive"].map(|key| (key, true)).into();
        Self { mac, ips: [ip], limit, offload }
    }
}

pub fn missing() -> Option<String> {
    switch_process::binary().err().map(|error| format!("{error:#}"))
}

pub fn start(setup: &Setup) -> Result<Switch> {
    if let Profile::Uplink(uplink) = setup.profile {
        return start_with_uplink(setup, uplink);
    }
    let poll_us = (!setup.profile.sleeps()).then_some(POLL_US);
    start_planned(setup, &plan(setup, poll_us)?)
}

/// Starts it with one port, and the host behind an uplink.
fn start_with_uplink(setup: &Setup, uplink: Uplink) -> Result<Switch> {
    let (namespace_of, kind, device) = match uplink {
        Uplink::Tap => ("behind-tap", "tap", HOST_DEVICE),
        Uplink::Packet => ("behind-veth", "packet", CARD),
    };
    let namespace = quiet_namespace(namespace_of)?;
    match uplink {
        Uplink::Tap => namespace.tap(device)?,
        Uplink::Packet => add_card(&namespace)?,
    }
    set_up_host(&namespace)?;
    let control = setup.dir.join(CONTROL);
    let mut config = config(setup, &control, None);
    config.port.truncate(1);
    config.uplink.push(UplinkConfig { name: "up", kind, device });
    let (config, inside) = (toml::to_string(&config)?, namespace.name().to_owned());
    let plan = Plan { ports: Vec::new(), config, namespace: Some(inside) };
    Ok(Switch { namespace: Some(namespace), ..start_planned(setup, &plan)? })
}

/// Starts it without sleep between bursts.
pub fn start_polling(setup: &Setup) -> Result<Switch> {
    start_planned(setup, &plan(setup, Some(POLL_US))?)
}

/// Starts it with all that guards a port.
pub fn start_guarded(setup: &Setup) -> Result<Switch> {
    let control = setup.dir.join(CONTROL);
    let mut config = config(setup, &control, Some(POLL_US));
    let addresses = [(CLIENT_MAC, CLIENT_IP), (HOST_MAC, "198.18.0.2")];
    for (port, (mac, ip)) in config.port.iter_mut().zip(addresses) {
        port.guards = Some(Guards::new(mac, ip));
    }
    let config = toml::to_string(&config)?;
    start_planned(setup, &Plan { ports: Vec::new(), config, namespace: None })
}

/// Starts it as one process.
pub fn start_single(setup: &Setup) -> Result<Switch> {
    start_with(setup, &plan(setup, Some(POLL_US))?, &["--single-process"])
}

fn plan(setup: &Setup, poll_us: Option<u64>) -> Result<Plan> {
    let control = setup.dir.join(CONTROL);
    let config = toml::to_string(&config(setup, &control, poll_us))?;
    Ok(Plan { ports: Vec::new(), config, namespace: None })
}

/// Starts it with the configuration of a plan.
pub fn start_planned(setup: &Setup, plan: &Plan) -> Result<Switch> {
    start_with(setup, plan, &[])
}

fn start_with(setup: &Setup, plan: &Plan, options: &[&str]) -> Result<Switch> {
    let path = setup.dir.join("floodway.toml");
    fs::write(&path, &plan.config).with_context(|| format!("cannot write {}", path.display()))?;
    let binary = switch_process::binary()?;
    let program = plan.namespace.as_ref().map_or(binary.as_path(), |_| Path::new("ip"));
    let process = setup.spawn(NAME, program, |command| {
        if let Some(namespace) = &plan.namespace {
            command.args(["netns", "exec", namespace]).arg(&binary);
        }
        command.env(switch_process::NO_STORE_VARIABLE, "true");
        command.arg("run").arg("--config").arg(&path).args(options);
    })?;
    Ok(Switch { processes: vec![process], log: setup.log(NAME), namespace: None })
}

fn config<'a>(setup: &'a Setup, control: &'a Path, poll_us: Option<u64>) -> Config<'a> {
    let port = |name, socket| {
        let mtu = setup.profile.mtu();
        Port { name, socket, mode: "client", mtu, guards: None }
    };
    Config {
        control,
        worker: [Worker { core: setup.core, poll_us }],
        port: vec![port("a", setup.socket_a.as_path()), port("b", setup.socket_b.as_path())],
        uplink: Vec::new(),
    }
}
