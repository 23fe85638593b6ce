//! Which of its ports a worker polls.
//!
//! # Theory of operation
//! **Goal**: a port without frames costs a busy worker nothing, whether a guest is connected or not.
//!
//! Every round looks at the ports that are *polled*. One that has had nothing for [`PARK_AFTER`] is *parked*: its guest is asked for kicks, its rings
//! are looked at once more, and rounds leave it out. So each port goes to sleep by itself, by the rules by which a worker does, and is polled again for
//! the same reasons for which a worker wakes up:
//!
//! - its guest kicks: the worker takes events every [`LOOK_EVERY`] while any port is parked and it does not sleep, or whenever it looks at the clock while all
//!   are and it has no work, and an event names its port;
//! - a ring was set up, or another thread has left something for a port: the event of the worker's own descriptor, after which all
//!   ports are polled;
//! - a timer is due, or work was left for the port's next turn: these are published as deadlines ([`crate::sync::deadline`]).
//!
//! A guest that is parked waits for at most [`LOOK_EVERY`] and the round that goes on. A port in debt is not parked; what others do for a
//! port meanwhile is charged when it is polled again, and paid by the rounds that have passed.

use floodway_core::l2::PortId;
use floodway_core::time::{Duration, Instant};

/// How long a port has nothing before it is parked: long enough for a kick of its guest to be a small part of it.
pub(super) const PARK_AFTER: Duration = Duration::from_millis(1);

/// How often a worker that does not sleep takes events: a system call of less than a microsecond.
pub(super) const LOOK_EVERY: Duration = Duration::from_micros(50);

/// The ports that a worker polls. A port is named by its index among the worker's.
pub(super) struct PolledPorts {
    /// In ascending order.
    polled: Vec<usize>,
    /// When each port last had something, or was polled again, as of the last look.
    last_busy: Vec<Instant>,
    /// Which ports have had something since.
    is_busy: Vec<bool>,
    /// Index of the port with each number.
    by_id: Vec<Option<usize>>,
    next_look: Instant,
}

impl PolledPorts {
    /// All of `ports`, from `now` on.
    pub(super) fn new(ports: impl Iterator<Item = PortId>, now: Instant) -> Self {
        let mut by_id = Vec::new();
        let mut count = 0;
        for id in ports {
            by_id.resize(by_id.len().max(id.index() + 1), None);
            by_id[id.index()] = Some(count);
            count += 1;
        }
        let (last_busy, is_busy) = (vec![now; count], vec![false; count]);
        Self { polled: (0..count).collect(), last_busy, is_busy, by_id, next_look: now }
    }

    /// The ports that are polled.
    #[inline]
    pub(super) fn list(&self) -> &[usize] {
        &self.polled
    }

    /// The index of the port with number `id`.
    pub(super) fn index_of(&self, id: usize) -> Option<usize> {
        self.by_id.get(id).copied().flatten()
    }

    /// Notes that a port has something.
    #[inline]
    pub(super) fn note_busy(&mut self, port: usize) {
        self.is_busy[port] = true;
    }

    /// Returns `true` if it is time to look for ports to park, and for events of those that are. A worker without work and with nothing to poll has
    /// nothing else to do.
    #[inline]
    pub(super) fn begin_look(&mut self, now: Instant, is_idle: bool) -> bool {
        let is_due = now >= self.next_look || (is_idle && self.polled.is_empty());
        if is_due {
            self.next_look = now + LOOK_EVERY;
        }
        is_due
    }

    /// Parks the ports that have had nothing for long enough, and may be parked.
    pub(super) fn park_idle(&mut self, now: Instant, mut may_park: impl FnMut(usize) -> bool) {
        let Self { polled, last_busy, is_busy, .. } = self;
        polled.retain(|&port| {
            if std::mem::take(&mut is_busy[port]) {
                last_busy[port] = now;
            }
            now.since(last_busy[port]) < PARK_AFTER || !may_park(port)
        });
    }

    /// Polls a port again, from `now` on; returns `true` if it was parked.
    pub(super) fn poll(&mut self, port: usize, now: Instant) -> bool {
        let Err(place) = self.polled.binary_search(&port) else { return false };
        self.polled.insert(place, port);
        self.last_busy[port] = now;
        true
    }

    /// Some port is parked.
    #[inline]
    pub(super) fn has_parked(&self) -> bool {
        self.polled.len() < self.last_busy.len()
    }

    /// How many ports there are, parked or not.
    pub(super) fn len(&self) -> usize {
        self.last_busy.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(us)
    }

    #[test]
    fn a_port_without_frames_is_parked_until_it_is_polled_again() {
        let mut ports = PolledPorts::new([7, 3, 5].map(PortId).into_iter(), at(0));
        assert_eq!(
            (ports.index_of(7), ports.index_of(5), ports.index_of(4)),
            (Some(0), Some(2), None)
        );
        ports.note_busy(1);
        ports.park_idle(at(500), |_| true);
        ports.park_idle(at(999), |_| true);
        assert!(!ports.has_parked());
        ports.park_idle(at(1000), |port| port != 2);
        assert_eq!(ports.list(), [1, 2], "one has work that nobody has seen yet");
        assert!(ports.has_parked());
        ports.park_idle(at(1500), |_| true);
        assert!(ports.list().is_empty());
        assert!(ports.poll(2, at(1600)) && ports.poll(0, at(1600)) && !ports.poll(0, at(1700)));
        assert_eq!(ports.list(), [0, 2]);
        ports.park_idle(at(2599), |_| true);
        assert_eq!(ports.list(), [0, 2]);
    }

    #[test]
    fn events_are_taken_at_intervals() {
        let mut ports = PolledPorts::new(std::iter::empty(), at(0));
        let looks = (0..1000).filter(|&us| ports.begin_look(at(us), false)).count();
        assert_eq!(looks, 20);
    }
}
