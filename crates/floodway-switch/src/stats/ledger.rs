//! What each port and uplink has cost the workers: see [`floodway_core::work`].
//!
//! Costs are added up for each port and uplink by whichever thread does the work, once for all frames of a batch that go to one place, so
//! cells are added to atomically. The worker of a port reads what came since it last looked, and charges the port's turns
//! ([`crate::runtime::worker`]). It also notes what that has taken, by the clock where it has looked. Once a second it writes down the shares of that, which
//! `floodway status` shows.
//!
//! Frames that wait for a guest's buffers are charged to their sender when they come to wait, and placed in the guest's turns or when somebody else delivers
//! there. The time of the sender's turn does not show that ([`Ledger::defer`]), and that of who places them does ([`Ledger::relieve`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use floodway_core::l2::PortId;
use floodway_core::work::{CostModel, Work};

/// The weights. A constant, so that the packet path multiplies by constants.
pub const MODEL: CostModel = CostModel::MEASURED;

/// Costs of one port or uplink, in cache lines of their own (two, which processors fetch in pairs): others' are added to by other threads.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Account {
    /// Nanoseconds by the cost model.
    spent: AtomicU64,
    /// Of these, what was left to others' turns.
    deferred: AtomicU64,
    /// What was done of that in this one's turns.
    relieved: AtomicU64,
    /// Nanoseconds that this has taken.
    used: AtomicU64,
    /// Share of its worker's work in the last second, in millionths.
    share: AtomicU32,
}

/// Nanoseconds by the cost model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// All that was charged.
    pub spent: u64,
    /// What of that was left to others' turns.
    pub deferred: u64,
    /// What others have been charged for and was done in this one's turns.
    pub relieved: u64,
}

impl Sums {
    /// What has come since `before`.
    #[inline]
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            spent: self.spent.wrapping_sub(before.spent),
            deferred: self.deferred.wrapping_sub(before.deferred),
            relieved: self.relieved.wrapping_sub(before.relieved),
        }
    }
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

    /// Adds an interrupt that had waited to the account of `who`.
    pub fn charge_interrupt(&self, who: PortId) {
        self.charge(who, &Work { interrupts: 1, ..Work::default() });
    }

    /// Forgets what was charged to a number, which is another port's from now on.
    pub fn forget(&self, who: PortId) {
        if let Some(account) = self.accounts.get(who.index()) {
            let Account { spent, deferred, relieved, used, share } = account;
            [spent, deferred, relieved, used].iter().for_each(|sum| sum.store(0, Relaxed));
            share.store(0, Relaxed);
        }
    }

    /// Nanoseconds, by the cost model, of all work that was done for `who`.
    #[inline]
    #[must_use]
    pub fn spent(&self, who: PortId) -> u64 {
        self.accounts.get(who.index()).map_or(0, |account| account.spent.load(Relaxed))
    }

    /// `work` of what `who` was charged is left to others' turns.
    #[cold]
    pub fn defer(&self, who: PortId, work: &Work) {
        if let Some(account) = self.accounts.get(who.index()) {
            account.deferred.fetch_add(MODEL.cost(work), Relaxed);
        }
    }

    /// In the turn of `who`, `ns` nanoseconds of work by the cost model were done that others have been charged for.
    #[cold]
    pub fn relieve(&self, who: PortId, ns: u64) {
        if let Some(account) = self.accounts.get(who.index()) {
            account.relieved.fetch_add(ns, Relaxed);
        }
    }

    /// What was charged so far to `who`, what of that was left to others' turns, and what was done of theirs in its own.
    #[inline]
    #[must_use]
    pub fn sums(&self, who: PortId) -> Sums {
        self.accounts.get(who.index()).map_or(Sums::default(), |account| Sums {
            spent: account.spent.load(Relaxed),
            deferred: account.deferred.load(Relaxed),
            relieved: account.relieved.load(Relaxed),
        })
    }

    /// What was done for `who` has taken `ns` nanoseconds more.
    #[inline]
    pub fn note_used(&self, who: PortId, ns: u64) {
        if let Some(account) = self.accounts.get(who.index()) {
            account.used.fetch_add(ns, Relaxed);
        }
    }

    /// Nanoseconds that all work for `who` has taken.
    #[must_use]
    pub fn used(&self, who: PortId) -> u64 {
        self.accounts.get(who.index()).map_or(0, |account| account.used.load(Relaxed))
    }

    /// The share of `who` in its worker's work in the last second, 0 to 1.
    #[must_use]
    pub fn share(&self, who: PortId) -> f64 {
        self.accounts.get(who.index()).map_or(0.0, |a| f64::from(a.share.load(Relaxed)) / 1e6)
    }

    /// Notes the shares of members of one worker, who have used these nanoseconds of the last second.
    pub fn note_shares(&self, times: &[(PortId, u64)]) {
        let sum = times.iter().map(|(_, time)| u128::from(*time)).sum::<u128>().max(1);
        for (who, time) in times {
            if let Some(account) = self.accounts.get(who.index()) {
                let millionths = u128::from(*time) * 1_000_000 / sum;
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
