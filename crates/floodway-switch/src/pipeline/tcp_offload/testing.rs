//! A port's offload engine on real frames without a switch around it: no queues, no threads, and time is an
//! argument. For tests that run whole TCP stacks against the engine in virtual time.
//!
//! Headers are parsed, edited and built by the same code as in the packet path. Every frame that leaves is complete:
//! GSO packets are segmented and checksums filled in, as for a device that offloads nothing.

use std::sync::Arc;

use floodway_core::offload::{
    Config, Counters, Edit, FlowNotice, FlowSummary, Link, Offload, Packet, Sink,
    SynthesizedSegment, Transmission, Verdict,
};
use floodway_core::time::Instant;
use floodway_wire::FiveTuple;
use floodway_wire::vnet::VnetHdr;

use crate::frame::describe::{Direction, Trust, describe, is_intact};
use crate::frame::headers::{self, with_edit};
use crate::frame::held::{About, Held};
use crate::frame::pool::Pool;
use crate::frame::vnet_offload::{self, Offloads};
use crate::frame::{self, Frame};
use crate::state::offload::pool_limit;

/// A frame that leaves the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// To the network.
    ToNetwork(Vec<u8>),
    /// To the guest.
    ToGuest(Vec<u8>),
}

/// The engine of one port, with the buffers of the frames that it keeps.
pub struct FrameOffload {
    engine: Offload<Held>,
    pool: Arc<Pool<About>>,
    output: Output,
}

impl FrameOffload {
    /// Creates the engine of a port. `seed` is that of its flow table.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        let pool = Arc::new(Pool::new(pool_limit(&config)));
        Self { engine: Offload::new(config, seed), pool, output: Output::default() }
    }

    /// Processes a frame from the guest. `vnet` is its virtio-net header.
    pub fn from_guest(&mut self, now: Instant, vnet: VnetHdr, bytes: &[u8]) {
        self.process(now, vnet, bytes, Direction::FromGuest);
    }

    /// Processes a frame from the network.
    pub fn from_network(&mut self, now: Instant, vnet: VnetHdr, bytes: &[u8]) {
        self.process(now, vnet, bytes, Direction::FromNetwork);
    }

    /// The latest frame for the guest is in the guest's queue (`delivered`), or was dropped.
    pub fn on_delivered(&mut self, delivered: bool) {
        self.engine.on_delivered(delivered);
    }

    /// Ends a batch of frames.
    pub fn flush(&mut self, now: Instant) {
        self.engine.flush(now, &mut self.output);
    }

    /// Runs the timers that have expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.engine.handle_timeout(now, &mut self.output);
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called next.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        self.engine.next_timeout()
    }

    /// Changes the configuration.
    pub fn configure(&mut self, now: Instant, config: Config) {
        self.pool.set_limit(pool_limit(&config));
        self.engine.configure(config, now, &mut self.output);
    }

    /// The frames that have left since the last call, in order.
    pub fn take_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.output.sent)
    }

    /// The flow of `tuple`, given in the guest's direction, unless it is beyond the first 64.
    #[must_use]
    pub fn summary(&self, tuple: &FiveTuple) -> Option<FlowSummary> {
        self.engine.flows(0, 64).0.into_iter().find(|flow| flow.flow == *tuple)
    }

    /// Events so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    fn process(&mut self, now: Instant, vnet: VnetHdr, bytes: &[u8], direction: Direction) {
        frame::with_slice(vnet, bytes, |frame| {
            let described = describe(frame, direction)
                .filter(|d| d.trust == Trust::Good || is_intact(bytes, &d.meta));
            let Some(described) = described else { return self.output.pass(frame, direction) };
            let (meta, pool) = (&described.meta, &self.pool);
            let keep = || Held::copy(pool, frame, meta);
            let (link, segment) = (&described.link, &described.segment);
            let packet = Packet::new(&meta.flow, link, segment);
            let output = &mut self.output;
            let verdict = match direction {
                Direction::FromGuest => self.engine.from_guest(now, &packet, keep, output),
                Direction::FromNetwork => self.engine.from_network(now, &packet, keep, output),
            };
            if let Verdict::Pass(edit) = verdict {
                with_edit(frame, meta, &edit, |frame| output.pass(frame, direction));
            }
        });
    }
}

/// Collects the frames that leave.
#[derive(Default)]
struct Output {
    sent: Vec<Sent>,
    identification: u16,
}

impl Output {
    fn pass(&mut self, frame: &Frame<'_>, direction: Direction) {
        match direction {
            Direction::FromGuest => self.send(frame, Sent::ToNetwork),
            Direction::FromNetwork => self.send(frame, Sent::ToGuest),
        }
    }

    fn send(&mut self, frame: &Frame<'_>, wrap: fn(Vec<u8>) -> Sent) {
        let none = Offloads::default();
        if none.allow(&frame.vnet) {
            let mut bytes = Vec::new();
            frame.append_to(&mut bytes);
            return self.sent.push(wrap(bytes));
        }
        vnet_offload::finish(frame, none, |_, bytes| self.sent.push(wrap(bytes.to_vec())))
            .expect("the engine releases what can be segmented");
    }

    fn identify(&mut self) -> u16 {
        self.identification = self.identification.wrapping_add(64);
        self.identification
    }

    fn send_made(&mut self, segment: &SynthesizedSegment, to_network: bool) {
        let Link { guest, peer, .. } = segment.link;
        let (src, dst) = if to_network { (guest, peer) } else { (peer, guest) };
        let bytes = headers::synthesized(segment, src, dst, self.identify()).as_slice().to_vec();
        self.sent.push(if to_network { Sent::ToNetwork(bytes) } else { Sent::ToGuest(bytes) });
    }
}

impl Sink<Held> for Output {
    fn release(&mut self, held: &Held, release: &Transmission) {
        let payload = held.payload(release.offset, release.len);
        assert_eq!(payload.len() as u32, release.len, "the range lies in the frame");
        let (headers, vnet) = headers::released(held, release, release.len, self.identify());
        let bytes = [headers.as_slice(), payload].concat();
        frame::with_slice(vnet, &bytes, |frame| self.send(frame, Sent::ToNetwork));
    }

    fn to_network(&mut self, segment: &SynthesizedSegment) {
        self.send_made(segment, true);
    }

    fn to_guest(&mut self, segment: &SynthesizedSegment) {
        self.send_made(segment, false);
    }

    fn redeliver(&mut self, held: &Held, edit: &Edit) {
        frame::with_slice(held.vnet(), held.bytes(), |frame| {
            with_edit(frame, held.meta(), edit, |frame| self.send(frame, Sent::ToGuest));
        });
    }

    // The stacks that run against this have no guest module.
    fn heartbeat(&mut self, _: &Link, _: u16) {}
    fn notify_flow(&mut self, _: &FiveTuple, _: &Link, _: FlowNotice) {}
}
