//! Writes whole frames.
//!
//! For frames that the switch itself sends and for tests. A frame is described by its fields and
//! comes out with every length and checksum right; what a test wants wrong it breaks afterwards.

use std::net::{IpAddr, SocketAddr};

use crate::arp;
use crate::checksum::{self, Sum};
use crate::ethernet::{self, MacAddr};
use crate::sum;
use crate::tcp::{self, Flags};
use crate::udp;

/// Link and network header of a frame to build.
#[derive(Clone, Debug)]
pub struct Link {
    /// Destination MAC address.
    pub dst_mac: MacAddr,
    /// Source MAC address.
    pub src_mac: MacAddr,
    /// VLAN tags, outermost first: tag protocol identifier and tag control information.
    pub vlan: Vec<(u16, u16)>,
}

impl Link {
    /// An untagged header.
    #[must_use]
    pub const fn new(src_mac: MacAddr, dst_mac: MacAddr) -> Self {
        Self { dst_mac, src_mac, vlan: Vec::new() }
    }

    /// The same with one more tag, inside those that are there.
    #[must_use]
    pub fn tagged(mut self, tag_type: u16, tci: u16) -> Self {
        self.vlan.push((tag_type, tci));
        self
    }

    /// A frame of any type.
    #[must_use]
    pub fn frame(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(ethernet::HEADER_LEN + payload.len());
        frame.extend(self.dst_mac.0);
        frame.extend(self.src_mac.0);
        for (tag_type, tci) in &self.vlan {
            frame.extend(tag_type.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// A frame with an ARP or RARP packet.
    #[must_use]
    pub fn arp(&self, packet: &arp::Packet) -> Vec<u8> {
        let ethertype = match packet.operation {
            arp::REQUEST | arp::REPLY => ethernet::TYPE_ARP,
            _ => ethernet::TYPE_RARP,
        };
        self.frame(ethertype, &packet.to_bytes())
    }
}

/// IP header of a frame to build.
#[derive(Clone, Debug)]
pub struct Ip {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family as the source.
    pub dst: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// IPv4 identification.
    pub identification: u16,
    /// IPv4 flags and fragment offset.
    pub fragmentation: u16,
    /// IPv4 options (a multiple of 4 bytes, at most 40), or the IPv6 extension headers.
    pub options: Vec<u8>,
    /// Number of the first IPv6 extension header, if `options` has any.
    pub first_extension: Option<u8>,
}

impl Ip {
    /// A header without options: TTL 64, do not fragment, identification zero.
    #[must_use]
    pub const fn new(src: IpAddr, dst: IpAddr) -> Self {
        Self {
            src,
            dst,
            traffic_class: 0,
            ttl: 64,
            identification: 0,
            fragmentation: crate::ipv4::FLAG_DF,
            options: Vec::new(),
            first_extension: None,
        }
    }

    /// A whole frame around a transport packet that is finished.
    #[must_use]
    pub fn frame(&self, link: &Link, protocol: u8, packet: &[u8]) -> Vec<u8> {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = self.ipv4_header(src.octets(), dst.octets(), protocol, packet.len());
                link.frame(ethernet::TYPE_IPV4, &[&header, packet].concat())
            }
            (src, dst) => {
                let header = self.ipv6_header(to_v6(src), to_v6(dst), protocol, packet.len());
                link.frame(ethernet::TYPE_IPV6, &[&header, packet].concat())
            }
        }
    }

    fn ipv4_header(&self, src: [u8; 4], dst: [u8; 4], protocol: u8, len: usize) -> Vec<u8> {
        let header_len = crate::ipv4::MIN_HEADER_LEN + self.options.len();
        let mut h = vec![0x40 | (header_len / 4) as u8, self.traffic_class];
        h.extend(((header_len + len) as u16).to_be_bytes());
        h.extend(self.identification.to_be_bytes());
        h.extend(self.fragmentation.to_be_bytes());
        h.extend([self.ttl, protocol, 0, 0]);
        h.extend(src);
        h.extend(dst);
        h.extend(&self.options);
        let checksum = checksum::checksum(&h);
        h[10..12].copy_from_slice(&checksum.to_be_bytes());
        h
    }

    fn ipv6_header(&self, src: [u8; 16], dst: [u8; 16], protocol: u8, len: usize) -> Vec<u8> {
        let mut h = vec![0x60 | self.traffic_class >> 4, self.traffic_class << 4, 0, 0];
        h.extend(((self.options.len() + len) as u16).to_be_bytes());
        h.extend([self.first_extension.unwrap_or(protocol), self.ttl]);
        h.extend(src);
        h.extend(dst);
        h.extend(&self.options);
        h
    }

    /// Sum of the pseudo-header for a transport packet of `len` bytes.
    #[must_use]
    pub fn pseudo_header(&self, protocol: u8, len: usize) -> Sum {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                checksum::pseudo_header_v4(src, dst, protocol, len as u32)
            }
            (src, dst) => checksum::pseudo_header_v6(
                &to_v6(src).into(),
                &to_v6(dst).into(),
                protocol,
                len as u32,
            ),
        }
    }
}

fn to_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A TCP segment to build.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// Link header.
    pub link: Link,
    /// IP header.
    pub ip: Ip,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: Flags,
    /// Receive window, unscaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent_pointer: u16,
    /// Options (a multiple of 4 bytes, at most 40).
    pub options: Vec<u8>,
}

impl Tcp {
    /// A pure ACK between two sockets of the same family; sequence numbers zero, window 65535.
    #[must_use]
    pub const fn new(link: Link, src: SocketAddr, dst: SocketAddr) -> Self {
        Self {
            link,
            ip: Ip::new(src.ip(), dst.ip()),
            src_port: src.port(),
            dst_port: dst.port(),
            sequence: 0,
            acknowledgment: 0,
            flags: Flags::ACK,
            window: u16::MAX,
            urgent_pointer: 0,
            options: Vec::new(),
        }
    }

    /// The frame with its checksum complete.
    #[must_use]
    pub fn build(&self, payload: &[u8]) -> Vec<u8> {
        let mut packet = self.packet(payload);
        let pseudo = self.ip.pseudo_header(tcp::PROTOCOL, packet.len());
        let checksum = pseudo.plus(Sum::of(&packet)).checksum();
        packet[16..18].copy_from_slice(&checksum.to_be_bytes());
        self.ip.frame(&self.link, tcp::PROTOCOL, &packet)
    }

    /// The frame with a partial checksum, as a guest with checksum offload sends it.
    #[must_use]
    pub fn build_partial(&self, payload: &[u8]) -> Vec<u8> {
        let mut packet = self.packet(payload);
        let sum = self.ip.pseudo_header(tcp::PROTOCOL, packet.len()).fold();
        packet[16..18].copy_from_slice(&sum.to_be_bytes());
        self.ip.frame(&self.link, tcp::PROTOCOL, &packet)
    }

    fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let header_len = tcp::MIN_HEADER_LEN + self.options.len();
        let mut p = Vec::with_capacity(header_len + payload.len());
        p.extend(self.src_port.to_be_bytes());
        p.extend(self.dst_port.to_be_bytes());
        p.extend(self.sequence.to_be_bytes());
        p.extend(self.acknowledgment.to_be_bytes());
        p.extend([((header_len / 4) as u8) << 4, self.flags.0]);
        p.extend(self.window.to_be_bytes());
        p.extend([0, 0]);
        p.extend(self.urgent_pointer.to_be_bytes());
        p.extend(&self.options);
        p.extend(payload);
        p
    }
}

/// A UDP datagram between two sockets of the same family, checksum complete.
#[must_use]
pub fn udp(link: &Link, src: SocketAddr, dst: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let ip = Ip::new(src.ip(), dst.ip());
    let len = udp::HEADER_LEN + payload.len();
    let mut p = Vec::with_capacity(len);
    p.extend(src.port().to_be_bytes());
    p.extend(dst.port().to_be_bytes());
    p.extend((len as u16).to_be_bytes());
    p.extend([0, 0]);
    p.extend(payload);
    let sum = ip.pseudo_header(udp::PROTOCOL, len).plus(Sum::of(&p));
    let checksum = sum::non_zero(sum.checksum());
    p[6..8].copy_from_slice(&checksum.to_be_bytes());
    ip.frame(link, udp::PROTOCOL, &p)
}
