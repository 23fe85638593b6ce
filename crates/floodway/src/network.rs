//! `floodway network`: networks of the running switch and who is in them, shown and changed.

use std::io::{self, Write};

use floodway_switch::api::edit::Kind;
use floodway_switch::api::networks::{Member, Network, NetworkTable};
use floodway_switch::control::ControlClient;

use crate::change;
use crate::cli::{ListArgs, NetworkCommand};
use crate::output;
use crate::table::{Column, columns, entries};

/// Most members of a network that are shown in a list.
const MAX_MEMBERS: usize = 6;

/// Shows or changes networks.
///
/// # Errors
/// A key cannot be read, the switch does not answer or does not take the change, or the file cannot be saved.
pub fn network(command: &NetworkCommand) -> anyhow::Result<()> {
    let text = match command {
        NetworkCommand::List(ListArgs { json, control }) => {
            let networks = ControlClient::new(&control.path)?.networks()?;
            if *json { output::json(&networks, None)? } else { list(&networks) }
        }
        NetworkCommand::Show { name, list: ListArgs { json, control } } => {
            let table = ControlClient::new(&control.path)?.network(name)?;
            if *json { output::json(&table, None)? } else { show(&table) }
        }
        NetworkCommand::Add(args) => return change::add(Kind::Network, args),
        NetworkCommand::Set(args) => return change::set(Kind::Network, args),
        NetworkCommand::Del(args) => return change::remove(Kind::Network, args),
    };
    Ok(writeln!(io::stdout(), "{}", text.trim_end())?)
}

fn list(networks: &[Network]) -> String {
    let table: [Column<'_, Network>; 7] = [
        ("NETWORK", &|n| n.name.clone()),
        ("PORTS", &|n| names(&n.ports)),
        ("UPLINKS", &|n| names(&n.uplinks)),
        ("ISOLATE", &|n| if n.isolate { "yes" } else { "no" }.to_owned()),
        ("VID", &|n| number(n.vid)),
        ("MTU", &|n| n.mtu.map_or_else(|| "ports'".to_owned(), |mtu| mtu.to_string())),
        ("ADDRESSES", &|n| n.addresses.to_string()),
    ];
    columns(networks, 4, &table).unwrap_or_default()
}

fn show(table: &NetworkTable) -> String {
    let NetworkTable { network, l2 } = table;
    let isolate = if network.isolate { ", its ports reach uplinks only" } else { "" };
    let mtu = network.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
    let (name, vid) = (&network.name, number(network.vid));
    let mut text = format!("network {name}, VID {vid}{mtu}{isolate}\n");
    let of = |kind: &'static str, members: &[Member]| -> Vec<_> {
        members.iter().map(|member| (kind, member.clone())).collect()
    };
    let members = [of("port", &network.ports), of("uplink", &network.uplinks)].concat();
    let member_columns: [Column<'_, (&str, Member)>; 3] = [
        ("MEMBER", &|(_, member)| member.name.clone()),
        ("KIND", &|(kind, _)| (*kind).to_owned()),
        ("FRAMES", &|(_, member)| if member.tagged { "tagged" } else { "untagged" }.to_owned()),
    ];
    let tables = [columns(&members, 3, &member_columns), entries(l2, false)];
    for table in tables.into_iter().flatten() {
        text += &format!("\n{table}\n");
    }
    text
}

fn number(vid: Option<u16>) -> String {
    vid.map_or_else(|| "none".to_owned(), |vid| vid.to_string())
}

/// Names in a line, and which of them have tags.
fn names(members: &[Member]) -> String {
    let name = |member: &Member| {
        let tag = if member.tagged { "(tagged)" } else { "" };
        format!("{}{tag}", member.name)
    };
    let mut shown: Vec<_> = members.iter().take(MAX_MEMBERS).map(name).collect();
    if members.len() > MAX_MEMBERS {
        shown.push(format!("and {} more", members.len() - MAX_MEMBERS));
    }
    if shown.is_empty() { "none".to_owned() } else { shown.join(" ") }
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::status::L2Entry;

    use super::*;

    fn red() -> Network {
        let member = |name: &str, tagged| Member { name: name.into(), tagged };
        Network {
            name: "red".into(),
            vid: Some(10),
            isolate: true,
            mtu: Some(9000),
            ports: vec![member("vm1", false), member("vm2", true)],
            uplinks: vec![member("up0", true)],
            addresses: 2,
        }
    }

    #[test]
    fn a_list_of_networks() {
        let many = (1..=8).map(|n| Member { name: format!("vm{n}"), tagged: false }).collect();
        let default = Network { name: "default".into(), ports: many, ..Network::default() };
        insta::assert_snapshot!(list(&[default, red()]));
    }

    #[test]
    fn a_network_and_its_table() {
        let entry = |mac: &str, port: &str, age_s| L2Entry {
            mac: mac.into(),
            port: port.into(),
            network: "red".into(),
            age_s,
        };
        let l2 = vec![
            entry("52:54:00:00:00:01", "vm1", None),
            entry("52:54:00:00:00:02", "up0", Some(3.2)),
        ];
        insta::assert_snapshot!(show(&NetworkTable { network: red(), l2 }));
        let empty = Network { name: "default".into(), ..Network::default() };
        insta::assert_snapshot!(show(&NetworkTable { network: empty, l2: Vec::new() }));
    }
}
