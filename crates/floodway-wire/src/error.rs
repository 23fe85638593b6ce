//! The one error type of the crate.

use std::fmt;

/// A header or header-like part of a frame, named in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Ethernet II header.
    Ethernet,
    /// 802.1Q or 802.1ad tag.
    Vlan,
    /// ARP or RARP packet.
    Arp,
    /// IPv4 header with its options.
    Ipv4,
    /// IPv6 fixed header.
    Ipv6,
    /// IPv6 extension header.
    Ipv6Extension,
    /// TCP header without its options.
    Tcp,
    /// TCP options.
    TcpOptions,
    /// UDP header.
    Udp,
    /// `ICMPv4` message.
    Icmp,
    /// `ICMPv6` message.
    Icmpv6,
    /// Notice of the switch to a guest.
    Notice,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet header",
            Self::Vlan => "VLAN tag",
            Self::Arp => "ARP packet",
            Self::Ipv4 => "IPv4 header",
            Self::Ipv6 => "IPv6 header",
            Self::Ipv6Extension => "IPv6 extension header",
            Self::Tcp => "TCP header",
            Self::TcpOptions => "TCP options",
            Self::Udp => "UDP header",
            Self::Icmp => "ICMP message",
            Self::Icmpv6 => "ICMPv6 message",
            Self::Notice => "notice",
        })
    }
}

/// What is wrong with bytes that were handed in, or with what was asked of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The frame, or the packet inside it, ends before the part does.
    #[error("the frame ends inside the {0}")]
    Truncated(Layer),
    /// The part goes on beyond the prefix that was handed in, and so does the frame: parse again
    /// with a longer prefix.
    #[error("the parsed prefix ends inside the {0}; parse a longer prefix of the frame")]
    PrefixTooShort(Layer),
    /// A field holds a value that the format forbids or that contradicts another length.
    #[error("{layer}: {field} cannot be {value}")]
    BadField {
        /// Where the field is.
        layer: Layer,
        /// Name of the field as its standard gives it.
        field: &'static str,
        /// Value found.
        value: u32,
    },
    /// More VLAN tags or IPv6 extension headers than we are willing to walk.
    #[error("more than {max} of: {layer}")]
    TooMany {
        /// What there is too much of.
        layer: Layer,
        /// How many are walked.
        max: u8,
    },
    /// Only TCP in unfragmented IPv4 or IPv6 can be segmented or edited as TCP.
    #[error("not an unfragmented TCP packet")]
    NotTcp,
    /// Segments of a GSO packet carry at least [`crate::segmentation::MIN_GSO_SIZE`] bytes.
    #[error("gso_size {0} is below the minimum of 8 bytes")]
    GsoSize(u16),
    /// The checksum range of a virtio-net header lies outside its frame.
    #[error("csum_start {start} with csum_offset {offset} lies outside the {frame_len} byte frame")]
    ChecksumRange {
        /// `csum_start`, in bytes from the start of the frame.
        start: u16,
        /// `csum_offset`, in bytes from `csum_start`.
        offset: u16,
        /// Length of the frame.
        frame_len: usize,
    },
    /// The caller's buffer cannot hold the result.
    #[error("{needed} bytes do not fit the buffer of {have} bytes")]
    BufferTooSmall {
        /// Bytes to write.
        needed: usize,
        /// Bytes available.
        have: usize,
    },
}

impl Error {
    /// A [`Error::BadField`] in one line.
    pub(crate) fn field(layer: Layer, field: &'static str, value: impl Into<u32>) -> Self {
        Self::BadField { layer, field, value: value.into() }
    }
}
