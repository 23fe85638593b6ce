//! Connections that the guest forwards for hosts behind it.

use std::net::{Ipv4Addr, Ipv6Addr};

use floodway_core::offload::{Config, LocalFlows};
use floodway_switch::testing::frames::{mac, tcp};
use floodway_switch::testing::wait_until;
use floodway_switch::vhost::features;
use floodway_wire::tcp::Flags;
use floodway_wire::vnet::VnetHdr;

use crate::netns;
use crate::scene::{Scene, with_scene};

/// Port of the SYNs that are made here.
const PORT: u16 = 777;

/// A SYN to the host leaves the guest, from the address that ends in `last`, with so many hops left.
fn send_syn(scene: &Scene, v6: bool, last: u8, hops: u8) {
    let mut syn = tcp(1, 2, v6);
    if v6 {
        let address = |last| Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, last).into();
        (syn.ip.src, syn.ip.dst) = (address(last.into()), address(1));
    } else {
        let address = |last| Ipv4Addr::new(10, 9, 0, last).into();
        (syn.ip.src, syn.ip.dst) = (address(last), address(1));
    }
    (syn.src_port, syn.dst_port) = (PORT + u16::from(hops), 9);
    (syn.flags, syn.acknowledgment, syn.ip.ttl) = (Flags::SYN, 0, hops);
    assert!(scene.vm.guest().send(0, &VnetHdr::default(), &syn.build(&[])));
}

/// The reason that is shown of the flow from that address with so many hops left.
fn reason(scene: &Scene, v6: bool, last: u8, hops: u8) -> String {
    let port = PORT + u16::from(hops);
    let guest =
        if v6 { format!("[fd00:9::{last:x}]:{port}") } else { format!("10.9.0.{last}:{port}") };
    let find = || scene.flows().into_iter().find(|flow| flow.guest == guest);
    wait_until("the flow to be known", || find().is_some());
    find().expect("a flow").reason
}

fn config(local: LocalFlows) -> Config {
    Config { transmit: true, local, ..Config::default() }
}

#[test]
fn a_router_s_connections_are_not_offloaded_and_its_own_are() {
    with_scene(features::offered(1), config(LocalFlows::Own), |scene| {
        netns::ip(&format!("link set dev fwo0 address {}", mac(2)));
        for v6 in [false, true] {
            // It claims its address when it looks for the host's.
            let _connection = scene.connection(v6);
            let cases =
                [(2, 64, "opened"), (2, 63, "opened"), (77, 63, "forwarded"), (78, 128, "opened")];
            for (last, hops, expected) in cases {
                send_syn(scene, v6, last, hops);
                assert_eq!(reason(scene, v6, last, hops), expected, "{v6} {last} {hops}");
            }
        }
        assert_eq!(scene.counter("excluded_forwarded"), 2);
    });
}

#[test]
fn a_port_may_want_the_connections_of_a_router_offloaded() {
    with_scene(features::offered(1), config(LocalFlows::Any), |scene| {
        netns::ip(&format!("link set dev fwo0 address {}", mac(2)));
        let _connection = scene.connection(false);
        send_syn(scene, false, 77, 63);
        assert_eq!(reason(scene, false, 77, 63), "opened");
    });
}
