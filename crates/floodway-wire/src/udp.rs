//! UDP headers (RFC 768).

use crate::bytes::{be16, header};
use crate::error::{Error, Layer};

/// IP protocol number.
pub const PROTOCOL: u8 = 17;
/// Bytes of a header.
pub const HEADER_LEN: usize = 8;

/// A UDP header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source port; zero if unused.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub len: u16,
    /// Checksum; zero if the sender computed none.
    pub checksum: u16,
}

impl Header {
    /// Decodes the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::BadField`] for a length shorter than the header.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let b: &[u8; HEADER_LEN] = header(bytes, Layer::Udp)?;
        let len = be16(b, 4);
        if usize::from(len) < HEADER_LEN {
            return Err(Error::field(Layer::Udp, "length", len));
        }
        Ok(Self { src_port: be16(b, 0), dst_port: be16(b, 2), len, checksum: be16(b, 6) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_bad_length() {
        let mut bytes = [0x04, 0x00, 0x00, 0x35, 0, 8, 0xab, 0xcd];
        let h = Header::parse(&bytes).unwrap();
        assert_eq!((h.src_port, h.dst_port), (1024, 53));
        assert_eq!((h.len, h.checksum), (8, 0xabcd));
        bytes[5] = 7;
        assert!(matches!(Header::parse(&bytes), Err(Error::BadField { .. })));
        assert!(Header::parse(&bytes[..7]).is_err());
    }
}
