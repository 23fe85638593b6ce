//! Delivery: from a decision to the receive queues and uplinks that get a frame.
//!
//! # Theory of operation
//! A frame is put into its place under the lock of that place's queue, by whichever worker has it.
//! The guest hears of it at once, or when the worker's batch is over: [`Delivery::flush`] publishes
//! what [`Flush::Later`] has left, one interrupt for all of it. A frame of a network that has a tag at a trunk port gets it here, on its way into the
//! guest's buffers. Frames of a co-resident VM are visible at once, too, but their
//! interrupt may wait for more ([`Flush::Moderated`], [`crate::queues::moderation`]); whoever can come back in time asks for that, and
//! [`Delivery::interrupt`] is where it does. With several receive queues a flow
//! always takes the same, so frames of one flow stay in order.
//!
//! What a delivery costs is charged to the frames' sender ([`crate::stats::ledger`]).
//!
//! **Invariant**: every frame that is handed in is in a queue afterwards, or counted as dropped there.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use floodway_core::l2::{NetworkId, Origin, PortId};
use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_wire::{MacAddr, parse};

use crate::api::capture::Stage;
use crate::frame::{CUT_AT_ONCE, Frame, Frames};
use crate::queues::moderation::Moderated;
use crate::queues::rx::RxQueue;
use crate::state::port::Port;
use crate::state::ports::Ports;
use crate::state::shared::Shared;
use crate::stats::DropReason;
use crate::sync::lock;

/// When the guest hears of delivered frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// At once: no more of the batch goes there.
    Now,
    /// By [`Delivery::flush`], when the batch is over.
    Later,
    /// At this time, but the interrupt may wait. [`Delivery::interrupt`] must be called when [`Delivery::next_interrupt`] says.
    Moderated(Instant),
}

/// One thread's way into the queues of all ports and uplinks.
pub struct Delivery {
    /// What the switch knows.
    pub shared: Arc<Shared>,
    /// The ports, as the thread last looked at them.
    pub ports: Arc<Ports>,
    signals: Signals,
    /// Frames to guests that were dropped on their way into a receive queue.
    refused: u64,
}

/// Guests that have to hear of frames. A queue is named by port and pair.
#[derive(Default)]
struct Signals {
    /// Receive queues with frames that their guests do not see yet.
    unflushed: Vec<(usize, u16)>,
    /// Interrupts that wait.
    held: Vec<Held>,
}

/// An interrupt that waits.
struct Held {
    /// Of this receive queue.
    queue: (usize, u16),
    due: Instant,
    /// Whose frames were the first of which the guest has not heard.
    sender: PortId,
}

impl Signals {
    /// Frames of `sender` were placed in `rx`: lets the guest hear of them as `flush` says.
    #[inline]
    fn on_delivered(
        &mut self,
        sender: PortId,
        port: &Port,
        queue: (usize, u16),
        rx: &mut RxQueue,
        flush: Flush,
    ) {
        match flush {
            Flush::Now => finish(port, rx),
            Flush::Moderated(now) => {
                settle(port, rx);
                if let Some(due) = rx.flush_moderated(now, port.received(), port.sent()) {
                    self.hold(queue, due, sender);
                }
            }
            Flush::Later if self.unflushed.contains(&queue) => {}
            Flush::Later => self.unflushed.push(queue),
        }
    }

    fn hold(&mut self, queue: (usize, u16), due: Instant, sender: PortId) {
        match self.held.iter_mut().find(|held| held.queue == queue) {
            Some(held) => held.due = due,
            None => self.held.push(Held { queue, due, sender }),
        }
    }
}

impl Delivery {
    /// A way into the queues of `shared`.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        let ports = shared.ports();
        Self { shared, ports, signals: Signals::default(), refused: 0 }
    }

    /// Frames to guests, and segments of those that are cut, that were dropped on their way into a receive queue. If it has gone up while a frame was delivered, the guest does not get
    /// all of that frame.
    #[inline]
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Frames were dropped on their way into a receive queue.
    pub(super) fn count_refused(&mut self, frames: u64) {
        self.refused += frames;
    }

    /// Takes over other ports. Not within a batch.
    #[cold]
    pub fn take_ports(&mut self, ports: Arc<Ports>) {
        self.signals.held.retain(|held| ports.get(held.queue.0).is_some());
        self.ports = ports;
    }

    /// Delivers `frames` from `origin` to an uplink, or to receive queue `pair` of a port within its rate limit. What the switch says to a guest in the
    /// name of its own port has none.
    #[inline]
    pub fn deliver(
        &mut self,
        origin: Origin,
        dst: PortId,
        pair: u16,
        flush: Flush,
        frames: impl Frames,
    ) {
        self.deliver_with(origin, dst, pair, flush, origin.port != dst, frames);
    }

    /// As [`deliver`](Self::deliver), for frames that the port's rate limit has let pass.
    pub(super) fn deliver_measured(
        &mut self,
        origin: Origin,
        dst: PortId,
        pair: u16,
        flush: Flush,
        frames: impl Frames,
    ) {
        self.deliver_with(origin, dst, pair, flush, false, frames);
    }

    #[inline]
    fn deliver_with(
        &mut self,
        origin: Origin,
        dst: PortId,
        pair: u16,
        flush: Flush,
        limited: bool,
        frames: impl Frames,
    ) {
        let src = origin.port;
        let Some(port) = self.ports.get(dst.index()) else {
            if self.ports.uplink(dst).is_none() && dst.index() >= self.ports.capacity() {
                return self.deliver_beyond(origin, frames);
            }
            return self.deliver_to_uplink(origin, dst, frames.iter());
        };
        if !self.ports.connects(origin, dst) {
            // An address has moved there since the frame was classified.
            let port = Arc::clone(port);
            return self.drop_isolated(&port, frames.iter());
        }
        if pair >= port.rx_running() {
            let port = Arc::clone(port);
            return self.deliver_to_stopped(origin, &port, frames.iter());
        }
        let mut rx = port.pairs[usize::from(pair)].rx();
        if !rx.is_running() {
            // It has stopped since we looked, and its address may be elsewhere already.
            drop(rx);
            let port = Arc::clone(port);
            return self.deliver_to_stopped(origin, &port, frames.iter());
        }
        let measured = (limited && port.limits.rx.is_limited()).then(|| match flush {
            Flush::Moderated(now) => now,
            Flush::Now | Flush::Later => self.shared.now(),
        });
        let refused = rx.refused();
        let placed = if origin.network != port.network {
            self.place_tagged(port, &mut rx, origin.network, measured, frames.iter())
        } else {
            self.place(port, &mut rx, measured, frames)
        };
        self.refused += rx.refused() - refused;
        self.shared.ledger.charge(src, &placed.work);
        self.shared.traffic.count(src, dst, placed.frames, placed.bytes);
        port.count_received(placed.frames - placed.pure_acks);
        self.signals.on_delivered(src, port, (dst.index(), pair), &mut rx, flush);
        if let Some((deferred, relieved)) = rx.take_aside() {
            self.shared.ledger.defer(src, &deferred);
            self.shared.ledger.relieve(src, relieved);
        }
    }

    /// Places frames in `rx`, by the port's rate limit at the time `measured`, and shows them to whoever looks.
    #[inline]
    fn place(
        &self,
        port: &Port,
        rx: &mut RxQueue,
        measured: Option<Instant>,
        frames: impl Frames,
    ) -> Placed {
        let limit = measured.filter(|&now| {
            let size = frames.wire_size(port.max_untagged_len(), |frame| port.admits(frame));
            !port.limits.rx.admit_all(size, now)
        });
        match port.tap.watch().wants(Stage::Out) {
            true => self.shared.place_and_capture(port, rx, limit, frames.iter()),
            false => place_all(port, rx, limit, frames),
        }
    }

    /// As [`place`](Self::place), behind the tag that `network` has on a trunk port.
    #[inline(never)]
    fn place_tagged<'f>(
        &self,
        port: &Port,
        rx: &mut RxQueue,
        network: NetworkId,
        measured: Option<Instant>,
        frames: impl Iterator<Item = Frame<'f>>,
    ) -> Placed {
        let mut placed = Placed::default();
        for frame in frames {
            port.carried.put_tag(network, &frame, |frame| {
                placed += self.place(port, rx, measured, frame);
            });
        }
        placed
    }

    /// Sends frames whose destination was behind an uplink that has gone, as if nobody knew it, beyond the others.
    #[cold]
    fn deliver_beyond(&mut self, origin: Origin, frames: impl Frames) {
        let mut uplinks = self.ports.flooded_uplinks(origin).peekable();
        if uplinks.peek().is_none() {
            return self.drop_for_removed(frames.iter().count());
        }
        for uplink in uplinks {
            self.deliver_to_uplink(origin, uplink.id, frames.iter());
        }
    }

    /// Sends frames to an uplink.
    #[inline]
    fn deliver_to_uplink<'f>(
        &self,
        origin: Origin,
        dst: PortId,
        frames: impl Iterator<Item = Frame<'f>>,
    ) {
        let Some(uplink) = self.ports.uplink(dst) else {
            return self.drop_for_removed(frames.count());
        };
        let src = origin.port;
        let cuts = uplink.cuts_gso_packets();
        let mut work = Work::default();
        let counted = frames.inspect(|frame| {
            let segments = if cuts { frame.segments() } else { 1 };
            work.copies += 1;
            work.descriptors += frame.parts.len() as u64;
            work.bytes += u64::from(frame.len);
            // More are cut later, and charged then.
            if segments <= CUT_AT_ONCE {
                work.device += u64::from(segments);
                work.segments += u64::from(if frame.vnet.is_gso() { segments } else { 0 });
            }
        });
        if uplink.send(origin, self.shared.now(), counted) {
            self.resume_soon(src);
        }
        self.shared.ledger.charge(src, &work);
        if uplink.tap().watch().wants(Stage::Out) {
            // Those that wait are copied later.
            let Work { copies, bytes, .. } = work;
            self.shared.ledger.charge(dst, &Work { copies, bytes, ..Work::default() });
        }
        self.shared.traffic.count(src, dst, work.copies, work.bytes);
    }

    /// Drops frames to a port that their sender must not reach.
    #[cold]
    fn drop_isolated<'f>(&mut self, port: &Port, frames: impl Iterator<Item = Frame<'f>>) {
        for frame in frames {
            self.refused += 1;
            port.undelivered().count_drop(DropReason::Isolated, 1);
            self.shared.capture_delivered(port, &frame, Some(DropReason::Isolated));
        }
    }

    /// Drops a frame beyond the rate limit of a port.
    #[cold]
    pub(super) fn drop_beyond_rate(&self, port: &Port, pair: u16, frame: &Frame<'_>) {
        let reason = DropReason::RateLimit;
        port.pairs[usize::from(pair)].rx().traffic.count_drop(reason, 1);
        self.shared.capture_delivered(port, frame, Some(reason));
    }

    /// Counts frames to a port that has just been removed.
    #[cold]
    fn drop_for_removed(&self, frames: usize) {
        lock(&self.shared.removed).late.count_drop(DropReason::PortDown, frames as u64);
    }

    /// Something of `src` is left to be cut. An uplink's worker is the one that sends for it, and looks by itself.
    #[cold]
    fn resume_soon(&self, src: PortId) {
        if let Some(port) = self.ports.get(src.index()) {
            port.resume_soon();
        }
    }

    /// Cuts the next piece of what is left of `source` for an uplink. Returns `false` if nothing is left.
    #[cold]
    pub fn resume(&self, source: PortId, now: Instant) -> bool {
        let work = self.ports.uplinks().iter().find_map(|uplink| uplink.resume(source, now));
        if let Some(work) = &work {
            self.shared.ledger.charge(source, work);
        }
        work.is_some()
    }

    /// Sends a frame from `origin` to where `dst` is now. One that nobody has heard of can only be beyond an
    /// uplink.
    pub fn send(&mut self, origin: Origin, dst: MacAddr, frame: &Frame<'_>) {
        let found = self.shared.tables().of(origin.network).lookup(dst);
        match found {
            Some(dst) if dst == origin.port => {}
            Some(dst) => {
                let pair = self.select_rx_queue(dst, frame);
                self.deliver(origin, dst, pair, Flush::Later, frame);
            }
            None => self.send_to_uplinks(origin, frame),
        }
    }

    /// Hands frames to every port and uplink of their network but the one they came from.
    #[cold]
    pub fn flood(&mut self, origin: Origin, frames: impl Frames) {
        let ports = Arc::clone(&self.ports);
        for port in ports.flooded(origin) {
            self.deliver(origin, port.id, 0, Flush::Later, frames);
        }
        self.send_to_uplinks(origin, frames);
    }

    /// Hands frames to every uplink of their network but the one they came from.
    pub fn send_to_uplinks(&mut self, origin: Origin, frames: impl Frames) {
        let ports = Arc::clone(&self.ports);
        for uplink in ports.flooded_uplinks(origin) {
            self.deliver(origin, uplink.id, 0, Flush::Later, frames);
        }
    }

    /// The receive queue of `dst` that the frame's flow belongs to.
    #[inline]
    #[must_use]
    pub fn select_rx_queue(&self, dst: PortId, frame: &Frame<'_>) -> u16 {
        match self.rx_queues(dst) {
            0 | 1 => 0,
            n => (flow_hash(frame) % u64::from(n)) as u16,
        }
    }

    /// Returns how many receive queues of `dst` run; 0 for an uplink.
    #[inline]
    #[must_use]
    pub fn rx_queues(&self, dst: PortId) -> u16 {
        self.ports.get(dst.index()).map_or(0, |port| port.rx_running())
    }

    /// Lets guests see what was delivered.
    #[inline]
    pub fn flush(&mut self) {
        for (i, pair) in self.signals.unflushed.drain(..) {
            let Some(port) = self.ports.get(i) else { continue };
            let mut rx = port.pairs[usize::from(pair)].rx();
            finish(port, &mut rx);
            // Of several senders perhaps: not in favour of any.
            let _ = rx.take_aside();
        }
    }
}

/// Interrupts that wait.
impl Delivery {
    /// Sends the interrupts that have waited until `now`; returns whether there were any.
    #[inline]
    pub fn interrupt(&mut self, now: Instant) -> bool {
        if self.next_interrupt() > now {
            return false;
        }
        let (ports, ledger) = (&self.ports, &self.shared.ledger);
        self.signals.held.retain_mut(|Held { queue: (i, pair), due, sender }| {
            if *due > now {
                return true;
            }
            let Some(port) = ports.get(*i) else { return false };
            match port.pairs[usize::from(*pair)].rx().interrupt_if_due(now) {
                Moderated::Waits(until) => *due = until,
                Moderated::Sent => ledger.charge_interrupt(*sender),
                Moderated::Unwanted => {}
            }
            *due > now
        });
        true
    }

    /// When the first of them has to be sent; [`Instant::NEVER`] if none waits.
    #[inline]
    #[must_use]
    pub fn next_interrupt(&self) -> Instant {
        self.signals.held.iter().map(|held| held.due).min().unwrap_or(Instant::NEVER)
    }
}

/// What became of some frames to a port.
#[derive(Default)]
pub(super) struct Placed {
    frames: u64,
    bytes: u64,
    pure_acks: u64,
    /// What it has cost.
    work: Work,
}

impl AddAssign for Placed {
    fn add_assign(&mut self, more: Self) {
        self.frames += more.frames;
        self.bytes += more.bytes;
        self.pure_acks += more.pure_acks;
        self.work += more.work;
    }
}

/// Places frames in `rx`, and counts those that do not fit the port, or its rate limit at the time `limit` if they have not passed it together.
#[inline]
pub(super) fn place_all(
    port: &Port,
    rx: &mut RxQueue,
    limit: Option<Instant>,
    frames: impl Frames,
) -> Placed {
    let mut placed = Placed { pure_acks: frames.pure_acks(), ..Placed::default() };
    for frame in frames.iter() {
        placed.frames += 1;
        placed.work.descriptors += frame.parts.len() as u64;
        placed.bytes += u64::from(frame.len);
        // Most frames ask for nothing, which is quickly seen.
        if frame.vnet.flags | frame.vnet.gso_type != 0 && rx.needs_software(&frame) {
            placed.work.bytes += u64::from(frame.len);
            placed.work.segments += u64::from(frame.segments());
        }
        if !port.admits(&frame) {
            rx.refuse(DropReason::Oversize);
        } else if limit.is_some_and(|now| !port.limits.rx.admit(&frame, now)) {
            rx.refuse(DropReason::RateLimit);
        } else {
            rx.deliver(&frame);
        }
    }
    placed.work.copies += placed.frames;
    placed.work.bytes += placed.bytes;
    placed.work += rx.take_extra();
    placed
}

/// A hash that is the same for all frames of a flow.
fn flow_hash(frame: &Frame<'_>) -> u64 {
    parse(frame.prefix, frame.len as usize).map_or(0, |meta| meta.flow.hash(0))
}

/// Lets the guest see what was delivered, and its worker what was not.
#[inline]
pub(crate) fn finish(port: &Port, rx: &mut RxQueue) {
    settle(port, rx);
    rx.flush();
}

/// Lets the port's worker know what waits for buffers.
#[inline]
fn settle(port: &Port, rx: &mut RxQueue) {
    if rx.pending().0 > 0 {
        port.waiting.store(true, Ordering::Release);
        // The guest was asked for a kick before its worker could know what for. If the kick came in
        // between, the buffers that it announced are here now. That something waits in another queue says nothing: the worker may have
        // been told of that only after it had been woken for this one.
        if !rx.is_paused() {
            rx.drain_at_once();
        }
        if rx.is_paused() {
            port.resume_soon();
        }
    }
}
