//! IPv4 headers (RFC 791), with options and fragmentation fields, and edits that keep the header
//! checksum right.

use std::net::Ipv4Addr;

use crate::bytes::{be16, be32, header};
use crate::error::{Error, Layer};
use crate::sum;

/// Bytes of a header without options.
pub const MIN_HEADER_LEN: usize = 20;

/// Flag in the fragmentation field: do not fragment.
pub const FLAG_DF: u16 = 0x4000;
/// Flag in the fragmentation field: more fragments follow.
pub const FLAG_MF: u16 = 0x2000;
/// Fragment offset in the fragmentation field, in units of 8 bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

/// A checked view of a header: version, header length and total length are consistent, and the
/// options are within the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    fixed: &'a [u8; MIN_HEADER_LEN],
    options: &'a [u8],
}

impl<'a> Header<'a> {
    /// Looks at the header at the start of `bytes`. The header checksum is not verified, and
    /// nothing is said about whether the packet is as long as the total length claims.
    ///
    /// # Errors
    /// [`Error::Truncated`] or [`Error::BadField`].
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let fixed: &[u8; MIN_HEADER_LEN] = header(bytes, Layer::Ipv4)?;
        let options = if fixed[0] == 0x45 { &[][..] } else { Self::options_of(bytes, fixed[0])? };
        let view = Self { fixed, options };
        if view.total_len() < view.header_len() {
            return Err(Error::field(Layer::Ipv4, "total length", view.total_len()));
        }
        Ok(view)
    }

    #[cold]
    fn options_of(bytes: &'a [u8], version_ihl: u8) -> Result<&'a [u8], Error> {
        if version_ihl >> 4 != 4 {
            return Err(Error::field(Layer::Ipv4, "version", version_ihl >> 4));
        }
        let len = usize::from(version_ihl & 15) * 4;
        if len < MIN_HEADER_LEN {
            return Err(Error::field(Layer::Ipv4, "IHL", version_ihl & 15));
        }
        bytes.get(MIN_HEADER_LEN..len).ok_or(Error::Truncated(Layer::Ipv4))
    }

    /// Bytes of the header with options.
    #[must_use]
    #[inline(always)]
    pub fn header_len(&self) -> u16 {
        (MIN_HEADER_LEN + self.options.len()) as u16
    }

    /// Bytes of header and payload.
    #[must_use]
    #[inline(always)]
    pub fn total_len(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// DSCP and ECN in one byte.
    #[must_use]
    #[inline(always)]
    pub fn traffic_class(&self) -> u8 {
        self.fixed[1]
    }

    /// Identification.
    #[must_use]
    pub fn identification(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// Flags and fragment offset as they are on the wire.
    #[must_use]
    #[inline(always)]
    pub fn fragmentation(&self) -> u16 {
        be16(self.fixed, 6)
    }

    /// The packet is a fragment, first or later.
    #[must_use]
    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        self.fragmentation() & (FLAG_MF | OFFSET_MASK) != 0
    }

    /// Time to live.
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// Protocol of the payload.
    #[must_use]
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// Header checksum as stored.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        be16(self.fixed, 10)
    }

    /// Source address.
    #[must_use]
    #[inline(always)]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(be32(self.fixed, 12))
    }

    /// Destination address.
    #[must_use]
    #[inline(always)]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(be32(self.fixed, 16))
    }

    /// The options, walked. A malformed list ends with an error.
    #[must_use]
    pub fn options(&self) -> Options<'a> {
        Options { rest: self.options }
    }

    /// The header checksum is right.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        let sum = sum::Sum::of(self.fixed).plus(sum::Sum::of(self.options));
        sum.fold() == 0xffff
    }
}

/// One option of an IPv4 header; padding is not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Option<'a> {
    /// Copied flag, class and number.
    pub kind: u8,
    /// What follows the length byte.
    pub data: &'a [u8],
}

/// Iterator over the options of an IPv4 header.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Ipv4Option<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *std::mem::take(&mut self.rest) {
                [] | [0, ..] => return None,
                [1, ref rest @ ..] => self.rest = rest,
                [kind, len, ref rest @ ..] => {
                    let data_len = usize::from(len).checked_sub(2);
                    let Some((data, rest)) = data_len.and_then(|n| rest.split_at_checked(n)) else {
                        return Some(Err(Error::field(Layer::Ipv4, "option length", len)));
                    };
                    self.rest = rest;
                    return Some(Ok(Ipv4Option { kind, data }));
                }
                [_] => return Some(Err(Error::Truncated(Layer::Ipv4))),
            }
        }
    }
}

/// A checked header that can be edited; every edit keeps the header checksum right.
#[derive(Debug)]
pub struct HeaderMut<'a> {
    fixed: &'a mut [u8; MIN_HEADER_LEN],
}

impl<'a> HeaderMut<'a> {
    /// Opens the header at the start of `bytes` for edits.
    ///
    /// # Errors
    /// As [`Header::parse`].
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, Error> {
        Header::parse(bytes)?;
        let fixed = bytes.first_chunk_mut().ok_or(Error::Truncated(Layer::Ipv4))?;
        Ok(Self { fixed })
    }

    /// Sets DSCP and ECN together.
    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        let old = be16(self.fixed, 0);
        self.fixed[1] = traffic_class;
        let checksum = sum::update_u16(be16(self.fixed, 10), old, be16(self.fixed, 0));
        self.fixed[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Sets the DSCP (0 to 63; higher bits are ignored) and keeps ECN.
    pub fn set_dscp(&mut self, dscp: u8) {
        self.set_traffic_class(dscp << 2 | self.fixed[1] & 3);
    }

    /// Sets the ECN codepoint (0 to 3; higher bits are ignored) and keeps the DSCP.
    pub fn set_ecn(&mut self, ecn: u8) {
        self.set_traffic_class(self.fixed[1] & !3 | ecn & 3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header_bytes(options: &[u8]) -> Vec<u8> {
        let len = MIN_HEADER_LEN + options.len();
        let mut h = vec![0x40 | (len / 4) as u8, 0, 0, 60, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0];
        h.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        h.extend(options);
        let checksum = sum::checksum(&h);
        h[10..12].copy_from_slice(&checksum.to_be_bytes());
        h
    }

    #[test]
    fn fields() {
        let bytes = header_bytes(&[]);
        let h = Header::parse(&bytes).unwrap();
        assert_eq!((h.header_len(), h.total_len(), h.ttl()), (20, 60, 64));
        assert_eq!((h.identification(), h.protocol()), (0x1234, 6));
        assert_eq!(h.src(), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(h.dst(), Ipv4Addr::new(10, 0, 0, 2));
        assert!(!h.is_fragment() && h.checksum_ok());
    }

    #[test]
    fn options_are_walked() {
        // No operation, router alert (148), end of list, rest ignored.
        let bytes = header_bytes(&[1, 148, 4, 0, 7, 0, 9, 9]);
        let h = Header::parse(&bytes).unwrap();
        let found: Result<Vec<_>, _> = h.options().collect();
        let alert = Ipv4Option { kind: 148, data: &[0, 7] };
        assert_eq!(found, Ok(vec![alert]));
        assert!(h.checksum_ok());
        for bad in [[148, 1, 0, 0], [148, 5, 0, 0], [1, 1, 1, 148]] {
            let bytes = header_bytes(&bad);
            let mut options = Header::parse(&bytes).unwrap().options();
            assert!(options.next().unwrap().is_err(), "{bad:?}");
            assert!(options.next().is_none(), "the walk ends after an error");
        }
    }

    #[test]
    fn bad_headers() {
        let good = header_bytes(&[1; 4]);
        assert_eq!(Header::parse(&good[..23]).unwrap_err(), Error::Truncated(Layer::Ipv4));
        for (at, value) in [(0, 0x65), (0, 0x44), (3, 23)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(matches!(Header::parse(&bad), Err(Error::BadField { .. })));
        }
    }

    proptest! {
        #[test]
        fn edits_keep_the_checksum(tos: u8, dscp in 0u8..64, ecn in 0u8..4) {
            let mut bytes = header_bytes(&[]);
            let mut h = HeaderMut::parse(&mut bytes).unwrap();
            h.set_traffic_class(tos);
            h.set_dscp(dscp);
            h.set_ecn(ecn);
            let h = Header::parse(&bytes).unwrap();
            prop_assert_eq!(h.traffic_class(), dscp << 2 | ecn);
            prop_assert!(h.checksum_ok());
        }
    }
}
