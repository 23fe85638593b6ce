//! What was acknowledged for a guest survives whatever its front-end does to its rings (R1).

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;

use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::{Guest, GuestConfig, message, wait_until};
use floodway_switch::uplink::{Receiver, Sender, packet};
use floodway_switch::vhost::features;
use floodway_wire::build::Link;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{MacAddr, arp, parse};

use crate::scene::{Scene, with_guest};
use crate::{bytes, offload, transfer};

/// More than the rings of the guest take.
const OWED: usize = 40_000;

/// A guest whose receive ring holds a few frames only, none of them larger than a segment.
pub fn small() -> GuestConfig {
    let config = GuestConfig { ring_size: 16, tx_slots: 16, ..GuestConfig::default() };
    let gso = features::GUEST_TSO4 | features::GUEST_TSO6;
    GuestConfig { features: config.features & !gso, ..config }
}

/// Runs `test` with a connection whose guest is owed [`OWED`] bytes, part of which wait in the port's queue.
pub fn with_owed_bytes(test: impl FnOnce(&Scene, TcpStream, TcpStream) + Send) {
    with_guest(small(), offload(true, true), |scene| {
        let (guest, host) = owe(scene);
        test(scene, guest, host);
    });
}

/// A connection, the guest's end and the host's, whose guest is deaf and is owed [`OWED`] bytes, part of which wait in the port's queue.
pub fn owe(scene: &Scene) -> (TcpStream, TcpStream) {
    let (mut guest, mut host) = scene.connection(false);
    transfer(&mut guest, &mut host, 100_000);
    transfer(&mut host, &mut guest, 100_000);
    wait_until("the guest's own acknowledgements", || scene.flows()[0].kept == 0);
    scene.vm.set_deaf(true);
    host.write_all(&bytes(OWED)).expect("write");
    wait_until("all of it to be acknowledged", || scene.flows()[0].kept as usize >= OWED);
    let waiting = scene.operator.status().ports[0].pending().0;
    assert!(waiting > 0, "some of it waits in the port's queue");
    (guest, host)
}

/// Stops the guest's rings as QEMU 7.2 does for a pause, and waits until the port has dropped what waited.
fn pause(scene: &Scene) {
    let mut frontend = scene.vm.frontend();
    let frontend = frontend.as_mut().expect("a front-end");
    let zero = 0_u64.to_ne_bytes();
    frontend.request(message::SET_STATUS, &zero, &[]).expect("the device stops");
    for index in [0, 1] {
        frontend.get_vring_base(index).expect("the ring stops");
    }
    wait_until("what waits to be dropped", || scene.operator.status().ports[0].pending().0 == 0);
}

/// The guest goes on, with the rings that it had or with others.
fn resume(scene: &Scene) {
    let mut frontend = scene.vm.frontend();
    let set_up = frontend.as_mut().expect("a front-end").set_up(&scene.vm.guest());
    set_up.expect("the switch takes the guest");
    scene.vm.set_deaf(false);
}

pub fn expect_owed(guest: &mut TcpStream) {
    let mut got = vec![0; OWED];
    guest.read_exact(&mut got).expect("read what was acknowledged");
    assert!(got == bytes(OWED), "the bytes differ from what was sent");
}

#[test]
fn a_pause_loses_nothing_that_was_acknowledged() {
    with_owed_bytes(|scene, mut guest, mut host| {
        pause(scene);
        let epoch = scene.seen.epoch.load(Relaxed);
        resume(scene);
        expect_owed(&mut guest);
        transfer(&mut guest, &mut host, 100_000);
        transfer(&mut host, &mut guest, 100_000);
        assert_eq!(scene.counter("aborted"), 0);
        assert_ne!(scene.seen.epoch.load(Relaxed), epoch);
        wait_until("the flow to be online", || scene.flows()[0].tx == "ACTIVE");
    });
}

#[test]
fn a_driver_that_is_loaded_again_gets_what_was_acknowledged() {
    with_owed_bytes(|scene, mut guest, mut host| {
        pause(scene);
        // Other rings, in other memory; the connections of the guest's kernel are the same.
        *scene.vm.guest() = Guest::new(small());
        resume(scene);
        expect_owed(&mut guest);
        transfer(&mut host, &mut guest, 100_000);
    });
}

#[test]
fn the_peer_of_a_guest_that_died_is_reset() {
    with_owed_bytes(|scene, _guest, mut host| {
        *scene.vm.frontend() = None;
        let error = host.read(&mut [0; 1]).expect_err("nothing comes from a dead guest");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        wait_until("the flow to be forgotten", || scene.flows().is_empty());
        assert_eq!(scene.counter("aborted"), 1);
    });
}

/// What a guest says when it has come to another host.
fn announcement() -> Vec<u8> {
    let own = "10.9.0.2".parse().expect("an address");
    let packet = arp::Packet {
        operation: arp::REQUEST,
        sender_mac: mac(1),
        sender_ip: own,
        target_mac: MacAddr::default(),
        target_ip: own,
    };
    Link::new(mac(1), MacAddr::BROADCAST).arp(&packet)
}

#[test]
fn what_was_acknowledged_follows_a_guest_that_has_moved_away() {
    with_owed_bytes(|scene, _guest, host| {
        pause(scene);
        let (mut network, mut sender) = packet::open("fwo0").expect("open the network's side");
        // From the network's side of the uplink.
        let frame = announcement();
        sender
            .send(&VnetHdr::default(), &[GuestIoVec::from_slice(&frame)])
            .expect("announce the guest");
        let mut got = BTreeMap::new();
        wait_until("all that was acknowledged", || {
            while let Some(received) = network.recv().expect("receive") {
                note_payload(received.frame, host_port(&host), &mut got);
            }
            covered(&got) >= OWED
        });
        assert_eq!(scene.counter("aborted"), 0);
    });
}

fn host_port(host: &TcpStream) -> u16 {
    host.local_addr().expect("an address").port()
}

/// Notes the place and length of the payload that a frame carries from port `from` to the guest.
fn note_payload(frame: &[u8], from: u16, got: &mut BTreeMap<u32, usize>) {
    let Ok(meta) = parse(frame, frame.len()) else { return };
    if frame[..6] != mac(1).0 || meta.flow.src_port != from || meta.payload_len == 0 {
        return;
    }
    // The network would look for the original source at the uplink.
    assert_eq!(frame[6] & 2, 2, "the source is a locally administered address");
    let seq = &frame[usize::from(meta.transport_offset) + 4..][..4];
    got.insert(u32::from_be_bytes(seq.try_into().expect("four bytes")), meta.payload_len as usize);
}

/// Bytes that the ranges in `got` cover.
fn covered(got: &BTreeMap<u32, usize>) -> usize {
    let (mut covered, mut end) = (0, 0);
    for (&seq, &len) in got {
        let next = (u64::from(seq) + len as u64).max(end);
        covered += (next - end.max(u64::from(seq))) as usize;
        end = next;
    }
    covered
}
