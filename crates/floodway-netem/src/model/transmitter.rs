//! The time that a packet takes on the wire.
//!
//! # Theory of operation
//! A frame of `n` bytes (Ethernet header to payload, without frame check sequence) occupies the
//! link for `(max(n, 60) + overhead) * 8 / rate` seconds. On Ethernet the overhead is 24 bytes
//! ([`ETHERNET_OVERHEAD`]): preamble and start delimiter 8, frame check sequence 4, gap between
//! frames 12; 60 bytes is the shortest frame without its check sequence (IEEE 802.3 clause 4).
//!
//! Times are whole nanoseconds, but the rest of the division is carried to the next packet as long
//! as the link does not pause. So `k` packets back to back take exactly the time of their sum,
//! rounded down once, at any rate.

use floodway_core::time::Duration;

/// Bytes of preamble, frame check sequence and gap of each Ethernet frame.
pub const ETHERNET_OVERHEAD: u32 = 24;
/// Shortest Ethernet frame in bytes, without frame check sequence: shorter ones are padded.
const MIN_FRAME: u32 = 60;
const NANOS: u128 = 1_000_000_000;

/// The speed of a transmitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    bits_per_second: u64,
    overhead: u32,
}

impl Rate {
    /// `bits_per_second` must not be 0; `overhead` is what each frame costs besides its bytes.
    #[must_use]
    pub fn new(bits_per_second: u64, overhead: u32) -> Option<Self> {
        (bits_per_second > 0).then_some(Self { bits_per_second, overhead })
    }
}

/// Turns lengths into times without losing the fractions.
#[derive(Clone, Debug, Default)]
pub struct Transmitter {
    /// Bits times 10⁹ that the last packet left over; less than the rate.
    rest: u128,
}

impl Transmitter {
    /// The time of a frame of `frame_len` bytes. `resting` says that the link paused before it.
    pub fn time(&mut self, rate: Rate, frame_len: u32, resting: bool) -> Duration {
        if resting {
            self.rest = 0;
        }
        let bytes = u128::from(frame_len.max(MIN_FRAME)) + u128::from(rate.overhead);
        let total = bytes * 8 * NANOS + self.rest;
        let per_second = u128::from(rate.bits_per_second);
        self.rest = total % per_second;
        Duration::from_nanos(u64::try_from(total / per_second).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(bits_per_second: u64, overhead: u32, frame_len: u32) -> u64 {
        let rate = Rate::new(bits_per_second, overhead).unwrap();
        Transmitter::default().time(rate, frame_len, true).as_nanos() as u64
    }

    #[test]
    fn known_times() {
        // 1500 bytes of IP are a frame of 1514 and 1538 bytes of wire.
        assert_eq!(nanos(100_000_000, ETHERNET_OVERHEAD, 1514), 123_040);
        assert_eq!(nanos(1_000_000_000, ETHERNET_OVERHEAD, 1514), 12_304);
        // Without overhead and header: the textbook's 120 us.
        assert_eq!(nanos(100_000_000, 0, 1500), 120_000);
        // The shortest frame: 84 bytes of wire, 1 488 095 packets a second at 1 Gbit/s.
        assert_eq!(nanos(1_000_000_000, ETHERNET_OVERHEAD, 42), 672);
        assert!(Rate::new(0, 0).is_none());
    }

    #[test]
    fn fractions_add_up_until_the_link_pauses() {
        let rate = Rate::new(300_000_000, ETHERNET_OVERHEAD).unwrap();
        let mut transmitter = Transmitter::default();
        let times: Vec<_> = (0..3).map(|_| transmitter.time(rate, 1514, false)).collect();
        assert_eq!(times.iter().sum::<Duration>(), Duration::from_nanos(123_040));
        assert_eq!(times[0], Duration::from_nanos(41_013));
        let _ = transmitter.time(rate, 1514, false);
        assert_eq!(transmitter.time(rate, 1514, true), Duration::from_nanos(41_013));
    }
}
