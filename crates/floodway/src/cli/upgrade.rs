//! Options of `floodway upgrade`.

use std::path::PathBuf;

use clap::Args;

use super::ControlArgs;

/// Options of `floodway upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// Program that takes the place of the one that runs [default: the one that this command is of]
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// Print JSON: the programs that run then, and how the upgrade went
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub control: ControlArgs,
}
