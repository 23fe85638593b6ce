//! `floodway run`: what VMs and operators see when the data plane dies.

mod capture;
mod carried;
mod changes;
mod counters;
mod events;
mod faults;
mod owed;
mod owing;
mod restarts;
#[cfg(target_arch = "x86_64")]
mod sandbox;
mod scene;
mod service_manager;
mod suspects;
mod takeover;
#[cfg(target_arch = "x86_64")]
mod trace;
mod upgrade;
mod uplinks;
mod vcpus;

use std::os::unix::net::UnixDatagram;

use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::testing::message::GET_FEATURES;
use floodway_switch::testing::wait_until;
use scene::{Scene, configure, descriptors, exchange, run, signal};

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
fn operators_wait_for_the_next_data_plane_and_are_answered() {
    let scene = Scene::start();
    for _ in 0..3 {
        signal(scene.data_plane(), libc::SIGKILL);
        assert!(scene.status().is_some(), "the control socket is there all the time");
    }
}

#[test]
fn settings_that_operators_made_outlive_a_data_plane() {
    let scene = Scene::start();
    let shown = |words: &[&str]| {
        let output = scene.output(words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    shown(&["offload", "vm1", "--transmit", "on", "--budget", "1MiB"]);
    shown(&["inbound", "--capacity", "1000"]);
    shown(&["drain", "vm2"]);
    let all = || {
        let division: serde_json::Value =
            serde_json::from_str(&shown(&["inbound", "--json"])).unwrap();
        let draining = scene.status().unwrap()["ports"][1]["offload"]["draining"].clone();
        (shown(&["offload", "vm1", "--json"]), division["capacity_bps"].clone(), draining)
    };
    let before = all();
    assert_eq!((&before.1, &before.2), (&1_000_000_000_u64.into(), &true.into()));
    for _ in 0..2 {
        signal(scene.data_plane(), libc::SIGKILL);
        assert_eq!(all(), before);
    }
    shown(&["drain", "vm2", "--undo"]);
    signal(scene.data_plane(), libc::SIGKILL);
    assert_eq!(all().2, serde_json::Value::from(false));
}

#[test]
fn counters_outlive_a_data_plane_and_never_go_back() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let counted = || {
        let status = scene.status().unwrap();
        let queues = |port: usize| status["ports"][port]["queues"][0].clone();
        let of = |port, way: &str| queues(port)[way]["packets"].as_u64().unwrap();
        [of(0, "tx"), of(0, "rx"), of(1, "tx"), of(1, "rx")]
    };
    for number in 0..5 {
        exchange(&mut a, &mut b, number);
    }
    let mut before = counted();
    assert!(before.iter().all(|&frames| frames >= 5), "{before:?}");
    for number in 5..8 {
        scene.kill_data_plane();
        let after = counted();
        assert!(after.iter().zip(before).all(|(&after, before)| after >= before), "{after:?}");
        exchange(&mut a, &mut b, number);
        before = counted();
        assert!(before.iter().all(|&frames| frames > u64::from(number)), "{before:?}");
    }
}

#[test]
fn what_the_broker_knows_of_sockets_is_in_the_diagnosis() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vm3.sock");
    // Nobody can connect a stream to it.
    let other = UnixDatagram::bind(&path).unwrap();
    let scene = Scene::start_with(&format!(
        "[[port]]\nname = \"vm3\"\nsocket = {path:?}\nmode = \"client\"\n"
    ));
    let _vms = (scene.boot(1), scene.boot(2));
    let diagnosis = |port: &str| -> serde_json::Value {
        serde_json::from_slice(&scene.output(&["diagnose", port, "--json"]).stdout).unwrap()
    };
    let check = || {
        wait_until("the front-end's process", || {
            diagnosis("vm1")["peer"]["pid"] == std::process::id()
        });
        assert_eq!(diagnosis("vm1")["socket"]["file"]["mode"], "0660");
        wait_until("the reason", || {
            let socket = &diagnosis("vm3")["socket"];
            let problem = socket["problem"].as_str().unwrap_or_default();
            problem.starts_with(&format!("cannot connect to {} as uid 0: ", path.display()))
                && socket["attempts"].as_u64() > Some(1)
        });
    };
    check();
    scene.kill_data_plane();
    check();
    // Without a problem it is only not there.
    drop(other);
    std::fs::remove_file(&path).unwrap();
    wait_until("the end of the problem", || diagnosis("vm3")["socket"]["problem"].is_null());
}

#[test]
fn a_second_switch_is_refused_and_changes_nothing() {
    let scene = Scene::start();
    let output = run(scene.directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("floodway is already running on control socket"), "{text}");
    assert!(!text.contains("data plane"), "it has not come so far: {text}");
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
}

#[test]
fn a_data_plane_that_cannot_start_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    configure(directory.path(), "control.sock", "[[worker]]\ncore = 1023\n");
    let output = run(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("worker[0].core = 1023: cannot run there"), "{text}");
    assert!(text.contains("the data plane did not start: it ended with exit code 1"), "{text}");
    for socket in ["vm1.sock", "control.sock"] {
        assert!(!directory.path().join(socket).exists(), "{socket}");
    }
}
