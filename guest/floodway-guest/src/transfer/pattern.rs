//! The bytes of a transfer and of its reply.

use std::io::IoSlice;

use crate::stream::Bytes;

/// Bytes that describe a transfer, at its start.
pub const HEADER: usize = 40;
/// First word of every transfer.
const MAGIC: u64 = 0x666c_6f6f_6477_6179;
/// Length of the repeated block: the first prime above 2^20.
const BLOCK: usize = 1_048_583;
/// How far apart the blocks of successive transfers start.
const STRIDE: u64 = 7919;

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the transfer.
    pub id: u64,
    /// Its length, this header included.
    pub bytes: u64,
    /// Length of the reply.
    pub reply_bytes: u64,
    /// Seed of the block.
    pub seed: u64,
}

impl Header {
    /// As it is on the wire.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let words = [MAGIC, self.id, self.bytes, self.reply_bytes, self.seed];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Reads a header; `None` when it is none.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| word.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)));
        let mut next = || words.next();
        let (magic, id, bytes, reply_bytes, seed) = (next()?, next()?, next()?, next()?, next()?);
        let plausible = magic == MAGIC && bytes >= HEADER as u64 && reply_bytes >= 1;
        plausible.then_some(Self { id, bytes, reply_bytes, seed })
    }
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From source to sink, after the header.
    There,
    /// The reply.
    Back,
}

/// The repeated block of one seed.
#[derive(Debug)]
pub struct Block {
    seed: u64,
    bytes: Vec<u8>,
}

impl Block {
    /// The block of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut bytes = vec![0; BLOCK];
        Bytes::new(seed).fill(&mut bytes);
        Self { seed, bytes }
    }

    /// Its seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What stands at `offset` of transfer `id`: up to `len` bytes, in one piece or two.
    pub fn at(&self, id: u64, way: Way, offset: u64, len: u64) -> [&[u8]; 2] {
        let shift = match way {
            Way::There => 0,
            Way::Back => BLOCK as u64 / 2,
        };
        let start = id.wrapping_mul(STRIDE).wrapping_add(shift).wrapping_add(offset);
        let start = (start % BLOCK as u64) as usize;
        let len = len.min(BLOCK as u64) as usize;
        let first = len.min(BLOCK - start);
        [&self.bytes[start..start + first], &self.bytes[..len - first]]
    }

    /// The same, for a vectored write.
    pub fn slices(&self, id: u64, way: Way, offset: u64, len: u64) -> [IoSlice<'_>; 2] {
        self.at(id, way, offset, len).map(IoSlice::new)
    }

    /// Whether `bytes` is what stands at `offset` of transfer `id`.
    pub fn holds(&self, id: u64, way: Way, offset: u64, bytes: &[u8]) -> bool {
        let mut offset = offset;
        bytes.chunks(BLOCK).all(|chunk| {
            let [first, second] = self.at(id, way, offset, chunk.len() as u64);
            offset += chunk.len() as u64;
            let (start, rest) = chunk.split_at(first.len());
            start == first && rest == second
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire_and_nothing_else_is_one() {
        let header = Header { id: 7, bytes: 100_000, reply_bytes: 1, seed: u64::MAX };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        let mut wrong = header.encode();
        wrong[0] ^= 1;
        assert_eq!(Header::decode(&wrong), None);
        assert_eq!(Header::decode(&Header { bytes: 39, ..header }.encode()), None);
    }

    #[test]
    fn every_wrong_place_shows() {
        let block = Block::new(1);
        let piece = |id, way, offset| block.at(id, way, offset, 4000).concat();
        let right = piece(3, Way::There, 1448);
        assert!(block.holds(3, Way::There, 1448, &right));
        for wrong in [
            piece(4, Way::There, 1448),
            piece(3, Way::Back, 1448),
            piece(3, Way::There, 2896),
            piece(3, Way::There, 1448 + (1 << 20)),
            Block::new(2).at(3, Way::There, 1448, 4000).concat(),
        ] {
            assert!(!block.holds(3, Way::There, 1448, &wrong));
        }
    }

    #[test]
    fn a_piece_wraps_at_the_end_of_the_block() {
        let block = Block::new(1);
        let end = BLOCK as u64 - 10;
        let [first, second] = block.at(0, Way::There, end, 25);
        assert_eq!((first.len(), second.len()), (10, 15));
        assert_eq!(second, &block.bytes[..15]);
        let long = block.at(0, Way::There, end, u64::MAX).concat();
        assert_eq!(long.len(), BLOCK);
        assert!(block.holds(0, Way::There, end, &long));
    }
}
