//! The guest module: a congestion control and readers of what the switch says, all in BPF, and
//! their loader.
//!
//! # Theory of operation
//!
//! The programs are in `bpf/` (their theory is in `floodway.bpf.c`), compiled into this binary and relocated to the running
//! kernel when they are loaded. What they do outlives this process:
//!
//! - the congestion control is registered with the kernel as `floodway` until it is taken back ([`remove`]);
//! - the reader is a filter of each interface's `clsact` queueing discipline;
//! - the reader of names in SYN-ACKs is attached to the root of cgroup v2 ([`cgroup`]), by a link that lives as long as its pin. A kernel that does not let it be
//!   attached does without: then the switch is not told that names are read, and sends notices instead;
//! - the maps, the readers and the registration are pinned in `/sys/fs/bpf/floodway`, where [`status`] and [`remove`] find them
//!   again; what cannot be pinned (settings, and the default before the installation) is in a record in `/run`.
//!
//! All of that is gone after a reboot, like the record. [`install`] over an installation replaces it; what fails half-way is
//! taken back. Sockets keep the programs that they began with, which without a reader are offline.

mod cgroup;
mod congestion;
mod install;
mod interfaces;
mod kernel;
mod loss_probes;
mod nonce;
mod object;
mod record;
mod remove;
mod status;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// What the operator can ask for.
#[derive(Debug, Subcommand)]
pub enum ModuleCommand {
    /// Load the congestion control `floodway` and the reader of the switch's notices
    Install(Options),
    /// Show what is installed, what the switch says, and counters
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Unload both, and restore the default congestion control of before
    Remove,
}

/// How to install.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Read notices on this interface; may be repeated. `all` is every Ethernet device
    #[arg(long, value_name = "IF", default_value = "all", conflicts_with = "plain")]
    interface: Vec<String>,
    #[command(flatten)]
    settings: Settings,
    /// Make it the default of new sockets (net.ipv4.tcp_congestion_control)
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    default: bool,
    /// Tail loss probes of the guest's kernel: leave them as they are, or switch them off for every connection of the guest
    /// (net.ipv4.tcp_early_retrans = 0) until the module is removed
    #[arg(long, value_enum, default_value_t = LossProbes::Keep, conflicts_with = "plain")]
    loss_probes: LossProbes,
}

/// What becomes of the kernel's tail loss probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LossProbes {
    /// As they are
    Keep,
    /// Off for the whole guest
    Off,
}

/// What the programs are told, and what is kept of it.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// How a flow's own window grows and shrinks
    #[arg(long, value_enum, default_value_t = Algorithm::Cubic)]
    algorithm: Algorithm,
    /// Initial window in segments; without it the kernel's (10, or the route's initcwnd)
    #[arg(long, value_name = "SEGMENTS", value_parser = clap::value_parser!(u32).range(1..=1000))]
    initial_window: Option<u32>,
    /// Only the algorithm: never trust a switch, read no notices. To compare with
    #[arg(long)]
    plain: bool,
}

/// The algorithm of the shadow window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// RFC 5681
    Reno,
    /// RFC 9438
    Cubic,
}

/// Does what the operator asks for.
///
/// # Errors
/// With the reason, and what to do about it where that is known.
pub fn run(command: &ModuleCommand) -> Result<()> {
    match command {
        ModuleCommand::Install(options) => install::install(options),
        ModuleCommand::Status { json } => status::print(*json),
        ModuleCommand::Remove => remove::remove(),
    }
}
