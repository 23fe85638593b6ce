//! Fixed-size reads and writes of big-endian fields.

use crate::error::{Error, Layer};

/// The first `N` bytes of a header, or that `layer` is truncated.
#[inline(always)]
pub(crate) fn header<const N: usize>(bytes: &[u8], layer: Layer) -> Result<&[u8; N], Error> {
    bytes.first_chunk().ok_or(Error::Truncated(layer))
}

/// What starts at `offset`; empty when that is behind the end.
#[inline(always)]
pub(crate) fn tail(bytes: &[u8], offset: usize) -> &[u8] {
    bytes.get(offset..).unwrap_or_default()
}

/// The big-endian 16-bit field at `i`.
#[inline(always)]
pub(crate) fn be16<const N: usize>(b: &[u8; N], i: usize) -> u16 {
    u16::from_be_bytes([b[i], b[i + 1]])
}

/// The big-endian 32-bit field at `i`.
#[inline(always)]
pub(crate) fn be32<const N: usize>(b: &[u8; N], i: usize) -> u32 {
    u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]])
}

/// `N` bytes at `i`.
#[inline(always)]
pub(crate) fn array<const N: usize, const M: usize>(b: &[u8; M], i: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[i..i + N]);
    out
}

/// Writes a big-endian 16-bit field at `at`, which the caller has checked to lie within `bytes`.
#[inline(always)]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
