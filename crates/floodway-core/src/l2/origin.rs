//! Which addresses are a guest's own, and which it only forwards for.
//!
//! # Theory of operation
//! **Goal.** A guest may be a router: packets that it sends come from hosts behind it. What ends at the guest and what only passes through
//! it looks the same in an IP header but for two things:
//! - *Addresses* ([`OwnAddresses`]). A guest that uses an address on its link says so in ARP or neighbour discovery: as the
//!   sender of a request or announcement, the source of a solicitation, or what it looks for a duplicate of. All of these are sent to groups, so they
//!   are found among flooded frames, and unicast frames cost nothing.
//! - *Hops* ([`is_first_hop`]). A packet that was forwarded has lost at least one hop from the number with which stacks begin: 64 (RFC 1700
//!   recommends it, Linux and BSD do it), 128 (Windows), 255.
//!
//! An address is the guest's if either says so. The first knows addresses behind which the guest translates for others (containers), the
//! second a guest that was met in mid-life.
//!
//! **Invariants**: at most [`MAX_ADDRESSES`] addresses are known, the latest. A guest that lies about itself changes what is done
//! for itself.
//!
//! Source: RFC 826, RFC 5227 (ARP), RFC 4861 section 7 and RFC 4862 section 5.4 (IPv6).

use std::net::IpAddr;

use floodway_wire::ethernet;
use floodway_wire::{arp, icmp, ipv6};

/// Most addresses of a guest that are known.
pub const MAX_ADDRESSES: usize = 16;
/// Hop limit of neighbour discovery, which no router has passed on (RFC 4861 section 7.1).
const ND_HOP_LIMIT: u8 = 255;

/// Returns `true` if a packet with this TTL or hop limit was most likely sent by the host from which it came.
#[must_use]
pub const fn is_first_hop(hops: u8) -> bool {
    matches!(hops, 64 | 128 | 255)
}

/// Addresses that a guest has claimed for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses {
    /// Oldest first.
    known: Vec<IpAddr>,
}

impl OwnAddresses {
    /// Returns `true` if the guest has claimed the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.known.contains(&address)
    }

    /// Learns from the first bytes of a frame of the guest; only ARP and neighbour discovery say anything.
    pub fn learn(&mut self, frame: &[u8]) {
        let Ok(header) = ethernet::Header::parse(frame) else { return };
        let payload = frame.get(usize::from(header.len)..).unwrap_or_default();
        let claimed = match header.ethertype {
            ethernet::TYPE_ARP => claimed_by_arp(payload),
            ethernet::TYPE_IPV6 => claimed_by_nd(payload),
            _ => None,
        };
        let claimed = claimed.filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
        let Some(claimed) = claimed.filter(|&ip| !self.contains(ip)) else { return };
        if self.known.len() == MAX_ADDRESSES {
            self.known.remove(0);
        }
        self.known.push(claimed);
    }

    /// Forgets everything: another guest.
    pub fn clear(&mut self) {
        self.known.clear();
    }
}

fn claimed_by_arp(packet: &[u8]) -> Option<IpAddr> {
    Some(arp::Packet::parse(packet).ok()?.sender_ip.into())
}

/// The source of a neighbour solicitation, or its target if the guest looks for a duplicate; the target of an advertisement.
fn claimed_by_nd(packet: &[u8]) -> Option<IpAddr> {
    let header = ipv6::Header::parse(packet).ok()?;
    if header.next_header() != icmp::PROTOCOL_V6 || header.hop_limit() != ND_HOP_LIMIT {
        return None;
    }
    let message = packet.get(ipv6::HEADER_LEN..)?;
    let target: &[u8; 16] = message.get(8..)?.first_chunk()?;
    match *message.first()? {
        icmp::NEIGHBOUR_SOLICITATION if !header.src().is_unspecified() => Some(header.src().into()),
        icmp::NEIGHBOUR_SOLICITATION | icmp::NEIGHBOUR_ADVERTISEMENT => {
            Some(std::net::Ipv6Addr::from(*target).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn arp(sender: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
        frame.extend(sender);
        frame.extend([0; 6]);
        frame.extend([10, 0, 0, 99]);
        frame
    }

    fn nd(kind: u8, hops: u8, src: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
        let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
        frame.extend([0x60, 0, 0, 0, 0, 24, icmp::PROTOCOL_V6, hops]);
        frame.extend(src.octets());
        frame.extend([0xff; 16]);
        frame.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend(target.octets());
        frame
    }

    fn v6(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
    }

    #[test]
    fn a_guest_claims_addresses_by_arp_and_neighbour_discovery() {
        let mut own = OwnAddresses::default();
        own.learn(&arp([10, 0, 0, 1]));
        own.learn(&nd(icmp::NEIGHBOUR_SOLICITATION, 255, v6(1), v6(9)));
        own.learn(&nd(icmp::NEIGHBOUR_SOLICITATION, 255, Ipv6Addr::UNSPECIFIED, v6(2)));
        own.learn(&nd(icmp::NEIGHBOUR_ADVERTISEMENT, 255, v6(1), v6(3)));
        assert!(own.contains(Ipv4Addr::new(10, 0, 0, 1).into()));
        assert!([1, 2, 3].iter().all(|&n| own.contains(v6(n).into())));
        assert!(!own.contains(v6(9).into()), "what it looks for is somebody else's");
        own.clear();
        assert_eq!(own, OwnAddresses::default());
    }

    #[test]
    fn nothing_else_claims_an_address() {
        let mut own = OwnAddresses::default();
        own.learn(&arp([0; 4]));
        own.learn(&arp([224, 0, 0, 1]));
        own.learn(&nd(icmp::NEIGHBOUR_SOLICITATION, 254, v6(1), v6(9)));
        own.learn(&nd(128, 255, v6(1), v6(9)));
        let whole = nd(icmp::NEIGHBOUR_SOLICITATION, 255, v6(1), v6(2));
        (0..whole.len()).for_each(|len| own.learn(&whole[..len]));
        let whole = arp([10, 0, 0, 1]);
        (0..whole.len()).for_each(|len| own.learn(&whole[..len]));
        assert_eq!(own, OwnAddresses::default());
    }

    #[test]
    fn the_latest_addresses_are_known() {
        let mut own = OwnAddresses::default();
        (1..=MAX_ADDRESSES as u8 + 1).for_each(|n| own.learn(&arp([10, 0, 0, n])));
        own.learn(&arp([10, 0, 0, 2]));
        assert!(!own.contains(Ipv4Addr::new(10, 0, 0, 1).into()));
        assert!(
            (2..=MAX_ADDRESSES as u8 + 1).all(|n| own.contains(Ipv4Addr::new(10, 0, 0, n).into()))
        );
        assert_eq!(own.known.len(), MAX_ADDRESSES);
    }

    #[test]
    fn forwarded_packets_have_lost_a_hop() {
        assert!([64, 128, 255].into_iter().all(is_first_hop));
        assert!(![63, 127, 254, 62, 1, 0].into_iter().any(is_first_hop));
    }
}
