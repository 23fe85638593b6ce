//! Trunk ports: guests in several networks, by VLAN tags.

use floodway_switch::api::edit;
use floodway_switch::config::{NetworkConfig, PortConfig};
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tagged, tcp, verified};
use floodway_switch::testing::{GuestConfig, TxShape, wait_until};
use floodway_switch::vhost::features as f;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{MacAddr, ethernet};

use crate::net::{Net, Vm, port};

const RED: u16 = 10;
const BLUE: u16 = 20;
const GREEN: u16 = 30;
/// The trunk port's VM.
const T: u8 = 9;

fn network(vid: u16) -> NetworkConfig {
    NetworkConfig::new(format!("network{vid}"), vid)
}

/// An access port of VM `n` whose guest has the address of VM `as_vm`.
fn access(vid: u16, n: u8, as_vm: u8) -> PortConfig {
    PortConfig { network: Some(network(vid)), mac: Some(mac(as_vm)), ..port(n) }
}

/// A trunk port of VM `n` with the address of VM 9.
fn trunk(n: u8, untagged: Option<u16>) -> PortConfig {
    PortConfig {
        network: untagged.map(network),
        tagged: vec![network(RED), network(BLUE)],
        mac: Some(mac(T)),
        ..port(n)
    }
}

fn all() -> Vec<NetworkConfig> {
    [RED, BLUE, GREEN].map(network).into()
}

fn broadcast(src: u8, number: u32) -> Vec<u8> {
    let mut frame = numbered(src, 0, number, 64);
    frame[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    frame
}

fn boot<const N: usize>(net: &Net, ports: [u8; N]) -> [Vm; N] {
    ports.map(|n| net.boot(n, GuestConfig::default()))
}

/// Access ports 1 (red), 2 (blue) and 3 (green), whose guests have the same address, and trunk 4, where green has no tags.
fn scene() -> (Net, [Vm; 4]) {
    let ports = [access(RED, 1, 1), access(BLUE, 2, 1), access(GREEN, 3, 1), trunk(4, Some(GREEN))];
    let net = Net::start_with(ports.into(), all());
    let vms = boot(&net, [1, 2, 3, 4]);
    (net, vms)
}

/// A frame as the guest of the trunk has it.
fn on_trunk(vid: u16, frame: &[u8]) -> Vec<u8> {
    if vid == GREEN { frame.to_vec() } else { tagged(vid, frame) }
}

#[test]
fn a_guest_on_a_trunk_is_in_each_of_its_networks_by_its_tags() {
    let (net, [a, b, c, mut t]) = scene();
    let mut number = 0;
    let mut next = || {
        number += 1;
        number
    };
    let mut others = [(RED, a), (BLUE, b), (GREEN, c)];
    for _ in 0..3 {
        for (vid, vm) in &mut others {
            let (there, back) = (numbered(1, T, next(), 100), numbered(T, 1, next(), 100));
            vm.send(&there);
            t.expect(&on_trunk(*vid, &there));
            t.send(&on_trunk(*vid, &back));
            vm.expect(&back);
            // The next frame of everybody else is another one.
            let (there, back) = (broadcast(1, next()), broadcast(T, next()));
            vm.send(&there);
            t.expect(&on_trunk(*vid, &there));
            t.send(&on_trunk(*vid, &back));
            vm.expect(&back);
        }
    }
    let priority = numbered(T, 1, next(), 100);
    t.send(&tagged(0xe000, &priority));
    others[2].1.expect(&priority);
    let status = net.status();
    let places = |vid: u16| {
        let there = status.l2.iter().filter(|entry| entry.network == format!("network{vid}"));
        there.map(|entry| (entry.mac.clone(), entry.port.clone())).collect::<Vec<_>>()
    };
    for (vid, name) in [(RED, "vm1"), (BLUE, "vm2"), (GREEN, "vm3")] {
        let expected = [(mac(1).to_string(), name.into()), (mac(T).to_string(), "vm4".into())];
        assert_eq!(places(vid), expected);
    }
    for n in 1..=4 {
        assert_eq!((net.port(n).rx().dropped(), net.port(n).tx().dropped()), (0, 0), "{n}");
    }
    let (port, tags) = (net.port(4), ["network10".to_owned(), "network20".to_owned()]);
    assert_eq!((&*port.network, &*port.tagged), ("network30", &tags[..]));
}

#[test]
fn tags_of_no_network_of_the_trunk_are_dropped_and_counted() {
    let (net, [mut a, _b, _c, mut t]) = scene();
    let frame = |number| numbered(T, 1, number, 100);
    let mut service = tagged(RED, &frame(0));
    service[12..14].copy_from_slice(&ethernet::TYPE_QINQ.to_be_bytes());
    let twice = tagged(RED, &tagged(RED, &frame(1)));
    // The network without tags has none.
    for bad in [service, twice, tagged(GREEN, &frame(2)), tagged(40, &frame(3))] {
        t.send(&bad);
    }
    // A tag that is not whole.
    t.send(&tagged(RED, &frame(4))[..17]);
    wait_until("the drops", || net.tx_drops(4, "vlan_filtered") == 5);
    // A tag does not hide a wrong source.
    t.send(&tagged(RED, &numbered(7, 1, 5, 100)));
    wait_until("the drop", || net.tx_drops(4, "spoofed_mac") == 1);
    let good = frame(6);
    t.send(&tagged(RED, &good));
    a.expect(&good);
    assert_eq!(net.port(4).tx().dropped(), 6);
}

#[test]
fn a_trunk_without_an_untagged_network_takes_and_gives_tagged_frames_only() {
    let ports = vec![access(RED, 1, 1), trunk(2, None), PortConfig { mac: None, ..port(3) }];
    let net = Net::start_with(ports, all());
    let [mut a, mut t, mut other] = boot(&net, [1, 2, 3]);
    t.send(&numbered(T, 1, 0, 100));
    t.send(&broadcast(T, 1));
    t.send(&tagged(0, &broadcast(T, 2)));
    wait_until("the drops", || net.tx_drops(2, "vlan_filtered") == 3);
    // Nobody is in the default network but port 3.
    other.send(&broadcast(3, 3));
    wait_until("the drop", || net.tx_drops(3, "no_destination") == 1);
    let (there, back) = (numbered(T, 1, 4, 100), numbered(1, T, 5, 100));
    t.send(&tagged(RED, &there));
    a.expect(&there);
    a.send(&back);
    t.expect(&tagged(RED, &back));
}

#[test]
fn two_trunks_keep_their_networks_apart() {
    let other = PortConfig { mac: Some(mac(8)), ..trunk(2, None) };
    let net = Net::start_with(vec![trunk(1, Some(GREEN)), other, access(BLUE, 3, 3)], all());
    let [mut s, mut t, mut b] = boot(&net, [1, 2, 3]);
    for (number, vid) in [(0, RED), (1, BLUE)] {
        let frame = tagged(vid, &numbered(T, 8, number, 100));
        s.send(&frame);
        t.expect(&frame);
    }
    let all_blue = broadcast(T, 3);
    s.send(&tagged(BLUE, &all_blue));
    t.expect(&tagged(BLUE, &all_blue));
    b.expect(&all_blue);
    assert_eq!(net.port(1).tx().dropped(), 0);
}

/// What a guest leaves undone is at other offsets with a tag than without.
#[test]
fn offloads_move_with_the_tag() {
    let lacking = [
        0,
        f::GUEST_TSO4 | f::GUEST_TSO6 | f::GUEST_ECN,
        f::GUEST_CSUM | f::GUEST_TSO4 | f::GUEST_TSO6 | f::GUEST_ECN,
    ];
    for (missing, tx_shape) in
        lacking.into_iter().zip([TxShape::Single, TxShape::Indirect(17), TxShape::Pieces(3)])
    {
        let net = Net::start_with(vec![access(RED, 1, 1), trunk(2, None)], all());
        let features = f::offered(1) & !missing;
        let config = GuestConfig { features, tx_shape, ..GuestConfig::default() };
        let [mut a, mut t] = [1, 2].map(|n| net.boot(n, config.clone()));
        for v6 in [false, true] {
            let payload = pattern(7, 20_000);
            let (up, down) = (tcp(T, 1, v6), tcp(1, T, v6));
            let bytes = up.build_partial(&payload);
            let with_tag = tagged(RED, &bytes);
            t.send_with(&partial(&with_tag, 1400), &with_tag);
            check_arrival(&mut a, missing, &bytes, &payload);
            let bytes = down.build_partial(&payload);
            a.send_with(&partial(&bytes, 1400), &bytes);
            check_arrival(&mut t, missing, &tagged(RED, &bytes), &payload);
            let short = up.build_partial(&payload[..99]);
            let with_tag = tagged(RED, &short);
            t.send_with(&partial(&with_tag, 0), &with_tag);
            check_arrival(&mut a, missing, &short, &payload[..99]);
        }
        assert_eq!((net.port(1).tx().dropped(), net.port(2).tx().dropped()), (0, 0));
    }
}

/// The next frames for a guest are `sent`, whole if it takes that.
fn check_arrival(vm: &mut Vm, missing: u64, sent: &[u8], payload: &[u8]) {
    let gso_size = if payload.len() > 1400 { 1400 } else { 0 };
    if missing == 0 || gso_size == 0 && missing & f::GUEST_CSUM == 0 {
        let (vnet, bytes) = vm.recv();
        assert_eq!(bytes, sent);
        assert_eq!(VnetHdr { num_buffers: 0, ..vnet }, partial(sent, gso_size));
        return;
    }
    let mut got: Vec<u8> = Vec::new();
    while got.len() < payload.len() {
        let (vnet, mut frame) = vm.recv();
        if vnet.needs_csum() {
            assert_eq!(VnetHdr { num_buffers: 0, ..vnet }, partial(&frame, 0));
            floodway_wire::checksum::complete(&mut frame, vnet.csum_start, vnet.csum_offset)
                .unwrap();
        }
        assert!(!vnet.is_gso());
        assert_eq!(frame[12..14], sent[12..14], "as tagged as what was sent");
        let meta = verified(&frame);
        got.extend(&frame[usize::from(meta.payload_offset)..]);
    }
    assert_eq!(got, payload);
}

#[test]
fn a_checksum_that_begins_in_the_tag_is_refused() {
    let (net, [_a, _b, _c, mut t]) = scene();
    for csum_start in 14..18 {
        let frame = tagged(RED, &numbered(T, 1, 0, 100));
        let vnet = VnetHdr { csum_start, csum_offset: 2, ..partial_udp() };
        t.send_with(&vnet, &frame);
    }
    wait_until("the drops", || net.tx_drops(4, "bad_offload") == 4);
    assert_eq!(net.port(1).rx().packets, 0);
}

fn partial_udp() -> VnetHdr {
    VnetHdr { flags: floodway_wire::vnet::F_NEEDS_CSUM, ..VnetHdr::default() }
}

#[test]
fn each_network_of_a_trunk_has_a_storm_limit_of_its_own() {
    let limited = PortConfig { storm_pps: 3, ..trunk(4, Some(GREEN)) };
    let ports = vec![access(RED, 1, 1), access(BLUE, 2, 2), access(GREEN, 3, 3), limited];
    let net = Net::start_with(ports, all());
    let [_a, mut b, mut c, mut t] = boot(&net, [1, 2, 3, 4]);
    // More than a second's worth, whatever the time between them.
    for number in 0..20_000 {
        t.send(&tagged(RED, &broadcast(T, number)));
        if net_is_limited(&net, number) {
            break;
        }
    }
    wait_until("a drop", || net.tx_drops(4, "storm") > 0);
    let (blue, green) = (broadcast(T, 1), broadcast(T, 2));
    t.send(&tagged(BLUE, &blue));
    b.expect(&blue);
    t.send(&green);
    c.expect(&green);
}

fn net_is_limited(net: &Net, number: u32) -> bool {
    number % 16 == 15 && net.tx_drops(4, "storm") > 0
}

#[test]
fn isolation_is_that_of_the_frame_s_network() {
    let isolated = NetworkConfig { isolate: true, ..network(BLUE) };
    let of_blue = |config: PortConfig| PortConfig { network: Some(isolated.clone()), ..config };
    let trunk = PortConfig { tagged: vec![network(RED), isolated.clone()], ..trunk(3, None) };
    let ports = vec![access(RED, 1, 1), of_blue(access(BLUE, 2, 2)), trunk];
    let net = Net::start_with(ports, vec![network(RED), isolated]);
    let [mut a, _b, mut t] = boot(&net, [1, 2, 3]);
    t.send(&tagged(BLUE, &numbered(T, 2, 0, 100)));
    t.send(&tagged(BLUE, &broadcast(T, 1)));
    wait_until("the drops", || {
        net.tx_drops(3, "isolated") == 1 && net.tx_drops(3, "no_destination") == 1
    });
    let open = numbered(T, 1, 2, 100);
    t.send(&tagged(RED, &open));
    a.expect(&open);
    assert_eq!(net.port(2).rx().packets, 0);
}

#[test]
fn a_port_becomes_a_trunk_while_the_switch_runs() {
    let ports = vec![access(RED, 1, 1), access(GREEN, 2, T)];
    let net = Net::start_with(ports, all());
    let [mut a, mut t] = boot(&net, [1, 2]);
    let operator = net.switch.as_ref().unwrap().operator();
    let set = |keys: serde_json::Value| {
        let keys = keys.as_object().unwrap().clone();
        operator.reconfigure(&|config| edit::patch(config, edit::Kind::Port, "vm2", &keys), false)
    };
    assert!(set(serde_json::json!({ "tagged": ["network99"] })).is_err());
    assert!(set(serde_json::json!({ "tagged": ["network30"] })).is_err());
    let plan = set(serde_json::json!({ "tagged": ["network10", "network20"] })).unwrap();
    let plan = plan.to_string();
    assert!(plan.contains("tagged = default -> [\"network10\", \"network20\"]"), "{plan}");
    t.reconnect(&net);
    let there = numbered(T, 1, 1, 100);
    t.send(&tagged(RED, &there));
    a.expect(&there);
    set(serde_json::json!({ "tagged": null })).unwrap();
    t.reconnect(&net);
    t.send(&tagged(RED, &there));
    wait_until("the drop", || net.tx_drops(2, "vlan_filtered") == 1);
}
