//! Changes of single ports in a configuration, as the control socket and the command line make them.
//!
//! A port is an object with the keys of `[[port]]`. The changed configuration is written as a file and read again, so a request is checked as
//! a file is, and an error names key, value and fix in the same words.

use std::path::Path;

use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use crate::config::{Config, ConfigError};
use crate::control::ControlError;

/// The keys of a port, by name.
pub type PortDocument = Map<String, Json>;

/// The port called `name`, without keys that have their defaults.
///
/// # Errors
/// There is none.
pub fn port(config: &Config, name: &str) -> Result<PortDocument, ControlError> {
    let port = config.ports.iter().find(|port| port.name == name);
    let port = port.ok_or_else(|| unknown(config, name))?;
    match serde_json::to_value(port.to_table(&config.permissions)) {
        Ok(Json::Object(keys)) => Ok(keys),
        _ => Err(ControlError::Invalid("the port cannot be written".to_owned())),
    }
}

/// `config` with a port called `name` that has these keys and no others.
///
/// # Errors
/// What is wrong with them.
pub fn put_port(config: &Config, name: &str, keys: &PortDocument) -> Result<Config, ControlError> {
    let mut port = table(keys)?;
    claim(&mut port, name)?;
    edit(config, |ports| {
        match ports.iter_mut().find(|known| is_named(known, name)) {
            Some(known) => *known = Value::Table(port),
            None => ports.push(Value::Table(port)),
        }
        Ok(())
    })
}

/// `config` with these keys of the port called `name` changed; `null` leaves a key out.
///
/// # Errors
/// There is no such port, or what is wrong with the keys.
pub fn patch_port(
    config: &Config,
    name: &str,
    keys: &PortDocument,
) -> Result<Config, ControlError> {
    let mut port = port(config, name)?;
    merge(&mut port, keys);
    put_port(config, name, &port)
}

/// `config` without the port called `name`.
///
/// # Errors
/// There is no such port.
pub fn remove_port(config: &Config, name: &str) -> Result<Config, ControlError> {
    edit(config, |ports| {
        let before = ports.len();
        ports.retain(|port| !is_named(port, name));
        if ports.len() == before { Err(unknown(config, name)) } else { Ok(()) }
    })
}

/// Takes over `changes`, those of sections key by key.
pub fn merge(keys: &mut PortDocument, changes: &PortDocument) {
    for (key, value) in changes {
        match (keys.get_mut(key), value) {
            (_, Json::Null) => drop(keys.remove(key)),
            (Some(Json::Object(section)), Json::Object(changes)) => merge(section, changes),
            _ => drop(keys.insert(key.clone(), value.clone())),
        }
    }
}

fn unknown(config: &Config, name: &str) -> ControlError {
    let ports = config.ports.iter().map(|port| port.name.clone()).collect();
    ControlError::UnknownPort { name: name.chars().take(64).collect(), ports }
}

fn table(keys: &PortDocument) -> Result<Table, ControlError> {
    Table::try_from(keys).map_err(|error| ControlError::Invalid(format!("port: {error}")))
}

/// A port is called as its path says.
fn claim(port: &mut Table, name: &str) -> Result<(), ControlError> {
    match port.insert("name".to_owned(), Value::String(name.to_owned())) {
        Some(Value::String(given)) if given != name => {
            let problem = format!("name = {given:?}: a port cannot be renamed; leave it out");
            Err(ControlError::Invalid(problem))
        }
        _ => Ok(()),
    }
}

fn is_named(port: &Value, name: &str) -> bool {
    port.get("name").and_then(Value::as_str) == Some(name)
}

fn edit(
    config: &Config,
    change: impl FnOnce(&mut Vec<Value>) -> Result<(), ControlError>,
) -> Result<Config, ControlError> {
    let mut root = config.to_table();
    let ports = root.entry("port").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(ports) = ports {
        change(ports)?;
    }
    parse(&toml::to_string(&root).map_err(|error| ControlError::Invalid(error.to_string()))?)
}

/// The configuration that a request says. Its lines mean nothing to whoever sent it.
fn parse(text: &str) -> Result<Config, ControlError> {
    Config::parse(text, Path::new("request")).map_err(|error| match error {
        ConfigError::Invalid { fault, .. } => ControlError::Invalid(fault),
        error => ControlError::Invalid(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Config {
        let text = "[permissions]\ngroup = \"kvm\"\n[[port]]\nname = \"vm1\"\nsocket = \"/tmp/1\"\nmtu = 9000\n\
                    [port.offload]\ntransmit = true\nbudget = 100_000\n";
        Config::parse(text, Path::new("f.toml")).unwrap()
    }

    fn keys(value: Json) -> PortDocument {
        match value {
            Json::Object(keys) => keys,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_port_is_its_keys() {
        let expected = json!({ "name": "vm1", "socket": "/tmp/1", "mtu": 9000,
            "offload": { "transmit": true, "budget": 100_000 } });
        assert_eq!(Json::Object(port(&config(), "vm1").unwrap()), expected);
        assert_eq!(put_port(&config(), "vm1", &keys(expected)).unwrap(), config());
    }

    #[test]
    fn ports_are_put_patched_and_removed() {
        let two = put_port(&config(), "vm2", &keys(json!({ "socket": "/tmp/2" }))).unwrap();
        assert_eq!((two.ports.len(), two.ports[1].mtu), (2, 1500));
        assert_eq!(two.ports[1].permissions.group.as_deref(), Some("kvm"));
        let change = json!({ "mtu": null, "storm_pps": 7, "offload": { "transmit": false } });
        let patched = patch_port(&two, "vm1", &keys(change)).unwrap();
        let vm1 = &patched.ports[0];
        assert_eq!((vm1.mtu, vm1.storm_pps), (1500, 7));
        assert_eq!((vm1.offload.transmit, vm1.offload.budget), (false, 100_000));
        assert_eq!(remove_port(&two, "vm2").unwrap(), config());
    }

    #[test]
    fn wrong_requests_are_named_with_their_fix() {
        let put = |name: &str, value| put_port(&config(), name, &keys(value)).unwrap_err();
        let cases = [
            (
                put("vm2", json!({})),
                "port[1] \"vm2\".socket: missing; add socket = \"/run/floodway/vm2.sock\"",
            ),
            (
                put("vm2", json!({ "socket": "/tmp/1" })),
                "port[1] \"vm2\".socket = \"/tmp/1\": already used by port[0] \"vm1\"; choose another one",
            ),
            (
                put("vm2", json!({ "socket": "/tmp/2", "mtu": 70_000 })),
                "port[1] \"vm2\".mtu = 70000: must be an integer from 68 to 65535",
            ),
            (
                put("vm2", json!({ "socket": "/tmp/2", "mtuu": 1 })),
                "port[1] \"vm2\".mtuu: unknown key; did you mean \"mtu\"?",
            ),
            (
                put("vm1", json!({ "name": "vm9", "socket": "/tmp/2" })),
                "name = \"vm9\": a port cannot be renamed; leave it out",
            ),
            (remove_port(&config(), "vm9").unwrap_err(), "no port \"vm9\"; the ports are vm1"),
        ];
        for (error, expected) in cases {
            assert_eq!(error.to_string(), expected);
        }
    }
}
