//! `floodway top` on a terminal: tmux draws it, keys are typed, and what is on the screen is read.
//!
//! Without tmux (which `floodway-lab doctor --install` brings) the tests that need it say so and pass.

mod common;
#[path = "common/scene.rs"]
mod scene;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::{wait, wait_until};
use floodway_wire::vnet::VnetHdr;
use scene::Scene;

const FLOODWAY: &str = env!("CARGO_BIN_EXE_floodway");

/// The configuration of a switch with the ports vm1 to vm3.
fn config(scene: &Scene) -> String {
    (1..=3).map(|n| scene.port(n, "storm_pps = 0")).collect()
}

/// Such a switch.
fn started() -> Scene {
    let mut scene = Scene::new();
    scene.start(&config(&scene));
    scene
}

/// A terminal of 80 by 24 with a shell, on a tmux server of its own.
struct Screen {
    socket: PathBuf,
}

impl Screen {
    /// None if there is no tmux.
    fn open(scene: &Scene) -> Option<Self> {
        let screen = Self { socket: scene.path("tmux.sock") };
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("not tested: tmux is missing (apt-get install tmux)");
            return None;
        }
        let control = format!("FLOODWAY_CONTROL={}", scene.path("control.sock").display());
        let shell = ["env", &control, "PS1=ready> ", "LC_ALL=C.UTF-8", "sh"];
        let size = ["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24"];
        screen.tmux(&[&size[..], &shell].concat());
        screen.wait_for("ready>");
        Some(screen)
    }

    fn tmux(&self, words: &[&str]) -> String {
        let mut command = Command::new("tmux");
        // Not the server of who runs the test.
        command.env_remove("TMUX").arg("-S").arg(&self.socket).args(words);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn run(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press("Enter");
    }

    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until a line of the screen has `words`, and returns that line.
    fn wait_for(&self, words: &str) -> String {
        let find = || self.text().lines().find(|line| line.contains(words)).map(str::to_owned);
        wait(&format!("{words:?} on the screen"), find)
    }

    /// Waits until the whole screen fits.
    fn wait_until(&self, what: &str, fits: impl Fn(&str) -> bool) {
        wait_until(what, || fits(&self.text()));
    }

    /// The settings of the terminal as the shell sees them.
    fn settings(&self, name: &Path) -> String {
        self.run(&format!("stty -a > {0}.new; mv {0}.new {0}", name.display()));
        wait("settings", || fs::read_to_string(name).ok())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        let _ = command.arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

/// The lines of ports, by their names.
fn ports(screen: &str) -> Vec<String> {
    let lines = screen.lines().skip_while(|line| !line.starts_with("PORT")).skip(1);
    let names = lines.take_while(|line| !line.starts_with('─')).filter(|line| !line.is_empty());
    names.map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn what_a_vm_sends_is_on_the_screen_and_keys_do_what_they_say() {
    let scene = started();
    let Some(screen) = Screen::open(&scene) else { return };
    let (mut sender, _sender_front_end) = scene.boot(1);
    let (mut receiver, _receiver_front_end) = scene.boot(2);
    screen.run(&format!("{FLOODWAY} top --sort name"));
    screen.wait_for("of 3 ports running");
    // Frames go on until they are seen.
    let mut number = 0;
    wait_until("a rate of both guests", || {
        for _ in 0..10 {
            number += 1;
            sender.send(0, &VnetHdr::default(), &numbered(1, 2, number, 1000));
        }
        while receiver.recv(0).is_some() {}
        receiver.refill(0, usize::MAX);
        let text = screen.text();
        let figure = |name: &str, column: usize| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
            line.split_whitespace().nth(column).map(str::to_owned)
        };
        let moves = |figure: Option<String>| figure.is_some_and(|text| text != "0" && text != "-");
        moves(figure("vm1", 1)) && moves(figure("vm2", 2))
    });
    screen.wait_until("names in order", |text| ports(text) == ["vm1", "vm2", "-vm3"]);
    screen.press("r");
    screen.wait_until("the order turned round", |text| ports(text) == ["-vm3", "vm2", "vm1"]);
    screen.press("/");
    screen.press("3");
    screen.wait_until("one port", |text| ports(text) == ["-vm3"]);
    screen.wait_for("filter: 3_");
    screen.press("Escape");
    screen.wait_until("all ports", |text| ports(text).len() == 3);
}

#[test]
fn a_switch_that_goes_is_named_and_one_that_comes_back_is_shown() {
    let mut scene = started();
    let Some(screen) = Screen::open(&scene) else { return };
    screen.run(&format!("{FLOODWAY} top --interval 0.2"));
    screen.wait_for("of 3 ports running");
    scene.stop();
    // A question that is under way when the switch stops has another answer.
    screen.wait_until("why there is no answer", |text| {
        text.lines().any(|line| line.contains("NO ANSWER") && line.contains("is not running"))
    });
    assert!(screen.text().contains("-vm1"), "the last picture stays");
    scene.start(&config(&scene));
    screen.wait_until("the switch", |text| {
        !text.contains("NO ANSWER") && text.contains("restarted 1x")
    });
}

#[test]
fn each_way_out_leaves_the_terminal_as_it_was() {
    let scene = started();
    let Some(screen) = Screen::open(&scene) else { return };
    let before = screen.settings(&scene.path("before"));
    for (name, leave) in [("q", None), ("C-c", None), ("TERM", Some("TERM")), ("HUP", Some("HUP"))]
    {
        let pid = scene.path(&format!("pid-{name}"));
        let exec = format!("echo $$ > {}; exec {FLOODWAY} top", pid.display());
        screen.run(&format!("sh -c '{exec}'; echo left with $?"));
        screen.wait_for("of 3 ports running");
        match leave {
            None => screen.press(name),
            Some(signal) => {
                let pid = fs::read_to_string(&pid).unwrap();
                let killed = Command::new("kill").args(["-s", signal, pid.trim()]).status();
                assert!(killed.unwrap().success());
            }
        }
        screen.wait_for("left with 0");
        assert!(!screen.text().contains("PORT"), "{name}: the picture is gone");
        let after = screen.settings(&scene.path(&format!("after-{name}")));
        assert_eq!(after, before, "{name}");
        screen.run("clear");
        screen.wait_until("an empty screen", |text| !text.contains("left with"));
    }
}

#[test]
fn without_a_terminal_it_says_what_to_do_and_prints_what_scripts_read() {
    let scene = started();
    let output = scene.command(&["top"]).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("floodway: top needs a terminal (--once"), "{error}");
    assert_eq!(output.status.code(), Some(1));

    let words =
        ["top", "--once", "--json", "--interval", "0.1", "--sort", "name", "--filter", "vm"];
    let output = scene.command(&words).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    let names: Vec<_> =
        document["ports"].as_array().unwrap().iter().map(|port| port["name"].clone()).collect();
    assert_eq!(names, ["vm1", "vm2", "vm3"]);
    assert_eq!(document["ports"][0]["tx_bps"], 0.0);
    assert_eq!(document["ports"][0]["vcpu_wait"], serde_json::Value::Null);

    let output = scene.command(&["top", "--once", "--interval", "0.1"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("floodway 0.1.0  up ") && text.contains("\n-vm3 "), "{text}");

    let words = ["top", "--once", "--control", "none.sock"];
    assert_eq!(scene.command(&words).output().unwrap().status.code(), Some(1));
}
