//! "Why is my VM slow?": faults that are staged on real VMs, and what that page of the guide says to run: its commands name the cause, and so do
//! `diagnose`, `top` and the live page alone. Needs root and a `floodway` (`FLOODWAY_BIN`).
//!
//! Causes are told by counters of the switch and the kernel. Time is only waited for while a fault goes on.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use floodway_lab::agent::{Hog, Interface};
use floodway_lab::child::Process;
use floodway_lab::guest_image::GuestImage;
use floodway_lab::kernel::Series;
use floodway_lab::net::Namespace;
use floodway_lab::switch_process::{self, Switch, port};
use floodway_lab::vm::{Config, Nic, Vm};
use floodway_lab::{cleanup, vcpu};
use floodway_switch::config::{self, UplinkConfig, UplinkKind};
use floodway_wire::ethernet::MacAddr;
use serde_json::Value;

/// Far longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(300);
/// Most commands that a symptom may take.
const MOST: usize = 3;
/// What the guide's examples call the router behind the uplink.
const ROUTER: &str = "192.0.2.1";
const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);
/// The address that the guest with a spoofed one has, as in the guide.
const SPOOFED: &str = "52:54:00:00:00:09";

/// A host as in the guide: vm1 and vm2 have 10.0.0.1 and 10.0.0.2, the uplink is uplink0. What is dropped goes first.
struct Scene {
    web: Web,
    vms: Vec<Vm>,
    switch: Switch,
    host: Namespace,
    directory: PathBuf,
}

/// `floodway web`, with its address and token.
struct Web {
    _process: Process,
    address: String,
    token: String,
}

fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

impl Scene {
    fn start() -> Self {
        let host = Namespace::create("slow").unwrap();
        host.ip(&["link", "add", "fwp0", "type", "veth", "peer", "name", "fwp1"]).unwrap();
        host.ip(&["link", "set", "fwp0", "up"]).unwrap();
        host.ip(&["link", "set", "fwp1", "up"]).unwrap();
        let directory = cleanup::run_dir().unwrap().join("slow");
        fs::create_dir_all(&directory).unwrap();
        let socket = |n: u8| directory.join(format!("vm{n}.sock"));
        let mut uplink = UplinkConfig::new("uplink0", UplinkKind::Packet, "fwp0");
        uplink.gateway_macs = vec![ROUTER_MAC];
        let config = config::Config {
            control: directory.join("control.sock"),
            ports: [1, 2].map(|n| port(&format!("vm{n}"), &socket(n), mac(n))).to_vec(),
            uplinks: vec![uplink],
            ..config::Config::default()
        };
        let switch = Switch::start("switch", &directory, &config, Some(&host)).unwrap();
        let image = GuestImage::debian(Series::V6_1).unwrap();
        let vm = |n: u8| {
            let config = Config::new(format!("vm{n}"), &image);
            config.nic(Nic::vhost_user(socket(n), mac(n).to_string()))
        };
        let vms = Vm::boot_all([1, 2].map(vm).to_vec()).unwrap();
        let scene = Self { web: Web::start(&directory), vms, switch, host, directory };
        scene.configure();
        scene
    }

    /// Addresses of the guests, who know each other's and the router's, so that they go on when nobody answers.
    fn configure(&self) {
        for (n, vm) in (1..).zip(&self.vms) {
            let interface = Interface {
                name: "eth0".into(),
                addresses: vec![format!("10.0.0.{n}/24")],
                ..Interface::default()
            };
            vm.agent().configure_interface(&interface).unwrap();
            // It says who it is, as it asks all for somebody who is not there.
            let answer = vm.agent().exec(&["ping", "-c", "1", "-W", "1", "10.0.0.77"]);
            assert!(answer.is_err());
        }
        self.ping_until_answered();
        [1, 2].into_iter().for_each(|n| self.introduce(n));
    }

    fn introduce(&self, n: u8) {
        let (other, router) = (format!("10.0.0.{}", 3 - n), ROUTER_MAC.to_string());
        let address = mac(3 - n).to_string();
        let neighbour = |ip: &str, mac: &str| {
            let words = ["neigh", "replace", ip, "lladdr", mac, "nud", "permanent", "dev", "eth0"];
            self.ip(n, &words);
        };
        neighbour(&other, &address);
        self.ip(n, &["route", "replace", ROUTER, "dev", "eth0"]);
        neighbour(ROUTER, &router);
    }

    fn ping_until_answered(&self) {
        wait_until("an answer", || {
            let ping = ["ping", "-c", "1", "-W", "1", "10.0.0.2"];
            self.vm(1).agent().exec(&ping).is_ok()
        });
    }

    fn vm(&self, n: u8) -> &Vm {
        &self.vms[usize::from(n) - 1]
    }

    fn ip(&self, n: u8, words: &[&str]) {
        self.vm(n).agent().exec(&[&["ip"], words].concat()).unwrap();
    }

    /// Runs `work` while vm1 pings that address, with so many bytes each time.
    fn while_pinging(&self, address: &str, bytes: u32, work: impl FnOnce()) {
        let agent = self.vm(1).agent();
        let bytes = bytes.to_string();
        let ping = ["ping", "-q", "-i", "0.02", "-s", &bytes, address];
        let job = agent.spawn(&ping).unwrap();
        work();
        agent.signal(&job, libc::SIGKILL).unwrap();
        agent.wait(&job, LONG).unwrap();
    }

    /// Frames dropped for a reason since the start.
    fn drops(&self, reason: &str) -> f64 {
        self.switch.drops().unwrap().get(reason).copied().unwrap_or_default()
    }

    /// Waits until so many more frames are dropped for a reason.
    fn wait_for_drops(&self, reason: &str) {
        let before = self.drops(reason);
        wait_until(reason, || self.drops(reason) >= before + 20.0);
    }

    /// Runs a command of the guide. Returns what it prints.
    fn run(&self, command: &str) -> String {
        let program = switch_process::binary().unwrap();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", program.parent().unwrap().display());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("PATH", path).current_dir(&self.directory);
        shell.env("FLOODWAY_CONTROL", self.directory.join("control.sock"));
        let output = shell.output().unwrap();
        let [text, said] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        // 3 and 4 say that something was found.
        assert!(matches!(output.status.code(), Some(0 | 3 | 4)), "{command}: {text}{said}");
        format!("{command}\n{text}{said}")
    }

    /// Runs the guide's commands for a symptom. Each of `named` is the number of a command and what it has to say.
    fn follow_the_guide(&self, symptom: &str, named: &[(usize, &str)]) {
        let commands = commands(symptom);
        assert!((1..=MOST).contains(&commands.len()), "{symptom}: {commands:?}");
        let outputs: Vec<_> = commands.iter().map(|command| self.run(command)).collect();
        for &(number, cause) in named {
            assert!(outputs[number].contains(cause), "{cause:?} is not in {}", outputs[number]);
        }
    }

    /// What the guide begins with: three commands, each of which names the cause alone.
    fn look_from_three_sides(&self, victim: &str, diagnosis: &str, top: &str) {
        let [diagnose, text, web] = <[String; 3]>::try_from(commands("")).expect("three commands");
        let found = self.run(&diagnose.replace("vm1", victim));
        assert!(found.contains(diagnosis), "{diagnosis:?} is not in {found}");
        let seen = self.run(&text);
        assert!(seen.contains(top), "{top:?} is not in {seen}");
        assert_eq!(web, "floodway web", "it runs already");
        self.web.wait_for_finding(victim, diagnosis);
    }
}

impl Web {
    fn start(directory: &Path) -> Self {
        let log = directory.join("web.log");
        let mut command = Command::new(switch_process::binary().unwrap());
        command.args(["web", "--listen", "127.0.0.1:0", "--control"]);
        command.arg(directory.join("control.sock"));
        command.stdout(fs::File::create(&log).unwrap()).stdin(Stdio::null());
        let process = Process::spawn("the live page", command).unwrap();
        wait_until("a URL", || fs::read_to_string(&log).unwrap().ends_with('\n'));
        let said = fs::read_to_string(&log).unwrap();
        let url = said.trim().strip_prefix("the page is at http://").expect("a URL");
        let (address, token) = url.split_once("/#token=").expect("a token");
        Self { _process: process, address: address.to_owned(), token: token.to_owned() }
    }

    /// Waits until the page of a port shows a finding with this cause.
    fn wait_for_finding(&self, port: &str, cause: &str) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let route = format!("/v1/stream?port={port}&token={}", self.token);
        write!(stream, "GET {route} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let deadline = Instant::now() + LONG;
        let mut last = Value::Null;
        for facts in port_documents(stream) {
            let findings = facts["findings"].as_array().cloned().unwrap_or_default();
            let is_it = |finding: &Value| finding["problem"].as_str().unwrap().contains(cause);
            if findings.iter().any(is_it) {
                return;
            }
            assert!(Instant::now() < deadline, "{cause:?} is not in {findings:?}");
            last = facts;
        }
        panic!("the page has ended: {last}");
    }
}

/// What a stream of the page says of its port, again and again.
fn port_documents(stream: impl Read) -> impl Iterator<Item = Value> {
    let mut is_port = false;
    BufReader::new(stream).lines().map(Result::unwrap).filter_map(move |line| {
        match line.split_once(": ") {
            Some(("event", name)) => is_port = name == "port",
            Some(("data", json)) if is_port => {
                return Some(serde_json::from_str::<Value>(json).unwrap()["facts"].clone());
            }
            _ => {}
        }
        None
    })
}

/// The commands that the guide has for a symptom, or before all of them: the first block of shell there, without comments.
fn commands(symptom: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/guide/slow.md");
    let page = fs::read_to_string(path).unwrap();
    let heading = format!("\n## {symptom}");
    let (_, section) = page.split_once(&heading).unwrap_or_else(|| panic!("no {heading:?}"));
    let section = if symptom.is_empty() { &page } else { section };
    let (_, block) = section.split_once("```sh\n").expect("a block of shell");
    let (block, _) = block.split_once("```").expect("its end");
    let command = |line: &str| line.split(" # ").next().unwrap_or_default().trim().to_owned();
    block.lines().map(command).collect()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// vm2 stands still, as one that is stopped or whose driver hangs does, and vm1 goes on sending to it.
fn a_guest_without_buffers(scene: &Scene) {
    let pid = i32::try_from(scene.vm(2).pid()).unwrap();
    // SAFETY: kill takes plain numbers; the process is a child of ours that has not been waited for.
    let signal = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    signal(libc::SIGSTOP);
    scene.while_pinging("10.0.0.2", 60_000, || {
        scene.wait_for_drops("queue_full");
        let cause = "queue_full: the guest gives no receive buffers back";
        scene.look_from_three_sides("vm2", cause, "vm2: dropped rx queue_full");
        let named = [(0, cause), (1, "0 buffers are free"), (2, "vm2: dropped rx queue_full")];
        scene.follow_the_guide("The VM answers late, or not at all", &named);
    });
    signal(libc::SIGCONT);
    scene.ping_until_answered();
}

fn a_spoofed_address(scene: &Scene) {
    let interface = |address: String| Interface {
        name: "eth0".into(),
        mac: Some(address),
        ..Interface::default()
    };
    let agent = scene.vm(1).agent();
    agent.configure_interface(&interface(SPOOFED.into())).unwrap();
    scene.introduce(1);
    scene.while_pinging("10.0.0.2", 56, || {
        scene.wait_for_drops("spoofed_mac");
        let cause = "spoofed_mac: the guest sends from a MAC address that is not the port's";
        scene.look_from_three_sides("vm1", cause, &format!("vm1: dropped tx {}", reason(cause)));
        let only = format!("the guest may send from {} only", mac(1));
        let named = [(0, cause), (1, "drop spoofed_mac"), (1, &only), (2, "1 frames captured")];
        scene.follow_the_guide("Nothing that the VM sends arrives", &named);
    });
    agent.configure_interface(&interface(mac(1).to_string())).unwrap();
    scene.introduce(1);
    scene.ping_until_answered();
}

/// The reason at the start of a cause.
fn reason(cause: &str) -> &str {
    cause.split(':').next().unwrap()
}

fn an_mtu_mismatch(scene: &Scene) {
    scene.ip(1, &["link", "set", "eth0", "mtu", "9000"]);
    scene.while_pinging("10.0.0.2", 8000, || {
        scene.wait_for_drops("oversize");
        scene.ping_until_answered();
        let cause = "oversize: sender and receiver do not agree on the MTU";
        scene.look_from_three_sides("vm2", cause, "vm2: dropped rx oversize");
        let named = [(0, cause), (1, "larger than the port's mtu = 1500 allows")];
        scene.follow_the_guide("Small packets pass, large ones do not", &named);
    });
    scene.ip(1, &["link", "set", "eth0", "mtu", "1500"]);
}

fn an_uplink_that_drops(scene: &Scene) {
    scene.host.ip(&["link", "set", "fwp0", "down"]).unwrap();
    scene.while_pinging(ROUTER, 56, || {
        scene.wait_for_drops("uplink_error");
        let cause = "uplink_error: its device is down or gone, or has a smaller MTU";
        scene.look_from_three_sides("vm1", cause, "uplink0: dropped tx uplink_error");
        let named = [(0, cause), (0, "uplink uplink0"), (1, "uplink_error")];
        scene.follow_the_guide("VMs of the host reach each other, and nobody else", &named);
    });
    scene.host.ip(&["link", "set", "fwp0", "up"]).unwrap();
}

/// Both guests compute on one core.
fn a_contended_vcpu(scene: &Scene) {
    let hog = Hog { duty: 1.0, period_us: 20_000, vcpus: vec![0], nice: 0 };
    for vm in &scene.vms {
        vcpu::pin(vm.vcpu_threads().unwrap()[0], &[0]).unwrap();
        vm.agent().hog_start(&hog).unwrap();
    }
    let cause = "its vCPUs wait for a CPU";
    scene.look_from_three_sides("vm1", cause, "vm1: vCPUs wait for a CPU");
    let named = [(0, cause), (1, "vm1: vCPUs wait for a CPU"), (2, "flooded frames may pass now")];
    scene.follow_the_guide("It works, and it is slow", &named);
    scene.vms.iter().for_each(|vm| drop(vm.agent().hog_stop().unwrap()));
}

/// One after the other on the same VMs: what was dropped before must not hide what is dropped now.
#[test]
fn five_staged_faults_are_named_by_diagnose_top_and_the_live_page() {
    let scene = Scene::start();
    a_guest_without_buffers(&scene);
    a_spoofed_address(&scene);
    an_mtu_mismatch(&scene);
    an_uplink_that_drops(&scene);
    a_contended_vcpu(&scene);
}
