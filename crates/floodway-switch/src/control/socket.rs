//! The socket file: made, and taken over from a process that died.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
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

/// A control socket that is taken but does not answer yet: clients wait. Dropping it removes the file.
///
/// Taking it is the first thing that a switch does, so that a second one with the same
/// configuration is refused before it touches a port.
#[derive(Debug)]
pub struct ControlListener {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

impl ControlListener {
    /// Listens at `path`. The directory is made if it is missing; a dead process's socket is
    /// replaced.
    ///
    /// # Errors
    /// The socket cannot be had, above all because a live process has it.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(DIRECTORY_MODE).create(directory);
            made.map_err(failed(path, "make its directory"))?;
        }
        remove_stale(path)?;
        let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
            // Another process was quicker since `remove_stale`.
            io::ErrorKind::AddrInUse => BindError::AlreadyRunning(path.to_owned()),
            _ => failed(path, "listen")(error),
        })?;
        let file = SocketFile(path.to_owned());
        let mode = Permissions::from_mode(SOCKET_MODE);
        fs::set_permissions(path, mode)
            .and_then(|()| listener.set_nonblocking(true))
            .map_err(failed(path, "set its mode"))?;
        Ok(Self { listener, file })
    }
}

/// Our socket's file, removed when dropped.
#[derive(Debug)]
pub(super) struct SocketFile(pub(super) PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the control socket");
        }
    }
}

/// Makes an error of what the system said when `action` was tried on the socket at `path`.
pub(super) fn failed(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> BindError {
    move |source| BindError::Io { path: path.to_owned(), action, source }
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(BindError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(path, "look at the file")(error)),
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(BindError::AlreadyRunning(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing the control socket of a process that died");
            fs::remove_file(path).map_err(failed(path, "remove the old socket"))
        }
        Err(error) => Err(failed(path, "see whether a process listens there")(error)),
    }
}
