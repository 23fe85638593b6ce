//! The entries themselves: where they live, their generations, and the order of their last use.

use floodway_wire::FiveTuple;

use super::chunks::Chunks;
use super::list::{Linked, Links, List};
use super::{FlowId, FlowRef};
use crate::time::{Duration, Instant};

/// log2 of the nanoseconds within which the order of use is not kept, if nobody chooses: 2³⁰ ns, 1.07 s.
const GRANULE_SHIFT: u32 = 30;

/// What a look-up needs of an entry, in one cache line, with the flow's state right behind it.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry<F> {
    last_used: Instant,
    tuple: FiveTuple,
    /// Counts how often the entry was vacated.
    generation: u32,
    /// Neighbours in order of use; in a vacant entry, in the list of vacant ones.
    links: Links,
    flow: Option<F>,
}

impl<F> Linked for Entry<F> {
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Entries, each occupied (in the list of use) or vacant (in the list of vacant ones).
#[derive(Debug)]
pub(super) struct Slab<F> {
    entries: Chunks<Entry<F>>,
    vacant: List,
    /// Occupied entries, ordered by the granule of their last use.
    used: List,
    occupied: u32,
    /// Nanoseconds of a granule, a power of two, less one.
    granule_mask: u64,
}

impl<F> Slab<F> {
    pub(super) fn new(capacity: u32) -> Self {
        let entries = Chunks::new(capacity);
        Self {
            entries,
            vacant: List::EMPTY,
            used: List::EMPTY,
            occupied: 0,
            granule_mask: (1 << GRANULE_SHIFT) - 1,
        }
    }

    /// Sets the granule to the largest power of two of nanoseconds that is not above `granule`. No entry may
    /// have been used yet.
    pub(super) fn set_granule(&mut self, granule: Duration) {
        let nanos = Instant::ZERO + granule;
        self.granule_mask = (1 << nanos.as_nanos().max(1).ilog2()) - 1;
    }

    /// Occupied entries.
    pub(super) const fn occupied(&self) -> u32 {
        self.occupied
    }

    /// Entries that were ever occupied.
    pub(super) const fn len(&self) -> u32 {
        self.entries.len()
    }

    /// The entry's identity, if it holds the flow of this tuple.
    #[inline]
    pub(super) fn id_if(&self, index: u32, tuple: &FiveTuple) -> Option<FlowId> {
        let entry = self.entries.get(index)?;
        (entry.tuple == *tuple).then_some(FlowId { index, generation: entry.generation })
    }

    /// A word of the entry and what `load` reads of its flow, for no other purpose than to have their lines
    /// in the cache.
    #[inline]
    pub(super) fn load(&self, index: u32, load: impl Fn(&F) -> u32) -> u32 {
        let Some(entry) = self.entries.get(index) else { return 0 };
        entry.generation ^ entry.flow.as_ref().map_or(0, load)
    }

    /// The entry at an index, if it is occupied.
    pub(super) fn at(&self, index: u32) -> Option<FlowRef<'_, F>> {
        let entry = self.entries.get(index)?;
        Some(FlowRef {
            id: FlowId { index, generation: entry.generation },
            tuple: &entry.tuple,
            last_used: entry.last_used,
            flow: entry.flow.as_ref()?,
        })
    }

    #[inline]
    pub(super) fn get(&self, id: FlowId) -> Option<&F> {
        let entry = self.entries.get(id.index)?;
        if entry.generation == id.generation { entry.flow.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: FlowId) -> Option<&mut F> {
        let entry = self.entries.get_mut(id.index)?;
        if entry.generation == id.generation { entry.flow.as_mut() } else { None }
    }

    /// The entry's name and flow.
    #[inline]
    pub(super) fn entry_mut(&mut self, id: FlowId) -> Option<(&FiveTuple, &mut F)> {
        let entry = self.entries.get_mut(id.index)?;
        if entry.generation != id.generation {
            return None;
        }
        Some((&entry.tuple, entry.flow.as_mut()?))
    }

    /// Notes a use of the entry. Only the first use in a granule moves it in the list; the others
    /// write to the entry's first cache line alone.
    #[inline]
    pub(super) fn touch(&mut self, id: FlowId, now: Instant) -> Option<(&FiveTuple, &mut F)> {
        // The last time of the granule.
        let end = self.entries.get(id.index)?.last_used.as_nanos() | self.granule_mask;
        if now.as_nanos() > end {
            return self.touch_anew(id, now);
        }
        self.use_entry(id, now)
    }

    #[inline]
    fn use_entry(&mut self, id: FlowId, now: Instant) -> Option<(&FiveTuple, &mut F)> {
        let entry = self.entries.get_mut(id.index)?;
        if entry.generation != id.generation {
            return None;
        }
        entry.last_used = now.max(entry.last_used);
        Some((&entry.tuple, entry.flow.as_mut()?))
    }

    /// The first use in a granule.
    #[cold]
    fn touch_anew(&mut self, id: FlowId, now: Instant) -> Option<(&FiveTuple, &mut F)> {
        if self.get(id).is_some() {
            self.used.move_to_back(&mut self.entries, id.index);
        }
        self.use_entry(id, now)
    }

    /// Occupies an entry; `None` at the capacity.
    pub(super) fn insert(&mut self, tuple: &FiveTuple, now: Instant, flow: F) -> Option<FlowId> {
        let index = match self.vacant.pop_front(&mut self.entries) {
            Some(index) => {
                let entry = self.entries.get_mut(index)?;
                (entry.tuple, entry.last_used, entry.flow) = (*tuple, now, Some(flow));
                index
            }
            None => self.entries.push(Entry {
                last_used: now,
                tuple: *tuple,
                generation: 0,
                links: Links::default(),
                flow: Some(flow),
            })?,
        };
        self.used.push_back(&mut self.entries, index);
        self.occupied += 1;
        let generation = self.entries.get(index)?.generation;
        Some(FlowId { index, generation })
    }

    /// Vacates an entry. Every handle to it is stale from here on.
    pub(super) fn remove(&mut self, id: FlowId) -> Option<(FiveTuple, F)> {
        let entry = self.entries.get_mut(id.index)?;
        if entry.generation != id.generation {
            return None;
        }
        let flow = entry.flow.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        let tuple = entry.tuple;
        self.used.unlink(&mut self.entries, id.index);
        self.vacant.push_back(&mut self.entries, id.index);
        self.occupied -= 1;
        Some((tuple, flow))
    }

    /// The entry that was used least recently, to within a granule.
    pub(super) fn oldest(&self) -> Option<FlowRef<'_, F>> {
        self.at(self.used.first()?)
    }

    /// Puts the oldest entry behind all others, though it was not used.
    pub(super) fn skip_oldest(&mut self) {
        if let Some(index) = self.used.first() {
            self.used.move_to_back(&mut self.entries, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_look_up_needs_is_one_cache_line() {
        assert_eq!(std::mem::offset_of!(Entry<[u64; 24]>, flow), 64);
        assert_eq!(align_of::<Entry<u8>>(), 64);
    }

    #[test]
    fn generations_wrap() {
        let mut slab = Slab::new(1);
        let id = slab.insert(&FiveTuple::NONE, Instant::ZERO, ()).unwrap();
        slab.entries.get_mut(0).unwrap().generation = u32::MAX;
        assert!(slab.remove(id).is_none(), "another generation");
        let last = FlowId { index: 0, generation: u32::MAX };
        assert!(slab.remove(last).is_some());
        let next = slab.insert(&FiveTuple::NONE, Instant::ZERO, ()).unwrap();
        assert_eq!(next.generation, 0);
        assert!(slab.get(last).is_none());
        assert!(slab.get(next).is_some());
    }
}
