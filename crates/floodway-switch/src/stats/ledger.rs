//! What each port and uplink has cost the workers: see [`floodway_core::work`].
//!
//! Costs are added up for each port and uplink by whichever thread does the work, once for all frames of a batch that go to one place, so
//! cells are added to atomically. The worker of a port reads what came since it last looked, and charges the port's turns
//! ([`crate::runtime::worker`]). Once a second it writes down the shares that `floodway status` shows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use floodway_core::l2::PortId;
use floodway_core::work::{CostModel, Work};

/// The weights. A constant, so that the packet path multiplies by constants.
pub const MODEL: CostModel = CostModel::MEASURED;

/// Costs of one port or uplink.
#[derive(Debug, Default)]
struct Account {
    /// Nanoseconds by the cost model.
    spent: AtomicU64,
    /// Share of its worker's work in the last second, in millionths.
    share: AtomicU32,
}

/// The accounts of all ports and uplinks, by their numbers.
#[derive(Debug)]
pub struct Ledger {
    accounts: Box<[Account]>,
}

impl Ledger {
    /// Accounts for ports and uplinks with numbers below `places`.
    #[must_use]
    pub fn new(places: usize) -> Self {
        let accounts = (0..places).map(|_| Account::default()).collect();
        Self { accounts }
    }

    /// Adds `work` to the account of `who`. Nothing for a number that is out of range.
    #[inline]
    pub fn charge(&self, who: PortId, work: &Work) {
        if let Some(account) = self.accounts.get(who.index()) {
            account.spent.fetch_add(MODEL.cost(work), Relaxed);
        }
    }

    /// Forgets what was charged to a number, which is another port's from now on.
    pub fn forget(&self, who: PortId) {
        if let Some(account) = self.accounts.get(who.index()) {
            account.spent.store(0, Relaxed);
            account.share.store(0, Relaxed);
        }
    }

    /// Nanoseconds, by the cost model, of all work that was done for `who`.
    #[inline]
    #[must_use]
    pub fn spent(&self, who: PortId) -> u64 {
        self.accounts.get(who.index()).map_or(0, |account| account.spent.load(Relaxed))
    }

    /// The share of `who` in its worker's work in the last second, 0 to 1.
    #[must_use]
    pub fn share(&self, who: PortId) -> f64 {
        self.accounts.get(who.index()).map_or(0.0, |a| f64::from(a.share.load(Relaxed)) / 1e6)
    }

    /// Notes the shares of members of one worker, who have cost these nanoseconds in the last second.
    pub fn note_shares(&self, costs: &[(PortId, u64)]) {
        let sum = costs.iter().map(|(_, cost)| u128::from(*cost)).sum::<u128>().max(1);
        for (who, cost) in costs {
            if let Some(account) = self.accounts.get(who.index()) {
                let millionths = u128::from(*cost) * 1_000_000 / sum;
                account.share.store(millionths as u32, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_was_spent_in_the_last_second() {
        let ledger = Ledger::new(3);
        ledger.charge(PortId(0), &Work { chains: 2, bytes: 1000, ..Work::default() });
        let CostModel { chain, byte, .. } = MODEL;
        assert_eq!(ledger.spent(PortId(0)), (2 * chain + 1000 * byte) / 1000);
        ledger.note_shares(&[(PortId(0), 300), (PortId(2), 100)]);
        assert_eq!([0, 1, 2].map(|i| ledger.share(PortId(i))), [0.75, 0.0, 0.25]);
        ledger.note_shares(&[(PortId(0), 0), (PortId(2), 0)]);
        assert_eq!(ledger.share(PortId(0)), 0.0);
        ledger.charge(PortId(9), &Work { chains: 1, ..Work::default() });
        assert_eq!(ledger.spent(PortId(9)), 0, "nobody");
        ledger.forget(PortId(0));
        assert_eq!(ledger.spent(PortId(0)), 0);
    }
}
