//! Where other hosts connect.
//!
//! One thread accepts, at most 50 connections a second, and gives each a thread; how many there are at once is bounded, before hosts are known and after. Who is one too many is hung up on.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::destination::Destination;
use super::link::{Identity, Link, LinkError};
use super::{MigrationError, Shared};
use floodway_process::poll::{is_readable, wait_for};

/// Connections at once whose hosts are not known yet.
pub(super) const HANDSHAKES: usize = 16;
/// How long a host may take to show who it is.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(2);
/// Connections at once of one host that is known: as many VMs of it can be about to move at once.
pub(super) const SESSIONS_OF_HOST: usize = 32;
/// Connections at once of all hosts that are known.
pub(super) const SESSIONS: usize = 128;
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;
/// Between two connections.
const PAUSE: Duration = Duration::from_millis(20);

/// The thread that accepts. It ends when this is dropped; connections that are there go on.
pub(super) struct Listener {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// Where it listens.
    #[cfg(test)]
    pub(super) address: SocketAddr,
}

/// Who is connected.
#[derive(Default)]
struct Guests {
    handshakes: AtomicUsize,
    sessions: Mutex<BTreeMap<Identity, usize>>,
}

impl Listener {
    /// Listens where the settings say, if they say so.
    ///
    /// # Errors
    /// The address is in use, or there are no threads.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Option<Self>, MigrationError> {
        let Some(address) = shared.settings.listen else { return Ok(None) };
        let listener =
            listen(address).map_err(|source| MigrationError::Listen { address, source })?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(io::Error::from)?);
        #[cfg(test)]
        let address = listener.local_addr()?;
        let (shared, stopped) = (Arc::clone(shared), Arc::clone(&stop));
        let accept = move || accept(&shared, &listener, &stopped);
        let thread = thread::Builder::new().name("moves".to_owned()).spawn(accept)?;
        Ok(Some(Self {
            stop,
            thread: Some(thread),
            #[cfg(test)]
            address,
        }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that other hosts connect to panicked");
        }
    }
}

/// A socket that listens at `address`, from when it is this host's: networks may come after the switch at boot.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let is_v4 = address.is_ipv4();
    let family = if is_v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if is_v4 {
        sockopt::set_ip_freebind(&socket, true)?;
    } else {
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, stop: &OwnedFd) {
    let guests = Arc::new(Guests::default());
    loop {
        wait_for(&[stop.as_fd(), listener.as_fd()], None);
        if is_readable(stop.as_fd()) {
            return;
        }
        if let Ok((socket, _)) = listener.accept() {
            begin(shared, &guests, socket);
        }
        // Also when none can be taken.
        wait_for(&[stop.as_fd()], Some(PAUSE));
    }
}

/// Gives a connection a thread, if there is one left.
fn begin(shared: &Arc<Shared>, guests: &Arc<Guests>, socket: TcpStream) {
    let Some(handshake) = Guests::begin(guests) else { return };
    let shared = Arc::clone(shared);
    let serve = move || {
        if let Err(error) = serve(&shared, handshake, socket) {
            tracing::debug!(%error, "the connection of another host has ended");
        }
    };
    if let Err(error) = thread::Builder::new().name("move-in".to_owned()).spawn(serve) {
        tracing::error!(%error, "there is no thread for a connection of another host");
    }
}

fn serve(shared: &Arc<Shared>, handshake: Handshake, socket: TcpStream) -> Result<(), LinkError> {
    socket.set_nonblocking(false)?;
    let host = socket.peer_addr()?.ip().to_string();
    let mut link = shared.keys.accept(Link::of(socket, Instant::now() + HANDSHAKE)?)?;
    link.greet()?;
    let Some(_session) = handshake.end(link.identity()?) else {
        tracing::warn!(host, "another host has too many connections; it is hung up on");
        return Ok(());
    };
    Destination { shared: Arc::clone(shared), link, host }.run()
}

/// A connection whose host is not known yet.
struct Handshake(Arc<Guests>);

/// One whose host is.
struct Session(Arc<Guests>, Identity);

impl Guests {
    fn begin(guests: &Arc<Self>) -> Option<Handshake> {
        let handshake = Handshake(Arc::clone(guests));
        let before = guests.handshakes.fetch_add(1, Ordering::Relaxed);
        (before < HANDSHAKES).then_some(handshake)
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Identity, usize>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handshake {
    /// The host is known. `None` if it has too many connections.
    fn end(self, identity: Identity) -> Option<Session> {
        let mut sessions = self.0.sessions();
        let all: usize = sessions.values().sum();
        let of_host = sessions.get(&identity).copied().unwrap_or_default();
        if all >= SESSIONS || of_host >= SESSIONS_OF_HOST {
            return None;
        }
        sessions.insert(identity.clone(), of_host + 1);
        drop(sessions);
        Some(Session(Arc::clone(&self.0), identity))
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut sessions = self.0.sessions();
        if let Some(count) = sessions.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                sessions.remove(&self.1);
            }
        }
    }
}
