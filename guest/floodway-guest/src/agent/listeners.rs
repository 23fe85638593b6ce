//! What listens in the agent, by the numbers that the lab knows it by.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use floodway_guest::protocol::Listening;
use floodway_guest::requests::Server;
use floodway_guest::transfer::Sink;

/// Something that listens until it is dropped.
pub trait Listen: Sized {
    /// Listens on `address`; port 0 lets the kernel choose.
    fn listen(address: SocketAddr) -> io::Result<Self>;

    /// Where it listens.
    fn address(&self) -> io::Result<SocketAddr>;
}

impl Listen for Arc<TcpListener> {
    fn listen(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).map(Arc::new)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }
}

impl Listen for Sink {
    fn listen(address: SocketAddr) -> io::Result<Self> {
        Self::listen(address)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        Ok(self.address())
    }
}

impl Listen for Server {
    fn listen(address: SocketAddr) -> io::Result<Self> {
        Self::listen(address)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        Ok(self.address())
    }
}

/// All of one kind that are open.
pub struct Listeners<T> {
    table: Mutex<Table<T>>,
}

struct Table<T> {
    last: u64,
    open: BTreeMap<u64, T>,
}

impl<T> Default for Listeners<T> {
    fn default() -> Self {
        Self { table: Mutex::new(Table { last: 0, open: BTreeMap::new() }) }
    }
}

impl<T: Listen> Listeners<T> {
    /// Opens one.
    pub fn open(&self, address: SocketAddr) -> Result<Listening> {
        let opened = T::listen(address).with_context(|| format!("cannot listen on {address}"))?;
        let address = opened.address()?;
        let mut table = self.lock();
        table.last += 1;
        let listener = table.last;
        table.open.insert(listener, opened);
        Ok(Listening { listener, address })
    }

    /// Returns what `look` says of one.
    pub fn with<R>(&self, listener: u64, look: impl FnOnce(&T) -> R) -> Result<R> {
        self.lock().open.get(&listener).map(look).with_context(|| unknown(listener))
    }

    /// Closes one, at the latest when whoever uses it is done.
    pub fn close(&self, listener: u64) -> Result<()> {
        // The lock is not held while it is dropped, which may take a while.
        let closed = self.lock().open.remove(&listener);
        closed.map(drop).with_context(|| unknown(listener))
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(listener: u64) -> String {
    format!("listener {listener}: no such listener")
}
