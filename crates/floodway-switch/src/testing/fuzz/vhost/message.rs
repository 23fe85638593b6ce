//! Messages, as bytes of an input say: mostly such that are understood.

use std::os::fd::RawFd;

use super::files::{Files, PAGE, PAGES};
use crate::testing::fuzz::cursor::Cursor;
use crate::testing::memory::FRONTEND_BASE;
use crate::testing::message::{self, encode};
use crate::vhost::features;

/// Messages that a byte names, and how many 64-bit words belong to each.
const REQUESTS: [(u32, usize); 24] = [
    (message::GET_FEATURES, 0),
    (message::SET_FEATURES, 1),
    (message::SET_OWNER, 0),
    (message::RESET_OWNER, 0),
    (message::SET_MEM_TABLE, 5),
    (message::SET_MEM_TABLE, 9),
    (message::SET_LOG_BASE, 2),
    (message::SET_VRING_NUM, 1),
    (message::SET_VRING_ADDR, 5),
    (message::SET_VRING_BASE, 1),
    (message::GET_VRING_BASE, 1),
    (message::SET_VRING_KICK, 1),
    (message::SET_VRING_CALL, 1),
    (message::SET_VRING_ERR, 1),
    (message::GET_PROTOCOL_FEATURES, 0),
    (message::SET_PROTOCOL_FEATURES, 1),
    (message::GET_QUEUE_NUM, 0),
    (message::SET_VRING_ENABLE, 1),
    (message::SEND_RARP, 1),
    (message::RESET_DEVICE, 0),
    (message::GET_MAX_MEM_SLOTS, 0),
    (message::ADD_MEM_REG, 5),
    (message::REM_MEM_REG, 5),
    (message::SET_STATUS, 1),
];

/// Bytes, and the descriptors that go with them.
pub struct Message {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<RawFd>,
}

impl Message {
    /// The next message of an input; `None` if that ends.
    ///
    /// A byte names the request, one says what is unusual, each word and each descriptor has one.
    pub fn read(input: &mut Cursor<'_>, files: &Files) -> Option<Self> {
        let (which, unusual) = (input.byte()?, input.byte()?);
        let (mut request, mut words) = REQUESTS[usize::from(which) % REQUESTS.len()];
        if unusual & 1 != 0 {
            request = u32::from(input.byte()?);
        }
        if unusual & 2 != 0 {
            words = usize::from(input.byte()? % 64);
        }
        let version = if unusual & 4 != 0 { u32::from(input.byte()?) } else { message::VERSION };
        let flags = version | if unusual & 8 != 0 { 0 } else { message::NEED_REPLY };
        let descriptors = match unusual >> 4 {
            // The `vhost` crate waits for another header after one with more descriptors than it takes.
            15 => input.byte()? % 33,
            n => n,
        };
        let mut payload = Vec::with_capacity(8 * words);
        for _ in 0..words {
            payload.extend(word(input)?.to_ne_bytes());
        }
        let size = if unusual & 6 == 6 { u32::from(input.u16()?) } else { payload.len() as u32 };
        let descriptors: Option<_> =
            (0..descriptors).map(|_| Some(files.descriptor(input.byte()?))).collect();
        Some(Self { bytes: encode(request, flags, size, &payload), descriptors: descriptors? })
    }

    /// Adds a region of one page, the `n`th of memory, to the table.
    pub fn add_page(n: u64, files: &Files) -> Self {
        let gpa = (1 << 30) + 2 * n * PAGE;
        let words = [0, gpa, PAGE, FRONTEND_BASE + gpa, n % PAGES * PAGE];
        let payload: Vec<_> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        let flags = message::VERSION | message::NEED_REPLY;
        let bytes = encode(message::ADD_MEM_REG, flags, payload.len() as u32, &payload);
        Self { bytes, descriptors: vec![files.descriptor(0)] }
    }
}

/// A number such as messages have.
fn word(input: &mut Cursor<'_>) -> Option<u64> {
    let byte = input.byte()?;
    let low = u64::from(byte & 0x3f);
    Some(match byte {
        0..=0x3f => low,
        0x40..=0x7f => low * PAGE,
        0x80..=0xbf => FRONTEND_BASE + low * PAGE,
        0xc0 => features::offered(2) & !features::LOG_ALL,
        0xc1 => features::offered(2),
        0xc2 => features::protocol().bits(),
        0xc3 => 1 << 30,
        0xc4 => FRONTEND_BASE + (1 << 30),
        // An index and a number.
        0xd0..=0xdf => u64::from(byte & 0xf) | u64::from(input.u16()?) << 32,
        0xe0..=0xef => u64::from(input.u16()?),
        _ => u64::from_le_bytes(input.bytes()?),
    })
}
