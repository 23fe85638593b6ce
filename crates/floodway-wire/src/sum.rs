//! The internet checksum: the one's complement of the one's complement sum of 16-bit words.
//!
//! Theory of operation. The sum is commutative, associative and independent of byte order
//! (RFC 1071), so it is taken over native-endian words as wide as the machine likes and swapped
//! once at the end. [`Sum`] is such a sum before the last fold; parts of even length that were
//! summed apart can be added. A field that changes is replaced in a finished checksum without
//! reading the rest (RFC 1624, equation 3).
//!
//! A *partial* checksum is what virtio-net, TAP and the Linux stack call `NEEDS_CSUM`: the field
//! holds the folded, not complemented, sum of the pseudo-header, and whoever sends the frame on
//! sums from `csum_start` to the end of the frame and stores the complement. Because the field
//! itself is within the range, summing picks the pseudo-header up with no further knowledge.
//! Edits of a header under a partial checksum must leave the field alone.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::error::Error;

/// Offset of the checksum field in a TCP header.
pub const TCP_OFFSET: u16 = 16;
/// Offset of the checksum field in a UDP header.
pub const UDP_OFFSET: u16 = 6;

/// What is known about a frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// Filled in by the sender; nobody has looked.
    Unverified,
    /// Filled in and known to be right.
    Verified,
    /// The field holds the pseudo-header's sum only (virtio-net `NEEDS_CSUM`).
    Partial,
}

/// A one's complement sum on its way, in native byte order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Self = Self(0);

    /// The sum of `bytes`; an odd last byte is padded with a zero byte.
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self(reduce(if bytes.len() >= BLOCK { sum_blocks(bytes) } else { sum_words(bytes) }))
    }

    /// Adds the sum of bytes that start at an even offset.
    #[must_use]
    #[inline]
    pub const fn plus(self, other: Self) -> Self {
        Self(reduce(self.0 + other.0))
    }

    /// Adds one 16-bit field, given in host order.
    #[must_use]
    #[inline]
    pub const fn plus_u16(self, field: u16) -> Self {
        Self(self.0 + field.to_be() as u64)
    }

    /// Adds one 32-bit field, given in host order.
    #[must_use]
    #[inline]
    pub const fn plus_u32(self, field: u32) -> Self {
        Self(self.0 + field.to_be() as u64)
    }

    /// The sum of the same bytes shifted by one: what they add at an odd offset.
    #[must_use]
    #[inline]
    pub const fn swapped(self) -> Self {
        Self(fold(self.0).swap_bytes() as u64)
    }

    /// The 16-bit sum in host order, as it is stored in a partial checksum field.
    #[must_use]
    #[inline]
    pub const fn fold(self) -> u16 {
        u16::from_be(fold(self.0))
    }

    /// The checksum: the complement of the sum, in host order.
    #[must_use]
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }
}

/// Bytes per round of the wide loop; below that the setup is not worth it.
const BLOCK: usize = 64;

/// Adds 32-bit words into 64-bit lanes, which never overflow for anything that fits in memory
/// and which the compiler turns into vector instructions.
fn sum_blocks(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut low = [0u64; BLOCK / 8];
    let mut high = [0u64; BLOCK / 8];
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in words.iter().enumerate() {
            let word = u64::from_ne_bytes(*word);
            low[lane] += word & 0xffff_ffff;
            high[lane] += word >> 32;
        }
    }
    let lanes = low.iter().chain(&high).map(|&lane| reduce(lane));
    lanes.sum::<u64>() + sum_words(rest)
}

/// Adds 32-bit words of a short range.
#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    let (pairs, odd) = rest.as_chunks::<2>();
    if let [pair] = pairs {
        sum += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [last] = odd {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum
}

/// Brings a sum under 2^33, so that billions of them can be added.
#[inline]
const fn reduce(sum: u64) -> u64 {
    (sum & 0xffff_ffff) + (sum >> 32)
}

/// Folds to 16 bits. Zero comes out only if zero went in.
#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = reduce(reduce(sum));
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The checksum of `bytes` (for example of an IPv4 header whose checksum field is zero).
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::of(bytes).checksum()
}

/// The checksum after one 16-bit field changed from `old` to `new` (RFC 1624, equation 3).
#[must_use]
#[inline]
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    update(checksum, Sum::ZERO.plus_u16(old), Sum::ZERO.plus_u16(new))
}

/// The checksum after bytes whose sum was `old` were replaced by bytes whose sum is `new`.
/// Both are sums at an even offset; see [`Sum::swapped`] for odd ones.
#[must_use]
#[inline]
pub const fn update(checksum: u16, old: Sum, new: Sum) -> u16 {
    let sum = Sum::ZERO.plus_u16(!checksum).plus_u16(!old.fold()).plus_u16(new.fold());
    sum.checksum()
}

/// Sum of the IPv4 pseudo-header (RFC 9293 section 3.1); `len` is the transport header and
/// payload in bytes.
#[must_use]
#[inline]
pub fn pseudo_header_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u32) -> Sum {
    Sum::ZERO
        .plus_u32(src.to_bits())
        .plus_u32(dst.to_bits())
        .plus_u32(len)
        .plus_u16(u16::from(protocol))
}

/// Sum of the IPv6 pseudo-header (RFC 8200 section 8.1); `len` is the upper-layer header and
/// payload in bytes.
#[must_use]
#[inline]
pub fn pseudo_header_v6(src: &Ipv6Addr, dst: &Ipv6Addr, protocol: u8, len: u32) -> Sum {
    Sum::of(&src.octets()).plus(Sum::of(&dst.octets())).plus_u32(len).plus_u16(u16::from(protocol))
}

/// Completes a partial checksum as virtio-net describes it: sums the frame from `csum_start` to
/// its end and stores the complement at `csum_start + csum_offset`. A checksum of zero is stored
/// as `0xffff`, which means the same and is what UDP demands.
///
/// # Errors
/// [`Error::ChecksumRange`] when the field does not lie within the frame.
pub fn complete(frame: &mut [u8], csum_start: u16, csum_offset: u16) -> Result<(), Error> {
    let range_error =
        Error::ChecksumRange { start: csum_start, offset: csum_offset, frame_len: frame.len() };
    let area = frame.get_mut(usize::from(csum_start)..).ok_or(range_error)?;
    let sum = Sum::of(area);
    let at = usize::from(csum_offset);
    let field = area.get_mut(at..at + 2).ok_or(range_error)?;
    field.copy_from_slice(&non_zero(sum.checksum()).to_be_bytes());
    Ok(())
}

/// `0xffff` for zero: the same number in one's complement, and never "no checksum" in UDP.
#[inline]
pub(crate) const fn non_zero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}
