//! Learned addresses in kept memory.
//!
//! # Theory of operation
//! The table is copied once a second if it has changed: what is learned later than that is learned again, and its frames are flooded until then. There are two copies, so that
//! one is whole wherever the writer dies; a generation number says which. An entry is two words: address and number of the port, and network. Ages are not kept: what is
//! restored counts as just seen. Of uplinks with several networks only as many addresses are kept as there is room for.
//!
//! A number may be another port's by the time that a copy is read. So each copy says which instance had it, as [counters](super::counters) do, and
//! addresses of ports that are gone are left out.
//!
//! What is read goes through the rules of the table like what is learned from a frame: no group addresses, no unknown port, limits.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use floodway_core::l2::{MacTable, MacTables, NetworkId, PortId};
use floodway_wire::MacAddr;

use super::counters::Places;
use super::map;

/// Words before the copies: the generation.
const HEADER: usize = 1;
/// Words of an entry.
const ENTRY: usize = 2;
/// Bits of a port's number in an entry.
const PORT_BITS: u32 = 16;

/// An address that was learned: in which network, and where.
pub type KeptAddress = (NetworkId, MacAddr, PortId);

/// Two copies of the forwarding tables.
#[derive(Debug)]
pub struct KeptAddresses {
    places: Places,
    generation: &'static AtomicU64,
    copies: [&'static [AtomicU64]; 2],
    /// State of the table that was copied last; none yet.
    copied: Option<u64>,
}

/// Words that a switch with these places needs.
#[must_use]
pub fn words(places: Places) -> usize {
    HEADER + 2 * copy_words(places)
}

/// A count, an instance for each number, and as many entries as the table can have.
fn copy_words(places: Places) -> usize {
    let ports = places.ports * MacTable::DEFAULT_LOCAL_LIMIT as usize;
    let entries = ports + places.uplinks * MacTable::DEFAULT_UPLINK_LIMIT as usize;
    1 + places.ports + ENTRY * entries
}

impl KeptAddresses {
    /// The table of a switch with these places in `file`, which has [`words`].
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(file: &OwnedFd, places: Places) -> io::Result<Self> {
        let memory = map(file, words(places))?;
        let (generation, copies) = memory.split_at(HEADER);
        let (first, second) = copies.split_at(copy_words(places));
        Ok(Self { places, generation: &generation[0], copies: [first, second], copied: None })
    }

    /// What was saved last, but for addresses of ports that are gone: `instance_at` says which port has a number now.
    #[must_use]
    pub fn restore(&self, instance_at: impl Fn(usize) -> Option<u64>) -> Vec<KeptAddress> {
        let (count, instances, entries) = self.parts(self.generation.load(Acquire));
        let count = usize::try_from(count.load(Relaxed)).unwrap_or(usize::MAX);
        let is_there = |id: PortId| match instances.get(id.index()) {
            Some(instance) => instance_at(id.index()) == Some(instance.load(Relaxed)),
            // An uplink.
            None => true,
        };
        let all = entries.chunks_exact(ENTRY).take(count);
        let all = all.map(|entry| unpack(entry[0].load(Relaxed), entry[1].load(Relaxed)));
        all.filter(|&(_, _, id)| is_there(id)).collect()
    }

    /// Saves the learned addresses of `tables`, if they have changed; `instances` are those of ports by number.
    pub fn save(&mut self, tables: &MacTables, instances: impl Iterator<Item = (usize, u64)>) {
        let state = tables.changes();
        if self.copied == Some(state) {
            return;
        }
        let next = self.generation.load(Relaxed).wrapping_add(1);
        let (count, known, entries) = self.parts(next);
        known.iter().for_each(|word| word.store(0, Relaxed));
        for (number, instance) in instances {
            if let Some(word) = known.get(number) {
                word.store(instance, Relaxed);
            }
        }
        let mut saved = 0;
        for (entry, (network, mac, port)) in entries.chunks_exact(ENTRY).zip(tables.learned()) {
            entry[0].store(pack(mac, port), Relaxed);
            entry[1].store(network.0.into(), Relaxed);
            saved += 1;
        }
        count.store(saved, Relaxed);
        // After all of the copy.
        self.generation.store(next, Release);
        self.copied = Some(state);
    }

    /// Count, instances and entries of the copy of that generation.
    fn parts(
        &self,
        generation: u64,
    ) -> (&'static AtomicU64, &'static [AtomicU64], &'static [AtomicU64]) {
        let copy = self.copies[(generation % 2) as usize];
        let (instances, entries) = copy[1..].split_at(self.places.ports);
        (&copy[0], instances, entries)
    }
}

fn pack(mac: MacAddr, port: PortId) -> u64 {
    mac.to_u64() << PORT_BITS | u64::from(port.0)
}

fn unpack(entry: u64, network: u64) -> KeptAddress {
    let [a, b, c, d, e, f, high, low] = entry.to_be_bytes();
    let network = NetworkId(u16::try_from(network).unwrap_or(u16::MAX));
    (network, MacAddr([a, b, c, d, e, f]), PortId(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use floodway_core::l2::PortKind;
    use floodway_core::time::Instant;
    use rustix::fs::SealFlags;

    use super::super::tests::memory;
    use super::*;

    const NETWORK: NetworkId = NetworkId(10);
    const PLACES: Places = Places { ports: 5, uplinks: 0 };
    /// Of an uplink, and of a port with that number.
    const UPLINK: PortId = PortId(7);
    const PORT: PortId = PortId(3);

    fn open(file: &OwnedFd) -> KeptAddresses {
        KeptAddresses::open(file, PLACES).unwrap()
    }

    fn at_3(instance: u64) -> impl Fn(usize) -> Option<u64> {
        move |number| (number == 3).then_some(instance)
    }

    fn tables(addresses: u8) -> MacTables {
        let mut tables = MacTables::new([1, 2], Duration::from_secs(300));
        let table = tables.of_mut(NETWORK);
        table.add_port(PortId(7), PortKind::Uplink, MacTable::DEFAULT_UPLINK_LIMIT);
        (0..addresses).for_each(|n| {
            table.learn(mac(n), PortId(7), false, Instant::ZERO);
        });
        tables
    }

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0xff, 0, 0, 0, n])
    }

    #[test]
    fn what_was_saved_last_is_restored() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        assert_eq!(open(&file).restore(|_| None), []);
        for addresses in [3, 1, 2] {
            open(&file).save(&tables(addresses), std::iter::empty());
            let mut restored = open(&file).restore(|_| None);
            restored.sort_unstable_by_key(|&(_, mac, _)| mac);
            let expected: Vec<_> = (0..addresses).map(|n| (NETWORK, mac(n), UPLINK)).collect();
            assert_eq!(restored, expected);
        }
    }

    #[test]
    fn addresses_of_a_port_are_not_those_of_the_next_one_with_its_number() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        let mut tables = tables(1);
        let table = tables.of_mut(NETWORK);
        table.add_port(PORT, PortKind::Local, 10);
        table.learn(mac(5), PORT, false, Instant::ZERO);
        open(&file).save(&tables, [(3, 11)].into_iter());
        let restored = |instance| {
            let mut all = open(&file).restore(at_3(instance));
            all.sort_unstable_by_key(|&(_, mac, _)| mac);
            all
        };
        assert_eq!(restored(11), [(NETWORK, mac(0), UPLINK), (NETWORK, mac(5), PORT)]);
        assert_eq!(restored(12), [(NETWORK, mac(0), UPLINK)]);
        assert_eq!(open(&file).restore(|_| None), [(NETWORK, mac(0), UPLINK)]);
    }

    #[test]
    fn a_table_that_has_not_changed_is_not_copied() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        let mut kept = open(&file);
        let mut tables = tables(2);
        for _ in 0..3 {
            kept.save(&tables, std::iter::empty());
        }
        assert_eq!(kept.generation.load(Relaxed), 1);
        tables.of_mut(NETWORK).learn(mac(9), UPLINK, false, Instant::ZERO);
        kept.save(&tables, std::iter::empty());
        assert_eq!((kept.generation.load(Relaxed), kept.restore(|_| None).len()), (2, 3));
    }

    #[test]
    fn what_a_stranger_wrote_is_bounded() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        let words_of_it = map(&file, words(PLACES)).unwrap();
        words_of_it.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        let restored = open(&file).restore(|_| None);
        assert_eq!(restored.len(), (copy_words(PLACES) - 1 - PLACES.ports) / ENTRY);
        let mut tables = tables(0);
        for (_, mac, port) in restored {
            tables.of_mut(NETWORK).learn(mac, port, false, Instant::ZERO);
        }
        assert!(tables.of(NETWORK).is_empty(), "group addresses of a port that is not");
    }
}
