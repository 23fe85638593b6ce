//! How long it takes from an advance of the right edge to the data that it let through.

use crate::rtt::RttEstimator;
use crate::seq::Seq;
use crate::time::{Duration, Instant};

/// The round trip in the network, seen from the switch.
#[derive(Clone, Debug, Default)]
pub(super) struct LoopTime {
    network: RttEstimator,
    /// An edge that was passed by a newer one at that time: the first data beyond it was let through then.
    edge: Option<(Seq, Instant)>,
}

impl LoopTime {
    /// The handshake took this long in the network.
    pub fn handshake(&mut self, took: Duration, now: Instant) {
        self.network.sample(took, now);
    }

    /// The edge has left `old` behind.
    pub fn advanced(&mut self, old: Seq, now: Instant) {
        if self.edge.is_none() {
            self.edge = Some((old, now));
        }
    }

    /// New data up to `end` has arrived.
    pub fn arrived(&mut self, end: Seq, now: Instant) {
        if let Some((old, at)) = self.edge
            && end.after(old)
        {
            self.network.sample(now.since(at), now);
            self.edge = None;
        }
    }

    /// The round trip. Queueing in the network counts up to `queueing`. Zero before the first sample.
    pub fn total(&self, queueing: Duration) -> Duration {
        match (self.network.srtt(), self.network.min_rtt()) {
            (Some(smoothed), Some(least)) => smoothed.min(least + queueing),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    fn rounds(time: &mut LoopTime, network_us: u64) {
        for round in 0..100 {
            let (base, at) = (Seq(1000 * round), Instant::from_millis(1 + u64::from(round)));
            time.advanced(base, at);
            // What was let through before does not count.
            time.arrived(base, at + US(network_us / 2));
            time.arrived(base + 1000, at + US(network_us));
        }
    }

    #[test]
    fn from_the_edge_to_what_it_let_through() {
        let mut time = LoopTime::default();
        assert_eq!(time.total(US(100)), Duration::ZERO);
        time.handshake(US(300), Instant::ZERO);
        assert_eq!(time.total(US(100)), US(300));
        rounds(&mut time, 200);
        assert!(time.total(US(100)) <= US(201));
    }

    #[test]
    fn a_queue_counts_only_as_far_as_it_may() {
        let mut time = LoopTime::default();
        time.handshake(US(200), Instant::ZERO);
        rounds(&mut time, 900);
        assert_eq!(time.total(US(300)), US(500));
        assert!(time.total(US(5000)) > US(850));
    }
}
