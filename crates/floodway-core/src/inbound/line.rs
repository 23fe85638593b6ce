//! A line of connections of which something waits, served at a rate.

use std::collections::VecDeque;

use super::pacer::Pacer;
use crate::steps;
use crate::tables::flow_table::FlowId;
use crate::time::{Duration, Instant};

/// Most that wait: what they wait with takes memory, and floods must not make it grow.
pub(super) const LONGEST: usize = 1024;

/// Connections in the order in which they came, each at most once, and the pacer that serves them.
#[derive(Debug)]
pub(super) struct Line {
    pub pacer: Pacer,
    queue: VecDeque<FlowId>,
}

impl Line {
    pub fn new(rate: u64, tolerance: Duration) -> Self {
        Self { pacer: Pacer::new(rate, tolerance), queue: VecDeque::new() }
    }

    /// Who comes now has to wait. The line is never longer than [`LONGEST`]: who comes then does not wait.
    pub fn is_busy(&self, now: Instant) -> bool {
        let someone = self.pacer.is_in_debt(now) || !self.queue.is_empty();
        someone && self.queue.len() < LONGEST
    }

    /// When the first one's turn comes; [`Instant::NEVER`] if nobody waits.
    pub fn next_turn(&self) -> Instant {
        if self.queue.is_empty() { Instant::NEVER } else { self.pacer.ready_at() }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn join(&mut self, id: FlowId) {
        self.queue.push_back(id);
    }

    /// Whose turn it is now, if it is anybody's.
    pub fn serve(&mut self, now: Instant) -> Option<FlowId> {
        if self.pacer.is_in_debt(now) { None } else { self.queue.pop_front() }
    }

    /// One leaves its place.
    pub fn leave(&mut self, id: FlowId) {
        // Who has waited for too long is the first.
        if self.queue.front() == Some(&id) {
            self.queue.pop_front();
        } else {
            steps::count(self.queue.len());
            self.queue.retain(|&other| other != id);
        }
    }

    pub fn clear(&mut self) {
        self.queue.clear();
    }
}
