//! A reader of events: a place in the ring.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Events, Ring, time_now};
use crate::api::control::ControlError;
use crate::api::events::{Event, EventId, EventKind, EventQuery, MAX_READERS};
use crate::sync::lock;

/// Reads the events that are kept, and then those that come.
#[derive(Debug)]
pub struct EventReader {
    events: Arc<Events>,
    /// Its number among readers.
    number: u64,
    /// How many events it has got, or lost.
    read: u64,
    /// Only those of this port or uplink.
    port: Option<String>,
    /// It goes on with those that come.
    follows: bool,
    /// What it has read before is of another history, and it has not been told.
    is_of_another: bool,
}

impl EventReader {
    /// A reader of what `query` asks for.
    ///
    /// # Errors
    /// There are too many readers, or the query names an event that has not happened.
    pub fn new(events: &Arc<Events>, query: &EventQuery) -> Result<Self, ControlError> {
        let mut ring = lock(&events.ring);
        let last = EventId { history: events.history, number: ring.emitted };
        let (read, is_of_another) = place(query.since, ring.overwritten(), last)?;
        if ring.readers.len() >= MAX_READERS {
            return Err(ControlError::TooManyReaders(MAX_READERS));
        }
        ring.last_reader += 1;
        let number = ring.last_reader;
        ring.readers.insert(number, None);
        let (port, follows) = (query.port.clone(), query.follow.unwrap_or(true));
        Ok(Self { events: Arc::clone(events), number, read, port, follows, is_of_another })
    }

    /// The next event, or that some were lost; `None` if there is none and the reader does not follow. If it does, `context` is woken when it is worth asking again.
    pub fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<Arc<Event>>> {
        let events = Arc::clone(&self.events);
        let mut ring = lock(&events.ring);
        let overwritten = ring.overwritten();
        if let Some(lost) = self.take_lost(overwritten) {
            return Poll::Ready(Some(lost));
        }
        while let Some(event) = ring.kept.get((self.read - overwritten) as usize) {
            self.read += 1;
            if self.port.is_none() || event.kind.port() == self.port.as_deref() {
                return Poll::Ready(Some(Arc::clone(event)));
            }
        }
        if !self.follows {
            return Poll::Ready(None);
        }
        ring.readers.insert(self.number, Some(context.waker().clone()));
        Poll::Pending
    }

    /// Tells of events that it will never get, if there are such that it was not told of; so many are `overwritten`.
    fn take_lost(&mut self, overwritten: u64) -> Option<Arc<Event>> {
        if std::mem::take(&mut self.is_of_another) {
            return Some(self.lost(None));
        }
        let count = overwritten.checked_sub(self.read).filter(|&count| count > 0)?;
        self.read = overwritten;
        Some(self.lost(Some(count)))
    }

    /// Tells of events that are gone. Its number is that of the last of them, so that whoever goes on from there misses nothing else.
    fn lost(&self, count: Option<u64>) -> Arc<Event> {
        let kind = EventKind::Lost { count };
        let id = EventId { history: self.events.history, number: self.read };
        let (time, severity, text) = (time_now(), kind.severity(), kind.to_string());
        Arc::new(Event { id, time, severity, kind, text, suppressed: 0 })
    }
}

/// How many events who goes on after `since` has read, of which `first` are not kept any more and `last` is the last; and whether they were of another history.
fn place(since: Option<EventId>, first: u64, last: EventId) -> Result<(u64, bool), ControlError> {
    match since {
        None => Ok((first, false)),
        Some(since) if since.history != last.history => Ok((first, true)),
        Some(since) if since > last => {
            let problem = format!("since = {since}: no such event yet; the last is {last}");
            Err(ControlError::Invalid(problem))
        }
        Some(since) => Ok((since.number, false)),
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        lock(&self.events.ring).readers.remove(&self.number);
    }
}

impl Ring {
    /// How many events are not kept any more: the number of the last of them.
    fn overwritten(&self) -> u64 {
        self.emitted - self.kept.len() as u64
    }
}
