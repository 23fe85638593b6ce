//! What files are accepted, and the exact words for those that are not.

mod networks;

use std::path::Path;
use std::time::Duration;

use floodway_core::congestion::Algorithm;
use floodway_core::egress::qdisc;
use floodway_core::offload::BufferPolicy;

use super::inbound::KEYS as INBOUND_KEYS;
use super::meter::KEYS as METER_KEYS;
use super::offload::KEYS as OFFLOAD_KEYS;
use super::parse::{L2_KEYS, PORT_KEYS, ROOT_KEYS, UPLINK_KEYS, WORKER_KEYS};
use super::queue::KEYS as QUEUE_KEYS;
use super::{
    Config, ConfigError, MeterConfig, NetworkConfig, Policy, QueueConfig, Slices, SocketMode,
    UplinkKind, VcpuConfig, Vm,
};

/// Every key, none of them with its default.
const FULL: &str = include_str!("tests/full.toml");

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("f.toml"))
}

fn error(text: &str) -> String {
    match parse(text) {
        Ok(config) => panic!("accepted {text:?} as {config:?}"),
        Err(error) => error.to_string(),
    }
}

/// A port section with `extra` on line 4, behind the keys that it must have.
fn port_with(extra: &str) -> String {
    format!("[[port]]\nname = \"vm1\"\nsocket = \"/tmp/vm1.sock\"\n{extra}\n")
}

fn uplink_with(device: &str) -> String {
    format!("[[uplink]]\nname = \"up0\"\nkind = \"tap\"\ndevice = \"{device}\"\n")
}

#[test]
fn every_key_reaches_the_configuration() {
    let config = parse(FULL).unwrap();
    assert_eq!(config.control, Path::new("/tmp/c.sock"));
    assert_eq!(config.l2.ageing, Duration::from_secs(60));
    assert_eq!(config.workers.len(), 2);
    assert_eq!(config.workers[0].core, Some(1));
    assert_eq!(config.workers[0].poll, Duration::ZERO);
    assert_eq!(config.workers[1].core, None);
    assert_eq!(config.workers[1].poll, Duration::from_micros(50));
    let port = &config.ports[0];
    assert_eq!(port.name, "vm1");
    assert_eq!(port.socket, Path::new("/tmp/vm1.sock"));
    assert_eq!(port.mode, SocketMode::Client);
    let red = NetworkConfig { isolate: true, mtu: Some(9000), ..NetworkConfig::new("red", 10) };
    let networks = [red.clone(), NetworkConfig::new("default", 1)];
    assert_eq!(config.networks, networks);
    assert_eq!((port.network.as_ref(), &*port.tagged), (Some(&red), &networks[1..]));
    assert_eq!(config.ports[1].network.as_ref(), Some(&networks[1]));
    assert_eq!(config.uplinks[0].network, Some(red));
    assert_eq!(config.uplinks[0].tagged, networks[1..]);
    assert_eq!(port.mac, "52:54:00:00:00:01".parse().ok());
    assert_eq!(port.ips, [[10, 0, 0, 2].into(), "fd00::2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!((port.queue_pairs, port.mtu, port.queue_bytes), (16, 65535, 1_000_000));
    assert_eq!((port.storm_pps, port.worker), (0, 1));
    let offload = floodway_core::offload::Config {
        transmit: true,
        early_ack: floodway_core::offload::EarlyAck::WithoutModule,
        early_ack_delay: Duration::from_millis(120),
        early_ack_min_rtt: Duration::from_millis(1),
        peer_timeout: Duration::from_secs(600),
        receive: true,
        congestion: Algorithm::Vegas,
        initial_window: 64,
        local: floodway_core::offload::LocalFlows::Any,
        buffer: BufferPolicy::Fair,
        budget: 65_536,
        receive_budget: 1_000_000,
        max_flows: 7,
        idle: Duration::from_secs(30),
        min_rto: Duration::from_millis(5),
    };
    assert_eq!(port.offload, offload);
}

#[test]
fn every_key_of_uplinks_and_meter_reaches_the_configuration() {
    let config = parse(FULL).unwrap();
    let uplink = &config.uplinks[0];
    assert_eq!((uplink.name.as_str(), uplink.device.as_str()), ("up0", "eth0"));
    assert_eq!((uplink.kind, uplink.worker), (UplinkKind::Packet, 1));
    assert_eq!((uplink.storm_pps, uplink.multicast_pps), (20_000, 0));
    let us = Duration::from_micros;
    let (target, interval, ce_threshold) = (us(500), us(9000), Some(us(60)));
    let queue = QueueConfig {
        discipline: qdisc::Config {
            kind: qdisc::Kind::Codel,
            limit_packets: 100,
            limit_bytes: 100_000,
            codel: qdisc::CodelConfig { target, interval, mtu: 1514, ecn: false, ce_threshold },
            fq: qdisc::FqConfig { flows: 16, quantum: 300 },
            high_percent: 60,
        },
        segment: Some(false),
        rate: Some(1_000_000_000),
        device_bytes: Some(9000),
    };
    assert_eq!(uplink.queue, queue);
    let meter = MeterConfig {
        enabled: false,
        rate: Some(5_000_000),
        burst: 40_000,
        recheck: us(50_000),
        idle: Duration::from_secs(3),
        max_pairs: 9,
        high_pairs: 3,
        high_dscp: 34,
        low_dscp: 8,
    };
    assert_eq!(config.meter, meter);
}

#[test]
fn defaults_are_the_documented_ones() {
    let config = parse(&port_with("")).unwrap();
    assert_eq!(config.control, Path::new("/run/floodway/control.sock"));
    assert_eq!(config.l2.ageing, Duration::from_secs(300));
    assert_eq!(config.workers.len(), 1);
    assert_eq!((config.workers[0].core, config.workers[0].poll.as_micros()), (None, 50));
    let port = &config.ports[0];
    assert_eq!((port.mode, port.mac, port.ips.len()), (SocketMode::Server, None, 0));
    assert_eq!((port.queue_pairs, port.mtu, port.queue_bytes), (1, 1500, 4_194_304));
    assert_eq!((port.storm_pps, port.worker), (1000, 0));
    assert!(port.allow_router && port.allow_dhcp_server && !port.allow_mac_takeover);
    assert!(!port.offload.transmit && !port.offload.receive);
    assert_eq!(config.meter, MeterConfig::default());
    assert!(config.meter.enabled);
    assert_eq!(
        (config.meter.high_dscp, config.meter.low_dscp, config.meter.burst),
        (46, 0, 30_000)
    );
    let uplink = parse(&uplink_with("fw0")).unwrap().uplinks.remove(0);
    assert_eq!((&uplink.queue, uplink.storm_pps), (&QueueConfig::default(), 10_000));
    assert_eq!(uplink.multicast_pps, 100_000);
    assert!(uplink.gateway_macs.is_empty());
    assert_eq!((uplink.queue.discipline.kind.name(), uplink.queue.segment), ("fq_codel", None));
}

/// Who is checked for addresses is no router and no DHCP server either, unless the configuration says so.
#[test]
fn guards_come_with_addresses_and_can_be_set() {
    let port = |keys: &str| parse(&port_with(keys)).unwrap().ports.remove(0);
    let allowed = |keys: &str| {
        let port = port(keys);
        (port.allow_router, port.allow_dhcp_server)
    };
    assert_eq!(allowed(""), (true, true));
    let ips = "ips = [\"10.0.0.2\"]";
    assert_eq!(allowed(ips), (false, false));
    assert_eq!(allowed(&format!("{ips}\nallow_router = true")), (true, false));
    assert_eq!(allowed(&format!("{ips}\nallow_dhcp_server = true")), (false, true));
    assert_eq!(allowed("allow_router = false"), (false, true));
    assert!(port("allow_mac_takeover = true").allow_mac_takeover);
    let both = error(&port_with("allow_mac_takeover = true\nmac = \"52:54:00:00:00:01\""));
    let expected = "f.toml:4: port[0] \"vm1\".allow_mac_takeover = true: has no effect with mac, which \
                    is the guest's only address; remove one of them";
    assert_eq!(both, expected);
}

#[test]
fn addresses_of_gateways_are_unicast_and_nobody_elses() {
    let uplink = |macs: &str| format!("{}\ngateway_macs = {macs}", uplink_with("fw0"));
    let parsed = parse(&uplink("[\"52:54:00:00:00:09\"]")).unwrap().uplinks.remove(0);
    assert_eq!(parsed.gateway_macs, ["52:54:00:00:00:09".parse().unwrap()]);
    let fault = |text: &str| error(text).split_once("gateway_macs").unwrap().1.to_owned();
    let group =
        "[0] = \"01:00:00:00:00:09\": must be a unicast MAC address like \"52:54:00:00:00:01\"";
    assert_eq!(fault(&uplink("[\"01:00:00:00:00:09\"]")), group);
    let port = port_with("mac = \"52:54:00:00:00:09\"");
    let taken = fault(&format!("{port}\n{}", uplink("[\"52:54:00:00:00:09\"]")));
    assert!(taken.ends_with("already used by port[0] \"vm1\"; choose another one"), "{taken}");
}

#[test]
fn faults_of_one_port_name_key_value_and_fix() {
    let integer = "must be an integer from";
    let cases = [
        ("queue_pairs = 17", format!("queue_pairs = 17: {integer} 1 to 16")),
        ("queue_pairs = -1", format!("queue_pairs = -1: {integer} 1 to 16")),
        ("queue_pairs = \"two\"", format!("queue_pairs = \"two\": {integer} 1 to 16")),
        ("mtu = 67", format!("mtu = 67: {integer} 68 to 65535")),
        ("mtu = 65536", format!("mtu = 65536: {integer} 68 to 65535")),
        ("mtu = 1500.0", format!("mtu = 1500.0: {integer} 68 to 65535")),
        ("queue_bytes = 0", format!("queue_bytes = 0: {integer} 131072 to 1073741824")),
        ("storm_pps = 4294967296", format!("storm_pps = 4294967296: {integer} 0 to 4294967295")),
        (
            "worker = 1",
            "worker = 1: there is only worker 0; name one of them or add a [[worker]] section".into(),
        ),
        (
            "mode = \"servr\"",
            "mode = \"servr\": must be \"server\" or \"client\"; did you mean \"server\"?".into(),
        ),
        ("mode = 1", "mode = 1: must be a string in quotes".into()),
        (
            "mac = \"52:54:00:00:01\"",
            "mac = \"52:54:00:00:01\": must be six hexadecimal octets like \"52:54:00:00:00:01\"".into(),
        ),
        (
            "mac = \"53:54:00:00:00:01\"",
            "mac = \"53:54:00:00:00:01\": must be a unicast address; its first octet must be even, \
             as in \"52:54:00:00:00:01\""
                .into(),
        ),
        (
            "ips = [\"10.0.0.2\", \"10.0.0.3/24\"]",
            "ips[1] = \"10.0.0.3/24\": must be a unicast IPv4 or IPv6 address like \"10.0.0.2\" or \
             \"fd00::2\", without prefix length"
                .into(),
        ),
        (
            "ips = [\"ff02::1\"]",
            "ips[0] = \"ff02::1\": must be a unicast IPv4 or IPv6 address like \"10.0.0.2\" or \
             \"fd00::2\", without prefix length"
                .into(),
        ),
        (
            "ips = []",
            "ips = []: must be a list of at least one string, or left out".into(),
        ),
        ("queue_pair = 2", "queue_pair: unknown key; did you mean \"queue_pairs\"?".into()),
        ("offload = true", "offload: must be one section: write [port.offload]".into()),
        (
            "vlan = 2",
            "vlan: unknown key; remove it; the keys here are name, socket, mode, network, tagged, permissions, mac, ips, \
             allow_router, allow_dhcp_server, allow_mac_takeover, isolate, queue_pairs, mtu, queue_bytes, storm_pps, worker, inbound_weight, limit, offload, vcpu"
                .into(),
        ),
    ];
    for (extra, expected) in cases {
        assert_eq!(error(&port_with(extra)), format!("f.toml:4: port[0] \"vm1\".{expected}"));
    }
}

#[test]
fn a_path_that_is_too_long_for_a_socket_is_a_fault() {
    let long = format!("socket = \"/{}\"", "x".repeat(107));
    let too_long = error(&format!("[[port]]\nname = \"vm1\"\n{long}\n"));
    assert!(too_long.starts_with("f.toml:3: port[0] \"vm1\".socket = \"/xxxx"), "{too_long}");
    let fix = "...: is 108 bytes long; the system takes at most 107, choose a shorter path";
    assert!(too_long.ends_with(fix), "{too_long}");
}

#[test]
fn a_switch_may_start_without_ports() {
    assert_eq!(Config::parse("", Path::new("f.toml")).unwrap(), Config::default());
}

#[test]
fn faults_of_the_other_sections() {
    let port = port_with("");
    let cases = [
        ("[l2]\nageing_s = 0", "2: l2.ageing_s = 0: must be an integer from 1 to 1000000"),
        ("[l2]\nageing = 3", "2: l2.ageing: unknown key; did you mean \"ageing_s\"?"),
        ("[[l2]]\nageing_s = 3", "1: l2: must be one section: write [l2]"),
        ("[port]\nname = \"a\"", "1: port: must be a list of sections: write [[port]]"),
        ("port = [1]", "1: port: must be a list of sections: write [[port]]"),
        ("[[ports]]", "1: ports: unknown key; did you mean \"port\"?"),
        ("[[worker]]\ncore = 1024", "2: worker[0].core = 1024: must be an integer from 0 to 1023"),
        (
            "[[worker]]\npoll_us = 1000001",
            "2: worker[0].poll_us = 1000001: must be an integer from 0 to 1000000",
        ),
        ("[[port]]", "1: port[0].name: missing; add name = \"vm1\""),
        (
            "[[port]]\nname = \"vm7\"",
            "1: port[0] \"vm7\".socket: missing; add socket = \"/run/floodway/vm7.sock\"",
        ),
        (
            "[[port]]\nname = \"vm 7\"",
            "2: port[0] \"vm 7\".name = \"vm 7\": must be 1 to 64 letters, digits, \"-\", \"_\" or \".\"",
        ),
        (
            "[[port]]\nname = \"vm7\"\nsocket = \"\"",
            "3: port[0] \"vm7\".socket = \"\": must be the path of a socket file",
        ),
        (
            "[[uplink]]\nname = \"up0\"",
            "1: uplink[0] \"up0\".kind: missing; add kind = \"tap\" or kind = \"packet\"",
        ),
        (
            "[[uplink]]\nname = \"up0\"\nkind = \"tun\"",
            "3: uplink[0] \"up0\".kind = \"tun\": must be \"tap\" or \"packet\"",
        ),
        (
            "[[uplink]]\nname = \"up0\"\nkind = \"tap\"",
            "1: uplink[0] \"up0\".device: missing; add device = \"fw0\"",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text), format!("f.toml:{expected}"));
    }
    assert_eq!(
        error(&format!("control = \"/tmp/vm1.sock\"\n{port}")),
        "f.toml:4: port[0] \"vm1\".socket = \"/tmp/vm1.sock\": already used by control; choose another one"
    );
}

#[test]
fn broken_toml_is_one_line_with_its_place() {
    let message = error("[l2]\nageing_s = = 3\n");
    assert!(message.starts_with("f.toml:2: not valid TOML: "), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn duplicates_name_the_other_owner() {
    let first = port_with("mac = \"52:54:00:00:00:01\"");
    let second = |keys: &str| format!("{first}[[port]]\n{keys}\n");
    let cases = [
        (
            second("name = \"vm1\""),
            "f.toml:6: port[1] \"vm1\".name = \"vm1\": already used by port[0] \"vm1\"; choose another one",
        ),
        (
            second("name = \"vm2\"\nsocket = \"/tmp/vm1.sock\""),
            "f.toml:7: port[1] \"vm2\".socket = \"/tmp/vm1.sock\": already used by port[0] \"vm1\"; choose another one",
        ),
        (
            second("name = \"vm2\"\nsocket = \"/tmp/vm2.sock\"\nmac = \"52:54:00:00:00:01\""),
            "f.toml:8: port[1] \"vm2\".mac = \"52:54:00:00:00:01\": already used by port[0] \"vm1\"; choose another one",
        ),
        (
            format!("{first}[[uplink]]\nname = \"vm1\"\n"),
            "f.toml:6: uplink[0] \"vm1\".name = \"vm1\": already used by port[0] \"vm1\"; choose another one",
        ),
        (
            uplink_with("fw0") + "[[uplink]]\nname = \"up1\"\nkind = \"tap\"\ndevice = \"fw0\"\n",
            "f.toml:8: uplink[1] \"up1\".device = \"fw0\": already used by uplink[0] \"up0\"; choose another one",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error(&text), expected);
    }
}

#[test]
fn device_names_are_those_of_the_kernel() {
    for good in ["eth0", "fw0", "a23456789012345"] {
        assert!(parse(&uplink_with(good)).is_ok(), "{good}");
    }
    for bad in ["", "a234567890123456", "a/b", "a:b", "a b", "fw%d", ".", ".."] {
        let message = error(&uplink_with(bad));
        assert!(
            message
                .starts_with(&format!("f.toml:4: uplink[0] \"up0\".device = \"{bad}\": must be")),
            "{message}"
        );
    }
}

/// Keys that are sections: a table is right for them.
const SUB_SECTIONS: [&str; 10] = [
    "permissions",
    "l2",
    "meter",
    "inbound",
    "limit",
    "migration",
    "offload",
    "queue",
    "vcpu",
    "watchdog",
];

/// A key that is allowed but never read would be silently ignored: give each a table, which none takes.
#[test]
fn every_allowed_key_is_read() {
    let sections = [
        ("", "", ROOT_KEYS),
        ("[l2]", "l2.", L2_KEYS),
        ("[[worker]]", "worker[0].", WORKER_KEYS),
        ("[[port]]", "port[0]", PORT_KEYS),
        ("[[uplink]]", "uplink[0]", UPLINK_KEYS),
    ];
    for (header, path, keys) in sections {
        for key in keys.iter().filter(|&key| !SUB_SECTIONS.contains(key)) {
            let required = [
                ("name", "\"n1\""),
                ("socket", "\"/tmp/n1.sock\""),
                ("kind", "\"tap\""),
                ("device", "\"fw0\""),
            ];
            let others = required.iter().filter(|(other, _)| other != key && keys.contains(other));
            let others: String =
                others.map(|(other, value)| format!("{other} = {value}\n")).collect();
            let message = error(&format!("{header}\n{key} = {{}}\n{others}"));
            assert!(message.starts_with(&format!("f.toml:2: {path}")), "{message}");
            assert!(message.contains(key), "{message}");
        }
    }
    for key in OFFLOAD_KEYS {
        let message = error(&port_with(&format!("[port.offload]\n{key} = {{}}")));
        let start = format!("f.toml:5: port[0] \"vm1\".offload.{key} = {{}}: must be");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn every_key_of_queue_and_meter_is_read() {
    for key in QUEUE_KEYS {
        let message = error(&(uplink_with("fw0") + &format!("[uplink.queue]\n{key} = {{}}")));
        let start = format!("f.toml:6: uplink[0] \"up0\".queue.{key} = {{}}: must be");
        assert!(message.starts_with(&start), "{message}");
    }
    for key in METER_KEYS {
        let message = error(&format!("[meter]\n{key} = {{}}\n{}", port_with("")));
        assert!(
            message.starts_with(&format!("f.toml:2: meter.{key} = {{}}: must be")),
            "{message}"
        );
    }
}

#[test]
fn a_vm_is_named_by_socket_or_process() {
    let vm = |keys: &str| port_with(&format!("[port.vcpu]\n{keys}"));
    let config = parse(&vm("qmp = \"/run/vm1.qmp\"\npolicy = \"latency\"")).unwrap();
    let expected = VcpuConfig { vm: Vm::Qmp("/run/vm1.qmp".into()), policy: Policy::Latency };
    assert_eq!(config.ports[0].vcpu, Some(expected));
    assert_eq!(config.vcpu, Slices::default());
    let slices =
        "[vcpu]\nlatency_slice_us = 100\nthroughput_slice_us = 100_000\nlook_every_s = 1\n";
    let config = parse(&(slices.to_owned() + &vm("pid = 7\npolicy = \"throughput\""))).unwrap();
    let expected = VcpuConfig { vm: Vm::Pid(7), policy: Policy::Throughput };
    assert_eq!(config.ports[0].vcpu, Some(expected));
    assert_eq!(config.vcpu.of(Policy::Latency), Duration::from_micros(100));
    assert_eq!(config.vcpu.of(Policy::Throughput), Duration::from_millis(100));
    assert_eq!(config.vcpu.look_every, Duration::from_secs(1));
    assert_eq!(parse(&port_with("")).unwrap().ports[0].vcpu, None);
    let cases = [
        (
            "policy = \"latency\"",
            "4: qmp: missing; add qmp = \"/run/vm1.qmp\" (QEMU's -qmp socket) or pid = 1234",
        ),
        ("qmp = \"/q\"", "4: policy: missing; add policy = \"latency\" or policy = \"throughput\""),
        ("pid = 0", "5: pid = 0: must be an integer from 1 to 4194304"),
        ("qmp = \"/q\"\npid = 3", "6: pid = 3: remove it; qmp finds the threads"),
        ("qmp = \"\"", "5: qmp = \"\": must be the path of QEMU's control socket"),
        (
            "pid = 3\npolicy = \"fast\"",
            "6: policy = \"fast\": must be \"latency\" or \"throughput\"",
        ),
    ];
    for (keys, expected) in cases {
        let (line, fault) = expected.split_once(": ").unwrap();
        assert_eq!(error(&vm(keys)), format!("f.toml:{line}: port[0] \"vm1\".vcpu.{fault}"));
    }
    let message = error("[vcpu]\nlatency_slice_us = 99");
    assert_eq!(
        message,
        "f.toml:2: vcpu.latency_slice_us = 99: must be an integer from 100 to 100000"
    );
}

#[test]
fn inbound_rates() {
    let parsed = |text: &str| parse(&format!("[inbound]\n{text}\n{}", port_with(""))).unwrap();
    let config = parsed("capacity_mbit = 950\npolicy = \"fixed\"\nidle_ms = 50").inbound;
    assert_eq!((config.capacity, config.policy.name()), (118_750_000, "fixed"));
    assert_eq!(config.idle, Duration::from_millis(50));
    assert_eq!(parse(&port_with("inbound_weight = 9")).unwrap().ports[0].inbound_weight, 9);
    assert_eq!(parse(&port_with("")).unwrap().inbound.capacity, 0, "off");
    for key in INBOUND_KEYS {
        let capacity = if *key == "capacity_mbit" { "" } else { "capacity_mbit = 1\n" };
        let message = error(&format!("[inbound]\n{capacity}{key} = {{}}\n{}", port_with("")));
        assert!(message.contains(&format!("inbound.{key} = {{}}: must be")), "{message}");
    }
    let integer = "must be an integer from";
    let cases = [
        ("capacity_mbit = 0", format!("capacity_mbit = 0: {integer} 1 to 1000000")),
        (
            "policy = \"fixed\"",
            "capacity_mbit: missing; add capacity_mbit = 1000, the rate of the link into this host"
                .into(),
        ),
        ("idle_msec = 1", "idle_msec: unknown key; did you mean \"idle_ms\"?".into()),
    ];
    for (extra, expected) in cases {
        let message = error(&format!("[inbound]\n{extra}\n{}", port_with("")));
        let message = message.split_once(": inbound.").expect("the section").1;
        assert_eq!(message, expected);
    }
    let message =
        error(&format!("[inbound]\ncapacity_mbit = 1\nminimum_kbit = 2000\n{}", port_with("")));
    assert!(
        message.ends_with(
            "1 ports with so much each are more than the capacity of 1 Mbit/s; at most 1000"
        ),
        "{message}"
    );
}

#[test]
fn faults_of_queue_and_meter_name_key_value_and_fix() {
    let integer = "must be an integer from";
    let queue = [
        (
            "discipline = \"fq-codel\"",
            "discipline = \"fq-codel\": must be \"fifo\" or \"codel\" or \"fq_codel\"; did you mean \"fq_codel\"?".to_owned(),
        ),
        ("segment = 1", "segment = 1: must be true or false".into()),
        ("rate_mbit = 0", format!("rate_mbit = 0: {integer} 1 to 1000000")),
        ("device_bytes = -1", format!("device_bytes = -1: {integer} 0 to 1073741824")),
        ("limit_bytes = 65535", format!("limit_bytes = 65535: {integer} 65536 to 1073741824")),
        ("flows = 0", format!("flows = 0: {integer} 1 to 65536")),
        ("target_us = 0", format!("target_us = 0: {integer} 1 to 10000000")),
        ("rate_mbits = 3", "rate_mbits: unknown key; did you mean \"rate_mbit\"?".into()),
    ];
    for (extra, expected) in queue {
        let message = error(&(uplink_with("fw0") + &format!("[uplink.queue]\n{extra}")));
        assert_eq!(message, format!("f.toml:6: uplink[0] \"up0\".queue.{expected}"));
    }
    let other = "must not be the code point of the other class";
    let meter = [
        ("high_dscp = 64", format!("high_dscp = 64: {integer} 0 to 63")),
        ("high_dscp = 0", format!("high_dscp = 0: {other}")),
        ("low_dscp = 46", format!("low_dscp = 46: {other}")),
        ("max_pairs = 0", format!("max_pairs = 0: {integer} 1 to 1048576")),
        ("rate_kbit = 0", format!("rate_kbit = 0: {integer} 1 to 1000000000")),
    ];
    for (extra, expected) in meter {
        let message = error(&format!("[meter]\n{extra}\n{}", port_with("")));
        assert_eq!(message, format!("f.toml:2: meter.{expected}"));
    }
}

#[test]
fn faults_of_an_offload_name_key_value_and_fix() {
    let integer = "must be an integer from";
    let cases = [
        (
            "transmit = 1",
            "transmit = 1: must be true, false, \"module\", \"agentless\" or \"auto\"".to_owned(),
        ),
        (
            "transmit = \"agent\"",
            "transmit = \"agent\": must be true, false, \"module\", \"agentless\" or \"auto\""
                .into(),
        ),
        ("early_ack_delay_ms = 9", format!("early_ack_delay_ms = 9: {integer} 10 to 1000")),
        ("peer_timeout_s = 0", format!("peer_timeout_s = 0: {integer} 10 to 86400")),
        ("receive = \"on\"", "receive = \"on\": must be true or false".into()),
        (
            "congestion = \"cubik\"",
            "congestion = \"cubik\": must be \"reno\" or \"newreno\" or \"vegas\" or \"cubic\" or \
             \"dctcp\"; did you mean \"cubic\"?"
                .into(),
        ),
        ("local = true", "local = true: must be a string in quotes".to_owned()),
        ("local = \"all\"", "local = \"all\": must be \"own\" or \"any\"".into()),
        (
            "buffer = \"best\"",
            "buffer = \"best\": must be \"none\" or \"fair\" or \"prioritised\"".into(),
        ),
        ("initial_window = 0", format!("initial_window = 0: {integer} 1 to 64")),
        ("budget = 65535", format!("budget = 65535: {integer} 65536 to 1073741824")),
        ("receive_budget = -1", format!("receive_budget = -1: {integer} 65536 to 1073741824")),
        ("max_flows = 0", format!("max_flows = 0: {integer} 1 to 4194304")),
        ("idle_s = 0", format!("idle_s = 0: {integer} 1 to 604800")),
        ("min_rto_ms = 10001", format!("min_rto_ms = 10001: {integer} 1 to 10000")),
        ("idle = 3", "idle: unknown key; did you mean \"idle_s\"?".into()),
    ];
    for (extra, expected) in cases {
        let message = error(&port_with(&format!("[port.offload]\n{extra}")));
        assert_eq!(message, format!("f.toml:5: port[0] \"vm1\".offload.{expected}"));
    }
}

#[test]
fn long_values_are_cut_in_messages() {
    let message = error(&port_with(&format!("mode = \"{}\"", "\u{e9}".repeat(5000))));
    assert!(message.len() < 300, "{message}");
    assert!(message.contains("...: must be \"server\""), "{message}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.toml");
    let message = Config::load(&path).unwrap_err().to_string();
    assert!(
        message.starts_with(&format!("{}: cannot read the configuration: ", path.display())),
        "{message}"
    );
}
