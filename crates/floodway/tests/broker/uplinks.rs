//! Uplinks whose devices the broker holds. Needs root and ip(8).

use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::Duration;

use floodway_switch::api::edit::Kind;
use floodway_switch::testing::{wait, wait_until};
use serde_json::json;

use crate::changes::keys;
use crate::scene::{Scene, Vm, descriptors, exchange};

/// Runs `body` in an empty network namespace, as do the switches that it starts.
pub fn in_namespace(body: impl FnOnce() + Send) {
    let thread = || {
        // SAFETY: takes no pointers; changes the namespace of this thread only.
        let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        let error = std::io::Error::last_os_error();
        assert_eq!(
            rc, 0,
            "this test needs a network namespace of its own (run it as root): {error}"
        );
        body();
    };
    thread::scope(|scope| {
        if let Err(panic) = scope.spawn(thread).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// The kernel removes a TAP when its last descriptor is closed, which may be after the answer to a request.
fn wait_until_gone(device: &str) {
    wait_until(&format!("{device} to be gone"), || {
        try_ip(&format!("link show dev {device}")).is_none()
    });
}

/// Runs ip(8); returns what it printed, or `None` if it failed.
fn try_ip(arguments: &str) -> Option<String> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("this test needs ip(8), from Debian's package iproute2");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn ip(arguments: &str) -> String {
    try_ip(arguments).unwrap_or_else(|| panic!("ip {arguments} failed"))
}

pub fn uplink(kind: &str, device: &str) -> String {
    format!("[[uplink]]\nname = \"net\"\nkind = \"{kind}\"\ndevice = \"{device}\"\n")
}

/// Lets the host broadcast `text` until `vm` has received it.
fn assert_hears_host(vm: &mut Vm, text: &str) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_broadcast(true).unwrap();
    wait_until("a broadcast of the host", || {
        // Fails while the interface has no address.
        let _ = socket.send_to(text.as_bytes(), "10.77.0.255:4000");
        std::iter::from_fn(|| vm.guest.recv(0)).any(|(_, frame)| frame.ends_with(text.as_bytes()))
    });
}

#[test]
fn a_tap_device_outlives_its_data_plane_with_its_address() {
    in_namespace(|| {
        let scene = Scene::start_with(&uplink("tap", "fwt0"));
        ip("addr add 10.77.0.1/24 dev fwt0");
        let index = ip("-oneline link show dev fwt0").split(':').next().unwrap().to_owned();
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        assert_hears_host(&mut a, "before");
        scene.kill_data_plane();
        let after = ip("-oneline addr show dev fwt0");
        assert!(after.starts_with(&format!("{index}:")), "another device: {after}");
        assert!(after.contains("10.77.0.1/24"), "{after}");
        assert_hears_host(&mut a, "after");
        exchange(&mut a, &mut b, 1);
    });
}

#[test]
fn a_tap_device_that_was_removed_is_made_again() {
    in_namespace(|| {
        let scene = Scene::start_with(&uplink("tap", "fwt0"));
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        for (n, kill) in [(1, false), (2, true), (3, false)] {
            ip("link delete dev fwt0");
            if kill {
                scene.kill_data_plane();
            }
            wait("another device", || try_ip("link show dev fwt0"));
            ip("addr add 10.77.0.1/24 dev fwt0");
            assert_hears_host(&mut a, &format!("device {n}"));
            exchange(&mut a, &mut b, n);
        }
    });
}

#[test]
fn an_interface_that_goes_and_comes_is_found_again_also_across_a_death() {
    let create = || {
        ip("link add fwp0 type veth peer name fwp1");
        ip("link set fwp0 up");
        ip("link set fwp1 up");
        ip("addr add 10.77.0.1/24 dev fwp1");
    };
    in_namespace(|| {
        create();
        let scene = Scene::start_with(&uplink("packet", "fwp0"));
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        assert_hears_host(&mut a, "before");
        scene.kill_data_plane();
        assert_hears_host(&mut a, "after a death");
        ip("link delete dev fwp0");
        create();
        assert_hears_host(&mut a, "after the first return");
        // The data plane starts without it, and gets it when it is there.
        ip("link delete dev fwp0");
        scene.kill_data_plane();
        exchange(&mut a, &mut b, 1);
        create();
        assert_hears_host(&mut a, "after the second return");
    });
}

#[test]
fn addresses_behind_an_uplink_outlive_a_data_plane() {
    in_namespace(|| {
        let scene = Scene::start_with(&uplink("tap", "fwt0"));
        let (mut a, _b) = (scene.boot(1), scene.boot(2));
        let set = |mac: &str| ip(&format!("link set dev fwt0 address {mac}"));
        let knows = |mac: &str| {
            let status = scene.status().unwrap();
            status["l2"]
                .as_array()
                .unwrap()
                .iter()
                .any(|it| it["mac"] == mac && it["port"] == "net")
        };
        let (before, after) = ("02:77:00:00:00:01", "02:77:00:00:00:02");
        set(before);
        ip("addr add 10.77.0.1/24 dev fwt0");
        assert_hears_host(&mut a, "a frame");
        assert!(knows(before));
        // Nobody sends with the first address any more.
        set(after);
        // Addresses are saved once a second.
        thread::sleep(Duration::from_millis(2500));
        for _ in 0..2 {
            scene.kill_data_plane();
            assert!(knows(before));
        }
    });
}

#[test]
fn uplinks_come_change_and_go_while_others_go_on() {
    in_namespace(|| {
        let scene = Scene::start();
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        let say = |words: &str| {
            let output = scene.output(&words.split_whitespace().collect::<Vec<_>>());
            let text = [&*output.stdout, &*output.stderr].concat();
            String::from_utf8(text).unwrap().trim_end().to_owned()
        };
        let plan = say("uplink add net kind=tap device=fwt0");
        assert_eq!(plan, "+ uplink net: device = \"fwt0\", kind = \"tap\"");
        ip("addr add 10.77.0.1/24 dev fwt0");
        assert_hears_host(&mut a, "added");
        exchange(&mut a, &mut b, 1);
        let index = || ip("-oneline link show dev fwt0").split(':').next().unwrap().to_owned();
        let before = index();
        let plan = say("uplink set net queue.limit_bytes=100000");
        assert!(plan.ends_with("(its queue begins anew)"), "{plan}");
        assert_hears_host(&mut a, "changed");
        assert_eq!(index(), before, "the same device");
        assert_eq!(say("uplink set net storm_pps=900"), "~ uplink net: storm_pps = default -> 900");
        scene.kill_data_plane();
        assert_eq!(index(), before, "the same device");
        assert_hears_host(&mut a, "after a death");
        let error = say("uplink add other kind=packet device=nowhere");
        assert!(error.contains("uplink \"other\"") && error.contains("nowhere"), "{error}");
        assert_hears_host(&mut b, "after what cannot be");
        say("uplink set net device=fwt1");
        wait_until_gone("fwt0");
        ip("addr add 10.77.0.1/24 dev fwt1");
        assert_hears_host(&mut a, "another device");
        assert_eq!(say("uplink del net"), "- uplink net");
        wait_until_gone("fwt1");
        exchange(&mut a, &mut b, 2);
        let status = scene.status().unwrap();
        assert_eq!(status["uplinks"], serde_json::json!([]));
        assert!(status["l2"].as_array().unwrap().iter().all(|it| it["port"] != "net"));
    });
}

#[test]
fn uplinks_that_came_and_went_leave_nothing_behind() {
    in_namespace(|| {
        let scene = Scene::start();
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        let cycle = |_| {
            let client = scene.client();
            let net = keys(json!({ "kind": "tap", "device": "fwt0" }));
            client.put(Kind::Uplink, "net", &net, false).unwrap();
            let rate = keys(json!({ "queue": { "rate_mbit": 100 } }));
            client.patch(Kind::Uplink, "net", &rate, false).unwrap();
            client.delete(Kind::Uplink, "net", false).unwrap();
            wait_until_gone("fwt0");
        };
        cycle(0);
        let open = || {
            let data_plane = std::fs::read_dir(format!("/proc/{}/fd", scene.data_plane()));
            (descriptors(&scene.broker), data_plane.unwrap().count())
        };
        let before = open();
        (1..20).for_each(cycle);
        wait_until("everything to be let go", || {
            let (broker, data_plane) = open();
            broker <= before.0 + 2 && data_plane <= before.1 + 2
        });
        exchange(&mut a, &mut b, 1);
    });
}
