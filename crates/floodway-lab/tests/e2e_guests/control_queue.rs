//! The control queue of virtio-net, which ends in QEMU: what of it needs the switch, and what must not disturb it.

use std::time::Duration;

use serde_json::json;

use crate::scene::{Guest, Scene, wait_until};

const MOVED: &str = "52:54:00:00:00:77";
const FIRST: Guest = Guest { name: "first", mac: "52:54:00:00:00:01", keys: "", queue_pairs: 2 };
const SECOND: Guest = Guest { name: "second", mac: "52:54:00:00:00:02", keys: "", queue_pairs: 1 };
/// `VIRTIO_NET_F_*` that the guest has negotiated: `GUEST_ANNOUNCE`, `CTRL_VQ`, `CTRL_RX`, `CTRL_VLAN`, `MQ`, `CTRL_MAC_ADDR`.
const FEATURES: [usize; 6] = [21, 17, 18, 19, 22, 23];

/// Two VMs that reach each other, the first with two queue pairs.
fn scene(name: &str) -> Scene {
    let scene = Scene::start(name, "", &[FIRST, SECOND]);
    scene.address(0, "10.0.0.1/24");
    scene.address(1, "10.0.0.2/24");
    scene.ping(0, "10.0.0.2");
    scene
}

/// The driver has been refused nothing.
fn assert_no_refusal(scene: &Scene) {
    let log = scene.run(0, "dmesg");
    let refused: Vec<_> = log.lines().filter(|line| line.contains("Failed to set")).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn a_linux_guest_negotiates_its_control_queue() {
    let scene = scene("features");
    let bits = scene.run(0, "cat /sys/class/net/eth0/device/features");
    for feature in FEATURES {
        assert_eq!(bits.as_bytes()[feature], b'1', "feature {feature} of {bits}");
    }
}

#[test]
fn queue_pairs_are_hot_plugged() {
    let scene = scene("pairs");
    let enabled = || scene.port("first")["queue_pairs_enabled"].as_u64().unwrap();
    for pairs in [2, 1, 2] {
        scene.run(0, &format!("ethtool -L eth0 combined {pairs}"));
        wait_until("the switch hears of it", || enabled() == pairs);
        scene.ping(1, "10.0.0.1");
    }
    // Connections by both: each of many picks its pair.
    scene.serve(0, &[7; 100_000]);
    for _ in 0..8 {
        assert!(scene.get(1, "10.0.0.1", "data") == [7; 100_000]);
    }
    assert_no_refusal(&scene);
}

#[test]
fn receive_modes_and_addresses_change() {
    let scene = scene("modes");
    for mode in ["promisc", "allmulticast"] {
        for state in ["on", "off"] {
            scene.run(0, &format!("ip link set eth0 {mode} {state}"));
            scene.ping(1, "10.0.0.1");
        }
    }
    // Group and VLAN filters.
    scene.run(0, "ip maddress add 33:33:00:00:00:99 dev eth0");
    scene.run(0, "ip link add link eth0 name eth0.5 type vlan id 5");
    scene.run(0, "ip link set eth0.5 up");
    scene.run(0, "ip link set eth0.5 down");
    scene.run(0, &format!("ip link set eth0 address {MOVED}"));
    let now = scene.run(0, "cat /sys/class/net/eth0/address");
    assert_eq!(now.trim(), MOVED);
    scene.run(1, "ip neighbour flush dev eth0");
    scene.ping(0, "10.0.0.2");
    scene.ping(1, "10.0.0.1");
    let known = scene.run(1, "ip neighbour show 10.0.0.1");
    assert!(known.contains(MOVED), "{known}");
    assert_no_refusal(&scene);
}

#[test]
fn a_guest_announces_itself_when_qemu_asks() {
    let scene = scene("announce");
    // A gratuitous ARP request: 10.0.0.1 asks for itself.
    let filter = "arp[14:4] = 0x0a000001 and arp[24:4] = 0x0a000001";
    let words = ["tcpdump", "-Z", "root", "-n", "-c", "1", "-i", "eth0", filter];
    let heard = scene.agent(1).spawn(&words).unwrap();
    let round = json!({ "initial": 50, "max": 550, "rounds": 1, "step": 100 });
    wait_until("the announcement is heard", || {
        scene.vms[0].qmp("announce-self", &round).unwrap();
        let exit = scene.agent(1).wait(&heard, Duration::from_secs(1)).unwrap();
        assert!(exit.is_none_or(|exit| exit.code == Some(0)), "{exit:?}");
        exit.is_some()
    });
    assert_no_refusal(&scene);
}
