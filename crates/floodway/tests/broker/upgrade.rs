//! Another program in the place of the one that runs: what VMs and operators see of it, and what they see when it fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::testing::message::GET_FEATURES;
use floodway_switch::testing::wait_until;

use crate::restarts::{Held, SLACK, Size, files};
use crate::scene::{Scene, Vm, exchange, run, signal};

/// Another program, as far as processes can tell: the one under test by another name.
pub fn copy(scene: &Scene, name: &str) -> PathBuf {
    let path = scene.path(name);
    // A link, unless the directory is on another file system.
    if fs::hard_link(env!("CARGO_BIN_EXE_floodway"), &path).is_err() {
        fs::copy(env!("CARGO_BIN_EXE_floodway"), &path).unwrap();
    }
    path
}

/// A program that is no floodway: the shell, which takes the words that it is given for the name of a script in the switch's directory.
fn shell(scene: &Scene, speaks: &str, data_plane: &str) -> PathBuf {
    shell_with(scene, speaks, data_plane, "exit 0\n")
}

fn shell_with(scene: &Scene, speaks: &str, data_plane: &str, run: &str) -> PathBuf {
    fs::write(scene.path("speaks"), speaks).unwrap();
    fs::write(scene.path("run"), run).unwrap();
    fs::write(scene.path("data-plane"), data_plane).unwrap();
    let path = scene.path("shell");
    fs::copy("/bin/sh", &path).unwrap();
    path
}

/// A program that speaks as this one does, and is no data plane.
fn impostor(scene: &Scene, data_plane: &str) -> PathBuf {
    let speaks = String::from_utf8(scene.output(&["speaks"]).stdout).unwrap();
    shell(scene, &format!("echo '{}'\n", speaks.trim()), data_plane)
}

/// A program that says that it reads another format of connections, and is this one otherwise.
pub fn of_another_format(scene: &Scene) -> PathBuf {
    let speaks = scene.output(&["speaks"]).stdout;
    let mut speaks: serde_json::Value = serde_json::from_slice(&speaks).unwrap();
    assert_eq!(speaks["flows"], floodway_switch::kept::flows::FORMAT);
    speaks["flows"] = (floodway_switch::kept::flows::FORMAT + 1).into();
    let this = |word| format!("exec {} {word} \"$@\"\n", env!("CARGO_BIN_EXE_floodway"));
    shell_with(scene, &format!("echo '{speaks}'\n"), &this("data-plane"), &this("run"))
}

/// Waits for the end of its input, as a data plane that does not get ready: its broker ends it, or has died.
const HANGS: &str = "while read -r line; do :; done\n";

fn program_of(pid: u64) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

impl Scene {
    fn upgrade(&self, binary: &Path) -> Output {
        self.output(&["upgrade", "--json", "--binary", &binary.to_string_lossy()])
    }

    /// Upgrades to `binary`. Returns the document that says so.
    pub fn upgrade_to(&self, binary: &Path) -> serde_json::Value {
        let output = self.upgrade(binary);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Begins an upgrade to `binary`, and returns when its data plane runs beside the other one.
    fn begin_upgrade(&self, binary: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
        command.args(["upgrade", "--binary"]).arg(binary).stderr(Stdio::piped());
        let child = command.env("FLOODWAY_CONTROL", self.path("control.sock")).spawn().unwrap();
        wait_until("a data plane of the other program", || self.runs(binary, "data-plane"));
        child
    }

    /// Returns `true` if a process of the switch has the program `binary`, and the word among its arguments.
    fn runs(&self, binary: &Path, word: &str) -> bool {
        let is_it = |pid: &u64| {
            let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let program = fs::read_link(format!("/proc/{pid}/exe"));
            words.split('\0').any(|found| found == word) && program.is_ok_and(|p| p == binary)
        };
        self.processes().iter().any(is_it)
    }

    /// Tries to upgrade to `binary`. Returns why that fails: in one line.
    pub fn refused(&self, binary: &Path) -> String {
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
fn without_a_descriptor_store_an_upgrade_is_refused() {
    let scene = Scene::start_with_arguments(&["--no-descriptor-store"]);
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let before = scene.data_plane();
    let problem = scene.refused(&copy(&scene, "next"));
    assert!(problem.contains("no descriptor store"), "{problem}");
    exchange(&mut a, &mut b, 0);
    assert_eq!(scene.data_plane(), before);
    check([&mut a, &mut b]);
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

/// A switch with two guests, and what must be as before after an upgrade that fails.
struct Unchanged {
    scene: Scene,
    vms: [Vm; 2],
    data_plane: u64,
    number: u32,
}

impl Unchanged {
    fn start() -> Self {
        let scene = Scene::start();
        let (mut a, mut b) = (scene.boot(1), scene.boot(2));
        exchange(&mut a, &mut b, 0);
        check([&mut a, &mut b]);
        let data_plane = scene.data_plane();
        Self { scene, vms: [a, b], data_plane, number: 0 }
    }

    /// The same data plane serves, and there is no other.
    fn check(&mut self) {
        assert_eq!(self.scene.data_plane(), self.data_plane);
        self.number += 1;
        let [a, b] = &mut self.vms;
        check([a, b]);
        exchange(a, b, self.number);
        let status = self.scene.status().unwrap();
        assert_eq!(status["switch"]["programs"]["upgrades"]["count"], 0);
        assert_eq!(status["switch"]["predecessors"]["count"], 0);
        wait_until("the other one to have ended", || self.scene.processes().len() == 3);
    }
}

#[test]
fn a_program_that_cannot_take_over_is_refused_and_changes_nothing() {
    let mut unchanged = Unchanged::start();
    let scene = &unchanged.scene;
    fs::write(scene.path("text"), "no program").unwrap();
    let other = r#"{"version":"9.8.7","protocol":1,"store":1}"#;
    let refusals = [
        (scene.path("missing"), "No such file or directory"),
        (scene.directory.path().to_owned(), "it is no regular file"),
        (scene.path("text"), "it is not executable"),
        ("/bin/true".into(), "it does not say which messages it speaks"),
        (shell(scene, &format!("echo '{other}'\n"), ""), "it is floodway 9.8.7"),
    ];
    for (binary, why) in refusals {
        let said = scene.refused(&binary);
        assert!(said.contains(why), "{why}: {said}");
    }
    let said = scene.refused(&shell(scene, "while :; do :; done\n", ""));
    assert!(said.contains("it does not answer within 5 s"), "{said}");
    // One that talks for ever is not listened to for ever.
    let said = scene.refused(&shell(scene, "while :; do echo words; done\n", ""));
    assert!(said.contains("not upgraded to"), "{said}");
    // The next broker would not begin with this one.
    let config = fs::read_to_string(scene.path("switch.toml")).unwrap();
    fs::write(scene.path("switch.toml"), format!("{config}wrong = true\n")).unwrap();
    let said = scene.refused(Path::new(env!("CARGO_BIN_EXE_floodway")));
    assert!(said.contains("it cannot begin with the configuration file"), "{said}");
    unchanged.check();
}

#[test]
fn a_program_that_crashes_or_hangs_at_its_start_changes_nothing() {
    let mut unchanged = Unchanged::start();
    for (data_plane, why) in [
        ("kill -SEGV $$\n", "signal 11"),
        ("exit 7\n", "it ended with exit code 7"),
        (HANGS, "it was not ready within 10 s"),
    ] {
        let said = unchanged.scene.refused(&impostor(&unchanged.scene, data_plane));
        assert!(said.contains(why), "{why}: {said}");
        unchanged.check();
        let events = unchanged.scene.output(&["events", "--json"]).stdout;
        let events = String::from_utf8(events).unwrap();
        assert!(events.contains("upgrade_failed") && events.contains(why), "{events}");
    }
    // It can be upgraded all the same.
    let next = copy(&unchanged.scene, "next");
    unchanged.scene.upgrade_to(&next);
    assert_eq!(program_of(unchanged.scene.data_plane()), next);
}

#[test]
fn a_data_plane_that_dies_over_an_upgrade_is_replaced_by_one_of_the_program_of_before() {
    let Unchanged { scene, mut vms, .. } = Unchanged::start();
    let upgrade = scene.begin_upgrade(&impostor(&scene, HANGS));
    scene.kill_data_plane();
    let output = upgrade.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the data plane that was to be replaced ended: signal 9"), "{said}");
    assert_eq!(program_of(scene.data_plane()), Path::new(env!("CARGO_BIN_EXE_floodway")));
    let [a, b] = &mut vms;
    check([a, b]);
    exchange(a, b, 1);
    wait_until("the other one to have ended", || scene.processes().len() == 3);
}

#[test]
fn a_broker_that_dies_over_an_upgrade_leaves_the_data_plane_as_it_was() {
    let Unchanged { mut scene, mut vms, data_plane, .. } = Unchanged::start();
    let mut upgrade = scene.begin_upgrade(&impostor(&scene, HANGS));
    scene.broker.kill().unwrap();
    scene.broker.wait().unwrap();
    let [a, b] = &mut vms;
    exchange(a, b, 1);
    scene.broker = run(scene.directory.path()).spawn().unwrap();
    let next = u64::from(scene.broker.id());
    wait_until("the next broker", || {
        scene.status().is_some_and(|s| s["switch"]["predecessors"]["broker"] == next)
    });
    assert_eq!(scene.data_plane(), data_plane);
    check([a, b]);
    exchange(a, b, 2);
    wait_until("the other one to have ended", || scene.processes().len() == 3);
    // Whoever waited for it finds a broker that knows nothing of it.
    upgrade.kill().unwrap();
    upgrade.wait().unwrap();
    scene.upgrade_to(&copy(&scene, "next"));
    exchange(a, b, 3);
}

#[test]
fn an_upgrade_changes_nothing_of_what_operators_have_said() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    let shown = |words: &[&str]| {
        let output = scene.output(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // In no file.
    let socket = scene.path("vm3.sock");
    shown(&["port", "add", "vm3", &format!("socket={}", socket.display())]);
    shown(&["drain", "vm2"]);
    let counted = |port: usize| {
        let status = scene.status().unwrap();
        status["ports"][port]["queues"][0]["tx"]["packets"].as_u64().unwrap()
    };
    let before = (shown(&["port", "show", "--json"]), counted(0), counted(1));
    for name in ["next", "another"] {
        scene.upgrade_to(&copy(&scene, name));
        assert_eq!((shown(&["port", "show", "--json"]), counted(0), counted(1)), before);
        assert_eq!(scene.status().unwrap()["ports"][1]["offload"]["draining"], true);
    }
    check([&mut a, &mut b]);
}

/// Upgrades in a row.
const UPGRADES: u32 = 20;
/// Those after which a process is as large as it gets.
const SETTLING: u32 = 5;
/// Frames that may be under way: fewer than the receiver has buffers, so that none waits inside the switch.
const WINDOW: u32 = 100;

/// Sends frames from `a` to `b` until `over` is set: each of them arrives, in order. Returns how many, and the longest time between two.
fn stream(a: &mut Vm, b: &mut Vm, over: &AtomicBool) -> (u32, Duration) {
    let (mut sent, mut received, mut longest) = (0, 0, Duration::ZERO);
    let mut last = Instant::now();
    let mut waiting = last;
    while !over.load(Ordering::Relaxed) || received < sent {
        let may_send = sent < received + WINDOW && !over.load(Ordering::Relaxed);
        if may_send && a.guest.send(0, &Default::default(), &numbered(a.n, b.n, sent, 500)) {
            sent += 1;
        }
        while let Some((_, frame)) = b.guest.recv(0) {
            let Some(number) = number_of(&frame) else { continue };
            assert_eq!(number, received, "a frame is lost, or comes twice");
            received += 1;
            longest = longest.max(last.elapsed());
            last = Instant::now();
            waiting = last;
        }
        assert!(waiting.elapsed() < Duration::from_secs(30), "{received} of {sent} frames came");
    }
    (received, longest)
}

#[test]
fn upgrades_in_a_row_lose_no_frame_and_leave_nothing_behind() {
    let scene = Scene::start_with_arguments(&["--log", "warn"]);
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    let programs = [copy(&scene, "one"), copy(&scene, "two")];
    let over = AtomicBool::new(false);
    let broker = u64::from(scene.broker.id());
    thread::scope(|scope| {
        let streamed = scope.spawn(|| stream(&mut a, &mut b, &over));
        let mut before = None;
        let mut pauses = Vec::new();
        for number in 0..UPGRADES {
            let said = scene.upgrade_to(&programs[number as usize % 2]);
            assert_eq!(said["upgrades"]["count"], number + 1);
            pauses.push(said["upgrades"]["pause_us"].as_u64().unwrap());
            if number == SETTLING {
                before = Some((Held::of(broker), Size::of(broker), files(scene.directory.path())));
            }
        }
        over.store(true, Ordering::Relaxed);
        let (frames, longest) = streamed.join().unwrap();
        pauses.sort_unstable();
        println!(
            "{UPGRADES} upgrades under {frames} frames: longest pause of frames {longest:?}; between two data planes median {} us, longest {} us",
            pauses[pauses.len() / 2],
            pauses[pauses.len() - 1]
        );
        let (held, size, names) = before.unwrap();
        wait_until("the broker to hold what it held", || Held::of(broker).is_within(&held));
        let now = Size::of(broker);
        assert!(now.is_within(size), "{now:?}, and {size:?} before ({SLACK} KiB are allowed)");
        assert_eq!(files(scene.directory.path()), names);
        wait_until("no more than three processes", || scene.processes().len() == 3);
    });
    check([&mut a, &mut b]);
}
