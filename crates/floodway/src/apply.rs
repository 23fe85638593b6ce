//! `floodway apply`: the running switch becomes what a file says.

use std::fs;
use std::io::{self, Write};

use floodway_switch::Config;
use floodway_switch::config::ConfigError;
use floodway_switch::control::ControlClient;

use crate::cli::ApplyArgs;

/// Applies the file, and prints what that changes.
///
/// # Errors
/// The file is not valid, or the switch does not answer or cannot be so. Nothing is changed then, unless the error says so.
pub fn apply(args: &ApplyArgs) -> anyhow::Result<()> {
    let path = &args.file;
    let read = fs::read_to_string(path);
    let text = read.map_err(|source| ConfigError::Read { path: path.clone(), source })?;
    // Here the error names the file and its line.
    Config::parse(&text, path)?;
    let plan = ControlClient::new(&args.control.path)?.apply(&text, args.dry_run)?;
    Ok(writeln!(io::stdout(), "{plan}")?)
}
