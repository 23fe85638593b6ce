//! Timers of many flows.
//!
//! # Theory of operation
//! Goal: one deadline for each of up to a million flows, where most deadlines move at almost
//! every packet and few are ever reached, at a cost that does not depend on their number.
//!
//! **Wheel.** A hierarchical timing wheel (Varghese and Lauck, 1987, scheme 7): eight levels of
//! 64 slots; a slot of level `n` is 64ⁿ ticks long, a tick is 2¹⁶ ns (65.5 µs). Together they span
//! 2⁶⁴ ns, so no deadline is out of reach. A timer is in the level of the highest base-64 digit in
//! which its tick differs from the wheel's current one. When the wheel reaches a slot of a higher
//! level, the slot's timers go down to the levels below, each at most seven times in its life.
//!
//! **Accuracy.** A timer never fires before its deadline, and at the first
//! [`pop_due`](TimerQueue::pop_due) one tick after it at the latest, given enough of its budget. Timers of the
//! same tick fire in the order in which they came to the slot.
//!
//! **Bounded work.** A million timers may come due, or go down a level, at the same moment.
//! Every timer that fires or goes down takes one from the budget of the call; what is left over is
//! done by the next call, late but without a pause on the packet path.
//!
//! **Bounded memory.** A flow has one timer, kept by the flow's index: scheduling it again moves it.
//! A removed flow's timer needs no cancelling: it fires under the old generation, which the
//! flow table knows to be stale, or the next flow in the same entry takes it over. Flows that come
//! and go quickly thus leave nothing behind. Timers are allocated 1024 at a time and never moved.
//!
//! **Lazy deadlines.** [`Deadline`] lives in the flow's state and keeps the flow's real deadline
//! beside the time when its timer fires. A deadline that moves away, as a retransmission
//! timer does with every ACK, is written there alone and the queue is not touched; the timer
//! fires at the old time, finds the deadline moved, and is scheduled again.
//!
//! Invariants: a timer is in at most one slot; no timer is in a slot that the wheel has passed.

use serde::{Deserialize, Serialize};

use crate::tables::flow_table::{Chunks, FlowId, Linked, Links, List};
use crate::time::{Duration, Instant};

/// log2 of the nanoseconds of a tick.
const TICK_SHIFT: u32 = 16;
/// log2 of the slots of a level.
const LEVEL_SHIFT: u32 = 6;
/// Slots of a level.
const SLOTS: usize = 1 << LEVEL_SHIFT;
/// Levels: enough for every tick that there is.
const LEVELS: usize = ((u64::BITS - TICK_SHIFT) / LEVEL_SHIFT) as usize;
/// Ticks that there are.
const END: u64 = 1 << (LEVELS as u32 * LEVEL_SHIFT);

/// How much later than its deadline a timer may fire.
pub const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

/// A time near the present in 32 bits: to within a tick, and unmistakable for 39 hours before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortTime(u32);

impl ShortTime {
    /// "Never", or "not yet".
    pub const NEVER: Self = Self(u32::MAX);

    /// The first tick that does not begin before `at`: a timer for either fires at the same time.
    #[must_use]
    #[inline]
    pub fn not_before(at: Instant) -> Self {
        if at == Instant::NEVER {
            return Self::NEVER;
        }
        let ticks = at.as_nanos().div_ceil(1 << TICK_SHIFT) as u32;
        // One value is taken.
        Self(if ticks == u32::MAX { 0 } else { ticks })
    }

    /// It is [`NEVER`](Self::NEVER).
    #[must_use]
    #[inline]
    pub const fn is_never(self) -> bool {
        self.0 == u32::MAX
    }

    /// A timer that is set for it fires later than one for `at`, which is near the present too.
    #[must_use]
    #[inline]
    pub const fn is_later_than(self, at: Instant) -> bool {
        let ticks = at.as_nanos().div_ceil(1 << TICK_SHIFT) as u32;
        self.is_never() || (self.0.wrapping_sub(ticks) as i32) > 0
    }

    /// The time itself, or [`Instant::NEVER`].
    #[must_use]
    #[inline]
    pub const fn near(self, now: Instant) -> Instant {
        if self.is_never() {
            return Instant::NEVER;
        }
        let ticks = now.as_nanos() >> TICK_SHIFT;
        let apart = self.0.wrapping_sub(ticks as u32) as i32;
        Instant::from_nanos(ticks.saturating_add_signed(apart as i64) << TICK_SHIFT)
    }
}

/// A place in the wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    level: u8,
    slot: u8,
}

/// The timer of one flow.
#[derive(Clone, Debug, Default)]
struct Timer {
    /// First tick that does not begin before the deadline.
    tick: u64,
    links: Links,
    generation: u32,
    /// Where it is; `None` while it is off.
    place: Option<Place>,
}

impl Linked for Timer {
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// The slots of one level.
#[derive(Clone, Debug)]
struct Level {
    slots: [List; SLOTS],
    /// A bit for every slot that is not empty.
    occupied: u64,
}

/// The timers of a port's flows, one for each. See the [module](self) for how it works.
#[derive(Clone, Debug)]
pub struct TimerQueue {
    timers: Chunks<Timer>,
    levels: [Level; LEVELS],
    /// The wheel's current tick: nothing before it is left.
    current: u64,
}

impl TimerQueue {
    /// A queue for flows of index below `capacity` (that of their table), from `now` on.
    #[must_use]
    pub fn new(capacity: u32, now: Instant) -> Self {
        let level = Level { slots: [List::EMPTY; SLOTS], occupied: 0 };
        Self {
            timers: Chunks::new(capacity),
            levels: std::array::from_fn(|_| level.clone()),
            current: now.as_nanos() >> TICK_SHIFT,
        }
    }

    /// Lets a flow's timer fire at `at` instead of whenever it would have fired before;
    /// [`Instant::NEVER`] turns it off. A time that has passed fires at once.
    ///
    /// False, and nothing done, if the handle is older than the one that the timer was last
    /// scheduled for, or its index is not below the capacity.
    pub fn schedule(&mut self, id: FlowId, at: Instant) -> bool {
        let Some(timer) = self.timers.get_or_default(id.index) else { return false };
        let newer = id.generation.wrapping_sub(timer.generation);
        if timer.place.is_some() && newer > u32::MAX / 2 {
            return false;
        }
        let tick = at.as_nanos().div_ceil(1 << TICK_SHIFT).max(self.current);
        timer.generation = id.generation;
        if timer.place.is_some() && timer.tick == tick {
            return true;
        }
        timer.tick = tick;
        self.take_out(id.index);
        self.place(id.index);
        true
    }

    /// A word of a flow's timer, for no other purpose than to have it in the cache.
    #[must_use]
    #[inline]
    pub fn load(&self, id: FlowId) -> u32 {
        self.timers.get(id.index).map_or(0, |timer| timer.generation)
    }

    /// A time before which no timer fires; `None` if no timer is on.
    ///
    /// It is exact for timers due within 64 ticks (4 ms); for others it may be earlier, when
    /// [`pop_due`](Self::pop_due) has work to do for them. It may be in the past.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let (_, start) = self.earliest()?;
        Some(Instant::from_nanos(start << TICK_SHIFT))
    }

    /// Takes out a timer that is due and answers its flow, whose handle may be stale by now.
    ///
    /// Each timer looked at takes one from `budget`. `None` with some budget left says that nothing
    /// is due any more; with none left that there may be more.
    pub fn pop_due(&mut self, now: Instant, budget: &mut u32) -> Option<FlowId> {
        let now = now.as_nanos() >> TICK_SHIFT;
        loop {
            let earliest = self.earliest();
            let Some((place, start)) = earliest.filter(|&(_, start)| start <= now) else {
                self.current = self.current.max(now);
                return None;
            };
            *budget = budget.checked_sub(1)?;
            self.current = self.current.max(start);
            let index = self.pop(place)?;
            if place.level == 0 {
                let generation = self.timers.get(index)?.generation;
                return Some(FlowId { index, generation });
            }
            self.place(index);
        }
    }

    /// The first slot that is not empty, and its first tick (the current one if that is later).
    ///
    /// Slots of a lower level come before those of a higher one, but for a slot that has begun and is
    /// not worked off: that one comes first.
    fn earliest(&self) -> Option<(Place, u64)> {
        let mut earliest = None;
        for (n, level) in self.levels.iter().enumerate() {
            if level.occupied == 0 {
                continue;
            }
            let slot = level.occupied.trailing_zeros();
            let shift = n as u32 * LEVEL_SHIFT;
            let above = self.current >> (shift + LEVEL_SHIFT) << LEVEL_SHIFT;
            let start = ((above | u64::from(slot)) << shift).max(self.current);
            if earliest.is_none_or(|(_, first)| start <= first) {
                earliest = Some((Place { level: n as u8, slot: slot as u8 }, start));
            }
        }
        earliest
    }

    /// Puts a timer that is in no slot into the one for its tick.
    fn place(&mut self, index: u32) {
        let Some(timer) = self.timers.get_mut(index) else { return };
        if timer.tick >= END {
            return;
        }
        let differs = (timer.tick ^ self.current) | 1;
        let n = differs.ilog2() / LEVEL_SHIFT;
        let slot = (timer.tick >> (n * LEVEL_SHIFT)) as usize % SLOTS;
        let Some(level) = self.levels.get_mut(n as usize) else { return };
        timer.place = Some(Place { level: n as u8, slot: slot as u8 });
        level.occupied |= 1 << slot;
        level.slots[slot].push_back(&mut self.timers, index);
    }

    /// Takes a timer out of its slot, if it is in one.
    fn take_out(&mut self, index: u32) {
        let Some(timer) = self.timers.get_mut(index) else { return };
        let Some(place) = timer.place.take() else { return };
        if let Some(level) = self.levels.get_mut(usize::from(place.level)) {
            level.unlink(&mut self.timers, place.slot, index);
        }
    }

    /// Takes out the first timer of a slot.
    fn pop(&mut self, place: Place) -> Option<u32> {
        let level = self.levels.get_mut(usize::from(place.level))?;
        let index = level.slots[usize::from(place.slot) % SLOTS].first()?;
        level.unlink(&mut self.timers, place.slot, index);
        self.timers.get_mut(index)?.place = None;
        Some(index)
    }
}

impl Level {
    fn unlink(&mut self, timers: &mut Chunks<Timer>, slot: u8, index: u32) {
        let list = &mut self.slots[usize::from(slot) % SLOTS];
        list.unlink(timers, index);
        if list.is_empty() {
            self.occupied &= !(1 << slot);
        }
    }
}

/// A flow's deadline, kept in its state; its timer in the [`TimerQueue`] follows lazily.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    at: Instant,
    /// When the timer fires, never later than `at`; [`Instant::NEVER`] if it is off.
    fires: Instant,
}

impl Default for Deadline {
    fn default() -> Self {
        Self::NEVER
    }
}

impl Deadline {
    /// No deadline: that of a new flow.
    pub const NEVER: Self = Self { at: Instant::NEVER, fires: Instant::NEVER };

    /// The deadline; [`Instant::NEVER`] if there is none.
    #[must_use]
    pub const fn at(&self) -> Instant {
        self.at
    }

    /// Moves the deadline of flow `id`; [`Instant::NEVER`] clears it. Touches the queue only if
    /// the timer would fire too late.
    #[inline]
    pub fn set(&mut self, at: Instant, id: FlowId, queue: &mut TimerQueue) {
        self.at = at;
        if at < self.fires && queue.schedule(id, at) {
            self.fires = at;
        }
    }

    /// To be called when the queue hands out the flow. True if the deadline has passed, and then
    /// it is cleared; false if it had moved, and the timer is scheduled again.
    pub fn fired(&mut self, now: Instant, id: FlowId, queue: &mut TimerQueue) -> bool {
        self.fires = Instant::NEVER;
        if self.at <= now {
            self.at = Instant::NEVER;
            return true;
        }
        self.set(self.at, id, queue);
        false
    }
}

#[cfg(test)]
mod tests;
