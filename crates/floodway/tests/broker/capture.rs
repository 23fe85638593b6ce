//! `floodway capture` of a switch of two processes, in its sandbox.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use floodway_switch::control::ControlClient;
use floodway_switch::testing::frames::{mac, numbered, partial, pattern, tcp};
use floodway_switch::testing::pcapng::File;
use floodway_switch::testing::{wait, wait_until};
use floodway_wire::vnet::VnetHdr;

use crate::scene::{Scene, exchange, signal};

fn capture(scene: &Scene, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
    command.arg("capture").args(words).current_dir(scene.directory.path());
    command.env("FLOODWAY_CONTROL", scene.path("control.sock"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits until the file has its header: from then on frames are seen.
fn wait_for_header(scene: &Scene, name: &str) {
    wait_until("the header", || fs::metadata(scene.path(name)).is_ok_and(|file| file.len() > 0));
}

/// Interrupts a capture, and returns what it says.
fn interrupt(capture: Child) -> String {
    signal(capture.id().into(), libc::SIGINT);
    let output = capture.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// What a tool of Wireshark says of a file, if it is there; it must not complain.
fn ask(scene: &Scene, words: &[&str]) -> Option<String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(scene.directory.path());
    let Ok(output) = command.env("XDG_RUNTIME_DIR", scene.directory.path()).output() else {
        eprintln!("skipped: there is no {}", words[0]);
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Debian's tshark says so to root, whatever the file.
    let complains = |line: &&str| !line.is_empty() && !line.starts_with("Running as user");
    assert_eq!(said.lines().find(complains), None, "{words:?}");
    assert!(output.status.success(), "{words:?}: {said}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_file_is_what_was_exchanged_and_wireshark_reads_it() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let running =
        capture(&scene, &["vm1", "-w", "a.pcapng", "--filter", "udp port 7"]).spawn().unwrap();
    wait_for_header(&scene, "a.pcapng");
    for number in 0..10 {
        exchange(&mut a, &mut b, number);
    }
    let mut spoofed = numbered(1, 2, 99, 60);
    spoofed[6..12].copy_from_slice(&mac(9).0);
    a.send(&spoofed);
    let path = scene.path("a.pcapng");
    let file = wait("21 frames", || {
        let file = File::read(&fs::read(&path).unwrap());
        (file.packets.len() == 21).then_some(file)
    });
    assert_eq!(file.packets[20].comment, "drop=spoofed_mac");
    let said = interrupt(running);
    assert_eq!(said, "vm1: 21 frames captured, 21 seen, 0 lost; ended by its user\n");
    let file = File::read(&fs::read(&path).unwrap());
    assert_eq!((file.seen(), file.lost(), &*file.interface), (21, 0, "vm1"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    if let Some(info) = ask(&scene, &["capinfos", "-A", "a.pcapng"]) {
        assert!(info.contains("Number of packets:   21"), "{info}");
        assert!(info.contains("Name = vm1") && info.contains("nanoseconds"), "{info}");
        assert!(info.contains("Filter string = udp port 7"), "{info}");
    }
    let fields = ["-e", "frame.interface_name", "-e", "frame.comment", "-e", "udp.srcport"];
    let words = [&["tshark", "-n", "-r", "a.pcapng", "-T", "fields"], &fields[..]].concat();
    if let Some(text) = ask(&scene, &words) {
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 21);
        assert_eq!((lines[0], lines[1]), ("vm1\t\t1001", "vm1\t\t1002"));
        assert_eq!(lines[20], "vm1\tdrop=spoofed_mac\t1001");
    }
}

#[test]
fn a_pipe_gets_frames_as_they_come() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let mut running = capture(&scene, &["vm2", "--stage", "out", "-c", "2"]).spawn().unwrap();
    let (mut pipe, mut bytes) = (running.stdout.take().unwrap(), vec![0; 16]);
    pipe.read_exact(&mut bytes).unwrap();
    for number in 0..3 {
        exchange(&mut a, &mut b, number);
    }
    pipe.read_to_end(&mut bytes).unwrap();
    assert!(running.wait().unwrap().success());
    let file = File::read(&bytes);
    assert_eq!((file.packets.len(), &*file.end), (2, "all frames that were asked for"));
    assert_eq!(file.packets[1].bytes, numbered(1, 2, 1, 700));
}

/// A guest that never waits sends small, large and GSO frames: copies may be lost, which is counted; what is there is whole.
#[test]
fn a_file_of_a_guest_that_sends_as_fast_as_it_can_is_read_without_a_warning() {
    const FRAMES: u64 = 60_000;
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let running = capture(&scene, &["vm1", "--stage", "in", "-w", "a.pcapng"]).spawn().unwrap();
    wait_for_header(&scene, "a.pcapng");
    let gso = tcp(1, 2, false).build_partial(&pattern(1, 60_000));
    let large = partial(&gso, 1448);
    for number in 0..FRAMES {
        let plain = numbered(1, 2, number as u32, if number % 2 == 0 { 22 } else { 1400 });
        let (header, frame) = match number % 100 {
            99 => (&large, &gso),
            _ => (&VnetHdr::default(), &plain),
        };
        while !a.guest.send(0, header, frame) {
            while b.guest.recv(0).is_some() {}
        }
    }
    wait_until("transmission", || {
        while b.guest.recv(0).is_some() {}
        a.guest.transmitting(0) == 0
    });
    interrupt(running);
    let file = File::read(&fs::read(scene.path("a.pcapng")).unwrap());
    assert_eq!(file.seen(), FRAMES);
    assert_eq!(file.packets.len() as u64 + file.lost(), FRAMES, "{} are lost", file.lost());
    assert!(file.packets.iter().any(|packet| packet.comment == "gso=42x1448"));
    let words = ["tshark", "-n", "-r", "a.pcapng", "-T", "fields", "-e", "frame.number"];
    if let Some(text) = ask(&scene, &words) {
        assert_eq!(text.lines().count(), file.packets.len());
    }
}

/// No core is the workers' own here, so it may have to share one with them.
#[test]
fn who_writes_a_file_has_what_workers_leave() {
    let scene = Scene::start();
    let running = capture(&scene, &["vm1", "-w", "a.pcapng"]).spawn().unwrap();
    wait_for_header(&scene, "a.pcapng");
    let tasks = fs::read_dir(format!("/proc/{}/task", scene.data_plane())).unwrap();
    let stats = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("stat")).unwrap());
    let stat = stats.into_iter().find(|stat| stat.contains("(capture-")).expect("its thread");
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    assert_eq!(fields.split(' ').nth(16), Some("19"), "its nice value: {stat}");
    interrupt(running);
}

#[test]
fn the_reader_goes_and_the_capture_ends() {
    let scene = Scene::start();
    let mut running = capture(&scene, &["vm1"]).spawn().unwrap();
    let mut pipe = running.stdout.take().unwrap();
    pipe.read_exact(&mut [0; 16]).unwrap();
    signal(running.id().into(), libc::SIGKILL);
    running.wait().unwrap();
    let count = || {
        let answer = ControlClient::new(&scene.path("control.sock")).unwrap().captures().unwrap();
        (answer.len(), answer.iter().filter(|capture| capture.running).count())
    };
    wait_until("the end of the capture", || count() == (1, 0));
    assert!(scene.status().is_some());
}

#[test]
fn others_than_root_and_the_owner_may_not_capture() {
    let scene = Scene::start();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can ask as somebody else");
        return;
    }
    let open = |path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(scene.path(""), 0o755);
    open(scene.path("control.sock"), 0o666);
    let program = scene.path("floodway");
    fs::copy(env!("CARGO_BIN_EXE_floodway"), &program).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).env("FLOODWAY_CONTROL", scene.path("control.sock"));
        command.uid(65_533).gid(65_533).output().unwrap()
    };
    assert!(run(&["status"]).status.success(), "reading is for all who may connect");
    let output = run(&["capture", "vm1", "-w", "/dev/null"]);
    let expected =
        "floodway: uid 65533 may not capture frames (run as root, or as the user of the switch)\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let scene = Scene::start();
    fs::write(scene.path("kept"), "kept").unwrap();
    for (words, expected) in [
        (&["vm9", "-w", "kept"][..], "floodway: no port or uplink \"vm9\"; there are vm1, vm2\n"),
        (&["vm1", "--filter", "udp porrt 7"], "floodway: --filter \"udp porrt 7\": "),
    ] {
        let output = capture(&scene, words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with(expected), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
    assert_eq!(fs::read_to_string(scene.path("kept")).unwrap(), "kept");
}
