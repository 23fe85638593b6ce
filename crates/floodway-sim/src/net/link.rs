//! One direction of a link.
//!
//! # Theory of operation
//! A packet takes `(length + overhead) * 8 / rate` to send, rounded up to a nanosecond, and
//! `propagation` to arrive. The overhead is what the link layer adds: for Ethernet header, check sequence,
//! preamble and gap, 38 bytes; a frame is at least 84 bytes with them. `loss` drops each packet on its way
//! with that probability, independently, by the link's own generator.
//!
//! `jitter` delays each packet by a time drawn uniformly between zero and that, without reordering. In a
//! network without any randomness, flows with fixed round trips fall into step with the drops of a queue, and
//! shares become arbitrary (Floyd and Jacobson, "On traffic phase effects in packet-switched gateways", 1992). The
//! remedy is theirs: jitter at the senders of one packet time of the bottleneck.

use crate::Duration;

/// Rate, delay and loss of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bits per second.
    pub rate: u64,
    /// From the last bit sent to the last bit received.
    pub propagation: Duration,
    /// Bytes on the wire beyond each IP packet.
    pub overhead: u32,
    /// Least bytes on the wire per packet.
    pub min_frame: u32,
    /// Probability that a packet is lost on the way, 0 to 1.
    pub loss: f64,
    /// Most random delay.
    pub jitter: Duration,
}

impl Link {
    /// Ethernet without loss.
    #[must_use]
    pub const fn ethernet(rate: u64, propagation: Duration) -> Self {
        Self { rate, propagation, overhead: 38, min_frame: 84, loss: 0.0, jitter: Duration::ZERO }
    }

    /// A link that carries IP packets and nothing else.
    #[must_use]
    pub const fn raw(rate: u64, propagation: Duration) -> Self {
        Self { rate, propagation, overhead: 0, min_frame: 0, loss: 0.0, jitter: Duration::ZERO }
    }

    /// The same with random loss.
    #[must_use]
    pub const fn with_loss(self, loss: f64) -> Self {
        Self { loss, ..self }
    }

    /// The same with random delay.
    #[must_use]
    pub const fn with_jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }

    /// How long the transmitter is busy with `packets` IP packets of `bytes` bytes together.
    #[must_use]
    #[inline]
    pub fn transmission(&self, bytes: u32, packets: u32) -> Duration {
        let framed = bytes + self.overhead * packets;
        let bits = u64::from(framed.max(self.min_frame)) * 8;
        Duration::from_nanos((bits * 1_000_000_000).div_ceil(self.rate.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transmission_times() {
        let gigabit = Link::ethernet(1_000_000_000, Duration::ZERO);
        assert_eq!(gigabit.transmission(1500, 1), Duration::from_nanos(12_304));
        assert_eq!(gigabit.transmission(40, 1), Duration::from_nanos(672));
        let ten = Link::ethernet(10_000_000_000, Duration::ZERO);
        assert_eq!(ten.transmission(1500, 1), Duration::from_nanos(1_231));
        let raw = Link::raw(8, Duration::ZERO);
        assert_eq!(raw.transmission(40, 1), Duration::from_secs(40));
    }
}
