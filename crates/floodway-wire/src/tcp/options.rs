//! TCP options: MSS (RFC 9293), window scale and timestamps (RFC 7323), SACK (RFC 2018), and any
//! other kind as bytes.
//!
//! [`Options`] walks a list and says exactly what is wrong with a malformed one; [`OptionSummary`]
//! gathers in one pass what the mechanisms of the switch ask for.

use std::fmt;

use crate::bytes::be32;
use crate::error::{Error, Layer};

/// Kind: end of the list.
pub const KIND_END: u8 = 0;
/// Kind: padding.
pub const KIND_NOP: u8 = 1;
/// Kind: maximum segment size.
pub const KIND_MSS: u8 = 2;
/// Kind: window scale.
pub const KIND_WINDOW_SCALE: u8 = 3;
/// Kind: SACK permitted.
pub const KIND_SACK_PERMITTED: u8 = 4;
/// Kind: SACK blocks.
pub const KIND_SACK: u8 = 5;
/// Kind: timestamps.
pub const KIND_TIMESTAMPS: u8 = 8;
/// Kind: an experiment, which the first bytes of its data identify (RFC 6994).
pub const KIND_EXPERIMENT: u8 = 254;

/// Most SACK blocks that fit a header.
pub const MAX_SACK_BLOCKS: usize = 4;
/// Largest window shift that may be used (RFC 7323 section 2.3); larger ones count as this.
pub const MAX_WINDOW_SCALE: u8 = 14;

/// `first` and `next` sequence number of a range that the receiver holds: `[left, right)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// First sequence number of the block.
    pub left: u32,
    /// Sequence number right behind the block.
    pub right: u32,
}

/// SACK blocks in the order in which a segment lists them, at most [`MAX_SACK_BLOCKS`].
#[derive(Clone, Copy, Default)]
pub struct SackList {
    /// The first `count` are valid.
    blocks: [SackBlock; MAX_SACK_BLOCKS],
    count: u8,
}

impl SackList {
    /// The blocks.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Appends `block`, if there is room for one more.
    pub fn push(&mut self, block: SackBlock) {
        if let Some(free) = self.blocks.get_mut(usize::from(self.count)) {
            *free = block;
            self.count += 1;
        }
    }

    /// Removes all blocks.
    #[inline]
    pub const fn clear(&mut self) {
        self.count = 0;
    }
}

impl fmt::Debug for SackList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl PartialEq for SackList {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SackList {}

impl FromIterator<SackBlock> for SackList {
    /// The first [`MAX_SACK_BLOCKS`] of `blocks`.
    fn from_iter<I: IntoIterator<Item = SackBlock>>(blocks: I) -> Self {
        let mut list = Self::default();
        blocks.into_iter().take(MAX_SACK_BLOCKS).for_each(|block| list.push(block));
        list
    }
}

/// The blocks of one SACK option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SackBlocks<'a> {
    bytes: &'a [[u8; 8]],
}

impl SackBlocks<'_> {
    /// The blocks, most recent first as the sender lists them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SackBlock> {
        self.bytes.iter().map(|b| SackBlock { left: be32(b, 0), right: be32(b, 4) })
    }
}

/// Timestamps option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// `TSval`: the sender's clock.
    pub value: u32,
    /// `TSecr`: the peer's clock, echoed.
    pub echo: u32,
}

/// One option; padding is not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// Largest segment that the sender wants to get, in bytes of payload.
    MaxSegmentSize(u16),
    /// Shift of the sender's windows as it is on the wire; see [`MAX_WINDOW_SCALE`].
    WindowScale(u8),
    /// The sender understands SACK.
    SackPermitted,
    /// One to four received ranges.
    Sack(SackBlocks<'a>),
    /// Clock and echo.
    Timestamps(Timestamps),
    /// Any other kind.
    Unknown {
        /// Its number.
        kind: u8,
        /// What follows the length byte.
        data: &'a [u8],
    },
}

/// Iterator over the options of a header. Ends at the end-of-list option, at the end of the
/// bytes, or after the first error.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
    offset: u8,
}

impl<'a> Options<'a> {
    /// Walks the option bytes of a header (at most 40 bytes; what is longer is cut).
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        let len = bytes.len().min(super::MAX_HEADER_LEN - super::MIN_HEADER_LEN);
        Self { rest: &bytes[..len], offset: 0 }
    }

    /// Bytes of the options and padding that were walked; where the list ends, once there is no next one.
    #[must_use]
    pub fn walked(&self) -> usize {
        self.offset.into()
    }

    /// The next option with the offset of its kind byte from the start of the options.
    pub fn next_with_offset(&mut self) -> Option<Result<(usize, TcpOption<'a>), Error>> {
        loop {
            match *std::mem::take(&mut self.rest) {
                [] | [KIND_END, ..] => return None,
                [KIND_NOP, ref rest @ ..] => {
                    self.rest = rest;
                    self.offset += 1;
                }
                [_] => return Some(Err(Error::Truncated(Layer::TcpOptions))),
                [kind, len, ref rest @ ..] => {
                    let data_len = usize::from(len).checked_sub(2);
                    let Some((data, rest)) = data_len.and_then(|n| rest.split_at_checked(n)) else {
                        return Some(Err(Error::field(Layer::TcpOptions, "length", len)));
                    };
                    let at = usize::from(self.offset);
                    self.offset += len;
                    return Some(decode(kind, data).map(|option| {
                        self.rest = rest;
                        (at, option)
                    }));
                }
            }
        }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<TcpOption<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_with_offset()?.map(|(_, option)| option))
    }
}

/// Decodes one option; a known kind with a length that is not its own is malformed.
fn decode(kind: u8, data: &[u8]) -> Result<TcpOption<'_>, Error> {
    Ok(match (kind, data) {
        (KIND_MSS, &[high, low]) => TcpOption::MaxSegmentSize(u16::from_be_bytes([high, low])),
        (KIND_WINDOW_SCALE, &[shift]) => TcpOption::WindowScale(shift),
        (KIND_SACK_PERMITTED, []) => TcpOption::SackPermitted,
        (KIND_TIMESTAMPS, data) if data.len() == 8 => {
            let (words, _) = data.as_chunks::<4>();
            TcpOption::Timestamps(Timestamps {
                value: u32::from_be_bytes(words[0]),
                echo: u32::from_be_bytes(words[1]),
            })
        }
        (KIND_SACK, data) if matches!(data.as_chunks::<8>(), ([_, ..], [])) => {
            TcpOption::Sack(SackBlocks { bytes: data.as_chunks().0 })
        }
        (
            KIND_MSS | KIND_WINDOW_SCALE | KIND_SACK_PERMITTED | KIND_TIMESTAMPS | KIND_SACK,
            data,
        ) => {
            let field = match kind {
                KIND_MSS => "maximum segment size length",
                KIND_WINDOW_SCALE => "window scale length",
                KIND_SACK_PERMITTED => "SACK permitted length",
                KIND_TIMESTAMPS => "timestamps length",
                _ => "SACK length",
            };
            let len = data.len() as u32 + 2;
            return Err(Error::field(Layer::TcpOptions, field, len));
        }
        (kind, data) => TcpOption::Unknown { kind, data },
    })
}

/// The options that the switch works with, gathered. Of an option that occurs twice the last
/// counts, as in Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionSummary {
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Window shift as it is on the wire; see [`MAX_WINDOW_SCALE`].
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// An option is present that is none of the above, SACK blocks, or padding. What it means is not known here, so
    /// whoever makes, edits or absorbs segments must leave it and what depends on it alone.
    pub unknown: bool,
    sack: SackList,
}

impl OptionSummary {
    /// Gathers the options in `bytes`.
    ///
    /// # Errors
    /// Whatever [`Options`] finds wrong.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        // What nearly every segment of an established connection has (RFC 7323 appendix A).
        if let &[KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10, ref clocks @ ..] = bytes
            && let Ok(clocks) = <&[u8; 8]>::try_from(clocks)
        {
            let timestamps = Some(Timestamps { value: be32(clocks, 0), echo: be32(clocks, 4) });
            return Ok(Self { timestamps, ..Self::default() });
        }
        Self::gather(bytes)
    }

    fn gather(bytes: &[u8]) -> Result<Self, Error> {
        let mut summary = Self::default();
        for option in Options::new(bytes) {
            match option? {
                TcpOption::MaxSegmentSize(mss) => summary.mss = Some(mss),
                TcpOption::WindowScale(shift) => summary.window_scale = Some(shift),
                TcpOption::SackPermitted => summary.sack_permitted = true,
                TcpOption::Timestamps(timestamps) => summary.timestamps = Some(timestamps),
                TcpOption::Sack(blocks) => summary.sack = blocks.iter().collect(),
                TcpOption::Unknown { .. } => summary.unknown = true,
            }
        }
        Ok(summary)
    }

    /// SACK blocks, at most four.
    #[must_use]
    pub fn sack_blocks(&self) -> &[SackBlock] {
        self.sack.as_slice()
    }

    /// Removes all options.
    #[inline]
    pub const fn clear(&mut self) {
        let Self { mss, window_scale, sack_permitted, timestamps, unknown, sack } = self;
        (*mss, *window_scale, *timestamps) = (None, None, None);
        (*sack_permitted, *unknown) = (false, false);
        sack.clear();
    }

    /// Sets the SACK blocks to the first [`MAX_SACK_BLOCKS`] of `blocks`.
    pub fn set_sack_blocks(&mut self, blocks: &[SackBlock]) {
        self.sack.clear();
        blocks.iter().for_each(|&block| self.sack.push(block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn syn_options() {
        let bytes = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7];
        let summary = OptionSummary::parse(&bytes).unwrap();
        assert_eq!(summary.mss, Some(1460));
        assert_eq!(summary.window_scale, Some(7));
        assert!(summary.sack_permitted);
        let timestamps = Some(Timestamps { value: 1, echo: 2 });
        assert_eq!(summary.timestamps, timestamps);
        assert!(summary.sack_blocks().is_empty());
    }

    #[test]
    fn sack_and_unknown_kinds() {
        let mut bytes = vec![1, 1, 5, 18];
        bytes.extend((1u32..=4).flat_map(u32::to_be_bytes));
        bytes.extend([254, 4, 0xf9, 0x89, 0, 99]);
        let found: Vec<_> = Options::new(&bytes).map(Result::unwrap).collect();
        let expected = [(1, 2), (3, 4)].map(|(left, right)| SackBlock { left, right });
        let [TcpOption::Sack(blocks), unknown] = found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(blocks.iter().collect::<Vec<_>>(), expected);
        let data = &[0xf9, 0x89][..];
        assert_eq!(unknown, TcpOption::Unknown { kind: 254, data });
        let summary = OptionSummary::parse(&bytes).unwrap();
        assert_eq!(summary.sack_blocks(), expected);
        let mut same = OptionSummary::default();
        same.set_sack_blocks(&[expected[0]; 5]);
        assert_eq!(same.sack_blocks(), [expected[0]; 4]);
        same.set_sack_blocks(&expected);
        same.unknown = true;
        assert_eq!(same, summary);
    }

    #[test]
    fn options_outside_the_known_set_are_reported() {
        let known: [&[u8]; 6] = [
            &[],
            &[0, 19, 18],
            &[1, 1, 1, 1],
            &[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2],
            &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            &[5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1],
        ];
        for list in known {
            assert!(!OptionSummary::parse(list).unwrap().unknown, "{list:?}");
        }
        // TCP-MD5, user timeout, TCP-AO, MPTCP, fast open, AccECN, experiments: before and behind known ones.
        for kind in [19, 28, 29, 30, 34, 172, 174, 253, 254] {
            for list in [[kind, 2, 4, 2], [4, 2, kind, 2], [1, 1, kind, 2]] {
                assert!(OptionSummary::parse(&list).unwrap().unknown, "{list:?}");
            }
        }
        let mut with_timestamps = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        with_timestamps.extend([30, 4, 0, 0]);
        assert!(OptionSummary::parse(&with_timestamps).unwrap().unknown);
    }

    #[test]
    fn malformed_lists() {
        let lists: [&[u8]; 10] = [
            &[2],
            &[2, 0],
            &[2, 1],
            &[2, 3, 0],
            &[3, 4, 0, 0],
            &[4, 3, 0],
            &[5, 2],
            &[5, 9, 0, 0, 0, 0, 0, 0, 0],
            &[8, 10, 0, 0],
            &[1, 1, 254, 5, 0],
        ];
        for list in lists {
            let mut options = Options::new(list);
            assert!(options.next().unwrap().is_err(), "{list:?}");
            assert!(options.next().is_none(), "the walk ends after an error");
            assert!(OptionSummary::parse(list).is_err(), "{list:?}");
        }
    }

    proptest! {
        #[test]
        fn the_short_way_agrees_with_the_walk(value: u32, echo: u32) {
            let mut bytes = vec![1, 1, 8, 10];
            bytes.extend(value.to_be_bytes());
            bytes.extend(echo.to_be_bytes());
            prop_assert_eq!(OptionSummary::parse(&bytes), OptionSummary::gather(&bytes));
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..=64)) {
            prop_assert!(Options::new(&bytes).count() <= 20);
        }
    }
}
