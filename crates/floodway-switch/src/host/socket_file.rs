//! Listening sockets in the file system: made, taken over from a process that died, and removed.
//!
//! # Theory of operation
//! A switch listens on its control socket and on a socket for each port in server mode. A process that dies leaves its
//! files behind, so what lies at the path when a switch starts is looked at:
//!
//! * nothing: the socket is made;
//! * a socket that refuses connections: its process is dead, and it is replaced;
//! * a socket that takes one, or would if its backlog were not full: somebody serves it, and we do not start;
//! * anything else is not ours to remove.
//!
//! A new socket is bound, gets its rights ([`super::socket_access`]), and only then listens.
//!
//! **Invariant**: a [`SocketFile`] removes the file that it has made, not one that somebody has put in its place.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::host::socket_access::{Access, AccessError};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Why there is no socket. Whoever shows it names the path.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody serves it.
    #[error("a live process listens there (stop it, or choose another path)")]
    InUse,
    /// The file is none of ours.
    #[error("the file exists and is not a socket (remove it, or choose another path)")]
    NotASocket,
    /// The file cannot have its rights.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The system refused.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// The file of a listening socket of ours, removed when dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if the file is still there, and ours.
    #[must_use]
    pub fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| identity(&metadata) == self.identity)
    }

    /// Gives the file other rights: those of a new one, so what `access` leaves to the process is given back to it.
    ///
    /// # Errors
    /// Another file has taken its place, or the system refuses.
    pub fn set_access(&self, access: Access) -> Result<(), AccessError> {
        access.or_process().apply(&self.path, self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = match fs::symlink_metadata(&self.path) {
            Ok(metadata) if identity(&metadata) == self.identity => fs::remove_file(&self.path),
            // Somebody else's now.
            Ok(_) => return,
            Err(error) => Err(error),
        };
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a socket");
        }
    }
}

/// Listens at `path`, without blocking; `access` says who may connect. A dead process's socket is replaced.
///
/// # Errors
/// The path is not free, or the system refuses.
pub fn listen(path: &Path, access: Access) -> Result<(UnixListener, SocketFile), SocketError> {
    remove_stale(path)?;
    let socket = bind(path).map_err(|error| match error.kind() {
        // Another process was quicker since `remove_stale`.
        io::ErrorKind::AddrInUse => SocketError::InUse,
        _ => failed("listen")(error),
    })?;
    let metadata = fs::symlink_metadata(path).map_err(failed("look at it"))?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&metadata) };
    access.apply(path, file.identity)?;
    net::listen(&socket, BACKLOG).map_err(|error| failed("listen")(error.into()))?;
    Ok((UnixListener::from(socket), file))
}

/// A non-blocking socket at `path` that does not listen yet.
fn bind(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Connects without waiting for a listener whose backlog is full: it may never accept.
///
/// # Errors
/// Nobody listens, or [`WouldBlock`](io::ErrorKind::WouldBlock) if the backlog is full.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = socket()?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Makes an error of what the system said when `action` was tried.
pub fn failed(action: &'static str) -> impl FnOnce(io::Error) -> SocketError {
    move |source| SocketError::System { action, source }
}

/// The socket at `path`, which a process that has died has made; `None` if there is none.
#[must_use]
pub fn adopt(path: &Path) -> Option<SocketFile> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let is_socket = metadata.file_type().is_socket();
    is_socket.then(|| SocketFile { path: path.to_owned(), identity: identity(&metadata) })
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(SocketError::NotASocket),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at the file")(error)),
    }
    match connect(path) {
        Ok(_) => Err(SocketError::InUse),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SocketError::InUse),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing the socket of a process that died");
            fs::remove_file(path).map_err(failed("remove the old socket"))
        }
        Err(error) => Err(failed("see whether a process listens there")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::{listen as listen_with, *};

    fn listen(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
        listen_with(path, Access::of_process(0o660))
    }

    #[test]
    fn the_socket_of_a_dead_process_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let (_listener, _file) = listen(&path).unwrap();
        assert!(connect(&path).is_ok());
    }

    #[test]
    fn what_is_no_socket_stays_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes");
        fs::write(&path, "mine").unwrap();
        let error = listen(&path).unwrap_err();
        assert!(matches!(error, SocketError::NotASocket), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_live_socket_stays_also_if_its_backlog_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let live = UnixListener::bind(&path).unwrap();
        // SAFETY: a listening socket of ours; its backlog becomes as small as it gets.
        assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&live), 0) }, 0);
        for _ in 0..3 {
            // The first of these takes the only place in the backlog.
            assert!(matches!(listen(&path), Err(SocketError::InUse)));
        }
        drop(live.accept().unwrap());
    }

    #[test]
    fn a_file_that_took_our_place_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let (listener, file) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let (_other, theirs) = listen(&path).unwrap();
        drop((listener, file));
        assert!(connect(&path).is_ok(), "the second one's socket is there");
        drop(theirs);
        assert!(!path.exists());
    }
}
