//! One hold of a port's engine.

use std::sync::{Arc, MutexGuard};

use floodway_core::l2::origin::is_first_hop;
use floodway_core::offload::{Config, Packet, Refusal, Side, Verdict};
use floodway_core::tables::flow_table::FlowId;
use floodway_core::time::Instant;
use floodway_wire::name::{Beginning, OPTION_LEN};
use floodway_wire::tcp::Flags;
use floodway_wire::{FiveTuple, FlowName, Meta, pcapng};

use super::egress::Egress;
use super::too_big::TooBig;
use crate::api::capture::Stage;
use crate::capture::Watch;
use crate::frame::describe::{Described, Direction, Trust, describe, hops, is_intact};
use crate::frame::headers::{with_edit, with_option};
use crate::frame::held::{About, Held};
use crate::frame::pool::Pool;
use crate::frame::{self, Frame};
use crate::pipeline::delivery::Delivery;
use crate::pipeline::taps;
use crate::queues::tx::BATCH;
use crate::state::offload::{GuestEvent, Machine, PortOffload, pool_limit};
use crate::state::port::Port;
use crate::stats::DropReason;
use crate::sync::lock_order::Ordered;

/// A frame from the guest as it is shown to the engine.
pub struct BatchEntry {
    described: Option<Described>,
    found: Option<FlowId>,
}

/// Exclusive use of a port's engine by one thread. All that the engine says while a session lasts
/// leaves in order; what others do with the port waits until it ends.
pub struct Session<'a> {
    port: &'a Port,
    delivery: &'a mut Delivery,
    machine: Ordered<MutexGuard<'a, Machine>>,
    now: Instant,
}

impl<'a> Session<'a> {
    /// Waits for the engine of `port`. See `lock_order` for what the caller may hold meanwhile.
    #[must_use]
    pub fn open(port: &'a Port, delivery: &'a mut Delivery) -> Self {
        let mut machine = port.offload.machine();
        // Read once the engine is ours: waiting for it takes time.
        let now = machine.time(delivery.shared.now());
        machine.latest = now;
        let heard = port.nonce() != 0;
        let is_news = machine.engine.hears_module() != heard;
        let mut session = Self { port, delivery, machine, now };
        if is_news {
            session.run(|engine, _, now, egress| engine.hear_module(heard, now, egress));
        }
        session
    }

    /// Describes the first [`BATCH`] of `frames`, which come from the guest, and looks their flows up together. What
    /// is answered is for these frames in turn.
    #[must_use]
    pub fn look_up_batch<'f>(
        &self,
        frames: impl Iterator<Item = Frame<'f>>,
    ) -> [BatchEntry; BATCH] {
        let mut expected = [const { BatchEntry { described: None, found: None } }; BATCH];
        let mut flows = [FiveTuple::NONE; BATCH];
        let mut shown = 0;
        for ((expected, flow), frame) in expected.iter_mut().zip(&mut flows).zip(frames) {
            expected.described = describe(&frame, Direction::FromGuest);
            if let Some(described) = &mut expected.described {
                *flow = described.meta.flow;
                if described.segment.has(Flags::SYN) {
                    described.segment.forwarded = self.is_forwarded(&frame, &described.meta);
                }
            }
            shown += 1;
        }
        let mut found = [None; BATCH];
        self.machine.engine.look_up(flows.get(..shown).unwrap_or(&flows), &mut found);
        self.machine.engine.load(&found, Side::Guest);
        for (expected, found) in expected.iter_mut().zip(found) {
            expected.found = found;
        }
        expected
    }

    /// Returns `true` if a packet of the guest comes from another host behind it.
    #[cold]
    fn is_forwarded(&self, frame: &Frame<'_>, meta: &Meta) -> bool {
        let first_hop = hops(frame.prefix, meta).is_some_and(is_first_hop);
        !first_hop && !self.port.owns(meta.flow.src_ip())
    }

    /// Shows a frame from the guest to the engine, and calls `forward` with what is to go on. `expected` is what
    /// [`look_up_batch`](Self::look_up_batch) has answered for it.
    ///
    /// # Errors
    /// The engine wants the frame dropped.
    pub fn from_guest(
        &mut self,
        frame: &Frame<'_>,
        expected: &BatchEntry,
        forward: impl FnOnce(&mut Delivery, &Frame<'_>),
    ) -> Result<(), DropReason> {
        let BatchEntry { described: Some(described), found } = expected else {
            forward(self.delivery, frame);
            return Ok(());
        };
        if described.trust == Trust::Good {
            return self.process(frame, described, *found, Direction::FromGuest, forward);
        }
        // The guest can change its memory at any time: what is verified is what goes on.
        let mut linear = std::mem::take(&mut self.machine.output.linear);
        linear.clear();
        frame.append_to(&mut linear);
        let result = frame::with_slice(frame.vnet, &linear, |frame| {
            if is_intact(&linear, &described.meta) {
                self.process(frame, described, *found, Direction::FromGuest, forward)
            } else {
                forward(self.delivery, frame);
                Ok(())
            }
        });
        self.machine.output.linear = linear;
        result
    }

    /// Shows a frame from the network to the engine, and calls `forward` with what is to be delivered.
    /// `bytes` are the whole frame.
    ///
    /// # Errors
    /// The engine wants the frame dropped.
    pub fn from_network(
        &mut self,
        frame: &Frame<'_>,
        bytes: &[u8],
        forward: impl FnOnce(&mut Delivery, &Frame<'_>),
    ) -> Result<(), DropReason> {
        match describe(frame, Direction::FromNetwork) {
            Some(described)
                if described.trust == Trust::Good || is_intact(bytes, &described.meta) =>
            {
                self.process(frame, &described, None, Direction::FromNetwork, forward)
            }
            Some(_) => {
                forward(self.delivery, frame);
                Ok(())
            }
            None => {
                if let Some(TooBig { flow, seq, mtu }) = TooBig::of(frame, bytes) {
                    self.run(|engine, _, now, egress| engine.too_big(now, &flow, seq, mtu, egress));
                }
                forward(self.delivery, frame);
                Ok(())
            }
        }
    }

    fn process(
        &mut self,
        frame: &Frame<'_>,
        described: &Described,
        found: Option<FlowId>,
        direction: Direction,
        forward: impl FnOnce(&mut Delivery, &Frame<'_>),
    ) -> Result<(), DropReason> {
        let Described { meta, link, segment, .. } = described;
        if segment.has_room {
            let may =
                self.port.reads_names() && self.machine.output.is_introduced(self.port.nonce());
            self.machine.engine.name_in_syn_acks(may);
        }
        let verdict = self.run(|engine, pool, now, egress| {
            let keep = || Held::copy(pool, frame, meta);
            let packet = Packet { flow: &meta.flow, found, link, segment };
            match direction {
                Direction::FromGuest => engine.from_guest(now, &packet, keep, egress),
                Direction::FromNetwork => engine.from_network(now, &packet, keep, egress),
            }
        });
        let watch = self.port.tap.watch();
        if watch.wants(Stage::Offload) {
            self.capture(frame, meta, direction, &verdict, watch);
        }
        if direction == Direction::FromNetwork && self.machine.engine.awaits_delivery() {
            return self.forward_watched(frame, meta, &verdict, forward);
        }
        self.forward(frame, meta, &verdict, forward)
    }

    #[inline]
    fn forward(
        &mut self,
        frame: &Frame<'_>,
        meta: &Meta,
        verdict: &Verdict,
        forward: impl FnOnce(&mut Delivery, &Frame<'_>),
    ) -> Result<(), DropReason> {
        match verdict {
            Verdict::Pass(edit) if edit.is_empty() => forward(self.delivery, frame),
            Verdict::Pass(edit) if edit.append_name => {
                let option = self.name_option(meta);
                with_option(frame, meta, edit, &option, |frame| forward(self.delivery, frame));
            }
            Verdict::Pass(edit) => {
                with_edit(frame, meta, edit, |frame| forward(self.delivery, frame));
            }
            Verdict::Absorb => {}
            Verdict::Drop(refusal) => return Err(reason(*refusal)),
        }
        Ok(())
    }

    /// The option that bears the name of the flow of a SYN-ACK from the network.
    #[cold]
    fn name_option(&self, meta: &Meta) -> [u8; OPTION_LEN] {
        let nonce = self.port.nonce();
        let beginning = meta.tcp().map_or(Beginning { ack: 0, next: 0 }, Beginning::of);
        let name = FlowName::new(&meta.flow.reversed(), nonce);
        name.option(nonce, self.machine.output.epoch, beginning)
    }

    /// As [`forward`](Self::forward), and tells the engine whether the frame has got into the guest's queue. What is not dropped on the way has.
    #[inline]
    fn forward_watched(
        &mut self,
        frame: &Frame<'_>,
        meta: &Meta,
        verdict: &Verdict,
        forward: impl FnOnce(&mut Delivery, &Frame<'_>),
    ) -> Result<(), DropReason> {
        let before = self.delivery.refused();
        let forwarded = self.forward(frame, meta, verdict, forward);
        let delivered = forwarded.is_ok() && self.delivery.refused() == before;
        self.machine.engine.on_delivered(delivered);
        forwarded
    }

    /// Shows a frame as the engine has seen it, and what becomes of it.
    #[cold]
    fn capture(
        &self,
        frame: &Frame<'_>,
        meta: &Meta,
        direction: Direction,
        verdict: &Verdict,
        watch: Watch,
    ) {
        let (flow, direction) = match direction {
            Direction::FromGuest => (meta.flow, pcapng::Direction::Inbound),
            Direction::FromNetwork => (meta.flow.reversed(), pcapng::Direction::Outbound),
        };
        let flow = self.machine.engine.flow(&flow);
        let (name, drop) = match verdict {
            Verdict::Pass(edit) if edit.is_empty() => ("passed", None),
            Verdict::Pass(_) => ("edited", None),
            Verdict::Absorb => ("absorbed", None),
            Verdict::Drop(refusal) => ("dropped", Some(reason(*refusal))),
        };
        let verdict = taps::Verdict { name, direction, drop, flow: flow.as_ref() };
        self.delivery.shared.capture_offloaded(self.port, frame, watch, &verdict);
    }

    /// Ends a batch of frames.
    pub fn flush(&mut self) {
        self.run(|engine, _, now, egress| engine.flush(now, egress));
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self) {
        self.run(|engine, _, now, egress| engine.handle_timeout(now, egress));
    }

    /// How the engine is configured.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.machine.engine.config()
    }

    /// What the port acknowledges outlives the process.
    #[must_use]
    pub fn has_journal(&self) -> bool {
        self.machine.has_journal()
    }

    /// The switch stops: resets connections that owe their peers bytes which were acknowledged to the guest.
    pub fn reset_owing(&mut self) {
        self.run(|engine, _, now, egress| engine.reset_owing(now, egress));
    }

    /// Changes the configuration.
    pub fn configure(&mut self, config: Config) {
        self.machine.pool.set_limit(pool_limit(&config));
        self.run(|engine, _, now, egress| engine.configure(config, now, egress));
        self.machine.begin_recording();
    }

    /// Takes all flows offline, or ends that.
    pub fn drain(&mut self, draining: bool) {
        self.machine.draining = draining;
        self.drain_for_now(false);
    }

    /// As [`drain`](Self::drain), since the guest's migration has begun or ended.
    pub fn on_migrating(&mut self, migrating: bool) {
        self.machine.migrating = migrating;
        self.drain_for_now(false);
    }

    /// As [`drain`](Self::drain), for what the switch itself is about to do: what operator and front-end want holds before and after it.
    pub(crate) fn drain_for_now(&mut self, draining: bool) {
        let draining = draining || self.machine.is_draining();
        self.run(|engine, _, now, egress| engine.drain(draining, now, egress));
    }

    /// Tells the engine what has become of a guest that was stopped.
    pub fn on_guest_event(&mut self, event: GuestEvent) {
        match event {
            GuestEvent::Runs => {
                // What the guest was told before it stopped is void: notices may have been lost since.
                self.machine.output.renew_epoch();
                self.run(|engine, _, now, egress| engine.resume(now, egress));
            }
            // It is not known yet whether it needs anything from here.
            GuestEvent::Moved if self.machine.note_moved() => {}
            GuestEvent::Moved => self.run(|engine, _, now, egress| engine.hand_over(now, egress)),
        }
    }

    /// The guest is dead: resets connections that are owed bytes, and forgets all flows.
    pub fn abort(&mut self) {
        self.run(|engine, _, now, egress| engine.abort(now, egress));
    }

    #[inline]
    fn run<R>(
        &mut self,
        work: impl FnOnce(
            &mut floodway_core::offload::Offload<Held>,
            &Arc<Pool<About>>,
            Instant,
            &mut Egress<'_>,
        ) -> R,
    ) -> R {
        let Machine { engine, pool, output, .. } = &mut *self.machine;
        let mut egress = Egress { port: self.port, delivery: self.delivery, output };
        work(engine, pool, self.now, &mut egress)
    }
}

const fn reason(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::BeyondGrant => DropReason::BeyondGrant,
        Refusal::AcksUnsent => DropReason::AcksUnsent,
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        PortOffload::publish(&self.port.offload, &self.machine, Some(&self.port.waker));
    }
}
