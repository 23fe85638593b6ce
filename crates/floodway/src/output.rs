//! Standard output, once or again and again.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use serde::Serialize;

/// Moves the cursor home and clears the rest of the screen (ECMA-48 CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints what `show` answers: once, or every `watch` seconds until that fails or nobody reads any more.
/// `clears` says that each answer takes the place of the one before, on a terminal.
///
/// # Errors
/// `show` fails, or standard output takes no more.
pub fn repeat(
    watch: Option<u64>,
    clears: bool,
    mut show: impl FnMut() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let clears = clears && watch.is_some() && io::stdout().is_terminal();
    loop {
        let text = show()?;
        let mut out = io::stdout().lock();
        if clears {
            out.write_all(CLEAR.as_bytes())?;
        }
        writeln!(out, "{text}")?;
        out.flush()?;
        drop(out);
        match watch {
            None => return Ok(()),
            Some(seconds) => thread::sleep(Duration::from_secs(seconds)),
        }
    }
}

/// `document` as JSON: for people, or, if more will follow, on one line, as stream readers expect.
///
/// # Errors
/// It cannot be written as JSON.
pub fn json(document: &impl Serialize, watch: Option<u64>) -> anyhow::Result<String> {
    Ok(match watch {
        None => serde_json::to_string_pretty(document)?,
        Some(_) => serde_json::to_string(document)?,
    })
}
