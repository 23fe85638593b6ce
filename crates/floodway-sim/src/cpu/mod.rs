//! Processors of a machine, and who runs on them.
//!
//! # Theory of operation
//! A *pCPU* runs one *vCPU* at a time; a [`Scheduler`] says which. A vCPU has at most one piece of work: a
//! duration of processor time. It proceeds while the vCPU runs, stands still while it waits, and [`Step::Done`]
//! tells when it is over; then the owner gives the vCPU its next piece ([`Cpus::begin`]) or lets it block
//! ([`Cpus::block`]). A vCPU that starts to run without any work is told by [`Step::Idle`].
//!
//! Changing from one vCPU to another costs `switch_cost`, and a vCPU that was preempted in the middle of its
//! work pays `cache_cost` when it goes on, since another has used the cache (paper on small flows, section
//! 5.2). Both are time in which the vCPU runs without progress.
//!
//! A wake-up asks a pCPU to choose anew by an event at the same time, as an interrupt between
//! processors does, so nothing is preempted in the middle of what causes it.
//!
//! Invariants: a vCPU runs on one pCPU at most; time run, time waited and time blocked of a vCPU add up to
//! the time since its start.

mod credit;
mod eevdf;
mod load;
mod place;
mod round_robin;

pub use credit::{Credit, CreditConfig, Debit};
pub use eevdf::{Eevdf, EevdfConfig};
pub(crate) use load::LoadStep;
pub use load::{Busy, Load, LoadConfig, Pause};
pub use round_robin::RoundRobin;

use crate::engine::{Clock, Timer};
use crate::{Duration, Instant};

/// A processor that vCPUs run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PcpuId(pub u32);

/// A processor as a VM sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VcpuId(pub u32);

/// What a scheduler knows of a vCPU from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuSpec {
    /// Its share relative to others; Xen's default is 256, Linux's 1024.
    pub weight: u32,
    /// pCPUs on which it may run: bit `n` stands for pCPU `n`.
    pub affinity: u64,
    /// A slice of its own, for schedulers that know such (EEVDF: `sched_setattr` with `sched_runtime`).
    pub slice: Option<Duration>,
}

impl VcpuSpec {
    /// On one pCPU, with a weight.
    #[must_use]
    pub const fn pinned(pcpu: u32, weight: u32) -> Self {
        Self { weight, affinity: 1 << pcpu, slice: None }
    }

    /// On any pCPU, with a weight.
    #[must_use]
    pub const fn free(weight: u32) -> Self {
        Self { weight, affinity: u64::MAX, slice: None }
    }
}

/// What a scheduler decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Who runs; `None` idles.
    pub next: Option<VcpuId>,
    /// When the scheduler wants to be asked again at the latest.
    pub until: Instant,
}

/// A scheduler of vCPUs. It keeps its own idea of who runs where, which follows from its decisions.
pub trait Scheduler: std::fmt::Debug + Send {
    /// A new vCPU, which is blocked. They come in the order of their numbers.
    fn add(&mut self, vcpu: VcpuId, spec: &VcpuSpec);

    /// A blocked vCPU has become runnable. Adds to `tickle` the pCPUs that should choose anew.
    fn wake(&mut self, vcpu: VcpuId, now: Instant, tickle: &mut Vec<PcpuId>);

    /// A pCPU chooses. `runnable`: who runs there now could go on.
    fn schedule(&mut self, pcpu: PcpuId, runnable: bool, now: Instant) -> Decision;

    /// When [`on_tick`](Self::on_tick) is due next; [`Instant::NEVER`] if there is no tick.
    fn next_tick(&self) -> Instant {
        Instant::NEVER
    }

    /// Does what is due. Adds to `tickle` the pCPUs that should choose anew.
    fn on_tick(&mut self, now: Instant, tickle: &mut Vec<PcpuId>) {
        let _ = (now, tickle);
    }
}

/// What happens on processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuEvent {
    /// A pCPU is to choose.
    Choose(PcpuId),
    /// A slice is over.
    SliceEnd(PcpuId),
    /// A vCPU has done its work.
    WorkEnd(VcpuId),
    /// The scheduler's tick.
    Tick,
}

/// An event on the processors of one of many machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineEvent {
    /// Which machine.
    pub machine: u32,
    /// What.
    pub event: CpuEvent,
}

/// What the owner of a vCPU has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The work that was begun is done.
    Done(VcpuId),
    /// The vCPU runs and has no work.
    Idle(VcpuId),
}

/// Times of a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuStats {
    /// Time run.
    pub ran: Duration,
    /// Time runnable and not running.
    pub waited: Duration,
    /// Times that it started to run.
    pub dispatched: u64,
    /// Times that it was stopped while runnable.
    pub preempted: u64,
}

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has nothing to do.
    Blocked,
    /// It has something to do, and no pCPU.
    Waiting,
    /// It runs.
    Running(PcpuId),
}

#[derive(Debug)]
struct Vcpu {
    state: State,
    since: Instant,
    /// Work left, as of `resumed` if it runs.
    work: Option<Duration>,
    /// When the work ends, done or not.
    until: Instant,
    resumed: Instant,
    /// To be paid before work goes on.
    overhead: Duration,
    timer: Timer,
    stats: VcpuStats,
}

#[derive(Debug)]
struct Pcpu {
    current: Option<VcpuId>,
    last: Option<VcpuId>,
    slice: Timer,
    choosing: bool,
}

/// A change of a vCPU's state, for those who want to look at a schedule. Every vCPU is blocked at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Instant,
    /// Whose.
    pub vcpu: VcpuId,
    /// What it does from then on.
    pub state: State,
}

/// The processors of a machine.
#[derive(Debug)]
pub struct Cpus {
    machine: u32,
    scheduler: Box<dyn Scheduler>,
    pcpus: Vec<Pcpu>,
    vcpus: Vec<Vcpu>,
    switch_cost: Duration,
    cache_cost: Duration,
    tickled: Vec<PcpuId>,
    trace: Option<Vec<Change>>,
}

impl Cpus {
    /// `pcpus` processors under a scheduler that was made for as many.
    #[must_use]
    pub fn new(machine: u32, pcpus: u32, scheduler: Box<dyn Scheduler>) -> Self {
        let idle = |_| Pcpu { current: None, last: None, slice: Timer::NONE, choosing: false };
        Self {
            machine,
            scheduler,
            pcpus: (0..pcpus).map(idle).collect(),
            vcpus: Vec::new(),
            switch_cost: Duration::ZERO,
            cache_cost: Duration::ZERO,
            tickled: Vec::new(),
            trace: None,
        }
    }

    /// Sets what a change of vCPU costs, and what being preempted costs on top.
    pub fn set_costs(&mut self, switch_cost: Duration, cache_cost: Duration) {
        (self.switch_cost, self.cache_cost) = (switch_cost, cache_cost);
    }

    /// Records every change of a vCPU's state from now on.
    pub fn record(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// What was recorded.
    #[must_use]
    pub fn recorded(&self) -> &[Change] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Adds a vCPU, blocked and without work.
    pub fn add(&mut self, spec: &VcpuSpec, now: Instant) -> VcpuId {
        let id = VcpuId(self.vcpus.len() as u32);
        self.vcpus.push(Vcpu {
            state: State::Blocked,
            since: now,
            work: None,
            until: Instant::NEVER,
            resumed: now,
            overhead: Duration::ZERO,
            timer: Timer::NONE,
            stats: VcpuStats::default(),
        });
        self.scheduler.add(id, spec);
        id
    }

    /// The run begins: starts the scheduler's tick.
    pub fn start<E: Copy + From<MachineEvent>>(&mut self, clock: &mut Clock<E>) {
        let tick = self.scheduler.next_tick();
        clock.at(tick, self.event(CpuEvent::Tick));
    }

    /// The vCPU runs now.
    #[must_use]
    pub fn is_running(&self, vcpu: VcpuId) -> bool {
        matches!(self.vcpus[vcpu.0 as usize].state, State::Running(_))
    }

    /// The vCPU runs or could.
    #[must_use]
    pub fn is_runnable(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu.0 as usize].state != State::Blocked
    }

    /// It has work that is not done.
    #[must_use]
    pub fn is_busy(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu.0 as usize].work.is_some()
    }

    /// Its times up to now.
    #[must_use]
    pub fn stats(&self, vcpu: VcpuId, now: Instant) -> VcpuStats {
        let vcpu = &self.vcpus[vcpu.0 as usize];
        let mut stats = vcpu.stats;
        match vcpu.state {
            State::Blocked => {}
            State::Waiting => stats.waited += now.since(vcpu.since),
            State::Running(_) => stats.ran += now.since(vcpu.since),
        }
        stats
    }

    /// Makes a blocked vCPU runnable; nothing happens to others.
    pub fn wake<E: Copy + From<MachineEvent>>(&mut self, vcpu: VcpuId, clock: &mut Clock<E>) {
        if self.is_runnable(vcpu) {
            return;
        }
        self.enter(vcpu, State::Waiting, clock.now());
        let mut tickled = std::mem::take(&mut self.tickled);
        self.scheduler.wake(vcpu, clock.now(), &mut tickled);
        self.choose_soon(&mut tickled, clock);
        self.tickled = tickled;
    }

    /// Gives a running vCPU that has no work a piece of work.
    pub fn begin<E: Copy + From<MachineEvent>>(
        &mut self,
        vcpu: VcpuId,
        work: Duration,
        clock: &mut Clock<E>,
    ) {
        self.begin_until(vcpu, work, Instant::NEVER, clock);
    }

    /// The same, but the work ends at a time also if less than it was done: a loop that looks at the
    /// clock.
    pub fn begin_until<E: Copy + From<MachineEvent>>(
        &mut self,
        vcpu: VcpuId,
        work: Duration,
        until: Instant,
        clock: &mut Clock<E>,
    ) {
        debug_assert!(self.is_running(vcpu) && !self.is_busy(vcpu));
        let state = &mut self.vcpus[vcpu.0 as usize];
        (state.work, state.until) = (Some(work), until);
        self.resume(vcpu, clock);
    }

    /// Takes the work of a vCPU away, whether it runs or waits; says how much was left.
    pub fn interrupt<E: Copy + From<MachineEvent>>(
        &mut self,
        vcpu: VcpuId,
        clock: &mut Clock<E>,
    ) -> Duration {
        self.suspend(vcpu, clock);
        self.vcpus[vcpu.0 as usize].work.take().unwrap_or_default()
    }

    /// A running vCPU without work blocks; its pCPU chooses another at once. Answers with what the
    /// one that runs next needs.
    pub fn block<E: Copy + From<MachineEvent>>(
        &mut self,
        vcpu: VcpuId,
        clock: &mut Clock<E>,
    ) -> Option<Step> {
        let State::Running(pcpu) = self.vcpus[vcpu.0 as usize].state else { return None };
        self.enter(vcpu, State::Blocked, clock.now());
        self.choose(pcpu, clock)
    }

    /// Handles an event.
    pub fn handle<E: Copy + From<MachineEvent>>(
        &mut self,
        event: CpuEvent,
        clock: &mut Clock<E>,
    ) -> Option<Step> {
        match event {
            CpuEvent::Choose(pcpu) => {
                self.pcpus[pcpu.0 as usize].choosing = false;
                self.choose(pcpu, clock)
            }
            CpuEvent::SliceEnd(pcpu) => self.choose(pcpu, clock),
            CpuEvent::WorkEnd(vcpu) => {
                let state = &mut self.vcpus[vcpu.0 as usize];
                (state.work, state.overhead, state.timer) = (None, Duration::ZERO, Timer::NONE);
                Some(Step::Done(vcpu))
            }
            CpuEvent::Tick => {
                let mut tickled = std::mem::take(&mut self.tickled);
                self.scheduler.on_tick(clock.now(), &mut tickled);
                self.choose_soon(&mut tickled, clock);
                self.tickled = tickled;
                clock.at(self.scheduler.next_tick(), self.event(CpuEvent::Tick));
                None
            }
        }
    }

    fn event<E: From<MachineEvent>>(&self, event: CpuEvent) -> E {
        MachineEvent { machine: self.machine, event }.into()
    }

    fn choose_soon<E: Copy + From<MachineEvent>>(
        &mut self,
        tickled: &mut Vec<PcpuId>,
        clock: &mut Clock<E>,
    ) {
        for pcpu in tickled.drain(..) {
            if !std::mem::replace(&mut self.pcpus[pcpu.0 as usize].choosing, true) {
                clock.at(clock.now(), self.event(CpuEvent::Choose(pcpu)));
            }
        }
    }

    fn choose<E: Copy + From<MachineEvent>>(
        &mut self,
        pcpu: PcpuId,
        clock: &mut Clock<E>,
    ) -> Option<Step> {
        let now = clock.now();
        let current = self.pcpus[pcpu.0 as usize].current;
        let running = current.filter(|&vcpu| self.is_running(vcpu));
        let decision = self.scheduler.schedule(pcpu, running.is_some(), now);
        let slice_end = self.event(CpuEvent::SliceEnd(pcpu));
        let place = &mut self.pcpus[pcpu.0 as usize];
        clock.cancel(place.slice);
        place.current = decision.next;
        place.slice = clock.at(decision.until, slice_end);
        if decision.next == running {
            return None;
        }
        if let Some(vcpu) = running {
            self.suspend(vcpu, clock);
            self.enter(vcpu, State::Waiting, now);
            let state = &mut self.vcpus[vcpu.0 as usize];
            state.stats.preempted += 1;
            if state.work.is_some() {
                state.overhead = state.overhead.max(self.cache_cost);
            }
        }
        self.dispatch(pcpu, decision.next?, clock)
    }

    fn dispatch<E: Copy + From<MachineEvent>>(
        &mut self,
        pcpu: PcpuId,
        vcpu: VcpuId,
        clock: &mut Clock<E>,
    ) -> Option<Step> {
        self.enter(vcpu, State::Running(pcpu), clock.now());
        let changed = self.pcpus[pcpu.0 as usize].last.replace(vcpu) != Some(vcpu);
        let state = &mut self.vcpus[vcpu.0 as usize];
        state.stats.dispatched += 1;
        if changed {
            // Who was stopped within the last change pays for this one, and not for what was left of that.
            state.overhead = state.overhead.min(self.cache_cost) + self.switch_cost;
        }
        if state.work.is_none() {
            return Some(Step::Idle(vcpu));
        }
        self.resume(vcpu, clock);
        None
    }

    fn enter(&mut self, vcpu: VcpuId, state: State, now: Instant) {
        if let Some(trace) = &mut self.trace {
            trace.push(Change { at: now, vcpu, state });
        }
        let vcpu = &mut self.vcpus[vcpu.0 as usize];
        let time = now.since(vcpu.since);
        match vcpu.state {
            State::Blocked => {}
            State::Waiting => vcpu.stats.waited += time,
            State::Running(_) => vcpu.stats.ran += time,
        }
        (vcpu.state, vcpu.since) = (state, now);
    }

    fn resume<E: Copy + From<MachineEvent>>(&mut self, vcpu: VcpuId, clock: &mut Clock<E>) {
        let event = self.event(CpuEvent::WorkEnd(vcpu));
        let state = &mut self.vcpus[vcpu.0 as usize];
        state.resumed = clock.now();
        let left = state.work.unwrap_or_default().min(state.until.since(clock.now()));
        state.timer = clock.after(state.overhead + left, event);
    }

    fn suspend<E: Copy + From<MachineEvent>>(&mut self, vcpu: VcpuId, clock: &mut Clock<E>) {
        let state = &mut self.vcpus[vcpu.0 as usize];
        if !clock.cancel(state.timer) {
            return;
        }
        let ran = clock.now().since(state.resumed);
        let overhead = state.overhead.min(ran);
        state.overhead -= overhead;
        state.work = state.work.map(|work| work.saturating_sub(ran - overhead));
    }
}
