//! Inbound rates: how core's division of the link ([`floodway_core::inbound`]) is put into the packet path.
//!
//! # Theory of operation
//! **BandwidthAllocator** ([`allocator`](crate::state::allocator)). One for the switch: it knows each port's demand and publishes each port's rate. It
//! is asked when a port's number of active connections changes, and looks at what ports use every
//! [`TICK`](floodway_core::inbound::allocator::TICK) if unused shares are lent.
//!
//! **Clamp** ([`PortInbound`](crate::state::inbound::PortInbound)). One for each port, behind a lock of its own. It sees each frame that comes for the port
//! from an uplink, before anything else does, and each frame that leaves the port for one, after everything else: also
//! those that the TCP offload makes, releases or edits. So there is one place that says what right edge a
//! peer gets to hear, and the window in an ACK of the offload is the guest's edge or the clamp's, whichever is
//! less (R3). What waits here the offload has sent; its own repairs of ACKs do not depend on when they leave.
//!
//! A frame leaves while the lock is held, so that frames of a connection keep their order whoever sends them. What has
//! to wait is copied: of an ACK a frame's prefix is all, a request of the guest (core's `request_pacing`) has payload.
//!
//! **Time**: as in [`crate::pipeline::tcp_offload`]: the next timeout is published outside of the lock, the port's own worker runs
//! it, and whoever brings it forward wakes that worker.
//!
//! **Invariants**: those of core; a port costs one flag while the mechanism is off; frames that are not
//! TCP segments with plain headers leave as they are.

mod output;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use floodway_core::inbound::{Config, CounterCells, Verdict, WindowClamp};
use floodway_core::time::Instant;
use floodway_wire::{Network, parse, udp};

use crate::frame::Frame;
use crate::frame::describe::{Direction, describe};
use crate::frame::headers::with_edit;
use crate::pipeline::delivery::Delivery;
use crate::state::inbound::{Kept, Machine};
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::stats::DropReason;
use crate::sync::lock_order::Ordered;
use output::Output;

/// Lets time pass for the clamp of `port`: it hears of no earlier time from now on.
#[cfg(any(test, fuzzing))]
pub(crate) fn advance(port: &Port, by: floodway_core::time::Duration) {
    let mut machine = port.inbound.machine();
    machine.latest += by;
}

/// A hold of a port's clamp.
struct Session<'a> {
    port: &'a Port,
    delivery: &'a mut Delivery,
    machine: Ordered<MutexGuard<'a, Machine>>,
    now: Instant,
}

impl<'a> Session<'a> {
    fn open(port: &'a Port, delivery: &'a mut Delivery) -> Self {
        let mut machine = port.inbound.machine();
        let now = delivery.shared.now().max(machine.latest);
        machine.latest = now;
        if let Some(clamp) = &mut machine.clamp {
            clamp.set_rate(port.inbound.rate.load(Ordering::Relaxed), now);
        }
        Self { port, delivery, machine, now }
    }

    fn output(&mut self) -> (Option<&mut WindowClamp<Kept>>, Output<'_>) {
        let output = Output { port: self.port, delivery: self.delivery };
        (self.machine.clamp.as_mut(), output)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let Some(clamp) = &mut self.machine.clamp else { return };
        let (active, deadline) = (clamp.active(), clamp.next_timeout());
        let inbound = &self.port.inbound;
        if active != self.machine.told {
            self.machine.told = active;
            self.delivery.shared.set_inbound_active(self.port.id, active);
        }
        self.port.waker.publish_for_port(&inbound.deadline, deadline);
    }
}

/// Shows the clamp a frame that has come for `port` from an uplink.
///
/// # Errors
/// It is to be dropped.
pub fn from_network(
    port: &Port,
    delivery: &mut Delivery,
    frame: &Frame<'_>,
) -> Result<(), DropReason> {
    let mut session = Session::open(port, delivery);
    let now = session.now;
    let overhead = session.machine.frame_overhead;
    let Some(clamp) = &mut session.machine.clamp else { return Ok(()) };
    if let Some(described) = describe(frame, Direction::FromNetwork) {
        let headers = u64::from(described.meta.payload_offset) + overhead;
        let more = segments(frame, described.meta.payload_len) - 1;
        let wire = u64::from(frame.len) + overhead + more * headers;
        clamp.tcp_from_network(now, &described.meta.flow, &described.segment, wire);
        return Ok(());
    }
    let wire = u64::from(frame.len) + overhead;
    if clamp.other_from_network(now, is_udp(frame), wire) {
        Ok(())
    } else {
        Err(DropReason::InboundRate)
    }
}

/// Returns what [`from_network`] would; the clamp, which is active, is the same afterwards.
///
/// # Errors
/// The frame would be dropped.
pub(super) fn would_pass_from_network(
    port: &Port,
    now: Instant,
    frame: &Frame<'_>,
) -> Result<(), DropReason> {
    let machine = port.inbound.machine();
    let Some(clamp) = &machine.clamp else { return Ok(()) };
    if describe(frame, Direction::FromNetwork).is_some() {
        return Ok(());
    }
    let (now, rate) = (now.max(machine.latest), port.inbound.rate.load(Ordering::Relaxed));
    let wire = u64::from(frame.len) + machine.frame_overhead;
    match clamp.would_pass_other(rate, now, is_udp(frame), wire) {
        true => Ok(()),
        false => Err(DropReason::InboundRate),
    }
}

/// Segments that a frame took on the link.
fn segments(frame: &Frame<'_>, payload: u32) -> u64 {
    match u32::from(frame.vnet.gso_size) {
        size if size > 0 && frame.vnet.is_gso() => u64::from(payload.div_ceil(size)).max(1),
        _ => 1,
    }
}

fn is_udp(frame: &Frame<'_>) -> bool {
    let meta = parse(frame.prefix, frame.len as usize);
    meta.is_ok_and(|meta| {
        matches!(meta.network, Network::Ipv4 | Network::Ipv6) && meta.flow.protocol == udp::PROTOCOL
    })
}

/// Shows the clamp a frame of `port` that leaves for an uplink, and calls `forward` with what is to leave now.
pub fn to_network(
    port: &Port,
    delivery: &mut Delivery,
    frame: &Frame<'_>,
    forward: impl FnOnce(&mut Delivery, &Frame<'_>),
) {
    if !port.inbound.is_active() {
        return forward(delivery, frame);
    }
    let Some(described) = describe(frame, Direction::FromGuest) else {
        return forward(delivery, frame);
    };
    let mut session = Session::open(port, delivery);
    let now = session.now;
    let (Some(clamp), mut output) = session.output() else {
        return forward(session.delivery, frame);
    };
    let keep = || Kept::copy(frame);
    let verdict = clamp.from_vm(now, &described.meta.flow, &described.segment, keep, &mut output);
    match verdict {
        Verdict::Pass(edit) if edit.is_empty() => forward(session.delivery, frame),
        Verdict::Pass(edit) => {
            with_edit(frame, &described.meta, &edit, |frame| forward(session.delivery, frame));
        }
        Verdict::Absorb => {}
    }
}

/// Does what is due for `port`.
pub fn handle_timeout(port: &Port, delivery: &mut Delivery) {
    let mut session = Session::open(port, delivery);
    let now = session.now;
    if let (Some(clamp), mut output) = session.output() {
        clamp.handle_timeout(now, &mut output);
    }
}

/// Switches the clamp of `port` on, off, or to other settings.
fn configure(port: &Port, delivery: &mut Delivery, config: &Config) {
    let mut session = Session::open(port, delivery);
    let now = session.now;
    let is_on = config.capacity > 0;
    session.machine.frame_overhead = config.frame_overhead.into();
    if session.machine.clamp.is_none() && is_on {
        let seed = RandomState::new().hash_one(0);
        let mut clamp = WindowClamp::new(config.clone(), seed);
        if let Some(cells) = session.machine.kept.and_then(CounterCells::kept) {
            clamp.count_in(cells);
        }
        session.machine.clamp = Some(clamp);
    }
    if let (Some(clamp), mut output) = session.output() {
        clamp.configure(config.clone(), now);
        if !is_on {
            clamp.stop(now, &mut output);
        }
    }
    port.inbound.active.store(is_on, Ordering::Relaxed);
}

impl Shared {
    /// Lets inbound rates hold for a port that has come, if they do for the others.
    pub fn configure_inbound_of(self: &Arc<Self>, port: &Port) {
        let config = self.inbound.with(|state| state.core.config().clone());
        if config.capacity > 0 && !port.inbound.is_active() {
            let mut delivery = Delivery::new(Arc::clone(self));
            configure(port, &mut delivery, &config);
            delivery.flush();
        }
    }

    /// Divides the link as `config` says from now on.
    pub fn configure_inbound(self: &Arc<Self>, config: &Config) {
        let mut delivery = Delivery::new(Arc::clone(self));
        // Rates first: a clamp that comes on has one.
        self.configure_division(config);
        for port in self.ports().iter() {
            configure(port, &mut delivery, config);
        }
        delivery.flush();
    }
}
