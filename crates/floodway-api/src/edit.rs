//! Changes of single networks, ports and uplinks in a configuration, as the control socket and the command line make them.
//!
//! Each is a document with the keys of its section of the file (`[[port]]`). The changed configuration is written as a file and read again, so a request is
//! checked as a file is, and an error names key, value and fix in the same words.

use std::path::Path;

use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use crate::config::{Config, ConfigError, DEFAULT_NETWORK, NetworkConfig, UplinkConfig};
use crate::control::ControlError;

/// The keys of a network, port or uplink, by name.
pub type Document = Map<String, Json>;

/// What can be changed by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A `[[network]]`.
    Network,
    /// A `[[port]]`.
    Port,
    /// An `[[uplink]]`.
    Uplink,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Network, Self::Port, Self::Uplink];

    /// The name of its section in a file, and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Port => "port",
            Self::Uplink => "uplink",
        }
    }

    /// Names of all that `config` has of this kind, in its order.
    #[must_use]
    pub fn names(self, config: &Config) -> Vec<&str> {
        match self {
            Self::Network => config.networks.iter().map(|network| &*network.name).collect(),
            Self::Port => config.ports.iter().map(|port| &*port.name).collect(),
            Self::Uplink => config.uplinks.iter().map(|uplink| &*uplink.name).collect(),
        }
    }

    /// The section called `name`, if there is one.
    fn section(self, config: &Config, name: &str) -> Option<Table> {
        match self {
            Self::Network => {
                let mut networks = config.networks.iter();
                networks.find(|known| known.name == name).map(NetworkConfig::to_table)
            }
            Self::Port => {
                let mut ports = config.ports.iter();
                let port = ports.find(|known| known.name == name);
                port.map(|port| port.to_table(&config.permissions))
            }
            Self::Uplink => {
                let mut uplinks = config.uplinks.iter();
                uplinks.find(|known| known.name == name).map(UplinkConfig::to_table)
            }
        }
    }

    fn unknown(self, config: &Config, name: &str) -> ControlError {
        let mut known: Vec<_> = self.names(config).into_iter().map(str::to_owned).collect();
        if self == Self::Network && known.iter().all(|name| name != DEFAULT_NETWORK) {
            known.insert(0, DEFAULT_NETWORK.to_owned());
        }
        let name = name.chars().take(64).collect();
        match self {
            Self::Network => ControlError::UnknownNetwork { name, networks: known },
            Self::Port => ControlError::UnknownPort { name, ports: known },
            Self::Uplink => ControlError::UnknownUplink { name, uplinks: known },
        }
    }
}

/// The keys of what is called `name`, without those that have their defaults. The network `default` is there without a section, too.
///
/// # Errors
/// There is no such thing.
pub fn document(config: &Config, kind: Kind, name: &str) -> Result<Document, ControlError> {
    let implied = || (kind, name) == (Kind::Network, DEFAULT_NETWORK);
    let section = match kind.section(config, name) {
        None if implied() => Table::from_iter([("name".to_owned(), name.into())]),
        section => section.ok_or_else(|| kind.unknown(config, name))?,
    };
    match serde_json::to_value(section) {
        Ok(Json::Object(keys)) => Ok(keys),
        _ => Err(ControlError::Invalid(format!("the {} cannot be written", kind.name()))),
    }
}

/// `config` with a network, port or uplink called `name` that has these keys and no others.
///
/// # Errors
/// What is wrong with them.
pub fn put(
    config: &Config,
    kind: Kind,
    name: &str,
    keys: &Document,
) -> Result<Config, ControlError> {
    let mut section = table(kind, keys)?;
    claim(kind, &mut section, name)?;
    edit(config, kind, |sections| {
        match sections.iter_mut().find(|known| is_named(known, name)) {
            Some(known) => *known = Value::Table(section),
            None => sections.push(Value::Table(section)),
        }
        Ok(())
    })
}

/// `config` with these keys of what is called `name` changed; `null` leaves a key out.
///
/// # Errors
/// There is no such thing, or what is wrong with the keys.
pub fn patch(
    config: &Config,
    kind: Kind,
    name: &str,
    keys: &Document,
) -> Result<Config, ControlError> {
    let mut section = document(config, kind, name)?;
    merge(&mut section, keys);
    put(config, kind, name, &section)
}

/// `config` without the network, port or uplink called `name`.
///
/// # Errors
/// There is no such section, or others refer to it.
pub fn remove(config: &Config, kind: Kind, name: &str) -> Result<Config, ControlError> {
    edit(config, kind, |sections| {
        let before = sections.len();
        sections.retain(|section| !is_named(section, name));
        if sections.len() == before { Err(kind.unknown(config, name)) } else { Ok(()) }
    })
}

/// Takes over `changes`, those of sections key by key.
pub fn merge(keys: &mut Document, changes: &Document) {
    for (key, value) in changes {
        match (keys.get_mut(key), value) {
            (_, Json::Null) => drop(keys.remove(key)),
            (Some(Json::Object(section)), Json::Object(changes)) => merge(section, changes),
            _ => drop(keys.insert(key.clone(), value.clone())),
        }
    }
}

fn table(kind: Kind, keys: &Document) -> Result<Table, ControlError> {
    let invalid = |error| ControlError::Invalid(format!("{}: {error}", kind.name()));
    Table::try_from(keys).map_err(invalid)
}

/// It is called as its path says.
fn claim(kind: Kind, section: &mut Table, name: &str) -> Result<(), ControlError> {
    match section.insert("name".to_owned(), Value::String(name.to_owned())) {
        Some(Value::String(given)) if given != name => {
            let article = if kind == Kind::Uplink { "an" } else { "a" };
            let kind = kind.name();
            let problem =
                format!("name = {given:?}: {article} {kind} cannot be renamed; leave it out");
            Err(ControlError::Invalid(problem))
        }
        _ => Ok(()),
    }
}

fn is_named(section: &Value, name: &str) -> bool {
    section.get("name").and_then(Value::as_str) == Some(name)
}

fn edit(
    config: &Config,
    kind: Kind,
    change: impl FnOnce(&mut Vec<Value>) -> Result<(), ControlError>,
) -> Result<Config, ControlError> {
    let mut root = config.to_table();
    let sections = root.entry(kind.name()).or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(sections) = sections {
        change(sections)?;
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

    fn keys(value: Json) -> Document {
        match value {
            Json::Object(keys) => keys,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_port_is_its_keys() {
        let expected = json!({ "name": "vm1", "socket": "/tmp/1", "mtu": 9000,
            "offload": { "transmit": true, "budget": 100_000 } });
        assert_eq!(Json::Object(document(&config(), Kind::Port, "vm1").unwrap()), expected);
        assert_eq!(put(&config(), Kind::Port, "vm1", &keys(expected)).unwrap(), config());
    }

    #[test]
    fn ports_are_put_patched_and_removed() {
        let two = put(&config(), Kind::Port, "vm2", &keys(json!({ "socket": "/tmp/2" }))).unwrap();
        assert_eq!((two.ports.len(), two.ports[1].mtu), (2, 1500));
        assert_eq!(two.ports[1].permissions.group.as_deref(), Some("kvm"));
        let change = json!({ "mtu": null, "storm_pps": 7, "offload": { "transmit": false } });
        let patched = patch(&two, Kind::Port, "vm1", &keys(change)).unwrap();
        let vm1 = &patched.ports[0];
        assert_eq!((vm1.mtu, vm1.storm_pps), (1500, 7));
        assert_eq!((vm1.offload.transmit, vm1.offload.budget), (false, 100_000));
        assert_eq!(remove(&two, Kind::Port, "vm2").unwrap(), config());
    }

    #[test]
    fn wrong_requests_are_named_with_their_fix() {
        let refused =
            |name: &str, value| put(&config(), Kind::Port, name, &keys(value)).unwrap_err();
        let cases = [
            (
                refused("vm2", json!({})),
                "port[1] \"vm2\".socket: missing; add socket = \"/run/floodway/vm2.sock\"",
            ),
            (
                refused("vm2", json!({ "socket": "/tmp/1" })),
                "port[1] \"vm2\".socket = \"/tmp/1\": already used by port[0] \"vm1\"; choose another one",
            ),
            (
                refused("vm2", json!({ "socket": "/tmp/2", "mtu": 70_000 })),
                "port[1] \"vm2\".mtu = 70000: must be an integer from 68 to 65535",
            ),
            (
                refused("vm2", json!({ "socket": "/tmp/2", "mtuu": 1 })),
                "port[1] \"vm2\".mtuu: unknown key; did you mean \"mtu\"?",
            ),
            (
                refused("vm1", json!({ "name": "vm9", "socket": "/tmp/2" })),
                "name = \"vm9\": a port cannot be renamed; leave it out",
            ),
            (
                remove(&config(), Kind::Port, "vm9").unwrap_err(),
                "no port \"vm9\"; the ports are vm1",
            ),
        ];
        for (error, expected) in cases {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn networks_and_uplinks_are_put_patched_and_removed() {
        let red = put(&config(), Kind::Network, "red", &keys(json!({ "vid": 10 }))).unwrap();
        let up0 = json!({ "kind": "tap", "device": "fw0", "tagged": ["red"] });
        let up0 = put(&red, Kind::Uplink, "up0", &keys(up0)).unwrap();
        assert_eq!(up0.uplinks[0].tagged[0].vid, 10);
        let change = keys(json!({ "storm_pps": 5, "tagged": null, "network": "red" }));
        let patched = patch(&up0, Kind::Uplink, "up0", &change).unwrap();
        let expected = json!({ "name": "up0", "kind": "tap", "device": "fw0", "network": "red",
            "storm_pps": 5 });
        assert_eq!(Json::Object(document(&patched, Kind::Uplink, "up0").unwrap()), expected);
        let eleven = patch(&up0, Kind::Network, "red", &keys(json!({ "vid": 11 }))).unwrap();
        assert_eq!(eleven.uplinks[0].tagged[0].vid, 11, "whoever refers to it");
        let error = remove(&up0, Kind::Network, "red").unwrap_err().to_string();
        assert!(error.starts_with("uplink[0] \"up0\".tagged = [\"red\"]: "), "{error}");
        let error = remove(&red, Kind::Uplink, "up0").unwrap_err().to_string();
        assert_eq!(error, "no uplink \"up0\"; the uplinks are none");
        assert_eq!(remove(&up0, Kind::Uplink, "up0").unwrap(), red);
        assert_eq!(remove(&red, Kind::Network, "red").unwrap(), config());
    }

    #[test]
    fn the_default_network_is_there_without_a_section() {
        let keys_of = |config: &Config| document(config, Kind::Network, "default").unwrap();
        assert_eq!(Json::Object(keys_of(&config())), json!({ "name": "default" }));
        let jumbo = patch(&config(), Kind::Network, "default", &keys(json!({ "mtu": 9000 })));
        assert_eq!(jumbo.as_ref().map(keys_of).unwrap()["mtu"], 9000);
        assert_eq!(remove(&jumbo.unwrap(), Kind::Network, "default").unwrap().networks, []);
    }
}
