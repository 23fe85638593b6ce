//! `floodway port` and `floodway uplink`: ports and uplinks of the running switch, shown and changed.

use std::io::{self, Write};

use floodway_switch::api::edit::{Document, Kind};
use floodway_switch::control::{ClientError, ControlClient};
use serde_json::Value;

use crate::change;
use crate::cli::{ListArgs, PortCommand, ShowArgs, UplinkCommand};
use crate::output;
use crate::table::uplinks;

/// Shows or changes ports.
///
/// # Errors
/// A key cannot be read, the switch does not answer or does not take the change, or the file cannot be saved.
pub fn port(command: &PortCommand) -> anyhow::Result<()> {
    match command {
        PortCommand::Show(args) => show(Kind::Port, args),
        PortCommand::Add(args) => change::add(Kind::Port, args),
        PortCommand::Set(args) => change::set(Kind::Port, args),
        PortCommand::Del(args) => change::remove(Kind::Port, args),
    }
}

/// Shows or changes uplinks.
///
/// # Errors
/// As [`port`].
pub fn uplink(command: &UplinkCommand) -> anyhow::Result<()> {
    match command {
        UplinkCommand::List(args) => list_uplinks(args),
        UplinkCommand::Show(args) => show(Kind::Uplink, args),
        UplinkCommand::Add(args) => change::add(Kind::Uplink, args),
        UplinkCommand::Set(args) => change::set(Kind::Uplink, args),
        UplinkCommand::Del(args) => change::remove(Kind::Uplink, args),
    }
}

fn list_uplinks(args: &ListArgs) -> anyhow::Result<()> {
    let status = ControlClient::new(&args.control.path)?.status()?;
    let table = || uplinks(&status).unwrap_or_default();
    let text = if args.json { output::json(&status.uplinks, None)? } else { table() };
    Ok(writeln!(io::stdout(), "{}", text.trim_end())?)
}

/// Prints the keys of one or of all.
fn show(kind: Kind, args: &ShowArgs) -> anyhow::Result<()> {
    let (client, json) = (ControlClient::new(&args.control.path)?, args.json);
    let text = match &args.name {
        Some(name) => {
            let keys = one(&client, kind, name)?;
            if json { output::json(&keys, None)? } else { toml::to_string(&keys)? }
        }
        None => {
            let keys = all(&client, kind)?;
            if json { output::json(&keys, None)? } else { toml::to_string(&sections(kind, keys))? }
        }
    };
    Ok(writeln!(io::stdout(), "{}", text.trim_end())?)
}

fn one(client: &ControlClient, kind: Kind, name: &str) -> Result<Document, ClientError> {
    if kind == Kind::Uplink { client.uplink(name) } else { client.port(name) }
}

fn all(client: &ControlClient, kind: Kind) -> Result<Vec<Document>, ClientError> {
    if kind == Kind::Uplink { client.uplinks() } else { client.ports() }
}

/// As a file has them.
fn sections(kind: Kind, keys: Vec<Document>) -> Document {
    let keys = keys.into_iter().map(Value::Object).collect();
    Document::from_iter([(kind.name().to_owned(), keys)])
}
