//! Questions to a clamp that change nothing: for traces.

use super::WindowClamp;
use crate::time::Instant;
use crate::token_bucket::TokenBucket;

impl<B> WindowClamp<B> {
    /// Returns what [`other_from_network`](Self::other_from_network) would, if the VM's rate were set to `rate` before, and counts
    /// nothing.
    #[must_use]
    pub fn would_pass_other(&self, rate: u64, now: Instant, is_udp: bool, wire: u64) -> bool {
        if !(is_udp && self.config.police_udp) {
            return true;
        }
        let mut police = match rate == self.rate() {
            true => self.police.clone(),
            false => TokenBucket::new(rate, u64::from(self.config.burst), now),
        };
        police.take(wire, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbound::Config;

    #[test]
    fn a_question_is_answered_as_the_datagram_is_dealt_with() {
        let config = Config { police_udp: true, burst: 1000, ..Config::default() };
        let mut clamp = WindowClamp::<()>::new(config, 1);
        let now = Instant::from_millis(5);
        assert!(clamp.would_pass_other(8000, now, true, 900), "the rate is to be set");
        assert!(!clamp.would_pass_other(8000, now, true, 1001));
        clamp.set_rate(8000, now);
        for wire in [600, 600, 400, 1] {
            let expected = clamp.would_pass_other(8000, now, true, wire);
            assert!((0..9).all(|_| clamp.would_pass_other(8000, now, true, wire) == expected));
            assert_eq!(clamp.other_from_network(now, true, wire), expected, "{wire}");
        }
        assert!(clamp.would_pass_other(8000, now, false, 9000), "not UDP");
    }
}
