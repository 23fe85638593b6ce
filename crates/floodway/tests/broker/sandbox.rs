//! The sandbox of the real data plane. Needs root.

use std::fs;

use crate::scene::{Scene, exchange, signal};
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
fn attempts(process: u64) -> [(&'static str, i64); 8] {
    let mut tracee = Tracee::attach(process);
    let path = tracee.push(b"/\0");
    let here = libc::AT_FDCWD.into();
    let family = libc::AF_UNIX.into();
    let idle = libc::SCHED_IDLE.into();
    [
        ("openat", tracee.call(libc::SYS_openat, [here, path, libc::O_RDONLY.into()])),
        ("socket", tracee.call(libc::SYS_socket, [family, libc::SOCK_STREAM.into(), 0])),
        ("connect", tracee.call(libc::SYS_connect, [0, path, 2])),
        ("bind", tracee.call(libc::SYS_bind, [0, path, 2])),
        ("getppid", tracee.call(libc::SYS_getppid, [0; 3])),
        // Of a process that does not exist, so that nothing happens where it is allowed.
        ("setpriority", tracee.call(libc::SYS_setpriority, [0, i32::MAX.into(), 19])),
        ("setscheduler", tracee.call(libc::SYS_sched_setscheduler, [i32::MAX.into(), idle, path])),
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
