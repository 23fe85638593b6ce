//! Round robin: Linux `SCHED_RR`.
//!
//! # Theory of operation
//! One queue per pCPU. Who runs, runs for its quantum, then goes to the end; who wakes up goes to the end and
//! preempts nobody (all have one priority). Who blocks before its quantum is over keeps the rest of it
//! (`sched_rr` counts down `rt.time_slice`, which only its expiry fills up again).
//!
//! A vCPU wakes up on the pCPU where it ran last, or on an idle one that it may use. A pCPU that would be
//! idle takes the first that waits elsewhere.
//!
//! Source: Linux `kernel/sched/rt.c`, POSIX `SCHED_RR`.

use std::collections::VecDeque;

use super::place::{allows, best};
use super::{Decision, PcpuId, Scheduler, VcpuId, VcpuSpec};
use crate::{Duration, Instant};

#[derive(Debug)]
struct Entity {
    affinity: u64,
    home: usize,
    left: Duration,
    started: Instant,
}

/// The scheduler.
#[derive(Debug)]
pub struct RoundRobin {
    quantum: Duration,
    queues: Vec<VecDeque<VcpuId>>,
    current: Vec<Option<VcpuId>>,
    entities: Vec<Entity>,
}

impl RoundRobin {
    /// For a number of pCPUs.
    #[must_use]
    pub fn new(pcpus: u32, quantum: Duration) -> Self {
        let n = pcpus as usize;
        let queues = vec![VecDeque::new(); n];
        Self { quantum, queues, current: vec![None; n], entities: Vec::new() }
    }

    fn steal(&mut self, pcpu: usize) -> Option<VcpuId> {
        for queue in &mut self.queues {
            let usable = |v: &VcpuId| allows(self.entities[v.0 as usize].affinity, pcpu);
            if let Some(at) = queue.iter().position(usable) {
                return queue.remove(at);
            }
        }
        None
    }
}

impl Scheduler for RoundRobin {
    fn add(&mut self, vcpu: VcpuId, spec: &VcpuSpec) {
        let homes = |pcpu| self.entities.iter().filter(|e| e.home == pcpu).count();
        let home = best(spec.affinity, self.queues.len(), homes);
        debug_assert_eq!(vcpu.0 as usize, self.entities.len());
        self.entities.push(Entity {
            affinity: spec.affinity,
            home,
            left: self.quantum,
            started: Instant::ZERO,
        });
    }

    fn wake(&mut self, vcpu: VcpuId, _: Instant, tickle: &mut Vec<PcpuId>) {
        let entity = &self.entities[vcpu.0 as usize];
        let busy = |pcpu: usize| self.current[pcpu].is_some() || !self.queues[pcpu].is_empty();
        let key = |pcpu| (busy(pcpu), pcpu != entity.home);
        let candidate = best(entity.affinity, self.queues.len(), key);
        let home = if busy(candidate) { entity.home } else { candidate };
        self.entities[vcpu.0 as usize].home = home;
        self.queues[home].push_back(vcpu);
        if self.current[home].is_none() {
            tickle.push(PcpuId(home as u32));
        }
    }

    fn schedule(&mut self, pcpu: PcpuId, runnable: bool, now: Instant) -> Decision {
        let at = pcpu.0 as usize;
        if let Some(vcpu) = self.current[at] {
            let entity = &mut self.entities[vcpu.0 as usize];
            entity.left = entity.left.saturating_sub(now.since(entity.started));
            entity.started = now;
            if runnable && !entity.left.is_zero() {
                return Decision { next: Some(vcpu), until: now + entity.left };
            }
            if entity.left.is_zero() {
                entity.left = self.quantum;
            }
            if runnable {
                self.queues[at].push_back(vcpu);
            }
        }
        let next = self.queues[at].pop_front().or_else(|| self.steal(at));
        self.current[at] = next;
        let Some(vcpu) = next else { return Decision { next, until: Instant::NEVER } };
        let entity = &mut self.entities[vcpu.0 as usize];
        (entity.home, entity.started) = (at, now);
        Decision { next, until: now + entity.left }
    }
}
