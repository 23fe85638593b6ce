//! What the engine asks for, carried out.

use floodway_core::offload::{
    Edit, FlowNotice, HEARTBEAT_LIFETIME_MS, Link, Sink, SynthesizedSegment, Transmission,
};
use floodway_wire::FiveTuple;

use super::super::describe;
use super::Names;
use crate::Duration;
use crate::flow::{FlowId, Side};
use crate::machine::HookCtx;
use crate::packet::{Body, Ecn, Notice, Packet};

/// Sends what the engine of a VM says.
pub(super) struct Egress<'a, 'c> {
    pub(super) vm: u32,
    pub(super) names: &'a Names,
    pub(super) ctx: &'a mut HookCtx<'c>,
}

impl Egress<'_, '_> {
    /// The flow of a tuple in the guest's direction, and the guest's side; `None` if it has ended.
    fn find(&self, tuple: &FiveTuple) -> Option<(FlowId, Side)> {
        let &(flow, side) = self.names.get(tuple)?;
        self.ctx.flows().get(flow).map(|_| (flow, side))
    }

    fn make(&self, segment: &SynthesizedSegment, flow: FlowId, from: Side) -> Option<Packet> {
        let body = Body::Tcp(describe::synthesized(segment));
        Some(Packet::of(self.ctx.flows().get(flow)?, from, body, Ecn::NotEct))
    }

    fn deliver(&mut self, packet: Packet) {
        let id = self.ctx.packets().insert(packet);
        self.ctx.to_vm(self.vm, id);
    }

    fn send(&mut self, packet: Packet) {
        let id = self.ctx.packets().insert(packet);
        self.ctx.to_network(id);
    }
}

impl Sink<Packet> for Egress<'_, '_> {
    fn release(&mut self, kept: &Packet, release: &Transmission) {
        self.send(describe::released(kept, release));
    }

    fn to_network(&mut self, segment: &SynthesizedSegment) {
        let found = self.find(&segment.flow);
        if let Some(packet) = found.and_then(|(flow, guest)| self.make(segment, flow, guest)) {
            self.send(packet);
        }
    }

    fn to_guest(&mut self, segment: &SynthesizedSegment) {
        let found = self.find(&segment.flow.reversed());
        if let Some(packet) =
            found.and_then(|(flow, guest)| self.make(segment, flow, guest.other()))
        {
            self.deliver(packet);
        }
    }

    fn redeliver(&mut self, kept: &Packet, edit: &Edit) {
        let mut packet = *kept;
        describe::edit(&mut packet, edit);
        self.deliver(packet);
    }

    fn heartbeat(&mut self, _: &Link, lifetime_ms: u16) {
        let notice = Notice::Heartbeat { lifetime: milliseconds(lifetime_ms) };
        self.ctx.notify(self.vm, FlowId::default(), Side::Client, notice);
    }

    fn notify_flow(&mut self, tuple: &FiveTuple, _: &Link, naming: FlowNotice) {
        let Some((flow, side)) = self.find(tuple) else { return };
        let notice = match naming {
            FlowNotice::Managed => {
                Notice::Managed { lifetime: milliseconds(HEARTBEAT_LIFETIME_MS) }
            }
            FlowNotice::Offline => Notice::Offline,
        };
        self.ctx.notify(self.vm, flow, side, notice);
    }
}

const fn milliseconds(number: u16) -> Duration {
    Duration::from_millis(number as u64)
}
