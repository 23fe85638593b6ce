//! Attempts to reach a front-end that listens.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use floodway_process::message::MAX_PROBLEM;

use super::RECONNECT;

/// Longest time between two attempts if it is there and cannot be connected to.
const MAX_RECONNECT: Duration = Duration::from_secs(5);

/// Attempts to connect.
#[derive(Default)]
pub(super) struct Attempts {
    pub(super) count: u64,
    /// Why it is not possible, other than that nobody listens.
    pub(super) problem: Option<String>,
    /// How long to wait, if the last one failed for a problem.
    backoff: Option<Duration>,
    /// When the data plane was told last.
    pub(super) reported: Option<Instant>,
}

impl Attempts {
    /// How long to wait after an attempt, which had a problem or not: longer each time if it had.
    pub(super) fn next_pause(&mut self, has_problem: bool) -> Duration {
        let longer = |last: Duration| (2 * last).min(MAX_RECONNECT);
        self.backoff = has_problem.then(|| self.backoff.map_or(2 * RECONNECT, longer));
        self.backoff.unwrap_or(RECONNECT)
    }
}

/// Returns `true` if an attempt has failed because there is no VM yet, or not any more, or one that does not accept.
pub(super) fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    matches!(error.kind(), NotFound | ConnectionRefused | WouldBlock)
}

/// What an operator has to know of a socket that cannot be connected to.
pub(super) fn describe_problem(
    path: &Path,
    error: &io::Error,
    describe: fn(&Path) -> String,
) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let found = describe(path);
    let mut text = format!("cannot connect to {} as uid {uid}: {error}; {found}", path.display());
    text.truncate(text.floor_char_boundary(MAX_PROBLEM));
    text
}

/// Connects without waiting for a listener whose backlog is full.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}
