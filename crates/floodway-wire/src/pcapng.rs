//! Capture files: blocks of pcapng, which Wireshark and tcpdump read.
//!
//! # Theory of operation
//! A file is a sequence of blocks, each with its type, its length at both ends, and options. Functions here append one block to a buffer
//! and know nothing of files; blocks can be sent through a pipe one after the other. Numbers are in little-endian order and times in nanoseconds
//! since 1970, whichever host this is.
//!
//! **Invariant**: whatever the fields are, a block is well-formed: lengths agree, everything is padded to 32 bits, and texts end
//! within the length of an option.
//!
//! Source: draft-ietf-opsawg-pcapng.

/// The link type of Ethernet (`LINKTYPE_ETHERNET`).
const ETHERNET: u16 = 1;
/// Longest text of an option, well below the 65 535 bytes that it could have.
const MAX_TEXT: usize = 4096;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

const COMMENT: u16 = 1;

/// Which way a packet went, as seen by who captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It was received.
    Inbound,
    /// It was sent.
    Outbound,
}

/// An interface that packets are captured on. Interfaces are numbered in the order of their blocks, from zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interface<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is.
    pub description: &'a str,
    /// Most bytes of a packet that are captured.
    pub snap_len: u32,
    /// The filter expression, if there is one.
    pub filter: &'a str,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Number of its interface.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes that it had.
    pub original_len: u32,
    /// Those that were captured.
    pub bytes: &'a [u8],
    /// Which way it went.
    pub direction: Direction,
    /// What is known of it; nothing if empty.
    pub comment: &'a str,
}

/// What was seen on an interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics<'a> {
    /// Number of the interface.
    pub interface: u32,
    /// Beginning of the capture, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// Packets that were seen.
    pub received: u64,
    /// Of these, lost because nobody took them in time.
    pub dropped: u64,
    /// Accepted by the filter.
    pub accepted: u64,
    /// In the file.
    pub delivered: u64,
    /// Why it ended; nothing if empty.
    pub comment: &'a str,
}

/// Appends the block that begins a file, whose packets are captured by `application`.
pub fn section_header(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION_HEADER, |out| {
        put_u32(out, BYTE_ORDER_MAGIC);
        // Version 1.0, and a length that is not known.
        put_u32(out, 1);
        out.extend(u64::MAX.to_le_bytes());
        text(out, 3, std::env::consts::OS);
        text(out, 4, application);
    });
}

/// Appends an interface.
pub fn interface(out: &mut Vec<u8>, interface: &Interface<'_>) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        put_u32(out, ETHERNET.into());
        put_u32(out, interface.snap_len);
        text(out, 2, interface.name);
        text(out, 3, interface.description);
        // Times are in units of 10^-9 s.
        option(out, 9, &[&[9]]);
        if !interface.filter.is_empty() {
            // Kind 0: an expression of libpcap.
            option(out, 11, &[&[0], truncate(interface.filter).as_bytes()]);
        }
    });
}

/// Appends a packet.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    block(out, ENHANCED_PACKET, |out| {
        put_u32(out, packet.interface);
        put_time(out, packet.time_ns);
        put_u32(out, packet.bytes.len() as u32);
        put_u32(out, packet.original_len);
        out.extend_from_slice(packet.bytes);
        pad(out, packet.bytes.len());
        text(out, COMMENT, packet.comment);
        let direction: u32 = match packet.direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        option(out, 2, &[&direction.to_le_bytes()]);
    });
}

/// Appends what was seen on an interface.
pub fn statistics(out: &mut Vec<u8>, statistics: &Statistics<'_>) {
    block(out, INTERFACE_STATISTICS, |out| {
        put_u32(out, statistics.interface);
        put_time(out, statistics.end_ns);
        text(out, COMMENT, statistics.comment);
        for (code, time) in [(2, statistics.start_ns), (3, statistics.end_ns)] {
            let (high, low) = halves(time);
            option(out, code, &[&high.to_le_bytes(), &low.to_le_bytes()]);
        }
        let Statistics { received, dropped, accepted, delivered, .. } = *statistics;
        for (code, count) in [(4, received), (5, dropped), (6, accepted), (8, delivered)] {
            option(out, code, &[&count.to_le_bytes()]);
        }
    });
}

/// Appends a block of type `kind` around what `body` appends: fields, then options, whose end this adds.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put_u32(out, kind);
    put_u32(out, 0);
    body(out);
    // opt_endofopt
    put_u32(out, 0);
    let len = (out.len() - start + 4) as u32;
    put_u32(out, len);
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend(code.to_le_bytes());
    out.extend((len as u16).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    pad(out, len);
}

fn text(out: &mut Vec<u8>, code: u16, text: &str) {
    if !text.is_empty() {
        option(out, code, &[truncate(text).as_bytes()]);
    }
}

/// The start of a text, up to [`MAX_TEXT`] bytes.
fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

/// Appends zeros behind `len` bytes.
fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + len.next_multiple_of(4) - len, 0);
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

fn put_time(out: &mut Vec<u8>, time: u64) {
    let (high, low) = halves(time);
    put_u32(out, high);
    put_u32(out, low);
}

const fn halves(time: u64) -> (u32, u32) {
    ((time >> 32) as u32, time as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// The blocks of a file: types and bodies, with lengths and padding checked.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let len = u32_at(bytes, 4) as usize;
            assert!(len.is_multiple_of(4) && len >= 16);
            assert_eq!(u32_at(bytes, len - 4) as usize, len);
            blocks.push((u32_at(bytes, 0), &bytes[8..len - 4]));
            bytes = &bytes[len..];
        }
        blocks
    }

    /// The options that a body has from `at` on.
    fn options(body: &[u8], mut at: usize) -> Vec<(u16, &[u8])> {
        let mut options = Vec::new();
        loop {
            let word = u32_at(body, at);
            let (code, len) = (word as u16, (word >> 16) as usize);
            if code == 0 {
                assert_eq!((len, at + 4), (0, body.len()), "the end is the end");
                return options;
            }
            options.push((code, &body[at + 4..at + 4 + len]));
            at += 4 + len.next_multiple_of(4);
        }
    }

    #[test]
    fn a_file_starts_with_a_section_and_an_interface() {
        let mut file = Vec::new();
        section_header(&mut file, "floodway 1");
        let vm1 = Interface { name: "vm1", description: "port", snap_len: 96, filter: "arp" };
        interface(&mut file, &vm1);
        let blocks = blocks(&file);
        assert_eq!(blocks[0].0, 0x0a0d_0d0a);
        assert_eq!(blocks[0].1[..8], [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]);
        assert_eq!(options(blocks[0].1, 16), [(3, &b"linux"[..]), (4, b"floodway 1")]);
        assert_eq!((blocks[1].0, &blocks[1].1[..8]), (1, &[1, 0, 0, 0, 96, 0, 0, 0][..]));
        let expected = [(2, &b"vm1"[..]), (3, b"port"), (9, &[9]), (11, b"\0arp")];
        assert_eq!(options(blocks[1].1, 8), expected);
    }

    #[test]
    fn statistics_have_their_counts() {
        let mut file = Vec::new();
        let counts = Statistics {
            start_ns: 1 << 32 | 5,
            end_ns: 2 << 32,
            received: 10,
            dropped: 3,
            accepted: 7,
            delivered: 6,
            ..Statistics::default()
        };
        statistics(&mut file, &counts);
        let blocks = blocks(&file);
        assert_eq!((blocks[0].0, u32_at(blocks[0].1, 4), u32_at(blocks[0].1, 8)), (5, 2, 0));
        let options = options(blocks[0].1, 12);
        let codes: Vec<_> = options.iter().map(|option| (option.0, option.1[0])).collect();
        assert_eq!(codes, [(2, 1), (3, 2), (4, 10), (5, 3), (6, 7), (8, 6)]);
    }

    proptest! {
        #[test]
        fn a_packet_comes_back_as_it_was(
            interface in any::<u32>(),
            time_ns in any::<u64>(),
            more in 0..9999_u32,
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            outbound in any::<bool>(),
            comment in ".{0,5000}",
        ) {
            let direction = if outbound { Direction::Outbound } else { Direction::Inbound };
            let original_len = bytes.len() as u32 + more;
            let mut file = vec![];
            packet(&mut file, &Packet {
                interface, time_ns, original_len, bytes: &bytes, direction, comment: &comment,
            });
            let blocks = blocks(&file);
            prop_assert_eq!((blocks.len(), blocks[0].0), (1, 6));
            let body = blocks[0].1;
            prop_assert_eq!(u32_at(body, 0), interface);
            prop_assert_eq!(u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8)), time_ns);
            prop_assert_eq!((u32_at(body, 12) as usize, u32_at(body, 16)), (bytes.len(), original_len));
            prop_assert_eq!(&body[20..20 + bytes.len()], &bytes[..]);
            let mut options = options(body, 20 + bytes.len().next_multiple_of(4));
            let flags = options.pop().unwrap();
            prop_assert_eq!(flags, (2, &[1 + u8::from(outbound), 0, 0, 0][..]));
            let said = options.pop().map_or("", |(_, text)| std::str::from_utf8(text).unwrap());
            prop_assert!(comment.starts_with(said));
            prop_assert!(said == comment || said.len() > MAX_TEXT - 4);
        }
    }
}
