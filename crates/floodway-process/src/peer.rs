//! The process at the other end of a Unix socket (`SO_PEERCRED`).

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

/// A process, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its number; zero if it is in another PID namespace.
    pub pid: i32,
    /// Its effective user when it connected or began to listen.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl Peer {
    /// The process that has connected, or that listens, at the other end.
    ///
    /// # Errors
    /// `stream` is no Unix socket.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        // Not rustix's socket_peercred, for which no process has number zero.
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the pointers describe `credentials` and its length, which live until the call returns.
        let failed = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut len,
            )
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        let libc::ucred { pid, uid, gid } = credentials;
        Ok(Self { pid, uid, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_socket_is_named_by_the_kernel() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        assert_eq!(peer.pid, i32::try_from(std::process::id()).unwrap());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }
}
