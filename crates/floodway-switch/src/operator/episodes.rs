//! When drops begin and end: events made of counters.
//!
//! # Theory of operation
//! The packet path counts drops and does nothing else about them. A thread looks at the counters of all ports and uplinks every [`INTERVAL`], one queue's lock at a
//! time. Drops of a port, in a direction and for a reason, have begun when a look finds more than the one before, and have ended when [`QUIET`] looks in a row
//! have found no more. What was dropped before the first look is no event: it is of an earlier process.
//!
//! So what is dropped now and then is one episode, and there are at most two events in [`QUIET`] looks for each port, direction and reason; beyond
//! that a port's events are [limited](crate::events).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::activity::{Sums, port_sums, uplink_sums};
use crate::api::events::{Direction, EventKind};
use crate::host::affinity::Cores;
use crate::state::shared::Shared;
use crate::stats::DropReason;

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Looks without a drop after which drops have ended.
const QUIET: u32 = 30;

/// The thread that looks. It ends when this is dropped.
pub(crate) struct EpisodeThread {
    /// Dropped to end it.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl EpisodeThread {
    /// Starts it, on cores that workers do not use if there are such.
    ///
    /// # Errors
    /// Threads have run out.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let (end, ended) = mpsc::channel::<()>();
        let cores = Cores::spare(shared.workers.iter().filter_map(|worker| worker.core));
        let thread = thread::Builder::new().name("drops".into()).spawn(move || {
            let mut episodes = Episodes::default();
            episodes.look(&samples(&shared));
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let changed = episodes.look(&samples(&shared));
                changed.into_iter().for_each(|kind| emit(&shared, kind));
            }
        })?;
        if let Some(error) = cores.and_then(|cores| cores.pin(&thread).err()) {
            tracing::debug!(%error, "the thread that counts drops may share a core with a worker");
        }
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl EpisodeThread {
    /// Lets it end, which dropping it waits for.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.end.take());
    }
}

impl Drop for EpisodeThread {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that counts drops panicked");
        }
    }
}

/// Emits an event of a port within its limit, and any other at once.
fn emit(shared: &Shared, kind: EventKind) {
    let ports = shared.ports();
    match kind.port().and_then(|name| ports.named(name)) {
        Some(port) => port.emit(|_| kind),
        None => shared.events.emit(kind),
    }
}

/// What a port or uplink has dropped in a direction, by the index of the reason.
struct Sample {
    name: String,
    direction: Direction,
    drops: [u64; DropReason::ALL.len()],
}

fn samples(shared: &Shared) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut add = |name: &str, (rx, tx): (Sums, Sums)| {
        for (direction, Sums { drops, .. }) in [(Direction::Rx, rx), (Direction::Tx, tx)] {
            samples.push(Sample { name: name.to_owned(), direction, drops });
        }
    };
    for port in shared.ports().iter() {
        add(&port.config.name, port_sums(port));
    }
    for uplink in shared.uplinks().iter() {
        add(&uplink.config.name, uplink_sums(uplink));
    }
    samples
}

/// Drops for one reason.
#[derive(Clone, Copy, Default)]
struct Episode {
    /// How many there were at the last look.
    counted: u64,
    /// How many there were when they began, while they go on.
    before: Option<u64>,
    /// Looks since the last drop.
    quiet: u32,
}

type Reasons = [Episode; DropReason::ALL.len()];

/// What is known of all drops.
#[derive(Default)]
struct Episodes {
    known: BTreeMap<(String, Direction), Reasons>,
    has_looked: bool,
}

impl Episodes {
    /// Returns what has begun and ended since the last look. What is not among the samples any more has ended.
    fn look(&mut self, samples: &[Sample]) -> Vec<EventKind> {
        let mut events = Vec::new();
        let mut gone = std::mem::take(&mut self.known);
        for Sample { name, direction, drops } in samples {
            let key = (name.clone(), *direction);
            // Who comes later has dropped nothing before.
            let first = |counted: u64| match self.has_looked {
                true => Episode::default(),
                false => Episode { counted, ..Episode::default() },
            };
            let mut reasons = gone.remove(&key).unwrap_or_else(|| drops.map(first));
            for (index, (episode, &counted)) in reasons.iter_mut().zip(drops).enumerate() {
                events.extend(episode.look(counted).map(|change| change.of(&key, index)));
            }
            self.known.insert(key, reasons);
        }
        gone.iter().for_each(|(key, reasons)| events.extend(ended(key, reasons)));
        self.has_looked = true;
        events
    }
}

/// What ends with a port that is gone.
fn ended(key: &(String, Direction), reasons: &Reasons) -> impl Iterator<Item = EventKind> {
    let over = reasons.iter().enumerate().filter_map(|(i, e)| Some((i, e.frames()?)));
    over.map(move |(index, frames)| Change::Ended(frames).of(key, index))
}

enum Change {
    Began,
    Ended(u64),
}

impl Change {
    fn of(self, (name, direction): &(String, Direction), index: usize) -> EventKind {
        let (port, direction) = (name.clone(), *direction);
        let reason = DropReason::ALL[index].name().to_owned();
        match self {
            Self::Began => EventKind::DropsBegan { port, direction, reason },
            Self::Ended(frames) => EventKind::DropsEnded { port, direction, reason, frames },
        }
    }
}

impl Episode {
    /// Frames since it began, while it goes on.
    fn frames(&self) -> Option<u64> {
        self.before.map(|before| self.counted.saturating_sub(before))
    }

    fn look(&mut self, counted: u64) -> Option<Change> {
        if counted < self.counted {
            // Another port of the same name counts from zero.
            *self = Self { counted: 0, before: self.before.map(|_| 0), quiet: self.quiet };
        }
        if counted > self.counted {
            let before = std::mem::replace(&mut self.counted, counted);
            self.quiet = 0;
            let is_new = self.before.is_none();
            self.before.get_or_insert(before);
            return is_new.then_some(Change::Began);
        }
        self.quiet += 1;
        if self.quiet < QUIET {
            return None;
        }
        let frames = self.frames()?;
        self.before = None;
        Some(Change::Ended(frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORM: usize = 3;

    fn sample(name: &str, counted: u64) -> Sample {
        let mut drops = [0; DropReason::ALL.len()];
        drops[STORM] = counted;
        Sample { name: name.into(), direction: Direction::Tx, drops }
    }

    fn began(name: &str) -> EventKind {
        Change::Began.of(&(name.into(), Direction::Tx), STORM)
    }

    fn ended(name: &str, frames: u64) -> EventKind {
        Change::Ended(frames).of(&(name.into(), Direction::Tx), STORM)
    }

    #[test]
    fn an_episode_begins_with_a_drop_and_ends_when_there_were_none_for_long() {
        let mut episodes = Episodes::default();
        let mut look = |counted| episodes.look(&[sample("vm1", counted)]);
        assert_eq!(look(100), [], "of before");
        assert_eq!(look(101), [began("vm1")]);
        assert_eq!(look(150), [], "it goes on");
        for _ in 1..QUIET {
            assert_eq!(look(150), []);
        }
        assert_eq!(look(151), [], "not over yet");
        let quiet: Vec<_> = (0..2 * QUIET).flat_map(|_| look(151)).collect();
        assert_eq!(quiet, [ended("vm1", 51)]);
        assert_eq!(look(152), [began("vm1")], "another one");
    }

    #[test]
    fn a_port_that_comes_begins_at_zero_and_one_that_goes_ends() {
        let mut episodes = Episodes::default();
        assert_eq!(episodes.look(&[]), []);
        assert_eq!(episodes.look(&[sample("vm1", 5)]), [began("vm1")]);
        assert_eq!(episodes.look(&[]), [ended("vm1", 5)]);
        assert_eq!(episodes.look(&[sample("vm1", 0)]), []);
        assert_eq!(episodes.look(&[sample("vm1", 9)]), [began("vm1")]);
        // Its successor under the same name.
        assert_eq!(episodes.look(&[sample("vm1", 2)]), []);
        assert_eq!(episodes.look(&[]), [ended("vm1", 2)]);
    }
}
