//! What the mechanisms are told of a TCP segment.

use floodway_wire::tcp::{Flags, OptionSummary};

use serde::{Deserialize, Serialize};

use super::seq::Seq;

/// The two ECN bits of the IP header (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecn(pub u8);

impl Ecn {
    /// The sender does not understand ECN.
    pub const NOT_ECT: Self = Self(0);
    /// Congestion experienced.
    pub const CE: Self = Self(3);
}

/// Who sent a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The port's guest.
    Guest,
    /// Its peer, on the network.
    Peer,
}

/// One TCP segment, or a GSO packet of several, without its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// First sequence number.
    pub seq: Seq,
    /// Acknowledgement number; of no meaning without the ACK flag.
    pub ack: Seq,
    /// Bytes of payload.
    pub len: u32,
    /// Receive window as it is on the wire, not scaled.
    pub window: u16,
    /// Control bits.
    pub flags: Flags,
    /// The AE flag of a SYN (RFC 9768); of no meaning in other segments.
    pub ae: bool,
    /// A SYN of the guest that it forwards for another host; of no meaning in other segments.
    pub forwarded: bool,
    /// A SYN-ACK in whose options a flow's name has room ([`name`](floodway_wire::name)); of no meaning in other segments.
    pub has_room: bool,
    /// ECN bits of the IP header.
    pub ecn: Ecn,
    /// Bytes of payload of each segment of a GSO packet; zero if it is one segment.
    pub gso_size: u16,
    /// Options.
    pub options: OptionSummary,
}

impl Segment {
    /// Sequence numbers that it takes: payload, SYN and FIN.
    #[must_use]
    #[inline]
    pub const fn seq_len(&self) -> u32 {
        self.len + self.has(Flags::SYN) as u32 + self.has(Flags::FIN) as u32
    }

    /// Sequence number right behind it.
    #[must_use]
    #[inline]
    pub fn end(&self) -> Seq {
        self.seq + self.seq_len()
    }

    /// All bits of `flags` are set.
    #[must_use]
    #[inline]
    pub const fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// Neither payload nor SYN, FIN or RST: it only acknowledges.
    #[must_use]
    #[inline]
    pub const fn is_pure_ack(&self) -> bool {
        const OTHERS: Flags = Flags::SYN.with(Flags::FIN).with(Flags::RST);
        self.len == 0 && self.has(Flags::ACK) && !self.flags.intersects(OTHERS)
    }
}
