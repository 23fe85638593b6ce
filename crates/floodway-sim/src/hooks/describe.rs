//! Packets as mechanisms of TCP see them, and what they make of them.

use floodway_core::offload::{Ecn as WireEcn, Edit, Segment, SynthesizedSegment, Transmission};
use floodway_wire::tcp::OptionSummary;

use crate::packet::{self, Body, Ecn, Packet};

/// ECT(0) as in the IP header.
const ECT_0: WireEcn = WireEcn(2);

/// What a mechanism sees of a packet; `None` if it is not TCP.
#[must_use]
pub fn segment(packet: &Packet) -> Option<Segment> {
    let tcp = packet.tcp()?;
    Some(Segment {
        seq: tcp.seq,
        ack: tcp.ack,
        len: tcp.len,
        window: tcp.window,
        flags: tcp.flags,
        ae: false,
        forwarded: false,
        has_room: false,
        ecn: to_wire(packet.ecn),
        gso_size: tcp.gso_size,
        options: tcp.options,
    })
}

/// Changes the header of a packet that passes.
pub fn edit(packet: &mut Packet, edit: &Edit) {
    // Named one by one, so that a new field of an edit cannot be forgotten here.
    let Edit { seq, ack, window, flags, timestamps, strip_sack, append_name: _ } = *edit;
    let Body::Tcp(tcp) = &mut packet.body else { return };
    tcp.seq = seq.unwrap_or(tcp.seq);
    tcp.ack = ack.unwrap_or(tcp.ack);
    tcp.window = window.unwrap_or(tcp.window);
    tcp.flags = flags.unwrap_or(tcp.flags);
    tcp.options.timestamps = timestamps.or(tcp.options.timestamps);
    if strip_sack {
        tcp.options.set_sack_blocks(&[]);
    }
}

/// A range of a kept packet under a refreshed header.
pub(super) fn released(kept: &Packet, release: &Transmission) -> Packet {
    let mut packet = *kept;
    packet.ecn = from_wire(release.ecn);
    if let Body::Tcp(tcp) = &mut packet.body {
        tcp.seq = release.seq;
        tcp.ack = release.ack;
        tcp.len = release.len;
        tcp.window = release.window;
        tcp.flags = release.flags;
        tcp.gso_size = if release.len > u32::from(release.mss) { release.mss } else { 0 };
        tcp.options.timestamps = release.timestamps;
    }
    packet
}

/// The TCP part of a segment that the engine makes.
pub(super) fn synthesized(segment: &SynthesizedSegment) -> packet::Segment {
    let mut options = OptionSummary::default();
    options.timestamps = segment.timestamps;
    options.set_sack_blocks(segment.sack.as_slice());
    packet::Segment {
        seq: segment.seq,
        ack: segment.ack,
        len: 0,
        window: segment.window,
        flags: segment.flags,
        gso_size: 0,
        options,
    }
}

const fn to_wire(ecn: Ecn) -> WireEcn {
    match ecn {
        Ecn::NotEct => WireEcn::NOT_ECT,
        Ecn::Ect => ECT_0,
        Ecn::Ce => WireEcn::CE,
    }
}

fn from_wire(ecn: WireEcn) -> Ecn {
    match ecn {
        WireEcn::NOT_ECT => Ecn::NotEct,
        WireEcn::CE => Ecn::Ce,
        _ => Ecn::Ect,
    }
}
