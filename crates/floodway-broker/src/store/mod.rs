//! The descriptor store: a process that has a copy of whatever the broker holds, and gives it to the next broker.
//!
//! # Theory of operation
//! **Goal**: a broker may die at any moment, and no connection of a front-end ends by it. A descriptor lives as long as somebody has it; so each that the broker holds,
//! its ends of the data plane's channels among them, has a duplicate in the store, beside what the next broker has to know of it. The data plane notices nothing but
//! that nobody answers: frames need nobody.
//!
//! | module | what it is |
//! |---|---|
//! | this | the broker's side: what is kept ([`Store`]), and how the next broker gets it ([`Store::find`]) |
//! | [`server`] | the store's side: what it does all its life |
//! | [`taken`] | what the next broker gets, put in order |
//!
//! **Where they meet.** The broker makes a listening socket of type `SOCK_SEQPACKET` beside the control socket, and gives it to the store. The next broker connects there. Each looks at
//! the other's user (`SO_PEERCRED`; of a listener it is whoever made it): it has to be its own. A store that has a broker closes whatever else connects.
//!
//! **Order.** Datagrams to the store are in its queue when the call returns, and outlive the broker there. What is received later is newer: so the store reads all that the last broker has said
//! before it looks for the next one.
//!
//! **What cannot be told.** A broker that dies between taking a front-end's message and the end of all that it leads to leaves a mark ([`Item::Busy`]), set before the first
//! byte is taken and removed after the reply was written. A connection with that mark is closed, and its front-end connects again.
//!
//! **An upgrade** replaces the store, too ([`Store::find`]): a broker that is the replacement of another one starts a store of its own program, gives it all that it was
//! given, lets it take the old one's name, and ends the old one. A store that was not told about itself ends with its broker, so one that is half
//! filled outlives nobody.
//!
//! **A store that fails** (it was killed, or does not read for [`PATIENCE`]) is ended, so that nobody ever gets what is out of date. The switch runs on, and then ends with its broker.

pub mod server;
pub mod taken;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use floodway_process::channel::{Channel, ChannelError, Received};
use floodway_process::peer::Peer;
use floodway_process::store::{FromStore, Item, Key, STORE_VERSION, ToStore};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use taken::Taken;

/// How long either waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// Only the owner may connect.
const MODE: u32 = 0o600;
/// Brokers that may wait to be answered.
const BACKLOG: i32 = 8;

/// What the name of a store that is to replace another one has behind that of the other one, until it does.
const NEXT_SUFFIX: &str = "~";

type StoreChannel = Channel<ToStore, FromStore>;
/// What a store has, from the oldest to the newest.
type Items = [(Item, Vec<OwnedFd>)];
/// Starts the process of a store, with these as standard input and output.
pub type Start<'a> = dyn Fn(OwnedFd, OwnedFd) -> io::Result<Child> + 'a;

/// Why what a store has cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Somebody else made the socket, so what is behind it is not trusted.
    #[error("the descriptor store at {} belongs to user {uid}, and this is user {own}", path.display())]
    Stranger {
        /// Where it is.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
        /// Who asks.
        own: u32,
    },
    /// It is of another version.
    #[error("the descriptor store at {} speaks version {version}, and this is version {STORE_VERSION} (send it SIGTERM to end its switch)", path.display())]
    Version {
        /// Where it is.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// The broker's side of a store. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Store(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    channel: StoreChannel,
    /// The store's process, until it has failed.
    process: Mutex<Option<OwnedFd>>,
}

impl Store {
    /// Keeps nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Has `start` run a store that listens at `path`, where nobody may listen any more. Its standard input is the first descriptor, its standard output the second.
    ///
    /// # Errors
    /// The socket or the process cannot be had.
    pub fn start(path: &Path, start: &Start<'_>) -> io::Result<Self> {
        let (store, process) = Self::launch(path, start)?;
        store.keep(Item::Store, &[process.as_fd()]);
        Ok(store)
    }

    /// Starts a store that has not been told about itself.
    fn launch(path: &Path, start: &Start<'_>) -> io::Result<(Self, OwnedFd)> {
        let listener = listen_at(path)?;
        let (ours, theirs) = StoreChannel::pair()?;
        ours.set_time_limit(Some(PATIENCE))?;
        let child = start(theirs.into(), listener)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let process = pidfd_open(pid.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?;
        Ok((Self::with(ours, process.try_clone()?), process))
    }

    /// Replaces this store, which has the name `path` and `items`, by another one.
    fn renew(&self, path: &Path, start: &Start<'_>, items: &Items) -> io::Result<Self> {
        let mut next = path.as_os_str().to_owned();
        next.push(NEXT_SUFFIX);
        let (store, process) = Self::launch(Path::new(&next), start)?;
        for (item, files) in items.iter().filter(|(item, _)| *item != Item::Store) {
            let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            store.keep(item.clone(), &files);
        }
        if store.has_failed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        fs::rename(&next, path)?;
        store.keep(Item::Store, &[process.as_fd()]);
        self.close();
        Ok(store)
    }

    /// Returns `true` if nothing is kept: it is none, or it has failed or was closed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let lock = |inner: &Arc<Inner>| {
            inner.process.lock().unwrap_or_else(PoisonError::into_inner).is_none()
        };
        self.0.as_ref().is_none_or(lock)
    }

    fn with(channel: StoreChannel, process: OwnedFd) -> Self {
        Self(Some(Arc::new(Inner { channel, process: Mutex::new(Some(process)) })))
    }

    /// One whose messages a test receives.
    #[cfg(test)]
    pub(crate) fn of_test(channel: StoreChannel) -> Self {
        Self::with(channel, fs::File::open("/dev/null").expect("a file").into())
    }

    /// Takes what a broker that has died has left at `path`; `None` if none has, or there is one that lives. What the broker before this one has left in an upgrade
    /// is from then on in a store that `start` runs.
    ///
    /// # Errors
    /// There is something that cannot be used.
    pub fn find(path: &Path, start: &Start<'_>) -> Result<Option<(Self, Taken)>, FindError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(ChannelError::from)?;
        let address = SocketAddrUnix::new(path).map_err(ChannelError::from)?;
        if connect(&socket, &address).is_err() {
            return Ok(None);
        }
        let stream = UnixStream::from(socket);
        let own = rustix::process::geteuid().as_raw();
        let uid = Peer::of(&stream).map_or(u32::MAX, |peer| peer.uid);
        if uid != own {
            return Err(FindError::Stranger { path: path.to_owned(), uid, own });
        }
        let channel = StoreChannel::from(OwnedFd::from(stream));
        channel.set_time_limit(Some(PATIENCE)).map_err(ChannelError::from)?;
        let mut items = Vec::new();
        loop {
            match channel.recv()? {
                Received::Closed => return Ok(None),
                Received::Nothing => return Err(ChannelError::System(Errno::AGAIN).into()),
                Received::Message(FromStore::Version(version), _) if version != STORE_VERSION => {
                    return Err(FindError::Version { path: path.to_owned(), version });
                }
                Received::Message(FromStore::Version(_), _) => {}
                Received::Message(FromStore::Item(item), files) => items.push((item, files)),
                Received::Message(FromStore::All, _) => break,
            }
        }
        // One without it was left before it had been told anything.
        let Some(process) = process_of(&items)? else { return Ok(None) };
        let mut store = Self::with(channel, process);
        let is_upgrade = |item: &Item| matches!(item, Item::Programs { replacing: true, .. });
        if items.iter().any(|(item, _)| is_upgrade(item)) {
            match store.renew(path, start, &items) {
                Ok(renewed) => store = renewed,
                Err(error) => tracing::error!(%error, "the descriptor store is not upgraded"),
            }
        }
        Ok(Some((store, Taken::from_items(items))))
    }

    /// Leaves an item, with duplicates of its descriptors.
    pub fn keep(&self, item: Item, descriptors: &[BorrowedFd<'_>]) {
        self.send(&ToStore::Keep(item), descriptors);
    }

    /// Has what is kept under `key` closed.
    pub fn forget(&self, key: Key) {
        self.send(&ToStore::Forget(key), &[]);
    }

    /// Has entries of a port's record with these keys closed.
    pub(crate) fn forget_entries(&self, port: u64, first: u64, last: u64) {
        self.send(&ToStore::ForgetEntries(port, first..=last), &[]);
    }

    /// Ends the store: the switch stops.
    pub fn close(&self) {
        self.send(&ToStore::Close, &[]);
        let Some(inner) = &self.0 else { return };
        let process = inner.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(process) = process {
            floodway_process::poll::wait_for(&[process.as_fd()], Some(PATIENCE));
            end(&process);
        }
    }

    fn send(&self, message: &ToStore, descriptors: &[BorrowedFd<'_>]) {
        let Some(inner) = &self.0 else { return };
        let mut process = inner.process.lock().unwrap_or_else(PoisonError::into_inner);
        if process.is_none() {
            return;
        }
        if let Err(error) = inner.channel.send(message, descriptors) {
            tracing::error!(%error, "the descriptor store has failed; from now on the data plane ends with its broker");
            if let Some(process) = process.take() {
                end(&process);
            }
        }
    }
}

/// The process of the store that has these items.
fn process_of(items: &Items) -> Result<Option<OwnedFd>, ChannelError> {
    let store = items.iter().find(|(item, _)| *item == Item::Store);
    let process = store.and_then(|(_, files)| files.first()).map(OwnedFd::try_clone).transpose();
    Ok(process.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?)
}

/// Ends a store, and reaps it if it is a child.
fn end(process: &OwnedFd) {
    // Fails when it has ended.
    let _ = pidfd_send_signal(process, Signal::KILL);
    crate::process::reap(process);
}

/// Listens at `path`. Whatever socket is there was left by somebody who has ended: callers have made sure.
fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
