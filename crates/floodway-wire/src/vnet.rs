//! The virtio-net header (`struct virtio_net_hdr`, virtio 1.2 section 5.1.6) that travels before
//! each frame on virtqueues, on TAP devices with `IFF_VNET_HDR` and on packet sockets with
//! `PACKET_VNET_HDR`. All fields are little-endian here: virtio 1.x and every host we run on.

/// Length with the `num_buffers` field: `VERSION_1` or `MRG_RXBUF` negotiated.
pub const LEN: usize = 12;
/// Length without it: a legacy device, TAP or packet socket.
pub const LEGACY_LEN: usize = 10;

/// `flags`: the checksum from `csum_start` on is not filled in yet.
pub const F_NEEDS_CSUM: u8 = 1;
/// `flags`: the checksums of the packet have been validated.
pub const F_DATA_VALID: u8 = 2;

/// `gso_type`: an ordinary frame.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: an IPv4 GSO packet.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: an IPv4 UDP GSO packet to be fragmented (never offered by us).
pub const GSO_UDP: u8 = 3;
/// `gso_type`: an IPv6 GSO packet.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: a UDP GSO packet to be segmented (never offered by us).
pub const GSO_UDP_L4: u8 = 5;
/// Bit in `gso_type`: the GSO packet has CWR set (RFC 3168).
pub const GSO_ECN: u8 = 0x80;

/// One virtio-net header in host representation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHdr {
    /// `F_*` bits.
    pub flags: u8,
    /// `GSO_*` value, possibly with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of link, network and transport headers (a hint; may be zero).
    pub hdr_len: u16,
    /// Payload bytes per segment of a GSO packet.
    pub gso_size: u16,
    /// Where the checksummed area starts, in bytes from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum field is, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// Descriptor chains that the frame fills (receive side only).
    pub num_buffers: u16,
}

impl VnetHdr {
    /// Bits of the first word ([`to_words`](Self::to_words)) one of which is set in the header of a sender that leaves a checksum to be filled in, or sends a GSO packet.
    pub const ASKS: u64 = F_NEEDS_CSUM as u64 | 0xff << 8;

    /// Reads the fields from wire order; `num_buffers` is zero for a legacy header.
    #[must_use]
    pub fn from_bytes(b: &[u8; LEN]) -> Self {
        let le = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        Self {
            flags: b[0],
            gso_type: b[1],
            hdr_len: le(2),
            gso_size: le(4),
            csum_start: le(6),
            csum_offset: le(8),
            num_buffers: le(10),
        }
    }

    /// The fields in wire order; a legacy header is the first [`LEGACY_LEN`] bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LEN] {
        let (first, last) = self.to_words();
        let mut b = [0; LEN];
        b[..8].copy_from_slice(&first.to_le_bytes());
        b[8..].copy_from_slice(&last.to_le_bytes());
        b
    }

    /// Bytes 0 to 8 and 8 to 12 in wire order, as little-endian words: the least significant 16 bits of the second end a legacy header.
    ///
    /// A word that is put together in a register can be stored at once. One that is loaded again after its fields were stored one by one has to wait
    /// until these stores, and all before them, have reached the cache.
    #[inline]
    #[must_use]
    pub const fn to_words(&self) -> (u64, u32) {
        let first = self.flags as u64
            | (self.gso_type as u64) << 8
            | (self.hdr_len as u64) << 16
            | (self.gso_size as u64) << 32
            | (self.csum_start as u64) << 48;
        (first, self.csum_offset as u32 | (self.num_buffers as u32) << 16)
    }

    /// The reverse of [`to_words`](Self::to_words) without `num_buffers`, which a sender has no use for: of the second word the least significant 16 bits.
    #[inline]
    #[must_use]
    pub const fn from_words(first: u64, second: u16) -> Self {
        Self {
            flags: first as u8,
            gso_type: (first >> 8) as u8,
            hdr_len: (first >> 16) as u16,
            gso_size: (first >> 32) as u16,
            csum_start: (first >> 48) as u16,
            csum_offset: second,
            num_buffers: 0,
        }
    }

    /// The checksum of the frame still has to be completed.
    #[must_use]
    pub const fn needs_csum(&self) -> bool {
        self.flags & F_NEEDS_CSUM != 0
    }

    /// `gso_type` without the ECN bit.
    #[must_use]
    pub const fn gso_kind(&self) -> u8 {
        self.gso_type & !GSO_ECN
    }

    /// The frame is a GSO packet.
    #[must_use]
    pub const fn is_gso(&self) -> bool {
        self.gso_kind() != GSO_NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let hdr = VnetHdr {
            flags: F_NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 66,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 2,
        };
        assert_eq!(VnetHdr::from_bytes(&hdr.to_bytes()), hdr);
        let bytes = [1, 0x81, 66, 0, 0xa8, 5, 34, 0, 16, 0, 2, 0];
        assert_eq!(hdr.to_bytes(), bytes);
        let (first, last) = hdr.to_words();
        assert_eq!(VnetHdr::from_words(first, last as u16), VnetHdr { num_buffers: 0, ..hdr });
        assert!(hdr.is_gso() && hdr.gso_kind() == GSO_TCPV4);
    }
}
