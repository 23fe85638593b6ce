//! What `floodway metrics` and `floodway web` share: the sockets that they serve, and the line that says where.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::anyhow;
use floodway_switch::control::{BindError, ControlListener};

/// Listens on the Unix socket of `--socket`. Its file is removed when this is dropped.
///
/// # Errors
/// It is in use, the file is something else, or cannot be made.
pub fn bind(path: &Path) -> anyhow::Result<ControlListener> {
    ControlListener::bind(path).map_err(|error| match error {
        BindError::AlreadyRunning(path) => anyhow!("--socket {}: it is in use", path.display()),
        BindError::NotASocket(path) => {
            anyhow!("--socket {}: the file exists and is not a socket", path.display())
        }
        other => anyhow!(other),
    })
}

/// Listens on the address of `--listen`.
///
/// # Errors
/// The address cannot be had.
pub fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .map_err(|error| anyhow!("--listen {address}: cannot listen: {error}"))
}

/// Prints a line at once, for who waits for it.
///
/// # Errors
/// Standard output cannot be written.
pub fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
