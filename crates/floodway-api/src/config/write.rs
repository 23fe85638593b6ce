//! The way back: a configuration as the keys of a file.
//!
//! Each section writes its own, beside where it reads them. Keys that have their defaults are left out, so that what is
//! written is short and an older switch can read it. Times are written in the unit of their key.

use serde::{Serialize, Serializer};
use toml::Table;

use super::keys::{Keys, integer, micros};
use super::{
    Config, L2Config, NetworkConfig, Permissions, PortConfig, SocketMode, UplinkConfig,
    WorkerConfig,
};
use super::{
    inbound, limit, meter, migration, network, offload, permissions, queue, vcpu, watchdog,
};

impl Config {
    /// The file that says this configuration, without keys that have their defaults.
    #[must_use]
    pub fn to_table(&self) -> Table {
        root(self).into_table()
    }
}

impl PortConfig {
    /// The section of this port in a file whose `[permissions]` are `for_all`.
    #[must_use]
    pub fn to_table(&self, for_all: &Permissions) -> Table {
        port(self, for_all).into_table()
    }
}

impl NetworkConfig {
    /// The section of this network.
    #[must_use]
    pub fn to_table(&self) -> Table {
        network::keys(self).into_table()
    }
}

impl UplinkConfig {
    /// The section of this uplink.
    #[must_use]
    pub fn to_table(&self) -> Table {
        uplink(self).into_table()
    }
}

impl Serialize for Config {
    /// As a file that [`Config::parse`] reads as the same configuration.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        root(self).into_table().serialize(serializer)
    }
}

fn root(config: &Config) -> Keys {
    let Config {
        control,
        permissions,
        l2,
        meter,
        vcpu,
        watchdog,
        inbound,
        migration,
        workers,
        networks,
        ports,
        uplinks,
    } = config;
    let port = |config: &PortConfig| port(config, permissions);
    Keys::default()
        .changed("control", control.display().to_string(), super::DEFAULT_CONTROL_SOCKET.into())
        .section("permissions", permissions::keys(permissions, &Permissions::default()))
        .section("l2", l2_section(l2))
        .section("meter", meter::keys(meter))
        .section("inbound", inbound::keys(inbound))
        .section("migration", migration::keys(migration.as_ref()))
        .section("vcpu", vcpu::slice_keys(*vcpu))
        .section("watchdog", watchdog::keys(*watchdog))
        .sections("worker", workers.iter().map(worker))
        .sections("network", networks.iter().map(network::keys))
        .sections("port", ports.iter().map(port))
        .sections("uplink", uplinks.iter().map(uplink))
}

fn l2_section(config: &L2Config) -> Keys {
    let L2Config { ageing } = config;
    let default = L2Config::default();
    Keys::default().changed(
        "ageing_s",
        integer(ageing.as_secs()),
        integer(default.ageing.as_secs()),
    )
}

fn worker(config: &WorkerConfig) -> Keys {
    let WorkerConfig { core, poll } = config;
    let default = WorkerConfig::default();
    Keys::default().given("core", core.map(integer)).changed(
        "poll_us",
        micros(*poll),
        micros(default.poll),
    )
}

fn port(config: &PortConfig, for_all: &Permissions) -> Keys {
    let PortConfig {
        name,
        socket,
        mode,
        network,
        tagged,
        permissions,
        mac,
        ips,
        allow_router,
        allow_dhcp_server,
        allow_mac_takeover,
        isolate,
        queue_pairs,
        mtu,
        queue_bytes,
        storm_pps,
        limit,
        worker,
        inbound_weight,
        offload,
        vcpu,
    } = config;
    let default = PortConfig::new(name, socket);
    let unguarded = ips.is_empty();
    let keys = Keys::default()
        .set("name", &**name)
        .set("socket", socket.display().to_string())
        .changed("mode", mode.name(), SocketMode::default().name());
    network::carried_keys(keys, network.as_ref(), tagged)
        .given("mac", mac.map(|mac| mac.to_string()))
        .given("ips", texts(ips))
        .changed("allow_router", *allow_router, unguarded)
        .changed("allow_dhcp_server", *allow_dhcp_server, unguarded)
        .changed("allow_mac_takeover", *allow_mac_takeover, false)
        .changed("isolate", *isolate, default.isolate)
        .changed("queue_pairs", integer(*queue_pairs), integer(default.queue_pairs))
        .changed("mtu", integer(*mtu), integer(network::default_mtu(config.networks())))
        .changed("queue_bytes", integer(*queue_bytes), integer(default.queue_bytes))
        .changed("storm_pps", integer(*storm_pps), integer(default.storm_pps))
        .changed("worker", integer(*worker), integer(default.worker))
        .changed("inbound_weight", integer(*inbound_weight), integer(default.inbound_weight))
        .section("permissions", permissions::keys(permissions, for_all))
        .section("limit", limit::keys(limit))
        .section("offload", offload::keys(offload))
        .section("vcpu", vcpu.as_ref().map_or_else(Keys::default, vcpu::keys))
}

fn uplink(config: &UplinkConfig) -> Keys {
    let UplinkConfig {
        name,
        kind,
        device,
        network,
        tagged,
        storm_pps,
        multicast_pps,
        gateway_macs,
        worker,
        queue,
    } = config;
    let default = UplinkConfig::new(name, *kind, device);
    let keys =
        Keys::default().set("name", &**name).set("kind", kind.name()).set("device", &**device);
    network::carried_keys(keys, network.as_ref(), tagged)
        .changed("storm_pps", integer(*storm_pps), integer(default.storm_pps))
        .changed("multicast_pps", integer(*multicast_pps), integer(default.multicast_pps))
        .given("gateway_macs", texts(gateway_macs))
        .changed("worker", integer(*worker), integer(default.worker))
        .section("queue", queue::keys(queue))
}

/// Each value as it is written in text.
fn texts<T: ToString>(values: &[T]) -> Option<Vec<String>> {
    (!values.is_empty()).then(|| values.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toml::Value;

    use super::super::UplinkKind;
    use super::super::parse::{L2_KEYS, PORT_KEYS, ROOT_KEYS, UPLINK_KEYS, WORKER_KEYS};
    use super::*;

    /// Every key, none of them with its default.
    const FULL: &str = include_str!("tests/full.toml");

    fn parse(text: &str) -> Config {
        Config::parse(text, Path::new("f.toml")).unwrap()
    }

    #[test]
    fn a_configuration_is_written_as_a_file_that_says_the_same() {
        let off = "watchdog = { stall_ms = 0 }\n[[port]]\nname = \"vm1\"\nsocket = \"/tmp/s\"\n\
                   ips = [\"10.0.0.2\"]\n";
        for text in [FULL, off] {
            let config = parse(text);
            let written = toml::to_string(&config).unwrap();
            assert_eq!(parse(&written), config, "{written}");
        }
    }

    #[test]
    fn every_key_is_written() {
        let written: Table = toml::to_string(&parse(FULL)).unwrap().parse().unwrap();
        let has = |section: &Value, keys: &[&str]| {
            let table = section.as_table().expect("a section");
            for key in keys {
                // Only a port without an address of its own may take others', and only sockets of ours have permissions.
                let other_port = ["allow_mac_takeover", "permissions"].contains(key);
                assert!(table.contains_key(*key) || other_port, "{key}");
            }
        };
        has(&Value::Table(written.clone()), ROOT_KEYS);
        has(&written["l2"], L2_KEYS);
        has(&written["meter"], meter::KEYS);
        has(&written["inbound"], inbound::KEYS);
        has(&written["vcpu"], vcpu::KEYS);
        has(&written["watchdog"], watchdog::KEYS);
        has(&written["worker"][0], WORKER_KEYS);
        has(&written["network"][0], network::KEYS);
        has(&written["port"][0], PORT_KEYS);
        has(&written["port"][0]["offload"], offload::KEYS);
        has(&written["port"][0]["limit"], limit::KEYS);
        has(&written["uplink"][0], UPLINK_KEYS);
        has(&written["uplink"][0]["queue"], queue::KEYS);
        has(&written["permissions"], permissions::KEYS);
        has(&written["port"][1]["permissions"], permissions::KEYS);
        assert_eq!(written["port"][1]["allow_mac_takeover"].as_bool(), Some(true));
    }

    #[test]
    fn defaults_are_left_out() {
        let config = Config {
            uplinks: vec![UplinkConfig::new("up0", UplinkKind::Tap, "fw0")],
            ..Config::default()
        };
        let written = toml::to_string(&config).unwrap();
        let expected = "[[worker]]\n[[uplink]]\nname = \"up0\"\nkind = \"tap\"\ndevice = \"fw0\"\n";
        assert_eq!(written.parse::<Table>().unwrap(), expected.parse().unwrap());
        assert_eq!(parse(&written), config);
    }
}
