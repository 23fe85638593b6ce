//! Where a mechanism of the switch takes hold of packets: between the rings of the VMs and the network card,
//! in both directions.
//!
//! # Theory of operation
//! The driver domain calls the hook when it handles a packet, that is when its vCPU runs and has paid for the
//! packet. The hook owns the packet then: it passes it on, keeps it, or drops it, and may send others, which it
//! makes in the pool. What it asks for is done after the call, in order. What it costs beyond the driver
//! domain's own work is charged to the driver domain's processor before its next packet.
//!
//! [`Hook::next_timeout`] is asked after every call; when that time has come and the hook says that something is due, the
//! driver domain is woken up, and the hook is called when it runs. A timer whose deadline has moved wakes nobody: a kernel
//! moves its timers, and to be woken up makes the driver domain preempt a VM. [`Hook::flush`] ends a batch: nothing is left to do, or enough was done.

use std::any::Any;

use crate::flow::{FlowId, Flows, Side};
use crate::packet::{Notice, PacketId, Pool};
use crate::{Duration, Instant};

/// A mechanism in the driver domain.
pub trait Hook: Any + Send {
    /// A packet from a VM to the network.
    fn outbound(&mut self, vm: u32, packet: PacketId, ctx: &mut HookCtx<'_>);

    /// A packet from the network to a VM.
    fn inbound(&mut self, vm: u32, packet: PacketId, ctx: &mut HookCtx<'_>);

    /// The last packet that [`inbound`](Self::inbound) has delivered to the VM is in its ring (`delivered`), or was dropped.
    fn on_delivered(&mut self, vm: u32, delivered: bool) {
        let _ = (vm, delivered);
    }

    /// Ends a batch of packets.
    fn flush(&mut self, ctx: &mut HookCtx<'_>) {
        let _ = ctx;
    }

    /// When [`on_timeout`](Self::on_timeout) is due; [`Instant::NEVER`] if nothing waits.
    fn next_timeout(&self) -> Instant {
        Instant::NEVER
    }

    /// Whether [`on_timeout`](Self::on_timeout) has anything to do: only then is the driver domain woken up.
    fn is_due(&mut self, now: Instant) -> bool {
        self.next_timeout() <= now
    }

    /// Does what is due.
    fn on_timeout(&mut self, ctx: &mut HookCtx<'_>) {
        let _ = ctx;
    }
}

/// What a hook wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    ToNetwork(PacketId),
    ToVm(u32, PacketId),
    Notify { vm: u32, flow: FlowId, side: Side, notice: Notice },
}

/// What a hook can do.
pub struct HookCtx<'a> {
    pub(super) now: Instant,
    pub(super) packets: &'a mut Pool,
    pub(super) flows: &'a Flows,
    pub(super) actions: &'a mut Vec<Action>,
    pub(super) cost: &'a mut Duration,
}

impl HookCtx<'_> {
    /// The present.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// All packets: to look at, change, copy and drop.
    pub const fn packets(&mut self) -> &mut Pool {
        self.packets
    }

    /// All flows, for their 5-tuples. A switch sees packets only: what the connections hold is not for it.
    #[must_use]
    pub const fn flows(&self) -> &Flows {
        self.flows
    }

    /// Sends a packet to the network.
    pub fn to_network(&mut self, packet: PacketId) {
        self.actions.push(Action::ToNetwork(packet));
    }

    /// Delivers a packet to a VM.
    pub fn to_vm(&mut self, vm: u32, packet: PacketId) {
        self.actions.push(Action::ToVm(vm, packet));
    }

    /// A notice to the module of the guest, which is `side` of the flow. Like all notices it waits in the RX ring
    /// until the VM runs. A heartbeat is of no flow in particular.
    pub fn notify(&mut self, vm: u32, flow: FlowId, side: Side, notice: Notice) {
        self.actions.push(Action::Notify { vm, flow, side, notice });
    }

    /// Charges processor time to the driver domain.
    pub fn charge(&mut self, time: Duration) {
        *self.cost += time;
    }
}

/// Passes everything on.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassThrough;

impl Hook for PassThrough {
    fn outbound(&mut self, _: u32, packet: PacketId, ctx: &mut HookCtx<'_>) {
        ctx.to_network(packet);
    }

    fn inbound(&mut self, vm: u32, packet: PacketId, ctx: &mut HookCtx<'_>) {
        ctx.to_vm(vm, packet);
    }
}
