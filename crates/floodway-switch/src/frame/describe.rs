//! From a frame to what the engine is told of it.

use floodway_core::offload::{Ecn, Link, Segment};
use floodway_core::seq::Seq;
use floodway_wire::checksum::{self, Verification, verify_transport};
use floodway_wire::tcp::{self, OptionSummary};
use floodway_wire::vnet;
use floodway_wire::{Meta, Network, ethernet, ipv4, ipv6, name, notice, parse};

use crate::frame::Frame;

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    FromGuest,
    FromNetwork,
}

/// What is known of a frame's TCP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// It is partial, or the host's kernel has validated it.
    Good,
    /// It has to be computed.
    Unverified,
}

/// A TCP segment as the engine is told of it.
pub(crate) struct Described {
    pub(crate) meta: Meta,
    pub(crate) link: Link,
    pub(crate) segment: Segment,
    pub(crate) trust: Trust,
}

/// Describes `frame`; `None` for all that passes by the offload.
pub(crate) fn describe(frame: &Frame<'_>, direction: Direction) -> Option<Described> {
    let meta = parse(frame.prefix, frame.len as usize).ok()?;
    let fields = *meta.tcp()?;
    let plain_header = match meta.network {
        Network::Ipv4 => ipv4::MIN_HEADER_LEN,
        _ => ipv6::HEADER_LEN,
    };
    if usize::from(meta.transport_offset - meta.network_offset) != plain_header {
        return None;
    }
    let (guest, peer) = match direction {
        Direction::FromGuest => (meta.src_mac, meta.dst_mac),
        Direction::FromNetwork if !is_header_intact(frame.prefix, &meta) => return None,
        Direction::FromNetwork => (meta.dst_mac, meta.src_mac),
    };
    let link = Link { guest, peer, vlan: vlan(frame.prefix, &meta)? };
    let trust = trust(frame, &meta)?;
    let options_at = usize::from(meta.transport_offset) + tcp::MIN_HEADER_LEN;
    let options = frame.prefix.get(options_at..usize::from(meta.payload_offset))?;
    let gso_size = frame.vnet.gso_size;
    let is_super = frame.vnet.is_gso() && meta.payload_len > u32::from(gso_size);
    let segment = Segment {
        seq: Seq(fields.sequence),
        ack: Seq(fields.acknowledgment),
        len: meta.payload_len,
        window: fields.window,
        flags: fields.flags,
        forwarded: false,
        has_room: meta.payload_len == 0
            && !frame.vnet.is_gso()
            && name::has_room(fields.flags, options),
        ae: fields.flags.contains(tcp::Flags::SYN) && has_ae(frame.prefix, &meta),
        ecn: Ecn(meta.traffic_class & 3),
        gso_size: if is_super { gso_size } else { 0 },
        options: OptionSummary::parse(options).ok()?,
    };
    Some(Described { meta, link, segment, trust })
}

/// Returns `true` if the IP header's checksum, where there is one, is right. Nobody has verified that of what comes from the
/// network: packet sockets and TAP devices are in front of the host's IP, and a checksum that the card calls good is that of TCP.
/// A guest drops a packet with a bad one, so nothing in it may be acknowledged for the guest.
fn is_header_intact(prefix: &[u8], meta: &Meta) -> bool {
    let header = prefix.get(usize::from(meta.network_offset)..).unwrap_or_default();
    meta.network != Network::Ipv4
        || ipv4::Header::parse(header).is_ok_and(|header| header.checksum_ok())
}

/// Returns the TTL or hop limit.
pub(crate) fn hops(prefix: &[u8], meta: &Meta) -> Option<u8> {
    let header = prefix.get(usize::from(meta.network_offset)..)?;
    match meta.network {
        Network::Ipv4 => ipv4::Header::parse(header).ok().map(|header| header.ttl()),
        _ => ipv6::Header::parse(header).ok().map(|header| header.hop_limit()),
    }
}

/// Returns `true` if the TCP header has the AE flag.
fn has_ae(prefix: &[u8], meta: &Meta) -> bool {
    let header = prefix.get(usize::from(meta.transport_offset)..).unwrap_or_default();
    tcp::Header::parse(header).is_ok_and(|header| header.accurate_ecn())
}

/// The tag, if there is one; `None` for tags that frames of our own cannot have.
fn vlan(prefix: &[u8], meta: &Meta) -> Option<Option<u16>> {
    match *meta.vlan.as_slice() {
        [] => Some(None),
        [tci] if prefix[12..14] == ethernet::TYPE_VLAN.to_be_bytes() => Some(Some(tci)),
        _ => None,
    }
}

/// `None` if the frame leaves another checksum than TCP's to be filled in.
fn trust(frame: &Frame<'_>, meta: &Meta) -> Option<Trust> {
    let vnet = &frame.vnet;
    if vnet.needs_csum() {
        let is_tcp =
            vnet.csum_start == meta.transport_offset && vnet.csum_offset == checksum::TCP_OFFSET;
        return is_tcp.then_some(Trust::Good);
    }
    let validated = vnet.flags & vnet::F_DATA_VALID != 0;
    Some(if validated { Trust::Good } else { Trust::Unverified })
}

/// The TCP checksum of the whole frame `bytes` is right.
pub(crate) fn is_intact(bytes: &[u8], meta: &Meta) -> bool {
    verify_transport(bytes, meta) == Ok(Verification::Good)
}

/// Returns what keeps a frame from being simply forwarded. A notice is one under whatever tags: only the switch may say such things to a guest,
/// so one that comes from anywhere is a lie. `prefix` holds at least an Ethernet header.
#[inline]
#[must_use]
pub fn special(prefix: &[u8]) -> Option<Special> {
    let ethertype = u16::from_be_bytes([prefix[12], prefix[13]]);
    match ethertype {
        notice::ETHERTYPE => Some(Special::Notice),
        tag if ethernet::is_tag_type(tag) && is_tagged_notice(prefix) => Some(Special::Notice),
        tag if ethernet::is_tag_type(tag) => Some(Special::Tagged),
        _ => None,
    }
}

/// A frame that is not simply forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Of the type of notices, whatever tags are before that.
    Notice,
    /// With a VLAN tag.
    Tagged,
}

/// As many tags as there are: a guest strips one after the other.
#[cold]
fn is_tagged_notice(prefix: &[u8]) -> bool {
    let types = prefix[12..].chunks_exact(ethernet::TAG_LEN);
    let mut types = types.map(|tag| u16::from_be_bytes([tag[0], tag[1]]));
    types.find(|&ethertype| !ethernet::is_tag_type(ethertype)) == Some(notice::ETHERTYPE)
}
