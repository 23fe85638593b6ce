//! Which addresses a port has in the forwarding database, so that they can be forgotten without a search.
//!
//! # Theory of operation
//! Each address that comes to a port is appended. One that leaves it (aged, moved) stays in the list and is recognized later: the
//! table no longer has it behind the port. When the list has grown to twice what was valid the last time, and a few, what is
//! not valid any more is dropped. So an append is O(log n) on average, and forgetting a port costs no more than what it has learned
//! since it was last forgotten.
//!
//! **Invariant**: every address that is behind the port is in the list, whose length stays under twice their largest number
//! and [`SLACK`].

use floodway_wire::ethernet::MacAddr;

use crate::steps;

/// Entries that may be out of date however short the list is.
const SLACK: usize = 64;

#[derive(Default)]
pub(super) struct Journal {
    macs: Vec<MacAddr>,
    /// Length at which the list is cleaned.
    clean_at: usize,
}

impl Journal {
    /// Appends an address. `is_here` returns `true` for addresses that are behind the port.
    pub(super) fn append(&mut self, mac: MacAddr, is_here: impl Fn(MacAddr) -> bool) {
        if self.macs.len() >= self.clean_at {
            steps::count(self.macs.len());
            self.macs.sort_unstable();
            self.macs.dedup();
            self.macs.retain(|&mac| is_here(mac));
            self.clean_at = self.macs.len() * 2 + SLACK;
        }
        self.macs.push(mac);
    }

    /// Empties the list and returns what it held.
    pub(super) fn take(&mut self) -> Vec<MacAddr> {
        std::mem::take(self).macs
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.macs.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Addresses come and go; the list knows all that are there, and stays short.
        #[test]
        fn the_list_holds_what_is_there_and_little_else(
            steps in proptest::collection::vec((any::<bool>(), 0_u8..40), 0..2000),
        ) {
            let (mut journal, mut here, mut most) = (Journal::default(), BTreeSet::new(), 0);
            for (comes, n) in steps {
                let mac = MacAddr([2, 0, 0, 0, 0, n]);
                if !comes {
                    here.remove(&mac);
                } else if here.insert(mac) {
                    most = most.max(here.len());
                    journal.append(mac, |mac| here.contains(&mac));
                }
                prop_assert!(journal.len() <= 2 * most + SLACK);
            }
            let listed: BTreeSet<_> = journal.take().into_iter().collect();
            prop_assert!(here.is_subset(&listed));
        }
    }
}
