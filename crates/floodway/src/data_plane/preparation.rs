//! What a data plane does before another one takes its place, while frames still move.

use std::time::{Duration, Instant};

use floodway_process::message::PREPARATION_MS;
use floodway_switch::Switch;
use floodway_switch::switch::Drain;

/// Between two looks at connections.
pub const LOOK: Duration = Duration::from_millis(2);

/// Connections on their way off the offload.
pub struct Preparation {
    drain: Drain,
    deadline: Instant,
    is_told: bool,
}

impl Preparation {
    /// Begins to take the connections of `switch` off the offload.
    pub fn begin(switch: &Switch) -> Self {
        let deadline = Instant::now() + Duration::from_millis(PREPARATION_MS);
        Self { drain: switch.prepare_hand_over(), deadline, is_told: false }
    }

    /// Returns `true` once: when all are off it, or have had the time.
    pub fn is_over_now(&mut self) -> bool {
        if self.is_told || !(self.drain.is_over() || Instant::now() >= self.deadline) {
            return false;
        }
        self.is_told = true;
        true
    }

    /// Returns `true` while somebody has to look whether it is over.
    pub fn is_waited_for(&self) -> bool {
        !self.is_told
    }

    /// Lets the offload of `switch` take connections again.
    pub fn cancel(self, switch: &Switch) {
        switch.cancel_hand_over(self.drain);
    }
}
