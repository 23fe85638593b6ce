//! Questions to the forwarding database that change nothing, not even when an address was last seen: for traces.

use floodway_wire::ethernet::MacAddr;

use super::{Entry, MacTable, Observed, tick};
use crate::l2::PortId;
use crate::l2::slots::Word;
use crate::time::Instant;

impl MacTable {
    /// Returns what [`observe`](Self::observe) would find, and refreshes nothing.
    #[must_use]
    pub fn peek(&self, mac: MacAddr, port: PortId, announcement: bool, now: Instant) -> Observed {
        match self.slots.find_exact(Word::new(mac, port)) {
            Some(_) => Observed::Known,
            None => self.observe_change(mac, port, announcement, tick(now)),
        }
    }

    /// Returns the entry of an address, if it has one.
    #[must_use]
    pub fn entry_of(&self, mac: MacAddr, now: Instant) -> Option<Entry> {
        let slot = self.slots.find(mac)?;
        self.slots.get(slot).map(|word| self.entry(slot, word, tick(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::l2::{EntryKind, Learned, PortKind, Refusal};
    use crate::time::Duration;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    #[test]
    fn a_peek_says_what_an_observation_finds_and_refreshes_nothing() {
        let mut table = MacTable::new([1, 2], Duration::from_secs(300));
        for port in [1, 2] {
            table.add_port(PortId(port), PortKind::Local, 4);
        }
        let (here, there, late) = (PortId(1), PortId(2), Instant::from_millis(200_000));
        assert_eq!(table.peek(MAC, here, false, Instant::ZERO), Observed::Changed);
        assert_eq!(table.entry_of(MAC, late), None);
        assert_eq!(table.learn(MAC, here, false, Instant::ZERO), Learned::New);
        assert_eq!(table.peek(MAC, here, false, late), Observed::Known);
        assert_eq!(table.peek(MAC, there, false, late), Observed::Refused(Refusal::InUse));
        let group = MacAddr::BROADCAST;
        assert_eq!(table.peek(group, here, false, late), Observed::Refused(Refusal::NotUnicast));
        let idle = |table: &MacTable| match table.entry_of(MAC, late).map(|entry| entry.kind) {
            Some(EntryKind::Learned { idle }) => idle,
            other => panic!("{other:?}"),
        };
        assert!(idle(&table) > Duration::from_secs(100), "it was not refreshed");
        assert_eq!(table.observe(MAC, here, false, late), Observed::Known);
        assert_eq!(idle(&table), Duration::ZERO);
    }
}
