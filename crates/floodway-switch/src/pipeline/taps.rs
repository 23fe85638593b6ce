//! Where captures see frames on their way ([`crate::capture`]).
//!
//! # Theory of operation
//! All of this is cold: the packet path has looked at the port's or uplink's [`Tap`](crate::capture::Tap) and found that a stage is wanted. Every function charges the copies
//! to the port or uplink that is captured.

use floodway_core::l2::PortId;
use floodway_core::offload::FlowSummary;
use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_wire::pcapng::Direction;

use crate::api::capture::Stage;
use crate::capture::{Seen, Watch};
use crate::frame::Frame;
use crate::pipeline::delivery::{Placed, place_all};
use crate::queues::rx::RxQueue;
use crate::queues::tx::Batch;
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::stats::{Block, DropReason};

/// What the offload has done with a frame.
pub struct Verdict<'a> {
    /// In a word.
    pub name: &'static str,
    /// Which way the frame goes, as the port sees it.
    pub direction: Direction,
    /// Why it is dropped, if it is.
    pub drop: Option<DropReason>,
    /// Its flow, if there is one.
    pub flow: Option<&'a FlowSummary>,
}

impl Shared {
    /// Shows a batch that has come from the guest of `port`, after all of it was forwarded or dropped.
    #[cold]
    pub(super) fn capture_batch(&self, port: &Port, batch: &Batch, watch: Watch) {
        let now = self.now();
        let mut work = Work::default();
        for i in 0..batch.len() {
            batch.with_any(i, |frame, drop| {
                let seen = Seen::new(frame, Direction::Inbound, drop);
                work.bytes += self.captures.record(watch, Stage::In, now, &seen);
                work.copies += 1;
            });
        }
        self.ledger.charge(port.id, &work);
    }

    /// Shows a frame that has come by the uplink `id`, and what has become of it.
    #[cold]
    pub(super) fn capture_received(
        &self,
        id: PortId,
        frame: &Frame<'_>,
        drop: Option<DropReason>,
        watch: Watch,
    ) {
        let seen = Seen::new(frame, Direction::Inbound, drop);
        let bytes = self.captures.record(watch, Stage::In, self.now(), &seen);
        self.ledger.charge(id, &Work { copies: 1, bytes, ..Work::default() });
    }

    /// Shows a frame for the guest of `port`, which is dropped or not.
    #[cold]
    pub(super) fn capture_delivered(
        &self,
        port: &Port,
        frame: &Frame<'_>,
        drop: Option<DropReason>,
    ) {
        let watch = port.tap.watch();
        if !watch.wants(Stage::Out) {
            return;
        }
        let seen = Seen::new(frame, Direction::Outbound, drop);
        let bytes = self.captures.record(watch, Stage::Out, self.now(), &seen);
        self.ledger.charge(port.id, &Work { copies: 1, bytes, ..Work::default() });
    }

    /// Shows a frame that the offload of `port` has dealt with.
    #[cold]
    pub(super) fn capture_offloaded(
        &self,
        port: &Port,
        frame: &Frame<'_>,
        watch: Watch,
        verdict: &Verdict<'_>,
    ) {
        let Verdict { name, direction, drop, flow } = *verdict;
        let seen = Seen { frame, direction, drop, verdict: name, flow };
        let bytes = self.captures.record(watch, Stage::Offload, self.now(), &seen);
        self.ledger.charge(port.id, &Work { copies: 1, bytes, ..Work::default() });
    }

    /// Places frames in the receive queue `rx` of `port`, as the packet path does, one by one, and shows each.
    #[cold]
    pub(super) fn place_and_capture<'f>(
        &self,
        port: &Port,
        rx: &mut RxQueue,
        limit: Option<Instant>,
        frames: impl Iterator<Item = Frame<'f>>,
    ) -> Placed {
        let mut placed = Placed::default();
        for frame in frames {
            let drops = Drops::of(&rx.traffic);
            placed += place_all(port, rx, limit, &frame);
            self.capture_delivered(port, &frame, drops.newest(&rx.traffic));
        }
        placed
    }
}

/// Dropped frames of a queue at some time, by reason.
pub(super) struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    pub(super) fn of(traffic: &Block) -> Self {
        Self(std::array::from_fn(|i| traffic.drops(DropReason::ALL[i])))
    }

    /// The reason of what was dropped since.
    pub(super) fn newest(&self, traffic: &Block) -> Option<DropReason> {
        let is_new = |&&reason: &&DropReason| traffic.drops(reason) != self.0[reason as usize];
        DropReason::ALL.iter().find(is_new).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use floodway_wire::vnet::VnetHdr;

    use super::*;
    use crate::config::{Config, PortConfig, WorkerConfig};
    use crate::frame;
    use crate::stats::ledger::MODEL;

    #[test]
    fn copies_are_charged_to_the_port_that_is_captured() {
        let port = |n| PortConfig::new(format!("vm{n}"), "unused");
        let config = Config {
            workers: vec![WorkerConfig { core: None, poll: Duration::ZERO }],
            ports: vec![port(1), port(2)],
            ..Config::default()
        };
        let shared = Shared::without_threads(&config).unwrap();
        let (captured, other) = (shared.port_at(0), shared.port_at(1));
        let capture = shared.captures.begin("vm1", 0, 100).unwrap();
        captured.tap.set(&capture, &[Stage::Out], false);
        let spent = |port: &Port| shared.ledger.spent(port.id);
        let before = (spent(&captured), spent(&other));
        frame::with_slice(VnetHdr::default(), &[1; 500], |frame| {
            shared.capture_delivered(&captured, frame, None);
            shared.capture_delivered(&other, frame, None);
        });
        let copied = MODEL.cost(&Work { copies: 1, bytes: 100, ..Work::default() });
        assert_eq!((spent(&captured) - before.0, spent(&other) - before.1), (copied, 0));
    }
}
