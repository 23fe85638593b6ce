//! Counters of mechanisms across deaths of the data plane. Needs root and ip(8).

use std::collections::BTreeMap;

use floodway_switch::testing::frames::tcp;
use floodway_switch::testing::wait_until;
use floodway_wire::tcp::Flags;
use serde_json::Value;

use crate::scene::{Scene, Vm, exchange};
use crate::uplinks::{in_namespace, uplink};

/// VM 2 is offloaded, and the link is divided.
const MECHANISMS: &str =
    "[port.offload]\ntransmit = true\nreceive = true\n[inbound]\ncapacity_mbit = 1000\n";

/// What the mechanisms have counted, by name.
fn counted(scene: &Scene) -> BTreeMap<String, u64> {
    let status = scene.status().unwrap();
    let division = scene.output(&["inbound", "--json"]).stdout;
    let division: Value = serde_json::from_slice(&division).unwrap();
    let mut all = BTreeMap::new();
    let mut note = |prefix: &str, counters: &Value| {
        let counters = counters.as_object().unwrap().iter();
        let numbers = counters.filter_map(|(name, value)| Some((name, value.as_u64()?)));
        all.extend(numbers.map(|(name, value)| (format!("{prefix} {name}"), value)));
    };
    note("offload", &status["ports"][1]["offload"]["counters"]);
    note("inbound", &division["ports"][1]["counters"]);
    note("meter", &status["uplinks"][0]["egress"]["meter"]);
    for pair in status["traffic"].as_array().unwrap() {
        note(&format!("{} to {}", pair["from"], pair["to"]), pair);
    }
    // Known now, not counted.
    all.remove("meter pairs");
    all
}

/// VM 2 opens a connection through the uplink, and goes on with one that nobody knows.
fn speak(vm: &mut Vm, number: u16) {
    let mut segment = tcp(vm.n, 9, false);
    (segment.src_port, segment.flags) = (20_000 + number, Flags::SYN);
    segment.options.clear();
    vm.send(&segment.build(b""));
    (segment.src_port, segment.flags) = (30_000 + number, Flags::ACK);
    vm.send(&segment.build(b"data"));
}

#[test]
fn counters_of_mechanisms_outlive_a_data_plane_and_never_go_back() {
    in_namespace(|| {
        let scene = Scene::start_with(&format!("{MECHANISMS}{}", uplink("tap", "fwt0")));
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        let mut before = BTreeMap::new();
        for number in 1..5 {
            exchange(&mut a, &mut b, number.into());
            speak(&mut b, number);
            let grown = [
                "offload flows_opened",
                "inbound clamped",
                "meter high_packets",
                "\"vm2\" to \"net\" packets",
                "\"vm1\" to \"vm2\" packets",
            ];
            let is_counted = |all: &BTreeMap<_, _>| {
                let grows = |name: &&str| all.get(*name) > before.get(*name).or(Some(&0));
                grown.iter().all(grows)
            };
            wait_until("this round's frames to be counted", || is_counted(&counted(&scene)));
            before = counted(&scene);
            assert!(before["offload flows_opened"] >= number.into(), "{before:?}");
            scene.kill_data_plane();
            let after = counted(&scene);
            let gone_back = |(name, value): &(&String, &u64)| after.get(*name) < Some(*value);
            let gone_back: Vec<_> = before.iter().filter(gone_back).collect();
            assert!(gone_back.is_empty(), "{gone_back:?} were counted before, and now {after:?}");
            // Nobody knows the flows any more.
            assert_eq!(after["offload flows_closed"], after["offload flows_opened"]);
        }
    });
}
