//! The difference between two configurations: what has to be done so that a running switch is as a file says.
//!
//! # Theory of operation
//! Both configurations are compared as the files that say them, key by key, so every key is covered by what writes it
//! ([`Config::to_table`]). Each difference has an [`Effect`]: most keys of a port are fixed when its front-end connects, so the port is taken away
//! and comes back, and its front-end connects again; what is before an uplink's device is made anew; a few keys take effect at once; what belongs to the whole
//! switch needs a restart. Networks, ports and uplinks are told apart by their names: one with another name is another one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::config::{Config, NetworkConfig, Permissions, PortConfig, UplinkConfig};
use crate::control::ControlError;
use crate::edit::Kind;

/// Keys of a port that take effect at once. With a section's name, all keys of that.
const LIVE: &[&str] = &["inbound_weight", "limit", "offload", "storm_pps"];
/// Keys of those sections that do not.
const NOT_LIVE: &[&str] = &["offload.max_flows"];
/// Keys of an uplink that take effect at once.
const LIVE_OF_UPLINKS: &[&str] = &["multicast_pps", "storm_pps"];
/// Sections of the whole switch that take effect at once. Permissions are those of sockets that are made from now on.
const LIVE_SECTIONS: &[&str] = &["inbound", "permissions"];

/// What is done to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// No connection ends.
    Live,
    /// The uplink's device stays open, and what is before it is made anew.
    Reopen,
    /// The port's front-end has to connect again.
    Reconnect,
    /// It cannot be done while the switch runs.
    Restart,
}

/// A key that changes, and its values as TOML; none for a key that is left out, which means its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyChange {
    /// The key, below its section: `offload.transmit`.
    pub key: String,
    /// Its value now.
    pub from: Option<String>,
    /// Its value then.
    pub to: Option<String>,
}

/// A change of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// What is done.
    pub action: Action,
    /// The section: `network`, `port`, `uplink`, `inbound`.
    pub section: String,
    /// The name, of what has names.
    pub name: Option<String>,
    /// What that does to what runs.
    pub effect: Effect,
    /// The keys that change.
    pub keys: Vec<KeyChange>,
}

/// All changes: first what goes, then what changes, then what comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// The changes.
    pub changes: Vec<Change>,
}

impl Plan {
    /// What makes `wanted` of `running`.
    #[must_use]
    pub fn between(running: &Config, wanted: &Config) -> Self {
        let mut plan = Self { changes: sections(running, wanted) };
        for kind in Kind::ALL {
            plan.compare(kind, &named(kind, running), &named(kind, wanted));
        }
        let order = |change: &Change| match change.action {
            Action::Remove => 0,
            Action::Change => 1,
            Action::Add => 2,
        };
        // The order of the configuration stays among those that are alike.
        plan.changes.sort_by_key(order);
        plan
    }

    /// Notes what differs between what there is `before` and `after`, of one kind.
    fn compare(&mut self, kind: Kind, before: &[(String, Table)], after: &[(String, Table)]) {
        let of = |list| -> BTreeMap<&str, &Table> {
            let list: &[(String, Table)] = list;
            list.iter().map(|(name, table)| (&**name, table)).collect()
        };
        let (known, wanted, empty) = (of(before), of(after), Table::new());
        for (name, table) in before {
            match wanted.get(&**name) {
                None => self.changes.push(change(kind, Action::Remove, name, Vec::new())),
                Some(next) if *next != table => {
                    let keys = compare(table, next);
                    self.changes.push(change(kind, Action::Change, name, keys));
                }
                Some(_) => {}
            }
        }
        for (name, table) in after.iter().filter(|(name, _)| !known.contains_key(&**name)) {
            let keys = compare(&empty, table);
            self.changes.push(change(kind, Action::Add, name, keys));
        }
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
        self.of(Kind::Port, action)
            .filter(move |change| change.effect == effect)
            .filter_map(named_by)
    }

    /// Changes of this kind of thing.
    fn of(&self, kind: Kind, action: Action) -> impl Iterator<Item = &Change> {
        let meant =
            move |change: &&Change| change.section == kind.name() && change.action == action;
        self.changes.iter().filter(meant)
    }

    /// Names of uplinks that are made anew, or come, or go.
    pub fn uplinks(&self, action: Action) -> impl Iterator<Item = &str> {
        let lives =
            |change: &&Change| change.action != Action::Change || change.effect == Effect::Reopen;
        self.of(Kind::Uplink, action).filter(lives).filter_map(named_by)
    }
}

fn named_by(change: &Change) -> Option<&str> {
    change.name.as_deref()
}

/// What there is of a kind, by name, in the order of the configuration: with all that it has of other sections.
fn named(kind: Kind, config: &Config) -> Vec<(String, Table)> {
    let alone = Permissions::default();
    let port = |port: &PortConfig| {
        let mut table = port.to_table(&alone);
        note_networks(&mut table, port);
        (port.name.clone(), table)
    };
    let uplink = |uplink: &UplinkConfig| {
        let mut table = uplink.to_table();
        let vids = uplink.networks().map(|network| Value::from(i64::from(network.vid)));
        let vids: Vec<_> = vids.collect();
        if vids.iter().any(|vid| vid.as_integer() != Some(0)) {
            table.insert("network.vid".to_owned(), Value::Array(vids));
        }
        (uplink.name.clone(), table)
    };
    match kind {
        Kind::Network => {
            let networks = config.networks.iter();
            networks.map(|network| (network.name.clone(), network.to_table())).collect()
        }
        Kind::Port => config.ports.iter().map(port).collect(),
        Kind::Uplink => config.uplinks.iter().map(uplink).collect(),
    }
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

fn change(kind: Kind, action: Action, name: &str, mut keys: Vec<KeyChange>) -> Change {
    keys.retain(|change| change.key != "name");
    let (section, name) = (kind.name().to_owned(), Some(name.to_owned()));
    Change { action, section, name, effect: effect(kind, action, &keys), keys }
}

/// What becomes of others when a network changes is a change of theirs.
fn effect(kind: Kind, action: Action, keys: &[KeyChange]) -> Effect {
    let all = |is_live: &dyn Fn(&str) -> bool| keys.iter().all(|change| is_live(&change.key));
    match (kind, action) {
        (Kind::Port, Action::Remove) => Effect::Reconnect,
        (Kind::Port, Action::Change) if !all(&is_live) => Effect::Reconnect,
        (Kind::Uplink, Action::Change) if !all(&|key| LIVE_OF_UPLINKS.contains(&key)) => {
            Effect::Reopen
        }
        _ => Effect::Live,
    }
}

fn is_live(key: &str) -> bool {
    let section = key.split('.').next().unwrap_or(key);
    LIVE.contains(&section) && !NOT_LIVE.contains(&key)
}

/// Differences in all that has no name.
fn sections(running: &Config, wanted: &Config) -> Vec<Change> {
    let (before, after) = (running.to_table(), wanted.to_table());
    let is_named = |key: &str| Kind::ALL.iter().any(|kind| kind.name() == key);
    let names: BTreeSet<_> =
        before.keys().chain(after.keys()).filter(|key| !is_named(key)).collect();
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
            (_, Effect::Reopen) => f.write_str(" (its queue begins anew)"),
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
            "~ port vm1: network = default -> \"red\", network.vid = default -> 10 (its front-end connects again)\n\
             + network red: vid = 10"
        );
        let isolated = plan(&(red(10, "") + &in_red), &(red(10, "isolate = true") + &in_red));
        let expected = "~ port vm1: isolate = default -> true (its front-end connects again)";
        assert_eq!(isolated.lines().last(), Some(expected));
        let (before, after) = (red(10, "") + &in_red + uplink, red(11, "") + &in_red + uplink);
        let plan = Plan::between(&config(&before), &config(&after));
        assert_eq!(plan.check_fixed(), Ok(()));
        assert_eq!(plan.uplinks(Action::Change).collect::<Vec<_>>(), ["up0"]);
        assert_eq!(plan.ports(Action::Change, Effect::Reconnect).count(), 1);
    }

    #[test]
    fn uplinks_are_told_apart_by_their_names() {
        let uplink = |name: &str, device: &str, extra: &str| {
            format!(
                "[[uplink]]\nname = \"{name}\"\nkind = \"tap\"\ndevice = \"{device}\"\n{extra}\n"
            )
        };
        let before =
            uplink("up0", "fw0", "") + &uplink("up1", "fw1", "") + &uplink("up2", "fw2", "");
        let after = uplink("up3", "fw0", "")
            + &uplink("up1", "fw1", "storm_pps = 5")
            + &uplink("up2", "fw2", "queue = { limit_bytes = 100_000 }");
        let expected = "- uplink up0\n\
            ~ uplink up1: storm_pps = default -> 5\n\
            ~ uplink up2: queue.limit_bytes = default -> 100000 (its queue begins anew)\n\
            + uplink up3: device = \"fw0\", kind = \"tap\"";
        assert_eq!(plan(&before, &after), expected);
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
