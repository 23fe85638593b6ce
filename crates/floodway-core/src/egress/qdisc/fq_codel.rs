//! Flow queueing with `CoDel`: a queue for each flow, served in turn, each with its own `CoDel` state.
//!
//! # Theory of operation
//! A packet's flow hash chooses one of `flows` queues. Queues with packets are in one of two lists, *new* and *old*; new
//! ones are served first. A queue has credits in bytes: while they are positive it may send, and what it sends is taken
//! off; when they are spent it gets another `quantum` and goes to the end of the old list (DRR++, a
//! deficit round robin in which a queue may overdraw by one packet and pays for it afterwards). A flow that sends less than
//! a quantum per round is thus always new and waits for nobody's queue but the other new ones'.
//!
//! A new queue that runs empty passes once through the old list before it leaves it; otherwise a flow could be new
//! for ever by sending a packet whenever its queue has emptied, and starve the old ones.
//!
//! At the limit, packets are dropped from the head of the queue with the most bytes, up to [`DROP_BATCH`] of them or half of
//! that queue: the search costs a look at every queue, so it must not come with every packet of a flood. The drops
//! count for that queue's `CoDel` state.
//!
//! **Invariants**: a queue with packets is in exactly one list; between two turns of a queue, every other one sends
//! less than a quantum and a packet.
//!
//! Source: RFC 8290; batch drop as in Linux, `net/sched/sch_fq_codel.c` (commit message of 4.7).

use super::arena::{Arena, Chain};
use super::codel::{CodelConfig, Control, Look};
use super::{Backlog, Cause, Departure, Discipline, Dropped, Limits, Packet};
use crate::time::Instant;

/// Most packets that are dropped at once when the limit is reached.
pub const DROP_BATCH: u32 = 64;

/// No queue.
const NIL: u32 = u32::MAX;

/// Settings of the flow queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FqConfig {
    /// Queues, at least 1. Default 1024.
    pub flows: u32,
    /// Bytes per turn, at least 1. Default 1514: one full frame.
    pub quantum: u32,
}

impl Default for FqConfig {
    fn default() -> Self {
        Self { flows: 1024, quantum: 1514 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    queue: Chain,
    control: Control,
    credits: i64,
    listed: bool,
    /// The flow behind this one in its list.
    next: u32,
}

impl Flow {
    const IDLE: Self =
        Self { queue: Chain::EMPTY, control: Control::NEW, credits: 0, listed: false, next: NIL };
}

/// A list of flows: joined at the end, left at the front.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self { first: NIL, last: NIL };

    fn push(&mut self, flows: &mut [Flow], index: u32) {
        match flows.get_mut(self.last as usize) {
            Some(last) => last.next = index,
            None => self.first = index,
        }
        self.last = index;
    }

    fn pop(&mut self, flows: &mut [Flow]) {
        let Some(first) = flows.get_mut(self.first as usize) else { return };
        self.first = std::mem::replace(&mut first.next, NIL);
        if self.first == NIL {
            self.last = NIL;
        }
    }
}

/// The discipline. See the [module](self) for how it works.
#[derive(Debug)]
pub struct FqCodel<H> {
    limits: Limits,
    codel: CodelConfig,
    quantum: i64,
    flows: Vec<Flow>,
    new: List,
    old: List,
    arena: Arena<H>,
    backlog: Backlog,
}

impl<H> FqCodel<H> {
    /// Empty queues.
    #[must_use]
    pub fn new(limits: Limits, codel: CodelConfig, fq: FqConfig) -> Self {
        Self {
            limits,
            codel,
            quantum: i64::from(fq.quantum.max(1)),
            flows: vec![Flow::IDLE; fq.flows.max(1) as usize],
            new: List::EMPTY,
            old: List::EMPTY,
            arena: Arena::new(),
            backlog: Backlog::default(),
        }
    }

    /// Drops from the fattest queue until the limits hold.
    #[cold]
    fn shrink(&mut self, dropped: &mut Dropped<'_, H>) {
        while !self.limits.hold(self.backlog) {
            let Some(fattest) = self.flows.iter_mut().max_by_key(|f| f.queue.backlog().bytes)
            else {
                return;
            };
            let half = fattest.queue.backlog().bytes / 2;
            let (mut packets, mut bytes) = (0, 0);
            while let Some(queued) = self.arena.pop(&mut fattest.queue) {
                packets += 1;
                bytes += u64::from(queued.packet.len);
                dropped(queued.packet, Cause::Full);
                if packets >= DROP_BATCH || bytes >= half {
                    break;
                }
            }
            fattest.control.note_drops(packets);
            self.backlog.packets -= packets;
            self.backlog.bytes -= bytes;
            if packets == 0 {
                return;
            }
        }
    }

    /// The flow whose turn it is, and whether it is a new one.
    fn turn(&mut self) -> Option<(u32, bool)> {
        loop {
            let new = self.new.first != NIL;
            let list = if new { &mut self.new } else { &mut self.old };
            let index = list.first;
            let flow = self.flows.get_mut(index as usize)?;
            if flow.credits > 0 {
                return Some((index, new));
            }
            flow.credits += self.quantum;
            list.pop(&mut self.flows);
            self.old.push(&mut self.flows, index);
        }
    }

    /// The flow at the front of its list has nothing to send.
    fn retire(&mut self, index: u32, new: bool) {
        let list = if new { &mut self.new } else { &mut self.old };
        list.pop(&mut self.flows);
        if new && self.old.first != NIL {
            self.old.push(&mut self.flows, index);
        } else if let Some(flow) = self.flows.get_mut(index as usize) {
            flow.listed = false;
        }
    }
}

impl<H> Discipline<H> for FqCodel<H> {
    fn enqueue(&mut self, packet: Packet<H>, now: Instant, dropped: &mut Dropped<'_, H>) {
        let index = packet.flow % self.flows.len() as u64;
        let Some(flow) = self.flows.get_mut(index as usize) else { return };
        self.backlog.packets += 1;
        self.backlog.bytes += u64::from(packet.len);
        self.arena.push(&mut flow.queue, packet, now);
        if !flow.listed {
            flow.listed = true;
            flow.credits = self.quantum;
            self.new.push(&mut self.flows, index as u32);
        }
        if !self.limits.hold(self.backlog) {
            self.shrink(dropped);
        }
    }

    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped<'_, H>) -> Option<Departure<H>> {
        loop {
            let (index, new) = self.turn()?;
            let Self { flows, codel, arena, backlog, .. } = self;
            let flow = flows.get_mut(index as usize)?;
            let before = flow.queue.backlog();
            let mut look = Look { config: codel, arena, queue: &mut flow.queue, now };
            let departure = flow.control.dequeue(&mut look, dropped);
            let after = flow.queue.backlog();
            backlog.packets -= before.packets - after.packets;
            backlog.bytes -= before.bytes - after.bytes;
            if let Some(departure) = departure {
                flow.credits -= i64::from(departure.packet.len);
                return Some(departure);
            }
            self.retire(index, new);
        }
    }

    fn backlog(&self) -> Backlog {
        self.backlog
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { packets: 1000, bytes: u64::MAX };

    fn packet(flow: u64, len: u32) -> Packet<u64> {
        Packet { handle: flow, len, flow, ecn_capable: false }
    }

    fn queues(limits: Limits) -> FqCodel<u64> {
        FqCodel::new(limits, CodelConfig::default(), FqConfig::default())
    }

    fn order(fq: &mut FqCodel<u64>, n: usize) -> Vec<u64> {
        let mut next = || fq.dequeue(Instant::ZERO, &mut |_, _| {}).map(|d| d.packet.flow);
        (0..n).map_while(|_| next()).collect()
    }

    #[test]
    fn a_sparse_flow_goes_before_all_bulk() {
        let mut fq = queues(LIMITS);
        let mut none = |_: Packet<u64>, _| panic!("there is room");
        for i in 0..20 {
            fq.enqueue(packet(i % 2, 1514), Instant::ZERO, &mut none);
        }
        assert_eq!(order(&mut fq, 6), [0, 1, 0, 1, 0, 1]);
        fq.enqueue(packet(7, 100), Instant::ZERO, &mut none);
        assert_eq!(order(&mut fq, 2)[0], 7);
    }

    /// A flow that comes back whenever it is empty has had its turn as a new one: it waits in the old list.
    #[test]
    fn a_flow_is_not_new_for_ever() {
        let mut fq = queues(LIMITS);
        let mut none = |_: Packet<u64>, _| panic!("there is room");
        for _ in 0..50 {
            fq.enqueue(packet(0, 1514), Instant::ZERO, &mut none);
        }
        assert_eq!(order(&mut fq, 1), [0]);
        let mut served = [0; 2];
        for _ in 0..40 {
            if fq.flows[1].queue.is_empty() {
                fq.enqueue(packet(1, 1514), Instant::ZERO, &mut none);
            }
            served[order(&mut fq, 1)[0] as usize] += 1;
        }
        assert_eq!(served, [20, 20]);
    }

    #[test]
    fn at_the_limit_the_fattest_queue_pays_in_batches() {
        let mut fq = queues(LIMITS);
        for i in 0..1000 {
            fq.enqueue(packet(i % 10, 100), Instant::ZERO, &mut |_, _| panic!("there is room"));
        }
        // Many small packets are not the fattest queue: bytes count.
        let mut dropped = Vec::new();
        for _ in 0..30 {
            fq.enqueue(packet(77, 9000), Instant::ZERO, &mut |p, cause| {
                assert_eq!(cause, Cause::Full);
                dropped.push(p.flow);
            });
            assert!(LIMITS.hold(fq.backlog()));
        }
        let fat = dropped.iter().filter(|&&flow| flow == 77).count();
        assert!(fat + 50 >= dropped.len(), "{dropped:?}");
        // A batch is half of a queue, at most 64 packets.
        let mut flood = queues(Limits { packets: 500, bytes: u64::MAX });
        let mut lost = 0;
        for _ in 0..501 {
            flood.enqueue(packet(3, 100), Instant::ZERO, &mut |_, _| lost += 1);
        }
        assert_eq!((lost, flood.backlog().packets), (DROP_BATCH, 501 - DROP_BATCH));
        assert_eq!(flood.flows[3].control.count(), DROP_BATCH);
    }

    #[test]
    fn a_packet_that_fits_no_queue_is_dropped() {
        let mut fq = queues(Limits { packets: 10, bytes: 1000 });
        let mut lost = 0;
        fq.enqueue(packet(0, 1001), Instant::ZERO, &mut |_, _| lost += 1);
        assert_eq!((lost, fq.backlog()), (1, Backlog::default()));
        assert_eq!(order(&mut fq, 1), [0_u64; 0]);
    }

    #[test]
    fn a_quantum_of_one_byte_ends() {
        let fq = FqConfig { flows: 1, quantum: 0 };
        let mut fq = FqCodel::new(LIMITS, CodelConfig::default(), fq);
        for _ in 0..3 {
            fq.enqueue(packet(9, 1514), Instant::ZERO, &mut |_, _| {});
        }
        assert_eq!(order(&mut fq, 4), [9, 9, 9]);
    }
}
