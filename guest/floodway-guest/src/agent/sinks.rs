//! Sinks of timed transfers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use floodway_guest::protocol::Listening;
use floodway_guest::transfer::{Arrival, Sink};

/// All sinks that are open.
#[derive(Default)]
pub struct Sinks {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    open: BTreeMap<u64, Sink>,
}

impl Sinks {
    /// Opens a sink.
    pub fn open(&self, address: SocketAddr) -> Result<Listening> {
        let sink = Sink::listen(address).with_context(|| format!("cannot listen on {address}"))?;
        let address = sink.address();
        let mut table = self.lock();
        table.last += 1;
        let listener = table.last;
        table.open.insert(listener, sink);
        Ok(Listening { listener, address })
    }

    /// Takes what has come whole.
    pub fn take(&self, listener: u64) -> Result<Vec<Arrival>> {
        Ok(self.lock().open.get(&listener).with_context(|| unknown(listener))?.take())
    }

    /// Closes a sink and all its connections.
    pub fn close(&self, listener: u64) -> Result<()> {
        let sink = self.lock().open.remove(&listener);
        sink.map(drop).with_context(|| unknown(listener))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(listener: u64) -> String {
    format!("listener {listener}: no such sink")
}
