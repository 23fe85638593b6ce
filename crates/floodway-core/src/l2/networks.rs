//! Forwarding tables of several networks.
//!
//! # Theory of operation
//! A network is a broadcast domain of its own, a VLAN in the words of 802.1Q, and has a forwarding table of its own (independent VLAN
//! learning). So no address of one network is looked for in another, and whoever has the table of its network once for a batch pays nothing for each frame.
//! A table comes with the network's first port and stays: an empty one is about a kilobyte, and there are at most 4095.
//!
//! Port numbers are those of the whole switch. A port that is in several networks is in each of their tables, with a limit of addresses in each.
//!
//! Source: IEEE 802.1Q clause 8.8 (filtering databases, FIDs).

use floodway_wire::ethernet::MacAddr;

use super::PortId;
use super::mac_table::{Entry, MacTable};
use crate::time::{Duration, Instant};

/// Tables that one call of [`MacTables::age`] looks at.
const SWEEP_TABLES: usize = 8;

/// Names a network by its VLAN identifier; 0 is a network without one, which is never tagged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkId(pub u16);

impl NetworkId {
    /// The network of those that name none.
    pub const DEFAULT: Self = Self(0);
}

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The port or uplink.
    pub port: PortId,
    /// The network that it is in.
    pub network: NetworkId,
}

/// A forwarding table for each network.
pub struct MacTables {
    tables: Vec<Option<MacTable>>,
    /// That of networks without ports.
    none: MacTable,
    seed: [u64; 2],
    ageing: Duration,
    /// The network whose table is aged next.
    next: usize,
}

impl MacTables {
    /// No tables yet; `seed` and `ageing` are those of [`MacTable::new`] for all of them.
    #[must_use]
    pub fn new(seed: [u64; 2], ageing: Duration) -> Self {
        let none = MacTable::new(seed, ageing);
        Self { tables: Vec::new(), none, seed, ageing, next: 0 }
    }

    /// The table of a network; an empty one without ports if the network has none.
    #[must_use]
    #[inline]
    pub fn of(&self, network: NetworkId) -> &MacTable {
        match self.tables.get(usize::from(network.0)) {
            Some(Some(table)) => table,
            _ => &self.none,
        }
    }

    /// The table of a network, which comes to be if it is not there.
    pub fn of_mut(&mut self, network: NetworkId) -> &mut MacTable {
        let index = usize::from(network.0);
        if self.tables.len() <= index {
            self.tables.resize_with(index + 1, || None);
        }
        let (seed, ageing) = (self.seed, self.ageing);
        self.tables[index].get_or_insert_with(|| MacTable::new(seed, ageing))
    }

    fn all(&self) -> impl Iterator<Item = (NetworkId, &MacTable)> + '_ {
        let network = |index| NetworkId(u16::try_from(index).unwrap_or(u16::MAX));
        let tables = self.tables.iter().enumerate();
        tables.filter_map(move |(index, table)| Some((network(index), table.as_ref()?)))
    }

    /// Drops entries that were not seen for the ageing time, as [`MacTable::age`] does, in a bounded number of tables. Returns how
    /// many it dropped.
    pub fn age(&mut self, now: Instant) -> usize {
        let first = self.next.min(self.tables.len());
        let (before, after) = self.tables.split_at_mut(first);
        let in_turn = after.iter_mut().enumerate().map(|(index, table)| (first + index, table));
        let in_turn = in_turn.chain(before.iter_mut().enumerate());
        let due = in_turn.filter_map(|(index, table)| Some((index, table.as_mut()?)));
        let due = due.filter(|(_, table)| table.age_due(now)).take(SWEEP_TABLES);
        let (mut dropped, mut next) = (0, self.next);
        for (index, table) in due {
            dropped += table.age(now);
            next = index + 1;
        }
        self.next = next;
        dropped
    }

    /// Returns `true` if [`age`](Self::age) has anything to do.
    #[must_use]
    pub fn age_due(&self, now: Instant) -> bool {
        self.all().any(|(_, table)| table.age_due(now))
    }

    /// A number that grows whenever an entry of any table comes, goes or moves.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.all().map(|(_, table)| table.changes()).sum()
    }

    /// Learned addresses and where they are, network by network.
    pub fn learned(&self) -> impl Iterator<Item = (NetworkId, MacAddr, PortId)> + '_ {
        self.all().flat_map(|(network, table)| {
            table.learned().map(move |(mac, port)| (network, mac, port))
        })
    }

    /// All entries, ordered by network and address. For reports: it allocates.
    #[must_use]
    pub fn entries(&self, now: Instant) -> Vec<(NetworkId, Entry)> {
        let of = |(network, table): (NetworkId, &MacTable)| {
            table.entries(now).into_iter().map(move |entry| (network, entry))
        };
        self.all().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::l2::{Learned, Observed, PortKind};

    const RED: NetworkId = NetworkId(10);
    const BLUE: NetworkId = NetworkId(4094);
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn tables() -> MacTables {
        let mut tables = MacTables::new([1, 2], Duration::from_secs(300));
        tables.of_mut(RED).add_port(PortId(1), PortKind::Local, 4);
        tables.of_mut(BLUE).add_port(PortId(2), PortKind::Local, 4);
        tables
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn an_address_is_in_as_many_networks_as_use_it() {
        let mut tables = tables();
        for (network, port) in [(RED, PortId(1)), (BLUE, PortId(2))] {
            assert_eq!(tables.of(network).observe(MAC, port, false, at(0)), Observed::Changed);
            assert_eq!(tables.of_mut(network).learn(MAC, port, false, at(0)), Learned::New);
        }
        assert_eq!(tables.of(RED).lookup(MAC), Some(PortId(1)));
        assert_eq!(tables.of(BLUE).lookup(MAC), Some(PortId(2)));
        assert_eq!(tables.of(NetworkId::DEFAULT).lookup(MAC), None);
        let learned: Vec<_> = tables.learned().collect();
        assert_eq!(learned, [(RED, MAC, PortId(1)), (BLUE, MAC, PortId(2))]);
        tables.of_mut(RED).remove_port(PortId(1));
        assert_eq!(tables.of(RED).lookup(MAC), None);
        assert_eq!(tables.of(BLUE).lookup(MAC), Some(PortId(2)));
    }

    #[test]
    fn a_port_learns_in_its_own_networks_only() {
        let mut tables = tables();
        let unknown = Learned::Refused(crate::l2::Refusal::UnknownPort);
        assert_eq!(tables.of_mut(BLUE).learn(MAC, PortId(1), false, at(0)), unknown);
        assert_eq!(tables.of_mut(NetworkId(7)).learn(MAC, PortId(1), false, at(0)), unknown);
    }

    #[test]
    fn every_table_ages_a_few_at_a_time() {
        let mut tables = MacTables::new([1, 2], Duration::from_secs(300));
        for vid in 0..100 {
            let table = tables.of_mut(NetworkId(vid));
            table.add_port(PortId(vid), PortKind::Local, 4);
            table.learn(MAC, PortId(vid), false, at(0));
        }
        let changes = tables.changes();
        let (mut calls, mut dropped) = (0, 0);
        while tables.age_due(at(1000)) {
            let now = tables.age(at(1000));
            assert!(now <= SWEEP_TABLES);
            (calls, dropped) = (calls + 1, dropped + now);
            assert!(calls < 1000, "it ends");
        }
        assert_eq!((dropped, tables.entries(at(1000)).len()), (100, 0));
        assert!(tables.changes() > changes);
        assert_eq!(tables.age(at(1000)), 0);
    }
}
