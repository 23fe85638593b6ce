//! The switch's TCP offload in the simulated driver domain.
//!
//! # Theory of operation
//! The mechanism is [`floodway_core::offload::Offload`], the very code that the switch runs, one for each VM.
//! This [`Hook`] does for packets of a [`Pool`](crate::packet::Pool) what the switch does for frames in memory: it
//! describes each TCP segment to the engine (`describe`), passes it on as the verdict says, and carries out what
//! the engine asks for (`egress`). What the engine keeps is a copy of the packet, which has no
//! bytes but knows how many there are.
//!
//! Notices to the guest's module (heartbeat, managed, offline) are packets through the VM's RX ring, in order with the
//! ACKs, as frames of our own EtherType are on a real host. What the module makes of them is in
//! [`crate::tcp::Sender`].
//!
//! **Time.** The engine's deadline is the hook's. The driver domain serves it when its vCPU runs, so that a
//! driver domain that has to wait for a processor is late with retransmissions, too.
//!
//! **Cost.** [`OffloadConfig::tx_cost`] and [`OffloadConfig::rx_cost`] are charged to the driver domain for each packet that is
//! shown to the engine.
//!
//! Packets that are not TCP, and those of flows that have ended, pass as they are.

mod egress;

use std::collections::BTreeMap;

use floodway_core::offload::{self, Config, Counters, Link, Offload, Verdict};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use super::describe;
use crate::flow::{FlowId, Side};
use crate::machine::{Hook, HookCtx};
use crate::packet::{Packet, PacketId};
use crate::{Duration, Instant};
use egress::Egress;

/// How the offload is set up for every VM of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadConfig {
    /// What an operator of the switch chooses for a port.
    pub port: Config,
    /// Processor time for a packet from a VM.
    pub tx_cost: Duration,
    /// Processor time for a packet to a VM.
    pub rx_cost: Duration,
}

impl OffloadConfig {
    /// With what the vFlood paper measured at 3 GHz (table 2): 65 cycles and a look-up of 78 per packet sent; 370,
    /// the look-up and an update of the VM of 59 per packet received.
    #[must_use]
    pub const fn new(port: Config) -> Self {
        Self { port, tx_cost: Duration::from_nanos(48), rx_cost: Duration::from_nanos(169) }
    }
}

/// The names of flows in their guest's direction, for packets that the engine makes.
type Names = BTreeMap<FiveTuple, (FlowId, Side)>;

/// Names that may be kept of flows that have ended, beyond those of flows that exist.
const OLD_NAMES: usize = 1024;

/// A VM's engine and what belongs to it.
#[derive(Debug)]
struct Port {
    engine: Offload<Packet>,
    names: Names,
}

/// The offload of all VMs of a machine.
#[derive(Debug)]
pub struct SwitchOffload {
    config: OffloadConfig,
    seed: u64,
    ports: Vec<Port>,
}

impl SwitchOffload {
    /// An offload without flows. `seed` is that of the run.
    #[must_use]
    pub const fn new(config: OffloadConfig, seed: u64) -> Self {
        Self { config, seed, ports: Vec::new() }
    }

    /// The engine of a VM, once a packet of the VM has come by.
    #[must_use]
    pub fn engine(&self, vm: u32) -> Option<&Offload<Packet>> {
        self.ports.get(vm as usize).map(|port| &port.engine)
    }

    /// What the engine of a VM has done.
    #[must_use]
    pub fn counters(&self, vm: u32) -> Counters {
        self.engine(vm).map_or_else(Counters::default, Offload::counters)
    }

    fn port(&mut self, vm: u32) -> &mut Port {
        while self.ports.len() <= vm as usize {
            let engine = Offload::new(self.config.port.clone(), self.seed);
            self.ports.push(Port { engine, names: Names::new() });
        }
        &mut self.ports[vm as usize]
    }

    /// Shows a packet to the engine: answers with what it says, or `None` if it is not for the engine.
    fn show(
        &mut self,
        vm: u32,
        id: PacketId,
        outwards: bool,
        ctx: &mut HookCtx<'_>,
    ) -> Option<Verdict> {
        let packet = *ctx.packets().get(id);
        let segment = describe::segment(&packet)?;
        let tuple = ctx.flows().get(packet.flow)?.tuple(packet.from);
        let (now, link) = (ctx.now(), Link::default());
        let flows = ctx.flows().len();
        let port = self.port(vm);
        if segment.has(Flags::SYN) {
            port.remember(&tuple, &packet, outwards, flows, ctx);
        }
        let Port { engine, names } = port;
        let keep = || Some(packet);
        let mut egress = Egress { vm, names, ctx };
        let shown = offload::Packet::new(&tuple, &link, &segment);
        Some(if outwards {
            engine.from_guest(now, &shown, keep, &mut egress)
        } else {
            engine.from_network(now, &shown, keep, &mut egress)
        })
    }
}

impl Port {
    /// Learns to whom packets of a connection belong.
    fn remember(
        &mut self,
        tuple: &FiveTuple,
        packet: &Packet,
        outwards: bool,
        flows: usize,
        ctx: &HookCtx<'_>,
    ) {
        if self.names.len() > flows + OLD_NAMES {
            self.names.retain(|_, (flow, _)| ctx.flows().get(*flow).is_some());
        }
        let (tuple, side) =
            if outwards { (*tuple, packet.from) } else { (tuple.reversed(), packet.from.other()) };
        self.names.insert(tuple, (packet.flow, side));
    }
}

/// Applies a verdict: says whether the packet goes on.
fn goes_on(verdict: Option<Verdict>, id: PacketId, ctx: &mut HookCtx<'_>) -> bool {
    match verdict {
        None => true,
        Some(Verdict::Pass(edit)) => {
            ctx.packets().edit(id, |packet| describe::edit(packet, &edit));
            true
        }
        Some(Verdict::Absorb | Verdict::Drop(_)) => {
            ctx.packets().remove(id);
            false
        }
    }
}

impl Hook for SwitchOffload {
    fn outbound(&mut self, vm: u32, packet: PacketId, ctx: &mut HookCtx<'_>) {
        ctx.charge(self.config.tx_cost);
        let verdict = self.show(vm, packet, true, ctx);
        if goes_on(verdict, packet, ctx) {
            ctx.to_network(packet);
        }
    }

    fn inbound(&mut self, vm: u32, packet: PacketId, ctx: &mut HookCtx<'_>) {
        ctx.charge(self.config.rx_cost);
        let verdict = self.show(vm, packet, false, ctx);
        if goes_on(verdict, packet, ctx) {
            ctx.to_vm(vm, packet);
        }
    }

    fn on_delivered(&mut self, vm: u32, delivered: bool) {
        self.port(vm).engine.on_delivered(delivered);
    }

    fn flush(&mut self, ctx: &mut HookCtx<'_>) {
        for (vm, Port { engine, names }) in (0..).zip(&mut self.ports) {
            engine.flush(ctx.now(), &mut Egress { vm, names, ctx });
        }
    }

    fn next_timeout(&self) -> Instant {
        let all = self.ports.iter().map(|port| port.engine.next_timeout());
        all.min().unwrap_or(Instant::NEVER)
    }

    fn is_due(&mut self, now: Instant) -> bool {
        self.ports
            .iter_mut()
            .any(|port| port.engine.next_timeout() <= now && port.engine.is_due(now))
    }

    fn on_timeout(&mut self, ctx: &mut HookCtx<'_>) {
        for (vm, Port { engine, names }) in (0..).zip(&mut self.ports) {
            if engine.next_timeout() <= ctx.now() {
                engine.handle_timeout(ctx.now(), &mut Egress { vm, names, ctx });
            }
        }
    }
}
