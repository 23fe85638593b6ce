//! Checksums of parsed packets; the arithmetic of `sum` is here, too, under the name that callers know.
//!
//! The arithmetic stands apart because views of single headers need it, and parsing needs those.

use crate::error::{Error, Layer};
use crate::parse::{Meta, Network, Transport};

pub use crate::sum::{
    ChecksumState, Sum, TCP_OFFSET, UDP_OFFSET, checksum, complete, pseudo_header_v4,
    pseudo_header_v6, update, update_u16,
};

/// Sum of the pseudo-header of a parsed packet, or `None` if it is not an IP packet.
#[must_use]
pub fn pseudo_header(meta: &Meta) -> Option<Sum> {
    let len = meta.transport_len();
    let flow = &meta.flow;
    match meta.network {
        Network::Ipv4 => Some(pseudo_header_v4(flow.src_v4(), flow.dst_v4(), flow.protocol, len)),
        Network::Ipv6 => Some(pseudo_header_v6(&flow.src, &flow.dst, flow.protocol, len)),
        Network::Arp | Network::Other => None,
    }
}

/// Outcome of [`verify_transport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The checksum is right.
    Good,
    /// The checksum is wrong.
    Bad,
    /// There is nothing to verify: a fragment, another protocol, or UDP without checksum.
    Absent,
}

/// Verifies the TCP, UDP, ICMP or `ICMPv6` checksum of a whole frame. `meta` must come from
/// parsing this frame; a partial checksum must not be verified.
///
/// # Errors
/// [`Error::Truncated`] when `frame` ends before the packet that `meta` describes.
pub fn verify_transport(frame: &[u8], meta: &Meta) -> Result<Verification, Error> {
    let layer = match meta.transport {
        Transport::Tcp(_) => Layer::Tcp,
        Transport::Udp => Layer::Udp,
        Transport::Icmp { .. } => Layer::Icmp,
        Transport::Icmpv6 { .. } => Layer::Icmpv6,
        Transport::Other => return Ok(Verification::Absent),
    };
    let start = usize::from(meta.transport_offset);
    let packet =
        frame.get(start..start + meta.transport_len() as usize).ok_or(Error::Truncated(layer))?;
    if layer == Layer::Udp && packet.get(6..8) == Some(&[0, 0]) {
        return Ok(Verification::Absent);
    }
    let pseudo = match meta.transport {
        Transport::Icmp { .. } => Sum::ZERO,
        _ => pseudo_header(meta).unwrap_or_default(),
    };
    Ok(match pseudo.plus(Sum::of(packet)).fold() {
        0xffff => Verification::Good,
        _ => Verification::Bad,
    })
}
