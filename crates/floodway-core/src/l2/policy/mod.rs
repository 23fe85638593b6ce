//! Source policy: the addresses that a port may use, and the messages that only routers and DHCP servers may send.
//!
//! # Theory of operation
//! **Goal**: what other hosts believe about addresses, routes and configuration on the strength of a frame from this port is
//! true of this port. With a configured MAC address, every frame must have it as its source: one comparison, the fast
//! path. With IP addresses or a guard, the frame is looked into, behind its VLAN tags:
//!
//! - IPv4: the source is configured. From 0.0.0.0 come only requests of a DHCP client and IGMP reports.
//! - ARP and RARP: the sender's protocol address is configured, or 0.0.0.0 in a probe for a configured address. The sender's
//!   hardware address is the frame's source: receivers believe the ARP body, not the Ethernet header.
//! - IPv6 ([`ipv6`]): the source is configured or the EUI-64 link-local address of the frame's source; other link-local
//!   addresses (RFC 7217) have to be configured: any other may be a router's, and whoever claims that gets what others send to
//!   the world. Neighbour discovery names no other target and no other link-layer address.
//! - Router guard: no router advertisements and redirects (RFC 6105; ICMP too).
//! - DHCP guard: nothing that a DHCP server sends to clients or relay agents (RFC 7610 for IPv6).
//! - LLC frames (SNAP can carry IP) and frames with more than two tags are refused; everything else passes.
//!
//! Nearly all that guests send are untagged IPv4 packets without options from the port's first address, of TCP, or of UDP that is not DHCP's. These are known by a few comparisons
//! (`is_plainly_own`) and not parsed: all of them would pass.
//!
//! What claims to be one of these and cannot be read to the end is refused: a receiver may be more forgiving than the switch is.
//! The same holds for fragments: one that starts a packet must show all headers that are needed for the decision (RFC 7113).
//!
//! **Invariants**: the decision depends on the given bytes only, which are a copy: a guest cannot change them afterwards. The
//! work is linear in them and in the number of configured addresses.
//!
//! Source: RFC 6105, 7113 (router guard and its evasion), 7610 (DHCPv6 shield), 6980 (no fragments in neighbour discovery), 5227
//! (ARP probes), 4861, 4862; the port security of OVN.

mod ipv6;

use std::net::IpAddr;

use floodway_wire::ethernet::{self, MacAddr};
use floodway_wire::{arp, icmp, ipv4, tcp, udp};

use crate::steps;

/// Bytes of Ethernet, IPv4 and UDP headers.
const PLAIN_HEADERS: usize = ethernet::HEADER_LEN + ipv4::MIN_HEADER_LEN + udp::HEADER_LEN;
/// First byte of an IPv4 header without options: version and length.
const IPV4_WITHOUT_OPTIONS: u8 = 0x45;
/// IP protocol number of IGMP.
const IGMP: u8 = 2;
/// UDP ports of DHCP servers (and relay agents) and clients.
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
/// The first byte of what a DHCP server sends.
const BOOT_REPLY: u8 = 2;
/// ICMP types of a redirect and a router advertisement (RFC 1256).
const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;

/// Why a frame failed the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// The Ethernet source, or a link-layer address in ARP or neighbour discovery, is not the port's.
    Mac,
    /// An IP address that the frame claims is not the port's, or could not be read.
    Ip,
    /// A router advertisement or a redirect from a port that may send none.
    Router,
    /// A DHCP server's message from a port that may send none.
    DhcpServer,
}

/// The source addresses that a port may use. The default allows everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcePolicy {
    /// The only source MAC address, if there is one.
    pub mac: Option<MacAddr>,
    /// The only source IP addresses; empty means any.
    pub ips: Vec<IpAddr>,
    /// Refuse router advertisements and redirects.
    pub router_guard: bool,
    /// Refuse what only DHCP servers send.
    pub dhcp_guard: bool,
}

impl SourcePolicy {
    /// Checks the Ethernet source alone: all there is to check unless
    /// [`looks_inside`](Self::looks_inside).
    ///
    /// # Errors
    /// The frame must be dropped.
    #[inline(always)]
    pub fn check_mac(&self, src: MacAddr) -> Result<(), Spoof> {
        if self.mac.is_none_or(|mac| mac == src) { Ok(()) } else { Err(Spoof::Mac) }
    }

    /// Checks the addresses that packets of a connection of the guest have, which is not taken from one of its frames.
    ///
    /// # Errors
    /// Its frames would have to be dropped.
    pub fn check_addresses(&self, mac: MacAddr, ip: IpAddr) -> Result<(), Spoof> {
        self.check_mac(mac)?;
        match ip {
            IpAddr::V4(_) => self.check_own(ip),
            IpAddr::V6(ip) => self.check_own_v6(mac, ip),
        }
    }

    /// Returns `true` if frames have to go through [`check`](Self::check).
    #[must_use]
    #[inline(always)]
    pub fn looks_inside(&self) -> bool {
        !self.ips.is_empty() || self.router_guard || self.dhcp_guard
    }

    /// Checks a frame by its first bytes. 128 hold all headers of ordinary packets; a message that has to be read
    /// further than the given bytes go is refused.
    ///
    /// # Errors
    /// The frame must be dropped.
    pub fn check(&self, frame: &[u8]) -> Result<(), Spoof> {
        self.check_mac(source(frame)?)?;
        self.check_inside(frame)
    }

    /// As [`check`](Self::check), of a frame whose Ethernet source has been checked.
    ///
    /// # Errors
    /// The frame must be dropped.
    #[inline]
    pub fn check_inside(&self, frame: &[u8]) -> Result<(), Spoof> {
        if self.is_plainly_own(frame) { Ok(()) } else { self.check_fully(frame) }
    }

    /// Returns `true` for most of what most guests send: untagged IPv4 packets without options from the first address, in which no guard finds anything.
    /// [`check_fully`](Self::check_fully) lets all of these pass, and others.
    #[inline]
    fn is_plainly_own(&self, frame: &[u8]) -> bool {
        let (Some(head), Some(&IpAddr::V4(own))) =
            (frame.first_chunk::<PLAIN_HEADERS>(), self.ips.first())
        else {
            return false;
        };
        let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let is_plain = be16(12) == ethernet::TYPE_IPV4 && head[14] == IPV4_WITHOUT_OPTIONS;
        let is_harmless = match head[23] {
            tcp::PROTOCOL => true,
            udp::PROTOCOL => {
                let is_whole = be16(20) & (ipv4::OFFSET_MASK | ipv4::FLAG_MF) == 0;
                is_whole && !(DHCP_SERVER..=DHCP_CLIENT).contains(&be16(36))
            }
            _ => false,
        };
        let is_own = head[26..30] == own.octets() && !own.is_unspecified();
        let length = usize::from(be16(16));
        is_plain && is_harmless && is_own && length >= ipv4::MIN_HEADER_LEN
    }

    /// Looks at all that a frame claims.
    fn check_fully(&self, frame: &[u8]) -> Result<(), Spoof> {
        let src = source(frame)?;
        if frame.len() < ethernet::HEADER_LEN {
            return Err(Spoof::Mac);
        }
        if !self.looks_inside() {
            return Ok(());
        }
        let header = ethernet::Header::parse(frame).map_err(|_| Spoof::Ip)?;
        let payload = frame.get(usize::from(header.len)..).unwrap_or_default();
        match header.ethertype {
            ethernet::TYPE_IPV4 => self.check_ipv4(payload),
            ethernet::TYPE_IPV6 => self.check_ipv6(src, payload),
            ethernet::TYPE_ARP | ethernet::TYPE_RARP => self.check_arp(src, payload),
            // A length: an LLC frame.
            ..ethernet::MIN_TYPE => Err(Spoof::Ip),
            _ => Ok(()),
        }
    }

    fn check_ipv4(&self, packet: &[u8]) -> Result<(), Spoof> {
        let header = ipv4::Header::parse(packet).map_err(|_| Spoof::Ip)?;
        let payload = packet.get(usize::from(header.header_len())..).unwrap_or_default();
        if header.src().is_unspecified() {
            self.check_unspecified(&header, payload)?;
        } else {
            self.check_own(IpAddr::V4(header.src()))?;
        }
        if header.fragmentation() & ipv4::OFFSET_MASK != 0 {
            return Ok(());
        }
        match header.protocol() {
            udp::PROTOCOL if self.dhcp_guard => check_dhcp(payload, header.is_fragment()),
            icmp::PROTOCOL_V4 if self.router_guard => check_icmp(payload),
            _ => Ok(()),
        }
    }

    /// A packet from 0.0.0.0: a host without an address asks for one, or joins a multicast group.
    fn check_unspecified(&self, header: &ipv4::Header<'_>, payload: &[u8]) -> Result<(), Spoof> {
        let asks = match header.protocol() {
            udp::PROTOCOL if !header.is_fragment() => {
                udp::Header::parse(payload).is_ok_and(|datagram| {
                    (datagram.src_port, datagram.dst_port) == (DHCP_CLIENT, DHCP_SERVER)
                })
            }
            IGMP => true,
            _ => false,
        };
        if asks || self.ips.is_empty() { Ok(()) } else { Err(Spoof::Ip) }
    }

    fn check_arp(&self, src: MacAddr, packet: &[u8]) -> Result<(), Spoof> {
        if self.ips.is_empty() {
            return Ok(());
        }
        let arp = arp::Packet::parse(packet).map_err(|_| Spoof::Ip)?;
        if arp.sender_mac != src {
            return Err(Spoof::Mac);
        }
        // Another host that probes for the address itself takes a probe for a conflict (RFC 5227 section 2.1.1).
        let claimed = if arp.sender_ip.is_unspecified() { arp.target_ip } else { arp.sender_ip };
        if claimed.is_unspecified() { Ok(()) } else { self.check_own(IpAddr::V4(claimed)) }
    }

    /// Checks an address that the frame claims.
    fn check_own(&self, claimed: IpAddr) -> Result<(), Spoof> {
        steps::count(self.ips.len());
        if self.ips.is_empty() || self.ips.contains(&claimed) { Ok(()) } else { Err(Spoof::Ip) }
    }
}

/// Returns the Ethernet source.
fn source(frame: &[u8]) -> Result<MacAddr, Spoof> {
    let &src = frame.get(6..).and_then(<[u8]>::first_chunk).ok_or(Spoof::Mac)?;
    Ok(MacAddr(src))
}

/// Checks a datagram, or the first fragment of one, that must not be a DHCP server's. No client sends fragments, and the
/// operation could come with the second one.
fn check_dhcp(datagram: &[u8], is_fragment: bool) -> Result<(), Spoof> {
    match udp_dst_port(datagram)? {
        DHCP_CLIENT => Err(Spoof::DhcpServer),
        DHCP_SERVER if is_fragment => Err(Spoof::DhcpServer),
        DHCP_SERVER => match datagram.get(udp::HEADER_LEN) {
            Some(&BOOT_REPLY) => Err(Spoof::DhcpServer),
            Some(_) => Ok(()),
            None => Err(Spoof::Ip),
        },
        _ => Ok(()),
    }
}

fn check_icmp(message: &[u8]) -> Result<(), Spoof> {
    match message.first().ok_or(Spoof::Ip)? {
        &ICMP_REDIRECT | &ICMP_ROUTER_ADVERTISEMENT => Err(Spoof::Router),
        _ => Ok(()),
    }
}

/// Returns the destination port. Fragments have whole headers, their lengths are another fragment's business.
fn udp_dst_port(datagram: &[u8]) -> Result<u16, Spoof> {
    let header: &[u8; udp::HEADER_LEN] = datagram.first_chunk().ok_or(Spoof::Ip)?;
    Ok(u16::from_be_bytes([header[2], header[3]]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: [u8; 4] = [192, 0, 2, 1];

    /// A UDP or TCP packet from [`OWN`].
    fn packet(protocol: u8, dst_port: u16) -> Vec<u8> {
        let mut frame = [[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0].as_slice(), &[0; 40]].concat();
        frame[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
        (frame[22], frame[23]) = (64, protocol);
        frame[26..30].copy_from_slice(&OWN);
        frame[30..34].copy_from_slice(&[192, 0, 2, 2]);
        frame[36..38].copy_from_slice(&dst_port.to_be_bytes());
        frame
    }

    fn policy(guard: bool, others: bool) -> SourcePolicy {
        let mac = Some(MacAddr([2, 0, 0, 0, 0, 1]));
        let other = others.then_some(IpAddr::from([192, 0, 2, 9]));
        let ips = [IpAddr::from(OWN)].into_iter().chain(other).collect();
        SourcePolicy { mac, ips, router_guard: guard, dhcp_guard: guard }
    }

    #[test]
    fn what_most_guests_send_is_known_at_once() {
        assert!(policy(true, true).is_plainly_own(&packet(6, 80)));
        assert!(policy(true, false).is_plainly_own(&packet(17, 53)));
        assert!(!policy(true, false).is_plainly_own(&packet(17, DHCP_CLIENT)));
    }

    proptest! {
        /// In whatever byte a frame differs from that.
        #[test]
        fn the_quick_check_lets_pass_only_what_the_full_one_does(
            (is_udp, guard, others) in any::<(bool, bool, bool)>(),
            dst_port in prop_oneof![60_u16..75, any::<u16>()],
            changes in prop::collection::vec((12_usize..42, any::<u8>()), 0..3),
            len in 30_usize..60,
        ) {
            let mut frame = packet(if is_udp { 17 } else { 6 }, dst_port);
            changes.iter().for_each(|&(at, byte)| frame[at] = byte);
            frame.truncate(len);
            let policy = policy(guard, others);
            prop_assert!(!policy.is_plainly_own(&frame) || policy.check_fully(&frame) == Ok(()));
        }
    }
}
