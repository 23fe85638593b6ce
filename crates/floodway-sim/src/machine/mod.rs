//! A machine that runs VMs: processors, driver domain, rings.
//!
//! # Theory of operation
//! ```text
//!  VM 0: stack ─ queue ─▶ TX ring ─┐                         ┌─▶ NIC queue ─▶ link
//!                    ◀─ RX ring ◀──┤ driver domain ── hook ──┤
//!  VM 1: ...                       └─ (a vCPU of its own) ◀──┴── NIC RX ring ◀─ link
//! ```
//! The driver domain moves packets between the rings of the VMs and the network card, one at a time, each at
//! a cost in processor time. It has a vCPU that competes with those of the VMs, or a pCPU of its own if affinities
//! say so. It takes turns between the card and the VMs. What comes from or goes to the network passes the machine's
//! [`Hook`]; what one VM sends to another on the same machine does not.
//!
//! A VM's work, in this order: its queue to the TX ring; packets from the RX ring; connections that have waited for
//! packets to leave; deadlines of its connections; system calls of its applications, in order; their computations, one
//! after the other; its load. The first four are the kernel's: they interrupt the others when the VM runs, and wake it up when it is blocked. That calls come before
//! computations is what kernels do for processes that have slept. Nothing happens in a VM that waits.
//!
//! An event of the driver domain may take a time of its own to reach a VM ([`VmConfig::interrupt_delay`]): a hypervisor's thread
//! raises the interrupt. Then the VM takes the packets that are in its RX ring by that time; those that come later need
//! another event. And it may cost a VM that runs its time slice ([`VmConfig::interrupt_yields`]): who raises an
//! interrupt in QEMU without KVM holds the lock that the vCPU then needs, so the vCPU sleeps for a moment, and gives way when it wakes up:
//! to all others where slices go round, with EEVDF if it is ahead of its share. The guest's own timer tick comes the same way ([`VmConfig::tick`]): it ends the time slice of a VM that runs, and
//! the next one of a VM that waits, as soon as that begins. A VM that is blocked has no tick, as a kernel that is idle stops its own. Where the ticks of two VMs are moments apart, always in
//! the same order, the later one hardly runs: phases are to be random.
//!
//! Every packet that is under way in a machine is in exactly one queue; a queue that is full drops.

mod card;
mod driver;
mod hook;
mod ring;
mod vm;

pub use card::Interrupts;
pub use driver::DriverConfig;
pub use hook::{Hook, HookCtx, PassThrough};
pub use ring::{RxRing, TxRing};
pub use vm::{VmConfig, VmStats};

use driver::Driver;
use vm::{Vm, VmWork};

use crate::cpu::{
    CpuEvent, Cpus, Load, LoadConfig, MachineEvent, Scheduler, Step, VcpuId, VcpuStats,
};
use crate::env::{Env, Event, Place, VmTask};
use crate::packet::{Address, PacketId};
use crate::{Duration, Instant};

/// Settings of a machine.
#[derive(Debug)]
pub struct MachineConfig {
    /// Number of pCPUs.
    pub pcpus: u32,
    /// Their scheduler, made for that number.
    pub scheduler: Box<dyn Scheduler>,
    /// Cost of a change of vCPU.
    pub switch_cost: Duration,
    /// Cost of going on after being preempted, on top.
    pub cache_cost: Duration,
    /// The driver domain.
    pub driver: DriverConfig,
}

impl From<MachineEvent> for Event {
    fn from(event: MachineEvent) -> Self {
        Self::Cpu { machine: event.machine, event: event.event }
    }
}

/// A machine with its VMs.
pub struct Machine {
    number: u32,
    cpus: Cpus,
    driver: Driver,
    vms: Vec<Vm>,
}

impl Machine {
    pub(crate) fn new(number: u32, host: u32, config: MachineConfig, hook: Box<dyn Hook>) -> Self {
        let mut cpus = Cpus::new(number, config.pcpus, config.scheduler);
        cpus.set_costs(config.switch_cost, config.cache_cost);
        let vcpu = cpus.add(&config.driver.vcpu, Instant::ZERO);
        let driver = Driver::new(number, host, vcpu, config.driver, hook);
        Self { number, cpus, driver, vms: Vec::new() }
    }

    pub(crate) fn add_vm(&mut self, address: Address, config: &VmConfig) -> u32 {
        let vcpu = self.cpus.add(&config.vcpu, Instant::ZERO);
        self.vms.push(Vm::new(vcpu, address, config));
        self.driver.add_vm();
        self.vms.len() as u32 - 1
    }

    /// Records what its vCPUs do from now on.
    pub(crate) fn record(&mut self) {
        self.cpus.record();
    }

    pub(crate) fn start(&mut self, env: &mut Env) {
        self.cpus.start(&mut env.clock);
        for vm in 0..self.vms.len() as u32 {
            self.arm_load(vm, env);
            let [phase, period] = self.vms[vm as usize].tick();
            if !period.is_zero() {
                self.arm_tick(vm, phase, env);
            }
        }
    }

    /// Its processors.
    #[must_use]
    pub const fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    /// The hook of its driver domain.
    #[must_use]
    pub fn hook(&self) -> &dyn Hook {
        self.driver.hook()
    }

    /// Times of the driver domain's vCPU.
    #[must_use]
    pub fn driver_times(&self, now: Instant) -> VcpuStats {
        self.cpus.stats(self.driver.vcpu(), now)
    }

    /// Times of a VM's vCPU.
    #[must_use]
    pub fn vm_times(&self, vm: u32, now: Instant) -> VcpuStats {
        self.cpus.stats(self.vms[vm as usize].vcpu(), now)
    }

    /// What a VM's rings and queues have seen.
    #[must_use]
    pub fn vm_stats(&self, vm: u32) -> &VmStats {
        self.vms[vm as usize].stats()
    }

    /// A VM's load.
    #[must_use]
    pub fn load(&self, vm: u32) -> Option<&Load> {
        self.vms[vm as usize].load()
    }

    /// Gives a VM a load, from now on.
    pub(crate) fn set_load(&mut self, vm: u32, load: LoadConfig, env: &mut Env) {
        self.vms[vm as usize].set_load(Load::new(load, env.clock.now()));
        self.arm_load(vm, env);
    }

    /// A packet has come from the network.
    pub(crate) fn on_packet(&mut self, packet: PacketId, env: &mut Env) {
        if self.driver.on_packet(packet, env) {
            self.cpus.wake(self.driver.vcpu(), &mut env.clock);
        }
    }

    /// Something is to be done in a VM.
    pub(crate) fn on_vm_task(&mut self, vm: u32, task: VmTask, env: &mut Env) {
        self.vms[vm as usize].on_vm_task(task);
        match task {
            // The kernel learns of it as it learns of packets.
            VmTask::Completion(..) => self.settle(env),
            _ => self.kick(vm, env),
        }
    }

    pub(crate) fn on_interrupt(&mut self, vm: u32, env: &mut Env) {
        let to = &mut self.vms[vm as usize];
        to.on_interrupt(self.cpus.is_running(to.vcpu()));
        self.kick(vm, env);
    }

    /// The timer tick of a VM's kernel.
    pub(crate) fn on_guest_tick(&mut self, vm: u32, env: &mut Env) {
        let ticking = &mut self.vms[vm as usize];
        let [_, period] = ticking.tick();
        if self.cpus.is_runnable(ticking.vcpu()) {
            ticking.on_tick(self.cpus.stats(ticking.vcpu(), env.clock.now()).ran);
            self.kick(vm, env);
        }
        self.arm_tick(vm, period, env);
    }

    pub(crate) fn on_cpu(&mut self, event: CpuEvent, env: &mut Env) {
        let step = self.cpus.handle(event, &mut env.clock);
        self.follow(step, env);
    }

    /// Gives work to whoever runs without any, until all that run have some.
    fn follow(&mut self, mut step: Option<Step>, env: &mut Env) {
        while let Some(now) = step {
            step = self.advance(now, env);
        }
    }

    pub(crate) fn on_hook_timer(&mut self, env: &mut Env) {
        if self.driver.on_timer(env) {
            self.cpus.wake(self.driver.vcpu(), &mut env.clock);
        }
    }

    pub(crate) fn on_card_timer(&mut self, env: &mut Env) {
        self.driver.on_card_timer(env);
        self.cpus.wake(self.driver.vcpu(), &mut env.clock);
    }

    pub(crate) fn on_load_timer(&mut self, vm: u32, env: &mut Env) {
        self.vms[vm as usize].load_woken();
        self.kick(vm, env);
    }

    fn advance(&mut self, step: Step, env: &mut Env) -> Option<Step> {
        let (Step::Done(vcpu) | Step::Idle(vcpu)) = step;
        let done = matches!(step, Step::Done(_));
        if vcpu == self.driver.vcpu() {
            self.run_driver(done, env)
        } else {
            self.run_vm(vcpu, done, env)
        }
    }

    fn run_driver(&mut self, done: bool, env: &mut Env) -> Option<Step> {
        if done {
            self.driver.finish(&mut self.vms, env);
            self.settle(env);
        }
        let next = self.driver.next(&self.vms).or_else(|| {
            // Nothing left: the batch is over, which may bring more.
            self.driver.end_batch(&mut self.vms, env);
            self.settle(env);
            self.driver.next(&self.vms)
        });
        match next {
            Some(cost) => {
                self.cpus.begin(self.driver.vcpu(), cost, &mut env.clock);
                None
            }
            None => self.cpus.block(self.driver.vcpu(), &mut env.clock),
        }
    }

    fn run_vm(&mut self, vcpu: VcpuId, done: bool, env: &mut Env) -> Option<Step> {
        // The driver domain's vCPU comes first.
        let number = vcpu.0 - 1;
        if done {
            self.vms[number as usize].finish(env);
            self.settle(env);
            if !env.notices.is_empty() {
                // Applications are told before the VM decides what to do next.
                self.cpus.begin(vcpu, Duration::ZERO, &mut env.clock);
                return None;
            }
        }
        if self.vms[number as usize].take_gives_way() {
            let step = self.cpus.block(vcpu, &mut env.clock);
            self.cpus.wake(vcpu, &mut env.clock);
            return step;
        }
        match self.vms[number as usize].next(env.clock.now(), &env.packets) {
            VmWork::Run(cost, until) => {
                self.cpus.begin_until(vcpu, cost, until, &mut env.clock);
                None
            }
            VmWork::Block => {
                self.arm_load(number, env);
                self.cpus.block(vcpu, &mut env.clock)
            }
        }
    }

    /// Event channels: wakes up who has been sent something.
    fn settle(&mut self, env: &mut Env) {
        for vm in 0..self.vms.len() as u32 {
            let to = &mut self.vms[vm as usize];
            if to.take_call_to_driver() {
                self.cpus.wake(self.driver.vcpu(), &mut env.clock);
            }
            match to.take_call() {
                None => {}
                Some(Duration::ZERO) => self.kick(vm, env),
                Some(delay) => {
                    env.clock.after(delay, Event::Interrupt { machine: self.number, vm });
                }
            }
        }
    }

    /// The kernel of a VM has something to do: wakes it up, or interrupts what its applications do.
    fn kick(&mut self, vm: u32, env: &mut Env) {
        let vcpu = self.vms[vm as usize].vcpu();
        if !self.cpus.is_runnable(vcpu) {
            self.cpus.wake(vcpu, &mut env.clock);
            return;
        }
        if !self.vms[vm as usize].is_interruptible() {
            return;
        }
        // One that waits for a CPU looks at its kernel's work first when it runs again.
        let left = self.cpus.interrupt(vcpu, &mut env.clock);
        self.vms[vm as usize].interrupted(left);
        if self.cpus.is_running(vcpu) {
            let step = self.run_vm(vcpu, false, env);
            self.follow(step, env);
        }
    }

    fn arm_tick(&mut self, vm: u32, delay: Duration, env: &mut Env) {
        env.clock.after(delay, Event::Tick { machine: self.number, vm });
    }

    fn arm_load(&mut self, vm: u32, env: &mut Env) {
        if let Some(wake_at) = self.vms[vm as usize].arm_load(env.clock.now()) {
            env.clock.at(wake_at, Event::Load { machine: self.number, vm });
        }
    }
}

/// The VM of this machine at an address.
fn local(address: Address, machine: u32, env: &Env) -> Option<u32> {
    match env.place(address) {
        Place::Vm { machine: at, vm } if at == machine => Some(vm),
        _ => None,
    }
}
