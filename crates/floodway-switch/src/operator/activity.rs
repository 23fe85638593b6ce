//! What the running switch does now: see [`crate::api::activity`].
//!
//! Sums are made queue by queue, one lock at a time, and no text is made but the names of what was dropped: this is asked for every
//! second, and workers want the same locks.

use floodway_core::time::Instant;

use crate::api::activity::{
    Activity, OffloadActivity, PortActivity, TrafficActivity, UplinkActivity, WorkerActivity,
};
use crate::operator::snapshot;
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::state::uplink::Uplink;
use crate::state::workers::WorkerInfo;
use crate::stats::{DropReason, Traffic};
use crate::sync::lock;

impl Shared {
    pub(super) fn look_at_activity(&self) -> Activity {
        let now = self.now();
        let ports = self.ports();
        let workers = self.workers.iter().enumerate();
        Activity {
            switch: self.switch_status(now),
            workers: workers.map(|(index, info)| worker(index, info, now)).collect(),
            ports: ports.iter().map(|port| self.port_activity(port)).collect(),
            uplinks: self.uplinks().iter().map(|uplink| self.uplink_activity(uplink)).collect(),
        }
    }

    fn port_activity(&self, port: &Port) -> PortActivity {
        let mut activity = PortActivity {
            name: port.config.name.clone(),
            worker: port.config.worker,
            state: snapshot::state(port),
            quarantined: lock(&port.quarantine).reason().is_some(),
            front_end_pid: port.front_end.peer().map(|peer| peer.pid),
            work: self.work(port.id),
            offload: offload(port),
            ..PortActivity::default()
        };
        for pair in &port.pairs {
            let (frames, bytes) = pair.rx().pending();
            activity.pending_frames += frames as u64;
            activity.pending_bytes += bytes as u64;
        }
        let (rx, tx) = port_sums(port);
        PortActivity { rx: rx.named(), tx: tx.named(), ..activity }
    }

    fn uplink_activity(&self, uplink: &Uplink) -> UplinkActivity {
        let (rx, tx) = uplink_sums(uplink);
        let egress = uplink.egress().with(|egress| egress.status());
        UplinkActivity {
            name: uplink.config.name.clone(),
            rx: rx.named(),
            tx: tx.named(),
            queued_bytes: egress.high.bytes + egress.low.bytes,
            work: self.work(uplink.id),
        }
    }
}

fn worker(index: usize, info: &WorkerInfo, now: Instant) -> WorkerActivity {
    WorkerActivity {
        index,
        core: info.core,
        polls: info.stats.polls.get(),
        busy_polls: info.stats.busy_polls.get(),
        asleep_s: info.stats.slept_s(now),
    }
}

fn offload(port: &Port) -> OffloadActivity {
    let machine = port.offload.machine();
    let config = machine.engine.config();
    let counters = machine.engine.counters();
    let (used, kept) = machine.engine.used();
    OffloadActivity {
        transmit: config.transmit,
        receive: config.receive,
        draining: machine.is_draining(),
        flows: machine.engine.len().into(),
        online: machine.engine.online().into(),
        budget_used: used.into(),
        stored_bytes: machine.pool.used() as u64,
        kept: kept.into(),
        retransmitted: counters.retransmitted,
        timeouts: counters.timeouts,
        absorbed_dup_acks: counters.absorbed_dup_acks,
        merged_acks: counters.merged_acks,
        acks_sent: counters.acks_sent,
    }
}

/// What a port's guest was given, and what it has sent.
pub(super) fn port_sums(port: &Port) -> (Sums, Sums) {
    let (mut rx, mut tx) = (Sums::default(), Sums::default());
    for pair in &port.pairs {
        // One lock at a time.
        rx.add(&pair.rx().traffic);
        tx.add(&pair.tx().traffic);
    }
    rx.add(&port.undelivered());
    (rx, tx)
}

/// What came by an uplink, and what left by it.
pub(super) fn uplink_sums(uplink: &Uplink) -> (Sums, Sums) {
    let (mut rx, mut tx) = (Sums::default(), Sums::default());
    rx.add(&uplink.received);
    tx.add(&uplink.sent.traffic);
    (rx, tx)
}

/// Frames of several queues.
#[derive(Default)]
pub(super) struct Sums {
    packets: u64,
    bytes: u64,
    /// By the index of the reason in [`DropReason::ALL`].
    pub(super) drops: [u64; DropReason::ALL.len()],
}

impl Sums {
    fn add(&mut self, traffic: &Traffic) {
        self.packets += traffic.packets.get();
        self.bytes += traffic.bytes.get();
        let reasons = DropReason::ALL.iter().zip(&mut self.drops);
        reasons.for_each(|(&reason, n)| *n += traffic.drops(reason));
    }

    fn named(&self) -> TrafficActivity {
        let reasons = DropReason::ALL.iter().zip(&self.drops).filter(|&(_, &n)| n > 0);
        let drops = reasons.map(|(reason, &n)| (reason.name().to_owned(), n)).collect();
        TrafficActivity { packets: self.packets, bytes: self.bytes, drops }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_summed_and_only_what_was_dropped_is_named() {
        let traffic = [Traffic::default(), Traffic::default()];
        traffic.iter().for_each(|traffic| traffic.count(60));
        traffic[0].count_drop(DropReason::Storm, 3);
        traffic[1].count_drop(DropReason::Storm, 4);
        let mut sums = Sums::default();
        traffic.iter().for_each(|traffic| sums.add(traffic));
        let named = sums.named();
        assert_eq!((named.packets, named.bytes, named.dropped()), (2, 120, 7));
        assert_eq!(named.drops.into_iter().collect::<Vec<_>>(), [("storm".to_owned(), 7)]);
    }
}
