//! The traffic class (DSCP and ECN) of a frame, wherever it lies, read and changed in place.
//!
//! # Theory of operation
//! A switch on the way looks at the byte behind the version field and asks nothing else of the packet. So these edits
//! go by the `EtherType` alone, behind at most two VLAN tags: a packet that [`parse`](crate::parse()) refuses (a length that
//! does not fit, an unknown version) is edited all the same, and a sender cannot keep its own code point by
//! breaking another field. The IPv4 header checksum is updated, not computed anew (RFC 1624), so a wrong one
//! stays as wrong as it was. A frame that ends inside the header is edited as far as it goes.
//!
//! Source: RFC 2474 (DS field), RFC 3168 (ECN), RFC 8200 section 7 (IPv6 traffic class).

use crate::checksum;
use crate::ethernet::{self, TYPE_IPV4, TYPE_IPV6};

/// Congestion experienced (RFC 3168).
pub const CE: u8 = 3;

/// Where the field lies.
#[derive(Clone, Copy)]
enum Place {
    /// The header starts here.
    V4(usize),
    V6(usize),
}

/// The traffic class of the IP packet in the frame that starts with `prefix`; `None` if it carries none, or ends too
/// early.
#[must_use]
pub fn traffic_class(prefix: &[u8]) -> Option<u8> {
    read(prefix, place(prefix)?)
}

fn read(prefix: &[u8], place: Place) -> Option<u8> {
    match place {
        Place::V4(at) => prefix.get(at + 1).copied(),
        Place::V6(at) => match prefix.get(at..at + 2)? {
            &[first, second] => Some(first << 4 | second >> 4),
            _ => None,
        },
    }
}

/// Sets the DSCP (0 to 63; higher bits are ignored) and keeps ECN. Returns whether there was a packet to set it in.
pub fn set_dscp(prefix: &mut [u8], dscp: u8) -> bool {
    edit(prefix, |class| dscp << 2 | class & 3).is_some()
}

/// Sets the ECN field to CE if the packet is ECN-capable. Returns whether it carries CE now.
pub fn mark_ce(prefix: &mut [u8]) -> bool {
    edit(prefix, |class| if class & 3 == 0 { class } else { class | CE })
        .is_some_and(|class| class & 3 == CE)
}

fn place(prefix: &[u8]) -> Option<Place> {
    let link = ethernet::Header::parse(prefix).ok()?;
    match link.ethertype {
        TYPE_IPV4 => Some(Place::V4(link.len.into())),
        TYPE_IPV6 => Some(Place::V6(link.len.into())),
        _ => None,
    }
}

/// Changes the field, if there is one; answers what it is now.
#[inline]
fn edit(prefix: &mut [u8], change: impl FnOnce(u8) -> u8) -> Option<u8> {
    let place = place(prefix)?;
    let old = read(prefix, place)?;
    let new = change(old);
    if new == old {
        return Some(old);
    }
    match place {
        Place::V4(at) => set_v4(&mut prefix[at..], new),
        Place::V6(at) => {
            if let Some([first, second]) = prefix.get_mut(at..at + 2) {
                *first = *first & 0xf0 | new >> 4;
                *second = new << 4 | *second & 0x0f;
            }
        }
    }
    Some(new)
}

/// `header` has at least two bytes.
fn set_v4(header: &mut [u8], new: u8) {
    let (version, old) = (header[0], header[1]);
    header[1] = new;
    if let Some(field) = header.get_mut(10..12) {
        let before = u16::from_be_bytes([field[0], field[1]]);
        let word = |class| u16::from_be_bytes([version, class]);
        let after = checksum::update_u16(before, word(old), word(new));
        field.copy_from_slice(&after.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::build::{self, Link, Tcp};
    use crate::{MacAddr, ipv4, parse};
    use proptest::prelude::*;

    const SOCKETS: [(&str, &str); 2] =
        [("10.0.0.1:1000", "10.0.0.2:80"), ("[fd00::1]:1000", "[fd00::2]:80")];

    fn links() -> [Link; 3] {
        let link = Link::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let tagged = link.clone().tagged(ethernet::TYPE_VLAN, 0xe007);
        let twice = link.clone().tagged(ethernet::TYPE_QINQ, 100).tagged(ethernet::TYPE_VLAN, 7);
        [link, tagged, twice]
    }

    /// TCP segments of both families behind none, one and two tags.
    fn frames(class: u8) -> impl Iterator<Item = Vec<u8>> {
        links().into_iter().flat_map(move |link| {
            SOCKETS.map(|(src, dst)| {
                let address = |text: &str| text.parse::<SocketAddr>().unwrap();
                let mut tcp = Tcp::new(link.clone(), address(src), address(dst));
                tcp.ip.traffic_class = class;
                tcp.build(b"payload")
            })
        })
    }

    fn header_checksum_ok(frame: &[u8]) -> bool {
        let meta = parse(frame, frame.len()).unwrap();
        let header = ipv4::Header::parse(&frame[usize::from(meta.network_offset)..]);
        header.map_or(meta.flow.is_ipv6, |header| header.checksum_ok())
    }

    proptest! {
        /// Only the field changes, the header checksum stays right, and no other checksum covers it.
        #[test]
        fn dscp_is_ours_and_ecn_is_theirs(class: u8, dscp in 0u8..64) {
            for original in frames(class) {
                let mut frame = original.clone();
                prop_assert_eq!(traffic_class(&frame), Some(class));
                prop_assert!(set_dscp(&mut frame, dscp));
                prop_assert_eq!(traffic_class(&frame), Some(dscp << 2 | class & 3));
                prop_assert!(header_checksum_ok(&frame));
                let meta = parse(&frame, frame.len()).unwrap();
                prop_assert_eq!(meta.traffic_class, dscp << 2 | class & 3);
                let transport = checksum::verify_transport(&frame, &meta).unwrap();
                prop_assert_eq!(transport, checksum::Verification::Good);
                set_dscp(&mut frame, class >> 2);
                prop_assert_eq!(frame, original);
            }
        }

        #[test]
        fn ce_is_set_only_where_the_sender_allows_it(class: u8) {
            for original in frames(class) {
                let mut frame = original.clone();
                let marked = mark_ce(&mut frame);
                prop_assert_eq!(marked, class & 3 != 0);
                let expected = if marked { class | CE } else { class };
                prop_assert_eq!(traffic_class(&frame), Some(expected));
                prop_assert!(header_checksum_ok(&frame));
            }
        }

        #[test]
        fn any_bytes_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), dscp: u8) {
            let before = bytes.clone();
            let edited = set_dscp(&mut bytes, dscp);
            prop_assert!(edited || bytes == before);
            mark_ce(&mut bytes);
        }
    }

    /// What makes a parser give up does not save a code point.
    #[test]
    fn broken_packets_are_edited_too() {
        for original in frames(46 << 2 | 1) {
            let at = usize::from(parse(&original, original.len()).unwrap().network_offset);
            for (field, value) in [(0, 0x0f), (0, 0xff), (2, 0xff), (4, 0xff), (6, 0)] {
                let mut frame = original.clone();
                frame[at + field] = value & 0xf0 | frame[at + field] & 0x0f;
                assert!(set_dscp(&mut frame, 0));
                assert_eq!(traffic_class(&frame).unwrap() >> 2, 0);
            }
            for len in at + 2..at + 40 {
                let mut cut = original[..len].to_vec();
                assert!(set_dscp(&mut cut, 0));
                assert_eq!(traffic_class(&cut).unwrap() >> 2, 0, "{len}");
            }
        }
    }

    #[test]
    fn what_is_not_ip_is_left_alone() {
        let link = &links()[0];
        let addresses =
            ["10.0.0.1:1", "10.0.0.2:2"].map(|text| text.parse::<SocketAddr>().unwrap());
        let mut udp = build::udp(link, addresses[0], addresses[1], b"");
        udp[12..14].copy_from_slice(&[0x08, 0x06]);
        let before = udp.clone();
        assert!(!set_dscp(&mut udp, 46) && !mark_ce(&mut udp) && traffic_class(&udp).is_none());
        assert_eq!(udp, before);
    }
}
