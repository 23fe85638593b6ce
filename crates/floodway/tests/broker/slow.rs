//! Faults that are staged, and what the page "Why is my VM slow?" says to run: its commands name the cause.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use floodway_switch::testing::frames::{ipv4, mac, numbered};
use floodway_switch::testing::wait_until;
use floodway_wire::build::Link;
use floodway_wire::{MacAddr, arp};

use crate::scene::{Scene, Vm};
use crate::uplinks::{in_namespace, ip};

/// Most commands that a symptom may take.
const MOST: usize = 3;

/// The commands that the page has for a symptom: the first block of shell under its heading, without comments.
fn commands(symptom: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/guide/slow.md");
    let page = fs::read_to_string(path).unwrap();
    let heading = format!("\n## {symptom}\n");
    let (_, section) = page.split_once(&heading).unwrap_or_else(|| panic!("no {heading:?}"));
    let (_, block) = section.split_once("```sh\n").expect("a block of shell");
    let (block, _) = block.split_once("```").expect("its end");
    let command = |line: &str| line.split(" # ").next().unwrap_or_default().trim().to_owned();
    let commands: Vec<_> = block.lines().map(command).collect();
    assert!((1..=MOST).contains(&commands.len()), "{symptom}: {commands:?}");
    commands
}

fn spawn(scene: &Scene, command: &str) -> Child {
    let program = Path::new(env!("CARGO_BIN_EXE_floodway"));
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", program.parent().unwrap().display());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path).current_dir(scene.directory.path());
    shell.env("FLOODWAY_CONTROL", scene.path("control.sock"));
    shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the page's commands for a symptom, while `fault` goes on. Returns what they print, one after the other.
fn look(scene: &Scene, symptom: &str, mut fault: impl FnMut()) -> Vec<String> {
    let run = |command: String| {
        let mut child = spawn(scene, &command);
        while child.try_wait().unwrap().is_none() {
            fault();
            thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        // 3 and 4 say that something was found.
        assert!(matches!(output.status.code(), Some(0 | 3 | 4)), "{command}: {text}{said}");
        format!("{command}\n{text}{said}")
    };
    commands(symptom).into_iter().map(run).collect()
}

fn assert_names(outputs: &[String], which: usize, cause: &str) {
    assert!(outputs[which].contains(cause), "{cause:?} is not in {}", outputs[which]);
}

/// A guest says who it is, as guests do when they come up, and the other one hears it: from then on the switch knows.
fn introduce(vm: &mut Vm, other: &mut Vm) {
    let std::net::IpAddr::V4(own) = ipv4(vm.n) else { unreachable!("IPv4") };
    let packet = arp::Packet {
        operation: arp::REQUEST,
        sender_mac: mac(vm.n),
        sender_ip: own,
        target_mac: MacAddr::default(),
        target_ip: own,
    };
    let frame = Link::new(mac(vm.n), MacAddr::BROADCAST).arp(&packet);
    vm.send(&frame);
    other.expect(&frame);
}

/// Two guests that have said who they are.
fn boot(scene: &Scene) -> (Vm, Vm) {
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    introduce(&mut a, &mut b);
    introduce(&mut b, &mut a);
    (a, b)
}

fn rx_drops(scene: &Scene, port: usize, reason: &str) -> u64 {
    let status = scene.status().unwrap();
    let rx = &status["ports"][port]["queues"][0]["rx"];
    rx["drops"][reason].as_u64().unwrap_or_else(|| panic!("{rx}"))
}

#[test]
fn a_guest_without_buffers_is_named() {
    let scene = Scene::start();
    let (mut a, _b) = boot(&scene);
    let (frame, small) = (numbered(1, 2, 1, 1400), numbered(1, 2, 2, 60));
    wait_until("drops", || {
        (0..500).for_each(|_| a.send(&frame));
        // What is traced finds no room, either.
        (0..5).for_each(|_| a.send(&small));
        rx_drops(&scene, 1, "queue_full") > 500
    });
    let outputs = look(&scene, "The VM answers late, or not at all", || a.send(&frame));
    assert_names(&outputs, 0, "queue_full: the guest gives no receive buffers back");
    assert_names(&outputs, 1, "drop queue_full");
    assert_names(&outputs, 1, "0 buffers are free");
    assert_names(&outputs, 2, "vm2");
}

#[test]
fn a_spoofed_address_is_named() {
    let scene = Scene::start();
    let (mut a, _b) = boot(&scene);
    let mut frame = numbered(1, 2, 1, 60);
    frame[6..12].copy_from_slice(&mac(9).0);
    (0..50).for_each(|_| a.send(&frame));
    let outputs = look(&scene, "Nothing that the VM sends arrives", || a.send(&frame));
    assert_names(
        &outputs,
        0,
        "spoofed_mac: the guest sends from a MAC address that is not the port's",
    );
    assert_names(&outputs, 1, "drop spoofed_mac");
    assert_names(&outputs, 1, &format!("the guest may send from {} only", mac(1)));
    assert_names(&outputs, 2, "1 frames captured");
}

#[test]
fn an_mtu_mismatch_is_named() {
    let scene = Scene::start();
    let (mut a, mut b) = boot(&scene);
    let frame = numbered(1, 2, 1, 8000);
    (0..50).for_each(|_| a.send(&frame));
    let small = numbered(1, 2, 2, 100);
    a.send(&small);
    b.expect(&small);
    let outputs = look(&scene, "Small packets pass, large ones do not", || ());
    assert_names(&outputs, 0, "oversize: sender and receiver do not agree on the MTU");
    assert_names(&outputs, 1, "drop oversize");
    assert_names(&outputs, 1, "larger than the port's mtu = 1500 allows");
}

#[test]
fn an_uplink_that_drops_is_named() {
    in_namespace(|| {
        ip("link add fwp0 type veth peer name fwp1");
        ip("link set fwp0 up");
        ip("link set fwp1 up");
        let uplink = "[[uplink]]\nname = \"uplink0\"\nkind = \"packet\"\ndevice = \"fwp0\"\ngateway_macs = [\"02:00:00:00:00:fe\"]\n";
        let scene = Scene::start_with(uplink);
        let (mut a, _b) = boot(&scene);
        ip("link set fwp0 down");
        let mut frame = numbered(1, 9, 1, 60);
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0xfe]);
        wait_until("drops", || {
            a.send(&frame);
            let status = scene.status().unwrap();
            let drops = &status["uplinks"][0]["tx"]["drops"];
            drops["uplink_error"].as_u64().unwrap_or_else(|| panic!("{status}")) > 20
        });
        let outputs = look(&scene, "VMs of the host reach each other, and nobody else", || ());
        assert_names(&outputs, 0, "uplink_error: its device is down or gone, or has a smaller MTU");
        assert_names(&outputs, 0, "uplink uplink0");
        assert_names(&outputs, 1, "uplink_error");
    });
}

#[test]
fn what_to_look_at_when_nothing_is_dropped() {
    let scene = Scene::start();
    let (_a, _b) = boot(&scene);
    let outputs = look(&scene, "It works, and it is slow", || ());
    assert_names(&outputs, 0, "WAIT");
    assert_names(&outputs, 1, "no limit of flooded frames");
}
