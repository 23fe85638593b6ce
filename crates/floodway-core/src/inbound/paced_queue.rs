//! A first-in, first-out queue of connections of which something waits, served at a rate.
//!
//! # Theory of operation
//! Connections wait in the order in which they came. One may leave from the middle: it is reset, makes room for another, or has waited for too
//! long, and a call for timers has many of those. So the queue is a list through an array: each connection knows its
//! [`Place`], and leaving costs the same wherever it is. Places are used again; memory is taken when the first one waits.
//!
//! Invariant: a connection is in the queue exactly while it has a place there, and one that is gone is not in it.

use super::pacer::Pacer;
use crate::steps;
use crate::tables::flow_table::{Chunks, FlowId, Linked, Links, List};
use crate::time::{Duration, Instant};

/// Most that wait: what they wait with takes memory, and floods must not make it grow.
pub(super) const LONGEST: usize = 1024;

/// Where a connection waits: valid until it leaves or is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

/// What is at a place.
#[derive(Debug)]
struct Entry {
    id: FlowId,
    links: Links,
}

impl Linked for Entry {
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Connections in the order in which they came, each at most once, and the pacer that serves them.
#[derive(Debug)]
pub(super) struct PacedQueue {
    pub pacer: Pacer,
    entries: Chunks<Entry>,
    /// Places that are taken, first come first.
    queue: List,
    /// Places that are free.
    free: List,
    len: usize,
}

impl PacedQueue {
    pub fn new(rate: u64, tolerance: Duration) -> Self {
        Self {
            pacer: Pacer::new(rate, tolerance),
            entries: Chunks::new(LONGEST as u32),
            queue: List::EMPTY,
            free: List::EMPTY,
            len: 0,
        }
    }

    /// Who comes now has to wait. The line is never longer than [`LONGEST`]: who comes then does not wait.
    pub fn is_busy(&self, now: Instant) -> bool {
        let someone = self.pacer.is_in_debt(now) || !self.queue.is_empty();
        someone && self.len < LONGEST
    }

    /// When the first one's turn comes; [`Instant::NEVER`] if nobody waits.
    pub fn next_turn(&self) -> Instant {
        if self.queue.is_empty() { Instant::NEVER } else { self.pacer.ready_at() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// A connection comes to the end of the line. Returns its place; `None` if [`LONGEST`] wait already.
    pub fn join(&mut self, id: FlowId) -> Option<Place> {
        let index = match self.free.pop_front(&mut self.entries) {
            Some(index) => {
                self.entries.get_mut(index)?.id = id;
                index
            }
            None => self.entries.push(Entry { id, links: Links::default() })?,
        };
        self.queue.push_back(&mut self.entries, index);
        self.len += 1;
        Some(Place(index))
    }

    /// Whose turn it is now, if it is anybody's: that one has left the line.
    pub fn serve(&mut self, now: Instant) -> Option<FlowId> {
        if self.pacer.is_in_debt(now) {
            return None;
        }
        let index = self.queue.first()?;
        self.leave(Place(index));
        self.entries.get(index).map(|entry| entry.id)
    }

    /// One leaves its place, which it has not left before.
    pub fn leave(&mut self, place: Place) {
        steps::count(1);
        self.queue.unlink(&mut self.entries, place.0);
        self.free.push_back(&mut self.entries, place.0);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(index: u32) -> FlowId {
        FlowId { index, generation: 0 }
    }

    fn line() -> PacedQueue {
        PacedQueue::new(1, Duration::ZERO)
    }

    /// Those who wait, from the first on.
    fn serve_all(line: &mut PacedQueue) -> Vec<u32> {
        std::iter::from_fn(|| line.serve(Instant::ZERO)).map(|id| id.index).collect()
    }

    #[test]
    fn leaving_costs_the_same_at_every_place_of_a_full_line() {
        let mut line = line();
        let places: Vec<_> = (0..LONGEST as u32).map_while(|n| line.join(id(n))).collect();
        assert_eq!((places.len(), line.join(id(9999))), (LONGEST, None));
        for at in [LONGEST / 2, LONGEST - 1, 0] {
            let _ = steps::take();
            line.leave(places[at]);
            assert_eq!(steps::take(), 1, "place {at}");
        }
        assert_eq!(line.len(), LONGEST - 3);
        assert!(line.join(id(7)).is_some(), "a place is free again");
    }

    proptest! {
        /// As a list of those who wait would do it.
        #[test]
        fn who_came_first_is_served_first(
            steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>()), 1..300),
        ) {
            let (mut line, mut model) = (line(), Vec::new());
            for (n, (what, which)) in steps.into_iter().enumerate() {
                match what {
                    0 if !model.is_empty() => {
                        let (place, _) = model.remove(which.index(model.len()));
                        line.leave(place);
                    }
                    1 => {
                        let first = (!model.is_empty()).then(|| model.remove(0).1);
                        prop_assert_eq!(line.serve(Instant::ZERO).map(|id| id.index), first);
                    }
                    _ => model.extend(line.join(id(n as u32)).map(|place| (place, n as u32))),
                }
                prop_assert_eq!(line.len(), model.len());
                prop_assert_eq!(line.next_turn() == Instant::NEVER, model.is_empty());
            }
            let left: Vec<_> = model.into_iter().map(|(_, id)| id).collect();
            prop_assert_eq!(serve_all(&mut line), left);
        }
    }
}
