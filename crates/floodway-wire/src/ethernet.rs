//! Ethernet II (IEEE 802.3) addresses and headers, with 802.1Q and 802.1ad tags.
//!
//! Tags are walked to find the network header.
//! At most [`MAX_TAGS`] are walked. A frame with more is an error and not an opaque frame, because
//! hosts strip priority tags one after the other and would see an IP packet where we saw none.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::bytes::{array, be16, header, tail};
use crate::error::{Error, Layer};

/// Bytes of an untagged header.
pub const HEADER_LEN: usize = 14;
/// Bytes of one tag.
pub const TAG_LEN: usize = 4;
/// Tags that are walked: a service tag and a customer tag.
pub const MAX_TAGS: usize = 2;

/// `EtherType` of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// `EtherType` of ARP.
pub const TYPE_ARP: u16 = 0x0806;
/// `EtherType` of RARP, which hypervisors use to announce a guest that moved in.
pub const TYPE_RARP: u16 = 0x8035;
/// Tag protocol identifier of 802.1Q.
pub const TYPE_VLAN: u16 = 0x8100;
/// `EtherType` of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;
/// Tag protocol identifier of 802.1ad (`QinQ`).
pub const TYPE_QINQ: u16 = 0x88a8;
/// Tag protocol identifier of `QinQ` before 802.1ad, still in use.
pub const TYPE_QINQ_OLD: u16 = 0x9100;

/// The lowest `EtherType`; below it the field is the length of an LLC frame.
pub const MIN_TYPE: u16 = 0x0600;

/// A 48-bit MAC address in transmission order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Group bit set: broadcast or multicast.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// All octets zero: never a valid source.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.to_u64() == 0
    }

    /// The address as the low 48 bits of an integer, first octet most significant.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// The IPv6 link-local address with the modified EUI-64 identifier of this address (RFC 4291 appendix A).
    #[must_use]
    pub fn to_link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&[0xfe, 0x80]);
        octets[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        octets.into()
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not six two-digit hexadecimal octets separated by colons.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address (expected six hexadecimal octets like 52:54:00:12:34:56)")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(s: &str) -> Result<Self, ParseMacError> {
        let mut octets = [0; 6];
        let mut parts = s.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|p| is_octet(p)).ok_or(ParseMacError)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() {
            return Err(ParseMacError);
        }
        Ok(Self(octets))
    }
}

/// Two hexadecimal digits. (`from_str_radix` alone would take a sign.)
fn is_octet(text: &str) -> bool {
    text.len() == 2 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The tags of a frame: at most [`MAX_TAGS`] tag control informations, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VlanTags {
    tci: [u16; MAX_TAGS],
    count: u8,
}

impl VlanTags {
    /// Tag control informations (priority, drop eligible, VLAN identifier), outermost first.
    #[must_use]
    pub fn as_slice(&self) -> &[u16] {
        &self.tci[..usize::from(self.count)]
    }

    /// No tag at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// VLAN identifier (0 to 4095) of the outermost tag; a priority tag has 0.
    #[must_use]
    pub const fn outer_vid(&self) -> Option<u16> {
        if self.is_empty() { None } else { Some(self.tci[0] & 0x0fff) }
    }
}

/// `EtherType` values that say "a tag follows".
#[must_use]
pub const fn is_tag_type(ethertype: u16) -> bool {
    matches!(ethertype, TYPE_VLAN | TYPE_QINQ | TYPE_QINQ_OLD)
}

/// An Ethernet header with its tags, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// Tags between the source address and `ethertype`.
    pub vlan: VlanTags,
    /// What follows the last tag. Values below 1536 are 802.3 lengths.
    pub ethertype: u16,
    /// Bytes of the header with its tags: where the payload starts.
    pub len: u16,
}

impl Header {
    /// Decodes the header at the start of `frame`.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the bytes end first, [`Error::TooMany`] after [`MAX_TAGS`] tags.
    #[inline(always)]
    pub fn parse(frame: &[u8]) -> Result<Self, Error> {
        let h: &[u8; HEADER_LEN] = header(frame, Layer::Ethernet)?;
        let tagged = Tagged::parse(h, frame)?;
        Ok(Self {
            dst: MacAddr(array(h, 0)),
            src: MacAddr(array(h, 6)),
            vlan: tagged.vlan,
            ethertype: tagged.ethertype,
            len: tagged.end,
        })
    }
}

/// The part of a header behind the addresses.
struct Tagged {
    vlan: VlanTags,
    ethertype: u16,
    end: u16,
}

impl Tagged {
    #[inline(always)]
    fn parse(h: &[u8; HEADER_LEN], frame: &[u8]) -> Result<Self, Error> {
        let ethertype = be16(h, 12);
        if is_tag_type(ethertype) {
            return Self::walk(ethertype, frame);
        }
        Ok(Self { vlan: VlanTags::default(), ethertype, end: HEADER_LEN as u16 })
    }

    #[inline(never)]
    fn walk(mut ethertype: u16, frame: &[u8]) -> Result<Self, Error> {
        let mut vlan = VlanTags::default();
        let mut end = HEADER_LEN;
        while is_tag_type(ethertype) {
            let slot = vlan.tci.get_mut(usize::from(vlan.count));
            let slot = slot.ok_or(Error::TooMany { layer: Layer::Vlan, max: MAX_TAGS as u8 })?;
            let tag: &[u8; TAG_LEN] = header(tail(frame, end), Layer::Vlan)?;
            *slot = be16(tag, 0);
            ethertype = be16(tag, 2);
            vlan.count += 1;
            end += TAG_LEN;
        }
        Ok(Self { vlan, ethertype, end: end as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(after_addresses: &[u8]) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1]);
        frame.extend(after_addresses);
        frame
    }

    #[test]
    fn untagged_and_tagged() {
        let plain = Header::parse(&frame(&[0x08, 0x00])).unwrap();
        assert_eq!(plain.dst, MacAddr::BROADCAST);
        assert_eq!(plain.src, MacAddr([2, 0, 0, 0, 0, 1]));
        assert_eq!((plain.ethertype, plain.len), (TYPE_IPV4, 14));
        assert_eq!(plain.vlan.outer_vid(), None);

        let qinq = [0x88, 0xa8, 0x20, 0x64, 0x81, 0x00, 0x00, 0x07, 0x86, 0xdd];
        let tagged = Header::parse(&frame(&qinq)).unwrap();
        assert_eq!((tagged.ethertype, tagged.len), (TYPE_IPV6, 22));
        assert_eq!(tagged.vlan.as_slice(), [0x2064, 7]);
        assert_eq!(tagged.vlan.outer_vid(), Some(100));
    }

    #[test]
    fn tag_errors() {
        let cut = frame(&[0x81, 0x00, 0x00]);
        assert_eq!(Header::parse(&cut), Err(Error::Truncated(Layer::Vlan)));
        let deep = frame(&[0x81, 0, 0, 0].repeat(4));
        assert!(matches!(Header::parse(&deep), Err(Error::TooMany { .. })));
        assert_eq!(Header::parse(&deep[..13]), Err(Error::Truncated(Layer::Ethernet)));
    }

    /// The example of RFC 2464 section 4.
    #[test]
    fn the_link_local_address_of_a_mac_address() {
        let mac: MacAddr = "34:56:78:9a:bc:de".parse().unwrap();
        assert_eq!(mac.to_link_local().to_string(), "fe80::3656:78ff:fe9a:bcde");
    }

    #[test]
    fn mac_text_round_trip() {
        let mac: MacAddr = "52:54:00:Ab:00:01".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:ab:00:01");
        for bad in
            ["", "52:54:00:ab:00", "52:54:00:ab:00:01:02", "52:54:0:ab:00:01", "+1:54:00:ab:00:01"]
        {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad}");
        }
    }
}
