//! One pass over the first bytes of a frame, into a small value that the mechanisms work on.
//!
//! Theory of operation. Whoever owns the frame hands in a prefix (usually the first 128 bytes,
//! which hold Ethernet with two tags, IPv6 and the longest TCP header) and the length of the
//! whole frame. [`parse`] decodes each header once and checks lengths against each other and
//! against the frame. A header that runs over the end of the *prefix* is
//! [`Error::PrefixTooShort`], and parsing again with more bytes decides; everything else that is
//! wrong is final. Header checksums are not verified here: the switch forwards, and the receiver
//! will look.
//!
//! Invariants of a [`Meta`]: `network_offset <= transport_offset <= payload_offset`, and
//! `payload_offset + payload_len <= packet_end <= frame_len`. What follows the packet (Ethernet padding) is not
//! payload. A fragment has no transport header, not even the first one: all fragments of a
//! packet then look alike.
//!
//! Source: RFC 791, 8200, 9293, 768; padding: IEEE 802.3 section 4A.2.

use crate::arp;
use crate::bytes::tail;
use crate::error::{Error, Layer};
use crate::ethernet::{self, MacAddr, VlanTags};
use crate::flow::FiveTuple;
use crate::icmp::{self, NeighbourAdvertisement};
use crate::sum::ChecksumState;
use crate::{ipv4, ipv6, tcp, udp};

/// What the Ethernet header carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// ARP or RARP; see [`arp::Packet`].
    Arp,
    /// Anything else, not looked at.
    Other,
}

/// What the IP packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A TCP segment.
    Tcp(TcpMeta),
    /// A UDP datagram.
    Udp,
    /// An ICMP message.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// An `ICMPv6` message.
    Icmpv6 {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// A fragment, another protocol, or no IP packet.
    Other,
}

/// The fields of a TCP header that change from segment to segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpMeta {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgment: u32,
    /// Receive window as it is on the wire, not scaled.
    pub window: u16,
    /// Control bits.
    pub flags: tcp::Flags,
    /// Bytes of header with options, 20 to 60.
    pub header_len: u8,
}

/// Everything the switch asks of a frame, decoded once. Offsets are bytes from the start of the
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Bytes of the whole frame.
    pub frame_len: u32,
    /// Payload of the transport header; of the innermost header that was decoded if there is none.
    pub payload_len: u32,
    /// Where the network packet ends and Ethernet padding, if any, starts.
    pub packet_end: u32,
    /// Addresses, protocol, ports and VLAN; [`FiveTuple::NONE`] if not IP.
    pub flow: FiveTuple,
    /// Destination MAC address.
    pub dst_mac: MacAddr,
    /// Source MAC address.
    pub src_mac: MacAddr,
    /// VLAN tags.
    pub vlan: VlanTags,
    /// `EtherType` behind the tags.
    pub ethertype: u16,
    /// Where the network header starts.
    pub network_offset: u16,
    /// Where the transport header starts; where the payload starts if there is none.
    pub transport_offset: u16,
    /// Where the payload starts.
    pub payload_offset: u16,
    /// DSCP and ECN; zero if not IP.
    pub traffic_class: u8,
    /// The packet is an IP fragment.
    pub is_fragment: bool,
    /// Kind of network header.
    pub network: Network,
    /// Kind and main fields of the transport header.
    pub transport: Transport,
}

impl Meta {
    /// The TCP fields, if this is a TCP segment.
    #[must_use]
    #[inline]
    pub const fn tcp(&self) -> Option<&TcpMeta> {
        match &self.transport {
            Transport::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }

    /// Bytes of transport header and payload.
    #[must_use]
    #[inline]
    pub const fn transport_len(&self) -> u32 {
        (self.payload_offset - self.transport_offset) as u32 + self.payload_len
    }

    /// Bytes that the IP packet counts in its length field, header included; zero if not IP.
    #[must_use]
    #[inline]
    pub const fn ip_len(&self) -> u32 {
        match self.network {
            Network::Ipv4 | Network::Ipv6 => self.packet_end - self.network_offset as u32,
            Network::Arp | Network::Other => 0,
        }
    }
}

impl<'a> tcp::HeaderMut<'a> {
    /// Opens the TCP header of the frame that `meta` was parsed from.
    ///
    /// # Errors
    /// [`Error::NotTcp`] if `meta` is of something else, otherwise as [`parse`](tcp::HeaderMut::parse).
    pub fn of_frame(frame: &'a mut [u8], meta: &Meta, state: ChecksumState) -> Result<Self, Error> {
        meta.tcp().ok_or(Error::NotTcp)?;
        let bytes = frame
            .get_mut(usize::from(meta.transport_offset)..)
            .ok_or(Error::Truncated(Layer::Tcp))?;
        Self::parse(bytes, state)
    }
}

/// Parses the headers in `prefix`, the first bytes of a frame of `frame_len` bytes.
///
/// # Errors
/// [`Error::PrefixTooShort`] if a longer prefix is needed; [`Error::Truncated`],
/// [`Error::BadField`] or [`Error::TooMany`] if the frame is malformed.
#[inline]
pub fn parse(prefix: &[u8], frame_len: usize) -> Result<Meta, Error> {
    let frame_len = frame_len.min(u32::MAX as usize);
    let prefix = &prefix[..prefix.len().min(frame_len)];
    match parse_prefix(prefix, frame_len) {
        Ok(meta) => Ok(meta),
        Err(error) => Err(blame_prefix(error, prefix.len() < frame_len)),
    }
}

/// A header that is cut where the prefix ends may go on in the frame.
#[cold]
fn blame_prefix(error: Error, frame_goes_on: bool) -> Error {
    match error {
        Error::Truncated(layer) if frame_goes_on => Error::PrefixTooShort(layer),
        other => other,
    }
}

#[inline(always)]
fn parse_prefix(prefix: &[u8], frame_len: usize) -> Result<Meta, Error> {
    let link = ethernet::Header::parse(prefix)?;
    match link.ethertype {
        ethernet::TYPE_IPV4 => {
            let packet = parse_ipv4(&link, prefix, frame_len)?;
            let upper = parse_transport(&packet, prefix)?;
            Ok(assemble(&link, frame_len, &packet, &upper))
        }
        ethernet::TYPE_IPV6 => {
            let packet = parse_ipv6(&link, prefix, frame_len)?;
            let upper = parse_transport(&packet, prefix)?;
            Ok(assemble(&link, frame_len, &packet, &upper))
        }
        other => {
            let packet = opaque(&link, frame_len, other);
            Ok(assemble(&link, frame_len, &packet, &packet.opaque()))
        }
    }
}

/// What a network header says.
struct Packet {
    network: Network,
    flow: FiveTuple,
    traffic_class: u8,
    is_fragment: bool,
    /// From the start of the frame to behind the network header and its extensions.
    header_end: usize,
    /// From the start of the frame.
    end: usize,
}

/// What a transport header says.
struct Upper {
    transport: Transport,
    src_port: u16,
    dst_port: u16,
    header_len: usize,
    payload_len: usize,
}

impl Packet {
    /// Bytes behind the network header.
    #[inline(always)]
    fn len(&self) -> usize {
        self.end - self.header_end
    }

    /// No transport header: everything is payload.
    #[inline(always)]
    fn opaque(&self) -> Upper {
        Upper {
            transport: Transport::Other,
            src_port: 0,
            dst_port: 0,
            header_len: 0,
            payload_len: self.len(),
        }
    }

    /// There is room for a transport header of `len` bytes.
    #[inline(always)]
    fn check_room(&self, len: usize) -> Result<(), Error> {
        if self.len() < len {
            return Err(self.too_short());
        }
        Ok(())
    }

    #[cold]
    fn too_short(&self) -> Error {
        let len = self.len() as u32;
        match self.network {
            Network::Ipv6 => Error::field(Layer::Ipv6, "payload behind the extensions", len),
            _ => Error::field(Layer::Ipv4, "payload", len),
        }
    }
}

/// Everything in one place at once: filling a `Meta` field by field and copying it afterwards
/// costs more than all the parsing, for loads that span several fresh stores stall.
#[inline(always)]
fn assemble(link: &ethernet::Header, frame_len: usize, packet: &Packet, upper: &Upper) -> Meta {
    Meta {
        frame_len: frame_len as u32,
        payload_len: upper.payload_len as u32,
        packet_end: packet.end as u32,
        flow: packet.flow.with_ports(upper.src_port, upper.dst_port),
        dst_mac: link.dst,
        src_mac: link.src,
        vlan: link.vlan,
        ethertype: link.ethertype,
        network_offset: link.len,
        transport_offset: packet.header_end as u16,
        payload_offset: (packet.header_end + upper.header_len) as u16,
        traffic_class: packet.traffic_class,
        is_fragment: packet.is_fragment,
        network: packet.network,
        transport: upper.transport,
    }
}

/// A frame whose network header is not decoded here.
fn opaque(link: &ethernet::Header, frame_len: usize, ethertype: u16) -> Packet {
    let is_arp = matches!(ethertype, ethernet::TYPE_ARP | ethernet::TYPE_RARP);
    Packet {
        network: if is_arp { Network::Arp } else { Network::Other },
        flow: FiveTuple::NONE,
        traffic_class: 0,
        is_fragment: false,
        header_end: usize::from(link.len),
        end: frame_len,
    }
}

/// VLAN of a frame, as [`FiveTuple::vlan`] has it.
#[inline(always)]
fn vid(link: &ethernet::Header) -> u16 {
    link.vlan.outer_vid().unwrap_or(0)
}

#[inline(always)]
fn parse_ipv4(link: &ethernet::Header, prefix: &[u8], frame_len: usize) -> Result<Packet, Error> {
    let start = usize::from(link.len);
    let ip = ipv4::Header::parse(tail(prefix, start))?;
    let end = start + usize::from(ip.total_len());
    if end > frame_len {
        return Err(Error::field(Layer::Ipv4, "total length", ip.total_len()));
    }
    Ok(Packet {
        network: Network::Ipv4,
        flow: FiveTuple::v4(ip.src(), ip.dst(), ip.protocol()).in_vlan(vid(link)),
        traffic_class: ip.traffic_class(),
        is_fragment: ip.is_fragment(),
        header_end: start + usize::from(ip.header_len()),
        end,
    })
}

#[inline(always)]
fn parse_ipv6(link: &ethernet::Header, prefix: &[u8], frame_len: usize) -> Result<Packet, Error> {
    let start = usize::from(link.len);
    let ip = ipv6::Header::parse(tail(prefix, start))?;
    let behind = start + ipv6::HEADER_LEN;
    let end = behind + usize::from(ip.payload_len());
    if end > frame_len {
        return Err(Error::field(Layer::Ipv6, "payload length", ip.payload_len()));
    }
    let payload = &tail(prefix, behind)[..prefix.len().min(end).saturating_sub(behind)];
    let upper = match ipv6::walk_extensions(ip.next_header(), payload) {
        Ok(upper) => upper,
        // The packet itself ends inside an extension header: no longer prefix will help.
        Err(Error::Truncated(_)) if prefix.len() >= end => {
            return Err(Error::field(Layer::Ipv6, "payload length", ip.payload_len()));
        }
        Err(error) => return Err(error),
    };
    Ok(Packet {
        network: Network::Ipv6,
        flow: FiveTuple::v6(ip.src(), ip.dst(), upper.protocol).in_vlan(vid(link)),
        traffic_class: ip.traffic_class(),
        is_fragment: upper.is_fragment,
        header_end: behind + usize::from(upper.offset),
        end,
    })
}

#[inline(always)]
fn parse_transport(packet: &Packet, prefix: &[u8]) -> Result<Upper, Error> {
    if packet.is_fragment {
        return Ok(packet.opaque());
    }
    let bytes = tail(prefix, packet.header_end);
    match packet.flow.protocol {
        tcp::PROTOCOL => parse_tcp(packet, bytes),
        udp::PROTOCOL => parse_udp(packet, bytes),
        icmp::PROTOCOL_V4 | icmp::PROTOCOL_V6 => parse_icmp(packet, bytes),
        _ => Ok(packet.opaque()),
    }
}

#[inline(always)]
fn parse_tcp(packet: &Packet, bytes: &[u8]) -> Result<Upper, Error> {
    packet.check_room(tcp::MIN_HEADER_LEN)?;
    let header = tcp::Header::parse(bytes)?;
    let header_len = usize::from(header.header_len());
    if header_len > packet.len() {
        let data_offset = header.header_len() / 4;
        return Err(Error::field(Layer::Tcp, "data offset", data_offset));
    }
    Ok(Upper {
        transport: Transport::Tcp(TcpMeta {
            sequence: header.sequence(),
            acknowledgment: header.acknowledgment(),
            window: header.window(),
            flags: header.flags(),
            header_len: header.header_len(),
        }),
        src_port: header.src_port(),
        dst_port: header.dst_port(),
        header_len,
        payload_len: packet.len() - header_len,
    })
}

#[inline(always)]
fn parse_udp(packet: &Packet, bytes: &[u8]) -> Result<Upper, Error> {
    packet.check_room(udp::HEADER_LEN)?;
    let header = udp::Header::parse(bytes)?;
    if usize::from(header.len) > packet.len() {
        return Err(Error::field(Layer::Udp, "length", header.len));
    }
    Ok(Upper {
        transport: Transport::Udp,
        src_port: header.src_port,
        dst_port: header.dst_port,
        header_len: udp::HEADER_LEN,
        // The datagram may be shorter than the IP packet; its checksum ends with it.
        payload_len: usize::from(header.len) - udp::HEADER_LEN,
    })
}

/// ICMP of the packet's own family; of the other it is just some protocol.
#[inline]
fn parse_icmp(packet: &Packet, bytes: &[u8]) -> Result<Upper, Error> {
    let is_v6 = packet.flow.protocol == icmp::PROTOCOL_V6;
    if is_v6 != packet.flow.is_ipv6 {
        return Ok(packet.opaque());
    }
    packet.check_room(icmp::HEADER_LEN)?;
    let layer = if is_v6 { Layer::Icmpv6 } else { Layer::Icmp };
    let (kind, code) = icmp::type_and_code(bytes, layer)?;
    Ok(Upper {
        transport: if is_v6 {
            Transport::Icmpv6 { kind, code }
        } else {
            Transport::Icmp { kind, code }
        },
        src_port: 0,
        dst_port: 0,
        header_len: icmp::HEADER_LEN,
        payload_len: packet.len() - icmp::HEADER_LEN,
    })
}

/// The MAC address that a frame announces to live at its sender's port: by gratuitous ARP, by a
/// RARP request for itself, or by an unsolicited neighbour advertisement. `prefix` is what `meta`
/// was parsed from. The address is what the message *says*; whether the port may use it is for
/// the caller to check.
#[must_use]
pub fn announced_mac(prefix: &[u8], meta: &Meta) -> Option<MacAddr> {
    match (meta.network, meta.transport) {
        (Network::Arp, _) => {
            let packet = arp::Packet::parse(tail(prefix, usize::from(meta.network_offset))).ok()?;
            packet.is_announcement().then_some(packet.sender_mac)
        }
        (Network::Ipv6, Transport::Icmpv6 { kind, .. })
            if kind == icmp::NEIGHBOUR_ADVERTISEMENT =>
        {
            let end = prefix.len().min(meta.packet_end as usize);
            let message = prefix.get(usize::from(meta.transport_offset)..end)?;
            let advertisement = NeighbourAdvertisement::parse(message).ok()?;
            let announced = advertisement.target_mac.unwrap_or(meta.src_mac);
            advertisement.is_announcement().then_some(announced)
        }
        _ => None,
    }
}
