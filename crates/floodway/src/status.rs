//! `floodway status`: asks the running switch and prints the answer.

use std::io::{self, IsTerminal};

use floodway_switch::control::ControlClient;

use crate::cli::StatusArgs;
use crate::{output, table};

/// Prints the status once, or again and again.
///
/// # Errors
/// The switch does not answer, or standard output takes no more.
pub fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control.path)?;
    let colours = io::stdout().is_terminal();
    output::repeat(args.watch, !args.json, || {
        let status = client.status()?;
        if args.json {
            output::json(&status, args.watch)
        } else {
            Ok(table::render(&status, colours))
        }
    })
}
