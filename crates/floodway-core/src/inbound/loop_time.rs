//! How long it takes from an advance of the right edge until what it let through is acknowledged.

use crate::rtt::{RttEstimator, micros};
use crate::seq::Seq;
use crate::time::{Duration, Instant};

/// What a guest takes for an ACK counts up to here: the bound of Linux's delayed ACKs, and more than a turn of most
/// schedulers.
const MAX_GUEST: Duration = Duration::from_millis(100);

/// The two parts of a connection's loop.
#[derive(Clone, Debug, Default)]
pub(super) struct LoopTime {
    network: RttEstimator,
    /// An edge that was passed by a newer one at that time: the first data beyond it was let through then.
    edge: Option<(Seq, Instant)>,
    /// Smoothed, in microseconds times 8.
    guest_8: u32,
    /// The end of some data, and when it came.
    data: Option<(Seq, Instant)>,
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
        if self.data.is_none() {
            self.data = Some((end, now));
        }
    }

    /// The guest acknowledges up to `ack`.
    pub fn acknowledged(&mut self, ack: Seq, now: Instant) {
        if let Some((end, at)) = self.data
            && !ack.before(end)
        {
            let sample = micros(now.since(at).min(MAX_GUEST));
            self.guest_8 = self.guest_8 - self.guest_8 / 8 + sample;
            self.data = None;
        }
    }

    /// Both parts together. Queueing in the network counts up to `queueing`. Zero before the first sample.
    pub fn total(&self, queueing: Duration) -> Duration {
        let network = match (self.network.srtt(), self.network.min_rtt()) {
            (Some(smoothed), Some(least)) => smoothed.min(least + queueing),
            _ => Duration::ZERO,
        };
        network + self.guest()
    }

    /// The guest's part.
    pub fn guest(&self) -> Duration {
        Duration::from_micros(u64::from(self.guest_8 / 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    fn rounds(time: &mut LoopTime, network_us: u64, guest_us: u64, from_ms: u64) {
        for round in 0..100 {
            let (base, at) = (Seq(1000 * round), Instant::from_millis(from_ms + u64::from(round)));
            time.advanced(base, at);
            time.arrived(base, at + US(network_us / 2));
            time.arrived(base + 1000, at + US(network_us));
            time.acknowledged(base, at + US(network_us + guest_us / 2));
            time.acknowledged(base + 1000, at + US(network_us + guest_us / 2) + US(network_us / 2));
        }
    }

    #[test]
    fn both_parts_are_measured_apart() {
        let mut time = LoopTime::default();
        assert_eq!(time.total(US(100)), Duration::ZERO);
        time.handshake(US(300), Instant::ZERO);
        assert_eq!(time.total(US(100)), US(300));
        rounds(&mut time, 200, 400, 1);
        let (guest, total) = (time.guest(), time.total(US(100)));
        assert!(guest >= US(190) && guest <= US(310), "{guest:?}");
        assert!(total >= guest + US(195) && total <= guest + US(205), "{total:?}");
    }

    #[test]
    fn a_queue_counts_only_as_far_as_it_may() {
        let mut time = LoopTime::default();
        time.handshake(US(200), Instant::ZERO);
        rounds(&mut time, 900, 0, 1);
        let guest = time.guest();
        assert_eq!(time.total(US(300)), guest + US(500));
        assert!(time.total(US(5000)) > guest + US(850));
    }
}
