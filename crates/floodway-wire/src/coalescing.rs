//! Joins in-order TCP segments of one flow into a GSO packet, as Linux does in GRO.
//!
//! Theory of operation. A [`Coalescer`] is empty or holds a run of segments of one flow, payloads
//! end to end behind the headers of the first. A frame that is offered joins the run if taking
//! the result apart again ([`crate::segmentation`]) would give back the same frames; it is
//! refused otherwise, and the caller finishes the run before it delivers the refused frame.
//!
//! A frame is eligible if
//! - it is a TCP segment with payload, ACK set, and none of SYN, RST, URG;
//! - IPv4 has no options, a right header checksum and no reserved flag; IPv6 has no fragment or
//!   authentication header;
//! - its TCP checksum is right, or partial and therefore trusted.
//!
//! It joins a run if, further,
//! - all headers are equal (also TTL, DSCP and ECN, flow label, acknowledgement number, window and
//!   every option), except for lengths, checksums, sequence number and the IPv4 identification;
//! - its sequence number follows on, and its payload is not longer than that of the first;
//! - its control bits equal those of the run but for PSH, FIN and CWR, and CWR is not set;
//! - the IPv4 identification counts up by one per segment or, with "do not fragment" (when it
//!   means nothing, RFC 6864), stays the same throughout. A fixed identification is the one thing
//!   that segmentation does not restore;
//! - the IP length stays within 65535 bytes, and the buffer holds the result.
//!
//! A run is closed by a segment that is shorter than the first or has PSH or FIN: nothing joins
//! any more. Ethernet padding is cut off.
//!
//! Source: Linux `inet_gro_receive`, `ipv6_gro_receive`, `tcp_gro_receive`.

use crate::bytes::put16;
use crate::checksum::{self, ChecksumState, Verification};
use crate::parse::{Meta, Network, TcpMeta};
use crate::segmentation::MIN_GSO_SIZE;
use crate::tcp::Flags;
use crate::vnet::{self, VnetHdr};
use crate::{ipv4, ipv6};

/// Longest IP packet of either family (without jumbograms).
const MAX_IP_LEN: usize = u16::MAX as usize;

/// What became of an offered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The frame's bytes are in the run, which takes more.
    Taken,
    /// The frame's bytes are in the run, which is closed: finish it.
    TakenLast,
    /// The frame is not in the run. If it belongs to the run's flow, finish the run first, and
    /// then offer the frame again or deliver it as it is.
    Refused,
}

/// How the IPv4 identification moves through a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identification {
    Unknown,
    Fixed,
    Counting,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// Of the first segment.
    first: Meta,
    tcp: TcpMeta,
    identification: Identification,
    state: ChecksumState,
    /// PSH and FIN of the last segment.
    last_flags: Flags,
    segments: u16,
    /// Bytes in the buffer.
    len: usize,
    closed: bool,
}

/// Joins segments in a buffer of the caller's. The longest GSO packet takes 65535 bytes and the
/// Ethernet header with tags; a shorter buffer gives shorter runs.
#[derive(Debug)]
pub struct Coalescer<B> {
    buffer: B,
    run: Option<Run>,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Coalescer<B> {
    /// An empty one.
    pub const fn new(buffer: B) -> Self {
        Self { buffer, run: None }
    }

    /// There is no run.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.run.is_none()
    }

    /// The parsed first frame of the run; its flow is the run's.
    #[must_use]
    pub fn first(&self) -> Option<&Meta> {
        self.run.as_ref().map(|run| &run.first)
    }

    /// Offers a whole frame that is not a GSO packet itself. `meta` must come from parsing it;
    /// an unverified checksum is verified here. With no run, a frame that a run can start with is
    /// taken; one that nothing could follow (pure ACK, PSH, ...) is refused, which saves the copy.
    pub fn offer(&mut self, frame: &[u8], meta: &Meta, state: ChecksumState) -> Offer {
        let Some(tcp) = meta.tcp().copied() else {
            return Offer::Refused;
        };
        let Some(packet) = frame.get(..meta.packet_end as usize) else {
            return Offer::Refused;
        };
        match &mut self.run {
            None => self.start(packet, meta, tcp, state),
            Some(run) => {
                let buffer = self.buffer.as_mut();
                if run.closed
                    || !run.continues(buffer, packet, meta, tcp)
                    || !is_eligible(packet, meta, tcp, state)
                {
                    return Offer::Refused;
                }
                run.append(buffer, packet, meta, tcp)
            }
        }
    }

    fn start(&mut self, packet: &[u8], meta: &Meta, tcp: TcpMeta, state: ChecksumState) -> Offer {
        let followed = !tcp.flags.intersects(Flags::PSH.with(Flags::FIN))
            && meta.payload_len >= u32::from(MIN_GSO_SIZE);
        if !followed || !is_eligible(packet, meta, tcp, state) {
            return Offer::Refused;
        }
        let Some(room) = self.buffer.as_mut().get_mut(..packet.len()) else {
            return Offer::Refused;
        };
        room.copy_from_slice(packet);
        self.run = Some(Run {
            first: *meta,
            tcp,
            identification: Identification::Unknown,
            state,
            last_flags: Flags::default(),
            segments: 1,
            len: packet.len(),
            closed: false,
        });
        Offer::Taken
    }

    /// Ends the run. Gives the frame and the header that goes with it: of a GSO packet with
    /// partial checksum, or of the one segment that the run has, which is as it came.
    pub fn finish(&mut self) -> Option<(VnetHdr, &mut [u8])> {
        let run = self.run.take()?;
        let frame = &mut self.buffer.as_mut()[..run.len];
        let header = if run.segments == 1 {
            run.single_header()
        } else {
            run.finish_headers(frame);
            run.super_header()
        };
        Some((header, frame))
    }
}

impl Run {
    /// The segment's headers, position and size fit the run.
    fn continues(&self, buffer: &[u8], packet: &[u8], meta: &Meta, tcp: TcpMeta) -> bool {
        let joined = self.first.payload_len as usize * usize::from(self.segments);
        let len = meta.payload_len as usize;
        let ip_len = self.len - usize::from(self.first.network_offset) + len;
        meta.payload_len <= self.first.payload_len
            && tcp.sequence == self.tcp.sequence.wrapping_add(joined as u32)
            && ip_len <= MAX_IP_LEN
            && self.len + len <= buffer.len()
            && same_layout(&self.first, meta)
            && same_flags(self.tcp.flags, tcp.flags)
            && same_headers(&buffer[..self.len], packet, meta)
            && self.next_identification(buffer, packet).is_some()
    }

    /// What the segment says about the identification; `None` if it does not fit the run.
    fn next_identification(&self, buffer: &[u8], packet: &[u8]) -> Option<Identification> {
        if self.first.network != Network::Ipv4 {
            return Some(Identification::Unknown);
        }
        let at = usize::from(self.first.network_offset);
        let first = ipv4::Header::parse(&buffer[at..]).ok()?;
        let next = ipv4::Header::parse(&packet[at..]).ok()?;
        let step = next.identification().wrapping_sub(first.identification());
        let atomic = first.fragmentation() & ipv4::FLAG_DF != 0;
        match self.identification {
            Identification::Fixed | Identification::Unknown if atomic && step == 0 => {
                Some(Identification::Fixed)
            }
            Identification::Counting | Identification::Unknown if step == self.segments => {
                Some(Identification::Counting)
            }
            _ => None,
        }
    }

    fn append(&mut self, buffer: &mut [u8], packet: &[u8], meta: &Meta, tcp: TcpMeta) -> Offer {
        let payload = &packet[usize::from(meta.payload_offset)..];
        if let Some(identification) = self.next_identification(buffer, packet) {
            self.identification = identification;
        }
        buffer[self.len..self.len + payload.len()].copy_from_slice(payload);
        self.len += payload.len();
        self.segments += 1;
        self.last_flags = Flags(tcp.flags.0 & Flags::PSH.with(Flags::FIN).0);
        self.closed =
            self.last_flags != Flags::default() || meta.payload_len < self.first.payload_len;
        if self.closed { Offer::TakenLast } else { Offer::Taken }
    }

    /// Header of the one segment, as it came.
    fn single_header(&self) -> VnetHdr {
        if self.state == ChecksumState::Partial {
            VnetHdr {
                flags: vnet::F_NEEDS_CSUM,
                csum_start: self.first.transport_offset,
                csum_offset: checksum::TCP_OFFSET,
                ..VnetHdr::default()
            }
        } else {
            VnetHdr { flags: vnet::F_DATA_VALID, ..VnetHdr::default() }
        }
    }

    fn super_header(&self) -> VnetHdr {
        let kind = match self.first.network {
            Network::Ipv6 => vnet::GSO_TCPV6,
            _ => vnet::GSO_TCPV4,
        };
        let ecn = if self.tcp.flags.contains(Flags::CWR) { vnet::GSO_ECN } else { 0 };
        VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            gso_type: kind | ecn,
            hdr_len: self.first.payload_offset,
            gso_size: self.first.payload_len as u16,
            csum_start: self.first.transport_offset,
            csum_offset: checksum::TCP_OFFSET,
            num_buffers: 0,
        }
    }

    /// Lengths, flags and the partial checksum of the GSO packet.
    fn finish_headers(&self, frame: &mut [u8]) {
        let network = usize::from(self.first.network_offset);
        let ip_len = frame.len() - network;
        if self.first.network == Network::Ipv6 {
            put16(frame, network + 4, (ip_len - ipv6::HEADER_LEN) as u16);
        } else {
            let header = &mut frame[network..usize::from(self.first.transport_offset)];
            put16(header, 2, ip_len as u16);
            put16(header, 10, 0);
            let checksum = checksum::checksum(header);
            put16(header, 10, checksum);
        }
        let transport = usize::from(self.first.transport_offset);
        let joined = Meta {
            payload_len: (frame.len() - usize::from(self.first.payload_offset)) as u32,
            ..self.first
        };
        let pseudo = checksum::pseudo_header(&joined).unwrap_or_default();
        frame[transport + 13] = self.tcp.flags.with(self.last_flags).0;
        put16(frame, transport + 16, pseudo.fold());
    }
}

/// The frame could be part of some run.
fn is_eligible(packet: &[u8], meta: &Meta, tcp: TcpMeta, state: ChecksumState) -> bool {
    let forbidden = Flags::SYN.with(Flags::RST).with(Flags::URG);
    meta.payload_len > 0
        && tcp.flags.contains(Flags::ACK)
        && !tcp.flags.intersects(forbidden)
        && network_is_eligible(packet, meta)
        && match state {
            ChecksumState::Partial | ChecksumState::Verified => true,
            ChecksumState::Unverified => {
                checksum::verify_transport(packet, meta) == Ok(Verification::Good)
            }
        }
}

fn network_is_eligible(packet: &[u8], meta: &Meta) -> bool {
    let network = &packet[usize::from(meta.network_offset)..];
    if meta.network == Network::Ipv6 {
        return ipv6::may_be_replicated(network) == Ok(true);
    }
    ipv4::Header::parse(network).is_ok_and(|ip| {
        usize::from(ip.header_len()) == ipv4::MIN_HEADER_LEN
            && ip.fragmentation() & !ipv4::FLAG_DF == 0
            && ip.checksum_ok()
    })
}

fn same_layout(a: &Meta, b: &Meta) -> bool {
    a.network == b.network
        && a.network_offset == b.network_offset
        && a.transport_offset == b.transport_offset
        && a.payload_offset == b.payload_offset
}

/// CWR may be set on the first segment only, PSH and FIN on the last only.
fn same_flags(first: Flags, next: Flags) -> bool {
    let may_differ = Flags::CWR.with(Flags::PSH).with(Flags::FIN);
    !next.contains(Flags::CWR) && first.without(may_differ) == next.without(may_differ)
}

/// The headers are equal where they have to be. Both have the layout of `meta`.
fn same_headers(run: &[u8], packet: &[u8], meta: &Meta) -> bool {
    let network = usize::from(meta.network_offset);
    let transport = usize::from(meta.transport_offset);
    let payload = usize::from(meta.payload_offset);
    let equal = |from: usize, to: usize| run[from..to] == packet[from..to];
    let same_network = if meta.network == Network::Ipv6 {
        equal(0, network + 4) && equal(network + 6, transport)
    } else {
        equal(0, network + 2) && equal(network + 6, network + 10) && equal(network + 12, transport)
    };
    same_network
        && equal(transport, transport + 4)
        && equal(transport + 8, transport + 13)
        && equal(transport + 14, transport + 16)
        && equal(transport + 18, payload)
}
