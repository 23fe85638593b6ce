//! A world: a network, the machines at its edge, and the applications on them.
//!
//! # Theory of operation
//! [`World::run`] takes one event after the other. An event changes one part of the world; what that wants of
//! others is queued (tasks for VMs, notices for applications) and done before the next event, in the order in
//! which it came up. All of it is a function of the scenario and the seed.
//!
//! With [`World::fingerprint`] on, every event and its time go into a digest: two runs with the same
//! digest have had the same history.

mod app;
mod divide;

pub use crate::env::{Env, Event, Part};
pub use crate::ids::AppId;
pub use app::{App, Ctx};
pub use divide::CannotDivide;
pub(crate) use divide::Whole;

use std::any::Any;
use std::collections::VecDeque;

use divide::Incoming;

use crate::Instant;
use crate::cpu::{CpuEvent, LoadConfig};
use crate::engine::Digest;
use crate::env::{Notice, Place, VmTask};
use crate::flow::{FlowId, Flows, Side};
use crate::machine::{Hook, Machine, MachineConfig, VmConfig};
use crate::net::{Net, NetEvent, Node, PortId};
use crate::packet::{Address, PacketId};
use crate::tcp::SenderStats;
use crate::trace::Trace;

/// Names a machine of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineId(u32);

/// A network, machines and applications.
#[derive(Default)]
pub struct World {
    env: Env,
    machines: Vec<Machine>,
    /// The machine at each host of the network, if it has VMs.
    machine_at: Vec<Option<u32>>,
    apps: Vec<Option<Box<dyn App>>>,
    started: bool,
    /// Of a world that is a part of another.
    incoming: VecDeque<Incoming>,
    digest: Option<Digest>,
}

impl World {
    /// A world around a network, without anybody at its hosts.
    #[must_use]
    pub fn new(net: Net) -> Self {
        let machine_at = vec![None; net.hosts()];
        Self { env: Env { net, ..Env::default() }, machine_at, ..Self::default() }
    }

    /// Puts a bare machine at a host of the network: a stack that costs no time.
    pub fn add_bare(&mut self, host: u32) -> Address {
        self.env.add_place(Place::Bare { host });
        self.env.net.attach(host)
    }

    /// Puts a machine for VMs at a host of the network.
    pub fn add_machine(
        &mut self,
        host: u32,
        config: MachineConfig,
        hook: Box<dyn Hook>,
    ) -> MachineId {
        let number = self.machines.len() as u32;
        self.machines.push(Machine::new(number, host, config, hook));
        self.machine_at[host as usize] = Some(number);
        MachineId(number)
    }

    /// Adds a VM to a machine.
    ///
    /// # Panics
    /// If the run has begun.
    pub fn add_vm(&mut self, machine: MachineId, config: &VmConfig) -> Address {
        assert!(!self.started, "VMs are there from the start");
        let host = self.machine_at.iter().position(|at| *at == Some(machine.0));
        let address = self.env.net.attach(host.expect("a machine has a host") as u32);
        let vm = self.machines[machine.0 as usize].add_vm(address, config);
        self.env.add_place(Place::Vm { machine: machine.0, vm });
        address
    }

    /// Gives a VM a load, from now on.
    pub fn set_load(&mut self, machine: MachineId, vm: u32, load: LoadConfig) {
        self.machines[machine.0 as usize].set_load(vm, load, &mut self.env);
    }

    /// Adds an application.
    pub fn add_app(&mut self, app: impl App) -> AppId {
        self.apps.push(Some(Box::new(app)));
        AppId(self.apps.len() as u16 - 1)
    }

    /// An application, to read its results.
    #[must_use]
    pub fn app<A: App>(&self, id: AppId) -> Option<&A> {
        let app: &dyn Any = &**self.apps.get(usize::from(id.0))?.as_ref()?;
        app.downcast_ref()
    }

    /// A machine.
    #[must_use]
    pub fn machine(&self, id: MachineId) -> &Machine {
        &self.machines[id.0 as usize]
    }

    /// The network.
    #[must_use]
    pub const fn net(&self) -> &Net {
        &self.env.net
    }

    /// The network, to change its settings.
    pub const fn net_mut(&mut self) -> &mut Net {
        &mut self.env.net
    }

    /// All flows.
    #[must_use]
    pub const fn flows(&self) -> &Flows {
        &self.env.flows
    }

    /// What all senders at an address have done so far.
    #[must_use]
    pub fn sender_stats(&self, address: Address) -> SenderStats {
        let mut stats = self.env.retired[address.0 as usize];
        let ends = self.env.flows.iter().flat_map(|f| [f.end(Side::Client), f.end(Side::Server)]);
        let here = ends.filter(|end| end.address == address);
        here.filter_map(|end| end.connection.as_ref()).for_each(|c| stats += *c.sender().stats());
        stats
    }

    /// The present.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.env.clock.now()
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.env.clock.events()
    }

    /// Packets that exist now.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.env.packets.live() + self.incoming_packets()
    }

    /// The port of a host, for its counters.
    #[must_use]
    pub fn uplink(&self, host: u32) -> PortId {
        self.env.net.uplink(host)
    }

    /// Digests every event from now on.
    pub fn fingerprint(&mut self) {
        self.digest = Some(Digest::default());
    }

    /// The digest of the events since [`fingerprint`](Self::fingerprint).
    #[must_use]
    pub fn digest(&self) -> Option<u64> {
        self.digest.map(Digest::value)
    }

    /// Records the way of packets from now on, `most` points of it at most, and what the vCPUs of the machines do
    /// ([`Cpus::recorded`](crate::cpu::Cpus::recorded)).
    pub fn trace(&mut self, most: usize) {
        self.env.trace = Some(Box::new(Trace::new(most)));
        self.machines.iter_mut().for_each(Machine::record);
    }

    /// What was recorded since [`trace`](Self::trace); `None` without.
    #[must_use]
    pub fn traced(&self) -> Option<&Trace> {
        self.env.trace.as_deref()
    }

    /// Starts machines and applications, unless that was done.
    pub(crate) fn start(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            for machine in &mut self.machines {
                machine.start(&mut self.env);
            }
            for app in 0..self.apps.len() as u16 {
                self.with_app(AppId(app), App::start);
            }
            self.settle();
        }
    }

    /// Runs until `end`: the present is `end` after that.
    pub fn run(&mut self, end: Instant) {
        self.start();
        while let Some(event) = self.env.clock.next(end) {
            self.take(event);
        }
    }

    /// Does what an event of the present brings.
    #[inline]
    fn take(&mut self, event: Event) {
        if let Some(digest) = &mut self.digest {
            digest.write(self.env.clock.now().as_nanos());
            write_event(digest, event);
        }
        self.handle(event);
        if self.env.has_more() {
            self.settle();
        }
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Net(event) => {
                let env = &mut self.env;
                if let Some((host, packet)) =
                    env.net.handle(event, &mut env.packets, &mut env.clock)
                {
                    self.arrive(host, packet);
                }
            }
            Event::Deadline(flow, side) => self.deadline(flow, side),
            Event::Cpu { machine, event } => {
                self.machines[machine as usize].on_cpu(event, &mut self.env);
            }
            Event::Hook { machine } => self.machines[machine as usize].on_hook_timer(&mut self.env),
            Event::Card { machine } => self.machines[machine as usize].on_card_timer(&mut self.env),
            Event::Load { machine, vm } => {
                self.machines[machine as usize].on_load_timer(vm, &mut self.env);
            }
            Event::Interrupt { machine, vm } => {
                self.machines[machine as usize].on_interrupt(vm, &mut self.env);
            }
            Event::Tick { machine, vm } => {
                self.machines[machine as usize].on_guest_tick(vm, &mut self.env);
            }
            Event::FarClosed { flow, side, aborted } => self.env.far_closed(flow, side, aborted),
            Event::Released(flow) => self.env.flows.release(flow),
            Event::App { app, tag } => self.with_app(app, |app, ctx| app.on_timer(tag, ctx)),
            Event::Computed { app, tag } => {
                self.env.notices.push_back((app, Notice::Computed(tag)));
            }
        }
    }

    #[inline]
    fn arrive(&mut self, host: u32, packet: PacketId) {
        match self.machine_at[host as usize] {
            None => self.env.input(packet),
            Some(machine) => self.machines[machine as usize].on_packet(packet, &mut self.env),
        }
    }

    fn deadline(&mut self, flow: FlowId, side: Side) {
        if !self.env.is_due(flow, side) {
            return;
        }
        let address = self.env.flows.get(flow).map(|flow| flow.end(side).address);
        match address.map(|address| self.env.place(address)) {
            Some(Place::Bare { .. }) => self.env.timeout(flow, side),
            Some(Place::Vm { machine, vm }) => {
                let task = VmTask::Deadline(flow, side);
                self.machines[machine as usize].on_vm_task(vm, task, &mut self.env);
            }
            None => {}
        }
    }

    fn settle(&mut self) {
        loop {
            if let Some(done) = self.env.packets.take_tx_completion() {
                self.env.tx_completion(done);
            } else if let Some((machine, vm, task)) = self.env.vm_tasks.pop_front() {
                self.machines[machine as usize].on_vm_task(vm, task, &mut self.env);
            } else if let Some((app, notice)) = self.env.notices.pop_front() {
                self.tell(app, notice);
            } else {
                break;
            }
        }
    }

    fn tell(&mut self, app: AppId, notice: Notice) {
        self.with_app(app, |app, ctx| match notice {
            Notice::Connected(flow, side) => app.on_connected(flow, side, ctx),
            Notice::Message(flow, side, tag) => app.on_message(flow, side, tag, ctx),
            Notice::Sent(flow, side) => app.on_sent(flow, side, ctx),
            Notice::Datagram(flow, side, tag) => app.on_datagram(flow, side, tag, ctx),
            Notice::Computed(tag) => app.on_computed(tag, ctx),
            Notice::Closed(flow) => {
                if ctx.env.flows.get(flow).is_some() {
                    app.on_closed(flow, ctx);
                    ctx.env.forget(flow);
                }
            }
        });
    }

    fn with_app(&mut self, id: AppId, call: impl FnOnce(&mut dyn App, &mut Ctx<'_>)) {
        let Some(mut app) = self.apps.get_mut(usize::from(id.0)).and_then(Option::take) else {
            return;
        };
        call(&mut *app, &mut Ctx { env: &mut self.env, app: id });
        self.apps[usize::from(id.0)] = Some(app);
    }
}

fn write_event(digest: &mut Digest, event: Event) {
    let (kind, number) = match event {
        Event::Net(NetEvent::PortFree(port)) => (0, u64::from(port.0)),
        Event::Net(NetEvent::Arrive(Node::Switch(n), _)) => (1, u64::from(n)),
        Event::Net(NetEvent::Arrive(Node::Host(n), _)) => (2, u64::from(n)),
        Event::Deadline(flow, side) => (3, flow.number() << 1 | side as u64),
        Event::App { tag, .. } => (4, u64::from(tag)),
        Event::Computed { tag, .. } => (5, u64::from(tag)),
        Event::Cpu { machine, event } => {
            let (kind, number) = match event {
                CpuEvent::Choose(pcpu) => (0, pcpu.0),
                CpuEvent::SliceEnd(pcpu) => (1, pcpu.0),
                CpuEvent::WorkEnd(vcpu) => (2, vcpu.0),
                CpuEvent::Tick => (3, 0),
            };
            (6 + kind, u64::from(machine) << 32 | u64::from(number))
        }
        Event::Hook { machine } => (10, u64::from(machine)),
        Event::Load { machine, vm } => (11, u64::from(machine) << 32 | u64::from(vm)),
        Event::Interrupt { machine, vm } => (12, u64::from(machine) << 32 | u64::from(vm)),
        Event::Card { machine } => (13, u64::from(machine)),
        Event::FarClosed { flow, side, aborted } => {
            (14, flow.number() << 2 | u64::from(aborted) << 1 | side as u64)
        }
        Event::Released(flow) => (15, flow.number()),
        Event::Tick { machine, vm } => (16, u64::from(machine) << 32 | u64::from(vm)),
    };
    digest.write(kind);
    digest.write(number);
}
