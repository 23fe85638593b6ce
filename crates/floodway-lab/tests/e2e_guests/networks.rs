//! The same addresses in two networks, a trunk to a VLAN-aware Linux bridge, isolation.

use crate::scene::{Guest, Scene, wait_until};

const NETWORKS: &str = "[[network]]\nname = \"red\"\nvid = 10\n[[network]]\nname = \"blue\"\nvid = 20\n\
    [[network]]\nname = \"hermits\"\nvid = 30\nisolate = true\n";
const ONE: &str = "52:54:00:00:00:01";
const TWO: &str = "52:54:00:00:00:02";
const ROUTER: &str = "52:54:00:00:00:03";
const RED: &str = "network = \"red\"";
const BLUE: &str = "network = \"blue\"";
const HERMITS: &str = "network = \"hermits\"";
const TRUNK: &str = "tagged = [\"red\", \"blue\"]";
/// Many GSO packets.
const DATA: usize = 2_000_000;

fn guest(name: &'static str, mac: &'static str, keys: &'static str) -> Guest {
    Guest { name, mac, keys, queue_pairs: 1 }
}

fn data(seed: u8) -> Vec<u8> {
    (0..DATA as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ seed).collect()
}

#[test]
fn two_networks_have_the_same_mac_and_ip_addresses() {
    let guests = [
        guest("red-1", ONE, RED),
        guest("red-2", TWO, RED),
        guest("blue-1", ONE, BLUE),
        guest("blue-2", TWO, BLUE),
    ];
    let scene = Scene::start("twins", NETWORKS, &guests);
    for vm in 0..4 {
        scene.address(vm, ["10.0.0.1/24", "10.0.0.2/24"][vm % 2]);
    }
    scene.serve(1, &data(1));
    scene.serve(3, &data(2));
    // In turn, so that each look-up could hit what the other network has taught.
    for _ in 0..3 {
        assert_eq!(scene.get(0, "10.0.0.2", "name"), b"red-2");
        assert_eq!(scene.get(2, "10.0.0.2", "name"), b"blue-2");
    }
    assert!(scene.get(0, "10.0.0.2", "data") == data(1));
    assert!(scene.get(2, "10.0.0.2", "data") == data(2));
    let status = scene.switch.status().unwrap();
    let entries = status["l2"].as_array().unwrap();
    for (network, name) in [("red", "red-1"), ("blue", "blue-1")] {
        let is_it = |entry: &&serde_json::Value| entry["mac"] == ONE && entry["network"] == network;
        assert_eq!(entries.iter().find(is_it).expect("learned")["port"], name);
    }
    for reason in ["spoofed_mac", "mac_in_use", "hairpin"] {
        assert_eq!(scene.drops(reason), 0.0, "{reason}");
    }
}

/// Makes `eth0` of a VM the trunk of a bridge that knows VLANs, which has an address in each.
fn make_router(scene: &Scene, vm: usize) {
    for words in [
        "ip link add br0 type bridge vlan_filtering 1 vlan_default_pvid 0",
        "ip link set eth0 master br0",
        "bridge vlan add dev eth0 vid 10",
        "bridge vlan add dev eth0 vid 20",
        "bridge vlan add dev br0 vid 10 self",
        "bridge vlan add dev br0 vid 20 self",
        "ip link add link br0 name br0.10 type vlan id 10",
        "ip link add link br0 name br0.20 type vlan id 20",
        "ip address add 10.10.0.254/24 dev br0.10",
        "ip address add 10.20.0.254/24 dev br0.20",
        "ip link set eth0 up",
        "ip link set br0 up",
        "ip link set br0.10 up",
        "ip link set br0.20 up",
        "sysctl -w net.ipv4.ip_forward=1",
    ] {
        scene.run(vm, words);
    }
}

#[test]
fn a_trunk_leads_to_a_vlan_aware_linux_bridge() {
    let guests = [guest("red", ONE, RED), guest("blue", ONE, BLUE), guest("router", ROUTER, TRUNK)];
    let scene = Scene::start("trunk", NETWORKS, &guests);
    scene.address(0, "10.10.0.1/24");
    scene.address(1, "10.20.0.1/24");
    make_router(&scene, 2);
    scene.ping(0, "10.10.0.254");
    scene.ping(1, "10.20.0.254");
    // The bridge has one address in both VLANs: it heard it with both tags.
    let learned = scene.run(2, "bridge fdb show br br0 dynamic");
    for vlan in ["vlan 10", "vlan 20"] {
        let is_it = |line: &str| line.starts_with(ONE) && line.contains(vlan);
        assert!(learned.lines().any(is_it), "{vlan}: {learned}");
    }
    // TCP with all offloads to the router, and through it into the other network.
    scene.serve(2, &data(3));
    scene.serve(1, &data(4));
    assert!(scene.get(0, "10.10.0.254", "data") == data(3));
    scene.run(0, "ip route add default via 10.10.0.254");
    scene.run(1, "ip route add default via 10.20.0.254");
    assert!(scene.get(0, "10.20.0.1", "data") == data(4), "routed");
    assert_eq!(scene.drops("bad_offload"), 0.0);

    // A VLAN that is none of the trunk's goes nowhere, and is counted.
    scene.run(2, "bridge vlan add dev eth0 vid 30");
    scene.run(2, "bridge vlan add dev br0 vid 30 self");
    scene.run(2, "ip link add link br0 name br0.30 type vlan id 30");
    scene.run(2, "ip address add 10.30.0.254/24 dev br0.30");
    let before = scene.drops("vlan_filtered");
    scene.run(2, "ip link set br0.30 up");
    wait_until("frames of a foreign VLAN are counted", || {
        let _ = scene.agent(2).exec(&["arping", "-c", "1", "-w", "1", "-I", "br0.30", "10.30.0.1"]);
        scene.drops("vlan_filtered") > before
    });
    // And so does a tag that a guest on an access port invents.
    let before = scene.drops("vlan_filtered");
    scene.run(0, "ip link add link eth0 name eth0.20 type vlan id 20");
    scene.run(0, "ip address add 10.20.0.9/24 dev eth0.20");
    scene.run(0, "ip link set eth0.20 up");
    wait_until("frames with an invented tag are counted", || {
        let ping =
            scene.agent(0).exec(&["arping", "-c", "1", "-w", "1", "-I", "eth0.20", "10.20.0.1"]);
        assert!(ping.is_err(), "a guest in red is heard in blue");
        scene.drops("vlan_filtered") > before
    });
}

#[test]
fn ports_of_an_isolated_network_reach_the_uplink_and_not_each_other() {
    let uplink = format!(
        "{NETWORKS}[[uplink]]\nname = \"host\"\nkind = \"tap\"\ndevice = \"fw0\"\nnetwork = \"hermits\"\n"
    );
    let guests = [guest("hermit-1", ONE, HERMITS), guest("hermit-2", TWO, HERMITS)];
    let scene = Scene::start("hermits", &uplink, &guests);
    scene.host.add_address("fw0", "10.0.0.254/24").unwrap();
    scene.address(0, "10.0.0.1/24");
    scene.address(1, "10.0.0.2/24");
    for vm in 0..2 {
        scene.ping(vm, "10.0.0.254");
    }
    // The address is known, so that frames go to the other's port alone.
    scene.run(0, &format!("ip neighbour replace 10.0.0.2 lladdr {TWO} dev eth0"));
    let before = scene.drops("isolated");
    wait_until("frames to the other are counted", || {
        let ping = scene.agent(0).exec(&["ping", "-c", "1", "-W", "1", "10.0.0.2"]);
        assert!(ping.is_err(), "one is answered by the other");
        scene.drops("isolated") >= before + 3.0
    });
    let heard = scene.run(1, "ip neighbour show");
    assert!(!heard.contains("10.0.0.1 "), "broadcasts neither: {heard}");
    scene.ping(0, "10.0.0.254");
}
