//! The status document: what `GET /v1/status` answers and `floodway status` shows.
//!
//! Directions are the guest's, as in virtio: `rx` is what the guest receives (queues `receiveq`),
//! `tx` what it sends (`transmitq`). An uplink's are the interface's: `rx` came in from the network.
//!
//! Counters only grow, from zero at the switch's start. Each is read whole, but not all at one
//! moment: sums of a busy switch may differ by the frames in between.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Policy;
use crate::histogram::{BatchSizes, Histogram};

pub use crate::moves::{MoveStatus, MovesStatus};

/// Version of the switch that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    /// Version of Floodway.
    pub version: String,
}

/// The status of a switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The process.
    pub switch: SwitchStatus,
    /// Workers, in the order of the configuration.
    pub workers: Vec<WorkerStatus>,
    /// Ports, in the order of the configuration.
    pub ports: Vec<PortStatus>,
    /// Uplinks, in the order of the configuration.
    pub uplinks: Vec<UplinkStatus>,
    /// Ports that there were.
    #[serde(default)]
    pub removed: RemovedStatus,
    /// The forwarding table.
    pub l2: Vec<L2Entry>,
    /// Who has sent to whom, and how; only those that have.
    #[serde(default)]
    pub traffic: Vec<PairTrafficStatus>,
}

/// What ports have counted that were removed since the switch started, so that no frame is missing in the sums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedStatus {
    /// How many ports; one that was changed and came back is one, too.
    pub ports: u64,
    /// Frames to their guests. Those that were to go to a port that had just been removed are dropped as `port_down`.
    pub rx: TrafficStatus,
    /// Frames from their guests.
    pub tx: TrafficStatus,
}

/// How frames get from one place to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From guest to guest, by one copy.
    #[default]
    Channel,
    /// To or from the network.
    Uplink,
}

impl Way {
    /// The name in the status document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Uplink => "uplink",
        }
    }
}

/// What went from one port or uplink to another. It was handed over there; drops are counted there, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PairTrafficStatus {
    /// Port or uplink that the frames came from.
    pub from: String,
    /// Port or uplink that they went to.
    pub to: String,
    /// How they got there.
    pub by: Way,
    /// Frames; a GSO packet is one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SwitchStatus {
    /// Version of Floodway.
    pub version: String,
    /// Process id of the process that moves frames.
    pub pid: u32,
    /// Seconds since the switch started.
    pub uptime_s: f64,
    /// Data planes before this one; none without a broker.
    #[serde(default)]
    pub predecessors: Option<PredecessorsStatus>,
    /// Programs of its processes; none without a broker.
    #[serde(default)]
    pub programs: Option<ProgramsStatus>,
    /// Connections that follow VMs to other hosts and come with them; none without `[migration]`.
    #[serde(default)]
    pub moves: Option<MovesStatus>,
    /// What the process has given up; none if the switch is older than sandboxes.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
}

/// How far the process that moves frames is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sandbox {
    /// In all ways.
    Full,
    /// In all ways that this kernel knows.
    Partial,
    /// Not at all.
    #[default]
    Off,
}

/// Data planes of the same broker that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PredecessorsStatus {
    /// Process id of the broker; zero if it has gone and the next one is waited for.
    #[serde(default)]
    pub broker: u32,
    /// How many.
    pub count: u32,
    /// Why the last one did.
    pub last_end: Option<String>,
}

/// Programs of a switch of two processes, and how they came to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramsStatus {
    /// That of the broker.
    pub broker: ProgramStatus,
    /// That of the process that moves frames.
    pub data_plane: ProgramStatus,
    /// Upgrades since the switch was started.
    pub upgrades: UpgradesStatus,
}

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramStatus {
    /// Version of Floodway.
    pub version: String,
    /// Path of its file; with ` (deleted)` behind it if the file was replaced before the program was started.
    pub binary: String,
}

/// Upgrades of a running switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradesStatus {
    /// Attempts, those that failed among them.
    pub attempts: u32,
    /// Those that were made.
    pub count: u32,
    /// When the last one was made, in UTC, as RFC 3339 says.
    pub at: Option<String>,
    /// Version before it.
    pub from: String,
    /// Microseconds between the end of the work of one process and the start of that of the next one.
    pub pause_us: u64,
    /// Connections whose congestion control the switch had before it.
    pub online: u32,
    /// Those of them that it still had after it; the others passed through from then on.
    pub carried: u32,
    /// Why the last attempt failed, if it did.
    pub problem: Option<String>,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerStatus {
    /// Position in the configuration, from 0.
    pub index: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// Rounds over all its ports and uplinks.
    pub polls: u64,
    /// Rounds that found something to do.
    pub busy_polls: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Times that it stood still for `watchdog.stall_ms`.
    #[serde(default)]
    pub stalls: u64,
    /// Share of the uptime in which it was not asleep, 0 to 1: what it takes of a core.
    pub awake: f64,
    /// How long rounds took that found something to do.
    #[serde(default)]
    pub rounds: Histogram,
    /// How many frames guests' batches had.
    #[serde(default)]
    pub batches: BatchSizes,
}

/// Where a port is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// No front-end is connected.
    #[default]
    Down,
    /// A front-end is connected; the guest's driver is not running.
    Connected,
    /// The guest's driver is running.
    Running,
}

impl PortState {
    /// The name in the status document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Connected => "connected",
            Self::Running => "running",
        }
    }
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortStatus {
    /// As configured.
    pub name: String,
    /// Index of the worker that serves it.
    pub worker: usize,
    /// Where it is in its life.
    pub state: PortState,
    /// Name of the network whose frames have no tags here; empty if there is none.
    #[serde(default)]
    pub network: String,
    /// Names of the networks whose frames have tags here.
    #[serde(default)]
    pub tagged: Vec<String>,
    /// The configured address, if there is one.
    pub mac: Option<String>,
    /// Negotiated virtio features by name; empty unless the guest's driver is running.
    pub features: Vec<String>,
    /// Queue pairs offered to the guest.
    pub queue_pairs_offered: u16,
    /// Queue pairs that the guest uses.
    pub queue_pairs_enabled: u16,
    /// Offered queue pairs, by index.
    pub queues: Vec<QueuePairStatus>,
    /// Frames to the guest that were dropped before they came to a queue, by reason.
    pub undelivered: Drops,
    /// What was done for the guest, mostly with what it sent.
    #[serde(default)]
    pub work: WorkStatus,
    /// TCP offload.
    pub offload: OffloadStatus,
    /// How the VM's CPUs are scheduled; none if nothing is configured.
    #[serde(default)]
    pub vcpu: Option<VcpuStatus>,
    /// Why its last front-end was cut off; none if it was not, or if another one has come.
    #[serde(default)]
    pub quarantine: Option<String>,
    /// Front-ends that were cut off, by cause: memory that has gone (`guest_memory`, `dirty_log`), data planes that crashed in its turns (`crash`).
    #[serde(default)]
    pub quarantines: BTreeMap<String, u64>,
}

/// Work of workers that is charged to a port or uplink: time while the worker is busy; chains, descriptors, copies, bytes and segments by a
/// cost model otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkStatus {
    /// Seconds, by the clock or by the model.
    pub seconds: f64,
    /// Share of what its worker's ports and uplinks were charged in the last whole second, 0 to 1.
    pub share: f64,
}

/// The vCPU threads of a port's VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VcpuStatus {
    /// `latency` or `throughput`.
    pub policy: String,
    /// Slice of the policy in microseconds.
    pub slice_us: u64,
    /// Threads that have it.
    pub threads: u64,
    /// Why others do not.
    pub problem: Option<String>,
}

impl VcpuStatus {
    /// What has become of a VM whose `threads` vCPU threads have the slice of `policy`.
    #[must_use]
    pub fn new(policy: Policy, slice: Duration, threads: u64, problem: Option<String>) -> Self {
        let slice_us = slice.as_micros() as u64;
        Self { policy: policy.name().to_owned(), slice_us, threads, problem }
    }
}

/// The TCP offload of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffloadStatus {
    /// Congestion control for what the guest sends is on.
    pub transmit: bool,
    /// Acknowledgement of what the guest receives is on.
    pub receive: bool,
    /// The port is to be drained, or is.
    pub draining: bool,
    /// Frames with VLAN tags that have passed by it.
    #[serde(default)]
    pub tagged: u64,
    /// Connections known.
    pub flows: u64,
    /// Those whose congestion control the switch has taken over.
    pub online: u64,
    /// Bytes of the budget that the connections use.
    pub budget_used: u64,
    /// Bytes acknowledged for the guest and not by it yet.
    pub kept: u64,
    /// How what the guest sends is offloaded: `off`, `module`, `agentless` or `auto`.
    #[serde(default)]
    pub mode: String,
    /// The guest's module has answered a notice.
    #[serde(default)]
    pub module_heard: bool,
    /// Bytes acknowledged to the guest that its peers have not acknowledged: it does not send them again.
    #[serde(default)]
    pub owed: u64,
    /// Bytes of memory that stored frames take.
    pub stored_bytes: u64,
    /// Events by name. Every counter is there, also those at zero.
    pub counters: BTreeMap<String, u64>,
    /// Round-trip times of connections whose congestion control the switch has taken over, one for each ACK that measures one.
    #[serde(default)]
    pub rtt: Histogram,
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueuePairStatus {
    /// To the guest.
    pub rx: RxQueueStatus,
    /// From the guest.
    pub tx: TxQueueStatus,
}

/// A receive queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RxQueueStatus {
    /// Frames to the guest.
    #[serde(flatten)]
    pub traffic: TrafficStatus,
    /// Interrupts of the guest.
    pub notifications: Notifications,
    /// Frames that wait for buffers of the guest now.
    pub pending_frames: u64,
    /// Bytes that those frames take of the queue's bound.
    pub pending_bytes: u64,
    /// How long frames waited that the guest was given, those that did not wait among them.
    #[serde(default)]
    pub delay: Histogram,
}

/// A transmit queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TxQueueStatus {
    /// Frames from the guest.
    #[serde(flatten)]
    pub traffic: TrafficStatus,
    /// Interrupts of the guest.
    pub notifications: Notifications,
}

/// Interrupts of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Notifications {
    /// Sent.
    pub sent: u64,
    /// Not needed: the guest was polling, or already told.
    pub suppressed: u64,
}

/// An uplink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkStatus {
    /// As configured.
    pub name: String,
    /// Index of the worker that serves it.
    pub worker: usize,
    /// The network interface.
    pub device: String,
    /// Name of the network that it carries without tags; empty if there is none.
    #[serde(default)]
    pub network: String,
    /// Names of the networks that it carries with tags.
    #[serde(default)]
    pub tagged: Vec<String>,
    /// Frames that came in through the interface.
    pub rx: TrafficStatus,
    /// Frames that left through the interface.
    pub tx: TrafficStatus,
    /// What was done with what came in.
    #[serde(default)]
    pub work: WorkStatus,
    /// What waits to leave, and how it is classified.
    #[serde(default)]
    pub egress: EgressStatus,
}

/// The way into an uplink's device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EgressStatus {
    /// Name of the queue discipline.
    pub discipline: String,
    /// GSO packets are segmented before they are queued.
    pub segment: bool,
    /// What waits in the high class.
    pub high: ClassStatus,
    /// What waits in the low class.
    pub low: ClassStatus,
    /// Frames that had to wait, or were dropped instead.
    pub queued: u64,
    /// Frames that were marked CE.
    pub marked: u64,
    /// Frames dropped because a queue was at its limit.
    pub dropped_full: u64,
    /// Frames dropped to control delay.
    pub dropped_aqm: u64,
    /// Bytes that the device may hold; none if it does not say what it holds.
    pub device_limit: Option<u64>,
    /// Bytes that it was given and has not said to be gone.
    pub device_bytes: Option<u64>,
    /// The meter; none if it is off.
    pub meter: Option<MeterStatus>,
}

/// What waits in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClassStatus {
    /// Frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The meter of an uplink, over all guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeterStatus {
    /// Pairs that are known.
    pub pairs: u64,
    /// Frames that were tagged high.
    pub high_packets: u64,
    /// Frames that were tagged low.
    pub low_packets: u64,
    /// Those among them that were so because their guest had too many pairs.
    pub refused_packets: u64,
    /// Those that made their pair low because their guest had sent enough in the high class.
    #[serde(default)]
    pub capped_packets: u64,
    /// Times that a pair became low.
    pub demoted: u64,
    /// Times that a low pair became high again.
    pub promoted: u64,
}

/// An address in the forwarding table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct L2Entry {
    /// The address.
    pub mac: String,
    /// Name of the port or uplink behind which it is.
    pub port: String,
    /// Name of the network.
    #[serde(default)]
    pub network: String,
    /// Seconds since it was last seen; none for a configured address, which does not age.
    pub age_s: Option<f64>,
}

/// Frames dropped, by name of the reason. Every reason is there, also those with zero.
pub type Drops = BTreeMap<String, u64>;

/// Frames of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrafficStatus {
    /// Frames; a GSO packet is one.
    pub packets: u64,
    /// Bytes of the frames, without virtio-net headers.
    pub bytes: u64,
    /// GSO packets among the packets.
    pub gso_packets: u64,
    /// Frames dropped; they are not among the packets.
    pub drops: Drops,
}

impl TrafficStatus {
    /// Frames dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}

impl AddAssign<&Self> for TrafficStatus {
    fn add_assign(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.gso_packets += other.gso_packets;
        add_drops(&mut self.drops, &other.drops);
    }
}

/// Adds the drops `more` to `sum`.
pub fn add_drops(sum: &mut Drops, more: &Drops) {
    for (reason, n) in more {
        *sum.entry(reason.clone()).or_default() += n;
    }
}

impl PortStatus {
    /// Frames to the guest, of all queues, with those that came to no queue among the drops.
    #[must_use]
    pub fn rx(&self) -> TrafficStatus {
        let mut sum = TrafficStatus::default();
        self.queues.iter().for_each(|queue| sum += &queue.rx.traffic);
        add_drops(&mut sum.drops, &self.undelivered);
        sum
    }

    /// Frames from the guest, of all queues.
    #[must_use]
    pub fn tx(&self) -> TrafficStatus {
        let mut sum = TrafficStatus::default();
        self.queues.iter().for_each(|queue| sum += &queue.tx.traffic);
        sum
    }

    /// Frames and bytes that wait for buffers of the guest.
    #[must_use]
    pub fn pending(&self) -> (u64, u64) {
        let add = |(frames, bytes), queue: &QueuePairStatus| {
            (frames + queue.rx.pending_frames, bytes + queue.rx.pending_bytes)
        };
        self.queues.iter().fold((0, 0), add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_the_sum_of_its_queues_and_what_came_to_none() {
        let queue = |n: u64| {
            let drops = Drops::from([("queue_full".to_owned(), n)]);
            let traffic = TrafficStatus { packets: n, bytes: 100 * n, gso_packets: 1, drops };
            let rx = RxQueueStatus { traffic, pending_frames: n, ..Default::default() };
            QueuePairStatus { rx, ..Default::default() }
        };
        let port = PortStatus {
            queues: vec![queue(1), queue(2)],
            undelivered: Drops::from([("port_down".to_owned(), 4)]),
            ..Default::default()
        };
        let rx = port.rx();
        assert_eq!((rx.packets, rx.bytes, rx.gso_packets), (3, 300, 2));
        assert_eq!((rx.drops["queue_full"], rx.drops["port_down"]), (3, 4));
        assert_eq!((port.pending(), port.tx().packets), ((3, 0), 0));
    }

    #[test]
    fn the_document_survives_json() {
        let mut status = Status::default();
        status.ports.push(PortStatus { state: PortState::Running, ..Default::default() });
        status.ports[0].queues.push(QueuePairStatus::default());
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["ports"][0]["state"], PortState::Running.name());
        assert_eq!(json["ports"][0]["queues"][0]["rx"]["packets"], 0);
        assert_eq!(serde_json::from_value::<Status>(json).unwrap(), status);
    }
}
