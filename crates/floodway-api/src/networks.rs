//! Networks, and who is in them: documents of the control socket, made of the configuration and the status of a switch.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, NetworkConfig, PortConfig, UplinkConfig};
use crate::control::{ControlError, PageQuery};
use crate::status::{L2Entry, Status};

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Network {
    /// Name by which ports and uplinks refer to it.
    pub name: String,
    /// VLAN identifier; none for a network without one.
    pub vid: Option<u16>,
    /// No frame passes between two of its ports.
    pub isolate: bool,
    /// Largest IP packet in bytes; none if that is left to its ports.
    pub mtu: Option<u16>,
    /// Ports that are in it, in the order of the configuration.
    pub ports: Vec<Member>,
    /// Uplinks that carry it, in the order of the configuration.
    pub uplinks: Vec<Member>,
    /// Addresses in its forwarding table, learned or configured.
    pub addresses: usize,
}

/// A port or uplink in a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The network's frames have tags there.
    pub tagged: bool,
}

/// Some networks, in the order of the configuration; one called `default` that has no section is first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkPage {
    /// The networks.
    pub networks: Vec<Network>,
    /// Cursor of the next page; none after the last.
    pub next: Option<String>,
}

/// A network and its forwarding table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkTable {
    /// The network.
    #[serde(flatten)]
    pub network: Network,
    /// Its forwarding table.
    pub l2: Vec<L2Entry>,
}

/// A page of the networks of a switch with this configuration and status.
///
/// # Errors
/// The cursor is none.
pub fn page(
    config: &Config,
    status: &Status,
    query: &PageQuery,
) -> Result<NetworkPage, ControlError> {
    let networks = all(config);
    let names: Vec<_> = networks.iter().map(|network| &*network.name).collect();
    let (range, next) = query.select(&names)?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &status.l2 {
        *counts.entry(&entry.network).or_default() += 1;
    }
    let count = |network: &NetworkConfig| counts.get(&*network.name).copied().unwrap_or(0);
    let networks = networks[range].iter().map(|it| network(config, it, count(it))).collect();
    Ok(NetworkPage { networks, next })
}

/// The network called `name` of a switch with this configuration and status.
///
/// # Errors
/// There is no such network.
pub fn table(config: &Config, status: &Status, name: &str) -> Result<NetworkTable, ControlError> {
    let networks = all(config);
    let known = networks.iter().find(|network| network.name == name);
    let known = known.ok_or_else(|| ControlError::UnknownNetwork {
        name: name.chars().take(64).collect(),
        networks: networks.iter().map(|network| network.name.clone()).collect(),
    })?;
    let l2: Vec<_> = status.l2.iter().filter(|entry| entry.network == name).cloned().collect();
    Ok(NetworkTable { network: network(config, known, l2.len()), l2 })
}

/// All networks: that called `default` is there without a section, too.
fn all(config: &Config) -> Vec<NetworkConfig> {
    let default = NetworkConfig::default();
    let is_implied = config.networks.iter().all(|network| network.name != default.name);
    is_implied.then_some(default).into_iter().chain(config.networks.iter().cloned()).collect()
}

fn network(config: &Config, of: &NetworkConfig, addresses: usize) -> Network {
    let port = |port: &PortConfig| member(&port.name, of, port.network.as_ref(), &port.tagged);
    let uplink =
        |uplink: &UplinkConfig| member(&uplink.name, of, uplink.network.as_ref(), &uplink.tagged);
    Network {
        name: of.name.clone(),
        vid: (of.vid > 0).then_some(of.vid),
        isolate: of.isolate,
        mtu: of.mtu,
        ports: config.ports.iter().filter_map(port).collect(),
        uplinks: config.uplinks.iter().filter_map(uplink).collect(),
        addresses,
    }
}

/// How a port or uplink is in a network; `None` if it is not.
fn member(
    name: &str,
    of: &NetworkConfig,
    untagged: Option<&NetworkConfig>,
    tagged: &[NetworkConfig],
) -> Option<Member> {
    let is_tagged = tagged.iter().any(|network| network.name == of.name);
    let is_there = is_tagged || untagged.is_some_and(|network| network.name == of.name);
    is_there.then(|| Member { name: name.to_owned(), tagged: is_tagged })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(sections: &str) -> Config {
        let text = format!(
            "{sections}[[network]]\nname = \"red\"\nvid = 10\nmtu = 9000\n[[network]]\nname = \"blue\"\nvid = 20\nisolate = true\n\
             [[port]]\nname = \"vm1\"\nsocket = \"/tmp/1\"\nnetwork = \"red\"\n\
             [[port]]\nname = \"vm2\"\nsocket = \"/tmp/2\"\nnetwork = \"blue\"\ntagged = [\"red\"]\n\
             [[uplink]]\nname = \"up0\"\nkind = \"tap\"\ndevice = \"fw0\"\ntagged = [\"red\", \"blue\"]\n"
        );
        Config::parse(&text, "f.toml".as_ref()).unwrap()
    }

    fn status() -> Status {
        let entry = |mac: &str, network: &str| L2Entry {
            mac: mac.into(),
            network: network.into(),
            ..L2Entry::default()
        };
        Status {
            l2: vec![entry("a", "red"), entry("b", "red"), entry("a", "blue")],
            ..Status::default()
        }
    }

    fn member(name: &str, tagged: bool) -> Member {
        Member { name: name.into(), tagged }
    }

    #[test]
    fn a_network_knows_who_is_in_it_and_how() {
        let red = table(&config(""), &status(), "red").unwrap();
        let macs: Vec<_> = red.l2.iter().map(|entry| &*entry.mac).collect();
        assert_eq!(macs, ["a", "b"]);
        let expected = Network {
            name: "red".into(),
            vid: Some(10),
            isolate: false,
            mtu: Some(9000),
            ports: vec![member("vm1", false), member("vm2", true)],
            uplinks: vec![member("up0", true)],
            addresses: 2,
        };
        assert_eq!(red.network, expected);
        let blue = table(&config(""), &status(), "blue").unwrap().network;
        assert_eq!((blue.isolate, blue.ports), (true, vec![member("vm2", false)]));
        let unknown = table(&config(""), &status(), "green").unwrap_err().to_string();
        assert_eq!(unknown, "no network \"green\"; the networks are default, red, blue");
    }

    #[test]
    fn networks_come_in_pages_and_the_default_one_always_is_there() {
        let names = |config: &Config, limit, cursor: Option<&str>| {
            let query = PageQuery { limit, cursor: cursor.map(str::to_owned) };
            let page = page(config, &status(), &query).unwrap();
            let names: Vec<_> = page.networks.into_iter().map(|network| network.name).collect();
            (names.join(" "), page.next)
        };
        assert_eq!(names(&config(""), None, None), ("default red blue".into(), None));
        let first = names(&config(""), Some(2), None);
        assert_eq!(first, ("default red".into(), Some("red".into())));
        assert_eq!(names(&config(""), Some(2), Some("red")), ("blue".into(), None));
        let with_vid = config("[[network]]\nname = \"default\"\nvid = 1\n");
        assert_eq!(names(&with_vid, None, None), ("default red blue".into(), None));
        let query = PageQuery { limit: None, cursor: Some("green".into()) };
        assert!(page(&config(""), &status(), &query).is_err());
    }
}
