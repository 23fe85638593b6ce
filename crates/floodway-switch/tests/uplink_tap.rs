//! TAP uplinks on the real kernel, in network namespaces. Needs root and ip(8).

mod netns;

use std::net::UdpSocket;
use std::thread;
use std::time::Instant;

use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::uplink::tap::{self, TapReceiver, TapSender};
use floodway_switch::uplink::{OpenError, Receiver, SendError, Sender};
use floodway_wire::vnet::{F_NEEDS_CSUM, VnetHdr};
use netns::{Direction, Halves, Seen};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Opens the tap. It may be busy for a moment after it was closed: a child that another test of
/// this process starts has our descriptors until it runs its own program.
fn open() -> (TapReceiver, TapSender) {
    let deadline = Instant::now() + netns::PATIENCE;
    loop {
        match tap::open("fwt0") {
            Err(OpenError::Busy { .. }) if Instant::now() < deadline => thread::yield_now(),
            halves => return halves.expect("open the tap"),
        }
    }
}

/// The tap with the host's address 10.77.0.1 and a neighbour 10.77.0.2 that is us.
fn open_with_neighbour() -> (TapReceiver, TapSender) {
    let halves = open();
    netns::ip("addr add 10.77.0.1/24 dev fwt0");
    netns::ip("neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev fwt0");
    halves
}

fn arp_request() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(OURS);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(OURS);
    frame.extend([10, 77, 0, 2, 0, 0, 0, 0, 0, 0, 10, 77, 0, 1]);
    frame
}

fn is_arp_reply(frame: &[u8]) -> bool {
    frame[..6] == OURS && frame[12..14] == [8, 6] && frame[20..22] == [0, 2]
}

/// The host's MAC address, by ARP.
fn host_mac(receiver: &mut TapReceiver, sender: &mut TapSender) -> Vec<u8> {
    let request = arp_request();
    sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&request)]).expect("send");
    let (vnet, reply) = netns::receive(receiver, |_, frame| is_arp_reply(frame));
    assert!(!vnet.is_gso() && !vnet.needs_csum());
    assert_eq!(&reply[28..32], [10, 77, 0, 1]);
    reply[22..28].to_vec()
}

fn sum(words: &[u8]) -> u32 {
    words.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum()
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A UDP datagram from 10.77.0.2:7000 to 10.77.0.1:5000 with only the pseudo-header summed.
fn unfinished_datagram(to: &[u8], payload: &[u8]) -> Vec<u8> {
    let udp_len = (8 + payload.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
    let header_sum = !fold(sum(&ip));
    ip[10..12].copy_from_slice(&header_sum.to_be_bytes());
    let pseudo = fold(sum(&ip[12..20]) + 17 + u32::from(udp_len));
    let udp = [7000_u16, 5000, udp_len, pseudo].map(u16::to_be_bytes).concat();
    [to, &OURS, &[8, 0], &ip, &udp, payload].concat()
}

#[test]
fn the_hosts_stack_answers() {
    netns::within(|| {
        let (mut receiver, mut sender) = open_with_neighbour();
        assert!(sender.capabilities().csum && sender.capabilities().tso);
        host_mac(&mut receiver, &mut sender);
        assert_eq!(receiver.lost(), 0);
    });
}

#[test]
fn unfinished_checksums_cross_both_ways() {
    netns::within(|| {
        let (mut receiver, mut sender) = open_with_neighbour();
        let mac = host_mac(&mut receiver, &mut sender);
        let socket = UdpSocket::bind("10.77.0.1:5000").expect("bind");
        socket.set_read_timeout(Some(netns::PATIENCE)).expect("set the time-out");

        let frame = unfinished_datagram(&mac, b"to the host");
        let vnet =
            VnetHdr { flags: F_NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..VnetHdr::default() };
        let (head, tail) = frame.split_at(20);
        sender.send(&vnet, &[head, tail].map(GuestIoVec::from_slice)).expect("send");
        let mut payload = [0; 64];
        let (n, from) = socket.recv_from(&mut payload).expect("receive");
        assert_eq!(
            (&payload[..n], from.to_string()),
            (&b"to the host"[..], "10.77.0.2:7000".into())
        );

        socket.send_to(b"to the guest", from).expect("send");
        let (vnet, frame) = netns::receive(&mut receiver, |_, f| f.ends_with(b"to the guest"));
        assert_eq!((vnet.flags, vnet.csum_start, vnet.csum_offset), (F_NEEDS_CSUM, 34, 6));
        assert_eq!(frame[..6], OURS);
    });
}

/// An uplink on a tap with an address.
fn halves(address: &str) -> Halves {
    let (receiver, sender) = open();
    netns::ip(&format!("addr add {address} dev fwt0"));
    (Box::new(receiver), Box::new(sender))
}

fn transfer(client: &str, server: &str, to: &str) -> [Seen; 2] {
    let to = to.parse().expect("an address");
    let setup: [&(dyn Fn() -> Halves + Sync); 2] = [&|| halves(client), &|| halves(server)];
    netns::transfer(setup, to, |mut client, mut server, done| {
        let there = Direction { from: &mut *client.0, to: &mut *server.1, edit: &|_| {} };
        let back = Direction { from: &mut *server.0, to: &mut *client.1, edit: &|_| {} };
        netns::relay(there, back, done)
    })
}

#[test]
fn tcp_gso_packets_cross_whole() {
    for seen in transfer("10.77.0.1/24", "10.77.0.2/24", "10.77.0.2:80") {
        seen.assert_gso_packets();
    }
    // Without duplicate address detection, which would make the addresses wait.
    for seen in transfer("fd00:77::1/64 nodad", "fd00:77::2/64 nodad", "[fd00:77::2]:80") {
        seen.assert_gso_packets();
    }
}

#[test]
fn a_removed_tap_is_an_error() {
    netns::within(|| {
        let (mut receiver, mut sender) = open_with_neighbour();
        netns::ip("link delete dev fwt0");
        netns::wait(receiver.fd());
        for _ in 0..2 {
            // What the host had queued for us comes first.
            let error = loop {
                match receiver.recv() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("a removed tap looks idle"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.to_string(), "tap fwt0 was removed");
        }
        let frame = arp_request();
        let sent = sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&frame)]);
        assert!(matches!(sent, Err(SendError::Failed(_))));
    });
}

#[test]
fn a_tap_that_is_down_refuses_frames_and_recovers() {
    netns::within(|| {
        let (mut receiver, mut sender) = open_with_neighbour();
        netns::ip("link set dev fwt0 down");
        let frame = arp_request();
        let sent = sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&frame)]);
        assert!(matches!(sent, Err(SendError::Failed(_))));
        netns::ip("link set dev fwt0 up");
        host_mac(&mut receiver, &mut sender);
    });
}

#[test]
fn a_tap_of_the_operators_outlives_us() {
    netns::within(|| {
        netns::ip("tuntap add dev fwt0 mode tap");
        netns::ip("addr add 10.77.0.1/24 dev fwt0");
        for _ in 0..2 {
            let (mut receiver, mut sender) = open();
            host_mac(&mut receiver, &mut sender);
        }
        netns::ip("link show dev fwt0");
    });
}

#[test]
fn errors_name_the_device_and_the_way_out() {
    netns::within(|| {
        let error = |device| tap::open(device).map(|_| ()).expect_err("cannot be opened");
        for bad in ["", "sixteen-letters!", "a b", "a/b", "tap%d", ".."] {
            assert!(matches!(error(bad), OpenError::BadName { device } if device == bad));
        }
        assert!(matches!(error("lo"), OpenError::NotTap { device } if device == "lo"));
        let _halves = open();
        let busy = error("fwt0");
        assert!(matches!(busy, OpenError::Busy { .. }));
        assert!(busy.to_string().contains("\"fwt0\" is in use by another process"));
    });
}

#[test]
fn without_the_capability_the_error_says_so() {
    netns::within(|| {
        netns::become_nobody();
        let error = tap::open("fwt0").map(|_| ()).expect_err("cannot be opened");
        // Debian lets everybody open the device; not every machine does.
        let device = std::fs::File::options().read(true).write(true).open("/dev/net/tun");
        let missing = if device.is_ok() { "CAP_NET_ADMIN" } else { "access to /dev/net/tun" };
        let way_out = format!("no permission to open \"fwt0\"; run as root or with {missing}");
        assert_eq!(error.to_string(), way_out);
    });
}
