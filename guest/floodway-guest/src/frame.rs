//! Frames: JSON messages with an optional binary payload on a byte stream.
//!
//! # Theory of operation
//!
//! The stream is a virtio-serial port. It has no connections: when the host's side of it closes in the
//! middle of a frame and opens again, the guest may go on with the rest of the old frame, or read the
//! start of a new frame as the rest of an old one. So a frame must be found again in a stream
//! that starts anywhere:
//!
//! ```text
//! | magic 4 | message length 4 | payload length 4 | CRC-32 4 | message (JSON) | payload |
//! ```
//!
//! Integers are big-endian; the CRC covers the lengths, the message, and the payload. The decoder skips to the next
//! magic whose lengths are in range, waits for the whole frame, and checks the CRC; when it is
//! wrong, it looks for the next magic one byte further on. Garbage therefore costs the frames that
//! it overlaps and no other, provided that enough bytes follow it: whoever reconnects sends
//! [`RESYNC_BYTES`] zero bytes first, which completes any frame that the peer may still be waiting for.

/// First bytes of each frame.
const MAGIC: [u8; 4] = *b"FWga";
const HEADER: usize = 16;
/// Longest message, in bytes.
pub const MAX_MESSAGE: usize = 256 * 1024;
/// Longest payload, in bytes.
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// Number of zero bytes that end any frame that a decoder may be in the middle of.
pub const RESYNC_BYTES: usize = HEADER + MAX_MESSAGE + MAX_PAYLOAD;

/// A message that does not fit into a frame.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "frame too large: message {message} of {MAX_MESSAGE} bytes, payload {payload} of {MAX_PAYLOAD} bytes; send it in pieces"
)]
pub struct TooLarge {
    message: usize,
    payload: usize,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// A JSON text. The decoder does not check that it is one.
    pub message: Vec<u8>,
    /// Bytes that go with it.
    pub payload: Vec<u8>,
}

/// Encodes one frame.
///
/// # Errors
/// When the message or the payload is longer than a frame may be.
pub fn encode(message: &[u8], payload: &[u8]) -> Result<Vec<u8>, TooLarge> {
    let too_large = TooLarge { message: message.len(), payload: payload.len() };
    if message.len() > MAX_MESSAGE || payload.len() > MAX_PAYLOAD {
        return Err(too_large);
    }
    let (Ok(message_len), Ok(payload_len)) =
        (u32::try_from(message.len()), u32::try_from(payload.len()))
    else {
        return Err(too_large);
    };
    let mut frame = Vec::with_capacity(HEADER + message.len() + payload.len());
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&message_len.to_be_bytes());
    frame.extend_from_slice(&payload_len.to_be_bytes());
    frame.extend_from_slice(&checksum(&frame[4..12], message, payload).to_be_bytes());
    frame.extend_from_slice(message);
    frame.extend_from_slice(payload);
    Ok(frame)
}

fn checksum(lengths: &[u8], message: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(lengths);
    crc.update(message);
    crc.update(payload);
    crc.finalize()
}

/// Finds the frames in a byte stream. Holds at most one frame and what the last `push` added.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are done with.
    start: usize,
    skipped: u64,
}

impl Decoder {
    /// Adds bytes as they come from the stream, in pieces of any size.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next whole frame, `None` when more bytes are needed. Call until `None` after each `push`.
    pub fn next_frame(&mut self) -> Option<Frame> {
        loop {
            self.skip_to_magic();
            let rest = &self.buffer[self.start..];
            let header = rest.get(..HEADER)?;
            let (message_len, payload_len) = (number(header, 4), number(header, 8));
            if message_len > MAX_MESSAGE || payload_len > MAX_PAYLOAD {
                self.skip(1);
                continue;
            }
            let body = rest.get(HEADER..HEADER + message_len + payload_len)?;
            let (message, payload) = body.split_at(message_len);
            if checksum(&header[4..12], message, payload) as usize != number(header, 12) {
                self.skip(1);
                continue;
            }
            let frame = Frame { message: message.to_vec(), payload: payload.to_vec() };
            self.start += HEADER + body.len();
            return Some(frame);
        }
    }

    /// Forgets a half-read frame: the stream starts anew.
    pub fn reset(&mut self) {
        self.buffer.clear();
        self.start = 0;
    }

    /// Bytes skipped so far because they belong to no frame.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn skip(&mut self, bytes: usize) {
        self.start += bytes;
        self.skipped += bytes as u64;
    }

    /// Skips to the next magic, or to what may be the start of one at the end of the buffer.
    fn skip_to_magic(&mut self) {
        let rest = &self.buffer[self.start..];
        let found = rest.windows(MAGIC.len()).position(|window| window == MAGIC);
        let skip = found.unwrap_or_else(|| {
            let partial = (1..MAGIC.len()).rev().find(|&len| rest.ends_with(&MAGIC[..len]));
            rest.len() - partial.unwrap_or(0)
        });
        self.skip(skip);
    }
}

fn number(header: &[u8], at: usize) -> usize {
    header[at..at + 4].iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(decoder: &mut Decoder) -> Vec<Frame> {
        std::iter::from_fn(|| decoder.next_frame()).collect()
    }

    fn frame(message: &[u8], payload: &[u8]) -> Frame {
        Frame { message: message.to_vec(), payload: payload.to_vec() }
    }

    #[test]
    fn the_longest_frame_passes_and_a_longer_one_is_refused() {
        let (message, payload) = (vec![b'm'; MAX_MESSAGE], vec![b'p'; MAX_PAYLOAD]);
        let mut decoder = Decoder::default();
        decoder.push(&encode(&message, &payload).unwrap());
        assert_eq!(frames(&mut decoder), [frame(&message, &payload)]);
        assert!(encode(&message, &vec![0; MAX_PAYLOAD + 1]).is_err());
        assert!(encode(&vec![0; MAX_MESSAGE + 1], &payload).is_err());
    }

    #[test]
    fn a_flipped_bit_loses_that_frame_only() {
        let good = encode(b"good", b"").unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = encode(b"bad!", b"").unwrap();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut decoder = Decoder::default();
            decoder.push(&bad);
            decoder.push(&good);
            // A length that grew waits for more bytes: the zeros of a reconnect bring them.
            decoder.push(&vec![0; RESYNC_BYTES]);
            assert_eq!(frames(&mut decoder), [frame(b"good", b"")], "bit {bit}");
        }
    }

    #[test]
    fn zeros_end_a_half_sent_frame() {
        let half = encode(b"half", &[7; 1000]).unwrap();
        let mut decoder = Decoder::default();
        decoder.push(&half[..half.len() / 2]);
        decoder.push(&vec![0; RESYNC_BYTES]);
        decoder.push(&encode(b"new", b"x").unwrap());
        assert_eq!(frames(&mut decoder), [frame(b"new", b"x")]);
        assert!(decoder.skipped() > 0);
    }

    proptest! {
        #[test]
        fn frames_survive_garbage_between_them_and_any_splitting(
            items in prop::collection::vec(
                (any::<Vec<u8>>(), any::<Vec<u8>>(), prop::collection::vec(any::<u8>(), 0..50)),
                0..8,
            ),
            piece in 1_usize..64,
        ) {
            let mut stream = Vec::new();
            let mut expected = Vec::new();
            for (message, payload, mut garbage) in items {
                // Garbage without the magic's first byte cannot look like a header.
                garbage.retain(|byte| *byte != MAGIC[0]);
                stream.extend(garbage);
                stream.extend(encode(&message, &payload).unwrap());
                expected.push(Frame { message, payload });
            }
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for bytes in stream.chunks(piece) {
                decoder.push(bytes);
                found.extend(frames(&mut decoder));
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn no_input_makes_the_decoder_fail_or_hoard(
            pieces in prop::collection::vec(prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select(MAGIC.to_vec()), Just(0)], 0..200), 0..20),
        ) {
            let mut decoder = Decoder::default();
            for piece in pieces {
                decoder.push(&piece);
                while decoder.next_frame().is_some() {}
                prop_assert!(decoder.buffer.len() <= RESYNC_BYTES + piece.len());
            }
        }
    }
}
