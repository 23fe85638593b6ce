//! What a running switch does now: what `GET /v1/activity` answers and `floodway top` shows.
//!
//! # Theory of operation
//! The [status](crate::status) has every counter of every queue, the forwarding table and who sent to whom: megabytes for hundreds of ports. Who
//! asks every second wants less. This document has sums for each port, only the reasons for drops that occurred, and nothing whose size grows faster than the
//! number of ports.
//!
//! Directions and counters are those of the status: counters only grow, from zero at the switch's start or when a port is added. Rates are the
//! reader's to make, from the difference of two documents and of their [`uptime_s`](crate::status::SwitchStatus::uptime_s).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::{Drops, PortState, SwitchStatus, WorkStatus};

/// What a switch does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Activity {
    /// The process.
    pub switch: SwitchStatus,
    /// Workers, in the order of the configuration.
    pub workers: Vec<WorkerActivity>,
    /// Ports, in the order of the configuration.
    pub ports: Vec<PortActivity>,
    /// Uplinks, in the order of the configuration.
    pub uplinks: Vec<UplinkActivity>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerActivity {
    /// Position in the configuration, from 0.
    pub index: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// Rounds over all its ports and uplinks.
    pub polls: u64,
    /// Rounds that found something to do.
    pub busy_polls: u64,
    /// Seconds that it was asleep since the switch started.
    pub asleep_s: f64,
}

/// What a port does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortActivity {
    /// As configured.
    pub name: String,
    /// Index of the worker that serves it.
    pub worker: usize,
    /// Where it is in its life.
    pub state: PortState,
    /// Its last front-end was cut off, and no other one has come.
    pub quarantined: bool,
    /// Process of the front-end as the kernel names it (`SO_PEERCRED`): the VMM; none while nobody is connected.
    pub front_end_pid: Option<i32>,
    /// Frames to the guest, of all queues, with those that came to no queue among the drops.
    pub rx: TrafficActivity,
    /// Frames from the guest, of all queues.
    pub tx: TrafficActivity,
    /// Frames that wait for buffers of the guest now.
    pub pending_frames: u64,
    /// Bytes that those frames take of the queues' bounds.
    pub pending_bytes: u64,
    /// What was done for the guest.
    pub work: WorkStatus,
    /// TCP offload.
    pub offload: OffloadActivity,
}

/// What an uplink does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkActivity {
    /// As configured.
    pub name: String,
    /// Frames that came in through the interface.
    pub rx: TrafficActivity,
    /// Frames that left through the interface.
    pub tx: TrafficActivity,
    /// Bytes that wait for the device.
    pub queued_bytes: u64,
    /// What was done with what came in.
    pub work: WorkStatus,
}

/// Frames of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrafficActivity {
    /// Frames; a GSO packet is one.
    pub packets: u64,
    /// Bytes of the frames, without virtio-net headers.
    pub bytes: u64,
    /// Frames dropped, by name of the reason; only reasons that occurred.
    pub drops: Drops,
}

impl TrafficActivity {
    /// Returns frames dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}

/// What the TCP offload of a port does. Counters are those of the [status](crate::status::OffloadStatus::counters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffloadActivity {
    /// Congestion control for what the guest sends is on.
    pub transmit: bool,
    /// Acknowledgement of what the guest receives is on.
    pub receive: bool,
    /// The port is to be drained, or is.
    pub draining: bool,
    /// Connections known.
    pub flows: u64,
    /// Those whose congestion control the switch has taken over.
    pub online: u64,
    /// Bytes of the budget that the connections use.
    pub budget_used: u64,
    /// Bytes of memory that stored frames take: what is held, retained or kept.
    pub stored_bytes: u64,
    /// Bytes acknowledged for the guest and not by it yet.
    pub kept: u64,
    /// Ranges sent again in the guest's place.
    pub retransmitted: u64,
    /// Retransmission time-outs at the switch.
    pub timeouts: u64,
    /// Duplicate acknowledgements kept from the guest.
    pub absorbed_dup_acks: u64,
    /// Acknowledgements that the guest heard of in a later one.
    pub merged_acks: u64,
    /// Acknowledgements sent for the guest.
    pub acks_sent: u64,
}

impl OffloadActivity {
    /// Returns frames that the guest neither sent nor received because the switch acted for it: repairs and acknowledgements sent in its place,
    /// acknowledgements that it was spared.
    #[must_use]
    pub const fn frames_saved(&self) -> u64 {
        self.retransmitted + self.absorbed_dup_acks + self.merged_acks + self.acks_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_what_the_guest_neither_sent_nor_received() {
        let offload = OffloadActivity {
            retransmitted: 1,
            timeouts: 100,
            absorbed_dup_acks: 2,
            merged_acks: 4,
            acks_sent: 8,
            ..Default::default()
        };
        assert_eq!(offload.frames_saved(), 15);
    }

    /// Asked for every second, by one who shows all ports.
    #[test]
    fn a_port_takes_less_than_a_kibibyte() {
        let drops = Drops::from([("queue_full".to_owned(), u64::MAX)]);
        let traffic = TrafficActivity { packets: u64::MAX, bytes: u64::MAX, drops };
        let port = PortActivity {
            name: "a-name-of-some-length".to_owned(),
            rx: traffic.clone(),
            tx: traffic,
            ..Default::default()
        };
        let json = serde_json::to_string(&port).unwrap();
        assert!(json.len() < 1024, "{} bytes: {json}", json.len());
        assert_eq!(serde_json::from_str::<PortActivity>(&json).unwrap(), port);
    }
}
