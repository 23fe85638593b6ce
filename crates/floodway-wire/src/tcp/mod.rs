//! TCP headers (RFC 9293): [`Header`] reads, [`HeaderMut`] edits, [`options`] walks the options.

mod edit;
pub mod options;

pub use edit::HeaderMut;
pub use options::{OptionSummary, Options, TcpOption};

use std::fmt;

use crate::bytes::{be16, be32, header};
use crate::error::{Error, Layer};

/// IP protocol number.
pub const PROTOCOL: u8 = 6;
/// Bytes of a header without options.
pub const MIN_HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 60;

/// The control bits of byte 13 of the header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo.
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// Every bit of `other` is set.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Some bit of `other` is set.
    #[must_use]
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Bits of both.
    #[must_use]
    #[inline]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits that are not in `other`.
    #[must_use]
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for Flags {
    /// As tcpdump's letters, `.` being ACK: `[S.]` is SYN and ACK.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |(bit, letter)| (self.0 >> bit & 1 != 0).then_some(letter);
        let letters = (0u8..).zip("FSRP.UEW".chars()).filter_map(set);
        write!(f, "[{}]", letters.collect::<String>())
    }
}

/// A checked view of a header: the data offset is at least 5 and the options are within the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    fixed: &'a [u8; MIN_HEADER_LEN],
    options: &'a [u8],
}

impl<'a> Header<'a> {
    /// Looks at the header at the start of `bytes`. The options are not walked.
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::BadField`] for a data offset below 5.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let fixed: &[u8; MIN_HEADER_LEN] = header(bytes, Layer::Tcp)?;
        let data_offset = fixed[12] >> 4;
        if data_offset < 5 {
            return Err(Error::field(Layer::Tcp, "data offset", data_offset));
        }
        let options = bytes
            .get(MIN_HEADER_LEN..usize::from(data_offset) * 4)
            .ok_or(Error::Truncated(Layer::TcpOptions))?;
        Ok(Self { fixed, options })
    }

    /// Bytes of the header with options, 20 to 60.
    #[must_use]
    #[inline(always)]
    pub fn header_len(&self) -> u8 {
        (MIN_HEADER_LEN + self.options.len()) as u8
    }

    /// Source port.
    #[must_use]
    #[inline(always)]
    pub fn src_port(&self) -> u16 {
        be16(self.fixed, 0)
    }

    /// Destination port.
    #[must_use]
    #[inline(always)]
    pub fn dst_port(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// Sequence number.
    #[must_use]
    #[inline(always)]
    pub fn sequence(&self) -> u32 {
        be32(self.fixed, 4)
    }

    /// Acknowledgement number.
    #[must_use]
    #[inline(always)]
    pub fn acknowledgment(&self) -> u32 {
        be32(self.fixed, 8)
    }

    /// Control bits.
    #[must_use]
    #[inline(always)]
    pub fn flags(&self) -> Flags {
        Flags(self.fixed[13])
    }

    /// The AE flag (RFC 9768), formerly NS: the bit before CWR, which is no part of [`Header::flags`].
    #[must_use]
    pub fn accurate_ecn(&self) -> bool {
        self.fixed[12] & 1 != 0
    }

    /// Receive window as it is on the wire, not scaled.
    #[must_use]
    #[inline(always)]
    pub fn window(&self) -> u16 {
        be16(self.fixed, 14)
    }

    /// Checksum as stored.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        be16(self.fixed, 16)
    }

    /// Urgent pointer: offset from the sequence number.
    #[must_use]
    pub fn urgent_pointer(&self) -> u16 {
        be16(self.fixed, 18)
    }

    /// The options as bytes.
    #[must_use]
    #[inline(always)]
    pub fn option_bytes(&self) -> &'a [u8] {
        self.options
    }

    /// The options, walked. A malformed list ends with an error.
    #[must_use]
    pub fn options(&self) -> Options<'a> {
        Options::new(self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: [u8; 24] = [
        0x04, 0x00, 0x00, 0x50, 0, 0, 0, 1, 0, 0, 0, 2, 0x60, 0x12, 0xff, 0xfe, 0xab, 0xcd, 0, 3,
        2, 4, 5, 0xb4,
    ];

    #[test]
    fn fields() {
        let h = Header::parse(&SYN).unwrap();
        assert_eq!((h.src_port(), h.dst_port()), (1024, 80));
        assert_eq!((h.sequence(), h.acknowledgment()), (1, 2));
        assert_eq!((h.header_len(), h.window()), (24, 0xfffe));
        assert_eq!((h.checksum(), h.urgent_pointer()), (0xabcd, 3));
        assert_eq!(format!("{:?}", h.flags()), "[S.]");
        assert!(h.flags().contains(Flags::SYN.with(Flags::ACK)));
        assert!(!h.flags().without(Flags::SYN).intersects(Flags::SYN));
        assert!(!h.accurate_ecn());
        let mut with_ae = SYN;
        with_ae[12] |= 1;
        let h = Header::parse(&with_ae).unwrap();
        assert!(h.accurate_ecn() && h.header_len() == 24);
        let options: Vec<_> = h.options().collect();
        assert_eq!(options, [Ok(TcpOption::MaxSegmentSize(1460))]);
    }

    #[test]
    fn bad_headers() {
        assert_eq!(Header::parse(&SYN[..19]).unwrap_err(), Error::Truncated(Layer::Tcp));
        assert_eq!(Header::parse(&SYN[..23]).unwrap_err(), Error::Truncated(Layer::TcpOptions));
        let mut bad = SYN;
        bad[12] = 0x40;
        assert!(matches!(Header::parse(&bad), Err(Error::BadField { .. })));
    }
}
