//! VLAN tags (IEEE 802.1Q) of frames, put on and taken off without a copy of the payload.
//!
//! Inside the switch frames have no tags; the network that they are in is known from where they came. A tag is put on where a frame leaves by an uplink or
//! trunk port that carries its network tagged, and taken off where it arrives. Offsets in the virtio-net header move with the bytes that they point at.

use floodway_wire::ethernet::{TAG_LEN, TYPE_VLAN};
use floodway_wire::vnet::VnetHdr;

use super::{Frame, PREFIX_LEN, spliced};

/// Both MAC addresses: what stands before a tag.
const ADDRESSES_LEN: usize = 12;
/// Bits of the tag control information that are the VLAN identifier.
const VID_MASK: u16 = 0x0fff;
/// Shortest frame with a tag: addresses, tag, `EtherType`.
const MIN_TAGGED_LEN: usize = ADDRESSES_LEN + TAG_LEN + 2;

/// The VLAN identifier in the outermost tag of a frame that begins with `prefix`; 0 in a priority tag. `None` if that is no whole 802.1Q tag.
#[must_use]
pub fn outer_vid(prefix: &[u8]) -> Option<u16> {
    let [a, b, c, d, ..] = *prefix.get(ADDRESSES_LEN..)? else { return None };
    let is_tag = u16::from_be_bytes([a, b]) == TYPE_VLAN && prefix.len() >= MIN_TAGGED_LEN;
    is_tag.then_some(u16::from_be_bytes([c, d]) & VID_MASK)
}

/// Calls `f` with `frame`, which has an Ethernet header, behind a tag of VLAN `vid` and priority 0.
pub fn with_tag<R>(frame: &Frame<'_>, vid: u16, f: impl FnOnce(&Frame<'_>) -> R) -> R {
    let len = (frame.prefix.len() + TAG_LEN).min(PREFIX_LEN);
    let mut headers = [0; PREFIX_LEN];
    let (addresses, rest) = frame.prefix.split_at(ADDRESSES_LEN);
    headers[..ADDRESSES_LEN].copy_from_slice(addresses);
    headers[ADDRESSES_LEN..][..2].copy_from_slice(&TYPE_VLAN.to_be_bytes());
    headers[ADDRESSES_LEN + 2..][..2].copy_from_slice(&vid.to_be_bytes());
    let behind = &mut headers[ADDRESSES_LEN + TAG_LEN..len];
    behind.copy_from_slice(&rest[..behind.len()]);
    let vnet = shifted(frame.vnet, |offset| offset.saturating_add(TAG_LEN as u16));
    let whole = frame.len + TAG_LEN as u32;
    spliced(frame, vnet, &headers[..len], len - TAG_LEN, whole, f)
}

/// Calls `f` with `frame` without its outermost tag, which [is whole](outer_vid).
pub fn without_tag<R>(frame: &Frame<'_>, f: impl FnOnce(&Frame<'_>) -> R) -> R {
    let skip = frame.prefix.len().min(PREFIX_LEN);
    let len = skip - TAG_LEN;
    let mut headers = [0; PREFIX_LEN];
    headers[..ADDRESSES_LEN].copy_from_slice(&frame.prefix[..ADDRESSES_LEN]);
    headers[ADDRESSES_LEN..len].copy_from_slice(&frame.prefix[ADDRESSES_LEN + TAG_LEN..skip]);
    let vnet = header_without_tag(frame.vnet);
    spliced(frame, vnet, &headers[..len], skip, frame.len - TAG_LEN as u32, f)
}

/// The virtio-net header of a frame whose outermost tag goes.
#[must_use]
pub fn header_without_tag(vnet: VnetHdr) -> VnetHdr {
    shifted(vnet, |offset| offset.saturating_sub(TAG_LEN as u16))
}

/// The bytes of a frame without its outermost tag, which [is whole](outer_vid).
#[must_use]
pub fn bytes_without_tag(bytes: &[u8]) -> Vec<u8> {
    [&bytes[..ADDRESSES_LEN], &bytes[ADDRESSES_LEN + TAG_LEN..]].concat()
}

/// The header of a frame whose offsets have changed.
fn shifted(vnet: VnetHdr, shift: impl Fn(u16) -> u16) -> VnetHdr {
    let csum_start = if vnet.needs_csum() { shift(vnet.csum_start) } else { vnet.csum_start };
    let hdr_len = if vnet.hdr_len == 0 { 0 } else { shift(vnet.hdr_len) };
    VnetHdr { csum_start, hdr_len, ..vnet }
}

#[cfg(test)]
mod tests {
    use floodway_wire::ethernet::{TYPE_QINQ, TYPE_VLAN};
    use proptest::prelude::*;

    use super::*;
    use crate::frame::iovec::GuestIoVec;
    use crate::frame::with_slice;
    use crate::testing::frames::{mac, partial, pattern, tcp, verified};
    use floodway_wire::build::Link;

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.append_to(&mut bytes);
        assert_eq!(bytes.len(), frame.len as usize);
        assert_eq!(bytes[..frame.prefix.len()], *frame.prefix);
        assert_eq!(frame.parts[0].len(), frame.prefix.len());
        bytes
    }

    #[test]
    fn a_tag_is_where_the_standard_wants_it() {
        let mut segment = tcp(1, 2, false);
        let plain = segment.build_partial(&pattern(1, 3000));
        segment.link = segment.link.clone().tagged(TYPE_VLAN, 10);
        let tagged = segment.build_partial(&pattern(1, 3000));
        with_slice(partial(&plain, 1448), &plain, |frame| {
            with_tag(frame, 10, |frame| {
                assert_eq!((frame.vnet, bytes_of(frame)), (partial(&tagged, 1448), tagged.clone()));
            });
        });
        with_slice(partial(&tagged, 1448), &tagged, |frame| {
            assert_eq!(outer_vid(frame.prefix), Some(10));
            without_tag(frame, |frame| {
                assert_eq!((frame.vnet, bytes_of(frame)), (partial(&plain, 1448), plain.clone()));
            });
        });
        assert_eq!(bytes_without_tag(&tagged), plain);
        assert_eq!(verified(&segment.build(&[1; 9])).vlan.outer_vid(), Some(10));
    }

    #[test]
    fn only_whole_tags_of_802_1q_count() {
        let link = Link::new(mac(2), mac(1));
        let tagged = link.clone().tagged(TYPE_VLAN, 0xe00a).frame(0x0800, &[]);
        assert_eq!(outer_vid(&tagged), Some(10));
        assert_eq!(outer_vid(&tagged[..17]), None);
        assert_eq!(outer_vid(&link.clone().tagged(TYPE_QINQ, 10).frame(0x0800, &[])), None);
        assert_eq!(outer_vid(&link.frame(0x0800, &[0; 46])), None);
    }

    proptest! {
        /// However a frame lies in memory, a tag that is put on and taken off leaves it as it was.
        #[test]
        fn on_and_off_again_is_the_same(len in 14_usize..400, cuts in proptest::collection::vec(0_usize..400, 0..30)) {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let prefix = len.min(PREFIX_LEN);
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.clamp(prefix, len)).collect();
            cuts.extend([prefix, len]);
            cuts.sort_unstable();
            let mut parts = vec![GuestIoVec::from_slice(&bytes[..prefix])];
            parts.extend(cuts.windows(2).map(|cut| GuestIoVec::from_slice(&bytes[cut[0]..cut[1]])));
            let frame = Frame { vnet: VnetHdr::default(), prefix: &bytes[..prefix], parts: &parts, len: len as u32 };
            with_tag(&frame, 4094, |tagged| {
                assert_eq!(bytes_without_tag(&bytes_of(tagged)), bytes);
                if len >= 18 {
                    assert_eq!(outer_vid(tagged.prefix), Some(4094));
                }
                without_tag(tagged, |plain| assert_eq!(bytes_of(plain), bytes));
            });
        }
    }
}
