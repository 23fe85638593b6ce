//! Who sends little: the switch's meter at a host's edge of the network.
//!
//! # Theory of operation
//! Goal: small flows get the high class in every queue that looks at code points, without a word from whoever sends. The
//! meter is [`floodway_core::egress::meter::Meter`], the very code that the switch runs: one for each source address at the host, with a
//! token bucket for each destination. A packet is metered when the host hands it to its network card, so after the driver
//! domain and before the card's queue; a GSO packet counts whole, as in the switch. The code point that the sender wrote is
//! overwritten, whatever it was.
//!
//! Without a tagger at a host, code points leave it as they are.
//!
//! Source: Xu et al., "Small is Better" (`SoCC` 2013), section 4.3.

use std::net::Ipv4Addr;

use floodway_core::egress::meter::{Config, Counters, Meter};
use floodway_core::egress::qdisc::Class;
use floodway_wire::FiveTuple;

use crate::Instant;
use crate::packet::{Address, Packet};

/// Settings of a tagger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggerConfig {
    /// Of each source's meter.
    pub meter: Config,
    /// Code point of the high class, 6 bits.
    pub high_dscp: u8,
    /// Code point of the low class, 6 bits.
    pub low_dscp: u8,
}

impl Default for TaggerConfig {
    /// The switch's defaults: 10 Mbit/s, 30 KB, code points 46 and 0.
    fn default() -> Self {
        Self { meter: Config::default(), high_dscp: 46, low_dscp: 0 }
    }
}

/// The meters of one host.
#[derive(Debug)]
pub struct Tagger {
    config: TaggerConfig,
    seed: u64,
    meters: Vec<(Address, Meter)>,
    high_bytes: u64,
    low_bytes: u64,
}

impl Tagger {
    /// Meters that have seen nothing. `seed` is that of the run.
    #[must_use]
    pub const fn new(config: TaggerConfig, seed: u64) -> Self {
        Self { config, seed, meters: Vec::new(), high_bytes: 0, low_bytes: 0 }
    }

    /// Bytes of IP packets that were tagged high.
    #[must_use]
    pub const fn high_bytes(&self) -> u64 {
        self.high_bytes
    }

    /// Bytes of IP packets that were tagged low.
    #[must_use]
    pub const fn low_bytes(&self) -> u64 {
        self.low_bytes
    }

    /// What the meter of a source has done.
    #[must_use]
    pub fn counters(&self, source: Address) -> Option<Counters> {
        let own = self.meters.iter().find(|(address, _)| *address == source);
        own.map(|(_, meter)| meter.counters())
    }

    pub(super) fn tag(&mut self, packet: &mut Packet, now: Instant) {
        let ip = |address: Address| Ipv4Addr::from_bits(0x0a00_0000 + address.0);
        let pair = FiveTuple::v4(ip(packet.src), ip(packet.dst), 0);
        let len = packet.len();
        packet.dscp = match self.meter(packet.src).classify(&pair, len, now) {
            Class::High => {
                self.high_bytes += u64::from(len);
                self.config.high_dscp
            }
            Class::Low => {
                self.low_bytes += u64::from(len);
                self.config.low_dscp
            }
        };
    }

    fn meter(&mut self, source: Address) -> &mut Meter {
        let at = self.meters.iter().position(|(address, _)| *address == source);
        let at = at.unwrap_or_else(|| {
            self.meters.push((source, Meter::new(self.config.meter, self.seed)));
            self.meters.len() - 1
        });
        &mut self.meters[at].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::data;

    #[test]
    fn what_the_sender_wrote_is_overwritten_and_sources_are_metered_apart() {
        let mut tagger = Tagger::new(TaggerConfig::default(), 1);
        let mut tag = |src: u32, dscp: u8| {
            let mut packet = Packet { src: Address(src), dscp, ..data(14_960, 0) };
            tagger.tag(&mut packet, Instant::ZERO);
            packet.dscp
        };
        // 15 000 bytes each: two of them are the burst.
        assert_eq!([0, 46, 46, 12].map(|dscp| tag(5, dscp)), [46, 46, 0, 0]);
        assert_eq!([46, 0, 46].map(|dscp| tag(6, dscp)), [46, 46, 0]);
        assert_eq!((tagger.high_bytes(), tagger.low_bytes()), (60_000, 45_000));
        assert_eq!(tagger.counters(Address(5)).unwrap().low, 2);
        assert!(tagger.counters(Address(7)).is_none());
    }
}
