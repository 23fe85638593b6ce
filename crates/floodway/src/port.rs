//! `floodway port`: ports of the running switch, shown and changed.

use std::io::{self, Write};

use anyhow::{anyhow, bail};
use floodway_switch::api::edit::{PortDocument, merge};
use floodway_switch::api::plan::Plan;
use floodway_switch::control::ControlClient;
use serde_json::Value;

use crate::cli::{ChangeArgs, ControlArgs, PortChangeArgs, PortCommand};
use crate::output;
use crate::save::{Edit, File};

/// Shows or changes ports.
///
/// # Errors
/// A key cannot be read, the switch does not answer or does not take the change, or the file cannot be saved.
pub fn port(command: &PortCommand) -> anyhow::Result<()> {
    match command {
        PortCommand::Show { name, json, control } => show(name.as_deref(), *json, control),
        PortCommand::Add(args) => {
            let keys = added(&args.keys)?;
            let is_new = |client: &ControlClient| match client.port(&args.name) {
                Ok(_) => bail!("there is a port \"{}\" already; use floodway port set", args.name),
                Err(_) => Ok(()),
            };
            change(&args.how, &args.name, Edit::Put(&keys), |client, dry_run| {
                is_new(client)?;
                Ok(client.put_port(&args.name, &keys, dry_run)?)
            })
        }
        PortCommand::Set(args) => set(args),
        PortCommand::Del { name, how } => {
            change(
                how,
                name,
                Edit::Remove,
                |client, dry_run| Ok(client.delete_port(name, dry_run)?),
            )
        }
    }
}

fn set(args: &PortChangeArgs) -> anyhow::Result<()> {
    let keys = keys(&args.keys)?;
    change(&args.how, &args.name, Edit::Patch(&keys), |client, dry_run| {
        Ok(client.patch_port(&args.name, &keys, dry_run)?)
    })
}

fn show(name: Option<&str>, json: bool, control: &ControlArgs) -> anyhow::Result<()> {
    let client = ControlClient::new(&control.path)?;
    let text = match (name, json) {
        (Some(name), true) => output::json(&client.port(name)?, None)?,
        (Some(name), false) => toml::to_string(&client.port(name)?)?,
        (None, true) => output::json(&client.ports()?, None)?,
        (None, false) => toml::to_string(&PortDocument::from_iter([(
            "port".to_owned(),
            client.ports()?.into_iter().map(Value::Object).collect(),
        )]))?,
    };
    Ok(writeln!(io::stdout(), "{}", text.trim_end())?)
}

/// Makes a change in the running switch and then in a file that is to be saved, which has to be valid before.
///
/// # Errors
/// The file would not be valid, the switch does not take the change, or the file cannot be saved.
pub fn change(
    how: &ChangeArgs,
    name: &str,
    edit: Edit<'_>,
    make: impl FnOnce(&ControlClient, bool) -> anyhow::Result<Plan>,
) -> anyhow::Result<()> {
    let file = how.save.as_deref().map(|path| File::edited(path, name, &edit)).transpose()?;
    let client = ControlClient::new(&how.control.path)?;
    let plan = make(&client, how.dry_run)?;
    writeln!(io::stdout(), "{plan}")?;
    if let Some(file) = file {
        let failed = |error| anyhow!("the switch was changed, but the file was not saved: {error}");
        file.save().map_err(failed)?;
    }
    Ok(())
}

/// The keys of a port that is to be added: without those that have no value.
fn added(words: &[String]) -> anyhow::Result<PortDocument> {
    let mut port = PortDocument::new();
    merge(&mut port, &keys(words)?);
    Ok(port)
}

/// Keys from words like `offload.transmit=true`.
fn keys(words: &[String]) -> anyhow::Result<PortDocument> {
    let mut keys = PortDocument::new();
    for word in words {
        let Some((key, text)) = word.split_once('=') else {
            bail!("{word}: must be KEY=VALUE, like mtu=9000");
        };
        let mut path = key.rsplit('.');
        let last = path.next().unwrap_or(key);
        let mut change = PortDocument::from_iter([(last.to_owned(), value(text))]);
        for section in path {
            change = PortDocument::from_iter([(section.to_owned(), Value::Object(change))]);
        }
        add(&mut keys, change);
    }
    Ok(keys)
}

/// As [`merge`], but `null` stays: it is a change.
fn add(keys: &mut PortDocument, change: PortDocument) {
    for (key, value) in change {
        match (keys.get_mut(&key), value) {
            (Some(Value::Object(section)), Value::Object(change)) => add(section, change),
            (_, value) => drop(keys.insert(key, value)),
        }
    }
}

/// A value as TOML has it; what is none is a string. Nothing is the default.
fn value(text: &str) -> Value {
    let toml = || {
        let table: toml::Table = format!("value = {text}").parse().ok()?;
        serde_json::to_value(table.get("value")?).ok()
    };
    match text {
        "" => Value::Null,
        text => toml().unwrap_or_else(|| Value::String(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_are_keys_of_toml() {
        let words = [
            "socket=/run/floodway/vm3.sock",
            "mac=52:54:00:00:00:03",
            "mode=client",
            "mtu=9_000",
            "ips=[\"10.0.0.3\"]",
            "offload.transmit=true",
            "offload.budget=65536",
            "storm_pps=",
        ];
        let keys = keys(&words.map(str::to_owned)).unwrap();
        let expected = json!({
            "socket": "/run/floodway/vm3.sock", "mac": "52:54:00:00:00:03", "mode": "client",
            "mtu": 9000, "ips": ["10.0.0.3"], "offload": { "transmit": true, "budget": 65536 },
            "storm_pps": null
        });
        assert_eq!(Value::Object(keys), expected);
        let error = super::keys(&["mtu".to_owned()]).unwrap_err().to_string();
        assert_eq!(error, "mtu: must be KEY=VALUE, like mtu=9000");
    }
}
