//! Learned addresses in kept memory.
//!
//! # Theory of operation
//! The table is copied once a second if it has changed: what is learned later than that is learned again, and its frames are flooded until then. There are two copies, so that
//! one is whole wherever the writer dies; a generation number says which. An entry is a word: address and number of the port. Ages are not kept: what is
//! restored counts as just seen.
//!
//! A number may be another port's by the time that a copy is read. So each copy says which instance had it, as [counters](super::counters) do, and
//! addresses of ports that are gone are left out.
//!
//! What is read goes through the rules of the table like what is learned from a frame: no group addresses, no unknown port, limits.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use floodway_core::l2::{MacTable, PortId};
use floodway_wire::MacAddr;

use super::counters::Places;
use super::map;

/// Words before the copies: the generation.
const HEADER: usize = 1;
/// Bits of a port's number in an entry.
const PORT_BITS: u32 = 16;

/// Two copies of a forwarding table.
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
    1 + places.ports + ports + places.uplinks * MacTable::DEFAULT_UPLINK_LIMIT as usize
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
    pub fn restore(&self, instance_at: impl Fn(usize) -> Option<u64>) -> Vec<(MacAddr, PortId)> {
        let (count, instances, entries) = self.parts(self.generation.load(Acquire));
        let count = usize::try_from(count.load(Relaxed)).unwrap_or(usize::MAX).min(entries.len());
        let is_there = |id: PortId| match instances.get(id.index()) {
            Some(instance) => instance_at(id.index()) == Some(instance.load(Relaxed)),
            // An uplink.
            None => true,
        };
        let all = entries[..count].iter().map(|entry| unpack(entry.load(Relaxed)));
        all.filter(|(_, id)| is_there(*id)).collect()
    }

    /// Saves the learned addresses of `table`, if it has changed; `instances` are those of ports by number.
    pub fn save(&mut self, table: &MacTable, instances: impl Iterator<Item = (usize, u64)>) {
        let state = table.changes();
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
        for (entry, (mac, port)) in entries.iter().zip(table.learned()) {
            entry.store(pack(mac, port), Relaxed);
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

fn unpack(entry: u64) -> (MacAddr, PortId) {
    let [a, b, c, d, e, f, high, low] = entry.to_be_bytes();
    (MacAddr([a, b, c, d, e, f]), PortId(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use floodway_core::l2::PortKind;
    use floodway_core::time::Instant;
    use rustix::fs::SealFlags;

    use super::super::tests::memory;
    use super::*;

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

    fn table(addresses: u8) -> MacTable {
        let mut table = MacTable::new([1, 2], Duration::from_secs(300));
        table.add_port(PortId(7), PortKind::Uplink, MacTable::DEFAULT_UPLINK_LIMIT);
        (0..addresses).for_each(|n| {
            table.learn(mac(n), PortId(7), false, Instant::ZERO);
        });
        table
    }

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0xff, 0, 0, 0, n])
    }

    #[test]
    fn what_was_saved_last_is_restored() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        assert_eq!(open(&file).restore(|_| None), []);
        for addresses in [3, 1, 2] {
            open(&file).save(&table(addresses), std::iter::empty());
            let mut restored = open(&file).restore(|_| None);
            restored.sort_unstable_by_key(|(mac, _)| *mac);
            let expected: Vec<_> = (0..addresses).map(|n| (mac(n), UPLINK)).collect();
            assert_eq!(restored, expected);
        }
    }

    #[test]
    fn addresses_of_a_port_are_not_those_of_the_next_one_with_its_number() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        let mut table = table(1);
        table.add_port(PORT, PortKind::Local, 10);
        table.learn(mac(5), PORT, false, Instant::ZERO);
        open(&file).save(&table, [(3, 11)].into_iter());
        let restored = |instance| {
            let mut all = open(&file).restore(at_3(instance));
            all.sort_unstable_by_key(|(mac, _)| *mac);
            all
        };
        assert_eq!(restored(11), [(mac(0), UPLINK), (mac(5), PORT)]);
        assert_eq!(restored(12), [(mac(0), UPLINK)]);
        assert_eq!(open(&file).restore(|_| None), [(mac(0), UPLINK)]);
    }

    #[test]
    fn a_table_that_has_not_changed_is_not_copied() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        let mut kept = open(&file);
        let mut table = table(2);
        for _ in 0..3 {
            kept.save(&table, std::iter::empty());
        }
        assert_eq!(kept.generation.load(Relaxed), 1);
        table.learn(mac(9), UPLINK, false, Instant::ZERO);
        kept.save(&table, std::iter::empty());
        assert_eq!((kept.generation.load(Relaxed), kept.restore(|_| None).len()), (2, 3));
    }

    #[test]
    fn what_a_stranger_wrote_is_bounded() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        let words_of_it = map(&file, words(PLACES)).unwrap();
        words_of_it.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        let restored = open(&file).restore(|_| None);
        assert_eq!(restored.len(), copy_words(PLACES) - 1 - PLACES.ports);
        let mut table = table(0);
        for (mac, port) in restored {
            table.learn(mac, port, false, Instant::ZERO);
        }
        assert!(table.is_empty(), "group addresses of a port that is not");
    }
}
