//! A host with a switch and VMs that have something to do, for looking at: `floodway top`, `floodway web`, and the test of the page.
//!
//! ```sh
//! cargo build -p floodway --example busy_host
//! target/debug/examples/busy_host DIRECTORY    # as root; until standard input ends
//! floodway web --control DIRECTORY/control.sock
//! ```
//!
//! The switch is `floodway run`. Each VM is a process of its own: the kernel's TCP in a network namespace behind a tap, and a thread that moves frames between the tap and
//! virtqueues, which is called like QEMU's vCPUs, so that its waiting for a CPU counts. Beyond the uplink is a path with a rate, a delay and losses, and then a peer.
//! No VM needs KVM, and no file is made outside the directory.

mod apps;
mod vm;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use floodway_netem::engine::{Engine, Signals};
use floodway_netem::{LinkSpec, Loss, PortSpec, Spec};
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::wait_until;
use rustix::process::{Signal, set_parent_process_death_signal};

/// VMs by what they do: see [`apps::run`].
const VMS: [&str; 8] = ["web1", "web2", "app1", "cache1", "db1", "db2", "batch1", "idle1"];
/// A port whose VM never comes.
const SPARE: &str = "spare1";
/// The interface of the switch's uplink, and the ends of the link to the peer.
const UPLINK: &str = "fwu0";
const LINK: [&str; 2] = ["fwp0", "fwp1"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["vm", socket, index, connections] => {
            end_with_parent();
            let index = index.parse().expect("an index");
            vm::run(Path::new(socket), index, connections.parse().expect("a number"));
        }
        ["peer", device] => {
            end_with_parent();
            apps::peer(device);
        }
        [directory] => run(Path::new(directory), 20),
        [directory, connections] => {
            run(Path::new(directory), connections.parse().expect("a number"));
        }
        _ => {
            eprintln!("usage: busy_host DIRECTORY [CONNECTIONS OF EACH VM]");
            std::process::exit(2);
        }
    }
}

/// Runs the host, with so many quiet connections of each VM beside the busy ones.
fn run(directory: &Path, connections: u32) {
    enter_namespace();
    fs::write(directory.join("switch.toml"), configuration(directory)).expect("write the file");
    let mut switch = Command::new(switch_program());
    switch.args(["run", "--log", "warn", "--config"]).arg(directory.join("switch.toml"));
    let mut children = vec![Running(switch.spawn().expect("start the switch"))];
    wait_until("the switch's sockets", || socket(directory, SPARE).exists());
    children.push(peer());
    let path = emulate();
    for (index, name) in VMS.iter().enumerate() {
        let mut vm = this_program();
        vm.arg("vm")
            .arg(socket(directory, name))
            .args([index.to_string(), connections.to_string()]);
        children.push(Running(vm.spawn().expect("start a VM")));
    }
    println!("ready");
    // Whoever started this holds the other end.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    path.stop.store(true, Relaxed);
    // The switch goes last.
    children.drain(1..).for_each(drop);
}

fn configuration(directory: &Path) -> String {
    let port = |(index, name): (usize, &&str)| {
        format!(
            "[[port]]\nname = \"{name}\"\nsocket = {:?}\nmac = \"{}\"\nstorm_pps = 0\n\
             offload = {{ transmit = true, receive = true, budget = 1048576 }}\n",
            socket(directory, name),
            mac(index as u8 + 1)
        )
    };
    let names: Vec<&str> = VMS.into_iter().chain([SPARE]).collect();
    let ports: String = names.iter().enumerate().map(port).collect();
    format!(
        "control = {:?}\n[[uplink]]\nname = \"uplink0\"\nkind = \"tap\"\ndevice = \"{UPLINK}\"\n{ports}",
        directory.join("control.sock")
    )
}

fn socket(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.sock"))
}

/// The peer in its namespace, at the other end of a link.
fn peer() -> Running {
    ip(&format!("link add {} type veth peer name {}", LINK[0], LINK[1]));
    let child = this_program().args(["peer", LINK[1]]).stdin(Stdio::piped()).spawn();
    let mut child = Running(child.expect("start the peer"));
    let own = fs::read_link("/proc/self/ns/net").expect("a namespace");
    let namespace = format!("/proc/{}/ns/net", child.0.id());
    wait_until("the peer's namespace", || fs::read_link(&namespace).is_ok_and(|its| its != own));
    ip(&format!("link set {} netns {}", LINK[1], child.0.id()));
    // It goes on when its standard input ends.
    drop(child.0.stdin.take());
    for device in [LINK[0], UPLINK] {
        ip(&format!("link set {device} addrgenmode none"));
        ip(&format!("link set {device} up"));
    }
    child
}

/// Joins the uplink and the link to the peer: 60 Mbit/s, 40 ms there and back, a short queue and rare losses.
fn emulate() -> Signals {
    let mut to_peer = PortSpec::packet("peer", None, LINK[0]);
    to_peer.egress = LinkSpec {
        rate_mbit: Some(60.0),
        delay_ms: 20.0,
        queue_bytes: 200_000,
        loss: Some(Loss::Random(0.0008)),
        ..LinkSpec::default()
    };
    let mut to_switch = PortSpec::packet("switch", None, UPLINK);
    to_switch.egress = LinkSpec { rate_mbit: Some(100.0), delay_ms: 20.0, ..LinkSpec::default() };
    let signals = Signals::default();
    let spec = Spec { spin_us: 0, ..Spec::path(to_switch, to_peer) };
    let stopped = signals.clone();
    thread::spawn(move || {
        let mut engine = Engine::open(spec, None, stopped).expect("open the path");
        engine.run().expect("a path");
    });
    signals
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("a path"))
}

/// `floodway` of the same build.
fn switch_program() -> PathBuf {
    let examples = std::env::current_exe().expect("a path");
    examples.ancestors().nth(2).expect("a target directory").join("floodway")
}

/// Has this process ended when the one that started it ends.
fn end_with_parent() {
    set_parent_process_death_signal(Some(Signal::TERM)).expect("a signal");
}

/// Goes into an empty network namespace, for this thread and what it starts.
fn enter_namespace() {
    // SAFETY: takes no pointers; changes the namespace of this thread only.
    let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(
        rc,
        0,
        "it needs a network namespace (run it as root): {}",
        io::Error::last_os_error()
    );
}

/// Runs ip(8) here.
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("ip(8), from Debian's package iproute2");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {complaint}");
}

/// A process that is asked to end when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).expect("a process");
        // SAFETY: kill takes plain numbers; the child is not yet waited for, so the id is its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}
