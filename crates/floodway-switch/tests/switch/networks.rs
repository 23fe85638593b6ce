//! Networks that do not see each other.

use floodway_switch::api::control::ControlError;
use floodway_switch::api::edit;
use floodway_switch::config::{NetworkConfig, PortConfig};
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tcp};
use floodway_switch::testing::{GuestConfig, wait_until};
use floodway_wire::build::Link;
use floodway_wire::tcp::Flags;
use floodway_wire::{MacAddr, ethernet};

use crate::net::{Net, Vm, port};

const RED: u16 = 10;
const BLUE: u16 = 20;

fn network(vid: u16) -> NetworkConfig {
    NetworkConfig::new(format!("network{vid}"), vid)
}

/// Port `n` with the address of VM `as_vm`.
fn port_in(vid: u16, n: u8, as_vm: u8) -> PortConfig {
    PortConfig { network: Some(network(vid)), mac: Some(mac(as_vm)), ..port(n) }
}

fn broadcast(src: u8, number: u32) -> Vec<u8> {
    let mut frame = numbered(src, 0, number, 64);
    frame[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    frame
}

fn boot<const N: usize>(net: &Net, ports: [u8; N]) -> [Vm; N] {
    ports.map(|n| net.boot(n, GuestConfig::default()))
}

/// Ports 1 and 2 in one network, ports 3 and 4 in another, with the same addresses.
fn twins(learned: bool) -> Net {
    let twin = |vid, n, as_vm| PortConfig {
        mac: (!learned).then(|| mac(as_vm)),
        ..port_in(vid, n, as_vm)
    };
    let ports = [twin(RED, 1, 1), twin(RED, 2, 2), twin(BLUE, 3, 1), twin(BLUE, 4, 2)];
    Net::start_with(ports.into(), vec![network(RED), network(BLUE)])
}

#[test]
fn two_networks_with_the_same_addresses_do_not_see_each_other() {
    for learned in [false, true] {
        let net = twins(learned);
        let [mut a, mut b, mut c, mut d] = boot(&net, [1, 2, 3, 4]);
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        for _ in 0..3 {
            for (from, to) in [(&mut a, &mut b), (&mut c, &mut d)] {
                let (there, back) = (numbered(1, 2, next(), 100), numbered(2, 1, next(), 100));
                from.send(&there);
                to.expect(&there);
                to.send(&back);
                from.expect(&back);
                // Everybody of the network hears it, nobody else does: their next frame is another one.
                let all = broadcast(1, next());
                from.send(&all);
                to.expect(&all);
            }
        }
        let entries = net.status().l2;
        let place = |network: u16, vm: u8| {
            let is_it = |e: &&floodway_switch::api::status::L2Entry| {
                e.mac == mac(vm).to_string() && e.network == format!("network{network}")
            };
            entries.iter().find(is_it).map(|entry| entry.port.clone())
        };
        assert_eq!(place(RED, 1).as_deref(), Some("vm1"));
        assert_eq!(place(BLUE, 1).as_deref(), Some("vm3"));
        for n in 1..=4 {
            assert_eq!((net.port(n).rx().dropped(), net.port(n).tx().dropped()), (0, 0), "{n}");
        }
    }
}

#[test]
fn an_address_of_another_network_is_unknown() {
    let ports = vec![port_in(RED, 1, 1), port_in(BLUE, 2, 2)];
    let net = Net::start_with(ports, vec![network(RED), network(BLUE)]);
    let [mut a, _b] = boot(&net, [1, 2]);
    a.send(&numbered(1, 2, 0, 100));
    a.send(&broadcast(1, 1));
    wait_until("the drops", || net.tx_drops(1, "no_destination") == 2);
    assert_eq!((net.port(2).rx().packets, net.port(2).rx().dropped()), (0, 0));
}

#[test]
fn tags_on_access_ports_are_dropped_and_counted() {
    let net = Net::of(2);
    let [mut a, mut b] = boot(&net, [1, 2]);
    let tagged = |tag_type, tci| {
        let mut segment = tcp(1, 2, false);
        segment.flags = Flags::SYN;
        segment.link = Link::new(mac(2), mac(1));
        segment.link = Link { vlan: Vec::new(), ..segment.link }.tagged(tag_type, tci);
        segment.build(&[])
    };
    for tag_type in [ethernet::TYPE_VLAN, ethernet::TYPE_QINQ, ethernet::TYPE_QINQ_OLD] {
        for tci in [0, 1, RED, 0xe000 | BLUE, 0xfff] {
            a.send(&tagged(tag_type, tci));
        }
    }
    let plain = numbered(1, 2, 1, 100);
    a.send(&plain);
    b.expect(&plain);
    wait_until("the drops", || net.tx_drops(1, "vlan_filtered") == 15);
    assert_eq!(net.port(1).tx().dropped(), 15);
}

#[test]
fn ports_of_an_isolated_network_do_not_reach_each_other() {
    let isolated = NetworkConfig { isolate: true, ..network(RED) };
    let isolated_port = |n| PortConfig { network: Some(isolated.clone()), ..port(n) };
    let ports = vec![isolated_port(1), isolated_port(2), port_in(BLUE, 3, 3), port_in(BLUE, 4, 4)];
    let net = Net::start_with(ports, vec![isolated.clone(), network(BLUE)]);
    let [mut a, _b, mut c, mut d] = boot(&net, [1, 2, 3, 4]);
    a.send(&numbered(1, 2, 0, 100));
    a.send(&broadcast(1, 1));
    wait_until("the drops", || {
        net.tx_drops(1, "isolated") == 1 && net.tx_drops(1, "no_destination") == 1
    });
    let open = numbered(3, 4, 2, 100);
    c.send(&open);
    d.expect(&open);
    assert_eq!((net.port(2).rx().packets, net.port(2).rx().dropped()), (0, 0));
}

#[test]
fn what_is_larger_than_the_network_s_mtu_is_dropped_and_counted() {
    let small = NetworkConfig { mtu: Some(1400), ..network(RED) };
    let of = |network: &NetworkConfig, n| PortConfig {
        network: Some(network.clone()),
        mtu: 9000,
        ..port(n)
    };
    let ports = vec![of(&small, 1), of(&small, 2), of(&network(BLUE), 3), of(&network(BLUE), 4)];
    let net = Net::start_with(ports, vec![small, network(BLUE)]);
    let [mut a, mut b, mut c, mut d] = boot(&net, [1, 2, 3, 4]);
    // UDP of this many bytes makes an IP packet of 28 more.
    let frame = |src, dst, number, ip_len: usize| numbered(src, dst, number, ip_len - 28);
    a.send(&frame(1, 2, 0, 1401));
    let mut all = frame(1, 2, 1, 1401);
    all[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    a.send(&all);
    let segments = tcp(1, 2, false).build_partial(&pattern(1, 8000));
    // 52 bytes of headers before each segment's payload.
    a.send_with(&partial(&segments, 1349), &segments);
    wait_until("the drops", || net.tx_drops(1, "oversize") == 3);
    a.send_with(&partial(&segments, 1348), &segments);
    assert_eq!(b.recv().1, segments);
    let fits = frame(1, 2, 2, 1400);
    a.send(&fits);
    b.expect(&fits);
    let other = frame(3, 4, 3, 1401);
    c.send(&other);
    d.expect(&other);
    assert_eq!(net.port(1).tx().dropped(), 3);
}

#[test]
fn a_port_changes_its_network_while_others_go_on() {
    let ports = vec![port_in(RED, 1, 1), port_in(RED, 2, 2), port_in(BLUE, 3, 2)];
    let net = Net::start_with(ports, vec![network(RED), network(BLUE)]);
    let [mut a, mut b, mut c] = boot(&net, [1, 2, 3]);
    let red = numbered(1, 2, 0, 100);
    a.send(&red);
    b.expect(&red);
    let operator = net.switch.as_ref().unwrap().operator();
    let set = |name: &str| {
        let keys = serde_json::json!({ "network": name });
        let keys = keys.as_object().unwrap().clone();
        operator.reconfigure(&|config| edit::patch(config, edit::Kind::Port, "vm1", &keys), false)
    };
    let unknown = set("network30").unwrap_err();
    assert!(
        matches!(&unknown, ControlError::Invalid(problem) if problem.contains("no such network"))
    );
    let plan = set("network20").unwrap().to_string();
    assert!(plan.starts_with("~ port vm1: network = \"network10\" -> \"network20\""), "{plan}");
    a.reconnect(&net);
    let blue = numbered(1, 2, 1, 100);
    a.send(&blue);
    c.expect(&blue);
    let back = numbered(2, 1, 2, 100);
    c.send(&back);
    a.expect(&back);
    b.send(&numbered(2, 1, 3, 100));
    wait_until("nobody is left", || net.tx_drops(2, "no_destination") == 1);
    assert_eq!(net.port(2).rx().packets, 1);
}
