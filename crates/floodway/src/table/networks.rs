//! Networks in the tables: a column that is left out while there is only one.

use floodway_switch::api::status::{PortStatus, Status, UplinkStatus};
use floodway_switch::config::DEFAULT_NETWORK;

/// Most networks with tags that are shown.
const MAX_TAGGED: usize = 6;

/// Returns `true` if there is another network than the default one.
pub(super) fn are_several(status: &Status) -> bool {
    let ports = status.ports.iter().flat_map(|port| port.tagged.iter().chain([&port.network]));
    let uplinks = status.uplinks.iter();
    let uplinks = uplinks.flat_map(|uplink| uplink.tagged.iter().chain([&uplink.network]));
    ports.chain(uplinks).any(|network| !network.is_empty() && network != DEFAULT_NETWORK)
}

/// The networks of an uplink.
pub(super) fn of_uplink(uplink: &UplinkStatus) -> String {
    carried(&uplink.network, &uplink.tagged)
}

/// The networks of a port.
pub(super) fn of_port(port: &PortStatus) -> String {
    carried(&port.network, &port.tagged)
}

/// Networks without tags and with: `default, tagged red blue`.
fn carried(untagged: &str, tagged: &[String]) -> String {
    let (shown, hidden) = tagged.split_at(tagged.len().min(MAX_TAGGED));
    let mut tagged = shown.join(" ");
    if !hidden.is_empty() {
        tagged += &format!(" and {} more", hidden.len());
    }
    match (untagged, &*tagged) {
        (untagged, "") => untagged.to_owned(),
        ("", tagged) => format!("tagged {tagged}"),
        (untagged, tagged) => format!("{untagged}, tagged {tagged}"),
    }
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::status::{L2Entry, PortStatus};

    use super::*;
    use crate::table::render;

    #[test]
    fn networks_are_shown_if_there_are_several() {
        let network = |name: &str, network: &str| PortStatus {
            name: name.into(),
            network: network.into(),
            ..Default::default()
        };
        let entry = |port: &str, network: &str| L2Entry {
            mac: "52:54:00:00:00:01".into(),
            port: port.into(),
            network: network.into(),
            age_s: None,
        };
        let mut status = Status {
            ports: vec![
                network("vm1", "default"),
                network("vm2", "red"),
                PortStatus {
                    tagged: vec!["red".into(), "blue".into()],
                    ..network("vm3", "default")
                },
            ],
            uplinks: vec![
                UplinkStatus { network: "red".into(), ..Default::default() },
                UplinkStatus { tagged: vec!["red".into(), "blue".into()], ..Default::default() },
                UplinkStatus {
                    network: "default".into(),
                    tagged: (1..=8).map(|n| format!("n{n}")).collect(),
                    ..Default::default()
                },
            ],
            l2: vec![entry("vm1", "default"), entry("vm2", "red")],
            ..Default::default()
        };
        insta::assert_snapshot!(render(&status, false));
        status.ports.truncate(1);
        status.uplinks.clear();
        status.l2.pop();
        assert!(!render(&status, false).contains("NETWORK"));
    }
}
