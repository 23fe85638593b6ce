//! A VM: its kernel's queues, its applications' commands, its load.
//!
//! See the module above for the order of its work. Each piece of work is chosen when the one before is
//! done, and takes effect when its processor time is over.

use std::collections::VecDeque;

use super::ring::{RxRing, TxRing};
use crate::cpu::{Load, LoadConfig, LoadStep, VcpuId, VcpuSpec};
use crate::env::{Command, Env, VmTask};
use crate::flow::{FlowId, Side};
use crate::packet::{Address, Fifo, PacketId, Pool};
use crate::trace::Point;
use crate::{Duration, Instant};

/// Settings of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Its vCPU.
    pub vcpu: VcpuSpec,
    /// Slots of each ring.
    pub ring_slots: u32,
    /// Packets that its kernel queues in front of the TX ring.
    pub queue: u32,
    /// Processor time for sending a packet; a GSO packet counts once.
    pub tx_cost: Duration,
    /// Processor time for receiving a packet.
    pub rx_cost: Duration,
    /// Processor time for 1000 bytes of either, on top.
    pub copy_cost: Duration,
    /// Processor time for a command of an application, and for a deadline.
    pub call_cost: Duration,
    /// From an event of the driver domain until the VM's kernel sees it, other than waiting for its vCPU.
    pub interrupt_delay: Duration,
    /// An event that comes while it runs makes it give its pCPU to whoever waits.
    pub interrupt_yields: bool,
    /// Period of its kernel's timer tick, if a tick also makes it give its pCPU away; zero if ticks cost nothing.
    pub tick: Duration,
    /// When the first tick is.
    pub tick_phase: Duration,
    /// Its load, from the start.
    pub load: Option<LoadConfig>,
}

impl VmConfig {
    /// 240 slots, a queue of 1000, 3 µs per packet whatever its size and 2 µs per call, events at once, no load.
    #[must_use]
    pub const fn new(vcpu: VcpuSpec) -> Self {
        Self {
            vcpu,
            ring_slots: 240,
            queue: 1000,
            tx_cost: Duration::from_micros(3),
            rx_cost: Duration::from_micros(3),
            copy_cost: Duration::ZERO,
            call_cost: Duration::from_micros(2),
            interrupt_delay: Duration::ZERO,
            interrupt_yields: false,
            tick: Duration::ZERO,
            tick_phase: Duration::ZERO,
            load: None,
        }
    }
}

/// What a VM's rings and queues have seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmStats {
    /// Packets sent into the TX ring.
    pub sent: u64,
    /// Packets taken from the RX ring.
    pub received: u64,
    /// Packets for which the kernel's queue had no room.
    pub queue_drops: u64,
    /// Packets for which the driver domain had neither buffers nor backlog.
    pub ring_drops: u64,
}

/// What a VM wants of its vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VmWork {
    Run(Duration, Instant),
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Transmit,
    Receive,
    Completion,
    Urgent,
    Call,
    Compute,
    Load,
}

#[derive(Debug)]
pub(super) struct Vm {
    vcpu: VcpuId,
    address: Address,
    config: VmConfig,
    queue: Fifo,
    tx: TxRing,
    rx: RxRing,
    /// Packets that wait in the driver domain for buffers.
    backlog: Fifo,
    /// Connections that go on now that packets have left.
    completions: VecDeque<(FlowId, Side)>,
    /// Deadlines.
    urgent: VecDeque<VmTask>,
    /// Applications' system calls.
    calls: VecDeque<Command>,
    /// Of the call at the front, if it was interrupted.
    call_left: Option<Duration>,
    /// Applications' computations.
    computations: VecDeque<Command>,
    /// Of the computation at the front, if it was interrupted.
    computation_left: Option<Duration>,
    load: Option<Load>,
    load_armed: bool,
    doing: Doing,
    /// Event channels: towards the driver domain, towards the VM.
    call_driver: bool,
    call: bool,
    /// The driver domain's event is on its way.
    interrupt_pending: bool,
    /// Packets in the RX ring of which the kernel knows.
    announced: u32,
    /// The kernel knows that packets have left.
    completes: bool,
    /// It is to give its pCPU away before it goes on.
    gives_way: bool,
    /// For how long it had run at its last tick.
    ran_at_tick: Duration,
    stats: VmStats,
}

impl Vm {
    pub(super) fn new(vcpu: VcpuId, address: Address, config: &VmConfig) -> Self {
        Self {
            vcpu,
            address,
            config: *config,
            queue: Fifo::default(),
            tx: TxRing::new(config.ring_slots),
            rx: RxRing::new(config.ring_slots),
            backlog: Fifo::default(),
            completions: VecDeque::new(),
            urgent: VecDeque::new(),
            calls: VecDeque::new(),
            call_left: None,
            computations: VecDeque::new(),
            computation_left: None,
            load: config.load.map(|load| Load::new(load, Instant::ZERO)),
            load_armed: false,
            doing: Doing::Nothing,
            call_driver: false,
            call: false,
            interrupt_pending: false,
            announced: 0,
            completes: false,
            gives_way: false,
            ran_at_tick: Duration::ZERO,
            stats: VmStats::default(),
        }
    }

    pub(super) const fn vcpu(&self) -> VcpuId {
        self.vcpu
    }

    pub(super) const fn address(&self) -> Address {
        self.address
    }

    pub(super) const fn stats(&self) -> &VmStats {
        &self.stats
    }

    pub(super) const fn load(&self) -> Option<&Load> {
        self.load.as_ref()
    }

    pub(super) fn set_load(&mut self, load: Load) {
        self.load = Some(load);
    }

    // The driver domain's side.

    pub(super) const fn has_requests(&self) -> bool {
        self.tx.requests() > 0
    }

    pub(super) fn take_request(&mut self, pool: &mut Pool) -> Option<PacketId> {
        let (packet, call) = self.tx.take(pool)?;
        self.call |= call;
        pool.tx_completion(packet);
        Some(packet)
    }

    /// Puts a packet into the RX ring or behind it. Returns `false` if there was no room.
    pub(super) fn deliver(&mut self, packet: PacketId, backlog: u32, pool: &mut Pool) -> bool {
        debug_assert_eq!(pool.get(packet).dst, self.address);
        if self.backlog.is_empty() && self.rx.has_room(packet, pool) {
            self.call |= self.rx.push(packet, pool) || !self.config.interrupt_delay.is_zero();
        } else if self.backlog.packets() < backlog {
            self.backlog.push(packet, pool);
        } else {
            self.stats.ring_drops += 1;
            pool.remove(packet);
            return false;
        }
        true
    }

    /// An event for the VM, and how long it takes; `None` if there is none or one is on its way already.
    pub(super) fn take_call(&mut self) -> Option<Duration> {
        let call = std::mem::take(&mut self.call) && !self.interrupt_pending;
        let delay = self.config.interrupt_delay;
        self.interrupt_pending |= call && !delay.is_zero();
        call.then_some(delay)
    }

    pub(super) fn take_call_to_driver(&mut self) -> bool {
        std::mem::take(&mut self.call_driver)
    }

    // The VM's side.

    pub(super) fn on_vm_task(&mut self, task: VmTask) {
        match task {
            VmTask::Command(command @ Command::Compute { .. }) => {
                self.computations.push_back(command);
            }
            VmTask::Command(command) => self.calls.push_back(command),
            VmTask::Deadline(..) => self.urgent.push_back(task),
            VmTask::Completion(flow, side) => {
                self.completions.push_back((flow, side));
                self.call = true;
            }
        }
    }

    /// What it does now is an application's and gives way to the kernel.
    pub(super) const fn is_interruptible(&self) -> bool {
        matches!(self.doing, Doing::Call | Doing::Compute | Doing::Load)
    }

    pub(super) fn interrupted(&mut self, left: Duration) {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Call => self.call_left = Some(left),
            Doing::Compute => self.computation_left = Some(left),
            Doing::Load => {
                if let Some(load) = &mut self.load {
                    load.stopped(left);
                }
            }
            _ => {}
        }
    }

    /// The driver domain's event has come, while the VM runs or not.
    pub(super) fn on_interrupt(&mut self, running: bool) {
        self.interrupt_pending = false;
        self.announced = self.rx.filled();
        self.completes = !self.completions.is_empty();
        self.gives_way |= running && self.config.interrupt_yields;
    }

    /// Its kernel's timer ticks: it gives its pCPU away now, or once it has it again. The timer is not set again before the kernel has
    /// handled the tick, so none comes to a VM that has not run since the last one: `ran` is for how long it has run up to now.
    pub(super) fn on_tick(&mut self, ran: Duration) {
        self.gives_way |= ran > self.ran_at_tick;
        self.ran_at_tick = ran;
    }

    /// The timer tick's phase and period.
    pub(super) const fn tick(&self) -> [Duration; 2] {
        [self.config.tick_phase, self.config.tick]
    }

    pub(super) const fn take_gives_way(&mut self) -> bool {
        std::mem::replace(&mut self.gives_way, false)
    }

    pub(super) fn load_woken(&mut self) {
        self.load_armed = false;
    }

    /// When to wake the VM up for its load, if that is not arranged yet.
    pub(super) fn arm_load(&mut self, now: Instant) -> Option<Instant> {
        if self.load_armed {
            return None;
        }
        match self.load.as_mut()?.next(now) {
            LoadStep::Run(..) => Some(now),
            LoadStep::Sleep(at) => Some(at),
        }
        .inspect(|_| self.load_armed = true)
    }

    /// Chooses the next piece of work.
    pub(super) fn next(&mut self, now: Instant, pool: &Pool) -> VmWork {
        let config = self.config;
        let at_once = config.interrupt_delay.is_zero();
        let sendable = self.queue.front().filter(|packet| self.tx.has_room(*packet, pool));
        let copy = |packet: PacketId| config.copy_cost * pool.wire_len(packet) / 1000;
        let (doing, cost) = if let Some(packet) = sendable {
            (Doing::Transmit, config.tx_cost + copy(packet))
        } else if let Some(packet) = self.rx.first().filter(|_| at_once || self.announced > 0) {
            (Doing::Receive, config.rx_cost + copy(packet))
        } else if (at_once || self.completes) && !self.completions.is_empty() {
            (Doing::Completion, config.rx_cost)
        } else if !self.urgent.is_empty() {
            (Doing::Urgent, config.call_cost)
        } else if !self.calls.is_empty() {
            (Doing::Call, self.call_left.take().unwrap_or(config.call_cost))
        } else if let Some(Command::Compute { time, .. }) = self.computations.front() {
            (Doing::Compute, self.computation_left.take().unwrap_or(*time))
        } else if let Some(LoadStep::Run(time, until)) = self.load.as_mut().map(|l| l.next(now)) {
            self.doing = Doing::Load;
            return VmWork::Run(time, until);
        } else {
            self.doing = Doing::Nothing;
            return VmWork::Block;
        };
        self.doing = doing;
        VmWork::Run(cost, Instant::NEVER)
    }

    /// The work that was chosen is paid for: does it, and queues what the stack sends.
    pub(super) fn finish(&mut self, env: &mut Env) {
        self.work(env);
        let mut outgoing = std::mem::take(&mut env.outgoing);
        for packet in outgoing.drain(..) {
            env.note(Point::Queued, packet);
            self.enqueue(packet, &mut env.packets);
        }
        env.outgoing = outgoing;
    }

    fn enqueue(&mut self, packet: PacketId, pool: &mut Pool) {
        if self.queue.packets() < self.config.queue {
            self.queue.push(packet, pool);
        } else {
            self.stats.queue_drops += 1;
            pool.remove(packet);
        }
    }

    fn work(&mut self, env: &mut Env) {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => {}
            Doing::Transmit => {
                if let Some(packet) = self.queue.pop(&mut env.packets) {
                    self.stats.sent += 1;
                    env.note(Point::Sent, packet);
                    self.call_driver |= self.tx.push(packet, &mut env.packets);
                }
            }
            Doing::Receive => self.receive(env),
            Doing::Completion => {
                if let Some((flow, side)) = self.completions.pop_front() {
                    self.completes &= !self.completions.is_empty();
                    env.settle(flow, side);
                }
            }
            Doing::Urgent => {
                if let Some(VmTask::Deadline(flow, side)) = self.urgent.pop_front() {
                    env.timeout(flow, side);
                }
            }
            Doing::Call => {
                if let Some(call) = self.calls.pop_front() {
                    env.execute(call);
                }
            }
            Doing::Compute => {
                if let Some(computation) = self.computations.pop_front() {
                    env.execute(computation);
                }
            }
            Doing::Load => {
                if let Some(load) = &mut self.load {
                    load.stopped(Duration::ZERO);
                }
            }
        }
    }

    fn receive(&mut self, env: &mut Env) {
        let Some(packet) = self.rx.take(&mut env.packets) else { return };
        self.stats.received += 1;
        self.announced = self.announced.saturating_sub(1);
        // A buffer is free again: for what waits.
        if let Some(next) = self.backlog.front()
            && self.rx.has_room(next, &env.packets)
            && let Some(next) = self.backlog.pop(&mut env.packets)
        {
            self.rx.push(next, &mut env.packets);
            self.announced += 1;
        }
        env.input(packet);
    }
}
