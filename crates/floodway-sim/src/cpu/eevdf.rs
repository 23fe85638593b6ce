//! EEVDF: the scheduler of ordinary threads in Linux since 6.6.
//!
//! # Theory of operation
//! Each vCPU has a virtual time, which advances while it runs by time divided by weight. `V`, the weighted
//! mean of those that are runnable on a pCPU, is what everybody should have had. Who has had less (*lag* >= 0)
//! is *eligible*; among these the one with the earliest virtual deadline runs. A deadline is one slice
//! after the virtual time at which it was requested; it is renewed when it has been reached.
//!
//! Who blocks keeps its lag and is placed by it again when it wakes up, scaled because its arrival moves `V`.
//! Who runs is not preempted before its request is served (`RUN_TO_PARITY`), unless a shorter slice wakes up
//! (`PREEMPT_SHORT`). The end of a request is noticed at a tick.
//!
//! Simplified: lag is bounded by one slice; balancing is by idle pCPUs that take what waits elsewhere, and by
//! wake-ups that prefer an idle pCPU. No groups.
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

    fn pick(&self, pcpu: usize) -> Option<VcpuId> {
        let (weights, sum) = self.load(pcpu);
        let eligible = |e: &Entity| e.virtual_time * weights <= sum;
        let all = self.queued(pcpu).filter(|(_, e)| eligible(e));
        all.min_by_key(|(_, e)| e.deadline).map(|(v, _)| v)
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
        let bound = entity.slice * NICE_0 / entity.weight;
        entity.lag = (mean - entity.virtual_time).clamp(-bound, bound);
        entity.queued = false;
    }

    fn steal(&mut self, pcpu: usize) -> Option<VcpuId> {
        let waits = |(v, e): &(VcpuId, &Entity)| {
            e.queued && self.current[e.home] != Some(*v) && allows(e.affinity, pcpu)
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
            started: Instant::ZERO,
        });
    }

    fn wake(&mut self, vcpu: VcpuId, now: Instant, tickle: &mut Vec<PcpuId>) {
        let entity = &self.entities[vcpu.0 as usize];
        let key = |pcpu| (self.queued(pcpu).next().is_some(), pcpu != entity.home);
        let candidate = best(entity.affinity, self.current.len(), key);
        let idle = self.queued(candidate).next().is_none();
        let home = if idle { candidate } else { entity.home };
        let served = self.charge(home, now);
        self.enqueue(vcpu, home);
        let Some(current) = self.current[home] else {
            tickle.push(PcpuId(home as u32));
            return;
        };
        let shorter =
            self.entities[vcpu.0 as usize].slice < self.entities[current.0 as usize].slice;
        let protected = self.config.run_to_parity && !served && !shorter;
        if !protected && self.pick(home) == Some(vcpu) {
            tickle.push(PcpuId(home as u32));
        }
    }

    fn schedule(&mut self, pcpu: PcpuId, runnable: bool, now: Instant) -> Decision {
        let at = pcpu.0 as usize;
        self.charge(at, now);
        if let Some(vcpu) = self.current[at].take().filter(|_| !runnable) {
            self.dequeue(vcpu);
        }
        let next = self.pick(at).or_else(|| self.steal(at));
        self.current[at] = next;
        let Some(vcpu) = next else { return Decision { next, until: Instant::NEVER } };
        self.entities[vcpu.0 as usize].started = now;
        Decision { next, until: self.end_of_request(vcpu, now) }
    }
}
