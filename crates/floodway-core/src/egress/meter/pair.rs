//! One pair: its bucket, its class, and what it sent lately.

use super::Config;
use super::counters::CounterCells;
use crate::egress::qdisc::Class;
use crate::time::{Duration, Instant};
use crate::token_bucket::TokenBucket;

#[derive(Clone, Debug)]
pub(super) struct Pair {
    bucket: TokenBucket,
    class: Class,
    /// Where periods are counted from: its first packet, or when it became low.
    since: Instant,
    /// The period that `bytes` were sent in, when the next one begins, and the bytes of the one before.
    period: u64,
    ends: Instant,
    bytes: u64,
    bytes_before: u64,
}

impl Pair {
    pub(super) fn new(config: &Config, now: Instant) -> Self {
        Self {
            bucket: TokenBucket::new(config.rate, config.burst, now),
            class: Class::High,
            since: now,
            period: 0,
            ends: now + length(config),
            bytes: 0,
            bytes_before: 0,
        }
    }

    /// Meters a packet.
    #[inline]
    pub(super) fn packet(
        &mut self,
        config: &Config,
        vm: &mut TokenBucket,
        len: u32,
        now: Instant,
        counters: &CounterCells,
    ) -> Class {
        if self.enter_period(config, now) && self.class == Class::Low && self.conforms(config) {
            self.class = Class::High;
            counters.promoted().add(1);
        }
        if self.class == Class::High {
            if !self.bucket.take(len.into(), now) {
                self.demote(config, now, counters);
            } else if !vm.take(len.into(), now) {
                counters.capped().add(1);
                self.demote(config, now, counters);
            }
        }
        self.bytes = self.bytes.saturating_add(len.into());
        self.class
    }

    #[cold]
    fn demote(&mut self, config: &Config, now: Instant, counters: &CounterCells) {
        self.class = Class::Low;
        (self.since, self.period, self.bytes, self.bytes_before) = (now, 0, 0, 0);
        self.ends = now + length(config);
        counters.demoted().add(1);
    }

    /// Turns to the period of `now`; returns whether it is a new one.
    #[inline]
    fn enter_period(&mut self, config: &Config, now: Instant) -> bool {
        if now < self.ends {
            return false;
        }
        let period = self.period_at(config, now);
        (self.bytes_before, self.bytes) = (self.bytes_of_last(period), 0);
        self.period = period;
        let length = length(config).as_nanos() as u64;
        let end = length.saturating_mul(period.saturating_add(1));
        self.ends = self.since + Duration::from_nanos(end);
        true
    }

    /// What was sent in the last period before `period`, which is a later one than the pair's.
    fn bytes_of_last(&self, period: u64) -> u64 {
        if period == self.period + 1 { self.bytes } else { 0 }
    }

    fn period_at(&self, config: &Config, now: Instant) -> u64 {
        // Durations of configurations are far below 584 years.
        now.since(self.since).as_nanos() as u64 / length(config).as_nanos() as u64
    }

    /// The period before the current one was within the rate.
    fn conforms(&self, config: &Config) -> bool {
        within_rate(config, self.bytes_before)
    }

    /// The class that a small packet would get.
    pub(super) fn class(&self, config: &Config, now: Instant) -> Class {
        let period = self.period_at(config, now);
        let is_over = period > self.period && within_rate(config, self.bytes_of_last(period));
        if is_over { Class::High } else { self.class }
    }

    /// Bytes per second in the last whole period.
    pub(super) fn rate(&self, config: &Config, now: Instant) -> u64 {
        let period = self.period_at(config, now);
        let bytes =
            if period > self.period { self.bytes_of_last(period) } else { self.bytes_before };
        let length = config.recheck.as_nanos().max(1);
        u64::try_from(u128::from(bytes) * 1_000_000_000 / length).unwrap_or(u64::MAX)
    }

    pub(super) fn tokens(&self, now: Instant) -> u64 {
        self.bucket.available(now)
    }
}

/// Of a period.
fn length(config: &Config) -> Duration {
    config.recheck.max(Duration::from_nanos(1))
}

fn within_rate(config: &Config, bytes: u64) -> bool {
    // 64 bits of nanoseconds are 584 years.
    let period = config.recheck.as_nanos().min(u64::MAX.into());
    u128::from(bytes) * 1_000_000_000 <= u128::from(config.rate) * period
}
