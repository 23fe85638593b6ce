//! TCP segments out of a capture file of tcpdump.
//!
//! Files in the classic format (draft-ietf-opsawg-pcap) with microseconds or nanoseconds, in this machine's byte order, of
//! Ethernet frames. What is not TCP over IPv4, or was cut short inside its headers, is left out.

use std::net::Ipv4Addr;

use anyhow::{Result, bail, ensure};
use floodway_wire::ipv4;
use floodway_wire::tcp::options::{OptionSummary, SackBlock};
use floodway_wire::tcp::{Flags, Header};

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const ETHERNET_LINK: u32 = 1;
const ETHERNET_HEADER: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [8, 0];
const PROTOCOL_TCP: u8 = 6;

/// A segment; one of a GSO packet is as long as that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// By the clock of the capturing machine, since 1970.
    pub at_ns: i64,
    pub source: (Ipv4Addr, u16),
    pub destination: (Ipv4Addr, u16),
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: Flags,
    /// As on the wire, not scaled.
    pub window: u16,
    pub window_scale: Option<u8>,
    /// Largest segment that the sender of a SYN takes, without options.
    pub mss: Option<u16>,
    /// The sender's clock, in ms on Linux.
    pub clock: Option<u32>,
    pub sack: Vec<SackBlock>,
    /// Bytes of payload.
    pub len: u32,
}

/// All TCP segments of a file, in its order.
///
/// # Errors
/// When it is no such file, or ends inside a record.
pub fn segments(file: &[u8]) -> Result<Vec<Segment>> {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(file.get(at..at + 4)?.try_into().ok()?))
    };
    let nanoseconds = match word(0) {
        Some(MAGIC_MICROSECONDS) => 1000,
        Some(MAGIC_NANOSECONDS) => 1,
        other => bail!("no capture file: it starts with {other:x?}"),
    };
    ensure!(word(20) == Some(ETHERNET_LINK), "link type {:?}: must be Ethernet", word(20));
    let mut segments = Vec::new();
    let mut at = FILE_HEADER;
    while let (Some(seconds), Some(fraction), Some(len)) = (word(at), word(at + 4), word(at + 8)) {
        let start = at + RECORD_HEADER;
        at = start + len as usize;
        let Some(frame) = file.get(start..at) else { bail!("the file ends inside a record") };
        let at_ns = i64::from(seconds) * 1_000_000_000 + i64::from(fraction) * nanoseconds;
        segments.extend(segment(at_ns, frame));
    }
    ensure!(at == file.len(), "the file ends inside a record");
    Ok(segments)
}

fn segment(at_ns: i64, frame: &[u8]) -> Option<Segment> {
    if frame.get(12..ETHERNET_HEADER)? != ETHERTYPE_IPV4 {
        return None;
    }
    let packet = &frame[ETHERNET_HEADER..];
    let ip = ipv4::Header::parse(packet).ok()?;
    if ip.protocol() != PROTOCOL_TCP {
        return None;
    }
    let tcp = Header::parse(packet.get(usize::from(ip.header_len())..)?).ok()?;
    let options = OptionSummary::parse(tcp.option_bytes()).ok()?;
    let headers = ip.header_len() + u16::from(tcp.header_len());
    Some(Segment {
        at_ns,
        source: (ip.src(), tcp.src_port()),
        destination: (ip.dst(), tcp.dst_port()),
        sequence: tcp.sequence(),
        acknowledgment: tcp.acknowledgment(),
        flags: tcp.flags(),
        window: tcp.window(),
        window_scale: options.window_scale,
        mss: options.mss,
        clock: options.timestamps.map(|timestamps| timestamps.value),
        sack: options.sack_blocks().to_vec(),
        len: ip.total_len().checked_sub(headers)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(magic: u32, records: &[&[u8]]) -> Vec<u8> {
        let mut file = magic.to_ne_bytes().to_vec();
        file.extend([0; 16]);
        file.extend(ETHERNET_LINK.to_ne_bytes());
        for record in records {
            let len = u32::try_from(record.len()).unwrap();
            for word in [7, 5, len, 9000] {
                file.extend(word.to_ne_bytes());
            }
            file.extend(*record);
        }
        file
    }

    /// 1000 bytes of payload, of which the capture has none.
    fn frame() -> Vec<u8> {
        let mut frame = [&[0; 12][..], &ETHERTYPE_IPV4].concat();
        let len = 20_u16 + 32 + 1000;
        frame.extend([0x45, 0, len.to_be_bytes()[0], len.to_be_bytes()[1], 0, 0, 0x40, 0]);
        frame.extend([64, PROTOCOL_TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x12, 0x34, 0, 80, 0, 0, 0, 9, 0, 0, 0, 8, 0x80, 0x10, 1, 2, 0, 0, 0, 0]);
        // Two no-operations and a SACK block.
        frame.extend([1, 1, 5, 10, 0, 0, 0, 20, 0, 0, 0, 30]);
        frame
    }

    #[test]
    fn a_segment_is_read_whatever_was_cut_off_its_payload() {
        let expected = Segment {
            at_ns: 7_000_005_000,
            source: (Ipv4Addr::new(10, 0, 0, 1), 0x1234),
            destination: (Ipv4Addr::new(10, 0, 0, 2), 80),
            sequence: 9,
            acknowledgment: 8,
            flags: Flags::ACK,
            window: 258,
            window_scale: None,
            mss: None,
            clock: None,
            sack: vec![SackBlock { left: 20, right: 30 }],
            len: 1000,
        };
        let read = segments(&file(MAGIC_MICROSECONDS, &[&frame()])).unwrap();
        assert_eq!(read, std::slice::from_ref(&expected));
        let read = segments(&file(MAGIC_NANOSECONDS, &[&frame()])).unwrap();
        assert_eq!(read, [Segment { at_ns: 7_000_000_005, ..expected }]);
    }

    #[test]
    fn other_frames_are_left_out() {
        let (mut udp, mut arp) = (frame(), frame());
        udp[23] = 17;
        arp[13] = 6;
        let short = &frame()[..40];
        let records = [&udp[..], &arp, short, &[]];
        assert_eq!(segments(&file(MAGIC_MICROSECONDS, &records)).unwrap(), []);
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        assert!(segments(b"GET / HTTP/1.1\r\n").is_err());
        assert!(segments(&[]).is_err());
        let whole = file(MAGIC_MICROSECONDS, &[&frame()]);
        for len in [whole.len() - 1, FILE_HEADER + 10] {
            let error = segments(&whole[..len]).unwrap_err().to_string();
            assert!(error.contains("inside a record"), "{error}");
        }
    }
}
