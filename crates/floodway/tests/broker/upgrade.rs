//! Another program in the place of the one that runs: what VMs and operators see of it, and what they see when it fails.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::testing::message::GET_FEATURES;
use floodway_switch::testing::{wait, wait_until};

use crate::scene::{Scene, Vm, exchange, signal};

/// Another program, as far as processes can tell: the one under test by another name.
fn copy(scene: &Scene, name: &str) -> PathBuf {
    let path = scene.path(name);
    // A link, unless the directory is on another file system.
    if fs::hard_link(env!("CARGO_BIN_EXE_floodway"), &path).is_err() {
        fs::copy(env!("CARGO_BIN_EXE_floodway"), &path).unwrap();
    }
    path
}

/// A program that is a script.
fn script(scene: &Scene, name: &str, text: &str) -> PathBuf {
    let path = scene.path(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn program_of(pid: u64) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

impl Scene {
    fn upgrade(&self, binary: &Path) -> Output {
        self.output(&["upgrade", "--json", "--binary", &binary.to_string_lossy()])
    }

    /// Upgrades to `binary`. Returns the document that says so.
    fn upgrade_to(&self, binary: &Path) -> serde_json::Value {
        let output = self.upgrade(binary);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Tries to upgrade to `binary`. Returns why that fails: in one line.
    fn refused(&self, binary: &Path) -> String {
        let output = self.upgrade(binary);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        text.trim_end().to_owned()
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
fn all_processes_are_replaced_and_no_connection_ends() {
    let mut scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    let (broker, before) = (u64::from(scene.broker.id()), scene.data_plane());
    let next = copy(&scene, "next");
    let said = scene.upgrade_to(&next);
    assert_eq!(said["upgrades"]["count"], 1);
    let data_plane = scene.data_plane();
    assert_ne!(data_plane, before);
    assert_eq!(scene.broker.try_wait().unwrap(), None, "it is the same process");
    for pid in [broker, data_plane] {
        assert_eq!(program_of(pid), next);
    }
    let status = scene.status().unwrap();
    let switch = &status["switch"];
    assert_eq!(switch["predecessors"]["broker"], broker);
    assert_eq!(switch["predecessors"]["count"], 0, "nothing has died");
    for program in ["broker", "data_plane"] {
        assert_eq!(switch["programs"][program]["binary"], next.to_str().unwrap());
    }
    check([&mut a, &mut b]);
    exchange(&mut a, &mut b, 1);
    // It looks after its data plane as the last one did.
    scene.kill_data_plane();
    check([&mut a, &mut b]);
    exchange(&mut a, &mut b, 2);
    assert_eq!(program_of(scene.data_plane()), next);
    signal(broker, libc::SIGTERM);
    assert_eq!(scene.broker.wait().unwrap().code(), Some(0));
    for socket in ["control.sock", "control.sock.manage", "control.sock.store", "vm1.sock"] {
        assert!(!scene.path(socket).exists(), "{socket}");
    }
    wait_until("all processes to end", || scene.processes().is_empty());
}
