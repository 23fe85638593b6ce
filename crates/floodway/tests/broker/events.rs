//! `floodway events` of a switch of two processes: what guests, operators and a crash lead to.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use floodway_switch::testing::frames::{mac, numbered};
use floodway_switch::testing::wait_until;
use serde_json::Value;

use crate::scene::{Scene, Vm, exchange, signal};
use crate::uplinks::{in_namespace, ip, uplink};

/// A command that follows events, and what it prints. Killed when the test is over.
pub struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    pub fn start(scene: &Scene, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
        command.args(["events", "--follow", "--json"]).args(words);
        command.env("FLOODWAY_CONTROL", scene.path("control.sock")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next event of that kind.
    pub fn expect(&mut self, kind: &str) -> Value {
        loop {
            let line = self.lines.next().expect("it goes on").unwrap();
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == kind {
                return event;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kept(scene: &Scene, words: &[&str]) -> Vec<Value> {
    let output = scene.output(&[&["events", "--json"], words].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_follower_hears_of_guests_and_one_of_a_port_of_no_other() {
    let scene = Scene::start();
    let (mut all, mut of_vm2) =
        (Follower::start(&scene, &[]), Follower::start(&scene, &["--port", "vm2"]));
    assert_eq!(all.expect("switch_started")["ports"], 2);
    let _a = scene.boot(1);
    let connected = all.expect("port_connected");
    assert_eq!(
        (&connected["port"], &connected["pid"]),
        (&"vm1".into(), &std::process::id().into())
    );
    assert_eq!(connected["severity"], "info");
    assert_eq!(all.expect("guest_started")["port"], "vm1");
    let b = scene.boot(2);
    // The first that this one hears of is its own port's.
    let first: Value = serde_json::from_str(&of_vm2.lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((&first["event"], &first["port"]), (&"port_connected".into(), &"vm2".into()));

    drop(b);
    let gone = of_vm2.expect("port_disconnected");
    assert_eq!((&gone["port"], &gone["reason"]), (&"vm2".into(), &Value::Null));
}

#[test]
fn a_follower_hears_of_drops_and_of_what_operators_change() {
    let scene = Scene::start();
    let (mut all, mut a) = (Follower::start(&scene, &[]), scene.boot(1));
    let mut spoofed = numbered(1, 2, 99, 60);
    spoofed[6..12].copy_from_slice(&mac(9).0);
    a.send(&spoofed);
    let drops = all.expect("drops_began");
    assert_eq!((&drops["port"], &drops["direction"]), (&"vm1".into(), &"tx".into()));
    assert_eq!(drops["reason"], "spoofed_mac");

    assert!(scene.output(&["drain", "vm1"]).status.success());
    assert_eq!(all.expect("drain_began")["port"], "vm1");
    assert!(scene.output(&["offload", "vm1", "--transmit", "off"]).status.success());
    assert_eq!(all.expect("offload_changed")["transmit"], false);
    assert!(scene.output(&["port", "del", "vm1"]).status.success());
    let changes = all.expect("config_applied")["changes"].clone();
    assert_eq!(changes, "- port vm1");
}

/// Stops the guest's rings as a VMM does whose VM has moved away, and ends the connection.
fn leave(mut vm: Vm) {
    for index in [0, 1] {
        vm.frontend.get_vring_base(index).expect("the ring stops");
    }
}

#[test]
fn a_follower_hears_of_a_guest_that_has_moved_and_of_what_is_refused() {
    // Ports without addresses of their own.
    let port = |n| format!("[[port]]\nname = \"vm{n}\"\nsocket = \"vm{n}.sock\"\nstorm_pps = 0\n");
    let scene = Scene::start_with(&[3, 4].map(port).concat());
    let (mut a, mut c, mut d) = (scene.boot(1), scene.boot(3), scene.boot(4));
    exchange(&mut c, &mut a, 0);
    leave(c);
    let mut follower = Follower::start(&scene, &[]);
    assert_eq!(follower.expect("port_disconnected")["port"], "vm3");
    // As the guest does at its new place.
    d.send(&numbered(3, 1, 1, 100));
    let moved = follower.expect("guest_migrated");
    assert_eq!((&moved["port"], &moved["severity"]), (&"vm3".into(), &"info".into()));

    assert!(d.frontend.set_vring_enable(99, true).is_err());
    let refused = follower.expect("port_refused");
    assert_eq!(refused["port"], "vm4");
    assert!(
        refused["reason"].as_str().is_some_and(|reason| reason.starts_with("request ")),
        "{refused}"
    );
}

#[test]
fn a_follower_stays_when_the_data_plane_is_replaced() {
    let scene = Scene::start();
    let _vm = (scene.boot(1), scene.boot(2));
    wait_until("both guests", || {
        let events = kept(&scene, &[]);
        events.iter().filter(|event| event["event"] == "guest_started").count() == 2
    });
    let mut follower = Follower::start(&scene, &[]);
    let before = follower.expect("guest_started")["id"].clone();
    scene.kill_data_plane();
    let lost = follower.expect("lost");
    assert_eq!((&lost["count"], &lost["severity"]), (&Value::Null, &"warning".into()));
    let restarted = follower.expect("data_plane_restarted");
    assert_eq!((&restarted["restarts"], &restarted["severity"]), (&1.into(), &"error".into()));
    assert!(restarted["reason"].as_str().is_some_and(|reason| reason.contains("9")), "{restarted}");
    // Who asks later, and knows only a number of before, gets the same.
    let events = kept(&scene, &["--since", before.as_str().unwrap()]);
    assert_eq!(events[0]["event"], "lost");
    assert!(events.contains(&restarted), "{events:?}");
}

#[test]
fn a_follower_of_an_uplink_hears_when_its_device_goes_and_comes() {
    let create = || {
        ip("link add fwp0 type veth peer name fwp1");
        ip("link set fwp0 up");
        ip("link set fwp1 up");
    };
    in_namespace(|| {
        create();
        let scene = Scene::start_with(&uplink("packet", "fwp0"));
        let mut follower = Follower::start(&scene, &["--port", "net"]);
        ip("link delete dev fwp0");
        let down = follower.expect("uplink_down");
        assert_eq!((&down["uplink"], &down["device"]), (&"net".into(), &"fwp0".into()));
        assert!(down["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{down}");
        create();
        assert_eq!(follower.expect("uplink_up")["severity"], "info");
    });
}

#[test]
fn a_data_plane_that_starts_without_an_uplink_says_so() {
    let create = || {
        ip("link add fwp0 type veth peer name fwp1");
        ip("link set fwp0 up");
        ip("link set fwp1 up");
    };
    in_namespace(|| {
        create();
        let scene = Scene::start_with(&uplink("packet", "fwp0"));
        let mut follower = Follower::start(&scene, &["--port", "net"]);
        ip("link delete dev fwp0");
        follower.expect("uplink_down");
        signal(scene.data_plane(), libc::SIGKILL);
        let down = follower.expect("uplink_down");
        assert_eq!(down["reason"], "the broker has no device yet");
        create();
        follower.expect("uplink_up");
    });
}

#[test]
fn history_is_printed_as_lines_and_a_wrong_port_or_number_is_named() {
    let scene = Scene::start();
    let output = scene.output(&["events"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let started = text.lines().find(|line| line.contains("switch_started")).expect("a start");
    assert!(started.contains("info") && started.contains("moves frames: ports 2"), "{started}");
    let error = |words: &[&str]| {
        let output = scene.output(&[&["events"], words].concat());
        (String::from_utf8(output.stderr).unwrap(), output.status.code())
    };
    let unknown = "floodway: no port or uplink \"vm7\"; there are vm1, vm2\n".to_owned();
    assert_eq!(error(&["--port", "vm7"]), (unknown, Some(1)));
    let (said, code) = error(&["--since", "7"]);
    assert!(said.contains("must be the id of an earlier one") && code == Some(2), "{said}");
}
