//! IPv6 headers (RFC 8200) and a bounded walk over extension headers.
//!
//! The walk passes hop-by-hop options, routing, destination options, authentication and fragment
//! headers, at most [`MAX_EXTENSIONS`] of them, and stops at anything else: an upper layer, ESP,
//! "no next header", or an unknown number. Behind a fragment header that says more than "whole
//! packet" it stops too, since what follows may start in the middle of an upper layer.

use std::net::Ipv6Addr;

use crate::bytes::{array, be16, header, tail};
use crate::error::{Error, Layer};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;
/// Extension headers that are walked before a packet is refused.
pub const MAX_EXTENSIONS: u8 = 8;

/// Next header: hop-by-hop options.
pub const NEXT_HOP_BY_HOP: u8 = 0;
/// Next header: routing.
pub const NEXT_ROUTING: u8 = 43;
/// Next header: fragment.
pub const NEXT_FRAGMENT: u8 = 44;
/// Next header: authentication (RFC 4302).
pub const NEXT_AUTHENTICATION: u8 = 51;
/// Next header: destination options.
pub const NEXT_DESTINATION: u8 = 60;

/// A view of a fixed header whose version is 6.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    fixed: &'a [u8; HEADER_LEN],
}

impl<'a> Header<'a> {
    /// Looks at the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::BadField`] for another version.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let fixed: &[u8; HEADER_LEN] = header(bytes, Layer::Ipv6)?;
        if fixed[0] >> 4 != 6 {
            return Err(Error::field(Layer::Ipv6, "version", fixed[0] >> 4));
        }
        Ok(Self { fixed })
    }

    /// DSCP and ECN in one byte.
    #[must_use]
    #[inline(always)]
    pub fn traffic_class(&self) -> u8 {
        self.fixed[0] << 4 | self.fixed[1] >> 4
    }

    /// Flow label, 20 bits.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        u32::from_be_bytes([0, self.fixed[1] & 15, self.fixed[2], self.fixed[3]])
    }

    /// Bytes behind the fixed header.
    #[must_use]
    #[inline(always)]
    pub fn payload_len(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// Number of the first header behind this one.
    #[must_use]
    #[inline(always)]
    pub fn next_header(&self) -> u8 {
        self.fixed[6]
    }

    /// Hop limit.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.fixed[7]
    }

    /// Source address.
    #[must_use]
    #[inline(always)]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16, _>(self.fixed, 8))
    }

    /// Destination address.
    #[must_use]
    #[inline(always)]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16, _>(self.fixed, 24))
    }
}

/// Where the walk over extension headers ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// Number of the header at `offset`.
    pub protocol: u8,
    /// Bytes from the end of the fixed header to the upper layer.
    pub offset: u16,
    /// The packet is a fragment; `offset` is behind the fragment header.
    pub is_fragment: bool,
    /// A fragment header (be it of a whole packet) or an authentication header was passed: they
    /// speak of this very packet and cannot be copied to another.
    pub is_bound_to_packet: bool,
}

/// Walks the extension headers that start at `bytes` (right behind the fixed header).
///
/// # Errors
/// [`Error::Truncated`] if the bytes end inside an extension header, [`Error::TooMany`] after
/// [`MAX_EXTENSIONS`].
#[inline(always)]
pub fn walk_extensions(next_header: u8, bytes: &[u8]) -> Result<UpperLayer, Error> {
    let upper = UpperLayer {
        protocol: next_header,
        offset: 0,
        is_fragment: false,
        is_bound_to_packet: false,
    };
    if is_extension(next_header) { walk(upper, bytes) } else { Ok(upper) }
}

#[cold]
fn walk(mut upper: UpperLayer, bytes: &[u8]) -> Result<UpperLayer, Error> {
    for _ in 0..MAX_EXTENSIONS {
        let rest = tail(bytes, usize::from(upper.offset));
        let h: &[u8; 8] = header(rest, Layer::Ipv6Extension)?;
        let len = match upper.protocol {
            NEXT_FRAGMENT => 8,
            NEXT_AUTHENTICATION => (u16::from(h[1]) + 2) * 4,
            _ => (u16::from(h[1]) + 1) * 8,
        };
        if usize::from(len) > rest.len() {
            return Err(Error::Truncated(Layer::Ipv6Extension));
        }
        upper.is_bound_to_packet |= matches!(upper.protocol, NEXT_FRAGMENT | NEXT_AUTHENTICATION);
        if upper.protocol == NEXT_FRAGMENT {
            // Offset and the "more" flag; the two reserved bits between them do not count.
            upper.is_fragment = be16(h, 2) & 0xfff9 != 0;
        }
        upper.protocol = h[0];
        upper.offset += len;
        if upper.is_fragment || !is_extension(upper.protocol) {
            return Ok(upper);
        }
    }
    Err(Error::TooMany { layer: Layer::Ipv6Extension, max: MAX_EXTENSIONS })
}

/// The headers of the packet at `bytes` can be copied to other packets of the same flow, as
/// segmentation does: there is no fragment header (not even of a whole packet) and no
/// authentication header, which speak of one very packet.
///
/// # Errors
/// As [`Header::parse`] and [`walk_extensions`].
pub fn may_be_replicated(bytes: &[u8]) -> Result<bool, Error> {
    let next_header = Header::parse(bytes)?.next_header();
    let upper = walk_extensions(next_header, tail(bytes, HEADER_LEN))?;
    Ok(!upper.is_bound_to_packet)
}

const fn is_extension(next_header: u8) -> bool {
    matches!(
        next_header,
        NEXT_HOP_BY_HOP | NEXT_ROUTING | NEXT_FRAGMENT | NEXT_AUTHENTICATION | NEXT_DESTINATION
    )
}

/// A checked fixed header that can be edited. No checksum covers the traffic class.
#[derive(Debug)]
pub struct HeaderMut<'a> {
    fixed: &'a mut [u8; HEADER_LEN],
}

impl<'a> HeaderMut<'a> {
    /// Opens the header at the start of `bytes` for edits.
    ///
    /// # Errors
    /// As [`Header::parse`].
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, Error> {
        Header::parse(bytes)?;
        let fixed = bytes.first_chunk_mut().ok_or(Error::Truncated(Layer::Ipv6))?;
        Ok(Self { fixed })
    }

    fn traffic_class(&self) -> u8 {
        self.fixed[0] << 4 | self.fixed[1] >> 4
    }

    /// Sets DSCP and ECN together.
    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        self.fixed[0] = 0x60 | traffic_class >> 4;
        self.fixed[1] = traffic_class << 4 | self.fixed[1] & 15;
    }

    /// Sets the DSCP (0 to 63; higher bits are ignored) and keeps ECN.
    pub fn set_dscp(&mut self, dscp: u8) {
        self.set_traffic_class(dscp << 2 | self.traffic_class() & 3);
    }

    /// Sets the ECN codepoint (0 to 3; higher bits are ignored) and keeps the DSCP.
    pub fn set_ecn(&mut self, ecn: u8) {
        self.set_traffic_class(self.traffic_class() & !3 | ecn & 3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed() -> Vec<u8> {
        let mut h = vec![0x60, 0x0a, 0xbc, 0xde, 0, 20, 6, 64];
        h.extend(Ipv6Addr::LOCALHOST.octets());
        h.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        h
    }

    #[test]
    fn fields_and_edits() {
        let mut bytes = fixed();
        let mut edit = HeaderMut::parse(&mut bytes).unwrap();
        edit.set_dscp(46);
        edit.set_ecn(3);
        let h = Header::parse(&bytes).unwrap();
        assert_eq!(h.traffic_class(), 46 << 2 | 3);
        assert_eq!((h.flow_label(), h.payload_len()), (0xabcde, 20));
        assert_eq!((h.next_header(), h.hop_limit()), (6, 64));
        assert_eq!(h.src(), Ipv6Addr::LOCALHOST);
        assert_eq!(h.dst().to_string(), "fd00::2");
        bytes[0] = 0x45;
        assert!(Header::parse(&bytes).is_err());
        assert!(Header::parse(&fixed()[..39]).is_err());
    }

    #[test]
    fn extensions_are_walked() {
        // Hop-by-hop (8), destination options (16), authentication (12), atomic fragment, TCP.
        let mut chain = vec![NEXT_DESTINATION, 0, 0, 0, 0, 0, 0, 0];
        chain.extend([NEXT_AUTHENTICATION, 1].iter().chain(&[0; 14]));
        chain.extend([NEXT_FRAGMENT, 1].iter().chain(&[0; 10]));
        chain.extend([6, 0, 0, 0, 0, 0, 0, 1]);
        let upper = walk_extensions(NEXT_HOP_BY_HOP, &chain).unwrap();
        assert_eq!((upper.protocol, upper.offset), (6, 44));
        assert!(upper.is_bound_to_packet && !upper.is_fragment);
        for end in 0..chain.len() {
            assert_eq!(
                walk_extensions(NEXT_HOP_BY_HOP, &chain[..end]),
                Err(Error::Truncated(Layer::Ipv6Extension))
            );
        }
    }

    #[test]
    fn a_fragment_ends_the_walk() {
        let later = [NEXT_DESTINATION, 0, 0x00, 0x08, 0, 0, 0, 1];
        let upper = walk_extensions(NEXT_FRAGMENT, &later).unwrap();
        assert!(upper.is_fragment);
        assert_eq!((upper.protocol, upper.offset), (NEXT_DESTINATION, 8));
        let first = [6, 0, 0x00, 0x01, 0, 0, 0, 1];
        assert!(walk_extensions(NEXT_FRAGMENT, &first).unwrap().is_fragment);
    }

    #[test]
    fn the_walk_is_bounded() {
        let endless = [NEXT_DESTINATION, 0, 0, 0, 0, 0, 0, 0].repeat(100);
        assert!(matches!(walk_extensions(NEXT_DESTINATION, &endless), Err(Error::TooMany { .. })));
    }
}
