//! Networks, ports and uplinks of the running switch, changed alike: keys from words, in the switch and in a file.

use std::io::{self, Write};

use anyhow::{anyhow, bail};
use floodway_switch::Config;
use floodway_switch::api::edit::{Document, Kind, merge};
use floodway_switch::api::plan::Plan;
use floodway_switch::control::ControlClient;
use serde_json::Value;

use crate::cli::{ChangeArgs, DelArgs, KeysArgs};
use crate::save::{Edit, File};

/// Adds what `args` says.
///
/// # Errors
/// There is one of that name, or as [`change`].
pub fn add(kind: Kind, args: &KeysArgs) -> anyhow::Result<()> {
    let keys = added(&args.keys)?;
    change(&args.how, kind, &args.name, Edit::Put(&keys), |client, dry_run| {
        if is_there(client, kind, &args.name)? {
            let kind = kind.name();
            bail!("{kind} \"{}\" is there already; use floodway {kind} set", args.name);
        }
        Ok(client.put(kind, &args.name, &keys, dry_run)?)
    })
}

/// Changes the keys that `args` has.
///
/// # Errors
/// As [`change`].
pub fn set(kind: Kind, args: &KeysArgs) -> anyhow::Result<()> {
    let keys = keys(&args.keys)?;
    change(&args.how, kind, &args.name, Edit::Patch(&keys), |client, dry_run| {
        Ok(client.patch(kind, &args.name, &keys, dry_run)?)
    })
}

/// Removes what `args` names.
///
/// # Errors
/// As [`change`].
pub fn remove(kind: Kind, args: &DelArgs) -> anyhow::Result<()> {
    change(&args.how, kind, &args.name, Edit::Remove, |client, dry_run| {
        Ok(client.delete(kind, &args.name, dry_run)?)
    })
}

fn is_there(client: &ControlClient, kind: Kind, name: &str) -> anyhow::Result<bool> {
    let config = Config::parse(&client.config()?, "running".as_ref())?;
    Ok(kind.names(&config).contains(&name))
}

/// Makes a change in the running switch and then in a file that is to be saved, which has to be valid before.
///
/// # Errors
/// The file would not be valid, the switch does not take the change, or the file cannot be saved.
pub fn change(
    how: &ChangeArgs,
    kind: Kind,
    name: &str,
    edit: Edit<'_>,
    make: impl FnOnce(&ControlClient, bool) -> anyhow::Result<Plan>,
) -> anyhow::Result<()> {
    let file = how.save.as_deref().map(|path| File::edited(path, kind, name, &edit)).transpose()?;
    let client = ControlClient::new(&how.control.path)?;
    let plan = make(&client, how.dry_run)?;
    writeln!(io::stdout(), "{plan}")?;
    if let Some(file) = file {
        let failed = |error| anyhow!("the switch was changed, but the file was not saved: {error}");
        file.save().map_err(failed)?;
    }
    Ok(())
}

/// The keys of something that is to be added: without those that have no value.
fn added(words: &[String]) -> anyhow::Result<Document> {
    let mut all = Document::new();
    merge(&mut all, &keys(words)?);
    Ok(all)
}

/// Keys from words like `offload.transmit=true`.
fn keys(words: &[String]) -> anyhow::Result<Document> {
    let mut keys = Document::new();
    for word in words {
        let Some((key, text)) = word.split_once('=') else {
            bail!("{word}: must be KEY=VALUE, like mtu=9000");
        };
        let mut path = key.rsplit('.');
        let last = path.next().unwrap_or(key);
        let mut change = Document::from_iter([(last.to_owned(), value(text))]);
        for section in path {
            change = Document::from_iter([(section.to_owned(), Value::Object(change))]);
        }
        note(&mut keys, change);
    }
    Ok(keys)
}

/// As [`merge`], but `null` stays: it is a change.
fn note(keys: &mut Document, change: Document) {
    for (key, value) in change {
        match (keys.get_mut(&key), value) {
            (Some(Value::Object(section)), Value::Object(change)) => note(section, change),
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
