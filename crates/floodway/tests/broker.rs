//! `floodway run --broker`: what VMs and operators see when the data plane dies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use floodway_switch::testing::frames::{mac, number_of, numbered};
use floodway_switch::testing::message::GET_FEATURES;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};

/// A switch of two processes with two ports, killed when the test is over however it ends.
struct Scene {
    directory: tempfile::TempDir,
    broker: Child,
}

impl Scene {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        configure(directory.path(), "control.sock");
        let broker = run(directory.path()).spawn().unwrap();
        let mut scene = Self { directory, broker };
        wait("the switch to answer", || {
            assert_eq!(scene.broker.try_wait().unwrap(), None, "it ended by itself");
            scene.status()
        });
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn status(&self) -> Option<serde_json::Value> {
        let output = self.output(&["status", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn output(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
        command.args(words).env("FLOODWAY_CONTROL", self.path("control.sock")).output().unwrap()
    }

    fn kill_data_plane(&self) {
        self.signal_data_plane(libc::SIGKILL);
    }

    /// Sends the data plane a signal that ends it; returns when the next one serves both guests. Until then frames to a guest that is not
    /// there yet are dropped.
    fn signal_data_plane(&self, number: i32) {
        let before = wait("a status", || self.status());
        signal(before["switch"]["pid"].as_u64().unwrap(), number);
        wait_until("another data plane", || {
            let pid = |status: &serde_json::Value| status["switch"]["pid"].clone();
            let runs = |status: &serde_json::Value| {
                (0..2).all(|port| status["ports"][port]["state"] == "running")
            };
            self.status().is_some_and(|status| pid(&status) != pid(&before) && runs(&status))
        });
    }

    fn boot(&self, n: u8) -> Vm {
        let guest = Guest::new(GuestConfig::default());
        let frontend = Frontend::attach(&self.path(&format!("vm{n}.sock")), &guest);
        Vm { n, guest, frontend }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

fn configure(directory: &Path, control: &str) {
    let port = |n: u8| {
        let socket = directory.join(format!("vm{n}.sock"));
        format!(
            "[[port]]\nname = \"vm{n}\"\nsocket = {socket:?}\nmac = \"{}\"\nstorm_pps = 0\n",
            mac(n)
        )
    };
    let text = format!("control = {:?}\n{}{}", directory.join(control), port(1), port(2));
    fs::write(directory.join("switch.toml"), text).unwrap();
}

fn run(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
    command.args(["run", "--broker", "--config", "switch.toml"]).env_remove("FLOODWAY_LOG");
    command.current_dir(directory);
    command
}

fn signal(pid: u64, signal: i32) {
    // SAFETY: kill takes plain numbers; the process is one of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(i32::try_from(pid).unwrap(), signal) }, 0);
}

fn descriptors(process: &Child) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().count()
}

struct Vm {
    n: u8,
    guest: Guest,
    frontend: Frontend,
}

impl Vm {
    fn send(&mut self, frame: &[u8]) {
        wait("room to transmit", || self.guest.send(0, &Default::default(), frame).then_some(()));
    }

    /// Waits for `frame`, and lets others pass: what was under way at a death may come twice.
    fn expect(&mut self, frame: &[u8]) {
        wait_until(&format!("a frame for VM {}", self.n), || {
            std::iter::from_fn(|| self.guest.recv(0)).any(|(_, got)| got == frame)
        });
    }
}

fn exchange(a: &mut Vm, b: &mut Vm, number: u32) {
    let there = numbered(a.n, b.n, number, 700);
    a.send(&there);
    b.expect(&there);
    let back = numbered(b.n, a.n, number, 700);
    b.send(&back);
    a.expect(&back);
}

#[test]
fn connections_outlive_a_killed_data_plane() {
    let mut scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    scene.kill_data_plane();
    exchange(&mut a, &mut b, 1);
    let open = descriptors(&scene.broker);
    for number in 2..5 {
        scene.kill_data_plane();
        exchange(&mut a, &mut b, number);
        // The connections are the same, and still understood.
        for vm in [&mut a, &mut b] {
            assert!(!vm.frontend.is_closed());
            vm.frontend.get(GET_FEATURES).expect("an answer");
        }
    }
    assert_eq!(descriptors(&scene.broker), open);

    let status = scene.status().unwrap();
    let predecessors = &status["switch"]["predecessors"];
    assert_eq!(predecessors["count"], 4);
    let end = "signal 9 (SIGKILL: killed, perhaps for want of memory)";
    assert_eq!(predecessors["last_end"], end);
    let table = String::from_utf8(scene.output(&["status"]).stdout).unwrap();
    assert!(table.contains(&format!("restarted 4 times; the last time: {end}")), "{table}");

    signal(scene.broker.id().into(), libc::SIGTERM);
    assert_eq!(scene.broker.wait().unwrap().code(), Some(0));
    for socket in ["control.sock", "vm1.sock", "vm2.sock"] {
        assert!(!scene.path(socket).exists(), "{socket}");
    }
}

#[test]
fn a_data_plane_killed_under_traffic_loses_no_descriptors_of_guests() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let mut number = 0;
    for _ in 0..4 {
        for _ in 0..500 {
            while !a.guest.send(0, &Default::default(), &numbered(1, 2, number, 200)) {
                while b.guest.recv(0).is_some() {}
            }
            number += 1;
        }
        scene.kill_data_plane();
    }
    let last = numbered(1, 2, number, 200);
    a.send(&last);
    wait_until("the last frame", || {
        std::iter::from_fn(|| b.guest.recv(0)).any(|(_, frame)| number_of(&frame) == Some(number))
    });
    wait_until("transmission", || a.guest.transmitting(0) == 0);
    assert_eq!(a.guest.pairs[0].tx.driver.free(), 256);
    assert_eq!(b.guest.pairs[0].rx.driver.in_flight(), 256, "all receive buffers are posted");
}

#[test]
fn a_front_end_comes_and_goes_with_a_broker_as_without() {
    let scene = Scene::start();
    let (a, mut b) = (scene.boot(1), scene.boot(2));
    drop(a);
    wait_until("the port to be down", || {
        scene.status().is_some_and(|status| status["ports"][0]["state"] == "down")
    });
    let mut a = scene.boot(1);
    exchange(&mut a, &mut b, 1);
    // A ring that was stopped goes on where it stood, also after a death in between.
    let base = a.frontend.get_vring_base(1).expect("a base");
    assert_eq!(base, a.guest.pairs[0].tx.driver.used_idx());
    scene.kill_data_plane();
    assert_eq!(a.frontend.get_vring_base(1).expect("a base"), base);
    a.frontend.start_vring(&a.guest, 1).expect("it starts");
    exchange(&mut a, &mut b, 2);
}

#[test]
fn a_data_plane_that_hangs_is_replaced() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    scene.signal_data_plane(libc::SIGSTOP);
    exchange(&mut a, &mut b, 1);
    let status = scene.status().unwrap();
    assert_eq!(status["switch"]["predecessors"]["last_end"], "it gave no sign of life");
}

#[test]
fn a_broker_that_is_killed_takes_its_data_plane_along_and_is_replaced() {
    let mut scene = Scene::start();
    scene.broker.kill().unwrap();
    scene.broker.wait().unwrap();
    wait_until("the data plane to end", || scene.status().is_none());
    scene.broker = run(scene.directory.path()).spawn().unwrap();
    wait("the next one to answer", || scene.status());
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
}

#[test]
fn a_data_plane_that_cannot_start_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    configure(directory.path(), "file/control.sock");
    let output = run(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("cannot make its directory"), "{text}");
    assert!(text.contains("the data plane did not start: it ended with exit code 1"), "{text}");
    assert!(!directory.path().join("vm1.sock").exists());
}
