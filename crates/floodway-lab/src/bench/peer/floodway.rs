//! The switch under test, as an operator would run it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Plan, Setup, Switch};
use crate::bench::case::Profile;
use crate::switch_process;

const NAME: &str = "floodway";
/// Never sleeps between bursts: the others poll without end, too.
const POLL_US: u64 = 1_000_000;

#[derive(Serialize)]
struct Config<'a> {
    control: &'a Path,
    worker: [Worker; 1],
    port: [Port<'a>; 2],
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
}

pub fn missing() -> Option<String> {
    switch_process::binary().err().map(|error| format!("{error:#}"))
}

pub fn start(setup: &Setup) -> Result<Switch> {
    let poll_us = (setup.profile != Profile::Bursts).then_some(POLL_US);
    start_planned(setup, &plan(setup, poll_us)?)
}

/// Starts it without sleep between bursts.
pub fn start_polling(setup: &Setup) -> Result<Switch> {
    start_planned(setup, &plan(setup, Some(POLL_US))?)
}

/// Starts it as one process.
pub fn start_single(setup: &Setup) -> Result<Switch> {
    start_with(setup, &plan(setup, Some(POLL_US))?, &["--single-process"])
}

fn plan(setup: &Setup, poll_us: Option<u64>) -> Result<Plan> {
    let control = setup.dir.join("control.sock");
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
    Ok(Switch { processes: vec![process], log: setup.log(NAME), _namespace: None })
}

fn config<'a>(setup: &'a Setup, control: &'a Path, poll_us: Option<u64>) -> Config<'a> {
    let port = |name, socket| Port { name, socket, mode: "client", mtu: setup.profile.mtu() };
    Config {
        control,
        worker: [Worker { core: setup.core, poll_us }],
        port: [port("a", setup.socket_a.as_path()), port("b", setup.socket_b.as_path())],
    }
}
