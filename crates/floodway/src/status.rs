//! `floodway status`: asks the running switch and prints the answer.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use floodway_switch::control::ControlClient;
use floodway_switch::status::Status;

use crate::cli::StatusArgs;
use crate::table;

/// Moves the cursor home and clears the rest of the screen (ECMA-48 CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints the status once, or again and again.
///
/// # Errors
/// The switch does not answer, or standard output takes no more.
pub fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&args.control)?;
    let Some(seconds) = args.watch else {
        return print(&client.status()?, args);
    };
    let clear = io::stdout().is_terminal() && !args.json;
    loop {
        let status = client.status()?;
        if clear {
            io::stdout().write_all(CLEAR.as_bytes())?;
        }
        print(&status, args)?;
        thread::sleep(Duration::from_secs(seconds));
    }
}

fn print(status: &Status, args: &StatusArgs) -> anyhow::Result<()> {
    let mut text = match (args.json, args.watch) {
        (false, _) => table::render(status),
        (true, None) => serde_json::to_string_pretty(status)?,
        // One document a line: what stream readers expect.
        (true, Some(_)) => serde_json::to_string(status)?,
    };
    text.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
