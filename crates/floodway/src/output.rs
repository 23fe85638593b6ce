//! Standard output, once or again and again.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use floodway_switch::api::control::{FlowQuery, MAX_PAGE};
use floodway_switch::control::ClientError;
use serde::Serialize;

use crate::cli::FlowsArgs;

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

/// Returns what is on all pages up to the limit of `args`, and whether there is more. `page` asks for one of them and returns it with the cursor of the next.
///
/// # Errors
/// Those of `page`.
pub fn collect<T>(
    args: &FlowsArgs,
    page: impl Fn(&FlowQuery) -> Result<(Vec<T>, Option<String>), ClientError>,
) -> Result<(Vec<T>, bool), ClientError> {
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut query = FlowQuery { port: args.port.clone(), ..FlowQuery::default() };
    let mut all = Vec::new();
    loop {
        query.limit = Some((limit - all.len()).min(MAX_PAGE));
        let (entries, next) = page(&query)?;
        all.extend(entries);
        if next.is_none() || all.len() >= limit {
            return Ok((all, next.is_some()));
        }
        query.cursor = next;
    }
}

/// Returns a table, or `none` if it has no rows; with `more`, it says how to see the rest.
#[must_use]
pub fn with_more(table: Option<String>, none: &str, more: bool) -> String {
    let text = table.unwrap_or_else(|| none.to_owned());
    if more { text + "\n... and more, which a larger --limit shows" } else { text }
}
