//! Child processes that never outlive the lab.
//!
//! A [`Process`] is killed when dropped, through [`crate::cleanup`] on every other way out of the lab that it can see, and
//! by the kernel on those that it cannot ([`crate::process`]).

use std::io;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::cleanup;
use crate::process::{KILL_TIMEOUT, fork, lock};

/// How often a waiting parent looks whether its child has ended.
const POLL: Duration = Duration::from_millis(10);
/// A child process, killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Arc<Mutex<Child>>,
    guard: Option<cleanup::Guard>,
}

impl Process {
    /// Starts `command`; `name` is for messages. Standard streams are as `command` has them.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(name: impl Into<String>, command: Command) -> Result<Self> {
        let name = name.into();
        let program = command.get_program().to_string_lossy().into_owned();
        let child = fork(command).with_context(|| format!("cannot start {program}"))?;
        let pid = child.id();
        let child = Arc::new(Mutex::new(child));
        let to_kill = Arc::clone(&child);
        let guard =
            cleanup::register(format!("process {name} ({pid})"), move || kill_and_reap(&to_kill))?;
        Ok(Self { name, pid, child, guard: Some(guard) })
    }

    /// Process ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Its standard input and output, where both are pipes that nobody has taken yet.
    #[must_use]
    pub fn take_pipes(&self) -> Option<(ChildStdin, ChildStdout)> {
        let mut child = lock(&self.child);
        child.stdin.take().zip(child.stdout.take())
    }

    /// The status if it has ended, `None` while it runs.
    ///
    /// # Errors
    /// When the kernel does not know the child.
    pub fn try_wait(&self) -> Result<Option<ExitStatus>> {
        lock(&self.child).try_wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// When it still runs after `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<ExitStatus> {
        wait_for(&self.child, timeout)?
            .ok_or_else(|| anyhow!("{} ({}) still runs after {timeout:?}", self.name, self.pid))
    }

    /// Sends a signal, for example `libc::SIGTERM`. Does nothing when it has ended.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let mut child = lock(&self.child);
        // A child that was not reaped keeps its PID, so this cannot hit a stranger.
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        send_signal(child.id(), signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Sends a signal to it and to its children, which are of its process group.
    ///
    /// # Errors
    /// When the kernel refuses, for example since all of them have ended.
    pub fn signal_group(&self, signal: i32) -> Result<()> {
        send_signal_to_group(self.pid, signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    ///
    /// # Errors
    /// When it does not go.
    pub fn kill(mut self) -> Result<()> {
        self.guard.take().map_or(Ok(()), cleanup::Guard::release)
    }

    /// Asks it to end (SIGTERM), and kills it after `timeout`. The status says which it was.
    ///
    /// # Errors
    /// When it does not go.
    pub fn terminate(self, timeout: Duration) -> Result<ExitStatus> {
        self.signal(libc::SIGTERM)?;
        if wait_for(&self.child, timeout)?.is_none() {
            kill_and_reap(&self.child)?;
        }
        self.wait(KILL_TIMEOUT)
    }
}

fn kill_and_reap(child: &Mutex<Child>) -> Result<()> {
    {
        let mut child = lock(child);
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        // The group too: `ip netns exec` and shells have children of their own.
        let _ = send_signal_to_group(child.id(), libc::SIGKILL);
        child.kill()?;
    }
    wait_for(child, KILL_TIMEOUT)?.map(drop).context("it does not die")
}

fn wait_for(child: &Mutex<Child>, timeout: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = lock(child).try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

fn send_signal(pid: u32, signal: i32) -> Result<()> {
    signal_target(i32::try_from(pid)?, signal)
}

fn send_signal_to_group(pid: u32, signal: i32) -> Result<()> {
    signal_target(-i32::try_from(pid)?, signal)
}

pub(crate) fn signal_target(target: i32, signal: i32) -> Result<()> {
    // SAFETY: kill takes no pointers.
    if unsafe { libc::kill(target, signal) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Stdio;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sleeper() -> Process {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Process::spawn("sleeper", command).unwrap()
    }

    fn exists(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn dropping_kills_and_reaps() {
        let process = sleeper();
        let pid = process.id();
        assert!(process.try_wait().unwrap().is_none());
        drop(process);
        assert!(!exists(pid));
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let process = std::thread::spawn(sleeper).join().unwrap();
        // The thread that asked is gone. Had it forked the child, the kernel would have killed it
        // before `join` returned or soon after; a signal of ours must be what ends it.
        process.signal(libc::SIGUSR1).unwrap();
        let status = process.wait(LONG).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGUSR1));
    }

    #[test]
    fn terminate_kills_what_ignores_it() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]);
        command.stdout(Stdio::piped());
        let process = Process::spawn("stubborn", command).unwrap();
        let mut ready = [0];
        let mut stdout = lock(&process.child).stdout.take().unwrap();
        io::Read::read_exact(&mut stdout, &mut ready).unwrap();
        let status = process.terminate(Duration::from_millis(100)).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }
}
