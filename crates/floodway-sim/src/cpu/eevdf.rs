//! EEVDF: the scheduler of ordinary threads in Linux since 6.6.
//!
//! # Theory of operation
//! Each vCPU has a virtual time, which advances while it runs by time divided by weight. `V`, the weighted
//! mean of those that are runnable on a pCPU, is what everybody should have had. Who has had less (*lag* >= 0)
//! is *eligible*; among these the one with the earliest virtual deadline runs. A deadline is one slice
//! after the virtual time at which it was requested; it is renewed when it has been reached.
//!
//! Who blocks while it is eligible keeps its lag and is placed by it again when it wakes up, scaled because its arrival moves `V`. Who blocks and has had more
//! than its share stays in the queue, *delayed*, and pays that back: once it is eligible and would be chosen, it leaves with a lag
//! of zero (`DELAY_DEQUEUE`, `DELAY_ZERO`, Linux since 6.12). If it wakes up before, it has the virtual time and deadline that it had.
//!
//! Who runs and is eligible is not preempted by a wake-up before its request is served (`RUN_TO_PARITY`), unless a shorter slice wakes up
//! (`PREEMPT_SHORT`). One that has had more than its share is preempted by whoever wakes up, is eligible, and has the earliest deadline. The end of a request
//! is noticed at a tick.
//!
//! Lag is bounded by the longer of two slices and a tick.
//!
//! Simplified: balancing is by idle pCPUs that take what waits elsewhere, and by wake-ups that prefer an idle pCPU. No groups.
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
    /// Who runs is not preempted before its request is served.
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
    /// It is blocked, and still queued until it is eligible.
    delayed: bool,
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

    /// The eligible one with the earliest deadline, delayed or not.
    fn first(&self, pcpu: usize) -> Option<VcpuId> {
        let (weights, sum) = self.load(pcpu);
        let eligible = |e: &Entity| e.virtual_time * weights <= sum;
        let all = self.queued(pcpu).filter(|(_, e)| eligible(e));
        all.min_by_key(|(_, e)| e.deadline).map(|(v, _)| v)
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

    /// It wakes up before its delay is over. What has become eligible meanwhile has a lag of zero.
    fn requeue(&mut self, vcpu: VcpuId) {
        let home = self.entities[vcpu.0 as usize].home;
        let surplus = self.is_eligible(vcpu);
        let entity = &mut self.entities[vcpu.0 as usize];
        entity.delayed = false;
        if surplus {
            (entity.queued, entity.lag) = (false, 0);
            self.enqueue(vcpu, home);
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
            started: Instant::ZERO,
        });
    }

    fn wake(&mut self, vcpu: VcpuId, now: Instant, tickle: &mut Vec<PcpuId>) {
        let home = self.home_of(vcpu);
        let served = self.charge(home, now);
        if self.entities[vcpu.0 as usize].delayed {
            self.requeue(vcpu);
        } else {
            self.enqueue(vcpu, home);
        }
        let Some(current) = self.current[home] else {
            tickle.push(PcpuId(home as u32));
            return;
        };
        let shorter =
            self.entities[vcpu.0 as usize].slice < self.entities[current.0 as usize].slice;
        let parity = self.config.run_to_parity && self.is_eligible(current);
        let protected = parity && !served && !shorter;
        if !protected && self.first(home) == Some(vcpu) {
            tickle.push(PcpuId(home as u32));
        }
    }

    fn schedule(&mut self, pcpu: PcpuId, runnable: bool, now: Instant) -> Decision {
        let at = pcpu.0 as usize;
        self.charge(at, now);
        if let Some(vcpu) = self.current[at].take().filter(|_| !runnable) {
            self.sleep(vcpu);
        }
        let next = self.pick(at).or_else(|| self.steal(at));
        self.current[at] = next;
        let Some(vcpu) = next else { return Decision { next, until: Instant::NEVER } };
        self.entities[vcpu.0 as usize].started = now;
        Decision { next, until: self.end_of_request(vcpu, now) }
    }
}
