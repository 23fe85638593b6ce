//! Commands that change networks, ports and uplinks.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ControlArgs;

/// What `floodway port` can do.
#[derive(Debug, Subcommand)]
pub enum PortCommand {
    /// Show the keys of ports that do not have their defaults
    Show(ShowArgs),
    /// Add a port
    Add(KeysArgs),
    /// Change keys of a port
    Set(KeysArgs),
    /// Remove a port
    Del(DelArgs),
}

/// What `floodway network` can do.
#[derive(Debug, Subcommand)]
pub enum NetworkCommand {
    /// List the networks, their ports and uplinks
    List(ListArgs),
    /// Show a network, who is in it and its forwarding table
    Show {
        /// The network
        name: String,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Add a network
    Add(KeysArgs),
    /// Change keys of a network, and with it the ports and uplinks that are in it
    Set(KeysArgs),
    /// Remove a network that nobody is in
    Del(DelArgs),
}

/// What `floodway uplink` can do.
#[derive(Debug, Subcommand)]
pub enum UplinkCommand {
    /// List the uplinks, their devices and networks
    List(ListArgs),
    /// Show the keys of uplinks that do not have their defaults
    Show(ShowArgs),
    /// Add an uplink
    Add(KeysArgs),
    /// Change keys of an uplink
    Set(KeysArgs),
    /// Remove an uplink
    Del(DelArgs),
}

/// Options of what prints a table.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// Options of what prints keys.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Its name; all of them if left out
    pub name: Option<String>,
    /// Print JSON instead of TOML
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: ControlArgs,
}

/// Options of `del`.
#[derive(Debug, Args)]
pub struct DelArgs {
    /// Its name
    pub name: String,
    #[command(flatten)]
    pub how: ChangeArgs,
}

/// Options of `add` and `set`.
#[derive(Debug, Args)]
pub struct KeysArgs {
    /// Its name
    pub name: String,
    /// Keys as in its section of the configuration, like mtu=9000 or offload.transmit=true; without a value the default
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub keys: Vec<String>,
    #[command(flatten)]
    pub how: ChangeArgs,
}

/// How a change is made.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Print what would change, and change nothing
    #[arg(long, conflicts_with = "save")]
    pub dry_run: bool,
    /// Make the change in this configuration file, too, so that it outlives a restart; comments stay
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    #[command(flatten)]
    pub control: ControlArgs,
}
