//! Ports in whose turns data planes crash.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use floodway_process::message::TURN_BYTES;
use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::{wait, wait_until};

use crate::events::Follower;
use crate::scene::{Scene, exchange, signal};

/// Notes of whose turn it is, of a switch with one worker: the broker's memory for them.
fn notes(scene: &Scene) -> File {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", scene.broker.id())).unwrap();
    let is_state = |path: &std::path::PathBuf| {
        fs::read_link(path)
            .is_ok_and(|name| name.to_string_lossy().contains("memfd:floodway-state"))
            && fs::metadata(path).is_ok_and(|file| file.len() == TURN_BYTES as u64)
    };
    let path = descriptors.map(|entry| entry.unwrap().path()).find(is_state).expect("the notes");
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn noted(notes: &File) -> u64 {
    let mut word = [0; 8];
    notes.read_exact_at(&mut word, 0).unwrap();
    u64::from_ne_bytes(word)
}

/// The data plane crashes in the turn of the port `instance`. Returns when there is another one.
fn crash(scene: &Scene, notes: &File, instance: u64) {
    let before = scene.data_plane();
    // From here on it writes no notes itself.
    signal(before, libc::SIGSTOP);
    wait_until("it to stand still", || {
        let stat = fs::read_to_string(format!("/proc/{before}/stat")).unwrap();
        stat.contains(") T ")
    });
    notes.write_all_at(&instance.to_ne_bytes(), 0).unwrap();
    signal(before, libc::SIGABRT);
    signal(before, libc::SIGCONT);
    wait_until("another data plane", || {
        let status = scene.status();
        status.is_some_and(|status| status["switch"]["pid"].as_u64() != Some(before))
    });
}

fn quarantine(scene: &Scene) -> Option<String> {
    let status = wait("a status", || scene.status());
    status["ports"][1]["quarantine"].as_str().map(str::to_owned)
}

/// Both ports run.
fn runs(scene: &Scene, ports: usize) -> bool {
    let status = wait("a status", || scene.status());
    (0..ports).all(|port| status["ports"][port]["state"] == "running")
}

#[test]
fn a_worker_notes_whose_turn_it_is() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let notes = notes(&scene);
    // The broker numbers ports from 1. While both guests send, the worker looks at their ports in turn.
    for instance in [1, 2] {
        let mut number = 0;
        wait_until("its turn to be noted", || {
            number += 1;
            a.guest.send(0, &Default::default(), &numbered(1, 2, number, 200));
            b.guest.send(0, &Default::default(), &numbered(2, 1, number, 200));
            while a.guest.recv(0).is_some() || b.guest.recv(0).is_some() {}
            noted(&notes) == instance
        });
    }
    wait_until("the worker to sleep", || noted(&notes) == 0);
}

#[test]
fn a_port_in_whose_turns_data_planes_crash_is_cut_off() {
    let scene = Scene::start();
    let notes = notes(&scene);
    let (mut a, b) = (scene.boot(1), scene.boot(2));
    // That of the other is between: not in a row.
    for instance in [2, 1, 2, 2] {
        crash(&scene, &notes, instance);
        wait_until("both ports to run", || runs(&scene, 2));
        assert!(!b.frontend.is_closed());
    }
    let mut follower = Follower::start(&scene, &["--port", "vm2"]);
    crash(&scene, &notes, 2);
    wait_until("the end of the connection", || b.frontend.is_closed());
    let reason = wait("the reason", || quarantine(&scene));
    let expected = "3 data planes in a row crashed in its turn: signal 6 (SIGABRT";
    assert!(reason.starts_with(expected), "{reason}");
    assert!(!reason.contains("let in"), "{reason}");
    let event = follower.expect("port_quarantined");
    assert_eq!((&event["cause"], &event["severity"]), (&"crash".into(), &"warning".into()));
    assert_eq!(event["reason"], *reason);
    let diagnosis = String::from_utf8(scene.output(&["diagnose", "vm2"]).stdout).unwrap();
    assert!(diagnosis.contains(expected) && diagnosis.contains("journalctl"), "{diagnosis}");
    assert!(!a.frontend.is_closed());

    // What another data plane shows is the same.
    let before = scene.data_plane();
    signal(before, libc::SIGKILL);
    wait_until("another data plane", || scene.data_plane() != before && runs(&scene, 1));
    wait_until("the reason", || quarantine(&scene).as_ref() == Some(&reason));

    drop(b);
    let mut b = scene.boot(2);
    wait_until("it to be let in", || runs(&scene, 2));
    exchange(&mut a, &mut b, 0);
    assert_eq!(quarantine(&scene), None);
}
