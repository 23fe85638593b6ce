//! Who sends to whom: frames and bytes of each pair of ports, from guest to guest or by an uplink.
//!
//! # Theory of operation
//! A row for each port and uplink that frames come from, made when the first comes; in it a cell for each place that they go to.
//! Between two ports frames take one copy from guest to guest, else an uplink. What is counted was handed to a
//! receive queue or to an uplink's egress; what these drop is among their own counters.
//!
//! Several threads may send for one port (its worker, timers of its offload), so cells are added to atomically, once for all
//! frames of a batch that go to one place.

//!
//! Rows are boxes, or in memory that outlives the process ([`crate::kept::pairs`]), where a word for each row says whether anything was ever counted in it: others are
//! not looked at, so that they take no memory.
//!
//! **A number is another port's** when ports come and go. So beside the rows in such memory is the instance that each number's port has; cells of
//! another one are cleared before the instance is noted, and a process that dies in between leaves that to the next one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floodway_core::l2::PortId;

/// Packets and bytes of one pair.
type Cell = [AtomicU64; 2];

/// What went from one place to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixEntry {
    /// Port or uplink that the frames came from.
    pub from: PortId,
    /// Port or uplink that they went to.
    pub to: PortId,
    /// Frames; a GSO packet is one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Counters of all pairs. See the module's theory of operation.
#[derive(Debug)]
pub struct TrafficMatrix(Rows);

#[derive(Debug)]
enum Rows {
    /// Of this process.
    Own(Box<[OnceLock<Box<[Cell]>>]>),
    /// In memory that outlives it.
    Kept(KeptRows),
}

#[derive(Debug)]
struct KeptRows {
    /// The port that has a number.
    instances: &'static [AtomicU64],
    /// Not zero: something was counted in the row.
    used: &'static [AtomicU64],
    /// One row after the other.
    cells: &'static [Cell],
}

impl KeptRows {
    #[inline]
    fn row(&self, from: usize) -> Option<&[Cell]> {
        let places = self.used.len();
        (self.used.get(from)?.load(Relaxed) != 0).then(|| &self.cells[from * places..][..places])
    }

    #[inline]
    fn row_to_count_in(&self, from: usize) -> Option<&[Cell]> {
        self.row(from).or_else(|| {
            self.used.get(from)?.store(1, Relaxed);
            self.row(from)
        })
    }
}

impl TrafficMatrix {
    /// Counters for ports and uplinks with numbers below `places`.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self(Rows::Own((0..places).map(|_| OnceLock::new()).collect()))
    }

    /// Counters where they are in `words`, which has [`words`](Self::words); `None` if there are fewer.
    #[must_use]
    pub fn kept(words: &'static [AtomicU64], ports: usize, places: usize) -> Option<Self> {
        let (instances, words) = words.split_at_checked(ports)?;
        let (used, words) = words.split_at_checked(places)?;
        let cells = words.as_chunks().0.get(..places * places)?;
        Some(Self(Rows::Kept(KeptRows { instances, used, cells })))
    }

    /// Words for so many numbers of ports, among so many places.
    #[must_use]
    pub const fn words(ports: usize, places: usize) -> usize {
        ports + places + 2 * places * places
    }

    /// Counts frames from one place to another. Nothing for a number that is out of range.
    #[inline]
    pub fn count(&self, from: PortId, to: PortId, packets: u64, bytes: u64) {
        if let Some(cells) = self.row_to_count_in(from.index())
            && let Some([counted, volume]) = cells.get(to.index())
        {
            counted.fetch_add(packets, Relaxed);
            volume.fetch_add(bytes, Relaxed);
        }
    }

    #[inline]
    fn row_to_count_in(&self, from: usize) -> Option<&[Cell]> {
        match &self.0 {
            Rows::Own(rows) => {
                let new = || rows.iter().map(|_| Cell::default()).collect();
                Some(rows.get(from)?.get_or_init(new))
            }
            Rows::Kept(rows) => rows.row_to_count_in(from),
        }
    }

    /// The row of `from`, if anything was counted there.
    fn row(&self, from: usize) -> Option<&[Cell]> {
        match &self.0 {
            Rows::Own(rows) => rows.get(from)?.get().map(|row| &**row),
            Rows::Kept(rows) => rows.row(from),
        }
    }

    fn places(&self) -> usize {
        match &self.0 {
            Rows::Own(rows) => rows.len(),
            Rows::Kept(rows) => rows.used.len(),
        }
    }

    /// Forgets what was counted for a number, which is that of `instance` from now on.
    pub fn begin(&self, place: PortId, instance: u64) {
        for from in 0..self.places() {
            let Some(cells) = self.row(from) else { continue };
            let all = 0..if from == place.index() { cells.len() } else { 0 };
            let gone = cells[all].iter().chain(cells.get(place.index()));
            gone.flatten().for_each(|word| word.store(0, Relaxed));
        }
        if let Rows::Kept(rows) = &self.0
            && let Some(known) = rows.instances.get(place.index())
        {
            known.store(instance, Relaxed);
        }
    }

    /// Forgets what was counted for ports that are gone: `instance_at` says which port has a number now.
    pub fn restore(&self, instance_at: impl Fn(usize) -> Option<u64>) {
        let Rows::Kept(rows) = &self.0 else { return };
        for (number, known) in (0_u16..).zip(rows.instances) {
            let instance = instance_at(number.into()).unwrap_or(0);
            if known.load(Relaxed) != instance {
                self.begin(PortId(number), instance);
            }
        }
    }

    /// Pairs that have had traffic, in order.
    pub fn iter(&self) -> impl Iterator<Item = MatrixEntry> {
        let rows = (0..self.places()).filter_map(|from| Some((from, self.row(from)?)));
        rows.flat_map(|(from, cells)| {
            cells.iter().enumerate().filter_map(move |(to, cell)| {
                let [packets, bytes] = cell.each_ref().map(|word| word.load(Relaxed));
                let (from, to) = (PortId(from as u16), PortId(to as u16));
                (packets > 0).then_some(MatrixEntry { from, to, packets, bytes })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of this process, and one in `words`.
    fn both(words: &'static [AtomicU64]) -> [TrafficMatrix; 2] {
        [TrafficMatrix::new(3), TrafficMatrix::kept(words, 2, 3).expect("enough words")]
    }

    fn words() -> &'static [AtomicU64] {
        let all = (0..TrafficMatrix::words(2, 3)).map(|_| AtomicU64::new(0));
        Box::leak(all.collect::<Box<[_]>>())
    }

    fn seen(pairs: &TrafficMatrix) -> Vec<(u16, u16, u64, u64)> {
        pairs.iter().map(|p| (p.from.0, p.to.0, p.packets, p.bytes)).collect()
    }

    #[test]
    fn pairs_are_counted_apart_and_only_those_with_traffic_are_shown() {
        for pairs in both(words()) {
            pairs.count(PortId(0), PortId(1), 2, 120);
            pairs.count(PortId(0), PortId(1), 1, 60);
            pairs.count(PortId(2), PortId(0), 1, 1500);
            pairs.count(PortId(3), PortId(0), 1, 1);
            pairs.count(PortId(0), PortId(3), 1, 1);
            assert_eq!(seen(&pairs), [(0, 1, 3, 180), (2, 0, 1, 1500)]);
            pairs.begin(PortId(0), 7);
            assert_eq!(pairs.iter().count(), 0);
            pairs.count(PortId(2), PortId(1), 1, 60);
            pairs.begin(PortId(0), 8);
            assert_eq!(pairs.iter().count(), 1);
        }
    }

    #[test]
    fn pairs_in_kept_words_go_on_where_they_were_while_their_ports_are_the_same() {
        let words = words();
        let open = |instances: [Option<u64>; 2]| {
            let [_, pairs] = both(words);
            pairs.restore(|number| instances.get(number).copied().flatten());
            pairs
        };
        let first = open([Some(5), Some(6)]);
        for (from, to) in [(0, 1), (1, 2), (2, 0), (2, 1)] {
            first.count(PortId(from), PortId(to), 1, 60);
        }
        let all = [(0, 1, 1, 60), (1, 2, 1, 60), (2, 0, 1, 60), (2, 1, 1, 60)];
        assert_eq!(seen(&open([Some(5), Some(6)])), all);
        // While there was no data plane, a port has gone, and its number is another's.
        assert_eq!(seen(&open([Some(9), Some(6)])), [(1, 2, 1, 60), (2, 1, 1, 60)]);
        assert_eq!(seen(&open([Some(9), None])), []);
        assert!(TrafficMatrix::kept(&words[1..], 2, 3).is_none());
    }
}
