//! What VMs and operators see when the broker dies: nothing, if another one follows.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;

use floodway_switch::testing::message::GET_FEATURES;
use floodway_switch::testing::{wait, wait_until};

use crate::scene::{Scene, Vm, exchange, run, signal};

impl Scene {
    /// Kills the broker when it owes no front-end anything: one whose message is half done is cut off.
    pub fn kill_broker(&mut self) {
        self.wait_for_port_threads();
        self.broker.kill().unwrap();
        self.broker.wait().unwrap();
        wait_until("the data plane to know", || self.broker_in_status() == Some(0));
    }

    /// Kills all processes of the switch.
    pub fn kill_all(&mut self) {
        let all = self.processes();
        all.iter().for_each(|&number| signal(number, libc::SIGKILL));
        self.broker.wait().unwrap();
        wait_until("the end of all processes", || self.processes().is_empty());
    }

    /// Waits until the threads of all ports wait: what they do for a message they do without.
    fn wait_for_port_threads(&self) {
        let tasks = format!("/proc/{}/task", self.broker.id());
        let waits = |status: &String| status.contains("State:\tS");
        wait_until("the broker to have nothing to do", || {
            let tasks = fs::read_dir(&tasks).unwrap().filter_map(Result::ok);
            let all = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
            all.filter(|status| status.starts_with("Name:\tport-")).all(|status| waits(&status))
        });
    }

    pub fn start_broker(&mut self) {
        self.start_broker_by(run(self.directory.path()));
    }

    pub fn start_broker_by(&mut self, mut command: Command) {
        self.broker = command.spawn().unwrap();
        let next = self.broker.id().into();
        wait_until("the next broker", || self.broker_in_status() == Some(next));
    }

    fn broker_in_status(&self) -> Option<u64> {
        self.status()?["switch"]["predecessors"]["broker"].as_u64()
    }
}

/// The connections are the same, and still understood.
fn check(vms: [&mut Vm; 2]) {
    for vm in vms {
        assert!(!vm.frontend.is_closed());
        vm.frontend.get(GET_FEATURES).expect("an answer");
    }
}

#[test]
fn a_data_plane_outlives_its_broker_and_is_taken_over() {
    let mut scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    check([&mut a, &mut b]);
    let data_plane = scene.data_plane();
    for number in 0..5 {
        scene.kill_broker();
        exchange(&mut a, &mut b, 10 * number);
        let table = String::from_utf8(scene.output(&["status"]).stdout).unwrap();
        assert!(table.contains("broker: NONE"), "{table}");
        scene.start_broker();
        assert_eq!(scene.data_plane(), data_plane);
        check([&mut a, &mut b]);
        exchange(&mut a, &mut b, 10 * number + 1);
    }
    // The last one looks after it as the first one did.
    scene.kill_data_plane();
    check([&mut a, &mut b]);
    exchange(&mut a, &mut b, 99);
    signal(scene.broker.id().into(), libc::SIGTERM);
    assert_eq!(scene.broker.wait().unwrap().code(), Some(0));
    for socket in ["control.sock", "control.sock.store", "vm1.sock", "vm2.sock"] {
        assert!(!scene.path(socket).exists(), "{socket}");
    }
    wait_until("all processes to end", || scene.processes().is_empty());
}

#[test]
fn connections_outlive_the_death_of_both() {
    let mut scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    check([&mut a, &mut b]);
    let data_plane = scene.data_plane();
    scene.kill_broker();
    signal(data_plane, libc::SIGKILL);
    scene.start_broker();
    wait_until("both ports to run", || {
        let runs = |status: &serde_json::Value| {
            (0..2).all(|port| status["ports"][port]["state"] == "running")
        };
        scene.status().is_some_and(|status| runs(&status))
    });
    assert_ne!(scene.data_plane(), data_plane);
    check([&mut a, &mut b]);
    exchange(&mut a, &mut b, 1);
    assert_eq!(scene.status().unwrap()["switch"]["predecessors"]["count"], 1);
}

#[test]
fn a_front_end_that_hung_up_meanwhile_is_let_go() {
    let mut scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    check([&mut a, &mut b]);
    scene.kill_broker();
    drop(a);
    scene.start_broker();
    wait_until("the port to be down", || {
        scene.status().is_some_and(|status| status["ports"][0]["state"] == "down")
    });
    let mut a = scene.boot(1);
    exchange(&mut a, &mut b, 0);
}

#[test]
fn settings_and_changes_of_ports_are_those_of_the_file_and_of_operators() {
    let mut scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    check([&mut a, &mut b]);
    assert!(scene.output(&["drain", "vm2"]).status.success());
    scene.kill_broker();
    scene.start_broker();
    let data_plane = scene.data_plane();
    signal(data_plane, libc::SIGKILL);
    wait("the next data plane", || (scene.data_plane() != data_plane).then_some(()));
    let draining = scene.status().unwrap()["ports"][1]["offload"]["draining"].clone();
    assert_eq!(draining, true, "as the operator has said");
    scene.kill_broker();
    let path = scene.path("switch.toml");
    let third = format!(
        "{}[[port]]\nname = \"vm3\"\nsocket = {:?}\n",
        fs::read_to_string(&path).unwrap(),
        scene.path("vm3.sock")
    );
    fs::write(&path, third).unwrap();
    scene.start_broker();
    wait_until("the port of the file", || {
        scene.status().is_some_and(|status| status["ports"][2]["name"] == "vm3")
    });
    check([&mut a, &mut b]);
    exchange(&mut a, &mut b, 1);
}

#[test]
fn a_switch_without_a_broker_is_ended_by_a_signal_to_its_store() {
    let mut scene = Scene::start();
    // One that comes while there is a broker was for all processes. The store has looked at it when it waits again.
    signal(scene.store(), libc::SIGTERM);
    let status = format!("/proc/{}/status", scene.store());
    wait_until("the store to wait", || {
        fs::read_to_string(&status).is_ok_and(|status| status.contains("State:\tS"))
    });
    scene.kill_broker();
    signal(scene.store(), libc::SIGTERM);
    wait_until("all processes to end", || scene.processes().is_empty());
    // The kernel closes sockets that were in messages on their way a moment after their processes have ended.
    let control = scene.path("control.sock");
    wait_until("the control socket to close", || UnixStream::connect(&control).is_err());
    scene.start_broker();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
}

#[test]
fn without_a_descriptor_store_all_processes_end_with_the_broker() {
    let mut scene = Scene::start_with_arguments(&["--no-descriptor-store"]);
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    assert_eq!(scene.processes().len(), 2);
    scene.kill_data_plane();
    exchange(&mut a, &mut b, 1);
    scene.broker.kill().unwrap();
    scene.broker.wait().unwrap();
    wait_until("all processes to be gone", || scene.processes().is_empty());
}
