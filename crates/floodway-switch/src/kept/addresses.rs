//! Learned addresses in kept memory.
//!
//! # Theory of operation
//! The table is copied once a second if it has changed: what is learned later than that is learned again, and its frames are flooded until then. There are two copies, so that
//! one is whole wherever the writer dies; a generation number says which. An entry is a word: address and port. Ages are not kept: what is
//! restored counts as just seen.
//!
//! What is read goes through the rules of the table like what is learned from a frame: no group addresses, no unknown port, limits.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use floodway_core::l2::{MacTable, PortId};
use floodway_wire::MacAddr;

use super::map;
use crate::config::Config;

/// Words before the copies: the generation.
const HEADER: usize = 1;
/// Bits of a port's number in an entry.
const PORT_BITS: u32 = 16;

/// Two copies of a forwarding table.
#[derive(Debug)]
pub struct KeptAddresses {
    generation: &'static AtomicU64,
    copies: [&'static [AtomicU64]; 2],
    /// State of the table that was copied last; none yet.
    copied: Option<u64>,
}

/// Words that a switch of `config` needs.
#[must_use]
pub fn words(config: &Config) -> usize {
    HEADER + 2 * copy_words(config)
}

/// A count, and as many entries as the table can have.
fn copy_words(config: &Config) -> usize {
    let ports = config.ports.len() * MacTable::DEFAULT_LOCAL_LIMIT as usize;
    1 + ports + config.uplinks.len() * MacTable::DEFAULT_UPLINK_LIMIT as usize
}

impl KeptAddresses {
    /// The table of a switch of `config` in `file`, which has [`words`].
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(file: &OwnedFd, config: &Config) -> io::Result<Self> {
        let memory = map(file, words(config))?;
        let (generation, copies) = memory.split_at(HEADER);
        let (first, second) = copies.split_at(copy_words(config));
        Ok(Self { generation: &generation[0], copies: [first, second], copied: None })
    }

    /// What was saved last.
    #[must_use]
    pub fn restore(&self) -> Vec<(MacAddr, PortId)> {
        let copy = self.copies[(self.generation.load(Acquire) % 2) as usize];
        let Some((count, entries)) = copy.split_first() else { return Vec::new() };
        let count = usize::try_from(count.load(Relaxed)).unwrap_or(usize::MAX).min(entries.len());
        entries[..count].iter().map(|entry| unpack(entry.load(Relaxed))).collect()
    }

    /// Saves the learned addresses of `table`, if it has changed.
    pub fn save(&mut self, table: &MacTable) {
        let state = table.changes();
        if self.copied == Some(state) {
            return;
        }
        let next = self.generation.load(Relaxed).wrapping_add(1);
        let Some((count, entries)) = self.copies[(next % 2) as usize].split_first() else { return };
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

    fn config() -> Config {
        let text = "[[port]]\nname = \"a\"\nsocket = \"/a\"\n";
        Config::parse(text, "test".as_ref()).unwrap()
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
        let file = memory(words(&config()), SealFlags::SHRINK);
        let open = || KeptAddresses::open(&file, &config()).unwrap();
        assert_eq!(open().restore(), []);
        for addresses in [3, 1, 2] {
            open().save(&table(addresses));
            let mut restored = open().restore();
            restored.sort_unstable_by_key(|(mac, _)| *mac);
            let expected: Vec<_> = (0..addresses).map(|n| (mac(n), PortId(7))).collect();
            assert_eq!(restored, expected);
        }
    }

    #[test]
    fn a_table_that_has_not_changed_is_not_copied() {
        let file = memory(words(&config()), SealFlags::SHRINK);
        let mut kept = KeptAddresses::open(&file, &config()).unwrap();
        let mut table = table(2);
        for _ in 0..3 {
            kept.save(&table);
        }
        assert_eq!(kept.generation.load(Relaxed), 1);
        table.learn(mac(9), PortId(7), false, Instant::ZERO);
        kept.save(&table);
        assert_eq!((kept.generation.load(Relaxed), kept.restore().len()), (2, 3));
    }

    #[test]
    fn what_a_stranger_wrote_is_bounded() {
        let file = memory(words(&config()), SealFlags::SHRINK);
        let words_of_it = map(&file, words(&config())).unwrap();
        words_of_it.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        let kept = KeptAddresses::open(&file, &config()).unwrap();
        assert_eq!(kept.restore().len(), copy_words(&config()) - 1);
        let mut table = table(0);
        for (mac, port) in kept.restore() {
            table.learn(mac, port, false, Instant::ZERO);
        }
        assert!(table.is_empty(), "group addresses of a port that is not");
    }
}
