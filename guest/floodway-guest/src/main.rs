//! The lab's program inside guests: first process, and agent of the lab.
//!
//! As process 1 it is the whole user space: it mounts what programs expect, loads the
//! kernel modules that the image lists, keeps the agent running, and reaps orphans. The agent
//! proper serves the lab's requests from a virtio-serial port.

mod agent;
mod init;
mod port;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The lab's program inside guests.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Serve the lab's requests (what process 1 starts)
    Agent,
}

fn main() -> Result<()> {
    if std::process::id() == 1 {
        // The kernel hands words of its command line to process 1: not our arguments.
        init::run();
    }
    match Arguments::parse().command {
        Some(Subcommands::Agent) => agent::run(),
        None => anyhow::bail!("run it as process 1 of a guest, or with the subcommand `agent`"),
    }
}
