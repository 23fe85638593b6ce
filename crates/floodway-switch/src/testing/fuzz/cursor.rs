//! An input, read from the front.

/// What is left of an input.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl Cursor<'_> {
    /// The next byte; `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next bytes; `None` if there are fewer.
    pub fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next 16 bits, low byte first.
    pub fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }
}
