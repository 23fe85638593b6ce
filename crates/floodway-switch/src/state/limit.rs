//! Rate limits of a port ([`floodway_core::l2::RateLimit`]) as the packet path has them: what is without a limit costs one flag for a batch.
//!
//! What a guest sends is measured before anything else is asked about the frame, so that a frame that is dropped for another reason counts, too. What it receives is
//! measured where it is placed in the guest's buffers or comes to wait for some; of a port with TCP offload before the offload sees it, for what is dropped here must not be
//! acknowledged. What the switch itself says to the guest, and what waits for a guest that has stopped, is not measured.
//!
//! A batch that may pass as a whole costs one hold of the limit's lock; only of another one is each frame measured by itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use floodway_core::l2::{Rate, RateLimit};
use floodway_core::time::Instant;

use crate::config::LimitConfig;
use crate::frame::{Frame, WireSize};
use crate::sync::lock;

/// The limits of a port.
pub struct PortLimits {
    /// What the guest sends.
    pub tx: PortLimit,
    /// What the guest receives.
    pub rx: PortLimit,
}

/// The limit of one direction. Nothing else is locked under its lock.
pub struct PortLimit {
    is_limited: AtomicBool,
    limit: Mutex<RateLimit>,
}

impl PortLimits {
    /// The limits that the configuration says.
    #[must_use]
    pub fn new(LimitConfig { tx, rx }: LimitConfig) -> Self {
        Self { tx: PortLimit::new(tx), rx: PortLimit::new(rx) }
    }

    /// Has other limits from `now` on.
    pub fn configure(&self, LimitConfig { tx, rx }: LimitConfig, now: Instant) {
        self.tx.configure(tx, now);
        self.rx.configure(rx, now);
    }
}

impl PortLimit {
    fn new(rate: Rate) -> Self {
        let limit = RateLimit::new(rate, Instant::ZERO);
        Self { is_limited: AtomicBool::new(limit.is_limited()), limit: Mutex::new(limit) }
    }

    fn configure(&self, rate: Rate, now: Instant) {
        let limit = RateLimit::new(rate, now);
        self.is_limited.store(limit.is_limited(), Ordering::Relaxed);
        *lock(&self.limit) = limit;
    }

    /// Returns `true` if there is a limit.
    #[inline]
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Returns `true` if the frame may pass at `now`, which is counted then.
    #[must_use]
    pub fn admit(&self, frame: &Frame<'_>, now: Instant) -> bool {
        !self.is_limited() || self.admit_all(frame.wire_size(), now)
    }

    /// Returns `true` if frames of that size may all pass at `now`, which are counted then. If not, none is counted, and some may pass by themselves.
    #[must_use]
    pub fn admit_all(&self, WireSize { bytes, packets }: WireSize, now: Instant) -> bool {
        lock(&self.limit).admit(bytes, packets, now)
    }

    /// Returns what [`admit`](Self::admit) would, and takes nothing.
    #[must_use]
    pub fn would_admit(&self, frame: &Frame<'_>, now: Instant) -> bool {
        let WireSize { bytes, packets } = frame.wire_size();
        lock(&self.limit).would_admit(bytes, packets, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_passes_as_a_whole_or_takes_nothing() {
        let rate = Rate { bytes: Some(1), burst: Some(300_000), packets: None };
        let limit = PortLimit::new(rate);
        let passes = |bytes| limit.admit_all(WireSize { bytes, packets: 32 }, Instant::ZERO);
        assert!(passes(200_000) && !passes(100_001) && passes(100_000) && !passes(1));
    }
}
