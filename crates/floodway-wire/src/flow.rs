//! The 5-tuple that names a flow, with the VLAN that it is in, and its hash.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Source, destination and protocol of a packet, in the direction of the packet.
///
/// IPv4 addresses are kept IPv4-mapped (`::ffff:a.b.c.d`), so that both families compare and hash
/// by the same straight-line code; `is_ipv6` keeps an IPv6 packet that carries mapped addresses
/// on the wire from ever being taken for the IPv4 flow. Fragments and protocols without ports
/// have both ports zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FiveTuple {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// IP protocol number; for IPv6 that of the upper layer.
    pub protocol: u8,
    /// The packet is IPv6.
    pub is_ipv6: bool,
    /// VLAN identifier of the outermost tag; 0 without one, or with a priority tag. The same addresses in two VLANs are those
    /// of different hosts.
    pub vlan: u16,
}

impl FiveTuple {
    /// The tuple of a packet that is not IP.
    pub const NONE: Self = Self {
        src: Ipv6Addr::UNSPECIFIED,
        dst: Ipv6Addr::UNSPECIFIED,
        src_port: 0,
        dst_port: 0,
        protocol: 0,
        is_ipv6: false,
        vlan: 0,
    };

    /// The tuple of a flow over IPv4 addresses.
    #[must_use]
    #[inline]
    pub const fn v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8) -> Self {
        Self {
            src: src.to_ipv6_mapped(),
            dst: dst.to_ipv6_mapped(),
            src_port: 0,
            dst_port: 0,
            protocol,
            is_ipv6: false,
            vlan: 0,
        }
    }

    /// The tuple of a flow over IPv6 addresses.
    #[must_use]
    #[inline]
    pub const fn v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8) -> Self {
        Self { src, dst, src_port: 0, dst_port: 0, protocol, is_ipv6: true, vlan: 0 }
    }

    /// The tuple with ports.
    #[must_use]
    #[inline]
    pub const fn with_ports(mut self, src_port: u16, dst_port: u16) -> Self {
        self.src_port = src_port;
        self.dst_port = dst_port;
        self
    }

    /// The tuple in VLAN `vlan`.
    #[must_use]
    #[inline]
    pub const fn in_vlan(mut self, vlan: u16) -> Self {
        self.vlan = vlan;
        self
    }

    /// The tuple of the opposite direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            ..self
        }
    }

    /// Source address as IPv4: the last 32 bits.
    #[must_use]
    #[inline]
    pub const fn src_v4(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.src.to_bits() as u32)
    }

    /// Destination address as IPv4: the last 32 bits.
    #[must_use]
    #[inline]
    pub const fn dst_v4(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.dst.to_bits() as u32)
    }

    /// Source address in its own family.
    #[must_use]
    pub const fn src_ip(&self) -> IpAddr {
        if self.is_ipv6 { IpAddr::V6(self.src) } else { IpAddr::V4(self.src_v4()) }
    }

    /// Destination address in its own family.
    #[must_use]
    pub const fn dst_ip(&self) -> IpAddr {
        if self.is_ipv6 { IpAddr::V6(self.dst) } else { IpAddr::V4(self.dst_v4()) }
    }

    /// A 64-bit hash. `seed` should be secret where a peer must not be able to make flows
    /// collide; the same seed gives the same hash in every process. The two directions of a
    /// connection hash differently.
    ///
    /// Folded multiplication as in wyhash: every 64 bits of input are mixed with a constant or
    /// the state, multiplied to 128 bits, and the halves xored.
    #[must_use]
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        let (src, dst) = (self.src.to_bits(), self.dst.to_bits());
        let last = u64::from(self.vlan) << 48
            | u64::from(self.src_port) << 32
            | u64::from(self.dst_port) << 16
            | u64::from(self.protocol) << 8
            | u64::from(self.is_ipv6);
        // The seed is on both sides: a factor that a peer can make zero would hide the other one.
        let high =
            mix((src >> 64) as u64 ^ SECRET[0] ^ seed.rotate_left(16), (dst >> 64) as u64 ^ seed);
        let low = mix(src as u64 ^ SECRET[1] ^ seed, dst as u64 ^ SECRET[2] ^ high);
        let ports = mix(low ^ SECRET[3], last ^ high ^ seed.rotate_left(32));
        // One product alone leaves the low bits of consecutive ports in arithmetic progression.
        mix(ports ^ SECRET[1], SECRET[2])
    }
}

/// Odd constants with 32 bits set, from wyhash.
const SECRET: [u64; 4] =
    [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3];

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let src = SocketAddr::new(self.src_ip(), self.src_port);
        let dst = SocketAddr::new(self.dst_ip(), self.dst_port);
        write!(f, "{src} > {dst} protocol {}", self.protocol)?;
        if self.vlan == 0 { Ok(()) } else { write!(f, " vlan {}", self.vlan) }
    }
}

impl fmt::Debug for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple() -> FiveTuple {
        FiveTuple::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 6)
            .with_ports(1024, 80)
    }

    #[test]
    fn every_field_changes_the_hash() {
        let base = tuple();
        let mapped_on_the_wire = FiveTuple { is_ipv6: true, ..base };
        let others = [
            base.reversed(),
            base.with_ports(1025, 80),
            base.with_ports(1024, 81),
            FiveTuple { protocol: 17, ..base },
            base.in_vlan(1),
            base.in_vlan(0xfff),
            mapped_on_the_wire,
        ];
        for other in others {
            assert_ne!(base, other);
            assert_ne!(base.hash(1), other.hash(1), "{other}");
        }
        assert_ne!(base.hash(1), base.hash(2));
        assert_eq!(base.reversed().reversed(), base);
    }

    #[test]
    fn consecutive_ports_spread_over_buckets() {
        let mut buckets = [0u32; 256];
        for port in 0..=u16::MAX {
            buckets[(tuple().with_ports(port, 80).hash(7) & 255) as usize] += 1;
        }
        // 256 expected in each; a sound hash stays within six standard deviations.
        assert!(buckets.iter().all(|&n| (160..=352).contains(&n)));
    }

    #[test]
    fn consecutive_ports_of_every_address_spread() {
        for address in 0..512 {
            let base = FiveTuple::v4(Ipv4Addr::from_bits(address), Ipv4Addr::LOCALHOST, 6);
            let mut buckets = [0u32; 256];
            for port in 0..1024 {
                buckets[(base.with_ports(port, 80).hash(7) & 255) as usize] += 1;
            }
            // Four expected in each; a Poisson variable is above 24 with a chance of 1e-12.
            assert!(buckets.iter().all(|&n| n <= 24), "{base}: {:?}", buckets.iter().max());
        }
    }

    #[test]
    fn shown_in_its_own_family() {
        assert_eq!(tuple().to_string(), "10.0.0.1:1024 > 10.0.0.2:80 protocol 6");
        let tagged = tuple().in_vlan(7).to_string();
        assert_eq!(tagged, "10.0.0.1:1024 > 10.0.0.2:80 protocol 6 vlan 7");
    }
}
