//! Virtual time and the events to come.

use super::queue::{EventQueue, Timer};
use crate::{Duration, Instant};

/// The present of a run and what is scheduled for its future.
#[derive(Debug)]
pub struct Clock<E> {
    now: Instant,
    queue: EventQueue<E>,
    events: u64,
}

impl<E: Copy> Default for Clock<E> {
    fn default() -> Self {
        Self { now: Instant::ZERO, queue: EventQueue::new(), events: 0 }
    }
}

impl<E: Copy> Clock<E> {
    /// The present.
    #[must_use]
    #[inline]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Events that were taken so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Events to come.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.queue.len()
    }

    /// The time of the next event; [`Instant::NEVER`] if none is to come.
    #[must_use]
    pub fn next_time(&self) -> Instant {
        self.queue.next_time().unwrap_or(Instant::NEVER)
    }

    /// An event comes from outside: time goes to `time`, before which there is no event.
    pub(crate) fn arrive(&mut self, time: Instant) {
        self.now = self.now.max(time);
        self.events += 1;
    }

    /// Schedules an event at a time, at the earliest now. At [`Instant::NEVER`] it never comes.
    #[inline]
    pub fn at(&mut self, time: Instant, event: E) -> Timer {
        if time == Instant::NEVER {
            return Timer::NONE;
        }
        self.queue.push(time.max(self.now), event)
    }

    /// Schedules an event after a delay.
    #[inline]
    pub fn after(&mut self, delay: Duration, event: E) -> Timer {
        self.at(self.now + delay, event)
    }

    /// Removes a pending event; false if it has come or was cancelled before.
    pub fn cancel(&mut self, timer: Timer) -> bool {
        self.queue.cancel(timer).is_some()
    }

    /// The event is still to come.
    #[must_use]
    pub fn is_pending(&self, timer: Timer) -> bool {
        self.queue.is_pending(timer)
    }

    /// Moves a pending event; false if it has come or was cancelled before.
    pub fn reschedule(&mut self, timer: Timer, time: Instant) -> bool {
        if time == Instant::NEVER {
            return self.cancel(timer);
        }
        self.queue.reschedule(timer, time.max(self.now))
    }

    /// Goes to the next event that is not after `end`, or to `end` if there is none.
    #[inline]
    pub fn next(&mut self, end: Instant) -> Option<E> {
        if let Some((time, event)) = self.queue.pop(end) {
            self.now = time;
            self.events += 1;
            return Some(event);
        }
        self.now = self.now.max(end);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_to_events_and_to_the_end() {
        let mut clock = Clock::default();
        clock.after(Duration::from_millis(5), 'x');
        assert_eq!(clock.next(Instant::from_millis(4)), None);
        assert_eq!(clock.now(), Instant::from_millis(4));
        clock.at(Instant::ZERO, 'y');
        assert_eq!(clock.next(Instant::NEVER), Some('y'));
        assert_eq!(clock.now(), Instant::from_millis(4));
        let moved = clock.after(Duration::from_millis(9), 'z');
        assert!(clock.reschedule(moved, Instant::from_micros(4_500)));
        assert_eq!(clock.next(Instant::NEVER), Some('z'));
        assert_eq!(clock.next(Instant::NEVER), Some('x'));
        assert_eq!((clock.now(), clock.events()), (Instant::from_millis(5), 3));
    }
}
