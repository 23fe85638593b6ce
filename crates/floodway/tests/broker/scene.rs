//! A switch of two processes, its guests, and what tests do to them.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use floodway_process::fault::{Points, VARIABLE};
use floodway_switch::testing::frames::{mac, numbered};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};

/// In the switch's directory, if its processes are to end at points.
const POINTS: &str = "points";
/// In the switch's directory, if it has a service manager.
pub const NOTIFY: &str = "notify";

/// A switch of two processes with two ports, killed when the test is over however it ends.
pub struct Scene {
    pub directory: tempfile::TempDir,
    pub broker: Child,
}

impl Scene {
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// A switch whose configuration has `extra` at its end.
    pub fn start_with(extra: &str) -> Self {
        Self::launch(extra, &[])
    }

    /// A switch that is started with more options.
    pub fn start_with_arguments(arguments: &[&str]) -> Self {
        Self::launch("", arguments)
    }

    pub fn launch(extra: &str, arguments: &[&str]) -> Self {
        Self::launch_in(tempfile::tempdir().unwrap(), extra, arguments)
    }

    /// A switch whose processes a test can end at the points that are returned.
    pub fn launch_with_points(extra: &str) -> (Self, Points) {
        let directory = tempfile::tempdir().unwrap();
        let points = Points::create(&directory.path().join(POINTS)).unwrap();
        (Self::launch_in(directory, extra, &["--longest-pause", "0"]), points)
    }

    pub fn launch_in(directory: tempfile::TempDir, extra: &str, arguments: &[&str]) -> Self {
        configure(directory.path(), "control.sock", extra);
        let broker = run(directory.path()).args(arguments).spawn().unwrap();
        let mut scene = Self { directory, broker };
        wait("the switch to answer", || {
            assert_eq!(scene.broker.try_wait().unwrap(), None, "it ended by itself");
            scene.status()
        });
        scene
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn status(&self) -> Option<serde_json::Value> {
        let output = self.output(&["status", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    pub fn output(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
        command.args(words).env("FLOODWAY_CONTROL", self.path("control.sock")).output().unwrap()
    }

    pub fn kill_data_plane(&self) {
        self.signal_data_plane(libc::SIGKILL);
    }

    /// The process of a data plane that may not answer yet; `None` if there is none.
    pub fn running(&self) -> Option<u64> {
        self.process("data-plane")
    }

    /// The process of the descriptor store.
    pub fn store(&self) -> u64 {
        self.process("descriptor-store").expect("a store")
    }

    fn process(&self, command: &str) -> Option<u64> {
        let is_one = |number: &u64| {
            let words = fs::read_to_string(format!("/proc/{number}/cmdline")).unwrap_or_default();
            words.split('\0').any(|word| word == command)
        };
        self.processes().into_iter().find(is_one)
    }

    /// All processes of the switch: those that live in its directory.
    pub fn processes(&self) -> Vec<u64> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_here = |number: &u64| {
            let directory = fs::read_link(format!("/proc/{number}/cwd"));
            directory.is_ok_and(|directory| directory == self.directory.path())
        };
        numbers.filter(is_here).collect()
    }

    /// Number of the data plane's process.
    pub fn data_plane(&self) -> u64 {
        wait("a status", || self.status())["switch"]["pid"].as_u64().unwrap()
    }

    /// Sends the data plane a signal that ends it; returns when the next one serves both guests. Until then frames to a guest that is not
    /// there yet are dropped.
    pub fn signal_data_plane(&self, number: i32) {
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

    pub fn boot(&self, n: u8) -> Vm {
        let guest = Guest::new(GuestConfig::default());
        let frontend = Frontend::attach(&self.path(&format!("vm{n}.sock")), &guest);
        Vm { n, guest, frontend }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
        // They outlive it.
        for number in self.processes() {
            // SAFETY: kill takes plain numbers. Fails for one that has ended meanwhile.
            unsafe { libc::kill(i32::try_from(number).unwrap(), libc::SIGKILL) };
        }
    }
}

pub fn configure(directory: &Path, control: &str, extra: &str) {
    let port = |n: u8| {
        let socket = directory.join(format!("vm{n}.sock"));
        format!(
            "[[port]]\nname = \"vm{n}\"\nsocket = {socket:?}\nmac = \"{}\"\nstorm_pps = 0\n",
            mac(n)
        )
    };
    let text = format!("control = {:?}\n{}{}{extra}", directory.join(control), port(1), port(2));
    fs::write(directory.join("switch.toml"), text).unwrap();
}

pub fn run(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
    command.args(["run", "--config", "switch.toml"]);
    prepare(command, directory)
}

/// A command that starts the switch in `directory`.
pub fn prepare(mut command: Command, directory: &Path) -> Command {
    command.env_remove("FLOODWAY_LOG").current_dir(directory);
    let manager = directory.join(NOTIFY);
    if manager.exists() {
        command.env("NOTIFY_SOCKET", manager);
    }
    let points = directory.join(POINTS);
    if points.exists() {
        command.env(VARIABLE, points);
    }
    // SAFETY: the call between fork and exec takes plain numbers.
    unsafe { command.pre_exec(inherit_nothing) };
    command
}

/// Sees to it that the program that is started has none of the descriptors that tests beside have open just now, without the flag that closes them.
fn inherit_nothing() -> std::io::Result<()> {
    // SAFETY: takes plain numbers. Descriptors stay open until exec.
    let rc = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

pub fn signal(pid: u64, signal: i32) {
    // SAFETY: kill takes plain numbers; the process is one of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(i32::try_from(pid).unwrap(), signal) }, 0);
}

pub fn descriptors(process: &Child) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().count()
}

pub struct Vm {
    pub n: u8,
    pub guest: Guest,
    pub frontend: Frontend,
}

impl Vm {
    pub fn send(&mut self, frame: &[u8]) {
        wait("room to transmit", || self.guest.send(0, &Default::default(), frame).then_some(()));
    }

    /// Waits for `frame`, and lets others pass: what was under way at a death may come twice.
    pub fn expect(&mut self, frame: &[u8]) {
        wait_until(&format!("a frame for VM {}", self.n), || {
            std::iter::from_fn(|| self.guest.recv(0)).any(|(_, got)| got == frame)
        });
    }
}

/// Payload bytes of the frames that [`exchange`] sends.
pub const EXCHANGED: usize = 700;

/// Sends a frame each way and waits for it. The data plane may not have completed the batch yet when this returns.
pub fn exchange(a: &mut Vm, b: &mut Vm, number: u32) {
    let there = numbered(a.n, b.n, number, EXCHANGED);
    a.send(&there);
    b.expect(&there);
    let back = numbered(b.n, a.n, number, EXCHANGED);
    b.send(&back);
    a.expect(&back);
}
