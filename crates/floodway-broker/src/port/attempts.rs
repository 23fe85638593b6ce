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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_something_is_in_the_way() {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.next_pause(false), RECONNECT);
        let pauses: Vec<_> = (0..7).map(|_| attempts.next_pause(true).as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(attempts.next_pause(false), RECONNECT);
        assert_eq!(attempts.next_pause(true), 2 * RECONNECT);
    }

    #[test]
    fn a_problem_names_the_path_the_user_and_what_is_there() {
        let error = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(!is_nobody(&error));
        let uid = rustix::process::geteuid().as_raw();
        let problem =
            describe_problem(Path::new("/run/vm"), &error, |path| format!("{path:?} is mode 0600"));
        let found = "permission denied; \"/run/vm\" is mode 0600";
        assert_eq!(problem, format!("cannot connect to /run/vm as uid {uid}: {found}"));
    }
}
