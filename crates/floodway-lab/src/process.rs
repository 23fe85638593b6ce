//! Programs of others: how the lab starts them, and commands that run to their end.
//!
//! # Theory of operation
//!
//! Each child asks the kernel for SIGKILL when its parent dies (`PR_SET_PDEATHSIG`), so that even
//! `kill -9` of the lab leaves nothing behind. The kernel takes "parent" to be the *thread* that
//! called fork, and VMs boot from short-lived threads: therefore all children are forked by one
//! spawner thread that lives as long as the process. Each child also gets a process group of its own, so
//! that Ctrl-C reaches the lab alone, which then ends its children in order.
//!
//! A child that goes on beside the lab is a [`crate::child::Process`]. What children leave running on purpose is found by the working directory.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// How long a killed process may take to vanish before that is reported as a failure.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(30);
const KILL_POLL: Duration = Duration::from_millis(5);

type Request = (Command, Sender<io::Result<Child>>);

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// When it cannot be started or fails; the error quotes the command and its standard error.
pub fn run<S: AsRef<OsStr>>(argv: &[S]) -> Result<String> {
    let (program, args) = argv.split_first().context("empty command")?;
    let mut command = Command::new(program);
    command.args(args);
    run_command(command)
}

/// As [`run`], for a command that needs an environment, directory or such.
///
/// # Errors
/// As [`run`].
pub fn run_command(mut command: Command) -> Result<String> {
    let text = describe(&command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = fork(command).with_context(|| format!("cannot start `{text}`"))?;
    let Output { status, stdout, stderr } = child.wait_with_output()?;
    if !status.success() {
        let stderr = String::from_utf8_lossy(&stderr);
        bail!("`{text}` failed ({status}): {}", stderr.trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Kills (SIGKILL) all processes whose working directory is `dir` or below, and waits until they are gone.
///
/// # Errors
/// When they do not go.
pub(crate) fn kill_those_in(dir: &Path) -> Result<()> {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        let found = those_in(dir)?;
        if found.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "processes {found:?} do not die");
        for pid in found {
            // SAFETY: kill takes no pointers. Fails for one that has ended meanwhile.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(KILL_POLL);
    }
}

/// Process IDs of those whose working directory is `dir` or below.
fn those_in(dir: &Path) -> Result<Vec<i32>> {
    let processes = fs::read_dir("/proc").context("cannot list /proc")?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_there =
        |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
    Ok(pids.filter(is_there).collect())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Starts a child from the spawner thread.
///
/// # Errors
/// When the program cannot be started.
pub(crate) fn fork(mut command: Command) -> io::Result<Child> {
    let parent = getpid();
    command.process_group(0);
    // SAFETY: the closure runs between fork and exec and calls only async-signal-safe functions.
    unsafe {
        command.pre_exec(move || die_with(parent));
    }
    let (reply, answer) = mpsc::channel();
    let gone = || io::Error::other("the spawner thread has ended");
    spawner()?.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the request took effect.
    if getppid() != Some(parent) {
        return Err(Errno::SRCH.into());
    }
    Ok(())
}

fn spawner() -> io::Result<Sender<Request>> {
    static SPAWNER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    if let Some(sender) = SPAWNER.get() {
        return Ok(lock(sender).clone());
    }
    let (sender, requests) = mpsc::channel::<Request>();
    // When two threads get here at once, one spawner loses, sees its channel close, and ends
    // without having forked anything.
    thread::Builder::new().name("spawner".into()).spawn(move || {
        for (mut command, reply) in requests {
            let _ = reply.send(command.spawn());
        }
    })?;
    Ok(lock(SPAWNER.get_or_init(|| Mutex::new(sender))).clone())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_quoted_with_its_stderr() {
        let error = run(&["sh", "-c", "echo oops >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("sh -c") && error.contains("oops"), "{error}");
        assert_eq!(run(&["echo", "hi"]).unwrap(), "hi\n");
        assert!(run(&["/nonexistent/program"]).is_err());
    }

    #[test]
    fn processes_are_found_by_their_directory_and_killed() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        fs::create_dir(&below).unwrap();
        let mut children = [dir.path(), below.as_path(), Path::new("/")].map(|dir| {
            let mut command = Command::new("sleep");
            command.arg("1000").current_dir(dir);
            fork(command).unwrap()
        });
        let [one, two, other] = &mut children;
        // Until they are waited for they are there, but they are in no directory any more.
        kill_those_in(dir.path()).unwrap();
        for killed in [one, two] {
            assert!(!killed.wait().unwrap().success());
        }
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
