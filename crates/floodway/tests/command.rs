//! The built command: what it prints, where, and with which exit code.

mod common;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, Running};

/// How the switch is run: what operators can do is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processes {
    One,
    Two,
}

/// A directory with a configuration of one port, whose guest never comes.
struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { directory: tempfile::tempdir().unwrap() };
        scene.configure("mtu = 1500");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configure(&self, extra: &str) {
        let text = format!(
            "control = {:?}\n[[port]]\nname = \"vm1\"\nsocket = {:?}\n{extra}\n",
            self.path("control.sock"),
            self.path("vm1.sock"),
        );
        fs::write(self.path("switch.toml"), text).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
        command.args(words).env_remove("FLOODWAY_LOG");
        command.env("FLOODWAY_CONTROL", self.path("control.sock"));
        command.current_dir(self.directory.path());
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// A switch that answers on its control socket.
    fn start(&self) -> Running {
        self.wait_for(self.command(&["run", "--config", "switch.toml"]))
    }

    /// A switch of that many processes.
    fn start_as(&self, processes: Processes) -> Running {
        match processes {
            Processes::One => {
                self.wait_for(self.command(&["run", "--single-process", "--config", "switch.toml"]))
            }
            Processes::Two => self.start(),
        }
    }

    /// The switch that `command` starts, once it answers.
    fn wait_for(&self, mut command: Command) -> Running {
        let mut running = Running(command.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while !self.output(&["status"]).status.success() {
            assert_eq!(running.0.try_wait().unwrap(), None, "the switch ended by itself");
            assert!(Instant::now() < deadline, "the switch does not answer");
            thread::sleep(Duration::from_millis(20));
        }
        running
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn check_accepts_a_valid_configuration_and_opens_nothing() {
    let scene = Scene::new();
    let output = scene.output(&["run", "--config", "switch.toml", "--check"]);
    assert_eq!(stdout(&output), "switch.toml: valid: 1 worker, 1 port, 0 uplinks\n");
    assert_eq!(output.status.code(), Some(0));
    assert!(!scene.path("control.sock").exists());
}

#[test]
fn a_wrong_configuration_is_one_line_and_exit_code_2() {
    let scene = Scene::new();
    scene.configure("mtu = 20");
    let expected =
        "floodway: switch.toml:5: port[0] \"vm1\".mtu = 20: must be an integer from 68 to 65535\n";
    for extra in [&["--check"][..], &[]] {
        let output = scene.output(&[&["run", "--config", "switch.toml"], extra].concat());
        assert_eq!((stderr(&output).as_str(), output.status.code()), (expected, Some(2)));
    }
}

#[test]
fn status_without_a_switch_says_so_with_exit_code_1() {
    let scene = Scene::new();
    let output = scene.output(&["status", "--control", "none.sock"]);
    let expected = "floodway: floodway is not running or uses another control socket: none.sock (set --control)\n";
    assert_eq!((stderr(&output).as_str(), output.status.code()), (expected, Some(1)));
}

#[test]
fn a_switch_answers_refuses_a_second_and_stops_cleanly() {
    let scene = Scene::new();
    let mut running = scene.start();

    let table = stdout(&scene.output(&["status"]));
    assert!(table.lines().any(|line| line.starts_with("vm1   down   any")), "{table}");
    let json = scene.output(&["status", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["switch"]["predecessors"]["broker"], running.0.id());
    assert_ne!(json["switch"]["pid"], running.0.id(), "frames are moved by another process");
    assert_ne!(json["switch"]["sandbox"], "off");
    assert_eq!(json["ports"][0]["queue_pairs_offered"], 1);

    let second = scene.output(&["run", "--config", "switch.toml"]);
    assert!(
        stderr(&second).starts_with("floodway: floodway is already running on control socket ")
    );
    assert_eq!(second.status.code(), Some(1));
    assert!(scene.output(&["status"]).status.success());

    running.signal(libc::SIGTERM);
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    assert!(!scene.path("control.sock").exists());
}

#[test]
fn a_switch_of_a_single_process_says_that_it_has_no_sandbox() {
    let scene = Scene::new();
    let command = scene.command(&["run", "--config", "switch.toml", "--single-process"]);
    let mut running = scene.wait_for(command);
    let json = scene.output(&["status", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["switch"]["pid"], running.0.id());
    assert_eq!(json["switch"]["predecessors"], serde_json::Value::Null);
    assert!(stdout(&scene.output(&["status"])).contains("sandbox: OFF"));
    running.signal(libc::SIGTERM);
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

/// Nothing would outlive the process.
#[test]
fn a_switch_of_a_single_process_acknowledges_nothing_early() {
    const WHY: &str = "needs a switch of two processes";
    let scene = Scene::new();
    scene.configure("[port.offload]\ntransmit = \"auto\"");
    let refused = scene.output(&["run", "--config", "switch.toml", "--single-process"]);
    assert!(stderr(&refused).contains(WHY), "{refused:?}");
    assert_eq!(refused.status.code(), Some(1));
    scene.configure("[port.offload]\ntransmit = true");
    let _running = scene.start_as(Processes::One);
    let refused = scene.output(&["offload", "vm1", "--transmit", "agentless"]);
    assert!(!refused.status.success() && stderr(&refused).contains(WHY), "{refused:?}");
    let shown = scene.output(&["offload", "vm1", "--json"]);
    assert!(stdout(&shown).contains("\"transmit\": true"), "{shown:?}");
}

#[test]
fn a_switch_says_whether_connections_can_follow_vms_and_why_not() {
    const HOSTS: &str = "[migration]\nhosts = [\"b.example:4790\"]\n";
    let scene = Scene::new();
    let run = ["run", "--config", "switch.toml"];
    scene.configure(&format!(
        "{HOSTS}certificate = \"/nowhere/c.pem\"\nkey = \"/nowhere/k\"\nauthorities = \"/nowhere/a.pem\""
    ));
    for extra in [&["--check"][..], &[]] {
        let refused = scene.output(&[&run[..], extra].concat());
        let found = stderr(&refused);
        assert!(found.contains("migration.certificate = \"/nowhere/c.pem\": "), "{refused:?}");
        assert_eq!(refused.status.code(), Some(2));
    }
    scene.configure(&format!("{HOSTS}plain = true"));
    let refused = scene.output(&[&run[..], &["--single-process"]].concat());
    assert!(stderr(&refused).contains("migration: needs a switch of two processes"), "{refused:?}");
    let _running = scene.start();
    let shown = stdout(&scene.output(&["status"]));
    assert!(shown.contains("\nmoves with connections: 0 out, 0 in, 0 without\n"), "{shown}");
}

#[test]
fn a_killed_switch_is_replaced() {
    let scene = Scene::new();
    let mut killed = scene.start();
    killed.signal(libc::SIGKILL);
    assert_eq!(killed.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(Path::exists(&scene.path("control.sock")));

    let mut running = scene.start();
    running.signal(libc::SIGINT);
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn completions_and_version() {
    let scene = Scene::new();
    assert!(stdout(&scene.output(&["completions", "bash"])).contains("complete -F _floodway"));
    let version = format!("floodway {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&scene.output(&["version"])), version);
    assert_eq!(stdout(&scene.output(&["--version"])), version);
    assert_eq!(scene.output(&["run"]).status.code(), Some(2));
}

#[test]
fn a_service_manager_hears_of_start_life_and_stop() {
    let scene = Scene::new();
    let manager = UnixDatagram::bind(scene.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut buffer = [0; 256];
        let n = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    let mut command = scene.command(&["run", "--config", "switch.toml"]);
    command.env("NOTIFY_SOCKET", scene.path("notify")).env("WATCHDOG_USEC", "100000");
    let mut running = Running(command.spawn().unwrap());
    // The port's journal.
    assert!(heard().starts_with("FDSTORE=1\nFDNAME=journal-"));
    assert_eq!(heard(), "READY=1\nSTATUS=running with 1 worker, 1 port, 0 uplinks\n");
    // Ready means that it answers.
    assert!(scene.output(&["status"]).status.success());
    assert_eq!([heard(), heard()], ["WATCHDOG=1\n", "WATCHDOG=1\n"]);
    running.signal(libc::SIGTERM);
    let last = std::iter::repeat_with(heard).find(|state| state != "WATCHDOG=1\n");
    assert_eq!(last.as_deref(), Some("STOPPING=1\n"));
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let scene = Scene::new();
    assert!(scene.output(&["man", "."]).status.success());
    for page in ["floodway", "floodway-run", "floodway-diagnose", "floodway-trace"] {
        let text = fs::read_to_string(scene.path(&format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH NAME"), "{page}: {text}");
    }
    let missing = scene.output(&["man", "missing"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("cannot write manual pages into missing"));
}

#[test]
fn the_exit_code_of_a_diagnosis_says_how_bad_it_is() {
    let scene = Scene::new();
    let _running = scene.start();
    // Nobody has connected yet.
    let output = scene.output(&["diagnose", "vm1"]);
    let socket = scene.path("vm1.sock");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("mode 0660"), "{text}");
    assert!(text.ends_with(&format!("try: namei -l {}\n", socket.display())), "{text}");
    fs::remove_file(&socket).unwrap();
    let output = scene.output(&["diagnose", "vm1", "--json"]);
    assert_eq!(output.status.code(), Some(4));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["findings"][0]["severity"], "error");
    assert_eq!(json["socket"]["file"], serde_json::Value::Null);
    assert_eq!(scene.output(&["diagnose", "vm9"]).status.code(), Some(1));
    assert_eq!(scene.output(&["diagnose"]).status.code(), Some(2));
}

#[test]
fn a_frame_is_traced_and_traced_again_from_its_bytes() {
    let scene = Scene::new();
    let _running = scene.start();
    let words = ["trace", "vm1", "--arp", "10.0.0.9", "--src-mac", "02:00:00:00:00:07"];
    let output = scene.output(&words);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(3), "{text}{}", stderr(&output));
    assert!(text.contains("no guest runs here; traced as if one did"), "{text}");
    assert!(text.ends_with("dropped at vm1: no_destination\n"), "{text}");
    let json = |words: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&scene.output(words).stdout).unwrap()
    };
    let first = json(&[&words[..], &["--json"]].concat());
    let again = json(&["trace", "vm1", "--json", "--frame", first["frame"].as_str().unwrap()]);
    assert_eq!(first, again);
    assert_eq!(first["ends"][0]["drop"], "no_destination");
    for (words, expected) in [
        (&["vm9", "--arp", "10.0.0.9"][..], "no port or uplink \"vm9\"; there are vm1"),
        (&["vm1", "--frame", "5254zz"], "frame: must be bytes as pairs of hexadecimal digits"),
        (
            &["vm1", "--udp", "10.0.0.1:1->10.0.0.9:2", "--src-mac", "02:00:00:00:00:07"],
            "dst_mac: whose address 10.0.0.9 is is not known",
        ),
    ] {
        let output = scene.output(&[&["trace"], words].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    assert_eq!(scene.output(&["trace", "vm1"]).status.code(), Some(2));
}

#[test]
fn ports_are_changed_while_the_switch_runs_and_saved() {
    ports_are_changed_and_saved(Processes::Two);
}

#[test]
fn ports_of_a_single_process_are_changed_while_it_runs_and_saved() {
    ports_are_changed_and_saved(Processes::One);
}

fn ports_are_changed_and_saved(processes: Processes) {
    let scene = Scene::new();
    let running = scene.start_as(processes);
    let done = |words: &[&str]| {
        let output = scene.output(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        stdout(&output)
    };
    let failed = |words: &[&str]| {
        let output = scene.output(words);
        assert!(!output.status.success(), "{words:?}: {output:?}");
        stderr(&output)
    };
    let socket = scene.path("vm2.sock");
    let key = format!("socket={}", socket.display());
    let plan = format!("+ port vm2: mtu = 9000, socket = \"{}\"\n", socket.display());
    assert_eq!(done(&["port", "add", "vm2", &key, "mtu=9000", "--dry-run"]), plan);
    assert!(!socket.exists());
    assert_eq!(done(&["port", "add", "vm2", &key, "mtu=9000", "--save", "switch.toml"]), plan);
    assert!(socket.exists());
    let error = failed(&["port", "add", "vm2", &key]);
    assert_eq!(error, "floodway: port \"vm2\" is there already; use floodway port set\n");
    let change = ["port", "set", "vm2", "mtu=", "storm_pps=7", "--save", "switch.toml"];
    let plan = "~ port vm2: mtu = 9000 -> default, storm_pps = default -> 7 (its front-end connects again)\n";
    assert_eq!(done(&change), plan);
    let shown = format!("name = \"vm2\"\nsocket = \"{}\"\nstorm_pps = 7\n", socket.display());
    assert_eq!(done(&["port", "show", "vm2"]), shown);
    let networks = done(&["network", "list"]);
    assert!(networks.contains("default  vm1 vm2  none"), "{networks}");
    let network = done(&["network", "show", "default"]);
    assert!(network.starts_with("network default, VID none\n\nMEMBER"), "{network}");
    assert!(done(&["network", "show", "default", "--json"]).contains("\"vid\": null"));
    let error = failed(&["network", "show", "red"]);
    assert_eq!(error, "floodway: no network \"red\"; the networks are default\n");
    let error = failed(&["port", "set", "vm2", "mtu=70000"]);
    assert_eq!(
        error,
        "floodway: port[1] \"vm2\".mtu = 70000: must be an integer from 68 to 65535\n"
    );
    // What was saved is what runs.
    assert_eq!(done(&["apply", "-f", "switch.toml"]), "no changes\n");
    drop(running);
    let _running = scene.start_as(processes);
    assert_eq!(done(&["port", "show", "vm2"]), shown);
    done(&["port", "del", "vm2", "--save", "switch.toml"]);
    assert!(!socket.exists());
    assert_eq!(done(&["apply", "-f", "switch.toml"]), "no changes\n");
}

#[test]
fn a_file_is_applied_by_command_and_by_signal_and_a_bad_one_changes_nothing() {
    a_file_is_applied(Processes::Two);
}

#[test]
fn a_file_is_applied_to_a_single_process() {
    a_file_is_applied(Processes::One);
}

fn a_file_is_applied(processes: Processes) {
    let scene = Scene::new();
    let running = scene.start_as(processes);
    let pps = || stdout(&scene.output(&["port", "show", "vm1"]));
    scene.configure("storm_pps = 5");
    let dry = stdout(&scene.output(&["apply", "-f", "switch.toml", "--dry-run"]));
    assert_eq!(dry, "~ port vm1: storm_pps = default -> 5\n");
    assert!(!pps().contains("storm_pps"));
    scene.output(&["apply", "-f", "switch.toml"]);
    assert!(pps().contains("storm_pps = 5\n"));

    scene.configure("storm_pps = \"many\"");
    let output = scene.output(&["apply", "-f", "switch.toml"]);
    let expected = "floodway: switch.toml:5: port[0] \"vm1\".storm_pps = \"many\": must be an integer from 0 to 4294967295\n";
    assert_eq!((stderr(&output).as_str(), output.status.code()), (expected, Some(2)));
    running.signal(libc::SIGHUP);
    assert!(scene.output(&["status"]).status.success(), "it goes on");

    scene.configure("storm_pps = 6");
    running.signal(libc::SIGHUP);
    let deadline = Instant::now() + PATIENCE;
    while !pps().contains("storm_pps = 6\n") {
        assert!(Instant::now() < deadline, "the signal has no effect");
        thread::sleep(Duration::from_millis(20));
    }
    let mut running = running;
    running.signal(libc::SIGTERM);
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn offload_is_shown_and_changed_and_drained() {
    let scene = Scene::new();
    scene.configure("[port.offload]\nreceive = true\nbudget = 131072");
    let _running = scene.start();
    let shown = |words: &[&str]| {
        let output = scene.output(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let setting = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect("the setting");
        line.split_whitespace().nth(1).expect("a value").to_owned()
    };
    let text = shown(&["offload", "vm1"]);
    assert_eq!(
        (setting(&text, "transmit"), setting(&text, "receive ")),
        ("off".into(), "on".into())
    );
    assert_eq!(setting(&text, "budget"), "131072");
    let text =
        shown(&["offload", "vm1", "--transmit", "on", "--congestion", "reno", "--budget", "1MiB"]);
    assert_eq!(setting(&text, "transmit"), "on");
    assert_eq!(
        (setting(&text, "congestion"), setting(&text, "budget")),
        ("reno".into(), "1048576".into())
    );
    assert!(shown(&["offload", "vm1", "--json"]).contains("\"congestion\": \"reno\""));
    assert_eq!(shown(&["flows"]), "no flows\n");
    assert_eq!(shown(&["pairs"]), "no pairs\n");
    assert_eq!(shown(&["pairs", "vm1", "--json"]), "[]\n");
    assert_eq!(shown(&["flows", "vm1", "--json"]), "[]\n");
    assert!(shown(&["drain", "vm1"]).contains("vm1: drained"));
    assert!(shown(&["status"]).contains("draining"));
    assert!(shown(&["drain", "vm1", "--undo"]).contains("no longer draining"));

    let refused = |words: &[&str]| {
        let output = scene.output(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(refused(&["offload", "vm9"]), "floodway: no port \"vm9\"; the ports are vm1\n");
    let message = refused(&["offload", "vm1", "--congestion", "best"]);
    assert!(message.starts_with("floodway: congestion = \"best\": must be \"reno\""), "{message}");
    assert!(refused(&["drain", "vm9"]).contains("no port"));
}

#[test]
fn the_openapi_document_is_the_one_in_the_guide() {
    let output = Scene::new().output(&["openapi"]);
    assert!(output.status.success());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/guide/openapi.json");
    let known = fs::read(path).unwrap_or_default();
    assert!(
        output.stdout == known,
        "write it anew: cargo run -q -p floodway openapi > docs/src/guide/openapi.json"
    );
}
