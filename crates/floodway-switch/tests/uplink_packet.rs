//! Packet uplinks on veth pairs of the real kernel, in network namespaces. Needs root and ip(8).

mod netns;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use floodway_switch::config::UplinkKind;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::uplink::packet::{self, PacketReceiver, PacketSender};
use floodway_switch::uplink::{self, OpenError, Receiver, SendError, Sender};
use floodway_wire::vnet::VnetHdr;
use netns::{Direction, Halves, Passing, Seen};

/// 802.1Q, priority 5, VLAN 77; and 802.1ad, VLAN 9.
const TAG: [u8; 4] = [0x81, 0x00, 0xa0, 77];
const SERVICE_TAG: [u8; 4] = [0x88, 0xa8, 0x00, 9];

fn open(device: &str) -> (PacketReceiver, PacketSender) {
    packet::open(device).expect("open the interface")
}

fn boxed(kind: UplinkKind, device: &str) -> Halves {
    uplink::open(kind, device).expect("open the uplink")
}

fn tap(address: &str) -> Halves {
    let halves = boxed(UplinkKind::Tap, "fwt0");
    netns::ip(&format!("addr add {address} dev fwt0"));
    halves
}

/// A broadcast frame of an EtherType for experiments, with `tags`.
fn frame(tags: &[u8], number: u8) -> Vec<u8> {
    let head = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7];
    [&head, tags, &[0x88, 0xb5], &[number; 50]].concat()
}

fn is_ours(frame: &[u8]) -> bool {
    frame[6..12] == [2, 0, 0, 0, 0, 7]
}

fn send(sender: &mut PacketSender, frame: &[u8]) -> Result<(), SendError> {
    sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(frame)])
}

#[test]
fn frames_arrive_in_order_with_their_tags() {
    netns::within(|| {
        netns::add_veth();
        let (mut receiver, _) = open("v1");
        let (_own_receiver, mut sender) = open("v0");
        let both = [SERVICE_TAG, TAG].concat();
        let sent: Vec<_> = (0..100)
            .map(|n| frame([&[][..], &TAG, &SERVICE_TAG, &both][usize::from(n) % 4], n))
            .collect();
        for frame in &sent {
            send(&mut sender, frame).expect("send");
        }
        for frame in &sent {
            let (vnet, got) = netns::receive(&mut receiver, |_, f| is_ours(f));
            assert_eq!((&got, vnet.needs_csum()), (frame, false));
        }
        assert_eq!(receiver.lost(), 0);
    });
}

#[test]
fn what_the_host_or_we_send_is_not_received() {
    netns::within(|| {
        netns::add_veth();
        let (mut here, mut sender) = open("v0");
        let (mut there, mut back) = open("v1");
        send(&mut sender, &frame(&[], 1)).expect("send");
        netns::receive(&mut there, |_, f| is_ours(f));
        send(&mut back, &frame(&[], 2)).expect("send");
        // Ours would have been queued before this one.
        let (_, first) = netns::receive(&mut here, |_, f| is_ours(f));
        assert_eq!(first, frame(&[], 2));
    });
}

#[test]
fn tcp_gso_packets_cross_whole() {
    // The client's stack is behind v0, and the uplink on v1.
    let client = || {
        netns::add_veth();
        netns::ip("addr add 10.77.0.1/24 dev v0");
        boxed(UplinkKind::Packet, "v1")
    };
    let server = || tap("10.77.0.2/24");
    let to = "10.77.0.2:80".parse().expect("an address");
    let seen = netns::transfer([&client, &server], to, |mut client, mut server, done| {
        let there = Direction { from: &mut *client.0, to: &mut *server.1, edit: &|_| {} };
        let back = Direction { from: &mut *server.0, to: &mut *client.1, edit: &|_| {} };
        netns::relay(there, back, done)
    });
    for direction in seen {
        direction.assert_gso_packets();
    }
}

/// Puts the frame into VLAN 77, as a guest with a VLAN interface would.
fn tag(passing: &mut Passing) {
    passing.frame.splice(12..12, TAG);
    shift(&mut passing.vnet, 4);
}

/// Checks that the frame is in VLAN 77, and takes it out.
fn untag(passing: &mut Passing) {
    assert_eq!(passing.frame[12..16], TAG);
    passing.frame.drain(12..16);
    shift(&mut passing.vnet, -4);
}

fn shift(vnet: &mut VnetHdr, by: i16) {
    if vnet.needs_csum() {
        vnet.csum_start = vnet.csum_start.wrapping_add_signed(by);
    }
    if vnet.hdr_len != 0 {
        vnet.hdr_len = vnet.hdr_len.wrapping_add_signed(by);
    }
}

/// Client, tap, tagged onto v0, v1, untagged to the other tap, server.
#[test]
fn tagged_gso_packets_cross_whole() {
    let (mut v0, mut v1) = netns::within(|| {
        netns::add_veth();
        (boxed(UplinkKind::Packet, "v0"), boxed(UplinkKind::Packet, "v1"))
    });
    let client = || tap("10.77.0.1/24");
    let server = || tap("10.77.0.2/24");
    let to = "10.77.0.2:80".parse().expect("an address");
    let seen = netns::transfer([&client, &server], to, |mut client, mut server, done| {
        thread::scope(|scope| {
            let far = scope.spawn(|| join(&mut v1, &mut server, done, &untag, &tag));
            let near = join(&mut client, &mut v0, done, &tag, &untag);
            [near, far.join().expect("the other relay")]
        })
    });
    for direction in seen.iter().flatten() {
        direction.assert_gso_packets();
    }
}

fn join(
    a: &mut Halves,
    b: &mut Halves,
    done: &AtomicBool,
    there: &dyn Fn(&mut Passing),
    back: &dyn Fn(&mut Passing),
) -> [Seen; 2] {
    let there = Direction { from: &mut *a.0, to: &mut *b.1, edit: there };
    let back = Direction { from: &mut *b.0, to: &mut *a.1, edit: back };
    let seen = netns::relay(there, back, done);
    done.store(true, Relaxed);
    seen
}

#[test]
fn what_the_queue_cannot_hold_is_counted() {
    netns::within(|| {
        netns::add_veth();
        let (mut receiver, _) = open("v1");
        let (_own_receiver, mut sender) = open("v0");
        let long = [frame(&[], 1), vec![0; 1400]].concat();
        // Several times what 16 MiB (the kernel doubles what is asked for) can hold.
        const SENT: u64 = 60_000;
        let mut sent = 0;
        for _ in 0..SENT {
            sent += u64::from(send(&mut sender, &long).is_ok());
        }
        let mut received = 0;
        while let Some(got) = receiver.recv().expect("receive") {
            received += u64::from(is_ours(got.frame));
        }
        let lost = receiver.lost();
        assert!(received > 0 && lost > 0, "{received} received, {lost} lost");
        assert!(received + lost <= sent + 100, "{received} received, {lost} lost of {sent}");
        assert_eq!(receiver.lost(), lost);
    });
}

#[test]
fn an_interface_that_goes_down_or_away_is_an_error() {
    for command in ["link set dev v1 down", "link delete dev v1"] {
        netns::within(|| {
            netns::add_veth();
            let (mut receiver, mut sender) = open("v1");
            netns::ip(command);
            netns::wait(receiver.fd());
            let error = loop {
                match receiver.recv() {
                    Ok(Some(_)) => {}
                    Ok(None) => netns::wait(receiver.fd()),
                    Err(error) => break error,
                }
            };
            assert!(error.to_string().starts_with("interface v1: "), "{error}");
            assert!(matches!(send(&mut sender, &frame(&[], 1)), Err(SendError::Failed(_))));
        });
    }
}

#[test]
fn too_long_for_the_interface_is_an_error() {
    netns::within(|| {
        netns::add_veth();
        let (_receiver, mut sender) = open("v0");
        let long = [frame(&[], 1), vec![0; 2000]].concat();
        assert!(matches!(send(&mut sender, &long), Err(SendError::Failed(_))));
    });
}

#[test]
fn errors_name_the_device_and_the_way_out() {
    netns::within(|| {
        let error = |device| packet::open(device).map(|_| ()).expect_err("cannot be opened");
        assert!(matches!(error("a b"), OpenError::BadName { .. }));
        assert!(matches!(error("v0"), OpenError::Missing { device } if device == "v0"));
        assert!(matches!(error("lo"), OpenError::NotEthernet { device } if device == "lo"));
        netns::ip("link add v0 type veth peer name v1");
        assert_eq!(
            error("v0").to_string(),
            "interface \"v0\" is down; run `ip link set dev v0 up`"
        );
        netns::ip("link set v0 up");
        netns::become_nobody();
        assert_eq!(
            error("v0").to_string(),
            "no permission to open \"v0\"; run as root or with CAP_NET_RAW"
        );
    });
}
