//! `floodway upgrade`: another program takes the place of the one that runs.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use floodway_process::speaks::Speaks;
use floodway_switch::api::control::{UpgradeRequest, UpgradeStatus};
use floodway_switch::control::{ClientError, ControlClient};

use crate::cli::UpgradeArgs;
use crate::output;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long a broker may be away: its program is replaced within milliseconds, unless a front-end has paused inside a message.
const AWAY: Duration = Duration::from_secs(10);
/// How long an upgrade may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Begins an upgrade, waits for its end, and prints what runs then.
///
/// # Errors
/// The program cannot take the place of the one that runs, or does not start; then what ran goes on.
pub fn upgrade(args: &UpgradeArgs) -> anyhow::Result<()> {
    let binary = program(args.binary.as_deref())?;
    let client = ControlClient::new(&args.control.path)?;
    let before = match client.upgrades() {
        Err(ClientError::NotRunning(path)) => return Err(no_broker(&client, path)),
        before => before?.programs.upgrades.attempts,
    };
    let number = match client.upgrade(&UpgradeRequest { binary }) {
        // The broker's program was replaced before the answer had left.
        Err(ClientError::Io { .. } | ClientError::Answer { .. }) => before + 1,
        begun => begun?.programs.upgrades.attempts,
    };
    let status = wait(&client, number)?;
    if let Some(problem) = &status.programs.upgrades.problem {
        bail!("not upgraded: {problem}");
    }
    let text = if args.json { output::json(&status, None)? } else { describe(&status) };
    Ok(writeln!(io::stdout(), "{}", text.trim_end())?)
}

/// Prints what this program says of itself to a broker that is asked to upgrade to it.
///
/// # Errors
/// Standard output takes no more.
pub fn print_what_is_spoken() -> anyhow::Result<()> {
    let speaks = serde_json::to_string(&Speaks::own(
        env!("CARGO_PKG_VERSION"),
        floodway_switch::kept::flows::FORMAT,
    ))?;
    Ok(writeln!(io::stdout(), "{speaks}")?)
}

/// The absolute path of the program.
fn program(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    match named {
        Some(path) => fs::canonicalize(path).with_context(|| path.display().to_string()),
        None => {
            env::current_exe().context("cannot tell which program this is (name it by --binary)")
        }
    }
    .map_err(|error| anyhow::anyhow!("{error:#}"))
}

/// Why nobody takes upgrades.
fn no_broker(client: &ControlClient, path: PathBuf) -> anyhow::Error {
    match client.status() {
        Ok(status) if status.switch.predecessors.is_none() => anyhow::anyhow!(
            "a switch of a single process cannot be upgraded while it runs; restart it"
        ),
        Ok(_) => anyhow::anyhow!("the switch has no broker; start floodway run again"),
        Err(_) => ClientError::NotRunning(path).into(),
    }
}

/// Waits for the end of upgrade `number`.
fn wait(client: &ControlClient, number: u32) -> anyhow::Result<UpgradeStatus> {
    let begun = Instant::now();
    let mut seen = begun;
    while begun.elapsed() < PATIENCE {
        match client.upgrades() {
            Ok(status) if !status.running && status.programs.upgrades.attempts >= number => {
                return Ok(status);
            }
            Ok(_) => seen = Instant::now(),
            // Its program is being replaced.
            Err(_) if seen.elapsed() < AWAY => {}
            Err(error) => {
                bail!(
                    "the broker is gone since its program was replaced: {error}; frames go on, start floodway run again"
                )
            }
        }
        thread::sleep(INTERVAL);
    }
    bail!("the upgrade is not over after {} s; floodway status shows what runs", PATIENCE.as_secs())
}

fn describe(status: &UpgradeStatus) -> String {
    let programs = &status.programs;
    let (from, to) = (&programs.upgrades.from, &programs.data_plane);
    format!(
        "upgraded from floodway {from} to {}, {}; frames stood still for {:.1} ms; {} of {} offloaded connections go on so",
        to.version,
        to.binary,
        programs.upgrades.pause_us as f64 / 1e3,
        programs.upgrades.carried,
        programs.upgrades.online
    )
}
