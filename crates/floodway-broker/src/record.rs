//! The messages that bring a new data plane to where the last one was.
//!
//! # Theory of operation
//! A record belongs to one connection of a front-end. It is a list of vhost-user messages with their descriptors, in the order in which they are
//! replayed. The data plane decides what is in it, by [changes](Change) that come with the outcome of each message; the broker does not
//! know what an entry means. An entry has a key, and there is one for each key: what replaces it becomes the last of the list.
//!
//! **Invariants**: entries, bytes and descriptors stay within [`Limits`]; descriptors in a record came from its own front-end; a change that is refused changes
//! nothing, nor do those that came with it.
//!
//! **Cost**: a change looks at each entry once.

use floodway_process::message::Change;

/// What a record may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries.
    pub entries: usize,
    /// Bytes of all messages.
    pub bytes: usize,
    /// Descriptors.
    pub descriptors: usize,
}

impl Limits {
    /// What a correct data plane needs for a port with `rings` rings: a table or 256 regions, six entries and two descriptors for each
    /// ring, and a few of the device.
    #[must_use]
    pub const fn of_port(rings: usize) -> Self {
        let entries = 16 + 2 * 256 + 8 * rings;
        // The longest is a table of memory; all others are shorter than 64 bytes.
        Self { entries, bytes: 4 * 4108 + 64 * entries, descriptors: 8 + 32 + 256 + 2 * rings }
    }
}

/// A change would make the record larger than a correct data plane needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of {entries} entries, {bytes} bytes and {descriptors} descriptors is too large")]
pub struct TooLarge {
    /// Entries that it would have.
    pub entries: usize,
    /// Bytes that they would have.
    pub bytes: usize,
    /// Descriptors that they would have.
    pub descriptors: usize,
}

/// A vhost-user message and what came beside it. `D` is a descriptor; a clone of it stands for the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<D> {
    /// The message with its header.
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub descriptors: Vec<D>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry<D> {
    key: u64,
    packet: Packet<D>,
}

/// A record.
#[derive(Clone, Debug)]
pub struct Record<D> {
    limits: Limits,
    entries: Vec<Entry<D>>,
}

impl<D: Clone> Record<D> {
    /// An empty record.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, entries: Vec::new() }
    }

    /// A record with these entries, which come from one with the same limits.
    #[must_use]
    pub(crate) fn restore(limits: Limits, entries: Vec<(u64, Packet<D>)>) -> Self {
        let entries = entries.into_iter().map(|(key, packet)| Entry { key, packet }).collect();
        Self { limits, entries }
    }

    /// What is kept under `key`.
    pub(crate) fn packet(&self, key: u64) -> Option<&Packet<D>> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.packet)
    }

    /// What is replayed, in this order.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &Packet<D>> {
        self.entries.iter().map(|entry| &entry.packet)
    }

    /// Applies all `changes`, which `handled` has led to.
    ///
    /// # Errors
    /// The record would become too large. It stays as it was.
    pub fn apply(&mut self, changes: &[Change], handled: &Packet<D>) -> Result<(), TooLarge> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut entries = self.entries.clone();
        for change in changes {
            match change {
                Change::Keep { key } => keep(&mut entries, *key, handled.clone()),
                Change::KeepOwn { key, bytes } => {
                    let packet = Packet { bytes: bytes.clone(), descriptors: Vec::new() };
                    keep(&mut entries, *key, packet);
                }
                Change::Forget { first, last } => {
                    entries.retain(|entry| !(first..=last).contains(&&entry.key));
                }
            }
        }
        check(&entries, &self.limits)?;
        self.entries = entries;
        Ok(())
    }
}

fn keep<D>(entries: &mut Vec<Entry<D>>, key: u64, packet: Packet<D>) {
    entries.retain(|entry| entry.key != key);
    entries.push(Entry { key, packet });
}

fn check<D>(entries: &[Entry<D>], limits: &Limits) -> Result<(), TooLarge> {
    let found = TooLarge {
        entries: entries.len(),
        bytes: entries.iter().map(|entry| entry.packet.bytes.len()).sum(),
        descriptors: entries.iter().map(|entry| entry.packet.descriptors.len()).sum(),
    };
    let fits = found.entries <= limits.entries
        && found.bytes <= limits.bytes
        && found.descriptors <= limits.descriptors;
    if fits { Ok(()) } else { Err(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { entries: 3, bytes: 40, descriptors: 2 };

    fn packet(byte: u8, descriptors: &[u32]) -> Packet<u32> {
        Packet { bytes: vec![byte; 12], descriptors: descriptors.to_vec() }
    }

    fn first_bytes(record: &Record<u32>) -> Vec<u8> {
        record.packets().map(|packet| packet.bytes[0]).collect()
    }

    #[test]
    fn an_entry_replaces_the_one_of_its_key_and_comes_last() {
        let mut record = Record::new(LIMITS);
        for (key, byte) in [(1, 10), (2, 20), (1, 11)] {
            record.apply(&[Change::Keep { key }], &packet(byte, &[])).unwrap();
        }
        assert_eq!(first_bytes(&record), [20, 11]);
        let own = Change::KeepOwn { key: 2, bytes: vec![21; 12] };
        record.apply(&[Change::Forget { first: 0, last: 1 }, own], &packet(0, &[7])).unwrap();
        assert_eq!(first_bytes(&record), [21]);
        assert!(record.packets().all(|packet| packet.descriptors.is_empty()));
    }

    #[test]
    fn a_record_that_would_be_too_large_stays_as_it_was() {
        let mut record = Record::new(LIMITS);
        record.apply(&[Change::Keep { key: 1 }], &packet(1, &[5, 6])).unwrap();
        let refused = [
            (vec![Change::Keep { key: 2 }], packet(2, &[7])),
            (vec![Change::Keep { key: 1 }, Change::Keep { key: 2 }], packet(2, &[7, 8])),
            ((2..5).map(|key| Change::Keep { key }).collect(), packet(2, &[])),
            (vec![Change::KeepOwn { key: 2, bytes: vec![2; 29] }], packet(2, &[])),
        ];
        for (changes, handled) in refused {
            assert!(record.apply(&changes, &handled).is_err(), "{changes:?}");
            assert_eq!(first_bytes(&record), [1]);
        }
        // What is forgotten makes room.
        let instead = [Change::Forget { first: 1, last: 1 }, Change::Keep { key: 2 }];
        record.apply(&instead, &packet(2, &[7, 8])).unwrap();
        assert_eq!(first_bytes(&record), [2]);
    }
}
