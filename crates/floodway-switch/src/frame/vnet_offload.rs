//! Offloads: what a sender may leave undone, what a receiver may be left with, and doing it in
//! software in between.
//!
//! A virtio-net header is a sender's claim about its frame. [`Offloads::check`] compares the claim
//! with what was negotiated and with the frame's own headers, so that a lie stops here: a receiver,
//! guest or kernel, only ever sees headers that fit the frame.

use std::cell::RefCell;

use floodway_wire::segmentation::Segmenter;
use floodway_wire::vnet::{self, VnetHdr};
use floodway_wire::{Network, checksum, ethernet, parse};

use crate::frame::{Frame, MAX_FRAME_LEN};
use crate::stats::DropReason;

/// Where the checksum is in a TCP header, in bytes.
const TCP_CHECKSUM_OFFSET: u16 = 16;

/// Smallest payload per segment that is believed, in bytes: Linux's own floor for an MSS. It bounds
/// the frames that one GSO packet can become.
const MIN_GSO_SIZE: u16 = 48;

/// A set of offloads: what one side negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums may be unfinished.
    pub csum: bool,
    /// IPv4 GSO packets.
    pub tso4: bool,
    /// IPv6 GSO packets.
    pub tso6: bool,
    /// GSO packets with CWR set.
    pub ecn: bool,
}

impl Offloads {
    /// All of them.
    pub const ALL: Self = Self { csum: true, tso4: true, tso6: true, ecn: true };

    /// A receiver with these offloads can take a frame with this header.
    #[inline]
    #[must_use]
    pub fn allow(&self, vnet: &VnetHdr) -> bool {
        let csum = self.csum || !vnet.needs_csum();
        let gso = match vnet.gso_kind() {
            vnet::GSO_NONE => return csum,
            vnet::GSO_TCPV4 => self.tso4,
            vnet::GSO_TCPV6 => self.tso6,
            _ => false,
        };
        csum && gso && (self.ecn || vnet.gso_type & vnet::GSO_ECN == 0)
    }

    /// The header flags that a receiver with these offloads understands.
    #[inline]
    #[must_use]
    pub fn rx_flags(&self) -> u8 {
        if self.csum { vnet::F_NEEDS_CSUM | vnet::F_DATA_VALID } else { 0 }
    }

    /// Checks a sender's header against what it negotiated and against its frame (`prefix` and
    /// `len` as in [`Frame`]). Answers the header to go on with: `hdr_len` is ours.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`].
    #[inline]
    pub fn check(&self, vnet: VnetHdr, prefix: &[u8], len: u32) -> Result<VnetHdr, DropReason> {
        // Only a device may say that a checksum was validated.
        let flags = vnet.flags & vnet::F_NEEDS_CSUM;
        if flags == 0 && vnet.gso_type == vnet::GSO_NONE {
            return Ok(VnetHdr::default());
        }
        self.check_claim(VnetHdr { flags, num_buffers: 0, ..vnet }, prefix, len)
    }

    /// Checks a header that asks for something.
    #[inline(never)]
    fn check_claim(&self, vnet: VnetHdr, prefix: &[u8], len: u32) -> Result<VnetHdr, DropReason> {
        if !self.allow(&vnet) || !vnet.needs_csum() {
            return Err(DropReason::BadOffload);
        }
        let field_end = u32::from(vnet.csum_start) + u32::from(vnet.csum_offset) + 2;
        if field_end > len || usize::from(vnet.csum_start) < ethernet::HEADER_LEN {
            return Err(DropReason::BadOffload);
        }
        if vnet.is_gso() {
            check_gso_packet(vnet, prefix, len)
        } else {
            Ok(VnetHdr { gso_type: vnet::GSO_NONE, gso_size: 0, hdr_len: 0, ..vnet })
        }
    }
}

/// A GSO packet must be TCP over the IP version that it names, unfragmented, with its checksum
/// left to be filled in at the TCP header.
fn check_gso_packet(vnet: VnetHdr, prefix: &[u8], len: u32) -> Result<VnetHdr, DropReason> {
    let bad = DropReason::BadOffload;
    let meta = parse(prefix, len as usize).map_err(|_| bad)?;
    let version = if vnet.gso_kind() == vnet::GSO_TCPV4 { Network::Ipv4 } else { Network::Ipv6 };
    let csum_fits =
        vnet.csum_start == meta.transport_offset && vnet.csum_offset == TCP_CHECKSUM_OFFSET;
    if meta.tcp().is_none() || meta.network != version || !csum_fits || vnet.gso_size < MIN_GSO_SIZE
    {
        return Err(bad);
    }
    Ok(VnetHdr { hdr_len: meta.payload_offset, ..vnet })
}

/// Finishes in software what `offloads` does not allow in `frame`, and calls `emit` with each
/// resulting frame.
///
/// # Errors
/// The frame cannot be segmented: [`DropReason::BadOffload`].
pub fn finish(
    frame: &Frame<'_>,
    offloads: Offloads,
    mut emit: impl FnMut(VnetHdr, &[u8]),
) -> Result<(), DropReason> {
    debug_assert!(!offloads.allow(&frame.vnet));
    SCRATCH.with_borrow_mut(|(linear, segment)| {
        linear.clear();
        frame.append_to(linear);
        if !frame.vnet.is_gso() {
            return complete(frame.vnet, linear, |bytes| emit(VnetHdr::default(), bytes));
        }
        cut(linear, frame.vnet.gso_size, 0, segment, |bytes| {
            emit(VnetHdr::default(), bytes);
            true
        })
        .map(drop)
    })
}

/// As [`finish`] for a frame in one piece, from the resulting frame with number `from` on, as long as `emit` returns `true` for having taken
/// one. Returns the number of the frame that is next; `None` after the last.
///
/// # Errors
/// As [`finish`].
pub fn finish_from(
    vnet: VnetHdr,
    bytes: &[u8],
    from: usize,
    mut emit: impl FnMut(&[u8]) -> bool,
) -> Result<Option<usize>, DropReason> {
    SCRATCH.with_borrow_mut(|(linear, segment)| {
        if vnet.is_gso() {
            return cut(bytes, vnet.gso_size, from, segment, emit);
        }
        linear.clear();
        linear.extend_from_slice(bytes);
        let mut taken = true;
        complete(vnet, linear, |bytes| taken = emit(bytes))?;
        Ok((!taken).then_some(0))
    })
}

thread_local! {
    /// The frame in one piece, and one segment of it.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::default();
}

/// Cuts a GSO packet from segment `from` on.
fn cut(
    bytes: &[u8],
    gso_size: u16,
    from: usize,
    segment: &mut Vec<u8>,
    mut emit: impl FnMut(&[u8]) -> bool,
) -> Result<Option<usize>, DropReason> {
    segment.resize(MAX_FRAME_LEN as usize, 0);
    let segmenter = Segmenter::new(bytes, gso_size).map_err(|_| DropReason::BadOffload)?;
    let mut segmenter = segmenter.starting_at(from);
    let count = segmenter.plan().count();
    while let Some(len) = segmenter.write_next(segment).map_err(|_| DropReason::BadOffload)? {
        if !emit(&segment[..len]) {
            return Ok(Some(count - segmenter.remaining() - 1));
        }
    }
    Ok(None)
}

/// Fills in the checksum.
fn complete(vnet: VnetHdr, linear: &mut [u8], emit: impl FnOnce(&[u8])) -> Result<(), DropReason> {
    checksum::complete(linear, vnet.csum_start, vnet.csum_offset)
        .map_err(|_| DropReason::BadOffload)?;
    emit(linear);
    Ok(())
}
