//! Forwarding: from a frame to the ports and uplinks that get it.
//!
//! # Theory of operation
//! **Classify**: each frame of a batch gets a verdict: the source is checked against the
//! port's policy and the table, and the destination is looked up, under one shared hold of the
//! table's lock. Only sources that are new or have moved need the lock for themselves, once a batch.
//! Group addresses and unknown destinations are flooded to the network that the frame is in, within the storm limit of the port or uplink that they come from.
//!
//! **Deliver** ([`crate::pipeline::delivery`]): frames of a batch that go to the same place are delivered together, in order, under
//! one hold of that receive queue's lock, and the guest hears of them once. Between co-resident
//! guests that is the only copy. Frames of one flow from one transmit queue never overtake each
//! other: with several receive queues a flow always takes the same. A flooded frame may be overtaken
//! by a unicast frame of its batch; their destination addresses differ, so 802.1Q allows it.
//!
//! **Offload** ([`crate::pipeline::tcp_offload`]): what goes from a guest to an uplink or back is shown to the port's
//! offload first, if the port uses it. Frames between guests never are. The same holds for inbound rates
//! ([`crate::pipeline::inbound`]): they see what arrives before the offload does, and what leaves after it.

use std::borrow::Cow;
use std::sync::Arc;

use floodway_core::l2::{MacTable, Origin, PortId};
use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_process::fault::{self, Point};

use crate::api::capture::Stage;
use crate::frame::describe::{Special, special};
use crate::frame::{self, Frame, Frames, vlan};
use crate::pipeline::decide::{
    self, LastAddresses, Objection, Source, Verdict, accept, addresses, check_received,
    is_announcement,
};
use crate::pipeline::delivery::{Delivery, Flush};
use crate::pipeline::groups::Groups;
use crate::pipeline::inbound;
use crate::pipeline::tcp_offload::Session;
use crate::queues::tx::{Batch, bits};
use crate::state::carried::take_tag;
use crate::state::port::Port;
use crate::state::ports::Ports;
use crate::state::shared::Shared;
use crate::state::uplink::{Uplink, UplinkReceiver};
use crate::stats::DropReason;

/// Most frames that are taken from an uplink before others have their turn.
const UPLINK_BATCH: usize = 64;

/// What a frame costs that was taken from an uplink.
const RECEIVED: Work = Work {
    chains: 1,
    descriptors: 0,
    scattered: 0,
    copies: 0,
    buffers: 0,
    bytes: 0,
    segments: 0,
    interrupts: 0,
    device: 1,
};

/// All bytes of a frame from an uplink, one after the other. Few ask for them.
type Bytes<'f, 'b> = &'f dyn Fn() -> Cow<'b, [u8]>;

/// One worker's forwarding state.
pub struct Forwarder {
    pub(super) delivery: Delivery,
    /// Ports whose offloads do not know yet that the batch is over.
    unfinished: Vec<usize>,
}

impl Forwarder {
    /// A forwarder over the switch's ports and table.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { delivery: Delivery::new(shared), unfinished: Vec::new() }
    }

    /// Forwards every frame of `batch`, which came from `ingress`. Dropped frames are marked.
    #[inline]
    pub fn forward_batch(&mut self, ingress: &Port, batch: &mut Batch, now: Instant) {
        let limit = &ingress.limits.tx;
        if limit.is_limited() && !limit.admit_all(batch.all().wire_size(u32::MAX, |_| true), now) {
            batch.police(DropReason::RateLimit, |frame| limit.admit(frame, now));
        }
        let done = if ingress.is_trunk() { self.forward_trunk(ingress, batch, now) } else { 0 };
        let mut groups = Groups::new();
        let data_frames = self.classify_batch(ingress, batch, done, now, &mut groups);
        let origin = ingress.origin();
        let offload = ingress.offload.is_active();
        let is_shown = offload || ingress.inbound.is_active();
        for (verdict, same) in groups.iter() {
            match verdict {
                Verdict::To { dst, .. } if is_shown && self.is_uplink(dst) => {
                    self.send_to_uplink(ingress, batch, same, verdict, offload);
                }
                Verdict::To { dst, pair } => {
                    let flush = Flush::Moderated(now);
                    self.delivery.deliver(origin, dst, pair, flush, batch.select(same));
                }
                Verdict::Flood if is_shown => {
                    self.send_to_uplink(ingress, batch, same, verdict, offload);
                }
                Verdict::Flood => self.delivery.flood(origin, batch.select(same)),
                Verdict::Drop(reason) => bits(same).for_each(|i| batch.drop_frame(i, reason)),
            }
        }
        self.delivery.flush();
        ingress.count_sent(data_frames);
        let watch = ingress.tap.watch();
        if watch.wants(Stage::In) {
            self.delivery.shared.capture_batch(ingress, batch, watch);
        }
    }

    /// Takes over other ports. Not within a batch.
    pub fn take_ports(&mut self, ports: Arc<Ports>) {
        self.delivery.take_ports(ports);
    }

    pub(super) fn is_uplink(&self, id: PortId) -> bool {
        self.delivery.ports.uplink(id).is_some()
    }

    /// Forwards frames of a guest that leave the host, through the port's offload if that is active and its inbound
    /// clamp.
    #[inline(never)]
    fn send_to_uplink(
        &mut self,
        ingress: &Port,
        batch: &mut Batch,
        mask: u32,
        verdict: Verdict,
        offload: bool,
    ) {
        let leave = |delivery: &mut Delivery, frame: &Frame<'_>| {
            leave_port(ingress, delivery, verdict, frame);
        };
        if !offload {
            let frames = batch.select(mask);
            return frames.iter().for_each(|frame| leave(&mut self.delivery, &frame));
        }
        let mut session = Session::open(ingress, &mut self.delivery);
        let expected = session.look_up_batch(batch.select(mask).iter());
        let mut expected = expected.iter();
        for i in bits(mask) {
            let Some(frame) = batch.frame(i) else { continue };
            let Some(expected) = expected.next() else { break };
            if let Err(reason) = session.from_guest(&frame, expected, leave) {
                batch.drop_frame(i, reason);
            }
        }
        session.flush();
    }

    /// As [`send_to_uplink`](Self::send_to_uplink), for a frame whose priority tag was taken off.
    pub(super) fn send_one_to_uplink(
        &mut self,
        ingress: &Port,
        verdict: Verdict,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let leave = |delivery: &mut Delivery, frame: &Frame<'_>| {
            leave_port(ingress, delivery, verdict, frame);
        };
        if !ingress.offload.is_active() {
            leave(&mut self.delivery, frame);
            return Ok(());
        }
        let mut session = Session::open(ingress, &mut self.delivery);
        let [expected, ..] = session.look_up_batch(std::iter::once(*frame));
        let sent = session.from_guest(frame, &expected, leave);
        session.flush();
        sent
    }

    /// Runs the timers of a port's offload and inbound clamp; returns whether they were due.
    #[inline]
    pub fn run_timers(&mut self, port: &Port, now: Instant) -> bool {
        let offload = port.offload.next_timeout() <= now;
        let inbound = port.inbound.next_timeout() <= now;
        if offload {
            Session::open(port, &mut self.delivery).handle_timeout();
        }
        if inbound {
            inbound::handle_timeout(port, &mut self.delivery);
        }
        if offload || inbound {
            self.delivery.flush();
        }
        offload || inbound
    }

    /// Does what a port's guest needs that has arrived or is known to be elsewhere: announces it, and lets its offload go on.
    #[cold]
    pub fn settle_guest(&mut self, port: &Port, now: Instant) {
        self.delivery.announce(port, now);
        if let Some(event) = port.offload.take_event() {
            Session::open(port, &mut self.delivery).on_guest_event(event);
            self.delivery.flush();
        }
        if let Some(migrating) = port.offload.take_migration() {
            Session::open(port, &mut self.delivery).on_migrating(migrating);
            self.delivery.flush();
        }
    }

    /// Resets the connections of a guest that is dead. To be called once a second.
    pub fn end_abandoned(&mut self, port: &Port) {
        if port.rx_running() == 0 && port.offload.is_abandoned(port.is_connected()) {
            Session::open(port, &mut self.delivery).abort();
            self.delivery.flush();
        }
    }

    /// Cuts the next piece of a GSO packet of `source` that was left to be cut for an uplink. Returns `false` if there is none.
    pub fn resume(&self, source: PortId, now: Instant) -> bool {
        self.delivery.resume(source, now)
    }

    /// Sends interrupts that have waited long enough; returns whether there were any.
    #[inline]
    pub fn interrupt(&mut self, now: Instant) -> bool {
        self.delivery.interrupt(now)
    }

    /// When [`interrupt`](Self::interrupt) has something to do; [`Instant::NEVER`] if nothing waits.
    #[must_use]
    pub fn next_interrupt(&self) -> Instant {
        self.delivery.next_interrupt()
    }

    /// Puts all frames but those of the mask `done` into `groups`. Returns how many of them are no bare acknowledgements.
    #[inline]
    fn classify_batch(
        &mut self,
        ingress: &Port,
        batch: &Batch,
        done: u32,
        now: Instant,
        groups: &mut Groups,
    ) -> u64 {
        let (mut valid, mut changed) = (0, 0);
        {
            let tables = self.delivery.shared.tables();
            let table = tables.of(ingress.network);
            let mut last = LastAddresses::NONE;
            for i in 0..batch.len() {
                let Some(prefix) = batch.prefix(i).filter(|_| done >> i & 1 == 0) else { continue };
                valid |= 1 << i;
                if let Some(dst) = last.destination(prefix) {
                    groups.add(i, self.classify_again(ingress, dst, prefix, || batch.frame(i)));
                    continue;
                }
                let Some(frame) = batch.frame(i) else { continue };
                let source = self.observe(table, ingress, &frame, now);
                changed |= u32::from(source == Ok(Source::Changed)) << i;
                let verdict = match source {
                    Ok(source) => {
                        let verdict = self.classify(table, ingress, ingress.origin(), &frame, now);
                        last.note(frame.prefix, source, verdict);
                        verdict
                    }
                    Err(reason) => Verdict::Drop(reason),
                };
                groups.add(i, verdict);
            }
        }
        for frame in batch.select(changed).iter() {
            self.delivery.learn(addresses(frame.prefix).1, ingress.origin(), false, now);
        }
        u64::from(u32::count_ones(valid)) - batch.select(valid).pure_acks()
    }

    /// Checks the source of a frame from a VM.
    #[inline]
    pub(super) fn observe(
        &self,
        table: &MacTable,
        ingress: &Port,
        frame: &Frame<'_>,
        now: Instant,
    ) -> Result<Source, DropReason> {
        if let Err(objection) = decide::check_source(ingress, frame.prefix) {
            return Err(refuse(ingress, objection, frame.prefix));
        }
        let (_, src) = addresses(frame.prefix);
        accept(table.observe(src, ingress.id, false, now))
    }

    /// What becomes of a frame from a VM whose source is in order.
    #[inline]
    pub(super) fn classify(
        &self,
        table: &MacTable,
        ingress: &Port,
        origin: Origin,
        frame: &Frame<'_>,
        now: Instant,
    ) -> Verdict {
        let verdict = self.delivery.look_up(table, origin, frame);
        if verdict == Verdict::Flood {
            if !ingress.admits_flood(origin.network, frame.segments(), now) {
                return Verdict::Drop(DropReason::Storm);
            }
            if origin.network == ingress.network {
                ingress.learn_own(frame.prefix);
            }
        }
        verdict
    }

    /// What becomes of a frame from a VM, which begins with `prefix`, that has the addresses of one that went to `dst`.
    #[inline]
    fn classify_again<'f>(
        &self,
        ingress: &Port,
        dst: PortId,
        prefix: &[u8],
        frame: impl FnOnce() -> Option<Frame<'f>>,
    ) -> Verdict {
        match decide::check_all_but_source(ingress, prefix) {
            Ok(()) => self.delivery.look_up_again(ingress.origin(), dst, frame),
            Err(objection) => Verdict::Drop(refuse(ingress, objection, prefix)),
        }
    }

    /// What becomes of a frame from an uplink.
    fn judge_received(&mut self, ingress: Origin, frame: &Frame<'_>, now: Instant) -> Verdict {
        let (dst, src) = addresses(frame.prefix);
        let announcement = is_announcement(frame);
        let tables = self.delivery.shared.tables();
        let table = tables.of(ingress.network);
        let source = accept(table.observe(src, ingress.port, announcement, now));
        let verdict =
            source.map(|source| self.delivery.look_up_received(table, ingress, source, frame));
        drop(tables);
        if source == Ok(Source::Changed) {
            self.delivery.learn(src, ingress, announcement, now);
        }
        let verdict = verdict.unwrap_or_else(Verdict::Drop);
        let uplink = self.delivery.ports.uplink(ingress.port).filter(|_| verdict == Verdict::Flood);
        match uplink {
            Some(uplink) if !uplink.admits_flood(ingress.network, dst, frame.segments(), now) => {
                Verdict::Drop(DropReason::Storm)
            }
            _ => verdict,
        }
    }

    /// Forwards what has arrived on an uplink until that has cost `limit` nanoseconds by the cost model. Returns
    /// `None` if there was nothing, and else `Some(true)` if there may be more.
    pub fn forward_uplink(
        &mut self,
        uplink: &mut UplinkReceiver,
        now: Instant,
        limit: u64,
    ) -> Option<bool> {
        let id = uplink.slot().id;
        let before = self.delivery.shared.ledger.spent(id);
        let mut received = 0;
        let mut more = true;
        while received < UPLINK_BATCH
            && self.delivery.shared.ledger.spent(id).wrapping_sub(before) < limit
        {
            let Some(arrived) = uplink.recv() else {
                more = false;
                break;
            };
            received += 1;
            fault::pass(Point::SegmentReceived);
            self.delivery.shared.ledger.charge(id, &RECEIVED);
            frame::with_slice(arrived.vnet, arrived.frame, |frame| {
                let slot = arrived.slot;
                let forwarded = self.forward_received(slot, frame, arrived.frame, now);
                match forwarded {
                    Err(reason) => slot.received.count_drop(reason, 1),
                    Ok(()) => slot.received.count(u64::from(frame.len)),
                }
                let watch = slot.tap().watch();
                if watch.wants(Stage::In) {
                    let shared = &self.delivery.shared;
                    shared.capture_received(slot.id, frame, forwarded.err(), watch);
                }
            });
        }
        self.finish();
        (received > 0).then_some(more)
    }

    pub(super) fn forward_received(
        &mut self,
        uplink: &Uplink,
        frame: &Frame<'_>,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), DropReason> {
        frame::check_len(frame.len)?;
        let bytes = || Cow::Borrowed(bytes);
        match special(frame.prefix) {
            None => self.forward_in(uplink, 0, frame, &bytes, now),
            Some(Special::Notice) => Err(DropReason::ForgedNotice),
            Some(Special::Tagged) => self.forward_tagged(uplink, frame, &bytes, now),
        }
    }

    /// Takes the tag off a frame, which says what network it is in.
    fn forward_tagged(
        &mut self,
        uplink: &Uplink,
        frame: &Frame<'_>,
        bytes: Bytes<'_, '_>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let bytes = || Cow::Owned(vlan::bytes_without_tag(&bytes()));
        take_tag(frame, |vid, frame| self.forward_in(uplink, vid, frame, &bytes, now))
    }

    /// Forwards a frame without a tag in the network that `vid` means.
    fn forward_in(
        &mut self,
        uplink: &Uplink,
        vid: u16,
        frame: &Frame<'_>,
        bytes: Bytes<'_, '_>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let network = uplink.carried.network_of(vid).ok_or(DropReason::VlanFiltered)?;
        let ingress = Origin { port: uplink.id, network };
        let vnet = check_received(frame)?;
        let frame = Frame { vnet, ..*frame };
        match self.judge_received(ingress, &frame, now) {
            Verdict::To { dst, pair } => {
                self.account(ingress, dst, &frame)?;
                if let Some(port) = self.offloading(ingress, dst) {
                    return self.offload_received(ingress, &port, pair, &frame, bytes);
                }
                self.delivery.deliver(ingress, dst, pair, Flush::Later, &frame);
            }
            Verdict::Flood => self.delivery.flood(ingress, &frame),
            Verdict::Drop(reason) => return Err(reason),
        }
        Ok(())
    }

    /// Lets the inbound clamp of the port with number `dst` know what has come for it without a tag.
    #[inline]
    fn account(
        &mut self,
        ingress: Origin,
        dst: PortId,
        frame: &Frame<'_>,
    ) -> Result<(), DropReason> {
        let port = self.delivery.ports.get(dst.index());
        let is_shown =
            |port: &&Arc<Port>| port.inbound.is_active() && port.network == ingress.network;
        match port.filter(is_shown).cloned() {
            Some(port) => inbound::from_network(&port, &mut self.delivery, frame),
            None => Ok(()),
        }
    }

    /// The port with number `dst`, if what it receives goes through its offload. What has a tag there passes by.
    #[inline]
    fn offloading(&self, ingress: Origin, dst: PortId) -> Option<Arc<Port>> {
        let port = self.delivery.ports.get(dst.index()).filter(|port| port.offload.is_active())?;
        if port.network != ingress.network {
            port.offload.count_tagged();
            return None;
        }
        Some(Arc::clone(port))
    }

    #[inline(never)]
    fn offload_received(
        &mut self,
        ingress: Origin,
        port: &Port,
        pair: u16,
        frame: &Frame<'_>,
        bytes: Bytes<'_, '_>,
    ) -> Result<(), DropReason> {
        let deliver = |delivery: &mut Delivery, frame: &Frame<'_>| {
            delivery.deliver_measured(ingress, port.id, pair, Flush::Later, frame);
        };
        if (pair >= port.rx_running() && !port.is_awaited()) || !port.admits(frame) {
            // Dropped and counted there, or left for a guest that may come back. What the guest cannot get must not be acknowledged for it.
            deliver(&mut self.delivery, frame);
            return Ok(());
        }
        let rx_limit = &port.limits.rx;
        if rx_limit.is_limited() && !rx_limit.admit(frame, self.delivery.shared.now()) {
            self.delivery.drop_beyond_rate(port, pair, frame);
            return Ok(());
        }
        if !self.unfinished.contains(&port.id.index()) {
            self.unfinished.push(port.id.index());
        }
        Session::open(port, &mut self.delivery).from_network(frame, &bytes(), deliver)
    }

    /// Ends a batch from an uplink.
    pub(super) fn finish(&mut self) {
        for i in self.unfinished.drain(..) {
            let Some(port) = self.delivery.ports.get(i).cloned() else { continue };
            Session::open(&port, &mut self.delivery).flush();
        }
        self.delivery.flush();
    }
}

/// Lets a frame without a tag go where its verdict says, through the port's inbound clamp.
fn leave_port(ingress: &Port, delivery: &mut Delivery, verdict: Verdict, frame: &Frame<'_>) {
    inbound::to_network(ingress, delivery, frame, |delivery, frame| {
        send_as(delivery, ingress.origin(), verdict, frame);
    });
}

/// Lets a frame go where its verdict says.
pub(super) fn send_as(
    delivery: &mut Delivery,
    origin: Origin,
    verdict: Verdict,
    frame: &Frame<'_>,
) {
    match verdict {
        Verdict::To { dst, pair } => delivery.deliver(origin, dst, pair, Flush::Later, frame),
        _ => delivery.flood(origin, frame),
    }
}

/// Does what follows from an objection to a frame, and returns as what the frame is counted.
#[cold]
fn refuse(ingress: &Port, objection: Objection, prefix: &[u8]) -> DropReason {
    match objection {
        Objection::Notice => ingress.hear_notice(prefix),
        Objection::Inside(spoof) => ingress.note_refused_source(spoof, prefix),
        Objection::Tagged | Objection::Source(_) => {}
    }
    objection.reason(prefix)
}
