//! Cuts GSO packets into frames that fit the link, as a network card does for TSO.
//!
//! Theory of operation. A GSO packet has the headers of one segment and a payload of many. Each
//! frame gets a copy of all headers in which only this differs:
//!
//! - IPv4: total length, header checksum, and the identification, which counts up by one per
//!   frame; IPv6: payload length. Options, extension headers and VLAN tags are copied.
//! - TCP: sequence number and checksum. FIN and PSH stay on the last frame only, CWR on the first
//!   only (RFC 3168 section 6.1.2). An urgent pointer is moved with the sequence number, and URG
//!   is dropped from frames behind the urgent data.
//!
//! The sums over everything that does not differ are taken once, so that a frame costs a copy of
//! its headers, a few additions, and one pass over its payload. The checksum in the GSO packet
//! is not looked at: whether it was partial or complete, each frame leaves with a complete one
//! of its own. A GSO packet whose payload fits one frame comes out as that frame.
//!
//! [`Plan`] works on headers only and leaves the payload to the caller, who may keep it where it
//! lies; [`Segmenter`] is the whole thing for a frame in one piece.
//!
//! Source: Linux `tcp_gso_segment`; Microsoft's LSO v2 for the flags.

use std::ops::Range;

use crate::bytes::put16;
use crate::checksum::{self, Sum};
use crate::error::{Error, Layer};
use crate::ipv6;
use crate::parse::{Meta, Network, parse};
use crate::tcp::{self, Flags};

/// Smallest payload per frame that is accepted: what is left of the smallest segment that Linux
/// sends (48 bytes) when options take their maximum. It bounds the frames that a hostile guest
/// gets out of one GSO packet to 8192.
pub const MIN_GSO_SIZE: u16 = 8;

/// How to cut one GSO packet.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    headers: &'a [u8],
    meta: Meta,
    gso_size: u32,
    count: u32,
    sequence: u32,
    flags: Flags,
    urgent_pointer: u16,
    /// Sum of pseudo-header and TCP header without lengths, sequence, flags, urgent pointer and
    /// checksum.
    tcp_sum: Sum,
}

impl<'a> Plan<'a> {
    /// Plans the cut of a GSO packet of `frame_len` bytes. `prefix` holds at least its headers;
    /// `gso_size` is the payload per frame in bytes.
    ///
    /// # Errors
    /// What [`parse`] finds wrong; [`Error::NotTcp`] for anything but whole TCP packets, and for
    /// SYN and RST, which never carry a stream's data; [`Error::GsoSize`] below [`MIN_GSO_SIZE`].
    pub fn new(prefix: &'a [u8], frame_len: usize, gso_size: u16) -> Result<Self, Error> {
        if gso_size < MIN_GSO_SIZE {
            return Err(Error::GsoSize(gso_size));
        }
        let meta = parse(prefix, frame_len)?;
        let fields = *meta.tcp().ok_or(Error::NotTcp)?;
        let network = &prefix[usize::from(meta.network_offset)..];
        if fields.flags.intersects(Flags::SYN.with(Flags::RST))
            || (meta.network == Network::Ipv6 && !ipv6::may_be_replicated(network)?)
        {
            return Err(Error::NotTcp);
        }
        let headers =
            prefix.get(..usize::from(meta.payload_offset)).ok_or(Error::Truncated(Layer::Tcp))?;
        let header = tcp::Header::parse(&headers[usize::from(meta.transport_offset)..])?;
        let addresses = checksum::pseudo_header(&Meta { payload_len: 0, ..meta });
        Ok(Self {
            headers,
            gso_size: u32::from(gso_size),
            count: meta.payload_len.div_ceil(u32::from(gso_size)).max(1),
            sequence: fields.sequence,
            flags: fields.flags,
            urgent_pointer: header.urgent_pointer(),
            tcp_sum: constant_sum(headers, &meta).plus(addresses.unwrap_or_default()),
            meta,
        })
    }

    /// Frames that the GSO packet becomes, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Bytes of the headers that every frame starts with.
    #[must_use]
    pub fn headers_len(&self) -> usize {
        self.headers.len()
    }

    /// Bytes of the longest frame.
    #[must_use]
    pub fn max_frame_len(&self) -> usize {
        self.headers.len() + self.gso_size.min(self.meta.payload_len) as usize
    }

    /// The parsed GSO packet.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Where in the GSO packet the payload of frame `index` lies. Empty behind the last frame.
    #[must_use]
    pub fn payload(&self, index: usize) -> Range<usize> {
        let total = self.meta.payload_len as usize;
        let start = index.saturating_mul(self.gso_size as usize).min(total);
        let end = (start + self.gso_size as usize).min(total);
        let base = usize::from(self.meta.payload_offset);
        base + start..base + end
    }

    /// Writes the headers of frame `index` to the start of `out`, finished. `payload` is the sum
    /// over the bytes at [`Plan::payload`]. Returns the bytes written.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`].
    #[inline]
    pub fn write_headers(
        &self,
        index: usize,
        payload: Sum,
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let needed = self.headers.len();
        let have = out.len();
        let out = out.get_mut(..needed).ok_or(Error::BufferTooSmall { needed, have })?;
        out.copy_from_slice(self.headers);
        let range = self.payload(index);
        let len = (range.end - range.start) as u32;
        self.finish_network(index, len, out);
        let offset = (range.start - usize::from(self.meta.payload_offset)) as u32;
        self.finish_tcp(index, offset, len, payload, out);
        Ok(needed)
    }

    #[inline]
    fn finish_network(&self, index: usize, payload_len: u32, out: &mut [u8]) {
        let headers_len = u32::from(self.meta.payload_offset - self.meta.network_offset);
        let start = usize::from(self.meta.network_offset);
        if self.meta.network == Network::Ipv6 {
            let len = headers_len - ipv6::HEADER_LEN as u32 + payload_len;
            put16(out, start + 4, len as u16);
        } else {
            let ip = &mut out[start..usize::from(self.meta.transport_offset)];
            put16(ip, 2, (headers_len + payload_len) as u16);
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index as u16);
            put16(ip, 4, id);
            put16(ip, 10, 0);
            let checksum = checksum::checksum(ip);
            put16(ip, 10, checksum);
        }
    }

    #[inline]
    fn finish_tcp(&self, index: usize, offset: u32, len: u32, payload: Sum, out: &mut [u8]) {
        let tcp = &mut out[usize::from(self.meta.transport_offset)..];
        let sequence = self.sequence.wrapping_add(offset);
        let (flags, urgent_pointer) = self.flags_at(index, offset);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[13] = flags.0;
        put16(tcp, 18, urgent_pointer);
        let sum = self
            .tcp_sum
            .plus_u32(sequence)
            .plus_u16(u16::from(flags.0))
            .plus_u16(urgent_pointer)
            .plus_u32(len)
            .plus(payload);
        put16(tcp, 16, sum.checksum());
    }

    /// Control bits and urgent pointer of the frame whose payload starts at `offset`.
    #[inline]
    fn flags_at(&self, index: usize, offset: u32) -> (Flags, u16) {
        let mut flags = self.flags;
        if index > 0 {
            flags = flags.without(Flags::CWR);
        }
        if index + 1 < self.count() {
            flags = flags.without(Flags::FIN.with(Flags::PSH));
        }
        if !flags.contains(Flags::URG) || offset == 0 {
            return (flags, self.urgent_pointer);
        }
        match u32::from(self.urgent_pointer).checked_sub(offset) {
            Some(left @ 1..) => (flags, left as u16),
            _ => (flags.without(Flags::URG), 0),
        }
    }
}

/// Sum over the TCP header with every field zero that differs from frame to frame.
fn constant_sum(headers: &[u8], meta: &Meta) -> Sum {
    let mut fixed = [0; tcp::MIN_HEADER_LEN];
    let (start, end) = headers[usize::from(meta.transport_offset)..].split_at(fixed.len());
    fixed.copy_from_slice(start);
    fixed[4..8].fill(0);
    fixed[13] = 0;
    fixed[16..20].fill(0);
    Sum::of(&fixed).plus(Sum::of(end))
}

/// Cuts a GSO packet that lies in one piece. Yields one frame per call, no allocation.
#[derive(Clone, Debug)]
pub struct Segmenter<'a> {
    frame: &'a [u8],
    plan: Plan<'a>,
    next: usize,
}

impl<'a> Segmenter<'a> {
    /// Starts on a GSO packet; `gso_size` is the payload per frame in bytes.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn new(frame: &'a [u8], gso_size: u16) -> Result<Self, Error> {
        Ok(Self { frame, plan: Plan::new(frame, frame.len(), gso_size)?, next: 0 })
    }

    /// The plan that is carried out.
    #[must_use]
    pub fn plan(&self) -> &Plan<'a> {
        &self.plan
    }

    /// The same cut, to go on with frame `index`.
    #[must_use]
    pub fn starting_at(self, index: usize) -> Self {
        Self { next: index.min(self.plan.count()), ..self }
    }

    /// Frames not yet written.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.plan.count() - self.next
    }

    /// Writes the next frame, finished, to the start of `out` and returns its length in bytes;
    /// `None` after the last. [`Plan::max_frame_len`] bytes are always enough. After an error the
    /// same frame is next.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`].
    #[inline]
    pub fn write_next(&mut self, out: &mut [u8]) -> Result<Option<usize>, Error> {
        if self.remaining() == 0 {
            return Ok(None);
        }
        let headers_len = self.plan.headers_len();
        let payload = &self.frame[self.plan.payload(self.next)];
        let needed = headers_len + payload.len();
        let have = out.len();
        let out = out.get_mut(..needed).ok_or(Error::BufferTooSmall { needed, have })?;
        let (headers, body) = out.split_at_mut(headers_len);
        body.copy_from_slice(payload);
        self.plan.write_headers(self.next, Sum::of(body), headers)?;
        self.next += 1;
        Ok(Some(needed))
    }
}
