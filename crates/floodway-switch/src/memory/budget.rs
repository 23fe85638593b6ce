//! How much memory front-ends may share: each, and all together.
//!
//! # Theory of operation
//! **Goal**: the kernel limits the mappings of a process (65 530 by default) and its addresses (128 TiB). No front-end, and no
//! number of them, may use up what others need; and one VM among many configured ports may be as large as if it were alone.
//!
//! **Rule**: half of both limits is what all mappings of guest memory together may take ([`TOTAL`]). Half of that is divided evenly among the ports
//! that the switch can have: a port always gets its part ([`Budget::part`]), whatever others do. The other half is common. Beyond its part, a port may hold no more of
//! that than it leaves free (the dynamic threshold of Choudhury and Hahne, with alpha 1): alone it may have half, and each of `n` greedy ones a part in
//! `n + 1`, so the next one always finds as much as each of them has.
//!
//! What is counted is what is mapped: a table that replaces another one counts beside it until that is unmapped.
//!
//! **Invariants**: parts and common half together are no more than [`TOTAL`]; a [`Lease`] is given back exactly once, after its
//! mapping has gone.

use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// Mappings and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Mappings.
    pub regions: u64,
    /// Bytes of addresses.
    pub bytes: u64,
}

/// What all mappings of guest memory may take together.
pub const TOTAL: Amount = Amount { regions: 1 << 15, bytes: 64 << 40 };

impl Amount {
    /// One mapping of `bytes` bytes.
    #[must_use]
    pub const fn mapping(bytes: u64) -> Self {
        Self { regions: 1, bytes }
    }

    fn with(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self { regions: f(self.regions, other.regions), bytes: f(self.bytes, other.bytes) }
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    const fn fits(self, other: Self) -> bool {
        self.regions <= other.regions && self.bytes <= other.bytes
    }
}

/// What the front-ends of a switch may share. See the module's theory of operation.
#[derive(Debug)]
pub struct Budget {
    /// What each port always gets.
    part: Amount,
    /// What is left of the common half.
    free: Mutex<Amount>,
}

impl Budget {
    /// The budget of a switch with this many ports.
    #[must_use]
    pub fn new(ports: usize) -> Arc<Self> {
        let ports = ports.max(1) as u64;
        let part = Amount { regions: TOTAL.regions / 2 / ports, bytes: TOTAL.bytes / 2 / ports };
        let parts = Amount { regions: part.regions * ports, bytes: part.bytes * ports };
        Arc::new(Self { part, free: Mutex::new(TOTAL.minus(parts)) })
    }

    /// What a port always gets.
    #[must_use]
    pub const fn part(&self) -> Amount {
        self.part
    }
}

/// One port's share of a [`Budget`].
#[derive(Clone, Debug)]
pub struct Share(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    budget: Arc<Budget>,
    /// What the port has. Changed under the lock of `budget.free` only.
    held: Mutex<Amount>,
}

impl Share {
    /// A share of `budget`. There must be no more of these than the budget has ports.
    #[must_use]
    pub fn of(budget: Arc<Budget>) -> Self {
        Self(Arc::new(Inner { budget, held: Mutex::default() }))
    }

    /// Takes `amount`, if the port may have that much more.
    #[must_use]
    pub fn lease(&self, amount: Amount) -> Option<Lease> {
        let mut lease = Lease { share: self.clone(), amount: Amount::default() };
        lease.extend(amount).then_some(lease)
    }

    /// What the port always gets.
    #[must_use]
    pub fn part(&self) -> Amount {
        self.0.budget.part
    }

    /// What the port has now.
    #[cfg(test)]
    pub(super) fn held(&self) -> Amount {
        *lock(&self.0.held)
    }

    /// Regions that a front-end without any could share now.
    #[must_use]
    pub fn regions(&self) -> u64 {
        let Budget { part, free } = &*self.0.budget;
        part.regions + lock(free).regions / 2
    }

    /// What the port has beyond its part when it holds `held`.
    fn beyond(&self, held: Amount) -> Amount {
        held.minus(self.0.budget.part)
    }
}

impl Default for Share {
    /// The share of a switch's only port.
    fn default() -> Self {
        Self::of(Budget::new(1))
    }
}

/// What a mapping takes of its port's share, until it is dropped.
#[derive(Debug)]
pub struct Lease {
    share: Share,
    amount: Amount,
}

impl Lease {
    /// Takes `more`, if the port may have that much more; returns `true` if it may.
    #[must_use]
    pub fn extend(&mut self, more: Amount) -> bool {
        let mut free = lock(&self.share.0.budget.free);
        let mut held = lock(&self.share.0.held);
        let after = held.plus(more);
        let beyond = self.share.beyond(after);
        let need = beyond.minus(self.share.beyond(*held));
        if !need.fits(*free) || !may_have(beyond, need, *free) {
            return false;
        }
        (*free, *held) = (free.minus(need), after);
        self.amount = self.amount.plus(more);
        true
    }
}

/// Returns `true` if a port may have `beyond` its part, for which it takes `need` of what is `free`: of what it takes, it leaves
/// as much.
fn may_have(beyond: Amount, need: Amount, free: Amount) -> bool {
    let left = free.minus(need);
    (need.regions == 0 || beyond.regions <= left.regions)
        && (need.bytes == 0 || beyond.bytes <= left.bytes)
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut free = lock(&self.share.0.budget.free);
        let mut held = lock(&self.share.0.held);
        let after = held.minus(self.amount);
        let back = self.share.beyond(*held).minus(self.share.beyond(after));
        (*free, *held) = (free.plus(back), after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn shares(ports: usize) -> (Arc<Budget>, Vec<Share>) {
        let budget = Budget::new(ports);
        let share = || Share::of(Arc::clone(&budget));
        let shares = (0..ports).map(|_| share()).collect();
        (budget, shares)
    }

    /// All that `share` gets, in mappings of `bytes`.
    fn greedy(share: &Share, bytes: u64) -> Vec<Lease> {
        std::iter::from_fn(|| share.lease(Amount::mapping(bytes))).collect()
    }

    #[test]
    fn one_vm_among_many_configured_ports_may_be_large() {
        for ports in [1, 2, 100, 2000, 4096] {
            let (_, shares) = shares(ports);
            let memory = [8192 * GIB, 4096 * GIB, 100 * GIB];
            let leases = memory.map(|bytes| shares[0].lease(Amount::mapping(bytes)));
            assert!(leases.iter().all(Option::is_some), "{ports}");
            assert!(shares[0].regions() >= 8000, "{ports}");
        }
    }

    #[test]
    fn greedy_front_ends_leave_every_port_its_part_and_more() {
        for ports in [4, 100, 2000] {
            for bytes in [4096, 64 * GIB] {
                let (budget, shares) = shares(ports);
                let part = budget.part();
                let (honest, attackers) = shares.split_last().unwrap();
                let _held: Vec<_> = attackers.iter().map(|share| greedy(share, bytes)).collect();
                let bytes = part.bytes / part.regions;
                let all: Vec<_> = greedy(honest, bytes);
                assert!(all.len() as u64 >= part.regions, "{ports}: {}", all.len());
            }
        }
    }

    #[test]
    fn all_together_never_have_more_than_the_total() {
        for ports in [1, 3, 1000, 2049, 4096] {
            for bytes in [4096, GIB, 1024 * GIB] {
                let (_, shares) = shares(ports);
                let held: Vec<_> = shares.iter().flat_map(|share| greedy(share, bytes)).collect();
                let sum = held.iter().fold(Amount::default(), |sum, lease| sum.plus(lease.amount));
                assert!(sum.fits(TOTAL), "{ports} ports have {sum:?}");
            }
        }
    }

    #[test]
    fn what_is_given_back_is_free_again() {
        let (budget, shares) = shares(3);
        let before = *lock(&budget.free);
        for _ in 0..3 {
            let leases: Vec<_> = shares.iter().flat_map(|share| greedy(share, 100 * GIB)).collect();
            assert!(leases.len() > 3);
            drop(leases);
            assert_eq!(*lock(&budget.free), before);
        }
        let mut lease = shares[0].lease(Amount::mapping(GIB)).unwrap();
        assert!(!lease.extend(Amount { regions: 0, bytes: 1 << 60 }));
        assert!(lease.extend(Amount { regions: 0, bytes: 20 << 40 }));
        drop(lease);
        assert_eq!(*lock(&budget.free), before);
    }
}
