//! `floodway man`: manual pages out of the definition of the command line.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::Cli;

/// Writes `floodway.1` and `floodway-COMMAND.1` into `directory`.
///
/// # Errors
/// A file cannot be written.
pub fn write(directory: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))
}
