//! Traffic and drops of queues, ports and uplinks in kept memory.
//!
//! # Theory of operation
//! A block of words for each queue, port and uplink direction, in the order of the configuration, which is the same for all data planes of a broker. Workers count
//! in the blocks themselves, so nothing is lost with a process, and counters never go back: monitoring would take that for a restart, and count everything twice.
//!
//! The first words say how long a block is and how many there are. Where that is not what this version has, everything starts from zero.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::map;
use crate::config::Config;
use crate::stats::{Traffic, WORDS};

/// Words before the first block; a block's length, so that blocks begin cache lines.
const HEADER: usize = WORDS;
/// Of counters of this kind.
const MAGIC: u64 = u64::from_be_bytes(*b"fwcount1");

/// Blocks that have not been given away.
#[derive(Debug)]
pub struct KeptCounters {
    blocks: &'static [AtomicU64],
}

/// Words that a switch of `config` needs.
#[must_use]
pub fn words(config: &Config) -> usize {
    HEADER + blocks(config) * WORDS
}

/// For each queue pair two, for each port one more, for each uplink two.
fn blocks(config: &Config) -> usize {
    let ports: usize = config.ports.iter().map(|port| 2 * usize::from(port.queue_pairs) + 1).sum();
    ports + 2 * config.uplinks.len()
}

impl KeptCounters {
    /// The counters of a switch of `config` in `file`, which has [`words`].
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(file: &OwnedFd, config: &Config) -> io::Result<Self> {
        let memory = map(file, words(config))?;
        let layout = [MAGIC, WORDS as u64, blocks(config) as u64];
        let (header, blocks) = memory.split_at(HEADER);
        if header.iter().zip(layout).any(|(word, value)| word.load(Relaxed) != value) {
            memory.iter().for_each(|word| word.store(0, Relaxed));
            header.iter().zip(layout).for_each(|(word, value)| word.store(value, Relaxed));
        }
        Ok(Self { blocks })
    }

    /// The next block; counters of this process alone once there is none left.
    pub fn next_block(&mut self) -> Traffic {
        match self.blocks.split_first_chunk() {
            Some((block, rest)) => {
                self.blocks = rest;
                Traffic::kept(block)
            }
            None => Traffic::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::SealFlags;

    use super::super::tests::memory;
    use super::*;
    use crate::stats::DropReason;

    fn config(pairs: u8) -> Config {
        let text = format!("[[port]]\nname = \"a\"\nsocket = \"/a\"\nqueue_pairs = {pairs}\n");
        Config::parse(&text, "test".as_ref()).unwrap()
    }

    #[test]
    fn counters_go_on_where_they_were() {
        let config = config(1);
        let file = memory(words(&config), SealFlags::SHRINK);
        let open = || KeptCounters::open(&file, &config).unwrap();
        for round in 1..4 {
            let mut counters = open();
            let blocks: Vec<Traffic> = (0..3).map(|_| counters.next_block()).collect();
            for (i, block) in (0..).zip(&blocks) {
                block.count(100 + i);
                block.count_drop(DropReason::UplinkError, i);
                assert_eq!((block.packets.get(), block.bytes.get()), (round, round * (100 + i)));
                assert_eq!(block.drops(DropReason::UplinkError), round * i);
                assert_eq!(block.drops(DropReason::BadDescriptor), 0);
            }
            let own = counters.next_block();
            own.count(1);
            assert_eq!(own.packets.get(), 1, "the memory ends before this one");
        }
    }

    #[test]
    fn counters_of_another_layout_start_from_zero() {
        let file = memory(words(&config(2)), SealFlags::SHRINK);
        let open = |pairs| KeptCounters::open(&file, &config(pairs)).unwrap();
        open(2).next_block().count(1);
        assert_eq!(open(2).next_block().packets.get(), 1);
        assert_eq!(open(1).next_block().packets.get(), 0);
    }
}
