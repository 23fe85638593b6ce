//! ARP for IPv4 over Ethernet (RFC 826), its gratuitous forms (RFC 5227), and RARP (RFC 903).
//!
//! The switch reads ARP for two reasons: the spoof check compares the sender's addresses with
//! what the port may use, and announcements move a MAC address to another port.

use std::net::Ipv4Addr;

use crate::bytes::{array, be16, header};
use crate::error::{Error, Layer};
use crate::ethernet::MacAddr;

/// Bytes of a packet for IPv4 over Ethernet.
pub const LEN: usize = 28;

/// Operation: request.
pub const REQUEST: u16 = 1;
/// Operation: reply.
pub const REPLY: u16 = 2;
/// Operation: RARP request, which hypervisors broadcast to announce a guest that moved in.
pub const RARP_REQUEST: u16 = 3;

/// An ARP or RARP packet, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// [`REQUEST`], [`REPLY`], [`RARP_REQUEST`] or something else.
    pub operation: u16,
    /// Sender hardware address.
    pub sender_mac: MacAddr,
    /// Sender protocol address.
    pub sender_ip: Ipv4Addr,
    /// Target hardware address.
    pub target_mac: MacAddr,
    /// Target protocol address.
    pub target_ip: Ipv4Addr,
}

impl Packet {
    /// Decodes the packet at the start of `bytes` (what follows the Ethernet header).
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::BadField`] for other address families.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let b: &[u8; LEN] = header(bytes, Layer::Arp)?;
        for (field, at, expected) in [("hardware type", 0, 1), ("protocol type", 2, 0x0800)] {
            if be16(b, at) != expected {
                return Err(Error::field(Layer::Arp, field, be16(b, at)));
            }
        }
        for (field, at, expected) in [("hardware length", 4, 6), ("protocol length", 5, 4)] {
            if b[at] != expected {
                return Err(Error::field(Layer::Arp, field, b[at]));
            }
        }
        Ok(Self {
            operation: be16(b, 6),
            sender_mac: MacAddr(array(b, 8)),
            sender_ip: array::<4, _>(b, 14).into(),
            target_mac: MacAddr(array(b, 18)),
            target_ip: array::<4, _>(b, 24).into(),
        })
    }

    /// The packet in wire order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LEN] {
        let mut b = [0; LEN];
        b[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        b[6..8].copy_from_slice(&self.operation.to_be_bytes());
        b[8..14].copy_from_slice(&self.sender_mac.0);
        b[14..18].copy_from_slice(&self.sender_ip.octets());
        b[18..24].copy_from_slice(&self.target_mac.0);
        b[24..28].copy_from_slice(&self.target_ip.octets());
        b
    }

    /// Gratuitous ARP: request or reply in which sender and target are the same IPv4 address.
    #[must_use]
    pub fn is_gratuitous(&self) -> bool {
        matches!(self.operation, REQUEST | REPLY)
            && self.sender_ip == self.target_ip
            && !self.sender_ip.is_unspecified()
    }

    /// A probe (RFC 5227): a request by a station that does not use the address yet.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.operation == REQUEST && self.sender_ip.is_unspecified()
    }

    /// The packet says where its sender is now: gratuitous ARP or a RARP request for itself.
    #[must_use]
    pub fn is_announcement(&self) -> bool {
        self.is_gratuitous()
            || (self.operation == RARP_REQUEST && self.sender_mac == self.target_mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn packet(operation: u16, sender: [u8; 4], target: [u8; 4]) -> Packet {
        Packet {
            operation,
            sender_mac: MAC,
            sender_ip: sender.into(),
            target_mac: MacAddr::default(),
            target_ip: target.into(),
        }
    }

    #[test]
    fn bytes_round_trip() {
        let p = packet(REPLY, [10, 0, 0, 1], [10, 0, 0, 2]);
        let bytes = p.to_bytes();
        assert_eq!(Packet::parse(&bytes), Ok(p));
        assert!(Packet::parse(&bytes[..27]).is_err());
        for at in [1, 2, 4, 5] {
            let mut bad = bytes;
            bad[at] ^= 2;
            assert!(matches!(Packet::parse(&bad), Err(Error::BadField { .. })));
        }
    }

    #[test]
    fn announcements() {
        let ip = [10, 0, 0, 1];
        assert!(packet(REQUEST, ip, ip).is_announcement());
        assert!(packet(REPLY, ip, ip).is_gratuitous());
        assert!(!packet(REQUEST, ip, [10, 0, 0, 2]).is_announcement());
        assert!(packet(REQUEST, [0; 4], ip).is_probe());
        assert!(!packet(REQUEST, [0; 4], [0; 4]).is_announcement());
        let mut rarp = packet(RARP_REQUEST, [0; 4], [0; 4]);
        assert!(!rarp.is_announcement());
        rarp.target_mac = MAC;
        assert!(rarp.is_announcement());
    }
}
