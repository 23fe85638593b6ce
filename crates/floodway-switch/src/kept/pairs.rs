//! Who sends to whom, in kept memory.
//!
//! # Theory of operation
//! The rows of a [`TrafficMatrix`], in a file of their own: there is a cell for each two numbers that ports and uplinks can have, most of which are never used. What was
//! never written takes no memory, so nothing is written, or read, before something is counted there. The first words say for how
//! many places it is. Where they say anything else, all of it starts from zero.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

use super::counters::Places;
use super::map;
use crate::stats::traffic_matrix::TrafficMatrix;

/// Of pairs of this layout.
const MAGIC: u64 = u64::from_be_bytes(*b"fwpairs1");

/// Words that a switch with these places needs.
#[must_use]
pub fn words(places: Places) -> usize {
    header(places).len() + matrix_words(places)
}

fn matrix_words(places: Places) -> usize {
    TrafficMatrix::words(places.ports, places.ports + places.uplinks)
}

const fn header(places: Places) -> [u64; 3] {
    [MAGIC, places.ports as u64, places.uplinks as u64]
}

/// The counters of a switch with these places in `file`, which has [`words`].
///
/// # Errors
/// It cannot be used.
pub fn open(file: &OwnedFd, places: Places) -> io::Result<TrafficMatrix> {
    let memory = map(file, words(places))?;
    let (header, matrix) = memory.split_at(header(places).len());
    let wanted = self::header(places);
    let found = [0, 1, 2].map(|index: usize| header[index].load(Relaxed));
    if found != wanted && found != [0; 3] {
        matrix.iter().for_each(|word| word.store(0, Relaxed));
    }
    header.iter().zip(wanted).for_each(|(word, value)| word.store(value, Relaxed));
    let short = || io::Error::from(io::ErrorKind::InvalidData);
    TrafficMatrix::kept(matrix, places.ports, places.ports + places.uplinks).ok_or_else(short)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use floodway_core::l2::PortId;
    use rustix::fs::{SealFlags, fstat};

    use super::super::tests::memory;
    use super::*;

    const PLACES: Places = Places { ports: 3, uplinks: 1 };

    #[test]
    fn pairs_are_there_for_the_next_one_unless_the_layout_is_another() {
        let file = memory(words(PLACES), SealFlags::SHRINK);
        for round in 1..4 {
            let pairs = open(&file, PLACES).unwrap();
            pairs.count(PortId(3), PortId(0), 1, 60);
            assert_eq!(pairs.iter().next().unwrap().packets, round);
        }
        let fewer = Places { ports: 2, ..PLACES };
        assert_eq!(open(&file, fewer).unwrap().iter().count(), 0);
        assert!(open(&file, Places { ports: 4, ..PLACES }).is_err(), "too short");
    }

    #[test]
    fn pairs_that_never_met_take_no_memory() {
        let places = Places { ports: 4000, uplinks: 90 };
        let file = memory(words(places), SealFlags::SHRINK);
        let pairs = open(&file, places).unwrap();
        pairs.restore(|number| Some(number as u64 + 1));
        pairs.count(PortId(3999), PortId(4089), 1, 60);
        assert_eq!(pairs.iter().count(), 1);
        pairs.begin(PortId(7), 9);
        // 512-byte blocks: header, instances, and one row, of 250 MB.
        let blocks = fstat(file.as_fd()).unwrap().st_blocks;
        assert!(blocks * 512 < 300_000, "{blocks} blocks");
    }
}
