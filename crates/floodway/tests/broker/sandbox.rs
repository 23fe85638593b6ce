//! The sandbox of the real data plane. Needs root.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::{fs, io};

use floodway_switch::testing::wait;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::scene::{Scene, configure, exchange, run, signal};
use crate::trace::Tracee;

/// Whatever a thread of a process says of itself under `name`.
fn field(process: u64, thread: &str, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim().to_owned()
}

fn threads(process: u64) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn no_thread_of_a_data_plane_has_any_right() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    let process = scene.data_plane();
    let threads = threads(process);
    assert!(threads.len() >= 5, "workers, ports, control: {threads:?}");
    for thread in &threads {
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(process, thread, set), "0000000000000000", "{set} of {thread}");
        }
        assert_eq!(field(process, thread, "NoNewPrivs:"), "1");
        assert_eq!(field(process, thread, "Seccomp:"), "2", "a filter");
        assert_eq!(field(process, thread, "Groups:"), "");
        for ids in ["Uid:", "Gid:"] {
            let ids = field(process, thread, ids);
            let mut ids = ids.split_whitespace();
            let first = ids.next().unwrap();
            assert_ne!(first, "0");
            assert!(ids.all(|id| id == first), "it can go back");
        }
    }
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let foreign = environment.split_terminator('\0').find(|it| !it.starts_with("RUST_BACKTRACE="));
    assert_eq!(foreign, None);
    let status = scene.status().unwrap();
    assert_ne!(status["switch"]["sandbox"], "off");
}

/// What a guest would do that has taken a data plane over.
fn attempts(process: u64) -> [(&'static str, i64); 7] {
    let mut tracee = Tracee::attach(process);
    let path = tracee.push(b"/\0");
    let here = libc::AT_FDCWD.into();
    let family = libc::AF_UNIX.into();
    [
        ("openat", tracee.call(libc::SYS_openat, [here, path, libc::O_RDONLY.into()])),
        ("socket", tracee.call(libc::SYS_socket, [family, libc::SOCK_STREAM.into(), 0])),
        ("connect", tracee.call(libc::SYS_connect, [0, path, 2])),
        ("bind", tracee.call(libc::SYS_bind, [0, path, 2])),
        ("getppid", tracee.call(libc::SYS_getppid, [0; 3])),
        // Of a process that does not exist, so that nothing happens where it is allowed.
        ("setpriority", tracee.call(libc::SYS_setpriority, [0, i32::MAX.into(), 19])),
        ("kill", tracee.call(libc::SYS_kill, [i64::from(std::process::id()), 0, 0])),
    ]
}

#[test]
fn forbidden_calls_of_a_data_plane_are_refused() {
    let scene = Scene::start();
    for (name, result) in attempts(scene.data_plane()) {
        assert_eq!(result, -i64::from(libc::EPERM), "{name}");
    }
    // It goes on as if nothing had been.
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
}

#[test]
fn without_a_sandbox_nothing_is_refused_and_the_status_says_so() {
    let scene = Scene::start_with_arguments(&["--no-sandbox"]);
    for (name, result) in attempts(scene.data_plane()) {
        assert_ne!(result, -i64::from(libc::EPERM), "{name}");
    }
    assert_eq!(scene.status().unwrap()["switch"]["sandbox"], "off");
    let table = String::from_utf8(scene.output(&["status"]).stdout).unwrap();
    assert!(table.contains("\nsandbox: OFF, "), "{table}");
    signal(scene.data_plane(), libc::SIGKILL);
    assert_eq!(scene.status().unwrap()["switch"]["sandbox"], "off", "of the next one, too");
}

/// What the head of the container's recipe gives the switch.
fn rights_of_the_container() -> CapabilitySet {
    let recipe = include_str!("../../../../packaging/container/Containerfile");
    let (_, names) = recipe.split_once("--cap-add ").expect("capabilities");
    let (names, _) = names.split_once(' ').expect("other options");
    names.split(',').map(|name| CapabilitySet::from_name(name).expect(name)).collect()
}

/// Lets a program that root starts have no capabilities but `kept`.
fn keep(kept: u64) -> io::Result<()> {
    for number in (0..u64::BITS).filter(|number| kept & (1 << number) == 0) {
        // SAFETY: takes plain numbers. Fails for numbers that are no capability.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) };
    }
    let mut sets = capabilities(None)?;
    sets.inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, sets)?)
}

/// Starts a switch as the recipe does, as root with no other capabilities than these.
fn start_with_rights(rights: CapabilitySet, stderr: Stdio) -> Scene {
    let directory = tempfile::tempdir().unwrap();
    configure(directory.path(), "control.sock", "");
    let mut command = run(directory.path());
    command.env("FLOODWAY_NO_DESCRIPTOR_STORE", "true");
    let kept = rights.bits();
    // SAFETY: calls between fork and exec take plain numbers.
    unsafe { command.pre_exec(move || keep(kept)) };
    Scene { broker: command.stderr(stderr).spawn().unwrap(), directory }
}

#[test]
fn with_the_rights_of_the_container_a_data_plane_that_hangs_is_replaced() {
    let scene = start_with_rights(rights_of_the_container(), Stdio::inherit());
    wait("the switch to answer", || scene.status());
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
    scene.signal_data_plane(libc::SIGSTOP);
    exchange(&mut a, &mut b, 1);
}

#[test]
fn root_that_cannot_start_or_end_a_process_of_another_user_says_so() {
    for missing in ["SETUID", "SETGID", "KILL"] {
        let rights = rights_of_the_container() - CapabilitySet::from_name(missing).unwrap();
        let mut scene = start_with_rights(rights, Stdio::piped());
        let status = wait("it to end", || scene.broker.try_wait().unwrap());
        let mut error = String::new();
        scene.broker.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        let expected = format!("the switch is root without CAP_{missing}, so that");
        assert!(status.code() == Some(1) && error.contains(&expected), "{status}: {error}");
    }
}
