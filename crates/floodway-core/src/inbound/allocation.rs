//! Who gets how much of the link.
//!
//! # Theory of operation
//! Weighted max-min fairness with a lower bound for everybody and an upper bound for those that
//! cannot use more: there is one level `l` such that the rates `clamp(l * w_i, min, limit_i)` add up to the
//! capacity. It is found by fixing those who break a bound and dividing the rest anew. All who fall short are
//! fixed in one round if they need more than the others exceed, all who exceed otherwise; nobody
//! fixed would ever break the other bound, so each round is final for those it fixes and there
//! are at most as many rounds as VMs.
//!
//! Without limits and minimum this is `C * w_i / sum(w)`, the paper's eq. 3. A VM of weight zero gets the minimum.
//! What is left when everybody is at a bound goes to all by weight, or to all alike if nobody has one: it is there
//! for whoever comes next.
//!
//! Numbers are whole bytes per second. Shares are cut out of the running sum, `floor(R * W_k / W)` less
//! `floor(R * W_(k-1) / W)`, so that what rounding takes from one the next one gets, and the sum is
//! exact.

use super::config::Config;
use crate::steps;

/// What one VM asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Its weight; zero if it is idle.
    pub weight: u32,
    /// It cannot use more than this, in bytes per second; `None` if that is not known.
    pub limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    weight: u64,
    /// Most that it can use.
    high: u64,
    rate: u64,
    fixed: bool,
}

/// Divides the capacity among VMs, and keeps the result. Nothing is allocated unless VMs are added.
#[derive(Clone, Debug)]
pub struct Allocator {
    capacity: u64,
    minimum: u64,
    demands: Vec<Demand>,
    shares: Vec<Share>,
    rates: Vec<u64>,
}

impl Allocator {
    /// For `vms` idle VMs.
    #[must_use]
    pub fn new(config: &Config, vms: usize) -> Self {
        let mut allocator = Self {
            capacity: config.capacity,
            minimum: config.minimum,
            demands: vec![Demand::default(); vms],
            shares: vec![Share::default(); vms],
            rates: vec![0; vms],
        };
        allocator.divide();
        allocator
    }

    /// Changes capacity and minimum.
    pub fn configure(&mut self, config: &Config) {
        (self.capacity, self.minimum) = (config.capacity, config.minimum);
        self.divide();
    }

    /// Notes what a VM asks for now; returns whether that changed the rates.
    pub fn set(&mut self, vm: usize, demand: Demand) -> bool {
        match self.demands.get_mut(vm) {
            Some(known) if *known != demand => *known = demand,
            _ => return false,
        }
        self.divide();
        true
    }

    /// Notes what all VMs ask for, in order.
    pub fn set_all(&mut self, demands: impl IntoIterator<Item = Demand>) {
        for (known, demand) in self.demands.iter_mut().zip(demands) {
            *known = demand;
        }
        self.divide();
    }

    /// What each VM asks for.
    #[must_use]
    pub fn demands(&self) -> &[Demand] {
        &self.demands
    }

    /// The rate of each VM, in bytes per second.
    #[must_use]
    pub fn rates(&self) -> &[u64] {
        &self.rates
    }

    fn divide(&mut self) {
        let Some(each) = self.capacity.checked_div(self.rates.len() as u64) else { return };
        let low = self.minimum.min(each);
        for (share, demand) in self.shares.iter_mut().zip(&self.demands) {
            let high = if demand.weight == 0 { low } else { demand.limit.unwrap_or(u64::MAX) };
            let weight = u64::from(demand.weight);
            *share = Share { weight, high: high.max(low), rate: 0, fixed: false };
        }
        let mut rest = self.capacity;
        while let Some(left) = fix_round(&mut self.shares, low, rest) {
            rest = left;
        }
        share_out(&mut self.shares, rest);
        for (rate, share) in self.rates.iter_mut().zip(&self.shares) {
            *rate = share.rate;
        }
    }
}

/// Fixes who breaks a bound, and answers what is left for the others; `None` if nobody does.
fn fix_round(shares: &mut [Share], low: u64, rest: u64) -> Option<u64> {
    steps::count(shares.len());
    let total: u64 = free(shares).map(|share| share.weight).sum();
    // Of nothing, everybody gets nothing. Products of 64 bits are compared as 128.
    let ideal = |share: &Share| u128::from(rest) * u128::from(share.weight);
    let bound = |rate: u64| u128::from(rate) * u128::from(total.max(1));
    let (mut short, mut over) = (0_u128, 0_u128);
    for share in free(shares) {
        short = short.saturating_add(bound(low).saturating_sub(ideal(share)));
        over = over.saturating_add(ideal(share).saturating_sub(bound(share.high)));
    }
    if short == 0 && over == 0 {
        return None;
    }
    let mut left = rest;
    for share in shares.iter_mut().filter(|share| !share.fixed) {
        let is_short = short >= over && ideal(share) < bound(low);
        let is_over = over >= short && ideal(share) > bound(share.high);
        if is_short || is_over {
            share.fixed = true;
            share.rate = if is_short { low } else { share.high };
            left = left.saturating_sub(share.rate);
        }
    }
    Some(left)
}

fn free(shares: &[Share]) -> impl Iterator<Item = &Share> {
    shares.iter().filter(|share| !share.fixed)
}

/// Gives `rest` to the free ones by weight; if there are none, to all by weight on top of what they have;
/// if there are no weights, to all alike.
fn share_out(shares: &mut [Share], rest: u64) {
    if rest == 0 {
        return;
    }
    steps::count(shares.len());
    let weight_of = |share: &Share, only_free: bool, alike: bool| match (only_free, alike) {
        (true, _) if share.fixed => 0,
        (_, true) => 1,
        _ => share.weight,
    };
    let total = |only_free, alike| shares.iter().map(|s| weight_of(s, only_free, alike)).sum();
    let choices = [(true, false), (false, false), (false, true)];
    let Some((only_free, alike, total)) = choices
        .into_iter()
        .map(|(only_free, alike)| -> (bool, bool, u64) {
            (only_free, alike, total(only_free, alike))
        })
        .find(|&(_, _, total)| total > 0)
    else {
        return;
    };
    let (mut sum, mut given) = (0_u64, 0_u64);
    for share in shares {
        sum += weight_of(share, only_free, alike);
        let upto = (u128::from(rest) * u128::from(sum) / u128::from(total)) as u64;
        share.rate += upto - given;
        given = upto;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(capacity: u64, minimum: u64, demands: &[(u32, Option<u64>)]) -> Vec<u64> {
        let config = Config { capacity, minimum, ..Config::default() };
        let mut allocator = Allocator::new(&config, demands.len());
        allocator.set_all(demands.iter().map(|&(weight, limit)| Demand { weight, limit }));
        allocator.rates().to_vec()
    }

    fn by_weight(capacity: u64, minimum: u64, weights: &[u32]) -> Vec<u64> {
        let demands: Vec<_> = weights.iter().map(|&weight| (weight, None)).collect();
        rates(capacity, minimum, &demands)
    }

    #[test]
    fn the_papers_figure_2() {
        // 1, 5, 12 and 0 connections; the idle VM keeps its minimum.
        assert_eq!(by_weight(1000, 10, &[1, 5, 12, 0]), [55, 275, 660, 10]);
        assert_eq!(by_weight(900, 0, &[1, 5, 12, 0]), [50, 250, 600, 0]);
    }

    #[test]
    fn who_would_get_less_than_the_minimum_gets_the_minimum() {
        assert_eq!(by_weight(1000, 100, &[1, 99, 0]), [100, 800, 100]);
        assert_eq!(by_weight(1000, 900, &[1, 99]), [500, 500]);
        assert_eq!(by_weight(1000, 10, &[0, 0, 0, 0]), [250; 4]);
        assert_eq!(by_weight(7, 0, &[0, 0]), [3, 4]);
        assert_eq!(by_weight(0, 5, &[1, 2]), [0, 0]);
        assert!(by_weight(5, 5, &[]).is_empty());
    }

    #[test]
    fn what_one_does_not_use_the_others_get() {
        assert_eq!(rates(900, 0, &[(1, Some(100)), (1, None), (1, None)]), [100, 400, 400]);
        // Both limited: the second round limits the second one, too.
        assert_eq!(rates(900, 0, &[(1, Some(100)), (1, Some(350)), (1, None)]), [100, 350, 450]);
        // Nobody can use it: it is there for whoever comes.
        assert_eq!(rates(900, 0, &[(1, Some(100)), (2, Some(200))]), [300, 600]);
        // A limit below the minimum is not one.
        assert_eq!(rates(900, 50, &[(1, Some(0)), (1, None)]), [50, 850]);
    }

    fn demands() -> impl Strategy<Value = Vec<(u32, Option<u64>)>> {
        let weight = prop_oneof![Just(0), 1_u32..20, any::<u32>()];
        let limit = proptest::option::of(prop_oneof![0_u64..2_000, any::<u64>()]);
        proptest::collection::vec((weight, limit), 1..40)
    }

    proptest! {
        #[test]
        fn rates_add_up_and_minimums_are_kept(
            capacity in prop_oneof![0_u64..10_000, any::<u64>()],
            minimum in prop_oneof![0_u64..1_000, any::<u64>()],
            demands in demands(),
        ) {
            let rates = rates(capacity, minimum, &demands);
            let sum: u128 = rates.iter().map(|&rate| u128::from(rate)).sum();
            prop_assert_eq!(sum, u128::from(capacity));
            let low = minimum.min(capacity / rates.len() as u64);
            prop_assert!(rates.iter().all(|&rate| rate >= low), "{:?} >= {}", rates, low);
        }

        /// Nobody who could use more has a lower level than one who has more than its minimum.
        #[test]
        fn levels_are_equal(
            capacity in 100_000_u64..10_000_000,
            minimum in 0_u64..5_000,
            weights in proptest::collection::vec(1_u32..50, 1..20),
            limits in proptest::collection::vec(proptest::option::of(0_u64..1_000_000), 20),
        ) {
            let demands: Vec<_> = weights.iter().copied().zip(limits).collect();
            let rates = rates(capacity, minimum, &demands);
            let low = minimum.min(capacity / rates.len() as u64);
            let wants_more = |i: usize| demands[i].1.is_none_or(|limit| rates[i] < limit.max(low));
            prop_assume!((0..rates.len()).any(wants_more));
            for i in (0..rates.len()).filter(|&i| wants_more(i)) {
                for j in (0..rates.len()).filter(|&j| rates[j] > low) {
                    // Each is rounded by less than one.
                    let (low, high) = (u128::from(rates[i] + 1), u128::from(rates[j] - 1));
                    let (by_i, by_j) = (u128::from(weights[i]), u128::from(weights[j]));
                    prop_assert!(low * by_j >= high * by_i, "{} {} {:?} {:?}", i, j, rates, demands);
                }
            }
        }

        #[test]
        fn more_weight_is_never_less_rate(
            capacity in 0_u64..1_000_000, minimum in 0_u64..1_000,
            weights in proptest::collection::vec(0_u32..50, 2..20),
        ) {
            let before = by_weight(capacity, minimum, &weights);
            let mut more = weights.clone();
            more[0] += 1;
            let after = by_weight(capacity, minimum, &more);
            // From no weight at all, where the rest is divided alike, to one.
            prop_assert!(after[0] >= before[0], "{:?} {:?}", before, after);
        }
    }
}
