//! Broadcast storm limit.
//!
//! A frame to a group address or to an unknown address is copied to every port, so what one guest
//! sends costs all the others. Each port has a budget of such frames per second, with a burst of
//! one second's worth; beyond it they are dropped (and counted by the caller).

use crate::time::Instant;
use crate::token_bucket::TokenBucket;

/// The budget of one port for frames that go to many ports.
#[derive(Clone, Debug)]
pub struct StormLimit(Option<TokenBucket>);

impl StormLimit {
    /// At most `frames_per_second`, and as many in one burst; 0 means no limit.
    #[must_use]
    pub fn new(frames_per_second: u64, now: Instant) -> Self {
        let limited = frames_per_second > 0;
        Self(limited.then(|| TokenBucket::new(frames_per_second, frames_per_second, now)))
    }

    /// Whether one more such frame may pass at `now`.
    #[inline]
    pub fn admit(&mut self, now: Instant) -> bool {
        self.0.as_mut().is_none_or(|bucket| bucket.take(1, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_frames_then_the_rate() {
        let mut limit = StormLimit::new(1000, Instant::ZERO);
        let admitted = |limit: &mut StormLimit, at| (0..5000).filter(|_| limit.admit(at)).count();
        assert_eq!(admitted(&mut limit, Instant::ZERO), 1000);
        assert_eq!(admitted(&mut limit, Instant::from_millis(5)), 5);
        let mut unlimited = StormLimit::new(0, Instant::ZERO);
        assert_eq!(admitted(&mut unlimited, Instant::ZERO), 5000);
    }
}
