//! The switch's division of the link into a host, in the simulated driver domain.
//!
//! # Theory of operation
//! The mechanism is [`floodway_core::inbound`], the very code that the switch runs: a [`WindowClamp`] for each VM, and one [`BandwidthAllocator`] that
//! is asked when the number of a VM's active connections changes. What is kept of a held ACK is a copy of its packet. The deadline
//! of the clamps is the hook's, so that a driver domain that waits for a processor is late with grants, too.

use floodway_core::inbound::{BandwidthAllocator, Config, Counters, Sink, Verdict, WindowClamp};
use floodway_core::tcp::Edit;

use super::describe;
use crate::machine::{Hook, HookCtx};
use crate::packet::{Packet, PacketId};
use crate::{Duration, Instant};

/// Header of an Ethernet frame, which the simulator's lengths leave out.
const ETHERNET_HEADER: u64 = 14;

/// The clamps of a machine's VMs, and the division among them.
#[derive(Debug)]
pub struct SwitchInbound {
    cost: Duration,
    ports: Vec<WindowClamp<Packet>>,
    division: BandwidthAllocator,
}

impl SwitchInbound {
    /// A division of the link among `vms` VMs of equal weight. A packet costs the driver domain `cost`. `seed` is that of the
    /// run.
    #[must_use]
    pub fn new(config: Config, vms: usize, cost: Duration, seed: u64) -> Self {
        let mut inbound = Self {
            cost,
            ports: (0..vms).map(|_| WindowClamp::new(config.clone(), seed)).collect(),
            division: BandwidthAllocator::new(config, vec![1; vms], Instant::ZERO),
        };
        inbound.publish(Instant::ZERO);
        inbound
    }

    /// The rate of each VM, in bytes per second.
    #[must_use]
    pub fn rates(&self) -> &[u64] {
        self.division.rates()
    }

    /// Bytes of the link that have come for a VM.
    #[must_use]
    pub fn received(&self, vm: usize) -> u64 {
        self.ports.get(vm).map_or(0, WindowClamp::received)
    }

    /// What the clamp of a VM has done.
    #[must_use]
    pub fn counters(&self, vm: usize) -> Counters {
        self.ports.get(vm).map_or_else(Counters::default, WindowClamp::counters)
    }

    fn publish(&mut self, now: Instant) {
        for (port, &rate) in self.ports.iter_mut().zip(self.division.rates()) {
            port.set_rate(rate, now);
        }
    }

    /// The number of a VM's active connections may have changed.
    fn settle(&mut self, vm: usize, now: Instant) {
        let active = self.ports.get(vm).map_or(0, WindowClamp::active);
        if self.division.set_active(vm, active) {
            self.publish(now);
        }
    }

    fn lend(&mut self, now: Instant) {
        if self.division.next_tick() > now {
            return;
        }
        let limits: Vec<_> = self.ports.iter_mut().map(|port| port.limit(now)).collect();
        self.division.tick(|vm| limits.get(vm).copied().flatten(), now);
        self.publish(now);
    }
}

impl Hook for SwitchInbound {
    fn outbound(&mut self, vm: u32, id: PacketId, ctx: &mut HookCtx<'_>) {
        ctx.charge(self.cost);
        let packet = *ctx.packets().get(id);
        let tuple = ctx.flows().get(packet.flow).map(|flow| flow.tuple(packet.from));
        let (now, vm) = (ctx.now(), vm as usize);
        let (Some(segment), Some(tuple), Some(port)) =
            (describe::segment(&packet), tuple, self.ports.get_mut(vm))
        else {
            return ctx.to_network(id);
        };
        let keep = || Some(packet);
        match port.from_vm(now, &tuple, &segment, keep, &mut ToNetwork { ctx }) {
            Verdict::Pass(edit) => {
                ctx.packets().edit(id, |packet| describe::edit(packet, &edit));
                ctx.to_network(id);
            }
            Verdict::Absorb => {
                ctx.packets().remove(id);
            }
        }
        self.settle(vm, now);
    }

    fn inbound(&mut self, vm: u32, id: PacketId, ctx: &mut HookCtx<'_>) {
        ctx.charge(self.cost);
        let packet = *ctx.packets().get(id);
        let tuple = ctx.flows().get(packet.flow).map(|flow| flow.tuple(packet.from));
        let overhead = ETHERNET_HEADER + u64::from(self.division.config().frame_overhead);
        let wire = u64::from(packet.len()) + u64::from(packet.packets()) * overhead;
        let (now, index) = (ctx.now(), vm as usize);
        if let (Some(segment), Some(tuple), Some(port)) =
            (describe::segment(&packet), tuple, self.ports.get_mut(index))
        {
            port.tcp_from_network(now, &tuple, &segment, wire);
            self.settle(index, now);
        }
        ctx.to_vm(vm, id);
    }

    fn next_timeout(&self) -> Instant {
        let ports = self.ports.iter().map(WindowClamp::next_timeout);
        ports.chain([self.division.next_tick()]).min().unwrap_or(Instant::NEVER)
    }

    fn on_timeout(&mut self, ctx: &mut HookCtx<'_>) {
        let now = ctx.now();
        for vm in 0..self.ports.len() {
            let Some(port) = self.ports.get_mut(vm) else { continue };
            if port.next_timeout() <= now {
                port.handle_timeout(now, &mut ToNetwork { ctx });
                self.settle(vm, now);
            }
        }
        self.lend(now);
    }
}

/// Sends what a clamp has kept.
struct ToNetwork<'a, 'c> {
    ctx: &'a mut HookCtx<'c>,
}

impl Sink<Packet> for ToNetwork<'_, '_> {
    fn send(&mut self, frame: &Packet, edit: &Edit) {
        if self.ctx.flows().get(frame.flow).is_none() {
            return;
        }
        let mut packet = *frame;
        describe::edit(&mut packet, edit);
        let id = self.ctx.packets().insert(packet);
        self.ctx.to_network(id);
    }
}
