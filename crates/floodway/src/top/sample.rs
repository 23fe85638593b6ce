//! What one look at the switch brings.

use std::collections::HashMap;
use std::time::Duration;

use floodway_switch::api::activity::Activity;
use floodway_switch::api::control::FlowStatus;

use super::wait::ThreadTimes;

/// What one look at the switch brings.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// What the switch says.
    pub activity: Activity,
    /// When the threads of VMMs were looked at, by a clock that only goes forward.
    pub clock: Duration,
    /// What the kernel says of them, by process.
    pub threads: HashMap<i32, ThreadTimes>,
    /// Connections of the selected port, if they were asked for.
    pub flows: Option<Flows>,
}

/// The offloaded connections of a port, summed. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Whose they are.
    pub port: String,
    /// How many were looked at.
    pub count: usize,
    /// There are more.
    pub more: bool,
    /// Sent by the guest and not released yet.
    pub held: u64,
    /// Released and not acknowledged yet.
    pub retained: u64,
    /// Acknowledged for the guest and not by it yet.
    pub kept: u64,
    /// Those whose transmit side repairs a loss, and those that have no buffer.
    pub in_loss: usize,
    /// See above.
    pub without_buffer: usize,
}

impl Flows {
    /// The sums over `flows` of `port`; with `more`, there are others.
    #[must_use]
    pub fn of(port: &str, flows: &[FlowStatus], more: bool) -> Self {
        let sum = |bytes: fn(&FlowStatus) -> u32| flows.iter().map(|f| u64::from(bytes(f))).sum();
        let in_state = |state: &str| flows.iter().filter(|flow| flow.tx == state).count();
        Self {
            port: port.to_owned(),
            count: flows.len(),
            more,
            held: sum(|flow| flow.held),
            retained: sum(|flow| flow.in_flight),
            kept: sum(|flow| flow.kept),
            in_loss: in_state("PACKET_LOSS"),
            without_buffer: in_state("NO_BUFFER"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_summed_and_counted_by_state() {
        let flow = |tx: &str, held| FlowStatus {
            tx: tx.to_owned(),
            held,
            in_flight: 10,
            kept: 1,
            ..FlowStatus::default()
        };
        let flows = [flow("ACTIVE", 1), flow("PACKET_LOSS", 2), flow("NO_BUFFER", u32::MAX)];
        let sums = Flows::of("vm1", &flows, true);
        assert_eq!((sums.held, sums.retained, sums.kept), (u64::from(u32::MAX) + 3, 30, 3));
        assert_eq!((sums.count, sums.in_loss, sums.without_buffer), (3, 1, 1));
    }
}
