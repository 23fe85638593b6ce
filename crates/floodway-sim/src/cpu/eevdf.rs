//! EEVDF: the scheduler of ordinary threads in Linux since 6.6.
//!
//! # Theory of operation
//! Each vCPU has a virtual time, which advances while it runs by time divided by weight. `V`, the weighted
//! mean of those that are runnable on a pCPU, is what everybody should have had. Who has had less (*lag* >= 0)
//! is *eligible*; among these the one with the earliest virtual deadline runs. A deadline is one slice
//! after the virtual time at which it was requested; it is renewed when it has been reached.
//!
//! **Sleep.** A vCPU that blocks while it is eligible keeps its lag and is placed by it again when it wakes up, scaled
//! because its arrival moves `V`. One that blocks after more than its share stays in the queue, *delayed*, until it has
//! paid that back: when it is eligible and would be chosen, it leaves with a lag of zero. If it wakes up while it still
//! owes, it keeps its virtual time and its deadline; if it no longer owes, it is placed anew with a lag of zero
//! (`DELAY_DEQUEUE` and `DELAY_ZERO`, Linux since 6.12). Lag is bounded by the longer of two slices and a tick.
//!
//! **Preemption.** Who is chosen in another one's place is *protected* until its deadline, or for the shortest slice in
//! the queue if that is less (`RUN_TO_PARITY`, as in Linux 6.17), but only while it is eligible, and not from a wake-up with a shorter
//! slice (`PREEMPT_SHORT`). Who is not protected gives way to a wake-up that is eligible and has an earlier deadline, or the same.
//! The end of a request is noticed at a tick, or at a wake-up if two were queued before; then the first in order runs.
//!
//! What has run since the last tick or change does not count yet when a delayed one wakes up: Linux looks at `V` as it was computed last.
//!
//! Simplified: balancing is by idle pCPUs that take what waits elsewhere, with a new deadline, and by wake-ups that
//! prefer an idle pCPU. Who has the same deadline as others in the queue goes by number, not by order of arrival. No groups.
//!
//! Invariants: a pCPU that has nobody to run has nobody delayed; who is chosen is not delayed.
//!
//! Source: Stoica and Abdel-Wahab, "Earliest Eligible Virtual Deadline First", 1995; Linux `kernel/sched/fair.c`.

use super::place::{allows, best};
use super::{Decision, PcpuId, Scheduler, VcpuId, VcpuSpec};
use crate::{Duration, Instant};

const NICE_0: i128 = 1024;

/// Settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EevdfConfig {
    /// Slice of a vCPU that has none of its own.
    pub slice: Duration,
    /// Tick; zero notices the end of a request at once.
    pub tick: Duration,
    /// Who runs is not preempted before its request is served, while it is eligible.
    pub run_to_parity: bool,
}

impl Default for EevdfConfig {
    /// Two processors, `CONFIG_HZ=250`.
    fn default() -> Self {
        Self {
            slice: Duration::from_micros(1_400),
            tick: Duration::from_millis(4),
            run_to_parity: true,
        }
    }
}

#[derive(Debug)]
struct Entity {
    affinity: u64,
    weight: i128,
    home: usize,
    slice: i128,
    /// Virtual time and deadline, in nanoseconds at weight 1024; lag while blocked.
    virtual_time: i128,
    deadline: i128,
    lag: i128,
    queued: bool,
    /// It is blocked, and still queued until it would be chosen or wakes up.
    delayed: bool,
    /// Virtual time up to which it is protected.
    protected_until: i128,
    started: Instant,
}

/// The scheduler.
#[derive(Debug)]
pub struct Eevdf {
    config: EevdfConfig,
    entities: Vec<Entity>,
    current: Vec<Option<VcpuId>>,
}

impl Eevdf {
    /// For a number of pCPUs.
    #[must_use]
    pub fn new(pcpus: u32, config: EevdfConfig) -> Self {
        Self { config, entities: Vec::new(), current: vec![None; pcpus as usize] }
    }

    fn queued(&self, pcpu: usize) -> impl Iterator<Item = (VcpuId, &Entity)> {
        let all = (0..).map(VcpuId).zip(&self.entities);
        all.filter(move |(_, entity)| entity.queued && entity.home == pcpu)
    }

    /// Sum of weights, and `V` times that sum.
    fn load(&self, pcpu: usize) -> (i128, i128) {
        self.queued(pcpu).fold((0, 0), |(weights, sum), (_, e)| {
            (weights + e.weight, sum + e.weight * e.virtual_time)
        })
    }

    fn mean(&self, pcpu: usize) -> i128 {
        let (weights, sum) = self.load(pcpu);
        if weights == 0 { 0 } else { sum.div_euclid(weights) }
    }

    /// The eligible one with the earliest deadline, delayed or not; of two with the same, the one that does not run.
    fn first(&self, pcpu: usize) -> Option<VcpuId> {
        let (weights, sum) = self.load(pcpu);
        let eligible = |e: &Entity| e.virtual_time * weights <= sum;
        let all = self.queued(pcpu).filter(|(_, e)| eligible(e));
        let key = |v, e: &Entity| (e.deadline, self.current[pcpu] == Some(v));
        all.min_by_key(|&(v, e)| key(v, e)).map(|(v, _)| v)
    }

    fn is_eligible(&self, vcpu: VcpuId) -> bool {
        let entity = &self.entities[vcpu.0 as usize];
        let (weights, sum) = self.load(entity.home);
        entity.virtual_time * weights <= sum
    }

    /// Who runs next. Those whose delay is over leave the queue.
    fn pick(&mut self, pcpu: usize) -> Option<VcpuId> {
        loop {
            let first = self.first(pcpu)?;
            let entity = &mut self.entities[first.0 as usize];
            if !entity.delayed {
                return Some(first);
            }
            (entity.queued, entity.delayed, entity.lag) = (false, false, 0);
        }
    }

    /// Charges who runs; true if its request is served.
    fn charge(&mut self, pcpu: usize, now: Instant) -> bool {
        let Some(vcpu) = self.current[pcpu] else { return true };
        let entity = &mut self.entities[vcpu.0 as usize];
        let ran = now.since(entity.started).as_nanos() as i128;
        entity.started = now;
        entity.virtual_time += ran * NICE_0 / entity.weight;
        let served = entity.virtual_time >= entity.deadline;
        if served {
            entity.deadline = entity.virtual_time + entity.slice * NICE_0 / entity.weight;
        }
        served
    }

    fn enqueue(&mut self, vcpu: VcpuId, pcpu: usize) {
        let (weights, _) = self.load(pcpu);
        let mean = self.mean(pcpu);
        let entity = &mut self.entities[vcpu.0 as usize];
        let total = weights + entity.weight;
        let lag = if weights == 0 { 0 } else { entity.lag * total / weights };
        entity.virtual_time = mean - lag;
        entity.deadline = entity.virtual_time + entity.slice * NICE_0 / entity.weight;
        (entity.queued, entity.home) = (true, pcpu);
    }

    fn dequeue(&mut self, vcpu: VcpuId) {
        let mean = self.mean(self.entities[vcpu.0 as usize].home);
        let entity = &mut self.entities[vcpu.0 as usize];
        let bound = (2 * entity.slice).max(self.config.tick.as_nanos() as i128);
        let bound = bound * NICE_0 / entity.weight;
        entity.lag = (mean - entity.virtual_time).clamp(-bound, bound);
        entity.queued = false;
    }

    /// It blocks.
    fn sleep(&mut self, vcpu: VcpuId) {
        if self.is_eligible(vcpu) {
            self.dequeue(vcpu);
        } else {
            self.entities[vcpu.0 as usize].delayed = true;
        }
    }

    /// It wakes up while it is delayed. If its share has become more than it has had, its lag is set to zero.
    fn requeue(&mut self, vcpu: VcpuId) {
        let home = self.entities[vcpu.0 as usize].home;
        let (weights, sum) = self.load(home);
        let entity = &mut self.entities[vcpu.0 as usize];
        entity.delayed = false;
        if entity.virtual_time * weights < sum {
            (entity.queued, entity.lag) = (false, 0);
            self.enqueue(vcpu, home);
        }
    }

    /// Makes one that wakes up runnable, and charges who runs; returns `true` if the request of that one is served.
    fn admit(&mut self, vcpu: VcpuId, pcpu: usize, now: Instant) -> bool {
        if !self.entities[vcpu.0 as usize].delayed {
            let served = self.charge(pcpu, now);
            self.enqueue(vcpu, pcpu);
            return served;
        }
        let noticed = self.last_tick(now).is_some_and(|tick| self.charge_up_to(pcpu, tick));
        self.requeue(vcpu);
        self.charge(pcpu, now) || noticed
    }

    /// The last tick before a time, if there are ticks.
    fn last_tick(&self, now: Instant) -> Option<Instant> {
        let tick = self.config.tick.as_nanos() as u64;
        (tick > 0).then(|| Instant::from_nanos(now.as_nanos() / tick * tick))
    }

    /// Charges who runs up to a time that has passed; returns `true` if its request was served by then.
    fn charge_up_to(&mut self, pcpu: usize, then: Instant) -> bool {
        let started = self.current[pcpu].map(|vcpu| self.entities[vcpu.0 as usize].started);
        started.is_some_and(|started| started < then) && self.charge(pcpu, then)
    }

    fn is_protected(&self, vcpu: VcpuId) -> bool {
        let entity = &self.entities[vcpu.0 as usize];
        let within = entity.virtual_time < entity.protected_until;
        self.config.run_to_parity && within && self.is_eligible(vcpu)
    }

    /// Protects one for no longer than the shortest slice that is queued beside it.
    fn protect(&mut self, vcpu: VcpuId) {
        let home = self.entities[vcpu.0 as usize].home;
        let shortest = self.queued(home).map(|(_, entity)| entity.slice).min();
        let entity = &mut self.entities[vcpu.0 as usize];
        if let Some(shortest) = shortest.filter(|&shortest| shortest < entity.slice) {
            let end = entity.virtual_time + shortest * NICE_0 / entity.weight;
            entity.protected_until = entity.protected_until.min(end);
        }
    }

    /// The pCPU on which it wakes up: where it is queued, an idle one, or its last one.
    fn home_of(&self, vcpu: VcpuId) -> usize {
        let entity = &self.entities[vcpu.0 as usize];
        if entity.delayed {
            return entity.home;
        }
        let key = |pcpu| (self.queued(pcpu).next().is_some(), pcpu != entity.home);
        let candidate = best(entity.affinity, self.current.len(), key);
        let idle = self.queued(candidate).next().is_none();
        if idle { candidate } else { entity.home }
    }

    fn steal(&mut self, pcpu: usize) -> Option<VcpuId> {
        let waits = |(v, e): &(VcpuId, &Entity)| {
            let waits = e.queued && !e.delayed && self.current[e.home] != Some(*v);
            waits && allows(e.affinity, pcpu)
        };
        let found = (0..).map(VcpuId).zip(&self.entities).find(waits)?.0;
        self.dequeue(found);
        self.enqueue(found, pcpu);
        Some(found)
    }

    fn end_of_request(&self, vcpu: VcpuId, now: Instant) -> Instant {
        let entity = &self.entities[vcpu.0 as usize];
        let left = (entity.deadline - entity.virtual_time).max(0) * entity.weight;
        // Rounded up, or the request would never be served.
        let left = (left + NICE_0 - 1) / NICE_0;
        let end = now + Duration::from_nanos(left as u64);
        match self.config.tick.as_nanos() as u64 {
            0 => end,
            tick => Instant::from_nanos(end.as_nanos().next_multiple_of(tick)),
        }
    }
}

impl Scheduler for Eevdf {
    fn add(&mut self, vcpu: VcpuId, spec: &VcpuSpec) {
        debug_assert_eq!(vcpu.0 as usize, self.entities.len());
        let homes = |pcpu| self.entities.iter().filter(|e| e.home == pcpu).count();
        let home = best(spec.affinity, self.current.len(), homes);
        self.entities.push(Entity {
            affinity: spec.affinity,
            weight: i128::from(spec.weight.max(1)),
            home,
            slice: spec.slice.unwrap_or(self.config.slice).as_nanos() as i128,
            virtual_time: 0,
            deadline: 0,
            lag: 0,
            queued: false,
            delayed: false,
            protected_until: 0,
            started: Instant::ZERO,
        });
    }

    fn wake(&mut self, vcpu: VcpuId, now: Instant, tickle: &mut Vec<PcpuId>) {
        let home = self.home_of(vcpu);
        let queued = self.queued(home).count();
        let served = self.admit(vcpu, home, now);
        let Some(current) = self.current[home] else {
            tickle.push(PcpuId(home as u32));
            return;
        };
        let slice = |vcpu: VcpuId| self.entities[vcpu.0 as usize].slice;
        let shorter = slice(vcpu) < slice(current);
        let protected = !shorter && self.is_protected(current);
        let preempts = !protected && self.first(home) == Some(vcpu);
        if preempts || (served && queued >= 2) {
            tickle.push(PcpuId(home as u32));
        } else if shorter {
            self.protect(current);
        }
    }

    fn schedule(&mut self, pcpu: PcpuId, runnable: bool, now: Instant) -> Decision {
        let at = pcpu.0 as usize;
        self.charge(at, now);
        let before = self.current[at];
        if let Some(vcpu) = before.filter(|_| !runnable) {
            self.sleep(vcpu);
            self.current[at] = None;
        }
        let next = self.pick(at).or_else(|| self.steal(at));
        self.current[at] = next;
        let Some(vcpu) = next else { return Decision { next, until: Instant::NEVER } };
        self.entities[vcpu.0 as usize].started = now;
        if next != before {
            let entity = &mut self.entities[vcpu.0 as usize];
            entity.protected_until = entity.deadline;
            self.protect(vcpu);
        }
        Decision { next, until: self.end_of_request(vcpu, now) }
    }
}
