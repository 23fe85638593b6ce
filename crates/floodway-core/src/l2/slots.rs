//! The hash table under the forwarding database.
//!
//! Open addressing with linear probing. A slot is one 64-bit word, the MAC address above the port
//! number, so that a look-up that hits usually touches one cache line and "this address behind
//! this port" is a single comparison. The table doubles when it is half full: a probe is short
//! (1.5 slots for a hit, 2.5 for a miss, on average at the worst load), the table stays as small
//! as the number of addresses allows, and cost does not depend on that number until the table
//! outgrows a cache. Removal shifts followers back instead of leaving tombstones, so churn does
//! not degrade it.
//!
//! Hash: multiplication by a secret, folded (as in wyhash). Without the seed nobody can choose
//! addresses that collide.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use floodway_wire::ethernet::MacAddr;

use super::PortId;
use crate::steps;

/// No address has the group bit and is learned, and no port has this number: a free slot.
const FREE: u64 = u64::MAX;
const MIN_SLOTS: usize = 64;

/// An address and its port in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    #[inline(always)]
    pub(super) fn new(mac: MacAddr, port: PortId) -> Self {
        Self(mac.to_u64() << 16 | u64::from(port.0))
    }

    pub(super) fn mac(self) -> MacAddr {
        let [a, b, c, d, e, f, _, _] = self.0.to_be_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    pub(super) fn port(self) -> PortId {
        PortId(self.0 as u16)
    }
}

pub(super) struct Slots {
    /// Address and port; the length is a power of two.
    words: Box<[u64]>,
    /// When the address was last seen, in the owner's ticks, slot by slot. Atomic so that readers
    /// who share the table can refresh an entry.
    seen: Box<[AtomicU32]>,
    used: usize,
    seed: [u64; 2],
}

impl Slots {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self::with_slots(MIN_SLOTS, seed)
    }

    fn with_slots(n: usize, seed: [u64; 2]) -> Self {
        Self {
            words: vec![FREE; n].into_boxed_slice(),
            seen: (0..n).map(|_| AtomicU32::new(0)).collect(),
            used: 0,
            seed: [seed[0], seed[1] | 1],
        }
    }

    /// Addresses in the table.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Slots, free or not.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    #[inline(always)]
    fn home(&self, mac: u64) -> usize {
        let product = u128::from(mac ^ self.seed[0]) * u128::from(self.seed[1]);
        ((product >> 64) as u64 ^ product as u64) as usize
    }

    /// The first word from the home of `mac` on that `matches`, or the free slot that ends the
    /// search. There always is one: the table is at most half full.
    #[inline(always)]
    fn probe(&self, mac: u64, matches: impl Fn(u64) -> bool) -> (usize, u64) {
        let mask = self.words.len() - 1;
        let mut i = self.home(mac) & mask;
        loop {
            steps::count(1);
            let word = self.words[i];
            if matches(word) || word == FREE {
                return (i, word);
            }
            i = (i + 1) & mask;
        }
    }

    /// The port of `mac`.
    #[inline(always)]
    pub(super) fn port_of(&self, mac: MacAddr) -> Option<PortId> {
        let mac = mac.to_u64();
        let (_, word) = self.probe(mac, |word| word >> 16 == mac);
        // The port of a free slot is no port, also if somebody looks up the broadcast address.
        let port = PortId(word as u16);
        (port <= PortId::MAX).then_some(port)
    }

    /// The slot that says exactly `word`.
    #[inline(always)]
    pub(super) fn find_exact(&self, word: Word) -> Option<usize> {
        let (slot, found) = self.probe(word.0 >> 16, |w| w == word.0);
        (found != FREE).then_some(slot)
    }

    /// The slot of `mac`, whatever its port.
    pub(super) fn find(&self, mac: MacAddr) -> Option<usize> {
        let mac = mac.to_u64();
        let (slot, found) = self.probe(mac, |word| word >> 16 == mac);
        (found != FREE).then_some(slot)
    }

    /// What is in `slot`.
    pub(super) fn get(&self, slot: usize) -> Option<Word> {
        steps::count(1);
        let word = self.words[slot];
        (word != FREE).then_some(Word(word))
    }

    #[inline(always)]
    pub(super) fn seen(&self, slot: usize) -> u32 {
        self.seen[slot].load(Relaxed)
    }

    #[inline(always)]
    pub(super) fn set_seen(&self, slot: usize, tick: u32) {
        self.seen[slot].store(tick, Relaxed);
    }

    /// Replaces the port in a slot that is in use.
    pub(super) fn set_port(&mut self, slot: usize, port: PortId) {
        self.words[slot] = self.words[slot] & !0xffff | u64::from(port.0);
    }

    /// Adds an address that is not in the table. Returns whether slots were moved (the table
    /// doubled).
    pub(super) fn insert(&mut self, word: Word, tick: u32) -> bool {
        let grows = (self.used + 1) * 2 > self.len();
        if grows {
            self.grow();
        }
        self.place(word, tick);
        grows
    }

    fn place(&mut self, word: Word, tick: u32) {
        let (slot, _) = self.probe(word.0 >> 16, |_| false);
        self.words[slot] = word.0;
        self.set_seen(slot, tick);
        self.used += 1;
    }

    fn grow(&mut self) {
        let mut larger = Self::with_slots(self.len() * 2, self.seed);
        for slot in 0..self.len() {
            if let Some(word) = self.get(slot) {
                larger.place(word, self.seen(slot));
            }
        }
        *self = larger;
    }

    /// Frees `slot`. An entry from behind may take its place, so a scan looks at `slot` again.
    pub(super) fn remove(&mut self, slot: usize) {
        let mask = self.len() - 1;
        let (mut hole, mut i) = (slot, slot);
        loop {
            steps::count(1);
            i = (i + 1) & mask;
            let word = self.words[i];
            if word == FREE {
                break;
            }
            // The entry may move up to the hole unless its home lies behind the hole.
            let from_home = i.wrapping_sub(self.home(word >> 16)) & mask;
            if from_home >= (i.wrapping_sub(hole) & mask) {
                self.words[hole] = word;
                self.set_seen(hole, self.seen(i));
                hole = i;
            }
        }
        self.words[hole] = FREE;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    /// With this seed the hash is the address itself, so that a test can make addresses collide.
    const IDENTITY: [u64; 2] = [0, 1];

    fn mac(n: u64) -> MacAddr {
        let [_, _, a, b, c, d, e, f] = n.to_be_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    /// Every search ends where it should, and nothing is there twice.
    fn assert_holds(slots: &Slots, model: &BTreeMap<u64, u16>) {
        assert_eq!(slots.used(), model.len());
        assert!(slots.used() * 2 <= slots.len());
        let found = (0..slots.len()).filter_map(|i| slots.get(i));
        let mut listed: Vec<_> = found.map(|w| (w.mac().to_u64(), w.port().0)).collect();
        listed.sort_unstable();
        assert_eq!(listed, model.iter().map(|(&m, &p)| (m, p)).collect::<Vec<_>>());
        for (&m, &p) in model {
            assert_eq!(slots.port_of(mac(m)), Some(PortId(p)));
            let slot = slots.find(mac(m)).unwrap();
            assert_eq!(slots.find_exact(Word::new(mac(m), PortId(p))), Some(slot));
            assert_eq!(slots.find_exact(Word::new(mac(m), PortId(p + 1))), None);
            assert_eq!(slots.seen(slot), m as u32);
        }
    }

    proptest! {
        /// Addresses whose homes are the last four and the first four of 64 slots: long clusters
        /// that wrap around.
        #[test]
        fn clusters_survive_removal(ops in proptest::collection::vec((0_u64..8, 0_u64..6, any::<bool>()), 1..300)) {
            let mut slots = Slots::new(IDENTITY);
            let mut model = BTreeMap::new();
            for (home, nth, add) in ops {
                let address = ((home + 60) % 64) + nth * 4096;
                match (add, model.contains_key(&address)) {
                    (true, false) => {
                        let port = (address % 7) as u16;
                        model.insert(address, port);
                        slots.insert(Word::new(mac(address), PortId(port)), address as u32);
                    }
                    (false, true) => {
                        model.remove(&address);
                        slots.remove(slots.find(mac(address)).unwrap());
                    }
                    _ => prop_assert_eq!(slots.find(mac(address)).is_some(), add),
                }
                assert_holds(&slots, &model);
            }
        }
    }

    #[test]
    fn a_keyed_hash_spreads_what_collides_without_the_key() {
        let longest = |seed| {
            let mut slots = Slots::new(seed);
            for n in 0..4096 {
                slots.insert(Word::new(mac(n << 20), PortId(0)), 0);
            }
            let mask = slots.len() - 1;
            let distance = |i: usize, w: Word| i.wrapping_sub(slots.home(w.0 >> 16)) & mask;
            (0..slots.len()).filter_map(|i| Some(distance(i, slots.get(i)?))).max()
        };
        assert!(longest(IDENTITY) > Some(4000));
        assert!(longest([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211]) < Some(100));
    }

    #[test]
    fn the_broadcast_address_is_nowhere() {
        let slots = Slots::new(IDENTITY);
        assert_eq!(slots.port_of(MacAddr::BROADCAST), None);
        assert_eq!(slots.find(MacAddr::BROADCAST), None);
        assert_eq!(slots.find_exact(Word::new(MacAddr::BROADCAST, PortId(u16::MAX))), None);
    }
}
