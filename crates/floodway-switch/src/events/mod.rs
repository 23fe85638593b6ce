//! Events: what operators hear of ([`crate::api::events`]), and the lines of the log that say the same.
//!
//! # Theory of operation
//! **One way in.** [`Events::emit`] gives an event its number, writes its line into the log and keeps it: there is no event without its line, and both have the same
//! number, severity and text. What is no event is logged by `tracing` as ever, such as a socket that fails and is opened again.
//!
//! **Nobody is waited for.** The last [`HISTORY`] events are in a ring. A reader ([`EventReader`]) has a place in it and nothing else: no queue of its own, and no say in
//! when an event is overwritten. Who is too slow finds that its place is gone, and is told how many events were. Whoever emits holds the ring's lock for a few pointers,
//! and wakes the readers after it; workers emit too, but only where something broke.
//!
//! **Who can cause events** is limited: what a port's guest or front-end brings about passes the port's [`LogLimit`], and what is left out is
//! counted in the next one ([`PortEvents`]). So a front-end that connects a thousand times a second does not push everybody else's events out of the ring, but
//! may hide its own.
//!
//! **Numbers** begin anew with each process that moves frames; the time when it began tells them apart ([`EventId`]). Who goes on from a number of another process
//! gets all that this one has kept, and is told that there is a gap, but not how large.
//!
//! Invariants: numbers have no gaps within a history; the lock is a leaf, and is never held over a call of somebody else's code.

mod reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};

use crate::api::events::{Event, EventId, EventKind, HISTORY, Severity};
use crate::host::log_limit::LogLimit;
use crate::sync::lock;

pub use reader::EventReader;

/// Longest text that an event takes from somebody else, in bytes.
const MAX_TEXT: usize = 4096;

/// The events of a switch.
#[derive(Debug)]
pub struct Events {
    /// When the history began, in milliseconds since 1970.
    history: u64,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    /// The last ones.
    kept: VecDeque<Arc<Event>>,
    /// How many there were.
    emitted: u64,
    /// Readers, by their number, and whom to wake if one waits.
    readers: BTreeMap<u64, Option<Waker>>,
    /// Number of the last reader.
    last_reader: u64,
}

impl Default for Events {
    fn default() -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self { history: since_1970.unwrap_or_default().as_millis() as u64, ring: Mutex::default() }
    }
}

impl Events {
    /// Logs an event, keeps it, and wakes who waits for one.
    pub fn emit(&self, kind: EventKind) {
        self.emit_after(0, kind);
    }

    /// As [`emit`](Self::emit), after `suppressed` that were left out.
    fn emit_after(&self, suppressed: u64, kind: EventKind) {
        let (time, severity, text) = (time_now(), kind.severity(), kind.to_string());
        let mut ring = lock(&self.ring);
        ring.emitted += 1;
        let id = EventId { history: self.history, number: ring.emitted };
        let event = Arc::new(Event { id, time, severity, kind, text, suppressed });
        if ring.kept.len() == HISTORY {
            ring.kept.pop_front();
        }
        ring.kept.push_back(Arc::clone(&event));
        let waiting: Vec<_> = ring.readers.values_mut().filter_map(Option::take).collect();
        drop(ring);
        log(&event);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns `true` if an event that is kept is about the port or uplink `name`.
    #[must_use]
    pub fn know(&self, name: &str) -> bool {
        lock(&self.ring).kept.iter().any(|event| event.kind.port() == Some(name))
    }
}

/// The line of an event.
fn log(event: &Event) {
    let Event { id, severity, kind, text, suppressed, .. } = event;
    let (name, port) = (kind.name(), kind.port());
    // Only where there were any.
    let suppressed = (*suppressed > 0).then_some(*suppressed);
    match severity {
        Severity::Info => tracing::info!(port, event = name, %id, suppressed, "{text}"),
        Severity::Warning => tracing::warn!(port, event = name, %id, suppressed, "{text}"),
        Severity::Error => tracing::error!(port, event = name, %id, suppressed, "{text}"),
    }
}

fn time_now() -> String {
    DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// `seconds` since 1970 (UTC) as RFC 3339 says; empty for what is no time.
pub(crate) fn time_at(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|s| DateTime::<Utc>::from_timestamp(s, 0));
    time.map(|time| time.to_rfc3339_opts(SecondsFormat::Secs, true)).unwrap_or_default()
}

/// `text`, or its beginning if it is too long for an event.
#[must_use]
pub fn clip(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT - 4));
        text.push_str(" ...");
    }
    text
}

/// The events of one port, and what its guest and its front-end may cause of them and of other lines of the log.
#[derive(Debug)]
pub struct PortEvents {
    all: Arc<Events>,
    pub(crate) limit: LogLimit,
}

impl PortEvents {
    /// Events of a port, which go to `all`.
    #[must_use]
    pub fn new(all: Arc<Events>) -> Self {
        Self { all, limit: LogLimit::default() }
    }

    /// Emits the event that `kind` makes of the port's `name`, unless there were too many.
    pub fn emit(&self, name: &str, kind: impl FnOnce(String) -> EventKind) {
        if let Some(suppressed) = self.limit.admit() {
            self.all.emit_after(suppressed, kind(name.to_owned()));
        }
    }
}
