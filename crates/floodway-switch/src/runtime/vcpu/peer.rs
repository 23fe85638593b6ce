//! The process at the other end of a Unix socket, and which threads are its own.
//!
//! # Theory of operation
//! The kernel notes who called listen(2) (`SO_PEERCRED`). A thread may be changed on the peer's word only if it is one of that
//! process (`/proc/PID/task`) or of a process that descends from it (a wrapper that starts QEMU and hands it the socket).
//! Process numbers are reused, so the process has to be alive before and after it is looked at, which the descriptor says that the kernel
//! made for this very process (`SO_PEERPIDFD`, Linux 6.5): as long as it is, its number is nobody else's.
//!
//! **Invariant**: the work for a thread is a few files of `/proc`, none of which a process can make slow.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::threads::Thread;
use crate::state::front_end;

/// How far up a thread's ancestors are looked at.
const MAX_GENERATIONS: usize = 8;

/// The peer's process.
#[derive(Debug)]
pub struct Peer {
    pid: i32,
    pidfd: OwnedFd,
}

impl Peer {
    /// The process that listens at the other end.
    ///
    /// # Errors
    /// It is in another PID namespace, or has ended.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let pid = front_end::Peer::of(stream)?.pid;
        // The number of a process of another PID namespace.
        if pid == 0 {
            return Err(gone(pid));
        }
        let peer = Self { pid, pidfd: peer_pidfd(stream).map_err(|_| gone(pid))? };
        if peer.is_alive() { Ok(peer) } else { Err(gone(pid)) }
    }

    /// Returns those threads in `ids` that exist.
    ///
    /// # Errors
    /// One of them is not the peer's, or the peer has ended.
    pub fn own_threads(&self, ids: &[i32]) -> io::Result<Vec<Thread>> {
        let mut own = Vec::with_capacity(ids.len());
        for &id in ids {
            let Some(thread) = Thread::find(id) else { continue };
            if !self.owns(id) && thread.is_alive() {
                let problem = format!(
                    "it names thread {id}, which is none of process {} or its children; no thread is changed",
                    self.pid
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
            }
            own.push(thread);
        }
        if self.is_alive() { Ok(own) } else { Err(gone(self.pid)) }
    }

    fn owns(&self, thread: i32) -> bool {
        if Path::new(&format!("/proc/{}/task/{thread}", self.pid)).exists() {
            return true;
        }
        let process = status_field(thread, "Tgid:");
        let ancestors = std::iter::successors(process, |&pid| status_field(pid, "PPid:"));
        ancestors.take(MAX_GENERATIONS).any(|pid| pid == self.pid)
    }

    /// Returns `true` if the process has not ended: its descriptor becomes readable when it does.
    fn is_alive(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready == 0)
    }
}

fn gone(pid: i32) -> io::Error {
    let problem = format!(
        "the process that opened the socket ({pid}) has ended or cannot be seen from here; let QEMU open it, or give QEMU's pid"
    );
    io::Error::new(io::ErrorKind::NotFound, problem)
}

/// A number in `/proc/ID/status`; `None` if there is no such process, or it is the first one.
fn status_field(id: i32, name: &str) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().parse().ok().filter(|&id| id > 0)
}

fn peer_pidfd(stream: &UnixStream) -> io::Result<OwnedFd> {
    let (mut fd, mut len) = (-1_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the pointers are to an int and to its size, as the option wants it, and live through the call.
    let rc = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use super::*;

    /// Set for the part of a test that runs in a PID namespace of its own, with the socket as standard input.
    const INSIDE: &str = "FLOODWAY_TEST_PEER_NAMESPACE";

    #[test]
    fn a_peer_of_another_pid_namespace_is_refused() {
        if std::env::var_os(INSIDE).is_some() {
            let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
            let error = Peer::of(&stream).expect_err("a process that has no number here");
            assert!(error.to_string().contains("cannot be seen from here"), "{error}");
            return;
        }
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let mut inside = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            inside.args(["--user", "--map-root-user"]);
        }
        inside.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap());
        inside.args(["--exact", "--nocapture"]);
        inside.arg("runtime::vcpu::peer::tests::a_peer_of_another_pid_namespace_is_refused");
        inside.env(INSIDE, "1").stdin(Stdio::from(OwnedFd::from(theirs)));
        let output =
            inside.output().expect("this test needs unshare(1), from Debian's package util-linux");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    }
}
