//! Counters of queues, ports and uplinks in kept memory: traffic, drops, and what mechanisms have done.
//!
//! # Theory of operation
//! A block of words for each queue, port and uplink direction, whose place does not depend on which ports there are: a port is found by its number. So have each
//! port's offload and inbound clamp, and all meters of an uplink together, which its lock guards. Workers count
//! in the blocks themselves, so nothing is lost with a process, and counters never go back: monitoring would take that for a restart, and count everything twice.
//!
//! **Ports come and go**, and one gets the number of another. So beside each number is the instance that counts there, which a broker gives to no two ports.
//! Whoever has another instance starts from zero. What a port has counted that is gone is in the blocks of all such ports: added by the data plane that
//! removes it, or if that dies over it by the next one, which finds an instance that is in no configuration. The note of the instance is cleared after the
//! sum is made; a data plane that dies just between the two has it counted twice.
//!
//! The first words say how long a block is and how many there are. Where that is not what this version has, everything starts from zero.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use floodway_core::egress::meter;
use floodway_core::{inbound, offload};

use super::map;
use crate::stats::{Removed, Traffic, WORDS};

/// Words before the first block; a block's length, so that blocks begin cache lines.
const HEADER: usize = WORDS;
/// Of counters of this kind.
const MAGIC: u64 = u64::from_be_bytes(*b"fwcount3");
/// Of ports that are gone: their number, what went to them, what came from them, what was too late.
const REMOVED: usize = 4;
/// Queue pairs of a port at most.
const PAIRS: usize = 16;
/// Of a port's queues: two for each queue pair, and one of what came to no queue.
const QUEUES: usize = 2 * PAIRS + 1;
/// Of a port's offload, and of its inbound clamp.
const OFFLOAD: usize = offload::Counters::LEN.div_ceil(WORDS);
const INBOUND: usize = inbound::Counters::LEN.div_ceil(WORDS);
/// Of a port.
const PER_PORT: usize = QUEUES + OFFLOAD + INBOUND;
/// Of an uplink's directions: one for each.
const DIRECTIONS: usize = 2;
/// Of its meters.
const METER: usize = meter::Counters::LEN.div_ceil(WORDS);
/// Of an uplink.
const PER_UPLINK: usize = DIRECTIONS + METER;
/// The instance of no port.
const NOBODY: u64 = 0;

type Blocks = &'static [[AtomicU64; WORDS]];

/// Numbers of ports, and uplinks, that there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Numbers of ports.
    pub ports: usize,
    /// Uplinks.
    pub uplinks: usize,
}

/// Counters that outlive this process.
#[derive(Debug)]
pub struct KeptCounters {
    /// Which port counts at a number.
    instances: &'static [AtomicU64],
    removed: Blocks,
    uplinks: Blocks,
    ports: Blocks,
}

/// The counters of one port.
#[derive(Debug)]
pub struct PortCounters(Blocks);

/// The counters of one uplink; by default of this process alone.
#[derive(Debug, Default)]
pub struct UplinkCounters {
    /// What left.
    pub sent: Traffic,
    /// What arrived.
    pub received: Traffic,
    /// Words of what all its meters have done, if they outlive this process.
    pub meter: Option<&'static [AtomicU64]>,
}

/// Words that a switch with these places needs.
#[must_use]
pub fn words(places: Places) -> usize {
    HEADER + instance_words(places) + blocks(places) * WORDS
}

/// As whole blocks.
fn instance_words(places: Places) -> usize {
    places.ports.next_multiple_of(WORDS)
}

fn blocks(places: Places) -> usize {
    REMOVED + PER_UPLINK * places.uplinks + PER_PORT * places.ports
}

impl KeptCounters {
    /// The counters of a switch with these places in `file`, which has [`words`].
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(file: &OwnedFd, places: Places) -> io::Result<Self> {
        let memory = map(file, words(places))?;
        let layout = layout(places);
        let (header, rest) = memory.split_at(HEADER);
        if header.iter().zip(layout).any(|(word, value)| word.load(Relaxed) != value) {
            memory.iter().for_each(|word| word.store(0, Relaxed));
            header.iter().zip(layout).for_each(|(word, value)| word.store(value, Relaxed));
        }
        let (instances, rest) = rest.split_at(instance_words(places));
        let (blocks, _) = rest.as_chunks();
        let (removed, blocks) = blocks.split_at(REMOVED);
        let (uplinks, ports) = blocks.split_at(PER_UPLINK * places.uplinks);
        Ok(Self { instances: &instances[..places.ports], removed, uplinks, ports })
    }

    /// Counters of the uplink with this index; of this process alone if there is none.
    #[must_use]
    pub fn uplink(&self, index: usize) -> UplinkCounters {
        let [sent, received] =
            std::array::from_fn(|direction| traffic(self.uplinks, PER_UPLINK * index + direction));
        let blocks = self.uplinks.get(PER_UPLINK * index..).unwrap_or_default();
        UplinkCounters { sent, received, meter: words_of(blocks, DIRECTIONS, METER) }
    }

    /// As [`uplink`](Self::uplink), for one that is new: from zero.
    #[must_use]
    pub fn begin_uplink(&self, index: usize) -> UplinkCounters {
        let blocks = self.uplinks.get(PER_UPLINK * index..).unwrap_or_default();
        blocks.iter().take(PER_UPLINK).flatten().for_each(|word| word.store(0, Relaxed));
        self.uplink(index)
    }

    /// Counters of the port `instance` with number `number`, where it has left them, or from zero; `None` if there is no such number.
    #[must_use]
    pub fn port(&self, number: usize, instance: u64) -> Option<PortCounters> {
        let (known, blocks) = self.place(number)?;
        if known.load(Relaxed) != instance {
            blocks.iter().flatten().for_each(|word| word.store(0, Relaxed));
            known.store(instance, Relaxed);
        }
        Some(PortCounters(blocks))
    }

    /// Counters of all ports that are gone.
    #[must_use]
    pub fn removed(&self) -> Removed {
        let [ports, rx, tx, late] = std::array::from_fn(|block| traffic(self.removed, block));
        Removed { ports, rx, tx, late }
    }

    /// The port with this number is gone and counted.
    pub fn release(&self, number: usize) {
        if let Some((known, _)) = self.place(number) {
            known.store(NOBODY, Relaxed);
        }
    }

    /// Counts ports as gone in `removed` that are not among those, by number and instance.
    pub fn count_orphans(&self, removed: &Removed, is_there: impl Fn(usize, u64) -> bool) {
        for (number, known) in self.instances.iter().enumerate() {
            let instance = known.load(Relaxed);
            if instance == NOBODY || is_there(number, instance) {
                continue;
            }
            let Some((_, blocks)) = self.place(number) else { continue };
            let counters = PortCounters(blocks);
            for pair in 0..PAIRS {
                removed.rx.add(&counters.rx(pair));
                removed.tx.add(&counters.tx(pair));
            }
            removed.rx.add(&counters.undelivered());
            removed.ports.packets.add(1);
            known.store(NOBODY, Relaxed);
        }
    }

    fn place(&self, number: usize) -> Option<(&'static AtomicU64, Blocks)> {
        let known = self.instances.get(number)?;
        Some((known, self.ports.get(PER_PORT * number..)?.get(..PER_PORT)?))
    }
}

impl PortCounters {
    /// Of the receive queue of a pair.
    #[must_use]
    pub fn rx(&self, pair: usize) -> Traffic {
        traffic(&self.0[..2 * PAIRS], 2 * pair)
    }

    /// Of the transmit queue of a pair.
    #[must_use]
    pub fn tx(&self, pair: usize) -> Traffic {
        traffic(&self.0[..2 * PAIRS], 2 * pair + 1)
    }

    /// Of what came to no queue.
    #[must_use]
    pub fn undelivered(&self) -> Traffic {
        traffic(self.0, 2 * PAIRS)
    }

    /// Of its offload.
    #[must_use]
    pub fn offload(&self) -> Option<offload::CounterCells> {
        words_of(self.0, QUEUES, OFFLOAD).and_then(offload::CounterCells::kept)
    }

    /// Words of what its inbound clamp has done.
    #[must_use]
    pub fn inbound(&self) -> Option<&'static [AtomicU64]> {
        words_of(self.0, QUEUES + OFFLOAD, INBOUND)
    }
}

/// What must be the same for words to mean the same.
fn layout(places: Places) -> [u64; 7] {
    let counters =
        [offload::Counters::LEN, inbound::Counters::LEN, meter::Counters::LEN].map(|n| n as u64);
    let [offload, inbound, meter] = counters;
    let (ports, uplinks) = (places.ports as u64, places.uplinks as u64);
    [MAGIC, WORDS as u64, ports, uplinks, offload, inbound, meter]
}

/// All words of `count` blocks from `first` on; `None` if there are fewer.
fn words_of(blocks: Blocks, first: usize, count: usize) -> Option<&'static [AtomicU64]> {
    Some(blocks.get(first..)?.get(..count)?.as_flattened())
}

/// Counters in a block; of this process alone if there is none.
fn traffic(blocks: Blocks, index: usize) -> Traffic {
    blocks.get(index).map_or_else(Traffic::default, Traffic::kept)
}

#[cfg(test)]
mod tests {
    use rustix::fs::SealFlags;

    use super::super::tests::memory;
    use super::*;
    use crate::stats::DropReason;

    const PLACES: Places = Places { ports: 3, uplinks: 1 };

    fn open(file: &OwnedFd) -> KeptCounters {
        KeptCounters::open(file, PLACES).unwrap()
    }

    #[test]
    fn counters_go_on_where_they_were() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        for round in 1..4 {
            let counters = open(&file);
            let port = counters.port(2, 9).unwrap();
            let UplinkCounters { sent, received, .. } = counters.uplink(0);
            let all = [port.rx(0), port.tx(0), port.rx(15), port.undelivered(), received, sent];
            for (i, block) in (0..).zip(&all) {
                block.count(100 + i);
                block.count_drop(DropReason::UplinkError, i);
                assert_eq!((block.packets.get(), block.bytes.get()), (round, round * (100 + i)));
                assert_eq!(block.drops(DropReason::UplinkError), round * i);
                assert_eq!(block.drops(DropReason::BadDescriptor), 0);
            }
            assert!(counters.port(3, 9).is_none());
            assert!(counters.uplink(1).meter.is_none());
            for own in [counters.uplink(1).sent.packets.get(), port.rx(16).packets.get()] {
                assert_eq!(own, 0, "the memory ends before this one");
            }
        }
    }

    #[test]
    fn a_port_that_gets_the_number_of_another_starts_from_zero_and_nothing_is_lost() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        let counters = open(&file);
        for (number, instance) in [(0, 1), (1, 2), (2, 3)] {
            let port = counters.port(number, instance).unwrap();
            port.rx(0).count(100);
            port.tx(15).count(10);
            port.undelivered().count_drop(DropReason::PortDown, 1);
        }
        // The data plane dies. Of three ports one is as it was, one another, and one has gone.
        let counters = open(&file);
        let removed = counters.removed();
        for _ in 0..2 {
            counters.count_orphans(&removed, |number, instance| (number, instance) == (0, 1));
            assert_eq!(removed.ports.packets.get(), 2, "once");
        }
        assert_eq!((removed.rx.bytes.get(), removed.tx.bytes.get()), (200, 20));
        assert_eq!(removed.rx.drops(DropReason::PortDown), 2);
        assert_eq!(counters.port(0, 1).unwrap().rx(0).packets.get(), 1);
        assert_eq!(counters.port(1, 4).unwrap().rx(0).packets.get(), 0);
        counters.release(1);
        counters.count_orphans(&removed, |number, _| number == 0);
        assert_eq!(open(&file).removed().ports.packets.get(), 2);
    }

    #[test]
    fn each_counter_has_words_of_its_own() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        let counters = open(&file);
        let words: &[AtomicU64] = map(&file, words(PLACES)).unwrap();
        let address = |words: &[AtomicU64]| words.as_ptr_range();
        let mut all = vec![address(counters.removed.as_flattened())];
        for number in 0..PLACES.ports {
            let port = counters.port(number, 9).unwrap();
            all.push(address(port.0[..QUEUES].as_flattened()));
            all.push(address(words_of(port.0, QUEUES, OFFLOAD).unwrap()));
            all.push(address(port.inbound().unwrap()));
            assert!(port.offload().is_some());
        }
        all.push(address(counters.uplinks[..DIRECTIONS].as_flattened()));
        all.push(address(counters.uplink(0).meter.unwrap()));
        all.sort_unstable_by_key(|range| range.start);
        assert!(all.is_sorted_by(|a, b| a.end <= b.start), "{all:?}");
        // Of these files, which map another place, the last words are the last port's.
        assert_eq!(words.len(), HEADER + instance_words(PLACES) + blocks(PLACES) * WORDS);
    }

    #[test]
    fn counters_of_another_layout_start_from_zero() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        open(&file).uplink(0).sent.count(1);
        assert_eq!(open(&file).uplink(0).sent.packets.get(), 1);
        let fewer = Places { ports: 2, ..PLACES };
        assert_eq!(KeptCounters::open(&file, fewer).unwrap().uplink(0).sent.packets.get(), 0);
    }
}
