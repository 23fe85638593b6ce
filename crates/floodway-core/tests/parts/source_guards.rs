//! What a port with `ips` may claim in neighbour discovery, and what only routers and DHCP servers may send: every forgery is
//! refused, however it is wrapped, and every message of an honest guest passes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::slice;

use floodway_core::l2::{SourcePolicy, Spoof};
use floodway_wire::arp;
use floodway_wire::build::{self, Ip, Link};
use floodway_wire::ethernet::{self, MacAddr};
use floodway_wire::ipv6::{NEXT_DESTINATION, NEXT_FRAGMENT, NEXT_HOP_BY_HOP, NEXT_ROUTING};

const MINE: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);
const MY_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SECOND_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
const OTHER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const MY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const OTHER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
/// The link-local address that stacks derive from [`MINE`] (RFC 4291 appendix A).
const MY_EUI64: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0x00ff, 0xfe00, 1);
const OTHER_EUI64: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0x00ff, 0xfe00, 2);
/// A link-local address that is configured for the port (RFC 7217).
const MY_STABLE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4);
const GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
const ICMPV6: u8 = 58;
const UDP: u8 = 17;

fn policy() -> SourcePolicy {
    SourcePolicy {
        mac: Some(MINE),
        ips: vec![MY_V4.into(), SECOND_V4.into(), MY_V6.into(), MY_STABLE.into()],
        router_guard: true,
        dhcp_guard: true,
    }
}

fn router() -> SourcePolicy {
    SourcePolicy { router_guard: false, ..policy() }
}

fn dhcp_server() -> SourcePolicy {
    SourcePolicy { dhcp_guard: false, ..policy() }
}

fn link() -> Link {
    Link::new(MINE, MacAddr::BROADCAST)
}

/// An ND option that carries a link-layer address.
fn option(kind: u8, mac: MacAddr) -> Vec<u8> {
    [&[kind, 1][..], &mac.0].concat()
}

/// A solicitation (135) or an advertisement (136).
fn neighbour(kind: u8, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0x20, 0, 0, 0][..], &target.octets(), options].concat()
}

fn router_solicitation(options: &[u8]) -> Vec<u8> {
    [&[133, 0, 0, 0, 0, 0, 0, 0][..], options].concat()
}

fn router_advertisement(options: &[u8]) -> Vec<u8> {
    [&[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], options].concat()
}

fn redirect() -> Vec<u8> {
    [&[137, 0, 0, 0, 0, 0, 0, 0][..], &GATEWAY.octets(), &OTHER_V6.octets()].concat()
}

fn icmpv6(src: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    Ip { ttl: 255, ..Ip::new(src.into(), ALL_NODES.into()) }.frame(&link(), ICMPV6, message)
}

/// `packet` of upper-layer `protocol` behind the extension headers in `chain`: number and bytes.
fn behind(src: Ipv6Addr, chain: &[(u8, Vec<u8>)], protocol: u8, packet: &[u8]) -> Vec<u8> {
    let numbers = chain.iter().map(|(number, _)| *number).chain([protocol]).collect::<Vec<_>>();
    let headers = chain.iter().zip(&numbers[1..]).flat_map(|((_, bytes), next)| {
        let mut bytes = bytes.clone();
        bytes[0] = *next;
        bytes
    });
    let ip = Ip {
        ttl: 255,
        options: headers.collect(),
        first_extension: Some(numbers[0]),
        ..Ip::new(src.into(), ALL_NODES.into())
    };
    ip.frame(&link(), protocol, packet)
}

fn options_header(number: u8) -> (u8, Vec<u8>) {
    (number, vec![0, 0, 1, 4, 0, 0, 0, 0])
}

/// `offset` in units of 8 bytes.
fn fragment_header(offset: u16, more: bool) -> (u8, Vec<u8>) {
    let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
    (NEXT_FRAGMENT, vec![0, 0, high, low, 0, 0, 0, 7])
}

fn udp(src: impl Into<IpAddr>, ports: (u16, u16), dst: IpAddr, payload: &[u8]) -> Vec<u8> {
    let to = |ip: IpAddr, port| SocketAddr::new(ip, port);
    build::udp(&link(), to(src.into(), ports.0), to(dst, ports.1), payload)
}

fn v4_broadcast() -> IpAddr {
    Ipv4Addr::BROADCAST.into()
}

fn arp(operation: u16, mac: MacAddr, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    link().arp(&arp::Packet {
        operation,
        sender_mac: mac,
        sender_ip: sender,
        target_mac: MacAddr::default(),
        target_ip: target,
    })
}

#[track_caller]
fn refused(frame: &[u8], why: Spoof) {
    assert_eq!(policy().check(frame), Err(why), "{frame:02x?}");
}

#[track_caller]
fn passes(frame: &[u8]) {
    assert_eq!(policy().check(frame), Ok(()), "{frame:02x?}");
}

#[test]
fn a_link_local_address_must_be_the_eui_64_of_the_mac_address_or_configured() {
    for mine in [MY_EUI64, MY_STABLE, MY_V6] {
        passes(&udp(mine, (9, 9), OTHER_V6.into(), b"x"));
        passes(&icmpv6(mine, &neighbour(136, mine, &option(TARGET_MAC, MINE))));
    }
    for others in [GATEWAY, OTHER_EUI64, OTHER_V6] {
        refused(&udp(others, (9, 9), OTHER_V6.into(), b"x"), Spoof::Ip);
        refused(&icmpv6(others, &neighbour(135, MY_V6, &[])), Spoof::Ip);
        refused(&icmpv6(MY_V6, &neighbour(136, others, &[])), Spoof::Ip);
    }
    refused(&icmpv6(MY_V6, &neighbour(136, Ipv6Addr::UNSPECIFIED, &[])), Spoof::Ip);
}

#[test]
fn a_refused_link_local_address_is_named() {
    let named = |frame: &[u8]| policy().refused_link_local(frame);
    let unspecified = Ipv6Addr::UNSPECIFIED;
    assert_eq!(named(&udp(GATEWAY, (9, 9), OTHER_V6.into(), b"x")), Some(GATEWAY));
    for (src, kind) in [(unspecified, 135), (GATEWAY, 135), (MY_EUI64, 136), (MY_V6, 136)] {
        assert_eq!(named(&icmpv6(src, &neighbour(kind, GATEWAY, &[]))), Some(GATEWAY));
    }
    for mine in [MY_EUI64, MY_STABLE, MY_V6] {
        assert_eq!(named(&udp(mine, (9, 9), GATEWAY.into(), b"x")), None);
        assert_eq!(named(&icmpv6(unspecified, &neighbour(135, mine, &[]))), None);
    }
    assert_eq!(named(&udp(OTHER_V6, (9, 9), GATEWAY.into(), b"x")), None, "not link-local");
    assert_eq!(named(&icmpv6(MY_EUI64, &neighbour(135, GATEWAY, &[]))), None, "looks for it");
    assert_eq!(named(&arp(arp::REQUEST, MINE, OTHER_V4, MY_V4)), None);
    let whole = icmpv6(unspecified, &neighbour(135, GATEWAY, &[]));
    (0..whole.len()).for_each(|len| assert_eq!(named(&whole[..len]), None));
}

#[test]
fn without_a_configured_mac_address_the_frames_own_source_stands_for_it() {
    let any_mac = SourcePolicy { mac: None, ..policy() };
    let from = |mac: MacAddr, src: Ipv6Addr, named: MacAddr| {
        let ip = Ip::new(src.into(), ALL_NODES.into());
        let message = neighbour(136, src, &option(TARGET_MAC, named));
        any_mac.check(&ip.frame(&Link::new(mac, MacAddr::BROADCAST), ICMPV6, &message))
    };
    assert_eq!(from(OTHER, OTHER_EUI64, OTHER), Ok(()));
    assert_eq!(from(OTHER, MY_EUI64, OTHER), Err(Spoof::Ip));
    assert_eq!(from(OTHER, OTHER_EUI64, MINE), Err(Spoof::Mac));
    let request = arp(arp::REQUEST, OTHER, MY_V4, OTHER_V4);
    assert_eq!(any_mac.check(&request), Err(Spoof::Mac));
}

#[test]
fn a_link_layer_option_must_name_the_ports_mac_address() {
    for (kind, options_of) in
        [(136, TARGET_MAC), (135, SOURCE_MAC), (135, TARGET_MAC), (136, SOURCE_MAC)]
    {
        refused(&icmpv6(MY_V6, &neighbour(kind, MY_V6, &option(options_of, OTHER))), Spoof::Mac);
    }
    refused(&icmpv6(MY_EUI64, &router_solicitation(&option(SOURCE_MAC, OTHER))), Spoof::Mac);
    let hidden = [vec![14, 1, 0, 0, 0, 0, 0, 0], option(TARGET_MAC, OTHER)].concat();
    refused(&icmpv6(MY_V6, &neighbour(136, MY_V6, &hidden)), Spoof::Mac);
    let second = [option(TARGET_MAC, MINE), option(TARGET_MAC, OTHER)].concat();
    refused(&icmpv6(MY_V6, &neighbour(136, MY_V6, &second)), Spoof::Mac);
    let advertised = icmpv6(MY_EUI64, &router_advertisement(&option(SOURCE_MAC, OTHER)));
    assert_eq!(router().check(&advertised), Err(Spoof::Mac));
}

#[test]
fn options_that_cannot_be_read_to_the_end_are_refused() {
    for broken in
        [&[2, 0, 0, 0, 0, 0, 0, 0][..], &[2, 1, 0, 0], &[2], &[2, 2, 0x52, 0x54, 0, 0, 0, 1]]
    {
        refused(&icmpv6(MY_V6, &neighbour(136, MY_V6, broken)), Spoof::Ip);
    }
    // An address of another length is no Ethernet address.
    let long = [&[2, 2][..], &MINE.0, &[0; 8]].concat();
    refused(&icmpv6(MY_V6, &neighbour(136, MY_V6, &long)), Spoof::Ip);
    // The forged option lies beyond what is copied out of the guest's memory.
    let filler = [&[14, 12][..], &[0; 94], &option(TARGET_MAC, OTHER)].concat();
    let frame = icmpv6(MY_V6, &neighbour(136, MY_V6, &filler));
    assert!(frame.len() > 128);
    assert_eq!(policy().check(&frame[..128]), Err(Spoof::Ip));
}

#[test]
fn duplicate_address_detection_of_others_addresses_is_refused() {
    let probe = |target| icmpv6(Ipv6Addr::UNSPECIFIED, &neighbour(135, target, &[]));
    for others in [OTHER_V6, GATEWAY, OTHER_EUI64] {
        refused(&probe(others), Spoof::Ip);
    }
    for mine in [MY_V6, MY_EUI64, MY_STABLE] {
        passes(&probe(mine));
    }
    refused(&arp(arp::REQUEST, MINE, Ipv4Addr::UNSPECIFIED, OTHER_V4), Spoof::Ip);
    passes(&arp(arp::REQUEST, MINE, Ipv4Addr::UNSPECIFIED, MY_V4));
}

#[test]
fn the_unspecified_address_sends_only_what_hosts_send_from_it() {
    let none = Ipv6Addr::UNSPECIFIED;
    refused(&udp(none, (546, 547), ALL_NODES.into(), &[1]), Spoof::Ip);
    refused(&icmpv6(none, &[128, 0, 0, 0, 0, 1, 0, 1]), Spoof::Ip);
    refused(&icmpv6(none, &neighbour(136, MY_V6, &[])), Spoof::Ip);
    refused(&behind(none, &[fragment_header(1, false)], ICMPV6, &[0; 16]), Spoof::Ip);

    let none = Ipv4Addr::UNSPECIFIED;
    refused(&udp(none, (53, 53), v4_broadcast(), b"x"), Spoof::Ip);
    refused(&udp(none, (67, 68), v4_broadcast(), &[2]), Spoof::Ip);
    let ping = Ip::new(none.into(), v4_broadcast()).frame(&link(), 1, &[8, 0, 0, 0, 0, 1, 0, 1]);
    refused(&ping, Spoof::Ip);
}

#[test]
fn router_advertisements_and_redirects_need_permission() {
    for message in [router_advertisement(&option(SOURCE_MAC, MINE)), redirect()] {
        let frame = icmpv6(MY_EUI64, &message);
        refused(&frame, Spoof::Router);
        assert_eq!(router().check(&frame), Ok(()));
        assert_eq!(dhcp_server().check(&frame), Err(Spoof::Router));
    }
    // Redirect (RFC 792) and router advertisement (RFC 1256) of IPv4.
    for kind in [5, 9] {
        let frame =
            Ip::new(MY_V4.into(), OTHER_V4.into()).frame(&link(), 1, &[kind, 0, 0, 0, 0, 0, 0, 0]);
        refused(&frame, Spoof::Router);
        assert_eq!(router().check(&frame), Ok(()));
    }
}

/// RFC 7113: extension headers in front of the advertisement.
#[test]
fn a_router_advertisement_behind_extension_headers_is_found() {
    let message = router_advertisement(&[]);
    for chain in [
        vec![options_header(NEXT_HOP_BY_HOP)],
        vec![options_header(NEXT_DESTINATION)],
        vec![options_header(NEXT_DESTINATION), options_header(NEXT_DESTINATION)],
        vec![(NEXT_ROUTING, vec![0, 0, 4, 0, 0, 0, 0, 0])],
        vec![options_header(NEXT_HOP_BY_HOP), fragment_header(0, false)],
        vec![fragment_header(0, false), options_header(NEXT_DESTINATION)],
    ] {
        refused(&behind(MY_EUI64, &chain, ICMPV6, &message), Spoof::Router);
    }
    // More than can be looked at, by number or by length, does not pass unseen either.
    let many = vec![options_header(NEXT_DESTINATION); 9];
    refused(&behind(MY_EUI64, &many, ICMPV6, &message), Spoof::Ip);
    let long = (NEXT_DESTINATION, [&[0, 15, 1, 124][..], &[0; 124]].concat());
    let frame = behind(MY_EUI64, &[long], ICMPV6, &message);
    assert_eq!(policy().check(&frame[..128]), Err(Spoof::Ip));
    // Headers that only some hosts know how to skip: HIP, Shim6, experiments.
    for number in [139, 140, 253, 254] {
        refused(&behind(MY_EUI64, &[(number, vec![0; 8])], ICMPV6, &message), Spoof::Ip);
    }
}

/// RFC 7113 and RFC 6980: the first fragment must show what it is, and neighbour discovery is never fragmented.
#[test]
fn a_router_advertisement_in_fragments_is_refused_at_its_first_fragment() {
    let message = router_advertisement(&option(SOURCE_MAC, MINE));
    let first = fragment_header(0, true);
    refused(&behind(MY_EUI64, slice::from_ref(&first), ICMPV6, &message[..16]), Spoof::Router);
    let more = [first.clone(), options_header(NEXT_DESTINATION)];
    refused(&behind(MY_EUI64, &more, ICMPV6, &message[..8]), Spoof::Router);
    // The chain is not whole in the first fragment: the type comes with the second.
    let cut = (NEXT_DESTINATION, vec![0, 2, 1, 4, 0, 0, 0, 0]);
    refused(&behind(MY_EUI64, &[first.clone(), cut], ICMPV6, &[]), Spoof::Ip);
    refused(
        &behind(MY_EUI64, &[first.clone(), options_header(NEXT_DESTINATION)], ICMPV6, &[]),
        Spoof::Ip,
    );
    // A fragment of a fragment.
    refused(&behind(MY_EUI64, &[first.clone(), first.clone()], ICMPV6, &message), Spoof::Ip);
    for kind in [133, 135, 136] {
        let frame = behind(MY_EUI64, slice::from_ref(&first), ICMPV6, &neighbour(kind, MY_V6, &[]));
        refused(&frame, Spoof::Ip);
    }
    assert!(router().check(&behind(MY_EUI64, &[first], ICMPV6, &message)).is_err());
}

#[test]
fn fragments_of_other_packets_pass() {
    let chains = [fragment_header(0, true), fragment_header(1, true), fragment_header(2, false)];
    for chain in chains {
        passes(&behind(MY_V6, slice::from_ref(&chain), ICMPV6, &[128, 0, 0, 0, 0, 1, 0, 1]));
        passes(&behind(MY_V6, &[chain], UDP, &[0, 9, 0, 9, 5, 0, 0, 0]));
    }
    refused(&behind(OTHER_V6, &[fragment_header(1, false)], UDP, &[0; 8]), Spoof::Ip);
    for fragmentation in [0x2000, 0x2001, 0x0002] {
        let ip = Ip { fragmentation, ..Ip::new(MY_V4.into(), OTHER_V4.into()) };
        passes(&ip.frame(&link(), UDP, &[0, 9, 0, 9, 5, 0, 0, 0]));
        passes(&ip.frame(&link(), 1, &[8, 0, 0, 0, 0, 1, 0, 1]));
    }
}

#[test]
fn what_only_dhcp_servers_send_needs_permission() {
    let offer = udp(MY_V4, (67, 68), v4_broadcast(), &[2, 1, 6, 0]);
    let from_another_port = udp(MY_V4, (5000, 68), v4_broadcast(), &[2, 1, 6, 0]);
    let to_a_relay = udp(MY_V4, (67, 67), OTHER_V4.into(), &[2, 1, 6, 0]);
    for frame in [offer, from_another_port, to_a_relay] {
        refused(&frame, Spoof::DhcpServer);
        assert_eq!(dhcp_server().check(&frame), Ok(()));
        assert_eq!(router().check(&frame), Err(Spoof::DhcpServer));
    }
    let other = |last| IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last));
    let advertise = udp(MY_EUI64, (547, 546), other(9), &[2, 1, 2, 3]);
    let from_another_port = udp(MY_EUI64, (5000, 546), other(9), &[7, 1, 2, 3]);
    for frame in [advertise, from_another_port] {
        refused(&frame, Spoof::DhcpServer);
        assert_eq!(dhcp_server().check(&frame), Ok(()));
    }
    // Advertise, Reply, Reconfigure and Relay-reply to a relay agent.
    for kind in [2, 7, 10, 13] {
        refused(&udp(MY_EUI64, (547, 547), other(9), &[kind, 0, 0, 0]), Spoof::DhcpServer);
    }
}

/// RFC 7610: as with router advertisements, nothing hides a server's message.
#[test]
fn a_dhcp_servers_message_is_found_however_it_is_wrapped() {
    let reply = [0, 67, 0, 68, 0, 12, 0, 0, 2, 1, 6, 0];
    for fragmentation in [0x2000, 0] {
        let ip = Ip { fragmentation, ..Ip::new(MY_V4.into(), v4_broadcast()) };
        refused(&ip.frame(&link(), UDP, &reply), Spoof::DhcpServer);
        refused(&ip.frame(&link(), UDP, &reply[..3]), Spoof::Ip);
    }
    let options = Ip { options: vec![1; 40], ..Ip::new(MY_V4.into(), v4_broadcast()) };
    refused(&options.frame(&link(), UDP, &reply), Spoof::DhcpServer);
    // Split behind the header, so that the operation comes with the second fragment.
    let mut relayed = reply;
    relayed[3] = 67;
    let ip = Ip { fragmentation: 0x2000, ..Ip::new(MY_V4.into(), OTHER_V4.into()) };
    refused(&ip.frame(&link(), UDP, &relayed[..8]), Spoof::DhcpServer);

    let reply = [0x02, 0x23, 0x02, 0x22, 0, 12, 0, 0, 7, 0, 0, 1];
    for chain in [
        vec![options_header(NEXT_HOP_BY_HOP)],
        vec![fragment_header(0, true)],
        vec![fragment_header(0, false), options_header(NEXT_DESTINATION)],
    ] {
        refused(&behind(MY_EUI64, &chain, UDP, &reply), Spoof::DhcpServer);
        refused(&behind(MY_EUI64, &chain, UDP, &reply[..3]), Spoof::Ip);
    }
    let mut relayed = reply;
    relayed[3] = 0x23;
    refused(&behind(MY_EUI64, &[fragment_header(0, true)], UDP, &relayed[..8]), Spoof::DhcpServer);
}

#[test]
fn guards_hold_without_addresses_too() {
    let guards = SourcePolicy { router_guard: true, dhcp_guard: true, ..SourcePolicy::default() };
    assert!(guards.looks_inside() && !SourcePolicy::default().looks_inside());
    let advertised = icmpv6(GATEWAY, &router_advertisement(&[]));
    assert_eq!(guards.check(&advertised), Err(Spoof::Router));
    let offer = udp(OTHER_V4, (67, 68), v4_broadcast(), &[2]);
    assert_eq!(guards.check(&offer), Err(Spoof::DhcpServer));
    // Addresses are nobody's business then.
    for frame in [
        icmpv6(OTHER_V6, &neighbour(136, OTHER_V6, &option(TARGET_MAC, OTHER))),
        udp(OTHER_V4, (9, 9), v4_broadcast(), b"x"),
        arp(arp::REPLY, OTHER, OTHER_V4, OTHER_V4),
    ] {
        assert_eq!(guards.check(&frame), Ok(()));
    }
}

#[test]
fn llc_snap_frames_and_deep_tags_are_refused() {
    let ip = udp(OTHER_V4, (9, 9), v4_broadcast(), b"x")[14..].to_vec();
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ip].concat();
    for tagged in [link(), link().tagged(ethernet::TYPE_VLAN, 5)] {
        refused(&tagged.frame(snap.len() as u16, &snap), Spoof::Ip);
        // Also without SNAP (a bridge's BPDU), and with lengths that no frame has.
        refused(&tagged.frame(38, &[0x42, 0x42, 3, 0, 0, 0]), Spoof::Ip);
        refused(&tagged.frame(0x05ff, &snap), Spoof::Ip);
        passes(&tagged.frame(0x88cc, &[0; 46]));
    }
    let deep = (0..3).fold(link(), |link, vid| link.tagged(ethernet::TYPE_VLAN, vid));
    refused(&deep.frame(ethernet::TYPE_IPV4, &ip), Spoof::Ip);
}

#[test]
fn an_honest_hosts_ipv6_passes() {
    let none = Ipv6Addr::UNSPECIFIED;
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    // Address configuration: duplicate address detection (with RFC 7527's nonce), solicitation of routers.
    passes(&icmpv6(none, &neighbour(135, MY_EUI64, &nonce)));
    passes(&icmpv6(none, &router_solicitation(&[])));
    passes(&icmpv6(MY_EUI64, &router_solicitation(&option(SOURCE_MAC, MINE))));
    // Resolution, answers, and an unsolicited announcement.
    passes(&icmpv6(MY_V6, &neighbour(135, OTHER_V6, &option(SOURCE_MAC, MINE))));
    passes(&icmpv6(MY_EUI64, &neighbour(135, GATEWAY, &option(SOURCE_MAC, MINE))));
    passes(&icmpv6(MY_EUI64, &neighbour(136, MY_V6, &option(TARGET_MAC, MINE))));
    passes(&icmpv6(MY_V6, &neighbour(136, MY_V6, &[])));
    // DHCPv6 client: Solicit, Request, Renew, and a relay agent's forward.
    for kind in [1, 3, 5, 12] {
        passes(&udp(MY_EUI64, (546, 547), ALL_NODES.into(), &[kind, 0, 0, 1]));
    }
    // Mobility header, no next header, echo.
    passes(&behind(MY_V6, &[(135, vec![0; 8])], 59, &[]));
    passes(&icmpv6(MY_V6, &[128, 0, 0, 0, 0, 1, 0, 1]));
}

/// MLD: version 1 reports and done, version 2 reports, behind a router alert; before an address is usable from `::` (RFC 3590).
#[test]
fn multicast_listener_reports_pass() {
    let alert = (NEXT_HOP_BY_HOP, vec![0, 0, 5, 2, 0, 0, 1, 0]);
    for src in [MY_EUI64, MY_STABLE, Ipv6Addr::UNSPECIFIED] {
        for kind in [131, 132, 143] {
            passes(&behind(
                src,
                slice::from_ref(&alert),
                ICMPV6,
                &[&[kind][..], &[0; 27]].concat(),
            ));
        }
    }
    let forged = behind(OTHER_EUI64, &[alert], ICMPV6, &[&[143][..], &[0; 27]].concat());
    refused(&forged, Spoof::Ip);
}

#[test]
fn an_honest_hosts_ipv4_passes() {
    // DHCP: discover from no address, renewal by unicast; IGMP before an address is there.
    passes(&udp(Ipv4Addr::UNSPECIFIED, (68, 67), v4_broadcast(), &[1, 1, 6, 0]));
    passes(&udp(MY_V4, (68, 67), OTHER_V4.into(), &[1, 1, 6, 0]));
    for src in [Ipv4Addr::UNSPECIFIED, MY_V4] {
        let all_igmp = Ipv4Addr::new(224, 0, 0, 22);
        passes(&Ip::new(src.into(), all_igmp.into()).frame(
            &link(),
            2,
            &[0x22, 0, 0, 0, 0, 0, 0, 0],
        ));
    }
    // Gratuitous ARP, requests, replies, and the announcement that QEMU sends for a moved guest.
    passes(&arp(arp::REQUEST, MINE, MY_V4, MY_V4));
    passes(&arp(arp::REPLY, MINE, MY_V4, MY_V4));
    passes(&arp(arp::REQUEST, MINE, MY_V4, OTHER_V4));
    passes(&arp(arp::RARP_REQUEST, MINE, Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED));
    passes(&Ip::new(MY_V4.into(), OTHER_V4.into()).frame(&link(), 1, &[3, 1, 0, 0, 0, 0, 0, 0]));
}

/// A second address that moves between two guests (VRRP without a virtual MAC address) is configured for both.
#[test]
fn a_second_configured_address_is_announced_and_used() {
    passes(&arp(arp::REQUEST, MINE, SECOND_V4, SECOND_V4));
    passes(&udp(SECOND_V4, (9, 9), OTHER_V4.into(), b"x"));
    let vrrp_group = Ipv4Addr::new(224, 0, 0, 18);
    passes(&Ip::new(MY_V4.into(), vrrp_group.into()).frame(&link(), 112, &[0x21, 1, 100, 1]));
    refused(&arp(arp::REQUEST, MINE, OTHER_V4, OTHER_V4), Spoof::Ip);
}
