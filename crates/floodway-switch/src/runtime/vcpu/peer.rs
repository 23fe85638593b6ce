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
use rustix::net::sockopt::socket_peercred;

use super::threads::Thread;

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
        let pid = socket_peercred(stream)?.pid.as_raw_nonzero().get();
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
