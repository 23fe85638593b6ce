//! Edits of a TCP header that keep its checksum right.
//!
//! Every edit replaces bytes through one function that updates the checksum incrementally
//! (RFC 1624). Under a partial checksum the field covers the pseudo-header only, so that an edit
//! of the header leaves it alone.

use super::{Flags, Header, MIN_HEADER_LEN, Options, TcpOption, options};
use crate::bytes::be16;
use crate::error::Error;
use crate::sum::{self, ChecksumState, Sum};

const CHECKSUM: std::ops::Range<usize> = 16..18;

/// A checked header that can be edited.
#[derive(Debug)]
pub struct HeaderMut<'a> {
    /// Exactly the header with its options.
    bytes: &'a mut [u8],
    partial: bool,
}

impl<'a> HeaderMut<'a> {
    /// Opens the header at the start of `bytes` for edits. `state` says whether the checksum
    /// field holds a checksum that has to follow the edits.
    ///
    /// # Errors
    /// As [`Header::parse`].
    pub fn parse(bytes: &'a mut [u8], state: ChecksumState) -> Result<Self, Error> {
        let len = usize::from(Header::parse(bytes)?.header_len());
        Ok(Self { bytes: &mut bytes[..len], partial: state == ChecksumState::Partial })
    }

    /// Sets the sequence number.
    pub fn set_sequence(&mut self, sequence: u32) {
        self.replace(4, sequence.to_be_bytes());
    }

    /// Sets the acknowledgement number.
    pub fn set_acknowledgment(&mut self, acknowledgment: u32) {
        self.replace(8, acknowledgment.to_be_bytes());
    }

    /// Sets the control bits.
    pub fn set_flags(&mut self, flags: Flags) {
        // The checksum is updated by whole words: take the byte with the data offset along.
        self.replace(12, [self.bytes[12], flags.0]);
    }

    /// Sets the receive window as it is on the wire (already shifted).
    pub fn set_window(&mut self, window: u16) {
        self.replace(14, window.to_be_bytes());
    }

    /// Sets `TSval` and `TSecr` of the timestamps option. Returns whether there is one.
    ///
    /// # Errors
    /// [`Error::BadField`] or [`Error::Truncated`] for a malformed option list, which is left as
    /// it is.
    pub fn set_timestamps(&mut self, timestamps: options::Timestamps) -> Result<bool, Error> {
        let find = |option: TcpOption<'_>| matches!(option, TcpOption::Timestamps(_)).then_some(());
        let Some((at, ())) = self.find_option(find)? else {
            return Ok(false);
        };
        let mut clocks = [0; 8];
        clocks[..4].copy_from_slice(&timestamps.value.to_be_bytes());
        clocks[4..].copy_from_slice(&timestamps.echo.to_be_bytes());
        self.replace(at + 2, clocks);
        Ok(true)
    }

    /// Overwrites every SACK option by padding. Returns how many blocks are gone.
    ///
    /// # Errors
    /// [`Error::BadField`] or [`Error::Truncated`] for a malformed option list.
    pub fn strip_sack_blocks(&mut self) -> Result<usize, Error> {
        const PADDING: [u8; 8] = [options::KIND_NOP; 8];
        let mut stripped = 0;
        let find = |option: TcpOption<'_>| match option {
            TcpOption::Sack(blocks) => Some(blocks.iter().len()),
            _ => None,
        };
        while let Some((at, count)) = self.find_option(find)? {
            self.replace(at, [options::KIND_NOP; 2]);
            (0..count).for_each(|i| self.replace(at + 2 + 8 * i, PADDING));
            stripped += count;
        }
        Ok(stripped)
    }

    /// The first option that `pick` wants, with the offset of its kind byte in the header.
    fn find_option<T>(
        &self,
        pick: impl Fn(TcpOption<'_>) -> Option<T>,
    ) -> Result<Option<(usize, T)>, Error> {
        let mut list = Options::new(&self.bytes[MIN_HEADER_LEN..]);
        while let Some(next) = list.next_with_offset() {
            let (at, option) = next?;
            if let Some(found) = pick(option) {
                return Ok(Some((MIN_HEADER_LEN + at, found)));
            }
        }
        Ok(None)
    }

    /// Replaces `N` bytes at `at`, which lie within the header and outside the checksum field.
    fn replace<const N: usize>(&mut self, at: usize, new: [u8; N]) {
        let field = &mut self.bytes[at..at + N];
        let (mut old_sum, mut new_sum) = (Sum::of(field), Sum::of(&new));
        field.copy_from_slice(&new);
        if self.partial {
            return;
        }
        if at % 2 == 1 {
            (old_sum, new_sum) = (old_sum.swapped(), new_sum.swapped());
        }
        if let Some(fixed) = self.bytes.first_chunk::<MIN_HEADER_LEN>() {
            let checksum = sum::update(be16(fixed, CHECKSUM.start), old_sum, new_sum);
            self.bytes[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        }
    }
}
