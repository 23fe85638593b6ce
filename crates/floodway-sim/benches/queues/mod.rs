//! Event queues to compare with: first in, first out among equal times, without cancelling.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Event;

pub trait Queue {
    fn insert(&mut self, time: u64, event: Event);
    fn take(&mut self) -> (u64, Event);
}

/// The standard library's heap; a sequence number makes ties first in, first out.
#[derive(Default)]
pub struct BinaryHeapQueue {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
}

impl Queue for BinaryHeapQueue {
    fn insert(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse((time, self.sequence, event)));
    }

    fn take(&mut self) -> (u64, Event) {
        let Reverse((time, _, event)) = self.heap.pop().expect("never empty");
        (time, event)
    }
}

/// A bucket per bit: that of the highest bit in which a time differs from the time taken last.
pub struct RadixHeap {
    buckets: [Vec<(u64, Event)>; 65],
    ready: VecDeque<(u64, Event)>,
    spare: Vec<(u64, Event)>,
    last: u64,
}

impl Default for RadixHeap {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Vec::new()),
            ready: VecDeque::new(),
            spare: Vec::new(),
            last: 0,
        }
    }
}

impl Queue for RadixHeap {
    fn insert(&mut self, time: u64, event: Event) {
        match 64 - (time ^ self.last).leading_zeros() as usize {
            0 => self.ready.push_back((time, event)),
            bucket => self.buckets[bucket].push((time, event)),
        }
    }

    fn take(&mut self) -> (u64, Event) {
        if self.ready.is_empty() {
            let bucket = self.buckets.iter().position(|b| !b.is_empty()).expect("never empty");
            std::mem::swap(&mut self.buckets[bucket], &mut self.spare);
            self.last = self.spare.iter().map(|e| e.0).min().expect("not empty");
            let mut moving = std::mem::take(&mut self.spare);
            moving.drain(..).for_each(|(time, event)| self.insert(time, event));
            self.spare = moving;
        }
        self.ready.pop_front().expect("the minimum was moved here")
    }
}

/// Brown's calendar queue (CACM 1988): a day per bucket, a year per turn; both follow the number and the
/// distance of what is pending.
pub struct CalendarQueue {
    days: Vec<VecDeque<(u64, Event)>>,
    width: u64,
    now: u64,
    len: usize,
}

impl Default for CalendarQueue {
    fn default() -> Self {
        Self { days: vec![VecDeque::new(); 2], width: 1_000, now: 0, len: 0 }
    }
}

impl CalendarQueue {
    fn day(&self, time: u64) -> usize {
        (time / self.width) as usize & (self.days.len() - 1)
    }

    fn place(&mut self, time: u64, event: Event) {
        let day = self.day(time);
        let day = &mut self.days[day];
        let behind = day.iter().rev().take_while(|e| e.0 > time).count();
        day.insert(day.len() - behind, (time, event));
    }

    fn resize(&mut self, days: usize) {
        let mut all: Vec<_> = self.days.drain(..).flatten().collect();
        all.sort_by_key(|e| e.0);
        // Three times the mean distance of the earliest 25, as Brown has it.
        let sample = all.len().min(25);
        if sample > 1 {
            let span = all[sample - 1].0 - all[0].0;
            self.width = (3 * span / (sample as u64 - 1)).max(1);
        }
        self.days = vec![VecDeque::new(); days];
        all.into_iter().for_each(|(time, event)| self.place(time, event));
    }

    fn pop_direct(&mut self) -> (u64, Event) {
        let earliest = self.days.iter().filter_map(|d| d.front()).map(|e| e.0).min();
        let day = self.day(earliest.expect("never empty"));
        self.days[day].pop_front().expect("the earliest is here")
    }

    fn find(&mut self) -> (u64, Event) {
        let mut day = self.day(self.now);
        let mut end = (self.now / self.width + 1) * self.width;
        for _ in 0..self.days.len() {
            if self.days[day].front().is_some_and(|e| e.0 < end) {
                return self.days[day].pop_front().expect("just seen");
            }
            day = (day + 1) & (self.days.len() - 1);
            end += self.width;
        }
        self.pop_direct()
    }
}

impl Queue for CalendarQueue {
    fn insert(&mut self, time: u64, event: Event) {
        self.place(time, event);
        self.len += 1;
        if self.len > 2 * self.days.len() {
            self.resize(2 * self.days.len());
        }
    }

    fn take(&mut self) -> (u64, Event) {
        let found = self.find();
        self.now = found.0;
        self.len -= 1;
        if self.len < self.days.len() / 2 && self.days.len() > 2 {
            self.resize(self.days.len() / 2);
        }
        found
    }
}
