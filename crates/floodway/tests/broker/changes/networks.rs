//! Networks behind a broker.

use floodway_switch::api::edit::Kind;
use floodway_switch::config::{NetworkConfig, PortConfig};
use floodway_switch::testing::frames::{mac, numbered};
use floodway_switch::testing::wait_until;
use serde_json::json;

use super::keys;
use crate::scene::{Scene, Vm, exchange};

#[test]
fn a_port_that_changes_its_network_is_apart_also_from_the_next_data_plane_on() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    let set = || scene.client().patch(Kind::Port, "vm2", &keys(json!({ "network": "red" })), false);
    let unknown = set().unwrap_err().to_string();
    assert!(unknown.contains("there is no such network"), "{unknown}");
    scene.change(|config| config.networks.push(NetworkConfig::new("red", 10))).unwrap();
    let plan = set().unwrap().to_string();
    assert!(plan.starts_with("~ port vm2: network = default -> \"red\""), "{plan}");
    wait_until("the front-end to be disconnected", || b.frontend.is_closed());
    b = scene.boot(2);
    // Another one has its address now, in the network where it was.
    let twin = PortConfig { mac: Some(mac(2)), ..scene.new_port(3) };
    scene.change(|config| config.ports.push(twin)).unwrap();
    let mut c = scene.boot(3);
    c.n = 2;
    let apart = |a: &mut _, c: &mut _, b: &mut Vm, number| {
        exchange(a, c, number);
        b.send(&numbered(2, 1, number, 700));
        wait_until("nobody there", || {
            let port = &scene.json()["ports"][1];
            assert_eq!((&port["name"], &port["network"]), (&"vm2".into(), &"red".into()));
            assert_eq!(port["queues"][0]["rx"]["packets"], 0);
            port["queues"][0]["tx"]["drops"]["no_destination"].as_u64() >= Some(u64::from(number))
        });
    };
    apart(&mut a, &mut c, &mut b, 1);
    scene.signal_data_plane(libc::SIGKILL);
    wait_until("the third port", || scene.json()["ports"][2]["state"] == "running");
    apart(&mut a, &mut c, &mut b, 2);
    assert_eq!(scene.data_planes_configuration(), scene.configuration());
}
