//! The spoof check: what a port may claim, and that nothing hides a false claim.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use floodway_core::l2::{SourcePolicy, Spoof};
use floodway_wire::ethernet::MacAddr;
use proptest::prelude::*;

const MINE: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);
const MY_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OTHER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const MY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const OTHER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
/// That of [`MINE`].
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0x00ff, 0xfe00, 1);

const UDP: u8 = 17;
const ICMPV6: u8 = 58;

fn policy() -> SourcePolicy {
    SourcePolicy {
        mac: Some(MINE),
        ips: vec![IpAddr::V4(MY_V4), IpAddr::V6(MY_V6)],
        ..SourcePolicy::default()
    }
}

fn ethernet(src: MacAddr, types: &[u8], payload: &[u8]) -> Vec<u8> {
    [&[0xff; 6], &src.0, types, payload].concat()
}

fn ipv4(src: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP, 0, 0];
    packet.extend(src.octets());
    packet.extend([10, 0, 0, 9]);
    packet.extend([0; 8]);
    packet
}

fn arp(sender_mac: MacAddr, sender: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend(sender_mac.0);
    packet.extend(sender.octets());
    packet.extend([0; 10]);
    packet
}

fn ipv6(src: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next_header, 255];
    packet.extend(src.octets());
    packet.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
    packet.extend(payload);
    packet
}

fn advertisement(target: Ipv6Addr) -> Vec<u8> {
    [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &target.octets()].concat()
}

fn check_v4(src: Ipv4Addr) -> Result<(), Spoof> {
    policy().check(&ethernet(MINE, &[8, 0], &ipv4(src)))
}

fn check_v6(src: Ipv6Addr, next_header: u8, payload: &[u8]) -> Result<(), Spoof> {
    policy().check(&ethernet(MINE, &[0x86, 0xdd], &ipv6(src, next_header, payload)))
}

#[test]
fn the_mac_address() {
    let mac_only = SourcePolicy { mac: Some(MINE), ..SourcePolicy::default() };
    assert!(!mac_only.looks_inside() && policy().looks_inside());
    assert_eq!(mac_only.check_mac(MINE), Ok(()));
    assert_eq!(mac_only.check_mac(OTHER), Err(Spoof::Mac));
    assert_eq!(SourcePolicy::default().check_mac(OTHER), Ok(()));
    for policy in [mac_only, policy()] {
        let frame = |src| ethernet(src, &[8, 0], &ipv4(MY_V4));
        assert_eq!(policy.check(&frame(MINE)), Ok(()));
        assert_eq!(policy.check(&frame(OTHER)), Err(Spoof::Mac));
        assert_eq!(policy.check(&frame(MINE)[..13]), Err(Spoof::Mac));
    }
}

#[test]
fn ipv4_source() {
    assert_eq!(check_v4(MY_V4), Ok(()));
    assert_eq!(check_v4(OTHER_V4), Err(Spoof::Ip));
    let no_ips = SourcePolicy { mac: Some(MINE), ..SourcePolicy::default() };
    assert_eq!(no_ips.check(&ethernet(MINE, &[8, 0], &ipv4(OTHER_V4))), Ok(()));
}

#[test]
fn arp_and_rarp_senders() {
    for ethertype in [[8, 6], [0x80, 0x35]] {
        let check = |mac, ip| policy().check(&ethernet(MINE, &ethertype, &arp(mac, ip)));
        assert_eq!(check(MINE, MY_V4), Ok(()));
        assert_eq!(check(MINE, Ipv4Addr::UNSPECIFIED), Ok(()));
        assert_eq!(check(MINE, OTHER_V4), Err(Spoof::Ip));
        assert_eq!(check(OTHER, MY_V4), Err(Spoof::Mac));
        let mut odd = arp(MINE, MY_V4);
        odd[4] = 8;
        assert_eq!(policy().check(&ethernet(MINE, &ethertype, &odd)), Err(Spoof::Ip));
    }
}

#[test]
fn ipv6_source_and_advertised_target() {
    for src in [MY_V6, LINK_LOCAL] {
        assert_eq!(check_v6(src, UDP, &[0; 8]), Ok(()));
    }
    assert_eq!(check_v6(OTHER_V6, UDP, &[0; 8]), Err(Spoof::Ip));
    assert_eq!(check_v6(LINK_LOCAL, ICMPV6, &advertisement(MY_V6)), Ok(()));
    assert_eq!(check_v6(LINK_LOCAL, ICMPV6, &advertisement(OTHER_V6)), Err(Spoof::Ip));
    // Hidden behind a hop-by-hop header.
    let hidden = [&[ICMPV6, 0, 1, 4, 0, 0, 0, 0][..], &advertisement(OTHER_V6)].concat();
    assert_eq!(check_v6(LINK_LOCAL, 0, &hidden), Err(Spoof::Ip));
    // A solicitation asks for anybody's address.
    let mut solicitation = advertisement(OTHER_V6);
    solicitation[0] = 135;
    assert_eq!(check_v6(LINK_LOCAL, ICMPV6, &solicitation), Ok(()));
}

#[test]
fn tags_do_not_hide_a_packet() {
    for tags in [&[0x81, 0, 0, 5][..], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 5]] {
        let check = |ip| policy().check(&ethernet(MINE, &[tags, &[8, 0]].concat(), &ipv4(ip)));
        assert_eq!(check(MY_V4), Ok(()));
        assert_eq!(check(OTHER_V4), Err(Spoof::Ip));
    }
    let deep = [0x81, 0, 0, 0].repeat(3);
    let frame = ethernet(MINE, &[&deep[..], &[8, 0]].concat(), &ipv4(OTHER_V4));
    assert!(policy().check(&frame).is_err());
}

#[test]
fn what_carries_no_address_passes() {
    assert_eq!(policy().check(&ethernet(MINE, &[0x88, 0xcc], &[1, 2, 3])), Ok(()));
}

proptest! {
    /// Cut anywhere, a frame with a false claim never passes, and nothing panics.
    #[test]
    fn a_cut_frame_never_passes(end in 0_usize..200, which in 0_usize..4) {
        let frame = match which {
            0 => ethernet(MINE, &[8, 0], &ipv4(OTHER_V4)),
            1 => ethernet(MINE, &[8, 6], &arp(MINE, OTHER_V4)),
            2 => ethernet(MINE, &[0x86, 0xdd], &ipv6(OTHER_V6, UDP, &[0; 8])),
            _ => ethernet(MINE, &[0x86, 0xdd], &ipv6(LINK_LOCAL, ICMPV6, &advertisement(OTHER_V6))),
        };
        prop_assert!(policy().check(&frame[..end.min(frame.len())]).is_err());
    }

    /// Whatever else is in the packet, a false source does not pass.
    #[test]
    fn nothing_redeems_a_false_source(rest in proptest::collection::vec(any::<u8>(), 60..120), v6 in any::<bool>()) {
        let false_claim = if v6 { ipv6(OTHER_V6, UDP, &[]) } else { ipv4(OTHER_V4) };
        let source = if v6 { 8..24 } else { 12..16 };
        let mut packet = rest;
        packet[0] = false_claim[0] | packet[0] & 15;
        packet[source.clone()].copy_from_slice(&false_claim[source]);
        let types = if v6 { [0x86, 0xdd] } else { [8, 0] };
        prop_assert_eq!(policy().check(&ethernet(MINE, &types, &packet)), Err(Spoof::Ip));
    }
}
