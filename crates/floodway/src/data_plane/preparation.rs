//! What a data plane does before another one takes its place, while frames still move.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use floodway_process::message::PREPARATION_MS;
use floodway_switch::Switch;
use floodway_switch::kept::flows::FORMAT;
use floodway_switch::switch::Drain;

/// Between two looks at connections.
pub const LOOK: Duration = Duration::from_millis(2);

/// What becomes of connections.
enum Connections {
    /// They go on: how they are is written to a file of this length.
    HandedOver(OwnedFd, u64),
    /// They are on their way off the offload.
    Drained(Drain),
}

/// What is under way before a hand-over.
pub struct Preparation {
    connections: Connections,
    /// Those that were online at its beginning.
    online: u32,
    deadline: Instant,
    is_told: bool,
}

impl Preparation {
    /// Begins to prepare `switch` for another one that reads connections in this `format`, from `file`, of so many `bytes`. If it is none of ours, they go off the offload.
    pub fn begin(switch: &Switch, format: u32, file: OwnedFd, bytes: u64) -> Self {
        let online = switch.online();
        let deadline = Instant::now() + Duration::from_millis(PREPARATION_MS);
        let connections = if format == FORMAT {
            Connections::HandedOver(file, bytes)
        } else {
            tracing::warn!(
                online,
                format,
                own = FORMAT,
                "connections go off the offload: the next program does not read how they are"
            );
            Connections::Drained(switch.prepare_hand_over())
        };
        Self { connections, online, deadline, is_told: false }
    }

    /// Connections that were online at the beginning, and the file to which they are to be written, with its length, if they are.
    pub fn end(self) -> (u32, Option<(OwnedFd, u64)>) {
        match self.connections {
            Connections::HandedOver(file, bytes) => (self.online, Some((file, bytes))),
            Connections::Drained(_) => (self.online, None),
        }
    }

    fn is_over(&self) -> bool {
        match &self.connections {
            Connections::HandedOver(..) => true,
            Connections::Drained(drain) => drain.is_over(),
        }
    }

    /// Returns `true` once: when connections are off the offload, or have had the time, or need not go.
    pub fn is_over_now(&mut self) -> bool {
        if self.is_told || !(self.is_over() || Instant::now() >= self.deadline) {
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
        if let Connections::Drained(drain) = self.connections {
            switch.cancel_hand_over(drain);
        }
    }
}
