//! The event queue: a monotone radix queue over linked nodes.
//!
//! # Theory of operation
//! **Goal.** Take the earliest event, the oldest of those at the same nanosecond first; cancel or move any
//! pending event in constant time; allocate nothing per event once the node pool has grown.
//!
//! **Structure.** A simulation never schedules before its present. Let `last` be the time of the event
//! taken last. A pending time `t` differs from `last` first in some digit, counted from the top in base
//! 64: that digit's number is the event's *level*, the digit itself its *slot*. Each slot is a linked
//! list; a word per level says which slots hold something. The earliest event is in the lowest level
//! that holds anything, in its lowest slot. At level 0 all of a slot's events have the same time. A slot of a higher
//! level with one event is the answer, too; one with several is scanned for the minimum, which
//! becomes `last`, and its events move to lower levels. Eleven levels cover 64 bits; an event moves
//! at most ten times and in practice twice, since a level spans a factor of 64 of delay.
//!
//! **Invariant.** Level and slot of every pending event are those that its time and the current `last`
//! give. Advancing `last` to the minimum, found at level `j`, keeps all digits above `j`, so levels above
//! `j` stay right, other slots of `j` still differ in that digit, and below `j` there is nothing. Two
//! consequences: nodes need not remember where they are, and events of equal time always share
//! a slot in the order in which they were scheduled (moves between levels keep it), so ties are first
//! in, first out without a sequence number.
//!
//! **Generations.** A [`Timer`] names a node and the generation in which it was scheduled. Taking or cancelling
//! an event starts the node's next generation, so an old timer names nothing.
//!
//! The bench `event_queue` compares it with a binary heap, a two-way radix heap and a calendar queue
//! (Brown, CACM 1988). Source: Ahuja, Mehlhorn, Orlin, Tarjan, "Faster algorithms for the shortest path problem", JACM 1990.

use crate::Instant;

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 64usize.div_ceil(DIGIT_BITS as usize);
const NIL: u32 = u32::MAX;

/// Names a pending event. Names nothing once that was taken or cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    node: u32,
    generation: u32,
}

impl Timer {
    /// Names no event.
    pub const NONE: Self = Self { node: NIL, generation: 0 };
}

impl Default for Timer {
    fn default() -> Self {
        Self::NONE
    }
}

#[derive(Clone, Copy, Debug)]
struct Node<E> {
    time: u64,
    prev: u32,
    next: u32,
    generation: u32,
    pending: bool,
    event: E,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List { head: NIL, tail: NIL };

/// Pending events by time, first in first out among equal times.
#[derive(Debug)]
pub struct EventQueue<E> {
    nodes: Vec<Node<E>>,
    free: u32,
    occupied: [u64; LEVELS],
    lists: Box<[[List; SLOTS]; LEVELS]>,
    last: u64,
    len: usize,
}

impl<E: Copy> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Copy> EventQueue<E> {
    /// An empty queue at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NIL,
            occupied: [0; LEVELS],
            lists: Box::new([[EMPTY; SLOTS]; LEVELS]),
            last: 0,
            len: 0,
        }
    }

    /// Events pending.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No event is pending.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Schedules an event. A time before that of the event taken last counts as that time.
    #[inline]
    pub fn push(&mut self, time: Instant, event: E) -> Timer {
        let time = time.as_nanos().max(self.last);
        let node = self.new_node(time, event);
        self.link(node, time);
        self.len += 1;
        Timer { node, generation: self.nodes[node as usize].generation }
    }

    /// The time of the earliest event; `None` if nothing is pending.
    #[must_use]
    pub fn next_time(&self) -> Option<Instant> {
        let level = self.lowest_level()?;
        let List { head, tail } = self.lists[level][self.occupied[level].trailing_zeros() as usize];
        // At level 0 all events of a slot have the same time.
        let time = if level == 0 || head == tail {
            self.nodes[head as usize].time
        } else {
            self.earliest_of(head)
        };
        Some(Instant::from_nanos(time))
    }

    /// Takes the earliest event that is not after `limit`.
    #[inline]
    pub fn pop(&mut self, limit: Instant) -> Option<(Instant, E)> {
        let limit = limit.as_nanos();
        let level = self.lowest_level()?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let head = self.lists[level][slot].head;
        let alone = self.lists[level][slot].tail == head;
        if level > 0 && !alone {
            let earliest = self.earliest_of(head);
            if earliest > limit {
                return None;
            }
            self.spread(level, slot, earliest);
            return self.pop(Instant::from_nanos(limit));
        }
        let time = self.nodes[head as usize].time;
        if time > limit {
            return None;
        }
        self.unlink_at(head, level, slot);
        self.last = time;
        Some((Instant::from_nanos(time), self.retire(head)))
    }

    /// The event is still to come.
    #[must_use]
    pub fn is_pending(&self, timer: Timer) -> bool {
        self.nodes
            .get(timer.node as usize)
            .is_some_and(|node| node.pending && node.generation == timer.generation)
    }

    /// Removes a pending event; `None` if there is none of that name.
    pub fn cancel(&mut self, timer: Timer) -> Option<E> {
        if !self.is_pending(timer) {
            return None;
        }
        self.unlink(timer.node);
        Some(self.retire(timer.node))
    }

    /// Gives a pending event another time, behind those that are already scheduled for it. False if there
    /// is none of that name.
    pub fn reschedule(&mut self, timer: Timer, time: Instant) -> bool {
        if !self.is_pending(timer) {
            return false;
        }
        self.unlink(timer.node);
        let time = time.as_nanos().max(self.last);
        self.nodes[timer.node as usize].time = time;
        self.link(timer.node, time);
        true
    }

    fn new_node(&mut self, time: u64, event: E) -> u32 {
        if self.free == NIL {
            let node = self.nodes.len() as u32;
            assert!(node < NIL, "4 billion events pending");
            self.nodes.push(Node {
                time,
                prev: NIL,
                next: NIL,
                generation: 0,
                pending: true,
                event,
            });
            return node;
        }
        let index = self.free;
        let node = &mut self.nodes[index as usize];
        self.free = node.next;
        (node.time, node.event, node.pending) = (time, event, true);
        index
    }

    fn retire(&mut self, index: u32) -> E {
        let node = &mut self.nodes[index as usize];
        node.generation = node.generation.wrapping_add(1);
        node.pending = false;
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        node.event
    }

    #[inline]
    fn place(&self, time: u64) -> (usize, usize) {
        let differs = (time ^ self.last) | 1;
        let level = (63 - differs.leading_zeros()) / DIGIT_BITS;
        (level as usize, (time >> (level * DIGIT_BITS)) as usize % SLOTS)
    }

    #[inline]
    fn link(&mut self, index: u32, time: u64) {
        let (level, slot) = self.place(time);
        let list = &mut self.lists[level][slot];
        let tail = list.tail;
        list.tail = index;
        if tail == NIL {
            list.head = index;
            self.occupied[level] |= 1 << slot;
        } else {
            self.nodes[tail as usize].next = index;
        }
        let node = &mut self.nodes[index as usize];
        (node.prev, node.next) = (tail, NIL);
    }

    fn unlink(&mut self, index: u32) {
        let (level, slot) = self.place(self.nodes[index as usize].time);
        self.unlink_at(index, level, slot);
    }

    #[inline]
    fn unlink_at(&mut self, index: u32, level: usize, slot: usize) {
        let Node { prev, next, .. } = self.nodes[index as usize];
        let list = &mut self.lists[level][slot];
        if prev == NIL {
            list.head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next == NIL {
            list.tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
        if self.lists[level][slot].head == NIL {
            self.occupied[level] &= !(1 << slot);
        }
    }

    #[inline]
    fn lowest_level(&self) -> Option<usize> {
        self.occupied.iter().position(|&slots| slots != 0)
    }

    fn earliest_of(&self, head: u32) -> u64 {
        let mut earliest = u64::MAX;
        let mut at = head;
        while at != NIL {
            let node = &self.nodes[at as usize];
            earliest = earliest.min(node.time);
            at = node.next;
        }
        earliest
    }

    /// Advances to `earliest`, the minimum of the slot, and moves its events to the levels below.
    fn spread(&mut self, level: usize, slot: usize, earliest: u64) {
        let mut at = std::mem::replace(&mut self.lists[level][slot], EMPTY).head;
        self.occupied[level] &= !(1 << slot);
        self.last = earliest;
        while at != NIL {
            let Node { time, next, .. } = self.nodes[at as usize];
            self.link(at, time);
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn equal_times_are_first_in_first_out_across_levels() {
        let mut queue = EventQueue::new();
        queue.push(at(1_000_000), 1);
        queue.push(at(5), 0);
        queue.push(at(1_000_000), 2);
        assert_eq!(queue.pop(Instant::NEVER), Some((at(5), 0)));
        queue.push(at(1_000_000), 3);
        queue.push(at(999_999), 4);
        assert_eq!(queue.pop(Instant::NEVER), Some((at(999_999), 4)));
        queue.push(at(1_000_000), 5);
        let rest: Vec<_> =
            std::iter::from_fn(|| queue.pop(Instant::NEVER)).map(|(_, e)| e).collect();
        assert_eq!(rest, [1, 2, 3, 5]);
    }

    #[test]
    fn a_limit_leaves_the_queue_open_for_earlier_events() {
        let mut queue = EventQueue::new();
        queue.push(at(1 << 40), 'b');
        queue.push((at(1 << 40)) + crate::Duration::from_nanos(1), 'c');
        assert_eq!(queue.pop(at(100)), None);
        queue.push(at(200), 'a');
        let all: String = std::iter::from_fn(|| queue.pop(Instant::NEVER)).map(|e| e.1).collect();
        assert_eq!(all, "abc");
    }

    #[test]
    fn an_old_timer_names_nothing() {
        let mut queue = EventQueue::new();
        let first = queue.push(at(1), 1);
        assert!(queue.pop(Instant::NEVER).is_some());
        let second = queue.push(at(2), 2);
        assert!(!queue.is_pending(first) && queue.is_pending(second));
        assert_eq!(queue.cancel(first), None);
        assert!(!queue.reschedule(first, at(9)));
        assert_eq!(queue.cancel(second), Some(2));
        assert_eq!(queue.cancel(second), None);
        assert!(queue.is_empty() && queue.pop(Instant::NEVER).is_none());
        assert!(!queue.is_pending(Timer::NONE));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(u64),
        Pop(u64),
        Cancel(usize),
        Move(usize, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let delay = prop_oneof![0_u64..4, 0_u64..5_000, 0_u64..200_000_000, Just(1 << 50)];
        let step = prop_oneof![
            4 => delay.clone().prop_map(Step::Push),
            3 => delay.clone().prop_map(Step::Pop),
            1 => any::<usize>().prop_map(Step::Cancel),
            1 => (any::<usize>(), delay).prop_map(|(n, d)| Step::Move(n, d)),
        ];
        proptest::collection::vec(step, 1..300)
    }

    proptest! {
        /// Against a list sorted by time and age.
        #[test]
        fn agrees_with_a_sorted_list(steps in steps()) {
            let mut queue = EventQueue::new();
            // (time, age, event)
            let mut model: Vec<(u64, usize, usize)> = Vec::new();
            let mut timers = Vec::new();
            let mut now = 0;
            for (age, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(delay) => {
                        model.push((now + delay, age, timers.len()));
                        timers.push(queue.push(at(now + delay), timers.len()));
                    }
                    Step::Pop(within) => {
                        model.sort_unstable();
                        let expected = model.first().copied().filter(|e| e.0 <= now + within);
                        let got = queue.pop(at(now + within));
                        prop_assert_eq!(got, expected.map(|e| (at(e.0), e.2)));
                        if let Some((time, ..)) = expected {
                            model.remove(0);
                            now = time;
                        }
                    }
                    Step::Cancel(n) if !timers.is_empty() => {
                        let n = n % timers.len();
                        let found = model.iter().position(|e| e.2 == n);
                        prop_assert_eq!(queue.cancel(timers[n]), found.map(|_| n));
                        found.map(|at| model.remove(at));
                    }
                    Step::Move(n, delay) if !timers.is_empty() => {
                        let n = n % timers.len();
                        let found = model.iter().position(|e| e.2 == n);
                        prop_assert_eq!(queue.reschedule(timers[n], at(now + delay)), found.is_some());
                        if let Some(at) = found {
                            model[at] = (now + delay, age, n);
                        }
                    }
                    Step::Cancel(_) | Step::Move(..) => {}
                }
                prop_assert_eq!(queue.len(), model.len());
                let next = model.iter().map(|e| e.0).min();
                prop_assert_eq!(queue.next_time(), next.map(at));
            }
        }
    }
}
