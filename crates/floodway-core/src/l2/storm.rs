//! Broadcast storm limit.
//!
//! A frame to a group address or to an unknown address is copied to every port, so what one guest or
//! the network sends costs all the others. Each port and uplink has a budget of such frames per second, with a burst of
//! one second's worth; beyond it they are dropped (and counted by the caller).
//!
//! What counts is the number of frames that each receiver gets if it does not take GSO packets: one of 1365 segments is
//! 1365 frames, and one of more segments than the burst never passes.

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

    /// Returns `true` if a frame of `segments` segments may pass at `now`; one that is no GSO packet has one.
    #[inline]
    pub fn admit(&mut self, segments: u32, now: Instant) -> bool {
        self.0.as_mut().is_none_or(|bucket| bucket.take(segments.into(), now))
    }

    /// Returns what [`admit`](Self::admit) would, and takes nothing from the budget.
    #[must_use]
    pub fn would_admit(&self, segments: u32, now: Instant) -> bool {
        self.clone().admit(segments, now)
    }

    /// Returns the frames that may pass at once at `now`; `None` if there is no limit.
    #[must_use]
    pub fn available(&self, now: Instant) -> Option<u64> {
        self.0.as_ref().map(|bucket| bucket.available(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_frames_then_the_rate() {
        let mut limit = StormLimit::new(1000, Instant::ZERO);
        let admitted =
            |limit: &mut StormLimit, at| (0..5000).filter(|_| limit.admit(1, at)).count();
        assert_eq!(admitted(&mut limit, Instant::ZERO), 1000);
        assert_eq!(admitted(&mut limit, Instant::from_millis(5)), 5);
        let mut unlimited = StormLimit::new(0, Instant::ZERO);
        assert_eq!(admitted(&mut unlimited, Instant::ZERO), 5000);
    }

    #[test]
    fn a_gso_packet_counts_as_the_frames_that_it_becomes() {
        let mut limit = StormLimit::new(1000, Instant::ZERO);
        let admitted = (0..5000).filter(|_| limit.admit(45, Instant::ZERO)).count();
        assert_eq!(admitted, 1000 / 45);
        assert!(limit.admit(10, Instant::ZERO) && !limit.admit(1, Instant::ZERO));
        assert!(!limit.admit(1001, Instant::from_millis(10_000)));
    }

    #[test]
    fn a_question_takes_nothing() {
        let mut limit = StormLimit::new(2, Instant::ZERO);
        assert!((0..9).all(|_| limit.would_admit(2, Instant::ZERO)));
        assert!(!limit.would_admit(3, Instant::ZERO));
        assert_eq!(limit.available(Instant::ZERO), Some(2));
        assert!(limit.admit(2, Instant::ZERO) && !limit.would_admit(1, Instant::ZERO));
        assert_eq!(StormLimit::new(0, Instant::ZERO).available(Instant::ZERO), None);
    }
}
