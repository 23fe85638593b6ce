//! Spoof check: the source addresses that a port may use.
//!
//! # Theory of operation
//! With a configured MAC address, every frame must have it as its source: one comparison, the fast
//! path. With configured IP addresses too, the frame is looked into, behind its VLAN tags:
//!
//! - IPv4: the source is configured, or 0.0.0.0 (a guest that asks for an address by DHCP).
//! - ARP and RARP: the sender's protocol address likewise (0.0.0.0 is an ARP probe), and the
//!   sender's hardware address is the configured MAC address: receivers believe the ARP body, not
//!   the Ethernet header.
//! - IPv6: the source is configured, link-local, or `::` (duplicate address detection). The target
//!   of a neighbour advertisement is what its receivers believe, so it is configured or link-local,
//!   too.
//! - Everything else passes: it carries no IP address.
//!
//! What claims to be one of these and cannot be read to the end is refused: a receiver may be more
//! forgiving than we are. The bytes are a copy; a guest cannot change them after the check.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use floodway_wire::ethernet::{self, MacAddr};
use floodway_wire::{arp, icmp, ipv4, ipv6};

/// Why a frame failed the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// The Ethernet source, or the sender's hardware address in ARP, is not the port's.
    Mac,
    /// An IP address that the frame claims is not the port's, or could not be read.
    Ip,
}

/// The source addresses that a port may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcePolicy {
    /// The only source MAC address, if there is one.
    pub mac: Option<MacAddr>,
    /// The only source IP addresses; empty means any.
    pub ips: Vec<IpAddr>,
}

impl SourcePolicy {
    /// Bytes of a frame that [`check`](Self::check) should be given at least, unless the frame is
    /// shorter: Ethernet with two tags, IPv6, 88 bytes of extension headers, and a neighbour
    /// advertisement with its target.
    pub const PREFIX_LEN: usize = 22 + 40 + 88 + 24;

    /// Checks the Ethernet source alone: all there is to check unless
    /// [`looks_inside`](Self::looks_inside).
    ///
    /// # Errors
    /// The frame must be dropped.
    #[inline(always)]
    pub fn check_mac(&self, src: MacAddr) -> Result<(), Spoof> {
        if self.mac.is_none_or(|mac| mac == src) { Ok(()) } else { Err(Spoof::Mac) }
    }

    /// The policy names IP addresses, so that frames have to go through
    /// [`check`](Self::check).
    #[must_use]
    #[inline(always)]
    pub fn looks_inside(&self) -> bool {
        !self.ips.is_empty()
    }

    /// Checks a frame by its first bytes ([`PREFIX_LEN`](Self::PREFIX_LEN) of them, or all).
    ///
    /// # Errors
    /// The frame must be dropped.
    pub fn check(&self, frame: &[u8]) -> Result<(), Spoof> {
        let header = ethernet::Header::parse(frame).map_err(|_| Spoof::Mac)?;
        self.check_mac(header.src)?;
        if !self.looks_inside() {
            return Ok(());
        }
        let payload = frame.get(usize::from(header.len)..).unwrap_or_default();
        match header.ethertype {
            ethernet::TYPE_IPV4 => self.check_ipv4(payload),
            ethernet::TYPE_IPV6 => self.check_ipv6(payload),
            ethernet::TYPE_ARP | ethernet::TYPE_RARP => self.check_arp(payload),
            _ => Ok(()),
        }
    }

    fn check_ipv4(&self, packet: &[u8]) -> Result<(), Spoof> {
        let header = ipv4::Header::parse(packet).map_err(|_| Spoof::Ip)?;
        self.check_v4(header.src())
    }

    fn check_arp(&self, packet: &[u8]) -> Result<(), Spoof> {
        let arp = arp::Packet::parse(packet).map_err(|_| Spoof::Ip)?;
        self.check_mac(arp.sender_mac)?;
        self.check_v4(arp.sender_ip)
    }

    fn check_ipv6(&self, packet: &[u8]) -> Result<(), Spoof> {
        let header = ipv6::Header::parse(packet).map_err(|_| Spoof::Ip)?;
        self.check_v6(header.src())?;
        let rest = packet.get(ipv6::HEADER_LEN..).unwrap_or_default();
        let upper = ipv6::walk_extensions(header.next_header(), rest).map_err(|_| Spoof::Ip)?;
        // Hosts ignore fragmented neighbour discovery (RFC 6980).
        if upper.protocol != icmp::PROTOCOL_V6 || upper.is_fragment {
            return Ok(());
        }
        self.check_icmpv6(rest.get(usize::from(upper.offset)..).unwrap_or_default())
    }

    fn check_icmpv6(&self, message: &[u8]) -> Result<(), Spoof> {
        if *message.first().ok_or(Spoof::Ip)? != icmp::NEIGHBOUR_ADVERTISEMENT {
            return Ok(());
        }
        // Not the options behind it: the bytes may be cut off there.
        let target: &[u8; 16] = message.get(8..).and_then(<[u8]>::first_chunk).ok_or(Spoof::Ip)?;
        self.check_v6(Ipv6Addr::from(*target))
    }

    fn check_v4(&self, claimed: Ipv4Addr) -> Result<(), Spoof> {
        self.check_ip(claimed.is_unspecified(), IpAddr::V4(claimed))
    }

    fn check_v6(&self, claimed: Ipv6Addr) -> Result<(), Spoof> {
        let harmless = claimed.is_unspecified() || claimed.is_unicast_link_local();
        self.check_ip(harmless, IpAddr::V6(claimed))
    }

    fn check_ip(&self, harmless: bool, claimed: IpAddr) -> Result<(), Spoof> {
        if harmless || self.ips.contains(&claimed) { Ok(()) } else { Err(Spoof::Ip) }
    }
}
