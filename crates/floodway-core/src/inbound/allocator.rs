//! Who may have how much of a host's inbound link, kept up to date.
//!
//! # Theory of operation
//! **Goal.** Each VM's demand follows from its active connections and its configured weight ([`Policy`](super::Policy)); an
//! [`Allocator`] makes rates of the demands. Two occasions change them:
//! - *the number of a VM's active connections changed* ([`BandwidthAllocator::set_active`]). What the VM can use it has to show first, so
//!   nothing limits its share until the next look;
//! - *a look at what VMs use* ([`BandwidthAllocator::tick`]), every [`TICK`], while unused shares are lent.
//!
//! Whoever owns the VMs' clamps hands them the [`rates`](BandwidthAllocator::rates) after each change.
//!
//! Invariant: the rates are those of the latest demands under the latest configuration.

use super::allocation::{Allocator, Demand};
use super::config::Config;
use crate::time::{Duration, Instant};

/// Interval of [`BandwidthAllocator::tick`].
pub const TICK: Duration = Duration::from_millis(50);

/// Divides one link among the VMs behind it.
#[derive(Clone, Debug)]
pub struct BandwidthAllocator {
    config: Config,
    /// Weights of the VMs in the configuration.
    weights: Vec<u32>,
    /// Active connections of each VM.
    active: Vec<u32>,
    allocator: Allocator,
    tick_at: Instant,
}

impl BandwidthAllocator {
    /// A division among idle VMs of these configured weights.
    #[must_use]
    pub fn new(config: Config, weights: Vec<u32>, now: Instant) -> Self {
        let mut allocator = Self {
            active: vec![0; weights.len()],
            allocator: Allocator::new(&config, weights.len()),
            weights,
            config,
            tick_at: Instant::NEVER,
        };
        allocator.apply(now);
        allocator
    }

    /// Takes over another configuration. One that switches the division off forgets what is active.
    pub fn configure(&mut self, config: &Config, now: Instant) {
        self.config = config.clone();
        self.allocator.configure(config);
        if config.capacity == 0 {
            self.active.fill(0);
        }
        self.apply(now);
    }

    /// A VM has `active` active connections now. Returns `true` if that changes the rates.
    pub fn set_active(&mut self, vm: usize, active: u32) -> bool {
        match self.active.get_mut(vm) {
            Some(known) if *known != active => *known = active,
            _ => return false,
        }
        let demand = self.demand(vm, None);
        self.allocator.set(vm, demand)
    }

    /// Active connections of a VM, as it was last set.
    #[must_use]
    pub fn active(&self, vm: usize) -> u32 {
        self.active.get(vm).copied().unwrap_or(0)
    }

    /// When [`tick`](Self::tick) is due; [`Instant::NEVER`] if nothing is lent.
    #[must_use]
    pub const fn next_tick(&self) -> Instant {
        self.tick_at
    }

    /// Divides anew by what VMs use: `limit` says how much a VM can use at most, if that is known.
    pub fn tick(&mut self, limit: impl Fn(usize) -> Option<u64>, now: Instant) {
        self.tick_at = now + TICK;
        self.demand_all(limit);
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What each VM asks for.
    #[must_use]
    pub fn demands(&self) -> &[Demand] {
        self.allocator.demands()
    }

    /// The rate of each VM, in bytes per second.
    #[must_use]
    pub fn rates(&self) -> &[u64] {
        self.allocator.rates()
    }

    fn apply(&mut self, now: Instant) {
        let lends = self.config.capacity > 0 && self.config.water_fill;
        self.tick_at = if lends { now + TICK } else { Instant::NEVER };
        self.demand_all(|_| None);
    }

    fn demand(&self, vm: usize, limit: Option<u64>) -> Demand {
        let of = |all: &[u32]| all.get(vm).copied().unwrap_or(0);
        let (active, configured) = (of(&self.active), of(&self.weights));
        let weight = self.config.policy.weight(active, self.config.weight_cap, configured);
        Demand { weight, limit: limit.filter(|_| self.config.water_fill) }
    }

    fn demand_all(&mut self, limit: impl Fn(usize) -> Option<u64>) {
        let demands: Vec<_> = (0..self.active.len()).map(|vm| self.demand(vm, limit(vm))).collect();
        self.allocator.set_all(demands);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbound::Policy;

    fn config(water_fill: bool) -> Config {
        Config { capacity: 1000, minimum: 100, water_fill, weight_cap: 4, ..Config::default() }
    }

    #[test]
    fn rates_follow_active_connections_up_to_the_cap() {
        let mut allocator = BandwidthAllocator::new(config(false), vec![1; 2], Instant::ZERO);
        assert_eq!((allocator.rates(), allocator.next_tick()), (&[500, 500][..], Instant::NEVER));
        assert!(allocator.set_active(0, 1));
        assert_eq!(allocator.rates(), [900, 100]);
        assert!(allocator.set_active(1, 4) && !allocator.set_active(1, 4));
        assert_eq!(allocator.rates(), [200, 800]);
        assert!(!allocator.set_active(1, 9), "beyond the cap");
        assert!(!allocator.set_active(2, 1), "no such VM");
    }

    #[test]
    fn what_is_not_used_is_lent_until_the_vm_opens_a_connection() {
        let mut allocator = BandwidthAllocator::new(config(true), vec![1; 2], Instant::ZERO);
        allocator.set_active(0, 1);
        allocator.set_active(1, 1);
        assert_eq!(
            (allocator.rates(), allocator.next_tick()),
            (&[500, 500][..], Instant::ZERO + TICK)
        );
        let now = allocator.next_tick();
        allocator.tick(|vm| (vm == 0).then_some(200), now);
        assert_eq!((allocator.rates(), allocator.next_tick()), (&[200, 800][..], now + TICK));
        assert!(allocator.set_active(0, 2));
        assert_eq!(allocator.rates(), [666, 334]);
    }

    #[test]
    fn switched_off_it_forgets_what_is_active() {
        let mut allocator = BandwidthAllocator::new(config(false), vec![1; 2], Instant::ZERO);
        allocator.set_active(0, 3);
        allocator.configure(&Config { capacity: 0, ..config(false) }, Instant::ZERO);
        allocator.configure(&config(false), Instant::ZERO);
        assert_eq!(allocator.rates(), [500, 500]);
        let fixed = Config { policy: Policy::Share, ..config(false) };
        let allocator = BandwidthAllocator::new(fixed, vec![1, 3], Instant::ZERO);
        assert_eq!(allocator.rates(), [250, 750]);
    }
}
