//! Listening sockets that wait for their streams.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use floodway_guest::protocol::Listening;

/// All listening sockets that are open.
#[derive(Default)]
pub struct Listeners {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    open: BTreeMap<u64, Arc<TcpListener>>,
}

impl Listeners {
    /// Opens a socket.
    pub fn open(&self, address: SocketAddr) -> Result<Listening> {
        let socket =
            TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        let address = socket.local_addr()?;
        let mut table = self.lock();
        table.last += 1;
        let listener = table.last;
        table.open.insert(listener, Arc::new(socket));
        Ok(Listening { listener, address })
    }

    /// Finds a socket.
    pub fn get(&self, listener: u64) -> Result<Arc<TcpListener>> {
        self.lock().open.get(&listener).cloned().with_context(|| unknown(listener))
    }

    /// Closes a socket, at the latest when whoever receives from it is done.
    pub fn close(&self, listener: u64) -> Result<()> {
        self.lock().open.remove(&listener).map(drop).with_context(|| unknown(listener))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(listener: u64) -> String {
    format!("listener {listener}: no such listener")
}
