//! Captures: what the guest and what the network saw, for Wireshark.
//!
//! A test that fails leaves two files in cargo's directory for temporary files of tests
//! (`target/tmp`): `offload-NAME-guest.pcap` and `offload-NAME-wire.pcap`. With `FLOODWAY_PCAP=DIR`
//! in the environment every test leaves its files in `DIR`; with `FLOODWAY_TRACE` set it prints them as
//! text as well.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use floodway_core::time::Instant;
use floodway_wire::MacAddr;
use floodway_wire::build::{Link, Tcp};
use floodway_wire::tcp::options;

use super::packet::Packet;

/// Packets that a capture keeps.
const MOST: usize = 100_000;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Capture {
    packets: Vec<(Instant, bool, Packet)>,
}

impl Capture {
    pub fn note(&mut self, now: Instant, from_guest: bool, packet: &Packet) {
        if self.packets.len() < MOST {
            self.packets.push((now, from_guest, packet.clone()));
        }
    }

    pub fn any(&self, what: impl Fn(bool, &Packet) -> bool) -> bool {
        self.packets.iter().any(|(_, from_guest, packet)| what(*from_guest, packet))
    }

    pub fn count(&self, what: impl Fn(bool, &Packet) -> bool) -> u64 {
        let found = self.packets.iter().filter(|(_, from_guest, packet)| what(*from_guest, packet));
        found.count() as u64
    }

    /// The latest packet of the guest, or of the other side.
    pub fn latest(&self, of_guest: bool) -> Option<&Packet> {
        let mut latest = self.packets.iter().rev();
        latest.find(|(_, from_guest, _)| *from_guest == of_guest).map(|(.., packet)| packet)
    }

    /// Packets of the guest that begin before the end of another that was seen already.
    pub fn repeats(&self) -> usize {
        let (mut nxt, mut repeats) = (None, 0);
        for (_, from_guest, packet) in &self.packets {
            if *from_guest && packet.segment.seq_len() > 0 {
                let end = packet.segment.end();
                repeats += usize::from(nxt.is_some_and(|nxt| packet.segment.seq.before(nxt)));
                nxt = Some(nxt.map_or(end, |nxt| end.max(nxt)));
            }
        }
        repeats
    }

    /// The capture as text.
    fn print(&self, side: &str) {
        for (at, from_guest, packet) in &self.packets {
            let segment = &packet.segment;
            eprintln!(
                "{side} {:>12.6} {} {:?} seq {} +{} ack {} win {} ecn {} {:?} {:?}",
                at.as_nanos() as f64 / 1e9,
                if *from_guest { ">" } else { "<" },
                segment.flags,
                segment.seq.0,
                segment.len,
                segment.ack.0,
                segment.window,
                segment.ecn.0,
                segment.options.timestamps.map(|t| (t.value, t.echo)),
                segment.options.sack_blocks(),
            );
        }
    }

    fn write(&self, path: &PathBuf) -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        // Nanosecond pcap, version 2.4, Ethernet.
        for word in [0xa1b2_3c4d_u32, 4 << 16 | 2, 0, 0, 0x4_0000, 1] {
            file.write_all(&word.to_le_bytes())?;
        }
        for (at, from_guest, packet) in &self.packets {
            let frame = frame(*from_guest, packet);
            let (ns, len) = (at.as_nanos(), frame.len() as u32);
            let (s, ns) = ((ns / 1_000_000_000) as u32, (ns % 1_000_000_000) as u32);
            for word in [s, ns, len, len] {
                file.write_all(&word.to_le_bytes())?;
            }
            file.write_all(&frame)?;
        }
        file.flush()
    }
}

/// Writes both captures of a test, if there is a reason to.
pub fn leave(name: &str, guest: &Capture, wire: &Capture) {
    if std::env::var_os("FLOODWAY_TRACE").is_some() {
        guest.print("guest");
        wire.print("wire");
    }
    let asked = std::env::var_os("FLOODWAY_PCAP").map(PathBuf::from);
    let failed = std::thread::panicking().then(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
    let Some(dir) = asked.or(failed) else { return };
    for (side, capture) in [("guest", guest), ("wire", wire)] {
        let path = dir.join(format!("offload-{name}-{side}.pcap"));
        match capture.write(&path) {
            Ok(()) => eprintln!("capture: {}", path.display()),
            Err(error) => eprintln!("no capture in {}: {error}", path.display()),
        }
    }
}

fn frame(from_guest: bool, packet: &Packet) -> Vec<u8> {
    let guest = (MacAddr([2, 0, 0, 0, 0, 1]), socket([10, 0, 0, 1], 40_000));
    let peer = (MacAddr([2, 0, 0, 0, 0, 2]), socket([10, 0, 0, 2], 80));
    let (src, dst) = if from_guest { (guest, peer) } else { (peer, guest) };
    let mut tcp = Tcp::new(Link::new(src.0, dst.0), src.1, dst.1);
    let segment = &packet.segment;
    tcp.sequence = segment.seq.0;
    tcp.acknowledgment = segment.ack.0;
    tcp.flags = segment.flags;
    tcp.window = segment.window;
    tcp.ip.traffic_class = segment.ecn.0;
    tcp.options = option_bytes(packet);
    let payload = packet.payload();
    tcp.build(&payload[..payload.len().min(65_000)])
}

fn socket(ip: [u8; 4], port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from(ip), port)
}

fn option_bytes(packet: &Packet) -> Vec<u8> {
    let mut bytes = Vec::new();
    let summary = &packet.segment.options;
    if let Some(mss) = summary.mss {
        bytes.extend([options::KIND_MSS, 4]);
        bytes.extend(mss.to_be_bytes());
    }
    if let Some(scale) = summary.window_scale {
        bytes.extend([options::KIND_WINDOW_SCALE, 3, scale]);
    }
    if summary.sack_permitted {
        bytes.extend([options::KIND_SACK_PERMITTED, 2]);
    }
    if let Some(timestamps) = summary.timestamps {
        bytes.extend([options::KIND_TIMESTAMPS, 10]);
        bytes.extend(timestamps.value.to_be_bytes());
        bytes.extend(timestamps.echo.to_be_bytes());
    }
    let blocks = summary.sack_blocks();
    if !blocks.is_empty() {
        bytes.extend([options::KIND_SACK, 2 + 8 * blocks.len() as u8]);
        for block in blocks {
            bytes.extend(block.left.to_be_bytes());
            bytes.extend(block.right.to_be_bytes());
        }
    }
    bytes.resize(bytes.len().next_multiple_of(4), options::KIND_NOP);
    bytes
}
