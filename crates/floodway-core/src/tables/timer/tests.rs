//! The wheel against a model: never early, at most a tick late, nothing lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn id(index: u32, generation: u32) -> FlowId {
    FlowId { index, generation }
}

/// Everything that is due, with no end of budget.
fn due(queue: &mut TimerQueue, now: Instant) -> Vec<FlowId> {
    let mut budget = u32::MAX;
    std::iter::from_fn(|| queue.pop_due(now, &mut budget)).collect()
}

#[test]
fn fires_within_a_tick_at_every_distance() {
    for start in [0, 1, (1 << 40) - 3, u64::MAX >> 2] {
        let start = Instant::from_nanos(start);
        for shift in 1..62 {
            for distance in [(1 << shift) - 1, 1 << shift, (1 << shift) + 1] {
                let at = start + Duration::from_nanos(distance);
                let mut queue = TimerQueue::new(1, start);
                assert!(queue.schedule(id(0, 0), at));
                assert!(queue.next().unwrap() < at + TICK);
                let before = at - Duration::from_nanos(1);
                assert!(due(&mut queue, before).is_empty(), "{at:?} fired early");
                assert!(queue.next().unwrap() >= at, "{at:?} is in this tick or the next");
                assert_eq!(due(&mut queue, at + TICK), [id(0, 0)], "{at:?} fired late");
                assert_eq!(queue.next(), None);
            }
        }
    }
}

#[test]
fn never_is_never_and_turns_a_timer_off() {
    let mut queue = TimerQueue::new(2, Instant::ZERO);
    assert!(queue.schedule(id(0, 0), Instant::NEVER));
    assert_eq!(queue.next(), None);
    assert!(queue.schedule(id(1, 0), Instant::from_millis(5)));
    assert!(queue.schedule(id(1, 0), Instant::NEVER));
    assert_eq!(queue.next(), None);
    assert!(due(&mut queue, Instant::NEVER).is_empty());
    // And past the end of time, a timer that has passed still fires at once.
    assert!(queue.schedule(id(1, 0), Instant::from_millis(5)));
    assert_eq!(due(&mut queue, Instant::NEVER), [id(1, 0)]);
}

#[test]
fn following_next_reaches_every_timer() {
    let mut queue = TimerQueue::new(1000, Instant::ZERO);
    for n in 0..1000u64 {
        assert!(queue.schedule(id(n as u32, 0), Instant::from_micros(n * n * 1000)));
    }
    let mut fired = Vec::new();
    let mut sleeps = 0;
    while let Some(next) = queue.next() {
        for id in due(&mut queue, next) {
            let at = Instant::from_micros(u64::from(id.index).pow(2) * 1000);
            assert!(at <= next && next < at + TICK);
            fired.push(id.index);
        }
        sleeps += 1;
    }
    assert!(fired.iter().copied().eq(0..1000), "in order");
    assert!(sleeps < 1000 * LEVELS, "{sleeps}");
}

#[test]
fn a_small_budget_loses_nothing() {
    let at = Instant::from_millis(10_000);
    let mut queue = TimerQueue::new(1000, Instant::ZERO);
    for index in 0..1000 {
        assert!(queue.schedule(id(index, 0), at + Duration::from_micros(u64::from(index))));
    }
    let now = at + Duration::from_secs(1);
    let mut fired = Vec::new();
    let mut calls = 0;
    loop {
        let mut budget = 7;
        fired.extend(std::iter::from_fn(|| queue.pop_due(now, &mut budget)));
        calls += 1;
        if budget > 0 {
            break;
        }
        assert!(queue.next().is_some_and(|next| next <= now) || fired.len() == 1000);
        // Timers that come in the middle of it are neither lost nor early.
        if calls == 3 {
            assert!(queue.schedule(id(0, 0), now + TICK));
        }
    }
    assert!(calls > 1000 / 7);
    let mut sorted: Vec<u32> = fired.iter().map(|id| id.index).collect();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(1..1000));
    assert_eq!(due(&mut queue, now + TICK + TICK), [id(0, 0)]);
}

#[test]
fn handles_of_other_flows() {
    let mut queue = TimerQueue::new(10, Instant::ZERO);
    let soon = Instant::from_millis(1);
    let later = Instant::from_millis(2);
    assert!(!queue.schedule(id(10, 0), soon), "beyond the capacity");
    assert!(!queue.schedule(id(u32::MAX, 0), soon));
    assert!(queue.schedule(id(3, u32::MAX), soon));
    // The entry's next flow takes the timer over, also when the generation wraps.
    assert!(queue.schedule(id(3, 0), later));
    assert!(!queue.schedule(id(3, u32::MAX), soon), "a stale handle");
    assert!(due(&mut queue, soon + TICK).is_empty());
    assert_eq!(due(&mut queue, later + TICK), [id(3, 0)]);
}

#[test]
fn flows_that_come_and_go_leave_nothing_behind() {
    let mut queue = TimerQueue::new(4, Instant::ZERO);
    for generation in 0..100_000 {
        let at = Instant::from_micros(u64::from(generation) + 200_000);
        assert!(queue.schedule(id(generation % 4, generation), at));
    }
    let mut budget = 1000;
    let fired: Vec<_> =
        std::iter::from_fn(|| queue.pop_due(Instant::from_millis(400), &mut budget)).collect();
    assert_eq!(fired.len(), 4);
    assert!(1000 - budget <= 4 * LEVELS as u32, "no work for what is gone");
}

#[test]
fn a_deadline_that_moves_away_leaves_the_queue_alone() {
    let mut queue = TimerQueue::new(1, Instant::ZERO);
    let flow = id(0, 0);
    let mut deadline = Deadline::NEVER;
    for ms in 200..300 {
        deadline.set(Instant::from_millis(ms), flow, &mut queue);
    }
    let first = Instant::from_millis(200) + TICK;
    assert_eq!(due(&mut queue, first), [flow], "the timer is where it was");
    assert!(!deadline.fired(first, flow, &mut queue), "but the deadline has moved");
    assert_eq!(deadline.at(), Instant::from_millis(299));
    let second = Instant::from_millis(299) + TICK;
    assert_eq!(due(&mut queue, second), [flow]);
    assert!(deadline.fired(second, flow, &mut queue));
    assert_eq!(deadline, Deadline::NEVER);
    assert_eq!(queue.next(), None);
}

#[test]
fn a_deadline_that_comes_nearer_is_kept() {
    let mut queue = TimerQueue::new(1, Instant::ZERO);
    let flow = id(0, 0);
    let mut deadline = Deadline::NEVER;
    deadline.set(Instant::from_millis(200), flow, &mut queue);
    deadline.set(Instant::from_millis(20), flow, &mut queue);
    let now = Instant::from_millis(20) + TICK;
    assert_eq!(due(&mut queue, now), [flow]);
    assert!(deadline.fired(now, flow, &mut queue));
    // Cleared: the timer fires once for nothing and is not scheduled again.
    deadline.set(Instant::from_millis(200), flow, &mut queue);
    deadline.set(Instant::NEVER, flow, &mut queue);
    let now = Instant::from_millis(201);
    assert_eq!(due(&mut queue, now), [flow]);
    assert!(!deadline.fired(now, flow, &mut queue));
    assert_eq!(queue.next(), None);
}

const FLOWS: u32 = 20;

#[derive(Clone, Debug)]
enum Op {
    Schedule(u32, u64),
    Reopen(u32),
    Wait(u64),
    Pop(u32),
}

/// Nanoseconds from a tick's fraction to hours, evenly in their logarithm.
fn distance() -> impl Strategy<Value = u64> {
    (0..44u32, any::<u64>()).prop_map(|(shift, n)| n & ((1 << shift) - 1))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..FLOWS, distance()).prop_map(|(flow, ns)| Op::Schedule(flow, ns)),
        1 => (0..FLOWS).prop_map(Op::Reopen),
        2 => distance().prop_map(Op::Wait),
        2 => (0..20u32).prop_map(Op::Pop),
    ]
}

/// What the documentation says: the deadline of every timer that is on.
#[derive(Default)]
struct Model(BTreeMap<u32, (FlowId, Instant)>);

impl Model {
    fn fired(&mut self, id: FlowId, now: Instant) {
        let (known, at) = self.0.remove(&id.index).expect("a timer that is on");
        assert_eq!(known, id);
        assert!(at <= now, "fired early");
    }

    fn check_next(&self, queue: &TimerQueue) {
        match self.0.values().map(|&(_, at)| at).min() {
            Some(first) => assert!(queue.next().expect("a timer is on") < first + TICK),
            None => assert_eq!(queue.next(), None),
        }
    }
}

proptest! {
    #[test]
    fn behaves_like_a_map(start in distance(), ops in prop::collection::vec(op(), 1..300)) {
        let mut now = Instant::from_nanos(start);
        let mut queue = TimerQueue::new(FLOWS, now);
        let mut model = Model::default();
        let mut generations = [0u32; FLOWS as usize];
        for op in ops {
            match op {
                Op::Schedule(flow, ns) => {
                    let id = id(flow, generations[flow as usize]);
                    let at = now + Duration::from_nanos(ns);
                    prop_assert!(queue.schedule(id, at));
                    model.0.insert(flow, (id, at));
                }
                Op::Reopen(flow) => generations[flow as usize] += 1,
                Op::Wait(ns) => now += Duration::from_nanos(ns),
                Op::Pop(mut budget) => {
                    while let Some(id) = queue.pop_due(now, &mut budget) {
                        model.fired(id, now);
                    }
                    if budget > 0 {
                        let late = model.0.values().find(|(_, at)| *at + TICK <= now);
                        prop_assert!(late.is_none(), "{:?} is late at {:?}", late, now);
                    }
                }
            }
            // A timer scheduled for less than a tick ago is due in this tick or the next.
            model.check_next(&queue);
        }
        for id in due(&mut queue, Instant::from_nanos(u64::MAX >> 1)) {
            model.fired(id, Instant::NEVER);
        }
        prop_assert!(model.0.is_empty(), "lost: {:?}", model.0);
    }

    /// However deadlines move, each is met once, within a tick, through the lazy scheme.
    #[test]
    fn lazy_deadlines_are_met(moves in prop::collection::vec((0..FLOWS, distance(), 0..1_000_000u64), 1..200)) {
        let mut now = Instant::ZERO;
        let mut queue = TimerQueue::new(FLOWS, now);
        let mut deadlines = [Deadline::NEVER; FLOWS as usize];
        for (flow, ns, gap) in moves {
            deadlines[flow as usize].set(now + Duration::from_nanos(ns), id(flow, 0), &mut queue);
            now += Duration::from_nanos(gap);
            for id in due(&mut queue, now) {
                let at = deadlines[id.index as usize].at();
                let fired = deadlines[id.index as usize].fired(now, id, &mut queue);
                prop_assert_eq!(fired, at <= now);
            }
            prop_assert!(deadlines.iter().all(|deadline| deadline.at() + TICK > now));
        }
    }
}

#[test]
fn a_short_time_is_the_tick_at_which_a_timer_fires() {
    let hours = |n: u64| Instant::ZERO + Duration::from_secs(3600 * n);
    let tick = |at: Instant| at.as_nanos().div_ceil(1 << TICK_SHIFT) << TICK_SHIFT;
    for now in [hours(0), hours(50), hours(78), hours(79), hours(100_000)] {
        for apart in [0, 1, 65_536, 1_000_000, 38 * 3_600_000_000_000] {
            let apart = Duration::from_nanos(apart);
            for at in [now + apart, now - apart] {
                let short = ShortTime::not_before(at);
                assert_eq!(short.near(now).as_nanos(), tick(at), "{at:?} from {now:?}");
                assert!(!short.is_never() && !short.is_later_than(at));
                assert!(at < Instant::ZERO + TICK || short.is_later_than(at - TICK));
                assert!(!short.is_later_than(at + TICK));
            }
        }
    }
}

#[test]
fn a_short_time_can_be_never() {
    let now = Instant::from_millis(5);
    assert_eq!(ShortTime::not_before(Instant::NEVER), ShortTime::NEVER);
    assert_eq!(ShortTime::NEVER.near(now), Instant::NEVER);
    assert!(ShortTime::NEVER.is_never() && ShortTime::NEVER.is_later_than(now));
    // The tick whose number is taken, and the next one in its place.
    let taken = Instant::from_nanos(u64::from(u32::MAX) << TICK_SHIFT);
    assert_eq!(ShortTime::not_before(taken).near(taken), taken + TICK);
}
