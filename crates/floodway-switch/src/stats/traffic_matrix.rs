//! Who sends to whom: frames and bytes of each pair of ports, from guest to guest or by an uplink.
//!
//! # Theory of operation
//! A row for each port and uplink that frames come from, made when the first comes; in it a cell for each place that they go to.
//! Between two ports frames take one copy from guest to guest, else an uplink. What is counted was handed to a
//! receive queue or to an uplink's egress; what these drop is among their own counters.
//!
//! Several threads may send for one port (its worker, timers of its offload), so cells are added to atomically, once for all
//! frames of a batch that go to one place.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floodway_core::l2::PortId;

/// One cell.
#[derive(Debug, Default)]
struct Cell {
    packets: AtomicU64,
    bytes: AtomicU64,
}

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
pub struct TrafficMatrix {
    rows: Box<[OnceLock<Box<[Cell]>>]>,
}

impl TrafficMatrix {
    /// Counters for ports and uplinks with numbers below `places`.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self { rows: (0..places).map(|_| OnceLock::new()).collect() }
    }

    /// Counts frames from one place to another. Nothing for a number that is out of range.
    #[inline]
    pub fn count(&self, from: PortId, to: PortId, packets: u64, bytes: u64) {
        let Some(row) = self.rows.get(from.index()) else { return };
        let cells = row.get_or_init(|| self.rows.iter().map(|_| Cell::default()).collect());
        if let Some(cell) = cells.get(to.index()) {
            cell.packets.fetch_add(packets, Relaxed);
            cell.bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Forgets what was counted for a number, which is another port's from now on.
    pub fn forget(&self, place: PortId) {
        for (from, row) in self.rows.iter().enumerate() {
            let Some(cells) = row.get() else { continue };
            let all = 0..if from == place.index() { cells.len() } else { 0 };
            let gone = cells[all].iter().chain(cells.get(place.index()));
            for cell in gone {
                cell.packets.store(0, Relaxed);
                cell.bytes.store(0, Relaxed);
            }
        }
    }

    /// Pairs that have had traffic, in order.
    pub fn iter(&self) -> impl Iterator<Item = MatrixEntry> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(from, row)| Some((from, row.get()?))).flat_map(|(from, cells)| {
            cells.iter().enumerate().filter_map(move |(to, cell)| {
                let (packets, bytes) = (cell.packets.load(Relaxed), cell.bytes.load(Relaxed));
                let (from, to) = (PortId(from as u16), PortId(to as u16));
                (packets > 0).then_some(MatrixEntry { from, to, packets, bytes })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_apart_and_only_those_with_traffic_are_shown() {
        let pairs = TrafficMatrix::new(3);
        pairs.count(PortId(0), PortId(1), 2, 120);
        pairs.count(PortId(0), PortId(1), 1, 60);
        pairs.count(PortId(2), PortId(0), 1, 1500);
        pairs.count(PortId(3), PortId(0), 1, 1);
        pairs.count(PortId(0), PortId(3), 1, 1);
        let seen: Vec<_> = pairs.iter().map(|p| (p.from.0, p.to.0, p.packets, p.bytes)).collect();
        assert_eq!(seen, [(0, 1, 3, 180), (2, 0, 1, 1500)]);
        pairs.forget(PortId(0));
        assert_eq!(pairs.iter().count(), 0);
        pairs.count(PortId(2), PortId(1), 1, 60);
        pairs.forget(PortId(0));
        assert_eq!(pairs.iter().count(), 1);
    }
}
