//! The flow table of a port: from 5-tuples to the state of flows.
//!
//! # Theory of operation
//! Goal: find a flow's state at the price of two cache misses, however many flows there are and
//! whatever a guest sends, and never stop the packet path for housekeeping.
//!
//! **Look-up.** The tuple's seeded hash names a bucket of an open-addressing index. A bucket is
//! one cache line of seven slots with a 31-bit tag and an entry number each (the layout of F14,
//! Facebook 2019, without vector instructions); the entry has the tuple in its first cache line, so
//! that a look-up reads one line of the index and one of the entry. A full bucket sends entries
//! on to other buckets and counts them, so a look-up stops as soon as nothing went further, and
//! removal leaves no tombstones. At the capacity one entry in fifty is not in its first bucket.
//! A batch of look-ups first loads all its buckets, then all its entries, so that the misses of the
//! batch overlap ([`find_batch`](FlowTable::find_batch)).
//!
//! **Hostile guests.** Without the seed a guest cannot choose where its tuples go. If it knew the
//! seed, it could fill the 16 buckets where one hash may be: look-ups still end after 16 lines, and
//! a new flow that finds no slot is refused ([`Refused::Crowded`]), which costs only this port.
//! Tags are no proof: every hit compares the whole tuple.
//!
//! **Growth.** The index has its final size from the start (16 bytes per flow of the capacity,
//! rounded up to a power of two), as zeroed memory that the system hands out page by page; it is
//! never rehashed. Entries come in chunks of 1024 that never move and are reused, not given back.
//!
//! **Handles.** A [`FlowId`] names an entry and its generation, which changes when the flow is
//! removed: a handle to a removed flow finds nothing. A generation repeats after 2³² flows
//! in one entry; no handle may be kept that long.
//!
//! **Ageing.** Occupied entries are listed in order of last use, to within a granule of 2³⁰ ns
//! (1.07 s; [`with_granule`](FlowTable::with_granule)): only the first use in a granule moves an entry, which costs the cache misses of its neighbours; the
//! others write one field of the line that the look-up has just read. [`expire`](FlowTable::expire) and [`evict`](FlowTable::evict)
//! work from the old end and look at no more than [`SCAN`] entries per call. What the caller's
//! predicate keeps (a flow with stored data) goes behind all others, so that it cannot hide
//! the entries behind it.
//!
//! Invariants: a tuple is in at most one entry; an entry is in the index exactly while it is
//! occupied; an expired entry was not used for the time to live, and goes at most a granule later
//! than that if nothing is kept; the same seed and calls give the same answers in every process.
//!
//! Source: our own; the bound of 78 cycles per look-up is from vFlood's table 2.

mod chunks;
mod index;
mod list;
mod slab;
#[cfg(test)]
mod tests;

pub(crate) use chunks::Chunks;
use floodway_wire::FiveTuple;
use index::Index;
pub(crate) use list::{Linked, Links, List};
use slab::Slab;

use crate::steps;
use crate::time::{Duration, Instant};

/// Entries that one call of [`FlowTable::expire`] or [`FlowTable::evict`] looks at.
pub const SCAN: usize = 8;

/// Look-ups that [`FlowTable::find_batch`] has under way at once.
pub const BATCH: usize = 32;

/// Most flows that a table can have: 2²⁶, an index of 1 GiB.
pub const MAX_CAPACITY: u32 = 1 << 26;

/// A flow in a table: stays valid until the flow is removed, and is never taken for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    /// Number of the entry, below the table's capacity. Entries are reused.
    pub index: u32,
    /// How often the entry was vacated before, modulo 2³².
    pub generation: u32,
}

/// A flow as the table sees it.
#[derive(Debug)]
pub struct FlowRef<'a, F> {
    /// Its handle.
    pub id: FlowId,
    /// Its name, in the guest's direction.
    pub tuple: &'a FiveTuple,
    /// When it was inserted or last touched.
    pub last_used: Instant,
    /// Its state.
    pub flow: &'a F,
}

impl<F> Clone for FlowRef<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for FlowRef<'_, F> {}

/// A flow that is no longer in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed<F> {
    /// The handle it had; stale now.
    pub id: FlowId,
    /// Its name, in the guest's direction.
    pub tuple: FiveTuple,
    /// Its state.
    pub flow: F,
}

/// Why a flow was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The table has as many flows as it may. [`FlowTable::evict`] can make room.
    Full,
    /// Every slot where the tuple's hash may be is taken: chance of 1e-15, or a guest that knows the
    /// seed. Evicting helps only by accident.
    Crowded,
    /// The tuple has an entry, this one.
    Exists(FlowId),
}

/// The flows of one port. See the [module](self) for how it works.
#[derive(Debug)]
pub struct FlowTable<F> {
    index: Index,
    slab: Slab<F>,
    capacity: u32,
    seed: u64,
}

impl<F> FlowTable<F> {
    /// A table for up to `capacity` flows (1 to [`MAX_CAPACITY`]; other values are clamped).
    ///
    /// `seed` should be secret and different for every table; the same seed and calls give the
    /// same answers.
    #[must_use]
    pub fn new(capacity: u32, seed: u64) -> Self {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        Self { index: Index::new(capacity), slab: Slab::new(capacity), capacity, seed }
    }

    /// The table, still empty, with another granule of the order of use: rounded down to a power of two of
    /// nanoseconds. Each flow in use costs the cache misses of a place in the list once in a granule, and an
    /// expired flow stays for at most a granule longer.
    #[must_use]
    pub fn with_granule(mut self, granule: Duration) -> Self {
        self.slab.set_granule(granule);
        self
    }

    /// Flows in the table.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.slab.occupied()
    }

    /// No flow is in the table.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most flows that the table takes.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The flow of a tuple in the guest's direction ([`FiveTuple::reversed`] for a packet to the
    /// guest). It does not count as a use; [`touch`](Self::touch) does.
    #[must_use]
    #[inline]
    pub fn find(&self, tuple: &FiveTuple) -> Option<FlowId> {
        self.index.find(tuple.hash(self.seed), |entry| self.slab.id_if(entry, tuple))
    }

    /// [`find`](Self::find) for a batch of packets: `found[i]` is the flow of `tuples[i]`. What is
    /// in only one of the two slices is left alone.
    ///
    /// With a million flows this takes about 60 % of the time of one by one, because the cache
    /// misses of up to [`BATCH`] look-ups overlap.
    #[inline]
    pub fn find_batch(&self, tuples: &[FiveTuple], found: &mut [Option<FlowId>]) {
        self.find_batch_with(tuples, found, |_| 0);
    }

    /// [`find_batch`](Self::find_batch), where `load` reads a word of each cache line of a flow's state
    /// that will be needed next: those misses overlap too.
    #[inline]
    pub fn find_batch_with(
        &self,
        tuples: &[FiveTuple],
        found: &mut [Option<FlowId>],
        load: impl Fn(&F) -> u32,
    ) {
        for (tuples, found) in tuples.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
            self.find_chunk(tuples, found, &load);
        }
    }

    /// Short loops of loads that do not depend on each other: first the buckets, then the entries.
    #[inline]
    fn find_chunk(
        &self,
        tuples: &[FiveTuple],
        found: &mut [Option<FlowId>],
        load: impl Fn(&F) -> u32,
    ) {
        let mut hashes = [0; BATCH];
        let mut loaded = 0;
        for (hash, tuple) in hashes.iter_mut().zip(tuples) {
            *hash = tuple.hash(self.seed);
            loaded ^= self.index.load(*hash);
        }
        for (&hash, _) in hashes.iter().zip(tuples) {
            loaded ^= self.index.candidate(hash).map_or(0, |entry| self.slab.load(entry, &load));
        }
        std::hint::black_box(loaded);
        for ((found, tuple), &hash) in found.iter_mut().zip(tuples).zip(&hashes) {
            *found = self.index.find(hash, |entry| self.slab.id_if(entry, tuple));
        }
    }

    /// Adds a flow, used `now`.
    ///
    /// # Errors
    /// See [`Refused`]; `flow` is dropped then.
    pub fn insert(&mut self, tuple: &FiveTuple, now: Instant, flow: F) -> Result<FlowId, Refused> {
        if let Some(id) = self.find(tuple) {
            return Err(Refused::Exists(id));
        }
        let id = self.slab.insert(tuple, now, flow).ok_or(Refused::Full)?;
        if self.index.insert(tuple.hash(self.seed), id.index) {
            return Ok(id);
        }
        self.slab.remove(id);
        Err(Refused::Crowded)
    }

    /// A flow's state; `None` for a stale handle.
    #[must_use]
    #[inline]
    pub fn get(&self, id: FlowId) -> Option<&F> {
        self.slab.get(id)
    }

    /// A flow's state; `None` for a stale handle.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut F> {
        self.slab.get_mut(id)
    }

    /// A flow's state, name and last use; `None` for a stale handle.
    #[must_use]
    pub fn entry(&self, id: FlowId) -> Option<FlowRef<'_, F>> {
        self.slab.at(id.index).filter(|found| found.id == id)
    }

    /// Notes that a flow is used `now`, and answers its state; `None` for a stale handle. An
    /// earlier time than that of the last use changes nothing.
    #[inline]
    pub fn touch(&mut self, id: FlowId, now: Instant) -> Option<&mut F> {
        self.slab.touch(id, now).map(|(_, flow)| flow)
    }

    /// [`touch`](Self::touch) that answers the flow's name, too.
    #[inline]
    pub fn touch_entry(&mut self, id: FlowId, now: Instant) -> Option<(&FiveTuple, &mut F)> {
        self.slab.touch(id, now)
    }

    /// A flow's name and state; `None` for a stale handle.
    #[inline]
    pub fn entry_mut(&mut self, id: FlowId) -> Option<(&FiveTuple, &mut F)> {
        self.slab.entry_mut(id)
    }

    /// Takes a flow out; `None` for a stale handle.
    pub fn remove(&mut self, id: FlowId) -> Option<Removed<F>> {
        let (tuple, flow) = self.slab.remove(id)?;
        self.index.remove(tuple.hash(self.seed), id.index);
        Some(Removed { id, tuple, flow })
    }

    /// Takes out one flow that was not used for `ttl`, if `may_go` agrees.
    ///
    /// Looks at no more than [`SCAN`] flows, so `None` does not say that there is no other. Call it
    /// a few times for every batch of packets, or in a loop for as many flows as there is time for.
    pub fn expire(
        &mut self,
        now: Instant,
        ttl: Duration,
        mut may_go: impl FnMut(FlowRef<'_, F>) -> bool,
    ) -> Option<Removed<F>> {
        for _ in 0..SCAN {
            steps::count(1);
            let oldest = self.slab.oldest()?;
            if oldest.last_used + ttl > now {
                return None;
            }
            if may_go(oldest) {
                return self.remove(oldest.id);
            }
            self.slab.skip_oldest();
        }
        None
    }

    /// Returns `true` if [`expire`](Self::expire) would take a flow out, were every one allowed to go.
    #[must_use]
    pub fn would_expire(&self, now: Instant, ttl: Duration) -> bool {
        self.slab.oldest().is_some_and(|oldest| oldest.last_used + ttl <= now)
    }

    /// Takes out the least recently used flow (to within a granule) for which `may_go` agrees, to
    /// make room for another.
    ///
    /// Looks at no more than [`SCAN`] flows; the next call goes on behind them. A predicate that
    /// also looks at `last_used` keeps a guest that opens many flows from losing those it uses.
    pub fn evict(&mut self, mut may_go: impl FnMut(FlowRef<'_, F>) -> bool) -> Option<Removed<F>> {
        for _ in 0..SCAN {
            steps::count(1);
            let oldest = self.slab.oldest()?;
            if may_go(oldest) {
                return self.remove(oldest.id);
            }
            self.slab.skip_oldest();
        }
        None
    }

    /// Entries that [`iter_from`](Self::iter_from) has to look at for a full listing.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slab.len()
    }

    /// The flows in entries `index` up to `index + limit`, in that order, which is the same in
    /// every process. A listing reads pages of `limit` entries from 0 until
    /// [`slots`](Self::slots); a page can be empty. Flows that come or go between pages are listed
    /// or not, no flow is listed twice.
    pub fn iter_from(&self, index: u32, limit: u32) -> impl Iterator<Item = FlowRef<'_, F>> {
        let end = index.saturating_add(limit).min(self.slots());
        (index..end).filter_map(|index| self.slab.at(index))
    }
}
