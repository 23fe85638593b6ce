//! Networks in the tables: a column that is left out while there is only one.

use floodway_switch::api::status::{Status, UplinkStatus};
use floodway_switch::config::DEFAULT_NETWORK;

/// Most networks of an uplink that are shown.
const MAX_TAGGED: usize = 6;

/// Returns `true` if there is another network than the default one.
pub(super) fn are_several(status: &Status) -> bool {
    let ports = status.ports.iter().map(|port| &port.network);
    let uplinks = status.uplinks.iter();
    let mut all =
        ports.chain(uplinks.flat_map(|uplink| uplink.tagged.iter().chain([&uplink.network])));
    all.any(|network| !network.is_empty() && network != DEFAULT_NETWORK)
}

/// The networks of an uplink: `default, tagged red blue`.
pub(super) fn of_uplink(uplink: &UplinkStatus) -> String {
    let (shown, hidden) = uplink.tagged.split_at(uplink.tagged.len().min(MAX_TAGGED));
    let mut tagged = shown.join(" ");
    if !hidden.is_empty() {
        tagged += &format!(" and {} more", hidden.len());
    }
    match (&*uplink.network, &*tagged) {
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
            ports: vec![network("vm1", "default"), network("vm2", "red")],
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
        status.ports.pop();
        status.uplinks.clear();
        status.l2.pop();
        assert!(!render(&status, false).contains("NETWORK"));
    }
}
