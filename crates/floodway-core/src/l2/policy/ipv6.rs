//! The part of the source policy that reads IPv6: header chains, neighbour discovery, DHCPv6.
//!
//! # Theory of operation
//! The chain of extension headers is walked to the upper layer, behind a fragment header as well if that starts the packet: a
//! guard that stops there is evaded by a header or two (RFC 7113). Then
//!
//! - messages of neighbour discovery are read whole. The target of an advertisement, and of a solicitation for
//!   duplicate address detection, is the port's own; each link-layer address option names the frame's source. In fragments they are
//!   refused: hosts ignore such, and old ones that do not must not be fooled (RFC 6980).
//! - from `::` come only solicitations and reports of multicast listeners (RFC 4861, 4862, 3590).
//! - datagrams to DHCPv6 clients are a server's; those to servers and relay agents are if their type says so.
//!
//! Unknown upper layers pass, no host would find anything in them; headers that some hosts know how to skip are refused.

use std::net::{IpAddr, Ipv6Addr};

use floodway_wire::ethernet::{self, MacAddr};
use floodway_wire::{icmp, ipv6, udp};

use super::{SourcePolicy, Spoof, udp_dst_port};
use crate::steps;

/// Multicast listener report and done, and report of version 2.
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_REPORT_V2: u8 = 143;
/// Neighbour discovery options with a link-layer address: of the source, of the target.
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
/// UDP ports of DHCPv6 clients, and of servers and relay agents.
const DHCP_CLIENT: u16 = 546;
const DHCP_SERVER: u16 = 547;
/// DHCPv6 messages that servers send: Advertise, Reply, Reconfigure, Relay-reply.
const SERVER_MESSAGES: [u8; 4] = [2, 7, 10, 13];
/// Host Identity Protocol, Shim6, and two for experiments: extension headers that hosts skip if they know them.
const RARE_EXTENSIONS: [u8; 4] = [139, 140, 253, 254];

/// Where a packet's extension headers end.
struct Upper<'a> {
    protocol: u8,
    /// Bytes from the fixed header to here.
    offset: usize,
    /// The packet is a fragment, and the first.
    is_first_fragment: bool,
    /// What follows, whole or as far as the bytes go; empty in later fragments.
    bytes: &'a [u8],
}

impl SourcePolicy {
    pub(super) fn check_ipv6(&self, mac: MacAddr, packet: &[u8]) -> Result<(), Spoof> {
        let header = ipv6::Header::parse(packet).map_err(|_| Spoof::Ip)?;
        let body = packet.get(ipv6::HEADER_LEN..).unwrap_or_default();
        let src = header.src();
        let Some(upper) = upper_layer(header.next_header(), body)? else {
            return self.check_own_v6(mac, src);
        };
        if src.is_unspecified() {
            self.check_unspecified_v6(&upper)?;
        } else {
            self.check_own_v6(mac, src)?;
        }
        match upper.protocol {
            icmp::PROTOCOL_V6 => {
                let end = usize::from(header.payload_len());
                self.check_icmpv6(mac, src, &upper, body.get(upper.offset..end))
            }
            udp::PROTOCOL if self.dhcp_guard => check_dhcp(&upper),
            rare if RARE_EXTENSIONS.contains(&rare) => Err(Spoof::Ip),
            _ => Ok(()),
        }
    }

    /// Checks an address that a frame from `mac` claims.
    pub(super) fn check_own_v6(&self, mac: MacAddr, claimed: Ipv6Addr) -> Result<(), Spoof> {
        if claimed == mac.to_link_local() { Ok(()) } else { self.check_own(IpAddr::V6(claimed)) }
    }

    /// Returns the link-local address that a frame claims, as its source or as the target of neighbour discovery, if the port
    /// may not use it. For messages to the operator: a guest that forms its link-local address in another way than by EUI-64
    /// has no IPv6 before the address is configured. Extension headers are not looked behind.
    #[must_use]
    pub fn refused_link_local(&self, frame: &[u8]) -> Option<Ipv6Addr> {
        let link = ethernet::Header::parse(frame).ok()?;
        if link.ethertype != ethernet::TYPE_IPV6 {
            return None;
        }
        let packet = frame.get(usize::from(link.len)..)?;
        let header = ipv6::Header::parse(packet).ok()?;
        let src = header.src();
        let target = match packet.get(ipv6::HEADER_LEN..)? {
            [icmp::NEIGHBOUR_SOLICITATION, rest @ ..] if src.is_unspecified() => rest.get(7..),
            [icmp::NEIGHBOUR_ADVERTISEMENT, rest @ ..] => rest.get(7..),
            _ => None,
        };
        let target = target
            .filter(|_| header.next_header() == icmp::PROTOCOL_V6)
            .and_then(<[u8]>::first_chunk::<16>)
            .map(|&target| Ipv6Addr::from(target));
        [Some(src), target].into_iter().flatten().find(|address| {
            address.is_unicast_link_local() && self.check_own_v6(link.src, *address).is_err()
        })
    }

    /// A packet from `::`: a host without an address looks for duplicates and routers, and joins multicast groups.
    fn check_unspecified_v6(&self, upper: &Upper<'_>) -> Result<(), Spoof> {
        let asks = upper.protocol == icmp::PROTOCOL_V6
            && matches!(
                upper.bytes.first(),
                Some(
                    &(MLD_REPORT
                        | MLD_DONE
                        | MLD_REPORT_V2
                        | icmp::ROUTER_SOLICITATION
                        | icmp::NEIGHBOUR_SOLICITATION)
                )
            );
        if asks || self.ips.is_empty() { Ok(()) } else { Err(Spoof::Ip) }
    }

    /// `message` is the whole message, `None` if the packet or its known bytes end before it does.
    fn check_icmpv6(
        &self,
        mac: MacAddr,
        src: Ipv6Addr,
        upper: &Upper<'_>,
        message: Option<&[u8]>,
    ) -> Result<(), Spoof> {
        match *upper.bytes.first().ok_or(Spoof::Ip)? {
            icmp::ROUTER_ADVERTISEMENT | icmp::REDIRECT if self.router_guard => Err(Spoof::Router),
            icmp::ROUTER_SOLICITATION..=icmp::REDIRECT if upper.is_first_fragment => Err(Spoof::Ip),
            icmp::ROUTER_SOLICITATION..=icmp::REDIRECT if !self.ips.is_empty() => {
                self.check_neighbour_discovery(mac, src, message.ok_or(Spoof::Ip)?)
            }
            _ => Ok(()),
        }
    }

    fn check_neighbour_discovery(
        &self,
        mac: MacAddr,
        src: Ipv6Addr,
        message: &[u8],
    ) -> Result<(), Spoof> {
        let options_at = match message.first() {
            Some(&icmp::ROUTER_SOLICITATION) => 8,
            Some(&icmp::ROUTER_ADVERTISEMENT) => 16,
            Some(&icmp::NEIGHBOUR_SOLICITATION | &icmp::NEIGHBOUR_ADVERTISEMENT) => 24,
            // A redirect names another router: its target, and its target's address.
            _ => return Ok(()),
        };
        let claims_target = match message.first() {
            Some(&icmp::NEIGHBOUR_SOLICITATION) => src.is_unspecified(),
            kind => kind == Some(&icmp::NEIGHBOUR_ADVERTISEMENT),
        };
        if claims_target {
            let &target: &[u8; 16] =
                message.get(8..).and_then(<[u8]>::first_chunk).ok_or(Spoof::Ip)?;
            self.check_own_v6(mac, Ipv6Addr::from(target))?;
        }
        check_options(mac, message.get(options_at..).ok_or(Spoof::Ip)?)
    }
}

/// Checks that link-layer address options name `mac`, and that all options can be read.
fn check_options(mac: MacAddr, mut options: &[u8]) -> Result<(), Spoof> {
    while !options.is_empty() {
        steps::count(1);
        let [kind, units, ..] = *options else { return Err(Spoof::Ip) };
        let (option, rest) = options.split_at_checked(usize::from(units) * 8).ok_or(Spoof::Ip)?;
        match (kind, option) {
            (_, []) => return Err(Spoof::Ip),
            (OPTION_SOURCE_MAC | OPTION_TARGET_MAC, [_, _, named @ ..]) if named.len() != 6 => {
                return Err(Spoof::Ip);
            }
            (OPTION_SOURCE_MAC | OPTION_TARGET_MAC, [_, _, named @ ..]) if *named != mac.0 => {
                return Err(Spoof::Mac);
            }
            _ => options = rest,
        }
    }
    Ok(())
}

fn check_dhcp(upper: &Upper<'_>) -> Result<(), Spoof> {
    match udp_dst_port(upper.bytes)? {
        DHCP_CLIENT => Err(Spoof::DhcpServer),
        // The type could come with the second fragment.
        DHCP_SERVER if upper.is_first_fragment => Err(Spoof::DhcpServer),
        DHCP_SERVER => match upper.bytes.get(udp::HEADER_LEN) {
            Some(kind) if SERVER_MESSAGES.contains(kind) => Err(Spoof::DhcpServer),
            Some(_) => Ok(()),
            None => Err(Spoof::Ip),
        },
        _ => Ok(()),
    }
}

/// Walks the extension headers at `body`. Returns `None` for a fragment that does not start its packet.
fn upper_layer(next_header: u8, body: &[u8]) -> Result<Option<Upper<'_>>, Spoof> {
    let walk = |next, bytes| ipv6::walk_extensions(next, bytes).map_err(|_| Spoof::Ip);
    let mut upper = walk(next_header, body)?;
    let is_first_fragment = upper.is_fragment;
    let mut offset = usize::from(upper.offset);
    if is_first_fragment {
        if !starts_packet(&body[..offset]) {
            return Ok(None);
        }
        upper = walk(upper.protocol, &body[offset..])?;
        offset += usize::from(upper.offset);
        if upper.is_fragment {
            return Err(Spoof::Ip);
        }
    }
    let bytes = body.get(offset..).unwrap_or_default();
    Ok(Some(Upper { protocol: upper.protocol, offset, is_first_fragment, bytes }))
}

/// Returns `true` if the fragment header with which `headers` ends has the offset 0.
fn starts_packet(headers: &[u8]) -> bool {
    let Some(&[_, _, high, low, ..]) = headers.last_chunk::<8>() else { return false };
    u16::from_be_bytes([high, low]) & 0xfff8 == 0
}
