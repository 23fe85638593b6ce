//! The status of the running switch, read while its workers go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use floodway_core::l2::{Entry, EntryKind, NetworkId, PortId};
use floodway_core::time::Instant;

use crate::api::activity::Activity;
use crate::api::status::{
    Drops, L2Entry, Notifications, PairTrafficStatus, PortState, PortStatus, QueuePairStatus,
    RemovedStatus, RxQueueStatus, Status, SwitchStatus, TrafficStatus, TxQueueStatus, UplinkStatus,
    Way, WorkStatus, WorkerStatus, add_drops,
};
use crate::config::{NetworkConfig, PortConfig, UplinkConfig};
use crate::operator::api::StatusSource;
use crate::queues::ring::Interrupts;
use crate::queues::rx::RxQueue;
use crate::queues::tx::TxQueue;
use crate::state::port::Port;
use crate::state::quarantine::Cause;
use crate::state::queue_pair::QueuePair;
use crate::state::shared::Shared;
use crate::state::uplink::Uplink;
use crate::state::workers::WorkerInfo;
use crate::stats::traffic_matrix::MatrixEntry;
use crate::stats::{DropReason, Removed, Traffic};
use crate::sync::lock;
use crate::vhost::features;

impl StatusSource for Shared {
    fn status(&self) -> Status {
        let now = self.now();
        let entries = self.tables().entries(now);
        Status {
            switch: self.switch_status(now),
            workers: self
                .workers
                .iter()
                .enumerate()
                .map(|(index, info)| worker(index, info, now))
                .collect(),
            ports: self.ports().iter().map(|p| port(p, self.work(p.id))).collect(),
            uplinks: self.uplinks().iter().map(|u| uplink(u, self.work(u.id))).collect(),
            removed: self.removed_status(),
            l2: entries.iter().map(|(network, entry)| self.l2_entry(*network, entry)).collect(),
            traffic: self.traffic.iter().map(|pair| self.pair(&pair)).collect(),
        }
    }

    fn activity(&self) -> Activity {
        self.look_at_activity()
    }
}

impl StatusSource for Arc<Shared> {
    fn status(&self) -> Status {
        Shared::status(self)
    }

    fn activity(&self) -> Activity {
        Shared::activity(self)
    }
}

impl Shared {
    /// The process, at `now`.
    pub(super) fn switch_status(&self, now: Instant) -> SwitchStatus {
        SwitchStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: now.as_nanos() as f64 / 1e9,
            predecessors: lock(&self.predecessors).clone(),
            programs: lock(&self.programs).clone(),
            moves: lock(&self.moves).clone(),
            sandbox: Some(self.sandbox.get().copied().unwrap_or_default()),
        }
    }

    fn l2_entry(&self, network: NetworkId, entry: &Entry) -> L2Entry {
        let port = self.name_of(entry.port);
        let age_s = match entry.kind {
            EntryKind::Static => None,
            EntryKind::Learned { idle } => Some(idle.as_secs_f64()),
        };
        let network = self.network_name(entry.port, network);
        L2Entry { mac: entry.mac.to_string(), port, network, age_s }
    }

    fn removed_status(&self) -> RemovedStatus {
        let Removed { ports, rx, tx, late } = &*lock(&self.removed);
        let mut rx = TrafficStatus::from(rx);
        add_drops(&mut rx.drops, &drops(late));
        RemovedStatus { ports: ports.packets.get(), rx, tx: tx.into() }
    }

    /// Adds what a port has counted, which is removed, to what all those have.
    pub(crate) fn count_removed(&self, port: &Port) {
        for pair in &port.pairs {
            // One lock of a queue at a time.
            let rx = pair.rx();
            lock(&self.removed).rx.add(&rx.traffic);
            drop(rx);
            let tx = pair.tx();
            lock(&self.removed).tx.add(&tx.traffic);
        }
        let undelivered = port.undelivered();
        let removed = lock(&self.removed);
        removed.rx.add(&undelivered);
        removed.ports.packets.add(1);
    }

    fn pair(&self, pair: &MatrixEntry) -> PairTrafficStatus {
        let is_port = |id: PortId| id.index() < self.capacity;
        let by = if is_port(pair.from) && is_port(pair.to) { Way::Channel } else { Way::Uplink };
        let (from, to) = (self.name_of(pair.from), self.name_of(pair.to));
        PairTrafficStatus { from, to, by, packets: pair.packets, bytes: pair.bytes }
    }

    pub(super) fn work(&self, id: PortId) -> WorkStatus {
        let seconds = self.ledger.used(id) as f64 / 1e9;
        WorkStatus { seconds, share: self.ledger.share(id) }
    }

    /// What a port or uplink calls a network.
    fn network_name(&self, id: PortId, network: NetworkId) -> String {
        let ports = self.ports();
        let port = ports.get(id.index()).map(|port| &port.config);
        let port = port.into_iter().flat_map(PortConfig::networks);
        let uplink = ports.uplink(id).map(|uplink| &uplink.config);
        let uplink = uplink.into_iter().flat_map(UplinkConfig::networks);
        let known = port.chain(uplink).find(|known| known.vid == network.0);
        known.map(|known| known.name.clone()).unwrap_or_default()
    }

    /// The name of a port or uplink.
    fn name_of(&self, id: PortId) -> String {
        match self.ports().get(id.index()) {
            Some(port) => port.config.name.clone(),
            None => self.uplink(id).map(|uplink| uplink.config.name.clone()).unwrap_or_default(),
        }
    }
}

fn worker(index: usize, info: &WorkerInfo, now: Instant) -> WorkerStatus {
    let uptime_s = now.as_nanos() as f64 / 1e9;
    let stats = &info.stats;
    let slept_s = stats.slept_s(now);
    WorkerStatus {
        index,
        core: info.core,
        polls: stats.polls.get(),
        busy_polls: stats.busy_polls.get(),
        sleeps: stats.sleeps.get(),
        stalls: stats.stalls.get(),
        awake: (1.0 - slept_s / uptime_s.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0),
        rounds: (&stats.rounds.counts()).into(),
        batches: stats.batches.status(),
    }
}

/// The status of one port.
pub(crate) fn port(port: &Port, work: WorkStatus) -> PortStatus {
    // One lock at a time: a guard inside the value below would live until all of it is there.
    let undelivered = drops(&port.undelivered());
    let vcpu = lock(&port.vcpu).clone();
    let (reason, quarantines) = quarantine(port);
    PortStatus {
        name: port.config.name.clone(),
        worker: port.config.worker,
        state: state(port),
        network: name_or_none(port.config.network.as_ref()),
        tagged: names(&port.config.tagged),
        mac: port.config.mac.map(|mac| mac.to_string()),
        features: features::names(port.features()).into_iter().map(str::to_owned).collect(),
        queue_pairs_offered: port.config.queue_pairs,
        queue_pairs_enabled: port.rx_running(),
        queues: port.pairs.iter().map(queue_pair).collect(),
        undelivered,
        work,
        offload: port.offload.status(),
        vcpu,
        quarantine: reason,
        quarantines,
    }
}

/// Why a port is in quarantine, if it is, and how often it was for each cause.
fn quarantine(port: &Port) -> (Option<String>, BTreeMap<String, u64>) {
    let quarantine = lock(&port.quarantine);
    let times = |(cause, times): (Cause, u64)| (cause.label().to_owned(), times);
    let reason = quarantine.reason().map(|(_, reason)| reason.to_owned());
    (reason, quarantine.counts().map(times).collect())
}

/// Where a port is in its life.
pub(super) fn state(port: &Port) -> PortState {
    match (port.rx_running(), port.is_connected()) {
        (1.., _) => PortState::Running,
        (0, true) => PortState::Connected,
        (0, false) => PortState::Down,
    }
}

fn queue_pair(pair: &QueuePair) -> QueuePairStatus {
    // One lock at a time.
    let rx = rx_queue(&pair.rx());
    let tx = tx_queue(&pair.tx());
    QueuePairStatus { rx, tx }
}

fn rx_queue(queue: &RxQueue) -> RxQueueStatus {
    let (frames, bytes) = queue.pending();
    RxQueueStatus {
        traffic: (&queue.traffic).into(),
        notifications: notifications(&queue.interrupts),
        pending_frames: frames as u64,
        pending_bytes: bytes as u64,
        delay: (&queue.delays()).into(),
    }
}

fn tx_queue(queue: &TxQueue) -> TxQueueStatus {
    TxQueueStatus {
        traffic: (&queue.traffic).into(),
        notifications: notifications(&queue.interrupts),
    }
}

fn notifications(interrupts: &Interrupts) -> Notifications {
    Notifications { sent: interrupts.sent.get(), suppressed: interrupts.suppressed.get() }
}

fn uplink(slot: &Uplink, work: WorkStatus) -> UplinkStatus {
    UplinkStatus {
        name: slot.config.name.clone(),
        worker: slot.config.worker,
        device: slot.config.device.clone(),
        network: name_or_none(slot.config.network.as_ref()),
        tagged: names(&slot.config.tagged),
        rx: (&slot.received).into(),
        tx: (&slot.sent.traffic).into(),
        work,
        egress: slot.egress().with(|egress| egress.status()),
    }
}

fn name_or_none(network: Option<&NetworkConfig>) -> String {
    network.map(|network| network.name.clone()).unwrap_or_default()
}

fn names(networks: &[NetworkConfig]) -> Vec<String> {
    networks.iter().map(|network| network.name.clone()).collect()
}

impl From<&Traffic> for TrafficStatus {
    fn from(traffic: &Traffic) -> Self {
        Self {
            packets: traffic.packets.get(),
            bytes: traffic.bytes.get(),
            gso_packets: traffic.gso_packets.get(),
            drops: drops(traffic),
        }
    }
}

/// Frames of `traffic` that were dropped.
#[must_use]
pub fn drops(traffic: &Traffic) -> Drops {
    let count = |&reason: &DropReason| (reason.name().to_owned(), traffic.drops(reason));
    DropReason::ALL.iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_reason_is_in_the_document() {
        let traffic = Traffic::default();
        traffic.count(60);
        traffic.count_drop(DropReason::Storm, 3);
        let status = TrafficStatus::from(&traffic);
        assert_eq!(status.drops.len(), DropReason::ALL.len());
        assert_eq!((status.packets, status.bytes, status.dropped()), (1, 60, 3));
        assert_eq!(status.drops["storm"], 3);
    }
}
