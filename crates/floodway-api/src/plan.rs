//! The difference between two configurations: what has to be done so that a running switch is as a file says.
//!
//! # Theory of operation
//! Both configurations are compared as the files that say them, key by key, so every key is covered by what writes it
//! ([`Config::to_table`]). Each difference has an [`Effect`]: most keys of a port are fixed when its front-end connects, so the port is taken away
//! and comes back, and its front-end connects again; a few take effect at once; what belongs to the whole switch needs a restart.
//! Ports are told apart by their names: a port with another name is another port.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::config::{Config, NetworkConfig, Permissions, PortConfig};
use crate::control::ControlError;

/// Keys of a port that take effect at once. With a section's name, all keys of that.
const LIVE: &[&str] = &["inbound_weight", "limit", "offload", "storm_pps"];
/// Keys of those sections that do not.
const NOT_LIVE: &[&str] = &["offload.max_flows"];
/// Sections of the whole switch that take effect at once. Permissions are those of sockets that are made from now on; what becomes of a network
/// is a change of its ports and uplinks.
const LIVE_SECTIONS: &[&str] = &["inbound", "network", "permissions"];

/// What is done to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It comes.
    Add,
    /// It changes.
    Change,
    /// It goes.
    Remove,
}

/// What a change does to what runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// No connection ends.
    Live,
    /// The port's front-end has to connect again.
    Reconnect,
    /// It cannot be done while the switch runs.
    Restart,
}

/// A key that changes, and its values as TOML; none for a key that is left out, which means its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyChange {
    /// The key, below its section: `offload.transmit`.
    pub key: String,
    /// Its value now.
    pub from: Option<String>,
    /// Its value then.
    pub to: Option<String>,
}

/// A change of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What is done.
    pub action: Action,
    /// The section: `port`, `inbound`.
    pub section: String,
    /// The name, of what has names.
    pub name: Option<String>,
    /// What that does to what runs.
    pub effect: Effect,
    /// The keys that change.
    pub keys: Vec<KeyChange>,
}

/// All changes: first what goes, then what changes, then what comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The changes.
    pub changes: Vec<Change>,
}

impl Plan {
    /// What makes `wanted` of `running`.
    #[must_use]
    pub fn between(running: &Config, wanted: &Config) -> Self {
        let (before, after) = (ports(running), ports(wanted));
        let named = |ports: &[(String, Table)], name: &str| {
            ports.iter().find(|(known, _)| known == name).map(|(_, table)| table.clone())
        };
        let empty = Table::new();
        let gone = before.iter().filter(|(name, _)| named(&after, name).is_none());
        let gone = gone.map(|(name, _)| port(Action::Remove, name, Vec::new()));
        let changed = before.iter().filter_map(|(name, table)| {
            let keys = compare(table, &named(&after, name)?);
            (!keys.is_empty()).then(|| port(Action::Change, name, keys))
        });
        let new = after.iter().filter(|(name, _)| named(&before, name).is_none());
        let new = new.map(|(name, table)| port(Action::Add, name, compare(&empty, table)));
        let switch = sections(running, wanted);
        Self { changes: gone.chain(switch).chain(changed).chain(new).collect() }
    }

    /// Returns `true` if nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Changes that cannot be made while the switch runs.
    pub fn refused(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.effect == Effect::Restart)
    }

    /// Refuses what cannot be done while the switch runs.
    ///
    /// # Errors
    /// Names the sections.
    pub fn check_fixed(&self) -> Result<(), ControlError> {
        let fixed: Vec<_> = self.refused().map(|change| change.section.as_str()).collect();
        if fixed.is_empty() { Ok(()) } else { Err(ControlError::NeedsRestart(fixed.join(", "))) }
    }

    /// Names of ports that this is done to, with this effect.
    pub fn ports(&self, action: Action, effect: Effect) -> impl Iterator<Item = &str> {
        let meant = move |change: &&Change| {
            change.section == "port" && change.action == action && change.effect == effect
        };
        self.changes.iter().filter(meant).filter_map(|change| change.name.as_deref())
    }
}

/// The ports by name, with all that they have of the switch's permissions and of their networks.
fn ports(config: &Config) -> Vec<(String, Table)> {
    let alone = Permissions::default();
    let port = |port: &PortConfig| {
        let mut table = port.to_table(&alone);
        note_networks(&mut table, port);
        (port.name.clone(), table)
    };
    config.ports.iter().map(port).collect()
}

/// The whole switch, with what uplinks have of their networks.
fn switch(config: &Config) -> Table {
    let mut table = config.to_table();
    let uplinks = table.get_mut("uplink").and_then(Value::as_array_mut);
    let tables = uplinks.into_iter().flatten().filter_map(Value::as_table_mut);
    for (table, uplink) in tables.zip(&config.uplinks) {
        let vids = uplink.networks().map(|network| Value::from(i64::from(network.vid)));
        table.insert("network.vid".to_owned(), Value::Array(vids.collect()));
    }
    table
}

/// What a port has of its networks.
fn note_networks(table: &mut Table, port: &PortConfig) {
    let vid = |network: &NetworkConfig| Value::from(i64::from(network.vid));
    let isolates = |network: &NetworkConfig| port.is_isolated_in(network);
    if let Some(network) = port.network.as_ref().filter(|network| network.vid > 0) {
        table.insert("network.vid".to_owned(), vid(network));
    }
    if port.isolate || port.network.as_ref().is_some_and(isolates) {
        table.insert("isolate".to_owned(), true.into());
    }
    if let Some(mtu) = port.network.as_ref().and_then(|network| network.mtu) {
        table.insert("network.mtu".to_owned(), i64::from(mtu).into());
    }
    if !port.tagged.is_empty() {
        let vids = port.tagged.iter().map(vid).collect();
        table.insert("tagged.vid".to_owned(), Value::Array(vids));
        let isolated = port.tagged.iter().map(|network| Value::from(isolates(network))).collect();
        table.insert("tagged.isolate".to_owned(), Value::Array(isolated));
        let mtus = port.tagged.iter().map(|network| i64::from(network.mtu.unwrap_or(0)).into());
        table.insert("tagged.mtu".to_owned(), Value::Array(mtus.collect()));
    }
}

fn port(action: Action, name: &str, mut keys: Vec<KeyChange>) -> Change {
    keys.retain(|change| change.key != "name");
    let live = action == Action::Add || keys.iter().all(|change| is_live(&change.key));
    let effect = if live && action != Action::Remove { Effect::Live } else { Effect::Reconnect };
    Change { action, section: "port".into(), name: Some(name.into()), effect, keys }
}

fn is_live(key: &str) -> bool {
    let section = key.split('.').next().unwrap_or(key);
    LIVE.contains(&section) && !NOT_LIVE.contains(&key)
}

/// Differences in all but the ports.
fn sections(running: &Config, wanted: &Config) -> Vec<Change> {
    let (before, after) = (switch(running), switch(wanted));
    let names: BTreeSet<_> =
        before.keys().chain(after.keys()).filter(|&key| key != "port").collect();
    let change = |name: &String| {
        let only = |table: &Table| {
            let section = table.get(name).cloned();
            section.map(|section| Table::from_iter([(name.clone(), section)])).unwrap_or_default()
        };
        let keys = compare(&only(&before), &only(&after));
        let effect =
            if LIVE_SECTIONS.contains(&name.as_str()) { Effect::Live } else { Effect::Restart };
        let change =
            Change { action: Action::Change, section: name.clone(), name: None, effect, keys };
        (!change.keys.is_empty()).then_some(change)
    };
    names.into_iter().filter_map(change).collect()
}

/// The keys whose values differ, those of sections under the section's name.
fn compare(before: &Table, after: &Table) -> Vec<KeyChange> {
    let (before, after) = (flat(before), flat(after));
    let keys: BTreeSet<_> = before.iter().chain(&after).map(|(key, _)| key).collect();
    let value = |table: &[(String, String)], key: &str| {
        table.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
    };
    let change = |key: &String| {
        let (from, to) = (value(&before, key), value(&after, key));
        (from != to).then(|| KeyChange { key: key.clone(), from, to })
    };
    keys.into_iter().filter_map(change).collect()
}

fn flat(table: &Table) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(section) => {
                all.extend(
                    flat(section).into_iter().map(|(below, v)| (format!("{key}.{below}"), v)),
                );
            }
            value => all.push((key.clone(), value.to_string())),
        }
    }
    all
}

impl fmt::Display for Plan {
    /// One line for each change, as a diff: `+` comes, `-` goes, `~` changes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no changes");
        }
        for (index, change) in self.changes.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            change.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.action {
            Action::Add => '+',
            Action::Change => '~',
            Action::Remove => '-',
        };
        write!(f, "{sign} {}", self.section)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "default".to_owned());
        for (index, KeyChange { key, from, to }) in self.keys.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { ", " })?;
            let key = key.strip_prefix(&format!("{}.", self.section)).unwrap_or(key);
            match self.action {
                Action::Add => write!(f, "{key} = {}", value(to))?,
                _ => write!(f, "{key} = {} -> {}", value(from), value(to))?,
            }
        }
        match (self.action, self.effect) {
            (Action::Change, Effect::Reconnect) => f.write_str(" (its front-end connects again)"),
            (_, Effect::Restart) => f.write_str(" (needs a restart)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("f.toml")).unwrap()
    }

    fn port(name: &str, extra: &str) -> String {
        format!("[[port]]\nname = \"{name}\"\nsocket = \"/tmp/{name}.sock\"\n{extra}\n")
    }

    fn plan(before: &str, after: &str) -> String {
        Plan::between(&config(before), &config(after)).to_string()
    }

    #[test]
    fn what_goes_changes_and_comes_is_listed_with_its_effect() {
        let before = port("vm1", "") + &port("vm2", "mtu = 9000") + &port("vm3", "storm_pps = 5");
        let after = port("vm4", "mac = \"52:54:00:00:00:04\"")
            + &port("vm3", "storm_pps = 7\n[port.offload]\ntransmit = true")
            + &port("vm2", "storm_pps = 9");
        let expected = "- port vm1\n\
            ~ port vm2: mtu = 9000 -> default, storm_pps = default -> 9 (its front-end connects again)\n\
            ~ port vm3: offload.transmit = default -> true, storm_pps = 5 -> 7\n\
            + port vm4: mac = \"52:54:00:00:00:04\", socket = \"/tmp/vm4.sock\"";
        assert_eq!(plan(&before, &after), expected);
    }

    #[test]
    fn what_becomes_of_a_network_becomes_of_its_ports_and_uplinks() {
        let red =
            |vid: u16, more: &str| format!("[[network]]\nname = \"red\"\nvid = {vid}\n{more}\n");
        let in_red = port("vm1", "network = \"red\"");
        let uplink =
            "[[uplink]]\nname = \"up0\"\nkind = \"tap\"\ndevice = \"fw0\"\nnetwork = \"red\"\n";
        assert_eq!(
            plan(&port("vm1", ""), &(red(10, "") + &in_red)),
            "~ network: network = default -> [{ name = \"red\", vid = 10 }]\n\
             ~ port vm1: network = default -> \"red\", network.vid = default -> 10 (its front-end connects again)"
        );
        let isolated = plan(&(red(10, "") + &in_red), &(red(10, "isolate = true") + &in_red));
        let expected = "~ port vm1: isolate = default -> true (its front-end connects again)";
        assert_eq!(isolated.lines().last(), Some(expected));
        let (before, after) = (red(10, "") + &in_red + uplink, red(11, "") + &in_red + uplink);
        let plan = Plan::between(&config(&before), &config(&after));
        let refused: Vec<_> = plan.refused().map(|change| change.section.as_str()).collect();
        assert_eq!(refused, ["uplink"]);
        assert_eq!(plan.ports(Action::Change, Effect::Reconnect).count(), 1);
    }

    #[test]
    fn the_order_of_ports_and_defaults_that_are_written_are_no_change() {
        let (vm1, vm2) = (port("vm1", ""), port("vm2", ""));
        let written = port("vm2", "mtu = 1500\nworker = 0");
        assert_eq!(plan(&(vm1.clone() + &vm2), &(written + &vm1)), "no changes");
    }

    #[test]
    fn permissions_for_all_are_permissions_of_each() {
        let group = "[permissions]\ngroup = \"kvm\"\n".to_owned();
        let expected = "~ permissions: group = default -> \"kvm\"\n\
            ~ port vm1: permissions.group = default -> \"kvm\" (its front-end connects again)";
        assert_eq!(plan(&port("vm1", ""), &(group + &port("vm1", ""))), expected);
    }

    #[test]
    fn what_belongs_to_the_switch_needs_a_restart() {
        let before = "[[worker]]\n".to_owned() + &port("vm1", "");
        let after = "[inbound]\ncapacity_mbit = 900\n[l2]\nageing_s = 9\n[[worker]]\n[[worker]]\n"
            .to_owned()
            + &port("vm1", "[port.offload]\nmax_flows = 9");
        let plan = Plan::between(&config(&before), &config(&after));
        let refused: Vec<_> = plan.refused().map(|change| change.section.as_str()).collect();
        assert_eq!(refused, ["l2", "worker"]);
        let effects: Vec<_> = plan.changes.iter().map(|c| (c.section.as_str(), c.effect)).collect();
        assert!(effects.contains(&("inbound", Effect::Live)), "{effects:?}");
        assert!(effects.contains(&("port", Effect::Reconnect)), "{effects:?}");
    }
}
