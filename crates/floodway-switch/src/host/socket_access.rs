//! Owner, group and mode of a socket's file.
//!
//! # Theory of operation
//! The goal is that exactly those connect whom the configuration lets, at no time more. So a socket has its rights before
//! it listens: until then the kernel refuses connections, whatever the umask has left open.
//!
//! VMMs may be able to write to the directory, so what lies at the path need not be what was made there a moment ago. The file
//! is opened without following links and compared with the one that was bound, and rights are set on what is open.
//!
//! Names are looked up when the switch starts (getpwnam(3), getgrnam(3)); as with chown(1), what is no name may be a number.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::unistd::{Group, User};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chmod, chownat, fstat, open};
use rustix::process::{getegid, geteuid};

use crate::config::Permissions;

/// Why a socket cannot have its rights. Whoever shows it names the path.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// It would belong to somebody who does not exist.
    #[error(
        "permissions.{key} = {name:?}: the host has no such {what} (create it, or name another)"
    )]
    NoAccount {
        /// The key.
        key: &'static str,
        /// A user or a group.
        what: &'static str,
        /// What was asked for.
        name: String,
    },
    /// Another file has taken its place.
    #[error("another process has replaced the socket (keep others out of its directory)")]
    Replaced,
    /// The system refused.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Makes an error of what the system said when `action` was tried.
fn failed<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> AccessError {
    move |error| AccessError::System { action, source: error.into() }
}

/// Who may connect to a socket: permissions with their names looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Owner; `None` leaves the user of the process.
    pub uid: Option<u32>,
    /// Group; `None` leaves the group of the process.
    pub gid: Option<u32>,
    /// Permission bits.
    pub mode: u32,
}

impl Access {
    /// Owner and group of the process, with `mode`.
    #[must_use]
    pub const fn of_process(mode: u32) -> Self {
        Self { uid: None, gid: None, mode }
    }

    /// Looks names up.
    ///
    /// # Errors
    /// The host has no such user or group.
    pub fn resolve(permissions: &Permissions) -> Result<Self, AccessError> {
        let user =
            |name: &str| User::from_name(name).map(|user| user.map(|user| user.uid.as_raw()));
        let group =
            |name: &str| Group::from_name(name).map(|group| group.map(|group| group.gid.as_raw()));
        let Permissions { owner, group: group_name, mode } = permissions;
        Ok(Self {
            uid: account("owner", "user", owner.as_deref(), user)?,
            gid: account("group", "group", group_name.as_deref(), group)?,
            mode: *mode,
        })
    }

    /// The same, with the user and group of the process in the place of none.
    #[must_use]
    pub fn or_process(self) -> Self {
        let uid = self.uid.or_else(|| Some(geteuid().as_raw()));
        Self { uid, gid: self.gid.or_else(|| Some(getegid().as_raw())), mode: self.mode }
    }

    /// Gives these rights to the socket at `path` with device and inode `identity`.
    ///
    /// # Errors
    /// Another file has taken its place, or the system refuses.
    pub fn apply(self, path: &Path, identity: (u64, u64)) -> Result<(), AccessError> {
        let file = open_socket(path, identity)?;
        // fchmod(2) takes no O_PATH descriptor. The mode first: after the next step the file may be somebody else's.
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mode = Mode::from_raw_mode(self.mode);
        chmod(itself, mode).map_err(failed("set permissions.mode"))?;
        if self.uid.is_none() && self.gid.is_none() {
            return Ok(());
        }
        let (uid, gid) = (self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw));
        let action = "set permissions.owner and permissions.group (needs root or CAP_CHOWN)";
        chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH).map_err(failed(action))
    }
}

/// Opens the file at `path` without following a link, if it is the one with device and inode `identity`.
fn open_socket(path: &Path, identity: (u64, u64)) -> Result<OwnedFd, AccessError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(failed("look at it"))?;
    let found = fstat(&file).map_err(failed("look at it"))?;
    if (found.st_dev, found.st_ino) == identity { Ok(file) } else { Err(AccessError::Replaced) }
}

/// The number of the account called `name`, which is the value of `key`.
fn account(
    key: &'static str,
    what: &'static str,
    name: Option<&str>,
    find: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<Option<u32>, AccessError> {
    let Some(name) = name else { return Ok(None) };
    let found = find(name).map_err(failed("look an account up"))?;
    // The highest number stands for none in chown(2).
    let number = || name.parse().ok().filter(|&id: &u32| id != u32::MAX);
    let unknown = || AccessError::NoAccount { key, what, name: name.to_owned() };
    found.or_else(number).map(Some).ok_or_else(unknown)
}

/// Says whose the file at `path` is, or else the nearest directory above it that can be looked at: why a connection is refused.
#[must_use]
pub fn describe(path: &Path) -> String {
    let found = path.ancestors().find_map(|at| Some((at, fs::symlink_metadata(at).ok()?)));
    match found {
        Some((at, file)) => format!(
            "{} is of uid {}, gid {}, mode {:04o}",
            at.display(),
            file.uid(),
            file.gid(),
            file.permissions().mode() & 0o7777
        ),
        None => "none of its directories can be looked at".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn names_and_numbers_of_accounts_are_found() {
        let of = |owner: &str, group: &str| {
            let (owner, group) = (Some(owner.to_owned()), Some(group.to_owned()));
            Access::resolve(&Permissions { owner, group, mode: 0o600 })
        };
        let expected = Access { uid: Some(0), gid: Some(4321), mode: 0o600 };
        assert_eq!(of("root", "4321").unwrap(), expected);
        assert_eq!(
            of("no-such-user", "root").unwrap_err().to_string(),
            "permissions.owner = \"no-such-user\": the host has no such user (create it, or name another)"
        );
        let highest = u32::MAX.to_string();
        assert!(matches!(of("root", &highest), Err(AccessError::NoAccount { key: "group", .. })));
    }

    #[test]
    fn rights_go_to_no_file_that_has_taken_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let (path, secret) = (dir.path().join("socket"), dir.path().join("secret"));
        let _listener = UnixListener::bind(&path).unwrap();
        let made = fs::symlink_metadata(&path).unwrap();
        fs::write(&secret, "mine").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&secret, &path).unwrap();
        let error = Access::of_process(0o666).apply(&path, (made.dev(), made.ino()));
        assert!(matches!(error, Err(AccessError::Replaced)), "{error:?}");
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_nearest_thing_that_can_be_seen_is_described() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o751)).unwrap();
        let owner = fs::metadata(dir.path()).unwrap();
        let expected = format!(
            "{} is of uid {}, gid {}, mode 0751",
            dir.path().display(),
            owner.uid(),
            owner.gid()
        );
        assert_eq!(describe(&dir.path().join("missing/vm1.sock")), expected);
    }
}
