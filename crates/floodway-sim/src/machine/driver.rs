//! The driver domain: what it does, in which order, and what that costs.
//!
//! # Theory of operation
//! It takes turns: one packet from the card, one from each VM's ring, and so on. Each has its cost, which is
//! paid before the packet moves. A deadline of the hook goes first. After [`DriverConfig::batch`] packets, or when
//! nothing is left, the hook is told that the batch is over.
//!
//! What comes over the link is in the ring of the [`Card`], which says when the driver domain hears of it. What waits for a VM without
//! free buffers is bounded: [`DriverConfig::backlog`] packets per VM.

use super::card::{Card, Interrupts};
use super::hook::{Action, Hook, HookCtx};
use super::local;
use super::vm::Vm;
use crate::cpu::{VcpuId, VcpuSpec};
use crate::engine::Timer;
use crate::env::{Env, Event};
use crate::flow::{FlowId, Side};
use crate::packet::{Body, Ecn, Notice, Packet, PacketId};
use crate::trace::Point;
use crate::{Duration, Instant};

/// Settings of a driver domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverConfig {
    /// Its vCPU.
    pub vcpu: VcpuSpec,
    /// Processor time for a packet from a VM to the network or to another VM.
    pub tx_cost: Duration,
    /// Processor time for a packet from the network to a VM.
    pub rx_cost: Duration,
    /// Descriptors of the card's RX ring.
    pub rx_slots: u32,
    /// How the card gathers interrupts.
    pub interrupts: Interrupts,
    /// Packets that may wait for a VM's buffers.
    pub backlog: u32,
    /// Packets after which a batch ends.
    pub batch: u32,
}

impl DriverConfig {
    /// 4 µs per packet: about half a core at 1 Gbit/s. An assumption, not a measurement. Each packet interrupts.
    #[must_use]
    pub const fn new(vcpu: VcpuSpec) -> Self {
        Self {
            vcpu,
            tx_cost: Duration::from_micros(4),
            rx_cost: Duration::from_micros(4),
            rx_slots: 512,
            interrupts: Interrupts::EACH,
            backlog: 256,
            batch: 64,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    FromNetwork,
    FromVm(u32),
    Timeout,
}

pub(super) struct Driver {
    machine: u32,
    host: u32,
    vcpu: VcpuId,
    config: DriverConfig,
    hook: Box<dyn Hook>,
    card: Card,
    work: Option<Work>,
    /// Whose turn it is: the card, then the VMs.
    turn: usize,
    sources: usize,
    in_batch: u32,
    /// The hook's deadline has come.
    due: bool,
    timer: Timer,
    actions: Vec<Action>,
    /// Processor time that the hook has charged and that is not paid.
    debt: Duration,
}

impl Driver {
    pub(super) fn new(
        machine: u32,
        host: u32,
        vcpu: VcpuId,
        config: DriverConfig,
        hook: Box<dyn Hook>,
    ) -> Self {
        Self {
            machine,
            host,
            vcpu,
            config,
            hook,
            card: Card::new(machine, config.rx_slots, config.interrupts),
            work: None,
            turn: 0,
            sources: 1,
            in_batch: 0,
            due: false,
            timer: Timer::NONE,
            actions: Vec::new(),
            debt: Duration::ZERO,
        }
    }

    pub(super) fn add_vm(&mut self) {
        self.sources += 1;
    }

    pub(super) const fn vcpu(&self) -> VcpuId {
        self.vcpu
    }

    pub(super) fn hook(&self) -> &dyn Hook {
        &*self.hook
    }

    /// A packet has come over the link; says whether the card interrupts now.
    pub(super) fn on_packet(&mut self, packet: PacketId, env: &mut Env) -> bool {
        env.note(Point::AtCard, packet);
        self.card.on_packet(packet, env)
    }

    /// The card interrupts for what it has gathered.
    pub(super) fn on_card_timer(&mut self, env: &mut Env) {
        self.card.interrupt(env);
    }

    /// The event of the hook's deadline; says whether the deadline has come.
    pub(super) fn on_timer(&mut self, env: &mut Env) -> bool {
        self.due = self.hook.is_due(env.clock.now());
        if !self.due {
            self.arm(env);
        }
        self.due
    }

    /// Chooses the next piece of work; says what it costs.
    pub(super) fn next(&mut self, vms: &[Vm]) -> Option<Duration> {
        let debt = std::mem::take(&mut self.debt);
        let Some(work) = self.choose(vms) else {
            self.debt = debt;
            return None;
        };
        self.work = Some(work);
        Some(debt + self.cost(work))
    }

    fn choose(&mut self, vms: &[Vm]) -> Option<Work> {
        if std::mem::take(&mut self.due) {
            return Some(Work::Timeout);
        }
        for n in 0..self.sources {
            let source = (self.turn + n) % self.sources;
            let work = match source.checked_sub(1) {
                None => self.card.poll().then_some(Work::FromNetwork),
                Some(vm) => (vms[vm].has_requests()).then_some(Work::FromVm(vm as u32)),
            };
            if work.is_some() {
                self.turn = source + 1;
                return work;
            }
        }
        None
    }

    const fn cost(&self, work: Work) -> Duration {
        match work {
            Work::FromNetwork => self.config.rx_cost,
            Work::FromVm(_) => self.config.tx_cost,
            Work::Timeout => Duration::ZERO,
        }
    }

    /// The work that was chosen is paid for: does it.
    pub(super) fn finish(&mut self, vms: &mut [Vm], env: &mut Env) {
        match self.work.take() {
            Some(Work::FromNetwork) => self.inbound(vms, env),
            Some(Work::FromVm(vm)) => self.outbound(vm, vms, env),
            Some(Work::Timeout) => {
                self.with_hook(vms, env, Hook::on_timeout);
            }
            None => return,
        }
        self.in_batch += 1;
        if self.in_batch >= self.config.batch {
            self.end_batch(vms, env);
        }
    }

    pub(super) fn end_batch(&mut self, vms: &mut [Vm], env: &mut Env) {
        if std::mem::take(&mut self.in_batch) > 0 {
            self.with_hook(vms, env, Hook::flush);
        }
    }

    fn inbound(&mut self, vms: &mut [Vm], env: &mut Env) {
        let Some(packet) = self.card.take(&mut env.packets) else { return };
        env.note(Point::TakenFromCard, packet);
        match local(env.packets.get(packet).dst, self.machine, env) {
            Some(vm) => {
                let delivered = self.with_hook(vms, env, |hook, ctx| hook.inbound(vm, packet, ctx));
                delivered.into_iter().for_each(|it| self.hook.on_delivered(vm, it));
            }
            None => {
                env.packets.remove(packet);
            }
        }
    }

    fn outbound(&mut self, vm: u32, vms: &mut [Vm], env: &mut Env) {
        let Some(packet) = vms[vm as usize].take_request(&mut env.packets) else { return };
        env.note(Point::TakenFromVm, packet);
        match local(env.packets.get(packet).dst, self.machine, env) {
            Some(to) => {
                vms[to as usize].deliver(packet, self.config.backlog, &mut env.packets);
            }
            None => {
                self.with_hook(vms, env, |hook, ctx| hook.outbound(vm, packet, ctx));
            }
        }
    }

    /// Does what the hook wants done. Returns whether the last packet to a VM found room, if there was one.
    fn with_hook(
        &mut self,
        vms: &mut [Vm],
        env: &mut Env,
        call: impl FnOnce(&mut dyn Hook, &mut HookCtx<'_>),
    ) -> Option<bool> {
        let mut ctx = HookCtx {
            now: env.clock.now(),
            packets: &mut env.packets,
            flows: &env.flows,
            actions: &mut self.actions,
            cost: &mut self.debt,
        };
        call(&mut *self.hook, &mut ctx);
        let (mut actions, mut delivered) = (std::mem::take(&mut self.actions), None);
        for action in actions.drain(..) {
            match action {
                Action::ToNetwork(packet) => {
                    env.note(Point::ToNetwork, packet);
                    env.net.send(self.host, packet, &mut env.packets, &mut env.clock);
                    self.card.on_sent(env);
                }
                Action::ToVm(vm, packet) => {
                    env.note(Point::ToVm, packet);
                    let vm = &mut vms[vm as usize];
                    delivered = Some(vm.deliver(packet, self.config.backlog, &mut env.packets));
                }
                Action::Notify { vm, flow, side, notice } => {
                    self.notify(&mut vms[vm as usize], flow, side, notice, env);
                }
            }
        }
        self.actions = actions;
        self.arm(env);
        delivered
    }

    /// A notice to the module in a VM about what `side` of a flow is.
    fn notify(&self, vm: &mut Vm, flow: FlowId, side: Side, notice: Notice, env: &mut Env) {
        let packet = Packet {
            flow,
            from: side.other(),
            src: vm.address(),
            dst: vm.address(),
            hash: 0,
            dscp: 0,
            ecn: Ecn::NotEct,
            charge: 0,
            body: Body::Notice(notice),
        };
        let packet = env.packets.insert(packet);
        vm.deliver(packet, self.config.backlog, &mut env.packets);
    }

    fn arm(&mut self, env: &mut Env) {
        let deadline = self.hook.next_timeout();
        if deadline == Instant::NEVER {
            env.clock.cancel(self.timer);
        } else if !env.clock.reschedule(self.timer, deadline) {
            self.timer = env.clock.at(deadline, Event::Hook { machine: self.machine });
        }
    }
}
