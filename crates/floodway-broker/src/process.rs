//! A data plane's process: a child of this one, or of a broker that has died.
//!
//! Only a parent is told how a process has ended. Of another one's child the end shows, and not how.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_send_signal, waitid};

use crate::supervision::End;
use floodway_process::poll::{is_readable, wait_for};

/// A process. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process(OwnedFd);

impl Process {
    /// The process that `pidfd` is of.
    pub(crate) fn new(pidfd: OwnedFd) -> Self {
        Self(pidfd)
    }

    /// How it has ended, once it has.
    pub(crate) fn end(&self) -> Option<End> {
        if !is_readable(self.0.as_fd()) {
            return None;
        }
        Some(match wait(&self.0) {
            Ok(Some(status)) => end_of(&status),
            _ => End::Unknown,
        })
    }

    /// Kills it, and returns when it is gone.
    pub(crate) fn kill(&self) {
        // Fails when it has ended by itself.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
        wait_for(&[self.0.as_fd()], None);
        reap(&self.0);
    }

    /// Bytes of its heap. `None` if it has ended, or has none.
    pub(crate) fn heap(&self) -> Option<u64> {
        let descriptor = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let information = fs::read_to_string(descriptor).ok()?;
        let pid = information.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        // That of one that has ended is -1.
        let maps = fs::read_to_string(format!("/proc/{}/maps", pid.trim())).ok()?;
        maps.lines().find(|line| line.ends_with("[heap]")).and_then(length)
    }
}

/// Bytes of the mapping that a line of `/proc/PID/maps` is about.
fn length(line: &str) -> Option<u64> {
    let (begin, rest) = line.split_once('-')?;
    let end = rest.split_whitespace().next()?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    address(end)?.checked_sub(address(begin)?)
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a child that was killed; returns at once if it is none.
pub(crate) fn reap(pidfd: &OwnedFd) {
    let all = WaitIdOptions::EXITED;
    while matches!(waitid(WaitId::PidFd(pidfd.as_fd()), all), Err(Errno::INTR)) {}
}

fn wait(pidfd: &OwnedFd) -> Result<Option<WaitIdStatus>, Errno> {
    waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
}

fn end_of(status: &WaitIdStatus) -> End {
    match status.terminating_signal() {
        Some(signal) => End::Signalled(signal),
        None => End::Exited(status.exit_status().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn the_heap_of_a_process_is_known_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        // It is known once its program runs, which makes a heap at its beginning.
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let process = Process::new(pidfd);
        let deadline = Instant::now() + Duration::from_secs(30);
        while process.heap().is_none_or(|bytes| bytes == 0) {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process.heap(), None);
    }
}
