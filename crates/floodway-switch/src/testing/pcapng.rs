//! Capture files, read back.

use std::collections::BTreeMap;

use floodway_wire::pcapng::Direction;

/// A packet of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes that it had.
    pub original_len: u32,
    /// Those that were captured.
    pub bytes: Vec<u8>,
    /// Which way it went.
    pub direction: Direction,
    /// What is said of it.
    pub comment: String,
}

/// A file with one interface.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// Name of the interface.
    pub interface: String,
    /// Its packets.
    pub packets: Vec<Packet>,
    /// Counts by the code of their option, if the file is complete.
    pub statistics: BTreeMap<u16, u64>,
    /// Why it is complete.
    pub end: String,
}

impl File {
    /// Reads a file. What is behind the last whole block is left out.
    ///
    /// # Panics
    /// A block is wrong.
    #[must_use]
    pub fn read(mut bytes: &[u8]) -> Self {
        let mut file = Self::default();
        while bytes.len() >= 12 {
            let len = u32_at(bytes, 4) as usize;
            if len > bytes.len() {
                break;
            }
            assert_eq!(u32_at(bytes, len - 4) as usize, len, "both lengths of a block");
            let (kind, body) = (u32_at(bytes, 0), &bytes[8..len - 4]);
            match kind {
                0x0a0d_0d0a => assert_eq!(u32_at(body, 0), 0x1a2b_3c4d),
                1 => file.interface = text(&options(body, 8), 2),
                5 => file.read_statistics(body),
                6 => file.packets.push(packet(body)),
                other => panic!("a block of type {other}"),
            }
            bytes = &bytes[len..];
        }
        file
    }

    fn read_statistics(&mut self, body: &[u8]) {
        let options = options(body, 12);
        self.end = text(&options, 1);
        for (code, value) in options {
            if let (4.., Ok(value)) = (code, value.try_into()) {
                self.statistics.insert(code, u64::from_le_bytes(value));
            }
        }
    }

    /// Packets that were seen.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.statistics[&4]
    }

    /// Packets that were lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.statistics[&5]
    }

    /// Comments of all packets.
    #[must_use]
    pub fn comments(&self) -> Vec<&str> {
        self.packets.iter().map(|packet| packet.comment.as_str()).collect()
    }
}

fn packet(body: &[u8]) -> Packet {
    let captured = u32_at(body, 12) as usize;
    let options = options(body, 20 + captured.next_multiple_of(4));
    let flags = options.iter().find(|(code, _)| *code == 2).expect("flags").1[0];
    Packet {
        time_ns: u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8)),
        original_len: u32_at(body, 16),
        bytes: body[20..20 + captured].to_vec(),
        direction: if flags == 1 { Direction::Inbound } else { Direction::Outbound },
        comment: text(&options, 1),
    }
}

fn options(body: &[u8], mut at: usize) -> Vec<(u16, &[u8])> {
    let mut options = Vec::new();
    loop {
        let word = u32_at(body, at);
        let (code, len) = (word as u16, (word >> 16) as usize);
        if code == 0 {
            return options;
        }
        options.push((code, &body[at + 4..at + 4 + len]));
        at += 4 + len.next_multiple_of(4);
    }
}

fn text(options: &[(u16, &[u8])], code: u16) -> String {
    let found = options.iter().find(|option| option.0 == code);
    found.map(|(_, text)| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
