//! The program inside guests: loader of the guest module, and in the lab first process and agent.
//!
//! `install`, `status` and `remove` manage the guest's half of transmit offload: see [`module`].
//!
//! As process 1 it is the whole user space: it mounts what programs expect, loads the
//! kernel modules that the image lists, keeps the agent running, and reaps orphans. The agent
//! proper serves the lab's requests from a virtio-serial port.

mod agent;
mod init;
#[cfg(feature = "module")]
mod module;
mod port;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Floodway inside a guest: its TCP congestion control, and the lab's agent.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    #[cfg(feature = "module")]
    #[command(flatten)]
    Module(module::ModuleCommand),
    /// Serve the lab's requests (what process 1 starts)
    #[command(hide = cfg!(feature = "module"))]
    Agent,
}

fn main() -> Result<()> {
    if std::process::id() == 1 {
        // The kernel hands words of its command line to process 1: not our arguments.
        init::run();
    }
    match Arguments::parse().command {
        #[cfg(feature = "module")]
        Some(Subcommands::Module(command)) => module::run(&command),
        Some(Subcommands::Agent) => agent::run(),
        None => anyhow::bail!("name a subcommand (see --help), or run it as process 1 of a guest"),
    }
}
