//! However a lab ends, nothing of it stays. Needs root.
//!
//! The lab that ends here is this test program itself, started again to run only [`victim`], which boots
//! a VM, makes a namespace and an interface, says what they are, and then does as it is told.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use floodway_lab::guest_image::GuestImage;
use floodway_lab::kernel::Series;
use floodway_lab::vm::{Config, Vm};
use floodway_lab::{cleanup, process};

const LONG: Duration = Duration::from_secs(300);
/// Tells the victim what to do in the end.
const END: &str = "FLOODWAY_TEST_END";
const MARK: &str = "victim:";

/// Not a test: the program that ends in several ways.
#[test]
#[ignore = "run by the other tests of this file"]
fn victim() {
    let Ok(end) = std::env::var(END) else { return };
    let image = GuestImage::debian(Series::V6_1).unwrap();
    let vm = Vm::boot(Config::new("victim", &image)).unwrap();
    let namespace = cleanup::namespace_name("victim");
    process::run(&["ip", "netns", "add", &namespace]).unwrap();
    let one = cleanup::register_command("namespace", &["ip", "netns", "del", &namespace]).unwrap();
    let tap =
        cleanup::interface_name("victim").unwrap_or_else(|_| cleanup::interface_name("v").unwrap());
    process::run(&["ip", "tuntap", "add", &tap, "mode", "tap"]).unwrap();
    let two = cleanup::register_command("tap", &["ip", "link", "del", &tap]).unwrap();
    let dir = cleanup::run_dir().unwrap().display();
    println!("\n{MARK} {} {namespace} {tap} {dir}", vm.pid());
    match &end[..] {
        "panic" => panic!("on purpose"),
        "exit" => std::process::exit(0),
        _ => std::thread::sleep(LONG),
    }
    drop((one, two, vm));
}

/// What a victim made.
struct Made {
    qemu: PathBuf,
    namespace: PathBuf,
    tap: PathBuf,
    dir: PathBuf,
}

impl Made {
    fn left(&self) -> Vec<&Path> {
        let all = [&self.qemu, &self.namespace, &self.tap, &self.dir];
        all.into_iter().map(PathBuf::as_path).filter(|path| path.exists()).collect()
    }
}

struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Victim {
    fn start(end: &str) -> (Self, Made) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["victim", "--exact", "--ignored", "--nocapture"]).env(END, end);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let victim = Self(child);
        let line = stdout.lines().map_while(Result::ok).find(|line| line.starts_with(MARK));
        let line = line.expect("the victim said nothing");
        let words: Vec<_> = line.split_whitespace().collect();
        let made = Made {
            qemu: Path::new("/proc").join(words[1]),
            namespace: Path::new("/run/netns").join(words[2]),
            tap: Path::new("/sys/class/net").join(words[3]),
            dir: words[4].into(),
        };
        (victim, made)
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.0.id()).unwrap();
        // SAFETY: kill takes no pointers; the child was not reaped, so the PID is its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of the victim", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn signals_leave_nothing() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let (mut victim, made) = Victim::start("sleep");
        assert_eq!(made.left().len(), 4);
        victim.signal(signal);
        assert_eq!(victim.wait().signal(), Some(signal));
        assert_eq!(made.left(), Vec::<&Path>::new());
    }
}

#[test]
fn panic_and_exit_leave_nothing() {
    for (end, code) in [("panic", 101), ("exit", 0)] {
        let (mut victim, made) = Victim::start(end);
        assert_eq!(victim.wait().code(), Some(code));
        assert_eq!(made.left(), Vec::<&Path>::new());
    }
}

#[test]
fn after_kill_9_qemu_dies_and_the_next_run_sweeps_the_rest() {
    let (mut victim, made) = Victim::start("sleep");
    victim.signal(libc::SIGKILL);
    assert_eq!(victim.wait().signal(), Some(libc::SIGKILL));
    wait_until("the end of QEMU", || !made.qemu.exists());
    // The next run, which is any that starts from now on.
    let (mut next, others) = Victim::start("exit");
    next.wait();
    assert_eq!(made.left(), Vec::<&Path>::new());
    assert_eq!(others.left(), Vec::<&Path>::new());
}
