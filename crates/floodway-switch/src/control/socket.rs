//! The control socket's file, its directory and its mode.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::api::control::{MANAGE_SUFFIX, manage_path};
use crate::host::socket_access::Access;
use crate::host::socket_file::{self, SocketError, SocketFile};

/// Owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Longest path of a socket in bytes (`unix(7)`).
const MAX_SOCKET: usize = 107;
/// Only the owner may connect.
const MANAGE_MODE: u32 = 0o600;
/// Everybody may pass through, only the owner may make files.
const DIRECTORY_MODE: u32 = 0o755;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A live process answers on the socket.
    #[error("floodway is already running on control socket {} (stop it, or set another control = in the configuration)", .0.display())]
    AlreadyRunning(PathBuf),
    /// The file is none of ours.
    #[error("control = \"{}\": the file exists and is not a socket (remove it, or choose another path)", .0.display())]
    NotASocket(PathBuf),
    /// There is no room for the name of the manage socket.
    #[error("control = \"{}\": too long; at most {} bytes, as the broker's socket is called the same with {MANAGE_SUFFIX} behind it", .0.display(), MAX_SOCKET - MANAGE_SUFFIX.len())]
    TooLong(PathBuf),
    /// The system refused.
    #[error("control = \"{}\": cannot {action}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A control socket that is taken but does not answer yet: clients wait. Dropping it removes the file, which is this process's unless a broker has made it.
///
/// Taking it is the first thing that a switch does, so that a second one with the same
/// configuration is refused before it touches a port.
#[derive(Debug)]
pub struct ControlListener {
    pub(super) listener: UnixListener,
    /// Where it is.
    pub(super) path: PathBuf,
    pub(super) file: Option<SocketFile>,
}

impl ControlListener {
    /// Listens at `path`. The directory is made if it is missing; a dead process's socket is
    /// replaced.
    ///
    /// # Errors
    /// The socket cannot be had, above all because a live process has it.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        Self::bind_with(path, SOCKET_MODE)
    }

    /// Listens where a broker takes changes of the configuration of the switch whose control socket is at `control`.
    ///
    /// # Errors
    /// As [`bind`](Self::bind); the path is longer than that of a socket can be.
    pub fn bind_manage(control: &Path) -> Result<Self, BindError> {
        let path = manage_path(control);
        if path.as_os_str().len() > MAX_SOCKET {
            return Err(BindError::TooLong(control.to_owned()));
        }
        Self::bind_with(&path, MANAGE_MODE)
    }

    fn bind_with(path: &Path, mode: u32) -> Result<Self, BindError> {
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(DIRECTORY_MODE).create(directory);
            made.map_err(failed(path, "make its directory"))?;
        }
        let access = Access::of_process(mode);
        let (listener, file) = socket_file::listen(path, access).map_err(refused(path))?;
        Ok(Self { listener, path: path.to_owned(), file: Some(file) })
    }

    /// The listener that a broker which has died has made at `path`; the file is this process's from now on.
    #[must_use]
    pub fn resume(listener: OwnedFd, path: &Path) -> Self {
        Self { listener: listener.into(), path: path.to_owned(), file: socket_file::adopt(path) }
    }

    /// A duplicate of the listener that a broker has made at `path`: the file stays the broker's.
    #[must_use]
    pub fn from_broker(listener: OwnedFd, path: &Path) -> Self {
        Self { listener: listener.into(), path: path.to_owned(), file: None }
    }
}

impl AsFd for ControlListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Makes an error of what the system said when `action` was tried on the socket at `path`.
pub(super) fn failed(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> BindError {
    move |source| BindError::Io { path: path.to_owned(), action, source }
}

fn refused(path: &Path) -> impl FnOnce(SocketError) -> BindError {
    move |error| match error {
        SocketError::InUse => BindError::AlreadyRunning(path.to_owned()),
        SocketError::NotASocket => BindError::NotASocket(path.to_owned()),
        SocketError::System { action, source } => failed(path, action)(source),
        SocketError::Access(error) => failed(path, "set its rights")(io::Error::other(error)),
    }
}
