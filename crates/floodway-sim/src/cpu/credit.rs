//! Xen's credit scheduler.
//!
//! # Theory of operation
//! **Credits.** A vCPU pays 10 credits per millisecond that it runs. Every 30 ms (*accounting*), 300 credits per
//! pCPU are shared out by weight among the *active* vCPUs; none earns more than 300 at a time, and what one
//! cannot take goes to the others. A vCPU with credits below zero becomes OVER, one above UNDER; one with more than
//! 300 has been idle: it leaves the active ones and keeps half. It joins them again when a tick (10 ms)
//! finds it running.
//!
//! **Order.** A queue per pCPU, by priority: BOOST, UNDER, OVER; first in, first out within each. Who runs
//! goes to the end of its class when its slice (30 ms) is over. Priorities change at accounting, queues are
//! sorted at the next tick.
//!
//! **Wake-up.** An UNDER vCPU that wakes up is BOOSTed; it preempts who runs if that has a lower priority
//! ("tickle"). The first tick that finds it running makes it UNDER again. BOOST does not preempt BOOST; with
//! `boost_preempts_boost` it does: the one-line change of the small-flows paper (section 4.1).
//! Who has become UNDER goes on all the same until somebody else wakes up, or its slice ends: a BOOSTed vCPU that waits meanwhile is not looked at;
//! with `tick_preempts` it is, as the vFlood paper has it (section 2.2: the driver domain gets the processor every 10 ms), though the code
//! does not. Nobody is preempted before `rate_limit` (1 ms since Xen 4.2, none before). Idle pCPUs are woken up to
//! take over what waits, and a pCPU that would run an OVER vCPU or none looks for better ones in the
//! queues of its peers.
//!
//! **Debit.** Xen before 4.1 takes 100 credits from whoever runs at a tick, and accounts in every third tick of one pCPU, after that;
//! later versions count exactly and account by a timer of its own, here just before the tick. The papers used 3.3 and 4.2.
//!
//! Not modelled: caps, migration at ticks to other than idle pCPUs, domains of several vCPUs (each vCPU is
//! accounted as a domain of its own).
//!
//! Source: Xen `xen/common/sched_credit.c`, versions 3.3 and 4.2.

use std::collections::VecDeque;

use super::place::{allows, best};
use super::{Decision, PcpuId, Scheduler, VcpuId, VcpuSpec};
use crate::{Duration, Instant};

const CREDITS_PER_MS: i64 = 10;

/// How running costs credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debit {
    /// A tick's worth from whoever runs at a tick.
    Sampled,
    /// What was used.
    Exact,
}

/// Settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditConfig {
    /// Slice, and time between accountings.
    pub slice: Duration,
    /// Ticks per slice.
    pub ticks: u32,
    /// Least time that a vCPU runs before it can be preempted.
    pub rate_limit: Duration,
    /// How running costs credits.
    pub debit: Debit,
    /// A waking BOOSTed vCPU preempts a running BOOSTed one.
    pub boost_preempts_boost: bool,
    /// At a tick, who waits preempts who runs if that has a lower priority now.
    pub tick_preempts: bool,
    /// When the first tick is; later ones follow at their distance.
    pub phase: Duration,
}

impl CreditConfig {
    /// Xen 3.3.
    #[must_use]
    pub const fn xen_3_3() -> Self {
        Self { rate_limit: Duration::ZERO, debit: Debit::Sampled, ..Self::xen_4_2() }
    }

    /// Xen 4.2.
    #[must_use]
    pub const fn xen_4_2() -> Self {
        Self {
            slice: Duration::from_millis(30),
            ticks: 3,
            rate_limit: Duration::from_millis(1),
            debit: Debit::Exact,
            boost_preempts_boost: false,
            tick_preempts: false,
            phase: Duration::from_millis(10),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    Over,
    Under,
    Boost,
}

#[derive(Debug)]
struct Entity {
    weight: i64,
    affinity: u64,
    priority: Priority,
    credit: i64,
    active: bool,
    home: usize,
    /// Up to where its running has been paid for.
    paid: Instant,
    /// Since when it runs without a break.
    started: Instant,
}

/// The scheduler.
#[derive(Debug)]
pub struct Credit {
    config: CreditConfig,
    entities: Vec<Entity>,
    /// Active vCPUs in the order of accounting.
    active: Vec<VcpuId>,
    queues: Vec<VecDeque<VcpuId>>,
    current: Vec<Option<VcpuId>>,
    balance: i64,
    ticks: u32,
    next_tick: Instant,
    unsorted: bool,
    last_idler: usize,
}

impl Credit {
    /// For a number of pCPUs.
    #[must_use]
    pub fn new(pcpus: u32, config: CreditConfig) -> Self {
        let n = pcpus as usize;
        Self {
            config,
            entities: Vec::new(),
            active: Vec::new(),
            queues: vec![VecDeque::new(); n],
            current: vec![None; n],
            balance: 0,
            ticks: 0,
            next_tick: Instant::ZERO + config.phase,
            unsorted: false,
            last_idler: 0,
        }
    }

    /// Credits of a vCPU now.
    #[must_use]
    pub fn credit(&self, vcpu: VcpuId) -> i64 {
        self.entities[vcpu.0 as usize].credit
    }

    fn credits_per_slice(&self) -> i64 {
        self.config.slice.as_millis() as i64 * CREDITS_PER_MS
    }

    fn insert(&mut self, pcpu: usize, vcpu: VcpuId) {
        let priority = self.entities[vcpu.0 as usize].priority;
        let before = |v: &VcpuId| self.entities[v.0 as usize].priority < priority;
        let at = self.queues[pcpu].iter().position(before);
        let end = self.queues[pcpu].len();
        self.queues[pcpu].insert(at.unwrap_or(end), vcpu);
    }

    fn tickle(&mut self, pcpu: usize, vcpu: VcpuId, tickle: &mut Vec<PcpuId>) {
        let new = &self.entities[vcpu.0 as usize];
        let Some(running) = self.current[pcpu] else {
            tickle.push(PcpuId(pcpu as u32));
            return;
        };
        let running = self.entities[running.0 as usize].priority;
        let both = new.priority == Priority::Boost && running == Priority::Boost;
        if new.priority > running || (both && self.config.boost_preempts_boost) {
            tickle.push(PcpuId(pcpu as u32));
        }
        let count = self.queues.len();
        let after = (1..=count).map(|n| (self.last_idler + n) % count);
        let idle = |&p: &usize| self.current[p].is_none() && allows(new.affinity, p);
        if let Some(idler) = after.into_iter().find(idle) {
            self.last_idler = idler;
            tickle.push(PcpuId(idler as u32));
        }
    }

    /// The pCPUs on which somebody waits with a higher priority than who runs.
    fn tickle_overtaken(&self, tickle: &mut Vec<PcpuId>) {
        let priority = |vcpu: &VcpuId| self.entities[vcpu.0 as usize].priority;
        for (pcpu, (queue, current)) in (0..).zip(self.queues.iter().zip(&self.current)) {
            let running = current.as_ref().map(priority);
            if running.is_some() && queue.front().map(priority) > running {
                tickle.push(PcpuId(pcpu));
            }
        }
    }

    fn burn(&mut self, vcpu: VcpuId, now: Instant) {
        if self.config.debit == Debit::Sampled {
            return;
        }
        let entity = &mut self.entities[vcpu.0 as usize];
        let ns = now.since(entity.paid).as_nanos() as i64;
        let credits = (ns * CREDITS_PER_MS + 500_000) / 1_000_000;
        entity.credit -= credits;
        // What was rounded is carried on.
        let paid = entity.paid.as_nanos() as i64 + credits * 1_000_000 / CREDITS_PER_MS;
        entity.paid = Instant::from_nanos(paid as u64);
    }

    /// A tick on a pCPU: who runs there is not boosted any more, pays, and is active.
    fn tick(&mut self, vcpu: VcpuId, now: Instant) {
        self.burn(vcpu, now);
        let per_tick = self.credits_per_slice() / i64::from(self.config.ticks.max(1));
        let entity = &mut self.entities[vcpu.0 as usize];
        if entity.priority == Priority::Boost {
            entity.priority = Priority::Under;
        }
        if self.config.debit == Debit::Sampled {
            entity.credit -= per_tick;
        }
        if !entity.active {
            entity.active = true;
            self.active.push(vcpu);
        }
    }

    fn account(&mut self) {
        let per_slice = self.credits_per_slice();
        let weights: i64 = self.active.iter().map(|v| self.entities[v.0 as usize].weight).sum();
        if weights == 0 {
            return;
        }
        let mut total = per_slice * self.queues.len() as i64;
        let (mut left, mut balance) = (weights, 0);
        let mut extra = false;
        let mut order = std::mem::take(&mut self.active);
        let mut moved = Vec::new();
        for &vcpu in &order {
            let entity = &mut self.entities[vcpu.0 as usize];
            left -= entity.weight;
            let mut peak = per_slice;
            if self.balance < 0 {
                peak += div_ceil(-self.balance * entity.weight, weights);
            }
            let mut fair = div_ceil(total * entity.weight, weights);
            if fair < peak {
                extra = true;
            } else {
                if left != 0 {
                    total += div_ceil((fair - peak) * weights, left);
                }
                if extra {
                    // Others get their chance at credits that are left over.
                    moved.push(vcpu);
                }
                fair = peak;
            }
            entity.credit += fair;
            if entity.credit < 0 {
                entity.priority = Priority::Over;
                entity.credit = entity.credit.max(-per_slice);
            } else {
                entity.priority = Priority::Under;
                if entity.credit > per_slice {
                    entity.active = false;
                    entity.credit = self.config.kept(entity.credit, per_slice);
                }
            }
            balance += entity.credit;
        }
        order.retain(|v| self.entities[v.0 as usize].active && !moved.contains(v));
        moved.retain(|v| self.entities[v.0 as usize].active);
        moved.reverse();
        moved.extend(order);
        self.active = moved;
        self.balance = balance;
        self.unsorted = true;
    }

    fn sort(&mut self) {
        let entities = &self.entities;
        for queue in &mut self.queues {
            // Stable: what is not OVER comes before what is.
            queue
                .make_contiguous()
                .sort_by_key(|v| entities[v.0 as usize].priority == Priority::Over);
        }
        self.unsorted = false;
    }

    /// The best that waits at another pCPU, if it is better than `than`.
    fn steal(&mut self, pcpu: usize, than: Option<Priority>) -> Option<VcpuId> {
        let count = self.queues.len();
        for peer in (1..count).map(|n| (pcpu + n) % count) {
            // An idle peer is about to take what it has itself.
            if self.current[peer].is_none() {
                continue;
            }
            let usable = |v: &VcpuId| {
                let e = &self.entities[v.0 as usize];
                than.is_none_or(|than| e.priority > than) && allows(e.affinity, pcpu)
            };
            if let Some(at) = self.queues[peer].iter().position(usable) {
                return self.queues[peer].remove(at);
            }
        }
        None
    }

    fn take_next(&mut self, pcpu: usize) -> Option<VcpuId> {
        let first = self.queues[pcpu].front().copied();
        let priority = first.map(|v| self.entities[v.0 as usize].priority);
        if priority.is_none_or(|p| p == Priority::Over)
            && let Some(better) = self.steal(pcpu, priority)
        {
            return Some(better);
        }
        self.queues[pcpu].pop_front()
    }
}

impl CreditConfig {
    /// Credits with which a vCPU leaves the active ones.
    const fn kept(&self, credit: i64, per_slice: i64) -> i64 {
        match self.debit {
            Debit::Sampled => per_slice,
            Debit::Exact => credit / 2,
        }
    }
}

fn div_ceil(a: i64, b: i64) -> i64 {
    (a + b - 1) / b
}

impl Scheduler for Credit {
    fn add(&mut self, vcpu: VcpuId, spec: &VcpuSpec) {
        debug_assert_eq!(vcpu.0 as usize, self.entities.len());
        let homes = |pcpu| self.entities.iter().filter(|e| e.home == pcpu).count();
        let home = best(spec.affinity, self.queues.len(), homes);
        self.entities.push(Entity {
            weight: i64::from(spec.weight.max(1)),
            affinity: spec.affinity,
            priority: Priority::Under,
            credit: 0,
            active: false,
            home,
            paid: Instant::ZERO,
            started: Instant::ZERO,
        });
    }

    fn wake(&mut self, vcpu: VcpuId, _: Instant, tickle: &mut Vec<PcpuId>) {
        let entity = &mut self.entities[vcpu.0 as usize];
        if entity.priority == Priority::Under {
            entity.priority = Priority::Boost;
        }
        let home = entity.home;
        self.insert(home, vcpu);
        self.tickle(home, vcpu, tickle);
    }

    fn schedule(&mut self, pcpu: PcpuId, runnable: bool, now: Instant) -> Decision {
        let at = pcpu.0 as usize;
        if let Some(vcpu) = self.current[at] {
            self.burn(vcpu, now);
            let ran = now.since(self.entities[vcpu.0 as usize].started);
            if runnable && ran < self.config.rate_limit {
                return Decision { next: Some(vcpu), until: now + (self.config.rate_limit - ran) };
            }
            if runnable {
                self.insert(at, vcpu);
            }
        }
        let next = self.take_next(at);
        let before = std::mem::replace(&mut self.current[at], next);
        let Some(vcpu) = next else { return Decision { next, until: Instant::NEVER } };
        let entity = &mut self.entities[vcpu.0 as usize];
        entity.home = at;
        if before != next || !runnable {
            (entity.started, entity.paid) = (now, now);
        }
        Decision { next, until: now + self.config.slice }
    }

    fn next_tick(&self) -> Instant {
        self.next_tick
    }

    fn on_tick(&mut self, now: Instant, tickle: &mut Vec<PcpuId>) {
        let ticks = self.config.ticks.max(1);
        self.next_tick = now + self.config.slice / ticks;
        self.ticks += 1;
        let accounts = self.ticks.is_multiple_of(ticks);
        let has_own_timer = self.config.debit == Debit::Exact;
        if accounts && has_own_timer {
            self.account();
        }
        for pcpu in 0..self.current.len() {
            if let Some(vcpu) = self.current[pcpu] {
                self.tick(vcpu, now);
            }
        }
        if accounts && !has_own_timer {
            self.account();
        }
        if self.unsorted {
            self.sort();
        }
        if self.config.tick_preempts {
            self.tickle_overtaken(tickle);
        }
    }
}
